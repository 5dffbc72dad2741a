//! Pipes: what splice(2) moves between one and a connection, each byte copied once. Called by the switch layer.
//!
//! Out of a connection bytes go to the pipe from where the engine or the peer has put them, as far as it has room. Out of a pipe they
//! cannot be taken before it is known how many go: they are doubled (tee) into a pipe of ours, by reference; from there they are read into the stream's
//! memory; and as many as went are then taken from the program's.

use super::PinnedFile;
use crate::errno::from_os;
use crate::session::Session;
use crate::socket::slices::{Bytes, Room, Source, Target};
use crate::socket::{RecvFlags, SendFlags, Socket, SocketCall};
use crate::sys::Fd;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::{Errno as Os, ReadWriteFlags};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use std::io::IoSlice;
use toe_abi::errno::Errno;
use toe_transfer::Straight;

/// Most bytes in one go: as many as a pipe holds unless it was made larger.
const AT_ONCE: usize = 64 << 10;

/// A pipe that takes what it has room for.
#[derive(Debug)]
pub(super) struct PipeTarget<'a> {
    pipe: BorrowedFd<'a>,
    all: usize,
    left: usize,
    stopped: Option<Os>,
}

impl<'a> PipeTarget<'a> {
    pub(super) fn new(pipe: BorrowedFd<'a>, length: usize) -> PipeTarget<'a> {
        PipeTarget { pipe, all: length, left: length, stopped: None }
    }

    /// What came of it, and of what the connection said.
    pub(super) fn how_it_went(&self, said: Result<usize, Errno>) -> Straight {
        // Where it cannot say that it has no room, the next bytes have to be waited for.
        let why = |error| (!matches!(error, Os::OPNOTSUPP | Os::INTR)).then(|| from_os(error));
        Straight { said, taken: self.all - self.left, file: self.stopped.map(why) }
    }
}

impl Target for PipeTarget<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn take(&mut self, bytes: Bytes<'_>, max: usize) -> Result<usize, Errno> {
        let max = max.min(self.left);
        if max == 0 || self.stopped.is_some() {
            return Ok(0);
        }
        let outcome = match bytes {
            Bytes::Shared(region, from) => region.write_file(from, max, self.pipe, None, true),
            Bytes::Own(bytes) => {
                let bytes = IoSlice::new(&bytes[..max.min(bytes.len())]);
                // The offset that means none.
                rustix::io::pwritev2(self.pipe, &[bytes], u64::MAX, ReadWriteFlags::NOWAIT)
            }
        };
        match outcome {
            Ok(put) => {
                self.left -= put;
                Ok(put)
            }
            Err(error) => {
                self.stopped = Some(error);
                Ok(0)
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }
}

/// A pipe of ours as the source of bytes.
#[derive(Debug)]
struct PipeSource<'a> {
    pipe: Fd,
    /// The program's, out of which is taken what went.
    from: &'a PinnedFile<'a>,
    left: usize,
    /// What was read from it went nowhere.
    has_lost: bool,
}

impl Source for PipeSource<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn check_next(&self, _: usize) -> Result<bool, Errno> {
        Ok(false)
    }

    fn put(&mut self, room: Room<'_>, max: usize) -> Result<usize, Errno> {
        let max = max.min(self.left);
        let got = match room {
            Room::Shared(region, offset) => region.read_pipe(offset, max, &self.pipe),
            Room::Own(room) => rustix::io::read(&self.pipe, &mut room[..max]),
        };
        let got = got.map_err(from_os)?;
        self.left -= got;
        Ok(got)
    }

    fn about_to_wait(&mut self, engine: Option<&'static Session>) {
        self.from.keep(engine);
    }

    fn take_back(&mut self, _: usize) {
        self.has_lost = true;
        self.left = 0;
    }
}

impl Socket {
    /// Receives up to `length` bytes into a pipe: what is there, and as much as it has room for at once; waits for the connection, unless told
    /// not to. 0: the stream has ended. EAGAIN from the connection is `Err(Ok(..))`'s; `Err(Err(..))` is the pipe's: EAGAIN: it has no
    /// room; EOPNOTSUPP: it cannot say; EPIPE.
    pub fn receive_pipe(
        &'static self,
        pipe: BorrowedFd<'_>,
        length: usize,
        flags: RecvFlags,
    ) -> Result<usize, Result<Errno, Os>> {
        let mut target = PipeTarget::new(pipe, length);
        let outcome = self.recv_to(&mut target, flags);
        match (outcome, target.stopped) {
            (Ok(0), Some(error)) => Err(Err(error)),
            (outcome, _) => outcome.map_err(Ok),
        }
    }

    /// Sends what is in `pipe`, which `double` puts into the pipe that it is given, and takes out of it what went. 0: there was nothing.
    pub fn send_pipe(
        &'static self,
        pipe: &PinnedFile<'_>,
        double: impl Fn(BorrowedFd<'_>, usize) -> Result<usize, Errno>,
        length: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        let socket_call = SocketCall::begin(self);
        socket_call.hold()?;
        loop {
            let (reads, writes) = pipe_with(PipeFlags::CLOEXEC).map_err(from_os)?;
            let (reads, writes) = (Fd::from(reads), Fd::from(writes));
            let left = double(writes.as_fd(), length.min(AT_ONCE))?;
            if left == 0 {
                return Ok(0);
            }
            let mut source = PipeSource { pipe: reads, from: pipe, left, has_lost: false };
            let sent = self.send_in(&socket_call, &mut source, flags)?;
            if sent > 0 || !source.has_lost {
                if pipe.is_same() {
                    take_out(pipe.fd(), writes, source.left == 0, sent);
                }
                return Ok(sent);
            }
        }
    }
}

/// Takes bytes out of `pipe` that are there: into one of ours, which has room for them if it `is_empty`, by reference.
fn take_out(pipe: BorrowedFd<'_>, into: Fd, is_empty: bool, bytes: usize) {
    let mut left = bytes;
    while is_empty && left > 0 {
        match splice(pipe, None, &into, None, left, SpliceFlags::NONBLOCK) {
            Ok(moved) if moved > 0 => left -= moved,
            _ => break,
        }
    }
    let mut scratch = vec![0; left];
    while left > 0 {
        match rustix::io::read(pipe, &mut scratch[..left]) {
            Ok(got) if got > 0 => left -= got,
            Err(Os::INTR) => {}
            // Another reader has had them.
            _ => break,
        }
    }
}
