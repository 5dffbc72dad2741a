//! How the engine rests: yield, spin, park. A plain state machine over `now`; the run loop does what it says.
//!
//! After a round in which nothing moved the engine first lets other threads run, once: whoever is to bring the next
//! work may be waiting for this very core. How long that took tells what to do next.
//!
//! - It came back at once: nobody else wants the core, so the work comes from other cores. The engine looks again for a
//!   few µs, spinning, then yielding, then it sleeps. When looking found nothing several times in a row it looks less,
//!   down to not at all; when it is woken right after it went to sleep, it looks again.
//! - It took a while: the core is *shared*, and every µs of spinning would be taken from those that the engine waits
//!   for. It only yields, as long as there is work when it comes back, and else sleeps.
//! - It took so long that the others hardly wait for the engine: for some time it sleeps at once. A thread that is woken
//!   gets its turn sooner than one that has given it away.

use toe_base::Instant;

/// A sleep shorter than this many times the spinning time was not worth it.
const SHORT_SLEEP: u64 = 4;
/// A yield that takes this long has let somebody else run.
const SHARED_US: u64 = 4;
/// A yield that takes this long has met a thread that uses up its time slice.
const CROWDED_US: u64 = 2_000;
/// For how long after that the engine does not yield: twice as long each time that it was so again, half as long when not.
const CROWDED_FOR_MIN_US: u64 = 20_000;
const CROWDED_FOR_MAX_US: u64 = 640_000;
/// Yields on a shared core, one after the other, that may find nothing before the engine sleeps.
const YIELDS_IN_VAIN: u32 = 2;

/// What to do after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Go on at once.
    Work,
    Spin,
    Yield,
    Park,
}

#[derive(Debug)]
pub struct Rest {
    spin_us: u64,
    /// How long to look in vain now; adapts between 0 and `spin_us`.
    budget_us: u64,
    idle_since: Option<Instant>,
    parked_at: Option<Instant>,
    /// Yields since something moved.
    yields: u32,
    /// The last yield let somebody else run.
    is_shared: bool,
    crowded_until: Instant,
    /// How long the next time will be.
    crowded_for_us: u64,
}

impl Rest {
    pub fn new(spin_us: u64) -> Rest {
        Rest {
            spin_us,
            budget_us: spin_us,
            idle_since: None,
            parked_at: None,
            yields: 0,
            is_shared: false,
            crowded_until: Instant::ZERO,
            crowded_for_us: CROWDED_FOR_MIN_US,
        }
    }

    /// Advice after a round in which `moved` things moved.
    pub fn advise(&mut self, now: Instant, moved: usize) -> Advice {
        if moved > 0 {
            self.found_work(now);
            return Advice::Work;
        }
        let idle = now.since_us(*self.idle_since.get_or_insert(now));
        if self.parked_at.is_some() || self.spin_us == 0 || now < self.crowded_until {
            return Advice::Park;
        }
        if self.yields == 0 && (self.budget_us > 0 || self.is_shared) {
            return Advice::Yield;
        }
        if self.is_shared {
            return if self.yields < YIELDS_IN_VAIN { Advice::Yield } else { Advice::Park };
        }
        if idle >= self.budget_us {
            return Advice::Park;
        }
        // The second half of the time belongs to whoever else may want the core by now.
        if idle < self.budget_us / 2 { Advice::Spin } else { Advice::Yield }
    }

    fn found_work(&mut self, now: Instant) {
        let was_short = self.parked_at.is_some_and(|at| now.since_us(at) < SHORT_SLEEP * self.spin_us);
        let looking_paid = self.parked_at.is_none() && self.idle_since.is_some();
        if was_short || looking_paid {
            self.budget_us = self.spin_us;
        }
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
            self.crowded_until = after.after_us(self.crowded_for_us);
            self.crowded_for_us = (self.crowded_for_us * 2).min(CROWDED_FOR_MAX_US);
        } else {
            self.crowded_for_us = (self.crowded_for_us / 2).max(CROWDED_FOR_MIN_US);
        }
    }

    /// The engine goes to sleep: looking was in vain.
    pub fn parked(&mut self, now: Instant) {
        if self.parked_at.is_none() {
            self.budget_us /= 2;
            self.parked_at = Some(now);
        }
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
    fn fruitless_looking_fades_and_comes_back() {
        let mut rest = Rest::new(16);
        let mut now = 0;
        for _ in 0..6 {
            // Work, then silence until the engine parks, then a long sleep.
            now += 1_000_000;
            rest.advise(at(now), 1);
            rest.advise(at(now), 0);
            rest.yielded(at(now), at(now));
            assert_eq!(rest.advise(at(now + 16), 0), Advice::Park);
            rest.parked(at(now + 16));
        }
        now += 1_000_000;
        rest.advise(at(now), 1);
        assert_eq!(rest.advise(at(now), 0), Advice::Park, "looking never paid, so it stopped");
        rest.parked(at(now));
        rest.advise(at(now + 10), 1);
        assert_eq!(rest.advise(at(now + 11), 0), Advice::Yield, "that sleep was too short to be worth it");
        rest.yielded(at(now + 11), at(now + 11));
        assert_eq!(rest.advise(at(now + 12), 0), Advice::Spin);
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
