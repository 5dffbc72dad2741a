//! Names of descriptors in /proc: what they lead to is told as Linux tells of a socket. To the kernel an engine's connection is a directory
//! (decision 0011); opening one by its name is left to the kernel, which opens that.

use crate::ffi::syscall;
use crate::lookup::stream;
use crate::real;
use core::ffi::{CStr, c_char, c_int};
use libc::{size_t, ssize_t};
use toe::{program_memory, sys};

const DIRECTORIES: [&[u8]; 3] = [b"/proc/self/fd/", b"/proc/thread-self/fd/", b"/dev/fd/"];

/// The descriptor of an engine's connection that a path names, which the kernel has just followed or read without a fault.
///
/// # Safety
/// `path` is null or C's string.
pub unsafe fn connection_at(path: *const c_char) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: needed to look at C's string, as the caller says.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let number = DIRECTORIES.iter().find_map(|directory| path.strip_prefix(*directory))?;
    let fd = core::str::from_utf8(number).ok()?.parse().ok()?;
    stream(fd).map(|_| fd)
}

/// What a link leads to, as far as there is room.
///
/// # Safety
/// As readlink(2); `said` is what the kernel says of it.
unsafe fn corrected(path: *const c_char, buf: *mut c_char, room: size_t, said: ssize_t) -> ssize_t {
    // SAFETY: the kernel has followed it.
    let Some(fd) = (said > 0).then(|| unsafe { connection_at(path) }).flatten() else { return said };
    let Ok(stat) = rustix::fs::fstat(sys::borrow(fd)) else { return said };
    let link = format!("socket:[{}]", stat.st_ino);
    let len = link.len().min(room);
    // SAFETY: the program's buffer, of which the kernel has just filled some.
    match unsafe { program_memory::copy(buf.cast::<u8>(), link.as_ptr(), len) } {
        Ok(()) => len as ssize_t,
        Err(_) => said,
    }
}

/// # Safety
/// As readlinkat(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn readlinkat(
    dir: c_int,
    path: *const c_char,
    buf: *mut c_char,
    room: size_t,
) -> ssize_t {
    let args = [dir as usize, path.expose_provenance(), buf.expose_provenance(), room];
    // SAFETY: the program's arguments, handed on.
    unsafe { corrected(path, buf, room, syscall(libc::SYS_readlinkat, args) as ssize_t) }
}

/// # Safety
/// As readlink(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn readlink(path: *const c_char, buf: *mut c_char, room: size_t) -> ssize_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { readlinkat(libc::AT_FDCWD, path, buf, room) }
}

/// # Safety
/// As readlink(2); built with _FORTIFY_SOURCE.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __readlink_chk(
    path: *const c_char,
    buf: *mut c_char,
    room: size_t,
    buf_len: size_t,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on. What the C library says of a buffer that is too short ends the program.
    unsafe { corrected(path, buf, room, real::readlink_chk(path, buf, room, buf_len)) }
}

/// # Safety
/// As readlinkat(2); built with _FORTIFY_SOURCE.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __readlinkat_chk(
    dir: c_int,
    path: *const c_char,
    buf: *mut c_char,
    room: size_t,
    buf_len: size_t,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { corrected(path, buf, room, real::readlinkat_chk(dir, path, buf, room, buf_len)) }
}
