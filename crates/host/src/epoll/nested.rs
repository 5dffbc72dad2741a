//! Epoll sets in epoll sets. The kernel knows of the inner set's kernel descriptors by itself; of its sockets on the engine
//! the outer set asks here. What happens in a set is counted in each that has it and would tell of it, and so on outwards
//! ([`EpollSet::tell`]): where Linux puts the inner set on the outer one's ready list.
//!
//! Linux allows five levels and no circles, and has refused others before this is asked.

use super::{EpollSet, ONE_SHOT};
pub(super) use crate::epoll::Nested;
use crate::epoll::kernel::is_disarmed;
use crate::{fd_table, sys};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

impl Nested {
    /// A one-shot registration has been used up by what the engine has; of an epoll set nothing is reported that was not asked for.
    fn disarm(&mut self, epfd: RawFd) {
        let event = libc::epoll_event { events: ONE_SHOT, u64: self.data };
        let is_its_number = fd_table::epoll_set(self.fd).is_some_and(|set| std::ptr::eq(set, self.set));
        let disarm = || sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, self.fd, Some(event));
        self.spent = !is_its_number || disarm().is_err();
        self.armed = false;
    }
}

impl EpollSet {
    /// See [`super::Inner::nestings`]: before the kernel is asked.
    pub(super) fn nestings(&self) -> u64 {
        if self.has_nested.load(Ordering::Acquire) { self.inner.lock().nestings } else { 0 }
    }

    /// Reports the inner sets that have something, into `out`; those in `reported` the kernel has reported, asked when `nestings` were as many
    /// as that. Returns how many.
    pub(super) fn harvest_nested(
        &self,
        epfd: RawFd,
        (reported, nestings): (&[libc::epoll_event], u64),
        out: &mut [libc::epoll_event],
    ) -> usize {
        let mut taken = 0;
        for nested in self.nested() {
            if reported.iter().any(|event| { event.u64 } == nested.data) {
                if nested.wants() {
                    self.note_reported_of(epfd, &nested, nestings);
                }
            } else if taken < out.len()
                && self.is_reportable(&nested, 0)
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
        let mut inner = self.inner.lock();
        let noted = inner.nested_mut(nested.fd, nested.set).filter(|noted| noted.is_due())?;
        noted.note_reported();
        if noted.events & ONE_SHOT != 0 {
            noted.disarm(epfd);
        }
        Some(noted.data)
    }

    /// The kernel has reported an inner set; one-shot, it has disarmed it.
    fn note_reported_of(&self, epfd: RawFd, nested: &Nested, nestings: u64) {
        let mut inner = self.inner.lock();
        let Some(noted) = inner.nested_mut(nested.fd, nested.set) else { return };
        noted.note_reported();
        if noted.events & ONE_SHOT != 0 {
            // One that was armed anew beside the kernel's report was so before or after it.
            let is_armed = noted.nesting > nestings && !is_disarmed(epfd, nested.fd).unwrap_or(true);
            noted.armed = is_armed;
        }
    }

    /// Takes out of `events[..found]` what the kernel still reports of registrations that are used up; returns how many are left.
    pub(super) fn without_spent(&self, epfd: RawFd, events: &mut [libc::epoll_event], found: usize) -> usize {
        if !self.has_nested.load(Ordering::Acquire) {
            return found;
        }
        let mut left = found;
        for nested in self.inner.lock().nested.iter_mut().filter(|nested| nested.spent) {
            let Some(at) = events[..left].iter().position(|event| { event.u64 } == nested.data) else {
                continue;
            };
            // By the data alone it could be another one; this one the kernel has disarmed by its report.
            if is_disarmed(epfd, nested.fd).unwrap_or(true) {
                nested.spent = false;
                events[at..left].rotate_left(1);
                left -= 1;
            }
        }
        left
    }

    /// The kernel has reported these in a wait that began without inner sets.
    pub(super) fn note_reported(&self, epfd: RawFd, reported: &[libc::epoll_event]) {
        if self.has_nested.load(Ordering::Acquire) {
            self.harvest_nested(epfd, (reported, 0), &mut []);
        }
    }
}
