//! Texts that somebody gives for the filter of a capture, and packets that it looks at on the engine's thread.

use super::Bytes;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use toe_abi::capture::{Facts, Filter};

/// Bytes of the packet, at the end.
const FACTS_LEN: usize = 48;
/// In the place of bytes that are no text stand words of the language: what is explored is not spelling alone.
const WORDS: [&str; 31] = [
    " and ",
    " or ",
    " not ",
    "&&",
    "||",
    "!",
    "(",
    ")",
    " src ",
    " dst ",
    " host ",
    " net ",
    " port ",
    " portrange ",
    " tcp ",
    " udp ",
    " icmp ",
    " icmp6 ",
    " arp ",
    " ip ",
    " ip6 ",
    " pid ",
    " dropped ",
    "10.0.0.1",
    "10.0.0.0/8",
    "::1",
    "fd00::/8",
    "80",
    "1-9",
    "0",
    "/0",
];

/// See the module.
pub fn run(data: &[u8]) {
    let (text, packet) = data.split_at(data.len().saturating_sub(FACTS_LEN));
    let text: String = text.iter().map(|byte| word(*byte)).collect();
    let Ok(filter) = Filter::parse(&text) else { return };
    let facts = facts(&mut Bytes(packet));
    let wants = filter.matches(&facts);
    // The same text in parentheses, and its opposite: unless they are too deep or too long.
    let same = Filter::parse(&format!("({text})"));
    let is_empty = text.trim().is_empty();
    assert!(is_empty || same.is_err() || same.is_ok_and(|same| same.matches(&facts) == wants), "{text}");
    let other = Filter::parse(&format!("not ({text})"));
    assert!(is_empty || other.is_err() || other.is_ok_and(|other| other.matches(&facts) != wants), "{text}");
}

fn word(byte: u8) -> String {
    match usize::from(byte).checked_sub(0x80) {
        Some(at) => WORDS[at % WORDS.len()].to_owned(),
        None => char::from(byte).to_string(),
    }
}

fn facts(bytes: &mut Bytes<'_>) -> Facts {
    let what = bytes.u8();
    let mut addr = || -> IpAddr {
        let bytes = bytes.array();
        if what & 1 != 0 { Ipv6Addr::from(bytes).into() } else { Ipv4Addr::new(10, 0, 0, bytes[0]).into() }
    };
    let addrs = (addr(), addr());
    Facts {
        ethertype: [0x0800, 0x86dd, 0x0806, 0x88cc][usize::from(what >> 1 & 3)],
        addrs: (what & 8 != 0).then_some(addrs),
        protocol: (what & 16 != 0).then(|| bytes.u8()),
        ports: (what & 32 != 0).then(|| (bytes.u16(), bytes.u16())),
        pids: [u32::from(bytes.u8()), u32::from(bytes.u8())],
        dropped: what & 64 != 0,
    }
}
