//! Segments that ask: whether a closed window is open, whether the peer is there, what of the tail arrived, how much the path takes.
//! [`crate::output`] sends them in its order; timers say when one is due.

use crate::output::{Shape, data_segment, header, unit};
use crate::record::Tcb;
use crate::record_ends;
use crate::segment::TxSegment;
use crate::{path_mtu, rack};
use toe_base::SeqNum;
use toe_wire::tcp::SackBlocks;

/// The peer's window is closed, or nothing was heard for long: the next question, if one is due.
pub(super) fn of_silence(flow: &Tcb, shape: &Shape<'_>) -> Option<TxSegment> {
    if flow.snd.probe {
        let again = flow.snd.nxt != flow.snd.una;
        // What is out already was offered room for once, and goes again. Else, into a window that silly window avoidance did not
        // use goes what fits, and into a closed one, as in Linux, nothing. The peer says how it stands in any case.
        let room = match flow.snd.wnd.octets() {
            0 if again => shape.mss.min(flow.snd.nxt.distance_from(flow.snd.una)),
            room => room.min(shape.mss),
        };
        let len = flow.send_queue.len().min(room).min(shape.record_from(flow.snd.una));
        if len > 0 {
            return Some(data_segment(flow, shape, flow.snd.una, len, again));
        }
    }
    if flow.snd.probe || flow.snd.keepalive_probe {
        return Some(unit(flow, header(flow, shape.now, before_una(flow)), 0, false));
    }
    None
}

/// The number of an empty segment that the peer answers, because it is not in its window.
pub(super) const fn before_una(flow: &Tcb) -> SeqNum {
    flow.snd.una.minus(1)
}

/// RFC 8985 section 7.3: a new segment if there is one and the peer has room, else the last one again. The congestion
/// window does not hold it back: it is one segment, after nothing was heard for two round trips.
pub(super) fn of_tail(flow: &Tcb, shape: &Shape<'_>) -> Option<TxSegment> {
    if !flow.snd.tail_probe {
        return None;
    }
    let room = flow.snd.una.plus(flow.snd.wnd.octets()).distance_from(flow.snd.nxt);
    let unsent = flow.queue_end().distance_from(flow.snd.nxt);
    let fresh = unsent.min(shape.mss).min(shape.record_from(flow.snd.nxt));
    if fresh > 0 && fresh <= room {
        return Some(data_segment(flow, shape, flow.snd.nxt, fresh, false));
    }
    let (start, len) = rack::tail(flow, shape.mss);
    let end = start.plus(len);
    let start = record_ends::start_of_last(shape.record_ends, start, end);
    Some(data_segment(flow, shape, start, end.distance_from(start), true))
}

/// One segment larger than those that get through for sure, where what is sent next is no smaller.
pub(super) fn of_mtu(flow: &Tcb, shape: &Shape<'_>) -> Option<TxSegment> {
    let size = path_mtu::next_probe(flow, shape.now)?;
    if shape.record_from(flow.snd.nxt) < u32::from(size) {
        return None;
    }
    let bare = Shape { sack: SackBlocks::NONE, ..*shape };
    let probe = data_segment(flow, &bare, flow.snd.nxt, u32::from(size), false);
    Some(TxSegment { mss: size, ..probe })
}
