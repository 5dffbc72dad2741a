//! Sixth, check the URG bit (RFC 9293 section 3.10.7.4). The pointer is read as hosts do (RFC 6093 section 3.1): it leads to
//! the byte *after* the urgent one.

use crate::record::{PeerFin, ReceiveSequence, Tcb};
use crate::segment::Segment;

/// Notes where the urgent byte is, when that has not come yet; called before the segment's text is taken.
pub(super) fn note(tcb: &mut Tcb, segment: &Segment) {
    let Some(pointer) = segment.urgent.filter(|pointer| *pointer > 0) else { return };
    if tcb.rcv.fin != PeerFin::None {
        // Nothing comes after it.
        return;
    }
    let byte = segment.seq.plus(u32::from(pointer) - 1);
    if byte.at_or_after(tcb.rcv.nxt) && byte.after(tcb.rcv.up) {
        tcb.rcv.up = byte;
        tcb.status.events.urgent = true;
    }
}

/// Called when `rcv.nxt` has moved.
pub(super) fn forget_old(tcb: &mut Tcb) {
    tcb.rcv.up = tcb.rcv.up.later(tcb.rcv.nxt.minus(ReceiveSequence::LONG_AGO));
}
