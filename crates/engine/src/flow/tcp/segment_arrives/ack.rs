//! Fifth step: the ACK field (RFC 9293 section 3.10.7.4; loss detection per RFC 5681 and 6582).

use super::{Step, answer_stray};
use crate::counter::Counter;
use crate::flow::record::Flow;
use crate::flow::tcp::congestion::{self, DupAck};
use crate::flow::tcp::state::{TcpEvent, TcpState};
use crate::flow::tcp::{RxContext, timeout};
use crate::work::{FlowEvent, Segment};
use toe_base::limits::WINDOW_MAX;
use toe_base::{Instant, SeqNum};

pub(super) fn process<H>(flow: &mut Flow, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    let Some(ack) = segment.ack else {
        cx.counters.add(Counter::DropUnacceptable);
        return Step::Done(FlowEvent::None);
    };
    flow.timers.heard = cx.now;
    flow.timers.probes_sent = 0;
    if ack.after(flow.snd.max) {
        return if flow.conn.state == TcpState::SynReceived {
            Step::Done(FlowEvent::Reject)
        } else {
            cx.counters.add(Counter::DropUnacceptable);
            answer_stray(flow, cx.now, segment);
            Step::Done(FlowEvent::None)
        };
    }
    let mut opened = false;
    if flow.conn.state == TcpState::SynReceived {
        if ack.at_or_before(flow.snd.una) {
            return Step::Done(FlowEvent::Reject);
        }
        flow.conn.state = flow.conn.state.after(TcpEvent::SynAcked);
        if flow.snd.fin_queued {
            flow.conn.state = flow.conn.state.after(TcpEvent::Close);
        }
        flow.snd.wnd = segment.window.scaled(flow.snd.scale);
        flow.snd.max_wnd = flow.snd.wnd;
        flow.snd.wl1 = segment.seq;
        flow.snd.wl2 = ack;
        opened = true;
    }
    let advances = ack.after(flow.snd.una);
    if advances {
        advance(flow, cx, ack);
    } else if is_duplicate(flow, segment, ack)
        && !flow.is_local()
        && congestion::on_duplicate_ack(flow) == DupAck::Retransmit
    {
        cx.counters.add(Counter::FastRetransmits);
        flow.snd.resend = true;
        flow.rtt.cancel();
    }
    update_window(flow, segment, ack, advances);
    if opened { Step::Done(FlowEvent::Established) } else { Step::Continue }
}

/// The ACK field of a segment near the window but not in it: an old one that was sent again, or one beyond a window
/// that we closed. Both ends may have lost all ACKs of the other and be sending old segments: if neither took the
/// other's ACK from them, nothing would ever move again.
pub(super) fn process_stray<H>(flow: &mut Flow, cx: &mut RxContext<'_, H>, segment: &Segment) {
    let Some(ack) = segment.ack else { return };
    let is_near = segment.seq.diff(flow.rcv.nxt).unsigned_abs() <= WINDOW_MAX;
    if !is_near || !flow.conn.state.is_synchronized() || ack.after(flow.snd.max) {
        return;
    }
    flow.timers.heard = cx.now;
    flow.timers.probes_sent = 0;
    if ack.after(flow.snd.una) {
        advance(flow, cx, ack);
        update_window(flow, segment, ack, true);
    }
}

/// RFC 5681 section 2, "duplicate acknowledgment".
fn is_duplicate(flow: &Flow, segment: &Segment, ack: SeqNum) -> bool {
    ack == flow.snd.una
        && flow.snd.max != flow.snd.una
        && segment.seq_len() == 0
        && segment.window.scaled(flow.snd.scale) == flow.snd.wnd
}

/// `ack` acknowledges something new.
fn advance<H>(flow: &mut Flow, cx: &mut RxContext<'_, H>, ack: SeqNum) {
    let acked = ack.distance_from(flow.snd.una);
    let mut octets = acked;
    if !flow.snd.syn_acked {
        flow.snd.syn_acked = true;
        octets -= 1;
    }
    let fin_acked = flow.snd.fin_queued && octets > flow.send_queue.len();
    if fin_acked {
        octets -= 1;
    }
    let owners = flow.send_queue.acknowledge(octets, flow.conn.owner.session);
    if !flow.conn.owner.is_nobody() {
        flow.report.sent = flow.report.sent.saturating_add(owners);
    }
    flow.report.return_late_octets(&flow.send_queue);
    if flow.send_queue.is_empty() {
        // FIN needs no window.
        flow.timers.persist = Instant::FAR_FUTURE;
        flow.snd.probe = false;
    }
    flow.snd.una = ack;
    flow.snd.up = flow.snd.up.filter(|up| up.after(ack));
    if flow.snd.nxt.before(ack) {
        flow.snd.nxt = ack;
    }
    flow.rtt.acknowledged(ack, cx.now);
    flow.rtt.backoff = 0;
    flow.snd.resend = false;
    if !flow.is_local() && congestion::on_new_ack(flow, ack, acked) {
        flow.snd.resend = true;
        flow.rtt.cancel();
    }
    // RFC 6298 sections 5.2 and 5.3. While the window is probed, the probes take the timer's place.
    let outstanding = flow.snd.max != flow.snd.una;
    flow.timers.retransmit = if outstanding && flow.timers.persist.is_far_future() {
        cx.now.after_us(timeout::retransmit_us(flow))
    } else {
        Instant::FAR_FUTURE
    };
    flow.timers.stalled_since = if outstanding { cx.now } else { Instant::FAR_FUTURE };
    if fin_acked {
        flow.snd.fin_acked = true;
        flow.conn.state = flow.conn.state.after(TcpEvent::FinAcked);
        match flow.conn.state {
            TcpState::TimeWait => timeout::start_time_wait(flow, cx.now),
            TcpState::FinWait2 if flow.conn.app_closed => timeout::start_fin_wait_2(flow, cx.now),
            _ => {}
        }
    }
}

/// "If SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)": an old segment must not change the window.
/// One that acknowledges something new is not old, whatever its sequence number.
fn update_window(flow: &mut Flow, segment: &Segment, ack: SeqNum, advances: bool) {
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
        // The probes' doublings say nothing of the path.
        flow.rtt.backoff = 0;
        // What was probed with the peer has dropped: it goes again with the rest.
        flow.snd.nxt = flow.snd.una;
    }
}
