//! POSIX AIO (aio(7)) on an engine's sockets. The C library's threads make their system calls inside it, where an engine's
//! connection is none; so requests for one are queued and run here, as the C library does with all others, by the ordinary calls.
//! Called by `calls::aio`.
//!
//! | file | what |
//! |---|---|
//! | [`block`] | the program's control block, in which the C library's aio_return looks, too |
//! | [`queue`] | which request is run next |
//! | [`worker`] | the threads that run them |
//! | [`notice`] | what tells the program that one, or a list, is done |
//! | [`list`] | lio_listio |
//! | [`wait`] | aio_suspend, and the wait for a list |

pub mod block;
pub mod list;
mod notice;
mod queue;
pub mod wait;
mod worker;

use block::{Block, Place};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
pub use notice::{Event, Group};
use queue::{Added, Cancelled, Queue, Request};
use rustix::thread::futex;
use std::sync::Arc;
use toe::lock::Lock;
use toe::{Errno, fd_table};

/// What is asked for (`aio_lio_opcode`; the last two are the C library's own numbers).
pub const READ: c_int = 0;
pub const WRITE: c_int = 1;
pub const NOP: c_int = 2;
pub const DATA_SYNC: c_int = 3;
pub const SYNC: c_int = 4;

/// AIO_PRIO_DELTA_MAX.
const MOST_LOWERED: c_int = 20;

static QUEUE: Lock<Queue> = Lock::new(Queue::new());
/// Counts requests that are done, for those who wait for some.
static DONE: AtomicU32 = AtomicU32::new(0);
/// There was a request here.
static EVER: AtomicBool = AtomicBool::new(false);

/// Whether a request for this descriptor is run here. The C library's threads, which run the others, know of no lanes.
pub fn is_ours(fd: c_int) -> bool {
    crate::calls::leave_lanes(fd);
    fd_table::get(fd).is_some()
}

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

/// Puts a request where it is run. EINVAL: its priority; EAGAIN: there can be no thread; EFAULT: the block cannot be written.
pub fn submit(
    place: Place,
    block: &Block,
    operation: c_int,
    group: Option<&Arc<Group>>,
) -> Result<(), Errno> {
    if operation != SYNC && operation != DATA_SYNC && !(0..=MOST_LOWERED).contains(&block.lowered) {
        place.end(Err(Errno::EINVAL));
        return Err(Errno::EINVAL);
    }
    EVER.store(true, Ordering::Release);
    let mut queue = QUEUE.lock();
    place.begin(operation)?;
    let added = queue.add(Request {
        place,
        fd: block.fd,
        operation,
        buf: block.buf,
        len: block.len,
        offset: block.offset,
        priority: -block.lowered,
        event: block.event,
        group: group.cloned(),
    });
    match added {
        Added::Queued => {}
        Added::Ready => worker::wake_one(&queue),
        Added::Start(request) => {
            if worker::start(Some(request.clone())).is_err() && !queue.is_kept_without_start(request) {
                place.end(Err(Errno::EAGAIN));
                return Err(Errno::EAGAIN);
            }
        }
    }
    if let Some(group) = group {
        group.add();
    }
    Ok(())
}

/// A request is over. Who calls has the lock, so that whoever sees that it is done ([`settle`]) has also been told.
fn complete(request: &Request, result: Result<usize, Errno>) {
    request.place.end(result);
    let told = request.event.tell();
    if let Err(error) = told {
        request.place.end(Err(error));
    }
    if let Some(group) = &request.group {
        group.end_one(result.is_err() || told.is_err());
    }
    DONE.fetch_add(1, Ordering::Release);
    let _ = futex::wake(&DONE, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// When this returns, all that was to be done with requests that show as done has been done.
pub fn settle() {
    drop(QUEUE.lock());
}

/// What aio_cancel(3) says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Outcome {
    Cancelled = libc::AIO_CANCELED,
    /// One runs, which cannot be ended.
    NotCancelled = libc::AIO_NOTCANCELED,
    AllDone = libc::AIO_ALLDONE,
}

fn cancel_request(request: &Request) {
    complete(request, Err(toe::Errno::ECANCELED));
}

/// Cancels all requests for a descriptor but one that runs.
pub fn cancel_all(fd: c_int) -> Outcome {
    let mut queue = QUEUE.lock();
    let (is_running, waiting) = queue.remove_waiting(fd);
    waiting.iter().for_each(cancel_request);
    match (is_running, waiting.is_empty()) {
        (true, _) => Outcome::NotCancelled,
        (false, false) => Outcome::Cancelled,
        (false, true) => Outcome::AllDone,
    }
}

/// Cancels the request of this block. `None`: there is none here.
pub fn cancel_one(fd: c_int, place: Place) -> Option<Outcome> {
    let mut queue = QUEUE.lock();
    match queue.remove(fd, place) {
        Cancelled::Unknown => None,
        Cancelled::Runs => Some(Outcome::NotCancelled),
        Cancelled::Removed(request) => {
            cancel_request(&request);
            Some(Outcome::Cancelled)
        }
    }
}
