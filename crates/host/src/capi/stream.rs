//! The bytes of a TCP socket: what `toe_send` and `toe_recv` do, and `toe_sendto` and `toe_recvfrom` on one.

use super::arguments::{buffers_of, find, with_copy};
use super::{count, fail};
use crate::socket::{RecvFlags, SendFlags};
use crate::sys;
use libc::{iovec, ssize_t};
use std::ffi::{c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use toe_abi::errno::Errno;

pub(super) fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    const KNOWN: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
    if flags & !KNOWN != 0 {
        return fail(find(fd).err().unwrap_or(Errno::EOPNOTSUPP)) as ssize_t;
    }
    let from = iovec { iov_base: buf.cast_mut(), iov_len: len };
    send_buffers(fd, &from, 1, flags)
}

pub(super) fn send_buffers(fd: c_int, iov: *const iovec, buffers: c_int, flags: c_int) -> ssize_t {
    let how = SendFlags {
        dont_wait: flags & libc::MSG_DONTWAIT != 0,
        more: flags & libc::MSG_MORE != 0,
        urgent: flags & libc::MSG_OOB != 0,
        end_of_record: flags & libc::MSG_EOR != 0,
    };
    let result = find(fd).and_then(|socket| {
        let iov = buffers_of(iov, buffers)?;
        with_copy(iov, |iov| {
            // SAFETY: needed because the buffers are C's. `IoSlice` has the layout of `iovec` on Unix (documented).
            // Each buffer is `iov_len` readable bytes, as documented for the caller, and none starts at null.
            let slices = unsafe { std::slice::from_raw_parts(iov.as_ptr().cast::<IoSlice<'_>>(), iov.len()) };
            socket.send(slices, how)
        })
    });
    if result == Err(Errno::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        sys::raise_sigpipe();
    }
    count(result)
}

pub(super) fn recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    const KNOWN: c_int =
        libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_TRUNC | libc::MSG_NOSIGNAL;
    if flags & !KNOWN != 0 {
        return fail(find(fd).err().unwrap_or(Errno::EOPNOTSUPP)) as ssize_t;
    }
    let into = iovec { iov_base: buf, iov_len: len };
    recv_buffers(fd, &into, 1, flags)
}

pub(super) fn recv_buffers(fd: c_int, iov: *const iovec, buffers: c_int, flags: c_int) -> ssize_t {
    let how = RecvFlags {
        peek: flags & libc::MSG_PEEK != 0,
        wait_all: flags & libc::MSG_WAITALL != 0,
        dont_wait: flags & libc::MSG_DONTWAIT != 0,
        discard: flags & libc::MSG_TRUNC != 0,
    };
    count(find(fd).and_then(|socket| {
        let iov = buffers_of(iov, buffers)?;
        with_copy(iov, |iov| {
            let (at, len) = (iov.as_mut_ptr().cast::<IoSliceMut<'_>>(), iov.len());
            // SAFETY: needed because the buffers are C's. `IoSliceMut` has the layout of `iovec` on Unix (documented).
            // Each buffer is `iov_len` writable bytes, as documented for the caller, and none starts at null.
            socket.recv(unsafe { std::slice::from_raw_parts_mut(at, len) }, how)
        })
    }))
}
