//! What becomes of lanes when the process makes another one. Called by [`crate::fork`].

use super::{Datagram, POOL};
use crate::fd_table;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

/// Calls `each` with every datagram socket of the program, once for each descriptor.
fn for_each(mut each: impl FnMut(&'static Datagram)) {
    fd_table::for_each(0, RawFd::MAX, |fd| {
        if let Some(datagram) = fd_table::datagram(fd) {
            each(datagram);
        }
    });
}

/// A child is about to be made that may get copies of all sockets: what they receive is from here on for whoever asks the kernel.
pub(crate) fn before_child() {
    for_each(|datagram| {
        datagram.share();
        datagram.leave_to_kernel();
    });
}

/// Before a fork, and after [`before_child`].
#[cold]
pub(crate) fn before_fork() {
    let mut pool = POOL.lock();
    for_each(|datagram| {
        if !datagram.at_fork.swap(true, Ordering::AcqRel) {
            pool.at_fork.push(datagram);
            datagram.incoming.lock_raw();
            datagram.outgoing.lock_raw();
            datagram.by_engine.lock_raw();
        }
    });
    // Given back by `after_fork`.
    std::mem::forget(pool);
}

/// After it, in parent and child.
#[cold]
pub(crate) fn after_fork() {
    // SAFETY: needed because the lock has been held since `before_fork`, by this thread, whose guard is forgotten.
    let pool = unsafe { POOL.peek_held() };
    for datagram in &pool.at_fork {
        datagram.by_engine.unlock_raw();
        datagram.outgoing.unlock_raw();
        datagram.incoming.unlock_raw();
        datagram.at_fork.store(false, Ordering::Release);
    }
    POOL.unlock_raw();
    POOL.lock().at_fork.clear();
}

/// In the child: what is left in lanes is the parent's to read.
#[cold]
pub(crate) fn after_fork_in_child() {
    for_each(|datagram| {
        let mut incoming = datagram.incoming.lock();
        incoming.drop_all();
        datagram.note_lanes(&incoming);
        datagram.by_engine.lock().leave_to_parent();
    });
}
