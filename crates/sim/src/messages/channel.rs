//! What must hold of a channel: messages come once, in order, as they were sent; each descriptor is done once, with the right word; what nobody
//! may touch is untouched; credit comes back; and a channel ends only for a reason.

use super::side::{Side, UNTOUCHED, WINDOW, WINDOW_LEN, Wanted};
use super::wire::WireEnd;
use std::collections::VecDeque;
use toe_abi::via::ViaShape;
use toe_via::node::{
    Done, Node, STATUS_FLUSHED_ERROR, STATUS_IMMEDIATE, STATUS_LENGTH_ERROR, STATUS_OP_RECEIVE,
    STATUS_RDMA_PROT_ERROR, STATUS_REMOTE_DESC_ERROR, STATUS_TRANSPORT_ERROR,
};

/// Of a status, what says that something went wrong.
const ERRORS: u32 = 0x1fe;
/// Of a receive that a remote write with immediate data has used up, beside [`STATUS_OP_RECEIVE`].
const OP_WRITTEN: u32 = 0x30000;

/// A message under way that uses up a receive.
#[derive(Clone, Debug)]
pub struct Message {
    pub number: u32,
    /// Of a remote write nothing goes into the receive.
    pub len: u32,
    pub is_write: bool,
}

/// Why a channel may end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reasons {
    /// Somebody died, was cut off, or means harm.
    pub is_outer: bool,
    /// Bytes between hosts are other ones: where they say how many follow, those are waited for, however long.
    pub by_wire: bool,
    /// A message for which there may be no receive, or that is longer than that.
    pub of_receives: bool,
    /// The peer's memory was asked for where it may not be.
    pub of_memory: bool,
    /// A descriptor of one of the two.
    pub of_descriptor: bool,
}

impl Reasons {
    pub fn any(self) -> bool {
        self.is_outer || self.by_wire || self.of_receives || self.of_memory || self.of_descriptor
    }
}

/// From side 0 to side 1, or back.
#[derive(Debug, Default)]
pub struct Direction {
    pub messages: VecDeque<Message>,
    /// Receives that were posted for it, less the messages that were sent.
    pub receives: i64,
    /// What the sender has written remotely.
    pub window: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Channel {
    pub level: u64,
    pub sides: [Side; 2],
    pub directions: [Direction; 2],
    pub reasons: Reasons,
    /// One of its programs writes into its memory what it likes: what comes out of that is nobody's word.
    pub is_spoiled: bool,
    /// Between hosts.
    pub wires: Option<[WireEnd; 2]>,
    /// Bytes of its own that a receive has, at least.
    pub room: u32,
}

/// The bytes of message `number`, of which the first four are the number.
pub fn bytes(number: u32, len: u32) -> Vec<u8> {
    let body = (4..len.max(4)).map(|at| (at ^ number).wrapping_mul(37) as u8 ^ (at >> 8) as u8);
    number.to_le_bytes().into_iter().chain(body).collect()
}

impl Channel {
    /// A descriptor of side `which` is done.
    pub fn is_done(&mut self, node: &Node, which: usize, done: Done) -> Result<(), String> {
        let (slot, of_receives) = self.sides[which].slot_at(done.at);
        self.sides[which].reported += 1;
        let checked = if of_receives {
            self.received(node, which, slot, done)
        } else {
            self.sent(node, which, slot, done)
        };
        self.sides[which].free(slot, of_receives);
        checked.map_err(|what| {
            format!("side {which}, level {}: {what}; {done:?}, {:?}", self.level, self.reasons)
        })
    }

    fn sent(&mut self, node: &Node, which: usize, slot: u64, done: Done) -> Result<(), String> {
        let first = self.sides[which].sends.pop_front().ok_or("a send is done that was not posted")?;
        if first.slot != slot {
            return Err(format!("sends are not done in their order: {slot}, not {}", first.slot));
        }
        if self.is_spoiled {
            return Ok(());
        }
        let error = done.status & ERRORS;
        let by_end = self.ends_with(error);
        match &first.wanted {
            Wanted::Good | Wanted::Reads(_) | Wanted::Refused(_) if error == 0 => {
                if let Wanted::Refused(wrong) = first.wanted
                    && self.level == 2
                {
                    return Err(format!("it was refused with {wrong:#x}, and is a success"));
                }
                if done.length != first.len {
                    return Err(format!("its length is not {}", first.len));
                }
                let (_, buffer) = self.sides[which].places(slot, false);
                if let Wanted::Reads(wanted) = &first.wanted
                    && node.read(buffer, wanted.len()) != *wanted
                {
                    return Err("a read brought something else".into());
                }
                Ok(())
            }
            Wanted::Wrong(wrong) | Wanted::Refused(wrong) if error == *wrong => Ok(()),
            _ if by_end => Ok(()),
            wanted => Err(format!("a send that was to be {wanted:?}")),
        }
    }

    /// Whether an error is one of a channel that has ended for a reason that this one has.
    fn ends_with(&self, error: u32) -> bool {
        match error {
            STATUS_FLUSHED_ERROR | STATUS_TRANSPORT_ERROR => self.reasons.any(),
            STATUS_REMOTE_DESC_ERROR => self.reasons.of_receives,
            STATUS_RDMA_PROT_ERROR => self.reasons.of_memory,
            _ => false,
        }
    }

    fn received(&mut self, node: &Node, which: usize, slot: u64, done: Done) -> Result<(), String> {
        let (first, room) =
            self.sides[which].receives.pop_front().ok_or("a receive is done that was not posted")?;
        if first != slot {
            return Err(format!("receives are not done in their order: {slot}, not {first}"));
        }
        if self.is_spoiled {
            return Ok(());
        }
        match done.status & ERRORS {
            0 => {}
            STATUS_LENGTH_ERROR if self.reasons.of_receives => {
                return match self.directions[1 - which].messages.pop_front() {
                    Some(message) if self.level == 0 || message.len > room => Ok(()),
                    other => Err(format!("too long for {room}: {other:?}")),
                };
            }
            error if self.ends_with(error) => return Ok(()),
            _ => return Err("a receive".into()),
        }
        let (_, buffer) = self.sides[which].places(slot, true);
        let is_write = done.status & OP_WRITTEN == OP_WRITTEN;
        let number = if is_write {
            done.immediate
        } else {
            let bytes = node.read(buffer, 4);
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let messages = &mut self.directions[1 - which].messages;
        let Some(mut wanted) = messages.pop_front() else {
            return Err(format!("message {number} was not sent, or came before"));
        };
        while self.level == 0 && wanted.number != number {
            // For want of a receive it was dropped.
            wanted = messages.pop_front().ok_or(format!("message {number} is none of those"))?;
        }
        let status = STATUS_OP_RECEIVE | if is_write { OP_WRITTEN | STATUS_IMMEDIATE } else { 0 };
        if wanted.number != number
            || wanted.is_write != is_write
            || done.status & !STATUS_IMMEDIATE != status & !STATUS_IMMEDIATE
        {
            return Err(format!("message {number}, where {wanted:?} is next"));
        }
        let len = if is_write { 0 } else { wanted.len };
        if done.length != len {
            return Err(format!("message {number} has not {len} bytes"));
        }
        if !is_write && node.read(buffer, len as usize) != bytes(number, len) {
            return Err(format!("message {number} has other bytes"));
        }
        if !node.read(buffer + u64::from(len), 4).iter().all(|byte| *byte == UNTOUCHED) {
            return Err(format!("something was written behind message {number}"));
        }
        Ok(())
    }

    /// What nobody may write has not been written.
    pub fn is_untouched(&self, node: &Node, which: usize) -> Result<(), String> {
        let side = &self.sides[which];
        let before = node.read(side.base + WINDOW, WINDOW_LEN as usize);
        let behind = node.read(side.base + WINDOW + 2 * WINDOW_LEN, WINDOW_LEN as usize + 1024);
        match before.iter().chain(&behind).all(|byte| *byte == UNTOUCHED) {
            true => Ok(()),
            false => Err(format!("side {which}: memory beside its window was written")),
        }
    }

    /// At the end, when all has come that will.
    pub fn is_settled(&self, nodes: &[Node], which: usize) -> Result<(), String> {
        let side = &self.sides[which];
        let node = &nodes[side.program];
        self.is_untouched(node, which)?;
        if !node.is_connected(side.number) {
            if !self.reasons.any() {
                return Err(format!("side {which}: the channel has ended for no reason"));
            }
            let all = side.posted == side.reported && side.sends.is_empty() && side.receives.is_empty();
            return if all {
                Ok(())
            } else {
                Err(format!("side {which}: {} posted, {} done", side.posted, side.reported))
            };
        }
        if self.reasons.by_wire {
            return Ok(());
        }
        if self.reasons.is_outer
            || !nodes[self.sides[1 - which].program].is_connected(self.sides[1 - which].number)
        {
            return Err(format!("side {which} has not heard of the end"));
        }
        if !side.sends.is_empty() {
            return Err(format!("side {which}: {} sends are not done", side.sends.len()));
        }
        let direction = &self.directions[which];
        if self.level > 0 && !direction.messages.is_empty() {
            return Err(format!("from side {which}: {:?} did not come", direction.messages));
        }
        let peer = &self.sides[1 - which];
        let window = nodes[peer.program].read(peer.base + WINDOW + WINDOW_LEN, WINDOW_LEN as usize);
        // At level 0 a write that finds no receive for its immediate data is dropped.
        let may_differ = self.level == 0 && self.reasons.of_receives;
        if window != direction.window && !may_differ {
            return Err(format!("side {which} wrote something else into its peer's window"));
        }
        self.has_its_credit(node, which)
    }

    fn has_its_credit(&self, node: &Node, which: usize) -> Result<(), String> {
        let (sent, taken) = node.credit(self.sides[which].number).ok_or("no credit can be read")?;
        let pending = sent.wrapping_sub(taken);
        // Between hosts a quarter may not have been told yet, at the highest level nothing.
        let may_owe = if self.wires.is_none() || self.level == 2 { 0 } else { ViaShape::FAR.slots() / 4 };
        if pending > may_owe {
            Err(format!("side {which}: {pending} fragments of credit are lost"))
        } else {
            Ok(())
        }
    }
}
