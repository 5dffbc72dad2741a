//! prctl and chroot: a process that is about to be confined gets what its sockets need before (`toe::confine`).

use crate::ffi::guarded;
use crate::real;
use core::ffi::{c_char, c_int, c_ulong};

/// # Safety
/// As prctl(2); of the definition itself, as [`super::descriptor::fcntl`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        guarded((), toe::confine::before_filter);
    }
    // SAFETY: the program's arguments, handed on.
    unsafe { real::prctl(option, a, b, c, d) }
}

/// # Safety
/// As chroot(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    guarded((), toe::confine::before_losing_sight);
    // SAFETY: the program's argument, handed on.
    unsafe { real::chroot(path) }
}
