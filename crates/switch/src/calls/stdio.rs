//! C's stdio over an engine's connection. It reads and writes inside the C library, where nothing can be put in its place;
//! so a stream over a connection is a custom one (fopencookie) whose functions are ours: that of fdopen, and standard
//! input, output and error when their descriptors are a connection (inetd's way of handing one over).

use super::data::{read, write};
use super::descriptor::dup2;
use super::open::{close, forget, is_known};
use super::stream;
use crate::ffi::{guarded, last_errno};
use crate::real;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use libc::{FILE, size_t, ssize_t};

/// A stream over an engine's connection, which fileno must know. One that is closed leaves its place to the next.
#[derive(Debug)]
struct Place {
    file: AtomicPtr<FILE>,
    fd: AtomicI32,
    next: AtomicPtr<Place>,
}

/// All places there ever were, the newest first. None is freed.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(core::ptr::null_mut());
/// How many streams there are: with none, fileno costs one load.
static STREAMS_OPEN: AtomicU32 = AtomicU32::new(0);

fn places() -> impl Iterator<Item = &'static Place> {
    // SAFETY: needed because the list is of pointers, as it grows without a lock. Each is null or a place that `keep` leaked.
    let at = |place: &AtomicPtr<Place>| unsafe { place.load(Ordering::Acquire).as_ref() };
    core::iter::successors(at(&PLACES), move |place| at(&place.next))
}

/// Notes whose stream it is.
fn keep(file: *mut FILE, fd: c_int) {
    STREAMS_OPEN.fetch_add(1, Ordering::AcqRel);
    let free = places().find(|place| {
        place.file.compare_exchange(core::ptr::null_mut(), file, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    });
    if let Some(place) = free {
        return place.fd.store(fd, Ordering::Release);
    }
    let (file, fd) = (AtomicPtr::new(file), AtomicI32::new(fd));
    let new = Box::leak(Box::new(Place { file, fd, next: AtomicPtr::new(core::ptr::null_mut()) }));
    let mut first = PLACES.load(Ordering::Acquire);
    loop {
        new.next.store(first, Ordering::Relaxed);
        match PLACES.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
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
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
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
    if !file.is_null() {
        guarded((), || keep(file, fd));
    }
    file
}

/// # Safety
/// As fdopen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if stream(fd).is_none() {
            super::leave_lanes(fd);
            real::fdopen(fd, mode)
        } else {
            open_over(fd, mode)
        }
    }
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
fn opened_here(file: *mut FILE) -> Option<&'static Place> {
    if STREAMS_OPEN.load(Ordering::Acquire) == 0 || file.is_null() {
        return None;
    }
    places().find(|place| place.file.load(Ordering::Acquire) == file)
}

/// # Safety
/// As fileno(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fileno(file: *mut FILE) -> c_int {
    match opened_here(file) {
        // SAFETY: the program's argument, handed on.
        None => unsafe { real::fileno(file) },
        Some(place) => place.fd.load(Ordering::Acquire),
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
    if let Some(place) = opened_here(file) {
        STREAMS_OPEN.fetch_sub(1, Ordering::AcqRel);
        place.file.store(core::ptr::null_mut(), Ordering::Release);
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

/// How open(2) is to open what fopen(3) opens in this mode.
fn flags_of(mode: &[u8]) -> c_int {
    let both = mode.contains(&b'+');
    let (one, made) = match mode.first() {
        Some(b'w') => (libc::O_WRONLY, libc::O_CREAT | libc::O_TRUNC),
        Some(b'a') => (libc::O_WRONLY, libc::O_CREAT | libc::O_APPEND),
        _ => (libc::O_RDONLY, 0),
    };
    let further = |letter: u8, flag: c_int| if mode.contains(&letter) { flag } else { 0 };
    made | if both { libc::O_RDWR } else { one }
        | further(b'e', libc::O_CLOEXEC)
        | further(b'x', libc::O_EXCL)
}

/// The C library can open nothing anew behind a custom stream. Ours goes by its descriptor's number, whatever is open there:
/// so the file is opened at that number.
///
/// # Safety
/// As freopen(3), with a stream of ours.
unsafe fn open_anew(path: *const c_char, mode: *const c_char, file: *mut FILE, fd: c_int) -> *mut FILE {
    // SAFETY: needed to empty the stream and to clear its errors; the program's stream, and its strings.
    let opened = unsafe {
        libc::fflush(file);
        libc::clearerr(file);
        if path.is_null() {
            return file;
        }
        libc::open(path, flags_of(CStr::from_ptr(mode).to_bytes()), 0o666)
    };
    if opened < 0 {
        let error = last_errno();
        // SAFETY: as above. Linux's stream is closed then, too.
        unsafe { fclose(file) };
        crate::ffi::set_errno(c_int::from(error.0));
        return core::ptr::null_mut();
    }
    // SAFETY: numbers only. Where it is one of the standard three, what stood there before the connection comes back.
    unsafe {
        dup2(opened, fd);
        real::close(opened);
    }
    file
}

macro_rules! opening_anew {
    ($($name:ident)+) => {
        $(
            /// # Safety
            /// As freopen(3).
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name(
                path: *const c_char,
                mode: *const c_char,
                file: *mut FILE,
            ) -> *mut FILE {
                match opened_here(file) {
                    // SAFETY: the program's arguments, handed on.
                    None => unsafe { real::$name(path, mode, file) },
                    // SAFETY: as above.
                    Some(place) => unsafe { open_anew(path, mode, file, place.fd.load(Ordering::Acquire)) },
                }
            }
        )+
    };
}

opening_anew! { freopen freopen64 }

/// # Safety
/// `format` and `arguments` belong together, as vdprintf(3) asks.
unsafe fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text: *mut c_char = core::ptr::null_mut();
    // SAFETY: the program's arguments, handed on.
    let len = unsafe { vasprintf(&mut text, format, arguments) };
    let Ok(bytes) = usize::try_from(len) else { return -1 };
    let mut done = 0;
    while done < bytes {
        // SAFETY: what the C library has just written, so long.
        let sent = unsafe { write(fd, text.add(done).cast(), bytes - done) };
        if sent <= 0 {
            break;
        }
        done += sent as usize;
    }
    // SAFETY: needed as the C library gave the memory.
    unsafe { libc::free(text.cast()) };
    if done == bytes { len } else { -1 }
}

/// # Safety
/// As vdprintf(3). A va_list is handed on by its address on the machines that this library is for.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        match stream(fd) {
            None => {
                super::leave_lanes(fd);
                real::vdprintf(fd, format, arguments)
            }
            Some(_) => print(fd, format, arguments),
        }
    }
}

/// # Safety
/// As vdprintf(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        match stream(fd) {
            None => {
                super::leave_lanes(fd);
                real::vdprintf_chk(fd, flag, format, arguments)
            }
            Some(_) => print(fd, format, arguments),
        }
    }
}

/// Stable Rust defines no function with any number of arguments: so this makes the va_list of the System V ABI, section 3.5.7
/// (two offsets into the registers' save area, where the caller put the rest, and the save area), at rsp, with the save area
/// behind it, and hands on its address.
///
/// # Safety
/// As dprintf(3).
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dprintf() -> c_int {
    core::arch::naked_asm!(
        "sub rsp, 216",
        "mov [rsp + 24], rdi", "mov [rsp + 32], rsi", "mov [rsp + 40], rdx", "mov [rsp + 48], rcx",
        "mov [rsp + 56], r8", "mov [rsp + 64], r9",
        "movups [rsp + 72], xmm0", "movups [rsp + 88], xmm1", "movups [rsp + 104], xmm2",
        "movups [rsp + 120], xmm3", "movups [rsp + 136], xmm4", "movups [rsp + 152], xmm5",
        "movups [rsp + 168], xmm6", "movups [rsp + 184], xmm7",
        "mov dword ptr [rsp], 16", "mov dword ptr [rsp + 4], 48",
        "lea rax, [rsp + 224]", "mov [rsp + 8], rax", "lea rax, [rsp + 24]", "mov [rsp + 16], rax",
        "mov rdx, rsp",
        "call {inner}",
        "add rsp, 216", "ret",
        inner = sym vdprintf
    )
}

/// As `dprintf`, with one argument more before the format.
///
/// # Safety
/// As dprintf(3).
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn __dprintf_chk() -> c_int {
    core::arch::naked_asm!(
        "sub rsp, 216",
        "mov [rsp + 24], rdi", "mov [rsp + 32], rsi", "mov [rsp + 40], rdx", "mov [rsp + 48], rcx",
        "mov [rsp + 56], r8", "mov [rsp + 64], r9",
        "movups [rsp + 72], xmm0", "movups [rsp + 88], xmm1", "movups [rsp + 104], xmm2",
        "movups [rsp + 120], xmm3", "movups [rsp + 136], xmm4", "movups [rsp + 152], xmm5",
        "movups [rsp + 168], xmm6", "movups [rsp + 184], xmm7",
        "mov dword ptr [rsp], 24", "mov dword ptr [rsp + 4], 48",
        "lea rax, [rsp + 224]", "mov [rsp + 8], rax", "lea rax, [rsp + 24]", "mov [rsp + 16], rax",
        "mov rcx, rsp",
        "call {inner}",
        "add rsp, 216", "ret",
        inner = sym __vdprintf_chk
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_fopen_does() {
        let of = |mode: &str| flags_of(mode.as_bytes());
        assert_eq!(of("r"), libc::O_RDONLY);
        assert_eq!(of("rb+"), libc::O_RDWR);
        assert_eq!(of("we"), libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC);
        assert_eq!(of("a+x"), libc::O_RDWR | libc::O_CREAT | libc::O_APPEND | libc::O_EXCL);
    }
}
