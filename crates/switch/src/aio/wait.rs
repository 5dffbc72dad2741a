//! Waiting for requests: aio_suspend, and lio_listio that waits.

use super::block::AiocbPtr;
use super::notice::Group;
use super::requests::{DONE, QUEUE, settle};
use core::sync::atomic::Ordering;
use core::time::Duration;
use libc::aiocb;
use toe::errno::ERESTART;
use toe::wait::{restarts, sleep};
use toe::{Errno, program_memory, signals, sys, wait_calls};

/// How long it is not looked whether a request of the C library's is done, at first and at most: nothing wakes a thread here then.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

/// Whose the requests are that aio_suspend(3) is to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// One is done, or there is none.
    Nobody,
    Ours,
    /// The C library's alone, or the list is not there.
    Theirs,
    Both,
}

/// # Safety
/// `list` is the program's, of `count` pointers.
pub unsafe fn whose(list: *const *const aiocb, count: usize) -> Whose {
    if program_memory::check(list, count).is_err() {
        return Whose::Theirs;
    }
    let queue = QUEUE.lock();
    let (mut ours, mut theirs) = (false, false);
    for n in 0..count {
        // SAFETY: needed to read the program's array, which is there.
        let aiocb = AiocbPtr::of(unsafe { list.add(n).read_unaligned() });
        if aiocb.is_null() {
            continue;
        }
        let Some(is_in_progress) = aiocb.is_in_progress() else { return Whose::Theirs };
        if !is_in_progress {
            return Whose::Nobody;
        }
        let is_ours = queue.has(aiocb);
        (ours, theirs) = (ours || is_ours, theirs || !is_ours);
    }
    match (ours, theirs) {
        (false, false) => Whose::Nobody,
        (true, false) => Whose::Ours,
        (false, true) => Whose::Theirs,
        (true, true) => Whose::Both,
    }
}

/// Waits until one is done of a list that was not the C library's alone. EAGAIN: not in time. EINTR, ERESTART: a signal came.
///
/// # Safety
/// As [`whose`].
pub unsafe fn suspend(
    list: *const *const aiocb,
    count: usize,
    timeout: Option<Duration>,
) -> Result<(), Errno> {
    let deadline = timeout.map(|timeout| sys::now().saturating_add(timeout));
    let mut pause = FIRST_PAUSE;
    loop {
        let seen = DONE.load(Ordering::Acquire);
        // SAFETY: the caller's promise.
        let longest = match unsafe { whose(list, count) } {
            Whose::Nobody => return Ok(()),
            Whose::Ours => None,
            // Those of ours among them are done with, by another thread.
            Whose::Theirs | Whose::Both => {
                pause = (pause * 2).min(LONGEST_PAUSE);
                Some(pause)
            }
        };
        let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Errno::EAGAIN);
        }
        let time = left.into_iter().chain(longest).min();
        let (slept, was_interrupted) = sleep(None, || wait_calls::futex_wait(&DONE, seen, time));
        if was_interrupted || matches!(slept, Err(Errno::EINTR)) {
            return Err(if restarts(deadline.is_some()) { ERESTART } else { Errno::EINTR });
        }
        if slept == Err(toe::Errno::ECANCELED) {
            return Err(toe::Errno::ECANCELED);
        }
    }
}

/// Waits until all requests of a list are done. EINTR, ERESTART: a signal came. The C library lets no thread be cancelled here.
pub fn for_group(group: &Group) -> Result<(), Errno> {
    loop {
        let seen = DONE.load(Ordering::Acquire);
        if group.is_done() {
            settle();
            return Ok(());
        }
        let (slept, was_interrupted) = signals::asleep(None, || wait_calls::futex_wait(&DONE, seen, None));
        if was_interrupted || slept == Err(Errno::EINTR) {
            return Err(if restarts(false) { ERESTART } else { Errno::EINTR });
        }
    }
}
