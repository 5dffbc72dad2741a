//! pthread_cancel, and the points at which a thread lets itself be cancelled (`toe::cancel`).

use crate::ffi::{guarded, guarded_in};
use crate::real;
use core::ffi::c_int;
use libc::pthread_t;
use toe::cancel;
use toe::signals::Inside;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// # Safety
/// As pthread_cancel(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: the program's argument, handed on. Of a thread that asks for its own end the C library may unwind the stack here,
    // where there is nothing of ours to drop.
    cancel::ask(thread, || unsafe { real::pthread_cancel(thread) })
}

/// # Safety
/// As pthread_setcanceltype(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    // SAFETY: the program's arguments, handed on. A thread that is asked to end already may be unwound from here, where there is
    // nothing of ours to drop.
    let result = unsafe { real::pthread_setcanceltype(kind, before) };
    if result == 0 {
        cancel::note_type(kind, real::pthread_setcanceltype);
    }
    result
}

/// As [`guarded`], for a call that POSIX names a point of cancellation. The C library unwinds this frame and those of its
/// callers, which have nothing to drop.
#[inline]
pub fn point<T: Copy>(failed: T, call: impl FnOnce() -> T) -> T {
    let inside = Inside::enter();
    let is_outermost = inside.is_outermost();
    if is_outermost && (cancel::was_ever_asked() || !inside.is_prepared()) {
        drop(inside);
        return watched_point(failed, call);
    }
    let result = guarded_in(inside, failed, call);
    if is_outermost && cancel::was_ever_asked() && cancel::take() {
        // SAFETY: needed because only the C library can end a thread. Nothing of the library's is held here.
        unsafe { pthread_testcancel() };
    }
    result
}

/// The same for a thread that may have been asked to end before the call, or that is new here.
#[cold]
fn watched_point<T: Copy>(failed: T, call: impl FnOnce() -> T) -> T {
    cancel::prepare();
    if cancel::was_ever_asked() {
        // SAFETY: as above.
        unsafe { pthread_testcancel() };
    }
    let result = guarded(failed, call);
    if cancel::take() {
        // SAFETY: as above.
        unsafe { pthread_testcancel() };
    }
    result
}
