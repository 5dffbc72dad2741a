//! When the kernel sockets that programs have shown are looked at: every second, and sooner where the engine asks. A program that closes a
//! socket may be at it still when the engine hears of that, so a look that was asked for is followed by another one soon. Plain values.

use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct NextLook {
    at: Option<Instant>,
    is_followed: bool,
    /// Looks that are asked for take half of the thread's time at most: programs decide how much there is to look at.
    not_before: Option<Instant>,
}

impl NextLook {
    /// There is nothing to look at.
    pub fn none(&mut self) {
        (self.at, self.is_followed) = (None, false);
    }

    /// One is asked for.
    pub fn ask(&mut self, now: Instant) {
        self.at = Some(self.not_before.map_or(now, |at| at.max(now)));
        self.is_followed = true;
    }

    /// The time of the next one, if there was one or one was asked for.
    pub fn at(&self) -> Option<Instant> {
        self.at
    }

    pub fn is_due(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| at <= now)
    }

    /// One began and ended.
    pub fn looked(&mut self, began: Instant, ended: Instant) {
        let after = if std::mem::take(&mut self.is_followed) { AGAIN_AFTER } else { EVERY };
        self.at = Some(ended + after);
        self.not_before = Some(ended + (ended - began));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_asked_for_is_followed_by_another_soon_and_that_by_none_for_a_second() {
        let now = Instant::now();
        let mut next = NextLook::default();
        assert!(next.is_due(now), "what is new is looked at");
        next.looked(now, now);
        assert_eq!(next.at(), Some(now + EVERY));
        next.ask(now);
        assert!(next.is_due(now));
        next.looked(now, now);
        assert_eq!(next.at(), Some(now + AGAIN_AFTER));
        next.looked(now + AGAIN_AFTER, now + AGAIN_AFTER);
        assert_eq!(next.at(), Some(now + AGAIN_AFTER + EVERY));
    }

    #[test]
    fn who_asks_without_end_gets_half_of_the_time() {
        let (began, took) = (Instant::now(), Duration::from_millis(50));
        let mut next = NextLook::default();
        next.ask(began);
        next.looked(began, began + took);
        next.ask(began + took);
        assert_eq!(next.at(), Some(began + 2 * took));
    }
}
