//! Coalescing sleeps: sleeps of the engine that nobody can end. A plain state machine; [`crate::rest`] asks it where the engine would sleep.
//!
//! To wake a sleeping engine costs whoever does it a few µs, and the engine takes the processor from him: it asks for short
//! slices, so that it comes before strangers. A peer that sends one request after the other is stopped so at the first of them, the
//! engine finds that one, sleeps, and is woken by the next. After a coalescing sleep it finds all of them.
//!
//! A coalescing sleep delays what comes meanwhile. So it is taken only where the last sleep was shorter than a coalescing sleep, and goes on being taken
//! only while it brings several frames at a time; where it does not, it is tried again after ever more short sleeps.

use std::time::Duration;

/// How long a coalescing sleep is. docs/measurements.md shows what others bring.
pub const COALESCING_SLEEP: Duration = Duration::from_micros(COALESCING_SLEEP_US);
const COALESCING_SLEEP_US: u64 = 100;
/// A coalescing sleep pays that ends with so many frames: more than a request and an ACK or two.
const PAYS: usize = 4;
/// Short sleeps, at most, until a coalescing sleep is tried again.
const AGAIN_MAX: u32 = 256;

#[derive(Debug)]
pub struct CoalescingSleeps {
    /// The last sleep was shorter than a coalescing sleep.
    was_short: bool,
    /// Short sleeps until the next coalescing sleep, and how many it will be once that one has brought too little.
    wait: u32,
    next_wait: u32,
    /// The engine comes from one.
    is_over: bool,
}

impl CoalescingSleeps {
    pub fn new() -> CoalescingSleeps {
        CoalescingSleeps { was_short: false, wait: 0, next_wait: 1, is_over: false }
    }

    /// The engine is about to sleep: whether it takes a coalescing sleep instead.
    pub fn take(&mut self) -> bool {
        if !self.was_short {
            return false;
        }
        let Some(wait) = self.wait.checked_sub(1) else {
            self.is_over = true;
            return true;
        };
        self.wait = wait;
        false
    }

    /// A sleep of so many µs was ended by something to do.
    pub fn woken_after(&mut self, us: u64) {
        self.was_short = us < COALESCING_SLEEP_US;
    }

    /// So many frames came in a round.
    pub fn received(&mut self, frames: usize) {
        if !std::mem::take(&mut self.is_over) {
            return;
        }
        if frames >= PAYS {
            self.next_wait = 1;
        } else {
            self.wait = self.next_wait;
            self.next_wait = (self.next_wait * 2).min(AGAIN_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_long_takes_none() {
        let mut coalescing_sleeps = CoalescingSleeps::new();
        assert!(!coalescing_sleeps.take(), "nothing is known yet");
        coalescing_sleeps.woken_after(COALESCING_SLEEP_US);
        assert!(!coalescing_sleeps.take());
        coalescing_sleeps.woken_after(COALESCING_SLEEP_US - 1);
        assert!(coalescing_sleeps.take());
    }

    #[test]
    fn they_go_on_while_they_bring_several_frames() {
        let mut coalescing_sleeps = CoalescingSleeps::new();
        coalescing_sleeps.woken_after(10);
        for _ in 0..100 {
            assert!(coalescing_sleeps.take());
            coalescing_sleeps.received(PAYS);
            coalescing_sleeps.received(0);
        }
        assert!(coalescing_sleeps.take());
        coalescing_sleeps.received(PAYS - 1);
        assert!(!coalescing_sleeps.take(), "not the next time");
        assert!(coalescing_sleeps.take(), "but the time after that");
    }

    #[test]
    fn in_vain_they_are_tried_ever_more_seldom() {
        let mut coalescing_sleeps = CoalescingSleeps::new();
        coalescing_sleeps.woken_after(10);
        let mut taken = 0;
        for _ in 0..10_000 {
            if coalescing_sleeps.take() {
                coalescing_sleeps.received(2);
                taken += 1;
            }
        }
        assert!((40..50).contains(&taken), "{taken}");
    }
}
