//! How an epoll set ends: with the last descriptor of the program's, or, as in Linux, with the last thread that waits in it by
//! then. Called by the descriptor table, and by whoever waits.

use super::{EpollSet, Inner, Interest, REGISTRY, moves};
use crate::slots::Place;
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

    /// `epfd` while that is one of its descriptors; another one when a thread has closed it: the copy that is kept for a wait
    /// which outlives the last one, if need be.
    pub(super) fn descriptor(&self, epfd: RawFd) -> RawFd {
        match fd_table::epoll_set(epfd) {
            Some(set) if std::ptr::eq(set, self) => epfd,
            _ => self.epfd.load(Ordering::Acquire),
        }
    }

    pub(crate) fn add_reference(&self) {
        self.references.fetch_add(1, Ordering::SeqCst);
    }

    /// The program lets go of `fd`; with the last one the set ends, unless a thread sleeps on it: then when that is over. For it
    /// a copy of `fd` is kept; without room for one it ends now.
    pub(crate) fn drop_reference(&'static self, fd: RawFd) {
        if self.references.fetch_sub(1, Ordering::SeqCst) != 1 {
            let other = moves::descriptor_of(self, fd).unwrap_or(-1);
            let _ = self.epfd.compare_exchange(fd, other, Ordering::AcqRel, Ordering::Relaxed);
            return;
        }
        let kept = if self.sleepers.load(Ordering::SeqCst) == 0 {
            None
        } else {
            sys::dup_to_high(sys::borrow(fd)).ok()
        };
        let Some(kept) = kept else { return self.end() };
        crate::fd_words::mark_internal(kept.raw());
        self.epfd.store(kept.raw(), Ordering::Release);
        self.inner.lock().ending = Some(kept);
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            // They have left meanwhile, and may have seen nothing yet.
            self.end_if_due();
        }
    }

    /// The program has no descriptor of it any more and nobody sleeps on it. Once.
    pub(super) fn end_if_due(&'static self) {
        let kept = self.inner.lock().ending.take();
        if let Some(kept) = kept {
            crate::fd_words::forget_internal(kept.raw());
            drop(kept);
            self.end();
        }
    }

    fn end(&'static self) {
        let interests: Vec<(Place, Interest)> =
            self.inner.lock().interests.iter().map(|(place, interest)| (place, *interest)).collect();
        for (place, interest) in interests {
            interest.socket.remove_watcher(self, place);
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
        self.homes.iter().for_each(|home| home.store(std::ptr::null_mut(), Ordering::Relaxed));
        REGISTRY.lock().free.push(self);
    }
}
