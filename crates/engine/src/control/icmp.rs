//! Answers to what concerns no connection: echo requests (RFC 1122 section 3.2.2.6) and segments for connections
//! that do not exist (RFC 9293 section 3.10.7.1).

use crate::work::{ControlFrame, Segment};
use toe_base::window::UnscaledWindow;
use toe_base::{Addr, SeqNum};
use toe_wire::link::MacAddr;
use toe_wire::tcp::SackBlocks;

/// Longest echo data that is sent back; a longer request is not answered.
pub const ECHO_MAX: usize = 1472;

/// The reply to an echo request, or `None` when it is too long to be worth memory.
pub fn echo_reply(
    to_mac: MacAddr,
    to: Addr,
    source: Addr,
    ident: u16,
    seq: u16,
    data: &[u8],
) -> Option<ControlFrame> {
    (data.len() <= ECHO_MAX).then(|| ControlFrame::EchoReply {
        to_mac,
        to,
        source,
        ident,
        seq,
        data: data.to_vec(),
    })
}

/// The reset that answers `segment`, which came for a connection that does not exist; none for a reset.
pub fn reset_for(segment: &Segment) -> Option<Segment> {
    if segment.rst {
        return None;
    }
    let (seq, ack) = match segment.ack {
        Some(ack) => (ack, None),
        None => (SeqNum::new(0), Some(segment.seq.plus(segment.seq_len()))),
    };
    Some(reset(seq, ack))
}

/// A bare reset.
pub fn reset(seq: SeqNum, ack: Option<SeqNum>) -> Segment {
    Segment {
        seq,
        ack,
        syn: false,
        fin: false,
        rst: true,
        psh: false,
        window: UnscaledWindow(0),
        mss: None,
        window_scale: None,
        sack_permitted: false,
        sack: SackBlocks::NONE,
        ece: false,
        cwr: false,
        timestamps: None,
        fast_open: None,
        urgent: None,
        len: 0,
    }
}
