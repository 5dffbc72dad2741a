//! What is to be seen of a frame with a datagram, or a piece of one.

use std::ops::Range;
use toe_base::Addr;
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::ipv6::{Body, Ipv6Repr};
use toe_wire::udp;

const ETHERNET: usize = 14;

/// A packet of UDP.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) src: Addr,
    pub(super) dst: Addr,
    /// Bytes of the packet, its header included.
    pub(super) len: usize,
    pub(super) is_piece: bool,
    /// It has the header of the datagram, and stands there in the frame with what follows it.
    pub(super) head: Option<Range<usize>>,
}

impl Seen {
    pub(super) fn parse(frame: &[u8]) -> Option<Seen> {
        let (link, packet) = EthRepr::parse(frame).ok()?;
        match link.ethertype {
            EtherType::Ipv4 => {
                let (ip, body) = Ipv4Repr::parse(packet).ok()?;
                let is_first = ip.fragment_offset == 0;
                let at = ETHERNET + usize::from(ip.total_len) - body.len();
                (ip.protocol == Protocol::Udp).then(|| Seen {
                    src: ip.src.into(),
                    dst: ip.dst.into(),
                    len: ip.total_len.into(),
                    is_piece: ip.is_fragment(),
                    head: is_first.then(|| at..at + body.len()),
                })
            }
            EtherType::Ipv6 => {
                let (ip, body) = Ipv6Repr::parse(packet).ok()?;
                let (src, dst) = (Addr::v6(ip.src, 0), Addr::v6(ip.dst, 0));
                let len = toe_wire::ipv6::HEADER_LEN + usize::from(ip.payload_len);
                let end = ETHERNET + len;
                match body {
                    Body::Whole(bytes) if ip.protocol == Protocol::Udp => {
                        Some(Seen { src, dst, len, is_piece: false, head: Some(end - bytes.len()..end) })
                    }
                    Body::Piece(piece, bytes) if piece.next_header == Protocol::Udp.raw() => {
                        let head = (piece.offset == 0).then(|| end - bytes.len()..end);
                        Some(Seen { src, dst, len, is_piece: true, head })
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Of whole datagrams.
    pub(super) fn checksum_is_valid(&self, frame: &[u8]) -> bool {
        let Some(head) = self.head.clone().filter(|_| !self.is_piece) else { return true };
        udp::checksum_is_valid(&frame[head], self.src, self.dst)
    }

    /// Puts in the checksum that the engine has left to the link.
    pub(super) fn store_checksum(&self, frame: &mut [u8]) {
        if let Some(head) = self.head.clone() {
            let datagram = &mut frame[head];
            datagram[6..8].copy_from_slice(&[0, 0]);
            udp::store_checksum(datagram, self.src, self.dst);
        }
    }

    /// The bytes behind the UDP header.
    pub(super) fn text<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        frame.get(self.head.clone()?)?.get(udp::HEADER_LEN..)
    }
}
