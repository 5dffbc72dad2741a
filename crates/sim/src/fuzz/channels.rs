//! Channels: words and entries of a session that means harm, as the other one's host reads them. It sends and receives all the while; what it
//! takes for the peer's bytes lies in the peer's part, and what it counts never runs out of itself.

use super::Bytes;
use toe::channel::Channel;
use toe::send_memory::SendMemory;
use toe::slots::SlotId;
use toe::socket::direct::Direct;
use toe_abi::channel::{ALL_READ, CHANNEL_ENTRIES, ChannelEntry, ChannelLayout, DATA_LEN, Side, SlotLine};
use toe_abi::entry::RawEntry;
use toe_base::{ChannelId, Cred};
use toe_ring::engine_cursor::EngineProducer;
use toe_ring::{ChannelEnd, ChannelMemory};

const STEPS_MAX: usize = 400;
/// Entries that are taken at once.
const TAKE_MAX: usize = 64;
const SLOT: u32 = 3;
const GENERATION: u16 = 1;
/// As `Stream::on_channel_entry` has it, about.
const UNREAD_MAX: u64 = 1 << 20;

struct Host {
    channel: Channel,
    direct: Direct,
    /// Bytes that the engine has brought.
    by_engine: i64,
    /// Nothing is taken of a peer that has broken the contract.
    is_broken: bool,
}

/// See the module.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let side = if bytes.u8() & 1 == 0 { Side::Zero } else { Side::One };
    let (memory, _file) = ChannelMemory::create().expect("memory for a channel");
    let wake = std::fs::File::open("/dev/null").expect("/dev/null");
    let end = ChannelEnd::new(memory.clone(), side, wake.into()).expect("a channel's memory");
    let channel = Channel::over(ChannelId(1), end, -1, Cred::default());
    let place = SlotId::from_bits(1);
    let direct = Direct::new(&channel, SLOT, GENERATION, place, &SendMemory::default());
    let mut host = Host { channel, direct, by_engine: 0, is_broken: false };
    let region = memory.region();
    let other = side.other();
    let entries = ChannelLayout::entries(other);
    let mut peer = EngineProducer::new(region.clone(), entries, CHANNEL_ENTRIES, ChannelLayout::head(side))
        .expect("a channel's ring");
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            return;
        }
        let what = bytes.u8();
        match what & 7 {
            0 => _ = peer.push(entry(what, other, &mut bytes)),
            1 => {
                let word = [SlotLine::SENT, SlotLine::READ, SlotLine::DONE][usize::from(what >> 3) % 3];
                let side = if what & 0x80 != 0 { side } else { other };
                write(&memory, ChannelLayout::line(SLOT, side) + word, bytes.u64());
            }
            2 => write(&memory, ChannelLayout::head(other), u64::from(bytes.u32())),
            3 => {
                let place = u64::from(bytes.u16()) % u64::from(2 * CHANNEL_ENTRIES) * 16;
                write(&memory, ChannelLayout::entries(Side::Zero) + place, bytes.u64());
                write(&memory, ChannelLayout::entries(Side::Zero) + place + 8, bytes.u64());
            }
            4 => host.take(&memory, other),
            5 => host.send(u32::from(bytes.u16())),
            6 => host.by_engine += i64::from(bytes.u16()),
            _ => host.end(&memory, what),
        }
    }
}

fn write(memory: &ChannelMemory, offset: u64, value: u64) {
    memory.region().write(offset, &value.to_le_bytes()).expect("a place in the channel");
}

/// Some are right but for what they say.
fn entry(what: u8, side: Side, bytes: &mut Bytes<'_>) -> RawEntry {
    let (slot, generation) = (SLOT, GENERATION);
    let entry = match what >> 3 & 7 {
        0 => ChannelEntry::Begin { slot, generation, after: bytes.u64() },
        1 => ChannelEntry::Begin { slot, generation, after: u64::from(bytes.u8()) },
        2 | 3 => {
            let offset = ChannelLayout::data(side) + u64::from(bytes.u32()) % DATA_LEN;
            let data = toe_abi::entry::MemRange { offset, len: u32::from(bytes.u16()) };
            ChannelEntry::Data { slot, generation, data }
        }
        4 => ChannelEntry::Want { slot, generation },
        5 => ChannelEntry::Space { slot, generation },
        6 => ChannelEntry::End { slot, generation, abort: what & 0x40 != 0 },
        _ => return RawEntry { word0: bytes.u64(), word1: bytes.u64() },
    };
    entry.encode()
}

impl Host {
    fn take(&mut self, memory: &ChannelMemory, other: Side) {
        for _ in 0..TAKE_MAX {
            let Some(entry) = self.channel.end.pop().filter(|_| !self.is_broken) else { break };
            let Ok(entry) = entry else { return self.is_broken = true };
            if entry.slot() != (SLOT, GENERATION) {
                continue;
            }
            match entry {
                ChannelEntry::Begin { after, .. } => self.direct.recv.on_begin(after),
                ChannelEntry::Data { data, .. } => {
                    if !self.channel.end.is_peer_data(data) || self.direct.recv.unread() > UNREAD_MAX {
                        return self.is_broken = true;
                    }
                    let begin = ChannelLayout::data(other);
                    assert!(data.offset >= begin && data.offset + u64::from(data.len) <= begin + DATA_LEN);
                    let ahead = self.direct.recv.early_bytes(self.by_engine);
                    assert!(
                        self.direct.recv.is_holding() || ahead == 0,
                        "nothing waits, and {ahead} bytes do"
                    );
                    if let Some(data) = self.direct.recv.on_data(data, self.by_engine) {
                        self.read(memory, data);
                    }
                }
                ChannelEntry::Want { .. } => self.direct.on_want(&mut self.channel),
                ChannelEntry::Space { .. } => self.direct.on_space(&mut self.channel),
                ChannelEntry::End { .. } => _ = self.direct.recv.on_end(self.by_engine),
                ChannelEntry::Urgent { .. } | ChannelEntry::After { .. } => {}
            }
        }
        self.channel.end.publish_head();
        while let Some(data) = self.direct.recv.next_in_order(self.by_engine) {
            self.read(memory, data);
        }
    }

    fn read(&mut self, memory: &ChannelMemory, data: toe_abi::entry::MemRange) {
        let mut text = vec![0; data.len as usize];
        memory.region().read(data.offset, &mut text).expect("the peer's part");
        self.direct.on_read(Some(&mut self.channel), text.len());
    }

    fn send(&mut self, want: u32) {
        if !self.direct.is_still_sending() || self.channel.end.room(2) < 2 {
            return;
        }
        let own = ChannelLayout::data(self.channel.end.side());
        let chunk = 1 << 16;
        if let Some(data) = self.direct.reserve(&mut self.channel, want.max(1) as usize, chunk) {
            assert!(data.offset >= own && data.offset + u64::from(data.len) <= own + DATA_LEN);
            if self.direct.claim(&mut self.channel, data.len, self.by_engine.cast_unsigned()) {
                self.direct.publish(&mut self.channel, data);
            }
        }
        let outstanding = self.direct.send.memory.outstanding();
        self.direct.reclaim(&mut self.channel);
        assert!(self.direct.send.memory.outstanding() <= outstanding, "more is outstanding than was sent");
    }

    fn end(&mut self, memory: &ChannelMemory, what: u8) {
        match what >> 3 & 7 {
            0 => _ = self.direct.leave(),
            1 => _ = self.direct.let_go(),
            // As the engine ends a side.
            2 => {
                [Side::Zero, Side::One].into_iter().for_each(|side| _ = memory.freeze(SLOT, side));
                memory.set_read(SLOT, self.channel.end.side(), ALL_READ);
            }
            3 => _ = self.direct.want(&mut self.channel, true),
            4 => self.direct.answer_want(&mut self.channel),
            5 => self.direct.done(),
            6 => _ = self.direct.recv.split(self.by_engine, u32::from(what)),
            _ => assert!(
                !self.direct.recv.is_complete()
                    || self.direct.recv.arrived > 0
                    || memory.sent(SLOT, Side::Zero) < u64::MAX
            ),
        }
    }
}
