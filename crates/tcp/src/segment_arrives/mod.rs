//! SEGMENT ARRIVES (RFC 9293 section 3.10.7): the steps in the RFC's order, one file each.
//!
//! A step returns [`Step::Continue`], or [`Step::Done`] with what became of the segment.

pub use text::credit_given;
pub use text::take_syn_text;

mod acceptable;
mod ack;
mod fin;
mod rst_syn;
mod sack;
mod step;
mod syn_sent;
mod text;
mod urgent;

use crate::memory::HostMemory;
use crate::record::{AckReports, ParticularsPool, Tcb};
use crate::segment::{FlowEvent, RxSegment, Segment};
use crate::state::{TcpEvent, TcpState};
use crate::time_wait::{TimeWait, TimeWaitEffect, TimeWaitParams};
use crate::{RxContext, ecn, outgoing, timeout};
use step::{Step, note_answer, note_timestamp};
use toe_base::Instant;

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
    if tcb.receiving.buffer.is_starved() {
        tcb.receiving.buffer.look_for_memory(cx.arena, cx.pressure);
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
    ecn::data_arrived(tcb, cx.path, &mut cx.tcp.models, &segment, rx.is_marked);
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
pub fn time_wait(tcb: &Tcb, pool: &ParticularsPool, now: Instant) -> TimeWait {
    let params = TimeWaitParams {
        is_local: tcb.is_local,
        sack_permitted: tcb.has_sack(),
        ts_recent: tcb.ts_recent(),
        scale: tcb.setup.negotiated.rcv_scale,
        traffic_class: tcb.setup.options.traffic_class,
        until: tcb.timers.linger(),
        next_stray_answer: pool.one(&tcb.setup.particulars).next_stray_answer,
        ack: outgoing::header(tcb, now, tcb.snd.nxt),
    };
    TimeWait::new(now, &params)
}

/// A segment for a connection in TIME_WAIT that its program has still.
fn in_time_wait<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) -> FlowEvent {
    let before = time_wait(tcb, &cx.tcp.particulars, cx.now);
    let mut wait = before;
    let effect = wait.segment_arrives(&mut cx.tcp.in_time_wait(cx.now), segment);
    if segment.ack.is_some() && !segment.flags.syn() && !segment.flags.rst() {
        tcb.timers.heard = cx.now;
    }
    if let (Some(ours), Some(recent)) = (tcb.setup.negotiated.timestamps.as_mut(), wait.ts_recent()) {
        ours.recent = recent;
    }
    if wait.until != before.until {
        timeout::start_time_wait(tcb, cx.path, &mut cx.tcp.particulars, cx.now);
    }
    if wait.holds_back(cx.now) && !before.holds_back(cx.now) {
        note_answer(tcb, cx);
    }
    match effect {
        TimeWaitEffect::Nothing => {}
        TimeWaitEffect::Answer(duplicate) => {
            tcb.receiving.acks.now = true;
            if let Some(range) = duplicate
                && let Some(reports) =
                    AckReports::at(&mut tcb.receiving.acks.reports, &mut cx.tcp.reports, tcb.rcv.nxt)
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
