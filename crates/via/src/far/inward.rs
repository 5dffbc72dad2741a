//! What comes out of the stream: frames that are small are kept together until they are whole. Of a large one the fragment's bytes go from where the stream
//! has them to their place in the connection's memory, summed up by the way, and the program hears of them once the CRC is right. Called by [`super::carrier`].

use super::Wrong;
use super::ddp::UNTAGGED_LEN;
use super::frames::{Brought, Reader};
use super::mpa::{LENGTH_LEN, SEGMENT_MAX, Tail, first_segment, frame_len};
use toe::native::{Bytes, Taker};
use toe_abi::via::Fragment;
use toe_ring::via::Room;
use toe_ring::{ViaMemory, ViaSender};

/// Segments of so many bytes go straight to their place.
pub const STRAIGHT_MIN: usize = 1 << 10;
/// What is enough to know where a segment's bytes go.
const LEAD: usize = LENGTH_LEN + UNTAGGED_LEN;
/// Bytes that are kept at once where small frames come; more than a small one has.
const KEEP: usize = 8 << 10;
/// Bytes that are taken at once.
const AT_ONCE: usize = 256 << 10;

/// A large fragment on its way to its place.
#[derive(Debug)]
struct Placing {
    fragment: Fragment,
    room: Room,
    /// Where the next bytes go, and how many are left.
    offset: u64,
    left: usize,
    crc: u32,
    segment_len: usize,
    /// Bytes of the frame's end that have come.
    tail: [u8; 7],
    came: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Inward {
    reader: Reader,
    pub into: ViaSender,
    memory: ViaMemory,
    /// Bytes that came and are not used yet.
    bytes: Box<[u8; KEEP]>,
    start: usize,
    end: usize,
    placing: Option<Placing>,
    /// The fragment that came last went straight to its place: so will the next, perhaps.
    was_large: bool,
    /// What the other side has said to be done with, and the fragments of which it can say so.
    pub given_back: u32,
    pub sent: u32,
    pub has_changed: bool,
    /// Something came whole.
    pub has_come: bool,
    pub wrong: Option<Wrong>,
    room: usize,
}

impl Inward {
    pub fn new(are_operations: bool, memory: ViaMemory, into: ViaSender) -> Inward {
        Inward {
            reader: Reader::new(are_operations),
            into,
            memory,
            bytes: Box::new([0; KEEP]),
            start: 0,
            end: 0,
            placing: None,
            was_large: false,
            given_back: 0,
            sent: 0,
            has_changed: false,
            has_come: false,
            wrong: None,
            room: AT_ONCE,
        }
    }

    /// Before bytes are taken: it takes so many, at most.
    pub fn begin(&mut self, sent: u32) -> usize {
        (self.sent, self.room) = (sent, AT_ONCE);
        AT_ONCE
    }

    /// What came that is not of frames, or not known to be.
    pub fn buffered(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Where that goes. Nothing: what is kept is more than can be right.
    pub fn room(&mut self) -> &mut [u8] {
        self.make_room();
        &mut self.bytes[self.end..]
    }

    pub fn came(&mut self, len: usize) {
        self.end += len;
    }

    pub fn used(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Bytes that are wanted behind those that are kept, before these are looked at again.
    fn wanted(&mut self) -> usize {
        if KEEP - self.end < 2 * STRAIGHT_MIN {
            self.make_room();
        }
        if !self.was_large {
            return KEEP - self.end;
        }
        // What is behind this frame is of a large one, and not to be kept.
        let buffered = self.buffered();
        match buffered.first_chunk() {
            Some(len) if buffered.len() >= LEAD => {
                frame_len(usize::from(u16::from_be_bytes(*len))).saturating_sub(buffered.len()).max(1)
            }
            _ => LEAD - buffered.len(),
        }
    }

    /// Takes all frames that have come, and of a large one what there is of it.
    pub fn look(&mut self) -> Result<(), Wrong> {
        while let Some(len) = self.buffered().first_chunk() {
            let len = usize::from(u16::from_be_bytes(*len));
            if len > SEGMENT_MAX {
                return Err(Wrong::Segment);
            }
            if len >= STRAIGHT_MIN && self.buffered().len() < frame_len(len) {
                if self.buffered().len() < LEAD {
                    return Ok(());
                }
                return self.go_straight(len);
            }
            let used = self.take_frame()?;
            if used == 0 {
                return Ok(());
            }
            self.used(used);
        }
        Ok(())
    }

    fn take_frame(&mut self) -> Result<usize, Wrong> {
        let stream = &self.bytes[self.start..self.end];
        let Some((segment, used)) = first_segment(stream)? else { return Ok(0) };
        match self.reader.take(segment)? {
            Brought::Fragment { fragment, bytes } => {
                publish(&self.memory, &mut self.into, fragment, bytes)?;
                self.was_large = fragment.len as usize >= STRAIGHT_MIN;
                self.has_changed = true;
            }
            Brought::Credit(taken) => {
                let more = taken.wrapping_sub(self.given_back);
                if more > self.sent.wrapping_sub(self.given_back) {
                    return Err(Wrong::Credit);
                }
                self.given_back = taken;
                self.has_changed = true;
            }
            Brought::Nothing => {}
        }
        self.has_come = true;
        Ok(used)
    }

    /// A segment of so many bytes begins with what is kept, and is not whole.
    #[inline]
    fn go_straight(&mut self, segment_len: usize) -> Result<(), Wrong> {
        let begin = &self.bytes[self.start..self.end];
        let coming = self.reader.begin(&begin[LENGTH_LEN..], segment_len)?;
        let lead = LENGTH_LEN + coming.header_len;
        let room = self.into.room(coming.fragment.len)?.ok_or(Wrong::Credit)?;
        self.memory.write(room.offset, coming.operation_header).map_err(|_| Wrong::Segment)?;
        let (crc, operation_header_len) = (crc32c::crc32c(&begin[..lead]), coming.operation_header.len());
        let placing = self.placing.insert(Placing {
            fragment: coming.fragment,
            room,
            offset: room.offset + operation_header_len as u64,
            left: coming.fragment.len as usize - operation_header_len,
            crc,
            segment_len,
            tail: [0; 7],
            came: 0,
        });
        // The frame is not whole, so all that is kept is of it.
        placing.take(&self.memory, Bytes::Own(&begin[lead..]), begin.len() - lead)?;
        (self.start, self.end) = (0, 0);
        self.was_large = true;
        Ok(())
    }

    /// Takes up to `len` bytes. Returns how many.
    fn take_some(&mut self, bytes: Bytes<'_>, len: usize) -> Result<usize, Wrong> {
        if let Some(placing) = &mut self.placing {
            let took = placing.take(&self.memory, bytes, len)?;
            if placing.is_whole()? {
                self.into.publish(placing.fragment, placing.room);
                self.placing = None;
                (self.has_changed, self.has_come) = (true, true);
            }
            return Ok(took);
        }
        let len = len.min(self.wanted());
        let to = &mut self.bytes[self.end..self.end + len];
        match bytes {
            Bytes::Own(from) => to.copy_from_slice(&from[..len]),
            Bytes::Shared(region, at) => region.read(at, to).map_err(|_| Wrong::Segment)?,
        }
        self.end += len;
        self.look()?;
        Ok(len)
    }
}

impl Taker for Inward {
    fn left(&self) -> usize {
        self.room
    }

    fn take(&mut self, bytes: Bytes<'_>, len: usize) {
        self.room -= len;
        let mut done = 0;
        while done < len && self.wrong.is_none() {
            let next = match bytes {
                Bytes::Own(bytes) => Bytes::Own(&bytes[done..len]),
                Bytes::Shared(region, at) => Bytes::Shared(region, at + done as u64),
            };
            match self.take_some(next, len - done) {
                Ok(took) => done += took,
                Err(wrong) => self.wrong = Some(wrong),
            }
        }
    }
}

impl Placing {
    /// Takes what is of this frame of the next `len` bytes. Returns how many.
    fn take(&mut self, memory: &ViaMemory, bytes: Bytes<'_>, len: usize) -> Result<usize, Wrong> {
        let data = self.left.min(len);
        let to = memory.region();
        let crc = match bytes {
            Bytes::Own(from) => to.write_summed(self.offset, &from[..data], self.crc),
            Bytes::Shared(from, at) => from.copy_summed(at, to, self.offset, data, self.crc),
        };
        self.crc = crc.map_err(|_| Wrong::Segment)?;
        self.offset += data as u64;
        self.left -= data;
        if self.left > 0 || len == data {
            return Ok(data);
        }
        let tail_len = Tail::new(self.segment_len, 0).bytes().len();
        let count = (len - data).min(tail_len - self.came);
        let tail = &mut self.tail[self.came..self.came + count];
        match bytes {
            Bytes::Own(from) => tail.copy_from_slice(&from[data..data + count]),
            Bytes::Shared(from, at) => from.read(at + data as u64, tail).map_err(|_| Wrong::Segment)?,
        }
        self.came += count;
        Ok(data + count)
    }

    /// Whether all of it has come, and is what was sent.
    fn is_whole(&self) -> Result<bool, Wrong> {
        let tail = Tail::new(self.segment_len, self.crc);
        if self.came < tail.bytes().len() {
            return Ok(false);
        }
        if self.tail[..self.came] == *tail.bytes() { Ok(true) } else { Err(Wrong::Crc) }
    }
}

/// Writes a fragment that has come, for which there has to be credit.
pub fn publish(
    memory: &ViaMemory,
    into: &mut ViaSender,
    fragment: Fragment,
    bytes: [&[u8]; 2],
) -> Result<(), Wrong> {
    let room = into.room(fragment.len)?.ok_or(Wrong::Credit)?;
    let mut offset = room.offset;
    for part in bytes {
        memory.write(offset, part).map_err(|_| Wrong::Segment)?;
        offset += part.len() as u64;
    }
    into.publish(fragment, room);
    Ok(())
}
