//! prctl and chroot: a process that is about to be confined gets what its sockets need before (`toe::confine`).

use crate::ffi::guarded;
use crate::real;
use core::ffi::{c_char, c_int, c_long, c_ulong};

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
    // SAFETY: the program's arguments, handed on.
    let prctl = || unsafe { real::prctl(option, a, b, c, d) };
    if option == libc::PR_SET_SECCOMP { around_filter(prctl) } else { prctl() }
}

/// Around a call that sets a filter, or that fails: programs try out in that way whether there are filters.
pub fn around_filter<R: Into<c_long> + Copy>(set: impl FnOnce() -> R) -> R {
    let was_filtered = toe::sys::is_filtered();
    guarded((), toe::confine::before_filter);
    let result = set();
    if result.into() < 0 && !was_filtered {
        toe::confine::filter_refused();
    }
    result
}

/// # Safety
/// As chroot(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    guarded((), toe::confine::before_losing_sight);
    // SAFETY: the program's argument, handed on.
    unsafe { real::chroot(path) }
}
