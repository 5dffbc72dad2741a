//! C's stdio over an engine's connection. It reads and writes inside the C library, where nothing can be put in its place;
//! so a stream over a connection is one of ours ([`super::stdio_stream`]).

use super::data::write;
use super::descriptor::dup2;
use super::stdio_stream::{open_over, opened_here};
use crate::ffi::{guarded, last_errno};
use crate::lookup::{self, stream};
use crate::real;
use crate::tables::{forget, is_known};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering;
use libc::FILE;

unsafe extern "C-unwind" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// # Safety
/// As fdopen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program's arguments, handed on.
    unsafe {
        if stream(fd).is_none() {
            lookup::leave_lanes(fd);
            real::fdopen(fd, mode)
        } else {
            open_over(fd, mode)
        }
    }
}

/// # Safety
/// As fileno(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fileno(file: *mut FILE) -> c_int {
    match opened_here(file) {
        // SAFETY: the program's argument, handed on.
        None => unsafe { real::fileno(file) },
        Some(slot) => slot.fd.load(Ordering::Acquire),
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
    if let Some(slot) = opened_here(file) {
        slot.leave();
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
                    Some(slot) => unsafe { open_anew(path, mode, file, slot.fd.load(Ordering::Acquire)) },
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
                lookup::leave_lanes(fd);
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
                lookup::leave_lanes(fd);
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
