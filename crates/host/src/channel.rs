//! Channels of a queue set: memory that this session shares with another one of the same engine, for connections
//! between the two.
//!
//! Owns the ends of the rings, the memory to send from, and which stream uses which slot. Kept by [`crate::queue`]
//! behind the queue set's lock, which also drains them; what a stream does with its slot is in
//! [`crate::socket::direct`].

use crate::leaving::Leaving;
use crate::lock::Lock;
use crate::send_memory::{Blocks, SendMemory};
use crate::session::{Session, into_std};
use crate::slots::SlotId;
use crate::socket::direct::Direct;
use crate::sys::Fd;
use rustix::fd::RawFd;
use std::collections::VecDeque;
use std::sync::Arc;
use toe_abi::attach::{Reply, Request};
use toe_abi::channel::{CHANNEL_ENTRIES, ChannelEntry, ChannelLayout, DATA_LEN, SLOTS_MAX};
use toe_abi::entry::BadEntry;
use toe_abi::errno::Errno;
use toe_base::arena::Arena;
use toe_base::{ChannelId, Cred};
use toe_ring::{ChannelEnd, ChannelMemory};

/// Entries that may have come before the engine's word about their slot.
const EARLY_MAX: usize = 1 << 16;
/// Streams whose lent memory is looked at in one go.
pub(crate) const SWEEP: usize = 16;

/// A stream is not writable once fewer of the ring's entries are free. They still take what others send, which share the ring and
/// were told before that they are writable: one for each, and one for `Want`.
const SPARE_MIN: u32 = CHANNEL_ENTRIES / 8;
pub(crate) const SPARE_MAX: u32 = CHANNEL_ENTRIES / 2;
/// It is again when so many more are: for each one that the peer takes it would be woken in vain.
const SPARE_AGAIN: u32 = CHANNEL_ENTRIES / 4;

/// Which stream a slot belongs to, and which use of it that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotUse {
    /// 0: it was never used.
    pub(crate) generation: u16,
    /// `None`: nobody uses the slot.
    pub(crate) stream: Option<SlotId>,
    /// `Space` is due but the ring was full.
    pub(crate) owes_space: bool,
}

/// One channel.
#[derive(Debug)]
pub struct Channel {
    pub id: ChannelId,
    pub end: ChannelEnd,
    pub blocks: Blocks,
    pub(crate) slots: Vec<SlotUse>,
    /// Entries for slots that the engine has not yet told of.
    pub(crate) early: Vec<ChannelEntry>,
    /// Streams with memory that the peer may have read meanwhile.
    pub(crate) lent: VecDeque<SlotId>,
    /// Uses of slots whose `Space` found the ring full.
    pub(crate) owing: VecDeque<(u32, u16)>,
    pub(crate) wake_fd: RawFd,
    pub(crate) users: u32,
    /// The other session is gone.
    pub(crate) closed: bool,
    /// The other session broke the contract, and is not listened to any more: it could go on putting entries in for ever.
    pub(crate) is_broken: bool,
    /// Streams that leave and of which not all is here.
    pub(crate) leaving: Leaving,
    /// Whose the other session is.
    pub(crate) peer: Cred,
}

impl Channel {
    /// Fetches a channel that the engine has offered.
    pub(crate) fn open(session: &Session, id: ChannelId) -> Result<Channel, Errno> {
        let (reply, fds) = session.request_fds(Request::OpenChannel { channel: id.0 }, &[])?;
        let Reply::Channel { side, peer } = reply else { return Err(Errno::EPROTO) };
        let [memory, wake] = <[Fd; 2]>::try_from(fds).map_err(|_| Errno::EPROTO)?;
        let memory = ChannelMemory::map(&memory).map_err(crate::errno::from_os)?;
        let wake_fd = wake.raw();
        session.own_fds().own(wake_fd);
        let end = ChannelEnd::new(memory, side, into_std(wake)).map_err(|_| Errno::EPROTO)?;
        // Until a connection uses it: the other session could punch holes into it meanwhile, and have this one wait.
        end.memory().region().withhold();
        Ok(Channel::over(id, end, wake_fd, peer))
    }

    /// One whose memory is there, and of which nothing is used yet.
    pub fn over(id: ChannelId, end: ChannelEnd, wake_fd: RawFd, peer: Cred) -> Channel {
        let arena = Arena::new(ChannelLayout::data(end.side()), DATA_LEN);
        Channel {
            id,
            end,
            blocks: Blocks::new(Arc::new(Lock::new(arena))),
            slots: Vec::new(),
            early: Vec::new(),
            lent: VecDeque::new(),
            owing: VecDeque::new(),
            wake_fd,
            users: 0,
            closed: false,
            is_broken: false,
            leaving: Leaving::default(),
            peer,
        }
    }

    /// The next entry that the other session has put in.
    pub(crate) fn next_entry(&mut self) -> Option<Result<ChannelEntry, BadEntry>> {
        if self.is_broken { None } else { self.end.pop() }
    }

    /// Puts an entry into the ring; `false`: it is full.
    pub fn push(&mut self, entry: ChannelEntry) -> bool {
        self.end.push(entry).is_ok()
    }

    fn spare(&self) -> u32 {
        // The last one that sends needs a few.
        (self.users + 8).clamp(SPARE_MIN, SPARE_MAX)
    }

    /// So little room is left in the ring that whoever sends is to wait.
    pub(crate) fn is_short(&mut self) -> bool {
        let spare = self.spare();
        self.end.room(spare) < spare
    }

    /// Whether who waits for room in the ring has it, and finds memory if need be.
    pub(crate) fn has_supply_for(&mut self, memory: &SendMemory) -> bool {
        let enough = self.spare() + SPARE_AGAIN;
        self.end.room(enough) >= enough && (memory.at_hand() > 0 || self.blocks.available())
    }

    /// Those whose bytes go through it.
    pub(crate) fn streams(&self) -> impl Iterator<Item = SlotId> {
        self.slots.iter().filter_map(|used| used.stream)
    }

    pub(crate) fn stream_of(&self, slot: u32) -> Option<SlotId> {
        self.slots.get(slot as usize)?.stream
    }

    pub(crate) fn set_use(&mut self, slot: u32, used: SlotUse) {
        if slot >= SLOTS_MAX {
            return;
        }
        let unused = SlotUse { generation: 0, stream: None, owes_space: false };
        if self.slots.len() <= slot as usize {
            self.slots.resize(slot as usize + 1, unused);
        }
        self.slots[slot as usize] = used;
    }

    /// Nobody here has that use of the slot (any more): what comes for it is dropped.
    pub(crate) fn forget_slot(&mut self, slot: u32, generation: u16) {
        self.set_use(slot, SlotUse { generation, stream: None, owes_space: false });
        self.early.retain(|entry| entry.slot().0 != slot);
    }

    /// Keeps an entry of which the engine has not told yet. Unless it ended this side before it could: then it never
    /// will. `false`: there are too many.
    pub(crate) fn keep_early(&mut self, entry: ChannelEntry) -> bool {
        let is_done = |entry: &ChannelEntry| self.end.memory().is_done(entry.slot().0, self.end.side());
        if is_done(&entry) {
            return true;
        }
        if self.early.len() >= EARLY_MAX {
            let gone: Vec<bool> = self.early.iter().map(is_done).collect();
            let mut gone = gone.into_iter();
            self.early.retain(|_| gone.next() != Some(true));
        }
        self.early.push(entry);
        self.early.len() < EARLY_MAX
    }

    /// How the generation of an entry compares with the last use of its slot that is known here: older, this, newer.
    pub(crate) fn age(&self, slot: u32, generation: u16) -> std::cmp::Ordering {
        let known = self.slots.get(slot as usize).map_or(0, |used| used.generation);
        (generation.wrapping_sub(known) as i16).cmp(&0)
    }

    /// Notes that a stream has memory of the channel.
    pub fn lend(&mut self, direct: &mut Direct) {
        if !direct.send.lent {
            direct.send.lent = true;
            self.lent.push_back(direct.slot_id);
        }
    }

    /// Tells the peer that what it sent in that use of a slot has been read; when the ring is full, later. One that is owed as many
    /// as there are slots takes none, and is owed no more.
    pub fn tell_space(&mut self, slot: u32, generation: u16) {
        if self.is_broken {
            return;
        }
        if self.push(ChannelEntry::Space { slot, generation }) {
            self.end.wake_peer();
        } else if self.owing.len() < SLOTS_MAX as usize
            && let Some(used) = self.slots.get_mut(slot as usize)
            && !core::mem::replace(&mut used.owes_space, true)
        {
            self.owing.push_back((slot, generation));
        }
    }

    /// Tells what found no room before, as far as there is some now.
    pub(crate) fn tell_pending_space(&mut self) {
        while let Some(&(slot, generation)) = self.owing.front() {
            if !self.push(ChannelEntry::Space { slot, generation }) {
                return;
            }
            self.end.wake_peer();
            self.owing.pop_front();
            if let Some(used) = self.slots.get_mut(slot as usize) {
                used.owes_space = false;
            }
        }
    }

    /// Whether something waits for room in the ring, or for the peer's last entries.
    pub fn is_stuck(&self) -> bool {
        !self.owing.is_empty() || !self.leaving.is_empty()
    }
}
