//! The memory of channels between sessions ([`toe_abi::channel`]), and what a session gave back unread.
//!
//! Called by the engine through `host_side`, and by `attach` for the hosts.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use toe_abi::channel::Side;
use toe_base::{AnchorHandle, ChannelId, SessionId};
use toe_engine::{Direct, Ends};
use toe_ring::ChannelMemory;

/// One channel.
#[derive(Debug)]
struct Channel {
    memory: ChannelMemory,
    file: OwnedFd,
    ends: Ends,
}

/// Octets that a session had received and given back with their flow.
#[derive(Debug)]
pub struct Unread {
    pub memory: OwnedFd,
    pub len: u32,
}

#[derive(Debug, Default)]
pub struct Channels {
    table: HashMap<u32, Channel>,
    unread: HashMap<u32, Unread>,
}

impl Channels {
    /// Makes a channel; `false`: there is no memory or no descriptor for it.
    pub fn open(&mut self, id: ChannelId, ends: Ends) -> bool {
        let Ok((memory, file)) = ChannelMemory::create() else { return false };
        self.table.insert(id.0, Channel { memory, file, ends });
        true
    }

    pub fn close(&mut self, id: ChannelId) {
        self.table.remove(&id.0);
    }

    /// What a session's host needs of a channel: its side, the memory, and who is at the other end.
    pub fn end_of(&self, id: ChannelId, session: SessionId) -> Option<(Side, &OwnedFd, Ends)> {
        let channel = self.table.get(&id.0)?;
        let at = channel.ends.iter().position(|end| end.0 == session)?;
        Some((Side::from_index(at as u64)?, &channel.file, channel.ends))
    }

    pub fn reset(&self, direct: Direct) {
        if let Some(channel) = self.table.get(&direct.channel.0) {
            channel.memory.reset(direct.slot);
        }
    }

    /// Ends a connection at one side; whether octets were left unread there.
    pub fn end(&self, direct: Direct, gone: bool) -> bool {
        let Some(channel) = self.table.get(&direct.channel.0) else { return false };
        let unread = channel.memory.end(direct.slot, direct.side);
        if gone {
            channel.memory.set_done(direct.slot, direct.side);
        }
        unread
    }

    /// Whether a side refers to a slot no more.
    pub fn is_done(&self, id: ChannelId, slot: u32, side: Side) -> bool {
        self.table.get(&id.0).is_none_or(|channel| channel.memory.is_done(slot, side))
    }

    /// Keeps what was given back with the flow of `anchor`.
    pub fn keep_unread(&mut self, anchor: AnchorHandle, unread: Unread) {
        self.unread.insert(anchor.0, unread);
    }

    /// Takes it: for whoever claims the flow, or because the flow is gone.
    pub fn take_unread(&mut self, anchor: AnchorHandle) -> Option<Unread> {
        self.unread.remove(&anchor.0)
    }
}
