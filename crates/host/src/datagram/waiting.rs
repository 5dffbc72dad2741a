//! Who waits for a UDP socket: lanes are diverted to the kernel's queue meanwhile.

use crate::datagram::{Datagram, FRUITLESS_MAX, LOOK_EVERY, Waits};
use std::sync::atomic::Ordering;

impl Datagram {
    /// The thread is about to wait for the socket in a call of the kernel's; then [`Datagram::end_wait`]. `None`: something is in
    /// a lane.
    pub fn begin_wait(&self) -> Option<u32> {
        if let Some(generation) = self.begin_wait_without_lanes() {
            return Some(generation);
        }
        let mut incoming = self.incoming.lock();
        let alone = self.waiting.load(Ordering::SeqCst) == 0;
        let asleep = incoming.divert(alone, self.by_kernel.load(Ordering::Relaxed));
        if asleep && let Some(fruits) = incoming.take_fruits() {
            let before = self.look_after.load(Ordering::Relaxed);
            let fruitless = if fruits > 0 { 0 } else { self.fruitless.load(Ordering::Relaxed) + 1 };
            self.fruitless.store(fruitless.min(FRUITLESS_MAX), Ordering::Relaxed);
            // A sender that has no processor at the moment is no reason to go all the way by the kernel.
            let stays = fruitless == 0 || before == 0 && fruitless < FRUITLESS_MAX;
            let after = if stays { 0 } else { (before * 2).clamp(1, LOOK_EVERY) };
            self.look_after.store(after, Ordering::Relaxed);
        }
        asleep.then(|| {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.generation.load(Ordering::Relaxed)
        })
    }

    /// The same of a socket without lanes; `None`: it has some. No lock is taken.
    pub fn begin_wait_without_lanes(&self) -> Option<u32> {
        let generation = self.generation.load(Ordering::Relaxed);
        if self.receives.load(Ordering::Relaxed) {
            return None;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Whoever adds a lane from here on sees that it must not be opened.
        if !self.receives.load(Ordering::SeqCst) {
            return Some(generation);
        }
        self.end_wait(generation);
        None
    }

    /// The thread does not wait any more. Not of the socket that has this one's place by now, if it was closed.
    pub fn end_wait(&self, generation: u32) {
        if self.generation.load(Ordering::Relaxed) == generation {
            let one_less = |waiting: u32| waiting.checked_sub(1);
            let _ = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        }
    }

    /// As [`Datagram::begin_wait`], for a wait that tells news only once.
    pub(crate) fn begin_wait_or_tell(&self) -> Waits {
        match self.begin_wait() {
            Some(generation) => Waits::Asleep(generation),
            None => Waits::Readable(self.incoming.lock().came()),
        }
    }

    /// The same for a call that only looks.
    pub(crate) fn tell(&self) -> Waits {
        if self.has_something() { Waits::Readable(self.incoming.lock().came()) } else { Waits::Nothing }
    }
}
