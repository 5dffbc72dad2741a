//! RACK-TLP (RFC 8985): a segment is lost when one that was sent sufficiently later has arrived; and a probe at the tail,
//! where nothing later was sent. Its section 6.2 steps keep their numbers here.

use crate::record::{
    Particulars, ParticularsPool, PathState, PeerTimer, Rack, SendDue, TailProbe, Tcb, TimestampUse,
};
use crate::scoreboard::{Sending, SentRange};
use crate::{Tcp, outgoing, rtt};
use toe_base::{Instant, SeqNum};

/// RFC 5681's DupThresh.
pub const DUP_THRESHOLD: u32 = 3;
/// Round trips for which a widened reordering window stays (section 6.2 step 4).
const REO_WND_PERSIST: u8 = 16;
/// Longest delay of a peer's ACK that the probe waits for (TLP.max_ack_delay).
const MAX_ACK_DELAY_US: u64 = 200_000;
/// The probe of a connection that has measured nothing (section 7.2).
const PTO_INITIAL_US: u64 = 1_000_000;

/// Step 2 of section 6.2: `range` has arrived, in order or not. Returns whether one that was sent later had overtaken
/// it: it overtook nothing and nobody sent it twice, yet a later one came first.
pub fn arrived(rack: &mut Rack, range: &SentRange, heard: &Heard, in_order: bool) -> bool {
    let overtaken = !range.end.after(rack.fack) && !range.resent;
    if range.end.after(rack.fack) {
        rack.fack = range.end;
    }
    let rtt_us = heard.now.since_us(range.sent_at).min(u64::from(u32::MAX)) as u32;
    if range.resent {
        // Which of its transmissions arrived? Not the last, if the echo is older or the time too short. What comes out of
        // order is not echoed (RFC 7323 section 4.3).
        let echo = heard.echo.filter(|_| in_order);
        let echoes_earlier =
            echo.is_some_and(|echo| (echo.wrapping_sub(heard.timestamps.value_at(range.sent_at)) as i32) < 0);
        if echoes_earlier || rtt_us < heard.min_rtt_us {
            return overtaken;
        }
    }
    rack.rtt_us = rtt_us;
    if range.sending().is_after(latest(rack)) {
        rack.xmit_at = range.sent_at;
        rack.end_seq = range.end;
    }
    overtaken
}

/// What an ACK tells beside the numbers.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    pub now: Instant,
    /// TSecr, when timestamps are in use.
    pub echo: Option<u32>,
    pub min_rtt_us: u32,
    pub timestamps: TimestampUse,
}

/// The last sent of what has arrived.
const fn latest(rack: &Rack) -> Sending {
    Sending { at: rack.xmit_at, end: rack.end_seq }
}

/// A D-SACK came (step 4): reordering was mistaken for loss, so wait longer, once a round trip.
pub fn widen(tcb: &mut Tcb, pool: &mut ParticularsPool) {
    let Some(Particulars { reordering, .. }) = pool.one_mut(&mut tcb.setup.particulars) else { return };
    if reordering.dsack_round.is_none_or(|round| tcb.snd.una.at_or_after(round)) {
        reordering.dsack_round = Some(tcb.snd.nxt);
        reordering.reo_wnd_mult = reordering.reo_wnd_mult.max(1).saturating_add(1);
        reordering.reo_wnd_persist = REO_WND_PERSIST;
    }
}

/// A recovery ended (step 4).
pub fn recovery_ended(tcb: &Tcb, pool: &mut ParticularsPool) {
    let Some(Particulars { reordering, .. }) = pool.taken_mut(&tcb.setup.particulars) else { return };
    reordering.reo_wnd_persist = reordering.reo_wnd_persist.saturating_sub(1);
    if reordering.reo_wnd_persist == 0 {
        reordering.reo_wnd_mult = 0;
    }
}

/// Steps 3 and 4: how much later than others a segment may arrive.
fn reordering_window_us(tcb: &Tcb, path: &PathState, pool: &ParticularsPool, in_recovery: bool) -> u64 {
    let reordering = pool.one(&tcb.setup.particulars).reordering;
    if !reordering.seen {
        let enough_sacked = tcb.sending.board.sacked() > (DUP_THRESHOLD - 1) * u32::from(tcb.snd.mss);
        if in_recovery || enough_sacked {
            return 0;
        }
    }
    let quarter = u64::from(path.rtt.min_us / 4);
    (quarter * u64::from(reordering.reo_wnd_mult.max(1))).min(u64::from(path.rtt.srtt_us))
}

/// What was newly found lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    None,
    Some,
    /// Some of it went out again since the window was last reduced.
    OfRetransmission,
}

/// Step 5: marks what is lost, and arms the timer for what may be.
pub fn detect_loss(
    tcb: &mut Tcb,
    path: &mut PathState,
    tcp: &mut Tcp,
    now: Instant,
    in_recovery: bool,
) -> Loss {
    path.rack.timers.reorder = Instant::FAR_FUTURE;
    if path.rack.xmit_at == Instant::ZERO {
        return Loss::None;
    }
    let Some(oldest) = tcb.sending.board.first(&tcp.sent) else { return Loss::None };
    let latest = latest(&path.rack);
    if tcb.sending.board.sacked() == 0 && !oldest.resent && !latest.is_after(oldest.sending()) {
        // All is in order: the first stretch was sent first.
        return Loss::None;
    }
    let patience_us =
        u64::from(path.rack.rtt_us) + reordering_window_us(tcb, path, &tcp.particulars, in_recovery);
    let lost_before = tcp.repairs.one(&path.cc.repair).lost_before;
    let (mut lost, mut again) = (false, false);
    let is_due = |sent_at: Instant| sent_at.after_us(patience_us) <= now;
    let next = tcb.sending.board.mark_due_lost(&mut tcp.sent, latest, is_due, |range| {
        lost = true;
        again |= range.resent && (range.stamp.lost.wrapping_sub(lost_before) as i32) >= 0;
    });
    path.rack.timers.reorder = next.map_or(Instant::FAR_FUTURE, |sent_at| sent_at.after_us(patience_us));
    match (lost, again) {
        (false, _) => Loss::None,
        (true, false) => Loss::Some,
        (true, true) => Loss::OfRetransmission,
    }
}

/// Section 6.3: after a time-out the first segment is lost, and what was sent long enough before.
pub fn mark_lost_on_timeout(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) {
    let patience_us = u64::from(path.rack.rtt_us) + reordering_window_us(tcb, path, &tcp.particulars, true);
    let (una, knows) = (tcb.snd.una, tcb.has_sack() && path.rack.xmit_at != Instant::ZERO);
    tcb.sending.board.mark_lost(&mut tcp.sent, |range| {
        !knows || range.start == una || range.sent_at.after_us(patience_us) <= now
    });
    path.rack.timers.reorder = Instant::FAR_FUTURE;
}

/// Section 7.2: arms the probe when what is out could be lost without notice, or disarms it.
pub fn schedule_tail_probe(tcb: &mut Tcb, path: &mut PathState, now: Instant) {
    use crate::record::Phase;
    path.rack.timers.tail_probe = Instant::FAR_FUTURE;
    let may = tcb.has_sack()
        && tcb.state.is_synchronized()
        && matches!(path.cc.phase, Phase::Open | Phase::Reduced)
        && path.rack.tlp == TailProbe::None
        && tcb.timers.persist().is_far_future()
        && !tcb.sending.board.is_empty()
        && tcb.sending.board.lost() == 0;
    if !may {
        return;
    }
    let mut after_us = match path.rtt.srtt_us {
        0 => PTO_INITIAL_US,
        srtt_us => 2 * u64::from(srtt_us),
    };
    if tcb.outstanding() <= u32::from(tcb.snd.mss) {
        after_us += MAX_ACK_DELAY_US;
    }
    let pto = now.after_us(after_us.max(rtt::GRANULARITY_US));
    // Where the time-out would come first, the probe takes its place: it is then that something is sent.
    path.rack.timers.tail_probe = pto.min(tcb.timers.retransmit());
}

/// The tail probe's time has come (section 7.3).
pub fn tail_probe_due(tcb: &mut Tcb, path: &mut PathState, now: Instant) {
    path.rack.timers.tail_probe = Instant::FAR_FUTURE;
    tcb.sending.due.add(SendDue::TAIL_PROBE);
    tcb.timers.peer = PeerTimer::Retransmit(now.after_us(rtt::retransmit_us(tcb, path)));
}

/// The probe went out.
pub fn tail_probe_sent(tcb: &mut Tcb, path: &mut PathState, is_retransmit: bool) {
    tcb.sending.due.remove(SendDue::TAIL_PROBE);
    path.rack.tlp_end_seq = tcb.snd.nxt;
    path.rack.tlp = if is_retransmit { TailProbe::Again } else { TailProbe::New };
}

/// Section 7.4: an ACK while a probe is on its way. Returns whether the probe repaired a loss, which counts as congestion.
pub fn probe_answered(path: &mut PathState, ack: SeqNum, duplicate: bool, is_empty_dup_ack: bool) -> bool {
    let end = path.rack.tlp_end_seq;
    let is_out = path.rack.tlp != TailProbe::None;
    if !is_out || !ack.at_or_after(end) {
        return false;
    }
    if path.rack.tlp == TailProbe::New || duplicate {
        path.rack.tlp = TailProbe::None;
        return false;
    }
    if ack.after(end) {
        path.rack.tlp = TailProbe::None;
        return true;
    }
    if is_empty_dup_ack {
        // Both copies arrived.
        path.rack.tlp = TailProbe::None;
    }
    false
}

/// How much a retransmitted probe repeats: the last segment.
pub fn tail(tcb: &Tcb, mss: u32) -> (SeqNum, u32) {
    let end = tcb.snd.nxt.earlier(tcb.queue_end());
    let len = end.distance_from(tcb.data_una()).min(mss);
    debug_assert!(outgoing::is_sent(tcb, end.minus(len)));
    (end.minus(len), len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Sack;

    /// RFC 8985 section 6.2 step 4.
    #[test]
    fn the_reordering_window_is_a_part_of_the_round_trip_and_never_more_than_all_of_it() {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        tcb.snd.mss = 1000;
        path.rtt.min_us = 40_000;
        path.rtt.srtt_us = 50_000;
        let mut pool = ParticularsPool::of_smallest(1);
        assert_eq!(reordering_window_us(&tcb, &path, &pool, false), 10_000);
        assert_eq!(
            reordering_window_us(&tcb, &path, &pool, true),
            0,
            "in recovery, and nothing was ever reordered"
        );
        pool.one_mut(&mut tcb.setup.particulars).expect("a place").reordering.seen = true;
        assert_eq!(reordering_window_us(&tcb, &path, &pool, true), 10_000);
        for (mult, window) in [(2, 20_000), (5, 50_000), (6, 50_000), (255, 50_000)] {
            pool.taken_mut(&tcb.setup.particulars).expect("a place").reordering.reo_wnd_mult = mult;
            assert_eq!(reordering_window_us(&tcb, &path, &pool, true), window, "{mult} quarters");
        }
    }

    /// RFC 8985 section 6.2 step 4: the multiplier starts at one, and falls back to that.
    #[test]
    fn the_first_duplicate_widens_the_window_and_quiet_recoveries_narrow_it() {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        path.rtt.min_us = 40_000;
        path.rtt.srtt_us = 400_000;
        let mut pool = ParticularsPool::of_smallest(1);
        pool.one_mut(&mut tcb.setup.particulars).expect("a place").reordering.seen = true;
        for quarters in [2, 3] {
            tcb.snd.nxt = tcb.snd.una.plus(100);
            widen(&mut tcb, &mut pool);
            widen(&mut tcb, &mut pool);
            assert_eq!(reordering_window_us(&tcb, &path, &pool, true), quarters * 10_000, "once a round");
            tcb.snd.una = tcb.snd.nxt;
        }
        for _ in 0..REO_WND_PERSIST {
            assert_eq!(reordering_window_us(&tcb, &path, &pool, true), 30_000);
            recovery_ended(&tcb, &mut pool);
        }
        assert_eq!(reordering_window_us(&tcb, &path, &pool, true), 10_000);
    }

    /// RFC 8985 section 6.3.
    #[test]
    fn a_time_out_marks_the_first_and_what_was_sent_long_enough_ago() {
        let mut tcp = Tcp::new(1, [0; 16], crate::config::TcpConfig::default());
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        tcb.setup.negotiated.sack = Sack::Agreed;
        path.rack.xmit_at = Instant::from_millis(1);
        path.rack.rtt_us = 100_000;
        for n in 0..4u32 {
            let (start, end) = (SeqNum::new(n * 100), SeqNum::new(n * 100 + 100));
            let sent_at = Instant::from_millis(1000 + u64::from(n) * 50);
            tcb.sending.board.sent(&mut tcp.sent, SentRange { start, end, sent_at, ..SentRange::default() });
        }
        let now = Instant::from_millis(1150);
        let mut of_all = tcb;
        mark_lost_on_timeout(&mut tcb, &mut path, &mut tcp, now);
        assert_eq!(tcb.sending.board.lost(), 200, "sent at 1000 and 1050 ms; the others may still arrive");
        tcb.sending.board.unmark_lost(&mut tcp.sent);
        of_all.setup.negotiated.sack = Sack::Off;
        mark_lost_on_timeout(&mut of_all, &mut path, &mut tcp, now);
        assert_eq!(of_all.sending.board.lost(), 400, "a peer without SACK tells of none of them");
    }
}
