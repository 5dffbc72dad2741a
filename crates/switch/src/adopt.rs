//! Descriptors that came from elsewhere: over exec when the program was loaded, or in a message. Holding a descriptor is
//! the right to the socket, so a connection of the engine's is claimed, and a kernel socket that listens is listened with
//! in the engine, too: whoever else does so with it goes on, and connections go to all (`toe_engine::control::listen`).
//! Called by `init.rs` and `calls::data`.

use crate::listen;
use crate::socket_state::{self, State};
use crate::why::{self, Decided, Reason, Stack as On};
use crate::{calls, init};
use core::ffi::c_int;
use rustix::fs::FileType;
use rustix::net::{AddressFamily, SocketType, sockopt};
use toe::socket::Socket;
use toe::{fd_table, fork, sys};

/// What a descriptor may turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// A directory, as anchors are.
    Anchor,
    /// A TCP socket of the kernel's that listens.
    Listener,
    Other,
}

/// Looks at all descriptors that the program has from the one before it.
pub fn inherited() {
    let mut came: Vec<(Came, c_int)> = Vec::new();
    for fd in calls::open::open_fds().unwrap_or_default() {
        if calls::open::is_known(fd) || fd_table::is_internal(fd) {
            continue;
        }
        let Ok(stat) = rustix::fs::fstat(sys::borrow(fd)) else { continue };
        let kind = kind_of(fd, FileType::from_raw_mode(stat.st_mode));
        if kind != Came::Other {
            came.push((kind, fd));
        }
    }
    // Listeners first: their anchors, which came along hidden, are let go of when they are held anew.
    came.sort_by_key(|(kind, fd)| (*kind != Came::Listener, *fd));
    // One socket may have come along under several numbers, such as 0 and 1 of a program that inetd started.
    let mut first: Vec<((u64, u64), c_int)> = Vec::new();
    for (kind, fd) in came {
        let Ok(stat) = rustix::fs::fstat(sys::borrow(fd)) else { continue };
        let identity = (stat.st_dev, stat.st_ino);
        match first.iter().find(|(known, _)| *known == identity) {
            Some(&(_, copied)) => {
                fd_table::duplicate(copied, fd);
                why::copy(copied, fd);
                calls::stdio::follow(fd);
            }
            None if adopt(fd, kind) => first.push((identity, fd)),
            None => {}
        }
    }
}

/// A descriptor has come in a message.
pub fn received(fd: c_int) {
    calls::open::is_new(fd);
    if init::disabled() || !init::has_engine() {
        return;
    }
    if let Ok(stat) = rustix::fs::fstat(sys::borrow(fd)) {
        if let Some(known) = Socket::find_shared(stat.st_dev, stat.st_ino) {
            fd_table::install(fd, known);
            note_claimed(fd, known);
            calls::stdio::follow(fd);
            return;
        }
        adopt(fd, kind_of(fd, FileType::from_raw_mode(stat.st_mode)));
    }
}

fn note_claimed(fd: c_int, socket: &Socket) {
    let engine = socket.engine().index() as u8;
    why::set(fd, Decided { engine, ..Decided::new(On::Engine, Reason::Claimed) });
}

fn kind_of(fd: c_int, file: FileType) -> Came {
    let descriptor = sys::borrow(fd);
    let listens = || {
        sockopt::socket_acceptconn(descriptor) == Ok(true)
            && matches!(sockopt::socket_domain(descriptor), Ok(AddressFamily::INET | AddressFamily::INET6))
            && sockopt::socket_type(descriptor) == Ok(SocketType::STREAM)
    };
    match file {
        FileType::Directory => Came::Anchor,
        FileType::Socket if listens() => Came::Listener,
        _ => Came::Other,
    }
}

/// `true`: it is an engine's socket now.
fn adopt(fd: c_int, kind: Came) -> bool {
    match kind {
        Came::Anchor => {
            if let Some(socket) = fork::adopt(fd) {
                note_claimed(fd, socket);
            }
        }
        Came::Listener => {
            // What else the program before has set on it cannot be known; these can be asked for, and are inherited.
            let known = State::new_twin().with(State::BOUND).with(State::NO_DELAY).with(State::KEEP_ALIVE);
            let is_inet6 = sockopt::socket_domain(sys::borrow(fd)) == Ok(AddressFamily::INET6);
            let family = if is_inet6 { State::INET6 } else { State::default() };
            socket_state::set(fd, known.with(State::TOUCHED).with(family));
            let _ = listen::undecided(fd, listen::backlog_now(fd), listen::decide_adopted(fd));
            if let Some(listener) = fd_table::get(fd) {
                // Whoever it came from has it, too.
                listener.mark_shared(fd);
            }
        }
        _ => {}
    }
    calls::stdio::follow(fd);
    fd_table::get(fd).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_may_be_the_engines_is_told_from_the_rest() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(kind_of(listener.as_raw_fd(), FileType::Socket), Came::Listener);
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(kind_of(datagrams.as_raw_fd(), FileType::Socket), Came::Other);
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(kind_of(client.as_raw_fd(), FileType::Socket), Came::Other);
        assert_eq!(kind_of(client.as_raw_fd(), FileType::Directory), Came::Anchor);
    }
}
