//! A stream of C's stdio over an engine's connection: a custom one (fopencookie), whose functions are ours. That of fdopen, and standard
//! input, output and error when their descriptors are a connection (inetd's way of handing one over).

use super::data::{read, write};
use crate::ffi::guarded;
use crate::lookup::stream;
use crate::tables::close;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use libc::{FILE, size_t, ssize_t};

/// A stream over an engine's connection, which fileno must know. One that is closed leaves its slot to the next.
#[derive(Debug)]
pub struct StreamSlot {
    file: AtomicPtr<FILE>,
    pub fd: AtomicI32,
    next: AtomicPtr<StreamSlot>,
}

/// All slots there ever were, the newest first. None is freed.
static SLOTS: AtomicPtr<StreamSlot> = AtomicPtr::new(core::ptr::null_mut());
/// How many streams there are: with none, fileno costs one load.
static STREAMS_OPEN: AtomicU32 = AtomicU32::new(0);

fn slots() -> impl Iterator<Item = &'static StreamSlot> {
    // SAFETY: needed because the list is of pointers, as it grows without a lock. Each is null or a slot that `keep` leaked.
    let at = |slot: &AtomicPtr<StreamSlot>| unsafe { slot.load(Ordering::Acquire).as_ref() };
    core::iter::successors(at(&SLOTS), move |slot| at(&slot.next))
}

/// Notes whose stream it is.
fn keep(file: *mut FILE, fd: c_int) {
    STREAMS_OPEN.fetch_add(1, Ordering::AcqRel);
    let free = slots().find(|slot| {
        slot.file.compare_exchange(core::ptr::null_mut(), file, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let Some(slot) = free {
        return slot.fd.store(fd, Ordering::Release);
    }
    let (file, fd) = (AtomicPtr::new(file), AtomicI32::new(fd));
    let new = Box::leak(Box::new(StreamSlot { file, fd, next: AtomicPtr::new(core::ptr::null_mut()) }));
    let mut first = SLOTS.load(Ordering::Acquire);
    loop {
        new.next.store(first, Ordering::Relaxed);
        match SLOTS.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

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
    close(descriptor_of(cookie))
}

/// # Safety
/// `mode` is a string of C.
pub unsafe fn open_over(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions =
        CookieFunctions { read: cookie_read, write: cookie_write, seek: None, close: cookie_close };
    // SAFETY: the mode is the caller's; the functions take the cookie as the number that it is.
    let file = unsafe { fopencookie(core::ptr::without_provenance_mut(fd as usize), mode, functions) };
    if !file.is_null() {
        guarded((), || keep(file, fd));
    }
    file
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
    let (slot, mode) = match fd {
        0 => (&raw mut stdin, c"r"),
        1 => (&raw mut stdout, c"w"),
        _ => (&raw mut stderr, c"w"),
    };
    // SAFETY: needed because the standard streams are variables of the C library's, which it says may be assigned to. Done
    // when the program has just exchanged the descriptor itself, and so uses none of the three at this moment; what was
    // there before is not closed, as others may refer to it.
    unsafe {
        if is_ours {
            *slot = before.swap(core::ptr::null_mut(), Ordering::AcqRel);
            return;
        }
        let ours = open_over(fd, mode.as_ptr());
        if ours.is_null() {
            return;
        }
        if fd == 2 {
            setvbuf(ours, core::ptr::null_mut(), libc::_IONBF, 0);
        }
        before.store(*slot, Ordering::Release);
        *slot = ours;
    }
}

/// The descriptor of a stream that [`open_over`] made.
pub fn opened_here(file: *mut FILE) -> Option<&'static StreamSlot> {
    if STREAMS_OPEN.load(Ordering::Acquire) == 0 || file.is_null() {
        return None;
    }
    slots().find(|slot| slot.file.load(Ordering::Acquire) == file)
}

impl StreamSlot {
    /// The stream is about to be closed: fileno knows it no more.
    pub fn leave(&self) {
        STREAMS_OPEN.fetch_sub(1, Ordering::AcqRel);
        self.file.store(core::ptr::null_mut(), Ordering::Release);
    }
}
