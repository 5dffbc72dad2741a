//! The forms of the calls that programs built with _FORTIFY_SOURCE use. The check of the buffer's size is left to the C
//! library, which ends the program when it fails.

use super::data::{read, recv, recvfrom};
use super::poll::{poll, ppoll};
use crate::lookup::stream;
use crate::real;
use core::ffi::{c_int, c_void};
use libc::{nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

/// Whether the call of the name without a check does something of its own.
fn is_looked_after(fd: c_int) -> bool {
    stream(fd).is_some() || toe::fd_table::datagram(fd).is_some()
}

/// # Safety
/// As read(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    buf_len: size_t,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if len > buf_len || !is_looked_after(fd) {
            return real::read_chk(fd, buf, len, buf_len);
        }
        read(fd, buf, len)
    }
}

/// # Safety
/// As recv(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    buf_len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if len > buf_len || !is_looked_after(fd) {
            return real::recv_chk(fd, buf, len, buf_len, flags);
        }
        recv(fd, buf, len, flags)
    }
}

/// # Safety
/// As recvfrom(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    buf_len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if len > buf_len || !is_looked_after(fd) {
            return real::recvfrom_chk(fd, buf, len, buf_len, flags, addr, addr_len);
        }
        recvfrom(fd, buf, len, flags, addr, addr_len)
    }
}

const fn too_many(count: nfds_t, bytes: size_t) -> bool {
    bytes / size_of::<pollfd>() < count as usize
}

/// # Safety
/// As poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    bytes: size_t,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if too_many(count, bytes) {
            return real::poll_chk(fds, count, timeout, bytes);
        }
        poll(fds, count, timeout)
    }
}

/// # Safety
/// As ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    bytes: size_t,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if too_many(count, bytes) {
            return real::ppoll_chk(fds, count, timeout, mask, bytes);
        }
        ppoll(fds, count, timeout, mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_that_is_too_small_is_found() {
        assert!(too_many(3, 2 * size_of::<pollfd>()));
        assert!(!too_many(2, 2 * size_of::<pollfd>()));
    }
}
