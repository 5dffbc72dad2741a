//! What was sent and is not cumulatively acknowledged, in stretches of sequence space: when each went out, whether it
//! arrived out of order (SACK, RFC 2018), counts as lost, or is believed to be on its way. RFC 6675 section 3 calls it the
//! scoreboard; the times are what RACK (RFC 8985) and the delivery rate need.
//!
//! ```text
//!   una                                          nxt
//!    ├────────┬───────┬────────┬───────┬──────────┤
//!    │  lost  │ sacked│in flight sacked │ in flight│     disjoint, in order, without gaps
//!    └────────┴───────┴────────┴───────┴──────────┘
//! ```
//!
//! SYN and FIN have their numbers here too. Called by [`crate::flow::tcp`] only.

use crate::flow::pool::{Array, Pool};
use toe_base::{Instant, SeqNum};

/// What is known of a stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    #[default]
    InFlight,
    /// The peer has it.
    Sacked,
    /// It is to be sent again.
    Lost,
}

/// One stretch: sent at one time, with one fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentRange {
    pub start: SeqNum,
    pub end: SeqNum,
    /// When it last went out.
    pub sent_at: Instant,
    pub fate: Fate,
    /// It went out more than once.
    pub resent: bool,
    pub stamp: DeliveryStamp,
}

/// What delivery-rate estimation notes of a stretch when it goes out (draft-cheng-iccrg-delivery-rate-estimation
/// section 3.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryStamp {
    /// Octets that had been delivered by then.
    pub delivered: u64,
    /// When the last of those were.
    pub delivered_at: Instant,
    /// When the first of the flight that was out then had been sent.
    pub first_sent_at: Instant,
    /// Octets in the network with it.
    pub in_flight: u32,
    /// Octets that had been marked lost by then, ever.
    pub lost: u32,
    /// The program, not the window, limited what was out.
    pub app_limited: bool,
}

/// What was marked lost since congestion control looked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub octets: u32,
    pub stretches: u16,
    /// Where the losses of one flight first were more than [`Losses::excess_of`] of it.
    pub excess: Option<Excess>,
}

/// A volume in the network of which too much was lost (draft-ietf-ccwg-bbr-05 section 5.5.10.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    pub in_flight: u32,
    pub app_limited: bool,
}

impl Losses {
    /// Too much is more than a fiftieth: BBR.LossThresh.
    const THRESHOLD: u64 = 50;

    /// Whether `lost` octets are too many of a flight of `in_flight`.
    pub fn excess_of(lost: u32, in_flight: u32) -> bool {
        u64::from(lost) * Self::THRESHOLD > u64::from(in_flight)
    }

    /// `range` is lost, with `lost` octets since it was sent.
    fn take(&mut self, range: &SentRange, lost: u32) {
        self.octets = self.octets.saturating_add(range.len());
        self.stretches = self.stretches.saturating_add(1);
        let stamp = &range.stamp;
        if self.excess.is_none() && Self::excess_of(lost, stamp.in_flight) {
            // BBRInflightAtLoss: at which octet of this stretch was it too much?
            let before = stamp.in_flight.saturating_sub(range.len());
            let lost_before = u64::from(lost.saturating_sub(range.len())) * Self::THRESHOLD;
            let prefix = u64::from(before).saturating_sub(lost_before) / (Self::THRESHOLD - 1);
            let in_flight = before.saturating_add(prefix as u32);
            self.excess = Some(Excess { in_flight, app_limited: stamp.app_limited });
        }
    }
}

impl SentRange {
    pub fn len(&self) -> u32 {
        self.end.distance_from(self.start)
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// The stretches of one flow. The record owns it; [`SentPool`] has its places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scoreboard {
    array: Array,
    sacked: u32,
    lost: u32,
    /// Octets that were ever marked lost.
    lost_ever: u32,
    losses: Losses,
}

/// Where the stretches of all flows lie.
pub type SentPool = Pool<SentRange>;

/// Stretches of new data are joined up to this: RACK cannot tell parts of one apart that went out together.
const JOINED_MAX: u32 = 1 << 16;

impl Scoreboard {
    pub fn ranges<'a>(&self, pool: &'a SentPool) -> &'a [SentRange] {
        pool.get(&self.array)
    }

    pub fn ranges_mut<'a>(&self, pool: &'a mut SentPool) -> &'a mut [SentRange] {
        pool.get_mut(&self.array)
    }

    pub const fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    /// Octets that the peer has out of order.
    pub const fn sacked(&self) -> u32 {
        self.sacked
    }

    /// Octets that are to be sent again.
    pub const fn lost(&self) -> u32 {
        self.lost
    }

    /// Octets that were ever marked lost, as a number that wraps.
    pub const fn lost_ever(&self) -> u32 {
        self.lost_ever
    }

    /// What was marked lost since this was asked last.
    pub fn take_losses(&mut self) -> Losses {
        core::mem::take(&mut self.losses)
    }

    /// The first stretch that is to be sent again.
    pub fn first_lost(&self, pool: &SentPool) -> Option<SentRange> {
        if self.lost == 0 {
            return None;
        }
        self.ranges(pool).iter().find(|r| r.fate == Fate::Lost).copied()
    }

    /// New data went out. Without a place of its own it joins the last stretch, whose time is then the later one: what
    /// is lost of it is only noticed later.
    pub fn sent(&mut self, pool: &mut SentPool, range: SentRange) {
        let must_join = !pool.has_room(&mut self.array, 1);
        if let Some(last) = pool.get_mut(&self.array).last_mut() {
            let alike = last.fate == Fate::InFlight
                && !last.resent
                && last.sent_at == range.sent_at
                && last.stamp.app_limited == range.stamp.app_limited
                && last.len() + range.len() <= JOINED_MAX;
            if alike || must_join {
                let stamp = DeliveryStamp { in_flight: range.stamp.in_flight, ..last.stamp };
                let joined = SentRange { start: last.start, resent: last.resent, stamp, ..range };
                self.uncount(*last);
                *last = joined;
                return;
            }
        }
        let end = self.array.len();
        // Each flow can have a smallest array, so there is a place or a last stretch to join.
        let _ = pool.insert(&mut self.array, end, range);
    }

    /// What lies in `start..end` of a lost stretch went out again.
    pub fn resent(
        &mut self,
        pool: &mut SentPool,
        start: SeqNum,
        end: SeqNum,
        now: Instant,
        stamp: DeliveryStamp,
    ) {
        let (from, to) = self.cut_out(pool, start, end);
        for at in from..to {
            let range = pool.get(&self.array)[at];
            self.set_fate(pool, at, if range.fate == Fate::Sacked { Fate::Sacked } else { Fate::InFlight });
            let range = &mut pool.get_mut(&self.array)[at];
            range.sent_at = now;
            range.resent = true;
            range.stamp = stamp;
        }
    }

    /// Everything up to `ack` is acknowledged; `each` is called with the stretches, in order, cut to it.
    pub fn acknowledge(&mut self, pool: &mut SentPool, ack: SeqNum, mut each: impl FnMut(&SentRange)) {
        let mut whole = 0;
        let mut cut = None;
        for (at, range) in pool.get_mut(&self.array).iter_mut().enumerate() {
            if range.end.at_or_before(ack) {
                whole = at + 1;
                each(range);
            } else {
                if range.start.before(ack) {
                    let part = SentRange { end: ack, ..*range };
                    each(&part);
                    range.start = ack;
                    cut = Some(part);
                }
                break;
            }
        }
        for at in 0..whole {
            self.uncount(pool.get(&self.array)[at]);
        }
        if let Some(part) = cut {
            self.uncount(part);
        }
        pool.remove(&mut self.array, 0, whole);
    }

    /// The peer has `start..end`; `each` is called with what it was not known to have.
    pub fn sack(
        &mut self,
        pool: &mut SentPool,
        start: SeqNum,
        end: SeqNum,
        mut each: impl FnMut(&SentRange),
    ) {
        let (from, to) = self.cut_out(pool, start, end);
        for at in from..to {
            let range = pool.get(&self.array)[at];
            if range.fate != Fate::Sacked {
                each(&range);
                self.set_fate(pool, at, Fate::Sacked);
            }
        }
        self.join_sacked(pool, from, to);
    }

    /// Stretches that `is_lost` says are to be sent again. Returns whether there were any.
    pub fn mark_lost(&mut self, pool: &mut SentPool, mut is_lost: impl FnMut(&SentRange) -> bool) -> bool {
        let before = self.lost;
        for at in 0..self.array.len() {
            let range = pool.get(&self.array)[at];
            if range.fate == Fate::InFlight && is_lost(&range) {
                self.set_fate(pool, at, Fate::Lost);
            }
        }
        self.lost > before
    }

    /// The first `len` octets are to be sent again, unless the peer has them.
    pub fn mark_head_lost(&mut self, pool: &mut SentPool, len: u32) -> bool {
        let Some(first) = self.ranges(pool).first().copied() else { return false };
        let (from, to) = self.cut_out(pool, first.start, first.start.plus(len.min(first.len())));
        for at in from..to {
            if pool.get(&self.array)[at].fate == Fate::InFlight {
                self.set_fate(pool, at, Fate::Lost);
                return true;
            }
        }
        false
    }

    /// Nothing was lost after all.
    pub fn unmark_lost(&mut self, pool: &mut SentPool) {
        for at in 0..self.array.len() {
            if pool.get(&self.array)[at].fate == Fate::Lost {
                self.set_fate(pool, at, Fate::InFlight);
            }
        }
    }

    /// The peer may have thrown away what it had out of order (RFC 2018 section 8).
    pub fn unmark_sacked(&mut self, pool: &mut SentPool) {
        for at in 0..self.array.len() {
            if pool.get(&self.array)[at].fate == Fate::Sacked {
                self.set_fate(pool, at, Fate::InFlight);
            }
        }
    }

    pub fn clear(&mut self, pool: &mut SentPool) {
        pool.clear(&mut self.array);
        *self = Scoreboard::default();
    }

    fn uncount(&mut self, range: SentRange) {
        match range.fate {
            Fate::InFlight => {}
            Fate::Sacked => self.sacked -= range.len(),
            Fate::Lost => self.lost -= range.len(),
        }
    }

    fn set_fate(&mut self, pool: &mut SentPool, at: usize, fate: Fate) {
        let range = &mut pool.get_mut(&self.array)[at];
        let (before, len) = (*range, range.len());
        range.fate = fate;
        self.uncount(before);
        match fate {
            Fate::InFlight => {}
            Fate::Sacked => self.sacked += len,
            Fate::Lost => {
                self.lost += len;
                self.lost_ever = self.lost_ever.wrapping_add(len);
                self.losses.take(&before, self.lost_ever.wrapping_sub(before.stamp.lost));
            }
        }
    }

    /// Cuts stretches at `start` and `end`, so that the ones in the returned index range cover just that. Where there is
    /// no place for a cut, those that would stand out are left out: less is known then, and nothing wrong.
    fn cut_out(&mut self, pool: &mut SentPool, start: SeqNum, end: SeqNum) -> (usize, usize) {
        let from = self.cut(pool, start, Rounding::Up);
        let to = self.cut(pool, end, Rounding::Down);
        (from, to.max(from))
    }

    /// The index of the stretch that begins at `seq`, after one that holds it was cut there.
    fn cut(&mut self, pool: &mut SentPool, seq: SeqNum, rounding: Rounding) -> usize {
        let ranges = pool.get(&self.array);
        let at = ranges.partition_point(|r| r.end.at_or_before(seq));
        let Some(range) = ranges.get(at).copied().filter(|r| r.start.before(seq)) else { return at };
        let rest = SentRange { start: seq, ..range };
        if pool.insert(&mut self.array, at + 1, rest).is_err() {
            return match rounding {
                Rounding::Up => at + 1,
                Rounding::Down => at,
            };
        }
        pool.get_mut(&self.array)[at].end = seq;
        at + 1
    }

    /// Joins the sacked stretches in `from..to` with each other and their neighbours.
    fn join_sacked(&mut self, pool: &mut SentPool, from: usize, to: usize) {
        let mut at = from.saturating_sub(1);
        let mut last = (to + 1).min(self.array.len());
        while at + 1 < last {
            let ranges = pool.get_mut(&self.array);
            if ranges[at].fate == Fate::Sacked && ranges[at + 1].fate == Fate::Sacked {
                ranges[at].end = ranges[at + 1].end;
                pool.remove(&mut self.array, at + 1, 1);
                last -= 1;
            } else {
                at += 1;
            }
        }
    }
}

/// Which neighbour stands for a cut that could not be made.
#[derive(Clone, Copy, Debug)]
enum Rounding {
    Up,
    Down,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u32) -> SeqNum {
        SeqNum::new(u32::MAX - 300).plus(n)
    }

    fn range(start: u32, end: u32, at_us: u64) -> SentRange {
        SentRange {
            start: seq(start),
            end: seq(end),
            sent_at: Instant::from_micros(at_us),
            ..Default::default()
        }
    }

    fn shown(board: &Scoreboard, pool: &SentPool) -> String {
        let mut out = String::new();
        for r in board.ranges(pool) {
            let fate = match r.fate {
                Fate::InFlight => ".",
                Fate::Sacked => "s",
                Fate::Lost => "L",
            };
            let again = if r.resent { "+" } else { "" };
            out += &format!("{}-{}{fate}{again} ", r.start.diff(seq(0)), r.end.diff(seq(0)));
        }
        out.trim_end().to_owned()
    }

    #[test]
    fn a_hole_is_found_sent_again_and_filled() {
        let mut pool = SentPool::new(1);
        let mut board = Scoreboard::default();
        for n in 0..5 {
            board.sent(&mut pool, range(n * 100, n * 100 + 100, u64::from(n)));
        }
        let mut new = 0;
        board.sack(&mut pool, seq(200), seq(400), |r| new += r.len());
        board.sack(&mut pool, seq(150), seq(300), |r| new += r.len());
        assert_eq!((new, board.sacked()), (250, 250));
        assert_eq!(shown(&board, &pool), "0-100. 100-150. 150-400s 400-500.");
        assert!(board.mark_lost(&mut pool, |r| r.end.before(seq(200))));
        assert_eq!(board.lost(), 150);
        board.resent(&mut pool, seq(0), seq(60), Instant::from_micros(9), DeliveryStamp::default());
        assert_eq!(shown(&board, &pool), "0-60.+ 60-100L 100-150L 150-400s 400-500.");
        let mut acked = Vec::new();
        board.acknowledge(&mut pool, seq(420), |r| acked.push(r.len()));
        assert_eq!(acked, [60, 40, 50, 250, 20]);
        assert_eq!(shown(&board, &pool), "420-500.");
        assert_eq!((board.sacked(), board.lost()), (0, 0));
        board.acknowledge(&mut pool, seq(500), |_| {});
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn what_went_out_together_is_one_stretch() {
        let mut pool = SentPool::new(1);
        let mut board = Scoreboard::default();
        board.sent(&mut pool, range(0, 100, 5));
        board.sent(&mut pool, range(100, 200, 5));
        board.sent(&mut pool, range(200, 300, 6));
        assert_eq!(shown(&board, &pool), "0-200. 200-300.");
    }

    /// Random operations against one fate an octet.
    #[test]
    fn it_agrees_with_a_model_of_single_octets() {
        let mut seed = 3u32;
        let mut next = move |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % n
        };
        for _ in 0..300 {
            let mut pool = SentPool::new(1);
            let mut board = Scoreboard::default();
            let (mut una, mut nxt) = (0, 0);
            let mut model = [Fate::InFlight; 600];
            for now in 0..60 {
                let (a, b) = (una + next(nxt - una + 1), una + next(nxt - una + 1));
                let (a, b) = (a.min(b), a.max(b));
                let span = a as usize..b as usize;
                match next(5) {
                    0 | 1 => {
                        let len = next(10) + 1;
                        board.sent(&mut pool, range(nxt, nxt + len, now));
                        nxt += len;
                    }
                    2 => {
                        board.sack(&mut pool, seq(a), seq(b), |_| {});
                        model[span].fill(Fate::Sacked);
                    }
                    3 => {
                        let (from, to) = (seq(a), seq(b));
                        board.mark_lost(&mut pool, |r| r.start.at_or_after(from) && r.end.at_or_before(to));
                        for r in board.ranges(&pool) {
                            let (s, e) = (r.start.diff(seq(0)) as usize, r.end.diff(seq(0)) as usize);
                            if r.fate == Fate::Lost {
                                assert!(model[s..e].iter().all(|f| *f != Fate::Sacked));
                                model[s..e].fill(Fate::Lost);
                            }
                        }
                    }
                    _ => {
                        board.acknowledge(&mut pool, seq(a), |_| {});
                        una = a;
                    }
                }
                let mut at = una;
                for r in board.ranges(&pool) {
                    assert_eq!(r.start, seq(at), "no gaps");
                    let end = r.end.diff(seq(0)) as u32;
                    assert!(model[at as usize..end as usize].iter().all(|f| *f == r.fate));
                    at = end;
                }
                assert_eq!(at, nxt);
                let count = |fate| model[una as usize..nxt as usize].iter().filter(|f| **f == fate).count();
                assert_eq!(board.sacked() as usize, count(Fate::Sacked));
                assert_eq!(board.lost() as usize, count(Fate::Lost));
            }
        }
    }

    /// However many holes a peer reports, the board stays within its places.
    #[test]
    fn a_flow_without_places_knows_less_and_nothing_wrong() {
        let mut pool = SentPool::new(1);
        let mut board = Scoreboard::default();
        for n in 0..20_000 {
            board.sent(&mut pool, range(n * 10, n * 10 + 10, u64::from(n)));
        }
        let mut at = seq(0);
        for r in board.ranges(&pool) {
            assert_eq!(r.start, at);
            at = r.end;
        }
        assert_eq!(at, seq(200_000));
        board.sack(&mut pool, seq(13), seq(17), |_| {});
        let len: u32 = board.ranges(&pool).iter().map(SentRange::len).sum();
        assert_eq!(len, 200_000);
        board.acknowledge(&mut pool, seq(200_000), |_| {});
        assert!(board.is_empty());
    }
}
