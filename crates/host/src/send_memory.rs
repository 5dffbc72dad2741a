//! Where the bytes lie that a socket has sent and its peer has not yet acknowledged.
//!
//! A socket writes into a ring of memory out of the session's send part. The ring starts small, is replaced by a
//! larger one while the old one drains, and goes back when nothing is outstanding. At any time the bytes that the engine
//! knows of a flow lie in at most three rings, so in at most six pieces, and one more of those that another session had sent before:
//! within [`toe_base::limits::SEND_EXTENTS_MAX`]. In a channel each piece is named by itself, and they stay until the peer's program has read them: there as many rings may
//! drain as it takes to hold what two ends of Linux would.
//!
//! Owned by [`crate::queue`] (the blocks) and [`crate::socket::stream`] (one [`SendMemory`] a stream).

use crate::lock::Lock;
use std::collections::VecDeque;
use std::sync::Arc;
use toe_abi::entry::MemRange;
use toe_base::arena::{Arena, Block};
use toe_base::limits::{LONG_PATH_US, RECEIVE_WINDOW_INITIAL, RECEIVE_WINDOW_NEAR, WINDOW_MAX};

/// Smallest ring.
const RING_MIN: u32 = 4 << 10;
/// Largest ring, and the most that a socket may have outstanding.
pub const SEND_LIMIT_MAX: u32 = WINDOW_MAX;
/// The most that one grows to by itself on a short path: more would only spoil caches.
pub const SEND_LIMIT_NEAR: u32 = 4 << 20;
/// The most that one may have in a channel. What its peer has not read may have to be given to another process as one block, with what
/// the engine's window holds beside it.
const SHARED_LIMIT_MAX: u32 = WINDOW_MAX - RECEIVE_WINDOW_NEAR;
/// Bytes that a new socket may have outstanding; doubles when they are too few.
pub const SEND_LIMIT_INITIAL: u32 = 256 << 10;
/// Smallest limit that SO_SNDBUF can set (Linux: SOCK_MIN_SNDBUF).
pub const SEND_LIMIT_MIN: u32 = 4608;

/// Rings that may drain beside the current one.
const DRAINING_MAX: usize = 2;

const _: () = assert!(toe_base::limits::SEND_EXTENTS_MAX > 2 * (DRAINING_MAX + 1));

/// The same of bytes in a channel: each is twice the last, so the limit comes first.
const DRAINING_IN_CHANNEL_MAX: usize = 16;

/// Who sends this much at once will send more.
const BULK: u32 = 64 << 10;

/// Orders of the blocks that a queue set keeps for reuse: 4 KiB … 64 KiB.
const CACHED_ORDERS: std::ops::RangeInclusive<u8> = 12..=16;
/// Blocks of each order that it keeps.
const CACHED_BLOCKS: usize = 16;

/// Access to the session's send part, or to a channel's data part, with some blocks at hand.
#[derive(Debug)]
pub struct Blocks {
    arena: Arc<Lock<Arena>>,
    cached: [Vec<Block>; 5],
}

impl Blocks {
    pub fn new(arena: Arc<Lock<Arena>>) -> Blocks {
        Blocks { arena, cached: std::array::from_fn(|_| Vec::with_capacity(CACHED_BLOCKS)) }
    }

    fn shelf(order: u8) -> Option<usize> {
        CACHED_ORDERS.contains(&order).then(|| usize::from(order - CACHED_ORDERS.start()))
    }

    /// A block of about `bytes`; less when memory is short, `None` when there is none.
    fn take(&mut self, bytes: u32) -> Option<Block> {
        let order = Arena::order_for(bytes)?;
        if let Some(block) = Self::shelf(order).and_then(|shelf| self.cached[shelf].pop()) {
            return Some(block);
        }
        let mut arena = self.arena.lock();
        let mut bytes = bytes.min(fair_share(arena.used(), arena.capacity()));
        while bytes >= RING_MIN {
            if let Some(block) = arena.alloc(bytes) {
                return Some(block);
            }
            bytes /= 2;
        }
        drop(arena);
        self.cached.iter_mut().find_map(Vec::pop)
    }

    /// One for all of so many bytes, for a while. `None`: there is none, or they are none, or more than any window has.
    pub fn take_whole(&mut self, bytes: usize) -> Option<Block> {
        let bytes = u32::try_from(bytes).ok().filter(|bytes| (1..=WINDOW_MAX).contains(bytes))?;
        self.arena.lock().alloc(bytes.max(RING_MIN))
    }

    pub fn give_back(&mut self, block: Block) {
        match Self::shelf(block.order()) {
            Some(shelf) if self.cached[shelf].len() < CACHED_BLOCKS => self.cached[shelf].push(block),
            _ => self.arena.lock().free(block),
        }
    }

    /// Less than half of it is taken.
    fn is_plenty(&self) -> bool {
        let arena = self.arena.lock();
        arena.used() < arena.capacity() / 2
    }

    /// Whether a socket that found no memory would find some now.
    pub fn available(&self) -> bool {
        let arena = self.arena.lock();
        arena.used() < arena.capacity() || self.cached.iter().any(|shelf| !shelf.is_empty())
    }
}

/// Largest block that one socket is given when `used` of `capacity` bytes are taken: the fuller, the smaller. Where many share it,
/// what all have together should stay in the caches: with 64 connections and 256 KiB each requests of 16 KiB went at two thirds of
/// the rate, 64 of 1 KiB at half of it (files of 1 and 10 MiB: a tenth faster).
fn fair_share(used: u64, capacity: u64) -> u32 {
    match used.saturating_mul(8) / capacity.max(1) {
        0..2 => SEND_LIMIT_MAX,
        2..4 => SEND_LIMIT_NEAR,
        4..6 => 64 << 10,
        6 => 16 << 10,
        _ => RING_MIN,
    }
}

/// A block used as a ring.
#[derive(Clone, Copy, Debug)]
struct Ring {
    block: Block,
    /// Where the next byte goes.
    head: u32,
    /// Bytes before `head`, round the end, that are outstanding.
    used: u32,
}

impl Ring {
    fn free(&self) -> u32 {
        self.block.len() - self.used
    }

    /// Free bytes from `head` in one piece.
    fn contiguous(&self) -> u32 {
        self.free().min(self.block.len() - self.head)
    }
}

/// The memory of one stream.
#[derive(Debug)]
pub struct SendMemory {
    /// Draining, the oldest first: they take no more.
    old: VecDeque<Ring>,
    /// How many of those there may be.
    old_max: usize,
    current: Option<Ring>,
    outstanding: u32,
    /// Its rings were full at the last look and it had its share of memory that is short: no more before some returns.
    has_share: bool,
    limit: u32,
    /// The limit grows up to this.
    grows_to: u32,
    /// SO_SNDBUF was set: the limit does not grow.
    fixed: bool,
}

impl Default for SendMemory {
    fn default() -> Self {
        SendMemory {
            old: VecDeque::new(),
            old_max: DRAINING_MAX,
            current: None,
            outstanding: 0,
            has_share: false,
            limit: SEND_LIMIT_INITIAL,
            grows_to: SEND_LIMIT_NEAR,
            fixed: false,
        }
    }
}

impl SendMemory {
    /// Bytes given to the engine and not yet returned.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Bytes that may still be sent before the limit.
    pub fn room(&self) -> u32 {
        self.limit.saturating_sub(self.outstanding)
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    pub fn set_limit(&mut self, bytes: u32) {
        self.limit = bytes.clamp(SEND_LIMIT_MIN, SEND_LIMIT_MAX);
        self.fixed = true;
    }

    /// The same of a memory in a channel.
    pub fn set_limit_in_channel(&mut self, bytes: u32) {
        self.set_limit(bytes.saturating_add(RECEIVE_WINDOW_INITIAL).min(SHARED_LIMIT_MAX));
    }

    /// The same limit for a memory in a channel that has nothing in it yet: one that grows is near, however long the handshake took on a
    /// busy machine. One that the program has set is of its own end alone: a channel holds what the peer's would as well.
    pub fn in_channel(&self) -> SendMemory {
        let (of_peer, most) =
            if self.fixed { (RECEIVE_WINDOW_INITIAL, SHARED_LIMIT_MAX) } else { (0, SEND_LIMIT_NEAR) };
        let limit = self.limit.saturating_add(of_peer).min(most);
        SendMemory { limit, fixed: self.fixed, old_max: DRAINING_IN_CHANNEL_MAX, ..SendMemory::default() }
    }

    /// Whether more fits behind a piece of `len` bytes that is about to be committed.
    pub fn has_room_behind(&self, len: u32) -> bool {
        self.room() > len && (self.at_hand() > len || self.old.len() < self.old_max)
    }

    /// Bytes that can be sent now, in as many pieces as it takes: with another ring where one may be made.
    pub fn room_now(&self) -> u32 {
        if self.may_enlarge() { self.room() } else { self.room().min(self.at_hand()) }
    }

    /// Whether another ring may be made, as far as is known without a look at the memory.
    fn may_enlarge(&self) -> bool {
        let draining = self.current.is_some_and(|ring| ring.used > 0);
        !draining || (self.old.len() < self.old_max && !self.has_share)
    }

    /// Finds out whether another ring may be made, where the next byte needs one, and whether there may be more outstanding. After
    /// bytes were taken: what is told of room is then what the next call finds.
    pub fn look_at_share(&mut self, blocks: &Blocks) {
        // Also where the peer reads nothing: two programs that both write before they read would wait for each other.
        let may_grow = !self.fixed && self.limit < self.grows_to;
        if may_grow && self.outstanding > self.limit / 2 && blocks.is_plenty() {
            self.grow();
        }
        self.has_share = self.at_hand() == 0 && self.room() > 0 && self.has_its_share(blocks);
    }

    /// Bytes that fit without more memory.
    pub fn at_hand(&self) -> u32 {
        self.current.map_or(0, |ring| ring.free())
    }

    /// The path's round trip as the handshake measured it: a long one needs more on its way than a short one.
    pub fn set_round_trip(&mut self, srtt_us: u32) {
        self.grows_to = if srtt_us >= LONG_PATH_US { SEND_LIMIT_MAX } else { SEND_LIMIT_NEAR };
    }

    /// The socket could have sent more: lets it, up to what the path may need.
    pub fn grow(&mut self) {
        if !self.fixed {
            self.limit = (self.limit * 2).min(self.grows_to.max(self.limit));
        }
    }

    /// Whether a poll should say "writable": a third of the limit is free, as in Linux, and there is somewhere to put what
    /// comes. Where that can only be the current ring, a third of it is free.
    pub fn is_writable(&self) -> bool {
        let fits = self.may_enlarge() || self.current.is_some_and(|ring| ring.free() >= ring.used >> 1);
        fits && self.room() >= self.outstanding >> 1
    }

    /// A piece of memory of up to `piece` bytes, to be filled and then [`SendMemory::commit`]ted; a new ring is made
    /// for all of `want`. `None`: no memory now.
    pub fn reserve(&mut self, blocks: &mut Blocks, want: usize, piece: u32) -> Option<MemRange> {
        let want = u32::try_from(want).unwrap_or(u32::MAX).min(self.room());
        if want == 0 {
            return None;
        }
        let have = self.current.map_or(0, |ring| ring.free());
        // What is left of one that was made for a few bytes would take a part of its own.
        let too_small = self.current.is_some_and(|ring| ring.block.len() < want.min(BULK));
        if have == 0 {
            self.enlarge(blocks, want).then_some(())?;
        } else if too_small {
            // Without a larger one the small one does.
            self.enlarge(blocks, want);
        }
        let ring = self.current?;
        let len = want.min(piece).min(ring.contiguous());
        Some(MemRange { offset: ring.block.offset() + u64::from(ring.head), len })
    }

    /// Puts a larger ring in place of the current one, unless too many are still draining.
    fn enlarge(&mut self, blocks: &mut Blocks, want: u32) -> bool {
        let draining = self.current.is_some_and(|ring| ring.used > 0);
        if draining && (self.old.len() >= self.old_max || self.has_its_share(blocks)) {
            return false;
        }
        // Who fills a ring before any of it is acknowledged is not to wait for that.
        let (times, least) = if draining { (4, BULK.min(self.limit)) } else { (2, RING_MIN) };
        let larger = self.current.map_or(0, |ring| ring.block.len().saturating_mul(times));
        // A bulk sender fills whatever it is given: one ring for all that it may have outstanding, so that it need not wait
        // for an old one to drain while there is room.
        let bulk = if want >= BULK { self.limit } else { want };
        let size = bulk.max(larger).clamp(least, self.grows_to.max(self.limit));
        let Some(block) = blocks.take(size) else { return false };
        if let Some(ring) = self.current.replace(Ring { block, head: 0, used: 0 }) {
            if draining {
                self.old.push_back(ring);
            } else {
                blocks.give_back(ring.block);
            }
        }
        true
    }

    /// Where memory is no longer plenty, a sender that has as much as a new one begins with waits until that drains: else a few have most of
    /// it, and the others small rings, of which each takes its own calls.
    fn has_its_share(&self, blocks: &Blocks) -> bool {
        self.outstanding >= SEND_LIMIT_INITIAL && !blocks.is_plenty()
    }

    /// `len` bytes of the last reserved piece are the engine's now.
    pub fn commit(&mut self, len: u32) {
        if let Some(ring) = &mut self.current {
            ring.head = (ring.head + len) & (ring.block.len() - 1);
            ring.used += len;
            self.outstanding += len;
        }
    }

    /// The engine returned the oldest `len` bytes. More than it has counts as all.
    pub fn release(&mut self, blocks: &mut Blocks, len: u32) {
        let len = len.min(self.outstanding);
        self.outstanding -= len;
        let mut left = len;
        while let Some(ring) = self.old.front_mut() {
            let from_old = left.min(ring.used);
            ring.used -= from_old;
            left -= from_old;
            if ring.used > 0 {
                break;
            }
            blocks.give_back(ring.block);
            self.old.pop_front();
        }
        if let Some(ring) = &mut self.current {
            ring.used -= left.min(ring.used);
        }
        if self.outstanding == 0 {
            self.release_all(blocks);
        } else if self.has_share {
            self.look_at_share(blocks);
        }
    }

    /// Gives all memory back: nothing is outstanding, or the flow is gone and the engine reads it no more.
    pub fn release_all(&mut self, blocks: &mut Blocks) {
        self.outstanding = 0;
        self.has_share = false;
        for ring in self.old.drain(..).chain(self.current.take()) {
            blocks.give_back(ring.block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two programs that both write before they read, less than Linux would hold for them.
    #[test]
    fn in_a_channel_small_writes_fill_the_whole_limit() {
        let mut blocks = blocks(4 << 20);
        let mut memory = SendMemory::default().in_channel();
        let mut unread = 0;
        while memory.room() >= 1000 {
            assert_eq!(fill(&mut memory, &mut blocks, 1000).iter().map(|piece| piece.len).sum::<u32>(), 1000);
            unread += 1000;
        }
        assert!(unread > SEND_LIMIT_INITIAL - 1000 && memory.outstanding() == unread);
        while unread > 0 {
            let read = unread.min(777);
            memory.release(&mut blocks, read);
            unread -= read;
        }
        assert_eq!((memory.outstanding(), blocks.arena.lock().used()), (0, blocks.cached_bytes()));
    }

    impl SendMemory {
        fn clone_empty(&self) -> SendMemory {
            SendMemory { limit: self.limit, old_max: self.old_max, ..SendMemory::default() }
        }
    }

    impl Blocks {
        fn cached_bytes(&self) -> u64 {
            self.cached.iter().flatten().map(|block| u64::from(block.len())).sum()
        }
    }

    fn blocks(bytes: u64) -> Blocks {
        Blocks::new(Arc::new(Lock::new(Arena::new(1 << 20, bytes))))
    }

    fn fill(memory: &mut SendMemory, blocks: &mut Blocks, mut want: u32) -> Vec<MemRange> {
        let mut pieces: Vec<MemRange> = Vec::new();
        while want > 0 {
            let Some(piece) = memory.reserve(blocks, want as usize, 64 << 10) else { break };
            memory.commit(piece.len);
            want -= piece.len;
            match pieces.last_mut() {
                Some(last) if last.offset + u64::from(last.len) == piece.offset => last.len += piece.len,
                _ => pieces.push(piece),
            }
        }
        pieces
    }

    #[test]
    fn outstanding_bytes_lie_in_few_pieces_that_do_not_overlap() {
        let mut blocks = blocks(64 << 20);
        let mut memory = SendMemory::default();
        let mut outstanding: std::collections::VecDeque<MemRange> = Default::default();
        let mut seed = 12345u32;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
            for piece in fill(&mut memory, &mut blocks, seed >> 12 & 0xffff) {
                match outstanding.back_mut() {
                    Some(last) if last.offset + u64::from(last.len) == piece.offset => last.len += piece.len,
                    _ => outstanding.push_back(piece),
                }
            }
            memory.grow();
            assert!(outstanding.len() <= toe_base::limits::SEND_EXTENTS_MAX, "{outstanding:?}");
            for (i, a) in outstanding.iter().enumerate() {
                for b in outstanding.iter().skip(i + 1) {
                    let apart =
                        a.offset + u64::from(a.len) <= b.offset || b.offset + u64::from(b.len) <= a.offset;
                    assert!(apart, "{a:?} {b:?}");
                }
            }
            let mut acked = (seed >> 8 & 0x1_ffff).min(memory.outstanding());
            memory.release(&mut blocks, acked);
            while acked > 0 {
                let front = outstanding.front_mut().expect("what was acknowledged was outstanding");
                let n = acked.min(front.len);
                front.offset += u64::from(n);
                front.len -= n;
                acked -= n;
                if front.len == 0 {
                    outstanding.pop_front();
                }
            }
        }
        let rest = memory.outstanding();
        memory.release(&mut blocks, rest);
        assert!(memory.current.is_none() && memory.old.is_empty(), "an idle socket holds no memory");
    }

    /// As [`crate::socket::stream`] does: whenever it is writable, something fits.
    fn fill_while_writable(memory: &mut SendMemory, blocks: &mut Blocks, want: u32) -> u32 {
        let before = memory.outstanding();
        while memory.is_writable() {
            let pieces = fill(memory, blocks, want);
            assert!(!pieces.is_empty(), "{want}: {memory:?}");
            memory.look_at_share(blocks);
        }
        memory.outstanding() - before
    }

    #[test]
    fn what_is_writable_takes_something() {
        for capacity in [4 << 20, 64 << 20] {
            for memory in [SendMemory::default(), SendMemory::default().in_channel()] {
                for want in [1, 1000, 4096, 16_384, 65_536, 1 << 20] {
                    let mut blocks = blocks(capacity);
                    let mut memory = memory.clone_empty();
                    for release in [1, 999, 4096, 20_000, 100_000, 300_000].into_iter().cycle().take(99) {
                        fill_while_writable(&mut memory, &mut blocks, want);
                        memory.grow();
                        memory.release(&mut blocks, release);
                    }
                    let rest = memory.outstanding();
                    memory.release(&mut blocks, rest);
                    assert!(memory.is_writable());
                }
            }
        }
    }

    /// The old ring drains and the current one is full: there is room by the count of bytes, and nowhere to put any.
    #[test]
    fn full_rings_are_not_writable_until_one_has_drained_or_has_a_third_free() {
        let mut blocks = blocks(64 << 20);
        let mut memory = SendMemory::default();
        // Rings of 16, 64 and 256 KiB, in less than the limit.
        memory.set_limit(4 << 20);
        (0..21).for_each(|_| _ = fill(&mut memory, &mut blocks, 16 << 10));
        assert!(memory.room() > memory.outstanding() && fill(&mut memory, &mut blocks, 1).is_empty());
        assert!(!memory.is_writable());
        memory.release(&mut blocks, (16 << 10) - 1);
        assert!(!memory.is_writable() && fill(&mut memory, &mut blocks, 1).is_empty());
        memory.release(&mut blocks, 1);
        assert!(memory.is_writable() && memory.room_now() == memory.room());
        assert_eq!(fill(&mut memory, &mut blocks, 16 << 10).len(), 1);
    }

    /// A program that writes a little at a time, to a peer that has read nothing yet.
    #[test]
    fn small_writes_find_as_much_room_as_linux_has_at_once() {
        for want in [1, 100, 1000, 1024, 3000] {
            let mut blocks = blocks(64 << 20);
            let mut memory = SendMemory::default();
            while !fill(&mut memory, &mut blocks, want).is_empty() {
                memory.look_at_share(&blocks);
            }
            assert!(memory.outstanding() > 64 << 10, "{want}: {memory:?}");
        }
    }

    #[test]
    fn what_waits_may_be_more_while_memory_is_plenty() {
        for memory in [SendMemory::default(), SendMemory::default().in_channel()] {
            let mut blocks = blocks(32 << 20);
            let mut memories: Vec<SendMemory> = (0..32).map(|_| memory.clone_empty()).collect();
            for memory in &mut memories {
                while memory.is_writable() {
                    fill(memory, &mut blocks, 100_000);
                    memory.look_at_share(&blocks);
                }
            }
            assert!(memories[0].outstanding() > 1 << 20, "{:?}", memories[0]);
            let last = memories.last().expect("one of them");
            assert!(last.outstanding() >= SEND_LIMIT_INITIAL / 2, "{last:?}");
            let mut chosen = SendMemory::default();
            chosen.set_limit(100_000);
            while !fill(&mut chosen, &mut blocks, 1000).is_empty() {
                chosen.look_at_share(&blocks);
            }
            assert!(chosen.outstanding() <= 100_000, "the program's own limit holds");
        }
    }

    #[test]
    fn the_limit_holds_until_it_grows() {
        let mut blocks = blocks(64 << 20);
        let mut memory = SendMemory::default();
        fill(&mut memory, &mut blocks, 10 << 20);
        assert_eq!(memory.outstanding(), SEND_LIMIT_INITIAL);
        assert!(!memory.is_writable());
        memory.release(&mut blocks, SEND_LIMIT_INITIAL / 3 + 1);
        assert!(memory.is_writable());
        memory.grow();
        assert_eq!(memory.limit(), SEND_LIMIT_INITIAL * 2);
        memory.set_limit(8192);
        memory.grow();
        assert_eq!(memory.limit(), 8192);
    }

    #[test]
    fn short_memory_gives_small_blocks_and_then_none() {
        let mut blocks = blocks(64 << 10);
        let mut sockets: Vec<SendMemory> = (0..40).map(|_| SendMemory::default()).collect();
        let held: u32 = sockets
            .iter_mut()
            .map(|memory| {
                fill(memory, &mut blocks, 4096);
                memory.outstanding()
            })
            .sum();
        assert_eq!(held, 64 << 10, "every byte of the send part is used");
        assert!(!blocks.available());
        sockets[0].release(&mut blocks, 4096);
        assert!(blocks.available());
    }

    /// As many as are served at once by one process: whoever comes last has room for as much as the first began with, and a short beginning
    /// does not cut in two what follows.
    #[test]
    fn many_senders_have_rings_of_one_size() {
        let mut blocks = blocks(32 << 20);
        let mut sockets: Vec<SendMemory> = (0..32).map(|_| SendMemory::default().in_channel()).collect();
        for _ in 0..8 {
            for memory in &mut sockets {
                fill(memory, &mut blocks, 1 << 20);
                memory.grow();
            }
        }
        for memory in &mut sockets {
            assert!(memory.outstanding() >= SEND_LIMIT_INITIAL, "{memory:?}");
            let rest = memory.outstanding();
            memory.release(&mut blocks, rest);
            fill(memory, &mut blocks, 200);
            assert_eq!(memory.reserve(&mut blocks, 65_536, 1 << 20).map(|piece| piece.len), Some(65_536));
        }
    }

    #[test]
    fn a_long_path_is_given_more() {
        let mut memory = SendMemory::default();
        for (srtt_us, most) in [(100, SEND_LIMIT_NEAR), (50_000, SEND_LIMIT_MAX), (100, SEND_LIMIT_MAX)] {
            memory.set_round_trip(srtt_us);
            for _ in 0..10 {
                memory.grow();
            }
            assert_eq!(memory.limit(), most, "it never shrinks");
        }
        assert_eq!(memory.in_channel().limit(), SEND_LIMIT_NEAR, "a channel is no long path");
    }
}
