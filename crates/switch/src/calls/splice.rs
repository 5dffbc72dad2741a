//! splice(2) between a pipe and an engine's connection. Octets are copied: there are no pages to hand over.
//!
//! Out of the connection they are looked at, written to the pipe, and then read as far as they went. Out of the pipe they
//! are doubled (tee) into one of our own, sent from there, and then taken from the program's as far as they went.

use super::data::{receive, transmit};
use super::stream;
use crate::ffi::{errno, guarded, length};
use crate::real;
use core::ffi::{c_int, c_uint};
use libc::{off_t, size_t, ssize_t};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::ReadWriteFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;
use toe::socket::Socket;
use toe::{Errno, signals, sys};

/// Octets moved at a time, as many as a pipe holds by default.
const CHUNK: usize = 64 << 10;

/// # Safety
/// As splice(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let with_offset = |offset: *mut off_t| !offset.is_null();
    match (stream(from), stream(to)) {
        // SAFETY: the program's arguments, handed on.
        (None, None) => unsafe { real::splice(from, from_offset, to, to_offset, len, flags) },
        _ if len == 0 => 0,
        (Some(_), Some(_)) => length(Err(Errno::EINVAL)),
        (Some(socket), None) => guarded(-1, || {
            length(check(to, with_offset(from_offset)).and_then(|()| out_of(socket, to, len, flags)))
        }),
        (None, Some(socket)) => guarded(-1, || {
            length(check(from, with_offset(to_offset)).and_then(|()| into(from, socket, len, flags)))
        }),
    }
}

/// The other descriptor is a pipe, and the connection has no offset.
fn check(pipe: c_int, has_offset: bool) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(sys::borrow(pipe)).map_err(toe::errno::from_os)?;
    let is_pipe = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Fifo;
    match (has_offset, is_pipe) {
        (true, _) => Err(errno(libc::ESPIPE)),
        (false, true) => Ok(()),
        (false, false) => Err(Errno::EINVAL),
    }
}

fn does_not_wait(flags: c_uint) -> bool {
    flags & libc::SPLICE_F_NONBLOCK != 0
}

fn out_of(socket: &'static Socket, pipe: c_int, len: usize, flags: c_uint) -> Result<usize, Errno> {
    let pipe = sys::borrow(pipe);
    let mut chunk = vec![0; len.min(CHUNK)];
    let there = receive(socket, &mut [IoSliceMut::new(&mut chunk)], libc::MSG_PEEK)?;
    if there == 0 {
        return Ok(0);
    }
    let written = fill(pipe, &chunk[..there], does_not_wait(flags))?;
    receive(socket, &mut [IoSliceMut::new(&mut chunk[..written])], libc::MSG_DONTWAIT)
}

/// Writes as much as the pipe takes now; waits for room unless told not to, by the call or by the pipe's own flag.
fn fill(pipe: BorrowedFd<'_>, octets: &[u8], at_once: bool) -> Result<usize, Errno> {
    let waits = !at_once
        && rustix::fs::fcntl_getfl(pipe).is_ok_and(|flags| !flags.contains(rustix::fs::OFlags::NONBLOCK));
    loop {
        // The offset that means none.
        match rustix::io::pwritev2(pipe, &[IoSlice::new(octets)], u64::MAX, ReadWriteFlags::NOWAIT) {
            // Linux before pipes knew this flag: one that has room takes this much without waiting.
            Err(rustix::io::Errno::OPNOTSUPP) if has_room(pipe, waits)? => {
                let piece = &octets[..octets.len().min(libc::PIPE_BUF)];
                return rustix::io::write(pipe, piece).map_err(toe::errno::from_os);
            }
            Err(rustix::io::Errno::OPNOTSUPP) => return Err(Errno::EAGAIN),
            Err(rustix::io::Errno::AGAIN) if waits => {
                has_room(pipe, true)?;
            }
            other => return other.map_err(toe::errno::from_os),
        }
    }
}

/// Whether the pipe has room, or an error to tell. EINTR: a signal came while it was waited for.
fn has_room(pipe: BorrowedFd<'_>, wait: bool) -> Result<bool, Errno> {
    let mut polled = [libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLOUT, revents: 0 }];
    let timeout = (!wait).then_some(Duration::ZERO);
    signals::asleep(|| sys::ppoll(&mut polled, timeout, None)).unwrap_or(Err(Errno::EINTR)).map(|n| n > 0)
}

fn into(pipe: c_int, socket: &'static Socket, len: usize, flags: c_uint) -> Result<usize, Errno> {
    let pipe = sys::borrow(pipe);
    let (reads, writes) = pipe_with(PipeFlags::CLOEXEC).map_err(toe::errno::from_os)?;
    let (reads, writes) = (sys::Fd::from(reads), sys::Fd::from(writes));
    let how = if does_not_wait(flags) { SpliceFlags::NONBLOCK } else { SpliceFlags::empty() };
    let there = tee(pipe, &writes, len.min(CHUNK), how).map_err(toe::errno::from_os)?;
    if there == 0 {
        return Ok(0);
    }
    let mut chunk = vec![0; there];
    let mut got = 0;
    while got < there {
        got += rustix::io::read(&reads, &mut chunk[got..]).map_err(toe::errno::from_os)?;
    }
    let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
    let sent = transmit(socket, &[IoSlice::new(&chunk)], more)?;
    let mut taken = 0;
    while taken < sent {
        taken += rustix::io::read(pipe, &mut chunk[..sent - taken]).map_err(toe::errno::from_os)?;
    }
    Ok(sent)
}
