//! The host's ends of a queue set's rings: entries out, and those that wait for room. Part of [`crate::queue`], behind its
//! lock.

use crate::channel::Channel;
use crate::send_memory::{Blocks, SendMemory};
use crate::session::Session;
use crate::slots::SlotId;
use std::collections::VecDeque;
use toe_abi::command::FlowInfo;
use toe_abi::entry::{Command, Send};
use toe_abi::region::SND_ENTRIES;
use toe_base::{ChannelId, FlowId};
use toe_ring::{HostQueueSet, Region};

/// A stream is not writable once fewer entries are free in the engine's ring. They still take what others send, which were told before
/// that they are writable.
const SPARE: u32 = SND_ENTRIES / 8;
/// It is again when so many more are.
const SPARE_AGAIN: u32 = SND_ENTRIES / 4;

/// The host's ends of the rings, and what did not fit into them yet.
#[derive(Debug)]
pub struct QueueIo {
    pub(crate) session: &'static Session,
    pub ring: HostQueueSet,
    pub region: Region,
    pub blocks: Blocks,
    /// To other sessions; boxed, because they are large and few.
    pub channels: Vec<Box<Channel>>,
    /// Commands for which there was no room, in order.
    pub(crate) deferred: VecDeque<Command>,
    /// Streams with credit for which there was no room.
    pub(crate) owing: Vec<SlotId>,
    /// Where the stream that sends makes its TLS records.
    pub(crate) records: Vec<u8>,
}

impl QueueIo {
    /// Rings the doorbell if the engine sleeps. Once after each batch of entries.
    pub fn ring(&self) {
        let settling = self.session.settling();
        let was_rung = self.session.doorbell().ring_noting(|| settling.note_sleep()).unwrap_or(false);
        settling.handed_over(was_rung);
    }

    /// Publishes a command, after all that still wait.
    pub fn command(&mut self, command: Command) {
        self.command_quietly(command);
        self.ring();
    }

    /// The same, when another command follows at once.
    pub fn command_quietly(&mut self, command: Command) {
        if self.session.is_foreign() || !self.session.alive() {
            return;
        }
        if !self.deferred.is_empty() || !self.owing.is_empty() || self.ring.push_command(command).is_err() {
            self.deferred.push_back(command);
        }
    }

    /// Whether the peer has acknowledged the end of what this side sends, as far as the engine tells.
    pub fn end_is_acknowledged(&self, flow: FlowId) -> bool {
        let at = self.session.layout().flow_info(flow.slot());
        let state = self.region.read_record::<FlowInfo>(at).map_or(0, |info| info.state);
        // Numbers of Linux: TCP_FIN_WAIT2, TCP_TIME_WAIT, TCP_CLOSE; 0: the engine has nothing of it any more.
        matches!(state, 0 | 5 | 6 | 7)
    }

    /// A channel by its number.
    pub fn channel(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.id == id).map(|channel| &mut **channel)
    }

    /// So little room is left in the engine's ring that whoever sends is to wait.
    pub(crate) fn is_short(&mut self) -> bool {
        self.ring.send_room(SPARE) < SPARE
    }

    /// Whether who waits for room in the engine's ring has it, and finds memory if need be.
    pub(crate) fn has_supply_for(&mut self, memory: &SendMemory) -> bool {
        let enough = SPARE + SPARE_AGAIN;
        self.ring.send_room(enough) >= enough && (memory.at_hand() > 0 || self.blocks.available())
    }

    /// Publishes data; `false` when there is no room now.
    pub fn send(&mut self, send: Send) -> bool {
        self.ring.push_send(send).is_ok()
    }
}
