//! Segments that ask: whether a closed window is open, whether the peer is there, what of the tail arrived, how much the path takes.
//! [`crate::output`] sends them in its order; timers say when one is due.

use crate::outgoing::{Shape, data_segment, header, unit};
use crate::record::{PathState, SendDue, Tcb};
use crate::segment::TxSegment;
use crate::{Tcp, path_mtu, rack, record_ends};
use toe_base::SeqNum;
use toe_wire::tcp::SackBlocks;

/// The peer's window is closed, or nothing was heard for long: the next question, if one is due.
pub(super) fn of_silence(tcb: &Tcb, shape: &Shape<'_>) -> Option<TxSegment> {
    if tcb.sending.due.has(SendDue::WINDOW_PROBE) {
        let again = tcb.snd.nxt != tcb.snd.una;
        // What is out already was offered room for once, and goes again. Else, into a window that silly window avoidance did not
        // use goes what fits, and into a closed one, as in Linux, nothing. The peer says how it stands in any case.
        let room = match tcb.snd.wnd.bytes() {
            0 if again => shape.mss.min(tcb.snd.nxt.distance_from(tcb.snd.una)),
            room => room.min(shape.mss),
        };
        let len = tcb.sending.queue.len().min(room).min(shape.record_from(tcb.snd.una));
        if len > 0 {
            return Some(data_segment(tcb, shape, tcb.snd.una, len, again));
        }
    }
    if tcb.sending.due.has(SendDue::WINDOW_PROBE) || tcb.sending.due.has(SendDue::KEEPALIVE) {
        return Some(unit(tcb, header(tcb, shape.now, before_una(tcb)), 0, false));
    }
    None
}

/// The number of an empty segment that the peer answers, because it is not in its window.
pub(super) const fn before_una(tcb: &Tcb) -> SeqNum {
    tcb.snd.una.minus(1)
}

/// RFC 8985 section 7.3: a new segment if there is one and the peer has room, else the last one again. The congestion
/// window does not hold it back: it is one segment, after nothing was heard for two round trips.
pub(super) fn of_tail(tcb: &Tcb, shape: &Shape<'_>) -> Option<TxSegment> {
    if !tcb.sending.due.has(SendDue::TAIL_PROBE) {
        return None;
    }
    let room = tcb.snd.una.plus(tcb.snd.wnd.bytes()).distance_from(tcb.snd.nxt);
    let unsent = tcb.queue_end().distance_from(tcb.snd.nxt);
    let fresh = unsent.min(shape.mss).min(shape.record_from(tcb.snd.nxt));
    if fresh > 0 && fresh <= room {
        return Some(data_segment(tcb, shape, tcb.snd.nxt, fresh, false));
    }
    let (start, len) = rack::tail(tcb, shape.mss);
    let end = start.plus(len);
    let start = record_ends::start_of_last(shape.record_ends, start, end);
    Some(data_segment(tcb, shape, start, end.distance_from(start), true))
}

/// One segment larger than those that get through for sure, where what is sent next is no smaller.
pub(super) fn of_mtu(tcb: &Tcb, path: &PathState, tcp: &Tcp, shape: &Shape<'_>) -> Option<TxSegment> {
    let size = path_mtu::next_probe(tcb, path, &tcp.particulars, shape.now)?;
    if shape.record_from(tcb.snd.nxt) < u32::from(size) {
        return None;
    }
    let bare = Shape { sack: SackBlocks::NONE, ..*shape };
    let probe = data_segment(tcb, &bare, tcb.snd.nxt, u32::from(size), false);
    Some(TxSegment { mss: size, ..probe })
}
