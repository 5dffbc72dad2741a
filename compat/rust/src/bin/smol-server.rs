//! An echo on smol, whose reactor makes its system calls by rustix: with instructions of its own, past the C library, which the
//! sockets themselves come from.
use smol::io;
use smol::net::TcpListener;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).expect("an address");
    smol::block_on(async {
        let listener = TcpListener::bind(address).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            smol::spawn(async move { io::copy(stream.clone(), stream).await }).detach();
        }
    })
}
