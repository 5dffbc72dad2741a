//! Virtual time. The engine never reads a clock: whoever drives it passes `now`.

use core::cell::Cell;
use core::cmp::Ordering;
use core::fmt;
use core::time::Duration;

/// Microseconds since the engine's own epoch (its start, or zero in a simulation).
///
/// Six bytes, as records have many: they suffice for nine years, and what would be later is [`Instant::FAR_FUTURE`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(C, packed(2))]
pub struct Instant {
    low: u32,
    high: u16,
}

impl Instant {
    /// The epoch itself.
    pub const ZERO: Instant = Instant::from_micros(0);
    /// Later than anything that will happen: "no deadline".
    pub const FAR_FUTURE: Instant = Instant::from_micros(u64::MAX);
    /// What the six bytes of [`Instant::FAR_FUTURE`] say.
    const LAST: u64 = (1 << 48) - 1;

    pub const fn from_micros(us: u64) -> Instant {
        let us = if us > Self::LAST { Self::LAST } else { us };
        Instant { low: us as u32, high: (us >> u32::BITS) as u16 }
    }

    pub const fn from_millis(ms: u64) -> Instant {
        Instant::from_micros(ms * 1000)
    }

    pub const fn as_micros(self) -> u64 {
        let us = (self.high as u64) << u32::BITS | self.low as u64;
        if us == Self::LAST { u64::MAX } else { us }
    }

    /// The 32-bit millisecond clock that TCP timestamps carry (RFC 7323 section 5.4 allows 1 ms to 1 s a tick).
    pub const fn tcp_timestamp_ms(self) -> u32 {
        (self.as_micros() / 1000) as u32
    }

    /// Time from `earlier` until `self`; zero when `earlier` is later.
    pub const fn since_us(self, earlier: Instant) -> u64 {
        self.as_micros().saturating_sub(earlier.as_micros())
    }

    pub const fn after_us(self, us: u64) -> Instant {
        Instant::from_micros(self.as_micros().saturating_add(us))
    }

    pub const fn until(self, later: Instant) -> Duration {
        Duration::from_micros(later.as_micros().saturating_sub(self.as_micros()))
    }

    pub const fn is_far_future(self) -> bool {
        self.as_micros() == u64::MAX
    }
}

impl PartialOrd for Instant {
    fn partial_cmp(&self, other: &Instant) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Instant {
    fn cmp(&self, other: &Instant) -> Ordering {
        self.as_micros().cmp(&other.as_micros())
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instant").field("us", &self.as_micros()).finish()
    }
}

const _: () = assert!(size_of::<Instant>() <= 6);

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
    fn an_instant_is_its_number_until_nine_years_are_over() {
        let years = 8 * 365 * 86_400 * 1_000_000;
        for us in [0, 1, 0xffff_ffff, 1 << 32, years] {
            assert_eq!(Instant::from_micros(us).as_micros(), us);
            assert!(Instant::from_micros(us) < Instant::from_micros(us + 1));
        }
        for end in [Instant::from_micros(years).after_us(years), Instant::ZERO.after_us(u64::MAX)] {
            assert!(end.is_far_future() && end == Instant::FAR_FUTURE && end.as_micros() == u64::MAX);
        }
    }

    #[test]
    fn a_clock_that_goes_back_stands_still_until_it_is_there_again() {
        let clock = Forward::default();
        let told = [5, 9, 7, 3, 8, 9, 10].map(|us| clock.follow(Instant::from_micros(us)).as_micros());
        assert_eq!(told, [5, 9, 9, 9, 9, 9, 10]);
    }
}
