//! The signals that one thread keeps while it is inside the library. [`crate::signals`] says when.

use crate::sys::{self, SignalInfo};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

/// Signals are numbered from 1 to this.
const SIGNALS: usize = 64;
/// The first of the real-time signals: each of them counts, also when one of its number waits already (signal(7)).
pub(super) const REAL_TIME: usize = 32;
/// Of [`DeferredSignals::interrupted`]: a signal has come.
pub(super) const CAME: u32 = 1;
/// One has come whose handler has no SA_RESTART.
pub(super) const ENDS: u32 = 2;

/// As [`DeferredSignals::interrupted`] has it.
pub(super) fn came(restarts: bool) -> u32 {
    if restarts { CAME } else { CAME | ENDS }
}

/// A signal that has come, as a handler learns of it.
#[derive(Debug)]
pub struct Came<'a> {
    pub signal: usize,
    pub info: &'a SignalInfo,
    /// The program's handler has SA_RESTART.
    pub restarts: bool,
    /// The signals that are blocked when the handler is over (of its third argument). A real-time signal that is kept is added:
    /// those of its number that follow wait in the kernel, in their order and as many as there are.
    pub mask: &'a mut u64,
}

/// The descriptions that one thread keeps. They lie in memory of their own: a thread's static memory is taken from its stack,
/// which may be the smallest that there is (PTHREAD_STACK_MIN).
///
/// One for each number: of the others that come meanwhile only the real-time signals count, and those the kernel keeps
/// ([`Came::mask`]). An entry is written by the handler while its bit is clear, and read after the bit was set.
type Infos = [SignalInfo; SIGNALS];

/// What one thread keeps.
#[derive(Debug)]
pub(crate) struct DeferredSignals {
    /// How deep the thread is inside the library.
    pub(super) depth: Cell<u32>,
    /// A bit for each signal that is kept.
    pub(super) pending: AtomicU64,
    /// One of them is for a handler without SA_RESTART.
    pub(super) ends: AtomicBool,
    /// A bit for each signal that is blocked as long as one of its number is kept, and is not by the program.
    pub(super) blocked: AtomicU64,
    /// Null until something is kept.
    pub(super) infos: AtomicPtr<Infos>,
    /// The thread is in [`super::asleep`], and in no handler there.
    pub(super) sleeping: Cell<bool>,
    /// Not zero: a signal has come since the thread went to sleep, or had come before ([`CAME`], [`ENDS`]).
    pub(super) interrupted: AtomicU32,
    /// The same of the thread's last sleep, when that was over.
    pub(super) ended_by: Cell<u32>,
    /// What came during a sleep with a mask of its own (ppoll(2)) must be let in by that mask.
    pub(super) mask: Cell<Option<u64>>,
}

impl DeferredSignals {
    pub(crate) const fn new() -> DeferredSignals {
        DeferredSignals {
            depth: Cell::new(0),
            pending: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            blocked: AtomicU64::new(0),
            infos: AtomicPtr::new(std::ptr::null_mut()),
            sleeping: Cell::new(false),
            interrupted: AtomicU32::new(0),
            ended_by: Cell::new(0),
            mask: Cell::new(None),
        }
    }

    /// What is kept, as [`DeferredSignals::interrupted`] has it.
    pub(super) fn deferred_ends(&self) -> u32 {
        match self.pending.load(Ordering::Relaxed) {
            0 => 0,
            _ if self.ends.load(Ordering::Relaxed) => CAME | ENDS,
            _ => CAME,
        }
    }

    /// Where descriptions go; null: there is no memory. It is mapped by a system call, as this is a handler, which may have interrupted an
    /// allocation.
    fn make_room(&self) -> *mut Infos {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let infos = self.infos.load(Ordering::Relaxed);
        if !infos.is_null() {
            return infos;
        }
        let (len, access) = (size_of::<Infos>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: needed for memory without an allocation. A new private mapping at an address of the kernel's choice; zeros are
        // a valid value of `Infos`.
        let made = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let Ok(made) = made.map(|made| made.cast::<Infos>()) else { return std::ptr::null_mut() };
        match self.infos.compare_exchange(infos, made, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => made,
            // Another handler has interrupted this one and was first.
            Err(theirs) => {
                unmap(made);
                theirs
            }
        }
    }

    /// See [`super::held_back`].
    pub(super) fn keep(&self, came_now: Came<'_>) -> bool {
        let Came { signal, info, restarts, mask } = came_now;
        if !(1..=SIGNALS).contains(&signal) {
            return false;
        }
        // Where it could not be sent again it is not kept.
        let is_inside = self.depth.get() > 0 || self.sleeping.get();
        if !is_inside || crate::sys::is_filtered() {
            return false;
        }
        let infos = self.make_room();
        if infos.is_null() {
            return false;
        }
        let bit = 1 << (signal - 1);
        if signal >= REAL_TIME && *mask & bit == 0 {
            self.blocked.fetch_or(bit, Ordering::Relaxed);
        }
        // Also what another handler has blocked that has interrupted this one.
        *mask |= self.blocked.load(Ordering::Relaxed);
        if self.pending.load(Ordering::Relaxed) & bit == 0 {
            // SAFETY: needed because a handler writes what its own thread reads later. The entry belongs to this thread;
            // while the bit is clear nothing else refers to it, and a second handler for the same signal cannot run in
            // between but as a whole, with the same right.
            unsafe { (*infos)[signal - 1] = *info };
            compiler_fence(Ordering::SeqCst);
            self.pending.fetch_or(bit, Ordering::Relaxed);
        } else if signal >= REAL_TIME {
            // With SA_NODEFER: the kernel keeps it from here on.
            sys::queue_signal(signal, info);
        }
        if !restarts {
            self.ends.store(true, Ordering::Relaxed);
        }
        if self.sleeping.get() {
            self.interrupted.fetch_or(came(restarts), Ordering::Relaxed);
        }
        true
    }

    /// Sends the thread all that is kept, of which there is some; its signals are blocked from then on. Which were before.
    pub(super) fn send_all(&self) -> u64 {
        let infos = self.infos.load(Ordering::Relaxed);
        // All of it is the kernel's again before the first handler runs, which may jump away, or fork.
        let before = sys::block_signals();
        loop {
            let pending = self.pending.load(Ordering::Relaxed);
            if pending == 0 {
                return before;
            }
            let at = pending.trailing_zeros() as usize;
            // SAFETY: as in `keep`; the bit is set, so the entry is written.
            sys::queue_signal(at + 1, unsafe { &(*infos)[at] });
            self.pending.fetch_and(!(1 << at), Ordering::Relaxed);
        }
    }

    /// The thread ends, and keeps nothing.
    pub(crate) fn give_back(&self) {
        unmap(self.infos.swap(std::ptr::null_mut(), Ordering::Relaxed));
    }
}

/// Of this thread's [`DeferredSignals::make_room`].
fn unmap(infos: *mut Infos) {
    if !infos.is_null() {
        // SAFETY: needed to give the memory back. It is what was mapped, and only this thread knew of it.
        let _ = unsafe { rustix::mm::munmap(infos.cast(), size_of::<Infos>()) };
    }
}
