//! What one thread is to those that ask it to end.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// A thread that has been in a call that may wait. Never freed; one that ends leaves it to the next.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// Its `pthread_t`; 0: none's.
    pub(super) thread: AtomicUsize,
    pub(super) number: AtomicI32,
    pub(super) sleeping: AtomicBool,
    pub(super) asked: AtomicBool,
    /// It knows that it was asked, and may not follow now.
    pub(super) seen: AtomicBool,
}

/// What a thread is here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Registered {
    Not,
    As(&'static Sleeper),
    /// It ends.
    Gone,
}

impl Registered {
    /// The thread ends.
    pub(crate) fn give_back(self) {
        if let Registered::As(sleeper) = self {
            sleeper.thread.store(0, Ordering::Release);
        }
    }
}
