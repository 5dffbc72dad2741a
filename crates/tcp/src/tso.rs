//! How much of a connection's data leaves at once over a link: new data waits for the next ACK until it is worth a large unit, as Linux has
//! it (tcp_tso_should_defer, tcp_tso_autosize). Units cost by the piece here, at the link and at the receiver; and at a short queue
//! whoever sends singly finds more room than who sends in bursts, so that one who does not gather takes a gatherer's share.
//!
//! [`super::output`] asks. What is put off needs no timer: something is in flight, and its ACK or its time-out asks again.

use super::outgoing::{Shape, path_left};
use crate::Tcp;
use crate::record::{Algorithm, PathState, Phase, Tcb};

/// The largest unit, whatever the link cuts: a frame of IP.
const UNIT_MAX: u32 = 64 << 10;
/// So many segments each ACK lets go (RFC 9293 section 3.8.6.3): nothing is won by waiting for no more, and who waits for the odd one
/// has it dropped again and again where the queue is full in step with what is sent.
const ACK_SEGMENTS: u32 = 2;
/// So long as it was since anything went, ACKs do not come in bunches, and waiting would leave gaps.
const RECENT_US: u64 = 1_000;
/// More than this part of a window is not held back.
const WINDOW_PART: u32 = 3;
/// Each doubling of the shortest round trip in units of 2^9 µs halves what is added for short ones: on them the ACKs of a large unit
/// are back before the next is due (Linux: tcp_tso_rtt_log).
const RTT_LOG: u32 = 9;

/// Whether new data, of which more is queued than may go, waits for the next ACK.
pub(super) fn defers(tcb: &Tcb, path: &PathState, tcp: &Tcp, shape: &Shape<'_>) -> bool {
    // BBR paces, and marks of DCTCP tell of the bursts themselves.
    let clocked = !tcb.is_local
        && matches!(path.cc.algorithm, Algorithm::Reno(_) | Algorithm::Cubic(_))
        && tcp.particulars.one(&tcb.setup.particulars).pacing.rate == 0
        && path.cc.phase == Phase::Open
        // RFC 3042 section 2: each of the first two duplicates lets a segment go.
        && tcb.sending.board.sacked() == 0
        && path.cc.dup_acks == 0
        && tcb.pipe(path) > 0;
    if !clocked || tcb.snd.fin.is_queued() || tcb.is_urgent() {
        return false;
    }
    let queued = tcb.queue_end().distance_from(tcb.snd.nxt);
    let window_left = tcb.snd.wnd.bytes().saturating_sub(tcb.outstanding());
    let limit = window_left.min(path_left(tcb, path, tcp, shape.now));
    let window = tcb.snd.wnd.bytes().min(path.cc.cwnd);
    let unit = unit(path);
    let worth = unit / shape.mss;
    if limit >= queued || limit >= window / WINDOW_PART || limit / shape.mss >= worth || worth <= ACK_SEGMENTS
    {
        return false;
    }
    let (Some(head), Some(last)) = (tcb.sending.board.first(&tcp.sent), tcb.sending.board.last(&tcp.sent))
    else {
        return false;
    };
    // What began to go is not cut off, and an ACK that is not to be expected soon is not waited for.
    shape.now != last.sent_at
        && shape.now.since_us(last.sent_at) <= RECENT_US
        && shape.now.since_us(head.sent_at) >= u64::from(path.rtt.srtt_us / 2)
}

/// Bytes that are worth a unit: what goes in a millisecond at the rate at which the window leaves, and more on short paths.
fn unit(path: &PathState) -> u32 {
    // In slow start a window doubles in a round trip; later a fifth is left for what is not even (Linux: tcp_pacing_ss_ratio, _ca_).
    let percent = if path.cc.cwnd < path.cc.ssthresh / 2 { 200 } else { 120 };
    let rate = u64::from(path.cc.cwnd) * 10_000 * percent / u64::from(path.rtt.srtt_us.max(1));
    let short = UNIT_MAX.checked_shr(path.rtt.min_us >> RTT_LOG).unwrap_or(0);
    (rate >> 10).saturating_add(u64::from(short)).min(u64::from(UNIT_MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::config::{AlgorithmName, TcpConfig};
    use crate::congestion;
    use crate::scoreboard::SentRange;
    use toe_abi::entry::MemRange;
    use toe_base::window::WindowSize;
    use toe_base::{Instant, SessionId};
    use toe_wire::tcp::SackBlocks;

    const MSS: u32 = 1000;
    const NOW_MS: u64 = 106;

    /// A window of 36 segments, all but `room` of them out: the first for half a round trip of 12 ms, the last for 1 ms.
    fn tcb(tcp: &mut Tcp, room: u32) -> (Tcb, PathState) {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        tcb.is_local = false;
        tcb.snd.mss = MSS as u16;
        tcb.snd.syn_acked = true;
        tcb.snd.wnd = WindowSize::new(1 << 20);
        congestion::choose(&mut tcb, &mut path, tcp, AlgorithmName::Cubic);
        (path.cc.cwnd, path.cc.ssthresh) = (36 * MSS, 20 * MSS);
        (path.rtt.srtt_us, path.rtt.min_us) = (12_000, 2_000);
        let range = MemRange { offset: 0, len: 100 * MSS };
        tcb.sending.queue.push(&mut tcp.extents, SessionId(0), range).expect("room");
        for (from, to, sent_ms) in [(0, 1, NOW_MS - 6), (1, 36 - room, NOW_MS - 1)] {
            let (start, end) = (tcb.snd.una.plus(from * MSS), tcb.snd.una.plus(to * MSS));
            let sent_at = Instant::from_millis(sent_ms);
            tcb.sending.board.sent(&mut tcp.sent, SentRange { start, end, sent_at, ..SentRange::default() });
            tcb.snd.nxt = end;
        }
        (tcb, path)
    }

    fn tcp() -> Tcp {
        Tcp::new(1, [0; 16], TcpConfig::default())
    }

    fn waits(change: impl FnOnce(&mut Tcb, &mut PathState), room: u32) -> bool {
        waits_at(NOW_MS, change, room)
    }

    fn waits_at(now_ms: u64, change: impl FnOnce(&mut Tcb, &mut PathState), room: u32) -> bool {
        waits_with(now_ms, |tcb, path, _| change(tcb, path), room)
    }

    fn waits_with(now_ms: u64, change: impl FnOnce(&mut Tcb, &mut PathState, &mut Tcp), room: u32) -> bool {
        let mut tcp = tcp();
        let (mut tcb, mut path) = tcb(&mut tcp, room);
        change(&mut tcb, &mut path, &mut tcp);
        let now = Instant::from_millis(now_ms);
        defers(&tcb, &path, &tcp, &Shape { now, sack: SackBlocks::NONE, mss: MSS, record_ends: &[] })
    }

    /// 36 segments in 12 ms are 3.5 in a thousandth of 1024 ms with a fifth more, and a shortest round trip of 2 ms adds 8 KiB.
    #[test]
    fn new_data_waits_until_it_is_worth_a_unit() {
        assert!(waits(|_, _| (), 2) && waits(|_, _| (), 10));
        assert!(!waits(|_, _| (), 11));
        assert!(waits(|_, path| path.rtt.min_us = 20_000, 2));
        assert!(!waits(|_, path| path.rtt.min_us = 20_000, 3), "on a long path there is nothing to add");
        let slow = |_: &mut Tcb, path: &mut PathState| (path.rtt.min_us, path.cc.cwnd) = (20_000, 20 * MSS);
        assert!(!waits(slow, 2), "an ACK lets go as much as is waited for");
        assert!(!waits(|_, path| path.rtt.min_us = 0, 12), "a third of the window is never held back");
    }

    #[test]
    fn what_no_ack_will_set_free_soon_goes_now() {
        assert!(!waits_at(NOW_MS + 1, |_, _| (), 2), "nothing went for two milliseconds");
        assert!(!waits_at(NOW_MS - 1, |_, _| (), 2), "a burst is under way");
        assert!(!waits(|_, path| path.cc.dup_acks = 1, 2), "limited transmit");
        assert!(
            !waits(|_, path| path.rtt.srtt_us = 20_000, 2),
            "the first that is out went less than half a round trip ago"
        );
        assert!(!waits(|tcb, _| tcb.snd.fin = crate::record::Fin::Queued, 2), "the stream ends");
        assert!(!waits(|_, path| path.cc.phase = Phase::Recovery, 2));
    }

    #[test]
    fn only_flows_that_acks_clock_wait() {
        let marked = |tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp| {
            congestion::choose(tcb, path, tcp, AlgorithmName::Dctcp)
        };
        assert!(!waits_with(NOW_MS, marked, 2));
        let paced = |tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp| {
            congestion::limit_pacing(tcb, path, &mut tcp.particulars, 1_000_000)
        };
        assert!(!waits_with(NOW_MS, paced, 2));
        assert!(!waits(|tcb, _| tcb.is_local = true, 2));
    }

    /// Nothing in flight: no ACK would ever come.
    #[test]
    fn nothing_waits_for_nothing() {
        let mut tcp = tcp();
        let (mut tcb, path) = tcb(&mut tcp, 2);
        tcb.sending.board.clear(&mut tcp.sent);
        tcb.snd.una = tcb.snd.nxt;
        let shape =
            Shape { now: Instant::from_millis(NOW_MS), sack: SackBlocks::NONE, mss: MSS, record_ends: &[] };
        assert!(!defers(&tcb, &path, &tcp, &shape));
    }
}
