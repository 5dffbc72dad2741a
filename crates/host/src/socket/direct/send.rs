//! What goes through a channel: the memory that it lies in until the peer has read it, and how far the direction is.

use crate::send_memory::{Blocks, SendMemory};
use crate::socket::carried::CarriedCount;

/// What the peer is asked to tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoomWait {
    /// It knows that this side waits for room.
    pub is_asked: bool,
    /// It is for memory that it waits, not for the ring alone. The ring may have had no room to ask.
    pub is_for_memory: bool,
}

/// The sending half of a stream's use of a channel.
#[derive(Debug)]
pub struct DirectSend {
    /// Memory of the channel that holds what the peer has not read.
    pub memory: SendMemory,
    /// Bytes that were sent and read by the peer.
    released: u64,
    /// Bytes of the program go through the channel. Once they do not, the engine carries the rest.
    open: bool,
    /// The peer knows how many bytes the engine carries before. Its end may be told when the direction is not open any more.
    begun: bool,
    pub(super) wait: RoomWait,
    /// In the channel's list of streams with memory lent.
    pub lent: bool,
    pub(super) tally: CarriedCount,
}

impl DirectSend {
    pub(super) fn new(memory: SendMemory) -> DirectSend {
        DirectSend {
            memory,
            released: 0,
            open: true,
            begun: false,
            wait: RoomWait::default(),
            lent: false,
            tally: CarriedCount::default(),
        }
    }

    /// Whether bytes of the program go through the channel.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The peer is to hear something through the channel. `true`: first of all how many bytes came before.
    pub fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.begun, true)
    }

    pub(super) fn end(&mut self) {
        self.open = false;
    }

    /// Bytes that were ever sent.
    pub(super) fn sent(&self) -> u64 {
        self.released + u64::from(self.memory.outstanding())
    }

    /// The peer says that it has read so many of all; no more than there are.
    pub(super) fn on_read(&mut self, read: u64, blocks: &mut Blocks) {
        let more = read.saturating_sub(self.released).min(u64::from(self.memory.outstanding()));
        if more > 0 {
            self.released += more;
            self.memory.release(blocks, more as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_direction_that_carried_nothing_begins_it() {
        let mut send = DirectSend::new(SendMemory::default());
        send.end();
        assert!(!send.is_open());
        assert!(send.begin() && !send.begin(), "the peer has to know what comes before the end");
        assert!(!send.is_open());
    }
}
