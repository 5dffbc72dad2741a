//! The memory of channels: made when the engine wants one, fetched by the two hosts that it joins. Called by
//! `host_side` (the engine's reach into it) and `attach`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use toe_abi::channel::Side;
use toe_base::{ChannelId, QueueSetId, SessionId};
use toe_ring::{ChannelMemory, Region};

#[derive(Debug)]
struct Channel {
    memory: Region,
    /// Until both hosts have it, and it is to be settled.
    file: Option<OwnedFd>,
    /// `None`: that session has ended, and its number may mean another one.
    ends: [Option<(SessionId, QueueSetId)>; 2],
    fetched: [bool; 2],
}

/// All channels of the engine.
#[derive(Debug, Default)]
pub struct Channels {
    table: HashMap<ChannelId, Channel>,
    /// Those that are being settled.
    settling: Vec<ChannelId>,
}

/// What a host gets when it fetches a channel.
#[derive(Debug)]
pub struct Fetched {
    pub side: Side,
    pub memory: OwnedFd,
    /// Whom it will wake.
    pub other: (SessionId, QueueSetId),
}

impl Channels {
    /// `false`: no memory or descriptors for it.
    pub fn open(&mut self, id: ChannelId, ends: [(SessionId, QueueSetId); 2]) -> bool {
        match ChannelMemory::create() {
            Ok((memory, file)) => {
                let memory = memory.region().clone();
                memory.withhold();
                let channel = Channel { memory, file: Some(file), ends: ends.map(Some), fetched: [false; 2] };
                self.table.insert(id, channel);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "no channel between two sessions");
                false
            }
        }
    }

    pub fn memory(&self, id: ChannelId) -> Option<&Region> {
        self.table.get(&id).map(|channel| &channel.memory)
    }

    /// The memory for a session that is one of the channel's ends. `None`: it is not, or it has it already, or the
    /// other session has ended.
    pub fn fetch(&self, id: ChannelId, session: SessionId) -> Option<Fetched> {
        let channel = self.table.get(&id)?;
        let side = channel.side_of(session).filter(|side| !channel.fetched[side.index()])?;
        let other = channel.ends[side.other().index()]?;
        let memory = channel.file.as_ref()?.try_clone().ok()?;
        Some(Fetched { side, memory, other })
    }

    /// The host has it, and does not get it again.
    pub fn mark_fetched(&mut self, id: ChannelId, side: Side) {
        if let Some(channel) = self.table.get_mut(&id) {
            channel.fetched[side.index()] = true;
        }
    }

    /// One that has been settled since the last call.
    pub fn next_settled(&mut self) -> Option<ChannelId> {
        let is_settled = |id: &ChannelId| self.memory(*id).is_some_and(|memory| !memory.is_empty());
        let at = self.settling.iter().position(is_settled)?;
        Some(self.settling.swap_remove(at))
    }

    /// What is to be settled, once, and whose it is.
    pub fn take_unsettled(&mut self, id: ChannelId) -> Option<(Region, OwnedFd, [SessionId; 2])> {
        let channel = self.table.get_mut(&id)?;
        let [Some((one, _)), Some((other, _))] = channel.ends else { return None };
        let unsettled = (channel.memory.clone(), channel.file.take()?, [one, other]);
        self.settling.push(id);
        Some(unsettled)
    }

    /// The channel is over. What was not settled of it, and the sessions of it that live.
    pub fn remove(
        &mut self,
        id: ChannelId,
    ) -> Option<(Region, OwnedFd, impl Iterator<Item = SessionId> + use<>)> {
        let channel = self.table.remove(&id)?;
        self.settling.retain(|other| *other != id);
        let ends = channel.ends.into_iter().flatten().map(|(session, _)| session);
        Some((channel.memory.clone(), channel.file?, ends))
    }

    /// The session has ended.
    pub fn forget_session(&mut self, session: SessionId) {
        for channel in self.table.values_mut() {
            if let Some(side) = channel.side_of(session) {
                channel.ends[side.index()] = None;
            }
        }
    }

    /// The sessions that are joined by a channel whose memory was lost.
    pub fn ends_of_lost(&self) -> impl Iterator<Item = SessionId> {
        let lost = self.table.values().filter(|channel| channel.memory.is_lost());
        lost.flat_map(|channel| channel.ends).flatten().map(|(id, _)| id)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl Channel {
    fn side_of(&self, session: SessionId) -> Option<Side> {
        let is_it = |side: &Side| self.ends[side.index()].is_some_and(|(id, _)| id == session);
        [Side::Zero, Side::One].into_iter().find(is_it)
    }
}
