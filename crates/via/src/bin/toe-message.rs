//! `toe-message`: the load of `toe bench via`: the same messages by EVIL and by TCP sockets, and what copying alone costs.
//!
//! `toe-message serve|rr|flood --evil NODE:PORT | --tcp ADDR:PORT [--size BYTES] [--total BYTES] [--seconds S] [--warmup S] [--pause-us N]`,
//! `toe-message memcpy --size BYTES`. What was measured is printed as one line of JSON, in `toe-load`'s words.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use toe_via::Channel;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What a client says first: what it is going to send, and how.
const GREETING_LEN: usize = 24;
/// Longest message that a server makes room for: whoever reaches its port says how long his are.
const SIZE_MAX: u64 = 64 << 20;
const ECHO: u64 = 0;
const FLOOD: u64 = 1;
/// Sent back when a flood's bytes are all there.
const ACK: [u8; 8] = *b"all came";

/// The command line.
#[derive(Debug)]
struct Options {
    evil: Option<String>,
    tcp: Option<String>,
    size: usize,
    total: usize,
    seconds: f64,
    warmup: f64,
    /// Before each request, so that both sides sleep.
    pause: Duration,
}

/// One way to the other program.
enum Way {
    Evil(Box<Channel>),
    Tcp(TcpStream),
}

impl Way {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Way::Evil(channel) => Ok(channel.send(bytes)?),
            Way::Tcp(stream) => Ok(stream.write_all(bytes)?),
        }
    }

    /// Fills `bytes`; `false`: the other side has left.
    fn recv(&mut self, bytes: &mut [u8]) -> Result<bool> {
        match self {
            Way::Evil(channel) => match channel.recv(bytes) {
                Ok(len) if len == bytes.len() => Ok(true),
                Ok(_) => Err("a message of another length".into()),
                Err(toe_via::Error::Closed) => Ok(false),
                Err(error) => Err(error.into()),
            },
            Way::Tcp(stream) => match stream.read_exact(bytes) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
                Err(error) => Err(error.into()),
            },
        }
    }
}

fn options(words: &[String]) -> Result<Options> {
    let mut found = Options {
        evil: None,
        tcp: None,
        size: 64,
        total: 20_000_000,
        seconds: 1.0,
        warmup: 0.2,
        pause: Duration::ZERO,
    };
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a value", pair[0]).into()) };
        match name.as_str() {
            "--evil" => found.evil = Some(value.clone()),
            "--tcp" | "--connect" | "--listen" => found.tcp = Some(value.clone()),
            "--size" => found.size = value.parse()?,
            "--total" => found.total = value.parse()?,
            "--seconds" => found.seconds = value.parse()?,
            "--pause-us" => found.pause = Duration::from_micros(value.parse()?),
            "--warmup" => found.warmup = value.parse()?,
            other => return Err(format!("no such option: {other}").into()),
        }
    }
    if found.size == 0 { Err("--size must not be 0".into()) } else { Ok(found) }
}

fn evil(address: &str) -> Result<Channel> {
    let (node, port) = address.rsplit_once(':').ok_or("--evil takes NODE:PORT")?;
    Ok(Channel::open(node, port.parse()?)?)
}

fn serve(options: &Options) -> Result<()> {
    if let Some(address) = &options.evil {
        loop {
            let channel = evil(address)?;
            channel.wait()?;
            serve_client(Way::Evil(Box::new(channel)));
        }
    }
    serve_tcp(&TcpListener::bind(options.tcp.as_deref().ok_or("--evil or --tcp is missing")?)?)
}

fn serve_tcp(listener: &TcpListener) -> Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        serve_client(Way::Tcp(stream));
    }
}

/// What one client does is the end of its own connection, and of no other's.
fn serve_client(way: Way) {
    if let Err(error) = serve_one(way) {
        eprintln!("toe-message: a client: {error}");
    }
}

fn serve_one(mut way: Way) -> Result<()> {
    let mut greeting = [0; GREETING_LEN];
    if !way.recv(&mut greeting)? {
        return Ok(());
    }
    let mut words =
        greeting.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let [mode, size, total] = [(); 3].map(|()| words.next().unwrap_or_default());
    // Messages of no bytes would come for ever.
    if !(1..=SIZE_MAX).contains(&size) {
        return Err(format!("messages of {size} bytes: 1 to {SIZE_MAX} are served").into());
    }
    let mut message = vec![0; size as usize];
    let mut came = 0;
    while way.recv(&mut message)? {
        came += size;
        if mode == ECHO {
            way.send(&message)?;
        } else if came >= total {
            came = 0;
            way.send(&ACK)?;
        }
    }
    Ok(())
}

fn connect(options: &Options, mode: u64) -> Result<Way> {
    let mut way = match (&options.evil, &options.tcp) {
        (Some(address), _) => {
            let channel = evil(address)?;
            channel.connect()?;
            Way::Evil(Box::new(channel))
        }
        (None, Some(address)) => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Way::Tcp(stream)
        }
        (None, None) => return Err("--evil or --tcp is missing".into()),
    };
    let words = [mode, options.size as u64, options.total as u64];
    let greeting: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    way.send(&greeting)?;
    Ok(way)
}

fn rr(options: &Options) -> Result<()> {
    let mut way = connect(options, ECHO)?;
    let mut message = vec![7; options.size];
    let mut took_ns = Vec::with_capacity(10_000_000);
    let warm = Instant::now() + Duration::from_secs_f64(options.warmup);
    let (mut began, mut last) = (None, Instant::now());
    loop {
        if !options.pause.is_zero() {
            std::thread::sleep(options.pause);
            last = Instant::now();
        }
        way.send(&message)?;
        if !way.recv(&mut message)? {
            return Err("the server has left".into());
        }
        let now = Instant::now();
        match began {
            None if now >= warm => began = Some(now),
            None => {}
            Some(began) => {
                took_ns.push((now - last).as_nanos() as u32);
                if (now - began).as_secs_f64() >= options.seconds {
                    return report_rr(&mut took_ns, (now - began).as_secs_f64());
                }
            }
        }
        last = now;
    }
}

fn report_rr(took_ns: &mut [u32], seconds: f64) -> Result<()> {
    took_ns.sort_unstable();
    let us = |share: f64| f64::from(took_ns[((took_ns.len() - 1) as f64 * share) as usize]) / 1e3;
    let mean = took_ns.iter().map(|ns| f64::from(*ns)).sum::<f64>() / took_ns.len() as f64 / 1e3;
    let (requests, rate) = (took_ns.len(), took_ns.len() as f64 / seconds);
    println!(
        "{{\"mode\":\"rr\",\"requests\":{requests},\"seconds\":{seconds:.6},\"rate\":{rate:.3},\"latency_us\":{{\"min\":{:.3},\
         \"p50\":{:.3},\"p90\":{:.3},\"p99\":{:.3},\"p999\":{:.3},\"max\":{:.3},\"mean\":{mean:.3}}}}}",
        us(0.0),
        us(0.5),
        us(0.9),
        us(0.99),
        us(0.999),
        us(1.0)
    );
    Ok(())
}

fn flood(options: &Options) -> Result<()> {
    let mut way = connect(options, FLOOD)?;
    let message = vec![7; options.size];
    let messages = options.total.div_ceil(options.size);
    let warm = Instant::now() + Duration::from_secs_f64(options.warmup);
    let (mut began, mut transfers) = (None, 0u64);
    let mut ack = ACK;
    loop {
        for _ in 0..messages {
            way.send(&message)?;
        }
        if !way.recv(&mut ack)? {
            return Err("the server has left".into());
        }
        let now = Instant::now();
        match began {
            None if now >= warm => began = Some(now),
            None => {}
            Some(began) => {
                transfers += 1;
                let seconds = (now - began).as_secs_f64();
                if seconds >= options.seconds {
                    let sent = transfers * messages as u64;
                    let rate = sent as f64 / seconds;
                    println!(
                        "{{\"mode\":\"flood\",\"requests\":{sent},\"seconds\":{seconds:.6},\"rate\":{rate:.3},\
                         \"bytes_per_second\":{:.0},\"latency_us\":null}}",
                        rate * options.size as f64
                    );
                    return Ok(());
                }
            }
        }
    }
}

/// What it costs to copy such a message in memory, in the same words.
fn memcpy(options: &Options) -> Result<()> {
    let from = vec![7u8; options.size];
    let mut to = vec![0u8; options.size];
    let began = Instant::now();
    let mut copies = 0u64;
    while began.elapsed().as_secs_f64() < options.seconds {
        for _ in 0..64 {
            to.copy_from_slice(std::hint::black_box(&from));
            std::hint::black_box(&mut to);
        }
        copies += 64;
    }
    let seconds = began.elapsed().as_secs_f64();
    let rate = copies as f64 / seconds;
    println!(
        "{{\"mode\":\"memcpy\",\"requests\":{copies},\"seconds\":{seconds:.6},\"rate\":{rate:.3},\"bytes_per_second\":{:.0}}}",
        rate * options.size as f64
    );
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (mode, rest) = words.split_first().ok_or("usage: toe-message serve|rr|flood|memcpy ...")?;
    let options = options(rest)?;
    match mode.as_str() {
        "serve" => serve(&options),
        "rr" => rr(&options),
        "flood" => flood(&options),
        "memcpy" => memcpy(&options),
        other => Err(format!("no such mode: {other}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a client says of its messages, and however it leaves: the next one is served.
    #[test]
    fn a_bad_client_ends_nothing_but_its_own_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || serve_tcp(&listener).map_err(|error| error.to_string()));
        let greeted = |size: u64| {
            let mut stream = TcpStream::connect(address).expect("the server is there");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
            stream.write_all(&[ECHO, size, 0].map(u64::to_le_bytes).concat()).expect("a greeting");
            stream
        };
        for size in [u64::MAX, 1 << 62, SIZE_MAX + 1, 0] {
            let said = greeted(size).read(&mut [0; 8]);
            assert!(matches!(said, Ok(0) | Err(_)), "{size}: {said:?}");
        }
        // One that takes no answer, and leaves many: the server cannot send them.
        let mut rude = greeted(1);
        rude.write_all(&[7; 100_000]).expect("messages");
        drop(rude);
        let mut good = greeted(5);
        good.write_all(b"hello").expect("the server is there");
        let mut answer = [0; 5];
        good.read_exact(&mut answer).expect("an answer");
        assert_eq!(&answer, b"hello");
    }
}
