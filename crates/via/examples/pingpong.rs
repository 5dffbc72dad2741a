//! Ping-pong with EVIL in Rust: `pingpong wait PORT`, and `pingpong NODE PORT [ROUNDS]`. The same as examples/via/pingpong.c.

use toe_via::{Channel, Error};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [peer, port, rest @ ..] = words.as_slice() else {
        return Err("usage: pingpong wait|NODE PORT [ROUNDS]".into());
    };
    let waits = peer == "wait";
    let channel = Channel::open(if waits { "*" } else { peer }, port.parse()?)?;
    let mut ball = [0; 64];
    if waits {
        channel.wait()?;
        loop {
            match channel.recv(&mut ball) {
                Ok(len) => channel.send(&ball[..len])?,
                Err(Error::Closed) => break,
                Err(error) => return Err(error.into()),
            }
        }
        println!("served");
        return Ok(());
    }
    channel.connect()?;
    let mut len = 0;
    for round in 0..rest.first().map_or(Ok(10), |rounds| rounds.parse())? {
        channel.send(format!("ball {round}").as_bytes())?;
        len = channel.recv(&mut ball)?;
    }
    println!("{}", String::from_utf8_lossy(&ball[..len]));
    Ok(())
}
