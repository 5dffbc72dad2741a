//! From a connection to a file.
//!
//! Bytes are received into a buffer and written from there, without a lock, as most files cannot be written without waiting; what the file does not
//! take goes back in front of what waits to be received. A pipe takes what it has room for straight from where they lie, under the stream's
//! lock, unless it cannot tell: that part goes by the buffer.

use crate::{Stopped, is_said_again};
use std::ops::Range;
use toe_abi::errno::Errno;

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Receive up to so many bytes straight into the file, at this place or where it stands ([`Inward::went_straight`]).
    Straight { at: Option<u64>, most: usize },
    /// Receive up to so many bytes into the buffer, from its beginning on ([`Inward::received`]).
    Receive { most: usize },
    /// Write these bytes of the buffer, at this place or where the file stands ([`Inward::written`]).
    Write { at: Option<u64>, held: Range<usize> },
    /// The file takes whole blocks only: find another way to it, and say from which place on ([`Inward::passed_by`]).
    PassBy { at: Option<u64> },
    /// These bytes of the buffer go back to the connection, before all others.
    PutBack { held: Range<usize> },
    /// The file is to stand here: it was written by another way.
    Stand { at: u64 },
    /// The connection says this with its next call.
    TellNext(Errno),
    /// The call is over. 0 bytes: the stream has ended.
    End(Result<usize, Stopped>),
}

/// How it went straight into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Straight {
    /// What the connection said: bytes, or what is wrong with it.
    pub said: Result<usize, Errno>,
    /// Bytes that are in the file.
    pub taken: usize,
    /// What the file said: it has failed; `Some(None)`: the next bytes have to be waited for.
    pub file: Option<Option<Errno>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Straight,
    Receiving,
    Writing,
    PassingBy,
    Over,
}

/// One call.
#[derive(Debug)]
pub struct Inward {
    /// Where its first byte goes; `None`: where the file stands.
    at: Option<u64>,
    /// Where the next one goes by another way.
    past: Option<u64>,
    length: usize,
    chunk: usize,
    /// The call may wait for the connection.
    waits: bool,
    done: usize,
    /// What was asked for last, and what of it is in the buffer.
    asked: usize,
    held: Range<usize>,
    /// Up to here by the buffer, then straight again.
    straight_from: Option<usize>,
    state: State,
    tell_next: Option<Errno>,
    stopped: Option<Errno>,
}

impl Inward {
    /// Up to `length` bytes, from this place on or from where the file stands, by a buffer of so many; `waits`: for the connection, if need be.
    pub fn new(at: Option<u64>, length: usize, chunk: usize, waits: bool) -> Inward {
        Inward {
            at,
            past: None,
            length,
            chunk,
            waits,
            done: 0,
            asked: 0,
            held: 0..0,
            straight_from: None,
            state: if length == 0 { State::Over } else { State::Receiving },
            tell_next: None,
            stopped: None,
        }
    }

    /// It is a pipe, and nothing is to be waited for.
    #[must_use]
    pub fn straight(self) -> Inward {
        let state = if self.length == 0 { State::Over } else { State::Straight };
        Inward { state, ..self }
    }

    /// The buffer is filled before it is written: each write is a system call, and bytes come in small parts. Who reads at the other end of a pipe
    /// has what is there at once.
    pub fn collects(&self) -> bool {
        self.at.is_some()
    }

    /// It goes by another way than the descriptor.
    pub fn is_past(&self) -> bool {
        self.past.is_some()
    }

    fn position(&self) -> Option<u64> {
        self.past.or(self.at.map(|at| at + self.done as u64))
    }

    pub fn step(&mut self) -> Step {
        let left = self.length - self.done;
        match self.state {
            State::Straight => {
                self.asked = left;
                Step::Straight { at: self.position(), most: left }
            }
            State::Receiving => {
                let most = self.straight_from.map_or(left, |from| from - self.done);
                self.asked = most.min(self.chunk);
                Step::Receive { most: self.asked }
            }
            State::Writing => Step::Write { at: self.position(), held: self.held.clone() },
            State::PassingBy => Step::PassBy { at: self.position() },
            State::Over => self.end(),
        }
    }

    /// What is left to be said and done, one after the other.
    fn end(&mut self) -> Step {
        if !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            return Step::PutBack { held };
        }
        if let (None, Some(at)) = (self.at, self.past.take()) {
            return Step::Stand { at };
        }
        if let Some(errno) = self.tell_next.take() {
            return Step::TellNext(errno);
        }
        let done = self.done;
        Step::End(self.stopped.map_or(Ok(done), |errno| Err(Stopped { done, errno })))
    }

    /// Bytes were received straight into the file.
    pub fn went_straight(&mut self, how: Straight) {
        self.count(how.taken);
        match (how.said, how.file) {
            (_, Some(Some(errno))) => self.stop(errno),
            // Some of it would have to be waited for, which is not to be done there.
            (_, Some(None)) if self.done < self.length => {
                self.straight_from = Some(self.length.min(self.done + self.chunk));
                self.state = State::Receiving;
            }
            // Of one that does not wait, as much as is there.
            (Ok(got @ 1..), None) if (got == self.asked || !self.waits) && self.done < self.length => {}
            (Ok(_), _) => self.state = State::Over,
            (Err(errno), _) => self.refused(errno),
        }
    }

    /// So many bytes are in the buffer; 0: the stream has ended.
    pub fn received(&mut self, outcome: Result<usize, Errno>) {
        match outcome {
            Ok(0) => self.state = State::Over,
            Ok(got) => {
                self.held = 0..got;
                self.state = State::Writing;
            }
            Err(errno) => self.refused(errno),
        }
    }

    /// The connection gave none, for this reason.
    fn refused(&mut self, errno: Errno) {
        if self.done == 0 {
            self.stopped = Some(errno);
        } else if !is_said_again(errno) {
            self.tell_next = Some(errno);
        }
        self.state = State::Over;
    }

    /// The file took so many of the bytes that are held. Whether it is a regular one is asked where it matters: what is none takes a part of
    /// them, or none (EINTR), when a signal comes while it has no room: the call is to end then, as splice(2) does.
    pub fn written(&mut self, outcome: Result<usize, Errno>, is_file: impl FnOnce() -> bool) {
        match outcome {
            Ok(0) => self.stop(Errno::ENOSPC),
            Ok(bytes) => {
                let bytes = bytes.min(self.held.len());
                self.held.start += bytes;
                self.count(bytes);
                if self.held.is_empty() {
                    self.chunk_is_written();
                } else if self.at.is_none() && !self.is_past() && !is_file() {
                    self.state = State::Over;
                }
            }
            Err(Errno::EINTR) if self.held.start == 0 && (self.at.is_some() || is_file()) => {}
            Err(Errno::EINVAL) if !self.is_past() => self.state = State::PassingBy,
            Err(errno) => self.stop(errno),
        }
    }

    /// From here on what is held goes by another way, from this place on; `None`: there is none.
    pub fn passed_by(&mut self, from: Option<u64>) {
        match from {
            Some(at) => {
                self.past = Some(at);
                self.state = State::Writing;
            }
            None => self.stop(Errno::EINVAL),
        }
    }

    fn count(&mut self, bytes: usize) {
        self.done += bytes;
        self.past = self.past.map(|at| at + bytes as u64);
    }

    fn chunk_is_written(&mut self) {
        let was_short = self.held.end < self.asked;
        self.state = if self.done == self.length {
            State::Over
        } else if self.straight_from.is_some_and(|from| was_short || from == self.done) {
            self.straight_from = None;
            State::Straight
        } else if self.collects() && was_short {
            // The stream or the wait has ended, or that is all that is here.
            State::Over
        } else {
            State::Receiving
        };
    }

    /// The file has ended it.
    fn stop(&mut self, errno: Errno) {
        self.stopped = Some(errno);
        self.state = State::Over;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> bool {
        true
    }

    #[test]
    fn what_the_file_does_not_take_goes_back_and_the_call_says_why() {
        let mut call = Inward::new(Some(100), 10, 8, true);
        assert_eq!(call.step(), Step::Receive { most: 8 });
        call.received(Ok(8));
        assert_eq!(call.step(), Step::Write { at: Some(100), held: 0..8 });
        call.written(Ok(5), file);
        assert_eq!(call.step(), Step::Write { at: Some(105), held: 5..8 });
        call.written(Err(Errno::ENOSPC), file);
        assert_eq!(call.step(), Step::PutBack { held: 5..8 });
        assert_eq!(call.step(), Step::End(Err(Stopped { done: 5, errno: Errno::ENOSPC })));
    }

    #[test]
    fn what_a_connection_says_once_is_for_the_next_call_if_bytes_moved() {
        for (errno, is_told) in [(Errno::ECONNRESET, true), (Errno::EAGAIN, false), (Errno::EINTR, false)] {
            let mut call = Inward::new(None, 10, 8, true);
            call.received(Ok(4));
            call.written(Ok(4), file);
            assert_eq!(call.step(), Step::Receive { most: 6 });
            call.received(Err(errno));
            if is_told {
                assert_eq!(call.step(), Step::TellNext(errno));
            }
            assert_eq!(call.step(), Step::End(Ok(4)), "{errno:?}");
        }
    }

    #[test]
    fn by_another_way_it_goes_on_from_where_it_is() {
        let mut call = Inward::new(None, 10, 8, true);
        call.received(Ok(8));
        call.written(Err(Errno::EINVAL), file);
        assert_eq!(call.step(), Step::PassBy { at: None });
        call.passed_by(Some(500));
        assert_eq!(call.step(), Step::Write { at: Some(500), held: 0..8 });
        call.written(Ok(8), file);
        call.step();
        call.received(Ok(0));
        assert_eq!((call.step(), call.step()), (Step::Stand { at: 508 }, Step::End(Ok(8))));
    }

    #[test]
    fn what_has_to_be_waited_for_goes_by_the_buffer_and_the_rest_straight() {
        let mut call = Inward::new(Some(0), 20, 8, true).straight();
        assert_eq!(call.step(), Step::Straight { at: Some(0), most: 20 });
        call.went_straight(Straight { said: Ok(3), taken: 3, file: Some(None) });
        assert_eq!(call.step(), Step::Receive { most: 8 });
        call.received(Ok(8));
        call.written(Ok(8), file);
        assert_eq!(call.step(), Step::Straight { at: Some(11), most: 9 });
        call.went_straight(Straight { said: Ok(9), taken: 9, file: None });
        assert_eq!(call.step(), Step::End(Ok(20)));
    }
}
