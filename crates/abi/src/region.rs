//! What lies where in a session's memory region.
//!
//! The region is one shared memory object, made and sealed (it cannot shrink or grow) by the engine. From the start:
//!
//! | part | size | written by |
//! |---|---|---|
//! | header page | 4096 | engine |
//! | queue sets | `queue_sets` × [`QUEUE_SET_STRIDE`] | see [`QueueSetLayout`] |
//! | flow information | `flows` × 64 | engine |
//! | owner words | `flows` × 8 | both ([`crate::owner_word`]) |
//! | flow details | `flows` × 320 | engine |
//! | socket options | `flows` × 512 | host, for whoever has the connection after it |
//! | receive part | `receive_len` | engine (data that arrived) |
//! | send part | `send_len` | host (data to send) |

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Everything starts on a page border.
pub const PAGE: u64 = 4096;

/// Entries of each queue; powers of two.
pub const CMD_ENTRIES: u32 = 256;
pub const SND_ENTRIES: u32 = 1024;
pub const RCV_ENTRIES: u32 = 1024;
pub const CPL_ENTRIES: u32 = 4096;

/// Bytes of one entry: 128 bits.
pub const ENTRY_LEN: u64 = 16;
/// Bytes of one argument block; there is one for each entry of the command queue.
pub const ARG_LEN: u64 = 64;
/// Bytes of one flow information record.
pub const FLOW_INFO_LEN: u64 = 64;
/// Bytes of one owner word ([`crate::owner_word`]).
pub const OWNER_WORD_LEN: u64 = 8;
/// Bytes of one [`crate::tcp_info::FlowDetail`].
pub const FLOW_DETAIL_LEN: u64 = 320;
/// Bytes of one [`crate::command::SocketOptions`].
pub const SOCKET_OPTIONS_LEN: u64 = 512;

/// Offsets within one queue set.
#[derive(Clone, Copy, Debug)]
pub struct QueueSetLayout;

impl QueueSetLayout {
    /// [`crate::register::EngineRegisters`], written by the engine.
    pub const ENGINE_REGISTERS: u64 = 0;
    /// [`crate::register::HostRegisters`], written by the host.
    pub const HOST_REGISTERS: u64 = 2048;
    pub const CMD: u64 = PAGE;
    pub const ARGS: u64 = Self::CMD + CMD_ENTRIES as u64 * ENTRY_LEN;
    pub const SND: u64 = Self::ARGS + CMD_ENTRIES as u64 * ARG_LEN;
    pub const RCV: u64 = Self::SND + SND_ENTRIES as u64 * ENTRY_LEN;
    pub const CPL: u64 = Self::RCV + RCV_ENTRIES as u64 * ENTRY_LEN;
    pub const END: u64 = Self::CPL + CPL_ENTRIES as u64 * ENTRY_LEN;
}

/// Distance from one queue set to the next.
pub const QUEUE_SET_STRIDE: u64 = QueueSetLayout::END;

const _: () = assert!(QUEUE_SET_STRIDE.is_multiple_of(PAGE));
const _: () = assert!(CMD_ENTRIES.is_power_of_two() && SND_ENTRIES.is_power_of_two());
const _: () = assert!(RCV_ENTRIES.is_power_of_two() && CPL_ENTRIES.is_power_of_two());

/// The header page of a region: who wrote it and where its parts are. The same values come in the attach reply; the
/// header is for tools that look at a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionHeader {
    /// [`REGION_MAGIC`].
    pub magic: u64,
    pub version: u16,
    pub session: u16,
    pub queue_sets: u32,
    pub flows: u32,
    pub reserved: u32,
    pub receive_offset: u64,
    pub receive_len: u64,
    pub send_offset: u64,
    pub send_len: u64,
    /// Non-zero while the engine sleeps, and says for what the host must then ring the doorbell: in its lowest bits a sum of
    /// [`DOORBELL_FOR_ENTRIES`] and [`DOORBELL_FOR_HEAD`].
    pub doorbell_wanted: u32,
    /// Non-zero once the engine has fenced the session; the value is the [`crate::attach::FenceReason`].
    pub fenced: u32,
}

/// Offset of [`RegionHeader::doorbell_wanted`] in the region.
pub const DOORBELL_WANTED: u64 = core::mem::offset_of!(RegionHeader, doorbell_wanted) as u64;
/// Ring after publishing entries of `cmd`, `snd` or `rcv`.
pub const DOORBELL_FOR_ENTRIES: u32 = 1;
/// Ring also after publishing the head of a `cpl`: completions wait for room there.
pub const DOORBELL_FOR_HEAD: u32 = 2;
/// Above those bits the word counts the engine's sleeps. Who has rung stores 0 if the word is still what it was.
pub const DOORBELL_SLEEP_SHIFT: u32 = 2;
/// Offset of [`RegionHeader::fenced`] in the region.
pub const FENCED: u64 = core::mem::offset_of!(RegionHeader, fenced) as u64;

/// How loaded the engine is, for hosts that can choose one of several: written by the engine while it works, each word by
/// itself. Behind the header, in its page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Load {
    /// Its connections.
    pub flows: u32,
    /// Of its time in the last tenth of a second, the thousandths in which it had something to do.
    pub busy_permille: u32,
    /// When that was written: milliseconds of CLOCK_MONOTONIC, modulo 2³². An engine that sleeps writes nothing.
    pub at_ms: u32,
}

/// Offset of [`Load`] in the region.
pub const LOAD: u64 = size_of::<RegionHeader>() as u64;

/// Offset of a word behind that, written by the engine: another number whenever somebody no longer listens whom the session could
/// connect to before, or is to be asked for in another way.
pub const NAMES: u64 = LOAD + size_of::<Load>() as u64;

/// "TOEREGN1", little-endian.
pub const REGION_MAGIC: u64 = u64::from_le_bytes(*b"TOEREGN1");

const _: () = assert!(size_of::<RegionHeader>() == 64);
const _: () = assert!(DOORBELL_WANTED == 56 && FENCED == 60);

/// What a data part has at least, if the host asks for little.
const DATA_MIN: u64 = 1 << 20;

/// The sizes that make a region; everything else follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    pub queue_sets: u32,
    pub flows: u32,
    pub receive_len: u64,
    pub send_len: u64,
}

impl RegionLayout {
    pub const fn queue_set(&self, index: u32) -> u64 {
        PAGE + index as u64 * QUEUE_SET_STRIDE
    }

    pub const fn flow_info_offset(&self) -> u64 {
        self.queue_set(self.queue_sets)
    }

    pub const fn flow_info(&self, slot: usize) -> u64 {
        self.flow_info_offset() + slot as u64 * FLOW_INFO_LEN
    }

    pub const fn owner_word(&self, slot: usize) -> u64 {
        self.flow_info(self.flows as usize) + slot as u64 * OWNER_WORD_LEN
    }

    /// Behind all owner words: the pages of those details that nobody asks for stay untouched.
    pub const fn flow_detail_offset(&self) -> u64 {
        self.owner_word(self.flows as usize)
    }

    pub const fn flow_detail(&self, slot: usize) -> u64 {
        self.flow_detail_offset() + slot as u64 * FLOW_DETAIL_LEN
    }

    /// Behind all details, for the same reason.
    pub const fn socket_options_offset(&self) -> u64 {
        self.flow_detail(self.flows as usize)
    }

    pub const fn socket_options(&self, slot: usize) -> u64 {
        self.socket_options_offset() + slot as u64 * SOCKET_OPTIONS_LEN
    }

    pub const fn receive_offset(&self) -> u64 {
        self.socket_options(self.flows as usize).next_multiple_of(PAGE)
    }

    pub const fn send_offset(&self) -> u64 {
        self.receive_offset() + self.receive_len
    }

    /// Size of the whole region in bytes.
    pub const fn len(&self) -> u64 {
        self.send_offset() + self.send_len
    }

    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The same with data parts so much smaller that the region takes `room` bytes at most; `None`: that leaves too little.
    pub fn within(self, room: u64) -> Option<RegionLayout> {
        let mut layout = self;
        while layout.len() > room {
            let half = |bytes: u64| (bytes / 2).next_multiple_of(PAGE).max(DATA_MIN);
            let smaller = RegionLayout {
                receive_len: half(layout.receive_len),
                send_len: half(layout.send_len),
                ..layout
            };
            if smaller.len() == layout.len() {
                return None;
            }
            layout = smaller;
        }
        Some(layout)
    }

    /// Whether all offsets are such that ring entries can carry them. What comes from elsewhere is checked by this
    /// before any of the above is asked.
    pub const fn is_addressable(&self) -> bool {
        let limit = crate::entry::RANGE_OFFSET_LIMIT;
        self.queue_sets <= toe_base::limits::QUEUE_SETS_MAX as u32
            && self.flows <= toe_base::limits::SESSION_FLOWS_MAX as u32
            && self.receive_len < limit
            && self.send_len < limit
            && self.len() <= limit
    }

    pub const fn header(&self, session: u16) -> RegionHeader {
        RegionHeader {
            magic: REGION_MAGIC,
            version: crate::INTERFACE_VERSION,
            session,
            queue_sets: self.queue_sets,
            flows: self.flows,
            reserved: 0,
            receive_offset: self.receive_offset(),
            receive_len: self.receive_len,
            send_offset: self.send_offset(),
            send_len: self.send_len,
            doorbell_wanted: 0,
            fenced: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_shrinks_to_the_room_that_there_is() {
        let layout = RegionLayout { queue_sets: 2, flows: 64, receive_len: 256 << 20, send_len: 256 << 20 };
        assert_eq!(layout.within(layout.len()), Some(layout));
        let small = layout.within(100 << 20).expect("it can");
        assert!(small.len() <= 100 << 20 && small.len() > 50 << 20, "{small:?}");
        assert_eq!((small.queue_sets, small.flows), (layout.queue_sets, layout.flows));
        assert!(small.is_addressable() && small.send_offset().is_multiple_of(PAGE));
        assert_eq!(layout.within(1 << 20), None);
    }
}
