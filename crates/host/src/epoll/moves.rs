//! Registrations that change sides. When a kernel descriptor becomes a socket of the engine, its registration comes to the
//! library, which has not seen whether the kernel has disarmed a one-shot one; /proc shows it. The other way goes a
//! listener that has ended, whose twin is in the kernel's epoll all the time, and a connection whose descriptor the kernel gets again.

use crate::epoll::kernel::{is_disarmed, remove_twin};
use crate::epoll::{EpollSet, ONE_SHOT, REGISTRY, Registered, key};
use crate::socket::Socket;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

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

/// `fd` is about to be the kernel's again. Whether it is in any set.
pub fn move_back(fd: RawFd, listener: &'static Socket) -> bool {
    let sets: Vec<&'static EpollSet> = REGISTRY.lock().all.clone();
    let mut is_watched = false;
    for set in sets {
        let found = set.inner.lock().by_fd.get(&key(fd, listener)).copied();
        let Some(slot_id) = found else { continue };
        is_watched = true;
        let mut inner = set.inner.lock();
        if let Some(interest) = inner.interests.get(slot_id).copied() {
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
        listener.remove_watcher(set, slot_id);
        set.drop_interest(slot_id, listener);
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

/// `fd` was the kernel's and is a socket on the engine now: its registrations move here.
pub fn replace(fd: RawFd, socket: &'static Socket) {
    let sets: Vec<&'static EpollSet> = REGISTRY.lock().all.clone();
    for set in sets {
        let noted = set.inner.lock().kernel.remove(&fd);
        if let Some(registered) = noted {
            let _ = set.add(fd, socket, registered);
        }
    }
}

/// A kernel descriptor was closed.
pub fn forget_kernel_fd(fd: RawFd) {
    for set in &REGISTRY.lock().all {
        set.inner.lock().kernel.remove(&fd);
        set.forget_datagram(fd);
    }
}
