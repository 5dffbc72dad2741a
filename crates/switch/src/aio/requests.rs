//! All requests of the process: which there are, and what is done when one is over.

use super::queue::{Queue, Request};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustix::thread::futex;
use toe::Errno;
use toe::lock::Lock;

/// What is asked for (`aio_lio_opcode`; the last two are the C library's own numbers).
pub const READ: c_int = 0;
pub const WRITE: c_int = 1;
pub const NOP: c_int = 2;
pub const DATA_SYNC: c_int = 3;
pub const SYNC: c_int = 4;

pub static QUEUE: Lock<Queue> = Lock::new(Queue::new());
/// Counts requests that are done, for those who wait for some.
pub static DONE: AtomicU32 = AtomicU32::new(0);
/// There was a request here.
pub static EVER: AtomicBool = AtomicBool::new(false);

/// Whether any request was run here.
#[inline]
pub fn was_ever_used() -> bool {
    EVER.load(Ordering::Acquire)
}

/// Requests are their process's alone: in the child of a fork there are none, nor threads.
pub fn after_fork_in_child() {
    // SAFETY: needed for a lock that was not taken before the fork. The child has this thread alone, which was in `fork` and not in a call that
    // locks.
    unsafe { QUEUE.renew_after_fork(|_| !was_ever_used(), Queue::new) };
}

/// A request is over. Who calls has the lock, so that whoever sees that it is done ([`settle`]) has also been told.
pub fn complete(request: &Request, result: Result<usize, Errno>) {
    request.aiocb.end(result);
    let notified = request.event.tell();
    if let Err(error) = notified {
        request.aiocb.end(Err(error));
    }
    if let Some(group) = &request.group {
        group.end_one(result.is_err() || notified.is_err());
    }
    DONE.fetch_add(1, Ordering::Release);
    let _ = futex::wake(&DONE, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// When this returns, all that was to be done with requests that show as done has been done.
pub fn settle() {
    drop(QUEUE.lock());
}
