//! A buddy allocator over offsets: it hands out ranges of somebody else's memory and never touches that memory.
//!
//! The engine runs one over the receive part of each session's region, the host library one over the send part.

/// A power-of-two range of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Octets from the start of the region (the arena's base included).
    pub offset: u64,
    /// Length as a power of two.
    pub order: u8,
}

impl Block {
    pub const fn len(self) -> u32 {
        1 << self.order
    }

    pub const fn is_empty(self) -> bool {
        false
    }
}

/// Smallest block: 2^8 = 256 octets.
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
}

impl Arena {
    /// An arena over `len` octets from `base`; both are multiples of the largest block or `len` is cut down to one.
    pub fn new(base: u64, len: u64) -> Arena {
        let mut arena = Arena { base, len: 0, free: Default::default(), used: 0 };
        let mut at = 0;
        for order in (ORDER_MIN..=ORDER_MAX).rev() {
            let size = 1u64 << order;
            while len - at >= size {
                arena.free[usize::from(order - ORDER_MIN)].insert(at);
                at += size;
            }
        }
        arena.len = at;
        arena
    }

    /// The order whose block holds `octets`; `None` when no block is that large.
    pub fn order_for(octets: u32) -> Option<u8> {
        let order = octets.max(1).checked_next_power_of_two()?.trailing_zeros() as u8;
        let order = order.max(ORDER_MIN);
        (order <= ORDER_MAX).then_some(order)
    }

    /// A block of at least `octets`, or `None` when the arena has none left.
    pub fn alloc(&mut self, octets: u32) -> Option<Block> {
        let order = Self::order_for(octets)?;
        let have = (order..=ORDER_MAX).find(|o| !self.free[usize::from(o - ORDER_MIN)].is_empty())?;
        let at = self.free[usize::from(have - ORDER_MIN)].pop_first()?;
        for split in (order..have).rev() {
            self.free[usize::from(split - ORDER_MIN)].insert(at + (1u64 << split));
        }
        self.used += 1u64 << order;
        Some(Block { offset: self.base + at, order })
    }

    /// Takes back a block that [`Arena::alloc`] gave.
    pub fn free(&mut self, block: Block) {
        let mut at = block.offset - self.base;
        let mut order = block.order;
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

    /// Octets handed out.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Octets that are not handed out; not all need be one block.
    pub fn available(&self) -> u64 {
        self.len - self.used
    }

    /// Octets in all.
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
        held.sort_by_key(|b| b.offset);
        for pair in held.windows(2) {
            assert!(pair[0].offset + u64::from(pair[0].len()) <= pair[1].offset);
        }
        for block in held {
            arena.free(block);
        }
        assert_eq!(arena.used(), 0);
        assert!(arena.alloc(16 << 20).is_some(), "buddies merged to the largest block again");
    }

    #[test]
    fn an_empty_arena_says_so() {
        let mut arena = Arena::new(0, 4096);
        assert!(arena.alloc(8192).is_none());
        assert_eq!(arena.alloc(4096).map(|b| b.offset), Some(0));
        assert!(arena.alloc(1).is_none());
        assert!(arena.alloc(u32::MAX).is_none());
    }
}
