//! Files and streams over an engine's connection: sendfile, splice, and C's stdio.
//!
//! splice answers EINVAL, as for a socket that cannot splice: programs that use it have another way for that case. stdio
//! reads and writes inside the C library where nothing can be put in its place; so fdopen of an engine's connection makes
//! a custom stream (fopencookie) whose functions are ours.

use super::data::{read, transmit, write};
use super::open::{close, forget, is_known};
use super::stream;
use crate::ffi::{fail, guarded, last_errno, length};
use crate::real;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use libc::{FILE, off_t, size_t, ssize_t};
use std::io::IoSlice;
use toe::socket::Socket;
use toe::{Errno, sys};

/// Octets read from the file at a time.
const CHUNK: usize = 64 << 10;

/// # Safety
/// As sendfile(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    match stream(out) {
        // SAFETY: the program's arguments, handed on.
        None => unsafe { real::sendfile(out, from, offset, count) },
        Some(socket) => guarded(-1, || {
            // SAFETY: as above.
            length(send_file(socket, from, unsafe { offset.as_mut() }, count))
        }),
    }
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

fn send_file(
    socket: &'static Socket,
    file: c_int,
    offset: Option<&mut off_t>,
    count: usize,
) -> Result<usize, Errno> {
    let put =
        |part: &[u8], more| transmit(socket, &[IoSlice::new(part)], if more { libc::MSG_MORE } else { 0 });
    if let Some(offset) = offset {
        let sent = copy_file(file, *offset, count, put)?;
        *offset += sent as off_t;
        return Ok(sent);
    }
    // Without an offset the file's position counts, and moves by what was sent.
    let descriptor = sys::borrow(file);
    let position = rustix::fs::tell(descriptor).map_err(|error| match error {
        rustix::io::Errno::BADF => Errno::EBADF,
        _ => Errno::EINVAL,
    })?;
    let sent = copy_file(file, position as off_t, count, put)?;
    let _ = rustix::fs::seek(descriptor, rustix::fs::SeekFrom::Start(position + sent as u64));
    Ok(sent)
}

/// Hands the file's octets from `position` to `put` (the octets, and whether more will come) until `count` are gone, the
/// file ends or `put` takes less than it was given. An error counts only when nothing was put.
fn copy_file(
    file: c_int,
    position: off_t,
    count: usize,
    mut put: impl FnMut(&[u8], bool) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let position = u64::try_from(position).map_err(|_| Errno::EINVAL)?;
    let count = count.min(crate::ffi::RW_MAX);
    let mut chunk = vec![0; CHUNK.min(count)];
    let mut done = 0;
    while done < count {
        let want = chunk.len().min(count - done);
        let got = match rustix::io::pread(sys::borrow(file), &mut chunk[..want], position + done as u64) {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if done > 0 => break,
            Err(error) => return Err(toe::errno::from_os(error)),
        };
        match put(&chunk[..got], done + got < count && got == want) {
            Ok(sent) => {
                done += sent;
                if sent < got {
                    break;
                }
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

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
    if stream(from).is_some() || stream(to).is_some() {
        return fail(Errno::EINVAL) as ssize_t;
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { real::splice(from, from_offset, to, to_offset, len, flags) }
}

/// Streams over an engine's connection that fileno must know.
const STREAMS_MAX: usize = 64;
static STREAMS: [(AtomicPtr<FILE>, AtomicI32); STREAMS_MAX] =
    [const { (AtomicPtr::new(core::ptr::null_mut()), AtomicI32::new(-1)) }; STREAMS_MAX];
/// How many there are: with none, fileno costs one load.
static STREAMS_OPEN: AtomicU32 = AtomicU32::new(0);

/// cookie_io_functions_t of <stdio.h>.
#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C-unwind" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut FILE;
}

/// The cookie is the descriptor's number itself.
fn descriptor_of(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C-unwind" fn cookie_read(cookie: *mut c_void, buf: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's own buffer.
    unsafe { read(descriptor_of(cookie), buf.cast(), len) }
}

/// A custom stream's write gives 0, not -1, when it fails, and has to take everything.
unsafe extern "C-unwind" fn cookie_write(cookie: *mut c_void, buf: *const c_char, len: size_t) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: the C library's own buffer; `done` is within it.
        let sent = unsafe { write(descriptor_of(cookie), buf.add(done).cast(), len - done) };
        if sent <= 0 {
            break;
        }
        done += sent as usize;
    }
    done as ssize_t
}

unsafe extern "C-unwind" fn cookie_close(cookie: *mut c_void) -> c_int {
    // SAFETY: close takes a number only.
    unsafe { close(descriptor_of(cookie)) }
}

/// # Safety
/// As fdopen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if stream(fd).is_none() {
        // SAFETY: the program's arguments, handed on.
        return unsafe { real::fdopen(fd, mode) };
    }
    let functions =
        CookieFunctions { read: cookie_read, write: cookie_write, seek: None, close: cookie_close };
    // SAFETY: the mode is the program's; the functions take the cookie as the number that it is.
    let file = unsafe { fopencookie(core::ptr::without_provenance_mut(fd as usize), mode, functions) };
    let free = STREAMS.iter().find(|(place, _)| {
        place.compare_exchange(core::ptr::null_mut(), file, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let (false, Some((_, number))) = (file.is_null(), free) {
        number.store(fd, Ordering::Release);
        STREAMS_OPEN.fetch_add(1, Ordering::Release);
    }
    file
}

/// The descriptor of a stream that [`fdopen`] made.
fn opened_here(file: *mut FILE) -> Option<&'static (AtomicPtr<FILE>, AtomicI32)> {
    if STREAMS_OPEN.load(Ordering::Acquire) == 0 || file.is_null() {
        return None;
    }
    STREAMS.iter().find(|(place, _)| place.load(Ordering::Acquire) == file)
}

/// # Safety
/// As fileno(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fileno(file: *mut FILE) -> c_int {
    match opened_here(file) {
        // SAFETY: the program's argument, handed on.
        None => unsafe { real::fileno(file) },
        Some((_, number)) => number.load(Ordering::Acquire),
    }
}

/// # Safety
/// As fileno_unlocked(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fileno_unlocked(file: *mut FILE) -> c_int {
    // SAFETY: the program's argument, handed on.
    unsafe { fileno(file) }
}

/// The C library closes the descriptor inside itself: our tables must know before.
///
/// # Safety
/// As fclose(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    if let Some((place, _)) = opened_here(file) {
        STREAMS_OPEN.fetch_sub(1, Ordering::AcqRel);
        place.store(core::ptr::null_mut(), Ordering::Release);
    } else if !file.is_null() {
        let before = last_errno();
        // SAFETY: the program's argument, handed on.
        let fd = unsafe { real::fileno(file) };
        if fd >= 0 && is_known(fd) {
            guarded((), || forget(fd));
        }
        crate::ffi::set_errno(c_int::from(before.0));
    }
    // SAFETY: as above.
    unsafe { real::fclose(file) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsRawFd;

    fn file_of(len: usize) -> std::fs::File {
        let memory = rustix::fs::memfd_create("switch-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(memory);
        file.write_all(&(0..len).map(|n| (n % 251) as u8).collect::<Vec<_>>()).unwrap();
        file
    }

    #[test]
    fn a_whole_file_goes_in_chunks_and_says_when_more_comes() {
        let file = file_of(150_000);
        let (mut got, mut mores) = (Vec::new(), Vec::new());
        let sent = copy_file(file.as_raw_fd(), 5, 1 << 20, |part, more| {
            got.extend_from_slice(part);
            mores.push(more);
            Ok(part.len())
        });
        assert_eq!(sent, Ok(149_995));
        assert!(got.iter().enumerate().all(|(n, &octet)| octet == ((n + 5) % 251) as u8));
        assert_eq!(mores, [true, true, false]);
    }

    #[test]
    fn a_full_socket_gives_a_partial_result_or_its_error() {
        let file = file_of(200_000);
        let mut room = 100_000;
        let mut put = |part: &[u8], _| {
            let taken = part.len().min(room);
            room -= taken;
            if taken == 0 { Err(Errno::EAGAIN) } else { Ok(taken) }
        };
        assert_eq!(copy_file(file.as_raw_fd(), 0, 200_000, &mut put), Ok(100_000));
        assert_eq!(copy_file(file.as_raw_fd(), 100_000, 100_000, &mut put), Err(Errno::EAGAIN));
    }

    #[test]
    fn nothing_comes_after_the_end_or_from_a_bad_place() {
        let file = file_of(10);
        let mut put = |part: &[u8], _| Ok(part.len());
        assert_eq!(copy_file(file.as_raw_fd(), 10, 5, &mut put), Ok(0));
        assert_eq!(copy_file(file.as_raw_fd(), 0, 0, &mut put), Ok(0));
        assert_eq!(copy_file(file.as_raw_fd(), -1, 5, &mut put), Err(Errno::EINVAL));
        assert_eq!(copy_file(-1, 0, 5, &mut put), Err(Errno::EBADF));
    }
}
