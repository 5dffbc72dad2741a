//! Which of the program's descriptors are this library's: an array with a word for each possible number.
//!
//! A word is zero, the address of a [`Socket`], or (by its lowest two bits) of an [`EpollSet`] or a [`Datagram`], or [`INTERNAL`]
//! for a descriptor that the library keeps for itself. What has an address here is never freed, only reused, so an address read here is
//! always good. The array lies in zeroed memory of which only the touched pages exist.
//!
//! Called by the switch layer and the C API around every call that makes, copies or closes a descriptor.

use crate::datagram::Datagram;
use crate::epoll::EpollSet;
use crate::fd_words::{HIGHEST, INTERNAL, load, put};
pub use crate::fd_words::{forget_internal, is_internal, mark_internal};
use crate::socket::Socket;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

const EPOLL: usize = 1;
const DATAGRAM: usize = EPOLL | INTERNAL;
const TAG: usize = EPOLL | INTERNAL;

#[inline]
pub(crate) fn as_socket(value: usize) -> Option<&'static Socket> {
    if value == 0 || value & TAG != 0 {
        return None;
    }
    let at = std::ptr::with_exposed_provenance::<Socket>(value);
    // SAFETY: needed because the table holds addresses in atomic words. Only `install` and `duplicate` put untagged
    // values there, from `&'static Socket`, and sockets are never freed.
    Some(unsafe { &*at })
}

#[inline]
pub(crate) fn as_epoll(value: usize) -> Option<&'static EpollSet> {
    if value & TAG != EPOLL {
        return None;
    }
    let at = std::ptr::with_exposed_provenance::<EpollSet>(value & !EPOLL);
    // SAFETY: as for sockets: values with this tag come only from `&'static EpollSet`, and sets are never freed.
    Some(unsafe { &*at })
}

#[inline]
pub(crate) fn as_datagram(value: usize) -> Option<&'static Datagram> {
    if value & TAG != DATAGRAM {
        return None;
    }
    let at = std::ptr::with_exposed_provenance::<Datagram>(value & !TAG);
    // SAFETY: as for sockets: values with this tag come only from `&'static Datagram`, and those are never freed.
    Some(unsafe { &*at })
}

const _: () =
    assert!(align_of::<Socket>() >= 4 && align_of::<EpollSet>() >= 4 && align_of::<Datagram>() >= 4);

/// The socket behind `fd`, if it is on the engine.
#[inline]
pub fn get(fd: RawFd) -> Option<&'static Socket> {
    as_socket(load(fd))
}

/// The epoll set behind `fd`, if the library knows it.
#[inline]
pub fn epoll_set(fd: RawFd) -> Option<&'static EpollSet> {
    as_epoll(load(fd))
}

/// The UDP socket of the kernel's behind `fd`.
#[inline]
pub fn datagram(fd: RawFd) -> Option<&'static Datagram> {
    as_datagram(load(fd))
}

/// Makes `fd` a descriptor of `socket`: one more reference.
pub fn install(fd: RawFd, socket: &'static Socket) {
    socket.add_reference();
    put_counted(fd, socket);
}

/// Makes `fd` a descriptor of `socket`, which counts it already.
pub(crate) fn put_counted(fd: RawFd, socket: &'static Socket) {
    put(fd, std::ptr::from_ref(socket).expose_provenance());
    socket.fds.learn(fd);
}

/// Makes `fd` a descriptor of `set`: one more reference.
pub fn install_epoll(fd: RawFd, set: &'static EpollSet) {
    set.add_reference();
    put(fd, std::ptr::from_ref(set).expose_provenance() | EPOLL);
}

/// Makes `fd` a descriptor of `datagram`: one more reference.
pub fn install_datagram(fd: RawFd, datagram: &'static Datagram) {
    datagram.add_reference();
    put(fd, std::ptr::from_ref(datagram).expose_provenance() | DATAGRAM);
}

/// The program has copied `old` to `new`.
pub fn duplicate(old: RawFd, new: RawFd) {
    if let Some(socket) = get(old) {
        install(new, socket);
    } else if let Some(set) = epoll_set(old) {
        install_epoll(new, set);
    } else if let Some(datagram) = datagram(old) {
        install_datagram(new, datagram);
    }
}

/// Whether both are descriptors of one thing that the table knows.
pub fn are_of_one(one: RawFd, other: RawFd) -> bool {
    !matches!(load(one), 0 | INTERNAL) && load(one) == load(other)
}

/// Calls `each` for every known descriptor of the program from `low` to `high`.
pub fn for_each(low: RawFd, high: RawFd, mut each: impl FnMut(RawFd)) {
    let end = HIGHEST.load(Ordering::Relaxed);
    for fd in low.max(0)..end.min(high.saturating_add(1)) {
        if !matches!(load(fd), 0 | INTERNAL) {
            each(fd);
        }
    }
}

/// Another descriptor of `socket` than `not`, if there is one.
pub fn find(socket: &Socket, not: RawFd) -> Option<RawFd> {
    let mut found = None;
    for_each(0, RawFd::MAX, |fd| {
        if fd != not && get(fd).is_some_and(|other| std::ptr::eq(other, socket)) {
            found = Some(fd);
        }
    });
    found
}
