//! Fifth step: the ACK field (RFC 9293 section 3.10.7.4). What it says of losses is [`crate::recovery`]'s.

use super::sack;
use super::step::{Step, challenge};
use crate::ack_event::AckEvent;
use crate::counter::Counter;
use crate::record::{Fin, Particulars, ParticularsPool, PathState, PeerTimer, SendDue, Tcb};
use crate::segment::{FlowEvent, Segment};
use crate::state::{TcpEvent, TcpState};
use crate::{RxContext, deferral, rack, recovery, rtt, soft_error, timeout};
use toe_base::limits::WINDOW_MAX;
use toe_base::window::WindowScale;
use toe_base::{Instant, SeqNum};

pub(super) fn process<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    let Some(ack) = segment.ack else {
        cx.tcp.counters.add(Counter::DropUnacceptable);
        return Step::Done(FlowEvent::None);
    };
    tcb.timers.heard = cx.now;
    tcb.sending.probes = 0;
    let in_syn_received = tcb.state == TcpState::SynReceived;
    if ack.after(tcb.snd.nxt) || is_too_old(tcb, ack) {
        return if in_syn_received {
            Step::Done(FlowEvent::Reject)
        } else {
            // RFC 5961 section 5.2; one of them is enough, whatever the segments bring.
            cx.tcp.counters.add(Counter::DropUnacceptable);
            challenge(tcb, cx)
        };
    }
    if in_syn_received {
        if ack.at_or_before(tcb.snd.una) {
            return Step::Done(FlowEvent::Reject);
        }
        if deferral::passes_over(tcb, &mut cx.tcp.openings, cx.now, segment) {
            return Step::Done(FlowEvent::None);
        }
        tcb.state = tcb.state.after(TcpEvent::SynAcked);
        if tcb.snd.fin.is_queued() {
            tcb.state = tcb.state.after(TcpEvent::Close);
        }
        let scale = if segment.flags.syn() { WindowScale::ZERO } else { tcb.setup.negotiated.snd_scale };
        tcb.snd.wnd = segment.window.scaled(scale);
        tcb.snd.max_wnd = tcb.snd.wnd;
        tcb.snd.wl1 = segment.seq;
        tcb.snd.wl2 = ack;
    }
    let was_answered_late = in_syn_received && tcb.sending.timeouts > 0;
    if ack.at_or_after(tcb.snd.una) {
        acknowledge(tcb, cx, segment, ack);
    }
    if was_answered_late {
        tcb.sending.backoff = 0;
        if !deferral::was_heard(tcb, &cx.tcp.openings) {
            recovery::handshake_lost(tcb, cx.path);
        }
    }
    if in_syn_received {
        if tcb.handshake.fast_open.was_passive {
            cx.tcp.openings.vacate(&mut tcb.handshake.fast_open.opening);
        }
        return Step::Done(FlowEvent::Established);
    }
    Step::Continue
}

/// RFC 5961 section 5: older than anything that the peer could still have on its way.
fn is_too_old(tcb: &Tcb, ack: SeqNum) -> bool {
    ack.before(tcb.snd.una) && tcb.snd.una.distance_from(ack) > tcb.snd.max_wnd.bytes()
}

/// The ACK field of a segment near the window but not in it: an old one that was sent again, or one beyond a window
/// that we closed. Both ends may have lost all ACKs of the other and be sending old segments: if neither took the
/// other's ACK from them, nothing would ever move again.
pub(super) fn process_stray<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) {
    let Some(ack) = segment.ack else { return };
    let is_near = segment.seq.diff(tcb.rcv.nxt).unsigned_abs() <= WINDOW_MAX;
    if !is_near || !tcb.state.is_synchronized() || ack.after(tcb.snd.nxt) {
        return;
    }
    tcb.timers.heard = cx.now;
    tcb.sending.probes = 0;
    if ack.after(tcb.snd.una) {
        acknowledge(tcb, cx, segment, ack);
    }
}

/// `ack` is at `snd.una` or between it and `snd.nxt`.
fn acknowledge<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment, ack: SeqNum) {
    soft_error::overcome(tcb);
    let is_duplicate = is_duplicate(tcb, segment, ack);
    let (probing, backoff) = (!tcb.timers.persist().is_far_future(), tcb.sending.backoff);
    let mut event = sack::take(tcb, cx.path, cx.tcp, cx.now, segment, ack);
    event.is_duplicate = is_duplicate;
    let fin_acked = event.acked > 0 && advance(tcb, cx, ack);
    recovery::on_ack(tcb, cx.path, cx.tcp, cx.now, &event);
    rearm(tcb, cx.path, cx.now, &event);
    update_window(tcb, cx, segment, ack, event.acked > 0);
    if probing && !tcb.timers.persist().is_far_future() {
        // The peer took the probe's byte and is as full as before: no reason to probe more often.
        tcb.sending.backoff = backoff;
    }
    if fin_acked {
        finish(tcb, cx.path, &mut cx.tcp.particulars, cx.now);
    }
}

/// RFC 5681 section 2, "duplicate acknowledgment".
fn is_duplicate(tcb: &Tcb, segment: &Segment, ack: SeqNum) -> bool {
    ack == tcb.snd.una
        && tcb.snd.nxt != tcb.snd.una
        && segment.seq_len() == 0
        && segment.window.scaled(tcb.setup.negotiated.snd_scale) == tcb.snd.wnd
}

/// `ack` acknowledges something new. Returns whether that is our FIN.
pub(super) fn advance<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, ack: SeqNum) -> bool {
    let mut bytes = ack.distance_from(tcb.snd.una);
    if !tcb.snd.syn_acked {
        tcb.snd.syn_acked = true;
        bytes -= 1;
    }
    let fin_acked = tcb.snd.fin.is_queued() && bytes > tcb.sending.queue.len();
    if fin_acked {
        bytes -= 1;
    }
    let owners = tcb.sending.queue.acknowledge(&mut cx.tcp.extents, bytes, cx.owner);
    if cx.owner.0 != 0 {
        tcb.status.events.sent = tcb.status.events.sent.saturating_add(owners);
    }
    tcb.status.events.return_late_bytes(&tcb.sending.queue);
    if tcb.sending.queue.is_empty() {
        // FIN needs no window.
        tcb.timers.stop_persist();
        tcb.sending.due.remove(SendDue::WINDOW_PROBE);
    }
    tcb.snd.una = ack;
    tcb.snd.up = tcb.snd.up.later(ack);
    tcb.sending.timeouts = 0;
    if tcb.is_local {
        // There is no path whose round trip the next sample would tell: the peer has memory again.
        tcb.sending.backoff = 0;
    }
    if let Some(Particulars { record_ends, trouble, .. }) =
        cx.tcp.particulars.taken_mut(&tcb.setup.particulars)
    {
        record_ends.acknowledge(&mut cx.tcp.record_ends, ack);
        trouble.time_outs.overcome(cx.now);
    }
    if fin_acked {
        tcb.snd.fin = Fin::Acked;
    }
    fin_acked
}

/// RFC 6298 sections 5.2 and 5.3, RFC 8985 section 7.2. While the window is probed, the probes take the timer's place.
fn rearm(tcb: &mut Tcb, path: &mut PathState, now: Instant, event: &AckEvent) {
    if event.acked > 0 {
        let outstanding = tcb.snd.nxt != tcb.snd.una;
        if outstanding && tcb.timers.persist().is_far_future() {
            tcb.timers.peer = PeerTimer::Retransmit(now.after_us(rtt::retransmit_us(tcb, path)));
        } else {
            tcb.timers.stop_retransmit();
        }
        tcb.timers.stalled_since = if outstanding { now } else { Instant::FAR_FUTURE };
        if !outstanding {
            tcb.sending.due.remove(SendDue::TAIL_PROBE);
        }
    }
    if event.delivered > 0 {
        rack::schedule_tail_probe(tcb, path, now);
    }
}

/// Our FIN is acknowledged.
fn finish(tcb: &mut Tcb, path: &mut PathState, pool: &mut ParticularsPool, now: Instant) {
    tcb.state = tcb.state.after(TcpEvent::FinAcked);
    match tcb.state {
        TcpState::TimeWait => timeout::start_time_wait(tcb, path, pool, now),
        TcpState::FinWait2 if tcb.orphaned => timeout::start_fin_wait_2(tcb, pool, now),
        _ => {}
    }
}

/// "If SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)": an old segment must not change the window.
/// One that acknowledges something new is not old, whatever its sequence number.
fn update_window<H>(
    tcb: &mut Tcb,
    cx: &mut RxContext<'_, H>,
    segment: &Segment,
    ack: SeqNum,
    advances: bool,
) {
    let newer = advances
        || tcb.snd.wl1.before(segment.seq)
        || (tcb.snd.wl1 == segment.seq && tcb.snd.wl2.at_or_before(ack));
    if !newer || segment.flags.syn() {
        return;
    }
    tcb.snd.wnd = segment.window.scaled(tcb.setup.negotiated.snd_scale);
    tcb.snd.max_wnd = tcb.snd.max_wnd.max(tcb.snd.wnd);
    tcb.snd.wl1 = tcb.snd.wl1.later(segment.seq);
    tcb.snd.wl2 = ack;
    if tcb.snd.wnd.bytes() > 0 && !tcb.timers.persist().is_far_future() {
        tcb.timers.stop_persist();
        tcb.sending.due.remove(SendDue::WINDOW_PROBE);
        if tcb.snd.nxt == tcb.snd.una {
            tcb.timers.stalled_since = Instant::FAR_FUTURE;
        }
        // The probes' doublings say nothing of the path.
        let was_probed = core::mem::take(&mut tcb.sending.backoff) > 0;
        if was_probed {
            // What was probed with the peer has dropped: it goes again with the rest.
            tcb.sending.board.mark_lost(&mut cx.tcp.sent, |_| true);
        }
    }
}
