//! What comes out of the RX parser.

use crate::flow::key::FlowKey;
use crate::work::{Arrival, IcmpError, NeighbourMessage, Piece, RxDatagram, RxDatagramError};
use toe_tcp::segment::Segment;
use toe_wire::arp::ArpRepr;
use toe_wire::link::MacAddr;

/// What a frame is.
#[derive(Clone, Debug)]
pub enum Arrived<'a> {
    Arp(ArpRepr),
    Neighbour(NeighbourMessage),
    EchoRequest {
        arrival: Arrival,
        ident: u16,
        seq: u16,
        data: &'a [u8],
    },
    /// Something went wrong with a segment that quotes itself.
    IcmpError(IcmpError),
    /// A piece of a packet.
    Fragment(Piece<'a>),
    Tcp(ArrivedTcp<'a>),
    Datagram(RxDatagram<'a>),
    DatagramError(RxDatagramError<'a>),
    /// A packet of another protocol, for [`crate::protocols`].
    Other {
        arrival: Arrival,
        protocol: u8,
        bytes: &'a [u8],
    },
    /// Well-formed, and nothing that the engine answers.
    Ignored,
}

/// A segment, checked.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedTcp<'a> {
    pub from_mac: MacAddr,
    pub key: FlowKey,
    pub segment: Segment,
    /// It came through a congested queue (CE, RFC 3168 section 5).
    pub is_marked: bool,
    /// A SYN's window scale counts as less than it says.
    pub is_scale_too_large: bool,
    pub payload: &'a [u8],
}
