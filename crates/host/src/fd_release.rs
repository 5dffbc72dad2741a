//! What becomes of the thing that a descriptor stands for when the program closes that, or puts another one in its place.
//!
//! Called by the switch layer and the C API around every call that does so.

use crate::fd_table::{as_datagram, as_epoll, as_socket, get};
use crate::fd_words::{HIGHEST, INTERNAL, load, word};
use crate::socket::Socket;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

/// What [`remove`] took out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The descriptor was none of the library's.
    Nothing,
    Socket,
    Epoll,
    Datagram,
    /// This is the child of a vfork, which shares the memory of its parent: only do the real close.
    NotOurs,
}

/// The program is about to copy `old` over `new`, and `new` is what the table says until then. A thread that uses `new` meanwhile finds
/// one of the two, and never a number of nothing.
pub fn duplicate_over(old: RawFd, new: RawFd) -> Removed {
    let Some(word) = word(new) else { return Removed::Nothing };
    let value = load(old);
    if let Some(socket) = as_socket(value) {
        socket.add_reference();
    } else if let Some(set) = as_epoll(value) {
        set.add_reference();
    } else if let Some(datagram) = as_datagram(value) {
        datagram.add_reference();
    } else {
        return Removed::Nothing;
    }
    HIGHEST.fetch_max(new + 1, Ordering::Relaxed);
    let before = word.swap(value, Ordering::AcqRel);
    let removed = drop_reference(before, new, true);
    as_socket(value).into_iter().for_each(|socket| socket.fds.learn(new));
    removed
}

/// The program is about to close `fd`, which is open still and what the table says. The last reference ends the flow, the listener
/// or the set.
pub fn close(fd: RawFd) -> Removed {
    remove_as(fd, true)
}

/// The program has closed `fd`, or is about to.
pub fn remove(fd: RawFd) -> Removed {
    remove_as(fd, false)
}

/// As [`remove`], if `fd` is a descriptor of `socket`: whether it was.
pub fn remove_only(fd: RawFd, socket: &Socket) -> bool {
    get(fd).is_some_and(|now| std::ptr::eq(now, socket)) && remove(fd) == Removed::Socket
}

fn remove_as(fd: RawFd, is_open: bool) -> Removed {
    let Some(word) = word(fd) else { return Removed::Nothing };
    let value = word.load(Ordering::Acquire);
    if value == 0 || value == INTERNAL {
        return Removed::Nothing;
    }
    if crate::process::is_vfork_child() {
        return Removed::NotOurs;
    }
    if word.compare_exchange(value, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Removed::Nothing;
    }
    drop_reference(value, fd, is_open)
}

/// The table says no more that `fd` is `value`.
fn drop_reference(value: usize, fd: RawFd, is_open: bool) -> Removed {
    if let Some(set) = as_epoll(value) {
        set.drop_reference(fd);
        return Removed::Epoll;
    }
    if let Some(datagram) = as_datagram(value) {
        datagram.drop_reference();
        return Removed::Datagram;
    }
    match as_socket(value) {
        Some(socket) => {
            socket.drop_reference(fd, is_open);
            Removed::Socket
        }
        None => Removed::Nothing,
    }
}
