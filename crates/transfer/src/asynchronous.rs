//! Beside the program: parts that do not wait, one after the other, and waits between them.

use crate::Stopped;
use toe_abi::errno::Errno;

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Move up to so many bytes, as many as go at once, after so many ([`Asynchronous::moved`]).
    Move { done: usize, most: usize },
    /// Wait for the connection or the file ([`Asynchronous::waited`]).
    Wait,
    /// It is over.
    End(Result<usize, Stopped>),
}

/// A transfer of up to so many bytes.
#[derive(Debug)]
pub struct Asynchronous {
    length: usize,
    part: usize,
    done: usize,
    waits: bool,
    is_over: bool,
    errno: Option<Errno>,
}

impl Asynchronous {
    /// So many bytes, in parts of up to so many: between two of them it is asked whether the program has cancelled it.
    pub fn new(length: usize, part: usize) -> Asynchronous {
        Asynchronous { length, part, done: 0, waits: false, is_over: false, errno: None }
    }

    /// Bytes that are at their place by now.
    pub fn done(&self) -> usize {
        self.done
    }

    pub fn step(&self, is_cancelled: bool) -> Next {
        let (done, left) = (self.done, self.length - self.done);
        match self.errno {
            Some(errno) => Next::End(Err(Stopped { done, errno })),
            None if self.is_over || left == 0 => Next::End(Ok(done)),
            None if is_cancelled => Next::End(Err(Stopped { done, errno: Errno::ECANCELED })),
            None if self.waits => Next::Wait,
            None => Next::Move { done, most: left.min(self.part) },
        }
    }

    /// A part has moved so many, or fewer than it should; 0: the file or the stream has ended, unless the program has cancelled it meanwhile.
    pub fn moved(&mut self, outcome: Result<usize, Stopped>, is_cancelled: bool) {
        match outcome {
            Ok(bytes) => {
                self.done += bytes;
                self.is_over = bytes == 0 && !is_cancelled;
            }
            Err(Stopped { done, errno }) => {
                self.done += done;
                self.waits = errno == Errno::EAGAIN;
                self.errno = (!self.waits).then_some(errno);
            }
        }
    }

    pub fn waited(&mut self) {
        self.waits = false;
    }
}
