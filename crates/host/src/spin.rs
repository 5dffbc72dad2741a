//! Looking again and again for a short time, before a wait sleeps: [`crate::looking`] says for how long. Used by [`crate::wait`] and, for
//! whom the peer is known to be at it, by sockets.

use crate::looking::{LookOutcome, LookPlan, Looking};
use crate::{sys, thread};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use toe_abi::errno::Errno;

/// Whether a thread that looks again gives the processor away in between.
static YIELDS: AtomicBool = AtomicBool::new(true);

/// Between two looks of one that spins: some tenths of a µs.
const PAUSES_MAX: u32 = 16;

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
    spin_for(|| false, attempt)
}

/// The same for a wait of which can be said whether it has found much.
pub fn spin_for<T>(
    is_much: impl FnOnce() -> bool,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    let now = sys::now();
    let look = with_looking(|looking| looking.begin(now));
    look.map_or(Ok(None), |look| look_as(look, now, is_much, attempt))
}

/// The same for a wait whose peer is in the middle of something with it: longer, and however often it was in vain.
pub fn spin_with_peer<T>(attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>) -> Result<Option<T>, Errno> {
    let now = sys::now();
    let look = with_looking(|looking| looking.begin_with_peer(now));
    look.map_or(Ok(None), |look| look_as(look, now, || false, attempt))
}

fn look_as<T>(
    look: LookPlan,
    began: Duration,
    is_much: impl FnOnce() -> bool,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    let mut now = began;
    let end = |found| with_looking(|looking| looking.end(found, look.spins_until > began));
    let mut pauses = 1;
    while now < look.spins_until {
        // Each look takes the lines that a peer writes from it.
        (0..pauses).for_each(|_| std::hint::spin_loop());
        pauses = (pauses * 2).min(PAUSES_MAX);
        if let Some(outcome) = attempt()? {
            end(LookOutcome::Spinning);
            return Ok(Some(outcome));
        }
        now = sys::now();
    }
    let mut is_first = true;
    while now < look.yields_until {
        let before = now;
        let_others_run();
        let outcome = attempt()?;
        now = sys::now();
        with_looking(|looking| looking.let_run(before, now));
        if outcome.is_some() {
            let took = now.saturating_sub(before);
            let at_first = || LookOutcome::AtFirstYield { took, is_much: is_much() };
            end(if is_first { at_first() } else { LookOutcome::Later });
            return Ok(outcome);
        }
        is_first = false;
    }
    end(LookOutcome::Nothing);
    Ok(None)
}

fn with_looking<R>(f: impl FnOnce(&mut Looking) -> R) -> R {
    thread::with(|thread| {
        let mut looking = thread.looking.get();
        let done = f(&mut looking);
        thread.looking.set(looking);
        done
    })
}
