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
//! SYN and FIN have their numbers here too. Called by [`crate`] only.

pub use crate::stretches::{DeliveryStamp, Excess, Fate, Losses, Sending, SentPool, SentRange};

use crate::pool::PoolSlot;
use crate::stretches::{Chunk, Stretches};
use toe_base::{Instant, SeqNum};

/// What became of the stretches of one connection. The record owns it; [`SentPool`] has its places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scoreboard {
    stretches: Stretches,
    tally: Tally,
    /// Where [`SentPool`] has what was marked lost since that was asked for last, once something was.
    losses: PoolSlot,
}

/// Bytes by fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    sacked: u32,
    lost: u32,
    /// Bytes that were ever marked lost.
    lost_ever: u32,
}

/// Stretches of new data are joined up to this: RACK cannot tell parts of one apart that went out together.
const JOINED_MAX: u32 = 1 << 16;

impl Tally {
    fn uncount(&mut self, range: &SentRange) {
        match range.fate {
            Fate::InFlight => {}
            Fate::Sacked => self.sacked -= range.len(),
            Fate::Lost => self.lost -= range.len(),
        }
    }

    fn set_fate(&mut self, range: &mut SentRange, fate: Fate) {
        self.uncount(range);
        range.fate = fate;
        match fate {
            Fate::InFlight => {}
            Fate::Sacked => self.sacked += range.len(),
            Fate::Lost => {
                self.lost += range.len();
                self.lost_ever = self.lost_ever.wrapping_add(range.len());
            }
        }
    }

    fn lose(&mut self, range: &mut SentRange, losses: &mut Losses) {
        self.set_fate(range, Fate::Lost);
        losses.take(range, self.lost_ever.wrapping_sub(range.stamp.lost));
    }
}

impl Scoreboard {
    pub fn ranges<'a>(&self, pool: &'a SentPool) -> impl Iterator<Item = &'a SentRange> + use<'a> {
        self.stretches.iter(pool)
    }

    pub fn first(&self, pool: &SentPool) -> Option<SentRange> {
        self.stretches.first(pool)
    }

    pub fn last(&self, pool: &SentPool) -> Option<SentRange> {
        self.stretches.last(pool).map(|(_, range)| range)
    }

    pub const fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// Bytes that the peer has out of order.
    pub const fn sacked(&self) -> u32 {
        self.tally.sacked
    }

    /// Bytes that are to be sent again.
    pub const fn lost(&self) -> u32 {
        self.tally.lost
    }

    /// Bytes that were ever marked lost, as a number that wraps.
    pub const fn lost_ever(&self) -> u32 {
        self.tally.lost_ever
    }

    /// What was marked lost since this was asked last.
    pub fn take_losses(&mut self, pool: &mut SentPool) -> Losses {
        let losses = pool.losses.one(&self.losses);
        pool.losses.vacate(&mut self.losses);
        losses
    }

    fn note(&mut self, pool: &mut SentPool, losses: Losses) {
        if losses != Losses::default()
            && let Some(noted) = pool.losses.one_mut(&mut self.losses)
        {
            noted.join(losses);
        }
    }

    /// The first stretch that is to be sent again.
    pub fn first_lost(&self, pool: &SentPool) -> Option<SentRange> {
        if self.tally.lost == 0 {
            return None;
        }
        self.stretches.first_in(pool, Chunk::has_lost, |range| range.fate == Fate::Lost)
    }

    /// New data went out. Without a place of its own it joins the last stretch, whose time is then the later one: what
    /// is lost of it is only noticed later.
    pub fn sent(&mut self, pool: &mut SentPool, range: SentRange) {
        let joined = |last: &mut SentRange| {
            let stamp = DeliveryStamp { in_flight: range.stamp.in_flight, ..last.stamp };
            *last = SentRange { start: last.start, resent: last.resent, mss: last.mss, stamp, ..range };
        };
        let last = self.stretches.last(pool);
        if let Some((position, last)) = last {
            let alike = last.fate == Fate::InFlight
                && !last.resent
                && last.sent_at == range.sent_at
                && last.stamp.app_limited == range.stamp.app_limited
                && last.mss == range.mss
                && last.whole_segments(last.len()) == last.len()
                && last.len() + range.len() <= JOINED_MAX;
            if alike {
                self.stretches.change(pool, position, joined);
                return;
            }
        }
        let pushed = self.stretches.push(pool, range);
        // Each connection can have a smallest array, so there is a place or a last stretch to join.
        if let (Err(_), Some((position, last))) = (pushed, last) {
            self.tally.uncount(&last);
            self.stretches.change(pool, position, joined);
        }
    }

    /// What lies in `start..end` of a lost stretch went out again, as segments of `mss`. Where there is no place for a cut,
    /// all of the stretch did: the rest of it is lost once more, and noticed later.
    pub fn resent(&mut self, pool: &mut SentPool, start: SeqNum, end: SeqNum, again: Resent) {
        let start = self.cut(pool, start, Rounding::Down);
        let end = self.cut(pool, end, Rounding::Up);
        let Scoreboard { stretches, tally, .. } = self;
        let mut here = stretches.find(pool, start);
        while let Some((position, _)) = here.filter(|(_, range)| range.start.before(end)) {
            stretches.change(pool, position, |range| {
                if range.fate != Fate::Sacked {
                    tally.set_fate(range, Fate::InFlight);
                }
                let Resent { at: sent_at, mss, stamp } = again;
                *range = SentRange { sent_at, mss, stamp, resent: true, ..*range };
            });
            here = stretches.next(pool, position);
        }
    }

    /// Of all stretches: when they went out, nobody knows.
    pub fn forget_when_sent(&mut self, pool: &mut SentPool) {
        self.stretches.visit(pool, |_| true, |range| range.resent = true);
    }

    /// Everything up to `ack` is acknowledged; `each` is called with the stretches, in order, cut to it.
    pub fn acknowledge(&mut self, pool: &mut SentPool, ack: SeqNum, mut each: impl FnMut(&SentRange)) {
        let Scoreboard { stretches, tally, .. } = self;
        stretches.drop_until(pool, ack, |range| {
            each(range);
            tally.uncount(range);
        });
    }

    /// The peer has `start..end`; `each` is called with what it was not known to have. Of a stretch that is partly there, only
    /// whole segments count: a peer has all of one or nothing, and one that says otherwise does not make us cut smaller.
    pub fn sack(
        &mut self,
        pool: &mut SentPool,
        start: SeqNum,
        end: SeqNum,
        mut each: impl FnMut(&SentRange),
    ) {
        let Some((start, end)) = self.event_of(pool, start, end) else { return };
        let start = self.cut(pool, start, Rounding::Up);
        let end = self.cut(pool, end, Rounding::Down);
        let Scoreboard { stretches, tally, .. } = self;
        let mut here = stretches.find(pool, start);
        while let Some((position, range)) = here.filter(|(_, range)| range.start.before(end)) {
            if range.fate != Fate::Sacked {
                each(&range);
                stretches.change(pool, position, |range| tally.set_fate(range, Fate::Sacked));
            }
            here = stretches.next(pool, position);
        }
        if start.before(end) {
            self.join_sacked(pool, start, end);
        }
    }

    /// Stretches that `is_lost` says are to be sent again. Returns whether there were any.
    pub fn mark_lost(&mut self, pool: &mut SentPool, mut is_lost: impl FnMut(&SentRange) -> bool) -> bool {
        let mut losses = Losses::default();
        let Scoreboard { stretches, tally, .. } = self;
        stretches.visit(pool, Chunk::has_in_flight, |range| {
            if range.fate == Fate::InFlight && is_lost(range) {
                tally.lose(range, &mut losses);
            }
        });
        self.note(pool, losses);
        losses.bytes > 0
    }

    /// The same for what was sent before `limit`, as far as the time when it was sent `is_due`: then all that was sent earlier is
    /// too. `each` is called with what is found lost. Returns when the earliest of the others was sent that were before `limit`.
    pub fn mark_due_lost(
        &mut self,
        pool: &mut SentPool,
        limit: Sending,
        is_due: impl Fn(Instant) -> bool,
        mut each: impl FnMut(&SentRange),
    ) -> Option<Instant> {
        let mut losses = Losses::default();
        let Scoreboard { stretches, tally, .. } = self;
        let next = stretches.visit_due(pool, limit, &is_due, |range| {
            if range.fate == Fate::InFlight && limit.is_after(range.sending()) && is_due(range.sent_at) {
                each(range);
                tally.lose(range, &mut losses);
            }
        });
        self.note(pool, losses);
        next
    }

    /// The first `len` bytes are to be sent again, unless the peer has them.
    pub fn mark_head_lost(&mut self, pool: &mut SentPool, len: u32) -> bool {
        let Some(first) = self.first(pool).filter(|first| first.fate == Fate::InFlight) else { return false };
        self.cut(pool, first.start.plus(len.min(first.len())), Rounding::Up);
        let mut losses = Losses::default();
        let Scoreboard { stretches, tally, .. } = self;
        if let Some((position, _)) = stretches.find(pool, first.start) {
            stretches.change(pool, position, |range| tally.lose(range, &mut losses));
        }
        self.note(pool, losses);
        true
    }

    /// Nothing was lost after all.
    pub fn unmark_lost(&mut self, pool: &mut SentPool) {
        self.take_back(pool, Chunk::has_lost, Fate::Lost);
    }

    /// The peer may have thrown away what it had out of order (RFC 2018 section 8).
    pub fn unmark_sacked(&mut self, pool: &mut SentPool) {
        self.take_back(pool, |_| true, Fate::Sacked);
    }

    fn take_back(&mut self, pool: &mut SentPool, is_wanted: impl Fn(&Chunk) -> bool, fate: Fate) {
        let Scoreboard { stretches, tally, .. } = self;
        stretches.visit(pool, is_wanted, |range| {
            if range.fate == fate {
                tally.set_fate(range, Fate::InFlight);
            }
        });
    }

    /// Places that it has ([`SentPool::used_by_all`]).
    pub fn places(&self, pool: &SentPool) -> [usize; 3] {
        let (places, chunks) = self.stretches.places(pool);
        [places, chunks, self.losses.len()]
    }

    pub fn clear(&mut self, pool: &mut SentPool) {
        self.stretches.clear(pool);
        pool.losses.vacate(&mut self.losses);
        *self = Scoreboard::default();
    }

    /// What of `start..end` the peer was not known to have: from a whole segment to a whole segment, neither of which is in a
    /// stretch that it has.
    fn event_of(&self, pool: &SentPool, start: SeqNum, end: SeqNum) -> Option<(SeqNum, SeqNum)> {
        let (_, first) = self.stretches.find(pool, start)?;
        let into = start.later(first.start).distance_from(first.start);
        let from = match first.fate {
            Fate::Sacked => first.end,
            _ if into == first.whole_segments(into) => first.start.plus(into),
            _ => first.start.plus(first.whole_segments(into) + u32::from(first.mss)).earlier(first.end),
        };
        if !from.before(end) {
            return None;
        }
        let to = match self.stretches.find(pool, end.minus(1)) {
            Some((_, last)) if last.fate == Fate::Sacked => last.start,
            Some((_, last)) if end.before(last.end) => {
                last.start.plus(last.whole_segments(end.distance_from(last.start)))
            }
            _ => end,
        };
        from.before(to).then_some((from, to))
    }

    /// Makes a stretch end and one begin at `seq`, or at an end of the one that holds it where there is no place for a cut:
    /// then less is known, and nothing wrong. Returns where.
    fn cut(&mut self, pool: &mut SentPool, seq: SeqNum, rounding: Rounding) -> SeqNum {
        let found = self.stretches.find(pool, seq).filter(|(_, range)| range.start.before(seq));
        let Some((position, range)) = found else { return seq };
        match (self.stretches.cut(pool, position, seq), rounding) {
            (Ok(()), _) => seq,
            (Err(_), Rounding::Up) => range.end,
            (Err(_), Rounding::Down) => range.start,
        }
    }

    /// Makes one stretch of those in `start..end`, all of which the peer has, and of those beside them that it has too.
    fn join_sacked(&mut self, pool: &mut SentPool, start: SeqNum, end: SeqNum) {
        let sacked = |found: Option<(_, SentRange)>| found.filter(|(_, range)| range.fate == Fate::Sacked);
        let Some((_, mut first)) =
            sacked(self.stretches.find(pool, start.minus(1))).or_else(|| self.stretches.find(pool, start))
        else {
            return;
        };
        let after = sacked(self.stretches.find(pool, end)).filter(|(_, range)| range.start == end);
        let end = after.map_or(end, |(_, range)| range.end);
        if first.end.before(end) {
            self.stretches.remove(pool, first.end, end);
            first.end = end;
            if let Some((position, _)) = self.stretches.find(pool, first.start) {
                self.stretches.change(pool, position, |range| *range = first);
            }
        }
    }
}

/// Of what goes out again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resent {
    pub at: Instant,
    pub mss: u16,
    pub stamp: DeliveryStamp,
}

/// Which end of a stretch stands for a cut in it that could not be made.
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

    fn presented(board: &Scoreboard, pool: &SentPool) -> String {
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
        assert_eq!(presented(&board, &pool), "0-100. 100-150. 150-400s 400-500.");
        assert!(board.mark_lost(&mut pool, |r| r.end.before(seq(200))));
        assert_eq!(board.lost(), 150);
        board.resent(&mut pool, seq(0), seq(60), Resent { at: Instant::from_micros(9), ..Resent::default() });
        assert_eq!(presented(&board, &pool), "0-60.+ 60-100L 100-150L 150-400s 400-500.");
        let mut acked = Vec::new();
        board.acknowledge(&mut pool, seq(420), |r| acked.push(r.len()));
        assert_eq!(acked, [60, 40, 50, 250, 20]);
        assert_eq!(presented(&board, &pool), "420-500.");
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
        assert_eq!(presented(&board, &pool), "0-200. 200-300.");
    }

    /// One fate a byte.
    struct Model {
        board: Scoreboard,
        pool: SentPool,
        fates: Vec<Fate>,
        una: u32,
        nxt: u32,
        seed: u32,
    }

    impl Model {
        fn new(seed: u32) -> Model {
            let (board, pool) = (Scoreboard::default(), SentPool::new(1));
            Model { board, pool, fates: Vec::new(), una: 0, nxt: 0, seed }
        }

        fn next(&mut self, n: u32) -> u32 {
            self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.seed >> 8) % n
        }

        fn send(&mut self, len: u32, at_us: u64) {
            self.board.sent(&mut self.pool, range(self.nxt, self.nxt + len, at_us));
            self.nxt += len;
            self.fates.resize(self.nxt as usize, Fate::InFlight);
        }

        /// Something at random, to stretches of up to `reach` bytes.
        fn step(&mut self, now: u64, reach: u32) {
            let (una, nxt) = (self.una, self.nxt);
            let a = una + self.next(nxt - una + 1);
            let b = (a + self.next(reach)).min(nxt);
            match self.next(9) {
                0..2 => {
                    let len = self.next(10) + 1;
                    self.send(len, now);
                }
                2..5 => {
                    let mut event = 0;
                    self.board.sack(&mut self.pool, seq(a), seq(b), |r| event += r.len());
                    let fates = &mut self.fates[a as usize..b as usize];
                    assert_eq!(event as usize, fates.iter().filter(|fate| **fate != Fate::Sacked).count());
                    fates.fill(Fate::Sacked);
                }
                5 => {
                    let (from, to) = (seq(a), seq(b));
                    self.board
                        .mark_lost(&mut self.pool, |r| r.start.at_or_after(from) && r.end.at_or_before(to));
                    self.take_fates(Fate::Lost, Fate::Sacked);
                }
                6 => {
                    let again = Resent { at: Instant::from_micros(now), ..Resent::default() };
                    self.board.resent(&mut self.pool, seq(a), seq(b), again);
                    for fate in &mut self.fates[a as usize..b as usize] {
                        *fate = if *fate == Fate::Sacked { Fate::Sacked } else { Fate::InFlight };
                    }
                }
                7 => {
                    let limit = Sending { at: Instant::from_micros(now / 2), end: seq(a) };
                    let is_due = |at: Instant| at.as_micros() < now / 3;
                    let mut late: Vec<_> = self.board.ranges(&self.pool).copied().collect();
                    late.retain(|r| r.fate == Fate::InFlight && limit.is_after(r.sending()));
                    let next = self.board.mark_due_lost(&mut self.pool, limit, is_due, |_| {});
                    let rest = late.iter().map(|r| r.sent_at).filter(|at| !is_due(*at)).min();
                    assert_eq!(next, rest, "when to look again");
                    self.take_fates(Fate::Lost, Fate::Sacked);
                }
                _ => {
                    let ack = una + self.next((nxt - una).min(reach / 4) + 1);
                    self.board.acknowledge(&mut self.pool, seq(ack), |_| {});
                    self.una = ack;
                }
            }
        }

        /// What the board says is `fate` is, and was not `never` before.
        fn take_fates(&mut self, fate: Fate, never: Fate) {
            for r in self.board.ranges(&self.pool).filter(|r| r.fate == fate) {
                let (from, to) = (r.start.diff(seq(0)) as usize, r.end.diff(seq(0)) as usize);
                assert!(self.fates[from..to].iter().all(|fate| *fate != never));
                self.fates[from..to].fill(fate);
            }
        }

        fn check(&self) {
            let mut at = self.una;
            for r in self.board.ranges(&self.pool) {
                assert_eq!(r.start, seq(at), "no gaps");
                let end = r.end.diff(seq(0)) as u32;
                assert!(self.fates[at as usize..end as usize].iter().all(|fate| *fate == r.fate));
                at = end;
            }
            assert_eq!(at, self.nxt);
            let fates = &self.fates[self.una as usize..];
            let count = |fate| fates.iter().filter(|f| **f == fate).count();
            assert_eq!(self.board.sacked() as usize, count(Fate::Sacked));
            assert_eq!(self.board.lost() as usize, count(Fate::Lost));
            let first = fates.iter().position(|fate| *fate == Fate::Lost);
            let lost = self.board.first_lost(&self.pool).map(|r| r.start.diff(seq(self.una)) as usize);
            assert_eq!(lost, first);
        }
    }

    #[test]
    fn it_agrees_with_a_model_of_single_bytes() {
        for seed in 0..300 {
            let mut model = Model::new(seed);
            for now in 0..60 {
                model.step(now, 600);
                model.check();
            }
        }
    }

    /// The same with so many stretches that they lie in many chunks.
    #[test]
    fn it_agrees_with_the_model_where_stretches_are_many() {
        for seed in 0..20 {
            let mut model = Model::new(seed);
            for now in 0..1500 {
                model.send(2, now);
            }
            for now in 1500..4000 {
                model.step(now, if now % 100 == 0 { 1000 } else { 12 });
                if now % 16 == 0 {
                    model.check();
                }
            }
            model.check();
            model.board.acknowledge(&mut model.pool, seq(model.nxt), |_| {});
            assert_eq!(model.pool.used(), 0, "all places came back");
        }
    }

    /// RFC 2018 speaks of bytes; a sender that believes it cuts what it sent at single ones, as often as a peer likes.
    #[test]
    fn a_segment_is_there_or_not() {
        let mut pool = SentPool::new(1);
        let mut board = Scoreboard::default();
        board.sent(&mut pool, SentRange { mss: 100, ..range(0, 1050, 5) });
        for at in 1..1040 {
            board.sack(&mut pool, seq(at), seq(at + 1), |_| panic!("one byte is no segment"));
        }
        assert_eq!(presented(&board, &pool), "0-1050.");
        board.sack(&mut pool, seq(150), seq(299), |_| panic!("parts of two are none"));
        assert_eq!(presented(&board, &pool), "0-1050.");
        board.sack(&mut pool, seq(150), seq(420), |_| {});
        assert_eq!(presented(&board, &pool), "0-200. 200-400s 400-1050.");
        board.sack(&mut pool, seq(399), seq(500), |_| {});
        assert_eq!(presented(&board, &pool), "0-200. 200-500s 500-1050.", "what it has is no border");
        board.sack(&mut pool, seq(1000), seq(1050), |_| {});
        assert_eq!(presented(&board, &pool), "0-200. 200-500s 500-1000. 1000-1050s", "the last is shorter");
        board.sack(&mut pool, seq(100), seq(1050), |_| {});
        assert_eq!(presented(&board, &pool), "0-100. 100-1050s");
        // What goes out again may be cut in other places.
        board.mark_lost(&mut pool, |_| true);
        board.resent(&mut pool, seq(0), seq(60), Resent { mss: 60, ..Resent::default() });
        board.sack(&mut pool, seq(0), seq(60), |_| {});
        assert_eq!(presented(&board, &pool), "0-60s+ 60-100L 100-1050s");
    }

    /// No place for a cut: what went out again went out, else it would at once be sent once more, and for ever.
    #[test]
    fn what_went_out_again_is_on_its_way_though_there_is_no_place() {
        let mut pool = SentPool::new(1);
        let mut board = Scoreboard::default();
        board.sent(&mut pool, SentRange { mss: 1, ..range(0, 20_000, 0) });
        for n in 0..10_000 {
            board.sack(&mut pool, seq(2 * n + 10), seq(2 * n + 11), |_| {});
        }
        board.mark_lost(&mut pool, |_| true);
        let lost = board.first_lost(&pool).expect("the first");
        board.resent(&mut pool, lost.start, lost.start.plus(1), Resent::default());
        let next = board.first_lost(&pool).expect("the others");
        assert!(next.start.after(lost.start), "{lost:?} {next:?}");
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
        let len: u32 = board.ranges(&pool).map(SentRange::len).sum();
        assert_eq!(len, 200_000);
        board.acknowledge(&mut pool, seq(200_000), |_| {});
        assert!(board.is_empty());
    }
}
