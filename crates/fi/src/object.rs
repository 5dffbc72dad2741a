//! What all of libfabric's objects have in common: they begin with a `struct fid`, are made on the heap, and are found again by that
//! pointer until they are closed.
//!
//! libfabric's rule is that a program uses what it has opened and closes it once, and neither in two threads at a time while it closes. On
//! that each `unsafe` of this crate that finds an object by its pointer relies.

use crate::sys::{self, Fid, FidPtr, Ops, Ssize};
use crate::wait_object::WaitObject;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::from_ref;
use std::sync::Arc;
use toe_via::Error;
use toe_via::endpoint::post::Failure;

/// An object whose first field is a `Fid`.
///
/// # Safety
/// It is `repr(C)` and begins with one.
pub unsafe trait Object: Sized {
    /// Puts it on the heap, and where the program wants to find it.
    ///
    /// # Safety
    /// `to` can be written to.
    unsafe fn hand_out(self, to: *mut FidPtr) -> FidPtr {
        let made = Box::into_raw(Box::new(self)).cast::<Fid>();
        // SAFETY: needed to answer the program, which has promised a place.
        unsafe { to.write(made) };
        made
    }

    /// # Safety
    /// The program has it from [`Object::hand_out`], and has not closed it.
    unsafe fn of<'a>(fid: FidPtr) -> &'a Self {
        // SAFETY: needed to find what the program means (see the module).
        unsafe { &*fid.cast::<Self>() }
    }

    /// # Safety
    /// As [`Object::of`], and nobody uses it any more.
    unsafe fn take_back(fid: FidPtr) -> Box<Self> {
        // SAFETY: needed to give back what was handed out (see the module).
        unsafe { Box::from_raw(fid.cast::<Self>()) }
    }
}

pub fn fid(fclass: usize, context: *mut c_void, ops: &'static Ops) -> Fid {
    Fid { fclass, context, ops: from_ref(ops) }
}

/// What an object does not do.
pub unsafe extern "C" fn no_bind(_: FidPtr, _: FidPtr, _: u64) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_control(_: FidPtr, _: c_int, _: *mut c_void) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_ops_open(
    _: FidPtr,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_open<A>(_: FidPtr, _: *mut A, _: *mut FidPtr, _: *mut c_void) -> c_int {
    -libc::ENOSYS
}

/// What an error of the library's is to libfabric.
pub fn errno(error: Error) -> c_int {
    match error {
        Error::Invalid => libc::EINVAL,
        Error::NoEngine => libc::ENETDOWN,
        Error::Refused => libc::EOPNOTSUPP,
        Error::NoRoom => libc::ENOBUFS,
        Error::Unreachable => libc::ENETUNREACH,
        Error::Rejected => libc::ECONNREFUSED,
        Error::TimedOut | Error::Nobody => libc::ETIMEDOUT,
        Error::NotConnected | Error::NoChannel => libc::ENOTCONN,
        Error::Connected => libc::EISCONN,
        Error::Closed | Error::Broken => libc::ECONNABORTED,
        Error::TooLong => libc::EMSGSIZE,
    }
}

/// What a post returns.
pub fn posted(result: Result<(), Failure>) -> Ssize {
    match result {
        Ok(()) => 0,
        Err(Failure::Full) => -(libc::EAGAIN as Ssize),
        Err(_) => -(libc::ENOTCONN as Ssize),
    }
}

/// The texts of a queue's own errors: there are none beside libfabric's.
pub unsafe extern "C" fn strerror(
    _: FidPtr,
    _: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = c"no more is known";
    if !buf.is_null() && len > 0 {
        // SAFETY: needed to write what the program wants, into `len` bytes that it has promised.
        unsafe { libc::strncpy(buf, text.as_ptr(), len - 1) };
    }
    text.as_ptr()
}

/// What a queue's wait object is.
///
/// # Safety
/// `arg` is what the command needs.
pub unsafe fn wait_object(wait_object: Option<&Arc<WaitObject>>, command: c_int, arg: *mut c_void) -> c_int {
    match (command, wait_object) {
        (sys::GETWAIT, Some(wait_object)) => {
            // SAFETY: needed to answer: of a descriptor `arg` points to an int.
            unsafe { arg.cast::<c_int>().write(wait_object.raw_fd()) };
            0
        }
        (sys::GETWAITOBJ, wait_object) => {
            let kind = if wait_object.is_some() { sys::WAIT_FD } else { sys::WAIT_NONE };
            // SAFETY: needed to answer: `arg` points to an enum.
            unsafe { arg.cast::<u32>().write(kind) };
            0
        }
        _ => -libc::ENOSYS,
    }
}
