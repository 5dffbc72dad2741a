//! Looking again and again for a short time, before a wait sleeps: [`crate::looking`] says for how long. Used by [`crate::wait`] and, for
//! whom the peer is known to be at it, by sockets.

use crate::looking::Looking;
use crate::{sys, thread};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use toe_abi::errno::Errno;

/// Whether a thread that looks again gives the processor away in between.
static YIELDS: AtomicBool = AtomicBool::new(true);

/// From now on it only looks: the system call for the other may be forbidden.
pub fn yield_no_more() {
    YIELDS.store(false, Ordering::Relaxed);
}

/// Gives the processor away, if that may be.
pub(crate) fn let_others_run() {
    if YIELDS.load(Ordering::Relaxed) {
        rustix::thread::sched_yield();
    }
    std::hint::spin_loop();
}

/// Leaves it for a moment, if that may be: then it is idle, and the kernel brings here who waits for one elsewhere.
pub(crate) fn leave_the_processor() {
    if YIELDS.load(Ordering::Relaxed) {
        // What is left of it when a signal comes is not slept.
        let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 10_000 });
    }
    std::hint::spin_loop();
}

/// From now on the calling thread sleeps without a look before: it is beside the program, whose threads are to have the processor.
pub fn sleep_at_once() {
    thread::with(|thread| thread.looking.set(Looking::never()));
}

/// Looks again for a short time, giving the processor away in between.
pub fn spin<T>(attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>) -> Result<Option<T>, Errno> {
    let now = sys::now();
    let end = with_looking(|looking| looking.begin(now));
    end.map_or(Ok(None), |end| look_until(end, now, attempt, |_, _| ()))
}

/// The same for a wait of which can be said whether it has found much.
pub fn spin_for<T>(
    is_much: impl FnOnce() -> bool,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    let now = sys::now();
    let Some(end) = with_looking(|looking| looking.begin(now)) else { return Ok(None) };
    look_until(end, now, attempt, |looking, first_after| match first_after {
        Some(after) => looking.found_at_first(is_much(), after),
        None => looking.found_later(),
    })
}

/// The same for a wait whose peer is in the middle of something with it: longer, and however often it was in vain.
pub fn spin_beside_peer<T>(
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    let now = sys::now();
    let end = with_looking(|looking| looking.begin_beside_peer(now));
    end.map_or(Ok(None), |end| look_until(end, now, attempt, |_, _| ()))
}

/// `found` is told of a look that found something: how long others were let run before it, if it was the first.
fn look_until<T>(
    end: Duration,
    began: Duration,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
    found: impl FnOnce(&mut Looking, Option<Duration>),
) -> Result<Option<T>, Errno> {
    let mut before = began;
    loop {
        let_others_run();
        let outcome = attempt()?;
        let after = sys::now();
        if outcome.is_some() {
            with_looking(|looking| {
                looking.let_run(before, after);
                looking.found();
                found(looking, (before == began).then(|| after.saturating_sub(began)));
            });
            return Ok(outcome);
        }
        with_looking(|looking| {
            looking.let_run(before, after);
            if after >= end {
                looking.found_nothing();
            }
        });
        if after >= end {
            return Ok(None);
        }
        before = after;
    }
}

fn with_looking<R>(f: impl FnOnce(&mut Looking) -> R) -> R {
    thread::with(|thread| {
        let mut looking = thread.looking.get();
        let done = f(&mut looking);
        thread.looking.set(looking);
        done
    })
}
