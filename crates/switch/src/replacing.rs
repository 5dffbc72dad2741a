//! Descriptors whose file this library replaces: a kernel's socket by an engine's anchor when an engine takes the connection, and
//! back when that fails. Used by `connect.rs` and `twin.rs`, and by `listen.rs` and `calls::epoll`, which must not come in between;
//! every call that ends a descriptor asks here first (`calls::open`).
//!
//! Meanwhile other threads of the program may close the number, or put something else there, and the kernel may give it out
//! again. What was about to be placed there then must not be, or a number would be open that nobody closes, or another socket
//! than the program made there. So whoever replaces says when it begins ([`Replacing::begin`]) and asks just before it does so
//! ([`Replacing::begin_placing`]); whoever ends the number forbids it, or waits for the few calls that placing takes ([`stop`]).
//! [`State::REPLACING`] says that there is something to ask for.

use crate::ffi::{last_errno, set_errno};
use crate::lookup::stream;
use crate::socket_state::{self, State};
use core::ffi::c_int;
use std::time::Duration;
use toe::lock::Lock;
use toe::{Errno, Socket, sys};

/// More than an engine may take to answer: then it is no longer waited for.
const WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The engine is asked; the descriptor is as it was.
    Asking,
    /// The file is exchanged, and the tables are.
    Placing,
    /// No engine has it: the kernel connects. Nothing is replaced any more, but whoever comes back from there wants to know whether
    /// the number is what it was. A signal's handler may not return there, so nobody waits for this one.
    InKernel,
    /// The program has ended the descriptor.
    Stopped,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    fd: c_int,
    phase: Phase,
}

#[derive(Debug)]
struct List {
    entries: Vec<Entry>,
    next: u64,
}

impl List {
    const fn new() -> List {
        List { entries: Vec::new(), next: 0 }
    }

    /// Who replaces the file of a number that has not been ended since: one at most.
    fn at(&mut self, fd: c_int) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.fd == fd && entry.phase != Phase::Stopped)
    }
}

static LIST: Lock<List> = Lock::new(List::new());

/// Why a thread may not replace what is at a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another thread is about to.
    Busy,
    /// The program has ended it.
    Ended,
    /// The kernel is connecting it.
    OfKernel,
}

/// A connect that is the kernel's. Plain data: a signal's handler may jump out of that call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InKernel(u64);

/// The calling thread is about to replace what is at a descriptor.
#[derive(Debug)]
pub struct Replacing {
    fd: c_int,
    id: u64,
}

impl Replacing {
    /// `as_long_as`: what is known of the descriptor until the program ends it. Whoever ends it takes its state ([`socket_state::take`])
    /// and so either finds that it is being replaced, or did so before this call.
    pub fn begin(fd: c_int, as_long_as: State) -> Result<Replacing, Refusal> {
        let mut list = LIST.lock();
        if let Some(entry) = list.at(fd) {
            return Err(if entry.phase == Phase::InKernel { Refusal::OfKernel } else { Refusal::Busy });
        }
        if !socket_state::before_adding(fd, State::REPLACING).has(as_long_as) {
            socket_state::remove(fd, State::REPLACING);
            return Err(Refusal::Ended);
        }
        let id = list.next;
        list.next += 1;
        list.entries.push(Entry { id, fd, phase: Phase::Asking });
        Ok(Replacing { fd, id })
    }

    /// The same, after whoever else does has done it.
    pub fn begin_after_others(fd: c_int, as_long_as: State) -> Result<Replacing, Refusal> {
        let until = sys::now() + WITHIN;
        loop {
            match Replacing::begin(fd, as_long_as) {
                Err(Refusal::Busy) if sys::now() < until => std::thread::yield_now(),
                begun => return begun,
            }
        }
    }

    /// It was placed, and another engine is asked.
    pub fn ask_again(&self) {
        let mut list = LIST.lock();
        let entry = list.at(self.fd).filter(|entry| entry.id == self.id);
        entry.into_iter().for_each(|entry| entry.phase = Phase::Asking);
    }

    /// It is not replaced, but the kernel's to connect. `None`: it is not what it was.
    pub fn leave_to_kernel(self) -> Option<InKernel> {
        let mut list = LIST.lock();
        let entry = list.at(self.fd).filter(|entry| entry.id == self.id);
        entry?.phase = Phase::InKernel;
        drop(list);
        let id = self.id;
        core::mem::forget(self);
        Some(InKernel(id))
    }

    /// Whether the descriptor is what it was. If so nobody ends it until this is dropped.
    pub fn begin_placing(&self) -> bool {
        let mut list = LIST.lock();
        let entry = list.at(self.fd).filter(|entry| entry.id == self.id);
        let is_there = entry.is_some();
        entry.into_iter().for_each(|entry| entry.phase = Phase::Placing);
        is_there
    }
}

impl Drop for Replacing {
    fn drop(&mut self) {
        let mut list = LIST.lock();
        list.entries.retain(|entry| entry.id != self.id);
        if list.at(self.fd).is_none() {
            socket_state::remove(self.fd, State::REPLACING);
        }
    }
}

/// Neither the steps of another thread's connect nor a close come between what is done to an undecided `fd` until this is dropped. `None`: it
/// is decided.
pub fn apart(fd: c_int) -> Option<Replacing> {
    let is_undecided = socket_state::get(fd).has(State::TWIN);
    is_undecided
        .then(|| Replacing::begin_after_others(fd, State::TWIN).ok())
        .flatten()
        .filter(Replacing::begin_placing)
}

/// The program ends the descriptor: nothing is placed there from here on.
#[cold]
pub fn stop(fd: c_int) {
    let until = sys::now() + WITHIN;
    loop {
        let mut list = LIST.lock();
        match list.at(fd) {
            Some(entry) if entry.phase == Phase::Placing && sys::now() < until => {}
            Some(entry) if entry.phase == Phase::InKernel => {
                let id = entry.id;
                list.entries.retain(|entry| entry.id != id);
            }
            Some(entry) => entry.phase = Phase::Stopped,
            None => {
                socket_state::remove(fd, State::REPLACING);
                return;
            }
        }
        drop(list);
        std::thread::yield_now();
    }
}

/// The kernel has answered: whether the descriptor is what it was.
pub fn is_back(fd: c_int, of: InKernel) -> bool {
    let mut list = LIST.lock();
    let is_there = list.at(fd).is_some_and(|entry| entry.id == of.0);
    if is_there {
        list.entries.retain(|entry| entry.id != of.0);
        socket_state::remove(fd, State::REPLACING);
    }
    is_there
}

/// The engine's connection behind a descriptor, once a thread that makes it an engine's has done so: for calls that cannot be made again
/// when the kernel has refused them, and has raised SIGPIPE.
#[inline]
pub fn settled_stream(fd: c_int) -> Option<&'static Socket> {
    stream(fd).or_else(|| {
        settle(fd);
        stream(fd)
    })
}

/// What the kernel has answered to a call on `fd`, or what the call answers `again`: another thread has made the socket an engine's
/// meanwhile.
#[inline]
pub fn or_again<T: Default + PartialOrd>(fd: c_int, answer: T, again: impl FnOnce() -> T) -> T {
    if answer < T::default() && came_meanwhile(fd) { again() } else { answer }
}

/// What the kernel says of a directory that can be read: of a socket's call, of read, write, ioctl and epoll_ctl.
const NO_SOCKET: [c_int; 5] = [libc::ENOTSOCK, libc::EISDIR, libc::EBADF, libc::ENOTTY, libc::EPERM];

/// The kernel has just said that it has no connection at `fd` (ENOTCONN), or no socket. Whether that is because another thread
/// was about to make it an engine's, or has: the peer may know of the connection, and tell this thread, before that one has put
/// it in place.
#[cold]
fn came_meanwhile(fd: c_int) -> bool {
    let error = last_errno();
    if error != Errno::ENOTCONN && !NO_SOCKET.contains(&c_int::from(error.0)) {
        return false;
    }
    settle(fd);
    set_errno(c_int::from(error.0));
    stream(fd).is_some()
}

/// Before something is done to `fd` that is to be found there afterwards: waits until nobody replaces what is there.
#[inline]
pub fn settle(fd: c_int) {
    if socket_state::get(fd).has(State::REPLACING) {
        wait(fd);
    }
}

#[cold]
fn wait(fd: c_int) {
    let until = sys::now() + WITHIN;
    let is_replaced = || LIST.lock().at(fd).is_some_and(|entry| entry.phase != Phase::InKernel);
    while is_replaced() && sys::now() < until {
        std::thread::yield_now();
    }
}

/// The threads that were at it did not come along.
pub fn after_fork_in_child() {
    // SAFETY: needed for a lock that was not taken before the fork. The child has this thread alone, which was in `fork` and not in a call that
    // locks.
    unsafe { LIST.renew_after_fork(|list| list.entries.is_empty(), List::new) };
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each test uses descriptors of its own: the tables are the process's.

    fn begin(fd: c_int) -> Result<Replacing, Refusal> {
        Replacing::begin(fd, State::default())
    }

    fn is_noted(fd: c_int) -> bool {
        socket_state::get(fd).has(State::REPLACING)
    }

    #[test]
    fn one_thread_at_a_time() {
        let fd = 910_001;
        let first = begin(fd).expect("nobody is at it");
        assert_eq!(begin(fd).err(), Some(Refusal::Busy));
        assert!(is_noted(fd));
        assert!(first.begin_placing());
        drop(first);
        assert!(!is_noted(fd));
        assert!(begin(fd).is_ok());
    }

    #[test]
    fn none_begins_at_a_number_that_was_ended() {
        let fd = 910_004;
        socket_state::set(fd, State::TWIN);
        assert!(Replacing::begin(fd, State::TWIN).is_ok());
        socket_state::take(fd);
        assert_eq!(Replacing::begin(fd, State::TWIN).err(), Some(Refusal::Ended));
        assert!(!is_noted(fd));
    }

    #[test]
    fn nothing_is_placed_where_the_number_was_ended() {
        let fd = 910_002;
        let first = begin(fd).expect("nobody is at it");
        stop(fd);
        assert!(!is_noted(fd));
        // The number is another socket's now.
        let second = begin(fd).expect("the first is stopped");
        assert!(!first.begin_placing());
        drop(first);
        assert!(is_noted(fd), "of the second");
        assert!(second.begin_placing());
    }

    #[test]
    fn who_comes_back_from_the_kernel_knows_whose_the_number_is() {
        let fd = 910_005;
        let first = begin(fd).expect("nobody is at it").leave_to_kernel().expect("as it was");
        assert_eq!(begin(fd).err(), Some(Refusal::OfKernel));
        settle(fd);
        stop(fd);
        let second = begin(fd).expect("another socket's").leave_to_kernel().expect("as it was");
        assert!(!is_back(fd, first) && is_noted(fd));
        assert!(is_back(fd, second) && !is_noted(fd));
        let ended = begin(fd).expect("nobody is at it");
        stop(fd);
        assert_eq!(ended.leave_to_kernel(), None);
    }

    #[test]
    fn who_ends_a_number_waits_for_what_is_placed_there() {
        let fd = 910_003;
        let replacing = begin(fd).expect("nobody is at it");
        assert!(replacing.begin_placing());
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stop(fd);
                ended.store(true, std::sync::atomic::Ordering::SeqCst);
            });
            // It cannot have ended, however long this thread is away.
            (0..100).for_each(|_| std::thread::yield_now());
            assert!(!ended.load(std::sync::atomic::Ordering::SeqCst));
            drop(replacing);
        });
        assert!(!is_noted(fd));
    }
}
