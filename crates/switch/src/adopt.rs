//! Descriptors that came from elsewhere: over exec when the program was loaded, or in a message. Holding a descriptor is
//! the right to the socket, so a connection of the engine's is claimed, and a kernel socket that listens is listened with
//! in the engine, too: whoever else does so with it goes on, and connections go to all (`toe_engine::control::listen`).
//!
//! A kernel socket that came from a program outside of the engine may only have been left open, and nobody here accepts on it:
//! so it is the engine's once this program listens with it, accepts or waits ([`on_use`]), and not before. Where the
//! program before had listeners of the engine's, hidden anchors come along, and it is at once: connections wait in the engine.
//! Called by `init.rs` and `calls`.

use crate::ffi::guarded;
use crate::listen;
use crate::socket_state::{self, State};
use crate::why::{self, Decided, Reason, Stack as On};
use crate::{policy, tables};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use rustix::fs::FileType;
use rustix::net::{AddressFamily, SocketType, sockopt};
use toe::socket::{Socket, claim};
use toe::{fd_table, sys, wait_calls};

/// What a descriptor may turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// A directory, as anchors are.
    Anchor,
    /// A TCP socket of the kernel's that listens.
    Listener,
    /// One that neither listens nor is connected.
    Unused,
    Other,
}

/// Looks at all descriptors that the program has from the one before it.
pub fn inherited() {
    let mut came: Vec<(Came, c_int)> = Vec::new();
    for fd in tables::open_fds().unwrap_or_default() {
        if tables::is_known(fd) || fd_table::is_internal(fd) {
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
    let had_listeners = came.iter().any(|(kind, fd)| *kind == Came::Anchor && toe::adopt::is_hidden(*fd));
    // One socket may have come along under several numbers, such as 0 and 1 of a program that inetd started.
    let mut first: Vec<((u64, u64), c_int)> = Vec::new();
    for (kind, fd) in came {
        let Ok(stat) = rustix::fs::fstat(sys::borrow(fd)) else { continue };
        let identity = (stat.st_dev, stat.st_ino);
        match first.iter().find(|(known, _)| *known == identity) {
            Some(&(_, copied)) => {
                fd_table::duplicate(copied, fd);
                why::copy(copied, fd);
            }
            None if kind == Came::Unused || kind == Came::Listener && !had_listeners => note_inherited(fd),
            None if adopt(fd, kind) => first.push((identity, fd)),
            None => {}
        }
    }
}

/// A descriptor has come in a message.
pub fn received(fd: c_int) {
    tables::is_new(fd);
    if !policy::may_have_engine() {
        return;
    }
    if let Ok(stat) = rustix::fs::fstat(sys::borrow(fd)) {
        if let Some(known) = Socket::install_shared(stat.st_dev, stat.st_ino, fd) {
            note_claimed(fd, known);
            return;
        }
        match kind_of(fd, FileType::from_raw_mode(stat.st_mode)) {
            // Others may have it, too, and listen with it before this program does.
            Came::Unused => note_inherited(fd),
            kind => _ = adopt(fd, kind),
        }
    }
}

/// It stays as it is until it is used.
fn note_inherited(fd: c_int) {
    socket_state::set(fd, socket_state::of_unknown(fd).with(State::INHERITED));
    why::set_reason(fd, On::Kernel, Reason::Undecided);
    ANY_UNUSED.store(true, Ordering::Relaxed);
}

/// Whether there may be a listener that [`on_use`] would make the engine's.
static ANY_UNUSED: AtomicBool = AtomicBool::new(false);

/// Whether descriptors that are waited for must be shown to [`on_use`] first. For programs that inherit none and do not fork:
/// two loads.
#[inline]
pub fn is_any_unused() -> bool {
    ANY_UNUSED.load(Ordering::Relaxed) || toe::process::count() > 0
}

/// The program accepts with this descriptor, or waits for it: a kernel socket that came from elsewhere, or that another
/// process has, too, and that listens by now becomes the engine's.
#[inline]
pub fn on_use(fd: c_int) {
    let state = socket_state::get(fd);
    if state.has(State::TWIN) && state.may_be_shared().is_some() {
        guarded((), || use_inherited(fd));
    }
}

#[cold]
fn use_inherited(fd: c_int) {
    if sockopt::socket_acceptconn(sys::borrow(fd)) != Ok(true) || toe::process::is_vfork_child() {
        return;
    }
    adopt(fd, Came::Listener);
}

/// Called once, when the library is loaded: what a child of fork comes to use is noted as what comes over exec.
pub fn note_claims() {
    claim::notify_of_claims(|socket, fd| {
        if !why::is(fd, Reason::Claimed) {
            note_claimed(fd, socket);
        }
    });
}

fn note_claimed(fd: c_int, socket: &Socket) {
    let engine = socket.engine().index() as u8;
    why::set(fd, Decided { engine, ..Decided::new(On::Engine, Reason::Claimed) });
}

fn kind_of(fd: c_int, file: FileType) -> Came {
    let descriptor = sys::borrow(fd);
    let is_tcp = || {
        matches!(sockopt::socket_domain(descriptor), Ok(AddressFamily::INET | AddressFamily::INET6))
            && sockopt::socket_type(descriptor) == Ok(SocketType::STREAM)
            && sockopt::socket_protocol(descriptor) == Ok(Some(rustix::net::ipproto::TCP))
    };
    match file {
        FileType::Directory => Came::Anchor,
        FileType::Socket if is_tcp() => match sockopt::socket_acceptconn(descriptor) {
            Ok(true) => Came::Listener,
            _ if is_unused(fd) => Came::Unused,
            _ => Came::Other,
        },
        _ => Came::Other,
    }
}

/// Whether a socket of the kernel's TCP neither listens nor is connected: it hangs up, and no end has come. TCP_INFO would say it,
/// too, and would wait for the socket's lock, which who has passed it on can hold as long as he likes: in a `send` out of memory that
/// never comes. No lock is taken for what is asked here.
fn is_unused(fd: c_int) -> bool {
    let mut polled = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    let came = wait_calls::ppoll(&mut polled, Some(Duration::ZERO), None).map(|_| polled[0].revents);
    came.is_ok_and(|came| came & (libc::POLLHUP | libc::POLLRDHUP) == libc::POLLHUP)
}

/// `true`: it is an engine's socket now.
fn adopt(fd: c_int, kind: Came) -> bool {
    match kind {
        Came::Anchor => {
            if let Some(socket) = toe::adopt::adopt(fd) {
                note_claimed(fd, socket);
            }
        }
        Came::Listener => {
            let watched = socket_state::get(fd).only(State::IN_EPOLL);
            socket_state::set(fd, socket_state::of_unknown(fd).with(watched).with(State::INHERITED));
            // Whoever it came from has it, too.
            let _ = listen::undecided(fd, listen::backlog_now(fd), listen::decide_adopted(fd));
        }
        _ => {}
    }
    fd_table::get(fd).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
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
        let (inet, stream) = (AddressFamily::INET, SocketType::STREAM);
        let unused = rustix::net::socket(inet, stream, None).unwrap();
        assert_eq!(kind_of(unused.as_raw_fd(), FileType::Socket), Came::Unused);
        let (mut accepted, _) = listener.accept().unwrap();
        drop(client);
        assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
        accepted.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(kind_of(accepted.as_raw_fd(), FileType::Socket), Came::Other, "it was connected");
    }
}
