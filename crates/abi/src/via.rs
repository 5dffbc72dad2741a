//! Virtual interfaces (VIA): how two programs of one engine meet, and the memory through which their messages go, past the engine.
//!
//! A connection belongs to two sessions (or to one). The engine introduces them and makes the memory; what follows is between the two.
//! Each side takes the other for hostile, as the engine takes a host.
//!
//! | part | size | written by |
//! |---|---|---|
//! | [`ViaLayout::STATE`] | a page | both, and the engine |
//! | [`ViaLayout::registers`] of each side | a page | that side |
//! | [`ViaLayout::slots`] of each side | [`SLOTS`] of [`SLOT_LEN`] | that side |
//! | [`ViaLayout::data`] of each side | [`DATA_LEN`] | that side |
//!
//! A side writes its messages as [`Fragment`]s into its own slots, one behind the other; what does not fit into a slot lies in
//! its data part.

use crate::channel::Side;
use crate::region::PAGE;
use core::fmt;

/// Slots of a side.
pub const SLOTS: u32 = 512;
pub const SLOT_LEN: u64 = 64;
/// Bytes of a side's data part.
pub const DATA_LEN: u64 = 1 << 18;
/// Bytes of a fragment that lie in its slot, behind the two words.
pub const INLINE_MAX: u32 = 48;
/// Most bytes of a fragment.
pub const FRAGMENT_MAX: u32 = 1 << 14;
/// Fragments begin at multiples of this in the data part.
pub const DATA_UNIT: u64 = 64;
/// Most bytes of a message.
pub const MESSAGE_MAX: u64 = 1 << 40;
/// Listeners and connections that a session may have.
pub const HANDLES_MAX: usize = 1024;
/// Bytes of a node's name.
pub const NAME_LEN: usize = 32;

/// Offsets within a connection's memory.
#[derive(Clone, Copy, Debug)]
pub struct ViaLayout;

impl ViaLayout {
    /// A [`ViaState`] (u32).
    pub const STATE: u64 = 0;
    const REGISTERS: u64 = PAGE;
    const SLOTS: u64 = ViaLayout::REGISTERS + 2 * PAGE;
    /// Size of the whole memory in bytes.
    pub const LEN: u64 = ViaShape::NEAR.memory_len();

    /// Within a side's registers: fragments of the other side that it is done with, free-running (u32).
    pub const TAKEN: u64 = 0;
    /// Within a side's registers: not 0: it is about to sleep and wants to be woken (u32).
    pub const ARMED: u64 = 64;
    /// Within a side's registers: what it can do ([`Attributes`], u64), stored before it accepts.
    pub const ATTRIBUTES: u64 = 128;

    pub const fn registers(side: Side) -> u64 {
        ViaLayout::REGISTERS + side.index() as u64 * PAGE
    }

    pub const fn slots(side: Side) -> u64 {
        ViaShape::NEAR.slot(side, 0)
    }

    pub const fn data(side: Side) -> u64 {
        ViaShape::NEAR.data(side)
    }

    /// The slot of a side's fragment number `index` (free-running).
    pub const fn slot(side: Side, index: u32) -> u64 {
        ViaShape::NEAR.slot(side, index)
    }
}

/// How much a side may have under way: slots, and bytes of its data part, both powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViaShape {
    slots: u32,
    data_len: u64,
}

impl ViaShape {
    /// Of the memory that an engine makes.
    pub const NEAR: ViaShape = ViaShape { slots: SLOTS, data_len: DATA_LEN };
    /// Of a connection between hosts, where the memory is each program's own (`docs/via-wire.md`): a round trip takes longer.
    pub const FAR: ViaShape = ViaShape { slots: 1 << 11, data_len: 1 << 20 };

    pub const fn slots(self) -> u32 {
        self.slots
    }

    pub const fn data_len(self) -> u64 {
        self.data_len
    }

    /// As [`ViaLayout::slot`].
    #[inline]
    pub const fn slot(self, side: Side, index: u32) -> u64 {
        let number = side.index() as u64 * self.slots as u64 + (index & (self.slots - 1)) as u64;
        ViaLayout::SLOTS + number * SLOT_LEN
    }

    /// As [`ViaLayout::data`].
    #[inline]
    pub const fn data(self, side: Side) -> u64 {
        ViaLayout::SLOTS + 2 * self.slots as u64 * SLOT_LEN + side.index() as u64 * self.data_len
    }

    /// As [`ViaLayout::LEN`].
    pub const fn memory_len(self) -> u64 {
        self.data(Side::Zero) + 2 * self.data_len
    }

    /// Where in the data part a fragment of `len` bytes lies if the one before it ended at `end`, both free-running, and where it
    /// ends. A fragment lies in one piece.
    #[inline]
    pub const fn data_range(self, end: u64, len: u32) -> (u64, u64) {
        let len = (len as u64).next_multiple_of(DATA_UNIT);
        let left = self.data_len - (end & (self.data_len - 1));
        let start = if len <= left { end } else { end + left };
        (start, start + len)
    }

    /// The epoch bit of fragment number `index`: another one each time that its slot is used, and not that of zeroed memory at first.
    const fn epoch(self, index: u32) -> u64 {
        if index & self.slots == 0 { Fragment::EPOCH } else { 0 }
    }
}

const _: () = assert!(SLOTS.is_power_of_two() && DATA_LEN.is_power_of_two());
const _: () = assert!(ViaShape::FAR.slots.is_power_of_two() && ViaShape::FAR.data_len.is_power_of_two());
const _: () = assert!(INLINE_MAX as u64 + 16 == SLOT_LEN);
const _: () = assert!(FRAGMENT_MAX as u64 <= DATA_LEN / 4 && ViaLayout::LEN.is_multiple_of(PAGE));
const _: () = assert!(ViaShape::FAR.memory_len().is_multiple_of(PAGE));

/// How a connection stands. It only ever counts up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum ViaState {
    /// Side 0 has asked for it, side 1 has not answered.
    Requested = 0,
    Accepted = 1,
    Rejected = 2,
    /// One side has left, or the engine says that it has. What was sent before can still be received.
    Closed = 3,
}

impl ViaState {
    /// What is no state is the end of the connection.
    pub const fn from_raw(raw: u32) -> ViaState {
        match raw {
            0 => ViaState::Requested,
            1 => ViaState::Accepted,
            2 => ViaState::Rejected,
            _ => ViaState::Closed,
        }
    }
}

/// A part of a message, as a slot says it.
///
/// Word 0: bits 0–7 [`Fragment::KIND`], bit 8 the epoch, bit 9 *first*, bits 32–63 the fragment's length. Word 1: of a first
/// fragment the message's length, of others 0. Up to [`INLINE_MAX`] bytes follow in the slot; more lie in the data part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub len: u32,
    /// It begins a message of so many bytes.
    pub begins: Option<u64>,
}

impl Fragment {
    pub const KIND: u64 = 1;
    const EPOCH: u64 = 1 << 8;
    const FIRST: u64 = 1 << 9;

    /// The two words at `index`. Word 0 is stored last, with release.
    pub const fn encode(self, index: u32) -> [u64; 2] {
        self.encode_in(ViaShape::NEAR, index)
    }

    #[inline]
    pub const fn encode_in(self, shape: ViaShape, index: u32) -> [u64; 2] {
        let (first, total) = match self.begins {
            Some(total) => (Fragment::FIRST, total),
            None => (0, 0),
        };
        [Fragment::KIND | shape.epoch(index) | first | (self.len as u64) << 32, total]
    }

    /// Whether word 0 of a slot is that of fragment number `index`, and not what was there before.
    #[inline]
    pub const fn is_there(word0: u64, shape: ViaShape, index: u32) -> bool {
        word0 & 0xff != 0 && word0 & Fragment::EPOCH == shape.epoch(index)
    }

    /// `None`: no fragment is like that.
    pub const fn decode([word0, word1]: [u64; 2]) -> Option<Fragment> {
        let len = (word0 >> 32) as u32;
        if word0 & 0xff != Fragment::KIND || len > FRAGMENT_MAX {
            return None;
        }
        let begins = if word0 & Fragment::FIRST != 0 { Some(word1) } else { None };
        match begins {
            Some(total) if total > MESSAGE_MAX || total < len as u64 => None,
            _ => Some(Fragment { len, begins }),
        }
    }

    /// Whether its bytes lie in the slot.
    pub const fn is_inline(self) -> bool {
        self.len <= INLINE_MAX
    }
}

/// What a side of a connection says of itself.
///
/// Bits 0–1: the reliability level of plain messages, or [`Attributes::OPERATIONS`]: each message begins with the head of an operation
/// (VIPL). Then bits 2–3 are the level, bit 4: its memory can be written remotely, bit 5: read. Bits 32–63: most bytes of a message, 0: no
/// limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes(pub u64);

impl Attributes {
    /// What EVIL asks for: reliable delivery, messages of any size.
    pub const EVIL: Attributes = Attributes(1);
    /// Endpoints of libfabric: reliable, in order, memory by keys. Whether it may be touched is a key's matter.
    pub const ENDPOINTS: Attributes = Attributes(Attributes::OPERATIONS | 3 << 2);
    const OPERATIONS: u64 = 3;
    const WRITE: u64 = 1 << 4;
    const READ: u64 = 1 << 5;

    /// Of a virtual interface whose messages are operations.
    pub const fn operations(level: u64, may_write: bool, may_read: bool, message_max: u32) -> Attributes {
        let write = if may_write { Attributes::WRITE } else { 0 };
        let read = if may_read { Attributes::READ } else { 0 };
        Attributes(Attributes::OPERATIONS | (level & 3) << 2 | write | read | (message_max as u64) << 32)
    }

    pub const fn are_operations(self) -> bool {
        self.0 & 3 == Attributes::OPERATIONS
    }

    /// 0 unreliable, 1 reliable delivery, 2 reliable reception; 3: an endpoint ([`Attributes::ENDPOINTS`]).
    pub const fn level(self) -> u64 {
        if self.are_operations() { self.0 >> 2 & 3 } else { self.0 & 3 }
    }

    pub const fn may_write(self) -> bool {
        self.are_operations() && self.0 & Attributes::WRITE != 0
    }

    pub const fn may_read(self) -> bool {
        self.are_operations() && self.0 & Attributes::READ != 0
    }

    pub const fn message_max(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether one that says `other` of itself understands what this one writes.
    pub const fn speaks_as(self, other: Attributes) -> bool {
        self.are_operations() == other.are_operations() && self.level() == other.level()
    }
}

/// The name of a node: 1 to 32 bytes, none of them zero. Zeros follow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName([u8; NAME_LEN]);

impl NodeName {
    /// `None`: it is empty, too long, or has a zero in it.
    pub fn new(name: &[u8]) -> Option<NodeName> {
        if name.is_empty() || name.len() > NAME_LEN || name.contains(&0) {
            return None;
        }
        let mut bytes = [0; NAME_LEN];
        bytes[..name.len()].copy_from_slice(name);
        Some(NodeName(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        let len = self.0.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        &self.0[..len]
    }

    /// As four little-endian numbers.
    pub const fn to_words(self) -> [u64; 4] {
        let mut words = [0; 4];
        let mut at = 0;
        while at < NAME_LEN {
            words[at / 8] |= (self.0[at] as u64) << (at % 8 * 8);
            at += 1;
        }
        words
    }

    /// `None`: all are zero. Something behind the first zero is no name: `Err`.
    pub fn from_words(words: [u64; 4]) -> Result<Option<NodeName>, NotAName> {
        let mut bytes = [0; NAME_LEN];
        for (to, from) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        let name = NodeName(bytes);
        let len = name.as_bytes().len();
        match (len, bytes[len..].iter().all(|byte| *byte == 0)) {
            (_, false) => Err(NotAName),
            (0, true) => Ok(None),
            (_, true) => Ok(Some(name)),
        }
    }
}

/// Bytes behind the end of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAName;

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_used_before_is_not_taken_for_new() {
        let fragment = Fragment { len: 7, begins: Some(7) };
        for shape in [ViaShape::NEAR, ViaShape::FAR] {
            let slots = shape.slots();
            for index in [0, 5, slots, 2 * slots - 1, u32::MAX] {
                let [word0, _] = fragment.encode_in(shape, index);
                assert!(Fragment::is_there(word0, shape, index));
                assert!(!Fragment::is_there(word0, shape, index.wrapping_add(slots)), "{index}");
            }
            // That of `slots` comes when its slot has been used.
            assert!(
                !Fragment::is_there(0, shape, 0) && !Fragment::is_there(0, shape, slots),
                "zeroed memory"
            );
        }
    }

    #[test]
    fn what_no_fragment_can_be_is_none() {
        let good = Fragment { len: FRAGMENT_MAX, begins: Some(MESSAGE_MAX) };
        assert_eq!(Fragment::decode(good.encode(3)), Some(good));
        let later = Fragment { len: 0, begins: None };
        assert_eq!(Fragment::decode(later.encode(900)), Some(later));
        for bad in [
            Fragment { len: FRAGMENT_MAX + 1, begins: None },
            Fragment { len: 8, begins: Some(7) },
            Fragment { len: 8, begins: Some(MESSAGE_MAX + 1) },
        ] {
            assert_eq!(Fragment::decode(bad.encode(0)), None, "{bad:?}");
        }
        assert_eq!(Fragment::decode([2, 0]), None, "another kind");
    }

    #[test]
    fn fragments_lie_in_one_piece() {
        for shape in [ViaShape::NEAR, ViaShape::FAR] {
            let len = shape.data_len();
            assert_eq!(shape.data_range(0, 100), (0, 128));
            assert_eq!(shape.data_range(len - 64, 64), (len - 64, len));
            assert_eq!(shape.data_range(len - 64, 65), (len, len + 128));
            assert_eq!(shape.data_range(3 * len - 64, 65), (3 * len, 3 * len + 128));
        }
    }

    #[test]
    fn names_survive_as_words() {
        let name = NodeName::new(b"node-7").expect("a name");
        assert_eq!(NodeName::from_words(name.to_words()), Ok(Some(name)));
        let full = NodeName::new(&[b'x'; NAME_LEN]).expect("a name");
        assert_eq!(
            (NodeName::from_words(full.to_words()), full.as_bytes().len()),
            (Ok(Some(full)), NAME_LEN)
        );
        assert_eq!(NodeName::from_words([0; 4]), Ok(None));
        assert_eq!(NodeName::from_words([0, 1, 0, 0]), Err(NotAName));
        assert!(NodeName::new(b"").is_none() && NodeName::new(b"a\0b").is_none());
        assert!(NodeName::new(&[b'x'; NAME_LEN + 1]).is_none());
    }
}
