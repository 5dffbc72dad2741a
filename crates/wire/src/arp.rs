//! ARP for IPv4 over Ethernet (RFC 826). Used by the engine's control plane.

use core::net::Ipv4Addr;

use crate::{MacAddr, ParseError};

/// Bytes of an ARP message for IPv4 over Ethernet.
pub const MESSAGE_LEN: usize = 28;

/// Hardware type Ethernet, protocol IPv4, address lengths 6 and 4: the only combination spoken here.
const FIXED_PART: [u8; 6] = [0x00, 0x01, 0x08, 0x00, 6, 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    Request,
    Reply,
}

/// An ARP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpRepr {
    pub operation: ArpOperation,
    pub sender_mac: MacAddr,
    pub sender_ip: Ipv4Addr,
    pub target_mac: MacAddr,
    pub target_ip: Ipv4Addr,
}

impl ArpRepr {
    /// The message at the front of `bytes`; Ethernet padding behind it is ignored.
    pub fn parse(bytes: &[u8]) -> Result<ArpRepr, ParseError> {
        let message = bytes.first_chunk::<MESSAGE_LEN>().ok_or(ParseError::Truncated)?;
        if message[0..6] != FIXED_PART {
            return Err(ParseError::Unsupported);
        }
        let operation = match u16::from_be_bytes([message[6], message[7]]) {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            _ => return Err(ParseError::Unsupported),
        };
        let mac = |at: usize| {
            MacAddr([
                message[at],
                message[at + 1],
                message[at + 2],
                message[at + 3],
                message[at + 4],
                message[at + 5],
            ])
        };
        let ip = |at: usize| Ipv4Addr::new(message[at], message[at + 1], message[at + 2], message[at + 3]);
        Ok(ArpRepr {
            operation,
            sender_mac: mac(8),
            sender_ip: ip(14),
            target_mac: mac(18),
            target_ip: ip(24),
        })
    }

    pub const fn header_len(&self) -> usize {
        MESSAGE_LEN
    }

    /// Writes the message to the front of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        let operation: u16 = match self.operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        };
        out[0..6].copy_from_slice(&FIXED_PART);
        out[6..8].copy_from_slice(&operation.to_be_bytes());
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..28].copy_from_slice(&self.target_ip.octets());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn emit_then_parse(reply: bool, sm: [u8; 6], si: [u8; 4], tm: [u8; 6], ti: [u8; 4], padding in 0usize..20) {
            let repr = ArpRepr {
                operation: if reply { ArpOperation::Reply } else { ArpOperation::Request },
                sender_mac: MacAddr(sm),
                sender_ip: Ipv4Addr::from(si),
                target_mac: MacAddr(tm),
                target_ip: Ipv4Addr::from(ti),
            };
            let mut bytes = vec![0; repr.header_len() + padding];
            repr.emit(&mut bytes);
            prop_assert_eq!(ArpRepr::parse(&bytes), Ok(repr));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = ArpRepr::parse(&bytes);
        }
    }

    #[test]
    fn other_hardware_is_unsupported() {
        let mut bytes = [0; MESSAGE_LEN];
        bytes[0..6].copy_from_slice(&[0, 6, 8, 0, 6, 4]);
        assert_eq!(ArpRepr::parse(&bytes), Err(ParseError::Unsupported));
    }
}
