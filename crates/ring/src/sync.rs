//! The one place where the atomics of the ring protocol come from, so that a model checker can take their place.
//!
//! Ring ends and the sleep handshakes reach memory only through [`Words`] and order it only with [`fence`]. In a
//! running system `Words` is a [`crate::Region`]; under `cfg(loom)` it is a table of loom's atomics, and the tests
//! in `tests/loom.rs` go through every interleaving and every value that the memory model allows.

pub use core::sync::atomic::Ordering;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, fence};

/// Memory of aligned words that another process reads and writes at the same time.
///
/// Offsets are checked when a ring end is built ([`Words::spans`]). An access that is out of range or misaligned all
/// the same reads as zero and stores nothing: no caller can be made to touch other memory or to panic.
pub trait Words {
    /// Whether `len` bytes from `offset` are there, and `offset` is a multiple of 8.
    fn spans(&self, offset: u64, len: u64) -> bool;
    fn load_u64(&self, offset: u64, order: Ordering) -> u64;
    fn store_u64(&self, offset: u64, value: u64, order: Ordering);
    fn load_u32(&self, offset: u64, order: Ordering) -> u32;
    fn store_u32(&self, offset: u64, value: u32, order: Ordering);
    /// Stores `new` if the word is `old`; whether it was.
    fn replace_u64(&self, offset: u64, old: u64, new: u64, order: Ordering) -> bool;
    fn swap_u32(&self, offset: u64, value: u32, order: Ordering) -> u32;
    /// [`Words::replace_u64`] for half a word.
    fn replace_u32(&self, offset: u64, old: u32, new: u32, order: Ordering) -> bool;
    /// Sets bits; returns the value before.
    fn fetch_or_u64(&self, offset: u64, bits: u64, order: Ordering) -> u64;
}

impl<M: Words> Words for std::sync::Arc<M> {
    fn spans(&self, offset: u64, len: u64) -> bool {
        (**self).spans(offset, len)
    }

    fn load_u64(&self, offset: u64, order: Ordering) -> u64 {
        (**self).load_u64(offset, order)
    }

    fn store_u64(&self, offset: u64, value: u64, order: Ordering) {
        (**self).store_u64(offset, value, order);
    }

    fn load_u32(&self, offset: u64, order: Ordering) -> u32 {
        (**self).load_u32(offset, order)
    }

    fn store_u32(&self, offset: u64, value: u32, order: Ordering) {
        (**self).store_u32(offset, value, order);
    }

    fn replace_u64(&self, offset: u64, old: u64, new: u64, order: Ordering) -> bool {
        (**self).replace_u64(offset, old, new, order)
    }

    fn swap_u32(&self, offset: u64, value: u32, order: Ordering) -> u32 {
        (**self).swap_u32(offset, value, order)
    }

    fn replace_u32(&self, offset: u64, old: u32, new: u32, order: Ordering) -> bool {
        (**self).replace_u32(offset, old, new, order)
    }

    fn fetch_or_u64(&self, offset: u64, bits: u64, order: Ordering) -> u64 {
        (**self).fetch_or_u64(offset, bits, order)
    }
}
