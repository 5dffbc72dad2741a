//! POSIX AIO (aio(7)) on an engine's sockets. The C library's threads make their system calls inside it, where an engine's
//! connection is none; so requests for one are queued and run here, as the C library does with all others, by the ordinary calls.
//! Called by `calls::aio`.
//!
//! | file | what |
//! |---|---|
//! | [`block`] | the program's control block, in which the C library's aio_return looks, too |
//! | [`queue`] | which request is run next |
//! | [`requests`] | all of the process, and what is done when one is over |
//! | [`worker`] | the threads that run them |
//! | [`notice`] | what tells the program that one, or a list, is done |
//! | [`list`] | lio_listio |
//! | [`wait`] | aio_suspend, and the wait for a list |

pub mod block;
pub mod list;
mod notice;
mod queue;
mod requests;
pub mod wait;
mod worker;

use crate::lookup;
use block::{AiocbPtr, Block};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
pub use notice::{Event, Group};
use queue::{Added, Cancelled, Request};
pub use requests::{DATA_SYNC, NOP, READ, SYNC, WRITE, after_fork_in_child, settle, was_ever_used};
use requests::{EVER, QUEUE, complete};
use std::sync::Arc;
use toe::{Errno, fd_table};

/// AIO_PRIO_DELTA_MAX.
const MOST_LOWERED: c_int = 20;

/// Whether a request for this descriptor is run here. The C library's threads, which run the others, know of no lanes.
pub fn is_ours(fd: c_int) -> bool {
    lookup::leave_lanes(fd);
    fd_table::get(fd).is_some()
}

/// Puts a request where it is run. EINVAL: its priority; EAGAIN: there can be no thread; EFAULT: the block cannot be written.
pub fn submit(
    aiocb: AiocbPtr,
    block: &Block,
    operation: c_int,
    group: Option<&Arc<Group>>,
) -> Result<(), Errno> {
    if operation != SYNC && operation != DATA_SYNC && !(0..=MOST_LOWERED).contains(&block.lowered) {
        aiocb.end(Err(Errno::EINVAL));
        return Err(Errno::EINVAL);
    }
    EVER.store(true, Ordering::Release);
    let mut queue = QUEUE.lock();
    aiocb.begin(operation)?;
    let added = queue.add(Request {
        aiocb,
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
            if worker::start(Some(request.clone())).is_err() && !queue.is_queued_without_start(request) {
                aiocb.end(Err(Errno::EAGAIN));
                return Err(Errno::EAGAIN);
            }
        }
    }
    if let Some(group) = group {
        group.add();
    }
    Ok(())
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
pub fn cancel_one(fd: c_int, aiocb: AiocbPtr) -> Option<Outcome> {
    let mut queue = QUEUE.lock();
    match queue.remove(fd, aiocb) {
        Cancelled::Unknown => None,
        Cancelled::Runs => Some(Outcome::NotCancelled),
        Cancelled::Removed(request) => {
            cancel_request(&request);
            Some(Outcome::Cancelled)
        }
    }
}
