//! Which ranges beyond `rcv.nxt` have arrived. Their bytes already lie in the receive buffer; this only remembers
//! where the holes are. When too many separate ranges are held, a new one is refused and the peer sends it again.

use crate::pool::{Array, Pool};
use toe_base::SeqNum;
use toe_base::limits::REASSEMBLY_RANGES_MAX;

/// A non-empty range of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqRange {
    pub start: SeqNum,
    /// One past the last.
    pub end: SeqNum,
}

/// Where the ranges of all connections lie.
pub type HeldPool = Pool<SeqRange>;

/// Disjoint, non-adjacent ranges in stream order. The record owns it; [`HeldPool`] has its places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reassembly {
    array: Array,
}

/// All places are taken by other ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Reassembly {
    pub fn ranges<'a>(&self, pool: &'a HeldPool) -> &'a [SeqRange] {
        pool.get(&self.array)
    }

    pub const fn is_empty(&self) -> bool {
        self.array.is_empty()
    }

    /// The indices of those that `start..end` touches.
    fn touched(&self, pool: &HeldPool, start: SeqNum, end: SeqNum) -> core::ops::Range<usize> {
        let ranges = self.ranges(pool);
        let from = ranges.partition_point(|r| r.end.before(start));
        let to = ranges.partition_point(|r| r.start.at_or_before(end));
        from..to.max(from)
    }

    /// Whether [`Reassembly::insert`] would have room.
    pub fn has_room(&mut self, pool: &mut HeldPool, start: SeqNum, end: SeqNum) -> bool {
        !self.touched(pool, start, end).is_empty()
            || self.array.len() < REASSEMBLY_RANGES_MAX && pool.has_room(&mut self.array, 1)
    }

    /// Whether all of `start..end` is there.
    pub fn holds(&self, pool: &HeldPool, start: SeqNum, end: SeqNum) -> bool {
        self.containing(pool, start).is_some_and(|r| end.at_or_before(r.end))
    }

    /// The range that `seq` lies in.
    pub fn containing(&self, pool: &HeldPool, seq: SeqNum) -> Option<SeqRange> {
        let ranges = self.ranges(pool);
        let at = ranges.partition_point(|r| r.end.at_or_before(seq));
        ranges.get(at).copied().filter(|r| r.start.at_or_before(seq))
    }

    /// Remembers `start..end`, joining what it touches.
    pub fn insert(&mut self, pool: &mut HeldPool, start: SeqNum, end: SeqNum) -> Result<(), Full> {
        let touched = self.touched(pool, start, end);
        let range = SeqRange { start, end };
        if touched.is_empty() {
            if self.array.len() >= REASSEMBLY_RANGES_MAX {
                return Err(Full);
            }
            return pool.insert(&mut self.array, touched.start, range).map_err(|_| Full);
        }
        let ranges = pool.get_mut(&self.array);
        let joined = SeqRange {
            start: start.earlier(ranges[touched.start].start),
            end: end.later(ranges[touched.end - 1].end),
        };
        ranges[touched.start] = joined;
        pool.remove(&mut self.array, touched.start + 1, touched.len() - 1);
        Ok(())
    }

    /// Everything up to `nxt` is in order now; returns how far the stream reaches without a hole.
    pub fn advance(&mut self, pool: &mut HeldPool, nxt: SeqNum) -> SeqNum {
        let mut reach = nxt;
        let mut drop = 0;
        for range in self.ranges(pool) {
            if range.start.after(reach) {
                break;
            }
            reach = reach.later(range.end);
            drop += 1;
        }
        pool.remove(&mut self.array, 0, drop);
        reach
    }

    /// Places that it has.
    pub fn places(&self) -> usize {
        HeldPool::places_of(&self.array)
    }

    pub fn clear(&mut self, pool: &mut HeldPool) {
        pool.clear(&mut self.array);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u32) -> SeqNum {
        SeqNum::new(u32::MAX - 50).plus(n)
    }

    /// Random ranges against a plain bit per byte.
    #[test]
    fn it_agrees_with_a_bitmap() {
        let mut seed = 1u32;
        let mut next = move || {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            (seed >> 16) & 0x7fff
        };
        for _ in 0..2000 {
            let mut pool = HeldPool::new(1);
            let mut held = Reassembly::default();
            let mut bits = [false; 200];
            for _ in 0..12 {
                let start = next() % 180 + 1;
                let end = start + next() % 19 + 1;
                if held.insert(&mut pool, seq(start), seq(end)).is_ok() {
                    bits[start as usize..end as usize].fill(true);
                }
            }
            let mut want = bits;
            for range in held.ranges(&pool) {
                let (a, b) = (range.start.diff(seq(0)), range.end.diff(seq(0)));
                for bit in &mut want[a as usize..b as usize] {
                    assert!(*bit);
                    *bit = false;
                }
            }
            assert!(want.iter().all(|b| !b));
            let nxt = next() % 100;
            let reach = held.advance(&mut pool, seq(nxt));
            let mut expect = nxt as usize;
            while bits[expect] {
                expect += 1;
            }
            assert_eq!(reach, seq(expect as u32));
        }
    }

    #[test]
    fn a_range_too_many_is_refused_and_nothing_is_lost() {
        let mut pool = HeldPool::new(1);
        let mut held = Reassembly::default();
        for i in 0..REASSEMBLY_RANGES_MAX as u32 {
            held.insert(&mut pool, seq(10 * i + 1), seq(10 * i + 5)).expect("room");
        }
        assert_eq!(held.insert(&mut pool, seq(90_000), seq(90_001)), Err(Full));
        assert_eq!(held.ranges(&pool).len(), REASSEMBLY_RANGES_MAX);
        held.insert(&mut pool, seq(5), seq(11)).expect("joins two");
        assert_eq!(held.ranges(&pool).len(), REASSEMBLY_RANGES_MAX - 1);
    }
}
