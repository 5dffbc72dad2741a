//! How many datagrams go by until the engine is asked for a lane.

use std::sync::atomic::{AtomicU32, Ordering};

/// Datagrams after which the engine is asked for the first time…
const ASK_FIRST: u32 = 32;
/// …and, as the answer is no each time, at most.
const ASK_LAST: u32 = 1 << 16;

/// How many datagrams went by the kernel one way, and when the engine is asked for a lane.
#[derive(Debug)]
pub(super) struct Count {
    seen: AtomicU32,
    ask_at: AtomicU32,
    interval: AtomicU32,
}

impl Count {
    pub(super) const fn new() -> Count {
        Count {
            seen: AtomicU32::new(0),
            ask_at: AtomicU32::new(ASK_FIRST),
            interval: AtomicU32::new(ASK_FIRST),
        }
    }

    pub(super) fn reset(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.asked(true);
    }

    /// Counts some more; whether the engine is to be asked. Of threads that count at the same time one may not: it is a hint.
    #[inline]
    pub(super) fn more(&self, datagrams: u32) -> bool {
        let seen = self.seen.load(Ordering::Relaxed).wrapping_add(datagrams);
        self.seen.store(seen, Ordering::Relaxed);
        seen >= self.ask_at.load(Ordering::Relaxed)
    }

    pub(super) fn asked(&self, is_fruitful: bool) {
        let before = self.interval.load(Ordering::Relaxed);
        let interval = if is_fruitful { ASK_FIRST } else { (before * 2).min(ASK_LAST) };
        self.interval.store(interval, Ordering::Relaxed);
        self.seen.store(0, Ordering::Relaxed);
        self.ask_at.store(interval, Ordering::Relaxed);
    }
}
