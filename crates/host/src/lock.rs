//! A mutual exclusion lock that survives fork: it can be taken before the fork and given back on both sides of it.
//!
//! Every lock of the library is one of these. The order in which they are taken is: claim of a socket, registry, opening of queue sets, queue set, socket
//! watch list, epoll set, the rest (each of those alone). A signal handler that came while its own thread holds one would
//! wait for itself; see [`crate::signals`].

use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use toe_ring::pending_wakes::{LockWord, PendingWakes, Sleeper};

/// Looks at the word before sleeping on it: the holder is usually done within that.
const SPINS: u32 = 40;

/// The lock and what it guards.
#[derive(Debug)]
pub struct Lock<T> {
    word: LockWord,
    value: UnsafeCell<T>,
}

// SAFETY: needed to put a lock into statics and share it between threads. The value is reached only through a guard,
// and there is one guard at a time, so sharing the lock is moving the value from thread to thread: `T: Send` is
// enough.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as above; moving the lock moves the value.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: LockWord::new(), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        self.lock_raw();
        Guard { lock: self }
    }

    /// The guard, unless somebody else has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word.try_take().then(|| Guard { lock: self })
    }

    /// Takes the lock and keeps it without a guard: before fork.
    #[inline]
    pub fn lock_raw(&self) {
        if !self.word.try_take() {
            self.wait_for_it();
        }
    }

    #[cold]
    fn wait_for_it(&self) {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.word.try_take() {
                return;
            }
        }
        while let Some(word) = self.word.take_or_wait() {
            // An early return (a signal, a changed word) just goes round again.
            let _ = futex::wait(self.word.word(), futex::Flags::PRIVATE, word, None);
        }
    }

    /// Gives back what [`Lock::lock_raw`] took. In the child of a fork nobody sleeps on the word. `true`: wake-ups are owed
    /// ([`toe_ring::pending_wakes`]) where there is a list of them.
    pub fn unlock_raw(&self) -> bool {
        let back = self.word.give_back();
        if back.is_waited_for {
            let _ = futex::wake(self.word.word(), futex::Flags::PRIVATE, 1);
        }
        back.owes
    }

    pub fn word(&self) -> &LockWord {
        &self.word
    }

    /// The value of a lock that the calling thread holds without a guard.
    ///
    /// # Safety
    /// The calling thread has called [`Lock::lock_raw`] and not yet [`Lock::unlock_raw`], and no guard exists.
    pub unsafe fn peek_held(&self) -> &T {
        // SAFETY: needed because the value is in an `UnsafeCell`. The caller promises that the lock is held and that
        // nobody has a guard, so nobody changes the value.
        unsafe { &*self.value.get() }
    }

    /// In the child of a fork, for a lock that was not taken before it: the value, unless a thread that did not come along may have left it
    /// half changed.
    ///
    /// # Safety
    /// No other thread can reach the lock while the value is looked at, and the calling one takes it only after that.
    pub unsafe fn peek_in_child(&self) -> Option<&T> {
        // SAFETY: needed because the value is in an `UnsafeCell`. Nobody has a guard, as the lock is free, and nobody gets one, as the caller
        // promises.
        self.word.is_free().then(|| unsafe { &*self.value.get() })
    }

    /// In the child of a fork, for a lock that was not taken before it: gives the lock a new value without looking at
    /// the old one where a thread that did not come along may have left it half changed. The old value is leaked. What is `as_new` is
    /// left as it is: the child would get a copy of the page.
    ///
    /// # Safety
    /// No other thread can reach the lock, and the calling one has no guard of it.
    pub unsafe fn renew_after_fork(&self, as_new: impl FnOnce(&T) -> bool, new: impl FnOnce() -> T) {
        // SAFETY: as the caller promises.
        if unsafe { self.peek_in_child() }.is_some_and(as_new) {
            return;
        }
        // SAFETY: needed because the old value must neither be read nor dropped. Nobody else looks at it, as the caller promises.
        unsafe { self.value.get().write(new()) };
        self.free_after_fork();
    }

    /// In the child of a fork, for a lock whose value is whole at any moment: nobody holds it here.
    pub fn free_after_fork(&self) {
        self.word.renew();
    }
}

/// Access to the value while the lock is held.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: needed because the value is in an `UnsafeCell`. A guard exists only while the lock is held, by this
        // guard alone, so no other reference to the value exists but those borrowed from this guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; the guard itself is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.unlock_raw();
    }
}

/// Access to the value of a lock whose holder may owe wake-ups: they are made after it was given back.
#[derive(Debug)]
pub struct OwingGuard<'a, T, S: Sleeper + 'static> {
    guard: ManuallyDrop<Guard<'a, T>>,
    pending: &'a PendingWakes<S>,
}

impl<'a, T> Guard<'a, T> {
    pub fn owing<S: Sleeper>(self, pending: &'a PendingWakes<S>) -> OwingGuard<'a, T, S> {
        OwingGuard { guard: ManuallyDrop::new(self), pending }
    }
}

impl<T, S: Sleeper> Deref for OwingGuard<'_, T, S> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, S: Sleeper> DerefMut for OwingGuard<'_, T, S> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T, S: Sleeper> Drop for OwingGuard<'_, T, S> {
    fn drop(&mut self) {
        // The guard within is never dropped: this is what it would do.
        if self.guard.lock.unlock_raw() {
            self.pending.pay();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn a_held_lock_is_not_given_twice() {
        let lock = Lock::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
