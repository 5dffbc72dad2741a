//! A thread's type of cancellation, which the C library alone changes.

/// The C library's pthread_setcanceltype.
pub type SetType = unsafe fn(i32, *mut i32) -> i32;

/// Linux: PTHREAD_CANCEL_DEFERRED and PTHREAD_CANCEL_ASYNCHRONOUS.
const DEFERRED: i32 = 0;
pub(super) const ASYNCHRONOUS: i32 = 1;

/// A thread that may be unwound at any moment comes into the library. `None`: it is there already.
#[cold]
pub(crate) fn defer(set: SetType) -> Option<SetType> {
    let mut before = DEFERRED;
    // SAFETY: needed because only the C library can change it. A local.
    unsafe { set(DEFERRED, &mut before) };
    (before == ASYNCHRONOUS).then_some(set)
}

/// It leaves: it may be unwound from here.
#[cold]
pub(crate) fn let_unwind(set: SetType) {
    // SAFETY: as above. What is on the stack up to the program holds nothing.
    unsafe { set(ASYNCHRONOUS, std::ptr::null_mut()) };
}
