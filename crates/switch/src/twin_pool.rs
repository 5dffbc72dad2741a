//! Kernel sockets that were in the way when an engine took their connection, kept for the next `socket()`.
//!
//! Making and closing a kernel socket costs more than all else that a short connection of an engine's costs. One is kept
//! only as new: no option set but such as are taken back here, never bound, in no epoll set, and no process was made since
//! it was (a child might have it, too). What belongs to a socket from its making on, its user and its network
//! namespace, may change by calls that [`crate::calls::process`] sees: then all are closed.

use crate::socket_state::{self, State};
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};
use rustix::fd::AsFd;
use rustix::net::sockopt;
use toe::{fd_table, sys};

/// Sockets kept, of each kind.
const PLACES: usize = 2;
/// One more than the number; zero: none. First those that block, then those that do not.
static KEPT: [[AtomicI32; PLACES]; 2] = [const { [const { AtomicI32::new(0) }; PLACES] }; 2];

fn places(nonblocking: bool) -> &'static [AtomicI32; PLACES] {
    &KEPT[usize::from(nonblocking)]
}

fn take_from(place: &AtomicI32) -> Option<sys::Fd> {
    let number = place.swap(0, Ordering::AcqRel) - 1;
    (number >= 0).then(|| {
        fd_table::forget_internal(number);
        sys::Fd::from_raw(number)
    })
}

/// A TCP socket as `socket(AF_INET, SOCK_STREAM, 0)` makes it, with the lowest free number; `None`: none is kept.
pub fn take(cloexec: bool, nonblocking: bool) -> Option<c_int> {
    let twin = places(nonblocking).iter().find_map(take_from)?;
    sys::dup_lowest(&twin, cloexec).ok()
}

/// Keeps the twin `fd`, of which this `state` is known, if it is as new and there is a place. The program's number is
/// about to mean something else.
pub fn keep(fd: c_int, state: State, nonblocking: bool) {
    let harmless = State::NO_DELAY.with(State::KEEP_ALIVE).with(State::REPORTED);
    if state.without(harmless) != State::new_twin() {
        return;
    }
    let Some(place) = places(nonblocking).iter().find(|place| place.load(Ordering::Relaxed) == 0) else {
        return;
    };
    let Ok(twin) = sys::dup_to_high(sys::borrow(fd)) else { return };
    if take_back(&twin, state).is_err() {
        return;
    }
    let number = twin.into_raw();
    fd_table::mark_internal(number);
    let taken = place.compare_exchange(0, number + 1, Ordering::AcqRel, Ordering::Relaxed);
    if taken.is_err() {
        fd_table::forget_internal(number);
        let _ = sys::close(number);
    }
}

/// Unsets the options that the program has set.
fn take_back(twin: impl AsFd, state: State) -> rustix::io::Result<()> {
    if state.has(State::NO_DELAY) {
        sockopt::set_tcp_nodelay(&twin, false)?;
    }
    if state.has(State::KEEP_ALIVE) {
        sockopt::set_socket_keepalive(&twin, false)?;
    }
    Ok(())
}

/// Closes all.
pub fn clear() {
    KEPT.iter().flatten().for_each(|place| drop(take_from(place)));
}

/// What `socket_state` is to hold of a socket that [`take`] gave, or the kernel made.
pub fn note_new(fd: c_int) {
    socket_state::set(fd, State::new_twin());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    fn socket() -> rustix::fd::OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
    }

    fn cookie(fd: impl AsFd) -> u64 {
        sockopt::socket_cookie(fd).unwrap()
    }

    /// One test, as the pool is the process's.
    #[test]
    fn only_a_socket_that_is_as_new_is_used_again() {
        use rustix::fd::AsRawFd;
        let twin = socket();
        let (fd, new) = (twin.as_raw_fd(), State::new_twin());
        for touched in [State::TOUCHED, State::BOUND, State::IN_EPOLL, State::ENGINE_ADDRESS] {
            keep(fd, new.with(touched), false);
            assert_eq!(take(true, false), None, "{touched:?}");
        }
        sockopt::set_tcp_nodelay(&twin, true).unwrap();
        keep(fd, new.with(State::NO_DELAY).with(State::REPORTED), false);
        assert_eq!(take(true, true), None, "it blocks");
        let known = cookie(&twin);
        drop(twin);
        let again = take(true, false).map(sys::Fd::from_raw).expect("kept");
        assert_eq!(cookie(&again), known);
        assert_eq!(sockopt::tcp_nodelay(&again), Ok(false));
        assert_eq!(take(true, false), None);

        keep(again.raw(), new, false);
        crate::calls::process::note_new_process();
        keep(again.raw(), new, false);
        clear();
        assert_eq!(take(true, false), None);
    }
}
