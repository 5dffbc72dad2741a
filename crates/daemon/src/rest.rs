//! How the engine rests: yield, spin, coalescing sleep, park. A plain state machine over `now`; the run loop does what it says.
//!
//! After a round in which nothing moved the engine first lets other threads run, once: whoever is to bring the next
//! work may be waiting for this very core. How long that took tells what to do next.
//!
//! - It came back at once: the work may come from other cores. The engine looks again for a few µs, spinning, then yielding,
//!   then it sleeps.
//! - It took a while: the core is *shared*, and every µs of spinning would be taken from those that the engine waits
//!   for. It only yields, as long as there is work when it comes back, and else sleeps.
//! - It took so long that the others hardly wait for the engine: for some time it sleeps at once. A thread that is woken
//!   gets its turn sooner than one that has given it away.
//!
//! That it came back at once does not say that nobody else wants the core: with its short slices the engine is often the
//! next one itself. So what looking has brought counts, too: after several times in a row without anything the engine sleeps at
//! once, and looks once in a while. Where it is woken soon and often, it takes coalescing sleeps ([`crate::coalescing_sleeps`]).

use crate::coalescing_sleeps::CoalescingSleeps;
use toe_base::Instant;

/// A yield that takes this long has let somebody else run.
const SHARED_US: u64 = 4;
/// A yield that takes this long has met a thread that uses up its time slice.
const CROWDED_US: u64 = 2_000;
/// For how long after that the engine does not look: at first, and at most, twice as long each time that it soon was so again.
const CROWDED_FOR_MIN_US: u64 = 20_000;
const CROWDED_FOR_MAX_US: u64 = 640_000;
/// Soon: within so many times as long. Most yields beside a busy thread come back at once, so a single one says nothing.
const CROWDED_AGAIN: u64 = 4;
/// Yields on a shared core, one after the other, that may find nothing before the engine sleeps.
const EMPTY_YIELDS: u32 = 2;
/// After so many times of rest in a row in which looking has found nothing, the engine sleeps at once…
const FRUITLESS_MAX: u32 = 8;
/// …but looks once in so many.
const LOOK_AGAIN: u32 = 32;

/// What to do after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Go on at once.
    Work,
    Spin,
    Yield,
    /// Sleep for [`crate::coalescing_sleeps::COALESCING_SLEEP`], whatever comes.
    CoalescingSleep,
    Park,
}

#[derive(Debug)]
pub struct Rest {
    spin_us: u64,
    idle_since: Option<Instant>,
    parked_at: Option<Instant>,
    /// It looks before it sleeps, this time.
    looks: bool,
    /// It has slept or napped, this time.
    has_slept: bool,
    /// Times of rest in a row in which it found nothing awake.
    fruitless: u32,
    /// Yields since something moved.
    yields: u32,
    /// The last yield let somebody else run.
    is_shared: bool,
    crowded_until: Instant,
    /// How long that was, from the beginning.
    crowded_for_us: u64,
    coalescing_sleeps: CoalescingSleeps,
    /// Entries of the round under way that have only given credit.
    credits: usize,
}

impl Rest {
    pub fn new(spin_us: u64) -> Rest {
        Rest {
            spin_us,
            idle_since: None,
            parked_at: None,
            looks: true,
            has_slept: false,
            fruitless: 0,
            yields: 0,
            is_shared: false,
            crowded_until: Instant::ZERO,
            crowded_for_us: 0,
            coalescing_sleeps: CoalescingSleeps::new(),
            credits: 0,
        }
    }

    /// So many frames came in the round that is under way.
    pub fn received(&mut self, frames: usize) {
        self.coalescing_sleeps.received(frames);
    }

    /// A round begins: what was taken between two of them is not of it.
    pub fn begin_round(&mut self) {
        self.credits = 0;
    }

    /// So many entries of the round under way have only given credit. A host does not ring for them, so to have found them awake has
    /// saved nobody anything; a window that they open shows as a frame.
    pub fn took_credit(&mut self, entries: usize) {
        self.credits += entries;
    }

    /// Advice after a round in which `moved` things moved, those of [`Rest::took_credit`] among them.
    pub fn advise(&mut self, now: Instant, moved: usize) -> Advice {
        let is_credit_alone = moved == std::mem::take(&mut self.credits);
        if moved > 0 && !is_credit_alone {
            self.found_work(now);
            return Advice::Work;
        }
        if self.idle_since.is_none() {
            self.looks = self.may_look(now);
        }
        let idle = now.since_us(*self.idle_since.get_or_insert(now));
        if !self.looks || self.has_slept {
            return self.sleep();
        }
        if self.yields == 0 {
            return Advice::Yield;
        }
        if self.is_shared {
            return if self.yields < EMPTY_YIELDS { Advice::Yield } else { self.sleep() };
        }
        if idle >= self.spin_us {
            return self.sleep();
        }
        // The second half of the time belongs to whoever else may want the core by now.
        if idle < self.spin_us / 2 { Advice::Spin } else { Advice::Yield }
    }

    fn may_look(&self, now: Instant) -> bool {
        let pays = self.fruitless < FRUITLESS_MAX || self.fruitless.is_multiple_of(LOOK_AGAIN);
        self.spin_us > 0 && now >= self.crowded_until && pays
    }

    fn sleep(&mut self) -> Advice {
        if std::mem::replace(&mut self.has_slept, true) {
            return Advice::Park;
        }
        self.fruitless = self.fruitless.wrapping_add(1);
        if self.spin_us > 0 && self.coalescing_sleeps.take() { Advice::CoalescingSleep } else { Advice::Park }
    }

    fn found_work(&mut self, now: Instant) {
        if let Some(at) = self.parked_at {
            self.coalescing_sleeps.woken_after(now.since_us(at));
        } else if self.idle_since.is_some() && !self.has_slept {
            self.fruitless = 0;
        }
        self.has_slept = false;
        self.idle_since = None;
        self.parked_at = None;
        self.yields = 0;
    }

    /// The engine has let others run, from `before` to `after`.
    pub fn yielded(&mut self, before: Instant, after: Instant) {
        let took = after.since_us(before);
        self.yields = self.yields.saturating_add(1);
        self.is_shared = took >= SHARED_US;
        if took >= CROWDED_US {
            let is_again = before.since_us(self.crowded_until) < CROWDED_AGAIN * self.crowded_for_us;
            let longer = (self.crowded_for_us * 2).min(CROWDED_FOR_MAX_US);
            self.crowded_for_us = if is_again { longer } else { CROWDED_FOR_MIN_US };
            self.crowded_until = after.after_us(self.crowded_for_us);
            self.looks = false;
        }
    }

    /// The engine goes to sleep.
    pub fn parked(&mut self, now: Instant) {
        self.parked_at.get_or_insert(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    #[test]
    fn an_idle_engine_with_a_core_of_its_own_spins_then_yields_then_parks() {
        let mut rest = Rest::new(20);
        assert_eq!(rest.advise(at(0), 3), Advice::Work);
        assert_eq!(rest.advise(at(1), 0), Advice::Yield, "others first");
        rest.yielded(at(1), at(2));
        assert_eq!(rest.advise(at(2), 0), Advice::Spin);
        assert_eq!(rest.advise(at(12), 0), Advice::Yield);
        rest.yielded(at(12), at(13));
        assert_eq!(rest.advise(at(22), 0), Advice::Park);
    }

    #[test]
    fn on_a_shared_core_it_never_spins() {
        let mut rest = Rest::new(20);
        let mut now = 0;
        for _ in 0..10 {
            assert_eq!(rest.advise(at(now), 1), Advice::Work);
            assert_eq!(rest.advise(at(now), 0), Advice::Yield);
            rest.yielded(at(now), at(now + 50));
            now += 50;
        }
        assert_eq!(rest.advise(at(now), 0), Advice::Yield, "the other may have had too little time");
        rest.yielded(at(now), at(now + 50));
        assert_eq!(rest.advise(at(now + 50), 0), Advice::Park, "nobody brought work");
    }

    #[test]
    fn beside_a_thread_that_never_stops_it_sleeps_at_once() {
        let mut rest = Rest::new(20);
        rest.advise(at(0), 1);
        assert_eq!(rest.advise(at(1), 0), Advice::Yield);
        rest.yielded(at(1), at(4000));
        assert_eq!(rest.advise(at(4000), 0), Advice::Park);
        rest.parked(at(4000));
        assert_eq!(rest.advise(at(4100), 1), Advice::Work);
        assert_eq!(rest.advise(at(4101), 0), Advice::Park);
        rest.parked(at(4101));
        rest.advise(at(40_000), 1);
        assert_eq!(rest.advise(at(40_001), 0), Advice::Yield, "it may have gone");
    }

    #[test]
    fn beside_one_that_stays_it_looks_ever_more_seldom() {
        let mut rest = Rest::new(20);
        let mut now = 1_000;
        for crowded_for in [20_000, 40_000, 80_000, 160_000, 320_000, 640_000, 640_000] {
            rest.advise(at(now), 1);
            assert_eq!(rest.advise(at(now), 0), Advice::Yield);
            rest.yielded(at(now), at(now + 1));
            rest.advise(at(now + 1), 1);
            assert_eq!(rest.advise(at(now + 1), 0), Advice::Yield, "one that came back at once says nothing");
            rest.yielded(at(now + 1), at(now + 3_001));
            now += 3_001 + crowded_for;
            assert_eq!(rest.crowded_until, at(now));
        }
        now += CROWDED_AGAIN * 640_000;
        rest.yielded(at(now), at(now + 3_000));
        assert_eq!(rest.crowded_until, at(now + 3_000 + CROWDED_FOR_MIN_US), "it was free for long");
    }

    /// Works at `now`, and looks until it sleeps, which must be after `us`.
    fn look_in_vain(rest: &mut Rest, now: u64) {
        assert_eq!(rest.advise(at(now), 1), Advice::Work);
        assert_eq!(rest.advise(at(now), 0), Advice::Yield);
        rest.yielded(at(now), at(now));
        assert_eq!(rest.advise(at(now + 20), 0), Advice::Park);
        rest.parked(at(now + 20));
    }

    #[test]
    fn fruitless_looking_ends_and_is_tried_again() {
        let mut rest = Rest::new(20);
        let mut now = 0;
        for _ in 0..FRUITLESS_MAX {
            now += 1_000_000;
            look_in_vain(&mut rest, now);
        }
        let looked = (0..10 * LOOK_AGAIN).filter(|_| {
            now += 1_000_000;
            rest.advise(at(now), 1);
            match rest.advise(at(now), 0) {
                Advice::Yield => {
                    rest.yielded(at(now), at(now));
                    assert_eq!(rest.advise(at(now + 20), 0), Advice::Park);
                    rest.parked(at(now + 20));
                    true
                }
                advice => {
                    assert_eq!(advice, Advice::Park);
                    rest.parked(at(now));
                    false
                }
            }
        });
        assert_eq!(looked.count(), 10, "one in so many");
    }

    #[test]
    fn looking_that_finds_something_is_not_fruitless_any_more() {
        let mut rest = Rest::new(20);
        let mut now = 0;
        for _ in 0..FRUITLESS_MAX {
            now += 1_000_000;
            look_in_vain(&mut rest, now);
        }
        loop {
            now += 1_000_000;
            rest.advise(at(now), 1);
            if rest.advise(at(now), 0) == Advice::Yield {
                break;
            }
            rest.parked(at(now));
        }
        rest.yielded(at(now), at(now + 1));
        rest.advise(at(now + 2), 1);
        assert_eq!(rest.advise(at(now + 3), 0), Advice::Yield);
    }

    /// Found over a wire of 10 Mb/s: each segment woke the engine, its reader gave credit, and the engine looked on in vain, 50 µs for
    /// each segment.
    #[test]
    fn credit_that_is_found_does_not_make_looking_pay() {
        let mut rest = Rest::new(20);
        let mut now = 0;
        let looked = (0..10 * LOOK_AGAIN).filter(|_| {
            now += 1_200;
            assert_eq!(rest.advise(at(now), 1), Advice::Work, "a segment");
            if rest.advise(at(now), 0) == Advice::Park {
                rest.parked(at(now));
                return false;
            }
            rest.yielded(at(now), at(now));
            rest.took_credit(1);
            assert_eq!(rest.advise(at(now + 5), 1), Advice::Spin);
            assert_eq!(rest.advise(at(now + 20), 0), Advice::Park);
            rest.parked(at(now + 20));
            true
        });
        assert_eq!(looked.count() as u32, FRUITLESS_MAX + 9);
        rest.took_credit(1);
        assert_eq!(rest.advise(at(now + 1_200), 2), Advice::Work, "a segment beside it");
        rest.took_credit(9);
        rest.begin_round();
        assert_eq!(rest.advise(at(now + 1_201), 5), Advice::Work, "credit of another round hides nothing");
    }

    #[test]
    fn woken_soon_and_often_it_naps() {
        let mut rest = Rest::new(20);
        look_in_vain(&mut rest, 0);
        rest.advise(at(50), 1);
        assert_eq!(rest.advise(at(51), 0), Advice::Yield);
        rest.yielded(at(51), at(52));
        assert_eq!(rest.advise(at(71), 0), Advice::CoalescingSleep);
        assert_eq!(rest.advise(at(171), 0), Advice::Park, "nothing came meanwhile");
    }

    #[test]
    fn without_spinning_it_sleeps_at_once() {
        let mut rest = Rest::new(0);
        for now in 0..10 {
            rest.advise(at(now), 1);
            assert_eq!(rest.advise(at(now), 0), Advice::Park);
            rest.parked(at(now));
        }
    }

    #[test]
    fn a_wake_up_without_work_parks_again_at_once() {
        let mut rest = Rest::new(20);
        rest.advise(at(0), 0);
        rest.yielded(at(0), at(1));
        assert_eq!(rest.advise(at(30), 0), Advice::Park);
        rest.parked(at(30));
        assert_eq!(rest.advise(at(31), 0), Advice::Park);
    }
}
