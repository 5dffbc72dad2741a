//! `epoll_ctl` of descriptors on the engine.

use super::moves::Registered;
use super::{EXCLUSIVE, WITH_EXCLUSIVE, find_or_make, has_twin, once};
use crate::{fd_table, sys};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

/// Whether a descriptor that the library does not know is one of an epoll set. EBADF, EINVAL: it is not.
pub fn check(epfd: RawFd) -> Result<(), Errno> {
    rustix::io::fcntl_getfd(sys::borrow(epfd)).map_err(crate::errno::from_os)?;
    let name = rustix::fs::readlink(format!("/proc/self/fd/{epfd}"), Vec::new());
    // Without /proc it gets the benefit of the doubt.
    let is_other = name.is_ok_and(|name| name.as_bytes() != b"anon_inode:[eventpoll]");
    if is_other { Err(Errno::EINVAL) } else { Ok(()) }
}

/// EPOLL_CTL_ADD for a descriptor on the engine. EEXIST: it is in already. A listener begins to take connections with the
/// first wait, so that a process which only prepares the set for its children is handed none; its twin goes into the
/// kernel's epoll as well.
pub fn ctl_add(epfd: RawFd, fd: RawFd, event: libc::epoll_event) -> Result<(), Errno> {
    let socket = fd_table::get(fd).ok_or(crate::errno::ENOENT)?;
    let events = event.events;
    if events & EXCLUSIVE != 0 && events & !WITH_EXCLUSIVE != 0 {
        return Err(Errno::EINVAL);
    }
    let set = find_or_make(epfd);
    if set.holds(fd, socket) {
        // The kernel's set has not always what this one has (`once`).
        return Err(crate::errno::EEXIST);
    }
    if has_twin(socket) {
        sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event))?;
        set.kernel_fds.store(true, Ordering::SeqCst);
    }
    // A claim that fails shows as readiness.
    let _ = socket.settle();
    set.add(fd, socket, Registered { events, data: event.u64, armed: true, absent: false })
}

/// EPOLL_CTL_ADD, MOD or DEL for a descriptor of another epoll set. EBADF: it is none any more. The kernel's set is asked, with the
/// kernel's errors.
pub fn ctl_set(epfd: RawFd, op: i32, fd: RawFd, event: Option<libc::epoll_event>) -> Result<(), Errno> {
    let nested = fd_table::epoll_set(fd).ok_or(Errno::EBADF)?;
    if fd_table::epoll_set(epfd).is_none() {
        check(epfd)?;
    }
    find_or_make(epfd).control_nested(epfd, op, (fd, nested), event)
}

/// EPOLL_CTL_MOD for a descriptor on the engine. ENOENT: it is not in.
pub fn ctl_mod(epfd: RawFd, fd: RawFd, event: libc::epoll_event) -> Result<(), Errno> {
    let socket = fd_table::get(fd).ok_or(crate::errno::ENOENT)?;
    let set = fd_table::epoll_set(epfd).ok_or(crate::errno::ENOENT)?;
    if event.events & EXCLUSIVE != 0 {
        return Err(Errno::EINVAL);
    }
    set.modify(fd, socket, event.events, event.u64)?;
    if has_twin(socket) { once::rearm_twin(epfd, fd, event) } else { Ok(()) }
}

/// EPOLL_CTL_DEL for a descriptor on the engine. ENOENT: it is not in.
pub fn ctl_del(epfd: RawFd, fd: RawFd) -> Result<(), Errno> {
    let socket = fd_table::get(fd).ok_or(crate::errno::ENOENT)?;
    let set = fd_table::epoll_set(epfd).ok_or(crate::errno::ENOENT)?;
    set.delete(fd, socket)?;
    if has_twin(socket) { once::remove_twin(epfd, fd) } else { Ok(()) }
}
