//! The process's sessions with engines: one [`Stack`] for each engine, made at first use, replaced when its engine has
//! ended.
//!
//! A stack is never freed: sockets and parked threads refer to it, and it is one a lifetime of the engine.

use crate::lock::Lock;
use crate::own_fds::LeftFile;
use crate::queue::QueueSet;
use crate::session::Session;
use rustix::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use toe_base::limits::QUEUE_SETS_MAX;

pub use crate::session::EngineIdx;
pub use toe_abi::policy::ENGINES_MAX;

/// The stacks of this process, and how it last fared at engines of which it has none.
pub(crate) static STACKS: Stacks = Stacks {
    current: [const { AtomicPtr::new(std::ptr::null_mut()) }; ENGINES_MAX],
    failed: [const { AtomicU64::new(0) }; ENGINES_MAX],
    left: Lock::new(Vec::new()),
    at_fork: Lock::new([None; ENGINES_MAX]),
};

/// By engine. In one place, as a fork writes it: of each page that a child writes to it gets a copy.
#[derive(Debug)]
pub(crate) struct Stacks {
    /// The live stacks, or null.
    pub(crate) current: [AtomicPtr<Stack>; ENGINES_MAX],
    /// When the last attempt to attach failed, by [`crate::sys::coarse_ms`], and with which errno in the lowest 16 bits; 0: never.
    pub(crate) failed: [AtomicU64; ENGINES_MAX],
    /// Held while attaching. What the child of a fork has of its parent's files until it attaches.
    pub(crate) left: Lock<Vec<LeftFile>>,
    /// The live stacks when a fork was prepared: they are unlocked after it, and a child abandons them.
    at_fork: Lock<[Option<&'static Stack>; ENGINES_MAX]>,
}

/// A session and its queue sets.
#[derive(Debug)]
pub struct Stack {
    pub session: Session,
    pub(crate) queue_sets: [AtomicPtr<QueueSet>; QUEUE_SETS_MAX],
    /// Held while a queue set is opened: how many there are.
    pub(crate) opening: Lock<u8>,
}

impl Stack {
    /// The session, if there is a live one.
    pub fn attached(engine: EngineIdx) -> Option<&'static Stack> {
        let stack = STACKS.current[engine.index()].load(Ordering::Acquire);
        if stack.is_null() {
            return None;
        }
        // SAFETY: needed because the current stack is in an atomic. It holds null or what `adopt` leaked.
        let stack = unsafe { &*stack };
        stack.session.alive().then_some(stack)
    }

    /// All live sessions.
    pub fn all_attached() -> impl Iterator<Item = &'static Stack> {
        EngineIdx::possible().filter_map(Stack::attached)
    }

    /// The same, by its session. `None`: it has ended, or is the parent's.
    pub fn of(session: &Session) -> Option<&'static Stack> {
        Stack::attached(session.engine).filter(|stack| std::ptr::eq(&raw const stack.session, session))
    }

    /// One without queue sets.
    pub fn new(session: Session) -> Stack {
        Stack { session, queue_sets: Default::default(), opening: Lock::new(0) }
    }

    /// Whether `fd` is one that the library keeps for itself; what the program does to it must not reach the kernel.
    #[inline]
    pub fn is_internal_fd(fd: RawFd) -> bool {
        crate::fd_words::is_internal(fd)
    }

    /// While it is held no queue set is opened, for [`crate::fork`].
    pub fn opening_lock(&self) -> &Lock<u8> {
        &self.opening
    }
}

/// The attach lock, for [`crate::fork`].
pub fn attach_lock() -> &'static Lock<Vec<LeftFile>> {
    &STACKS.left
}

/// Before a fork: the stacks that are live now are those of [`at_fork`].
pub(crate) fn note_at_fork() {
    let mut current = [None; ENGINES_MAX];
    Stack::all_attached().for_each(|stack| current[stack.session.engine.index()] = Some(stack));
    *STACKS.at_fork.lock() = current;
}

/// The stacks that were live when a fork was prepared.
pub(crate) fn at_fork() -> impl DoubleEndedIterator<Item = &'static Stack> {
    let stacks = *STACKS.at_fork.lock();
    stacks.into_iter().flatten()
}
