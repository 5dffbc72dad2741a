//! Which ranges beyond `rcv.nxt` have arrived. Their octets already lie in the receive buffer; this only remembers
//! where the holes are. Plain data of a fixed size: when too many separate ranges are held, a new one is refused and
//! the peer sends it again.

use toe_base::SeqNum;
use toe_base::limits::REASSEMBLY_RANGES_MAX;

/// A non-empty range of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqRange {
    pub start: SeqNum,
    /// One past the last.
    pub end: SeqNum,
}

/// Disjoint, non-adjacent ranges in stream order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reassembly {
    ranges: [SeqRange; REASSEMBLY_RANGES_MAX],
    count: u8,
}

/// All places are taken by other ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Reassembly {
    pub fn ranges(&self) -> &[SeqRange] {
        &self.ranges[..usize::from(self.count)]
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// End of the furthest range.
    pub fn end(&self) -> Option<SeqNum> {
        self.ranges().last().map(|r| r.end)
    }

    /// Remembers `start..end`, joining what it touches.
    pub fn insert(&mut self, start: SeqNum, end: SeqNum) -> Result<(), Full> {
        let mut joined = SeqRange { start, end };
        let mut out = [SeqRange::default(); REASSEMBLY_RANGES_MAX + 1];
        let mut n = 0;
        let mut placed = false;
        for range in self.ranges() {
            if range.end.before(joined.start) {
                out[n] = *range;
                n += 1;
            } else if joined.end.before(range.start) {
                if !placed {
                    out[n] = joined;
                    n += 1;
                    placed = true;
                }
                out[n] = *range;
                n += 1;
            } else {
                joined.start = joined.start.earlier(range.start);
                joined.end = joined.end.later(range.end);
            }
        }
        if !placed {
            out[n] = joined;
            n += 1;
        }
        if n > REASSEMBLY_RANGES_MAX {
            return Err(Full);
        }
        self.ranges.copy_from_slice(&out[..REASSEMBLY_RANGES_MAX]);
        self.count = n as u8;
        Ok(())
    }

    /// Everything up to `nxt` is in order now; returns how far the stream reaches without a hole.
    pub fn advance(&mut self, nxt: SeqNum) -> SeqNum {
        let mut reach = nxt;
        let mut drop = 0;
        for range in self.ranges() {
            if range.start.after(reach) {
                break;
            }
            reach = reach.later(range.end);
            drop += 1;
        }
        self.ranges.copy_within(drop..usize::from(self.count), 0);
        self.count -= drop as u8;
        reach
    }

    pub fn clear(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(n: u32) -> SeqNum {
        SeqNum::new(u32::MAX - 50).plus(n)
    }

    /// Random ranges against a plain bit per octet.
    #[test]
    fn it_agrees_with_a_bitmap() {
        let mut seed = 1u32;
        let mut next = move || {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            (seed >> 16) & 0x7fff
        };
        for _ in 0..2000 {
            let mut held = Reassembly::default();
            let mut bits = [false; 200];
            for _ in 0..12 {
                let start = next() % 180 + 1;
                let end = start + next() % 19 + 1;
                if held.insert(seq(start), seq(end)).is_ok() {
                    bits[start as usize..end as usize].fill(true);
                }
            }
            let mut want = bits;
            for range in held.ranges() {
                let (a, b) = (range.start.diff(seq(0)), range.end.diff(seq(0)));
                for bit in &mut want[a as usize..b as usize] {
                    assert!(*bit);
                    *bit = false;
                }
            }
            assert!(want.iter().all(|b| !b));
            let nxt = next() % 100;
            let reach = held.advance(seq(nxt));
            let mut expect = nxt as usize;
            while bits[expect] {
                expect += 1;
            }
            assert_eq!(reach, seq(expect as u32));
        }
    }

    #[test]
    fn a_range_too_many_is_refused_and_nothing_is_lost() {
        let mut held = Reassembly::default();
        for i in 0..REASSEMBLY_RANGES_MAX as u32 {
            held.insert(seq(10 * i + 1), seq(10 * i + 5)).expect("room");
        }
        assert_eq!(held.insert(seq(900), seq(901)), Err(Full));
        assert_eq!(held.ranges().len(), REASSEMBLY_RANGES_MAX);
        held.insert(seq(5), seq(11)).expect("joins two");
        assert_eq!(held.ranges().len(), REASSEMBLY_RANGES_MAX - 1);
    }
}
