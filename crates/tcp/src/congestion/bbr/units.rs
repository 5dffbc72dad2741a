//! Quantities as small as the record wants them.

use toe_base::Instant;

/// Bytes a second, counted in steps of 16: up to 68 GB/s in 32 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u32);

const STEP: u64 = 16;

impl Rate {
    pub const ZERO: Rate = Rate(0);
    pub const INFINITE: Rate = Rate(u32::MAX);

    pub fn from_bytes(bytes_per_s: u64) -> Rate {
        Rate(u32::try_from(bytes_per_s.div_ceil(STEP)).unwrap_or(u32::MAX - 1))
    }

    pub const fn bytes(self) -> u64 {
        self.0 as u64 * STEP
    }

    /// What passes in so many microseconds.
    pub fn bytes_in(self, us: u64) -> u64 {
        (u128::from(self.bytes()) * u128::from(us) / 1_000_000) as u64
    }

    /// `num / den` of it.
    pub fn part(self, num: u64, den: u64) -> Rate {
        Rate::from_bytes(self.bytes() * num / den)
    }
}

/// A time of the last weeks, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp(u32);

impl Stamp {
    pub const fn of(at: Instant) -> Stamp {
        Stamp((at.as_micros() / 1000) as u32)
    }

    pub const fn after_ms(self, ms: u32) -> Stamp {
        Stamp(self.0.wrapping_add(ms))
    }

    /// Whether `now` is later than this.
    pub const fn is_past(self, now: Stamp) -> bool {
        (now.0.wrapping_sub(self.0) as i32) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_never_less_than_what_was_measured_and_ends_far_away() {
        assert_eq!(Rate::from_bytes(1), Rate::from_bytes(16));
        assert_eq!(Rate::from_bytes(1_250_000).bytes_in(20_000), 25_000);
        assert!(Rate::from_bytes(u64::MAX) < Rate::INFINITE);
        assert_eq!(Rate::from_bytes(1_600_000).part(9, 10).bytes(), 1_440_000);
    }

    #[test]
    fn a_stamp_works_across_the_end_of_its_range() {
        let end = Stamp::of(Instant::from_millis(u64::from(u32::MAX) - 10));
        assert!(end.is_past(Stamp::of(Instant::from_millis(u64::from(u32::MAX) + 5))));
        assert!(!end.after_ms(100).is_past(Stamp::of(Instant::from_millis(u64::from(u32::MAX) + 5))));
    }
}
