//! The calls of aio(7): requests for an engine's sockets go to [`crate::aio`], others to the C library. aio_return is the C library's:
//! it reads the program's block.
//!
//! Where a block cannot be read it is left to the C library, which does what it does on Linux.

use super::cancel::point;
use super::wait_limits::timeout_of;
use crate::aio::block::{AiocbPtr, Block};
use crate::aio::list::List;
use crate::aio::wait::{self, Whose, whose};
use crate::aio::{self, DATA_SYNC, Outcome, READ, SYNC, WRITE};
use crate::ffi::{fail, guarded, restarted, set_errno, status};
use crate::real;
use core::ffi::c_int;
use libc::{aiocb, sigevent, timespec};
use std::sync::Arc;
use toe::{Errno, program_memory};

/// The request of a block, if it is for an engine's socket.
fn ours(at: *const aiocb) -> Option<(AiocbPtr, Block)> {
    let aiocb = AiocbPtr::of(at);
    aiocb.read().filter(|block| aio::is_ours(block.fd)).map(|block| (aiocb, block))
}

/// Submits it, unless it is the C library's.
fn submitted(at: *const aiocb, operation: c_int) -> Option<c_int> {
    guarded(Some(-1), || {
        let (aiocb, block) = ours(at)?;
        Some(status(aio::submit(aiocb, &block, operation, None)))
    })
}

/// # Safety
/// As aio_read(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn aio_read(block: *mut aiocb) -> c_int {
    // SAFETY: the program's argument, handed on.
    submitted(block, READ).unwrap_or_else(|| unsafe { real::aio_read(block) })
}

/// # Safety
/// As aio_write(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn aio_write(block: *mut aiocb) -> c_int {
    // SAFETY: the program's argument, handed on.
    submitted(block, WRITE).unwrap_or_else(|| unsafe { real::aio_write(block) })
}

/// # Safety
/// As aio_fsync(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn aio_fsync(how: c_int, block: *mut aiocb) -> c_int {
    let operation = match how {
        libc::O_SYNC => Some(SYNC),
        libc::O_DSYNC => Some(DATA_SYNC),
        _ => None,
    };
    let result = operation.and_then(|operation| submitted(block, operation));
    // SAFETY: the program's arguments, handed on.
    result.unwrap_or_else(|| unsafe { real::aio_fsync(how, block) })
}

/// # Safety
/// As aio_error(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn aio_error(block: *const aiocb) -> c_int {
    if aio::was_ever_used() {
        guarded((), aio::settle);
    }
    // SAFETY: the program's argument, handed on.
    unsafe { real::aio_error(block) }
}

/// # Safety
/// As aio_suspend(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn aio_suspend(
    list: *const *const aiocb,
    count: c_int,
    timeout: *const timespec,
) -> c_int {
    restarted(|| {
        let len = usize::try_from(count).ok().filter(|_| aio::was_ever_used());
        // SAFETY: the program's arguments, handed on.
        let of = guarded(Whose::Theirs, || len.map_or(Whose::Theirs, |len| unsafe { whose(list, len) }));
        match (of, len) {
            (Whose::Ours | Whose::Both, Some(len)) => point(-1, || {
                // SAFETY: as above.
                status(unsafe { timeout_of(timeout).and_then(|time| wait::suspend(list, len, time)) })
            }),
            (Whose::Nobody, _) => 0,
            // SAFETY: as above.
            _ => unsafe { real::aio_suspend(list, count, timeout) },
        }
    })
}

/// # Safety
/// As aio_cancel(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn aio_cancel(fd: c_int, block: *mut aiocb) -> c_int {
    let aiocb = AiocbPtr::of(block);
    // SAFETY: the call takes numbers only.
    let is_open = || unsafe { real::fcntl(fd, libc::F_GETFL, 0) } >= 0;
    let cancelled = guarded(None, || {
        if !aio::was_ever_used() || !is_open() {
            return None;
        }
        match aiocb.is_null() {
            true => Some(aio::cancel_all(fd)),
            false => aio::cancel_one(fd, aiocb),
        }
    });
    match cancelled {
        Some(outcome) if !aiocb.is_null() => outcome as c_int,
        None | Some(Outcome::AllDone) => {
            // SAFETY: the program's arguments, handed on.
            unsafe { real::aio_cancel(fd, block) }
        }
        Some(outcome) => {
            // The descriptor may have been another file's, or a socket of the kernel's.
            // SAFETY: as above.
            let theirs = unsafe { real::aio_cancel(fd, block) };
            if theirs == libc::AIO_NOTCANCELED { theirs } else { outcome as c_int }
        }
    }
}

/// # Safety
/// As lio_listio(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut sigevent,
) -> c_int {
    let begun = guarded(Begun::Over(-1), || {
        let len = match (usize::try_from(count), mode) {
            (Ok(len), libc::LIO_WAIT | libc::LIO_NOWAIT) => len,
            _ => return Begun::Theirs,
        };
        // SAFETY: the program's arguments, handed on.
        let Some(list) = (unsafe { List::read(list, len) }) else { return Begun::Theirs };
        if mode == libc::LIO_WAIT {
            let group = list.begin();
            return Begun::Waits(Box::into_raw(Box::new((list, group))));
        }
        // SAFETY: as above; numbers, of which all are good.
        match unsafe { event_of(event) } {
            Ok(event) => Begun::Over(status(list.begin_all(event))),
            Err(error) => Begun::Over(fail(error)),
        }
    });
    match begun {
        Begun::Over(result) => result,
        // SAFETY: as above.
        Begun::Theirs => unsafe { real::lio_listio(mode, list, count, event) },
        // SAFETY: made a moment ago.
        Begun::Waits(waiting) => unsafe { wait_for(waiting) },
    }
}

/// # Safety
/// `event` is the program's, or null.
unsafe fn event_of(event: *const sigevent) -> Result<Option<aio::Event>, Errno> {
    if event.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise; numbers, of which all are good.
    unsafe { program_memory::read(event.cast::<aio::Event>()).map(Some) }
}

/// What has become of lio_listio so far. By pointer: while the call waits, a handler may run that leaves it for good.
#[derive(Clone, Copy)]
enum Begun {
    Over(c_int),
    Theirs,
    Waits(*mut (List, Arc<aio::Group>)),
}

/// Waits for the C library's requests, and then for ours.
///
/// # Safety
/// `waiting` is of a box that nobody else has.
unsafe fn wait_for(waiting: *mut (List, Arc<aio::Group>)) -> c_int {
    // SAFETY: the caller's promise.
    let (theirs, count) = unsafe { ((*waiting).0.theirs.as_ptr(), (*waiting).0.theirs.len() as c_int) };
    let result = match count {
        0 => 0,
        // SAFETY: the program's blocks, in a list of ours that lives until the box is dropped.
        _ => unsafe { real::lio_listio(libc::LIO_WAIT, theirs, count, core::ptr::null_mut()) },
    };
    let is_interrupted = result < 0 && crate::ffi::last_errno() == Errno::EINTR;
    let waited = match is_interrupted {
        true => -1,
        // SAFETY: as above.
        false => restarted(|| guarded(-1, || status(wait::for_group(unsafe { &(*waiting).1 })))),
    };
    guarded(-1, || {
        // SAFETY: the caller's promise; nothing refers to it any more.
        let (_, group) = *unsafe { Box::from_raw(waiting) };
        if waited < 0 {
            set_errno(libc::EINTR);
            return -1;
        }
        if result < 0 || group.has_failed() {
            set_errno(libc::EIO);
            return -1;
        }
        0
    })
}

macro_rules! second_names {
    ($($alias:ident = $name:ident($($arg:ident: $type:ty),*);)+) => {
        $(
            /// # Safety
            /// As the call that it is another name of: off_t has 64 bits on the systems that this library is for.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $alias($($arg: $type),*) -> c_int {
                // SAFETY: the program's arguments, handed on.
                unsafe { $name($($arg),*) }
            }
        )+
    };
}

second_names! {
    aio_read64 = aio_read(block: *mut aiocb);
    aio_write64 = aio_write(block: *mut aiocb);
    aio_fsync64 = aio_fsync(how: c_int, block: *mut aiocb);
    aio_error64 = aio_error(block: *const aiocb);
    aio_suspend64 = aio_suspend(list: *const *const aiocb, count: c_int, timeout: *const timespec);
    aio_cancel64 = aio_cancel(fd: c_int, block: *mut aiocb);
    lio_listio64 = lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent);
}
