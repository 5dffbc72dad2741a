//! ICMP (RFC 792): echo, and the errors that concern a connection (RFC 1191, RFC 5927), with the segment that an error of
//! either family quotes. Used by the engine's control plane.

use toe_base::{Addr, Endpoint, SeqNum};

use crate::{Ipv4Repr, Ipv6Repr, ParseError, Protocol, Sum, ipv6};

/// Bytes before an ICMP message's payload.
pub const HEADER_LEN: usize = 8;

/// Code of "fragmentation needed and DF set", which carries the next hop's MTU (RFC 1191 section 4).
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;

/// Code of "port unreachable".
pub const CODE_PORT: u8 = 3;

/// The header of an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpRepr {
    EchoRequest {
        ident: u16,
        sequence: u16,
    },
    EchoReply {
        ident: u16,
        sequence: u16,
    },
    /// The payload quotes the datagram that did not arrive; see [`quoted_tcp`].
    DestinationUnreachable {
        code: u8,
        next_hop_mtu: u16,
    },
    /// Of this one and the next, too.
    TimeExceeded {
        code: u8,
    },
    ParameterProblem {
        code: u8,
        pointer: u8,
    },
}

/// What an ICMP error says of the TCP segment that caused it: enough to find the flow and to check that the error
/// belongs to something in flight (RFC 5927 section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedTcp {
    /// Who sent it.
    pub src: Endpoint,
    pub dst: Endpoint,
    pub seq: SeqNum,
    /// Bytes of the whole datagram.
    pub datagram_len: u32,
}

impl IcmpRepr {
    /// The header, the checksum of the whole message verified, and the payload.
    pub fn parse(message: &[u8]) -> Result<(IcmpRepr, &[u8]), ParseError> {
        let (h, payload) = message.split_first_chunk::<HEADER_LEN>().ok_or(ParseError::Truncated)?;
        if !Sum::of(message).is_valid() {
            return Err(ParseError::BadChecksum);
        }
        let first = u16::from_be_bytes([h[4], h[5]]);
        let second = u16::from_be_bytes([h[6], h[7]]);
        let repr = match (h[0], h[1]) {
            (8, 0) => IcmpRepr::EchoRequest { ident: first, sequence: second },
            (0, 0) => IcmpRepr::EchoReply { ident: first, sequence: second },
            (3, code) => IcmpRepr::DestinationUnreachable { code, next_hop_mtu: second },
            (11, code) => IcmpRepr::TimeExceeded { code },
            (12, code) => IcmpRepr::ParameterProblem { code, pointer: h[4] },
            _ => return Err(ParseError::Unsupported),
        };
        Ok((repr, payload))
    }

    pub const fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header to the front of `message`, with the checksum of all of `message`: the payload must already
    /// stand behind the header.
    pub fn emit(&self, message: &mut [u8]) {
        let (kind, code, first, second) = match *self {
            IcmpRepr::EchoRequest { ident, sequence } => (8, 0, ident, sequence),
            IcmpRepr::EchoReply { ident, sequence } => (0, 0, ident, sequence),
            IcmpRepr::DestinationUnreachable { code, next_hop_mtu } => (3, code, 0, next_hop_mtu),
            IcmpRepr::TimeExceeded { code } => (11, code, 0, 0),
            IcmpRepr::ParameterProblem { code, pointer } => (12, code, u16::from(pointer) << 8, 0),
        };
        message[0..4].copy_from_slice(&[kind, code, 0, 0]);
        message[4..6].copy_from_slice(&first.to_be_bytes());
        message[6..8].copy_from_slice(&second.to_be_bytes());
        let checksum = Sum::of(message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The TCP segment quoted in the payload of an ICMP error. At least 8 bytes of it are always there (RFC 792).
pub fn quoted_tcp(payload: &[u8]) -> Result<QuotedTcp, ParseError> {
    let (ip, segment) = Ipv4Repr::parse_quoted(payload)?;
    if ip.protocol != Protocol::Tcp || ip.fragment_offset != 0 {
        return Err(ParseError::Unsupported);
    }
    quoted(ip.src.into(), ip.dst.into(), u32::from(ip.total_len), segment)
}

/// The same of an ICMPv6 error, which came in `zone`.
pub fn quoted_tcp_v6(payload: &[u8], zone: u32) -> Result<QuotedTcp, ParseError> {
    let (ip, segment) = Ipv6Repr::parse_quoted(payload)?;
    if ip.protocol != Protocol::Tcp {
        return Err(ParseError::Unsupported);
    }
    let datagram_len = ipv6::HEADER_LEN as u32 + u32::from(ip.payload_len);
    quoted(Addr::v6(ip.src, zone), Addr::v6(ip.dst, zone), datagram_len, segment)
}

/// Who sent the UDP datagram that is quoted in the payload of an ICMP error, and to whom.
pub fn quoted_udp(payload: &[u8]) -> Result<(Endpoint, Endpoint), ParseError> {
    let (ip, datagram) = Ipv4Repr::parse_quoted(payload)?;
    if ip.protocol != Protocol::Udp || ip.fragment_offset != 0 {
        return Err(ParseError::Unsupported);
    }
    ends(ip.src.into(), ip.dst.into(), datagram)
}

/// The same of an ICMPv6 error, which came in `zone`.
pub fn quoted_udp_v6(payload: &[u8], zone: u32) -> Result<(Endpoint, Endpoint), ParseError> {
    let (ip, datagram) = Ipv6Repr::parse_quoted(payload)?;
    if ip.protocol != Protocol::Udp {
        return Err(ParseError::Unsupported);
    }
    ends(Addr::v6(ip.src, zone), Addr::v6(ip.dst, zone), datagram)
}

fn ends(src: Addr, dst: Addr, datagram: &[u8]) -> Result<(Endpoint, Endpoint), ParseError> {
    let [s0, s1, d0, d1] = *datagram.first_chunk::<4>().ok_or(ParseError::Truncated)?;
    let (src_port, dst_port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1]));
    Ok((Endpoint::new(src, src_port), Endpoint::new(dst, dst_port)))
}

fn quoted(src: Addr, dst: Addr, datagram_len: u32, segment: &[u8]) -> Result<QuotedTcp, ParseError> {
    let [s0, s1, d0, d1, q0, q1, q2, q3] = *segment.first_chunk::<8>().ok_or(ParseError::Truncated)?;
    Ok(QuotedTcp {
        src: Endpoint::new(src, u16::from_be_bytes([s0, s1])),
        dst: Endpoint::new(dst, u16::from_be_bytes([d0, d1])),
        seq: SeqNum::new(u32::from_be_bytes([q0, q1, q2, q3])),
        datagram_len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    fn any_repr() -> impl Strategy<Value = IcmpRepr> {
        prop_oneof![
            any::<(u16, u16)>().prop_map(|(ident, sequence)| IcmpRepr::EchoRequest { ident, sequence }),
            any::<(u16, u16)>().prop_map(|(ident, sequence)| IcmpRepr::EchoReply { ident, sequence }),
            any::<(u8, u16)>()
                .prop_map(|(code, next_hop_mtu)| IcmpRepr::DestinationUnreachable { code, next_hop_mtu }),
            any::<u8>().prop_map(|code| IcmpRepr::TimeExceeded { code }),
            any::<(u8, u8)>().prop_map(|(code, pointer)| IcmpRepr::ParameterProblem { code, pointer }),
        ]
    }

    proptest! {
        #[test]
        fn emit_then_parse(repr in any_repr(), payload in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut message = vec![0; repr.header_len()];
            message.extend_from_slice(&payload);
            repr.emit(&mut message);
            prop_assert_eq!(IcmpRepr::parse(&message), Ok((repr, payload.as_slice())));
            message[0] ^= 0x10;
            prop_assert_eq!(IcmpRepr::parse(&message), Err(ParseError::BadChecksum));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), repaired: bool) {
            let _ = quoted_tcp(&bytes);
            let _ = quoted_tcp_v6(&bytes, 1);
            if repaired && bytes.len() >= HEADER_LEN {
                bytes[2..4].copy_from_slice(&[0, 0]);
                let checksum = Sum::of(&bytes).checksum();
                bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
            }
            let _ = IcmpRepr::parse(&bytes);
        }
    }

    #[test]
    fn an_error_names_its_segment() {
        let ip = Ipv4Repr {
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst: Ipv4Addr::new(10, 9, 0, 1),
            protocol: Protocol::Tcp,
            ttl: 1,
            traffic_class: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: 1500,
        };
        let mut quoted = [0; 28];
        ip.emit(&mut quoted);
        quoted[20..28].copy_from_slice(&[0x1f, 0x90, 0, 80, 0, 0, 1, 0]);
        let (src, dst) = (Endpoint::new(ip.src, 8080), Endpoint::new(ip.dst, 80));
        let want = QuotedTcp { src, dst, seq: SeqNum::new(256), datagram_len: u32::from(ip.total_len) };
        assert_eq!(quoted_tcp(&quoted), Ok(want));
        assert_eq!(quoted_tcp(&quoted[..27]), Err(ParseError::Truncated));
    }

    #[test]
    fn an_error_of_ipv6_names_its_segment_in_its_zone() {
        let (src, dst) = (Addr::v6("fe80::1".parse().expect("an address"), 4), Addr::LOCALHOST_V6);
        let ip = Ipv6Repr {
            src: src.to_v6(),
            dst: dst.to_v6(),
            protocol: Protocol::Tcp,
            hop_limit: 1,
            traffic_class: 0,
            flow_label: 0,
            payload_len: 1460,
        };
        let mut quoted = [0; 48];
        ip.emit(&mut quoted);
        quoted[40..].copy_from_slice(&[0x1f, 0x90, 0, 80, 0, 0, 1, 0]);
        let (src, dst) = (Endpoint::new(src, 8080), Endpoint::new(dst, 80));
        let want = QuotedTcp { src, dst, seq: SeqNum::new(256), datagram_len: 1500 };
        assert_eq!(quoted_tcp_v6(&quoted, 4), Ok(want));
        quoted[6] = 17;
        assert_eq!(quoted_tcp_v6(&quoted, 4), Err(ParseError::Unsupported));
    }
}
