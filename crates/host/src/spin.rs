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

/// From now on the calling thread sleeps without a look before: it is beside the program, whose threads are to have the processor.
pub fn sleep_at_once() {
    thread::with(|thread| thread.looking.set(Looking::never()));
}

/// Looks again for a short time, giving the processor away in between.
pub fn spin<T>(attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>) -> Result<Option<T>, Errno> {
    let now = sys::now();
    let end = with_looking(|looking| looking.begin(now));
    end.map_or(Ok(None), |end| look_until(end, now, attempt))
}

/// The same for a wait of which can be said whether it has found much.
pub fn spin_for<T>(
    is_much: impl FnOnce() -> bool,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    let (began, mut looks) = (sys::now(), 0);
    let outcome = spin(&mut || {
        looks += 1;
        attempt()
    });
    if matches!(outcome, Ok(Some(_))) {
        with_looking(|looking| match looks {
            1 => looking.found_at_first(is_much(), sys::now().saturating_sub(began)),
            _ => looking.found_later(),
        });
    }
    outcome
}

/// The same for a wait whose peer is in the middle of something with it: longer, and however often it was in vain.
pub fn spin_beside_peer<T>(
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    let now = sys::now();
    let end = with_looking(|looking| looking.begin_beside_peer(now));
    end.map_or(Ok(None), |end| look_until(end, now, attempt))
}

fn look_until<T>(
    end: Duration,
    mut before: Duration,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    loop {
        if YIELDS.load(Ordering::Relaxed) {
            rustix::thread::sched_yield();
        }
        std::hint::spin_loop();
        let outcome = attempt()?;
        let after = sys::now();
        with_looking(|looking| {
            looking.let_run(before, after);
            match outcome {
                Some(_) => looking.found(),
                None if after >= end => looking.found_nothing(),
                None => {}
            }
        });
        if outcome.is_some() || after >= end {
            return Ok(outcome);
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
