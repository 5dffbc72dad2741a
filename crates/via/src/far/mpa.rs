//! MPA: where segments begin and end in a stream of bytes, and whether they are what was sent (RFC 5044).
//!
//! ```text
//!  0                   1                   2                   3
//!  +-------------------------------+-------------------------------+
//!  |  bytes of the ULPDU          |  ULPDU (a DDP segment)        |
//!  +-------------------------------+                               |
//!  |                               +-------------------------------+
//!  |                               |  0 to 3 bytes of padding     |
//!  +-------------------------------+-------------------------------+
//!  |  CRC32C of all before it                                      |
//!  +---------------------------------------------------------------+
//! ```

use super::Wrong;

/// Bytes of the length before a segment, and of the CRC behind it.
pub const LENGTH_LEN: usize = 2;
const CRC_LEN: usize = 4;
/// Most bytes of a segment: with its length, its padding and its CRC it is at most 64 KiB (RFC 5044, 4.3: 64768 is what markers leave).
pub const SEGMENT_MAX: usize = 64_768;

/// Bytes of a start-up frame before its private data, and most bytes of those (RFC 5044, 7.1.1).
pub const START_LEN: usize = 20;
pub const PRIVATE_MAX: usize = 512;
const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECTED: u8 = 0x20;
const REVISION: u8 = 1;

const fn padding(segment_len: usize) -> usize {
    (LENGTH_LEN + segment_len).next_multiple_of(4) - LENGTH_LEN - segment_len
}

/// Bytes of the frame of a segment.
pub const fn frame_len(segment_len: usize) -> usize {
    LENGTH_LEN + segment_len + padding(segment_len) + CRC_LEN
}

/// Puts a segment behind what is in `stream`, in its frame. Its parts are joined; together they have at most [`SEGMENT_MAX`] bytes, else
/// nothing is put and it is `false`.
pub fn put_frame(stream: &mut Vec<u8>, segment: &[&[u8]]) -> bool {
    let len = segment.iter().map(|part| part.len()).sum::<usize>();
    let begin = stream.len();
    if open_frame(stream, len).is_err() {
        return false;
    }
    segment.iter().for_each(|part| stream.extend_from_slice(part));
    close_frame(stream, begin, len);
    true
}

/// What goes before a segment of `len` bytes.
pub fn open_frame(stream: &mut Vec<u8>, len: usize) -> Result<(), Wrong> {
    let len_field = u16::try_from(len).ok().filter(|_| len <= SEGMENT_MAX).ok_or(Wrong::Segment)?;
    stream.extend_from_slice(&len_field.to_be_bytes());
    Ok(())
}

/// What goes behind one: its frame begins at `begin`.
pub fn close_frame(stream: &mut Vec<u8>, begin: usize, len: usize) {
    stream.resize(stream.len() + padding(len), 0);
    let crc = crc32c::crc32c(&stream[begin..]);
    // As iSCSI has it: the byte with the lowest bits comes first.
    stream.extend_from_slice(&crc.to_le_bytes());
}

/// The same as it goes, or has to come: padding and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    bytes: [u8; 3 + CRC_LEN],
    len: usize,
}

impl Tail {
    /// Behind a segment of `len` bytes; `crc` is that of the frame so far.
    pub fn new(len: usize, crc: u32) -> Tail {
        let (mut bytes, padding) = ([0; 3 + CRC_LEN], padding(len));
        let crc = crc32c::crc32c_append(crc, &bytes[..padding]);
        bytes[padding..padding + CRC_LEN].copy_from_slice(&crc.to_le_bytes());
        Tail { bytes, len: padding + CRC_LEN }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The first segment of a stream, and the bytes of its frame. `None`: it has not come whole.
///
/// A reader keeps at most one frame that is not whole: [`frame_len`] of [`SEGMENT_MAX`].
pub fn first_segment(stream: &[u8]) -> Result<Option<(&[u8], usize)>, Wrong> {
    let Some(len) = stream.first_chunk() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes(*len));
    if len > SEGMENT_MAX {
        return Err(Wrong::Segment);
    }
    let whole = frame_len(len);
    let Some((before, crc)) = stream.get(..whole).and_then(|frame| frame.split_last_chunk()) else {
        return Ok(None);
    };
    if crc32c::crc32c(before).to_le_bytes() != *crc {
        return Err(Wrong::Crc);
    }
    Ok(Some((&before[LENGTH_LEN..LENGTH_LEN + len], whole)))
}

/// What a connection begins with, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start<'a> {
    pub is_reply: bool,
    /// Of a reply: the connection is refused.
    pub is_rejected: bool,
    /// The program's, at most [`PRIVATE_MAX`] bytes.
    pub private: &'a [u8],
}

impl<'a> Start<'a> {
    /// Puts it behind what is in `stream`: no markers, with CRC.
    pub fn put(&self, stream: &mut Vec<u8>) {
        let private = &self.private[..self.private.len().min(PRIVATE_MAX)];
        stream.extend_from_slice(if self.is_reply { &REPLY_KEY } else { &REQUEST_KEY });
        stream.extend_from_slice(&[CRC | if self.is_rejected { REJECTED } else { 0 }, REVISION]);
        stream.extend_from_slice(&(private.len() as u16).to_be_bytes());
        stream.extend_from_slice(private);
    }

    /// The start-up frame at the beginning of a stream, and its bytes. `None`: it has not come whole.
    ///
    /// One that wants markers is refused: who receives them says so, and here nobody does (RFC 5044, 7.1). One that can do without
    /// CRC gets it all the same: one side that wants it is enough.
    pub fn first(stream: &'a [u8], is_reply: bool) -> Result<Option<(Start<'a>, usize)>, Wrong> {
        let key = if is_reply { &REPLY_KEY } else { &REQUEST_KEY };
        let come = stream.len().min(key.len());
        if stream[..come] != key[..come] {
            return Err(Wrong::Start);
        }
        let Some(head) = stream.first_chunk::<START_LEN>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([head[18], head[19]]));
        let is_rejected = head[16] & REJECTED != 0;
        // The reserved bits are not looked at (RFC 5044, 7.1.1).
        if head[16] & MARKERS != 0 || head[17] != REVISION || len > PRIVATE_MAX || is_rejected && !is_reply {
            return Err(Wrong::Start);
        }
        let whole = START_LEN + len;
        Ok(stream.get(START_LEN..whole).map(|private| (Start { is_reply, is_rejected, private }, whole)))
    }
}
