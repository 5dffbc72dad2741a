//! Signals that come while a thread is inside the library.
//!
//! A handler may call any function that POSIX calls async-signal-safe, `read`, `write` and `connect` of a socket among
//! them. So no handler may run while its thread holds a lock of the library or is in the middle of an allocation. Whoever
//! installs the program's handlers (the switch layer) lets [`held_back`] look at each signal first: inside the library it
//! is kept, and sent again when the thread leaves.
//!
//! So it is with one that comes while a thread sleeps: it ends the sleep, the wait takes back what it has registered, and the
//! handler runs where nothing of the library's is held, at the end of the call or before the wait begins anew
//! ([`let_handlers_run`]). A handler need not return: it may leave by siglongjmp(3), or go on with other things for good, and no
//! frame of the library's that would be missed lies below it.
//!
//! A signal may come between a thread's last look at what was kept and its system call, which would not hear of it, and the
//! thread would sleep on. So the last look and the system call are one piece of machine code ([`crate::sleep`]), and a handler
//! that has interrupted that before the call was made lets it end instead of going on.
//!
//! Called by the switch layer around every call ([`Inside`]) and by [`crate::wait`] around every sleep ([`asleep`]).

pub mod deferred;

use self::deferred::{Came, DeferredSignals, ENDS, came};
use crate::cancel::kind::{SetType, defer, let_unwind};
use crate::cancel::sleeper::Registered;
use crate::thread::{self, Thread};
use crate::{sleep, sys};
use std::sync::atomic::{Ordering, compiler_fence};

#[inline]
fn with_deferred<R>(f: impl FnOnce(&DeferredSignals) -> R) -> R {
    thread::with(|thread| f(&thread.signals))
}

/// The thread is inside the library as long as this lives. Stays in the thread that made it.
#[derive(Debug)]
pub struct Inside {
    thread: *const Thread,
    /// The thread may be unwound anywhere but inside, and that is changed by this.
    unwinds_by: Option<SetType>,
}

impl Inside {
    #[inline]
    pub fn enter() -> Inside {
        let mut inside = Inside { thread: thread::with(std::ptr::from_ref), unwinds_by: None };
        if let Some(set) = inside.thread().asynchronous.get() {
            inside.unwinds_by = defer(set);
        }
        let deferred = &inside.thread().signals;
        deferred.depth.set(deferred.depth.get() + 1);
        // A handler runs on this thread: the order of the instructions is all that counts.
        compiler_fence(Ordering::SeqCst);
        inside
    }

    #[inline]
    fn thread(&self) -> &Thread {
        // SAFETY: needed because a thread-local lends itself only to closures, and each loan is a call of the dynamic
        // linker's. It has no destructor, so it is good as long as its thread runs; a raw pointer keeps this value in it.
        unsafe { &*self.thread }
    }

    /// Whether the thread came in by this.
    #[inline]
    pub fn is_outermost(&self) -> bool {
        self.thread().signals.depth.get() == 1
    }

    /// Whether [`crate::cancel::prepare`] has been called for this thread.
    #[inline]
    pub fn is_prepared(&self) -> bool {
        !matches!(self.thread().cancel.get(), Registered::Not)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let deferred = &self.thread().signals;
        deferred.depth.set(deferred.depth.get().saturating_sub(1));
        compiler_fence(Ordering::SeqCst);
        if deferred.depth.get() == 0 && deferred.pending.load(Ordering::Relaxed) != 0 {
            send_again(deferred);
        }
        if let Some(set) = self.unwinds_by {
            let_unwind(set);
        }
    }
}

/// Runs `sleep`, a system call that waits ([`wait_call`]) with the signal mask `mask` if there is one, and lets a signal end it.
/// Also says whether one has come meanwhile: also one that came before the call began, or after it had ended, counts as in
/// Linux, where the thread would have been in its system call all the time. A call that has not begun by then does not
/// wait, but ends with EINTR. Who called must not sleep again before the handler has run.
pub fn asleep<R>(mask: Option<u64>, sleep: impl FnOnce() -> R) -> (R, bool) {
    let (depth, sleeping, interrupted) = with_deferred(|deferred| {
        let interrupted = deferred.interrupted.swap(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let before = (deferred.depth.get(), deferred.sleeping.replace(true), interrupted);
        compiler_fence(Ordering::SeqCst);
        // For the handlers that cannot be kept.
        deferred.depth.set(0);
        compiler_fence(Ordering::SeqCst);
        deferred.interrupted.fetch_or(deferred.deferred_ends(), Ordering::Relaxed);
        before
    });
    let result = sleep();
    compiler_fence(Ordering::SeqCst);
    let was_interrupted = with_deferred(|deferred| {
        deferred.depth.set(depth);
        compiler_fence(Ordering::SeqCst);
        deferred.sleeping.set(sleeping);
        compiler_fence(Ordering::SeqCst);
        deferred.ended_by.set(deferred.interrupted.swap(interrupted, Ordering::Relaxed));
        let was_interrupted = deferred.ended_by.get() != 0;
        if deferred.pending.load(Ordering::Relaxed) != 0 {
            deferred.mask.set(mask);
            if depth == 0 {
                // Of a thread that was not inside before: it will not leave either.
                send_again(deferred);
            }
        }
        was_interrupted
    });
    (result, was_interrupted)
}

/// Runs the handlers of what was kept, in the middle of a call. Nothing is registered and no memory held by the frames below
/// that would be missed if one of them did not return. It may not end the thread: where that can be, the call ends and begins
/// anew ([`crate::errno::ERESTART`]).
pub fn let_handlers_run() {
    with_deferred(|deferred| {
        if deferred.pending.load(Ordering::Relaxed) == 0 {
            return;
        }
        let depth = deferred.depth.replace(0);
        compiler_fence(Ordering::SeqCst);
        send_again(deferred);
        compiler_fence(Ordering::SeqCst);
        deferred.depth.set(depth);
    });
}

/// A system call that waits, as [`sys::raw`] makes it. In [`asleep`] it is not made any more once a handler has run.
///
/// # Safety
/// As the call asks of its arguments.
pub unsafe fn wait_call(number: std::ffi::c_long, args: [usize; 6]) -> isize {
    let flag = with_deferred(|deferred| deferred.sleeping.get().then_some(deferred.interrupted.as_ptr()));
    match flag {
        // SAFETY: the flag is this thread's own and lives as long as the thread; the rest is the caller's promise.
        Some(flag) => unsafe { sleep::call(flag, number, &args) },
        // SAFETY: the caller's promise.
        None => unsafe { sys::raw(number, args) },
    }
}

/// A handler that runs while its thread sleeps, as [`held_back`] has not kept the signal, as long as this lives.
#[derive(Debug)]
pub struct Handler {
    was_sleeping: bool,
    ended_by: u32,
    blocked: u64,
}

impl Handler {
    /// What the program has installed is about to run; `restarts`: with SA_RESTART.
    pub fn begin(restarts: bool) -> Handler {
        with_deferred(|deferred| {
            let was_sleeping = deferred.sleeping.replace(false);
            if was_sleeping {
                deferred.interrupted.fetch_or(came(restarts), Ordering::Relaxed);
            }
            let (ended_by, blocked) = (deferred.ended_by.get(), deferred.blocked.load(Ordering::Relaxed));
            Handler { was_sleeping, ended_by, blocked }
        })
    }

    /// It has returned, to a context with this signal mask. Not by a drop: one that jumps out of the sleep leaves the thread awake.
    pub fn end(self, mask: &mut u64) {
        with_deferred(|deferred| {
            deferred.sleeping.set(self.was_sleeping);
            deferred.ended_by.set(self.ended_by);
            let blocked = deferred.blocked.load(Ordering::Relaxed);
            *mask = *mask & !(self.blocked & !blocked) | blocked;
        });
    }
}

/// Called by a handler at its end, with the kernel's third argument: a thread that was about to sleep does not.
///
/// # Safety
/// `context` is what the kernel gave the handler.
pub unsafe fn end_sleep(context: *mut std::ffi::c_void) {
    // SAFETY: the caller's promise.
    unsafe { sleep::leave(context) };
}

/// Whether a call that a signal has ended just now is restarted: all handlers of what has come have SA_RESTART. `None`: it
/// was none that was told of here.
pub fn all_restart() -> Option<bool> {
    let came = with_deferred(|deferred| deferred.ended_by.get() | deferred.deferred_ends());
    (came != 0).then_some(came & ENDS == 0)
}

/// Whether a signal has come since the thread is inside whose handler has yet to run.
pub fn is_any_deferred() -> bool {
    with_deferred(|deferred| deferred.pending.load(Ordering::Relaxed) != 0)
}

/// How a call ends that has kept one, and would wait: as Linux ends it, or, where that restarts it, so that the switch layer does.
pub fn interruption() -> toe_abi::errno::Errno {
    match with_deferred(DeferredSignals::deferred_ends) & ENDS {
        0 => crate::errno::ERESTART,
        _ => toe_abi::errno::Errno::EINTR,
    }
}

/// Whether the thread is in a call of the switch layer's and nowhere deeper: who has made it can begin it anew.
pub fn is_in_a_call() -> bool {
    with_deferred(|deferred| deferred.depth.get() == 1)
}

/// Called by a handler: `true` when the thread is inside the library, or sleeps there, and the signal will come again.
pub fn held_back(came_now: Came<'_>) -> bool {
    with_deferred(|deferred| deferred.keep(came_now))
}

/// Sends this thread what it has kept. The handlers run before this returns, unless the program has blocked the signal. What
/// they do to errno is undone: of Linux it says what came of the call, after them.
///
/// A handler may end the thread, which unwinds this frame and those below: they run nothing then, and are interrupted in a call
/// ([`sleep::let_in`]).
#[cold]
fn send_again(deferred: &DeferredSignals) {
    if deferred.infos.load(Ordering::Relaxed).is_null() {
        return;
    }
    let errno = sys::last_errno();
    let before = deferred.send_all();
    if !thread::must_give_back() {
        deferred.give_back();
    }
    deferred.ends.store(false, Ordering::Relaxed);
    sys::set_signal_mask(before & !deferred.blocked.swap(0, Ordering::Relaxed));
    if let Some(mask) = deferred.mask.take() {
        sys::let_signals_in(mask);
    }
    sys::set_errno(errno);
}

/// Before a fork the thread goes inside, and comes out again by [`after_fork`].
pub fn before_fork() {
    std::mem::forget(Inside::enter());
}

/// After a fork, in the parent or in the `child`: there nothing is kept, as signals that wait are not inherited.
pub fn after_fork(child: bool) {
    if child {
        with_deferred(|deferred| {
            deferred.pending.store(0, Ordering::Relaxed);
            deferred.ends.store(false, Ordering::Relaxed);
            let blocked = deferred.blocked.swap(0, Ordering::Relaxed);
            if blocked != 0 {
                sys::set_signal_mask(sys::block_signals() & !blocked);
            }
        });
    }
    drop(Inside { thread: thread::with(std::ptr::from_ref), unwinds_by: None });
}

#[cfg(test)]
mod tests {
    use super::deferred::REAL_TIME;
    use super::*;
    use crate::sys::SignalInfo;
    use crate::wait_calls::ppoll;
    use std::time::Duration;

    fn comes(signal: usize, info: &SignalInfo) -> bool {
        held_back(Came { signal, info, restarts: true, mask: &mut 0 })
    }

    /// A handler that runs after the last look at what was kept, and before the system call.
    #[test]
    fn a_call_that_has_not_begun_when_a_handler_runs_does_not_wait() {
        let (slept, was_interrupted) = asleep(None, || {
            Handler::begin(true).end(&mut 0);
            ppoll(&mut [], None, None)
        });
        assert_eq!((slept, was_interrupted), (Err(toe_abi::errno::Errno::EINTR), true));
        let (slept, was_interrupted) = asleep(None, || ppoll(&mut [], Some(Duration::ZERO), None));
        assert_eq!((slept, was_interrupted), (Ok(0), false));
        let after = asleep(None, || {
            let slept = ppoll(&mut [], Some(Duration::ZERO), None);
            Handler::begin(true).end(&mut 0);
            slept
        });
        assert_eq!(after, (Ok(0), true));
    }

    #[test]
    fn a_sleep_within_a_handler_leaves_the_outer_one_as_it_was() {
        let (_, was_interrupted) = asleep(None, || {
            let handler = Handler::begin(false);
            let inside = Inside::enter();
            assert_eq!(asleep(None, || ()), ((), false));
            drop(inside);
            handler.end(&mut 0);
        });
        assert!(was_interrupted);
    }

    #[test]
    fn the_last_sleep_says_whether_all_that_came_restarts() {
        let sleep_with = |actions: &[bool]| {
            let _ =
                asleep(None, || actions.iter().for_each(|&restarts| Handler::begin(restarts).end(&mut 0)));
            all_restart()
        };
        assert_eq!(sleep_with(&[]), None);
        assert_eq!(sleep_with(&[true, true]), Some(true));
        assert_eq!(sleep_with(&[true, false, true]), Some(false));
    }

    #[test]
    fn a_real_time_signal_that_is_kept_blocks_its_followers() {
        let (info, real_time) = ([7; 16], REAL_TIME + 2);
        let bit = 1 << (real_time - 1);
        let inside = Inside::enter();
        let mut mask = 5;
        assert!(held_back(Came { signal: real_time, info: &info, restarts: true, mask: &mut mask }));
        assert_eq!(mask, 5 | bit);
        // One that had interrupted the first before that was over.
        let mut below = 0;
        assert!(held_back(Came { signal: 10, info: &info, restarts: true, mask: &mut below }));
        assert_eq!(below, bit);
        with_deferred(|deferred| {
            let handler = Handler::begin(true);
            assert_eq!(deferred.blocked.swap(0, Ordering::Relaxed), bit);
            handler.end(&mut mask);
            assert_eq!(mask, 5, "sent again by a handler");
            deferred.pending.store(0, Ordering::Relaxed);
        });
        let mut by_the_program = bit;
        assert!(held_back(Came {
            signal: real_time,
            info: &info,
            restarts: true,
            mask: &mut by_the_program
        }));
        with_deferred(|deferred| {
            assert_eq!(deferred.blocked.load(Ordering::Relaxed), 0, "not to be let in");
            deferred.pending.store(0, Ordering::Relaxed);
        });
        drop(inside);
    }

    #[test]
    fn a_signal_is_kept_inside_and_only_there() {
        let info = [7; 16];
        assert!(!comes(10, &info), "outside");
        let inside = Inside::enter();
        let deeper = Inside::enter();
        assert!(comes(10, &info) && comes(10, &[8; 16]));
        with_deferred(|deferred| {
            assert_eq!(deferred.pending.load(Ordering::Relaxed), 1 << 9);
            // SAFETY: this thread is in no handler.
            let first = unsafe { (*deferred.infos.load(Ordering::Relaxed))[9] };
            assert_eq!(first, info, "the first one counts, as in the kernel");
            deferred.pending.store(0, Ordering::Relaxed);
        });
        drop(deeper);
        assert!(!comes(0, &info) && !comes(65, &info));
        assert_eq!(asleep(None, || comes(10, &info)), (true, true), "it ends the sleep");
        let slept = asleep(None, || ppoll(&mut [], None, None));
        assert_eq!(slept, (Err(toe_abi::errno::Errno::EINTR), true), "so does one that was kept before");
        let in_handler = asleep(None, || {
            let handler = Handler::begin(false);
            let is_retained = comes(10, &info);
            handler.end(&mut 0);
            is_retained
        });
        assert_eq!(in_handler, (false, true), "a handler that could not wait is outside");
        with_deferred(|deferred| {
            assert_eq!(deferred.depth.get(), 1);
            deferred.pending.store(0, Ordering::Relaxed);
        });
        drop(inside);
        with_deferred(|deferred| assert_eq!(deferred.depth.get(), 0));
    }
}
