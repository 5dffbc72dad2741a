//! Fragments as frames, and back: what one side's memory has, in the stream to the other (`docs/via-wire.md`). Plain values. Called by
//! [`super::carrier`].

use super::Wrong;
use super::ddp::{DdpBuffer, Header, MESSAGE_MAX, Queue};
use super::mpa::{close_frame, open_frame, put_frame};
use crate::core::operation::{HEADER_LEN, Kind, Operation};
use toe_abi::via::{FRAGMENT_MAX, Fragment};

/// RDMAP's control bytes: version 1, and the operation.
const WRITE: u8 = 0x40;
const SEND: u8 = 0x43;
/// Not RDMAP's: the head of a write, and credit.
const WRITE_HEADER: u8 = 0x4e;
const CREDIT: u8 = 0x4f;

const MESSAGES: u32 = 0;
const CREDITS: u32 = 3;

/// A remote write whose data are on their way.
#[derive(Clone, Copy, Debug)]
struct Writing {
    tag: u32,
    /// Where its data begin.
    address: u64,
}

impl Writing {
    /// Where the bytes belong that begin at `at` in the message.
    fn buffer(self, at: u64) -> DdpBuffer {
        let offset = self.address.wrapping_add(at - HEADER_LEN as u64);
        DdpBuffer::Tagged { tag: self.tag, offset }
    }
}

/// The message that is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    total: u64,
    /// Bytes of it that have gone, or come.
    at: u64,
    writing: Option<Writing>,
}

/// A fragment's frame, of which all is in the stream that goes before the fragment's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Where in the stream it begins.
    pub at: usize,
    /// Bytes of its segment.
    pub segment_len: usize,
    /// First bytes of the fragment that have gone: the other ones are to follow.
    pub done: usize,
}

/// What goes out.
#[derive(Debug)]
pub struct Framer {
    are_operations: bool,
    message: u32,
    credits: u32,
    under_way: Option<UnderWay>,
}

impl Framer {
    /// `are_operations`: each message begins with the head of one.
    pub const fn new(are_operations: bool) -> Framer {
        Framer { are_operations, message: 1, credits: 1, under_way: None }
    }

    /// Whether the beginning of a fragment says how it goes: so much of it.
    pub const fn header_len_of(&self, fragment: Fragment) -> usize {
        let is_operation = self.are_operations && fragment.begins.is_some();
        if !is_operation {
            0
        } else if fragment.len as usize > HEADER_LEN {
            HEADER_LEN
        } else {
            fragment.len as usize
        }
    }

    /// Puts a fragment behind what is in `stream`. Wrong: it does not follow the one before, or is of a message that is too long for DDP;
    /// the stream is then as it was.
    pub fn put(&mut self, stream: &mut Vec<u8>, fragment: Fragment, bytes: &[u8]) -> Result<(), Wrong> {
        let opened = self.open(stream, fragment, &bytes[..self.header_len_of(fragment)])?;
        stream.extend_from_slice(&bytes[opened.done..]);
        close_frame(stream, opened.at, opened.segment_len);
        Ok(())
    }

    /// The same but for the fragment's bytes, and what is behind them. `operation_header`: [`Framer::header_len_of`] first bytes of it.
    pub fn open(
        &mut self,
        stream: &mut Vec<u8>,
        fragment: Fragment,
        operation_header: &[u8],
    ) -> Result<Opened, Wrong> {
        let (mut way, operation_header, done) = match (self.under_way, fragment.begins) {
            (None, Some(total)) if total <= MESSAGE_MAX => {
                self.begin(stream, total, fragment, operation_header)?
            }
            (Some(way), None) => (way, &[][..], 0),
            _ => return Err(Wrong::Segment),
        };
        // Of a write the head has gone by itself.
        let len = fragment.len as usize - (done - operation_header.len());
        let end = way.at + len as u64;
        if end > way.total {
            return Err(Wrong::Segment);
        }
        let is_last = end == way.total;
        let header = match way.writing {
            Some(writing) => Header { buffer: writing.buffer(way.at), is_last, upper: (WRITE, 0) },
            None => {
                let buffer =
                    DdpBuffer::Untagged { queue: MESSAGES, message: self.message, offset: way.at as u32 };
                Header { buffer, is_last, upper: (SEND, way.total as u32) }
            }
        };
        let (at, segment_len) = (stream.len(), header.header_len() + len);
        open_frame(stream, segment_len)?;
        stream.extend_from_slice(&header.encode()[..header.header_len()]);
        stream.extend_from_slice(operation_header);
        way.at = end;
        if is_last && way.writing.is_none() {
            self.message = self.message.wrapping_add(1);
        }
        self.under_way = (!is_last).then_some(way);
        Ok(Opened { at, segment_len, done })
    }

    /// A message begins; of a write the head goes first, by itself. What of its first bytes goes with the others, and how many of them
    /// have been dealt with so.
    fn begin<'o>(
        &mut self,
        stream: &mut Vec<u8>,
        total: u64,
        fragment: Fragment,
        operation_header: &'o [u8],
    ) -> Result<(UnderWay, &'o [u8], usize), Wrong> {
        let plain = UnderWay { total, at: 0, writing: None };
        if !self.are_operations {
            return Ok((plain, &[], 0));
        }
        let operation_header = operation_header.first_chunk::<HEADER_LEN>().ok_or(Wrong::Segment)?;
        let operation = Operation::decode(operation_header, total).ok_or(Wrong::Segment)?;
        if operation.kind != Kind::Write || operation.len == 0 {
            return Ok((plain, operation_header, HEADER_LEN));
        }
        if fragment.len as usize == HEADER_LEN {
            return Err(Wrong::Segment);
        }
        let buffer = DdpBuffer::Untagged { queue: MESSAGES, message: self.message, offset: 0 };
        put_segment(
            stream,
            Header { buffer, is_last: true, upper: (WRITE_HEADER, HEADER_LEN as u32) },
            operation_header,
        );
        self.message = self.message.wrapping_add(1);
        let writing = Writing { tag: operation.handle, address: operation.address };
        Ok((UnderWay { at: HEADER_LEN as u64, writing: Some(writing), ..plain }, &[], HEADER_LEN))
    }

    /// So many fragments of the peer's are done with.
    pub fn put_credit(&mut self, stream: &mut Vec<u8>, taken: u32) {
        let buffer = DdpBuffer::Untagged { queue: CREDITS, message: self.credits, offset: 0 };
        put_segment(stream, Header { buffer, is_last: true, upper: (CREDIT, taken) }, &[]);
        self.credits = self.credits.wrapping_add(1);
    }
}

fn put_segment(stream: &mut Vec<u8>, header: Header, bytes: &[u8]) {
    let operation_header = header.encode();
    // A fragment and a header are less than a segment may have.
    put_frame(stream, &[&operation_header[..header.header_len()], bytes]);
}

/// What a segment brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought<'s> {
    /// The bytes are these two, one behind the other.
    Fragment {
        fragment: Fragment,
        bytes: [&'s [u8]; 2],
    },
    Credit(u32),
    /// Something follows to which it belongs.
    Nothing,
}

/// What a segment brings that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coming<'s> {
    pub fragment: Fragment,
    /// Bytes of the fragment that come before those of the segment.
    pub operation_header: &'s [u8],
    /// Bytes of the segment before those of the fragment.
    pub header_len: usize,
}

/// What comes in.
#[derive(Debug)]
pub struct Reader {
    are_operations: bool,
    messages: Queue,
    credits: Queue,
    under_way: Option<UnderWay>,
    /// That of a write of which nothing else has come.
    operation_header: [u8; HEADER_LEN],
}

impl Reader {
    pub fn new(are_operations: bool) -> Reader {
        Reader {
            are_operations,
            messages: Queue::default(),
            credits: Queue::default(),
            under_way: None,
            operation_header: [0; HEADER_LEN],
        }
    }

    /// Takes the next segment of the stream.
    pub fn take<'s>(&'s mut self, segment: &'s [u8]) -> Result<Brought<'s>, Wrong> {
        let (header, data) = Header::decode(segment)?;
        match (header.buffer, header.upper) {
            (DdpBuffer::Untagged { queue: CREDITS, .. }, (CREDIT, taken)) if header.is_last => {
                self.credits.locate(&header, data.len(), 0)?;
                Ok(Brought::Credit(taken))
            }
            (DdpBuffer::Untagged { queue: MESSAGES, .. }, (SEND, total)) => {
                let fragment = self.message(header, data.len(), total)?;
                Ok(Brought::Fragment { fragment, bytes: [&[], data] })
            }
            (DdpBuffer::Untagged { queue: MESSAGES, offset: 0, .. }, (WRITE_HEADER, _)) => {
                self.begin_write(header, data)
            }
            (DdpBuffer::Tagged { .. }, (WRITE, _)) => {
                let (fragment, operation_header) = self.go_on_writing(header, data.len())?;
                Ok(Brought::Fragment { fragment, bytes: [operation_header, data] })
            }
            _ => Err(Wrong::Segment),
        }
    }

    /// The same of a segment of `len` bytes that has not come whole, and is of those that bring much. `begin` are its first bytes, a header or more.
    pub fn begin(&mut self, begin: &[u8], len: usize) -> Result<Coming<'_>, Wrong> {
        let (header, _) = Header::decode(begin)?;
        let header_len = header.header_len();
        let data_len = len.checked_sub(header_len).ok_or(Wrong::Segment)?;
        let (fragment, operation_header) = match (header.buffer, header.upper) {
            (DdpBuffer::Untagged { queue: MESSAGES, .. }, (SEND, total)) => {
                (self.message(header, data_len, total)?, &[][..])
            }
            (DdpBuffer::Tagged { .. }, (WRITE, _)) => self.go_on_writing(header, data_len)?,
            _ => return Err(Wrong::Segment),
        };
        Ok(Coming { fragment, operation_header, header_len })
    }

    fn message(&mut self, header: Header, len: usize, total: u32) -> Result<Fragment, Wrong> {
        let (total, data_len, len) = (u64::from(total), len, len as u64);
        let before = self.under_way.unwrap_or(UnderWay { total, at: 0, writing: None });
        if before.writing.is_some() || before.total != total || len > u64::from(FRAGMENT_MAX) {
            return Err(Wrong::Segment);
        }
        let placed = self.messages.locate(&header, data_len, total as u32)?;
        let end = u64::from(placed.at) + len;
        if placed.whole.is_some() != (end == total) {
            return Err(Wrong::Segment);
        }
        self.under_way = placed.whole.is_none().then_some(UnderWay { at: end, ..before });
        let begins = (placed.at == 0).then_some(total);
        Ok(Fragment { len: len as u32, begins })
    }

    fn begin_write<'s>(&mut self, header: Header, data: &'s [u8]) -> Result<Brought<'s>, Wrong> {
        let operation_header = <[u8; HEADER_LEN]>::try_from(data).map_err(|_| Wrong::Segment)?;
        if !self.are_operations || self.under_way.is_some() || !header.is_last {
            return Err(Wrong::Segment);
        }
        self.messages.locate(&header, data.len(), HEADER_LEN as u32)?;
        let len = u32::from_le_bytes([
            operation_header[20],
            operation_header[21],
            operation_header[22],
            operation_header[23],
        ]);
        let total = HEADER_LEN as u64 + u64::from(len);
        let operation = Operation::decode(&operation_header, total).ok_or(Wrong::Segment)?;
        if operation.kind != Kind::Write || len == 0 {
            return Err(Wrong::Segment);
        }
        let writing = Some(Writing { tag: operation.handle, address: operation.address });
        self.under_way = Some(UnderWay { total, at: HEADER_LEN as u64, writing });
        self.operation_header = operation_header;
        Ok(Brought::Nothing)
    }

    /// And what goes before its bytes.
    fn go_on_writing(&mut self, header: Header, data_len: usize) -> Result<(Fragment, &[u8]), Wrong> {
        let way = self.under_way.ok_or(Wrong::Segment)?;
        let writing = way.writing.ok_or(Wrong::Segment)?;
        let is_first = way.at == HEADER_LEN as u64;
        let operation_header = if is_first { &self.operation_header[..] } else { &[] };
        let (len, end) = (operation_header.len() + data_len, way.at + data_len as u64);
        let fits = header.buffer == writing.buffer(way.at)
            && len <= FRAGMENT_MAX as usize
            && data_len > 0
            && end <= way.total
            && header.is_last == (end == way.total);
        if !fits {
            return Err(Wrong::Segment);
        }
        self.under_way = (!header.is_last).then_some(UnderWay { at: end, ..way });
        let begins = is_first.then_some(way.total);
        Ok((Fragment { len: len as u32, begins }, operation_header))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ddp::UNTAGGED_LEN;
    use super::super::mpa::first_segment;
    use super::*;
    use crate::channel::tests::Random;
    use crate::core::Outgoing;

    /// A message of `bytes`, in fragments.
    fn send(framer: &mut Framer, stream: &mut Vec<u8>, bytes: &[u8]) {
        let mut message = Outgoing::new(bytes.len() as u64);
        while let Some(piece) = message.next() {
            let part = &bytes[piece.at as usize..][..piece.fragment.len as usize];
            framer.put(stream, piece.fragment, part).expect("it follows");
            message.sent(piece);
        }
    }

    fn message(random: &mut Random, are_operations: bool) -> Vec<u8> {
        let len = [0, 1, 40, 20_000, 60_000][random.below(5) as usize] + random.below(9) as usize;
        let data: Vec<u8> = (0..len).map(|at| (at as u64 * 31 + random.0) as u8).collect();
        if !are_operations {
            return data;
        }
        let len = data.len() as u32;
        let operation = match random.below(3) {
            0 => Operation::send(Some(7), len),
            1 => Operation::answer(len),
            // As far as an address can go.
            _ => Operation {
                kind: Kind::Write,
                immediate: Some(3),
                address: u64::MAX - random.below(70_000),
                handle: 0x1234,
                len,
            },
        };
        [&operation.encode()[..], &data].concat()
    }

    #[test]
    fn fragments_come_out_as_they_went_in() {
        for seed in 0..400 {
            let mut random = Random(seed);
            let are_operations = seed % 2 == 0;
            let (mut framer, mut reader) = (Framer::new(are_operations), Reader::new(are_operations));
            let (mut stream, mut sent, mut got) = (Vec::new(), Vec::new(), Vec::new());
            let mut credits = Vec::new();
            for number in 0..6 {
                let bytes = message(&mut random, are_operations);
                send(&mut framer, &mut stream, &bytes);
                sent.push(bytes);
                framer.put_credit(&mut stream, number * 5);
            }
            let mut rest = &stream[..];
            while let Some((segment, len)) = first_segment(rest).expect("a frame") {
                match reader.take(segment).expect("as it was sent") {
                    Brought::Fragment { fragment, bytes: [first, second] } => {
                        assert_eq!(fragment.len as usize, first.len() + second.len());
                        if let Some(total) = fragment.begins {
                            got.push(Vec::new());
                            assert_eq!(total as usize, sent[got.len() - 1].len());
                        }
                        let last = got.last_mut().expect("begun");
                        last.extend_from_slice(first);
                        last.extend_from_slice(second);
                    }
                    Brought::Credit(taken) => credits.push(taken),
                    Brought::Nothing => {}
                }
                rest = &rest[len..];
            }
            assert!(rest.is_empty() && got == sent, "seed {seed}");
            assert_eq!(credits, [0, 5, 10, 15, 20, 25]);
        }
    }

    /// The segments of a write of 20,000 bytes, and of a message behind it.
    fn segments() -> Vec<Vec<u8>> {
        let write = Operation { kind: Kind::Write, immediate: None, address: 4096, handle: 9, len: 20_000 };
        let (mut framer, mut stream) = (Framer::new(true), Vec::new());
        send(&mut framer, &mut stream, &[&write.encode()[..], &[5; 20_000]].concat());
        send(&mut framer, &mut stream, &[&Operation::send(None, 20_000).encode()[..], &[6; 20_000]].concat());
        framer.put_credit(&mut stream, 1);
        let mut segments = Vec::new();
        let mut rest = &stream[..];
        while let Some((segment, len)) = first_segment(rest).expect("a frame") {
            segments.push(segment.to_vec());
            rest = &rest[len..];
        }
        assert_eq!(segments.len(), 6);
        segments
    }

    /// Takes the first `count`, then this.
    fn taken_after(count: usize, segment: &[u8]) -> bool {
        let mut reader = Reader::new(true);
        for before in &segments()[..count] {
            reader.take(before).expect("as it was sent");
        }
        reader.take(segment).is_ok()
    }

    #[test]
    fn what_does_not_follow_is_wrong() {
        let good = segments();
        for count in 0..good.len() {
            assert!(taken_after(count, &good[count]));
            for (other, segment) in good.iter().enumerate() {
                // Credit goes between any two.
                assert_eq!(
                    taken_after(count, segment),
                    other == count || other == 5,
                    "{other} after {count}"
                );
            }
        }
        for (count, at, byte, what) in [
            (1, 5, 8, "another tag"),
            (1, 13, 1, "another place"),
            (1, 1, 0x43, "another operation"),
            (1, 0, 0x41 | 0x80, "the last, and it is not whole"),
            (2, 0, 0x81, "whole, and not the last"),
            (3, 1, 0x4e, "a head that is too long"),
            (3, 0, 0x41, "the last of a message, and it is not whole"),
            (4, 5, 0xff, "a length that has changed"),
            (3, 9, 1, "another queue"),
            (0, 41, 0xff, "a head of a length that cannot be"),
            (0, 18, 1, "a head of no write"),
            (5, 9, 0, "a credit as a message"),
            (5, 0, 1, "a credit that goes on"),
        ] {
            let mut bad = good[count].clone();
            bad[at] = byte;
            assert_ne!(bad, good[count], "{what}");
            assert!(!taken_after(count, &bad), "{what}");
        }
        let large = Header {
            buffer: DdpBuffer::Untagged { queue: 0, message: 1, offset: 0 },
            is_last: true,
            upper: (SEND, FRAGMENT_MAX + 1),
        };
        let large = [&large.encode()[..], &vec![0; FRAGMENT_MAX as usize + 1]].concat();
        assert!(!taken_after(0, &large), "a segment that is no fragment");
        let mut plain = Reader::new(false);
        assert!(plain.take(&good[0]).is_err(), "an operation where there are none");
        assert!(good[0].len() == UNTAGGED_LEN + HEADER_LEN);
    }

    /// Whatever comes is taken or wrong, and what is taken is a fragment as the memory can have it.
    #[test]
    fn hostile_segments_do_no_harm() {
        let good = segments();
        for seed in 0..20_000 {
            let mut random = Random(seed);
            let mut reader = Reader::new(random.below(4) > 0);
            let count = random.below(6) as usize;
            for before in &good[..count] {
                let _ = reader.take(before);
            }
            for _ in 0..3 {
                let mut segment = good[random.below(6) as usize].clone();
                for _ in 0..random.below(4) {
                    let at = random.below(segment.len().min(64) as u64) as usize;
                    segment[at] = random.below(256) as u8;
                }
                segment.truncate(random.below(40_000) as usize);
                if let Ok(Brought::Fragment { fragment, bytes: [first, second] }) = reader.take(&segment) {
                    assert_eq!(fragment.len as usize, first.len() + second.len());
                    assert!(Fragment::decode(fragment.encode(0)) == Some(fragment));
                }
            }
        }
    }
}
