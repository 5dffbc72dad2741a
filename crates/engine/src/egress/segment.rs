//! A flow's segment as a frame: headers by the builder, payload copied out of host memory (or left there for the link
//! to take), checksum by whoever can.

use super::builder::{Envelope, FrameBuilder};
use crate::flow::key::FlowKey;
use core::sync::atomic::AtomicU8;
use toe_tcp::memory::HostMemory;
use toe_tcp::segment::Segment;
use toe_tcp::send_queue::{PIECES_MAX, Pieces};
use toe_wire::ipv4::Protocol;
use toe_wire::link::{Cut, FrameSink, LinkCaps, PartialChecksum, Segmentation, TxOffload};
use toe_wire::tcp::{self, TcpFlags, TcpOptions, TcpRepr, Timestamps};
use toe_wire::{eth, ipv6, vlan};

/// The port has no room now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The TCP header of a segment.
pub fn header(key: &FlowKey, segment: &Segment) -> TcpRepr {
    let flags = segment.flags.with_if(TcpFlags::ACK, segment.ack.is_some());
    let flags = flags.with_if(TcpFlags::URG, segment.urgent.is_some());
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

/// Payload bytes from which on a link that can take them from host memory by itself does so: below, its call for one
/// frame alone costs more than a copy into the batch.
const GATHER_MIN: u32 = 8 << 10;
/// Headers of one frame, with a VLAN tag.
const HEAD_MAX: usize = eth::HEADER_LEN + vlan::TAG_LEN + ipv6::HEADER_LEN + tcp::HEADER_LEN_MAX;

/// Builds the frame and hands it over to `sink`.
pub fn emit<H: HostMemory>(
    sink: &mut dyn FrameSink,
    host: &mut H,
    envelope: &Envelope,
    caps: LinkCaps,
    tcp: &TcpRepr,
    payload: &Pieces,
    mss: u16,
) -> Result<(), NoRoom> {
    let payload_len = payload.len();
    let header_len = envelope.headers_len() + tcp.header_len();
    let frame_len = header_len + payload_len as usize;
    let mut offload = TxOffload::default();
    if caps.tx_checksum {
        let start = envelope.headers_len() as u16;
        offload.checksum = Some(PartialChecksum { start, offset: tcp::CHECKSUM_OFFSET });
    }
    if payload_len > u32::from(mss) {
        let cut = if envelope.to.is_v6() { Cut::TcpV6 } else { Cut::TcpV4 };
        offload.segmentation = Some(Segmentation { header_len: header_len as u16, mss, cut });
    }
    if payload_len >= GATHER_MIN && caps.tx_checksum {
        let mut head = [0; HEAD_MAX];
        let head = &mut head[..header_len];
        emit_headers(head, frame_len, envelope, tcp, true);
        if gather(sink, host, head, payload, offload) {
            return Ok(());
        }
    }
    let frame = sink.frame(frame_len).ok_or(NoRoom)?;
    emit_headers(frame, frame_len, envelope, tcp, caps.tx_checksum);
    let mut at = header_len;
    for piece in payload.iter() {
        let end = at + piece.range.len as usize;
        host.read(piece.session, piece.range.offset, &mut frame[at..end]);
        at = end;
    }
    if !caps.tx_checksum {
        tcp::store_checksum(&mut frame[envelope.headers_len()..], envelope.from, envelope.to);
    }
    sink.commit(offload);
    Ok(())
}

/// All headers of a frame of `frame_len` bytes, into its beginning; with the pseudo-header's sum if the link is to do
/// the rest of the checksum.
fn emit_headers(
    frame: &mut [u8],
    frame_len: usize,
    envelope: &Envelope,
    tcp: &TcpRepr,
    with_pseudo_sum: bool,
) {
    let mut builder = FrameBuilder::head(frame, frame_len, envelope, Protocol::Tcp);
    let transport = builder.transport();
    tcp.emit(transport);
    if with_pseudo_sum {
        let len = (frame_len - envelope.headers_len()) as u16;
        tcp::store_pseudo_sum(transport, envelope.from, envelope.to, len);
    }
}

/// Leaves it to the link to take the payload from where the host put it; `false`: somebody has to copy it.
fn gather<H: HostMemory>(
    sink: &mut dyn FrameSink,
    host: &H,
    head: &[u8],
    payload: &Pieces,
    offload: TxOffload,
) -> bool {
    let mut tail: [&[AtomicU8]; PIECES_MAX] = [&[]; PIECES_MAX];
    let mut count = 0;
    for piece in payload.iter() {
        let Some(bytes) = host.lend(piece.session, piece.range.offset, piece.range.len) else {
            return false;
        };
        tail[count] = bytes;
        count += 1;
    }
    sink.gather(head, &tail[..count], offload)
}
