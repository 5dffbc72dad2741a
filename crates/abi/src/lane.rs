//! Lanes: memory through which datagrams go from one UDP socket to another of the same machine, past kernel and engine.
//!
//! A lane is one-way and belongs to two sockets of two sessions (or of one). The sockets stay the kernel's, with their
//! names, options and queues; a datagram takes the lane while the receiver is looking at it, and the kernel's way while it
//! is not. Each side takes the other for hostile, as the engine takes a host.
//!
//! | part | size | written by |
//! |---|---|---|
//! | [`LaneLayout::WORD`] | 64 | both |
//! | [`LaneLayout::HEAD`] | the rest of the first page | the receiver |
//! | ring | 2^18 to 2^22, a power of two | the sender |
//!
//! The ring has records one behind the other, each at a multiple of [`RECORD_UNIT`]: a [`header`] and so many bytes, both of
//! which may go on at the ring's beginning.

use crate::command::WireAddr;
use crate::region::PAGE;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Sizes of a ring.
pub const RING_LEN_MIN: u32 = 1 << 18;
pub const RING_LEN_MAX: u32 = 1 << 22;
/// Of the lane from the engine to a socket.
const RING_LEN_FROM_ENGINE_MIN: u32 = 1 << 20;
/// Records begin at multiples of this, and their header is as long.
pub const RECORD_UNIT: u64 = 8;
/// Most bytes of a datagram that goes by a lane: those of the largest over IPv4 (RFC 768, RFC 791).
pub const DATAGRAM_MAX: u32 = 65_507;

/// What a record of a lane to or from the engine begins with, and one of a lane between two sockets whose header says so; the
/// datagram's bytes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DatagramHeader {
    /// Who has sent it, or is to have it. Between two sockets that is known: family 0.
    pub peer: WireAddr,
    /// The address that it came to, or is to be sent from (family 0: as the route says). Its port is 0.
    pub own: WireAddr,
    /// Bytes of each datagram, of which the record holds several (UDP_SEGMENT), the last perhaps shorter; 0: it is one.
    pub segment: u16,
    /// TTL or hop limit; 0: the default.
    pub hop_limit: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// To the engine: a [`MtuDiscover`]; from it 0.
    pub mtu_discover: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

/// What becomes of datagrams larger than a packet can be, and whether routers may cut packets up: IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, as
/// ip(7) has them. In a record it is Linux's number plus 1, and 0 the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtuDiscover {
    Dont,
    #[default]
    Want,
    Do,
    Probe,
    Interface,
    Omit,
}

impl MtuDiscover {
    const ALL: [MtuDiscover; 6] = [
        MtuDiscover::Dont,
        MtuDiscover::Want,
        MtuDiscover::Do,
        MtuDiscover::Probe,
        MtuDiscover::Interface,
        MtuDiscover::Omit,
    ];

    /// By the number of a record.
    pub fn decode(number: u8) -> Option<MtuDiscover> {
        match number {
            0 => Some(MtuDiscover::Want),
            _ => MtuDiscover::ALL.get(usize::from(number) - 1).copied(),
        }
    }

    /// Routers may not cut it up (DF).
    pub const fn is_whole_on_the_way(self) -> bool {
        matches!(self, MtuDiscover::Want | MtuDiscover::Do | MtuDiscover::Probe)
    }

    /// What is larger than a packet goes in several. Else the call fails (EMSGSIZE).
    pub const fn may_be_cut(self) -> bool {
        matches!(self, MtuDiscover::Dont | MtuDiscover::Want | MtuDiscover::Omit)
    }

    /// What routers have said of the path counts. Else the link alone does.
    pub const fn believes_routers(self) -> bool {
        matches!(self, MtuDiscover::Dont | MtuDiscover::Want | MtuDiscover::Do)
    }
}

impl DatagramHeader {
    pub const LEN: u32 = size_of::<DatagramHeader>() as u32;
}

const _: () = assert!(DatagramHeader::LEN == 48);

/// Most bytes of a record.
pub const RECORD_MAX: u32 = DATAGRAM_MAX + DatagramHeader::LEN;

/// Offsets within a lane's memory.
#[derive(Clone, Copy, Debug)]
pub struct LaneLayout;

impl LaneLayout {
    /// A [`LaneWord`] (u64).
    pub const WORD: u64 = 0;
    /// Bytes of the ring that the receiver is done with, free-running (u64). The sender's hint where there is room.
    pub const HEAD: u64 = 64;
    /// Where the ring begins.
    pub const RING: u64 = PAGE;

    /// Size of the whole memory in bytes.
    pub const fn len(ring_len: u32) -> u64 {
        LaneLayout::RING + ring_len as u64
    }

    /// The ring for a socket whose queue holds `receive_buffer` bytes (Linux: SO_RCVBUF as it is read, which counts more than
    /// the datagrams' own): what Linux would keep has room in it, also while the receiver has not told the last 16th of what it
    /// is done with. `None`: no ring is so large.
    pub const fn ring_len(receive_buffer: u32) -> Option<u32> {
        let mut len = RING_LEN_MIN;
        while len - len / 16 < receive_buffer {
            if len == RING_LEN_MAX {
                return None;
            }
            len *= 2;
        }
        Some(len)
    }

    /// The ring of the lane from the engine to such a socket. At once a link may give several frames of 64 KiB, of which the smallest ring holds
    /// four.
    pub const fn from_engine(ring_len: u32) -> u32 {
        if ring_len < RING_LEN_FROM_ENGINE_MIN { RING_LEN_FROM_ENGINE_MIN } else { ring_len }
    }

    /// Whether a ring can have this size.
    pub const fn is_ring_len(len: u32) -> bool {
        len.is_power_of_two() && len >= RING_LEN_MIN && len <= RING_LEN_MAX
    }
}

const _: () = assert!(LaneLayout::RING.is_multiple_of(RECORD_UNIT));
const _: () = assert!(record_len(RECORD_MAX) < RING_LEN_MIN as u64 / 2);

/// Bytes that a record of a datagram of `len` bytes takes up in the ring.
pub const fn record_len(len: u32) -> u64 {
    RECORD_UNIT + (len as u64).next_multiple_of(RECORD_UNIT)
}

/// Of a record's header: between two sockets, that a [`DatagramHeader`] comes first.
pub const HAS_DATAGRAM_HEADER: u64 = 1 << 32;

/// Of a record's header, in a lane from the engine: the record went by the kernel, and is passed over.
pub const VOID: u64 = 1 << 33;

/// A record's header: how long the rest is, and whether a head comes first where it need not.
pub const fn header(len: u32, has_datagram_header: bool) -> u64 {
    len as u64 | if has_datagram_header { HAS_DATAGRAM_HEADER } else { 0 }
}

/// The length that a header tells, if a record can have it, and whether a head comes first.
pub const fn parse_header(header: u64) -> Option<(u32, bool)> {
    let len = header & !HAS_DATAGRAM_HEADER;
    let has_datagram_header = header & HAS_DATAGRAM_HEADER != 0;
    let fits = len <= RECORD_MAX as u64 && (!has_datagram_header || len >= DatagramHeader::LEN as u64);
    if fits { Some((len as u32, has_datagram_header)) } else { None }
}

/// What sender and receiver agree by: one word, changed by compare-and-swap, so that no datagram is published in a lane that
/// nobody looks at.
///
/// Bits 0 to 46 are the tail, bytes of the ring that were ever written, modulo 2^47; bits 47 to 59 count how often the receiver has
/// opened the lane, or begun to sleep beside it, modulo 2^13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneWord(pub u64);

impl LaneWord {
    /// Beside [`LaneWord::ASLEEP`]: the datagram that wakes the receiver is on its way to the kernel's queue. Until it is there the lane counts as empty. In the place of
    /// that: one that was in the lane is on its way there.
    pub const RINGING: u64 = 1 << 60;
    /// Beside [`LaneWord::DIVERTED`], of a lane from the engine: one thread of the receiver's sleeps, and is to look into the lane when it was woken. So the engine
    /// wakes it by one datagram, and puts what follows into the lane.
    pub const ASLEEP: u64 = 1 << 61;
    /// The receiver does not look at the lane, or the sender found it full: the next datagram goes by the kernel. The receiver takes
    /// it back when it has read all before.
    pub const DIVERTED: u64 = 1 << 62;
    /// One side has left the lane. For good.
    pub const CLOSED: u64 = 1 << 63;
    /// What is written into a new lane, in which nobody looks yet.
    pub const NEW: LaneWord = LaneWord(LaneWord::DIVERTED);

    const TAIL_BITS: u32 = 47;
    const TAIL: u64 = (1 << LaneWord::TAIL_BITS) - 1;
    const OPENING: u64 = 1 << LaneWord::TAIL_BITS;
    const OPENINGS: u64 = LaneWord::RINGING - LaneWord::OPENING;
    const STATE: u64 = LaneWord::DIVERTED | LaneWord::ASLEEP | LaneWord::RINGING;

    pub const fn tail(self) -> u64 {
        self.0 & LaneWord::TAIL
    }

    /// Bytes from `head` to the tail.
    pub const fn used_from(self, head: u64) -> u64 {
        LaneWord::distance(head, self.tail())
    }

    /// Bytes from one place to another.
    pub const fn distance(from: u64, to: u64) -> u64 {
        to.wrapping_sub(from) & LaneWord::TAIL
    }

    /// A place so many bytes further.
    pub const fn after(position: u64, bytes: u64) -> u64 {
        position.wrapping_add(bytes) & LaneWord::TAIL
    }

    #[must_use]
    pub const fn with_tail(self, tail: u64) -> LaneWord {
        LaneWord(self.0 & !LaneWord::TAIL | tail & LaneWord::TAIL)
    }

    /// Which opening it is.
    pub const fn opening(self) -> u64 {
        self.0 & LaneWord::OPENINGS
    }

    pub const fn is_diverted(self) -> bool {
        self.0 & LaneWord::DIVERTED != 0
    }

    pub const fn is_closed(self) -> bool {
        self.0 & LaneWord::CLOSED != 0
    }

    /// Datagrams may be published.
    pub const fn is_open(self) -> bool {
        self.0 & (LaneWord::DIVERTED | LaneWord::CLOSED) == 0
    }

    #[must_use]
    pub const fn diverted(self) -> LaneWord {
        LaneWord(self.0 | LaneWord::DIVERTED)
    }

    /// Diverted by a receiver that sleeps and may be woken by one datagram.
    pub const fn is_asleep(self) -> bool {
        self.0 & (LaneWord::ASLEEP | LaneWord::CLOSED) == LaneWord::ASLEEP
    }

    pub const fn is_ringing(self) -> bool {
        self.is_asleep() && self.0 & LaneWord::RINGING != 0
    }

    /// A record goes by the kernel that was in the lane.
    pub const fn is_returning(self) -> bool {
        self.0 & (LaneWord::ASLEEP | LaneWord::RINGING | LaneWord::CLOSED) == LaneWord::RINGING
    }

    #[must_use]
    pub const fn ringing(self) -> LaneWord {
        LaneWord(self.0 | LaneWord::RINGING)
    }

    #[must_use]
    pub const fn returning(self) -> LaneWord {
        LaneWord(self.0 & !LaneWord::ASLEEP | LaneWord::RINGING)
    }

    /// What wakes the receiver is in the kernel's queue, as far as that has not begun something else.
    #[must_use]
    pub const fn rung(self) -> LaneWord {
        let asleep = if self.is_returning() { LaneWord::ASLEEP } else { 0 };
        LaneWord(self.0 & !LaneWord::RINGING | asleep)
    }

    /// The next opening of a diverted lane.
    #[must_use]
    pub const fn opened(self) -> LaneWord {
        let opening = self.0.wrapping_add(LaneWord::OPENING) & LaneWord::OPENINGS;
        LaneWord(self.0 & !(LaneWord::OPENINGS | LaneWord::STATE) | opening)
    }

    /// The next sleep of its receiver, `alone` or as another of its threads does already.
    #[must_use]
    pub const fn asleep(self, alone: bool) -> LaneWord {
        LaneWord(self.opened().0 | LaneWord::DIVERTED | if alone { LaneWord::ASLEEP } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_word_are_apart() {
        let word = LaneWord(LaneWord::TAIL).opened();
        assert_eq!((word.tail(), word.opening()), (LaneWord::TAIL, LaneWord::OPENING));
        assert!(word.is_open() && word.diverted().is_diverted());
        assert_eq!(word.diverted().opened().opening(), 2 * LaneWord::OPENING);
        let last = LaneWord(LaneWord::OPENINGS | LaneWord::STATE | 5);
        assert_eq!(last.opened(), LaneWord(5), "counted modulo 2^13, without a carry");
        assert_eq!(last.asleep(true), LaneWord(LaneWord::DIVERTED | LaneWord::ASLEEP | 5));
        assert_eq!(last.asleep(false), LaneWord(LaneWord::DIVERTED | 5));
        assert!(last.returning().is_returning() && !last.returning().is_asleep());
        assert_eq!(last.returning().rung(), last.rung());
        assert!(last.is_ringing() && !last.rung().is_ringing() && !LaneWord(u64::MAX).is_ringing(), "closed");
        assert!(!LaneWord::NEW.is_open() && !LaneWord(LaneWord::CLOSED).is_open());
        assert_eq!(LaneWord::TAIL | LaneWord::OPENINGS | LaneWord::STATE | LaneWord::CLOSED, u64::MAX);
    }

    #[test]
    fn places_wrap() {
        let head = LaneWord::TAIL + 1 - RECORD_UNIT;
        let tail = LaneWord::after(head, 64);
        assert_eq!(tail, 64 - RECORD_UNIT);
        assert_eq!(LaneWord(7 << 50).with_tail(tail).used_from(head), 64);
        assert_eq!(LaneWord::distance(tail, head), LaneWord::TAIL + 1 - 64, "a head beyond the tail");
    }

    #[test]
    fn a_ring_has_room_for_what_linux_keeps() {
        assert_eq!(LaneLayout::ring_len(0), Some(RING_LEN_MIN));
        assert_eq!(LaneLayout::ring_len(212_992), Some(RING_LEN_MIN), "Linux's default");
        assert_eq!(
            LaneLayout::ring_len(425_984),
            Some(2 * RING_LEN_MIN),
            "the most that anybody may ask for"
        );
        assert_eq!(LaneLayout::ring_len(RING_LEN_MAX - RING_LEN_MAX / 16), Some(RING_LEN_MAX));
        assert_eq!(LaneLayout::ring_len(RING_LEN_MAX), None);
        assert!(LaneLayout::is_ring_len(RING_LEN_MAX) && !LaneLayout::is_ring_len(RING_LEN_MAX * 2));
        assert!(!LaneLayout::is_ring_len(RING_LEN_MIN + 8) && !LaneLayout::is_ring_len(0));
    }

    #[test]
    fn a_header_tells_a_length_or_nothing() {
        assert_eq!(parse_header(header(RECORD_MAX, false)), Some((RECORD_MAX, false)));
        assert_eq!(parse_header(header(RECORD_MAX, true)), Some((RECORD_MAX, true)));
        assert_eq!(parse_header(header(0, false)), Some((0, false)));
        assert_eq!(parse_header(header(RECORD_MAX, false) + 1), None);
        assert_eq!(parse_header(header(DatagramHeader::LEN - 1, true)), None, "shorter than its head");
        assert_eq!(parse_header(1 << 33), None);
        assert_eq!((record_len(0), record_len(1), record_len(64)), (8, 16, 72));
    }
}
