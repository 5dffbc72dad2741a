//! Naps: sleeps of the engine that nobody can end. A plain state machine; [`crate::rest`] asks it where the engine would sleep.
//!
//! To wake a sleeping engine costs whoever does it a few µs, and the engine takes the processor from him: it asks for short
//! slices, so that it comes before strangers. A peer that sends one request after the other is stopped so at the first of them, the
//! engine finds that one, sleeps, and is woken by the next. After a nap it finds all of them.
//!
//! A nap delays what comes meanwhile. So it is taken only where the last sleep was shorter than a nap, and goes on being taken
//! only while it brings several frames at a time; where it does not, it is tried again after ever more short sleeps.

use std::time::Duration;

/// How long a nap is. docs/performance.md shows what others bring.
pub const NAP: Duration = Duration::from_micros(NAP_US);
const NAP_US: u64 = 100;
/// A nap pays that ends with so many frames: more than a request and an ACK or two.
const PAYS: usize = 4;
/// Short sleeps, at most, until a nap is tried again.
const AGAIN_MAX: u32 = 256;

#[derive(Debug)]
pub struct Naps {
    /// The last sleep was shorter than a nap.
    was_short: bool,
    /// Short sleeps until the next nap, and how many it will be once that one has brought too little.
    wait: u32,
    next_wait: u32,
    /// The engine comes from one.
    is_over: bool,
}

impl Naps {
    pub fn new() -> Naps {
        Naps { was_short: false, wait: 0, next_wait: 1, is_over: false }
    }

    /// The engine is about to sleep: whether it takes a nap instead.
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
        self.was_short = us < NAP_US;
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
        let mut naps = Naps::new();
        assert!(!naps.take(), "nothing is known yet");
        naps.woken_after(NAP_US);
        assert!(!naps.take());
        naps.woken_after(NAP_US - 1);
        assert!(naps.take());
    }

    #[test]
    fn they_go_on_while_they_bring_several_frames() {
        let mut naps = Naps::new();
        naps.woken_after(10);
        for _ in 0..100 {
            assert!(naps.take());
            naps.received(PAYS);
            naps.received(0);
        }
        assert!(naps.take());
        naps.received(PAYS - 1);
        assert!(!naps.take(), "not the next time");
        assert!(naps.take(), "but the time after that");
    }

    #[test]
    fn in_vain_they_are_tried_ever_more_seldom() {
        let mut naps = Naps::new();
        naps.woken_after(10);
        let mut taken = 0;
        for _ in 0..10_000 {
            if naps.take() {
                naps.received(2);
                taken += 1;
            }
        }
        assert!((40..50).contains(&taken), "{taken}");
    }
}
