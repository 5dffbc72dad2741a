//! A channel from either side, and the engine's view of it: [`toe_abi::channel`] in memory.
//!
//! Two sessions' hosts each hold a [`ChannelEnd`]; the engine keeps the memory, and reads and changes the words of
//! each slot there. Each end takes the other for hostile: its ring ends are the engine's kind, which trust no
//! index, and an entry is copied before it is looked at.
//!
//! **Ending a direction.** The sender adds to `SENT`, and stores the entry if [`FROZEN`] was not set; whoever ends the
//! direction sets the bit and gets the count of bytes whose entries are in the ring or will be in a moment. So all agree
//! on how much went through the channel, whoever it was that ended it and whenever.
//!
//! **Sleeping.** As in [`crate::irq`]: store `armed`, fence, look again, sleep on the queue set's interrupt; the
//! other end stores entries, fence, looks at `armed`, sends an interrupt.

use crate::engine_cursor::{EngineConsumer, EngineProducer, PushError};
use crate::irq::{IrqSender, Signal};
use crate::region::{OutOfRange, Region};
use crate::sync::{Ordering, Words, fence};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Result;
use toe_abi::channel::{CHANNEL_ENTRIES, ChannelEntry, ChannelLayout, DATA_LEN, FROZEN, Side, SlotLine};
use toe_abi::entry::{BadEntry, MemRange};

/// The direction was ended: what was to be sent did not go through the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frozen;

/// The memory of a channel: the slots' words.
#[derive(Clone, Debug)]
pub struct ChannelMemory<M = Region>(M);

impl ChannelMemory {
    /// The engine's side: makes the memory; the descriptor is for the two hosts.
    pub fn create() -> Result<(ChannelMemory, OwnedFd)> {
        let (region, file) = Region::create(ChannelLayout::LEN)?;
        Ok((ChannelMemory(region), file))
    }

    /// A host's side: maps what an engine made.
    pub fn map(file: impl AsFd) -> Result<ChannelMemory> {
        Region::map(file, ChannelLayout::LEN).map(ChannelMemory)
    }

    pub fn region(&self) -> &Region {
        &self.0
    }
}

impl<M: Words> ChannelMemory<M> {
    #[cfg(all(test, loom))]
    pub(crate) fn over(memory: M) -> ChannelMemory<M> {
        ChannelMemory(memory)
    }

    /// Counts `bytes` as sent by `side`, unless the direction was ended. Before the entry that carries them.
    pub fn add_sent(&self, slot: u32, side: Side, bytes: u32) -> core::result::Result<(), Frozen> {
        let word = ChannelLayout::line(slot, side) + SlotLine::SENT;
        let before = self.0.load_u64(word, Ordering::Relaxed);
        // Nobody else changes the word but to freeze it, so one try tells.
        let open = before & FROZEN == 0
            && self.0.replace_u64(word, before, (before + u64::from(bytes)) & !FROZEN, Ordering::AcqRel);
        if open { Ok(()) } else { Err(Frozen) }
    }

    /// Ends the direction out of `side`. Returns the bytes that went, and will ever go, through the channel.
    pub fn freeze(&self, slot: u32, side: Side) -> u64 {
        let word = ChannelLayout::line(slot, side) + SlotLine::SENT;
        self.0.fetch_or_u64(word, FROZEN, Ordering::AcqRel) & !FROZEN
    }

    /// Whether the direction out of `side` has been ended.
    pub fn is_frozen(&self, slot: u32, side: Side) -> bool {
        let word = ChannelLayout::line(slot, side) + SlotLine::SENT;
        self.0.load_u64(word, Ordering::Acquire) & FROZEN != 0
    }

    /// Bytes sent by `side`.
    pub fn sent(&self, slot: u32, side: Side) -> u64 {
        self.0.load_u64(ChannelLayout::line(slot, side) + SlotLine::SENT, Ordering::Acquire) & !FROZEN
    }

    /// Bytes of the other side that `side` has read; [`ALL_READ`]: it will read no more.
    pub fn read(&self, slot: u32, side: Side) -> u64 {
        self.0.load_u64(ChannelLayout::line(slot, side) + SlotLine::READ, Ordering::Acquire)
    }

    /// Says how much `side` has read. Release: the reads come before, so the memory may be written again.
    pub fn set_read(&self, slot: u32, side: Side, bytes: u64) {
        self.0.store_u64(ChannelLayout::line(slot, side) + SlotLine::READ, bytes, Ordering::Release);
    }

    /// Whether `side` refers to the slot no more.
    pub fn is_done(&self, slot: u32, side: Side) -> bool {
        self.0.load_u64(ChannelLayout::line(slot, side) + SlotLine::DONE, Ordering::Acquire) != 0
    }

    pub fn set_done(&self, slot: u32, side: Side) {
        self.0.store_u64(ChannelLayout::line(slot, side) + SlotLine::DONE, 1, Ordering::Release);
    }

    /// `side` asks to be woken; a fence has to follow.
    pub(crate) fn arm(&self, side: Side) {
        self.0.store_u32(ChannelLayout::armed(side), 1, Ordering::Relaxed);
    }

    /// After entries for `side` were stored: whether it asked to be woken. That is then taken back.
    pub(crate) fn disarm(&self, side: Side) -> bool {
        fence(Ordering::SeqCst);
        let armed = ChannelLayout::armed(side);
        let asked = self.0.load_u32(armed, Ordering::Relaxed) != 0;
        if asked {
            self.0.store_u32(armed, 0, Ordering::Relaxed);
        }
        asked
    }
}

/// One end of a channel, in the hands of a session's host.
#[derive(Debug)]
pub struct ChannelEnd {
    memory: ChannelMemory,
    side: Side,
    outbox: EngineProducer,
    inbox: EngineConsumer,
    wake: IrqSender,
}

impl ChannelEnd {
    /// End `side` of the channel in `memory`; `wake` is a sending end of the other side's interrupt.
    pub fn new(
        memory: ChannelMemory,
        side: Side,
        wake: OwnedFd,
    ) -> core::result::Result<ChannelEnd, OutOfRange> {
        let region = memory.region();
        Ok(ChannelEnd {
            outbox: EngineProducer::new(
                region.clone(),
                ChannelLayout::entries(side),
                CHANNEL_ENTRIES,
                ChannelLayout::head(side.other()),
            )?,
            inbox: EngineConsumer::new(
                region.clone(),
                ChannelLayout::entries(side.other()),
                CHANNEL_ENTRIES,
                ChannelLayout::head(side),
            )?,
            wake: IrqSender::from(wake),
            memory,
            side,
        })
    }

    pub fn memory(&self) -> &ChannelMemory {
        &self.memory
    }

    pub fn side(&self) -> Side {
        self.side
    }

    /// Puts an entry where the other end finds it; then [`ChannelEnd::wake_peer`], once a batch.
    pub fn push(&mut self, entry: ChannelEntry) -> core::result::Result<(), PushError> {
        self.outbox.push(entry.encode())
    }

    /// Entries that can be pushed now; a senseless head of the other end counts as no room.
    pub fn room(&mut self, wanted: u32) -> u32 {
        self.outbox.room(wanted).unwrap_or(0)
    }

    /// The next entry, copied and decoded. The other end can make this go on for ever, so every loop has a budget.
    pub fn pop(&mut self) -> Option<core::result::Result<ChannelEntry, BadEntry>> {
        self.inbox.pop().map(ChannelEntry::decode)
    }

    /// Gives the places of all taken entries back; once a batch.
    pub fn publish_head(&mut self) {
        self.inbox.publish_head();
    }

    /// Whether a range that the other end named lies in its data part.
    pub fn is_peer_data(&self, range: MemRange) -> bool {
        range.lies_in(ChannelLayout::data(self.side.other()), DATA_LEN)
    }

    /// After pushing, once a batch: wakes the other end if it sleeps. `true` when it did.
    pub fn wake_peer(&self) -> bool {
        let sleeps = self.memory.disarm(self.side.other());
        if sleeps {
            self.wake.signal();
        }
        sleeps
    }

    /// The end of [`Region::withhold`]: its first connection is there. `true`: it is to be looked at now. It has been armed, too, which
    /// it could not be before: a thread that is about to sleep may have armed all the others already.
    pub fn open(&self) -> bool {
        let region = self.memory.region();
        if !region.is_empty() {
            return false;
        }
        region.open();
        self.arm();
        fence(Ordering::SeqCst);
        !region.is_empty()
    }

    /// Asks to be woken. Then a fence (arming the queue set's interrupt has one), then look again, then sleep.
    pub fn arm(&self) {
        self.memory.arm(self.side);
    }
}
