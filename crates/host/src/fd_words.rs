//! A word for each possible descriptor of the process: zero, the mark of one that the library keeps for itself, or what
//! [`crate::fd_table`] puts there. The array lies in zeroed memory of which only the touched pages exist.

use rustix::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Descriptors above this are never the library's to know.
pub(crate) const NUMBERS: usize = 1 << 20;
pub(crate) const INTERNAL: usize = 2;

pub(crate) static TABLE: [AtomicUsize; NUMBERS] = [const { AtomicUsize::new(0) }; NUMBERS];
/// One more than the largest number that was ever a program's descriptor here.
pub(crate) static HIGHEST: AtomicI32 = AtomicI32::new(0);

#[inline]
pub(crate) fn word(fd: RawFd) -> Option<&'static AtomicUsize> {
    usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd))
}

#[inline]
pub(crate) fn load(fd: RawFd) -> usize {
    word(fd).map_or(0, |word| word.load(Ordering::Acquire))
}

/// Whether `fd` is one that the library keeps for itself.
#[inline]
pub fn is_internal(fd: RawFd) -> bool {
    load(fd) == INTERNAL
}

pub(crate) fn put(fd: RawFd, value: usize) {
    if let Some(word) = word(fd) {
        word.store(value, Ordering::Release);
        HIGHEST.fetch_max(fd + 1, Ordering::Relaxed);
    }
}

/// `fd` is the library's own.
pub fn mark_internal(fd: RawFd) {
    if let Some(word) = word(fd) {
        word.store(INTERNAL, Ordering::Release);
    }
}

/// `fd` is no longer the library's own.
pub fn forget_internal(fd: RawFd) {
    if let Some(word) = word(fd) {
        let _ = word.compare_exchange(INTERNAL, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
