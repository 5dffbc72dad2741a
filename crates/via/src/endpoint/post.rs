//! What is posted to an endpoint, and what becomes of it.

pub use crate::parts::Part;
use crate::parts::Parts;

/// Parts of the program's memory that one message may be gathered from.
pub const PARTS_MAX: usize = 4;

pub type Buffers = Parts<PARTS_MAX>;

/// The peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// From where the region begins.
    pub offset: u64,
    pub key: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Send,
    Write(Target),
    Read(Target),
}

/// Something to be sent, written or read.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    pub work: Work,
    pub buffers: Buffers,
    /// For the peer.
    pub immediate: Option<u32>,
    /// The program's word.
    pub context: usize,
    pub notify: Notify,
}

/// Whether the program hears of the end of what it has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    Always,
    /// When it goes wrong.
    Failure,
    Never,
}

/// A receive.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    pub buffers: Buffers,
    pub context: usize,
    pub notify: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be posted: there is no connection.
    NotConnected,
    /// It cannot be posted now: there are as many as there may be.
    Full,
    /// The message was longer than the receive, by so much.
    Truncated(u64),
    /// The connection ended, or the program has taken it back.
    Cancelled,
    /// The connection ended before it was done.
    Ended,
    /// The peer's memory is not to be touched like that.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Sent,
    Written,
    Read,
    Received,
    /// The peer has written with immediate data.
    WasWritten,
}

/// What became of something that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub what: What,
    pub context: usize,
    pub len: u64,
    /// Where the first byte is.
    pub address: u64,
    pub immediate: Option<u32>,
    pub failure: Option<Failure>,
}

impl Post {
    pub(super) fn is_done(&self) -> Option<Completion> {
        (self.notify == Notify::Always).then(|| self.completion(None))
    }

    pub(super) fn ended_by(&self, failure: Failure) -> Option<Completion> {
        (self.notify != Notify::Never).then(|| self.completion(Some(failure)))
    }

    fn completion(&self, failure: Option<Failure>) -> Completion {
        let what = match self.work {
            Work::Send => What::Sent,
            Work::Write(_) => What::Written,
            Work::Read(_) => What::Read,
        };
        let len = if failure.is_none() { u64::from(self.buffers.len) } else { 0 };
        Completion { what, context: self.context, len, address: 0, immediate: None, failure }
    }
}

impl Receive {
    pub(super) fn completion(
        &self,
        len: u64,
        immediate: Option<u32>,
        failure: Option<Failure>,
    ) -> Completion {
        let address = self.buffers.list().first().map_or(0, |part| part.address);
        Completion { what: What::Received, context: self.context, len, address, immediate, failure }
    }

    pub(super) fn ended_by(&self, failure: Failure) -> Completion {
        self.completion(0, None, Some(failure))
    }
}
