//! Datagrams as bytes: built for the far end, taken apart when the stack sends them. Headers are written here and not by `toe_wire`'s UDP, so that
//! scripts can send any, and a mistake there shows here.

use super::{Checksum, Injected};
use crate::packet::{FAR_ADDR, STACK_ADDR};
use crate::stack::LISTEN_PORT;
use std::net::Ipv6Addr;
use toe_wire::icmp::IcmpRepr;
use toe_wire::ipv4::{self, Ipv4Repr, Protocol};
use toe_wire::ipv6::{self, Ipv6Repr};

pub const STACK_ADDR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
pub const FAR_ADDR6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
/// Where the far end sends from.
pub const FAR_PORT: u16 = 7001;
const UDP_LEN: usize = 8;
/// ICMP: nobody is at that port (RFC 792).
const PORT_UNREACHABLE: u8 = 3;

/// What the stack has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub packet: Vec<u8>,
    /// The link fills its checksum in.
    pub is_summed_later: bool,
}

/// The bytes of a datagram of this length, either way.
pub fn text(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// The Internet checksum (RFC 1071) of a datagram behind its pseudo-header: 0 where the datagram has a right one.
fn checksum(src: &[u8], dst: &[u8], datagram: &[u8]) -> u16 {
    let len = (datagram.len() as u32).to_be_bytes();
    let parts = [src, dst, &len, &[0, 17], datagram];
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The packet of the far end's that carries it.
pub fn injected(datagram: &Injected) -> Vec<u8> {
    let mut udp = vec![0; UDP_LEN];
    udp.extend(text(datagram.len));
    let len = datagram.header_len.unwrap_or(udp.len() as u16);
    udp[0..2].copy_from_slice(&FAR_PORT.to_be_bytes());
    udp[2..4].copy_from_slice(&datagram.to.to_be_bytes());
    udp[4..6].copy_from_slice(&len.to_be_bytes());
    let covered = usize::from(len).clamp(UDP_LEN, udp.len());
    let sum = match datagram.v6 {
        false => checksum(&FAR_ADDR.octets(), &STACK_ADDR.octets(), &udp[..covered]),
        true => checksum(&FAR_ADDR6.octets(), &STACK_ADDR6.octets(), &udp[..covered]),
    };
    let sum = match datagram.checksum {
        Checksum::Right if sum == 0 => 0xffff,
        Checksum::Right => sum,
        Checksum::None => 0,
        // Neither zero nor right.
        Checksum::Wrong => (sum ^ 0x5a5a).max(1),
    };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    let mut packet = if datagram.v6 { ipv6_header(udp.len()) } else { ipv4_header(udp.len()) };
    packet.extend(udp);
    packet
}

fn ipv4_header(len: usize) -> Vec<u8> {
    let mut header = vec![0; ipv4::HEADER_LEN];
    let repr = Ipv4Repr {
        src: FAR_ADDR,
        dst: STACK_ADDR,
        protocol: Protocol::Udp,
        ttl: 64,
        traffic_class: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: (ipv4::HEADER_LEN + len) as u16,
    };
    repr.emit(&mut header);
    header
}

fn ipv6_header(len: usize) -> Vec<u8> {
    let mut header = vec![0; ipv6::HEADER_LEN];
    let repr = Ipv6Repr {
        src: FAR_ADDR6,
        dst: STACK_ADDR6,
        protocol: Protocol::Udp,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
    };
    repr.emit(&mut header);
    header
}

/// Whether it is what the program has sent to the far end, of so many bytes.
pub fn is_reply(sent: &Sent, len: u32, ttl: Option<u8>) -> Result<(), String> {
    let (ip, udp) = ip_of(sent)?;
    if ip.protocol != Protocol::Udp {
        return Err(format!("the stack sent no datagram: {}", describe(sent)));
    }
    let header: &[u8; UDP_LEN] = udp.first_chunk().ok_or("the stack sent less than a UDP header")?;
    let two = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let mut wrong = Vec::new();
    let mut compare = |what: &str, got: usize, wanted: usize| {
        if got != wanted {
            wrong.push(format!("{what}: {got} instead of {wanted}"));
        }
    };
    compare("source port", two(0).into(), LISTEN_PORT.into());
    compare("destination port", two(2).into(), FAR_PORT.into());
    compare("length", two(4).into(), UDP_LEN + len as usize);
    compare("bytes", udp.len(), UDP_LEN + len as usize);
    if let Some(ttl) = ttl {
        compare("TTL", ip.ttl.into(), ttl.into());
    }
    if udp[UDP_LEN..] != text(len) {
        wrong.push("the bytes are not those that were sent".to_owned());
    }
    if !sent.is_summed_later && (two(6) == 0 || checksum(&ip.src.octets(), &ip.dst.octets(), udp) != 0) {
        wrong.push("the checksum is not there, or wrong".to_owned());
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
}

/// Whether it says that nobody is at the port to which `about` went, and quotes of that what a sender knows it by (RFC 792: the IP header and eight
/// bytes at least): ends, length, TTL, ports and text. That the rest of the headers is as it was RFC 1122 wants, and the engine has not.
pub fn is_unreachable(sent: &Sent, about: &[u8]) -> Result<(), String> {
    let (ip, message) = ip_of(sent)?;
    if ip.protocol != Protocol::Icmp {
        return Err(format!("the stack sent no ICMP message: {}", describe(sent)));
    }
    match IcmpRepr::parse(message) {
        Ok((IcmpRepr::DestinationUnreachable { code: PORT_UNREACHABLE, .. }, quoted)) => {
            let known_by = |packet: &[u8]| {
                let (ip, udp) = Ipv4Repr::parse_quoted(packet).ok()?;
                let (header, text) = udp.split_first_chunk::<UDP_LEN>()?;
                let ends = (ip.src, ip.dst, ip.protocol, ip.ttl, ip.total_len);
                Some((ends, header.first_chunk::<6>().copied(), text.to_vec()))
            };
            let quoted = known_by(quoted);
            let is_it = quoted.is_some() && quoted == known_by(about);
            if is_it { Ok(()) } else { Err("it does not quote what was sent".to_owned()) }
        }
        other => Err(format!("the stack sent another ICMP message: {other:?}")),
    }
}

fn ip_of(sent: &Sent) -> Result<(Ipv4Repr, &[u8]), String> {
    let parsed = Ipv4Repr::parse(&sent.packet);
    let (ip, rest) = parsed.map_err(|error| format!("the stack sent a packet that is none: {error:?}"))?;
    if (ip.src, ip.dst) != (STACK_ADDR, FAR_ADDR) {
        return Err(format!("the stack sent a packet from {} to {}", ip.src, ip.dst));
    }
    Ok((ip, rest))
}

/// In a few words.
pub fn describe(sent: &Sent) -> String {
    match Ipv4Repr::parse(&sent.packet) {
        Ok((ip, rest)) => format!("{:?} of {} bytes to {}", ip.protocol, rest.len(), ip.dst),
        Err(_) => format!("a packet of {} bytes", sent.packet.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::Addr;
    use toe_wire::udp;

    const PLAIN: Injected =
        Injected { v6: false, len: 5, to: LISTEN_PORT, checksum: Checksum::Right, header_len: None };

    #[test]
    fn what_is_built_is_as_toe_wire_has_it() {
        for (v6, at) in [(false, ipv4::HEADER_LEN), (true, ipv6::HEADER_LEN)] {
            let ends = match v6 {
                false => (Addr::v4(FAR_ADDR), Addr::v4(STACK_ADDR)),
                true => (Addr::v6(FAR_ADDR6, 0), Addr::v6(STACK_ADDR6, 0)),
            };
            let is_valid = |checksum| {
                let packet = injected(&Injected { v6, checksum, ..PLAIN });
                udp::checksum_is_valid(&packet[at..], ends.0, ends.1)
            };
            assert!(is_valid(Checksum::Right) && !is_valid(Checksum::Wrong));
            assert_eq!(is_valid(Checksum::None), !v6);
        }
        let packet = injected(&PLAIN);
        let (header, bytes) = udp::UdpRepr::parse(&packet[ipv4::HEADER_LEN..]).expect("a datagram");
        assert_eq!((header.src_port, header.dst_port, bytes), (FAR_PORT, LISTEN_PORT, &text(5)[..]));
    }
}
