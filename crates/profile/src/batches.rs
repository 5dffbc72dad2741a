//! Datagrams in batches, and a bounded queue of batches from one thread to another, as planes on threads of their own are joined by.
//!
//! The queue is for measuring: both ends look and do not sleep. A full queue holds its filler back, so a plane that is faster than the next
//! waits for it and loses nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Batches that a queue holds.
pub const QUEUE_BATCHES: usize = 8;
/// Looks in vain after which others are let run: where both ends are on one core, for the other end.
const LOOKS: u32 = 1 << 12;

/// Datagrams one behind the other.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Batch {
    /// Datagrams of a full one.
    pub const MOST: usize = 32;

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// In lines of its own (the processor fetches them in pairs): who looks at the one takes the other from nobody.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart<T>(T);

#[derive(Debug, Default)]
struct Slot {
    /// The filler gives the slot away by this, and the taker gives it back.
    is_full: Apart<AtomicBool>,
    /// Never waited for: whose turn it is `is_full` says.
    batch: Apart<Mutex<Batch>>,
}

/// From one thread to one other.
#[derive(Debug, Default)]
pub struct Queue {
    slots: [Slot; QUEUE_BATCHES],
    is_ended: Apart<AtomicBool>,
}

impl Queue {
    /// The `n`th batch, from 0 on, once there is room for it.
    pub fn fill(&self, n: usize, fill: impl FnOnce(&mut Batch)) {
        let slot = &self.slots[n % QUEUE_BATCHES];
        wait_until(|| !slot.is_full.0.load(Ordering::Acquire));
        fill(&mut lock(&slot.batch.0));
        slot.is_full.0.store(true, Ordering::Release);
    }

    /// Nothing comes any more.
    pub fn end(&self) {
        self.is_ended.0.store(true, Ordering::Release);
    }

    /// The `n`th batch, once it is there. Whether it came.
    pub fn take(&self, n: usize, take: impl FnOnce(&Batch)) -> bool {
        let slot = &self.slots[n % QUEUE_BATCHES];
        let is_full = || slot.is_full.0.load(Ordering::Acquire);
        wait_until(|| is_full() || self.is_ended.0.load(Ordering::Acquire));
        if !is_full() {
            return false;
        }
        take(&lock(&slot.batch.0));
        slot.is_full.0.store(false, Ordering::Release);
        true
    }
}

fn lock(batch: &Mutex<Batch>) -> MutexGuard<'_, Batch> {
    batch.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_until(is_so: impl Fn() -> bool) {
    let mut looks = 0;
    while !is_so() {
        looks += 1;
        if looks % LOOKS == 0 {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_keeps_the_borders_of_its_datagrams() {
        let mut batch = Batch::default();
        [&b"one"[..], b"", b"three"].iter().for_each(|text| batch.push(text));
        assert_eq!(batch.iter().collect::<Vec<_>>(), [&b"one"[..], b"", b"three"]);
        batch.clear();
        assert_eq!(batch.iter().count(), 0);
    }

    #[test]
    fn every_batch_comes_once_and_in_order_through_a_queue_that_is_shorter() {
        const COUNT: usize = 40 * QUEUE_BATCHES + 3;
        let queue = Queue::default();
        let mut heard = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..COUNT {
                    queue.fill(n, |batch| {
                        batch.clear();
                        batch.push(&n.to_le_bytes());
                    });
                }
                queue.end();
            });
            let mut n = 0;
            while queue.take(n, |batch| heard.extend(batch.iter().map(<[u8]>::to_vec))) {
                n += 1;
            }
        });
        let sent: Vec<_> = (0..COUNT).map(|n| n.to_le_bytes().to_vec()).collect();
        assert!(heard == sent, "{} of {COUNT} came", heard.len());
    }
}
