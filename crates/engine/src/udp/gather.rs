//! Much that goes in one frame goes to the link from where the program put it: the headers are made here, and the link takes the octets behind
//! them out of the lane, once. Small frames are copied: in a batch they cost less than a call of their own ([`super::transmit`]).

use super::transmit::{goes_in_one, header};
use crate::egress::builder::{Envelope, FrameBuilder, Hop};
use crate::work::{Link, TxDatagram};
use core::sync::atomic::AtomicU8;
use toe_wire::link::{Cut, FrameSink, MacAddr, Segmentation, TxOffload};
use toe_wire::{Protocol, eth, ipv6, udp, vlan};

/// Octets of a record from which on a link takes them from where they are.
const GATHER_MIN: usize = 2 << 10;
/// Headers of one frame, with a VLAN tag.
const HEAD_MAX: usize = eth::HEADER_LEN + vlan::TAG_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN;

/// Whether a record of `len` octets goes so, which is datagrams of `segment` octets each, or one (0).
pub fn is_for(link: &Link, datagram: &TxDatagram, len: usize, segment: u16) -> bool {
    len >= GATHER_MIN && goes_in_one(link, datagram, len, segment)
}

/// Hands one frame to the link, of which [`is_for`] is true. `false`: it was not sent.
pub fn send(
    sink: &mut dyn FrameSink,
    (link, to_mac): (&Link, MacAddr),
    datagram: &TxDatagram,
    text: &[&[AtomicU8]],
    segment: u16,
) -> bool {
    let TxDatagram { from, to, ttl, traffic_class, .. } = *datagram;
    let envelope =
        Envelope { hop: Hop::over(link, to_mac), from: from.addr, to: to.addr, ttl, traffic_class };
    let len = udp::HEADER_LEN + text.iter().map(|piece| piece.len()).sum::<usize>();
    let (start, header_len) = (envelope.headers_len(), envelope.headers_len() + udp::HEADER_LEN);
    let mut head = [0; HEAD_MAX];
    let head = &mut head[..header_len];
    let mut builder = FrameBuilder::head(head, start + len, &envelope, Protocol::Udp);
    let transport = builder.transport();
    header(transport, len, datagram);
    let checksum = Some(udp::store_pseudo_header(transport, len, (from.addr, to.addr), start as u16));
    let segmentation = (segment > 0).then_some(Segmentation {
        header_len: header_len as u16,
        mss: segment,
        cut: Cut::Datagrams,
    });
    sink.gather(head, text, TxOffload { checksum, segmentation })
}
