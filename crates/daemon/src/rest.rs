//! How the engine rests: spin, yield, park. A plain state machine over `now`; the run loop does what it says.
//!
//! After a round in which nothing moved the engine looks again for a few µs, first spinning, then letting other
//! threads run, and then sleeps. When spinning found nothing several times in a row it spins less, down to not at
//! all; when it is woken right after it went to sleep, it spins again.

use toe_base::Instant;

/// A sleep shorter than this many times the spinning time was not worth it.
const SHORT_SLEEP: u64 = 4;

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
    /// How long to spin now; adapts between 0 and `spin_us`.
    budget_us: u64,
    idle_since: Option<Instant>,
    parked_at: Option<Instant>,
}

impl Rest {
    pub fn new(spin_us: u64) -> Rest {
        Rest { spin_us, budget_us: spin_us, idle_since: None, parked_at: None }
    }

    /// Advice after a round in which `moved` things moved.
    pub fn advise(&mut self, now: Instant, moved: usize) -> Advice {
        if moved > 0 {
            let was_short = self.parked_at.is_some_and(|at| now.since_us(at) < SHORT_SLEEP * self.spin_us);
            let spinning_paid = self.parked_at.is_none() && self.idle_since.is_some();
            if was_short || spinning_paid {
                self.budget_us = self.spin_us;
            }
            self.idle_since = None;
            self.parked_at = None;
            return Advice::Work;
        }
        let idle = now.since_us(*self.idle_since.get_or_insert(now));
        if idle >= self.budget_us || self.parked_at.is_some() {
            return Advice::Park;
        }
        // The second half of the time belongs to whoever else wants the core.
        if idle < self.budget_us / 2 { Advice::Spin } else { Advice::Yield }
    }

    /// The engine goes to sleep: spinning was in vain.
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
    fn an_idle_engine_spins_then_yields_then_parks() {
        let mut rest = Rest::new(20);
        assert_eq!(rest.advise(at(0), 3), Advice::Work);
        assert_eq!(rest.advise(at(1), 0), Advice::Spin);
        assert_eq!(rest.advise(at(12), 0), Advice::Yield);
        assert_eq!(rest.advise(at(22), 0), Advice::Park);
    }

    #[test]
    fn fruitless_spinning_fades_and_comes_back() {
        let mut rest = Rest::new(16);
        let mut now = 0;
        for _ in 0..6 {
            // Work, then silence until the engine parks, then a long sleep.
            now += 1_000_000;
            rest.advise(at(now), 1);
            rest.advise(at(now), 0);
            assert_eq!(rest.advise(at(now + 16), 0), Advice::Park);
            rest.parked(at(now + 16));
        }
        now += 1_000_000;
        rest.advise(at(now), 1);
        assert_eq!(rest.advise(at(now), 0), Advice::Park, "spinning never paid, so it stopped");
        rest.parked(at(now));
        rest.advise(at(now + 10), 1);
        assert_eq!(rest.advise(at(now + 11), 0), Advice::Spin, "that sleep was too short to be worth it");
    }

    #[test]
    fn a_wake_up_without_work_parks_again_at_once() {
        let mut rest = Rest::new(20);
        rest.advise(at(0), 0);
        assert_eq!(rest.advise(at(30), 0), Advice::Park);
        rest.parked(at(30));
        assert_eq!(rest.advise(at(31), 0), Advice::Park);
    }
}
