//! The statements of datagrams: `bind`, `inject udp`, `receive`, `reply`, `expect udp`, `expect unreachable`.

use super::{Checksum, DatagramAct, Injected};
use crate::parse::{Words, Wrong};
use crate::stack::LISTEN_PORT;

/// The statement that begins with this verb, which has been read; `None`: it is none of datagrams.
pub(crate) fn act(verb: &str, words: &mut Words<'_>) -> Result<Option<DatagramAct>, Wrong> {
    Ok(Some(match verb {
        "bind" => DatagramAct::Bind,
        "inject" if words.take("udp") => DatagramAct::Inject(injected(words)?),
        "receive" if words.take("nothing") => DatagramAct::Receive(None),
        "receive" => DatagramAct::Receive(Some(words.number("how many bytes, or `nothing`")?)),
        "reply" => DatagramAct::Reply(words.number("how many bytes")?),
        "expect" if words.take("unreachable") => DatagramAct::ExpectUnreachable,
        "expect" if words.take("udp") => {
            if !words.take("len") {
                return words.wrong("`len` and how many bytes");
            }
            let len = words.number("bytes")?;
            let ttl = if words.take("ttl") { Some(words.number("a TTL")?) } else { None };
            DatagramAct::Expect { len, ttl }
        }
        _ => return Ok(None),
    }))
}

fn injected(words: &mut Words<'_>) -> Result<Injected, Wrong> {
    let v6 = words.take("ipv6");
    let mut injected = Injected { v6, len: 0, to: LISTEN_PORT, checksum: Checksum::Right, header_len: None };
    while let Some(part) = words.peek() {
        words.next();
        match part {
            "len" => injected.len = words.number("bytes")?,
            "to" => injected.to = words.number("a port")?,
            "length" => injected.header_len = Some(words.number("the length that the header says")?),
            "no-checksum" => injected.checksum = Checksum::None,
            "bad-checksum" => injected.checksum = Checksum::Wrong,
            _ => {
                words.back();
                return words.wrong("len N, to PORT, length N, no-checksum or bad-checksum");
            }
        }
    }
    Ok(injected)
}
