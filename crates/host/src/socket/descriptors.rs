//! The descriptors that a socket knows of: one of the program's, and those that this process keeps for it.

use crate::sys;
use rustix::fd::RawFd;
use std::sync::atomic::{AtomicI32, Ordering};

pub(super) const NO_FD: RawFd = -1;

/// A descriptor that the program does not know of, from when it is kept until it is closed.
#[derive(Debug)]
pub struct InternalFd(AtomicI32);

/// A socket's.
#[derive(Debug)]
pub struct Descriptors {
    /// One of the program's.
    known: AtomicI32,
    /// The hidden anchor of a listener whose descriptor is its twin.
    pub(super) hidden_anchor: InternalFd,
    /// The kernel socket that has a native socket's name.
    pub(super) own_twin: InternalFd,
}

impl InternalFd {
    pub fn get(&self) -> Option<RawFd> {
        Some(self.0.load(Ordering::Acquire)).filter(|fd| *fd != NO_FD)
    }

    /// `fd`, which is marked as one that the program does not know of, is kept.
    pub fn keep(&self, fd: RawFd) {
        self.0.store(fd, Ordering::Release);
    }

    pub fn close(&self) {
        let fd = self.0.swap(NO_FD, Ordering::AcqRel);
        if fd != NO_FD {
            crate::fd_words::forget_internal(fd);
            let _ = sys::close(fd);
        }
    }
}

impl Descriptors {
    pub(super) fn none() -> Descriptors {
        let none = || InternalFd(AtomicI32::new(NO_FD));
        Descriptors { known: AtomicI32::new(NO_FD), hidden_anchor: none(), own_twin: none() }
    }

    /// One of the program's, or the copy that is kept for a wait which outlives the last of those.
    pub fn known(&self) -> Option<RawFd> {
        Some(self.raw()).filter(|fd| *fd != NO_FD)
    }

    pub(super) fn raw(&self) -> RawFd {
        self.known.load(Ordering::Acquire)
    }

    /// What `ask` says of one of them. Another thread may close that meanwhile, and the number be another file's at
    /// once; but it is closed only after the socket has been told (`drop_reference`), so then another one is asked.
    pub(crate) fn ask<R>(&self, ask: impl Fn(RawFd) -> R) -> R {
        loop {
            let fd = self.raw();
            let answer = ask(fd);
            if self.raw() == fd {
                return answer;
            }
        }
    }

    /// `fd`, which is in the descriptor table as one of its descriptors, is the one that it knows of, if it knows of none.
    pub(crate) fn learn(&self, fd: RawFd) {
        let _ = self.known.compare_exchange(NO_FD, fd, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// The socket has none any more, and is about to be another one.
    pub(super) fn forget(&self) {
        self.known.store(NO_FD, Ordering::Relaxed);
    }

    pub(super) fn set(&self, fd: Option<RawFd>) {
        self.known.store(fd.unwrap_or(NO_FD), Ordering::SeqCst);
    }
}
