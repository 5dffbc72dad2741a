//! Octets between a file and a connection without the program's hands: directwrite and directread (the paper's names: a transfer that
//! stays below the application). A chunk a call is its Method I, a whole file in one call its Method II; here the length decides.
//!
//! Towards the connection the file's pages are copied once, into the memory that the engine (or the peer) reads ([`source`]); what is not
//! at hand is waited for without a lock. From the connection octets go by a buffer: what the file does not take is put back, so that
//! nothing that was received is lost. [`job`] does either beside the program, in a thread of its own.
//!
//! Used by [`crate::capi`], and by the switch layer for sendfile.

pub mod job;
mod kept;
mod memory;
pub mod pipe;
mod source;
mod target;
mod unbuffered;

use crate::errno::{ERESTART, from_os};
use crate::socket::slices::Source as _;
use crate::socket::stream;
use crate::socket::{Kind, RecvFlags, SendFlags, Socket, Turn};
use crate::sys::Fd;
pub use kept::KeptFile;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno as Os;
use source::FileSource;
use std::io::IoSliceMut;
use std::sync::atomic::AtomicBool;
use target::{FileTarget, Stop};
use toe_abi::entry::{Command, FlowOption};
use toe_abi::errno::Errno;

/// Octets from a connection to a file at a time.
const CHUNK: usize = 256 << 10;

/// So few octets are collected first: straight to the file they would go in as many small parts as they come in.
const PATIENT: usize = 128 << 10;

/// What a transfer that ends early has done, and why it ended; `done` octets are at their place in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    pub done: usize,
    pub errno: Errno,
}

impl Socket {
    /// Sends up to `length` octets of `file` from `position` on: all of them, as far as the file has them, or as much as fits when the
    /// socket or the call is non-blocking. Fewer: the file has ended, SO_SNDTIMEO is over, a signal came, or what is wrong shows with
    /// the next call. What is read is what the file has at that moment.
    ///
    /// EBADF: the file is not open for reading; ESPIPE, EISDIR: it has no positions; EIO and others of read(2); those of a send.
    pub fn send_file(
        &'static self,
        file: &KeptFile<'_>,
        position: u64,
        length: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.send_file_unless(file, position, length, flags, None)
    }

    /// The same, which reads nothing more once `cancelled` is set: fewer octets, or none.
    fn send_file_unless(
        &'static self,
        file: &KeptFile<'_>,
        position: u64,
        length: usize,
        flags: SendFlags,
        cancelled: Option<&AtomicBool>,
    ) -> Result<usize, Errno> {
        let mut sent = 0;
        let has_room = self.kind() == Kind::Stream && self.ready_now() & stream::OUT != 0;
        let turn = Turn::begin(self);
        turn.hold()?;
        if source::is_long(length, has_room) && !flags.dont_wait && !self.nonblocking() {
            // It may well wait, and from its first read on the file is to be the same.
            file.keep(self);
        }
        loop {
            let source = match FileSource::new(file, position + sent as u64, length - sent, has_room) {
                Ok(source) => source,
                Err(_) if sent > 0 => return Ok(sent),
                Err(errno) => return Err(errno),
            };
            let mut source = source.unless(cancelled);
            // As with Linux, of nothing to send the connection is not asked, and what is wrong with the file comes first.
            source.refill();
            if source.is_done() {
                return if sent > 0 { Ok(sent) } else { source.error().map_or(Ok(0), Err) };
            }
            let outcome = self.send_in(&turn, &mut source, flags);
            let failed = source.error();
            match outcome {
                Ok(octets) => {
                    sent += octets;
                    if octets > 0 && !flags.more && source.is_cut_short() {
                        self.let_held_go();
                    }
                    // What has grown since is looked for.
                    if octets == 0 || sent == length || failed.is_some() || !source.has_sent_all() {
                        return if sent > 0 { Ok(sent) } else { failed.map_or(Ok(0), Err) };
                    }
                }
                Err(errno) if sent > 0 => {
                    self.tell_next(errno);
                    return Ok(sent);
                }
                Err(errno) => {
                    let first = if has_room { source.comes_first() } else { None };
                    if first.is_some() {
                        self.tell_next(errno);
                    }
                    return first.unwrap_or(Err(errno));
                }
            }
        }
    }

    /// Receives up to `length` octets into `file`, from `position` on or, without one, where the file stands (pipes too): all of them,
    /// unless the stream ends before, or as many as are there when the socket is non-blocking or the call is not to wait. 0: the
    /// stream has ended.
    ///
    /// `Err`: it stopped for what the file said (ENOSPC, EDQUOT, EFBIG, EIO, EBADF: not open for writing, EAGAIN: a pipe is full) or the
    /// connection. What was received and not written is there to be received.
    pub fn receive_file(
        &'static self,
        file: &KeptFile<'_>,
        position: Option<u64>,
        length: usize,
        flags: RecvFlags,
    ) -> Result<usize, Stopped> {
        let _held = self.hold();
        if !flags.dont_wait && !self.nonblocking() {
            // The connection has to be waited for, as a rule.
            file.keep(self);
        }
        let file = file.fd();
        if length > PATIENT && self.kind() == Kind::Stream && memory::is_in_memory(file) {
            return self.receive_to_memory(file, position, length, flags);
        }
        let outcome = self.receive_by_buffer(file, position, length, flags);
        match outcome {
            // What came is there again.
            Err(Stopped { done, errno: Errno::EINVAL }) => {
                let Some(buffered) = unbuffered::buffered(file) else { return outcome };
                self.receive_past(file, buffered, position, (done, length), flags)
            }
            outcome => outcome,
        }
    }

    /// The same from `done` octets on, by a descriptor of the library's that takes any number of octets anywhere.
    fn receive_past(
        &'static self,
        file: BorrowedFd<'_>,
        buffered: Fd,
        position: Option<u64>,
        (done, length): (usize, usize),
        flags: RecvFlags,
    ) -> Result<usize, Stopped> {
        // That one has a place of its own.
        let at = match position {
            Some(position) => Some(position + done as u64),
            None => rustix::fs::tell(file).ok(),
        };
        let outcome = self.receive_by_buffer(buffered.as_fd(), at, length - done, flags);
        let (Ok(more) | Err(Stopped { done: more, .. })) = outcome;
        if let (None, Some(at)) = (position, at) {
            let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(at + more as u64));
        }
        match outcome {
            Ok(more) => Ok(done + more),
            // Some went: what the connection says is for the next call.
            Err(Stopped { done: 0, errno }) if done > 0 => {
                self.tell_next(errno);
                Ok(done)
            }
            Err(stopped) => Err(Stopped { done: done + stopped.done, ..stopped }),
        }
    }

    fn receive_by_buffer(
        &'static self,
        file: BorrowedFd<'_>,
        position: Option<u64>,
        length: usize,
        flags: RecvFlags,
    ) -> Result<usize, Stopped> {
        let mut chunk = vec![0; CHUNK.min(length)];
        let mut done = 0;
        // It comes in small parts, and each write is a system call. Who reads at the other end of a pipe has what is there at once.
        let collects = position.is_some();
        let flags = RecvFlags { wait_all: collects, ..flags };
        while done < length {
            let want = chunk.len().min(length - done);
            let got = match self.recv(&mut [IoSliceMut::new(&mut chunk[..want])], flags) {
                Ok(0) => break,
                Ok(got) => got,
                Err(errno) if done > 0 => {
                    self.tell_next(errno);
                    break;
                }
                Err(errno) => return Err(Stopped { done, errno }),
            };
            let (written, failed) = write_all(file, position.map(|at| at + done as u64), &chunk[..got]);
            done += written;
            if written < got {
                self.unreceive(chunk[written..got].to_vec());
            }
            if let Some(error) = failed {
                return Err(Stopped { done, errno: from_os(error) });
            }
            if written < got {
                break;
            }
            // The stream or the wait has ended, or that is all that is here.
            if collects && got < want {
                break;
            }
        }
        Ok(done)
    }

    /// The same, for a file that lies in memory: the octets go there from where they were received.
    fn receive_to_memory(
        &'static self,
        file: BorrowedFd<'_>,
        position: Option<u64>,
        length: usize,
        flags: RecvFlags,
    ) -> Result<usize, Stopped> {
        let mut done = 0;
        while done < length {
            let mut target = FileTarget::new(file, position.map(|at| at + done as u64), length - done);
            let outcome = self.recv_to(&mut target, RecvFlags { wait_all: true, ..flags });
            let asked = length - done;
            done += target.taken();
            match (outcome, target.stopped()) {
                (_, Some(Stop::Failed(errno))) => return Err(Stopped { done, errno }),
                // Some of it would have to be waited for, which is not to be done there.
                (_, Some(Stop::Waits)) => {
                    let part = self.receive_by_buffer(
                        file,
                        position.map(|at| at + done as u64),
                        (length - done).min(CHUNK),
                        flags,
                    );
                    match part {
                        Ok(0) => break,
                        Ok(got) => done += got,
                        Err(stopped) => return Err(Stopped { done: done + stopped.done, ..stopped }),
                    }
                }
                // Of one that does not block, as much as is there.
                (Ok(got @ 1..), None) if got == asked || flags.dont_wait || self.nonblocking() => {}
                (Ok(_), None) => break,
                (Err(errno), None) if done > 0 => {
                    self.tell_next(errno);
                    break;
                }
                (Err(errno), None) => return Err(Stopped { done, errno }),
            }
        }
        Ok(done)
    }

    /// The engine holds a part of a segment for octets that do not come: it goes out, unless the program has asked for that (TCP_CORK).
    fn let_held_go(&'static self) {
        let mut corked = [0; 4];
        let asked = self.get_option(libc::IPPROTO_TCP, libc::TCP_CORK, &mut corked);
        if asked.is_ok() && corked != [0; 4] {
            return;
        }
        self.with_stream(|io, stream, _| {
            if !stream.let_go && stream.channel().is_none() {
                io.command(Command::SetOption { flow: stream.flow, option: FlowOption::Cork, value: 0 });
                io.ring();
            }
        });
    }

    /// What the connection says is told once. This call has moved octets, so it is for the next one: a reset is not to pass for an end.
    fn tell_next(&'static self, errno: Errno) {
        let is_of_call =
            matches!(errno, Errno::EAGAIN | Errno::EINTR | ERESTART | Errno::EPIPE | Errno::ENOTCONN);
        if !is_of_call && self.kind() == Kind::Stream {
            self.with_stream(|_, stream, _| stream.put_error(errno));
        }
    }

    /// Octets that were received go back to where they came from, before all others.
    fn unreceive(&'static self, octets: Vec<u8>) {
        if self.kind() == Kind::Stream {
            self.with_stream(|_, stream, _| stream.put_back(octets));
        }
    }
}

/// Writes all of `octets`; how many went, and what ended it before. What is no file takes a part of them, or none (EINTR), when a signal
/// comes while it has no room: the call is to end then, as splice(2) does.
fn write_all(file: BorrowedFd<'_>, position: Option<u64>, octets: &[u8]) -> (usize, Option<Os>) {
    let mut done = 0;
    while done < octets.len() {
        let outcome = match position {
            Some(at) => rustix::io::pwrite(file, &octets[done..], at + done as u64),
            None => rustix::io::write(file, &octets[done..]),
        };
        match outcome {
            Ok(0) => return (done, Some(Os::NOSPC)),
            Ok(written) => {
                done += written;
                if done < octets.len() && position.is_none() && !is_file(file) {
                    return (done, None);
                }
            }
            Err(Os::INTR) if done == 0 && (position.is_some() || is_file(file)) => {}
            Err(error) => return (done, Some(error)),
        }
    }
    (done, None)
}

fn is_file(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
    })
}
