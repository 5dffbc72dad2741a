//! Where a connection's unacknowledged and unsent bytes lie in host memory. The host chose the places; the engine only
//! remembers them, in stream order, until the peer has acknowledged them.

pub use crate::pieces::{Extent, PIECES_MAX, Pieces};

use crate::pool::{Array, Pool};
use toe_abi::entry::MemRange;
use toe_base::SessionId;
use toe_base::limits::SEND_EXTENTS_MAX;

/// Most bytes in a queue: positions in it stay far from half of the sequence space.
const QUEUE_MAX: u32 = 1 << 30;

/// Where the further extents of all connections lie. Each connection can have a smallest array, and none needs more.
pub type ExtentPool = Pool<Extent, { SEND_EXTENTS_MAX as u16 }>;

/// Up to [`SEND_EXTENTS_MAX`] extents of the owner, behind one that an earlier owner left; in stream order. Plain data: the first
/// one is here, as most queues have no other, and [`ExtentPool`] has the places of those behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendQueue {
    first: Extent,
    more: Array,
    len: u32,
}

/// The queue has no room for another separate extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyExtents;

impl SendQueue {
    /// Bytes in the queue.
    pub const fn len(&self) -> u32 {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn extents<'a>(&'a self, pool: &'a ExtentPool) -> impl Iterator<Item = &'a Extent> {
        let first = (!self.is_empty()).then_some(&self.first);
        first.into_iter().chain(pool.get(&self.more))
    }

    fn last_mut<'a>(&'a mut self, pool: &'a mut ExtentPool) -> Option<&'a mut Extent> {
        match self.len {
            0 => None,
            _ if self.more.is_empty() => Some(&mut self.first),
            _ => pool.get_mut(&self.more).last_mut(),
        }
    }

    /// Appends bytes, one at least; adjacent memory joins the last extent.
    pub fn push(
        &mut self,
        pool: &mut ExtentPool,
        session: SessionId,
        range: MemRange,
    ) -> Result<(), TooManyExtents> {
        debug_assert!(range.len > 0);
        let total = self.len.checked_add(range.len).filter(|t| *t <= QUEUE_MAX).ok_or(TooManyExtents)?;
        if let Some(last) = self.last_mut(pool)
            && last.session == session
            && last.range.offset + u64::from(last.range.len) == range.offset
        {
            last.range.len += range.len;
        } else if self.extents(pool).filter(|e| e.session == session).count() >= SEND_EXTENTS_MAX {
            return Err(TooManyExtents);
        } else if self.is_empty() {
            self.first = Extent { session, range };
        } else if self.more.len() < PIECES_MAX - 1 {
            let behind = self.more.len();
            pool.insert(&mut self.more, behind, Extent { session, range }).map_err(|_| TooManyExtents)?;
        } else {
            return Err(TooManyExtents);
        }
        self.len = total;
        Ok(())
    }

    /// Drops `n` acknowledged bytes from the front; returns how many of them were `owner`'s.
    pub fn acknowledge(&mut self, pool: &mut ExtentPool, n: u32, owner: SessionId) -> u32 {
        let mut left = n.min(self.len);
        self.len -= left;
        let mut owners = 0;
        while left > 0 {
            let first = &mut self.first;
            let take = first.range.len.min(left);
            if first.session == owner {
                owners += take;
            }
            first.range.offset += u64::from(take);
            first.range.len -= take;
            left -= take;
            if first.range.len == 0 {
                self.first = pool.get(&self.more).first().copied().unwrap_or_default();
                let taken = usize::from(!self.more.is_empty());
                pool.remove(&mut self.more, 0, taken);
            }
        }
        owners
    }

    /// The pieces that hold `len` bytes from `at` on.
    pub fn pieces(&self, pool: &ExtentPool, at: u32, len: u32) -> Pieces {
        Pieces::cut(self.extents(pool), at, len)
    }

    /// Whether some bytes lie in `session`'s region.
    pub fn uses(&self, pool: &ExtentPool, session: SessionId) -> bool {
        self.extents(pool).any(|e| e.session == session)
    }

    /// Whether some bytes lie in another session's region than `session`'s.
    pub fn uses_other_than(&self, pool: &ExtentPool, session: SessionId) -> bool {
        self.extents(pool).any(|e| e.session != session)
    }

    /// Bytes that lie in `session`'s region.
    pub fn bytes_of(&self, pool: &ExtentPool, session: SessionId) -> u32 {
        self.extents(pool).filter(|e| e.session == session).map(|e| e.range.len).sum()
    }

    /// Slots that it has in the pool.
    pub fn slots(&self) -> usize {
        ExtentPool::places_of(&self.more)
    }

    /// Forgets everything.
    pub fn clear(&mut self, pool: &mut ExtentPool) {
        pool.clear(&mut self.more);
        *self = SendQueue::default();
    }
}

const _: () = assert!(size_of::<SendQueue>() <= 32);

#[cfg(test)]
mod tests {
    use super::*;

    const S: SessionId = SessionId(3);

    fn range(offset: u64, len: u32) -> MemRange {
        MemRange { offset, len }
    }

    #[test]
    fn adjacent_ranges_join_and_come_back_in_order() {
        let (mut queue, mut pool) = (SendQueue::default(), ExtentPool::new(1));
        queue.push(&mut pool, S, range(1000, 10)).expect("room");
        queue.push(&mut pool, S, range(1010, 10)).expect("room");
        queue.push(&mut pool, S, range(5000, 5)).expect("room");
        assert_eq!(queue.len(), 25);
        let pieces: Vec<_> =
            queue.pieces(&pool, 8, 15).iter().map(|e| (e.range.offset, e.range.len)).collect();
        assert_eq!(pieces, [(1008, 12), (5000, 3)]);
        assert_eq!(queue.acknowledge(&mut pool, 21, S), 21);
        let rest: Vec<_> = queue.pieces(&pool, 0, 99).iter().map(|e| (e.range.offset, e.range.len)).collect();
        assert_eq!(rest, [(5001, 4)]);
    }

    #[test]
    fn only_the_owners_bytes_are_reported_back() {
        let (mut queue, mut pool) = (SendQueue::default(), ExtentPool::new(1));
        queue.push(&mut pool, S, range(0, 10)).expect("room");
        queue.push(&mut pool, SessionId(4), range(0, 10)).expect("room");
        assert_eq!(queue.acknowledge(&mut pool, 15, SessionId(4)), 5);
        assert!(!queue.uses(&pool, S));
        assert_eq!(queue.bytes_of(&pool, SessionId(4)), 5);
    }

    #[test]
    fn the_ninth_separate_extent_is_refused() {
        let (mut queue, mut pool) = (SendQueue::default(), ExtentPool::new(1));
        for i in 0..SEND_EXTENTS_MAX as u64 {
            queue.push(&mut pool, S, range(i * 100, 10)).expect("room");
        }
        assert_eq!(queue.push(&mut pool, S, range(99_999, 1)), Err(TooManyExtents));
        assert_eq!(queue.len(), 80);
        queue.push(&mut pool, SessionId(4), range(0, 1)).expect("room for what an earlier owner left");
        assert_eq!(
            (queue.pieces(&pool, 0, 99).iter().count(), queue.slots()),
            (PIECES_MAX, SEND_EXTENTS_MAX)
        );
        assert_eq!(queue.acknowledge(&mut pool, 80, S), 80);
        assert_eq!((queue.bytes_of(&pool, SessionId(4)), pool.used()), (1, 0));
    }
}
