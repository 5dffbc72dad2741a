//! The IPv4 header (RFC 791). Used by the engine's ingress and egress.

use core::net::Ipv4Addr;

use crate::{ParseError, Sum};

/// TTL or hop limit of what we send, unless the program says another (RFC 1700's successor registry: 64).
pub const TTL: u8 = 64;

/// Bytes of a header without options, the only kind that is emitted.
pub const HEADER_LEN: usize = 20;

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// What an IP packet of either version carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Icmp,
    Tcp,
    Udp,
    Icmpv6,
    Other(u8),
}

impl Protocol {
    pub const fn from_raw(raw: u8) -> Protocol {
        match raw {
            1 => Protocol::Icmp,
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            58 => Protocol::Icmpv6,
            other => Protocol::Other(other),
        }
    }

    pub const fn raw(self) -> u8 {
        match self {
            Protocol::Icmp => 1,
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Icmpv6 => 58,
            Protocol::Other(other) => other,
        }
    }
}

/// An IPv4 header. Options are skipped when they come and never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Repr {
    pub src: Ipv4Addr,
    pub dst: Ipv4Addr,
    pub protocol: Protocol,
    pub ttl: u8,
    /// DSCP and ECN (RFC 2474, RFC 3168).
    pub traffic_class: u8,
    pub ident: u16,
    pub dont_fragment: bool,
    pub more_fragments: bool,
    /// Place of this fragment in its datagram, in units of 8 bytes.
    pub fragment_offset: u16,
    /// Bytes of the whole datagram, its header included.
    pub total_len: u16,
}

impl Ipv4Repr {
    /// The header, its checksum verified, and exactly the bytes that it claims (not the padding behind them).
    pub fn parse(bytes: &[u8]) -> Result<(Ipv4Repr, &[u8]), ParseError> {
        let (h, header_len) = Self::fixed_part(bytes)?;
        let header = bytes.get(..header_len).ok_or(ParseError::Truncated)?;
        if !Sum::of(header).is_valid() {
            return Err(ParseError::BadChecksum);
        }
        let total_len = u16::from_be_bytes([h[2], h[3]]);
        if usize::from(total_len) < header_len {
            return Err(ParseError::BadTotalLength);
        }
        let payload = bytes.get(header_len..usize::from(total_len)).ok_or(ParseError::Truncated)?;
        Ok((Self::fields(h, total_len), payload))
    }

    /// The header of a datagram that is quoted in an ICMP error: cut short behind its first bytes, and with a
    /// checksum that the quoting router has already changed, so neither is checked.
    pub fn parse_quoted(bytes: &[u8]) -> Result<(Ipv4Repr, &[u8]), ParseError> {
        let (h, header_len) = Self::fixed_part(bytes)?;
        let payload = bytes.get(header_len..).ok_or(ParseError::Truncated)?;
        Ok((Self::fields(h, u16::from_be_bytes([h[2], h[3]])), payload))
    }

    /// What every header has, and how long this one is with its options.
    #[inline]
    fn fixed_part(bytes: &[u8]) -> Result<(&[u8; HEADER_LEN], usize), ParseError> {
        let h = bytes.first_chunk::<HEADER_LEN>().ok_or(ParseError::Truncated)?;
        if h[0] >> 4 != 4 {
            return Err(ParseError::BadVersion);
        }
        let header_len = usize::from(h[0] & 0x0f) * 4;
        if header_len < HEADER_LEN {
            return Err(ParseError::BadHeaderLength);
        }
        Ok((h, header_len))
    }

    fn fields(h: &[u8; HEADER_LEN], total_len: u16) -> Ipv4Repr {
        let fragment = u16::from_be_bytes([h[6], h[7]]);
        Ipv4Repr {
            src: Ipv4Addr::new(h[12], h[13], h[14], h[15]),
            dst: Ipv4Addr::new(h[16], h[17], h[18], h[19]),
            protocol: Protocol::from_raw(h[9]),
            ttl: h[8],
            traffic_class: h[1],
            ident: u16::from_be_bytes([h[4], h[5]]),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: fragment & OFFSET_MASK,
            total_len,
        }
    }

    /// A piece of a datagram, not a whole one.
    pub const fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    pub const fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header, checksum included, to the front of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        let mut fragment = self.fragment_offset & OFFSET_MASK;
        if self.dont_fragment {
            fragment |= DONT_FRAGMENT;
        }
        if self.more_fragments {
            fragment |= MORE_FRAGMENTS;
        }
        let out = &mut out[..HEADER_LEN];
        out[0] = 0x45;
        out[1] = self.traffic_class;
        out[2..4].copy_from_slice(&self.total_len.to_be_bytes());
        out[4..6].copy_from_slice(&self.ident.to_be_bytes());
        out[6..8].copy_from_slice(&fragment.to_be_bytes());
        out[8] = self.ttl;
        out[9] = self.protocol.raw();
        out[10..12].copy_from_slice(&[0, 0]);
        out[12..16].copy_from_slice(&self.src.octets());
        out[16..20].copy_from_slice(&self.dst.octets());
        let checksum = Sum::of(out).checksum();
        out[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A TCP datagram of 20 payload bytes, whole.
    fn repr() -> Ipv4Repr {
        Ipv4Repr {
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst: Ipv4Addr::new(10, 0, 0, 2),
            protocol: Protocol::Tcp,
            ttl: 64,
            traffic_class: 0,
            ident: 7,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: 40,
        }
    }

    fn bytes_of(repr: Ipv4Repr) -> Vec<u8> {
        let mut bytes = vec![0xaa; usize::from(repr.total_len).max(HEADER_LEN)];
        repr.emit(&mut bytes);
        bytes
    }

    /// Makes a changed header's checksum right again.
    fn repair(bytes: &mut [u8]) {
        let len = usize::from(bytes[0] & 15) * 4;
        bytes[10..12].copy_from_slice(&[0, 0]);
        let checksum = Sum::of(&bytes[..len]).checksum();
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
    }

    #[test]
    fn each_fault_has_its_reason() {
        let good = bytes_of(repr());
        assert!(Ipv4Repr::parse(&good).is_ok());
        assert_eq!(Ipv4Repr::parse(&good[..19]), Err(ParseError::Truncated));
        assert_eq!(Ipv4Repr::parse(&good[..39]), Err(ParseError::Truncated));

        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Ipv4Repr::parse(&bytes).map(|_| ())
        };
        assert_eq!(with(&|b| b[0] = 0x65), Err(ParseError::BadVersion));
        assert_eq!(with(&|b| b[0] = 0x44), Err(ParseError::BadHeaderLength));
        assert_eq!(with(&|b| b[8] = 3), Err(ParseError::BadChecksum));
        assert_eq!(
            with(&|b| {
                b[2..4].copy_from_slice(&19u16.to_be_bytes());
                repair(b);
            }),
            Err(ParseError::BadTotalLength)
        );
    }

    #[test]
    fn options_are_skipped_and_padding_is_cut() {
        let mut bytes = bytes_of(Ipv4Repr { total_len: 44, ..repr() });
        bytes[0] = 0x46;
        repair(&mut bytes);
        bytes.extend_from_slice(&[0; 16]);
        let (parsed, payload) = Ipv4Repr::parse(&bytes).expect("good header");
        assert_eq!(parsed.total_len, 44);
        assert_eq!(payload.len(), 20);
    }

    #[test]
    fn fragments_say_so() {
        assert!(!repr().is_fragment());
        assert!(Ipv4Repr { more_fragments: true, ..repr() }.is_fragment());
        assert!(Ipv4Repr { fragment_offset: 185, ..repr() }.is_fragment());
    }

    proptest! {
        #[test]
        fn emit_then_parse(
            addrs: [[u8; 4]; 2], protocol: u8, ttl: u8, traffic_class: u8, ident: u16, df: bool, mf: bool,
            fragment_offset in 0u16..0x2000, total_len in 20u16..300,
        ) {
            let repr = Ipv4Repr {
                src: Ipv4Addr::from(addrs[0]),
                dst: Ipv4Addr::from(addrs[1]),
                protocol: Protocol::from_raw(protocol),
                ttl,
                traffic_class,
                ident,
                dont_fragment: df,
                more_fragments: mf,
                fragment_offset,
                total_len,
            };
            let bytes = bytes_of(repr);
            prop_assert_eq!(Ipv4Repr::parse(&bytes), Ok((repr, &bytes[20..])));
            prop_assert_eq!(Ipv4Repr::parse_quoted(&bytes[..20]), Ok((repr, &[][..])));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), repaired: bool) {
            if repaired && bytes.len() >= 60 {
                bytes[0] |= 0x45;
                repair(&mut bytes);
            }
            let _ = Ipv4Repr::parse(&bytes);
            let _ = Ipv4Repr::parse_quoted(&bytes);
        }
    }
}
