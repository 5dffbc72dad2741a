//! Where the records end that a program wants kept apart (MSG_EOR): no segment has bytes from both sides of such an end, be it
//! sent for the first time or again. Kept until the peer has acknowledged them. [`crate::output`] cuts by them; a
//! connection whose program marks no records has none, and pays a comparison a segment for it.

use crate::pool::{Array, Pool};
use toe_base::SeqNum;

/// Where the record ends of all connections lie.
pub type RecordEndPool = Pool<SeqNum>;

/// For each record the number behind its last byte, in stream order. The connection's record owns it; [`RecordEndPool`] has
/// its places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordEnds {
    array: Array,
}

impl RecordEnds {
    pub fn ends<'a>(&self, pool: &'a RecordEndPool) -> &'a [SeqNum] {
        if self.array.is_empty() { &[] } else { pool.get(&self.array) }
    }

    /// A record ends before `end`, behind all others. A connection has [`crate::pool::PLACES_MAX`] places at most, as many
    /// records as Linux has memory for in one socket, and fewer where others have taken the pool. One too many is passed over:
    /// then two records may meet in a segment, which costs the program less than an error that Linux does not know.
    pub fn push(&mut self, pool: &mut RecordEndPool, end: SeqNum) {
        let behind = self.array.len();
        let _passed_over = pool.insert(&mut self.array, behind, end);
    }

    /// Everything up to `una` is acknowledged.
    pub fn acknowledge(&mut self, pool: &mut RecordEndPool, una: SeqNum) {
        if !self.array.is_empty() {
            let past = pool.get(&self.array).partition_point(|end| end.at_or_before(una));
            pool.remove(&mut self.array, 0, past);
        }
    }

    /// Places that it has.
    pub fn places(&self) -> usize {
        RecordEndPool::places_of(&self.array)
    }

    pub fn clear(&mut self, pool: &mut RecordEndPool) {
        pool.clear(&mut self.array);
    }
}

/// Bytes from `seq` on that may go in one segment: up to the next of `ends`.
pub fn room_from(ends: &[SeqNum], seq: SeqNum) -> u32 {
    if ends.is_empty() {
        return u32::MAX;
    }
    let next = ends.partition_point(|end| end.at_or_before(seq));
    ends.get(next).map_or(u32::MAX, |end| end.distance_from(seq))
}

/// Where the segment begins whose last byte is before `end` and which would begin at `start` if there were no records.
pub fn start_of_last(ends: &[SeqNum], start: SeqNum, end: SeqNum) -> SeqNum {
    let before = ends.partition_point(|record_end| record_end.before(end));
    before.checked_sub(1).map_or(start, |last| start.later(ends[last]))
}

/// Whether a record ends just before `seq`.
pub fn is_end(ends: &[SeqNum], seq: SeqNum) -> bool {
    let at = ends.partition_point(|end| end.before(seq));
    ends.get(at) == Some(&seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::PLACES_MAX;

    fn seq(n: u32) -> SeqNum {
        SeqNum::new(u32::MAX - 150).plus(n)
    }

    #[test]
    fn segments_are_cut_at_the_ends_that_are_left() {
        let mut pool = RecordEndPool::new(1);
        let mut records = RecordEnds::default();
        assert_eq!(room_from(records.ends(&pool), seq(0)), u32::MAX);
        for end in [100, 150, 400] {
            records.push(&mut pool, seq(end));
        }
        let ends = records.ends(&pool);
        let rooms = [0, 99, 100, 149, 150, 399].map(|at| room_from(ends, seq(at)));
        assert_eq!(rooms, [100, 1, 50, 1, 250, 1]);
        assert_eq!(room_from(ends, seq(400)), u32::MAX, "nobody has ended that one");
        assert_eq!([99, 100, 101].map(|at| is_end(ends, seq(at))), [false, true, false]);
        let starts = [(300, 400), (140, 400), (140, 150), (20, 150), (20, 90)];
        assert_eq!(
            starts.map(|(start, end)| start_of_last(ends, seq(start), seq(end))),
            [seq(300), seq(150), seq(140), seq(100), seq(20)]
        );
        records.acknowledge(&mut pool, seq(99));
        assert_eq!(records.ends(&pool).len(), 3);
        records.acknowledge(&mut pool, seq(150));
        assert_eq!(records.ends(&pool), [seq(400)]);
        records.acknowledge(&mut pool, seq(1000));
        assert_eq!(pool.used(), 0, "what is acknowledged costs nothing");
    }

    #[test]
    fn records_of_one_byte_take_a_bounded_part_of_the_pool() {
        let mut pool = RecordEndPool::new(8);
        let mut greedy = [RecordEnds::default(); 8];
        for records in &mut greedy {
            for n in 0..10_000 {
                records.push(&mut pool, seq(n));
            }
        }
        assert_eq!(greedy[0].ends(&pool).len(), usize::from(PLACES_MAX));
        assert_eq!(room_from(greedy[0].ends(&pool), seq(9_000)), u32::MAX, "passed over");
        let mut modest = RecordEnds::default();
        // Nothing that others do takes the first places from a connection.
        let mut pool = RecordEndPool::new(9);
        for records in &mut greedy {
            *records = RecordEnds::default();
            (0..10_000).for_each(|n| records.push(&mut pool, seq(n)));
        }
        (0..4).for_each(|n| modest.push(&mut pool, seq(n)));
        assert_eq!(modest.ends(&pool).len(), 4);
        greedy.iter_mut().chain([&mut modest]).for_each(|records| records.clear(&mut pool));
        assert_eq!(pool.used(), 0);
    }
}
