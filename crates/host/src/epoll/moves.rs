//! Registrations that change sides. When a kernel descriptor becomes a socket of the engine, its registration comes to the
//! library, which has not seen whether the kernel has disarmed a one-shot one; /proc shows it. The other way goes a
//! listener that has ended, whose twin is in the kernel's epoll all the time, and a connection whose descriptor the kernel gets again.

use super::once::remove_twin;
use super::{EpollSet, ONE_SHOT, REGISTRY, key};
use crate::fd_table;
use crate::socket::Socket;
use rustix::fd::RawFd;
use rustix::fs::{Mode, OFlags};
use std::sync::atomic::Ordering;

/// What a descriptor was registered for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    pub events: u32,
    pub data: u64,
    /// Not disarmed by one-shot.
    pub armed: bool,
    /// Of a kernel descriptor: not in the kernel's set, because the engine has disarmed it (`once`).
    pub absent: bool,
}

/// What is left of a disarmed registration's events (Linux: EP_PRIVATE_BITS).
const PRIVATE: u32 = super::EDGE | ONE_SHOT | super::EXCLUSIVE | libc::EPOLLWAKEUP as u32;

/// `fd`, a kernel descriptor that is in epoll sets, is about to become a socket of the engine.
pub fn note_disarmed(fd: RawFd) {
    for set in &REGISTRY.lock().all {
        let epfd = set.epfd.load(Ordering::Relaxed);
        let mut inner = set.inner.lock();
        let Some(registered) = inner.kernel.get_mut(&fd).filter(|found| found.events & ONE_SHOT != 0) else {
            continue;
        };
        if registered.absent {
            continue;
        }
        // Without /proc it gets the benefit of the doubt.
        registered.armed = !is_disarmed(epfd, fd).unwrap_or(false);
    }
}

/// Whether the kernel has disarmed a registration. `None`: it does not say.
pub(super) fn is_disarmed(epfd: RawFd, fd: RawFd) -> Option<bool> {
    let left = presented(epfd).ok().and_then(|text| events_of(&text, fd))?;
    Some(left & !PRIVATE == 0)
}

/// `fd` is about to be the kernel's again. Whether it is in any set.
pub fn move_back(fd: RawFd, listener: &'static Socket) -> bool {
    let sets: Vec<&'static EpollSet> = REGISTRY.lock().all.clone();
    let mut is_watched = false;
    for set in sets {
        let found = set.inner.lock().by_fd.get(&key(fd, listener)).copied();
        let Some(place) = found else { continue };
        is_watched = true;
        let mut inner = set.inner.lock();
        if let Some(interest) = inner.interests.get(place).copied() {
            let super::Interest { events, data, armed, .. } = interest;
            if !armed {
                // The kernel may have disarmed it by itself, before it came to the engine.
                let _ = remove_twin(set.epfd.load(Ordering::Relaxed), fd);
            }
            inner.kernel.insert(fd, Registered { events, data, armed, absent: !armed });
            // A thread that is parked looks at the kernel's set from here on, too.
            set.kernel_fds.store(true, Ordering::SeqCst);
            inner.waiters.kick_all();
        }
        drop(inner);
        listener.remove_watcher(set, place);
        set.drop_interest(place, listener);
    }
    is_watched
}

/// The kernel has a new socket at `fd`, which is in sets ([`move_back`]): it is to be in the kernel's, too.
pub fn register_in_kernel(fd: RawFd) {
    for set in &REGISTRY.lock().all {
        let registered = set.inner.lock().kernel.get(&fd).copied();
        if let Some(Registered { events, data, absent: false, .. }) = registered {
            let epfd = set.epfd.load(Ordering::Relaxed);
            let event = libc::epoll_event { events, u64: data };
            let _ = crate::sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event));
        }
    }
}

/// A descriptor of the set, other than `not`.
pub(super) fn descriptor_of(set: &EpollSet, not: RawFd) -> Option<RawFd> {
    let mut found = None;
    fd_table::for_each(0, RawFd::MAX, |fd| {
        if fd != not && fd_table::epoll_set(fd).is_some_and(|other| std::ptr::eq(other, set)) {
            found = Some(fd);
        }
    });
    found
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
fn events_of(text: &str, fd: RawFd) -> Option<u32> {
    text.lines().find_map(|line| {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let found: RawFd = words.next()?.parse().ok()?;
        let events = words.nth(1)?;
        (found == fd).then(|| u32::from_str_radix(events, 16).ok())?
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
