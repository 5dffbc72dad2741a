//! Signals that come while a thread is inside the library.
//!
//! A handler may call any function that POSIX calls async-signal-safe, `read`, `write` and `connect` of a socket among
//! them. So no handler may run while its thread holds a lock of the library or is in the middle of an allocation. Whoever
//! installs the program's handlers (the switch layer) lets [`held_back`] look at each signal first: inside the library it
//! is kept, and sent again when the thread leaves, or is about to sleep. While a thread sleeps in the kernel handlers run
//! as ever, and the call then says EINTR.
//!
//! Called by the switch layer around every call ([`Inside`]) and by [`crate::wait`] around every sleep ([`asleep`]).

use crate::sys;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

/// Signals are numbered from 1 to this.
const SIGNALS: usize = 64;
/// The first of the real-time signals: each of them counts, also when one of its number waits already (signal(7)).
const REAL_TIME: usize = 32;
/// Real-time signals that a thread keeps beside the first of each number. It is inside for some µs at a time.
const MORE_MAX: usize = 32;

/// `siginfo_t`, as the kernel passes it.
pub type Info = [u64; 16];

/// What one thread keeps.
#[derive(Debug)]
struct Kept {
    /// How deep the thread is inside the library.
    depth: Cell<u32>,
    /// A bit for each signal that is kept.
    pending: AtomicU64,
    /// Their descriptions. An entry is written by the handler while its bit is clear, and read after the bit was set.
    infos: UnsafeCell<[Info; SIGNALS]>,
    /// Real-time signals of which one was kept already, in order, with their numbers; so many places are taken. An entry is
    /// written by the handler that took its place, and read when the thread leaves: then no handler is in the middle of it.
    more: UnsafeCell<[(usize, Info); MORE_MAX]>,
    taken: AtomicU32,
}

thread_local! {
    static KEPT: Kept = const {
        Kept {
            depth: Cell::new(0),
            pending: AtomicU64::new(0),
            infos: UnsafeCell::new([[0; 16]; SIGNALS]),
            more: UnsafeCell::new([(0, [0; 16]); MORE_MAX]),
            taken: AtomicU32::new(0),
        }
    };
}

/// The thread is inside the library as long as this lives.
#[derive(Debug)]
pub struct Inside(());

impl Inside {
    #[inline]
    pub fn enter() -> Inside {
        let _ = KEPT.try_with(|kept| kept.depth.set(kept.depth.get() + 1));
        // A handler runs on this thread: the order of the instructions is all that counts.
        compiler_fence(Ordering::SeqCst);
        Inside(())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let _ = KEPT.try_with(|kept| {
            kept.depth.set(kept.depth.get().saturating_sub(1));
            compiler_fence(Ordering::SeqCst);
            if kept.depth.get() == 0 && kept.pending.load(Ordering::Relaxed) != 0 {
                send_again(kept);
            }
        });
    }
}

/// Runs `sleep`, a system call that waits, as if outside of the library. `None`: a signal had come before, whose handler
/// has run now; the call is not made.
pub fn asleep<R>(sleep: impl FnOnce() -> R) -> Option<R> {
    let depth = KEPT.try_with(|kept| kept.depth.replace(0)).unwrap_or(0);
    compiler_fence(Ordering::SeqCst);
    let came = KEPT.try_with(|kept| {
        let came = kept.pending.load(Ordering::Relaxed) != 0;
        if came {
            send_again(kept);
        }
        came
    });
    let result = (came != Ok(true)).then(sleep);
    compiler_fence(Ordering::SeqCst);
    let _ = KEPT.try_with(|kept| kept.depth.set(depth));
    result
}

/// Called by a handler, with what the kernel gave it: `true` when the thread is inside the library, and the signal will
/// come again.
pub fn held_back(signal: usize, info: &Info) -> bool {
    if !(1..=SIGNALS).contains(&signal) {
        return false;
    }
    let held = KEPT.try_with(|kept| {
        // Where it could not be sent again it is not kept.
        if kept.depth.get() == 0 || crate::confine::is_filtered() {
            return false;
        }
        let bit = 1 << (signal - 1);
        if kept.pending.load(Ordering::Relaxed) & bit == 0 {
            // SAFETY: needed because a handler writes what its own thread reads later. The entry belongs to this thread;
            // while the bit is clear nothing else refers to it, and a second handler for the same signal cannot run in
            // between but as a whole, with the same right.
            unsafe { (*kept.infos.get())[signal - 1] = *info };
            compiler_fence(Ordering::SeqCst);
            kept.pending.fetch_or(bit, Ordering::Relaxed);
        } else if signal >= REAL_TIME {
            let place = kept.taken.fetch_add(1, Ordering::Relaxed) as usize;
            if place < MORE_MAX {
                // SAFETY: as above; the place is this handler's alone.
                unsafe { (*kept.more.get())[place] = (signal, *info) };
            }
        }
        true
    });
    held.unwrap_or(false)
}

/// Sends this thread what it has kept. The handlers run before this returns, unless the program has blocked the signal.
#[cold]
fn send_again(kept: &Kept) {
    // SAFETY: the thread is outside, so that no handler writes here; one that runs while this sends may come inside and keep
    // others, hence the copy.
    let mut more = unsafe { *kept.more.get() };
    let taken = (kept.taken.swap(0, Ordering::Relaxed) as usize).min(MORE_MAX);
    loop {
        let pending = kept.pending.load(Ordering::Relaxed);
        if pending == 0 {
            break;
        }
        let at = pending.trailing_zeros() as usize;
        // SAFETY: as in `held_back`; the bit is set, so the handler leaves the entry alone.
        let info = unsafe { (*kept.infos.get())[at] };
        compiler_fence(Ordering::SeqCst);
        kept.pending.fetch_and(!(1 << at), Ordering::Relaxed);
        sys::queue_signal(at + 1, &info);
        for (signal, info) in more[..taken].iter_mut().filter(|(signal, _)| *signal == at + 1) {
            // Once: its handler may come by here, too.
            *signal = 0;
            sys::queue_signal(at + 1, info);
        }
    }
    // Those whose first one was sent by a handler that came by here.
    for (signal, info) in more[..taken].iter().filter(|(signal, _)| *signal != 0) {
        sys::queue_signal(*signal, info);
    }
}

/// Before a fork the thread goes inside, and comes out again by [`after_fork`].
pub fn before_fork() {
    std::mem::forget(Inside::enter());
}

/// After a fork, in the parent or in the `child`: there nothing is kept, as signals that wait are not inherited.
pub fn after_fork(child: bool) {
    if child {
        let _ = KEPT.try_with(|kept| {
            kept.pending.store(0, Ordering::Relaxed);
            kept.taken.store(0, Ordering::Relaxed);
        });
    }
    drop(Inside(()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_kept_inside_and_only_there() {
        let info = [7; 16];
        assert!(!held_back(10, &info), "outside");
        let inside = Inside::enter();
        let deeper = Inside::enter();
        assert!(held_back(10, &info) && held_back(10, &[8; 16]));
        KEPT.with(|kept| {
            assert_eq!(kept.pending.load(Ordering::Relaxed), 1 << 9);
            // SAFETY: this thread is in no handler.
            assert_eq!(unsafe { (*kept.infos.get())[9] }, info, "the first one counts, as in the kernel");
            kept.pending.store(0, Ordering::Relaxed);
        });
        drop(deeper);
        assert!(!held_back(0, &info) && !held_back(65, &info));
        assert_eq!(asleep(|| held_back(10, &info)), Some(false), "asleep is outside");
        KEPT.with(|kept| assert_eq!(kept.depth.get(), 1));
        drop(inside);
        KEPT.with(|kept| assert_eq!(kept.depth.get(), 0));
    }
}
