//! What an endpoint has posted, what is on its way, and what is done. [`super::sending`] and [`super::receiving`] work on it.

use super::post::{Buffers, Completion, Failure, Post, Receive, Work};
use super::regions::Remote;
use crate::core::Outgoing;
use crate::core::operation::{HEADER_LEN, Kind, Operation};
use crate::link::Link;
use std::collections::VecDeque;
use toe_abi::via::ViaState;

/// Reads that a side may have asked for and not been answered.
pub const READS_MAX: usize = 16;
/// Where the bytes of a message are.
#[derive(Debug)]
pub(super) enum Data {
    Buffers(Buffers),
    /// The program has its memory back.
    Copied(Box<[u8]>),
    Region(Remote),
}

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) header: [u8; HEADER_LEN],
    pub(super) data: Data,
    pub(super) message: Outgoing,
    /// What was posted for it.
    pub(super) post: Option<Post>,
}

impl Sending {
    pub(super) fn new(operation: Operation, data: Data, post: Option<Post>) -> Sending {
        Sending { header: operation.encode(), data, message: Outgoing::new(operation.message_len()), post }
    }

    pub fn of(post: Post) -> Sending {
        let len = post.buffers.len;
        let (kind, target) = match post.work {
            Work::Send => {
                return Sending::new(
                    Operation::send(post.immediate, len),
                    Data::Buffers(post.buffers),
                    Some(post),
                );
            }
            Work::Write(target) => (Kind::Write, target),
            Work::Read(target) => (Kind::Read, target),
        };
        let immediate = post.immediate;
        let operation = Operation { kind, immediate, address: target.offset, handle: target.key, len };
        let buffers = if kind == Kind::Read { Buffers::default() } else { post.buffers };
        Sending::new(operation, Data::Buffers(buffers), Some(post))
    }

    pub fn into_post(self) -> Option<Post> {
        self.post
    }
}

/// Where the data of a message go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Into {
    Receive(Receive),
    Region(Remote),
    /// To where the read was posted that was sent longest ago.
    Asked,
    Nowhere,
}

/// The message that comes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    pub(super) operation: Operation,
    pub(super) into: Into,
}

impl Arriving {
    pub fn into_receive(self) -> Option<Receive> {
        match self.into {
            Into::Receive(receive) => Some(receive),
            _ => None,
        }
    }
}

/// How an endpoint stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It was never connected. What is posted waits.
    Idle,
    /// Asked for; receives can be posted.
    Meeting,
    Connected,
    /// The connection has ended.
    Over,
}

/// An endpoint's queues and connection, inside its lock.
#[derive(Debug)]
pub struct Inside {
    pub(super) phase: Phase,
    pub(crate) link: Option<Link>,
    pub(super) posted: VecDeque<Sending>,
    pub(super) sending: Option<Sending>,
    /// Reads that were sent, in the order in which they are answered.
    pub(super) asked: VecDeque<Post>,
    /// What the peer has asked for.
    pub(super) pending: VecDeque<Remote>,
    pub(super) receives: VecDeque<Receive>,
    pub(super) arriving: Option<Arriving>,
    pub(super) done: Vec<Completion>,
    /// The end of the connection was told.
    pub(super) end_is_reported: bool,
}

impl Default for Inside {
    fn default() -> Inside {
        Inside {
            phase: Phase::Idle,
            link: None,
            posted: VecDeque::new(),
            sending: None,
            asked: VecDeque::new(),
            pending: VecDeque::new(),
            receives: VecDeque::new(),
            arriving: None,
            done: Vec::new(),
            end_is_reported: false,
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            link.move_on(ViaState::Closed);
        }
    }
}

impl Inside {
    /// A connection that both sides have agreed upon.
    pub(crate) fn connect(&mut self) {
        self.phase = Phase::Connected;
    }

    pub(crate) fn meet(&mut self) {
        self.phase = Phase::Meeting;
    }

    /// It came to nothing, which is told elsewhere.
    pub(crate) fn end_quietly(&mut self) {
        self.end_is_reported = true;
        self.end();
    }

    /// The connection has ended: so has all that is posted.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Over;
        self.pending.clear();
        let begun = self.sending.take().and_then(Sending::into_post);
        let waiting = self.posted.drain(..).filter_map(Sending::into_post);
        // In the order in which they were posted.
        let posts = self.asked.drain(..).chain(begun).chain(waiting);
        self.done.extend(posts.filter_map(|post| post.ended_by(Failure::Ended)));
        let arriving = self.arriving.take().and_then(Arriving::into_receive);
        for receive in arriving.into_iter().chain(self.receives.drain(..)) {
            self.done.push(receive.ended_by(Failure::Cancelled));
        }
    }
}
