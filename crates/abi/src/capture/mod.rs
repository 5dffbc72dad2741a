//! What `toe capture` and an engine say to each other beside the control socket: the filter ([`filter`]), and the
//! stream of packets that the engine writes.
//!
//! The stream is a Unix stream socket whose reading end comes with [`crate::attach::Reply::Capture`]. On it are
//! records, each a [`Record`] with the packet's bytes behind it, until the capture ends; the last one is
//! [`RecordKind::End`]. Both ends are on one machine, so numbers are in its byte order.

pub mod filter;
mod parse;

pub use filter::{Facts, Filter, FilterError};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most bytes of a filter's text.
pub const FILTER_LEN_MAX: u32 = 4096;
/// Most bytes of one packet: a full IP datagram behind the longest link header. What a capture takes unless told.
pub const SNAPLEN_MAX: u32 = 262_144;
/// The interface of packets between two programs of the engine; that of port `n` is `n + 1`.
pub const LOCAL_INTERFACE: u16 = 0;

/// A program at an end of a packet; pid 0: none that the engine knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Program {
    pub pid: u32,
    pub fd: u32,
    /// The program's name, cut at 15 bytes, zeros behind.
    pub name: [u8; 15],
    /// Not 0: it has the listener, and nobody has the connection yet. Others may have that listener, too.
    pub listens: u8,
}

impl Program {
    pub fn new(pid: u32, fd: u32, name: &str) -> Program {
        Program { pid, fd, name: text_field(name), listens: 0 }
    }

    pub const fn is_nobody(&self) -> bool {
        self.pid == 0
    }

    pub fn name(&self) -> String {
        field_text(&self.name)
    }
}

/// How a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From one program of the engine to another.
    Local = 0,
    In = 1,
    Out = 2,
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    Packet = 1,
    /// Nothing follows; only [`Record::lost`] means something.
    End = 2,
}

/// What stands before a packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Record {
    /// Bytes of the packet that follow.
    pub captured_len: u32,
    /// Bytes that the packet had.
    pub original_len: u32,
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Packets so far that the filter wanted and for which there was no room.
    pub lost: u64,
    pub interface: u16,
    pub direction: u8,
    pub kind: u8,
    pub sender: Program,
    pub receiver: Program,
    /// The name of the counter under which the packet was dropped; all zero when it was not.
    pub reason: [u8; 36],
}

const _: () = assert!(size_of::<Record>() == 112);

/// A record that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRecord;

impl Record {
    /// The last one of a capture that has lost so many packets.
    pub fn end(lost: u64) -> Record {
        Record {
            captured_len: 0,
            original_len: 0,
            at_ns: 0,
            lost,
            interface: 0,
            direction: 0,
            kind: RecordKind::End as u8,
            sender: Program::default(),
            receiver: Program::default(),
            reason: [0; 36],
        }
    }

    pub fn kind(&self) -> Result<RecordKind, BadRecord> {
        match self.kind {
            1 if self.captured_len <= SNAPLEN_MAX && self.captured_len <= self.original_len => {
                Ok(RecordKind::Packet)
            }
            2 => Ok(RecordKind::End),
            _ => Err(BadRecord),
        }
    }

    pub fn direction(&self) -> Result<Direction, BadRecord> {
        match self.direction {
            0 => Ok(Direction::Local),
            1 => Ok(Direction::In),
            2 => Ok(Direction::Out),
            _ => Err(BadRecord),
        }
    }

    /// The counter under which it was dropped.
    pub fn reason(&self) -> Option<String> {
        (self.reason[0] != 0).then(|| field_text(&self.reason))
    }
}

/// Text in a field of fixed length: cut at a character's border, zeros behind.
pub fn text_field<const N: usize>(text: &str) -> [u8; N] {
    let mut len = text.len().min(N);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    let mut field = [0; N];
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// The same back; what is no text shows as a replacement character.
fn field_text(field: &[u8]) -> String {
    let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..len]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_what_it_was() {
        let record = Record {
            captured_len: 60,
            original_len: 1500,
            at_ns: 1 << 60,
            lost: 7,
            interface: 3,
            direction: Direction::Out as u8,
            kind: RecordKind::Packet as u8,
            sender: Program::new(12, 5, "curl"),
            receiver: Program::default(),
            reason: text_field("drop_no_flow"),
        };
        let back = Record::read_from_bytes(record.as_bytes()).expect("its length");
        assert_eq!(
            (back, back.kind(), back.direction()),
            (record, Ok(RecordKind::Packet), Ok(Direction::Out))
        );
        assert_eq!((back.sender.name().as_str(), back.reason()), ("curl", Some("drop_no_flow".to_owned())));
        assert!(back.receiver.is_nobody());
        assert_eq!(Record::end(3).kind(), Ok(RecordKind::End));
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        let good = Record { kind: 1, original_len: 10, captured_len: 10, ..Record::end(0) };
        assert_eq!(good.kind(), Ok(RecordKind::Packet));
        assert_eq!(Record { captured_len: 11, ..good }.kind(), Err(BadRecord), "more than there was");
        let long = Record { captured_len: SNAPLEN_MAX + 1, original_len: u32::MAX, ..good };
        assert_eq!(long.kind(), Err(BadRecord));
        assert_eq!(Record { kind: 0, ..good }.kind(), Err(BadRecord));
        assert_eq!(Record { direction: 3, ..good }.direction(), Err(BadRecord));
    }

    #[test]
    fn a_name_is_cut_at_a_character() {
        let field: [u8; 4] = text_field("aäöü");
        assert_eq!(field_text(&field), "aä");
    }
}
