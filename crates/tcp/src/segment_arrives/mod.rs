//! SEGMENT ARRIVES (RFC 9293 section 3.10.7): the steps in the RFC's order, one file each.
//!
//! A step returns [`Step::Continue`], or [`Step::Done`] with what became of the segment.

pub use sack::RttSample;
pub use text::credit_given;
pub use text::take_syn_text;

mod acceptable;
mod ack;
mod fin;
mod rst_syn;
mod sack;
mod syn_sent;
mod text;
mod urgent;

use crate::counter::Counter;
use crate::memory::HostMemory;
use crate::record::{AckReports, Tcb};
use crate::segment::{FlowEvent, RxSegment, Segment};
use crate::state::{TcpEvent, TcpState};
use crate::time_wait::{STRAY_ANSWERS_US, TimeWait, TimeWaitEffect, TimeWaitParams};
use crate::{RxContext, ecn, outgoing, timeout};
use toe_base::Instant;

/// What a step decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Continue,
    Done(FlowEvent),
}

/// A step that looks at the header alone.
type CheckStep<H> = fn(&mut Tcb, &mut RxContext<'_, H>, &Segment) -> Step;

/// One segment for one connection.
pub fn segment_arrives<H: HostMemory>(
    tcb: &mut Tcb,
    cx: &mut RxContext<'_, H>,
    rx: &RxSegment<'_>,
) -> FlowEvent {
    let before = tcb.state;
    let event = match before {
        TcpState::Closed => FlowEvent::None,
        TcpState::SynSent => syn_sent::process(tcb, cx, rx),
        _ => synchronized(tcb, cx, rx),
    };
    match event {
        FlowEvent::None if tcb.state == TcpState::TimeWait && before != TcpState::TimeWait => {
            FlowEvent::TimeWait
        }
        FlowEvent::None if tcb.state == TcpState::Closed && before != TcpState::Closed => {
            FlowEvent::Closed(toe_abi::errno::Errno::OK)
        }
        event => event,
    }
}

/// Section 3.10.7.4.
fn synchronized<H: HostMemory>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, rx: &RxSegment<'_>) -> FlowEvent {
    let segment = rx.segment;
    if tcb.receive.is_starved() {
        tcb.receive.look_for_memory(cx.arena, cx.pressure);
    }
    if tcb.state == TcpState::TimeWait {
        return in_time_wait(tcb, cx, &segment);
    }
    if let Step::Done(event) = acceptable::check(tcb, cx, &segment) {
        return event;
    }
    let steps: [CheckStep<H>; 3] = [rst_syn::check_rst, rst_syn::check_syn, ack::process];
    let mut established = false;
    for step in steps {
        match step(tcb, cx, &segment) {
            Step::Continue => {}
            // The ACK that completes the handshake may carry data and FIN: they are not delayed (TOE Manager
            // thesis, goal 1).
            Step::Done(FlowEvent::Established) => established = true,
            Step::Done(event) => return event,
        }
    }
    note_timestamp(tcb, &segment);
    ecn::data_arrived(tcb, &mut cx.tcp.models, &segment, rx.is_marked);
    urgent::note(tcb, &segment);
    let event = match text::process(tcb, cx, rx) {
        Step::Continue => {
            fin::process(tcb, cx);
            FlowEvent::None
        }
        Step::Done(event) => event,
    };
    if established && event == FlowEvent::None { FlowEvent::Established } else { event }
}

/// What is left of a connection in TIME_WAIT, for a record of its own.
pub fn time_wait(tcb: &Tcb, now: Instant) -> TimeWait {
    let params = TimeWaitParams {
        is_local: tcb.is_local,
        sack_permitted: tcb.rcv.sack_permitted,
        ts_recent: tcb.rcv.ts_recent,
        scale: tcb.rcv.scale,
        traffic_class: tcb.options.traffic_class,
        until: tcb.timers.linger,
        next_stray_answer: tcb.timers.next_stray_answer,
        ack: outgoing::header(tcb, now, tcb.snd.nxt),
    };
    TimeWait::new(now, &params)
}

/// A segment for a connection in TIME_WAIT that its program has still.
fn in_time_wait<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) -> FlowEvent {
    let before = time_wait(tcb, cx.now);
    let mut wait = before;
    let effect = wait.segment_arrives(&mut cx.tcp.in_time_wait(cx.now), segment);
    if segment.ack.is_some() && !segment.syn && !segment.rst {
        tcb.timers.heard = cx.now;
    }
    tcb.rcv.ts_recent = wait.ts_recent();
    if wait.until != before.until {
        timeout::start_time_wait(tcb, cx.now);
    }
    if wait.holds_back(cx.now) && !before.holds_back(cx.now) {
        tcb.timers.next_stray_answer = cx.now.after_us(STRAY_ANSWERS_US);
    }
    match effect {
        TimeWaitEffect::Nothing => {}
        TimeWaitEffect::Answer(duplicate) => {
            tcb.rcv.ack_now = true;
            if let Some(range) = duplicate
                && let Some(reports) = AckReports::at(&mut tcb.rcv.reports, &mut cx.tcp.reports, tcb.rcv.nxt)
            {
                reports.push(range);
            }
        }
        TimeWaitEffect::Reset => {
            tcb.state = tcb.state.after(TcpEvent::Reset);
            // The peer has everything.
            return FlowEvent::Closed(toe_abi::errno::Errno::OK);
        }
    }
    FlowEvent::None
}

/// RFC 7323 section 4.3, rule (2): TS.Recent follows segments that cover the last ACK sent.
fn note_timestamp(tcb: &mut Tcb, segment: &Segment) {
    if let (Some(recent), Some((value, _))) = (tcb.rcv.ts_recent.as_mut(), segment.timestamps)
        && segment.seq.at_or_before(tcb.rcv.acked)
        && (value.wrapping_sub(*recent) as i32) >= 0
    {
        *recent = value;
    }
}

/// Who sent a segment that cannot be used is told where we stand. Two ends that disagree would answer each other's
/// empty answers for ever, and a SYN brings one as well, so those are answered rarely (as Linux does; RFC 5961 section 5 has
/// such a limit too).
fn answer_stray(tcb: &mut Tcb, now: Instant, segment: &Segment) {
    if segment.syn || segment.seq_len() == 0 {
        if now < tcb.timers.next_stray_answer {
            return;
        }
        tcb.timers.next_stray_answer = now.after_us(STRAY_ANSWERS_US);
    }
    tcb.rcv.ack_now = true;
}

/// Drops the segment with an ACK that tells the peer where we stand, unless that was done a moment ago or, for other
/// connections, very often (RFC 5961 section 7).
fn challenge<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>) -> Step {
    if cx.now >= tcb.timers.next_stray_answer && cx.tcp.challenges.allows(cx.now) {
        cx.tcp.counters.add(Counter::ChallengeAcks);
        tcb.timers.next_stray_answer = cx.now.after_us(STRAY_ANSWERS_US);
        tcb.rcv.ack_now = true;
    } else {
        cx.tcp.counters.add(Counter::ChallengeAcksHeldBack);
    }
    Step::Done(FlowEvent::None)
}
