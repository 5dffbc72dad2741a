//! The word of a lock within one process, and whom its holder is to wake once it is free.
//!
//! Who is woken for what the holder of a lock has found wants that lock first. Woken while it is held he runs into it and sleeps
//! again, and on the holder's own core he takes the processor from the holder. So he is owed the wake-up until then.
//!
//! | who has found something | who gives the lock back |
//! |---|---|
//! | 1. puts the sleeper into the list | 1. takes all bits of the word |
//! | 2. sets [`PENDING`] in the word while that says "held"; says it "free": wakes all in the list | 2. `PENDING` was among them: wakes all in the list |
//!
//! Whoever does it need not be the holder: the word alone decides which of the two wakes, and its changes have one order.
//!
//! Used by the host library (`lock`, `queue`, `wait`).

use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Somebody may sleep on the word.
const WAITED_FOR: u32 = 2;
/// Somebody is in the list.
const PENDING: u32 = 4;

#[derive(Debug)]
pub struct LockWord(AtomicU32);

/// What is to be done once a lock was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "somebody may sleep for ever"]
pub struct GivenBack {
    /// Wake one who sleeps on the word.
    pub is_waited_for: bool,
    /// Wake all in the list.
    pub owes: bool,
}

impl Default for LockWord {
    fn default() -> LockWord {
        LockWord::new()
    }
}

impl LockWord {
    #[cfg(not(loom))]
    pub const fn new() -> LockWord {
        LockWord(AtomicU32::new(FREE))
    }

    #[cfg(loom)]
    pub fn new() -> LockWord {
        LockWord(AtomicU32::new(FREE))
    }

    pub fn try_take(&self) -> bool {
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// `None`: taken. Else what the word says now, to sleep on as long as it does, and then to try again.
    pub fn take_or_wait(&self) -> Option<u32> {
        // Once it is waited for it stays so until it is given back: others may sleep, too.
        let before = self.0.fetch_or(HELD | WAITED_FOR, Ordering::Acquire);
        (before & HELD != 0).then_some(before | WAITED_FOR)
    }

    pub fn give_back(&self) -> GivenBack {
        let was = self.0.swap(FREE, Ordering::AcqRel);
        GivenBack { is_waited_for: was & WAITED_FOR != 0, owes: was & PENDING != 0 }
    }

    /// Step 2 of who has found something; `true`: the holder wakes.
    pub(crate) fn owe(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        while word & HELD != 0 {
            match self.0.compare_exchange_weak(word, word | PENDING, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    pub fn is_free(&self) -> bool {
        self.0.load(Ordering::Acquire) == FREE
    }

    /// In the child of a fork, where nobody holds it. What is free is not written to, as the child would get a copy of the page.
    pub fn renew(&self) {
        if !self.is_free() {
            self.0.store(FREE, Ordering::Release);
        }
    }

    /// To sleep on.
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }
}

/// Who can be woken, and is never freed.
pub trait Sleeper: Sized + 'static {
    fn link(&self) -> &Link<Self>;
    fn wake(&self);
}

/// A sleeper's place in a list. It is in one at most: who takes it out wakes it after that.
#[derive(Debug)]
pub struct Link<S> {
    is_pending: AtomicBool,
    next: AtomicPtr<S>,
}

impl<S> Default for Link<S> {
    fn default() -> Link<S> {
        Link { is_pending: AtomicBool::new(false), next: AtomicPtr::new(core::ptr::null_mut()) }
    }
}

/// Who is to be woken once a lock is free.
#[derive(Debug)]
pub struct PendingWakes<S>(AtomicPtr<S>);

impl<S> Default for PendingWakes<S> {
    fn default() -> PendingWakes<S> {
        PendingWakes(AtomicPtr::new(core::ptr::null_mut()))
    }
}

impl<S: Sleeper> PendingWakes<S> {
    /// `sleeper` is woken as soon as nobody has the lock of this word.
    pub fn add(&self, sleeper: &'static S, lock: &LockWord) {
        self.put_in(sleeper);
        if !lock.owe() {
            self.pay();
        }
    }

    pub(crate) fn put_in(&self, sleeper: &'static S) {
        if sleeper.link().is_pending.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = core::ptr::from_ref(sleeper).cast_mut();
        let mut first = self.0.load(Ordering::Relaxed);
        loop {
            sleeper.link().next.store(first, Ordering::Relaxed);
            match self.0.compare_exchange_weak(first, me, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Wakes all.
    #[cold]
    pub fn pay(&self) {
        let mut at = sleeper(self.0.swap(core::ptr::null_mut(), Ordering::Acquire));
        while let Some(next) = at {
            at = sleeper(next.link().next.load(Ordering::Relaxed));
            // Before it is woken: it may be owed the next one from then on.
            next.link().is_pending.swap(false, Ordering::AcqRel);
            next.wake();
        }
    }

    /// In the child of a fork: they are the parent's.
    pub fn forget(&self) {
        self.0.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

fn sleeper<S>(at: *mut S) -> Option<&'static S> {
    // SAFETY: needed because the list is of atomics. They hold null or what `put_in` got, a `&'static S`.
    (!at.is_null()).then(|| unsafe { &*at })
}
