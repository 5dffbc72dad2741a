//! Channels: memory that two sessions of one engine share, through which the bytes of connections between them go
//! without the engine (design: `local` without the engine on the data path).
//!
//! The engine makes a channel for a pair of queue sets, one of each session, and a *slot* in it for each connection. It
//! keeps set-up, tear-down and death: only bytes and credit go through the channel. Each side takes the other for
//! hostile, as the engine takes a host.
//!
//! | part | size | written by |
//! |---|---|---|
//! | registers of side 0, of side 1 | 2 × [`REGISTERS_STRIDE`] | that side |
//! | entries of side 0, of side 1 | 2 × [`CHANNEL_ENTRIES`] × 16 | that side |
//! | slots | [`SLOTS_MAX`] × [`SLOT_LEN`] | see [`SlotLine`] |
//! | data of side 0, of side 1 | 2 × [`DATA_LEN`] | that side |

use crate::entry::{BadEntry, MemRange, RawEntry};
use crate::region::{ENTRY_LEN, PAGE};

/// Entries of each direction; a power of two.
pub const CHANNEL_ENTRIES: u32 = 1024;
/// Connections that use one channel at one time.
pub const SLOTS_MAX: u32 = 4096;
/// Bytes of a slot: a line for each side.
pub const SLOT_LEN: u64 = 128;
/// Bytes of memory that each side has for what it sends. Pages are taken at the first write.
pub const DATA_LEN: u64 = 32 << 20;
/// Distance between the sides' registers.
pub const REGISTERS_STRIDE: u64 = 2048;

/// One of a channel's two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Zero,
    One,
}

impl Side {
    pub const fn index(self) -> usize {
        self as usize
    }

    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Zero => Side::One,
            Side::One => Side::Zero,
        }
    }

    /// `None` for a number that names no side.
    pub const fn from_index(index: u64) -> Option<Side> {
        match index {
            0 => Some(Side::Zero),
            1 => Some(Side::One),
            _ => None,
        }
    }
}

/// Offsets within a channel's memory.
#[derive(Clone, Copy, Debug)]
pub struct ChannelLayout;

impl ChannelLayout {
    const ENTRIES: u64 = PAGE;
    const SLOTS: u64 = Self::ENTRIES + 2 * CHANNEL_ENTRIES as u64 * ENTRY_LEN;
    const DATA: u64 = Self::SLOTS + SLOTS_MAX as u64 * SLOT_LEN;
    /// Size of the whole memory in bytes.
    pub const LEN: u64 = Self::DATA + 2 * DATA_LEN;

    /// How many entries of the *other* side this side has taken, free-running (u32).
    pub const fn head(side: Side) -> u64 {
        side.index() as u64 * REGISTERS_STRIDE
    }

    /// Non-zero when this side is about to sleep and wants to be woken; whoever wakes it stores 0 first (u32).
    pub const fn armed(side: Side) -> u64 {
        Self::head(side) + 64
    }

    /// The ring into which `side` puts its entries.
    pub const fn entries(side: Side) -> u64 {
        Self::ENTRIES + side.index() as u64 * CHANNEL_ENTRIES as u64 * ENTRY_LEN
    }

    /// A [`SlotLine`].
    pub const fn line(slot: u32, side: Side) -> u64 {
        Self::SLOTS + slot as u64 * SLOT_LEN + side.index() as u64 * 64
    }

    /// The memory out of which `side` sends.
    pub const fn data(side: Side) -> u64 {
        Self::DATA + side.index() as u64 * DATA_LEN
    }
}

const _: () = assert!(CHANNEL_ENTRIES.is_power_of_two());
const _: () = assert!(2 * REGISTERS_STRIDE == PAGE && ChannelLayout::DATA.is_multiple_of(PAGE));
const _: () = assert!(ChannelLayout::LEN < crate::entry::RANGE_OFFSET_LIMIT);

/// One side's line of a slot: offsets of its words.
///
/// `SENT` is added to before the entry that carries the bytes is stored. Whoever ends the use of the channel in this
/// direction, be it the sender, the receiver or the engine, sets [`FROZEN`] in it. From then on nobody changes the word, and
/// what it says is what went through the channel: a sender adds by compare-and-swap only.
#[derive(Clone, Copy, Debug)]
pub struct SlotLine;

impl SlotLine {
    /// Bytes that this side has sent through the channel, free-running (u64), and [`FROZEN`].
    pub const SENT: u64 = 0;
    /// Bytes of the other side that this side's program has read (u64); [`ALL_READ`] when it will read no more.
    pub const READ: u64 = 8;
    /// Non-zero once this side refers to the slot no more (u64).
    pub const DONE: u64 = 16;
}

/// Set in [`SlotLine::SENT`]: no more goes through the channel in this direction.
pub const FROZEN: u64 = 1 << 63;
/// [`SlotLine::READ`] of a side that will read no more.
pub const ALL_READ: u64 = u64::MAX;

/// What one side of a channel tells the other. `slot` names the connection; `generation` which use of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEntry {
    /// First for a connection in this direction: `after` bytes of the stream went, or will come, by way of the engine
    /// before those of this channel.
    Begin { slot: u32, generation: u16, after: u64 },
    /// Bytes, in stream order; they lie in the sender's data part until [`SlotLine::READ`] covers them.
    Data { slot: u32, generation: u16, data: MemRange },
    /// The sender has too much outstanding, or has left few places in the ring, and waits: say [`ChannelEntry::Space`] when half of it has been read.
    Want { slot: u32, generation: u16 },
    /// The answer: look at [`SlotLine::READ`].
    Space { slot: u32, generation: u16 },
    /// The last byte of the `Data` entry before is urgent.
    Urgent { slot: u32, generation: u16 },
    /// Before bytes: what the sender's process has handed to the engine comes first. Its upper 48 bits are the [`crate::looks::LOOKS`] that
    /// the engine must have come to, unless it sleeps; with the lowest bit set, in another sleep than the one whose number lies between.
    After { slot: u32, generation: u16, debt: u64 },
    /// The sender's program sends no more; with `abort` it has ended the connection by a reset. What the engine tells of it later is
    /// no news.
    End { slot: u32, generation: u16, abort: bool },
}

const CHN_BEGIN: u8 = 0x61;
const CHN_DATA: u8 = 0x62;
const CHN_WANT: u8 = 0x63;
const CHN_SPACE: u8 = 0x64;
const CHN_URGENT: u8 = 0x65;
const CHN_AFTER: u8 = 0x66;
const CHN_END: u8 = 0x67;

impl ChannelEntry {
    pub const fn encode(self) -> RawEntry {
        match self {
            ChannelEntry::Begin { slot, generation, after } => {
                RawEntry::new(CHN_BEGIN, 0, generation, slot, after)
            }
            ChannelEntry::Data { slot, generation, data } => {
                RawEntry::new(CHN_DATA, 0, generation, slot, data.to_word())
            }
            ChannelEntry::Want { slot, generation } => RawEntry::new(CHN_WANT, 0, generation, slot, 0),
            ChannelEntry::Space { slot, generation } => RawEntry::new(CHN_SPACE, 0, generation, slot, 0),
            ChannelEntry::Urgent { slot, generation } => RawEntry::new(CHN_URGENT, 0, generation, slot, 0),
            ChannelEntry::After { slot, generation, debt } => {
                RawEntry::new(CHN_AFTER, 0, generation, slot, debt)
            }
            ChannelEntry::End { slot, generation, abort } => {
                RawEntry::new(CHN_END, abort as u8, generation, slot, 0)
            }
        }
    }

    pub const fn decode(raw: RawEntry) -> Result<ChannelEntry, BadEntry> {
        let (slot, generation) = (raw.id(), raw.small());
        if slot >= SLOTS_MAX {
            return Err(BadEntry::UnknownArgument);
        }
        Ok(match raw.kind() {
            CHN_BEGIN => ChannelEntry::Begin { slot, generation, after: raw.word1 },
            CHN_DATA => ChannelEntry::Data { slot, generation, data: MemRange::from_word(raw.word1) },
            CHN_WANT => ChannelEntry::Want { slot, generation },
            CHN_SPACE => ChannelEntry::Space { slot, generation },
            CHN_URGENT => ChannelEntry::Urgent { slot, generation },
            CHN_AFTER => ChannelEntry::After { slot, generation, debt: raw.word1 },
            CHN_END => ChannelEntry::End { slot, generation, abort: raw.flags() & 1 != 0 },
            other => return Err(BadEntry::UnknownType(other)),
        })
    }

    /// The connection and the use of its slot.
    pub const fn slot(self) -> (u32, u16) {
        match self {
            ChannelEntry::Begin { slot, generation, .. }
            | ChannelEntry::After { slot, generation, .. }
            | ChannelEntry::End { slot, generation, .. }
            | ChannelEntry::Data { slot, generation, .. }
            | ChannelEntry::Want { slot, generation }
            | ChannelEntry::Space { slot, generation }
            | ChannelEntry::Urgent { slot, generation } => (slot, generation),
        }
    }
}
