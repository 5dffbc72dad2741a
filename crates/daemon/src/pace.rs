//! When to let datagrams gather: while they come fast by links and nothing else happens, a coalescing sleep of the engine between two rounds. A plain state
//! machine over `now`; the run loop sleeps as it says.
//!
//! A frame that wakes the engine costs its sender the wake-up, and the engine, and the program that it wakes in turn, a sleep each. Where frames come
//! faster than that, the engine that is awake finds one or two in each round, and pays a round for them. So it looks once for all that come in
//! some tens of µs, as drivers of cards moderate their interrupts. Whoever answers is answered at once: what he sends is something else that happens.

use toe_base::Instant;

/// For so long there was nothing but datagrams…
const WINDOW_US: u64 = 500;
/// …and of those, or frames that hold several, so many in a ms.
const FAST_PER_MS: u64 = 32;

#[derive(Debug, Default)]
pub struct Pace {
    since: Instant,
    heard: u64,
    is_fast: bool,
}

impl Pace {
    /// A round is over in which `heard` frames of datagrams went to programs, and so many other things happened. Whether the next ones are to gather.
    pub fn round(&mut self, now: Instant, heard: usize, others: usize) -> bool {
        if others > 0 {
            *self = Pace { since: now, ..Pace::default() };
            return false;
        }
        self.heard += heard as u64;
        let passed = now.since_us(self.since);
        if passed >= WINDOW_US {
            self.is_fast = self.heard * 1_000 >= passed * FAST_PER_MS;
            (self.since, self.heard) = (now, 0);
        }
        self.is_fast
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One frame every so many µs, from `from` on, for 2 ms: whether the last ones were to gather.
    fn come(pace: &mut Pace, from: u64, every_us: u64) -> bool {
        let mut gathers = false;
        for at in (from..from + 2_000).step_by(every_us as usize) {
            gathers = pace.round(Instant::from_micros(at), 1, 0);
        }
        gathers
    }

    #[test]
    fn what_comes_fast_gathers_and_what_comes_seldom_does_not() {
        let mut pace = Pace::default();
        assert!(!come(&mut pace, 0, 100));
        assert!(come(&mut pace, 2_000, 10));
        assert!(!come(&mut pace, 4_000, 100), "it has become slow");
    }

    #[test]
    fn whoever_asks_for_something_else_is_served_at_once() {
        let mut pace = Pace::default();
        assert!(come(&mut pace, 0, 10));
        let now = Instant::from_micros(2_000);
        assert!(!pace.round(now, 1, 1));
        assert!(!pace.round(now.after_us(WINDOW_US - 1), 400, 0), "for a while");
        assert!(pace.round(now.after_us(WINDOW_US), 0, 0));
        // Nothing comes any more.
        assert!(!pace.round(now.after_us(2 * WINDOW_US), 0, 0));
    }
}
