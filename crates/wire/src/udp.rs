//! The UDP header (RFC 768). Used by the engine's ingress and egress, and by who hands datagrams to the kernel.

use crate::checksum::pseudo_header_sum;
use crate::link::PartialChecksum;
use crate::{ParseError, Protocol, Sum};
use toe_base::Addr;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;
/// Where the checksum stands.
const CHECKSUM: core::ops::Range<usize> = 6..8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRepr {
    pub src_port: u16,
    pub dst_port: u16,
}

impl UdpRepr {
    /// The header and the datagram's bytes; what stands behind those is cut off. Says nothing of the checksum.
    pub fn parse(bytes: &[u8]) -> Result<(UdpRepr, &[u8]), ParseError> {
        let h = bytes.first_chunk::<HEADER_LEN>().ok_or(ParseError::Truncated)?;
        let len = usize::from(u16::from_be_bytes([h[4], h[5]]));
        if len < HEADER_LEN {
            return Err(ParseError::BadTotalLength);
        }
        let text = bytes.get(HEADER_LEN..len).ok_or(ParseError::Truncated)?;
        let port = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
        Ok((UdpRepr { src_port: port(0), dst_port: port(2) }, text))
    }

    /// Writes the header of a datagram of `len` bytes (header included) to the front of `out`, without a checksum.
    pub fn emit(&self, len: u16, out: &mut [u8]) {
        out[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..6].copy_from_slice(&len.to_be_bytes());
        out[CHECKSUM].copy_from_slice(&[0, 0]);
    }
}

/// Whether a datagram is intact. Over IPv4 its sender may leave the checksum out, over IPv6 not (RFC 8200 section 8.1).
pub fn checksum_is_valid(bytes: &[u8], src: Addr, dst: Addr) -> bool {
    let Some(h) = bytes.first_chunk::<HEADER_LEN>() else { return false };
    let len = u16::from_be_bytes([h[4], h[5]]);
    let Some(datagram) = bytes.get(..usize::from(len)) else { return false };
    match h[CHECKSUM] {
        [0, 0] => src.is_v4(),
        _ => pseudo_header_sum(src, dst, Protocol::Udp.raw(), u32::from(len)).with(datagram).is_valid(),
    }
}

/// Stores the checksum of a whole datagram whose checksum field is zero. One that comes out as zero is sent as ones (RFC 768).
pub fn store_checksum(datagram: &mut [u8], src: Addr, dst: Addr) {
    let sum = pseudo_header_sum(src, dst, Protocol::Udp.raw(), datagram.len() as u32).with(datagram);
    datagram[CHECKSUM].copy_from_slice(&sent_as(sum).to_be_bytes());
}

fn sent_as(sum: Sum) -> u16 {
    match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// The same of a datagram whose bytes lie behind each other in two pieces, of which the first is its header.
pub fn store_checksum_of_parts(header: &mut [u8; HEADER_LEN], text: &[u8], src: Addr, dst: Addr) {
    let len = (HEADER_LEN + text.len()) as u32;
    let sum = pseudo_header_sum(src, dst, Protocol::Udp.raw(), len).with(header).with(text);
    header[CHECKSUM].copy_from_slice(&sent_as(sum).to_be_bytes());
}

/// Stores what a link needs that fills in the checksum itself; `start`: where the datagram begins in its frame.
pub fn store_pseudo_header(datagram: &mut [u8], src: Addr, dst: Addr, start: u16) -> PartialChecksum {
    let sum = pseudo_header_sum(src, dst, Protocol::Udp.raw(), datagram.len() as u32);
    datagram[CHECKSUM].copy_from_slice(&sum.folded().to_be_bytes());
    PartialChecksum { start, offset: CHECKSUM.start as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const V4: [Addr; 2] = [Addr::LOCALHOST_V4, Addr::UNSPECIFIED_V4];
    const V6: [Addr; 2] = [Addr::LOCALHOST_V6, Addr::UNSPECIFIED_V6];

    fn datagram(text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xaa; HEADER_LEN];
        bytes.extend_from_slice(text);
        let len = bytes.len() as u16;
        UdpRepr { src_port: 7, dst_port: 0x1234 }.emit(len, &mut bytes);
        bytes
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        let mut bytes = datagram(b"abc");
        assert_eq!(UdpRepr::parse(&bytes[..7]), Err(ParseError::Truncated));
        bytes[5] = 12;
        assert_eq!(UdpRepr::parse(&bytes), Err(ParseError::Truncated), "more than there is");
        bytes[5] = 7;
        assert_eq!(UdpRepr::parse(&bytes), Err(ParseError::BadTotalLength), "less than the header");
        bytes[5] = 9;
        assert_eq!(UdpRepr::parse(&bytes), Ok((UdpRepr { src_port: 7, dst_port: 0x1234 }, &b"a"[..])));
    }

    #[test]
    fn only_ipv4_does_without_a_checksum() {
        let bytes = datagram(b"abc");
        assert!(checksum_is_valid(&bytes, V4[0], V4[1]));
        assert!(!checksum_is_valid(&bytes, V6[0], V6[1]));
    }

    #[test]
    fn a_checksum_of_zero_is_sent_as_ones() {
        // Two bytes that make the sum 0xffff.
        let mut bytes = datagram(&[0, 0]);
        store_checksum(&mut bytes, V4[0], V4[1]);
        let (high, low) = (bytes[6], bytes[7]);
        let mut bytes = datagram(&[high, low]);
        store_checksum(&mut bytes, V4[0], V4[1]);
        assert_eq!(bytes[CHECKSUM], [0xff, 0xff]);
        assert!(checksum_is_valid(&bytes, V4[0], V4[1]));
    }

    proptest! {
        #[test]
        fn what_is_stored_is_valid_and_a_changed_byte_is_seen(
            text in proptest::collection::vec(any::<u8>(), 0..200),
            at: proptest::sample::Index,
            v6: bool,
        ) {
            let [src, dst] = if v6 { V6 } else { V4 };
            let mut bytes = datagram(&text);
            store_checksum(&mut bytes, src, dst);
            prop_assert!(checksum_is_valid(&bytes, src, dst));
            let at = at.index(bytes.len());
            // Not the length, without which there is nothing to sum up.
            prop_assume!(!(4..8).contains(&at));
            bytes[at] ^= 1;
            prop_assert!(!checksum_is_valid(&bytes, src, dst));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = UdpRepr::parse(&bytes);
            let _ = checksum_is_valid(&bytes, V4[0], V4[1]);
        }
    }
}
