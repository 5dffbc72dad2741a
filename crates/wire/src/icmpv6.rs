//! ICMPv6: echo and errors (RFC 4443), neighbour discovery (RFC 4861). Used by the engine's control plane.
//!
//! Whoever parses neighbour discovery must look at the hop limit, too: only 255 says that the message was sent on this link
//! (RFC 4861 section 7.1).

use core::net::Ipv6Addr;

use toe_base::Addr;

use crate::checksum::pseudo_header_sum;
use crate::{MacAddr, ParseError, Protocol, Sum};

/// Bytes before the payload of an echo or an error.
pub const HEADER_LEN: usize = 8;
/// Bytes of a neighbour message with its one option.
pub const NEIGHBOUR_LEN: usize = 32;
/// Code of "port unreachable" (RFC 4443 section 3.1).
pub const CODE_PORT: u8 = 4;
/// Hop limit of neighbour discovery.
pub const HOP_LIMIT: u8 = 255;

// Types (RFC 4443 section 2.1, RFC 4861 section 4).
const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

// Options of neighbour discovery (RFC 4861 section 4.6).
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

const OVERRIDE: u8 = 0x20;
const SOLICITED: u8 = 0x40;
const ROUTER: u8 = 0x80;

/// What an ICMPv6 message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv6Repr {
    EchoRequest {
        ident: u16,
        sequence: u16,
    },
    EchoReply {
        ident: u16,
        sequence: u16,
    },
    /// The payload of this and the next three quotes the packet that they are about.
    DestinationUnreachable {
        code: u8,
    },
    PacketTooBig {
        mtu: u32,
    },
    TimeExceeded {
        code: u8,
    },
    ParameterProblem {
        code: u8,
        pointer: u32,
    },
    NeighbourSolicitation {
        target: Ipv6Addr,
        /// Where the answer goes; absent from who makes sure that the target is nobody's yet.
        source_mac: Option<MacAddr>,
    },
    NeighbourAdvertisement(Advertisement),
    /// Routers' messages. The engine's routes are its configuration's or the kernel's.
    Routers,
}

/// A neighbour advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    pub target: Ipv6Addr,
    pub target_mac: Option<MacAddr>,
    pub is_router: bool,
    /// It answers a solicitation of ours.
    pub is_solicited: bool,
    /// It goes before what is known.
    pub overrides: bool,
}

impl Icmpv6Repr {
    /// The header, the checksum of the whole message verified, and the payload of an echo or an error.
    pub fn parse(message: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> Result<(Icmpv6Repr, &[u8]), ParseError> {
        let (h, payload) = message.split_first_chunk::<HEADER_LEN>().ok_or(ParseError::Truncated)?;
        if !checksum(message, src, dst)?.is_valid() {
            return Err(ParseError::BadChecksum);
        }
        let (kind, code) = (h[0], h[1]);
        let (first, second) = (u16::from_be_bytes([h[4], h[5]]), u16::from_be_bytes([h[6], h[7]]));
        let word = u32::from(first) << 16 | u32::from(second);
        let repr = match (kind, code) {
            (ECHO_REQUEST, 0) => Icmpv6Repr::EchoRequest { ident: first, sequence: second },
            (ECHO_REPLY, 0) => Icmpv6Repr::EchoReply { ident: first, sequence: second },
            (DESTINATION_UNREACHABLE, code) => Icmpv6Repr::DestinationUnreachable { code },
            // RFC 4443 section 3.2: the code is zero, and is not looked at.
            (PACKET_TOO_BIG, _) => Icmpv6Repr::PacketTooBig { mtu: word },
            (TIME_EXCEEDED, code) => Icmpv6Repr::TimeExceeded { code },
            (PARAMETER_PROBLEM, code) => Icmpv6Repr::ParameterProblem { code, pointer: word },
            (NEIGHBOUR_SOLICITATION, 0) => {
                let (target, options) = target(payload)?;
                let source_mac = link_address(options, SOURCE_LINK_ADDRESS)?;
                // RFC 4861 section 7.1.1
                let is_probe = src.is_unspecified();
                if is_probe && (source_mac.is_some() || !is_solicited_node(dst)) {
                    return Err(ParseError::Unsupported);
                }
                Icmpv6Repr::NeighbourSolicitation { target, source_mac }
            }
            (NEIGHBOUR_ADVERTISEMENT, 0) => {
                let (target, options) = target(payload)?;
                let is_solicited = h[4] & SOLICITED != 0;
                // RFC 4861 section 7.1.2
                if is_solicited && dst.is_multicast() {
                    return Err(ParseError::Unsupported);
                }
                Icmpv6Repr::NeighbourAdvertisement(Advertisement {
                    target,
                    target_mac: link_address(options, TARGET_LINK_ADDRESS)?,
                    is_router: h[4] & ROUTER != 0,
                    is_solicited,
                    overrides: h[4] & OVERRIDE != 0,
                })
            }
            (ROUTER_SOLICITATION | ROUTER_ADVERTISEMENT | REDIRECT, 0) => Icmpv6Repr::Routers,
            _ => return Err(ParseError::Unsupported),
        };
        Ok((repr, payload))
    }

    /// Bytes that [`Icmpv6Repr::emit`] writes before a payload.
    pub const fn header_len(&self) -> usize {
        match self {
            Icmpv6Repr::NeighbourSolicitation { source_mac: Some(_), .. }
            | Icmpv6Repr::NeighbourAdvertisement(Advertisement { target_mac: Some(_), .. }) => NEIGHBOUR_LEN,
            Icmpv6Repr::NeighbourSolicitation { .. } | Icmpv6Repr::NeighbourAdvertisement(_) => {
                NEIGHBOUR_LEN - 8
            }
            _ => HEADER_LEN,
        }
    }

    /// Writes the header to the front of `message`, with the checksum of all of `message`: the payload must already
    /// stand behind the header.
    pub fn emit(&self, message: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) {
        let pair = |a: u16, b: u16| (u32::from(a) << 16 | u32::from(b)).to_be_bytes();
        let (kind, code, word) = match *self {
            Icmpv6Repr::EchoRequest { ident, sequence } => (ECHO_REQUEST, 0, pair(ident, sequence)),
            Icmpv6Repr::EchoReply { ident, sequence } => (ECHO_REPLY, 0, pair(ident, sequence)),
            Icmpv6Repr::DestinationUnreachable { code } => (DESTINATION_UNREACHABLE, code, [0; 4]),
            Icmpv6Repr::PacketTooBig { mtu } => (PACKET_TOO_BIG, 0, mtu.to_be_bytes()),
            Icmpv6Repr::TimeExceeded { code } => (TIME_EXCEEDED, code, [0; 4]),
            Icmpv6Repr::ParameterProblem { code, pointer } => {
                (PARAMETER_PROBLEM, code, pointer.to_be_bytes())
            }
            Icmpv6Repr::NeighbourSolicitation { target, source_mac } => {
                put_neighbour(message, target, source_mac.map(|mac| (SOURCE_LINK_ADDRESS, mac)));
                (NEIGHBOUR_SOLICITATION, 0, [0; 4])
            }
            Icmpv6Repr::NeighbourAdvertisement(it) => {
                put_neighbour(message, it.target, it.target_mac.map(|mac| (TARGET_LINK_ADDRESS, mac)));
                let bit = |is: bool, bit: u8| if is { bit } else { 0 };
                let flags =
                    bit(it.is_router, ROUTER) | bit(it.is_solicited, SOLICITED) | bit(it.overrides, OVERRIDE);
                (NEIGHBOUR_ADVERTISEMENT, 0, [flags, 0, 0, 0])
            }
            Icmpv6Repr::Routers => (ROUTER_SOLICITATION, 0, [0; 4]),
        };
        message[0..4].copy_from_slice(&[kind, code, 0, 0]);
        message[4..8].copy_from_slice(&word);
        let sum = pseudo_header_sum(src, dst, Protocol::Icmpv6.raw(), message.len() as u32).with(message);
        message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
    }
}

fn checksum(message: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> Result<Sum, ParseError> {
    let len = u32::try_from(message.len()).map_err(|_| ParseError::Truncated)?;
    Ok(pseudo_header_sum(src, dst, Protocol::Icmpv6.raw(), len).with(message))
}

/// The target of a neighbour message, and its options. A multicast address is none (RFC 4861 section 7.1).
fn target(payload: &[u8]) -> Result<(Ipv6Addr, &[u8]), ParseError> {
    let (target, options) = payload.split_first_chunk::<16>().ok_or(ParseError::Truncated)?;
    let target = Ipv6Addr::from(*target);
    if target.is_multicast() { Err(ParseError::Unsupported) } else { Ok((target, options)) }
}

/// The hardware address in the option of this kind. Others are skipped; an empty one is a fault (RFC 4861 section 4.6).
fn link_address(mut options: &[u8], wanted: u8) -> Result<Option<MacAddr>, ParseError> {
    let mut found = None;
    while let [kind, units, rest @ ..] = options {
        let len = usize::from(*units) * 8;
        if len == 0 || options.len() < len {
            return Err(ParseError::BadOption);
        }
        if let (true, 8, Some(mac)) = (*kind == wanted, len, rest.first_chunk::<6>()) {
            found = Some(MacAddr(*mac));
        }
        options = &options[len..];
    }
    if options.is_empty() { Ok(found) } else { Err(ParseError::BadOption) }
}

fn put_neighbour(message: &mut [u8], target: Ipv6Addr, option: Option<(u8, MacAddr)>) {
    message[8..24].copy_from_slice(&target.octets());
    if let Some((kind, mac)) = option {
        message[24..26].copy_from_slice(&[kind, 1]);
        message[26..32].copy_from_slice(&mac.0);
    }
}

/// Where a neighbour solicitation for `addr` goes (RFC 4291 section 2.7.1).
pub fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

fn is_solicited_node(addr: Ipv6Addr) -> bool {
    solicited_node(addr) == addr
}

/// Every node of a link (RFC 4291 section 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The hardware address that a multicast address is sent to (RFC 2464 section 7).
pub fn multicast_mac(addr: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = addr.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// The link-local address of an interface with this hardware address (RFC 4291 appendix A, RFC 2464 section 5), in its zone.
pub fn link_local_of(mac: MacAddr, zone: u32) -> Addr {
    let [a, b, c, d, e, f] = mac.0;
    let bytes = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    Addr::v6(Ipv6Addr::from(bytes), zone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SRC: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const DST: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    fn any_repr() -> impl Strategy<Value = Icmpv6Repr> {
        let target = any::<[u8; 15]>().prop_map(|bytes| {
            let mut all = [0x20; 16];
            all[1..].copy_from_slice(&bytes);
            Ipv6Addr::from(all)
        });
        let mac = any::<Option<[u8; 6]>>().prop_map(|mac| mac.map(MacAddr));
        prop_oneof![
            any::<(u16, u16)>().prop_map(|(ident, sequence)| Icmpv6Repr::EchoRequest { ident, sequence }),
            any::<(u16, u16)>().prop_map(|(ident, sequence)| Icmpv6Repr::EchoReply { ident, sequence }),
            any::<u8>().prop_map(|code| Icmpv6Repr::DestinationUnreachable { code }),
            any::<u32>().prop_map(|mtu| Icmpv6Repr::PacketTooBig { mtu }),
            any::<u8>().prop_map(|code| Icmpv6Repr::TimeExceeded { code }),
            any::<(u8, u32)>().prop_map(|(code, pointer)| Icmpv6Repr::ParameterProblem { code, pointer }),
            (target.clone(), mac.clone())
                .prop_map(|(target, source_mac)| Icmpv6Repr::NeighbourSolicitation { target, source_mac }),
            (target, mac, any::<[bool; 3]>()).prop_map(|(target, target_mac, [a, b, c])| {
                let (is_router, is_solicited, overrides) = (a, b, c);
                Icmpv6Repr::NeighbourAdvertisement(Advertisement {
                    target,
                    target_mac,
                    is_router,
                    is_solicited,
                    overrides,
                })
            }),
        ]
    }

    proptest! {
        #[test]
        fn emit_then_parse(repr in any_repr(), payload in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut message = vec![0; repr.header_len()];
            if repr.header_len() == HEADER_LEN {
                message.extend_from_slice(&payload);
            }
            repr.emit(&mut message, SRC, DST);
            let (parsed, rest) = Icmpv6Repr::parse(&message, SRC, DST).expect("what was emitted");
            prop_assert_eq!((parsed, rest), (repr, &message[HEADER_LEN..]));
            prop_assert_eq!(Icmpv6Repr::parse(&message, DST, Ipv6Addr::LOCALHOST), Err(ParseError::BadChecksum));
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            kind in prop::sample::select(vec![1u8, 2, 128, 134, 135, 136]),
            mut bytes in proptest::collection::vec(any::<u8>(), 0..80),
            small: bool,
        ) {
            if bytes.len() >= HEADER_LEN {
                bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
                if small && bytes.len() > 26 {
                    bytes[25] &= 1;
                }
                let sum = pseudo_header_sum(SRC, DST, 58, bytes.len() as u32).with(&bytes);
                bytes[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
            }
            let _ = Icmpv6Repr::parse(&bytes, SRC, DST);
        }
    }

    fn parsed(
        repr: Icmpv6Repr,
        change: impl Fn(&mut Vec<u8>),
        src: Ipv6Addr,
        dst: Ipv6Addr,
    ) -> Option<ParseError> {
        let mut message = vec![0; repr.header_len()];
        repr.emit(&mut message, src, dst);
        change(&mut message);
        message[2..4].fill(0);
        let sum = pseudo_header_sum(src, dst, 58, message.len() as u32).with(&message);
        message[2..4].copy_from_slice(&sum.checksum().to_be_bytes());
        Icmpv6Repr::parse(&message, src, dst).err()
    }

    #[test]
    fn neighbour_messages_are_checked_as_rfc_4861_says() {
        let (none, mac) = (Ipv6Addr::UNSPECIFIED, Some(MacAddr([2, 0, 0, 0, 0, 1])));
        let ask = |source_mac| Icmpv6Repr::NeighbourSolicitation { target: DST, source_mac };
        let same = |_: &mut Vec<u8>| {};
        let refused = Some(ParseError::Unsupported);
        assert_eq!(parsed(ask(mac), same, SRC, solicited_node(DST)), None);
        assert_eq!(parsed(ask(None), same, none, solicited_node(DST)), None, "is it anybody's?");
        assert_eq!(
            parsed(ask(mac), same, none, solicited_node(DST)),
            refused,
            "from nobody, with an address"
        );
        assert_eq!(parsed(ask(None), same, none, DST), refused, "from nobody, to one");
        assert_eq!(parsed(ask(mac), |m| m[8] = 0xff, SRC, DST), refused, "no group has a hardware address");
        assert_eq!(parsed(ask(mac), |m| m[25] = 0, SRC, DST), Some(ParseError::BadOption), "an empty option");
        assert_eq!(parsed(ask(mac), |m| m[25] = 2, SRC, DST), Some(ParseError::BadOption), "a long option");
        assert_eq!(parsed(ask(None), |m| m.truncate(20), SRC, DST), Some(ParseError::Truncated));
        let mut message = vec![0; ask(mac).header_len()];
        ask(mac).emit(&mut message, SRC, DST);
        message[31] ^= 1;
        assert_eq!(Icmpv6Repr::parse(&message, SRC, DST).err(), Some(ParseError::BadChecksum));
        let answer = |is_solicited| {
            let (is_router, overrides) = (false, true);
            let it = Advertisement { target: SRC, target_mac: mac, is_router, is_solicited, overrides };
            Icmpv6Repr::NeighbourAdvertisement(it)
        };
        assert_eq!(parsed(answer(true), same, SRC, ALL_NODES), refused, "nobody asked for all");
        assert_eq!(parsed(answer(false), same, SRC, ALL_NODES), None);
    }

    #[test]
    fn addresses_that_are_made_of_others() {
        let addr: Ipv6Addr = "4037::01:800:200e:8c6c".parse().expect("RFC 4291's example");
        assert_eq!(solicited_node(addr).to_string(), "ff02::1:ff0e:8c6c");
        assert_eq!(multicast_mac(solicited_node(addr)), MacAddr([0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]));
        let local = link_local_of(MacAddr([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]), 3);
        assert_eq!(local.to_string(), "fe80::3656:78ff:fe9a:bcde%3", "RFC 2464 section 5");
    }
}
