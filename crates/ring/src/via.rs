//! A connection of virtual interfaces: [`toe_abi::via`] in memory, both its ends. The sleep itself is its user's.
//!
//! | who changes something | who sleeps |
//! |---|---|
//! | 1. store a fragment's first word, `TAKEN` or the state (release) | 1. store `ARMED` = 1 |
//! | 2. fence, sequentially consistent | 2. fence, sequentially consistent |
//! | 3. load the other's `ARMED`; not 0: store 0, wake it | 3. look again; nothing new: sleep |
//!
//! The reasoning is that of [`crate::doorbell`].
//!
//! Each end takes the other for hostile. Where a fragment lies follows from the lengths of those before it, so nobody is told an offset;
//! what cannot be is [`Breach`], after which nothing more is read.
//!
//! Used by `toe-via`, and by the daemon, which makes the memory and says when it is over.

use crate::region::{OutOfRange, Region};
use crate::sync::{Ordering, Words, fence};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Result;
use toe_abi::channel::Side;
use toe_abi::via::{Attributes, Fragment, INLINE_MAX, ViaLayout, ViaShape, ViaState};

/// There are three steps up.
const ADVANCE_TRIES: u32 = 8;

/// Bytes from which a copy for another program goes past this core's cache.
const PAST_CACHE_MIN: usize = 8 << 10;
/// Bytes from which one of what another program has written is not left to the C library.
const READ_MUCH_MIN: usize = 2 << 10;

/// The other side did what it must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach;

/// The memory of a connection.
#[derive(Clone, Debug)]
pub struct ViaMemory<M = Region> {
    memory: M,
    shape: ViaShape,
}

impl ViaMemory {
    /// The engine's side: makes the memory; the descriptor is for the two hosts.
    pub fn create() -> Result<(ViaMemory, OwnedFd)> {
        let (memory, file) = Region::create(ViaLayout::LEN)?;
        Ok((ViaMemory { memory, shape: ViaShape::NEAR }, file))
    }

    /// For a connection to another host: nobody else has it.
    pub fn create_far() -> Result<ViaMemory> {
        let (memory, _file) = Region::create(ViaShape::FAR.memory_len())?;
        Ok(ViaMemory { memory, shape: ViaShape::FAR })
    }

    /// A host's side: maps what an engine made.
    pub fn map(file: impl AsFd) -> Result<ViaMemory> {
        Ok(ViaMemory { memory: Region::map(file, ViaLayout::LEN)?, shape: ViaShape::NEAR })
    }

    /// Copies bytes of a fragment to their place.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> core::result::Result<(), OutOfRange> {
        if from.len() < PAST_CACHE_MIN || self.shape != ViaShape::NEAR {
            return self.memory.write(offset, from);
        }
        self.memory.write_past_cache(offset, from)
    }

    /// Copies bytes of a fragment out; the other side may change them meanwhile.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) -> core::result::Result<(), OutOfRange> {
        if to.len() < READ_MUCH_MIN {
            return self.memory.read(offset, to);
        }
        self.memory.read_much(offset, to)
    }

    /// For those who write over it what they like.
    pub fn region(&self) -> &Region {
        &self.memory
    }
}

impl<M: Words> ViaMemory<M> {
    #[cfg(all(test, loom))]
    pub(crate) fn over(memory: M) -> ViaMemory<M> {
        ViaMemory { memory, shape: ViaShape::NEAR }
    }

    pub fn shape(&self) -> ViaShape {
        self.shape
    }

    pub fn state(&self) -> ViaState {
        ViaState::from_raw(self.memory.load_u32(ViaLayout::STATE, Ordering::Acquire))
    }

    /// Moves the state on; `false`: it is as far, or further. Then the other side is to be woken ([`ViaMemory::must_wake`]).
    pub fn advance(&self, to: ViaState) -> bool {
        for _ in 0..ADVANCE_TRIES {
            let raw = self.memory.load_u32(ViaLayout::STATE, Ordering::Acquire);
            if ViaState::from_raw(raw) >= to {
                return false;
            }
            if self.memory.replace_u32(ViaLayout::STATE, raw, to as u32, Ordering::AcqRel) {
                return true;
            }
            if self.memory.load_u32(ViaLayout::STATE, Ordering::Acquire) == raw {
                // Nothing can be stored any more.
                return false;
            }
        }
        // It only ever counts up, unless somebody plays with it: the engine is not to try for as long as he likes.
        self.memory.store_u32(ViaLayout::STATE, to as u32, Ordering::Release);
        true
    }

    pub fn set_attributes(&self, side: Side, attributes: Attributes) {
        let at = ViaLayout::registers(side) + ViaLayout::ATTRIBUTES;
        self.memory.store_u64(at, attributes.0, Ordering::Release);
    }

    pub fn attributes(&self, side: Side) -> Attributes {
        Attributes(
            self.memory.load_u64(ViaLayout::registers(side) + ViaLayout::ATTRIBUTES, Ordering::Acquire),
        )
    }

    /// Steps 1 and 2 of who sleeps: after this it looks again.
    pub fn arm(&self, side: Side) {
        self.memory.store_u32(ViaLayout::registers(side) + ViaLayout::ARMED, 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Steps 2 and 3 of who has changed something: whether `side` is to be woken.
    #[inline]
    pub fn must_wake(&self, side: Side) -> bool {
        let armed = ViaLayout::registers(side) + ViaLayout::ARMED;
        fence(Ordering::SeqCst);
        let is_armed = self.memory.load_u32(armed, Ordering::Relaxed) != 0;
        if is_armed {
            self.memory.store_u32(armed, 0, Ordering::Relaxed);
        }
        is_armed
    }
}

/// Where the bytes of a fragment go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// In the memory.
    pub offset: u64,
    /// Where the data part is filled to by then.
    data_end: u64,
}

/// The sending end of a side.
#[derive(Debug)]
pub struct ViaSender<M = Region> {
    memory: ViaMemory<M>,
    side: Side,
    next: u32,
    /// What the other side is known to be done with.
    taken: u32,
    /// Bytes of the data part that were ever used, free-running, and those of them that are free again.
    data_end: u64,
    data_free: u64,
    /// By slot: `data_end` after its fragment.
    ends: Box<[u64]>,
}

impl<M: Words> ViaSender<M> {
    pub fn new(memory: ViaMemory<M>, side: Side) -> ViaSender<M> {
        let ends = vec![0; memory.shape.slots() as usize].into_boxed_slice();
        ViaSender { memory, side, next: 0, taken: 0, data_end: 0, data_free: 0, ends }
    }

    /// With room for one fragment.
    #[cfg(all(test, loom))]
    pub(crate) fn nearly_full(memory: ViaMemory<M>, side: Side) -> ViaSender<M> {
        let full = ViaSender::new(memory, side);
        ViaSender { next: ViaShape::NEAR.slots() - 1, ..full }
    }

    pub fn memory(&self) -> &ViaMemory<M> {
        &self.memory
    }

    /// Where a fragment of `len` bytes goes. `None`: there is no credit for it now.
    #[inline]
    pub fn room(&mut self, len: u32) -> core::result::Result<Option<Room>, Breach> {
        let found = self.known_room(len);
        if found.is_some() {
            return Ok(found);
        }
        self.look()?;
        Ok(self.known_room(len))
    }

    /// Whether a quarter of all is free: slots and data.
    pub fn is_roomy(&mut self) -> core::result::Result<bool, Breach> {
        self.look()?;
        let (shape, used) = (self.memory.shape, self.next.wrapping_sub(self.taken));
        let used_data = self.data_end - self.data_free;
        Ok(used <= shape.slots() / 4 * 3 && used_data <= shape.data_len() / 4 * 3)
    }

    /// The bytes are in their place: the other side may have them. It is then to be woken ([`ViaMemory::must_wake`]).
    #[inline]
    pub fn publish(&mut self, fragment: Fragment, room: Room) {
        let shape = self.memory.shape;
        let slot = shape.slot(self.side, self.next);
        let [word0, word1] = fragment.encode_in(shape, self.next);
        self.memory.memory.store_u64(slot + 8, word1, Ordering::Relaxed);
        self.memory.memory.store_u64(slot, word0, Ordering::Release);
        self.data_end = room.data_end;
        self.ends[(self.next & (shape.slots() - 1)) as usize] = room.data_end;
        self.next = self.next.wrapping_add(1);
    }

    /// The number of the fragment that is next.
    pub fn sent(&self) -> u32 {
        self.next
    }

    /// What the other side is done with: fragments (free-running), and bytes of the data part that are free again.
    pub fn taken(&mut self) -> core::result::Result<(u32, u64), Breach> {
        self.look()?;
        Ok((self.taken, self.data_free))
    }

    /// Whoever this end stands for has sent what cannot be: the other side is to find that, behind what came before. `false`: there is no
    /// slot free for it.
    pub fn break_off(&mut self) -> bool {
        let shape = self.memory.shape;
        let has_slot = self.next.wrapping_sub(self.taken) < shape.slots();
        if has_slot {
            let [word0, word1] = Fragment { len: u32::MAX, begins: None }.encode_in(shape, self.next);
            let slot = shape.slot(self.side, self.next);
            self.memory.memory.store_u64(slot + 8, word1, Ordering::Relaxed);
            self.memory.memory.store_u64(slot, word0, Ordering::Release);
        }
        has_slot
    }

    /// Whether the other side is done with all fragments before number `index`, of those that were sent.
    pub fn is_taken(&mut self, index: u32) -> core::result::Result<bool, Breach> {
        self.look()?;
        // What is sent and not taken is less than half of all numbers.
        Ok(self.taken.wrapping_sub(index) <= u32::MAX / 2)
    }

    #[inline]
    fn known_room(&self, len: u32) -> Option<Room> {
        let shape = self.memory.shape;
        if self.next.wrapping_sub(self.taken) >= shape.slots() {
            return None;
        }
        if len <= INLINE_MAX {
            let offset = shape.slot(self.side, self.next) + 16;
            return Some(Room { offset, data_end: self.data_end });
        }
        let (start, data_end) = shape.data_range(self.data_end, len);
        let offset = shape.data(self.side) + (start & (shape.data_len() - 1));
        (data_end - self.data_free <= shape.data_len()).then_some(Room { offset, data_end })
    }

    /// What the other side is done with.
    fn look(&mut self) -> core::result::Result<(), Breach> {
        let at = ViaLayout::registers(self.side.other()) + ViaLayout::TAKEN;
        let taken = self.memory.memory.load_u32(at, Ordering::Acquire);
        let went = taken.wrapping_sub(self.taken);
        if went > self.next.wrapping_sub(self.taken) {
            return Err(Breach);
        }
        if went > 0 {
            let last = taken.wrapping_sub(1) & (self.memory.shape.slots() - 1);
            self.data_free = self.ends[last as usize];
            self.taken = taken;
        }
        Ok(())
    }
}

/// A fragment that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub fragment: Fragment,
    /// Where its bytes are in the memory.
    pub offset: u64,
    data_end: u64,
}

/// The receiving end of a side.
#[derive(Debug)]
pub struct ViaReceiver<M = Region> {
    memory: ViaMemory<M>,
    side: Side,
    next: u32,
    data_end: u64,
}

impl<M: Words> ViaReceiver<M> {
    pub fn new(memory: ViaMemory<M>, side: Side) -> ViaReceiver<M> {
        ViaReceiver { memory, side, next: 0, data_end: 0 }
    }

    /// Of what [`ViaSender::nearly_full`] sends.
    #[cfg(all(test, loom))]
    pub(crate) fn nearly_full(memory: ViaMemory<M>, side: Side) -> ViaReceiver<M> {
        let full = ViaReceiver::new(memory, side);
        ViaReceiver { next: ViaShape::NEAR.slots() - 1, ..full }
    }

    pub fn memory(&self) -> &ViaMemory<M> {
        &self.memory
    }

    /// Whether something has come.
    #[inline]
    pub fn is_there(&self) -> bool {
        let shape = self.memory.shape;
        let slot = shape.slot(self.side.other(), self.next);
        Fragment::is_there(self.memory.memory.load_u64(slot, Ordering::Acquire), shape, self.next)
    }

    /// The fragment that is next. `None`: it has not come yet.
    #[inline]
    pub fn first(&self) -> core::result::Result<Option<Arrived>, Breach> {
        let other = self.side.other();
        let shape = self.memory.shape;
        let slot = shape.slot(other, self.next);
        // Once each: the sender may write others meanwhile.
        let word0 = self.memory.memory.load_u64(slot, Ordering::Acquire);
        if !Fragment::is_there(word0, shape, self.next) {
            return Ok(None);
        }
        let word1 = self.memory.memory.load_u64(slot + 8, Ordering::Relaxed);
        let fragment = Fragment::decode([word0, word1]).ok_or(Breach)?;
        if fragment.is_inline() {
            return Ok(Some(Arrived { fragment, offset: slot + 16, data_end: self.data_end }));
        }
        let (start, data_end) = shape.data_range(self.data_end, fragment.len);
        let offset = shape.data(other) + (start & (shape.data_len() - 1));
        Ok(Some(Arrived { fragment, offset, data_end }))
    }

    /// What [`ViaReceiver::first`] gave goes on to somebody who will be done with it later: its room is not the sender's yet.
    #[inline]
    pub fn pass(&mut self, arrived: Arrived) {
        self.next = self.next.wrapping_add(1);
        self.data_end = arrived.data_end;
    }

    /// Fragments that were taken or passed on, free-running.
    pub fn passed(&self) -> u32 {
        self.next
    }

    /// All fragments before number `taken` are done with, of those that were passed on. The sender is then to be woken
    /// ([`ViaMemory::must_wake`]).
    pub fn give_back(&self, taken: u32) {
        let at = ViaLayout::registers(self.side) + ViaLayout::TAKEN;
        self.memory.memory.store_u32(at, taken, Ordering::Release);
    }

    /// What [`ViaReceiver::first`] gave has been read: its room is the sender's again, who is then to be woken ([`ViaMemory::must_wake`]).
    #[inline]
    pub fn take(&mut self, arrived: Arrived) {
        self.next = self.next.wrapping_add(1);
        self.data_end = arrived.data_end;
        let at = ViaLayout::registers(self.side) + ViaLayout::TAKEN;
        self.memory.memory.store_u32(at, self.next, Ordering::Release);
    }
}
