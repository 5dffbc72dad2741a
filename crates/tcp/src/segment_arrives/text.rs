//! Seventh step: the segment's text (RFC 9293 section 3.10.7.4), and when to acknowledge it (RFC 5681 section 4.2).

use super::step::Step;
use crate::counter::Counter;
use crate::memory::HostMemory;
use crate::open::QUICK_ACKS;
use crate::pressure::Pressure;
use crate::reassembly::SeqRange;
use crate::receive_buffer::{NoMemory, Text};
use crate::record::{AckReports, Particulars, ParticularsPool, PathState, PeerFin, Tcb};
use crate::segment::{FlowEvent, Payload, RxSegment, Segment};
use crate::{RxContext, Tcp};
use toe_base::limits::{LONG_PATH_US, RECEIVE_WINDOW_MAX, RECEIVE_WINDOW_NEAR};
use toe_base::{Instant, SeqNum};
use toe_wire::tcp::SackBlocks;

/// Longest delay of an ACK (RFC 9293 section 3.8.6.3 allows 500 ms; Linux has 40 ms).
const DELAYED_ACK_US: u64 = 40_000;
/// In-order text that finds no memory is cut in halves down to this.
const PART_MIN: u32 = 4 << 10;
/// Shortest time over which the receive window is measured.
const TUNE_INTERVAL_MIN_US: u64 = 1_000;

pub(super) fn process<H: HostMemory>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, rx: &RxSegment<'_>) -> Step {
    let segment = rx.segment;
    if !tcb.state.accepts_text() {
        // After the peer's FIN nothing can follow, and what does is ignored; what begins before it is a duplicate, and acknowledged.
        tcb.receiving.acks.now |= segment.seq_len() > 0 && segment.seq.before(tcb.rcv.nxt);
        return Step::Continue;
    }
    let nxt = tcb.rcv.nxt;
    let edge = tcb.rcv.edge.later(nxt);
    // A SYN takes the first number (only in SYN_RECEIVED, where it was taken already).
    let start = segment.seq.plus(u32::from(segment.flags.syn()));
    let end = start.plus(segment.len);
    let first = start.later(nxt);
    let last = end.earlier(edge);
    if segment.flags.fin() && end.at_or_before(edge) {
        tcb.rcv.fin = PeerFin::Seen(end);
    }
    if segment.len > 0 && !first.before(last) {
        // Wholly old, or wholly beyond the window (a window probe): tell the peer where we stand. It has taken our ACK
        // or its segment for lost, so its window is small now: it needs each ACK.
        tcb.receiving.acks.now = true;
        tcb.receiving.acks.quick = QUICK_ACKS;
        note_duplicate(tcb, cx.tcp, &segment);
        return Step::Continue;
    }
    if segment.len == 0 {
        if segment.flags.fin() && first.after(nxt) {
            // FIN behind a hole tells the peer of the hole as text would.
            tcb.receiving.acks.owe_duplicate();
            report_first(tcb, cx.tcp, start);
        }
        return Step::Continue;
    }
    if tcb.orphaned || tcb.setup.options.receive_shut && tcb.snd.fin.is_queued() {
        // The program is gone, or has shut both directions, and cannot read this: RST tells the peer (RFC 9293
        // section 3.6.1, RFC 2525 section 2.17). What the program sent before goes first: of Linux it had gone by now.
        cx.tcp.counters.add(Counter::DropAfterClose);
        return Step::Done(FlowEvent::AbortBehindData);
    }
    note_duplicate(tcb, cx.tcp, &segment);
    let skip = first.distance_from(start);
    let len = last.distance_from(first);
    match take(tcb, cx, rx, first, skip, len) {
        Ok(()) => {
            if tcb.rcv.nxt == nxt {
                // The sender's window is small after a loss: it needs each ACK (Linux: quick ACKs again).
                tcb.receiving.acks.quick = QUICK_ACKS;
                tcb.receiving.acks.owe_duplicate();
            } else {
                tcb.receiving.acks.duplicates = 0;
                schedule_ack(tcb, cx.now, tcb.rcv.nxt.distance_from(nxt) > len);
            }
            Step::Continue
        }
        Err(NoRoom) => {
            tcb.receiving.acks.now = true;
            Step::Done(FlowEvent::None)
        }
    }
}

/// The text of a peer's SYN that has made the connection, before the peer acknowledged ours (RFC 7413 section 4.2.2).
/// `false`: there was none, or no memory for it, and the peer sends it again.
pub fn take_syn_text<H: HostMemory>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, rx: &RxSegment<'_>) -> bool {
    let nxt = tcb.rcv.nxt;
    let len = rx.segment.len.min(tcb.rcv.edge.distance_from(nxt));
    len > 0 && take(tcb, cx, rx, nxt, 0, len).is_ok()
}

/// The text was dropped; the peer sends it again.
struct NoRoom;

/// Places `len` bytes at `first` and moves `rcv.nxt` over what is in order now.
fn take<H: HostMemory>(
    tcb: &mut Tcb,
    cx: &mut RxContext<'_, H>,
    rx: &RxSegment<'_>,
    first: SeqNum,
    skip: u32,
    len: u32,
) -> Result<(), NoRoom> {
    let nxt = tcb.rcv.nxt;
    let in_order = first == nxt;
    // What is in order needs no place among the held ranges: it must get in even when all are taken.
    if !in_order && !tcb.receiving.held.has_room(&mut cx.tcp.held, first, first.plus(len)) {
        cx.tcp.counters.add(Counter::DropReassemblyFull);
        return Err(NoRoom);
    }
    let whole = len;
    let mut len = len;
    while place(tcb, cx, rx, first, skip, len).is_err() {
        cx.tcp.counters.add(Counter::DropNoMemory);
        if in_order {
            note_memory(tcb, false);
        }
        if !in_order || len <= PART_MIN {
            return Err(NoRoom);
        }
        // A part may fit where the whole does not: the sender gets on, if slowly.
        len /= 2;
    }
    if in_order {
        note_memory(tcb, len == whole);
        tcb.rcv.nxt = tcb.receiving.held.advance(&mut cx.tcp.held, nxt.plus(len));
        super::urgent::forget_old(tcb);
    } else if tcb.receiving.held.insert(&mut cx.tcp.held, first, first.plus(len)).is_ok() {
        if let Some(Particulars { trouble, .. }) = cx.tcp.particulars.one_mut(&mut tcb.setup.particulars) {
            trouble.out_of_order = trouble.out_of_order.wrapping_add(1);
        }
        report_first(tcb, cx.tcp, first);
    }
    Ok(())
}

/// Where memory has ended the peer is told so by a window that closes, though it was open (Linux: ICSK_ACK_NOMEM): its
/// probes wait for memory as long as it takes, where time-outs of what is dropped would end the connection. Of two connections of one engine
/// the sender is told at once (`recovery.rs`).
fn note_memory(tcb: &mut Tcb, was_found: bool) {
    if !tcb.is_local {
        tcb.receiving.buffer.note_memory(was_found);
    }
}

/// Remembers what came twice, for the next ACK (RFC 2883 section 4).
///
/// FIN has a number, and is told of with what it ends.
pub(super) fn note_duplicate(tcb: &mut Tcb, tcp: &mut Tcp, segment: &Segment) {
    let nxt = tcb.rcv.nxt;
    let start = segment.seq.plus(u32::from(segment.flags.syn()));
    let end = start.plus(segment.len);
    let is_empty = segment.len == 0 && !segment.flags.fin();
    if !tcb.has_sack() || is_empty || segment.flags.rst() {
        return;
    }
    if start.before(nxt) {
        let end = end.plus(u32::from(segment.flags.fin())).earlier(nxt);
        push_duplicate(tcb, tcp, SeqRange { start, end });
    } else if segment.len > 0 && tcb.receiving.held.holds(&tcp.held, start, end) {
        push_duplicate(tcb, tcp, SeqRange { start, end });
        report_first(tcb, tcp, start);
    }
}

fn push_duplicate(tcb: &mut Tcb, tcp: &mut Tcp, range: SeqRange) {
    if let Some(reports) = AckReports::at(&mut tcb.receiving.acks.reports, &mut tcp.reports, tcb.rcv.nxt) {
        reports.push(range);
    }
}

/// The range that `seq` lies in is the first one that ACKs tell of, and those told of before come after it (RFC 2018
/// section 4): each is told of several times, should ACKs be lost.
fn report_first(tcb: &mut Tcb, tcp: &mut Tcp, seq: SeqNum) {
    if !tcb.has_sack() {
        return;
    }
    // FIN lies in no range; it is behind one, or alone.
    let range = tcb.receiving.held.containing(&tcp.held, seq).unwrap_or(SeqRange { start: seq, end: seq });
    let Some(reports) = AckReports::at(&mut tcb.receiving.acks.reports, &mut tcp.reports, tcb.rcv.nxt) else {
        return;
    };
    let mut latest = [seq; SackBlocks::MAX];
    let others = reports.latest.iter().filter(|s| s.before(range.start) || s.at_or_after(range.end));
    for (place, other) in latest[1..].iter_mut().zip(others) {
        *place = *other;
    }
    reports.latest = latest;
}

/// Puts `len` bytes of the segment, without the first `skip`, where the host will read them.
fn place<H: HostMemory>(
    tcb: &mut Tcb,
    cx: &mut RxContext<'_, H>,
    rx: &RxSegment<'_>,
    first: SeqNum,
    skip: u32,
    len: u32,
) -> Result<(), NoMemory> {
    let cut;
    let payload = match rx.payload {
        Payload::Frame(bytes) => Payload::Frame(&bytes[skip as usize..(skip + len) as usize]),
        Payload::Tail(tail, at) => Payload::Tail(tail, at + skip as usize),
        Payload::Memory(pieces) => {
            cut = pieces.slice(skip, len);
            Payload::Memory(&cut)
        }
    };
    let text = Text { seq: first, payload, len };
    let held = tcb.receiving.held.ranges(&cx.tcp.held);
    tcb.receiving.buffer.place(cx.arena, cx.host, held, tcb.rcv.nxt, text, cx.pressure)
}

fn schedule_ack(tcb: &mut Tcb, now: Instant, filled_a_hole: bool) {
    let unacked = tcb.rcv.nxt.distance_from(tcb.receiving.acks.last_sent);
    let at_once = filled_a_hole
        || !tcb.receiving.held.is_empty()
        || tcb.is_local
        || tcb.receiving.acks.quick > 0
        || unacked >= 2 * u32::from(tcb.snd.mss);
    if at_once {
        tcb.receiving.acks.quick = tcb.receiving.acks.quick.saturating_sub(1);
        tcb.receiving.acks.now = true;
    } else {
        delay_ack(tcb, now);
    }
}

/// An ACK is owed, and rides on what is sent within a moment. Between local ends nothing is gained by waiting.
pub(super) fn delay_ack(tcb: &mut Tcb, now: Instant) {
    if tcb.is_local {
        tcb.receiving.acks.now = true;
    } else if tcb.timers.delayed_ack.is_far_future() {
        tcb.timers.delayed_ack = now.after_us(DELAYED_ACK_US);
    }
}

/// The host gave `len` bytes back: grow the window when it keeps up with the path, and tell the peer when that is
/// worth a segment (RFC 9293 section 3.8.6.2.2).
pub fn credit_given(
    tcb: &mut Tcb,
    path: &mut PathState,
    pool: &ParticularsPool,
    now: Instant,
    len: u32,
    pressure: Pressure,
) {
    tune_window(tcb, path, pool, now, len, pressure);
    if tcb.receiving.buffer.is_starved() && !pressure.is_high() {
        tcb.receiving.buffer.note_memory(true);
    }
    if !tcb.state.accepts_text() {
        return;
    }
    let data_nxt = tcb.data_nxt();
    let offered = tcb.rcv.edge.distance_from(data_nxt);
    let could = tcb.receiving.buffer.window(data_nxt);
    let gain = could.saturating_sub(offered);
    let worth = (2 * u32::from(tcb.snd.mss)).min(tcb.receiving.buffer.window_max / 2);
    if gain >= worth && offered < tcb.receiving.buffer.window_max / 2 {
        tcb.receiving.acks.now = true;
    }
}

/// Doubles the window as soon as a quarter of it has been read within a round trip. A peer in slow start has twice as much
/// under way in the next one, and so much again before the first of it is read: it never meets the window's edge.
fn tune_window(
    tcb: &mut Tcb,
    path: &mut PathState,
    pool: &ParticularsPool,
    now: Instant,
    len: u32,
    pressure: Pressure,
) {
    let interval = u64::from(path.rtt.srtt_us).max(TUNE_INTERVAL_MIN_US);
    let since = now.since_us(path.tuning.since);
    path.tuning.consumed = path.tuning.consumed.saturating_add(len);
    let keeps_up = path.tuning.consumed > tcb.receiving.buffer.window_max / 4 && since < 4 * interval;
    if keeps_up && !pressure.is_high() {
        let near = path.rtt.srtt_us < LONG_PATH_US;
        let most = if near { RECEIVE_WINDOW_NEAR } else { RECEIVE_WINDOW_MAX };
        let limit = pool.one(&tcb.setup.particulars).receive_window_limit.min(most);
        // What it has it keeps: only who sets the limit lowers it.
        let doubled = tcb.receiving.buffer.window_max.saturating_mul(2).min(limit);
        tcb.receiving.buffer.window_max = tcb.receiving.buffer.window_max.max(doubled);
    }
    if keeps_up || since >= interval {
        path.tuning.consumed = 0;
        path.tuning.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::TcpState;
    use toe_base::limits::RECEIVE_WINDOW_INITIAL;

    /// RFC 9293 section 3.8.6.2.2: of a window that was closed the peer is told when two segments have been read, and not before.
    #[test]
    fn slivers_of_the_window_are_not_offered() {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        tcb.state = TcpState::Established;
        tcb.snd.mss = 1000;
        tcb.receiving.buffer.window_max = 8000;
        tcb.rcv.nxt = tcb.receiving.buffer.consumed.plus(8000);
        tcb.rcv.edge = tcb.rcv.nxt;
        let mut tells = |len| {
            tcb.receiving.buffer.consumed = tcb.receiving.buffer.consumed.plus(len);
            credit_given(
                &mut tcb,
                &mut path,
                &ParticularsPool::of_smallest(1),
                Instant::from_millis(1),
                len,
                Pressure::None,
            );
            tcb.receiving.acks.now
        };
        assert!(!tells(1000));
        assert!(!tells(999));
        assert!(tells(1));
    }

    /// The window of a reader that keeps up with a path of this round trip, after a while.
    fn window_after(srtt_us: u32) -> u32 {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        path.rtt.srtt_us = srtt_us;
        for round in 1..20 {
            let now = Instant::from_micros(round * u64::from(srtt_us.max(1000)));
            let window = tcb.receiving.buffer.window_max;
            credit_given(&mut tcb, &mut path, &ParticularsPool::of_smallest(1), now, window, Pressure::None);
        }
        tcb.receiving.buffer.window_max
    }

    #[test]
    fn the_window_grows_with_the_path() {
        assert_eq!(window_after(50), RECEIVE_WINDOW_NEAR);
        assert_eq!(window_after(100_000), RECEIVE_WINDOW_MAX);
    }

    #[test]
    fn the_window_does_not_grow_where_memory_is_scarce() {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        path.rtt.srtt_us = 50;
        for round in 1..20 {
            let window = tcb.receiving.buffer.window_max;
            credit_given(
                &mut tcb,
                &mut path,
                &ParticularsPool::of_smallest(1),
                Instant::from_millis(round),
                window,
                Pressure::High,
            );
        }
        assert_eq!(tcb.receiving.buffer.window_max, RECEIVE_WINDOW_INITIAL);
    }

    #[test]
    fn the_window_stays_ahead_of_slow_start() {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        path.rtt.srtt_us = 40_000;
        let segment: u32 = 1448;
        for round in 1..10u64 {
            // Twice as much each round trip, in pairs of segments that come a millisecond apart.
            let flight = (10 * segment) << (round - 1);
            let pairs = flight / (2 * segment);
            let credits = pairs.min(39);
            for n in 0..credits {
                // What this much acknowledged lets the peer have under way.
                let under_way = flight + (n + 1) * (flight / credits);
                assert!(
                    tcb.receiving.buffer.window_max >= under_way,
                    "round {round}, credit {n}: {under_way}"
                );
                let now = Instant::from_millis(40 * round + u64::from(n));
                credit_given(
                    &mut tcb,
                    &mut path,
                    &ParticularsPool::of_smallest(1),
                    now,
                    flight / credits,
                    Pressure::None,
                );
            }
        }
    }

    #[test]
    fn a_reader_that_does_not_keep_up_gets_no_more() {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        path.rtt.srtt_us = 10_000;
        for round in 1..20 {
            let window = tcb.receiving.buffer.window_max;
            credit_given(
                &mut tcb,
                &mut path,
                &ParticularsPool::of_smallest(1),
                Instant::from_millis(round * 10),
                window / 5,
                Pressure::None,
            );
        }
        assert_eq!(tcb.receiving.buffer.window_max, RECEIVE_WINDOW_INITIAL);
    }
}
