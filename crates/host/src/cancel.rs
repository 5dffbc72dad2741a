//! Threads that are cancelled (pthread_cancel(3)) while they sleep in the library.
//!
//! The C library ends a thread by unwinding its stack. There may be no frame of the library's on it then: what a wait has
//! registered would stay. So a sleep of ours ends first, the call gives [`Errno::ECANCELED`] up to where nothing is held, and
//! whoever stands there (the switch layer, [`take`]) lets the C library do its part.
//!
//! A thread of PTHREAD_CANCEL_ASYNCHRONOUS may be unwound wherever it is. So inside the library it is as any other
//! ([`kind::defer`]), and what it was before when it leaves ([`kind::let_unwind`]): there the C library ends it, if it was asked meanwhile.
//!
//! The C library wakes no thread for a request that waits for a point of cancellation; whoever asks wakes it ([`ask`]):
//! by the signal that the C library has for this and whose handler does nothing in such a thread. It may come between the
//! last look and the system call, so it is sent until the thread has seen what it is for.

pub mod kind;
pub(crate) mod sleeper;

use self::kind::{ASYNCHRONOUS, SetType};
use self::sleeper::{Registered, Sleeper};
use crate::lock::Lock;
use crate::signals::Inside;
use crate::sys;
use crate::thread::{self, Thread};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;
use toe_abi::errno::Errno;

static ALL: Lock<Vec<&'static Sleeper>> = Lock::new(Vec::new());
/// Some thread was ever asked to end.
static EVER: AtomicBool = AtomicBool::new(false);

/// How often, and after what pause, a thread is woken that has not seen the request.
const WAKES: u32 = 20_000;
const PAUSE: Duration = Duration::from_micros(50);
/// The C library's signal for this (SIGCANCEL).
const SIGNAL: usize = 32;

thread_local! {
    static TAKEN: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread's type of cancellation is `kind` from now on, and that is changed by `set`.
pub fn note_type(kind: i32, set: SetType) {
    thread::with(|thread| thread.asynchronous.set((kind == ASYNCHRONOUS).then_some(set)));
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// Linux: PTHREAD_CANCEL_ENABLE and PTHREAD_CANCEL_DISABLE.
const ENABLE: i32 = 0;
const DISABLE: i32 = 1;

/// Whether the thread lets itself be cancelled.
fn is_enabled() -> bool {
    let mut before = DISABLE;
    // SAFETY: needed because the C library tells only who changes it. A local; the state is put back at once, and a request
    // that waits is looked at only at the next point of cancellation.
    unsafe {
        pthread_setcancelstate(DISABLE, &mut before);
        pthread_setcancelstate(before, std::ptr::null_mut());
    }
    before == ENABLE
}

fn mine() -> Option<&'static Sleeper> {
    thread::with(|thread| match thread.cancel.get() {
        Registered::As(sleeper) => Some(sleeper),
        Registered::Not => Some(register(thread)),
        Registered::Gone => None,
    })
}

#[cold]
fn register(thread: &Thread) -> &'static Sleeper {
    // No handler may come for the lock.
    let _inside = Inside::enter();
    let mut all = ALL.lock();
    let unused = |sleeper: &&&Sleeper| sleeper.thread.load(Ordering::Acquire) == 0;
    let sleeper = match all.iter().find(unused) {
        Some(sleeper) => *sleeper,
        None => {
            let sleeper: &'static Sleeper = Box::leak(Box::new(Sleeper {
                thread: AtomicUsize::new(0),
                number: AtomicI32::new(0),
                sleeping: AtomicBool::new(false),
                asked: AtomicBool::new(false),
                seen: AtomicBool::new(false),
            }));
            all.push(sleeper);
            sleeper
        }
    };
    sleeper.sleeping.store(false, Ordering::Relaxed);
    sleeper.asked.store(false, Ordering::Relaxed);
    sleeper.seen.store(false, Ordering::Relaxed);
    sleeper.number.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    // SAFETY: needed to know the thread by what it is asked by; the call has no conditions.
    sleeper.thread.store(unsafe { libc::pthread_self() } as usize, Ordering::Release);
    thread.cancel.set(Registered::As(sleeper));
    _ = thread::must_give_back();
    sleeper
}

/// In the child of a fork: there is this thread alone, and it has another number.
#[cold]
pub fn after_fork_in_child() {
    let mine = thread::with(|thread| match thread.cancel.get() {
        Registered::As(sleeper) => Some(sleeper),
        Registered::Not | Registered::Gone => None,
    });
    if let Some(mine) = mine {
        mine.number.store(sys::pid(), Ordering::Relaxed);
    }
    let is_mine = |sleeper: &Sleeper| mine.is_some_and(|mine| std::ptr::eq(mine, sleeper));
    let has_no_others = |all: &Vec<&'static Sleeper>| {
        all.iter().all(|other| is_mine(other) || other.thread.load(Ordering::Acquire) == 0)
    };
    // SAFETY: needed for a lock that was not taken before the fork. The child has this thread alone, which was in `fork` and not in a call that
    // locks.
    unsafe { ALL.renew_after_fork(has_no_others, || mine.into_iter().collect()) };
}

/// Whether any thread was ever asked to end. If not, calls need look no further: who asks says so before it looks for threads
/// that sleep, and a thread is known ([`prepare`]) before it looks here.
#[inline]
pub fn was_ever_asked() -> bool {
    EVER.load(Ordering::Acquire)
}

/// Before a thread's first call that may wait, outside of the library: whoever asks it to end finds it from here on.
#[cold]
pub fn prepare() {
    let _ = mine();
}

/// Sleeps by `sleep`, which says what came of it and whether a handler has run. ECANCELED: the thread is to end.
pub fn sleeping(sleep: impl FnOnce() -> (Result<usize, Errno>, bool)) -> (Result<usize, Errno>, bool) {
    let Some(me) = mine() else { return sleep() };
    me.sleeping.store(true, Ordering::SeqCst);
    let slept = if is_to_end(me) { (Err(Errno::ECANCELED), false) } else { sleep() };
    me.sleeping.store(false, Ordering::SeqCst);
    let was_seen = me.seen.load(Ordering::Relaxed);
    match slept {
        (Err(Errno::EINTR | Errno::ECANCELED), _) if is_to_end(me) => {
            let _ = TAKEN.try_with(|taken| taken.set(true));
            (Err(Errno::ECANCELED), false)
        }
        // Woken for what it does not follow now.
        (Err(Errno::EINTR), false) if me.seen.load(Ordering::Relaxed) && !was_seen => (Ok(0), false),
        slept => slept,
    }
}

fn is_to_end(me: &Sleeper) -> bool {
    if !me.asked.load(Ordering::SeqCst) {
        return false;
    }
    me.seen.store(true, Ordering::SeqCst);
    is_enabled()
}

/// Whether a call of this thread has ended because the thread is to end; once.
#[inline]
pub fn take() -> bool {
    TAKEN.try_with(|taken| taken.replace(false)).unwrap_or(false)
}

/// Asks `thread` to end: by `request`, the C library's function, and wakes it if it sleeps here.
pub fn ask(thread: libc::pthread_t, request: impl FnOnce() -> i32) -> i32 {
    EVER.store(true, Ordering::SeqCst);
    // First: a thread that is not found below looks for it when it comes in.
    let result = request();
    let is_it = |sleeper: &&&Sleeper| sleeper.thread.load(Ordering::Acquire) == thread as usize;
    let found = ALL.lock().iter().find(is_it).copied();
    let Some(sleeper) = found.filter(|_| result == 0) else { return result };
    sleeper.asked.store(true, Ordering::SeqCst);
    for _ in 0..WAKES {
        let is_asleep = sleeper.sleeping.load(Ordering::SeqCst) && !sleeper.seen.load(Ordering::SeqCst);
        if !is_asleep || sleeper.thread.load(Ordering::Acquire) != thread as usize {
            break;
        }
        sys::signal_thread(sleeper.number.load(Ordering::Relaxed), SIGNAL);
        let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
        let _ = rustix::thread::nanosleep(&pause);
    }
    result
}
