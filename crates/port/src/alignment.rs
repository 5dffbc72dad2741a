//! Where packets lie in a buffer: so that the payload of a TCP segment begins on a cache line.
//!
//! The kernel copies packets with one string instruction, which some processors do more slowly when source or destination
//! is not aligned; and a payload behind 76 bytes of headers is not when the packet is.

use crate::virtio_net;
use toe_wire::tcp;
use toe_wire::{eth, ipv4};

/// Where payloads begin: on a multiple of this.
const ALIGN: usize = 64;
/// Ethernet, IPv4 and TCP with timestamps, behind the virtio-net header.
const HEADERS: usize =
    virtio_net::HEADER_LEN + eth::HEADER_LEN + ipv4::HEADER_LEN + tcp::HEADER_LEN + TIMESTAMPS;
/// The timestamps option, padded (RFC 7323 appendix A).
const TIMESTAMPS: usize = 12;
/// Bytes left free in front of a packet.
const LEAD: usize = HEADERS.next_multiple_of(ALIGN) - HEADERS;
/// Bytes more than packets have that a buffer needs, wherever the allocator puts it.
pub(crate) const SLACK: usize = ALIGN + LEAD;

/// Where in `buffer` its first packet goes.
pub(crate) fn first(buffer: &[u8]) -> usize {
    buffer.as_ptr().align_offset(ALIGN) + LEAD
}

/// Where the next packet goes after one that ends at `end`, in a buffer whose first one is at `first`.
pub(crate) fn next(first: usize, end: usize) -> usize {
    first + (end - first).next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_aligned_wherever_the_buffer_lies() {
        let memory = vec![0u8; 4096];
        for shift in 0..ALIGN {
            let buffer = &memory[shift..];
            let payload = |packet: usize| (buffer.as_ptr() as usize + packet + HEADERS) % ALIGN;
            let (first, second) = (first(buffer), next(first(buffer), first(buffer) + 1500));
            assert!(first < SLACK && second >= first + 1500);
            assert_eq!([payload(first), payload(second)], [0, 0]);
        }
    }
}
