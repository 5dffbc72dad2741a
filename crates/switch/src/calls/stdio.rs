//! C's stdio over an engine's connection. It reads and writes inside the C library, where nothing can be put in its place;
//! so a stream over a connection is a custom one (fopencookie) whose functions are ours: that of fdopen, and standard
//! input, output and error when their descriptors are a connection (inetd's way of handing one over).

use super::data::{read, write};
use super::open::{close, forget, is_known};
use super::stream;
use crate::ffi::{guarded, last_errno};
use crate::real;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use libc::{FILE, size_t, ssize_t};

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
    fn setvbuf(file: *mut FILE, buf: *mut c_char, mode: c_int, size: size_t) -> c_int;
}

#[allow(non_upper_case_globals)]
unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
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
/// `mode` is a string of C.
unsafe fn open_over(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions =
        CookieFunctions { read: cookie_read, write: cookie_write, seek: None, close: cookie_close };
    // SAFETY: the mode is the caller's; the functions take the cookie as the number that it is.
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

/// # Safety
/// As fdopen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program's arguments, handed on.
    unsafe { if stream(fd).is_none() { real::fdopen(fd, mode) } else { open_over(fd, mode) } }
}

/// What stood in the three standard streams before a connection did.
static BEFORE: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 3];

/// The descriptor means something else from now on: when it is one of the standard three, the standard stream follows.
pub fn follow(fd: c_int) {
    let Some(before) = usize::try_from(fd).ok().and_then(|fd| BEFORE.get(fd)) else { return };
    let is_ours = !before.load(Ordering::Acquire).is_null();
    if is_ours == stream(fd).is_some() {
        return;
    }
    let (place, mode) = match fd {
        0 => (&raw mut stdin, c"r"),
        1 => (&raw mut stdout, c"w"),
        _ => (&raw mut stderr, c"w"),
    };
    // SAFETY: needed because the standard streams are variables of the C library's, which it says may be assigned to. Done
    // when the program has just exchanged the descriptor itself, and so uses none of the three at this moment; what was
    // there before is not closed, as others may refer to it.
    unsafe {
        if is_ours {
            *place = before.swap(core::ptr::null_mut(), Ordering::AcqRel);
            return;
        }
        let ours = open_over(fd, mode.as_ptr());
        if ours.is_null() {
            return;
        }
        if fd == 2 {
            setvbuf(ours, core::ptr::null_mut(), libc::_IONBF, 0);
        }
        before.store(*place, Ordering::Release);
        *place = ours;
    }
}

/// The descriptor of a stream that [`open_over`] made.
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
