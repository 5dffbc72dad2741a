//! Waiting for a queue: one descriptor, readable when there may be something for it.
//!
//! All queues of a fabric are woken by one interrupt, that of its session. Who takes it signals the wait objects of all the others that wait, as it may
//! have been theirs.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use toe_via::session::Session;

/// See the module.
#[derive(Debug)]
pub struct WaitObject {
    /// The session's interrupt and engine, and `rung`.
    set: OwnedFd,
    rung: OwnedFd,
    /// Somebody is about to wait.
    is_armed: AtomicBool,
}

impl WaitObject {
    pub fn new(session: &Session) -> Option<WaitObject> {
        let made = || -> rustix::io::Result<(OwnedFd, OwnedFd)> {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let rung = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let nothing = epoll::EventData::new_u64(0);
            epoll::add(&set, &rung, nothing, epoll::EventFlags::IN)?;
            Ok((set, rung))
        };
        let (set, rung) = made().ok()?;
        let interrupt = session.poll_fd().ok()?;
        // SAFETY: needed to name a descriptor of the session's, which is open as long as the session is; it is only added to a set here.
        let interrupt = unsafe { BorrowedFd::borrow_raw(interrupt) };
        epoll::add(&set, interrupt, epoll::EventData::new_u64(1), epoll::EventFlags::IN).ok()?;
        Some(WaitObject { set, rung, is_armed: AtomicBool::new(false) })
    }

    pub fn raw_fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    /// From here on it is rung. Then look once more.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::SeqCst);
        let _ = rustix::io::read(&self.rung, &mut [0; 8]);
    }

    /// If somebody waits.
    pub fn ring(&self) {
        if self.is_armed.load(Ordering::SeqCst) && self.is_armed.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.rung, &1u64.to_ne_bytes());
        }
    }

    /// Until it rings, or so long.
    pub fn wait(&self, limit: Option<Duration>) {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = [PollFd::from_borrowed_fd(self.set.as_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, limit.as_ref());
    }
}
