//! Virtual time. The engine never reads a clock: whoever drives it passes `now`.

use core::cell::Cell;
use core::time::Duration;

/// Microseconds since the engine's own epoch (its start, or zero in a simulation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    us: u64,
}

impl Instant {
    /// The epoch itself.
    pub const ZERO: Instant = Instant { us: 0 };
    /// Later than anything that will happen: "no deadline".
    pub const FAR_FUTURE: Instant = Instant { us: u64::MAX };

    pub const fn from_micros(us: u64) -> Instant {
        Instant { us }
    }

    pub const fn from_millis(ms: u64) -> Instant {
        Instant { us: ms * 1000 }
    }

    pub const fn as_micros(self) -> u64 {
        self.us
    }

    /// The 32-bit millisecond clock that TCP timestamps carry (RFC 7323 section 5.4 allows 1 ms to 1 s a tick).
    pub const fn tcp_timestamp_ms(self) -> u32 {
        (self.us / 1000) as u32
    }

    /// Time from `earlier` until `self`; zero when `earlier` is later.
    pub const fn since_us(self, earlier: Instant) -> u64 {
        self.us.saturating_sub(earlier.us)
    }

    pub const fn after_us(self, us: u64) -> Instant {
        Instant { us: self.us.saturating_add(us) }
    }

    pub const fn until(self, later: Instant) -> Duration {
        Duration::from_micros(later.us.saturating_sub(self.us))
    }

    pub const fn is_far_future(self) -> bool {
        self.us == u64::MAX
    }
}

/// A clock that stands still where the one it follows goes back. The engine is told times that never decrease: what it sends of them
/// (RFC 7323 section 5.4) must not, or the peer drops it as old, and its timers count from them.
#[derive(Debug, Default)]
pub struct Forward {
    latest: Cell<Instant>,
}

impl Forward {
    /// What it has told last.
    pub fn latest(&self) -> Instant {
        self.latest.get()
    }

    /// What the clock that is followed says, or the latest that it has said.
    pub fn follow(&self, says: Instant) -> Instant {
        let now = self.latest.get().max(says);
        self.latest.set(now);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_goes_back_stands_still_until_it_is_there_again() {
        let clock = Forward::default();
        let told = [5, 9, 7, 3, 8, 9, 10].map(|us| clock.follow(Instant::from_micros(us)).as_micros());
        assert_eq!(told, [5, 9, 9, 9, 9, 9, 10]);
    }
}
