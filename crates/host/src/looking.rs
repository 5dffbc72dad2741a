//! How long a thread looks for what it waits for before it sleeps. A plain state machine over the clock, one for each
//! thread; [`crate::wait::spin`] does what it says.
//!
//! To look again, with others let run in between, is cheaper than to sleep and be woken while what is waited for comes from
//! another core, or from a thread that only needs this one for a moment. Two things say that it is not:
//!
//! - *It has found nothing several times in a row*: then only one wait in many looks.
//! - *Letting others run took so long that somebody used up a time slice*. There a thread that gives the processor away
//!   waits for all the others to use theirs, and one that sleeps and is woken comes before them (EEVDF: it has lag). So
//!   for some time nobody of this thread's waits looks at all, whatever the looks have found.

use std::time::Duration;

/// How long a wait looks again and again before it sleeps.
const LOOK_FOR: Duration = Duration::from_micros(20);
/// After so many waits in a row that looked and found nothing, a thread sleeps at once…
const FRUITLESS_MAX: u32 = 8;
/// …but tries again once in so many waits.
const LOOK_AGAIN: u32 = 32;
/// Letting others run takes this long where one of them has used up its slice: the kernel's shortest (base_slice_ns, 0.7 ms and
/// more) and no switch to a thread that only does a little.
const CROWDED: Duration = Duration::from_micros(500);
/// For how long after that no wait looks: twice as long each time that it was so again, half as long when it was not.
const CROWDED_FOR_MIN: Duration = Duration::from_millis(20);
const CROWDED_FOR_MAX: Duration = Duration::from_millis(640);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Looking {
    fruitless: u32,
    crowded_until: Duration,
    /// How long the next time will be.
    crowded_for: Duration,
}

impl Looking {
    pub const fn new() -> Looking {
        Looking { fruitless: 0, crowded_until: Duration::ZERO, crowded_for: CROWDED_FOR_MIN }
    }

    /// A wait begins. Until when it looks; `None`: it sleeps at once.
    pub fn begin(&mut self, now: Duration) -> Option<Duration> {
        if now < self.crowded_until {
            return None;
        }
        if self.fruitless >= FRUITLESS_MAX && !self.fruitless.is_multiple_of(LOOK_AGAIN) {
            self.fruitless = self.fruitless.wrapping_add(1);
            return None;
        }
        Some(now + LOOK_FOR)
    }

    /// Others were let run between these times.
    pub fn let_run(&mut self, before: Duration, after: Duration) {
        if after.saturating_sub(before) >= CROWDED {
            self.crowded_until = after + self.crowded_for;
            self.crowded_for = (self.crowded_for * 2).min(CROWDED_FOR_MAX);
        } else {
            self.crowded_for = (self.crowded_for / 2).max(CROWDED_FOR_MIN);
        }
    }

    pub fn found(&mut self) {
        self.fruitless = 0;
    }

    pub fn found_nothing(&mut self) {
        self.fruitless = self.fruitless.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn looking_that_pays_goes_on_and_looking_in_vain_fades() {
        let mut looking = Looking::new();
        for _ in 0..100 {
            assert_eq!(looking.begin(us(7)), Some(us(27)));
            looking.found();
        }
        for _ in 0..FRUITLESS_MAX {
            assert!(looking.begin(us(7)).is_some());
            looking.found_nothing();
        }
        let looked = (0..10 * LOOK_AGAIN).filter(|_| {
            let looks = looking.begin(us(7)).is_some();
            if looks {
                looking.found_nothing();
            }
            looks
        });
        assert_eq!(looked.count(), 10, "one in so many");
        while looking.begin(us(7)).is_none() {}
        looking.found();
        assert!(looking.begin(us(7)).is_some(), "it pays again");
    }

    #[test]
    fn beside_a_thread_that_uses_up_its_slice_nobody_looks() {
        let mut looking = Looking::new();
        assert!(looking.begin(us(10)).is_some());
        looking.let_run(us(10), us(60));
        looking.found();
        assert!(looking.begin(us(61)).is_some(), "somebody else had a little to do");
        looking.let_run(us(61), us(3_000));
        looking.found();
        assert_eq!(looking.begin(us(3_001)), None, "although it has found what it looked for");
        assert_eq!(looking.begin(us(22_999)), None);
        assert!(looking.begin(us(23_000)).is_some(), "they may have gone");
        looking.let_run(us(23_000), us(26_000));
        assert_eq!(looking.begin(us(65_999)), None, "they have not: twice as long");
        assert!(looking.begin(us(66_000)).is_some());
        looking.let_run(us(66_000), us(66_003));
        looking.let_run(us(66_003), us(66_006));
        looking.let_run(us(70_000), us(73_000));
        assert!(looking.begin(us(93_000)).is_some(), "now and then only");
    }
}
