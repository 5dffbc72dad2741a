//! A transfer beside the program: a thread of the library's moves the bytes, and a descriptor tells when it is over.

use crate::block::{BlockOn, OnSignal, block_on};
use crate::file::kind::is_file;
use crate::file::{PinnedFile, Stopped};
use crate::pace::Pace;
use crate::socket::stream::{HUP, IN, OUT};
use crate::socket::{Held, RecvFlags, SendFlags, Socket, SocketCall};
use crate::stack::Stack;
use crate::{helper, spin};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use toe_abi::errno::Errno;
use toe_transfer::{Asynchronous, Next};

/// Bytes in one go: between two of them it is looked whether the program has cancelled it, and before each read.
const STEP: usize = 4 << 20;
/// How long a pipe is waited for at a time: who cancels the transfer does not wake who waits for one.
const PIPE_LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the file to the connection; from this position on.
    Write(u64),
    /// From the connection to the file; at this position on, or where the file stands.
    Read(Option<u64>),
}

#[derive(Debug)]
struct State {
    done: AtomicUsize,
    /// 0: none so far.
    errno: AtomicU32,
    is_cancelled: AtomicBool,
    /// Readable once it is over.
    over: OwnedFd,
}

/// A transfer; the program's handle.
#[derive(Debug)]
pub struct Job {
    state: Arc<State>,
    /// Another connection's once the transfer is over: who waits for that one is then woken in vain.
    socket: &'static Socket,
}

impl Job {
    /// Begins. The descriptors may be closed by the program at once, but that of a file that it has locks of. EAGAIN: there can be no thread; EMFILE: no descriptor; ECONNREFUSED and
    /// others of an attach: there is no session.
    pub fn begin(
        socket: &'static Socket,
        file: BorrowedFd<'static>,
        way: Way,
        length: usize,
    ) -> Result<Job, Errno> {
        let file = PinnedFile::pinned(&Stack::get_or_why(socket.engine())?.session, file)?;
        let over = eventfd(0, EventfdFlags::CLOEXEC).map_err(crate::errno::from_os)?;
        let state = State {
            done: AtomicUsize::new(0),
            errno: AtomicU32::new(0),
            is_cancelled: AtomicBool::new(false),
            over,
        };
        let state = Arc::new(state);
        let mut work = Work { socket, _held: socket.hold(), file, way, length, state: Arc::clone(&state) };
        helper::start("toe-file", &[], move || {
            spin::sleep_at_once();
            let (errno, state) = (work.all(), Arc::clone(&work.state));
            // Whoever is told that it is over, and closes the connection, is the last that has it; and so with the file.
            drop(work);
            state.tell(errno);
        })?;
        Ok(Job { state, socket })
    }

    /// Readable when it is over.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.state.over.as_fd()
    }

    /// Bytes that are at their place by now.
    pub fn done(&self) -> usize {
        self.state.done.load(Ordering::Acquire)
    }

    /// It ends soon, with ECANCELED, unless it is over before.
    pub fn cancel(&self) {
        self.state.is_cancelled.store(true, Ordering::Release);
        // Whoever registers after this with what is woken here takes the same lock, and sees it.
        self.socket.kick_waiters();
    }

    /// Waits until it is over. How many bytes went; with what it ended, if not with all of them.
    pub fn end(self) -> Result<usize, Stopped> {
        let mut fds = [PollFd::new(&self.state.over, PollFlags::IN)];
        while poll(&mut fds, None).is_err() {}
        let (done, errno) = (self.done(), self.state.errno.load(Ordering::Acquire) as u16);
        if errno == 0 { Ok(done) } else { Err(Stopped { done, errno: Errno(errno) }) }
    }
}

impl State {
    /// It is over, with this.
    fn tell(&self, errno: Errno) {
        self.errno.store(errno.0.into(), Ordering::Release);
        let _ = rustix::io::write(&self.over, &1u64.to_ne_bytes());
    }
}

struct Work {
    socket: &'static Socket,
    _held: Held,
    file: PinnedFile<'static>,
    way: Way,
    length: usize,
    state: Arc<State>,
}

impl Work {
    /// With what it ends.
    fn all(&mut self) -> Errno {
        let mut call = Asynchronous::new(self.length, STEP);
        let got = Cell::new(0);
        // Who reads at the other end of a pipe has what is there at once.
        let pace = is_file(self.file.fd()).then(|| Pace::new(self.length, &got));
        loop {
            match call.step(self.is_cancelled()) {
                Next::Move { done, most } => {
                    let outcome = self.step(done, most);
                    call.moved(outcome, self.is_cancelled());
                    self.state.done.store(call.done(), Ordering::Release);
                    got.set(call.done());
                }
                Next::Wait => {
                    self.wait(pace.as_ref());
                    call.waited();
                }
                Next::End(outcome) => return outcome.err().map_or(Errno::OK, |stopped| stopped.errno),
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.state.is_cancelled.load(Ordering::Acquire)
    }

    /// As much as goes now.
    fn step(&self, done: usize, most: usize) -> Result<usize, Stopped> {
        match self.way {
            Way::Write(from) => {
                let flags = SendFlags { dont_wait: true, ..SendFlags::default() };
                let (file, from) = (&self.file, from + done as u64);
                let cancelled = Some(&self.state.is_cancelled);
                let outcome = self.socket.send_file_unless(file, from, most, flags, cancelled);
                outcome.map_err(|errno| Stopped { done: 0, errno })
            }
            Way::Read(at) => {
                let at = at.map(|at| at + done as u64);
                let flags = RecvFlags { dont_wait: true, ..RecvFlags::default() };
                self.socket.receive_file(&self.file, at, most, flags)
            }
        }
    }

    /// Waits for the connection, or until that is cancelled: without a time limit, so that a thousand that wait cost nothing.
    fn wait(&self, pace: Option<&Pace<'_>>) {
        let reads = matches!(self.way, Way::Read(_));
        let wanted = HUP | if reads { IN } else { OUT };
        let on = BlockOn {
            call: &SocketCall::begin(self.socket),
            deadline: None,
            silence: None,
            too_late: Errno::EAGAIN,
            twin_ready: None,
            on_signal: OnSignal::Defer,
            moved: None,
            pace: pace.filter(|_| reads),
        };
        if reads {
            // A pipe may be full instead. Nothing is received before it has room.
            while !self.is_cancelled() && !self.takes_bytes() {}
        }
        let _ = block_on(on, &mut || {
            // Looked at before the look is over: with it what came from another process with the connection goes back there.
            let ready = self.socket.with_stream(|_, _, _| self.socket.ready_now());
            let ready = ready.unwrap_or_else(|| self.socket.ready_now());
            Ok((self.is_cancelled() || ready & wanted != 0).then_some(()))
        });
    }

    /// Whether what the bytes go to takes some, or says what is wrong; waits a while for that.
    fn takes_bytes(&self) -> bool {
        let limit = Timespec { tv_sec: 0, tv_nsec: PIPE_LOOK_AGAIN.as_nanos() as i64 };
        poll(&mut [PollFd::from_borrowed_fd(self.file.fd(), PollFlags::OUT)], Some(&limit)) != Ok(0)
    }
}
