//! All tables together: whether any of them knows a descriptor, and how it leaves them when it ends.

use crate::ffi::guarded;
use crate::socket_state::{self, State};
use crate::{fork, hidden_twin, real, replacing, why};
use core::ffi::c_int;
use toe::{epoll, fd_release, fd_table, sys};

/// Whether any of our tables has an entry for the descriptor.
#[inline]
pub fn is_known(fd: c_int) -> bool {
    fd_table::get(fd).is_some()
        || fd_table::epoll_set(fd).is_some()
        || fd_table::datagram(fd).is_some()
        || socket_state::get(fd) != State::default()
}

/// The descriptor is about to be closed, or was: it leaves all tables.
pub fn forget(fd: c_int) {
    forget_as(fd, fd_release::remove, |fd| fd_table::get(fd).is_none());
}

/// The same of one that is open still and about to be closed, by a call of ours.
pub fn forget_open(fd: c_int) {
    forget_as(fd, fd_release::close, |fd| fd_table::get(fd).is_none());
}

/// `from` is about to be copied over `to`, both of which our tables know: of `to` the table of descriptors says so from now on. Unless another
/// thread has closed `from` meanwhile: then the copy fails.
pub fn forget_for_copy(from: c_int, to: c_int) {
    let is_done = |to| fd_table::are_of_one(from, to) || !fd_table::are_of_one(from, from);
    forget_as(to, |to| fd_release::duplicate_over(from, to), is_done);
}

fn forget_as(fd: c_int, remove: impl Fn(c_int) -> fd_release::Removed, is_done: impl Fn(c_int) -> bool) {
    if fork::in_vfork_child() {
        return;
    }
    let mut state = socket_state::get(fd);
    loop {
        if state.has(State::REPLACING) {
            replacing::stop(fd);
            state = socket_state::get(fd);
        }
        if state.has(State::KEEPS_TWIN) {
            hidden_twin::release(fd);
        }
        remove(fd);
        if state.has(State::IN_EPOLL) {
            epoll::forget_kernel_fd(fd);
        }
        // Another thread may have begun to replace it just now, or may have done so: none begins from here on.
        state = socket_state::take(fd);
        if !state.has(State::REPLACING) && is_done(fd) {
            break;
        }
    }
    why::clear(fd);
}

/// The kernel has just given out this number. When a table still has an entry for it, the descriptor before it was
/// closed by a call that is not interposed.
#[inline]
pub fn is_new(fd: c_int) {
    if is_known(fd) {
        guarded((), || forget(fd));
    }
}

/// As close(2), of a number that the program may end.
pub fn close(fd: c_int) -> c_int {
    if is_known(fd) {
        guarded((), || forget_open(fd));
    }
    // SAFETY: the call takes a number only.
    unsafe { real::close(fd) }
}

/// Whether a socket of an engine's, or a kernel socket that may become one, is open in the next program.
pub fn passes_sockets() -> bool {
    // A child of vfork has put a connection in the place of the standard ones without a word in our tables.
    let mut any = (0..=2).any(is_directory);
    let is_socket = |fd| fd_table::get(fd).is_some() || fd_table::datagram(fd).is_some();
    fd_table::for_each(0, c_int::MAX, |fd| any = any || is_socket(fd) && goes_over_exec(fd));
    any
}

/// Whether it is a directory, as anchors are.
pub fn is_directory(fd: c_int) -> bool {
    rustix::fs::fstat(sys::borrow(fd)).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
    })
}

/// Whether exec leaves it open: it is without FD_CLOEXEC.
pub fn goes_over_exec(fd: c_int) -> bool {
    rustix::io::fcntl_getfd(sys::borrow(fd)).is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC))
}

/// The numbers of all open descriptors, without that of the call itself.
pub fn open_fds() -> Option<Vec<c_int>> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = sys::Fd::from(openat(CWD, c"/proc/self/fd", flags, Mode::empty()).ok()?);
    let mut fds = Vec::new();
    let mut buf = [const { core::mem::MaybeUninit::uninit() }; 2048];
    let mut entries = rustix::fs::RawDir::new(&directory, &mut buf);
    while let Some(entry) = entries.next() {
        fds.extend(entry.ok()?.file_name().to_str().ok().and_then(|name| name.parse::<c_int>().ok()));
    }
    fds.retain(|&fd| fd != directory.raw());
    Some(fds)
}
