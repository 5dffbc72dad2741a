//! A server on tokio: a task for each connection. A line names a file's length in octets that are sent back; "ping" is a round trip
//! through another task; an empty line ends. SIGTERM ends it.
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().expect("an address");
    if let Some(upstream) = arguments.next() {
        return relay(&address, upstream).await;
    }
    let listener = TcpListener::bind(address).await?;
    let mut end = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                tokio::spawn(serve(stream));
            }
            _ = end.recv() => return Ok(()),
        }
    }
}

async fn serve(stream: TcpStream) -> std::io::Result<()> {
    let (input, mut output) = stream.into_split();
    let mut lines = BufReader::new(input).lines();
    while let Some(line) = lines.next_line().await? {
        if line.is_empty() {
            break;
        }
        // Through a thread that blocks, and back: the reactor is woken by an eventfd of its own.
        let answer = tokio::task::spawn_blocking(move || match line.parse::<usize>() {
            Ok(length) => (0..length).map(|n| (n % 251) as u8).collect(),
            Err(_) => line.into_bytes(),
        });
        output.write_all(&answer.await?).await?;
    }
    output.shutdown().await
}

/// Copies both ways between each client and the upstream, with half closes.
async fn relay(address: &str, upstream: String) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let mut end = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (mut client, _) = accepted?;
                let upstream = upstream.clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(upstream).await?;
                    tokio::io::copy_bidirectional(&mut client, &mut server).await
                });
            }
            _ = end.recv() => return Ok(()),
        }
    }
}
