//! sendfile and copy_file_range where one of the two is an engine's socket. What is wrong with a call is looked for in Linux's
//! order.

use super::data::transmit_by;
use super::splice;
use crate::ffi::{errno, guarded, length, restarted};
use crate::lookup::{self, listener, stream};
use crate::real;
use core::ffi::{c_int, c_uint};
use libc::{off_t, size_t, ssize_t};
use rustix::fs::FileType;
use toe::file::PinnedFile;
use toe::socket::{SendFlags, Socket};
use toe::{Errno, program_memory, sys};

/// # Safety
/// As sendfile(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    restarted(|| {
        // SAFETY: the program's arguments.
        let place = || unsafe { offset.as_mut() };
        if !offset.is_null() && stream(out).is_some() && program_memory::check(offset, 1).is_err() {
            return length(Err(program_memory::EFAULT));
        }
        match (stream(out), stream(from)) {
            (_, Some(socket)) => {
                guarded(-1, || length(from_connection(socket, out, !offset.is_null(), count)))
            }
            (Some(socket), None) => guarded(-1, || {
                let file = PinnedFile::of(sys::borrow(from));
                let put = |position, count| to_connection(socket, &file, position, count);
                length(send_file(&file, place(), count, put))
            }),
            // Its twin bears a mark of ours that the kernel would take for the reason to refuse.
            (None, None) if listener(out).is_some() => guarded(-1, || {
                let file = PinnedFile::of(sys::borrow(from));
                length(send_file(&file, place(), count, |position, count| {
                    let mut byte = [0];
                    let got = rustix::io::pread(sys::borrow(from), &mut byte[..count.min(1)], position);
                    match got.map_err(toe::errno::from_os).map_err(as_sendfile)? {
                        0 => Ok(0),
                        got => splice::to_listener(out, &byte[..got]),
                    }
                }))
            }),
            // SAFETY: the program's arguments, handed on.
            (None, None) => unsafe {
                lookup::leave_lanes(out);
                real::sendfile(out, from, offset, count)
            },
        }
    })
}

/// Of a socket there is nothing to copy from or to: programs that try it first go on otherwise.
///
/// # Safety
/// As copy_file_range(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let other = match (stream(from), stream(to)) {
        // SAFETY: the program's arguments, handed on.
        (None, None) => unsafe { return real::copy_file_range(from, from_offset, to, to_offset, len, flags) },
        (Some(_), _) => to,
        (None, Some(_)) => from,
    };
    let refused = match rustix::fs::fstat(sys::borrow(other)) {
        Err(error) => toe::errno::from_os(error),
        Ok(stat)
            if stream(other).is_none() && FileType::from_raw_mode(stat.st_mode) == FileType::Directory =>
        {
            errno(libc::EISDIR)
        }
        Ok(_) => Errno::EINVAL,
    };
    length(Err(refused))
}

/// A connection has no position, so nothing is sent out of it; but a pipe takes what there is.
fn from_connection(
    socket: &'static Socket,
    out: c_int,
    has_offset: bool,
    count: usize,
) -> Result<usize, Errno> {
    if has_offset {
        return Err(errno(libc::ESPIPE));
    }
    let stat = rustix::fs::fstat(sys::borrow(out)).map_err(toe::errno::from_os)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
        return Err(Errno::EINVAL);
    }
    let how = if socket.nonblocking() { libc::SPLICE_F_NONBLOCK } else { 0 };
    if count == 0 { Ok(0) } else { splice::out_of(socket, out, count, how) }
}

/// # Safety
/// As sendfile(2); off_t has 64 bits on the systems that this library is for.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { sendfile(out, from, offset, count) }
}

/// Sends what `put` does of `count` bytes from a position on, which is the file's own without `offset`, and moves that.
fn send_file(
    file: &PinnedFile<'_>,
    offset: Option<&mut off_t>,
    count: usize,
    put: impl FnOnce(u64, usize) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    if let Some(offset) = offset {
        if count == 0 {
            // Nothing is read, so this is all that finds out what is wrong with the file.
            return match rustix::io::pread(file.fd(), &mut [0u8; 0], 0) {
                Err(_) if !is_readable(file) => Err(Errno::EBADF),
                Err(rustix::io::Errno::BADF) => Err(Errno::EBADF),
                Err(rustix::io::Errno::SPIPE) => Err(errno(libc::ESPIPE)),
                _ if *offset < 0 => Err(Errno::EINVAL),
                _ => Ok(0),
            };
        }
        let position = area(*offset, count);
        let sent = position.and_then(|position| put(position, count.min(crate::ffi::RW_MAX)));
        let sent = sent.map_err(|error| match error {
            Errno::EINVAL if !is_readable(file) => Errno::EBADF,
            // What has no positions has none to begin at.
            Errno::EINVAL if !has_positions(file) => errno(libc::ESPIPE),
            error => error,
        })?;
        *offset += sent as off_t;
        return Ok(sent);
    }
    // Without an offset the file's position counts, and moves by what was sent.
    let position = rustix::fs::tell(file.fd()).map_err(|error| match error {
        rustix::io::Errno::BADF => Errno::EBADF,
        _ if !is_readable(file) => Errno::EBADF,
        _ => Errno::EINVAL,
    })?;
    if count == 0 {
        // Whether one could read there shows when something is read.
        return if is_readable(file) { Ok(0) } else { Err(Errno::EBADF) };
    }
    let sent = put(area(position as off_t, count)?, count.min(crate::ffi::RW_MAX))?;
    if file.is_same() {
        let _ = rustix::fs::seek(file.fd(), rustix::fs::SeekFrom::Start(position + sent as u64));
    }
    Ok(sent)
}

/// Where a call begins, if all of it can be at positions.
fn area(offset: off_t, count: usize) -> Result<u64, Errno> {
    let end = off_t::try_from(count).ok().and_then(|count| offset.checked_add(count));
    end.and_then(|_| u64::try_from(offset).ok()).ok_or(Errno::EINVAL)
}

fn is_readable(file: &PinnedFile<'_>) -> bool {
    let mode = rustix::fs::fcntl_getfl(file.fd()).map(|flags| flags & rustix::fs::OFlags::RWMODE);
    mode.is_ok_and(|mode| mode != rustix::fs::OFlags::WRONLY)
}

/// Whether one can read at a position of it.
fn has_positions(file: &PinnedFile<'_>) -> bool {
    let mut nothing: [u8; 0] = [];
    rustix::io::pread(file.fd(), &mut nothing, 0) != Err(rustix::io::Errno::SPIPE)
}

/// The file's bytes go to the connection: until `count` are gone, the file ends or, of one that does not block, no more fits.
fn to_connection(
    socket: &'static Socket,
    file: &PinnedFile<'_>,
    position: u64,
    count: usize,
) -> Result<usize, Errno> {
    let send = || socket.send_file(file, position, count, SendFlags::default());
    transmit_by(socket, false, send).map_err(as_sendfile)
}

/// There are things with a position of which nothing can be sent.
fn as_sendfile(error: Errno) -> Errno {
    match c_int::from(error.0) {
        libc::EISDIR | libc::ESPIPE => Errno::EINVAL,
        _ => error,
    }
}
