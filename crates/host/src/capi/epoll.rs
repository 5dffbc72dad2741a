//! `toe_epoll_create` … `toe_epoll_wait`.

use super::arguments::milliseconds;
use super::{fail, status};
use crate::errno::EFAULT;
use crate::{epoll, fd_table, sys, wait_calls};
use libc::epoll_event;
use rustix::event::epoll::CreateFlags;
use rustix::fd::IntoRawFd;
use std::ffi::c_int;
use toe_abi::errno::Errno;

/// Makes an epoll descriptor, for sockets and all other descriptors alike. `size` is ignored but must be positive. Does not
/// block. Close it with toe_close. Any thread may use it, several at a time.
///
/// Returns the descriptor, or -1 with errno: EINVAL, EMFILE, ENFILE, ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn toe_epoll_create(size: c_int) -> c_int {
    if size <= 0 { fail(Errno::EINVAL) } else { toe_epoll_create1(0) }
}

/// Like toe_epoll_create. `flags`: 0 or EPOLL_CLOEXEC.
#[unsafe(no_mangle)]
pub extern "C" fn toe_epoll_create1(flags: c_int) -> c_int {
    let create = match flags {
        0 => CreateFlags::empty(),
        libc::EPOLL_CLOEXEC => CreateFlags::CLOEXEC,
        _ => return fail(Errno::EINVAL),
    };
    match rustix::event::epoll::create(create) {
        Ok(fd) => {
            let fd = fd.into_raw_fd();
            epoll::created(fd);
            fd
        }
        Err(error) => fail(crate::errno::from_os(error)),
    }
}

/// Adds (EPOLL_CTL_ADD), changes (EPOLL_CTL_MOD) or takes out (EPOLL_CTL_DEL) a descriptor. Events as in Linux, with
/// EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE and EPOLLRDHUP. Adding a listener makes it begin to take connections. A socket
/// whose last descriptor is closed leaves by itself. Does not block.
///
/// Returns 0, or -1 with errno: EEXIST, ENOENT, EBADF, EINVAL, EPERM, EFAULT, ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn toe_epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let event = if op == libc::EPOLL_CTL_DEL {
        None
    } else if event.is_null() {
        return fail(EFAULT);
    } else {
        // SAFETY: needed because the event is C's: as documented, a readable struct; no alignment is assumed.
        Some(unsafe { event.read_unaligned() })
    };
    status(control(epfd, op, fd, event))
}

fn control(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>) -> Result<(), Errno> {
    if fd_table::get(epfd).is_some() {
        // A connection's descriptor is to the kernel none that could be asked.
        return sys::fcntl(fd, libc::F_GETFD, 0).and(Err(Errno::EINVAL));
    }
    if fd_table::epoll_set(fd).is_some() {
        return epoll::ctl_set(epfd, op, fd, event);
    }
    if fd_table::get(fd).is_none() {
        sys::epoll_ctl(epfd, op, fd, event)?;
        epoll::note_kernel_fd(epfd, fd, op, event);
        return Ok(());
    }
    if fd_table::epoll_set(epfd).is_none() {
        // Not made by toe_epoll_create: the kernel says whether it is an epoll descriptor at all.
        match wait_calls::epoll_pwait(
            epfd,
            &mut [epoll_event { events: 0, u64: 0 }],
            Some(std::time::Duration::ZERO),
            None,
        ) {
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
    }
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => epoll::ctl_add(epfd, fd, event),
        (libc::EPOLL_CTL_MOD, Some(event)) => epoll::ctl_mod(epfd, fd, event),
        (libc::EPOLL_CTL_DEL, _) => epoll::ctl_del(epfd, fd),
        _ => Err(Errno::EINVAL),
    }
}

/// Waits for events: fills in up to `max` of them. `timeout` in milliseconds, negative: no limit, 0: do not block.
/// Readiness is looked at again before it is reported (TOE Manager thesis, section 3.3).
///
/// Returns the number of events, 0 when the time is over, or -1 with errno: EINTR: a signal came; EINVAL: `max` is not
/// positive, or `epfd` no epoll descriptor; EBADF; EFAULT.
#[unsafe(no_mangle)]
pub extern "C" fn toe_epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    /// As many as Linux can count (EP_MAX_EVENTS).
    const EVENTS_MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();
    let max = usize::try_from(max).ok().filter(|max| (1..=EVENTS_MAX).contains(max));
    let Some(max) = max else { return fail(Errno::EINVAL) };
    if events.is_null() {
        return fail(EFAULT);
    }
    if fd_table::get(epfd).is_some() {
        return fail(Errno::EINVAL);
    }
    // SAFETY: needed because the array is C's: as documented, `max` writable events. Any bits are a valid event.
    let events = unsafe { std::slice::from_raw_parts_mut(events, max) };
    match epoll::wait(epfd, events, milliseconds(timeout), None) {
        Ok(n) => n as c_int,
        Err(errno) => fail(errno),
    }
}
