//! The other session of a channel, whose end a test uses by hand.

use super::{Connection, Engine};
use toe_abi::channel::{ChannelEntry, ChannelLayout, Side};
use toe_abi::entry::{Command, Completion, MemRange};
use toe_base::{ChannelId, FlowId};
use toe_ring::ChannelEnd;

pub const CHANNEL: ChannelId = ChannelId(7);
pub const SLOT: u32 = 3;
pub const GENERATION: u16 = 1;

/// The other session's end, used by hand.
pub struct Peer {
    pub end: ChannelEnd,
    /// Where its next bytes go.
    pub at: u64,
}

impl Peer {
    /// Makes a channel with the process under test, which has accepted it when this returns.
    pub fn new(engine: &Engine, c: &Connection) -> Peer {
        let end = engine.offer_channel(CHANNEL);
        c.ready();
        assert_eq!(engine.command().1, Command::ChannelReady { channel: CHANNEL });
        Peer { end, at: ChannelLayout::data(Side::One) }
    }

    /// The same, and lets the connection use it.
    pub fn direct(engine: &Engine, c: &Connection) -> Peer {
        let peer = Peer::new(engine, c);
        peer.tell(engine, c);
        peer
    }

    pub fn tell(&self, engine: &Engine, c: &Connection) {
        self.tell_only(engine, c);
        c.ready();
    }

    pub fn tell_only(&self, engine: &Engine, c: &Connection) {
        self.tell_of(engine, c.queue_set, c.flow);
    }

    /// A flow uses the slot from now on.
    pub fn tell_of(&self, engine: &Engine, queue_set: usize, flow: FlowId) {
        engine.post(
            queue_set,
            Completion::Direct { flow, channel: CHANNEL, slot: SLOT, generation: GENERATION },
        );
    }

    pub fn push(&mut self, entry: ChannelEntry) {
        assert!(self.end.push(entry).is_ok());
        self.end.wake_peer();
    }

    pub fn begin(&mut self, after: u64) {
        self.push(ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after });
    }

    pub fn send(&mut self, bytes: &[u8]) {
        let data = MemRange { offset: self.at, len: bytes.len() as u32 };
        self.end.memory().region().write(self.at, bytes).unwrap();
        self.at += bytes.len() as u64;
        assert!(self.end.memory().add_sent(SLOT, Side::One, data.len).is_ok());
        self.push(ChannelEntry::Data { slot: SLOT, generation: GENERATION, data });
    }

    pub fn next(&mut self) -> Option<ChannelEntry> {
        let entry = self.end.pop().map(|entry| entry.expect("a valid entry"));
        self.end.publish_head();
        entry
    }

    /// Bytes that came, without saying that they were read.
    pub fn bytes(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(entry) = self.next() {
            if let ChannelEntry::Data { data, .. } = entry {
                assert!(self.end.is_peer_data(data));
                let from = all.len();
                all.resize(from + data.len as usize, 0);
                self.end.memory().region().read(data.offset, &mut all[from..]).unwrap();
            }
        }
        all
    }

    pub fn read_word(&self) -> u64 {
        self.end.memory().read(SLOT, Side::Zero)
    }

    /// [`Peer::direct`], after an older channel of the same number may have been closed.
    pub fn direct_again(engine: &Engine, c: &Connection) -> Peer {
        c.ready();
        Peer::direct(engine, c)
    }
}
