//! TCP sequence numbers (RFC 9293 section 3.4): a circle of 2^32, so "less than" has no meaning and is not offered.

use core::fmt;

/// A sequence number. Compare with [`SeqNum::before`] and [`SeqNum::after`]; there is no `Ord`, because a circular
/// order is not one and sorting or `max` by it would be wrong without notice.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SeqNum(u32);

impl SeqNum {
    pub const fn new(raw: u32) -> SeqNum {
        SeqNum(raw)
    }

    pub const fn raw(self) -> u32 {
        self.0
    }

    /// `self` comes strictly earlier on the circle than `other` (within half of it).
    pub const fn before(self, other: SeqNum) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// `self` comes strictly later on the circle than `other`.
    pub const fn after(self, other: SeqNum) -> bool {
        other.before(self)
    }

    pub const fn at_or_before(self, other: SeqNum) -> bool {
        !other.before(self)
    }

    pub const fn at_or_after(self, other: SeqNum) -> bool {
        !self.before(other)
    }

    /// The number `n` further on.
    #[must_use]
    pub const fn plus(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(n))
    }

    /// The number `n` further back.
    #[must_use]
    pub const fn minus(self, n: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(n))
    }

    /// Signed distance from `earlier` to `self`; negative when `self` is the earlier one.
    pub const fn diff(self, earlier: SeqNum) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Bytes from `earlier` to `self`, zero when `self` is not after it.
    pub const fn distance_from(self, earlier: SeqNum) -> u32 {
        let d = self.diff(earlier);
        if d > 0 { d as u32 } else { 0 }
    }

    /// The later of the two.
    #[must_use]
    pub const fn later(self, other: SeqNum) -> SeqNum {
        if self.before(other) { other } else { self }
    }

    /// The earlier of the two.
    #[must_use]
    pub const fn earlier(self, other: SeqNum) -> SeqNum {
        if self.before(other) { self } else { other }
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interesting places on the circle; every law is checked for all pairs of them.
    fn places() -> impl Iterator<Item = u32> {
        [
            0u32,
            1,
            2,
            100,
            65_535,
            65_536,
            0x7fff_fffe,
            0x7fff_ffff,
            0x8000_0000,
            0x8000_0001,
            u32::MAX - 1,
            u32::MAX,
        ]
        .into_iter()
    }

    #[test]
    fn before_is_antisymmetric_except_at_the_antipode() {
        for a in places() {
            for b in places() {
                let (a, b) = (SeqNum::new(a), SeqNum::new(b));
                if a.raw().wrapping_sub(b.raw()) == 0x8000_0000 {
                    continue;
                }
                assert_eq!(a.before(b), b.after(a));
                assert!(!(a.before(b) && b.before(a)), "{a:?} {b:?}");
                assert_eq!(a == b, !a.before(b) && !b.before(a));
            }
        }
    }

    #[test]
    fn plus_moves_forward_across_the_wrap() {
        for a in places() {
            for n in [1u32, 1460, 65_536, 0x7fff_ffff] {
                let (a, b) = (SeqNum::new(a), SeqNum::new(a).plus(n));
                assert!(a.before(b), "{a:?}+{n}");
                assert_eq!(b.distance_from(a), n);
                assert_eq!(a.distance_from(b), 0);
                assert_eq!(b.minus(n), a);
                assert_eq!(a.later(b), b);
                assert_eq!(a.earlier(b), a);
            }
        }
    }
}
