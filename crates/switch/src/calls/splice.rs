//! splice(2) between a pipe and an engine's connection. Bytes are copied, once: there are no pages to hand over. How, is
//! `toe::file::pipe`'s; here is what Linux looks at first, and who waits for what.

use super::cancel::point;
use super::data::{explained, receive, transmit_by};
use crate::ffi::{errno, last_errno, length, restarted};
use crate::lookup::{leave_lanes, listener, stream};
use crate::real;
use core::ffi::{c_int, c_uint};
use libc::{off_t, size_t, ssize_t};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};
use std::io::IoSliceMut;
use std::time::Duration;
use toe::errno::ERESTART;
use toe::file::PinnedFile;
use toe::socket::{RecvFlags, SendFlags, Socket};
use toe::wait::{restarts, sleep};
use toe::{Errno, sys, wait_calls};

/// Bytes moved at a time, as many as a pipe holds by default.
const CHUNK: usize = 64 << 10;
/// All that Linux knows.
const FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

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
    restarted(|| {
        let with_offset = |offset: *mut off_t| !offset.is_null();
        match (stream(from), stream(to)) {
            (None, None) if listener(to).is_none() || len == 0 => {
                leave_lanes(from);
                leave_lanes(to);
                // SAFETY: the program's arguments, handed on.
                unsafe { real::splice(from, from_offset, to, to_offset, len, flags) }
            }
            _ if len == 0 => 0,
            _ if flags & !FLAGS != 0 => length(Err(Errno::EINVAL)),
            (Some(_), Some(_)) => length(Err(Errno::EINVAL)),
            (Some(socket), None) => point(-1, || {
                let checked = check(to, OFlags::RDONLY, with_offset(to_offset), with_offset(from_offset));
                length(checked.and_then(|()| out_of(socket, to, len, flags)))
            }),
            (None, Some(socket)) => point(-1, || {
                let checked = check(from, OFlags::WRONLY, with_offset(from_offset), with_offset(to_offset));
                // Linux splices to nothing that is to be appended to, whatever that means of a socket.
                let appends =
                    rustix::fs::fcntl_getfl(sys::borrow(to)).is_ok_and(|f| f.contains(OFlags::APPEND));
                let checked = if appends { checked.and(Err(Errno::EINVAL)) } else { checked };
                let how = SendFlags { more: flags & libc::SPLICE_F_MORE != 0, ..SendFlags::default() };
                let pipe = PinnedFile::of(sys::borrow(from));
                let double = |to: BorrowedFd<'_>, len| double(&pipe, Some(socket), to, len, flags);
                let send = || socket.send_pipe(&pipe, double, len, how);
                length(checked.and_then(|()| transmit_by(socket, false, send)))
            }),
            // Its twin bears a mark of ours that the kernel would take for the reason to refuse.
            (None, None) => point(-1, || {
                let checked = check(from, OFlags::WRONLY, with_offset(from_offset), with_offset(to_offset));
                length(checked.and_then(|()| into(from, len, flags, |bytes| to_listener(to, bytes))))
            }),
        }
    })
}

/// The other descriptor is a pipe, of which it is not the end that is only for `wrong`, and neither it nor the connection is
/// given an offset.
fn check(pipe: c_int, wrong: OFlags, pipe_offset: bool, offset: bool) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(sys::borrow(pipe)).map_err(toe::errno::from_os)?;
    if flags & OFlags::RWMODE == wrong {
        return Err(Errno::EBADF);
    }
    let stat = rustix::fs::fstat(sys::borrow(pipe)).map_err(toe::errno::from_os)?;
    let is_pipe = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Fifo;
    match (is_pipe, pipe_offset, offset) {
        (true, true, _) => Err(errno(libc::ESPIPE)),
        (true, false, false) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

fn does_not_wait(flags: c_uint) -> bool {
    flags & libc::SPLICE_F_NONBLOCK != 0
}

/// What Linux says, and does, to who writes to a listener.
pub fn to_listener(fd: c_int, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the bytes are readable.
    match unsafe { real::write(fd, bytes.as_ptr().cast(), bytes.len()) } {
        ..0 => Err(last_errno()),
        put => Ok(put as usize),
    }
}

pub fn out_of(socket: &'static Socket, pipe: c_int, len: usize, flags: c_uint) -> Result<usize, Errno> {
    let pinned = PinnedFile::of(sys::borrow(pipe));
    let pipe = pinned.fd();
    // Linux looks at the pipe first.
    if !has_readers(pipe)? {
        sys::raise_sigpipe();
        return Err(Errno::EPIPE);
    }
    if does_not_wait(flags) && !has_room(pipe, false)? {
        return Err(Errno::EAGAIN);
    }
    let at_once = does_not_wait(flags)
        || rustix::fs::fcntl_getfl(pipe).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
    let _held = socket.hold();
    if !socket.nonblocking() && !socket.is_readable() {
        pinned.keep(socket.session());
    }
    loop {
        let pipe = pinned.fd();
        if socket.stops_at_mark() {
            // Linux's splice does not go past an urgent byte, and leaves it there.
            return if at_once || socket.nonblocking() { Err(Errno::EAGAIN) } else { Ok(0) };
        }
        match socket.receive_pipe(pipe, len, RecvFlags::default()) {
            Ok(got) => return Ok(got),
            Err(Ok(errno)) => return explained(socket, Err(errno)),
            // Linux before pipes knew that flag.
            Err(Err(rustix::io::Errno::OPNOTSUPP)) => return by_buffer(socket, pipe, len, at_once),
            Err(Err(rustix::io::Errno::AGAIN)) if !at_once => {
                pinned.keep(socket.session());
                has_room(pinned.fd(), true)?;
                if !pinned.is_same() {
                    return Err(Errno::EBADF);
                }
            }
            Err(Err(error)) => return Err(toe::errno::from_os(error)),
        }
    }
}

/// The bytes are looked at, written to the pipe, and then received as far as they went.
fn by_buffer(
    socket: &'static Socket,
    pipe: BorrowedFd<'_>,
    len: usize,
    at_once: bool,
) -> Result<usize, Errno> {
    let mut chunk = vec![0; len.min(libc::PIPE_BUF)];
    let there = receive(socket, &mut [IoSliceMut::new(&mut chunk)], libc::MSG_PEEK)?;
    if there == 0 {
        return Ok(0);
    }
    if !has_room(pipe, !at_once)? {
        return Err(Errno::EAGAIN);
    }
    // What has room takes this much without waiting.
    let written = rustix::io::write(pipe, &chunk[..there]).map_err(toe::errno::from_os)?;
    receive(socket, &mut [IoSliceMut::new(&mut chunk[..written])], libc::MSG_DONTWAIT)
}

/// Whether somebody can read what is written to the pipe.
fn has_readers(pipe: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut polled = [libc::pollfd { fd: pipe.as_raw_fd(), events: 0, revents: 0 }];
    wait_calls::ppoll(&mut polled, Some(Duration::ZERO), None)?;
    Ok(polled[0].revents & libc::POLLERR == 0)
}

/// Whether the pipe has room, or an error to tell. EINTR, ERESTART: a signal came while it was waited for.
fn has_room(pipe: BorrowedFd<'_>, wait: bool) -> Result<bool, Errno> {
    let mut polled = [libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLOUT, revents: 0 }];
    let timeout = (!wait).then_some(Duration::ZERO);
    slept(sleep(None, || wait_calls::ppoll(&mut polled, timeout, None)).0).map(|n| n > 0)
}

/// Waits until there is something in the pipe, or will never be, or it is time to look again. EINTR, ERESTART: a signal came
/// meanwhile.
fn wait_for_bytes(pipe: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut polled = [libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    slept(sleep(None, || wait_calls::ppoll(&mut polled, None, None)).0).map(|_| ())
}

/// Nothing has been moved yet: what a signal ends begins anew if its handler has SA_RESTART.
fn slept(outcome: Result<usize, Errno>) -> Result<usize, Errno> {
    if outcome == Err(Errno::EINTR) && restarts(false) { Err(ERESTART) } else { outcome }
}

/// Doubles what is in `pipe` into `to`. It waits asleep and not in tee(2): there a thread would run no handler.
fn double(
    pipe: &PinnedFile<'_>,
    socket: Option<&Socket>,
    to: impl AsFd,
    len: usize,
    flags: c_uint,
) -> Result<usize, Errno> {
    let waits = !does_not_wait(flags)
        && rustix::fs::fcntl_getfl(pipe.fd()).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
    loop {
        match tee(pipe.fd(), to.as_fd(), len, SpliceFlags::NONBLOCK) {
            Err(rustix::io::Errno::AGAIN) if waits => {
                socket.into_iter().for_each(|socket| pipe.keep(socket.session()));
                wait_for_bytes(pipe.fd())?;
                if !pipe.is_same() {
                    return Err(Errno::EBADF);
                }
            }
            other => return other.map_err(toe::errno::from_os),
        }
    }
}

/// What is in the pipe, up to `len` bytes, which stay there.
fn copy_of(pipe: BorrowedFd<'_>, len: usize, flags: c_uint) -> Result<Vec<u8>, Errno> {
    let (reads, writes) = pipe_with(PipeFlags::CLOEXEC).map_err(toe::errno::from_os)?;
    let (reads, writes) = (sys::Fd::from(reads), sys::Fd::from(writes));
    let mut chunk = vec![0; double(&PinnedFile::of(pipe), None, &writes, len, flags)?];
    let mut got = 0;
    while got < chunk.len() {
        got += rustix::io::read(&reads, &mut chunk[got..]).map_err(toe::errno::from_os)?;
    }
    Ok(chunk)
}

/// Hands what is in the pipe to `put`, and takes out as much as that took.
fn into(
    pipe: c_int,
    len: usize,
    flags: c_uint,
    put: impl FnOnce(&[u8]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let pipe = sys::borrow(pipe);
    let mut chunk = copy_of(pipe, len.min(CHUNK), flags)?;
    if chunk.is_empty() {
        return Ok(0);
    }
    let sent = put(&chunk)?;
    let mut taken = 0;
    while taken < sent {
        taken += rustix::io::read(pipe, &mut chunk[..sent - taken]).map_err(toe::errno::from_os)?;
    }
    Ok(sent)
}
