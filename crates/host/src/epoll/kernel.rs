//! The kernel's part of a set: what it is asked, what /proc shows of it, and how threads that wait in it alone are got out.

use crate::epoll::{EpollSet, ONE_SHOT, WAKE_TAG};
use crate::errno::ENOENT;
use crate::{fd_table, sys};
use rustix::event::EventfdFlags;
use rustix::fd::{IntoRawFd, RawFd};
use rustix::fs::{Mode, OFlags};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

/// The registration of a listener's twin is as the program wants it from now on.
pub(super) fn rearm_twin(epfd: RawFd, fd: RawFd, event: libc::epoll_event) -> Result<(), Errno> {
    match sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(event)) {
        Err(ENOENT) => sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event)),
        result => result,
    }
}

/// The kernel reports a listener's twin no more.
pub(super) fn remove_twin(epfd: RawFd, fd: RawFd) -> Result<(), Errno> {
    match sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None) {
        Err(ENOENT) => Ok(()),
        result => result,
    }
}

/// Whether the kernel has disarmed a registration. `None`: it does not say.
pub(super) fn is_disarmed(epfd: RawFd, fd: RawFd) -> Option<bool> {
    let left = presented(epfd).ok().and_then(|text| events_of(&text, fd))?;
    Some(left & !PRIVATE == 0)
}

/// What /proc says of one of this process's descriptors.
fn presented(fd: RawFd) -> rustix::io::Result<String> {
    let path = format!("/proc/self/fdinfo/{fd}");
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        match rustix::io::read(&file, &mut piece)? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            count => bytes.extend_from_slice(&piece[..count]),
        }
    }
}

/// The events that the text of an epoll set in /proc/PID/fdinfo shows for a descriptor.
pub(super) fn events_of(text: &str, fd: RawFd) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let found: RawFd = words.next()?.parse().ok()?;
        let events = words.nth(1)?;
        (found == fd).then(|| u32::from_str_radix(events, 16).ok())?
    })
}

/// What is left of a disarmed registration's events (Linux: EP_PRIVATE_BITS).
const PRIVATE: u32 = super::EDGE | ONE_SHOT | super::EXCLUSIVE | libc::EPOLLWAKEUP as u32;

/// Whether the kernel has something to tell of.
pub(super) fn is_readable(epfd: RawFd) -> bool {
    let mut polled = [libc::pollfd { fd: epfd, events: libc::POLLIN, revents: 0 }];
    sys::poll_now(&mut polled).is_ok_and(|ready| ready > 0)
}

impl EpollSet {
    /// Whether a wait in it is the kernel's as it is: nothing is the engine's, nor can become so in another set in it; and nobody looks at
    /// it from outside, whom the eventfd that ends such a wait would mislead.
    pub(super) fn is_kernels_alone(&self) -> bool {
        self.sockets.load(Ordering::SeqCst) == 0
            && !self.has_nested.load(Ordering::SeqCst)
            && !self.is_seen_elsewhere.load(Ordering::SeqCst)
    }

    /// Gets threads out of plain kernel waits, now that it is not the kernel's alone: a descriptor that is always readable is put into
    /// the kernel's set until the last of them is out.
    pub(super) fn end_kernel_waits(&self) {
        if self.kernel_waiters.load(Ordering::SeqCst) == 0 {
            return;
        }
        let epfd = self.epfd.load(Ordering::Relaxed);
        if let Some(eventfd) = always_readable() {
            let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: WAKE_TAG };
            let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, eventfd, Some(event));
        }
        if self.kernel_waiters.load(Ordering::SeqCst) == 0 {
            self.take_always_readable_out(epfd);
        }
    }

    pub(super) fn take_always_readable_out(&self, epfd: RawFd) {
        if let Some(eventfd) = always_readable() {
            let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, eventfd, None);
        }
        // Somebody may have put it in for others meanwhile.
        if !self.is_kernels_alone() {
            self.end_kernel_waits();
        }
    }

    /// `epfd` while that is one of its descriptors; another one when a thread has closed it: the copy that is kept for a wait
    /// which outlives the last one, if need be.
    pub(super) fn descriptor(&self, epfd: RawFd) -> RawFd {
        match fd_table::epoll_set(epfd) {
            Some(set) if std::ptr::eq(set, self) => epfd,
            _ => self.epfd.load(Ordering::Acquire),
        }
    }
}

/// An eventfd that is always readable.
fn always_readable() -> Option<RawFd> {
    static EVENTFD: OnceLock<Option<RawFd>> = OnceLock::new();
    *EVENTFD.get_or_init(|| {
        let fd = rustix::event::eventfd(1, EventfdFlags::CLOEXEC).ok()?;
        let fd = sys::move_to_high(sys::Fd::from_raw(fd.into_raw_fd())).into_raw();
        crate::fd_words::mark_internal(fd);
        Some(fd)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_by_descriptor() {
        let text = "pos:\t0\nflags:\t02\n\
            tfd:        5 events:       19 data:        7  pos:0 ino:3a sdev:8\n\
            tfd:       15 events: c0000000 data: ffffffffffffffff  pos:0 ino:3b sdev:8\n";
        assert_eq!(events_of(text, 5), Some(0x19));
        assert_eq!(events_of(text, 15), Some(0xc000_0000));
        assert_eq!(events_of(text, 7), None);
    }
}
