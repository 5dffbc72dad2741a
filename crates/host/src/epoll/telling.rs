//! Something has happened to a socket of a set: it goes on the ready list, and who waits is told, here and in the sets that have this one.

use crate::epoll::{ALWAYS, EDGE, EpollSet, Inner, Nested, ONE_SHOT};
use crate::lock::Guard;
use crate::queue::QueueSet;
use crate::slots::SlotId;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

impl EpollSet {
    /// A socket tells of an event. `true`: a parked thread was woken for it.
    pub(crate) fn notify(&self, slot_id: SlotId, key: u32, by: Option<&QueueSet>) -> bool {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(interest) = inner.interests.get_mut(slot_id) else { return false };
        if !interest.armed || key & (interest.events | ALWAYS) == 0 {
            return false;
        }
        interest.happened |= key;
        if !interest.queued {
            interest.queued = true;
            inner.ready.push_back(slot_id);
        }
        self.tell(guard, by)
    }

    /// Puts a registration on the ready list if it is ready now.
    pub(super) fn check(&self, slot_id: SlotId) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if let Some(interest) = inner.interests.get_mut(slot_id)
            && interest.due() != 0
            && !interest.queued
        {
            interest.queued = true;
            inner.ready.push_back(slot_id);
            self.tell(guard, None);
        }
    }

    pub(super) fn nested(&self) -> Vec<Nested> {
        if !self.has_nested.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.inner.lock().nested.clone()
    }

    /// `outer` has this set by `fd` once less.
    pub(super) fn forget_outer(&self, fd: RawFd, outer: &EpollSet) {
        let known = &mut self.inner.lock().outer;
        if let Some(at) = known.iter().position(|(by, set)| *by == fd && std::ptr::eq(*set, outer)) {
            known.remove(at);
        }
    }

    /// Something has happened to one of the sockets. `true`: a parked thread was woken for it.
    pub(super) fn tell(&self, inner: Guard<'_, Inner>, by: Option<&QueueSet>) -> bool {
        let kick = |waiter| QueueSet::kick_by(by, waiter);
        if inner.outer.is_empty() {
            return inner.waiters.tell(kick);
        }
        drop(inner);
        // Who is woken finds it counted.
        self.tell_outer_sets(0);
        self.inner.lock().waiters.tell(kick)
    }

    /// Something has happened here: it is counted in the sets that would tell of it, however far out. No lock of a set is held
    /// while another one's is taken.
    pub(super) fn tell_outer_sets(&self, depth: u32) {
        let mut left = if depth < DEPTH { self.inner.lock().outer.len() } else { 0 };
        // Backwards: when one goes meanwhile, none of the others is passed over.
        while left > 0 {
            left -= 1;
            let outer = self.inner.lock().outer.get(left).copied();
            if let Some((fd, set)) = outer
                && set.count_in(fd, self)
            {
                set.tell_outer_sets(depth + 1);
            }
        }
    }

    /// Something has happened in `nested`. Whether it would be told of.
    pub(super) fn count_in(&self, fd: RawFd, nested: &EpollSet) -> bool {
        let mut inner = self.inner.lock();
        let Some(noted) = inner.nested_mut(fd, nested).filter(|noted| noted.wants()) else { return false };
        noted.come += 1;
        true
    }
}

impl Nested {
    pub(super) fn is(&self, fd: RawFd, set: &EpollSet) -> bool {
        self.fd == fd && std::ptr::eq(self.set, set)
    }

    /// Whether it would be told of something: all that an epoll set can be is readable.
    pub(super) fn wants(&self) -> bool {
        self.armed && self.events & libc::EPOLLIN as u32 != 0
    }

    pub(super) fn has_events(&self) -> bool {
        self.come != self.reported
    }

    /// To be told of once it is ready.
    pub(super) fn is_due(&self) -> bool {
        self.wants() && (self.events & EDGE == 0 || self.has_events())
    }

    pub(super) fn note_reported(&mut self) {
        if self.events & (EDGE | ONE_SHOT) != 0 {
            self.reported = self.come;
        }
    }
}

impl Inner {
    pub(super) fn nested_mut(&mut self, fd: RawFd, set: &EpollSet) -> Option<&mut Nested> {
        self.nested.iter_mut().find(|nested| nested.is(fd, set))
    }
}

/// Linux: EP_MAX_NESTS, and one.
pub(super) const DEPTH: u32 = 5;
