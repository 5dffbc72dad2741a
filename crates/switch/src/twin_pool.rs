//! Kernel sockets that were in the way when an engine took their connection, kept for the next `socket()`.
//!
//! Making and closing a kernel socket costs more than all else that a short connection of an engine's costs. One is kept
//! only as new: no option set but such as are taken back here, never bound, in no epoll set, and no process was made since
//! it was (a child might have it, too). What belongs to a socket from its making on, its user and its network
//! namespace, may change by calls that [`crate::calls::process`] sees: after such a call none is kept any more.

use crate::socket_state::{self, State};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use rustix::fd::AsFd;
use rustix::net::sockopt;
use toe::{fd_table, sys};

/// Sockets kept: two threads may each have one that they connect, and one that they have just not needed.
const POOL_LEN: usize = 4;
/// [`word_of`] each; zero: none.
static POOL: [AtomicI32; POOL_LEN] = [const { AtomicI32::new(0) }; POOL_LEN];

/// None is kept any more.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Its number and whether its O_NONBLOCK is set.
const fn word_of(number: c_int, nonblocking: bool) -> i32 {
    (number + 1) << 1 | nonblocking as i32
}

fn take_from(slot: &AtomicI32) -> Option<(sys::Fd, bool)> {
    let word = slot.swap(0, Ordering::AcqRel);
    (word != 0).then(|| {
        let number = (word >> 1) - 1;
        fd_table::forget_internal(number);
        (sys::Fd::from_raw(number), word & 1 != 0)
    })
}

/// A TCP socket as `socket(AF_INET, SOCK_STREAM, 0)` makes it, with the lowest free number; `None`: none is kept.
pub fn take(cloexec: bool, nonblocking: bool) -> Option<c_int> {
    let (twin, is_nonblocking) = POOL.iter().find_map(take_from)?;
    if is_nonblocking != nonblocking {
        sys::set_nonblocking(twin.raw(), nonblocking);
    }
    sys::dup_lowest(&twin, cloexec).ok()
}

/// A twin on its way into the pool. Dropped, it is closed.
#[derive(Debug)]
pub struct Spare {
    twin: sys::Fd,
    nonblocking: bool,
}

/// This twin, of which this `state` is known and which is not the program's any more, if it is as new and there is a
/// slot for it.
pub fn spare(twin: sys::Fd, state: State, nonblocking: bool) -> Option<Spare> {
    let harmless = State::NO_DELAY.with(State::KEEP_ALIVE).with(State::REPORTED).with(State::SUBJECT);
    if state.without(harmless) != State::new_twin()
        || CLOSED.load(Ordering::Relaxed)
        || POOL.iter().all(|slot| slot.load(Ordering::Relaxed) != 0)
    {
        return None;
    }
    unset_options(&twin, state).ok()?;
    Some(Spare { twin, nonblocking })
}

impl Spare {
    /// It is nobody else's now: keeps it for the next socket.
    pub fn keep(self) {
        let number = self.twin.raw();
        let word = word_of(number, self.nonblocking);
        let free =
            |slot: &&AtomicI32| slot.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Marked first: the moment that it is in its slot another thread may take it out and unmark it.
        fd_table::mark_internal(number);
        match POOL.iter().find(free) {
            Some(_) => {
                self.twin.into_raw();
            }
            None => fd_table::forget_internal(number),
        }
        if CLOSED.load(Ordering::SeqCst) {
            clear();
        }
    }
}

/// Unsets the options that the program has set.
fn unset_options(twin: impl AsFd, state: State) -> rustix::io::Result<()> {
    if state.has(State::NO_DELAY) {
        sockopt::set_tcp_nodelay(&twin, false)?;
    }
    if state.has(State::KEEP_ALIVE) {
        sockopt::set_socket_keepalive(&twin, false)?;
    }
    Ok(())
}

/// Closes all. In the child of a fork a store would copy a page, so where there is nothing nothing is stored.
#[cold]
pub fn clear() {
    let pooled = POOL.iter().filter(|slot| slot.load(Ordering::Relaxed) != 0);
    pooled.for_each(|slot| drop(take_from(slot)));
}

/// Closes all, and keeps none any more: from here on sockets of one process may differ in whose they are.
pub fn close() {
    CLOSED.store(true, Ordering::SeqCst);
    clear();
}

/// What `socket_state` is to hold of a socket that [`take`] gave, or the kernel made.
pub fn note_new(fd: c_int) {
    socket_state::set(fd, state_of_new());
}

/// The same, to be put there.
pub fn state_of_new() -> State {
    let subject = if crate::policy::restricts() { State::SUBJECT } else { State::default() };
    State::new_twin().with(subject)
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
        let new = State::new_twin();
        for touched in [State::TOUCHED, State::BOUND, State::IN_EPOLL, State::ENGINE_ADDRESS] {
            assert!(spare(sys::Fd::from(socket()), new.with(touched), false).is_none(), "{touched:?}");
        }
        let twin = sys::Fd::from(socket());
        sockopt::set_tcp_nodelay(&twin, true).unwrap();
        let known = cookie(&twin);
        spare(twin, new.with(State::NO_DELAY).with(State::REPORTED), false).expect("as new").keep();
        let again = take(true, true).map(sys::Fd::from_raw).expect("kept");
        assert_eq!(cookie(&again), known);
        assert!(sys::is_nonblocking(again.raw()), "as it was asked for");
        spare(again, new, true).expect("as new").keep();
        let again = take(true, false).map(sys::Fd::from_raw).expect("kept");
        assert!(!sys::is_nonblocking(again.raw()));
        assert_eq!(sockopt::tcp_nodelay(&again), Ok(false));
        assert_eq!(take(true, false), None);

        drop(spare(again, new, false).expect("as new"));
        assert_eq!(take(true, false), None, "not kept after all");
        spare(sys::Fd::from(socket()), new, false).expect("as new").keep();
        crate::fork::note_new_process();
        assert!(spare(sys::Fd::from(socket()), new, false).is_none(), "a child may have it");
        close();
        assert_eq!(take(true, false), None);
        assert!(spare(sys::Fd::from(socket()), State::new_twin(), false).is_none(), "none any more");
    }
}
