//! DDP: messages as segments (RFC 5041). A *tagged* message says where in the receiver's memory it belongs, an *untagged* one goes into the
//! buffer that waits longest in one of the receiver's queues.
//!
//! ```text
//!  tagged    | T=1 L rsvd(4) DV=1 | ULP 8 | STag 32 | TO 64 |                         14 bytes
//!  untagged  | T=0 L rsvd(4) DV=1 | ULP 8 | ULP 32 | QN 32 | MSN 32 | MO 32 |         18 bytes
//! ```

use super::Wrong;
use super::mpa::SEGMENT_MAX;

pub const TAGGED_LEN: usize = 14;
pub const UNTAGGED_LEN: usize = 18;
const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
/// The version, 1, and its field.
const VERSION: u8 = 1;
const VERSION_MASK: u8 = 3;
/// Most bytes of a message: offsets in an untagged one have 32 bits.
pub const MESSAGE_MAX: u64 = u32::MAX as u64;

/// Where the bytes of a segment belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DdpBuffer {
    /// In the memory that the tag stands for, from an offset on.
    Tagged { tag: u32, offset: u64 },
    /// In the buffer number `message` of a queue, from an offset on. The numbers begin at 1.
    Untagged { queue: u32, message: u32, offset: u32 },
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub buffer: DdpBuffer,
    /// It is the last one of its message.
    pub is_last: bool,
    /// The upper layer's: a byte, and of untagged ones 32 bits more (else 0).
    pub upper: (u8, u32),
}

impl Header {
    pub const fn header_len(&self) -> usize {
        match self.buffer {
            DdpBuffer::Tagged { .. } => TAGGED_LEN,
            DdpBuffer::Untagged { .. } => UNTAGGED_LEN,
        }
    }

    /// The bytes are the first [`Header::len`] ones.
    pub fn encode(&self) -> [u8; UNTAGGED_LEN] {
        let mut bytes = [0; UNTAGGED_LEN];
        bytes[0] = VERSION | if self.is_last { LAST } else { 0 };
        bytes[1] = self.upper.0;
        match self.buffer {
            DdpBuffer::Tagged { tag, offset } => {
                bytes[0] |= TAGGED;
                bytes[2..6].copy_from_slice(&tag.to_be_bytes());
                bytes[6..14].copy_from_slice(&offset.to_be_bytes());
            }
            DdpBuffer::Untagged { queue, message, offset } => {
                let words = [self.upper.1, queue, message, offset];
                for (to, word) in bytes[2..].chunks_exact_mut(4).zip(words) {
                    to.copy_from_slice(&word.to_be_bytes());
                }
            }
        }
        bytes
    }

    /// The header of a segment, and its bytes.
    pub fn decode(segment: &[u8]) -> Result<(Header, &[u8]), Wrong> {
        let control = *segment.first().ok_or(Wrong::Segment)?;
        if control & VERSION_MASK != VERSION {
            return Err(Wrong::Segment);
        }
        let is_last = control & LAST != 0;
        if control & TAGGED != 0 {
            let (head, data) = segment.split_first_chunk::<TAGGED_LEN>().ok_or(Wrong::Segment)?;
            let [_, upper, t0, t1, t2, t3, offset @ ..] = *head;
            let buffer = DdpBuffer::Tagged {
                tag: u32::from_be_bytes([t0, t1, t2, t3]),
                offset: u64::from_be_bytes(offset),
            };
            return Ok((Header { buffer, is_last, upper: (upper, 0) }, data));
        }
        let (head, data) = segment.split_first_chunk::<UNTAGGED_LEN>().ok_or(Wrong::Segment)?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let buffer = DdpBuffer::Untagged { queue: word(6), message: word(10), offset: word(14) };
        Ok((Header { buffer, is_last, upper: (head[1], word(2)) }, data))
    }
}

/// A message on its way out, cut into segments.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    first: Header,
    total: u64,
    /// `None`: all has gone.
    sent: Option<u64>,
    data_max: usize,
}

impl Cut {
    /// A message of `total` bytes, in segments of at most `segment_max`; `None`: a segment of so many has no room for data, or an offset
    /// would be past what can be written.
    pub fn new(buffer: DdpBuffer, upper: (u8, u32), total: u64, segment_max: usize) -> Option<Cut> {
        let first = Header { buffer, is_last: false, upper };
        let data_max =
            segment_max.min(SEGMENT_MAX).checked_sub(first.header_len()).filter(|room| *room > 0)?;
        let end_fits = match buffer {
            DdpBuffer::Tagged { offset, .. } => offset.checked_add(total).is_some(),
            DdpBuffer::Untagged { offset, .. } => offset == 0 && total <= MESSAGE_MAX,
        };
        end_fits.then_some(Cut { first, total, sent: Some(0), data_max })
    }

    /// The next segment's header, and which bytes of the message are its data. `None`: all has gone.
    pub fn next_segment(&mut self) -> Option<(Header, std::ops::Range<u64>)> {
        let at = self.sent?;
        let end = self.total.min(at + self.data_max as u64);
        let is_last = end == self.total;
        let buffer = match self.first.buffer {
            DdpBuffer::Tagged { tag, offset } => DdpBuffer::Tagged { tag, offset: offset + at },
            DdpBuffer::Untagged { queue, message, .. } => {
                DdpBuffer::Untagged { queue, message, offset: at as u32 }
            }
        };
        self.sent = if is_last { None } else { Some(end) };
        Some((Header { buffer, is_last, ..self.first }, at..end))
    }
}

/// What comes in to a queue of untagged messages: that they follow each other.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The message that is next or on its way, and how much of it has come.
    message: u32,
    come: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { message: 1, come: 0 }
    }
}

/// What a segment is to its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub message: u32,
    pub at: u32,
    /// The message is whole, and has so many bytes.
    pub whole: Option<u32>,
}

impl Queue {
    /// A segment of `len` bytes for this queue, whose buffers have `room` bytes. TCP keeps the order: what does not follow is wrong, and so
    /// is what there is no room for (RFC 5041, 7.2: "Untagged Buffer: MSN range, MO, message too long").
    pub fn locate(&mut self, header: &Header, len: usize, room: u32) -> Result<Placed, Wrong> {
        let DdpBuffer::Untagged { message, offset, .. } = header.buffer else { return Err(Wrong::Segment) };
        let end = u32::try_from(len).ok().and_then(|len| offset.checked_add(len)).ok_or(Wrong::Segment)?;
        let goes_on = len > 0 || header.is_last;
        if message != self.message || offset != self.come || end > room || !goes_on {
            return Err(Wrong::Segment);
        }
        let whole = header.is_last.then_some(end);
        if whole.is_some() {
            (self.message, self.come) = (self.message.wrapping_add(1), 0);
        } else {
            self.come = end;
        }
        Ok(Placed { message, at: offset, whole })
    }
}
