//! The mark that a router sets instead of dropping a packet (RFC 3168 section 5): Congestion Experienced. Used by
//! [`super::lane::Lane`] on frames that found a long queue.

use toe_wire::{EthRepr, EtherType, eth};

const ECN: u8 = 0b11;
const NOT_ECT: u8 = 0b00;
const IPV4_CHECKSUM: usize = eth::HEADER_LEN + 10;

/// Marks an IPv4 packet whose sender can use the mark; `false`: it is left as it was.
pub(super) fn mark(frame: &mut [u8]) -> bool {
    let is_ipv4 = EthRepr::parse(frame).is_ok_and(|(link, _)| link.ethertype == EtherType::Ipv4);
    if !is_ipv4 || frame.len() < IPV4_CHECKSUM + 2 {
        return false;
    }
    let (version, tos) = (frame[eth::HEADER_LEN], frame[eth::HEADER_LEN + 1]);
    if tos & ECN == NOT_ECT {
        return false;
    }
    let marked = tos | ECN;
    frame[eth::HEADER_LEN + 1] = marked;
    // RFC 1624 eqn. 3: HC' = ~(~HC + ~m + m').
    let word = |low: u8| u16::from_be_bytes([version, low]);
    let old = u16::from_be_bytes([frame[IPV4_CHECKSUM], frame[IPV4_CHECKSUM + 1]]);
    let sum = u32::from(!old) + u32::from(!word(tos)) + u32::from(word(marked));
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    frame[IPV4_CHECKSUM..IPV4_CHECKSUM + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    true
}
