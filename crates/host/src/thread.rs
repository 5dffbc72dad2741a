//! What every call looks at of its own thread, in one place: in a shared library each look-up of a thread-local is a call of
//! the dynamic linker's, so a call makes one of them ([`crate::signals::Inside`]) and keeps what it found.
//!
//! The parts belong to [`crate::signals`], [`crate::cancel`], [`crate::looking`] and [`crate::wait`]. There is nothing to drop, so that it can be reached until
//! the thread's last instruction; what must be given back when it ends, [`Owner`] gives back.

use crate::cancel::kind::SetType;
use crate::cancel::sleeper::Registered;
use crate::looking::Looking;
use crate::signals::deferred::DeferredSignals;
use crate::waiter;
use std::cell::Cell;

#[derive(Debug)]
pub(crate) struct Thread {
    pub signals: DeferredSignals,
    pub cancel: Cell<Registered>,
    pub looking: Cell<Looking>,
    /// For its next wait.
    pub waiter: Cell<Option<&'static waiter::Waiter>>,
    /// How often it has looked for a connection ([`crate::socket::Socket::accept`]).
    pub accepts: Cell<u32>,
    /// It is of PTHREAD_CANCEL_ASYNCHRONOUS: by what that is changed.
    pub asynchronous: Cell<Option<SetType>>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            signals: DeferredSignals::new(),
            cancel: Cell::new(Registered::Not),
            looking: Cell::new(Looking::new()),
            waiter: Cell::new(None),
            accepts: Cell::new(0),
            asynchronous: Cell::new(None),
        }
    };
    static OWNER: Owner = const { Owner };
}

/// Its drop is the thread's end.
#[derive(Debug)]
struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        with(|thread| {
            thread.signals.give_back();
            thread.cancel.replace(Registered::Gone).give_back();
            thread.waiter.take().into_iter().for_each(waiter::give_back);
        });
    }
}

/// Does `f` to what is known of the calling thread.
#[inline]
pub(crate) fn with<R>(f: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(f)
}

/// From now on the thread has something to give back. `false`: it is ending, and gives back nothing any more.
pub(crate) fn must_give_back() -> bool {
    OWNER.try_with(|_| ()).is_ok()
}
