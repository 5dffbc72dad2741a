//! Fifth step: the ACK field (RFC 9293 section 3.10.7.4). What it says of losses is [`crate::recovery`]'s.

use super::{Step, challenge, sack};
use crate::counter::Counter;
use crate::record::Tcb;
use crate::recovery::{self, AckNews};
use crate::segment::{FlowEvent, Segment};
use crate::state::{TcpEvent, TcpState};
use crate::{RxContext, deferral, rack, soft_error, timeout};
use toe_base::limits::WINDOW_MAX;
use toe_base::window::WindowScale;
use toe_base::{Instant, SeqNum};

pub(super) fn process<H>(flow: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    let Some(ack) = segment.ack else {
        cx.tcp.counters.add(Counter::DropUnacceptable);
        return Step::Done(FlowEvent::None);
    };
    flow.timers.heard = cx.now;
    flow.timers.probes_sent = 0;
    if flow.state == TcpState::TimeWait {
        // All that was sent is acknowledged: whatever this says is of no concern (Linux: tcp_timewait_state_process).
        return Step::Continue;
    }
    let in_syn_received = flow.state == TcpState::SynReceived;
    if ack.after(flow.snd.nxt) || is_too_old(flow, ack) {
        return if in_syn_received {
            Step::Done(FlowEvent::Reject)
        } else {
            // RFC 5961 section 5.2; one of them is enough, whatever the segments bring.
            cx.tcp.counters.add(Counter::DropUnacceptable);
            challenge(flow, cx)
        };
    }
    if in_syn_received {
        if ack.at_or_before(flow.snd.una) {
            return Step::Done(FlowEvent::Reject);
        }
        if deferral::passes_over(flow, cx.now, segment) {
            return Step::Done(FlowEvent::None);
        }
        flow.state = flow.state.after(TcpEvent::SynAcked);
        if flow.snd.fin_queued {
            flow.state = flow.state.after(TcpEvent::Close);
        }
        let scale = if segment.syn { WindowScale::ZERO } else { flow.snd.scale };
        flow.snd.wnd = segment.window.scaled(scale);
        flow.snd.max_wnd = flow.snd.wnd;
        flow.snd.wl1 = segment.seq;
        flow.snd.wl2 = ack;
    }
    let was_answered_late = in_syn_received && flow.rtt.timeouts > 0;
    if ack.at_or_after(flow.snd.una) {
        acknowledge(flow, cx, segment, ack);
    }
    if was_answered_late {
        flow.rtt.backoff = 0;
        if !deferral::was_heard(flow) {
            recovery::handshake_lost(flow);
        }
    }
    if in_syn_received { Step::Done(FlowEvent::Established) } else { Step::Continue }
}

/// RFC 5961 section 5: older than anything that the peer could still have on its way.
fn is_too_old(flow: &Tcb, ack: SeqNum) -> bool {
    ack.before(flow.snd.una) && flow.snd.una.distance_from(ack) > flow.snd.max_wnd.octets()
}

/// The ACK field of a segment near the window but not in it: an old one that was sent again, or one beyond a window
/// that we closed. Both ends may have lost all ACKs of the other and be sending old segments: if neither took the
/// other's ACK from them, nothing would ever move again.
pub(super) fn process_stray<H>(flow: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) {
    let Some(ack) = segment.ack else { return };
    let is_near = segment.seq.diff(flow.rcv.nxt).unsigned_abs() <= WINDOW_MAX;
    if !is_near || !flow.state.is_synchronized() || ack.after(flow.snd.nxt) {
        return;
    }
    flow.timers.heard = cx.now;
    flow.timers.probes_sent = 0;
    if ack.after(flow.snd.una) {
        acknowledge(flow, cx, segment, ack);
    }
}

/// `ack` is at `snd.una` or between it and `snd.nxt`.
fn acknowledge<H>(flow: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment, ack: SeqNum) {
    soft_error::overcome(flow);
    let is_duplicate = is_duplicate(flow, segment, ack);
    let (probing, backoff) = (!flow.timers.persist.is_far_future(), flow.rtt.backoff);
    let mut news = sack::take(flow, &mut cx.tcp.sent, cx.now, segment, ack);
    news.is_duplicate = is_duplicate;
    let fin_acked = news.acked > 0 && advance(flow, cx, ack);
    recovery::on_ack(flow, &mut cx.tcp.sent, cx.now, &news, &mut cx.tcp.counters);
    rearm(flow, cx.now, &news);
    update_window(flow, cx, segment, ack, news.acked > 0);
    if probing && !flow.timers.persist.is_far_future() {
        // The peer took the probe's octet and is as full as before: no reason to probe more often.
        flow.rtt.backoff = backoff;
    }
    if fin_acked {
        finish(flow, cx.now);
    }
}

/// RFC 5681 section 2, "duplicate acknowledgment".
fn is_duplicate(flow: &Tcb, segment: &Segment, ack: SeqNum) -> bool {
    ack == flow.snd.una
        && flow.snd.nxt != flow.snd.una
        && segment.seq_len() == 0
        && segment.window.scaled(flow.snd.scale) == flow.snd.wnd
}

/// `ack` acknowledges something new. Returns whether that is our FIN.
pub(super) fn advance<H>(flow: &mut Tcb, cx: &mut RxContext<'_, H>, ack: SeqNum) -> bool {
    let mut octets = ack.distance_from(flow.snd.una);
    if !flow.snd.syn_acked {
        flow.snd.syn_acked = true;
        octets -= 1;
    }
    let fin_acked = flow.snd.fin_queued && octets > flow.send_queue.len();
    if fin_acked {
        octets -= 1;
    }
    let owners = flow.send_queue.acknowledge(octets, cx.owner);
    if cx.owner.0 != 0 {
        flow.news.sent = flow.news.sent.saturating_add(owners);
    }
    flow.news.return_late_octets(&flow.send_queue);
    if flow.send_queue.is_empty() {
        // FIN needs no window.
        flow.timers.persist = Instant::FAR_FUTURE;
        flow.snd.probe = false;
    }
    flow.snd.una = ack;
    flow.snd.up = flow.snd.up.filter(|up| up.after(ack));
    flow.record_ends.acknowledge(&mut cx.tcp.record_ends, ack);
    flow.rtt.timeouts = 0;
    if flow.is_local {
        // There is no path whose round trip the next sample would tell: the peer has memory again.
        flow.rtt.backoff = 0;
    }
    flow.traffic.time_outs.overcome(cx.now);
    flow.snd.fin_acked |= fin_acked;
    fin_acked
}

/// RFC 6298 sections 5.2 and 5.3, RFC 8985 section 7.2. While the window is probed, the probes take the timer's place.
fn rearm(flow: &mut Tcb, now: Instant, news: &AckNews) {
    if news.acked > 0 {
        let outstanding = flow.snd.nxt != flow.snd.una;
        flow.timers.retransmit = if outstanding && flow.timers.persist.is_far_future() {
            now.after_us(timeout::retransmit_us(flow))
        } else {
            Instant::FAR_FUTURE
        };
        flow.timers.stalled_since = if outstanding { now } else { Instant::FAR_FUTURE };
        flow.snd.tail_probe &= outstanding;
    }
    if news.delivered > 0 {
        rack::schedule_tail_probe(flow, now);
    }
}

/// Our FIN is acknowledged.
fn finish(flow: &mut Tcb, now: Instant) {
    flow.state = flow.state.after(TcpEvent::FinAcked);
    match flow.state {
        TcpState::TimeWait => timeout::start_time_wait(flow, now),
        TcpState::FinWait2 if flow.orphaned => timeout::start_fin_wait_2(flow, now),
        _ => {}
    }
}

/// "If SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)": an old segment must not change the window.
/// One that acknowledges something new is not old, whatever its sequence number.
fn update_window<H>(
    flow: &mut Tcb,
    cx: &mut RxContext<'_, H>,
    segment: &Segment,
    ack: SeqNum,
    advances: bool,
) {
    let newer = advances
        || flow.snd.wl1.before(segment.seq)
        || (flow.snd.wl1 == segment.seq && flow.snd.wl2.at_or_before(ack));
    if !newer || segment.syn {
        return;
    }
    flow.snd.wnd = segment.window.scaled(flow.snd.scale);
    flow.snd.max_wnd = flow.snd.max_wnd.max(flow.snd.wnd);
    flow.snd.wl1 = flow.snd.wl1.later(segment.seq);
    flow.snd.wl2 = ack;
    if flow.snd.wnd.octets() > 0 && !flow.timers.persist.is_far_future() {
        flow.timers.persist = Instant::FAR_FUTURE;
        flow.snd.probe = false;
        if flow.snd.nxt == flow.snd.una {
            flow.timers.stalled_since = Instant::FAR_FUTURE;
        }
        // The probes' doublings say nothing of the path.
        let was_probed = core::mem::take(&mut flow.rtt.backoff) > 0;
        if was_probed {
            // What was probed with the peer has dropped: it goes again with the rest.
            flow.board.mark_lost(&mut cx.tcp.sent, |_| true);
        }
    }
}
