//! What a check of the segment decides, and what several of them do.

use crate::RxContext;
use crate::counter::Counter;
use crate::record::Tcb;
use crate::segment::{FlowEvent, Segment};
use crate::time_wait::STRAY_ANSWERS_US;
use toe_base::Instant;

/// What a step decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Continue,
    Done(FlowEvent),
}

/// RFC 7323 section 4.3, rule (2): TS.Recent follows segments that cover the last ACK sent.
pub(super) fn note_timestamp(tcb: &mut Tcb, segment: &Segment) {
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
pub(super) fn answer_stray(tcb: &mut Tcb, now: Instant, segment: &Segment) {
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
pub(super) fn challenge<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>) -> Step {
    if cx.now >= tcb.timers.next_stray_answer && cx.tcp.challenges.allows(cx.now) {
        cx.tcp.counters.add(Counter::ChallengeAcks);
        tcb.timers.next_stray_answer = cx.now.after_us(STRAY_ANSWERS_US);
        tcb.rcv.ack_now = true;
    } else {
        cx.tcp.counters.add(Counter::ChallengeAcksHeldBack);
    }
    Step::Done(FlowEvent::None)
}
