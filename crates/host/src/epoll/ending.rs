//! How an epoll set ends: with the last descriptor of the program's, or, as in Linux, with the last thread that waits in it by
//! then. Called by the descriptor table, and by whoever waits.

use crate::epoll::{EXCLUSIVE, EpollSet, Inner, Interest, REGISTRY};
use crate::slots::SlotId;
use crate::socket::Watcher;
use crate::{fd_table, sys};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

/// A thread in a call that may sleep on the set.
pub(super) struct Sleeper(&'static EpollSet);

impl Drop for Sleeper {
    fn drop(&mut self) {
        // In one order with what `drop_reference` does: either it sees this thread no more, or this sees what it has left.
        if self.0.sleepers.fetch_sub(1, Ordering::SeqCst) == 1
            && self.0.references.load(Ordering::SeqCst) == 0
        {
            self.0.end_if_due();
        }
    }
}

impl EpollSet {
    /// The set stays as long as this lives.
    pub(super) fn sleep_on(&'static self) -> Sleeper {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        Sleeper(self)
    }

    /// The program lets go of `fd`; with the last one the set ends, unless a thread sleeps on it: then when that is over. For it
    /// a copy of `fd` is kept; without room for one it ends now.
    pub(crate) fn drop_reference(&'static self, fd: RawFd) {
        if self.references.fetch_sub(1, Ordering::SeqCst) != 1 {
            let other = crate::epoll::ending::descriptor_of(self, fd).unwrap_or(-1);
            let _ = self.epfd.compare_exchange(fd, other, Ordering::AcqRel, Ordering::Relaxed);
            return;
        }
        let held = if self.sleepers.load(Ordering::SeqCst) == 0 {
            None
        } else {
            sys::dup_to_high(sys::borrow(fd)).ok()
        };
        let Some(held) = held else { return self.end() };
        crate::fd_words::mark_internal(held.raw());
        self.epfd.store(held.raw(), Ordering::Release);
        self.inner.lock().ending = Some(held);
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            // They have left meanwhile, and may have seen nothing yet.
            self.end_if_due();
        }
    }

    /// The program has no descriptor of it any more and nobody sleeps on it. Once.
    pub(super) fn end_if_due(&'static self) {
        let held = self.inner.lock().ending.take();
        if let Some(held) = held {
            crate::fd_words::forget_internal(held.raw());
            drop(held);
            self.end();
        }
    }

    fn end(&'static self) {
        let interests: Vec<(SlotId, Interest)> =
            self.inner.lock().interests.iter().map(|(slot_id, interest)| (slot_id, *interest)).collect();
        for (slot_id, interest) in interests {
            interest.socket.remove_watcher(self, slot_id);
        }
        self.part_from_sets();
        {
            let mut inner = self.inner.lock();
            // The slots stay, and what they were used for is told apart from what they will be.
            let mut interests = std::mem::take(&mut inner.interests);
            interests.clear();
            *inner = Inner { interests, ..Inner::default() };
        }
        self.has_datagrams.store(false, Ordering::SeqCst);
        self.is_seen_elsewhere.store(false, Ordering::SeqCst);
        self.fires_once.store(false, Ordering::Relaxed);
        self.sockets.store(0, Ordering::SeqCst);
        self.kernel_fds.store(false, Ordering::SeqCst);
        self.idle_listeners.store(false, Ordering::Relaxed);
        self.moved.store(false, Ordering::Relaxed);
        self.owner_queues
            .iter()
            .for_each(|owner_queue| owner_queue.store(std::ptr::null_mut(), Ordering::Relaxed));
        REGISTRY.lock().free.push(self);
    }

    /// The set is gone: it has no others, and no other has it any more.
    pub(super) fn part_from_sets(&self) {
        let (nested, outer) = {
            let mut inner = self.inner.lock();
            self.has_nested.store(false, Ordering::SeqCst);
            (std::mem::take(&mut inner.nested), std::mem::take(&mut inner.outer))
        };
        nested.iter().for_each(|nested| nested.set.forget_outer(nested.fd, self));
        for (fd, set) in outer {
            let mut inner = set.inner.lock();
            inner.nested.retain(|nested| !nested.is(fd, self));
            set.has_nested.store(!inner.nested.is_empty(), Ordering::SeqCst);
        }
    }
}

/// A descriptor of the set, other than `not`.
pub(super) fn descriptor_of(set: &EpollSet, not: RawFd) -> Option<RawFd> {
    let mut found = None;
    fd_table::for_each(0, RawFd::MAX, |fd| {
        if fd != not && fd_table::epoll_set(fd).is_some_and(|other| std::ptr::eq(other, set)) {
            found = Some(fd);
        }
    });
    found
}

/// In the child of a fork: the sets are copies of the parent's; nobody waits; a socket in whose list a
/// thread was at work has forgotten them.
#[cold]
pub fn after_fork_in_child() {
    let sets: Vec<&'static EpollSet> = REGISTRY.lock().all.clone();
    for set in &sets {
        let mut inner = set.inner.lock();
        inner.waiters.clear();
        set.kernel_waiters.store(0, Ordering::Relaxed);
        set.sleepers.store(0, Ordering::Relaxed);
        set.idle_listeners.store(true, Ordering::Relaxed);
        set.moved.store(true, Ordering::Relaxed);
        set.owner_queues
            .iter()
            .for_each(|owner_queue| owner_queue.store(std::ptr::null_mut(), Ordering::Relaxed));
        for (slot_id, interest) in inner.interests.iter() {
            if interest.socket.is_watched_by(set, slot_id) {
                continue;
            }
            let exclusive = interest.events & EXCLUSIVE != 0;
            interest.socket.add_watcher(Watcher { set, slot_id, exclusive });
        }
    }
    // Those who waited in them are not here.
    sets.into_iter().for_each(EpollSet::end_if_due);
}
