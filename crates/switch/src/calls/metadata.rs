//! fstat and its relatives, lseek, pread, pwrite: what a program learns of a descriptor that is not for reading in order.
//!
//! To the kernel an engine's connection is an anchor, which is a directory; programs are told of a socket.

use super::paths;
use crate::ffi::{fail, syscall};
use crate::lookup::{self, stream};
use crate::real;
use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{iovec, off_t, size_t, ssize_t, statx as Statx};
use toe::Errno;

/// What Linux shows of any socket.
const SOCKET_MODE: u32 = libc::S_IFSOCK | 0o777;

fn is_empty_path(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: needed to look at C's string; the kernel, asked before, has read it as a path.
    flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && unsafe { *path } == 0
}

/// Corrects what the kernel has said of an engine's connection.
fn correct(fd: c_int, result: c_int, found: *mut libc::stat) -> c_int {
    if result == 0 && stream(fd).is_some() {
        // SAFETY: needed because the memory is C's; the kernel has just filled it in.
        let found = unsafe { &mut *found };
        found.st_mode = SOCKET_MODE;
        (found.st_nlink, found.st_size, found.st_blocks) = (1, 0, 0);
    }
    result
}

macro_rules! of_descriptor {
    ($($name:ident($($version:ident)?);)+) => {
        $(
            /// # Safety
            /// As fstat(2). One structure for all: off_t has 64 bits on the systems that this library is for.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($version: c_int,)? fd: c_int, found: *mut libc::stat) -> c_int {
                $(let _ = $version;)?
                // By the system call: which of these names the C library has depends on its age.
                // SAFETY: the program's arguments, handed on.
                correct(fd, unsafe { syscall(libc::SYS_fstat, [fd as usize, found.expose_provenance(), 0, 0]) }, found)
            }
        )+
    };
}

of_descriptor! {
    fstat();
    fstat64();
    __fxstat(version);
    __fxstat64(version);
}

macro_rules! of_name {
    ($($name:ident($($version:ident)?);)+) => {
        $(
            /// # Safety
            /// As stat(2).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($version: c_int,)? path: *const c_char, found: *mut libc::stat) -> c_int {
                $(let _ = $version;)?
                // SAFETY: the program's arguments, handed on.
                unsafe { fstatat(libc::AT_FDCWD, path, found, 0) }
            }
        )+
    };
}

of_name! {
    stat();
    stat64();
    __xstat(version);
    __xstat64(version);
}

macro_rules! of_path {
    ($($name:ident($($version:ident)?);)+) => {
        $(
            /// # Safety
            /// As fstatat(2).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name(
                $($version: c_int,)? fd: c_int, path: *const c_char, found: *mut libc::stat, flags: c_int,
            ) -> c_int {
                $(let _ = $version;)?
                // SAFETY: the program's arguments, handed on.
                let result = unsafe { syscall(libc::SYS_newfstatat, [fd as usize, path.expose_provenance(), found.expose_provenance(), flags as usize]) };
                correct(of_path(fd, path, flags, result), result, found)
            }
        )+
    };
}

of_path! {
    fstatat();
    fstatat64();
    __fxstatat(version);
    __fxstatat64(version);
}

/// What a path that the kernel has followed leads to, as a descriptor: -1 for all that is no connection of an engine's.
fn of_path(fd: c_int, path: *const c_char, flags: c_int, result: c_int) -> c_int {
    match (result, flags & libc::AT_SYMLINK_NOFOLLOW) {
        (0, _) if is_empty_path(path, flags) => fd,
        // SAFETY: the kernel has followed it.
        (0, 0) => unsafe { paths::connection_at(path) }.unwrap_or(-1),
        _ => -1,
    }
}

/// # Safety
/// As statx(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn statx(
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    found: *mut Statx,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { real::statx(fd, path, flags, mask, found) };
    if stream(of_path(fd, path, flags, result)).is_some() {
        // SAFETY: needed because the memory is C's; the kernel has just filled it in.
        let found = unsafe { &mut *found };
        found.stx_mode = SOCKET_MODE as u16;
        (found.stx_nlink, found.stx_size, found.stx_blocks) = (1, 0, 0);
    }
    result
}

/// The C library asks inside itself.
///
/// # Safety
/// None beyond isfdtype(3)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn isfdtype(fd: c_int, kind: c_int) -> c_int {
    match stream(fd) {
        Some(_) => c_int::from(kind as u32 & libc::S_IFMT == libc::S_IFSOCK),
        // SAFETY: the call takes numbers only.
        None => unsafe { real::isfdtype(fd, kind) },
    }
}

/// Linux looks at the offset before it looks at what the descriptor is.
fn not_seekable(offset: off_t) -> Errno {
    if offset < 0 { Errno::EINVAL } else { Errno(libc::ESPIPE as u16) }
}

macro_rules! not_on_sockets {
    ($($name:ident[$offset:expr]($($arg:ident: $type:ty),*) -> $ret:ty;)+) => {
        $(
            /// # Safety
            /// As the call of this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name(fd: c_int, $($arg: $type),*) -> $ret {
                match stream(fd) {
                    Some(_) => fail(not_seekable($offset)) as $ret,
                    // SAFETY: the program's arguments, handed on.
                    None => unsafe { real::$name(fd, $($arg),*) },
                }
            }
        )+
    };
}

not_on_sockets! {
    lseek[0](offset: off_t, whence: c_int) -> off_t;
    lseek64[0](offset: off_t, whence: c_int) -> off_t;
    pread[offset](buf: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    pread64[offset](buf: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    pwrite[offset](buf: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    pwrite64[offset](buf: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    preadv[offset](iov: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    preadv64[offset](iov: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev[offset](iov: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev64[offset](iov: *const iovec, count: c_int, offset: off_t) -> ssize_t;
}

macro_rules! anywhere_in_a_stream {
    ($($name:ident = $plain:path;)+) => {
        $(
            /// On a socket the offset -1, which means the file's own position, is the only good one.
            ///
            /// # Safety
            /// As the call of this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name(
                fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int,
            ) -> ssize_t {
                // SAFETY: the program's arguments, handed on.
                unsafe {
                    match stream(fd) {
                        None => {
                            lookup::leave_lanes(fd);
                            real::$name(fd, iov, count, offset, flags)
                        }
                        Some(_) if offset == -1 => $plain(fd, iov, count),
                        Some(_) => fail(not_seekable(offset)) as ssize_t,
                    }
                }
            }
        )+
    };
}

anywhere_in_a_stream! {
    preadv2 = super::data::readv;
    preadv64v2 = super::data::readv;
    pwritev2 = super::data::writev;
    pwritev64v2 = super::data::writev;
}

macro_rules! of_files {
    ($($name:ident)+) => {
        $(
            /// # Safety
            /// None beyond fsync(2)'s.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name(fd: c_int) -> c_int {
                match stream(fd) {
                    Some(_) => fail(Errno::EINVAL),
                    // SAFETY: the call takes a number only.
                    None => unsafe { real::$name(fd) },
                }
            }
        )+
    };
}

of_files! { fsync fdatasync }
