//! Epoll sets in epoll sets. The kernel knows of the inner set's kernel descriptors by itself; of its sockets on the engine
//! the outer set asks here.
//!
//! Linux allows five levels and no circles, and has refused others before this is asked.

use super::moves::{Registered, is_disarmed};
use super::{EpollSet, Inner, REGISTRY};
use crate::queue::QueueSet;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

/// Linux: EP_MAX_NESTS, and one.
const DEPTH: u32 = 5;

/// An inner set as its outer one has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested {
    fd: RawFd,
    set: &'static EpollSet,
    events: u32,
    data: u64,
    /// [`EpollSet::events_at`] of the inner set when it was last reported, for edge-triggered ones; `None`: not yet.
    seen: Option<u32>,
    /// Not disarmed by one-shot.
    armed: bool,
    /// Which of the outer set's [`Inner::nestings`] made it so.
    nesting: u64,
}

impl Nested {
    /// Whether it would be told of something: all that an epoll set can be is readable.
    fn wants(&self) -> bool {
        self.armed && self.events & libc::EPOLLIN as u32 != 0
    }

    /// Edge-triggered, and reported since its last event.
    fn is_told(&self) -> bool {
        self.is_told_of(self.set.events_at(1))
    }

    /// Edge-triggered, and reported with so many events.
    fn is_told_of(&self, events: u32) -> bool {
        self.events & super::EDGE != 0 && self.seen == Some(events)
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

    /// `op` (EPOLL_CTL_*) of `nested`, which is `fd`, in both worlds at once: what a thread that waits takes note of comes before or
    /// after.
    pub(super) fn control_nested(
        &'static self,
        epfd: RawFd,
        op: i32,
        (fd, nested): (RawFd, &'static EpollSet),
        event: Option<libc::epoll_event>,
    ) -> Result<(), Errno> {
        let event = event.filter(|_| op != libc::EPOLL_CTL_DEL);
        let had = nested.events_at(1);
        let mut inner = self.inner.lock();
        crate::sys::epoll_ctl(epfd, op, fd, event)?;
        let known = inner.nested.extract_if(.., |known| known.fd == fd).last();
        // What has happened is as much as before, as seen from a set that has this one.
        if known.is_some() {
            self.events.fetch_add(had, Ordering::AcqRel);
        }
        inner.kernel.remove(&fd);
        if let Some(event) = event {
            let (events, data) = (event.events, event.u64);
            inner.nestings += 1;
            let nesting = inner.nestings;
            inner.nested.push(Nested { fd, set: nested, events, data, seen: None, armed: true, nesting });
            inner.kernel.insert(fd, Registered { events, data, armed: true, absent: false });
            self.events.fetch_sub(had, Ordering::AcqRel);
            self.kernel_fds.store(true, Ordering::SeqCst);
        }
        self.has_nested.store(!inner.nested.is_empty(), Ordering::SeqCst);
        drop(inner);
        if event.is_none() {
            return Ok(());
        }
        nested.leave_lanes();
        let was_due = |known: &Nested| known.wants() && !known.is_told_of(had);
        if !known.as_ref().is_some_and(was_due) && nested.is_ready_at(1) {
            self.events.fetch_add(1, Ordering::AcqRel);
        }
        // Who waits does not listen to it yet, or knows it as disarmed.
        self.inner.lock().waiters.kick_all();
        self.end_kernel_waits();
        Ok(())
    }

    /// What has happened in it, however deep.
    fn events_at(&self, depth: u32) -> u32 {
        let own = self.events.load(Ordering::Acquire);
        let nested = self.nested();
        let those = nested.iter().filter(|_| depth < DEPTH).map(|nested| nested.set.events_at(depth + 1));
        those.fold(own, u32::wrapping_add)
    }

    /// See [`Inner::nestings`]: before the kernel is asked.
    pub(super) fn nestings(&self) -> u64 {
        if self.has_nested.load(Ordering::Acquire) { self.inner.lock().nestings } else { 0 }
    }

    pub(super) fn nested_have_sockets(&self, depth: u32) -> bool {
        depth < DEPTH && self.nested().iter().any(|nested| nested.set.has_sockets_at(depth + 1))
    }

    pub(super) fn nested_are_ready(&self, depth: u32) -> bool {
        // The look counts what it finds, so it comes first.
        let is_ready = |nested: &Nested| nested.wants() && nested.set.is_ready_at(depth + 1);
        depth < DEPTH && self.nested().iter().any(|nested| is_ready(nested) && !nested.is_told())
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

    /// Reports the inner sets that have something, into `out`; those in `told` the kernel has reported, asked when `nestings` were as many
    /// as that. Returns how many.
    pub(super) fn harvest_nested(
        &self,
        epfd: RawFd,
        (told, nestings): (&[libc::epoll_event], u64),
        out: &mut [libc::epoll_event],
    ) -> usize {
        let mut taken = 0;
        for nested in self.nested() {
            if !nested.wants() {
                continue;
            }
            if told.iter().any(|event| { event.u64 } == nested.data) {
                self.note_told_of(epfd, &nested, nestings);
            } else if taken < out.len()
                && nested.set.is_ready_at(1)
                && let Some(data) = self.claim(epfd, &nested)
            {
                out[taken] = libc::epoll_event { events: libc::EPOLLIN as u32, u64: data };
                taken += 1;
            }
        }
        taken
    }

    /// The inner set is ready: who reports it. `None`: another thread has, meanwhile.
    fn claim(&self, epfd: RawFd, nested: &Nested) -> Option<u64> {
        // After the look, which counts what it finds.
        let now = nested.set.events_at(1);
        let mut inner = self.inner.lock();
        let noted = inner.nested.iter_mut().find(|noted| noted.fd == nested.fd)?;
        if !noted.wants() || noted.is_told_of(now) {
            return None;
        }
        noted.seen = Some(now);
        if noted.events & super::ONE_SHOT != 0 {
            noted.armed = false;
            disarm_in_kernel(epfd, noted);
        }
        Some(noted.data)
    }

    /// The kernel has reported an inner set; one-shot, it has disarmed it.
    fn note_told_of(&self, epfd: RawFd, nested: &Nested, nestings: u64) {
        let now = nested.set.events_at(1);
        let mut inner = self.inner.lock();
        let Some(noted) = inner.nested.iter_mut().find(|noted| noted.fd == nested.fd) else { return };
        noted.seen = Some(now);
        if noted.events & super::ONE_SHOT != 0 {
            // One that was armed anew beside the kernel's report was so before or after it.
            let is_armed = noted.nesting > nestings && !is_disarmed(epfd, nested.fd).unwrap_or(true);
            noted.armed = is_armed;
        }
    }

    /// The kernel has reported these in a wait that began without inner sets.
    pub(super) fn note_told(&self, epfd: RawFd, told: &[libc::epoll_event]) {
        if self.has_nested.load(Ordering::Acquire) {
            self.harvest_nested(epfd, (told, 0), &mut []);
        }
    }

    /// The set is gone: no other has it any more.
    pub(super) fn leave_outer_sets(&'static self) {
        let sets: Vec<&'static EpollSet> = REGISTRY.lock().all.clone();
        for set in sets.into_iter().filter(|set| set.has_nested.load(Ordering::Acquire)) {
            let mut inner = set.inner.lock();
            inner.nested.retain(|nested| !std::ptr::eq(nested.set, self));
            set.has_nested.store(!inner.nested.is_empty(), Ordering::SeqCst);
        }
    }

    /// Something has happened to one of the sockets.
    pub(super) fn count_event(&self, inner: &Inner, by: Option<&QueueSet>) -> bool {
        self.events.fetch_add(1, Ordering::AcqRel);
        inner.waiters.tell(by)
    }
}
