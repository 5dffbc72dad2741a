//! A segment in SYN_SENT (RFC 9293 section 3.10.7.3).

use super::step::note_timestamp;
use super::{ack, sack};
use crate::counter::Counter;
use crate::memory::HostMemory;
use crate::open::take_syn;
use crate::record::{SynText, Tcb};
use crate::segment::{FlowEvent, RxSegment};
use crate::state::TcpEvent;
use crate::{RxContext, ecn, recovery};
use toe_abi::errno::Errno;
use toe_base::Instant;

pub(super) fn process<H: HostMemory>(
    tcb: &mut Tcb,
    cx: &mut RxContext<'_, H>,
    rx: &RxSegment<'_>,
) -> FlowEvent {
    let segment = rx.segment;
    if let Some(ack) = segment.ack
        && (ack.at_or_before(tcb.handshake.iss) || ack.after(tcb.snd.nxt))
    {
        cx.tcp.counters.add(Counter::DropUnacceptable);
        // "Send a reset (unless the RST bit is set)": the peer has a half-open connection of ours.
        return if segment.flags.rst() { FlowEvent::None } else { FlowEvent::Reject };
    }
    if segment.flags.rst() {
        if segment.ack.is_none() {
            return FlowEvent::None;
        }
        tcb.state = tcb.state.after(TcpEvent::Reset);
        return FlowEvent::Closed(Errno::ECONNREFUSED);
    }
    if !segment.flags.syn() {
        return FlowEvent::None;
    }
    take_syn(tcb, cx.path, &segment);
    tcb.timers.heard = cx.now;
    tcb.receiving.acks.now = true;
    let Some(ack) = segment.ack else {
        // Simultaneous open: our SYN goes out again, as a SYN-ACK.
        tcb.state = tcb.state.after(TcpEvent::Syn);
        tcb.sending.board.mark_lost(&mut cx.tcp.sent, |_| true);
        return FlowEvent::None;
    };
    tcb.setup.ecn.on = ecn::accepted(cx.tcp.config.ecn, &segment);
    let timed_out = tcb.sending.timeouts > 0;
    let _ = sack::take(tcb, cx.path, cx.tcp, cx.now, &segment, ack);
    ack::advance(tcb, cx, ack);
    tcb.snd.wl2 = ack;
    tcb.sending.backoff = 0;
    tcb.sending.timeouts = 0;
    let opening = cx.tcp.openings.one(&tcb.handshake.fast_open.opening);
    if opening.sent > 0 && ack.after(tcb.handshake.iss.plus(1)) {
        tcb.handshake.fast_open.syn_text = SynText::Taken;
    }
    // Bytes of our SYN that the peer did not take go again now, and it says nothing of congestion (RFC 7413 section
    // 4.2.2).
    tcb.sending.board.mark_lost(&mut cx.tcp.sent, |_| true);
    tcb.timers.stop_retransmit();
    tcb.state = tcb.state.after(TcpEvent::SynAcked);
    if tcb.snd.fin.is_queued() {
        tcb.state = tcb.state.after(TcpEvent::Close);
    }
    if timed_out {
        recovery::handshake_lost(tcb, cx.path);
    }
    tcb.timers.stalled_since = Instant::FAR_FUTURE;
    note_timestamp(tcb, &segment);
    FlowEvent::Established
}
