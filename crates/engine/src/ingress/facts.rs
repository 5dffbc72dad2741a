//! What a capture's filter asks of a frame: addresses and ports, wherever they stand, however broken the rest is.
//! Called only while a capture runs.

use core::net::{IpAddr, Ipv6Addr};
use toe_abi::capture::Facts;
use toe_wire::eth;
use toe_wire::ipv4::Ipv4Repr;

const VLAN_TYPES: [u16; 2] = [0x8100, 0x88a8];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const IPV6_HEADER_LEN: usize = 40;
/// Headers of IPv6 before the transport's that are looked behind (RFC 8200 section 4.1 names no more kinds).
const EXTENSIONS_MAX: usize = 8;

/// What is known of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub facts: Facts,
    /// Where the transport header starts and the datagram ends, in bytes from the frame's start.
    pub transport: Option<(usize, usize)>,
}

pub fn facts_of(frame: &[u8]) -> Known {
    let mut known = Known::default();
    let mut at = eth::HEADER_LEN;
    let Some(mut ethertype) = word_at(frame, at - 2) else { return known };
    while VLAN_TYPES.contains(&ethertype) {
        at += 4;
        let Some(next) = word_at(frame, at - 2) else { return known };
        ethertype = next;
    }
    known.facts.ethertype = ethertype;
    let packet = frame.get(at..).unwrap_or_default();
    let transport = match ethertype {
        IPV4 => ipv4_facts(packet, &mut known.facts),
        IPV6 => ipv6_facts(packet, &mut known.facts),
        _ => None,
    };
    known.transport = transport.map(|(start, end)| (at + start, at + end));
    if let (Some((start, _)), Some(6 | 17)) = (known.transport, known.facts.protocol) {
        known.facts.ports = word_at(frame, start).zip(word_at(frame, start + 2));
    }
    known
}

fn ipv4_facts(packet: &[u8], facts: &mut Facts) -> Option<(usize, usize)> {
    let (ip, behind) = Ipv4Repr::parse_quoted(packet).ok()?;
    facts.addrs = Some((ip.src.into(), ip.dst.into()));
    facts.protocol = Some(ip.protocol.raw());
    let start = packet.len() - behind.len();
    let end = usize::from(ip.total_len).min(packet.len());
    (ip.fragment_offset == 0 && start <= end).then_some((start, end))
}

fn ipv6_facts(packet: &[u8], facts: &mut Facts) -> Option<(usize, usize)> {
    let header = packet.first_chunk::<IPV6_HEADER_LEN>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let addr = |at: usize| {
        let bytes: [u8; 16] = core::array::from_fn(|i| header[at + i]);
        IpAddr::V6(Ipv6Addr::from(bytes))
    };
    facts.addrs = Some((addr(8), addr(24)));
    let payload_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let end = (IPV6_HEADER_LEN + payload_len).min(packet.len());
    let (mut next, mut at) = (header[6], IPV6_HEADER_LEN);
    for _ in 0..EXTENSIONS_MAX {
        match next {
            // Hop-by-hop, routing and destination options say their length in units of 8 bytes beyond the first.
            0 | 43 | 60 => {
                let extension = packet.get(at..at + 2)?;
                next = extension[0];
                at += 8 + 8 * usize::from(extension[1]);
            }
            44 => {
                let fragment = packet.get(at..at + 4)?;
                next = fragment[0];
                at += 8;
                if u16::from_be_bytes([fragment[2], fragment[3]]) & 0xfff8 != 0 {
                    facts.protocol = Some(next);
                    return None;
                }
            }
            _ => break,
        }
    }
    facts.protocol = Some(next);
    (at <= end).then_some((at, end))
}

fn word_at(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*pair))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a TCP or UDP header.
    const PORTS: [u8; 4] = [0x9c, 0x40, 0, 80];

    fn frame(ethertype: &[u8], rest: &[&[u8]]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend_from_slice(ethertype);
        rest.iter().for_each(|part| frame.extend_from_slice(part));
        frame
    }

    fn ipv4(protocol: u8, offset: u8) -> [u8; 20] {
        [0x45, 0, 0, 24, 0, 0, 0, offset, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]
    }

    fn ipv6(next: u8, len: u8) -> [u8; 40] {
        let mut header = [0; 40];
        header[0] = 0x60;
        (header[5], header[6], header[23], header[39]) = (len, next, 1, 2);
        header
    }

    #[test]
    fn addresses_and_ports_behind_tags_and_extensions() {
        let plain = facts_of(&frame(&[8, 0], &[&ipv4(6, 0), &PORTS]));
        assert_eq!(plain.facts.ports, Some((40000, 80)));
        assert_eq!(plain.transport, Some((34, 38)));
        let tagged = facts_of(&frame(&[0x81, 0, 0, 5, 8, 0], &[&ipv4(17, 0), &PORTS]));
        assert_eq!((tagged.facts.ethertype, tagged.facts.ports), (0x0800, Some((40000, 80))));
        assert_eq!(tagged.transport, Some((38, 42)));
        let options = [6, 0, 0, 0, 0, 0, 0, 0];
        let six = facts_of(&frame(&[0x86, 0xdd], &[&ipv6(0, 12), &options, &PORTS]));
        assert_eq!((six.facts.protocol, six.facts.ports), (Some(6), Some((40000, 80))));
        assert_eq!(six.facts.addrs.map(|(from, _)| from.to_string()), Some("::1".to_owned()));
    }

    #[test]
    fn a_later_fragment_has_addresses_and_no_ports() {
        let later = facts_of(&frame(&[8, 0], &[&ipv4(6, 9), &PORTS]));
        assert_eq!((later.facts.ports, later.transport, later.facts.protocol), (None, None, Some(6)));
        let fragment = [6, 0, 0, 8, 0, 0, 0, 0];
        let six = facts_of(&frame(&[0x86, 0xdd], &[&ipv6(44, 12), &fragment, &PORTS]));
        assert_eq!((six.facts.ports, six.facts.protocol), (None, Some(6)));
    }

    #[test]
    fn frames_cut_anywhere_are_survived() {
        for whole in [
            frame(&[0x81, 0, 0, 5, 8, 0], &[&ipv4(6, 0), &PORTS]),
            frame(&[0x86, 0xdd], &[&ipv6(0, 12), &[6, 0, 0, 0, 0, 0, 0, 0], &PORTS]),
        ] {
            for len in 0..whole.len() {
                let cut = facts_of(&whole[..len]);
                assert_eq!(cut.facts.ports, None, "{len} of {} bytes", whole.len());
            }
        }
    }
}
