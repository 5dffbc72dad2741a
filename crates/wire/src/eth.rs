//! Ethernet II framing (RFC 894). Used first by the engine's ingress, last by its egress.

use crate::{MacAddr, ParseError};

/// Bytes of an Ethernet header; an 802.1Q tag is not part of it.
pub const HEADER_LEN: usize = 14;

/// What an Ethernet frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EtherType {
    Ipv4,
    Arp,
    Ipv6,
    /// An 802.1Q tag follows ([`crate::vlan`]); what is behind it may belong to another network.
    Vlan,
    Other(u16),
}

impl EtherType {
    pub const fn from_raw(raw: u16) -> EtherType {
        match raw {
            0x0800 => EtherType::Ipv4,
            0x0806 => EtherType::Arp,
            0x86dd => EtherType::Ipv6,
            0x8100 => EtherType::Vlan,
            other => EtherType::Other(other),
        }
    }

    pub const fn raw(self) -> u16 {
        match self {
            EtherType::Ipv4 => 0x0800,
            EtherType::Arp => 0x0806,
            EtherType::Ipv6 => 0x86dd,
            EtherType::Vlan => 0x8100,
            EtherType::Other(other) => other,
        }
    }
}

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthRepr {
    pub dst: MacAddr,
    pub src: MacAddr,
    pub ethertype: EtherType,
}

impl EthRepr {
    /// The header and what follows it (with the padding of short frames, which Ethernet cannot tell from payload).
    pub fn parse(frame: &[u8]) -> Result<(EthRepr, &[u8]), ParseError> {
        let (header, payload) = frame.split_first_chunk::<HEADER_LEN>().ok_or(ParseError::Truncated)?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let repr = EthRepr {
            dst: MacAddr([d0, d1, d2, d3, d4, d5]),
            src: MacAddr([s0, s1, s2, s3, s4, s5]),
            ethertype: EtherType::from_raw(u16::from_be_bytes([t0, t1])),
        };
        Ok((repr, payload))
    }

    pub const fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header to the front of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        out[0..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        out[12..14].copy_from_slice(&self.ethertype.raw().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn emit_then_parse(dst: [u8; 6], src: [u8; 6], raw: u16, payload in proptest::collection::vec(any::<u8>(), 0..60)) {
            let repr = EthRepr { dst: MacAddr(dst), src: MacAddr(src), ethertype: EtherType::from_raw(raw) };
            prop_assert_eq!(repr.ethertype.raw(), raw);
            let mut frame = vec![0; repr.header_len()];
            repr.emit(&mut frame);
            frame.extend_from_slice(&payload);
            prop_assert_eq!(EthRepr::parse(&frame), Ok((repr, payload.as_slice())));
        }
    }

    #[test]
    fn a_short_frame_is_truncated() {
        assert_eq!(EthRepr::parse(&[0; 13]), Err(ParseError::Truncated));
        assert_eq!(EthRepr::parse(&[]), Err(ParseError::Truncated));
    }
}
