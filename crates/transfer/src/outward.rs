//! From a file to a connection.
//!
//! The connection asks for bytes, under its lock, when it has room for them. Those that were read ahead come first; then the file is read straight
//! into the room, as long as that needs no waiting. Where it would, the file is read ahead without the lock. What the connection has no use
//! for after all it gives back, and is given again.

use crate::is_said_again;
use toe_abi::errno::Errno;

/// Most bytes that are spoken of at a time.
const MOST: usize = 1 << 30;
/// So few bytes cost less to copy once more than it costs to ask what kind of file it is.
const FEW: usize = 16 << 10;
/// So few bytes are read at once where there is room for them: what kind of file it is shows then.
pub const ONE_PIECE: usize = 256 << 10;

/// Why nothing is read straight from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It has no more.
    End,
    /// The disk has to be waited for.
    Waits,
    /// Whoever wanted the bytes has cancelled that.
    Cancelled,
    Failed(Errno),
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask what the file has from this position on ([`Outward::looked`]).
    Look { position: u64 },
    /// Read up to so many bytes from there on, and wait for them ([`Outward::on_readahead`]).
    Readahead { position: u64, most: usize },
    /// Have the connection take what it has room for ([`Outward::went`]).
    Send,
    /// Nothing more follows what went with the word that more does.
    LetGo,
    /// The connection would not have been asked by Linux if the file had nothing ([`Outward::asked`]).
    Ask { position: u64 },
    /// The connection says this with its next call.
    TellNext(Errno),
    /// The call is over.
    End(Result<usize, Errno>),
}

/// What a file was seen to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// How long it is; `None`: it does not say.
    pub len: Option<u64>,
    /// It is read by whole blocks, and waited for.
    pub by_blocks: bool,
}

/// One call.
#[derive(Debug)]
pub struct Outward {
    /// Of the next byte that is to be put.
    position: u64,
    /// All that the call is to send from there on.
    wanted: usize,
    /// As much of it as the file had when it was looked at.
    left: usize,
    sent: usize,
    /// Bytes read ahead at a time, at most.
    readahead_max: usize,
    /// The connection had room when the call began.
    has_room: bool,
    /// The program has more to send after this call.
    more: bool,
    state: State,
    /// It is known how many bytes there are: the last one is known, too.
    is_sized: bool,
    by_blocks: bool,
    stopped: Option<Stop>,
    /// The next bytes, so many, were read and not put yet.
    readahead: usize,
    /// The last that were put had been read ahead.
    last_was_readahead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Looking,
    /// What was found is to be read, if it has to be waited for.
    Filling,
    Sending,
    LettingGo,
    /// The connection has said this, and the file is to be asked.
    Asking(Errno),
    Telling(Errno, Result<usize, Errno>),
    Over(Result<usize, Errno>),
}

/// Whether a file is looked at before so many bytes of it are sent, and its disk is not simply waited for. `has_room`: some of them can go at once.
pub fn is_long(length: usize, has_room: bool) -> bool {
    length > if has_room { ONE_PIECE } else { FEW }
}

impl Outward {
    /// `length` bytes from `position` on, up to the file's end, towards a connection that has room now, or has none; `more`: the program will send more.
    /// So many bytes are read ahead at a time, at most.
    pub fn new(position: u64, length: usize, readahead_max: usize, has_room: bool, more: bool) -> Outward {
        Outward {
            position,
            wanted: length,
            left: 0,
            sent: 0,
            readahead_max,
            has_room,
            more,
            state: State::Looking,
            is_sized: false,
            by_blocks: false,
            stopped: None,
            readahead: 0,
            last_was_readahead: false,
        }
    }

    pub fn step(&mut self) -> Step {
        match self.state {
            State::Looking if is_long(self.wanted, self.has_room) => Step::Look { position: self.position },
            State::Looking => {
                (self.left, self.is_sized) = (self.wanted, false);
                self.stopped = (self.wanted <= FEW).then_some(Stop::Waits);
                self.state = State::Filling;
                self.step()
            }
            State::Filling if self.waits() => {
                Step::Readahead { position: self.position, most: self.wanted_readahead() }
            }
            // As with Linux, of nothing to send the connection is not asked, and what is wrong with the file comes first.
            State::Filling if self.is_done() => Step::End(self.outcome()),
            State::Filling | State::Sending => {
                self.state = State::Sending;
                Step::Send
            }
            State::LettingGo => {
                self.state = State::Over(self.outcome());
                Step::LetGo
            }
            State::Asking(_) => Step::Ask { position: self.position },
            State::Telling(errno, outcome) => {
                self.state = State::Over(outcome);
                Step::TellNext(errno)
            }
            State::Over(outcome) => Step::End(outcome),
        }
    }

    fn outcome(&self) -> Result<usize, Errno> {
        match self.stopped {
            Some(Stop::Failed(errno)) if self.sent == 0 => Err(errno),
            _ => Ok(self.sent),
        }
    }

    /// What the file has; or what it says when it is asked that.
    pub fn looked(&mut self, outcome: Result<Looked, Errno>) {
        match outcome {
            Ok(Looked { len, by_blocks }) => {
                let there = len.map_or(0, |len| len.saturating_sub(self.position));
                let there = usize::try_from(there).unwrap_or(usize::MAX);
                // Files of the kernel's say 0, whatever they have; and past the end only the read says what is wrong with a file.
                self.is_sized = there > 0;
                self.left = if self.is_sized { self.wanted.min(there) } else { self.wanted };
                self.by_blocks = by_blocks;
                self.stopped = (!self.is_sized || by_blocks).then_some(Stop::Waits);
                self.state = State::Filling;
            }
            Err(errno) => {
                self.stopped = Some(Stop::Failed(errno));
                self.state = State::Over(self.outcome());
            }
        }
    }

    /// The connection was asked, and so many bytes went; or it said what is wrong.
    pub fn went(&mut self, outcome: Result<usize, Errno>) {
        self.state = match outcome {
            Ok(bytes) => self.after(bytes),
            Err(errno) if self.sent > 0 => report_next(errno, Ok(self.sent)),
            Err(errno) if self.has_room => State::Asking(errno),
            Err(errno) => State::Over(Err(errno)),
        };
    }

    /// So many bytes went.
    fn after(&mut self, bytes: usize) -> State {
        self.sent += bytes;
        let (has_all, has_failed) =
            (self.left == 0 && self.is_sized, matches!(self.stopped, Some(Stop::Failed(_))));
        if bytes > 0 && !self.more && self.is_done() && self.left > 0 {
            State::LettingGo
        } else if bytes > 0 && self.wanted > 0 && has_all && !has_failed {
            // What has grown since is looked for.
            State::Looking
        } else {
            State::Over(self.outcome())
        }
    }

    /// What Linux would have said before it asked the connection: 0 or an error where the file has nothing to read there.
    pub fn asked(&mut self, file: Option<Result<usize, Errno>>) {
        if let State::Asking(errno) = self.state {
            self.state = match file {
                Some(first) => report_next(errno, first),
                None => State::Over(Err(errno)),
            };
        }
    }

    /// Whoever wanted the bytes wants no more of them.
    pub fn cancel(&mut self) {
        self.stopped = Some(Stop::Cancelled);
    }
}

fn report_next(errno: Errno, outcome: Result<usize, Errno>) -> State {
    if is_said_again(errno) { State::Over(outcome) } else { State::Telling(errno, outcome) }
}

/// While the connection takes bytes.
impl Outward {
    /// Of the next byte that is to be put.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that the connection may be given now, or more of them.
    pub fn left(&self) -> usize {
        match self.stopped {
            None => self.left.min(MOST),
            Some(_) => self.readahead,
        }
    }

    /// All that is left for the call, of what there was.
    pub fn left_in_all(&self) -> usize {
        self.left
    }

    /// Most bytes to read ahead now.
    pub fn wanted_readahead(&self) -> usize {
        self.readahead_max.min(self.left)
    }

    /// Bytes that were read ahead and not put: the last of those that were read.
    pub fn readahead(&self) -> usize {
        self.readahead
    }

    /// So many of those that were read ahead were put.
    pub fn put_readahead(&mut self, bytes: usize) {
        self.readahead -= bytes;
        self.last_was_readahead = true;
        self.advance(bytes);
    }

    /// The file was read straight into the room, without waiting. How many bytes count. EAGAIN, EOPNOTSUPP: it would have to be waited for, or cannot tell.
    pub fn read_at_hand(&mut self, outcome: Result<usize, Errno>) -> usize {
        self.stopped = match outcome {
            Ok(0) => Some(Stop::End),
            Ok(bytes) => {
                self.last_was_readahead = false;
                self.advance(bytes);
                return bytes;
            }
            Err(Errno::EAGAIN | Errno::EOPNOTSUPP | Errno::EINTR) => Some(Stop::Waits),
            // It may be one that is read by whole blocks.
            Err(Errno::EINVAL) if !self.is_sized => Some(Stop::Waits),
            Err(errno) => Some(Stop::Failed(errno)),
        };
        0
    }

    /// The file was read and waited for; so many bytes lie there now.
    pub fn on_readahead(&mut self, outcome: Result<usize, Errno>) {
        match outcome {
            Ok(0) => self.stopped = Some(Stop::End),
            Ok(bytes) => {
                self.readahead = bytes.min(self.left);
                // What follows may be at hand by now.
                if self.is_sized && !self.by_blocks {
                    self.stopped = None;
                }
            }
            Err(Errno::EINTR) => {}
            Err(errno) => self.stopped = Some(Stop::Failed(errno)),
        }
    }

    /// It turned out to be read by whole blocks.
    pub fn goes_by_blocks(&mut self) {
        self.by_blocks = true;
    }

    pub fn by_blocks(&self) -> bool {
        self.by_blocks
    }

    /// The last bytes that were put, so many, are to be put again.
    pub fn take_back(&mut self, bytes: usize) {
        self.position -= bytes as u64;
        (self.left, self.wanted) = (self.left + bytes, self.wanted + bytes);
        if self.last_was_readahead {
            self.readahead += bytes;
        }
    }

    /// Nothing more will come.
    pub fn is_done(&self) -> bool {
        let ended = matches!(self.stopped, Some(Stop::End | Stop::Cancelled | Stop::Failed(_)));
        self.readahead == 0 && (self.left == 0 || ended)
    }

    /// What comes next has to be read ahead.
    pub fn waits(&self) -> bool {
        self.stopped == Some(Stop::Waits) && self.readahead == 0 && self.left > 0
    }

    fn advance(&mut self, bytes: usize) {
        self.position += bytes as u64;
        self.left -= bytes;
        self.wanted -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 1 << 20;

    fn looked(len: u64) -> Outward {
        let mut call = Outward::new(0, usize::MAX, 1000, false, false);
        assert_eq!(call.step(), Step::Look { position: 0 });
        call.looked(Ok(Looked { len: Some(len), by_blocks: false }));
        call
    }

    /// Those that were read ahead lie there still; those that were read straight from the file are read again.
    #[test]
    fn what_is_taken_back_comes_from_where_it_came() {
        let mut call = looked(LONG as u64);
        assert_eq!(call.read_at_hand(Err(Errno::EAGAIN)), 0);
        call.on_readahead(Ok(1000));
        call.put_readahead(1000);
        call.take_back(1000);
        assert_eq!((call.position(), call.readahead()), (0, 1000));
        call.put_readahead(1000);
        assert_eq!(call.read_at_hand(Ok(500)), 500);
        call.take_back(500);
        assert_eq!((call.position(), call.readahead()), (1000, 0));
    }

    #[test]
    fn what_has_grown_since_goes_too() {
        let mut call = looked(LONG as u64);
        assert_eq!(call.step(), Step::Send);
        call.read_at_hand(Ok(LONG));
        call.went(Ok(LONG));
        assert_eq!(call.step(), Step::Look { position: LONG as u64 });
        call.looked(Ok(Looked { len: Some(LONG as u64), by_blocks: false }));
        assert_eq!(call.step(), Step::Readahead { position: LONG as u64, most: 1000 });
        call.on_readahead(Ok(0));
        assert_eq!(call.step(), Step::End(Ok(LONG)));
    }

    #[test]
    fn a_file_that_ends_early_lets_go_what_waits_for_more() {
        let mut call = looked(LONG as u64);
        assert_eq!(call.step(), Step::Send);
        call.read_at_hand(Ok(1000));
        call.read_at_hand(Ok(0));
        call.went(Ok(1000));
        assert_eq!((call.step(), call.step()), (Step::LetGo, Step::End(Ok(1000))));
    }

    #[test]
    fn what_the_file_says_comes_before_what_the_connection_says() {
        let mut call = Outward::new(7, LONG, 1000, true, false);
        call.looked(Ok(Looked { len: Some(LONG as u64), by_blocks: false }));
        assert_eq!(call.step(), Step::Send);
        call.went(Err(Errno::ECONNRESET));
        assert_eq!(call.step(), Step::Ask { position: 7 });
        call.asked(Some(Err(Errno::EIO)));
        assert_eq!(call.step(), Step::TellNext(Errno::ECONNRESET));
        assert_eq!(call.step(), Step::End(Err(Errno::EIO)));
    }
}
