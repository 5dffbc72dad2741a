//! Channels of a queue set: memory that this session shares with another one of the same engine, for connections
//! between the two.
//!
//! Owns the ends of the rings, the memory to send from, and which stream uses which slot. Kept by [`crate::queue`]
//! behind the queue set's lock, which also drains them; what a stream does with its slot is in
//! [`crate::socket::direct`].

use crate::leaving::Leaving;
use crate::lock::Lock;
use crate::queue::Queue;
use crate::send_memory::{Blocks, SendMemory};
use crate::settling::Debt;
use crate::slots::Place;
use crate::socket::direct::Direct;
use crate::socket::shared::is_single;
use crate::socket::stream::{Link, Stream};
use crate::stack::Stack;
use crate::sys::Fd;
use rustix::fd::RawFd;
use std::collections::VecDeque;
use std::sync::Arc;
use toe_abi::attach::{Reply, Request};
use toe_abi::channel::{CHANNEL_ENTRIES, ChannelEntry, ChannelLayout, DATA_LEN, SLOTS_MAX};
use toe_abi::entry::{BadEntry, Command, Completion};
use toe_abi::errno::Errno;
use toe_base::arena::Arena;
use toe_base::{ChannelId, Cred, FlowId};
use toe_ring::{ChannelEnd, ChannelMemory};

/// Entries that one drain takes from a channel before others get the lock.
const DRAIN_MAX: usize = 4096;
/// Entries that may have come before the engine's word about their slot.
const EARLY_MAX: usize = 1 << 16;
/// Streams whose lent memory is looked at in one go.
const SWEEP: usize = 16;

/// A stream is not writable once fewer of the ring's entries are free. They still take what others send, which share the ring and
/// were told before that they are writable: one for each, and one for `Want`.
const SPARE_MIN: u32 = CHANNEL_ENTRIES / 8;
const SPARE_MAX: u32 = CHANNEL_ENTRIES / 2;
/// It is again when so many more are: for each one that the peer takes it would be woken in vain.
const SPARE_AGAIN: u32 = CHANNEL_ENTRIES / 4;

/// Which stream a slot belongs to, and which use of it that is.
#[derive(Clone, Copy, Debug)]
struct SlotUse {
    /// 0: it was never used.
    generation: u16,
    /// `None`: nobody uses the slot.
    stream: Option<Place>,
    /// `Space` is due but the ring was full.
    owes_space: bool,
}

/// One channel.
#[derive(Debug)]
pub struct Channel {
    pub id: ChannelId,
    pub end: ChannelEnd,
    pub blocks: Blocks,
    slots: Vec<SlotUse>,
    /// Entries for slots that the engine has not yet told of.
    early: Vec<ChannelEntry>,
    /// Streams with memory that the peer may have read meanwhile.
    lent: VecDeque<Place>,
    /// Uses of slots whose `Space` found the ring full.
    owing: VecDeque<(u32, u16)>,
    wake_fd: RawFd,
    users: u32,
    /// The other session is gone.
    closed: bool,
    /// The other session broke the contract, and is not listened to any more: it could go on putting entries in for ever.
    pub(crate) is_broken: bool,
    /// Streams that leave and of which not all is here.
    pub(crate) leaving: Leaving,
    /// Whose the other session is.
    pub(crate) peer: Cred,
}

impl Channel {
    /// Fetches a channel that the engine has offered.
    fn open(stack: &Stack, id: ChannelId) -> Result<Channel, Errno> {
        let (reply, fds) = stack.request_fds(Request::OpenChannel { channel: id.0 }, &[])?;
        let Reply::Channel { side, peer } = reply else { return Err(Errno::EPROTO) };
        let [memory, wake] = <[Fd; 2]>::try_from(fds).map_err(|_| Errno::EPROTO)?;
        let memory = ChannelMemory::map(&memory).map_err(crate::errno::from_os)?;
        let wake_fd = wake.raw();
        let end = ChannelEnd::new(memory, side, stack.own_fd(wake)).map_err(|_| Errno::EPROTO)?;
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
    fn next_entry(&mut self) -> Option<Result<ChannelEntry, BadEntry>> {
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
    pub(crate) fn streams(&self) -> impl Iterator<Item = Place> {
        self.slots.iter().filter_map(|used| used.stream)
    }

    fn stream_of(&self, slot: u32) -> Option<Place> {
        self.slots.get(slot as usize)?.stream
    }

    fn set_use(&mut self, slot: u32, used: SlotUse) {
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
    fn forget_slot(&mut self, slot: u32, generation: u16) {
        self.set_use(slot, SlotUse { generation, stream: None, owes_space: false });
        self.early.retain(|entry| entry.slot().0 != slot);
    }

    /// Keeps an entry of which the engine has not told yet. Unless it ended this side before it could: then it never
    /// will. `false`: there are too many.
    fn keep_early(&mut self, entry: ChannelEntry) -> bool {
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
    fn age(&self, slot: u32, generation: u16) -> std::cmp::Ordering {
        let known = self.slots.get(slot as usize).map_or(0, |used| used.generation);
        (generation.wrapping_sub(known) as i16).cmp(&0)
    }

    /// Notes that a stream has memory of the channel.
    pub fn lend(&mut self, direct: &mut Direct) {
        if !direct.lent {
            direct.lent = true;
            self.lent.push_back(direct.place);
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
    fn tell_pending_space(&mut self) {
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

impl Queue {
    /// What the engine says of channels.
    pub(crate) fn apply_to_channels(&mut self, completion: Completion) {
        match completion {
            Completion::OfferChannel { channel } => self.open_channel(channel),
            Completion::Direct { flow, channel, slot, generation } => {
                let Some(at) = self.channel_at(channel) else { return };
                let comes_into_use = self.io.channels[at].end.open();
                self.go_direct(flow, at, slot, generation);
                if comes_into_use && let Some(at) = self.channel_at(channel) {
                    // This completion is dealt with: those that follow may come before an entry that says so.
                    let is_at_channels = std::mem::replace(&mut self.is_at_channels, true);
                    self.drain_channel(at);
                    self.is_at_channels = is_at_channels;
                }
            }
            Completion::Yield { flow } => match self.place_of(flow) {
                Some(place) => self.relinquish(place),
                // The program has let go of it, but its descriptor lives on elsewhere.
                None => self.give_up(flow),
            },
            Completion::ChannelClosed { channel } => {
                if let Some(at) = self.channel_at(channel) {
                    self.drain_channel(at);
                    self.close_channel(at);
                    self.drop_unused_channel(channel);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn channel_at(&self, id: ChannelId) -> Option<usize> {
        self.io.channels.iter().position(|channel| channel.id == id)
    }

    fn open_channel(&mut self, id: ChannelId) {
        if self.channel_at(id).is_some() || crate::sys::is_filtered() {
            return;
        }
        // Without the channel everything goes on through the engine.
        let Ok(channel) = Channel::open(self.io.stack, id) else { return };
        if self.distrusted.contains(channel.peer) {
            self.io.stack.disown_fd(channel.wake_fd);
            return;
        }
        self.io.channels.push(Box::new(channel));
        self.io.command(Command::ChannelReady { channel: id });
    }

    /// The other session is gone, and the engine has ended its directions: what waited for its word goes on.
    fn close_channel(&mut self, at: usize) {
        let channel = &mut self.io.channels[at];
        channel.closed = true;
        for used in channel.slots.clone() {
            let Some(stream) = used.stream.and_then(|place| self.streams.get_mut(place)) else { continue };
            if let Some(direct) = stream.direct.as_mut() {
                direct.on_space(channel);
            }
            stream.on_supply();
        }
    }

    fn drop_unused_channel(&mut self, id: ChannelId) {
        let Some(at) = self.channel_at(id) else { return };
        let channel = &self.io.channels[at];
        // What came early belongs to connections that the engine is about to tell of.
        if channel.closed && channel.users == 0 && channel.early.is_empty() && !self.io.stack.is_foreign() {
            self.io.stack.disown_fd(channel.wake_fd);
            self.io.channels.swap_remove(at);
        }
    }

    fn go_direct(&mut self, flow: FlowId, at: usize, slot: u32, generation: u16) {
        let is_free =
            |stream: &Stream| stream.direct.is_none() && stream.link == Link::Open && !stream.let_go;
        let place = self.place_of(flow);
        let found = place.and_then(|place| Some((place, self.streams.get_mut(place)?)));
        let Some((place, stream)) = found.filter(|(_, stream)| is_free(stream)) else {
            // The program has let go of it meanwhile; the engine ends this side when it hears of that.
            let channel = &mut self.io.channels[at];
            channel.forget_slot(slot, generation);
            channel.end.memory().set_done(slot, channel.end.side());
            return;
        };
        let is_single = stream.socket.is_some_and(is_single);
        let direct = Direct::new(&self.io.channels[at], slot, generation, place, &stream.send);
        stream.direct = Some(Box::new(direct));
        let channel = &mut self.io.channels[at];
        // A sender that waited for the engine has room now, and nobody else will tell it.
        let is_short = channel.is_short();
        if is_short {
            stream.retry_soon();
            stream.publish(0);
        } else {
            stream.on_supply();
        }
        channel.users += 1;
        channel.set_use(slot, SlotUse { generation, stream: Some(place), owes_space: false });
        let early: Vec<ChannelEntry> = channel.early.extract_if(.., |entry| entry.slot().0 == slot).collect();
        for entry in early.into_iter().filter(|entry| entry.slot().1 == generation) {
            self.apply_entry(at, entry);
        }
        if self.io.channels[at].is_broken {
            // It goes on through the engine, unless something was sent already that nobody hears.
            if !self.leave(place) {
                self.reset_stream(place);
            }
        } else if !is_single || self.distrusted.contains(self.io.channels[at].peer) {
            // Another process may come to have it, which the channel would not follow.
            self.leave(place);
        }
        if is_short {
            self.starve(place);
        }
    }

    /// The stream is gone, and with it all that it had in the channel.
    pub(crate) fn end_direct(&mut self, direct: &mut Direct) {
        let Some(at) = self.channel_at(direct.channel) else { return };
        let channel = &mut self.io.channels[at];
        direct.send.release_all(&mut channel.blocks);
        if !self.io.stack.is_foreign() {
            direct.leave();
            direct.done();
        }
        channel.forget_slot(direct.slot, direct.generation);
        channel.users -= 1;
        self.drop_unused_channel(direct.channel);
    }

    /// The stream in `place` has to wait for a ring, perhaps: then so have the others that use it, and are not told that they are writable.
    /// Unless they are more than the ring has spare entries: all would be woken for a few.
    pub(crate) fn starve_siblings(&mut self, place: Place) {
        let Some(id) = self.streams.get(place).map(Stream::channel) else { return };
        let mut siblings: Vec<Place> = if let Some(id) = id {
            let Some(channel) = self.io.channel(id) else { return };
            if channel.is_short() { channel.streams().collect() } else { Vec::new() }
        } else if self.io.is_short() {
            self.streams.iter().map(|(place, _)| place).collect()
        } else {
            Vec::new()
        };
        if siblings.len() > SPARE_MAX as usize {
            return;
        }
        siblings.retain(|place| match self.streams.get_mut(*place) {
            Some(stream) => stream.channel() == id && stream.starve_if_it_has_room(),
            None => false,
        });
        siblings.into_iter().for_each(|place| _ = self.starve(place));
    }

    /// Takes what came through all channels.
    pub(crate) fn drain_channels(&mut self) -> usize {
        self.is_at_channels = true;
        let taken = (0..self.io.channels.len()).map(|at| self.drain_channel(at)).sum();
        self.is_at_channels = false;
        // Backwards: as in `sweep_lent`.
        for at in (0..self.io.channels.len()).rev() {
            self.settle_leaving(at);
        }
        taken
    }

    /// Takes what came through the channel that a flow uses, so that what the engine says of it comes after.
    pub(crate) fn catch_up(&mut self, flow: FlowId) {
        let direct = self.place_of(flow).and_then(|place| self.streams.get(place)?.direct.as_ref());
        if let Some(at) = direct.map(|direct| direct.channel).and_then(|id| self.channel_at(id)) {
            self.drain_channel(at);
        }
    }

    pub(crate) fn drain_channel(&mut self, at: usize) -> usize {
        let mut taken = 0;
        while taken < DRAIN_MAX {
            let Some(channel) = self.io.channels.get_mut(at) else { return taken };
            match channel.next_entry() {
                Some(Ok(ChannelEntry::After { debt, .. })) => self.let_engine_be_first(at, debt),
                Some(Ok(entry)) => {
                    channel.leaving.note_life();
                    self.apply_entry(at, entry);
                }
                Some(Err(_)) => self.break_channel(at),
                None => break,
            }
            taken += 1;
        }
        if taken > 0
            && let Some(channel) = self.io.channels.get_mut(at)
        {
            channel.end.publish_head();
        }
        taken
    }

    /// What comes next was sent after something that the other session handed to the engine: that is taken in first.
    fn let_engine_be_first(&mut self, at: usize, debt: Debt) {
        self.io.stack.settling().wait_for(debt, self.io.channels[at].peer.uid);
        // Within a drain of completions the rest follows, and must not come before the one that is looked at.
        if std::mem::take(&mut self.is_at_channels) {
            self.drain_completions();
            self.is_at_channels = true;
        }
    }

    fn apply_entry(&mut self, at: usize, entry: ChannelEntry) {
        let channel = &mut self.io.channels[at];
        if channel.is_broken {
            return;
        }
        let (slot, generation) = entry.slot();
        match channel.age(slot, generation) {
            std::cmp::Ordering::Less => return,
            std::cmp::Ordering::Greater => {
                if !channel.keep_early(entry) {
                    self.break_channel(at);
                    return;
                }
                // The other session knows it of the engine, which tells both in the same round: nothing that came later is to be
                // seen before it.
                let told = self.io.stack.settling().now();
                self.let_engine_be_first(at, told);
                return;
            }
            std::cmp::Ordering::Equal => {}
        }
        let Some(place) = channel.stream_of(slot) else {
            // Its stream has gone to another process since. The peer waits for nobody here: it is to go on by the engine. Nobody
            // waits in a slot of which the engine never told.
            if matches!(entry, ChannelEntry::Want { .. }) && generation != 0 {
                channel.tell_space(slot, generation);
            }
            return;
        };
        let Some(stream) = self.streams.get_mut(place) else { return };
        if !stream.on_channel_entry(channel, entry) {
            self.break_channel(at);
        } else if stream.is_unwanted {
            self.reset_stream(place);
        } else if matches!(entry, ChannelEntry::Space { .. }) && stream.is_starved() {
            self.starve(place);
        }
    }

    /// The other end broke the contract: all connections over the channel are reset, and nothing more is taken from it.
    fn break_channel(&mut self, at: usize) {
        let channel = &mut self.io.channels[at];
        channel.is_broken = true;
        channel.owing.clear();
        self.reset_channel(at);
    }

    /// All connections over the channel are reset. Of others what comes is heard: the other end may have been stopped for a while.
    pub(crate) fn reset_channel(&mut self, at: usize) {
        let channel = &mut self.io.channels[at];
        channel.early.clear();
        let streams: Vec<Place> = channel.slots.iter().filter_map(|used| used.stream).collect();
        streams.into_iter().for_each(|place| self.reset_stream(place));
    }

    /// Ends a connection whose bytes are lost.
    pub(crate) fn reset_stream(&mut self, place: Place) {
        let Some(stream) = self.streams.get_mut(place) else { return };
        if let Some(direct) = &mut stream.direct {
            direct.let_go();
        }
        if !stream.let_go && stream.link != Link::Closed {
            stream.let_go = true;
            let flow = stream.flow;
            stream.on_reset(Some(&mut self.io.blocks), Errno::ECONNRESET);
            self.io.command(Command::Close { flow, abort: true });
        }
    }

    /// Takes back memory that peers have read, of some streams. Called before the thread sleeps and now and then.
    pub(crate) fn sweep_lent(&mut self) {
        if self.io.stack.is_foreign() {
            return;
        }
        // Backwards: with its last stream a channel may go, and another one come to its place.
        for at in (0..self.io.channels.len()).rev() {
            let looks = self.io.channels.get(at).map_or(0, |channel| SWEEP.min(channel.lent.len()));
            for _ in 0..looks {
                let lent = self.io.channels.get_mut(at).and_then(|channel| channel.lent.pop_front());
                let Some(place) = lent else { break };
                self.sweep_stream(at, place);
            }
        }
    }

    fn sweep_stream(&mut self, at: usize, place: Place) {
        let Some(channel) = self.io.channels.get_mut(at) else { return };
        let Some(stream) = self.streams.get_mut(place) else { return };
        let direct = stream.direct.as_mut().filter(|direct| direct.lent && direct.channel == channel.id);
        let Some(direct) = direct else { return };
        direct.reclaim(channel);
        direct.lent = direct.send.outstanding() > 0;
        if direct.lent {
            channel.lent.push_back(place);
        }
        let is_idle = !direct.lent;
        stream.on_reclaimed();
        if is_idle && stream.socket.is_none() && !stream.waits_in_listener {
            self.orphan(place);
        }
    }

    /// Sends what found no room in the channels' rings.
    pub(crate) fn retry_channels(&mut self) {
        self.io.channels.iter_mut().for_each(|channel| channel.tell_pending_space());
    }
}
