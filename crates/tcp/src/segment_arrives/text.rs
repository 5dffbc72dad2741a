//! Seventh step: the segment's text (RFC 9293 section 3.10.7.4), and when to acknowledge it (RFC 5681 section 4.2).

use super::Step;
use crate::RxContext;
use crate::counter::Counter;
use crate::memory::HostMemory;
use crate::open::QUICK_ACKS;
use crate::pressure::Pressure;
use crate::reassembly::{HeldPool, SeqRange};
use crate::receive_buffer::{NoMemory, Text};
use crate::record::Tcb;
use crate::segment::{FlowEvent, Payload, RxSegment, Segment};
use crate::state::TcpState;
use toe_base::limits::{LONG_PATH_US, RECEIVE_WINDOW_MAX, RECEIVE_WINDOW_NEAR};
use toe_base::{Instant, SeqNum};
use toe_wire::tcp::SackBlocks;

/// Longest delay of an ACK (RFC 9293 section 3.8.6.3 allows 500 ms; Linux has 40 ms).
const DELAYED_ACK_US: u64 = 40_000;
/// Duplicate ACKs that may be owed: more tell the peer nothing new.
const DUP_ACKS_MAX: u8 = 16;
/// In-order text that finds no memory is cut in halves down to this.
const PART_MIN: u32 = 4 << 10;
/// Shortest time over which the receive window is measured.
const TUNE_INTERVAL_MIN_US: u64 = 1_000;

pub(super) fn process<H: HostMemory>(flow: &mut Tcb, cx: &mut RxContext<'_, H>, rx: &RxSegment<'_>) -> Step {
    let segment = rx.segment;
    if !flow.state.accepts_text() {
        // After the peer's FIN nothing can follow, and what does is ignored; what begins before it is a duplicate, and acknowledged.
        // In TIME_WAIT all is, as it may be of a peer that goes on with its old connection (RFC 9293, Linux).
        let is_old = segment.seq.before(flow.rcv.nxt);
        if segment.seq_len() > 0 && (is_old || flow.state == TcpState::TimeWait) {
            flow.rcv.ack_now = true;
        }
        return Step::Continue;
    }
    let nxt = flow.rcv.nxt;
    let edge = flow.rcv.edge.later(nxt);
    // A SYN takes the first number (only in SYN_RECEIVED, where it was taken already).
    let start = segment.seq.plus(u32::from(segment.syn));
    let end = start.plus(segment.len);
    let first = start.later(nxt);
    let last = end.earlier(edge);
    if segment.fin && end.at_or_before(edge) {
        flow.rcv.fin = Some(end);
    }
    if segment.len > 0 && !first.before(last) {
        // Wholly old, or wholly beyond the window (a window probe): tell the peer where we stand. It has taken our ACK
        // or its segment for lost, so its window is small now: it needs each ACK.
        flow.rcv.ack_now = true;
        flow.rcv.quick_acks = QUICK_ACKS;
        note_duplicate(flow, &cx.tcp.held, &segment);
        return Step::Continue;
    }
    if segment.len == 0 {
        if segment.fin && first.after(nxt) {
            // FIN behind a hole tells the peer of the hole as text would.
            flow.rcv.dup_acks = flow.rcv.dup_acks.saturating_add(1).min(DUP_ACKS_MAX);
            report_first(flow, &cx.tcp.held, start);
        }
        return Step::Continue;
    }
    if flow.orphaned || flow.options.receive_shut && flow.snd.fin_queued {
        // The program is gone, or has shut both directions, and cannot read this: RST tells the peer (RFC 9293
        // section 3.6.1, RFC 2525 section 2.17). What the program sent before goes first: of Linux it had gone by now.
        cx.tcp.counters.add(Counter::DropAfterClose);
        return Step::Done(FlowEvent::AbortBehindData);
    }
    note_duplicate(flow, &cx.tcp.held, &segment);
    let skip = first.distance_from(start);
    let len = last.distance_from(first);
    match take(flow, cx, rx, first, skip, len) {
        Ok(()) => {
            if flow.rcv.nxt == nxt {
                // The sender's window is small after a loss: it needs each ACK (Linux: quick ACKs again).
                flow.rcv.quick_acks = QUICK_ACKS;
                flow.rcv.dup_acks = flow.rcv.dup_acks.saturating_add(1).min(DUP_ACKS_MAX);
            } else {
                flow.rcv.dup_acks = 0;
                schedule_ack(flow, cx.now, flow.rcv.nxt.distance_from(nxt) > len);
            }
            Step::Continue
        }
        Err(NoRoom) => {
            flow.rcv.ack_now = true;
            Step::Done(FlowEvent::None)
        }
    }
}

/// The text of a peer's SYN that has made the connection, before the peer acknowledged ours (RFC 7413 section 4.2.2).
/// `false`: there was none, or no memory for it, and the peer sends it again.
pub fn take_syn_text<H: HostMemory>(flow: &mut Tcb, cx: &mut RxContext<'_, H>, rx: &RxSegment<'_>) -> bool {
    let nxt = flow.rcv.nxt;
    let len = rx.segment.len.min(flow.rcv.edge.distance_from(nxt));
    len > 0 && take(flow, cx, rx, nxt, 0, len).is_ok()
}

/// The text was dropped; the peer sends it again.
struct NoRoom;

/// Places `len` octets at `first` and moves `rcv.nxt` over what is in order now.
fn take<H: HostMemory>(
    flow: &mut Tcb,
    cx: &mut RxContext<'_, H>,
    rx: &RxSegment<'_>,
    first: SeqNum,
    skip: u32,
    len: u32,
) -> Result<(), NoRoom> {
    let nxt = flow.rcv.nxt;
    let in_order = first == nxt;
    // What is in order needs no place among the held ranges: it must get in even when all are taken.
    if !in_order && !flow.held.has_room(&mut cx.tcp.held, first, first.plus(len)) {
        cx.tcp.counters.add(Counter::DropReassemblyFull);
        return Err(NoRoom);
    }
    let whole = len;
    let mut len = len;
    while place(flow, cx, rx, first, skip, len).is_err() {
        cx.tcp.counters.add(Counter::DropNoMemory);
        if in_order {
            note_memory(flow, false);
        }
        if !in_order || len <= PART_MIN {
            return Err(NoRoom);
        }
        // A part may fit where the whole does not: the sender gets on, if slowly.
        len /= 2;
    }
    if in_order {
        note_memory(flow, len == whole);
        flow.rcv.nxt = flow.held.advance(&mut cx.tcp.held, nxt.plus(len));
        super::urgent::forget_old(flow);
    } else if flow.held.insert(&mut cx.tcp.held, first, first.plus(len)).is_ok() {
        flow.traffic.out_of_order = flow.traffic.out_of_order.wrapping_add(1);
        report_first(flow, &cx.tcp.held, first);
    }
    Ok(())
}

/// Where memory has ended the peer is told so by a window that closes, though it was open (Linux: ICSK_ACK_NOMEM): its
/// probes wait for memory as long as it takes, where time-outs of what is dropped would end the connection. Of two flows of one engine
/// the sender is told at once (`recovery.rs`).
fn note_memory(flow: &mut Tcb, was_found: bool) {
    if !flow.is_local {
        flow.receive.note_memory(was_found);
    }
}

/// Remembers what came twice, for the next ACK (RFC 2883 section 4).
///
/// FIN has a number, and is told of with what it ends.
pub(super) fn note_duplicate(flow: &mut Tcb, held: &HeldPool, segment: &Segment) {
    let nxt = flow.rcv.nxt;
    let start = segment.seq.plus(u32::from(segment.syn));
    let end = start.plus(segment.len);
    let is_empty = segment.len == 0 && !segment.fin;
    if !flow.rcv.sack_permitted || is_empty || segment.rst {
        return;
    }
    if start.before(nxt) {
        let end = end.plus(u32::from(segment.fin)).earlier(nxt);
        flow.rcv.duplicates.push(SeqRange { start, end });
    } else if segment.len > 0 && flow.held.holds(held, start, end) {
        flow.rcv.duplicates.push(SeqRange { start, end });
        report_first(flow, held, start);
    }
}

/// The range that `seq` lies in is the first one that ACKs tell of, and those told of before come after it (RFC 2018
/// section 4): each is told of several times, should ACKs be lost.
fn report_first(flow: &mut Tcb, held: &HeldPool, seq: SeqNum) {
    // FIN lies in no range; it is behind one, or alone.
    let latest = flow.held.containing(held, seq).unwrap_or(SeqRange { start: seq, end: seq });
    let mut reported = [seq; SackBlocks::MAX];
    let others = flow.rcv.reported.iter().filter(|s| s.before(latest.start) || s.at_or_after(latest.end));
    for (place, other) in reported[1..].iter_mut().zip(others) {
        *place = *other;
    }
    flow.rcv.reported = reported;
}

/// Puts `len` octets of the segment, without the first `skip`, where the host will read them.
fn place<H: HostMemory>(
    flow: &mut Tcb,
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
    let held = flow.held.ranges(&cx.tcp.held);
    flow.receive.place(cx.arena, cx.host, held, flow.rcv.nxt, text, cx.pressure)
}

fn schedule_ack(flow: &mut Tcb, now: Instant, filled_a_hole: bool) {
    let unacked = flow.rcv.nxt.distance_from(flow.rcv.acked);
    let at_once = filled_a_hole
        || !flow.held.is_empty()
        || flow.is_local
        || flow.rcv.quick_acks > 0
        || unacked >= 2 * u32::from(flow.snd.mss);
    if at_once {
        flow.rcv.quick_acks = flow.rcv.quick_acks.saturating_sub(1);
        flow.rcv.ack_now = true;
    } else {
        delay_ack(flow, now);
    }
}

/// An ACK is owed, and rides on what is sent within a moment. Between local ends nothing is gained by waiting.
pub(super) fn delay_ack(flow: &mut Tcb, now: Instant) {
    if flow.is_local {
        flow.rcv.ack_now = true;
    } else if flow.timers.delayed_ack.is_far_future() {
        flow.timers.delayed_ack = now.after_us(DELAYED_ACK_US);
    }
}

/// The host gave `len` octets back: grow the window when it keeps up with the path, and tell the peer when that is
/// worth a segment (RFC 9293 section 3.8.6.2.2).
pub fn credit_given(flow: &mut Tcb, now: Instant, len: u32, pressure: Pressure) {
    tune_window(flow, now, len, pressure);
    if flow.receive.is_starved() && !pressure.is_high() {
        flow.receive.note_memory(true);
    }
    if !flow.state.accepts_text() {
        return;
    }
    let data_nxt = flow.data_nxt();
    let offered = flow.rcv.edge.distance_from(data_nxt);
    let could = flow.receive.window(data_nxt);
    let gain = could.saturating_sub(offered);
    let worth = (2 * u32::from(flow.snd.mss)).min(flow.receive.window_max / 2);
    if gain >= worth && offered < flow.receive.window_max / 2 {
        flow.rcv.ack_now = true;
    }
}

/// Doubles the window as soon as a quarter of it has been read within a round trip. A peer in slow start has twice as much
/// under way in the next one, and so much again before the first of it is read: it never meets the window's edge.
fn tune_window(flow: &mut Tcb, now: Instant, len: u32, pressure: Pressure) {
    let interval = u64::from(flow.rtt.srtt_us).max(TUNE_INTERVAL_MIN_US);
    let since = now.since_us(flow.rcv.tune_since);
    flow.rcv.tune_consumed = flow.rcv.tune_consumed.saturating_add(len);
    let keeps_up = flow.rcv.tune_consumed > flow.receive.window_max / 4 && since < 4 * interval;
    if keeps_up && !pressure.is_high() {
        let near = flow.rtt.srtt_us < LONG_PATH_US;
        let most = if near { RECEIVE_WINDOW_NEAR } else { RECEIVE_WINDOW_MAX };
        let limit = flow.options.receive_window_limit.min(most);
        // What it has it keeps: only who sets the limit lowers it.
        let doubled = flow.receive.window_max.saturating_mul(2).min(limit);
        flow.receive.window_max = flow.receive.window_max.max(doubled);
    }
    if keeps_up || since >= interval {
        flow.rcv.tune_consumed = 0;
        flow.rcv.tune_since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::limits::RECEIVE_WINDOW_INITIAL;

    /// RFC 9293 section 3.8.6.2.2: of a window that was closed the peer is told when two segments have been read, and not before.
    #[test]
    fn slivers_of_the_window_are_not_offered() {
        let mut flow = Tcb::vacant();
        flow.state = TcpState::Established;
        flow.snd.mss = 1000;
        flow.receive.window_max = 8000;
        flow.rcv.nxt = flow.receive.consumed.plus(8000);
        flow.rcv.edge = flow.rcv.nxt;
        let mut tells = |len| {
            flow.receive.consumed = flow.receive.consumed.plus(len);
            credit_given(&mut flow, Instant::from_millis(1), len, Pressure::None);
            flow.rcv.ack_now
        };
        assert!(!tells(1000));
        assert!(!tells(999));
        assert!(tells(1));
    }

    /// The window of a reader that keeps up with a path of this round trip, after a while.
    fn window_after(srtt_us: u32) -> u32 {
        let mut flow = Tcb::vacant();
        flow.rtt.srtt_us = srtt_us;
        for round in 1..20 {
            let now = Instant::from_micros(round * u64::from(srtt_us.max(1000)));
            let window = flow.receive.window_max;
            credit_given(&mut flow, now, window, Pressure::None);
        }
        flow.receive.window_max
    }

    #[test]
    fn the_window_grows_with_the_path() {
        assert_eq!(window_after(50), RECEIVE_WINDOW_NEAR);
        assert_eq!(window_after(100_000), RECEIVE_WINDOW_MAX);
    }

    #[test]
    fn the_window_does_not_grow_where_memory_is_scarce() {
        let mut flow = Tcb::vacant();
        flow.rtt.srtt_us = 50;
        for round in 1..20 {
            let window = flow.receive.window_max;
            credit_given(&mut flow, Instant::from_millis(round), window, Pressure::High);
        }
        assert_eq!(flow.receive.window_max, RECEIVE_WINDOW_INITIAL);
    }

    #[test]
    fn the_window_stays_ahead_of_slow_start() {
        let mut flow = Tcb::vacant();
        flow.rtt.srtt_us = 40_000;
        let segment: u32 = 1448;
        for round in 1..10u64 {
            // Twice as much each round trip, in pairs of segments that come a millisecond apart.
            let flight = (10 * segment) << (round - 1);
            let pairs = flight / (2 * segment);
            let credits = pairs.min(39);
            for n in 0..credits {
                // What this much acknowledged lets the peer have under way.
                let under_way = flight + (n + 1) * (flight / credits);
                assert!(flow.receive.window_max >= under_way, "round {round}, credit {n}: {under_way}");
                let now = Instant::from_millis(40 * round + u64::from(n));
                credit_given(&mut flow, now, flight / credits, Pressure::None);
            }
        }
    }

    #[test]
    fn a_reader_that_does_not_keep_up_gets_no_more() {
        let mut flow = Tcb::vacant();
        flow.rtt.srtt_us = 10_000;
        for round in 1..20 {
            let window = flow.receive.window_max;
            credit_given(&mut flow, Instant::from_millis(round * 10), window / 5, Pressure::None);
        }
        assert_eq!(flow.receive.window_max, RECEIVE_WINDOW_INITIAL);
    }
}
