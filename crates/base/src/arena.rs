//! A buddy allocator over offsets: it hands out ranges of somebody else's memory and never touches that memory.
//!
//! The engine runs one over the receive part of each session's region, the host library one over the send part.

use core::num::NonZero;

/// A power-of-two range of an arena. Eight bytes, and no more where there may be none: records have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct Block {
    /// Bytes from the start of the region (the arena's base included): the lower half and the upper one.
    low: u32,
    high: u16,
    /// Length as a power of two; [`ORDER_MIN`] at least.
    order: NonZero<u8>,
}

const _: () = assert!(size_of::<Option<Block>>() <= 8);

impl Block {
    /// Regions are shorter than 2^48 bytes.
    pub fn new(offset: u64, order: u8) -> Block {
        debug_assert!(order >= ORDER_MIN && offset >> (u32::BITS + u16::BITS) == 0);
        let order = NonZero::new(order).unwrap_or(NonZero::<u8>::MIN);
        Block { low: offset as u32, high: (offset >> u32::BITS) as u16, order }
    }

    pub const fn offset(self) -> u64 {
        (self.high as u64) << u32::BITS | self.low as u64
    }

    pub const fn order(self) -> u8 {
        self.order.get()
    }

    pub const fn len(self) -> u32 {
        1 << self.order()
    }

    /// The two blocks that it consists of; not of the smallest.
    pub fn halves(self) -> (Block, Block) {
        let (offset, order) = (self.offset(), self.order() - 1);
        (Block::new(offset, order), Block::new(offset + (1 << order), order))
    }

    pub const fn is_empty(self) -> bool {
        false
    }
}

/// Smallest block: 2^8 = 256 bytes.
pub const ORDER_MIN: u8 = 8;
/// Largest block: 2^24 = 16 MiB, the largest window.
pub const ORDER_MAX: u8 = 24;
const ORDERS: usize = (ORDER_MAX - ORDER_MIN + 1) as usize;

/// The allocator. Lowest address first, so that a lightly used arena stays small and its pages stay warm.
#[derive(Clone, Debug)]
pub struct Arena {
    base: u64,
    len: u64,
    /// Free blocks by order, as offsets relative to `base`.
    free: [std::collections::BTreeSet<u64>; ORDERS],
    used: u64,
    /// What of it is on its way back to the system ([`Arena::retire`]).
    retired: u64,
    /// Nothing beyond this was handed out since the last [`Arena::trim`], relative to `base`.
    touched: u64,
    /// Where the trim begins whose end is not reported yet, relative to `base`: nothing beyond is handed out. Else `len`.
    ceiling: u64,
    room: Room,
}

/// How much more an arena may hand out, beside what its memory has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub used: u64,
    /// Bytes beyond all that were handed out before.
    pub touched: u64,
}

impl Room {
    pub const UNLIMITED: Room = Room { used: u64::MAX, touched: u64::MAX };
}

impl Arena {
    /// An arena over `len` bytes from `base`; both are multiples of the largest block or `len` is cut down to one.
    pub fn new(base: u64, len: u64) -> Arena {
        let mut arena = Arena {
            base,
            len: 0,
            free: Default::default(),
            used: 0,
            retired: 0,
            touched: 0,
            ceiling: 0,
            room: Room::UNLIMITED,
        };
        let mut at = 0;
        for order in (ORDER_MIN..=ORDER_MAX).rev() {
            let size = 1u64 << order;
            while len - at >= size {
                arena.free[usize::from(order - ORDER_MIN)].insert(at);
                at += size;
            }
        }
        (arena.len, arena.ceiling) = (at, at);
        arena
    }

    /// The order whose block holds `bytes`; `None` when no block is that large.
    pub fn order_for(bytes: u32) -> Option<u8> {
        let order = bytes.max(1).checked_next_power_of_two()?.trailing_zeros() as u8;
        let order = order.max(ORDER_MIN);
        (order <= ORDER_MAX).then_some(order)
    }

    /// A block of at least `bytes`, or `None` when the arena has none left.
    pub fn alloc(&mut self, bytes: u32) -> Option<Block> {
        let order = Self::order_for(bytes)?;
        let size = 1u64 << order;
        let lowest = |order: u8| {
            let at = *self.free[usize::from(order - ORDER_MIN)].first()?;
            (at + size <= self.ceiling).then_some((order, at))
        };
        let (have, at) = (order..=ORDER_MAX).find_map(lowest)?;
        self.hand_out(at, size)?;
        self.free[usize::from(have - ORDER_MIN)].pop_first();
        for split in (order..have).rev() {
            self.free[usize::from(split - ORDER_MIN)].insert(at + (1u64 << split));
        }
        Some(Block::new(self.base + at, order))
    }

    /// The block that consists of `block`, which stays what it is, and its other half, if that is free.
    pub fn grow(&mut self, block: Block) -> Option<Block> {
        let (at, size) = (block.offset() - self.base, u64::from(block.len()));
        let other = at ^ size;
        let index = usize::from(block.order() - ORDER_MIN);
        if block.order() == ORDER_MAX || !self.free[index].contains(&other) || other + size > self.ceiling {
            return None;
        }
        self.hand_out(other, size)?;
        self.free[index].remove(&other);
        Some(Block::new(self.base + at.min(other), block.order() + 1))
    }

    /// Counts `size` bytes at `at`, relative to `base`, as handed out; `None`: there is no room for them.
    fn hand_out(&mut self, at: u64, size: u64) -> Option<()> {
        let fresh = (at + size).saturating_sub(self.touched);
        if size > self.room.used || fresh > self.room.touched {
            return None;
        }
        self.used += size;
        self.touched += fresh;
        // Whoever is asked for more than one thing by one who set this gets no more in all.
        self.room.used = self.room.used.saturating_sub(size);
        self.room.touched = self.room.touched.saturating_sub(fresh);
        Some(())
    }

    /// Takes back a block that [`Arena::alloc`] gave, or a half of one, the other being a block of its own from then on.
    pub fn free(&mut self, block: Block) {
        let mut at = block.offset() - self.base;
        let mut order = block.order();
        self.used -= 1u64 << order;
        while order < ORDER_MAX {
            let buddy = at ^ (1u64 << order);
            if !self.free[usize::from(order - ORDER_MIN)].remove(&buddy) {
                break;
            }
            at = at.min(buddy);
            order += 1;
        }
        self.free[usize::from(order - ORDER_MIN)].insert(at);
    }

    /// A block that nobody needs any more, whose memory the system is about to get back: it stays handed out until
    /// [`Arena::reclaim`] or nobody would know whether what is written there stays.
    pub fn retire(&mut self, block: Block) {
        self.retired += u64::from(block.len());
    }

    /// The block of `len` bytes at `offset`, which was retired, may be handed out again.
    pub fn reclaim(&mut self, offset: u64, len: u32) {
        self.retired -= u64::from(len);
        self.free(Block::new(offset, len.trailing_zeros() as u8));
    }

    /// Bytes handed out, retired blocks among them.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of retired blocks.
    pub fn retired(&self) -> u64 {
        self.retired
    }

    /// Bytes that are not handed out and may be, if not before a trim has ended; not all need be one block.
    pub fn available(&self) -> u64 {
        let untouched = self.room.touched.saturating_add(self.touched - self.used);
        (self.len - self.used).min(self.room.used).min(untouched)
    }

    /// How much more may be handed out from now on.
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// Bytes from the base on beyond which nothing was handed out since the last trim: what there is of pages at most.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// Begins to cut up to `max` bytes off the end of what was touched, as far as nothing there is handed out, nor in the
    /// `slack` bytes before. Returns where they begin and how many they are; if any, nothing there or beyond is handed
    /// out before [`Arena::end_trim`].
    pub fn trim(&mut self, max: u64, slack: u64) -> (u64, u64) {
        let end = self.touched;
        let start = (self.top() + slack).max(end.saturating_sub(max)).min(end);
        if start < end {
            self.ceiling = start;
        }
        (self.base + start, end - start)
    }

    /// Where the trim that goes on begins.
    pub fn trimmed_from(&self) -> Option<u64> {
        (self.ceiling < self.len).then_some(self.base + self.ceiling)
    }

    /// The trim has ended; `gone`: what was cut off has no pages any more. Returns how many bytes it was.
    pub fn end_trim(&mut self, gone: bool) -> u64 {
        let start = core::mem::replace(&mut self.ceiling, self.len);
        let len = self.touched.saturating_sub(start);
        if gone {
            self.touched -= len;
        }
        len
    }

    /// The end of the highest block that is handed out, relative to `base`.
    fn top(&self) -> u64 {
        let mut top = self.len;
        let free_below = |top: u64| {
            let size = |order: &u8| 1u64 << order;
            let is_free = |order: &u8| {
                top >= size(order) && self.free[usize::from(order - ORDER_MIN)].contains(&(top - size(order)))
            };
            (ORDER_MIN..=ORDER_MAX).rev().find(is_free).map(|order| size(&order))
        };
        while let Some(size) = free_below(top) {
            top -= size;
        }
        top
    }

    /// Bytes in all.
    pub fn capacity(&self) -> u64 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_all_comes_back() {
        let mut arena = Arena::new(1 << 30, 64 << 20);
        let mut held = Vec::new();
        for i in 0..1000u32 {
            held.push(arena.alloc((i * 7919) % 60_000 + 1).expect("room"));
        }
        held.sort_by_key(|b| b.offset());
        for pair in held.windows(2) {
            assert!(pair[0].offset() + u64::from(pair[0].len()) <= pair[1].offset());
        }
        for block in held {
            arena.free(block);
        }
        assert_eq!(arena.used(), 0);
        assert!(arena.alloc(16 << 20).is_some(), "buddies merged to the largest block again");
    }

    #[test]
    fn no_more_is_handed_out_than_there_is_room_for() {
        let mut arena = Arena::new(0, 16 << 20);
        arena.set_room(Room { used: u64::MAX, touched: 8192 });
        assert_eq!(arena.available(), 8192);
        let first = arena.alloc(8192).expect("room");
        assert!(arena.alloc(256).is_none(), "it would touch a fresh page");
        arena.free(first);
        assert_eq!((arena.touched(), arena.used()), (8192, 0));
        assert!(arena.alloc(8192).is_some(), "what was touched before costs nothing");
        arena.set_room(Room { used: 256, touched: u64::MAX });
        assert!(arena.alloc(512).is_none() && arena.alloc(256).is_some() && arena.alloc(256).is_none());
    }

    #[test]
    fn what_nobody_has_is_trimmed_from_the_end() {
        let mut arena = Arena::new(1 << 30, 64 << 20);
        let blocks = [(); 4].map(|()| arena.alloc(1 << 20).expect("room"));
        arena.free(blocks[3]);
        arena.free(blocks[1]);
        assert_eq!(arena.trim(1 << 30, 0), ((1 << 30) + (3 << 20), 1 << 20), "the third is in use");
        assert_eq!((arena.end_trim(true), arena.touched()), (1 << 20, 3 << 20));
        assert_eq!(arena.trim(1 << 30, 0).1, 0);
        assert_eq!(arena.trimmed_from(), None, "nothing to wait for");
        arena.free(blocks[0]);
        arena.free(blocks[2]);
        assert_eq!(
            arena.trim(1 << 20, 0),
            ((1 << 30) + (2 << 20), 1 << 20),
            "no more at once than is asked for"
        );
        arena.end_trim(true);
        assert_eq!(arena.trim(u64::MAX, 4096), ((1 << 30) + 4096, (2 << 20) - 4096), "the slack stays");
        assert_eq!((arena.end_trim(true), arena.touched()), ((2 << 20) - 4096, 4096));
    }

    #[test]
    fn nothing_beyond_a_trims_start_is_handed_out_before_it_ends() {
        let base = 1 << 30;
        let mut arena = Arena::new(base, 64 << 20);
        let blocks = [(); 4].map(|()| arena.alloc(1 << 20).expect("room"));
        blocks[1..].iter().for_each(|block| arena.free(*block));
        assert_eq!(arena.trim(u64::MAX, 1 << 20), (base + (2 << 20), 2 << 20));
        assert_eq!(arena.trimmed_from(), Some(base + (2 << 20)));
        assert_eq!(arena.alloc(2 << 20), None, "it would reach beyond");
        let last = arena.alloc(1 << 20).expect("the slack");
        assert_eq!(last.offset(), base + (1 << 20));
        assert_eq!(arena.alloc(256), None, "all of the rest lies beyond, touched or not");
        arena.free(last);
        assert_eq!((arena.end_trim(false), arena.touched()), (2 << 20, 4 << 20), "the pages stayed");
        assert_eq!(arena.alloc(2 << 20).map(|block| block.offset()), Some(base + (2 << 20)));
    }

    #[test]
    fn a_retired_block_is_not_handed_out_before_it_is_reclaimed() {
        let mut arena = Arena::new(0, 8192);
        let block = arena.alloc(4096).expect("room");
        arena.retire(block);
        assert_eq!((arena.used(), arena.retired()), (4096, 4096));
        assert_eq!(arena.alloc(4096).map(|other| other.offset()), Some(4096));
        assert_eq!(arena.alloc(256), None);
        arena.reclaim(block.offset(), block.len());
        assert_eq!((arena.used(), arena.retired()), (4096, 0));
        assert_eq!(arena.alloc(4096), Some(block));
    }

    #[test]
    fn a_block_comes_back_by_halves() {
        let mut arena = Arena::new(0, 1 << 20);
        let mut block = arena.alloc(1 << 20).expect("all of it");
        for _ in 0..5 {
            let (kept, other) = block.halves();
            assert_eq!(
                (kept.len(), other.offset()),
                (block.len() / 2, block.offset() + u64::from(kept.len()))
            );
            arena.free(other);
            block = kept;
            assert_eq!(arena.used(), u64::from(block.len()));
        }
        arena.free(block);
        assert_eq!(arena.alloc(1 << 20).map(|b| b.offset()), Some(0), "whole again");
    }

    #[test]
    fn a_half_grows_again_while_the_other_one_is_free() {
        let mut arena = Arena::new(1 << 30, 1 << 20);
        let whole = arena.alloc(1 << 20).expect("all of it");
        let (low, high) = whole.halves();
        arena.free(low);
        assert_eq!(arena.grow(high), Some(whole));
        assert_eq!(arena.used(), 1 << 20);
        assert_eq!(arena.grow(whole), None, "there is no more");
        arena.free(high);
        let small = arena.alloc(256).expect("room");
        assert_eq!(arena.grow(low), None, "a part of the other half is handed out");
        arena.free(small);
        arena.set_room(Room { used: (512 << 10) - 1, touched: u64::MAX });
        assert_eq!(arena.grow(low), None, "no room");
        arena.set_room(Room::UNLIMITED);
        assert_eq!((arena.grow(low), arena.used()), (Some(whole), 1 << 20));
    }

    #[test]
    fn an_empty_arena_says_so() {
        let mut arena = Arena::new(0, 4096);
        assert!(arena.alloc(8192).is_none());
        assert_eq!(arena.alloc(4096).map(|b| b.offset()), Some(0));
        assert!(arena.alloc(1).is_none());
        assert!(arena.alloc(u32::MAX).is_none());
    }
}
