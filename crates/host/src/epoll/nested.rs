//! Epoll sets in epoll sets. The kernel knows of the inner set's kernel descriptors by itself; of its sockets on the engine
//! the outer set asks here.
//!
//! Linux allows five levels and no circles, and has refused others before this is asked.

use super::{EpollSet, Inner, REGISTRY};
use crate::fd_table;
use crate::queue::QueueSet;
use crate::wait::Waiter;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

/// Linux: EP_MAX_NESTS, and one.
const DEPTH: u32 = 5;

/// An inner set as its outer one has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested {
    fd: RawFd,
    set: &'static EpollSet,
    events: u32,
    data: u64,
    /// Events of the inner set when it was last reported, for edge-triggered ones; `None`: not yet.
    seen: Option<u32>,
    /// Not disarmed by one-shot.
    armed: bool,
}

impl Nested {
    /// Whether it would be told of something: all that an epoll set can be is readable.
    fn wants(&self) -> bool {
        self.armed && self.events & libc::EPOLLIN as u32 != 0
    }

    /// Edge-triggered, and reported since its last event.
    fn is_told(&self) -> bool {
        self.events & super::EDGE != 0 && self.seen == Some(self.set.events.load(Ordering::Acquire))
    }
}

/// Sets that a thread waits in besides its own: until this is dropped they kick it.
pub(crate) struct Watched {
    waiter: &'static Waiter,
    sets: Vec<&'static EpollSet>,
}

impl Watched {
    pub(crate) fn new(waiter: &'static Waiter) -> Watched {
        Watched { waiter, sets: Vec::new() }
    }

    /// From now on it is these.
    pub(crate) fn follow(&mut self, sets: Vec<&'static EpollSet>) {
        let is_in = |sets: &[&EpollSet], one: &EpollSet| sets.iter().any(|set| std::ptr::eq(*set, one));
        self.sets.iter().filter(|set| !is_in(&sets, set)).for_each(|set| set.remove_waiter(self.waiter));
        sets.iter().filter(|set| !is_in(&self.sets, set)).for_each(|set| set.add_waiter(self.waiter));
        self.sets = sets;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.follow(Vec::new());
    }
}

/// A one-shot registration has been used up by what the engine has; of an epoll set nothing is reported that was not asked for.
fn disarm_in_kernel(epfd: RawFd, nested: &Nested) {
    let event = libc::epoll_event { events: super::ONE_SHOT, u64: nested.data };
    let _ = crate::sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, nested.fd, Some(event));
}

impl EpollSet {
    fn nested(&self) -> Vec<Nested> {
        if !self.has_nested.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.inner.lock().nested.clone()
    }

    /// The kernel has carried out `op` for a descriptor that may be an epoll set's.
    pub(super) fn note_nested(&self, fd: RawFd, op: i32, event: Option<libc::epoll_event>) {
        let Some(set) = fd_table::epoll_set(fd) else { return };
        set.leave_lanes();
        let mut inner = self.inner.lock();
        inner.nested.retain(|nested| nested.fd != fd);
        if let (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) = (op, event) {
            let (events, data) = (event.events, event.u64);
            inner.nested.push(Nested { fd, set, events, data, seen: None, armed: true });
        }
        self.has_nested.store(!inner.nested.is_empty(), Ordering::Release);
        // A thread that waits does not listen to it yet.
        inner.waiters.iter().for_each(|waiter| {
            waiter.kick();
        });
    }

    pub(super) fn nested_have_sockets(&self, depth: u32) -> bool {
        depth < DEPTH && self.nested().iter().any(|nested| nested.set.has_sockets_at(depth + 1))
    }

    pub(super) fn nested_are_ready(&self, depth: u32) -> bool {
        let is_news = |nested: &Nested| nested.wants() && !nested.is_told();
        let nested = self.nested();
        depth < DEPTH && nested.iter().any(|nested| is_news(nested) && nested.set.is_ready_at(depth + 1))
    }

    pub(super) fn each_nested_home(&self, depth: u32, each: &mut dyn FnMut(&'static QueueSet)) {
        if depth < DEPTH {
            for nested in self.nested() {
                nested.set.each_home_at(depth + 1, each);
            }
        }
    }

    /// The sets in it, however deep, each once.
    pub(crate) fn all_nested(&self) -> Vec<&'static EpollSet> {
        let mut all = Vec::new();
        self.add_nested(&mut all, 0);
        all
    }

    fn add_nested(&self, all: &mut Vec<&'static EpollSet>, depth: u32) {
        for nested in self.nested().iter().filter(|_| depth < DEPTH) {
            if !all.iter().any(|known| std::ptr::eq(*known, nested.set)) {
                all.push(nested.set);
            }
            nested.set.add_nested(all, depth + 1);
        }
    }

    /// Reports the inner sets that have something, into `out`; those in `told` the kernel has reported. Returns how many.
    pub(super) fn harvest_nested(
        &self,
        epfd: RawFd,
        told: &[libc::epoll_event],
        out: &mut [libc::epoll_event],
    ) -> usize {
        let mut taken = 0;
        for nested in self.nested() {
            let now = nested.set.events.load(Ordering::Acquire);
            let by_kernel = told.iter().any(|event| { event.u64 } == nested.data);
            if !nested.wants() || nested.is_told() {
                continue;
            }
            if !by_kernel {
                if taken == out.len() || !nested.set.is_ready_at(1) {
                    continue;
                }
                out[taken] = libc::epoll_event { events: libc::EPOLLIN as u32, u64: nested.data };
                taken += 1;
                if nested.events & super::ONE_SHOT != 0 {
                    disarm_in_kernel(epfd, &nested);
                }
            }
            let mut inner = self.inner.lock();
            if let Some(noted) = inner.nested.iter_mut().find(|noted| noted.fd == nested.fd) {
                noted.seen = Some(now);
                noted.armed = nested.events & super::ONE_SHOT == 0;
            }
        }
        taken
    }

    /// The kernel has reported these, for its own descriptors in the inner sets; it disarms on its side only.
    pub(super) fn note_told(&self, epfd: RawFd, told: &[libc::epoll_event]) {
        if self.has_nested.load(Ordering::Acquire) {
            self.harvest_nested(epfd, told, &mut []);
        }
    }

    /// The set is gone: no other has it any more.
    pub(super) fn leave_outer_sets(&'static self) {
        let sets: Vec<&'static EpollSet> = REGISTRY.lock().all.clone();
        for set in sets.into_iter().filter(|set| set.has_nested.load(Ordering::Acquire)) {
            let mut inner = set.inner.lock();
            inner.nested.retain(|nested| !std::ptr::eq(nested.set, self));
            set.has_nested.store(!inner.nested.is_empty(), Ordering::Release);
        }
    }

    /// Something has happened to one of the sockets.
    pub(super) fn count_event(&self, inner: &Inner, by: Option<&QueueSet>) -> bool {
        self.events.fetch_add(1, Ordering::AcqRel);
        inner.waiters.iter().any(|waiter| waiter.kick_by(by))
    }
}
