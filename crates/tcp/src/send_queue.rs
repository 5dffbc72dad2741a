//! Where a connection's unacknowledged and unsent bytes lie in host memory. The host chose the places; the engine only
//! remembers them, in stream order, until the peer has acknowledged them.

use toe_abi::entry::MemRange;
use toe_base::SessionId;
use toe_base::limits::SEND_EXTENTS_MAX;

/// A piece of some session's region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub session: SessionId,
    pub range: MemRange,
}

/// Places in a queue: what the contract allows the owner, and one for what an earlier owner left behind.
pub const PIECES_MAX: usize = SEND_EXTENTS_MAX + 1;
/// Most bytes in a queue: positions in it stay far from half of the sequence space.
const QUEUE_MAX: u32 = 1 << 30;

/// Up to [`SEND_EXTENTS_MAX`] extents of the owner, behind one that an earlier owner left; in stream order. Plain
/// data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendQueue {
    extents: [Extent; PIECES_MAX],
    count: u8,
    len: u32,
}

/// The pieces of a payload, in stream order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pieces {
    extents: [Extent; PIECES_MAX],
    count: u8,
}

impl Pieces {
    pub fn iter(&self) -> impl Iterator<Item = &Extent> {
        self.extents[..usize::from(self.count)].iter()
    }

    /// Bytes in all pieces.
    pub fn len(&self) -> u32 {
        self.iter().map(|e| e.range.len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pieces without the first `skip` bytes, cut to `len` bytes.
    #[must_use]
    pub fn slice(&self, skip: u32, len: u32) -> Pieces {
        let mut out = Pieces::default();
        let (mut skip, mut left) = (skip, len);
        for extent in self.iter() {
            let here = extent.range.len;
            if skip >= here {
                skip -= here;
                continue;
            }
            let take = (here - skip).min(left);
            if take == 0 {
                break;
            }
            let range = MemRange { offset: extent.range.offset + u64::from(skip), len: take };
            out.extents[usize::from(out.count)] = Extent { session: extent.session, range };
            out.count += 1;
            left -= take;
            skip = 0;
        }
        out
    }
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

    /// Appends bytes; adjacent memory joins the last extent.
    pub fn push(&mut self, session: SessionId, range: MemRange) -> Result<(), TooManyExtents> {
        let total = self.len.checked_add(range.len).filter(|t| *t <= QUEUE_MAX).ok_or(TooManyExtents)?;
        if let Some(last) = self.extents[..usize::from(self.count)].last_mut()
            && last.session == session
            && last.range.offset + u64::from(last.range.len) == range.offset
        {
            last.range.len += range.len;
            self.len = total;
            return Ok(());
        }
        let used = &self.extents[..usize::from(self.count)];
        if used.iter().filter(|e| e.session == session).count() >= SEND_EXTENTS_MAX {
            return Err(TooManyExtents);
        }
        let slot = self.extents.get_mut(usize::from(self.count)).ok_or(TooManyExtents)?;
        *slot = Extent { session, range };
        self.count += 1;
        self.len = total;
        Ok(())
    }

    /// Drops `n` acknowledged bytes from the front; returns how many of them were `owner`'s.
    pub fn acknowledge(&mut self, n: u32, owner: SessionId) -> u32 {
        let mut left = n.min(self.len);
        self.len -= left;
        let mut owners = 0;
        while left > 0 {
            let first = &mut self.extents[0];
            let take = first.range.len.min(left);
            if first.session == owner {
                owners += take;
            }
            first.range.offset += u64::from(take);
            first.range.len -= take;
            left -= take;
            if first.range.len == 0 {
                self.extents.copy_within(1..usize::from(self.count), 0);
                self.count -= 1;
            }
        }
        owners
    }

    /// The pieces that hold `len` bytes from `at` on.
    pub fn pieces(&self, at: u32, len: u32) -> Pieces {
        Pieces { extents: self.extents, count: self.count }.slice(at, len)
    }

    /// Whether some bytes lie in `session`'s region.
    pub fn uses(&self, session: SessionId) -> bool {
        self.extents[..usize::from(self.count)].iter().any(|e| e.session == session)
    }

    /// Whether some bytes lie in another session's region than `session`'s.
    pub fn uses_other_than(&self, session: SessionId) -> bool {
        self.extents[..usize::from(self.count)].iter().any(|e| e.session != session)
    }

    /// Bytes that lie in `session`'s region.
    pub fn bytes_of(&self, session: SessionId) -> u32 {
        self.extents[..usize::from(self.count)]
            .iter()
            .filter(|e| e.session == session)
            .map(|e| e.range.len)
            .sum()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = SendQueue::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SessionId = SessionId(3);

    fn range(offset: u64, len: u32) -> MemRange {
        MemRange { offset, len }
    }

    #[test]
    fn adjacent_ranges_join_and_come_back_in_order() {
        let mut queue = SendQueue::default();
        queue.push(S, range(1000, 10)).expect("room");
        queue.push(S, range(1010, 10)).expect("room");
        queue.push(S, range(5000, 5)).expect("room");
        assert_eq!(queue.len(), 25);
        let pieces: Vec<_> = queue.pieces(8, 15).iter().map(|e| (e.range.offset, e.range.len)).collect();
        assert_eq!(pieces, [(1008, 12), (5000, 3)]);
        assert_eq!(queue.acknowledge(21, S), 21);
        let rest: Vec<_> = queue.pieces(0, 99).iter().map(|e| (e.range.offset, e.range.len)).collect();
        assert_eq!(rest, [(5001, 4)]);
    }

    #[test]
    fn only_the_owners_bytes_are_reported_back() {
        let mut queue = SendQueue::default();
        queue.push(S, range(0, 10)).expect("room");
        queue.push(SessionId(4), range(0, 10)).expect("room");
        assert_eq!(queue.acknowledge(15, SessionId(4)), 5);
        assert!(!queue.uses(S));
        assert_eq!(queue.bytes_of(SessionId(4)), 5);
    }

    #[test]
    fn the_ninth_separate_extent_is_refused() {
        let mut queue = SendQueue::default();
        for i in 0..SEND_EXTENTS_MAX as u64 {
            queue.push(S, range(i * 100, 10)).expect("room");
        }
        assert_eq!(queue.push(S, range(99_999, 1)), Err(TooManyExtents));
        assert_eq!(queue.len(), 80);
    }
}
