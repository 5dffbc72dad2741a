//! Bytes between a file and a connection without the program's hands: directwrite and directread (the paper's names: a transfer that
//! stays below the application). A chunk a call is its Method I, a whole file in one call its Method II; here the length decides.
//!
//! Towards the connection the file's pages are copied once, into the memory that the engine (or the peer) reads ([`source`]); what is not
//! at hand is waited for without a lock. From the connection bytes go by a buffer: what the file does not take is put back, so that
//! nothing that was received is lost. [`job`] does either beside the program, in a thread of its own. What is done next, and what a call returns,
//! is decided by `toe_transfer`, which knows no file and no socket; here it is done.
//!
//! Used by [`crate::capi`], and by the switch layer for sendfile.

mod copy;
mod cut;
pub mod job;
mod kind;
mod locks;
mod memory;
mod pinned;
pub mod pipe;
mod source;
mod unbuffered;

use crate::errno::from_os;
use crate::socket::slices::Source as _;
use crate::socket::{Kind, RecvFlags, SendFlags, Socket, SocketCall, stream};
use copy::Copy;
pub(crate) use kind::at_hand;
use kind::{is_file, is_pipe};
pub(crate) use locks::has_own_locks;
pub use pinned::PinnedFile;
use pipe::PipeTarget;
use rustix::fd::BorrowedFd;
use source::FileSource;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::AtomicBool;
use toe_abi::entry::{Command, FlowOption};
use toe_abi::errno::Errno;
pub use toe_transfer::Stopped;
use toe_transfer::{Inward, Outward, step};

/// Bytes from a connection to a file at a time.
const CHUNK: usize = 256 << 10;

impl Socket {
    /// Sends up to `length` bytes of `file` from `position` on: all of them, as far as the file has them, or as much as fits when the
    /// socket or the call is non-blocking. Fewer: the file has ended, SO_SNDTIMEO is over, a signal came, or what is wrong shows with
    /// the next call. What is read is what the file has at that moment.
    ///
    /// EBADF: the file is not open for reading; ESPIPE, EISDIR: it has no positions; EIO and others of read(2); those of a send.
    pub fn send_file(
        &'static self,
        file: &PinnedFile<'_>,
        position: u64,
        length: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.send_file_unless(file, position, length, flags, None)
    }

    /// The same, which reads nothing more once `cancelled` is set: fewer bytes, or none.
    fn send_file_unless(
        &'static self,
        file: &PinnedFile<'_>,
        position: u64,
        length: usize,
        flags: SendFlags,
        cancelled: Option<&AtomicBool>,
    ) -> Result<usize, Errno> {
        let has_room = self.kind() == Kind::Stream && self.ready_now() & stream::OUT != 0;
        let socket_call = SocketCall::begin(self);
        socket_call.hold()?;
        if toe_transfer::is_long(length, has_room) && !flags.dont_wait && !self.nonblocking() {
            // It may well wait, and from its first read on the file is to be the same.
            file.keep(self.session());
        }
        let call = Outward::new(position, length, source::READAHEAD, has_room, flags.more);
        let mut source = FileSource::new(file, call, cancelled);
        loop {
            match source.call.step() {
                step::Outward::Look { .. } => source.look(),
                step::Outward::Readahead { .. } => source.refill(),
                step::Outward::Send => {
                    let outcome = self.send_in(&socket_call, &mut source, flags);
                    source.call.went(outcome);
                }
                step::Outward::LetGo => self.let_held_go(),
                step::Outward::Ask { position } => source.ask(position),
                step::Outward::TellNext(errno) => self.tell_next(errno),
                step::Outward::End(outcome) => return outcome,
            }
        }
    }

    /// Receives up to `length` bytes into `file`, from `position` on or, without one, where the file stands (pipes too): all of them,
    /// unless the stream ends before, or as many as are there when the socket is non-blocking or the call is not to wait. 0: the
    /// stream has ended.
    ///
    /// `Err`: it stopped for what the file said (ENOSPC, EDQUOT, EFBIG, EIO, EBADF: not open for writing, EAGAIN: a pipe is full) or the
    /// connection. What was received and not written is there to be received.
    pub fn receive_file(
        &'static self,
        file: &PinnedFile<'_>,
        position: Option<u64>,
        length: usize,
        flags: RecvFlags,
    ) -> Result<usize, Stopped> {
        let _held = self.hold();
        let waits = !flags.dont_wait && !self.nonblocking();
        let mut done = 0;
        if waits {
            if self.has_come(length) {
                // A small part of what is here already: nothing is waited for, and so nothing has to be kept.
                let call = Inward::new(position, length, CHUNK, false);
                let at_once = RecvFlags { dont_wait: true, ..flags };
                match self.receive_by(call, file, at_once) {
                    // Another thread has had some of it, or a pipe has no room.
                    Err(stopped) if stopped.errno == Errno::EAGAIN => done = stopped.done,
                    Ok(some) if some < length => done = some,
                    outcome => return outcome,
                }
            }
            // The connection has to be waited for, as a rule.
            file.keep(self.session());
        }
        let (position, length) = (position.map(|at| at + done as u64), length - done);
        let call = Inward::new(position, length, CHUNK, waits);
        // A pipe is given what it has room for, so that nothing has to be put back.
        let into_pipe = !waits && position.is_none() && is_pipe(file.fd());
        let call = if into_pipe && self.kind() == Kind::Stream { call.straight() } else { call };
        match self.receive_by(call, file, flags) {
            Ok(rest) => Ok(done + rest),
            Err(stopped) => Err(Stopped { done: done + stopped.done, ..stopped }),
        }
    }

    /// Whether so many bytes are here, as far as is known.
    fn has_come(&self, bytes: usize) -> bool {
        let has =
            |stream: &mut stream::Stream| !stream.ulp.opens_records() && stream.recv.countable() >= bytes;
        self.kind() == Kind::Stream && bytes <= CHUNK && self.peek_stream(has) == Some(true)
    }

    fn receive_by(
        &'static self,
        mut call: Inward,
        pinned: &PinnedFile<'_>,
        flags: RecvFlags,
    ) -> Result<usize, Stopped> {
        let (file, mut buffer, mut past) = (pinned.fd(), Vec::new(), None);
        loop {
            match call.step() {
                step::Inward::Straight { most, .. } => {
                    let mut target = PipeTarget::new(file, most);
                    let said = self.recv_to(&mut target, RecvFlags { wait_all: true, ..flags });
                    call.went_straight(target.how_it_went(said));
                }
                step::Inward::Receive { most } => {
                    buffer.resize(most, 0);
                    let flags = RecvFlags { wait_all: call.collects(), ..flags };
                    call.received(self.recv(&mut [IoSliceMut::new(&mut buffer)], flags));
                }
                step::Inward::Write { at, held } => {
                    let to = past.as_ref().map_or(file, Copy::fd);
                    let outcome = match pinned.is_same() {
                        true => write(to, at, &buffer[held], flags.dont_wait),
                        false => Err(Errno::EBADF),
                    };
                    call.written(outcome, || is_file(to));
                }
                step::Inward::PassBy { at } => {
                    past = self
                        .owner_queue()
                        .and_then(|owner_queue| unbuffered::buffered(owner_queue.session, file));
                    // That one has a place of its own.
                    let from = past.as_ref().and_then(|_| at.or_else(|| rustix::fs::tell(file).ok()));
                    call.passed_by(from);
                }
                step::Inward::PutBack { held } => self.unreceive(buffer[held].to_vec()),
                step::Inward::Stand { at } => {
                    let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(at));
                }
                step::Inward::TellNext(errno) => self.tell_next(errno),
                step::Inward::End(outcome) => return outcome,
            }
        }
    }

    /// The engine holds a part of a segment for bytes that do not come: it goes out, unless the program has asked for that (TCP_CORK).
    fn let_held_go(&'static self) {
        let mut corked = [0; 4];
        let asked = self.get_option(libc::IPPROTO_TCP, libc::TCP_CORK, &mut corked);
        if asked.is_ok() && corked != [0; 4] {
            return;
        }
        self.with_stream(|io, stream, _| {
            if !stream.custody.has_let_go() && stream.channel().is_none() {
                io.command(Command::SetOption { flow: stream.flow, option: FlowOption::Cork, value: 0 });
                io.ring();
            }
        });
    }

    /// This call has moved bytes, so what the connection says once is for the next one.
    fn tell_next(&'static self, errno: Errno) {
        if self.kind() == Kind::Stream {
            self.with_stream(|_, stream, _| stream.put_error(errno));
        }
    }

    /// Bytes that were received go back to where they came from, before all others.
    fn unreceive(&'static self, bytes: Vec<u8>) {
        if self.kind() == Kind::Stream {
            self.with_stream(|_, stream, _| stream.put_back(bytes));
        }
    }
}

/// With `at_once` it does not wait for a pipe's reader, where the kernel can do without (Linux 6.4): that a pipe is writable says that a page fits.
fn write(file: BorrowedFd<'_>, position: Option<u64>, bytes: &[u8], at_once: bool) -> Result<usize, Errno> {
    let outcome = match position {
        Some(at) => rustix::io::pwrite(file, bytes, at),
        None if at_once && !is_file(file) => {
            let slices = [IoSlice::new(bytes)];
            match rustix::io::pwritev2(file, &slices, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT) {
                Err(rustix::io::Errno::OPNOTSUPP) => {
                    rustix::io::write(file, &bytes[..bytes.len().min(libc::PIPE_BUF)])
                }
                outcome => outcome,
            }
        }
        None => rustix::io::write(file, bytes),
    };
    outcome.map_err(from_os)
}
