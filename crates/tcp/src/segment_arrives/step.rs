//! What a check of the segment decides, and what several of them do.

use crate::RxContext;
use crate::counter::Counter;
use crate::record::Tcb;
use crate::segment::{FlowEvent, Segment};
use crate::time_wait::STRAY_ANSWERS_US;

/// What a step decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Continue,
    Done(FlowEvent),
}

/// RFC 7323 section 4.3, rule (2): TS.Recent follows segments that cover the last ACK sent.
pub(super) fn note_timestamp(tcb: &mut Tcb, segment: &Segment) {
    if let (Some(ours), Some((value, _))) = (tcb.setup.negotiated.timestamps.as_mut(), segment.timestamps)
        && segment.seq.at_or_before(tcb.receiving.acks.last_sent)
        && (value.wrapping_sub(ours.recent) as i32) >= 0
    {
        ours.recent = value;
    }
}

/// Who sent a segment that cannot be used is told where we stand. Two ends that disagree would answer each other's
/// empty answers for ever, and a SYN brings one as well, so those are answered rarely (as Linux does; RFC 5961 section 5 has
/// such a limit too).
pub(super) fn answer_stray<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) {
    if segment.flags.syn() || segment.seq_len() == 0 {
        if !may_answer(tcb, cx) {
            return;
        }
        note_answer(tcb, cx);
    }
    tcb.receiving.acks.now = true;
}

fn may_answer<H>(tcb: &Tcb, cx: &RxContext<'_, H>) -> bool {
    cx.now >= cx.tcp.particulars.one(&tcb.setup.particulars).next_stray_answer
}

/// The next ones are not answered for a while.
pub(super) fn note_answer<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>) {
    if let Some(particulars) = cx.tcp.particulars.one_mut(&mut tcb.setup.particulars) {
        particulars.next_stray_answer = cx.now.after_us(STRAY_ANSWERS_US);
    }
}

/// Drops the segment with an ACK that tells the peer where we stand, unless that was done a moment ago or, for other
/// connections, very often (RFC 5961 section 7).
pub(super) fn challenge<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>) -> Step {
    if may_answer(tcb, cx) && cx.tcp.challenges.allows(cx.now) {
        cx.tcp.counters.add(Counter::ChallengeAcks);
        note_answer(tcb, cx);
        tcb.receiving.acks.now = true;
    } else {
        cx.tcp.counters.add(Counter::ChallengeAcksHeldBack);
    }
    Step::Done(FlowEvent::None)
}
