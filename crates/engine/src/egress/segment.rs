//! A flow's segment as a frame: headers by the builder, payload copied out of host memory, checksum by whoever can.

use super::builder::{Envelope, FrameBuilder};
use crate::flow::key::FlowKey;
use crate::flow::send_queue::Pieces;
use crate::hostif::HostSide;
use crate::work::Segment;
use toe_wire::ipv4::Protocol;
use toe_wire::link::{FrameSink, LinkCaps, PartialChecksum, Segmentation, TxOffload};
use toe_wire::tcp::{self, TcpFlags, TcpOptions, TcpRepr, Timestamps};

/// The port has no room now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The TCP header of a segment.
pub fn header(key: &FlowKey, segment: &Segment) -> TcpRepr {
    let mut flags = TcpFlags::NONE;
    for (set, flag) in [
        (segment.syn, TcpFlags::SYN),
        (segment.fin, TcpFlags::FIN),
        (segment.rst, TcpFlags::RST),
        (segment.psh, TcpFlags::PSH),
        (segment.ack.is_some(), TcpFlags::ACK),
        (segment.urgent.is_some(), TcpFlags::URG),
        (segment.ece, TcpFlags::ECE),
        (segment.cwr, TcpFlags::CWR),
    ] {
        if set {
            flags = flags.with(flag);
        }
    }
    TcpRepr {
        src_port: key.local.port,
        dst_port: key.remote.port,
        seq: segment.seq,
        ack: segment.ack,
        flags,
        window: segment.window,
        urgent: segment.urgent.unwrap_or(0),
        options: TcpOptions {
            mss: segment.mss,
            window_scale: segment.window_scale,
            is_scale_too_large: false,
            timestamps: segment.timestamps.map(|(value, echo)| Timestamps { value, echo }),
            sack_permitted: segment.sack_permitted,
            sack: segment.sack,
            fast_open: segment.fast_open,
        },
    }
}

/// Builds the frame in `sink` and hands it over.
pub fn emit<H: HostSide>(
    sink: &mut dyn FrameSink,
    host: &mut H,
    envelope: &Envelope,
    caps: LinkCaps,
    tcp: &TcpRepr,
    payload: &Pieces,
    mss: u16,
) -> Result<(), NoRoom> {
    let payload_len = payload.len();
    let header_len = tcp.header_len();
    let transport_len = header_len + payload_len as usize;
    let frame = sink.frame(envelope.headers_len() + transport_len).ok_or(NoRoom)?;
    let mut builder = FrameBuilder::ip(frame, envelope, Protocol::Tcp);
    let transport = builder.transport();
    tcp.emit(transport);
    let mut at = header_len;
    for piece in payload.iter() {
        let end = at + piece.range.len as usize;
        host.read(piece.session, piece.range.offset, &mut transport[at..end]);
        at = end;
    }
    let mut offload = TxOffload::default();
    if caps.tx_checksum {
        tcp::store_pseudo_sum(transport, envelope.from, envelope.to, transport_len as u16);
        let start = envelope.headers_len() as u16;
        offload.checksum = Some(PartialChecksum { start, offset: tcp::CHECKSUM_OFFSET });
    } else {
        tcp::store_checksum(transport, envelope.from, envelope.to);
    }
    if payload_len > u32::from(mss) {
        let header_len = (envelope.headers_len() + header_len) as u16;
        offload.segmentation = Some(Segmentation { header_len, mss, is_v6: envelope.to.is_v6() });
    }
    sink.commit(offload);
    Ok(())
}
