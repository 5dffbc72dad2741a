//! socket, close, close_range, closefrom: how descriptors begin and end.

use crate::ffi::{guarded, set_errno};
use crate::listen::follow_cloexec;
use crate::lookup::listener;
use crate::socket_state::{self, State};
use crate::tables::{self, forget_open, is_new, open_fds};
use crate::why::{self, Reason, Stack as On};
use crate::{fork, policy, real, twin_pool};
use core::ffi::{c_int, c_uint};
use toe::datagram::Datagram;
use toe::fd_table;
use toe::stack::Stack;

/// A new TCP socket becomes a twin; every other is the kernel's, and a TCP one says why.
///
/// # Safety
/// None beyond socket(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_INET && matches!(protocol, 0 | libc::IPPROTO_TCP) {
        let used = guarded(None, || socket_again(kind));
        if let Some(fd) = used {
            return fd;
        }
    }
    // SAFETY: the call takes numbers only.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd >= 0 {
        is_new(fd);
        if matches!(domain, libc::AF_INET | libc::AF_INET6) {
            guarded((), || classify(fd, domain, kind, protocol));
        }
    }
    fd
}

/// A TCP socket that was not needed before; `None`: the kernel has to make one.
fn socket_again(kind: c_int) -> Option<c_int> {
    if kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != libc::SOCK_STREAM
        || policy::disabled()
        || fork::in_vfork_child()
    {
        return None;
    }
    let fd = twin_pool::take(kind & libc::SOCK_CLOEXEC != 0, kind & libc::SOCK_NONBLOCK != 0)?;
    is_new(fd);
    twin_pool::note_new(fd);
    why::set_reason(fd, On::Kernel, Reason::Undecided);
    Some(fd)
}

fn classify(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    if fork::in_vfork_child() {
        return;
    }
    match verdict(kind, protocol) {
        None if policy::disabled() => why::set_reason(fd, On::Kernel, Reason::Disabled),
        None => {
            twin_pool::note_new(fd);
            if domain == libc::AF_INET6 {
                socket_state::add(fd, State::INET6);
            }
            why::set_reason(fd, On::Kernel, Reason::Undecided);
        }
        Some((on, reason)) => {
            if kind & 0xf == libc::SOCK_DGRAM
                && matches!(protocol, 0 | libc::IPPROTO_UDP)
                && !policy::disabled()
            {
                let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
                fd_table::install_datagram(fd, Datagram::take(domain == libc::AF_INET6, nonblocking));
            }
            why::set_reason(fd, on, reason);
        }
    }
}

/// Why a socket is none for an engine; `None` when one may have it.
fn verdict(kind: c_int, protocol: c_int) -> Option<(On, Reason)> {
    if kind & 0xf != libc::SOCK_STREAM {
        return Some((On::None, Reason::NotStream));
    }
    (!matches!(protocol, 0 | libc::IPPROTO_TCP)).then_some((On::Kernel, Reason::Protocol))
}

/// # Safety
/// None beyond close(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if Stack::is_internal_fd(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    tables::close(fd)
}

/// Closes what the program can see in the range, or marks it to be closed on exec; our own descriptors stay as they are.
///
/// # Safety
/// None beyond close_range(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // A vfork child has descriptors of its own to close, and only our tables to leave alone.
    if first > last || fork::in_vfork_child() {
        // SAFETY: the call takes numbers only.
        return unsafe { real::close_range(first, last, flags) };
    }
    let from = c_int::try_from(first).unwrap_or(c_int::MAX);
    let to = c_int::try_from(last).unwrap_or(c_int::MAX);
    let on_exec = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    let kept = guarded(Vec::new(), || {
        if !on_exec {
            forget_range(from, to);
        }
        internal_fds(from, to)
    });
    let mut result = 0;
    for (first, last) in ranges_without(first, last, &kept) {
        // SAFETY: as above.
        result |= unsafe { real::close_range(first, last, flags) };
    }
    if on_exec {
        guarded((), || fd_table::for_each(from, to, |fd| _ = listener(fd).map(follow_cloexec)));
    }
    result
}

/// # Safety
/// None beyond closefrom(3)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: the calls take numbers only.
    unsafe {
        if close_range(first.max(0) as c_uint, c_uint::MAX, 0) < 0 {
            real::closefrom(first);
        }
    }
}

/// Our own descriptors in the range, ascending: those of the process's open ones that are marked. Without /proc every
/// number is looked at, which takes a millisecond or two.
fn internal_fds(from: c_int, to: c_int) -> Vec<c_uint> {
    let ours = |&fd: &c_int| (from..=to).contains(&fd) && Stack::is_internal_fd(fd);
    let mut found: Vec<c_int> = match open_fds() {
        Some(fds) => fds.into_iter().filter(ours).collect(),
        None => (from..=to.min(1 << 20)).filter(ours).collect(),
    };
    found.sort_unstable();
    found.into_iter().map(|fd| fd as c_uint).collect()
}

/// The parts of `first..=last` around the numbers in `kept`, which ascend.
fn ranges_without(first: c_uint, last: c_uint, kept: &[c_uint]) -> Vec<(c_uint, c_uint)> {
    let mut ranges = Vec::with_capacity(kept.len() + 1);
    let mut next = Some(first);
    for &fd in kept.iter().filter(|fd| (first..=last).contains(fd)) {
        if let Some(from) = next.filter(|&from| from < fd) {
            ranges.push((from, fd - 1));
        }
        next = fd.checked_add(1);
    }
    if let Some(from) = next.filter(|&from| from <= last) {
        ranges.push((from, last));
    }
    ranges
}

fn forget_range(from: c_int, to: c_int) {
    let mut known = Vec::new();
    fd_table::for_each(from, to, |fd| known.push(fd));
    socket_state::for_each(from, to, |fd| known.push(fd));
    known.into_iter().for_each(forget_open);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_tcp_is_for_an_engine() {
        let stream = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        assert_eq!(verdict(stream, 0), None);
        assert_eq!(verdict(stream, libc::IPPROTO_TCP), None);
        assert_eq!(verdict(stream, libc::IPPROTO_MPTCP), Some((On::Kernel, Reason::Protocol)));
        assert_eq!(verdict(libc::SOCK_DGRAM, 0), Some((On::None, Reason::NotStream)));
    }

    #[test]
    fn open_descriptors_are_listed() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(open_fds().unwrap().contains(&std::os::fd::AsRawFd::as_raw_fd(&file)));
        assert!(internal_fds(0, 100).is_empty());
    }

    #[test]
    fn ranges_leave_out_what_is_ours() {
        assert_eq!(ranges_without(3, 9, &[]), [(3, 9)]);
        assert_eq!(ranges_without(3, 9, &[3, 5, 9]), [(4, 4), (6, 8)]);
        assert_eq!(ranges_without(3, c_uint::MAX, &[700, 701]), [(3, 699), (702, c_uint::MAX)]);
        assert_eq!(ranges_without(3, c_uint::MAX, &[c_uint::MAX]), [(3, c_uint::MAX - 1)]);
        assert_eq!(ranges_without(3, 3, &[3]), []);
        assert_eq!(ranges_without(3, 9, &[1, 20]), [(3, 9)]);
    }
}
