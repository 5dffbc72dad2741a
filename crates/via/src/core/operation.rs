//! What a virtual interface asks of the other one: the head of each of its messages ([host interface](../../../../docs/host-interface.md)).
//! Plain values.

/// Bytes of a head, before the message's data.
pub const HEADER_LEN: usize = 32;
/// Most bytes of data.
pub const DATA_MAX: u32 = 1 << 30;
const IMMEDIATE: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Data for the receive that was posted first.
    Send = 1,
    /// Data for the receiver's memory.
    Write = 2,
    /// Asks for the receiver's memory.
    Read = 3,
    /// What was asked for.
    Answer = 4,
    /// What was sent cannot be done: the last message before the end.
    Refuse = 5,
    /// Of endpoints: the first message in each direction, before the connection is accepted or rejected.
    Greet = 6,
}

/// A head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub kind: Kind,
    pub immediate: Option<u32>,
    /// Of [`Kind::Write`] and [`Kind::Read`]: the memory.
    pub address: u64,
    pub handle: u32,
    /// Bytes of data; of [`Kind::Read`] those that are asked for, of [`Kind::Refuse`] the status that says why.
    pub len: u32,
}

impl Operation {
    pub const fn send(immediate: Option<u32>, len: u32) -> Operation {
        Operation { kind: Kind::Send, immediate, address: 0, handle: 0, len }
    }

    pub const fn greet(len: u32) -> Operation {
        Operation { kind: Kind::Greet, immediate: None, address: 0, handle: 0, len }
    }

    pub const fn answer(len: u32) -> Operation {
        Operation { kind: Kind::Answer, immediate: None, address: 0, handle: 0, len }
    }

    pub const fn refuse(status: u32) -> Operation {
        Operation { kind: Kind::Refuse, immediate: None, address: 0, handle: 0, len: status }
    }

    /// Bytes of the whole message.
    pub const fn message_len(self) -> u64 {
        let data = match self.kind {
            Kind::Send | Kind::Write | Kind::Answer | Kind::Greet => self.len as u64,
            Kind::Read | Kind::Refuse => 0,
        };
        HEADER_LEN as u64 + data
    }

    pub fn encode(self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[0] = self.kind as u8;
        if let Some(immediate) = self.immediate {
            header[1] = IMMEDIATE;
            header[4..8].copy_from_slice(&immediate.to_le_bytes());
        }
        header[8..16].copy_from_slice(&self.address.to_le_bytes());
        header[16..20].copy_from_slice(&self.handle.to_le_bytes());
        header[20..24].copy_from_slice(&self.len.to_le_bytes());
        header
    }

    /// `None`: a message of `total` bytes does not begin like that.
    pub fn decode(header: &[u8; HEADER_LEN], total: u64) -> Option<Operation> {
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let kind = match header[0] {
            1 => Kind::Send,
            2 => Kind::Write,
            3 => Kind::Read,
            4 => Kind::Answer,
            5 => Kind::Refuse,
            6 => Kind::Greet,
            _ => return None,
        };
        let immediate = match header[1] {
            0 => None,
            IMMEDIATE if matches!(kind, Kind::Send | Kind::Write) => Some(word(4)),
            _ => return None,
        };
        let address = u64::from(word(8)) | u64::from(word(12)) << 32;
        let operation = Operation { kind, immediate, address, handle: word(16), len: word(20) };
        let fits = operation.message_len() == total && (operation.len <= DATA_MAX || kind == Kind::Refuse);
        (fits && header[24..].iter().all(|byte| *byte == 0) && header[2..4] == [0, 0]).then_some(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_out_as_they_went_in_and_others_are_none() {
        let write = Operation {
            kind: Kind::Write,
            immediate: Some(7),
            address: 0x1234_5678_9abc_def0,
            handle: 9,
            len: 100,
        };
        let read = Operation { kind: Kind::Read, immediate: None, ..write };
        let all = [
            write,
            read,
            Operation::send(None, 0),
            Operation::answer(DATA_MAX),
            Operation::refuse(0x100),
            Operation::greet(60),
        ];
        for operation in all {
            let total = operation.message_len();
            assert_eq!(Operation::decode(&operation.encode(), total), Some(operation));
            assert_eq!(Operation::decode(&operation.encode(), total + 1), None, "another length");
            for (at, byte) in [(0, 0), (0, 7), (1, 2), (2, 1), (31, 1)] {
                let mut header = operation.encode();
                header[at] = byte;
                assert_eq!(Operation::decode(&header, total), None, "{operation:?} {at}");
            }
        }
        let large = Operation::send(None, DATA_MAX + 1);
        assert_eq!(Operation::decode(&large.encode(), large.message_len()), None);
        let asked = Operation { immediate: Some(1), ..read };
        assert_eq!(Operation::decode(&asked.encode(), 32), None, "no immediate data with a read");
    }
}
