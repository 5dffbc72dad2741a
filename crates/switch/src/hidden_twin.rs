//! The kernel socket that stays behind, out of the program's sight, when an explicitly bound socket was connected by an
//! engine: as long as it is there, the port that the program bound stays taken in the kernel.
//!
//! Kept by the program's descriptor. When that is closed while copies of it are open, one of them takes over.

use crate::socket_state::{self, State};
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};
use toe::{fd_table, sys};

/// Descriptors that can keep a twin; with one beyond, the port is free again after connect.
const KEEPERS: usize = 1 << 16;
/// One more than the twin's number, by the program's; zero: none.
static TWINS: [AtomicI32; KEEPERS] = [const { AtomicI32::new(0) }; KEEPERS];

fn slot(fd: c_int) -> Option<&'static AtomicI32> {
    TWINS.get(usize::try_from(fd).ok()?)
}

/// From now on `twin` is closed with `fd`.
pub fn keep(fd: c_int, twin: sys::Fd) {
    if let Some(slot) = slot(fd) {
        let number = twin.into_raw();
        fd_table::mark_internal(number);
        slot.store(number + 1, Ordering::Relaxed);
        socket_state::add(fd, State::KEEPS_TWIN);
    }
}

/// What [`keep`] has kept for `fd`, if it is there still.
pub fn take_back(fd: c_int) -> Option<sys::Fd> {
    let number = slot(fd)?.swap(0, Ordering::Relaxed) - 1;
    (number >= 0).then(|| {
        socket_state::set(fd, socket_state::get(fd).without(State::KEEPS_TWIN));
        fd_table::forget_internal(number);
        sys::Fd::from_raw(number)
    })
}

/// `fd` is about to leave the tables.
pub fn release(fd: c_int) {
    let Some(number) = slot(fd).map(|slot| slot.swap(0, Ordering::Relaxed) - 1).filter(|&n| n >= 0) else {
        return;
    };
    let copy = fd_table::get(fd).and_then(|socket| fd_table::find(socket, fd));
    if let Some((copy, slot)) = copy.and_then(|copy| Some((copy, slot(copy)?))) {
        slot.store(number + 1, Ordering::Relaxed);
        socket_state::add(copy, State::KEEPS_TWIN);
        return;
    }
    fd_table::forget_internal(number);
    let _ = sys::close(number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twin_is_closed_with_its_keeper() {
        let (fd, open) = (60_001, rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        let twin = sys::dup_to_high(&open).unwrap();
        let number = twin.raw();
        keep(fd, twin);
        assert!(fd_table::is_internal(number) && socket_state::get(fd).has(State::KEEPS_TWIN));
        release(fd);
        assert!(!fd_table::is_internal(number));
        assert!(rustix::io::fcntl_getfd(sys::borrow(number)).is_err());
        release(fd);
        let twin = sys::dup_to_high(&open).unwrap();
        let number = twin.raw();
        keep(fd, twin);
        assert_eq!(take_back(fd).map(|twin| twin.raw()), Some(number));
        assert!(take_back(fd).is_none() && !socket_state::get(fd).has(State::KEEPS_TWIN));
    }
}
