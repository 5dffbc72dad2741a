//! Epoll sets in epoll sets. The kernel knows of the inner set's kernel descriptors by itself; of its sockets on the engine
//! the outer set asks here. What happens in a set is counted in each that has it and would tell of it, and so on outwards
//! ([`EpollSet::tell`]): where Linux puts the inner set on the outer one's ready list.
//!
//! Linux allows five levels and no circles, and has refused others before this is asked.

use super::lanes::is_readable;
use super::moves::{Registered, is_disarmed};
use super::{EDGE, EpollSet, Inner, ONE_SHOT};
use crate::fd_table;
use crate::lock::Guard;
use crate::queue::QueueSet;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

/// Linux: EP_MAX_NESTS, and one.
const DEPTH: u32 = 5;

/// An inner set as its outer one has it: as in Linux, the set and the number together, which may be another one's by now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested {
    fd: RawFd,
    set: &'static EpollSet,
    events: u32,
    data: u64,
    /// Counts what has happened in the inner set while this one would have told of it.
    come: u64,
    /// That many of it are told, unless it is level-triggered.
    told: u64,
    /// Not disarmed by one-shot.
    armed: bool,
    /// Disarmed, and the kernel could not be told, as the number is no descriptor of the set any more: it reports it once more.
    spent: bool,
    /// Which of the outer set's [`Inner::nestings`] made it so.
    nesting: u64,
}

impl Nested {
    fn is(&self, fd: RawFd, set: &EpollSet) -> bool {
        self.fd == fd && std::ptr::eq(self.set, set)
    }

    /// Whether it would be told of something: all that an epoll set can be is readable.
    fn wants(&self) -> bool {
        self.armed && self.events & libc::EPOLLIN as u32 != 0
    }

    fn has_events(&self) -> bool {
        self.come != self.told
    }

    /// To be told of once it is ready.
    fn is_due(&self) -> bool {
        self.wants() && (self.events & EDGE == 0 || self.has_events())
    }

    fn note_told(&mut self) {
        if self.events & (EDGE | ONE_SHOT) != 0 {
            self.told = self.come;
        }
    }

    /// A one-shot registration has been used up by what the engine has; of an epoll set nothing is reported that was not asked for.
    fn disarm(&mut self, epfd: RawFd) {
        let event = libc::epoll_event { events: ONE_SHOT, u64: self.data };
        let is_its_number = fd_table::epoll_set(self.fd).is_some_and(|set| std::ptr::eq(set, self.set));
        let disarm = || crate::sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, self.fd, Some(event));
        self.spent = !is_its_number || disarm().is_err();
        self.armed = false;
    }
}

impl Inner {
    fn nested_mut(&mut self, fd: RawFd, set: &EpollSet) -> Option<&mut Nested> {
        self.nested.iter_mut().find(|nested| nested.is(fd, set))
    }
}

impl EpollSet {
    fn nested(&self) -> Vec<Nested> {
        if !self.has_nested.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.inner.lock().nested.clone()
    }

    /// `op` (EPOLL_CTL_*) of `nested`, which is `fd`.
    pub(super) fn control_nested(
        &'static self,
        epfd: RawFd,
        op: i32,
        (fd, nested): (RawFd, &'static EpollSet),
        event: Option<libc::epoll_event>,
    ) -> Result<(), Errno> {
        let event = event.filter(|_| op != libc::EPOLL_CTL_DEL);
        if event.is_some() {
            // Before there is anything to tell.
            nested.inner.lock().outer.push((fd, self));
        }
        let known = self.control_in_both(epfd, op, (fd, nested), event);
        // It stands there once for each that this set has.
        if known.as_ref().map_or(event.is_some(), Option::is_some) {
            nested.forget_outer(fd, self);
        }
        let known = known?;
        if event.is_none() {
            return Ok(());
        }
        nested.leave_lanes();
        let had_events = known.is_some_and(|known| known.wants() && known.has_events());
        if !had_events && nested.is_ready_at(1) && self.count_in(fd, nested) {
            self.tell_outer_sets(0);
        }
        // Who waits does not listen to it yet, or knows it as disarmed.
        self.inner.lock().waiters.kick_all();
        self.end_kernel_waits();
        Ok(())
    }

    /// In both worlds at once: what a thread that waits takes note of comes before or after. Returns what was known of it.
    fn control_in_both(
        &self,
        epfd: RawFd,
        op: i32,
        (fd, nested): (RawFd, &'static EpollSet),
        event: Option<libc::epoll_event>,
    ) -> Result<Option<Nested>, Errno> {
        let mut inner = self.inner.lock();
        crate::sys::epoll_ctl(epfd, op, fd, event)?;
        let known = inner.nested.extract_if(.., |known| known.is(fd, nested)).last();
        inner.kernel.remove(&fd);
        if let Some(event) = event {
            let (events, data) = (event.events, event.u64);
            let (come, told) = known.map_or((0, 0), |known| (known.come, known.told));
            inner.nestings += 1;
            let (set, armed, spent, nesting) = (nested, true, false, inner.nestings);
            inner.nested.push(Nested { fd, set, events, data, come, told, armed, spent, nesting });
            inner.kernel.insert(fd, Registered { events, data, armed: true, absent: false });
            self.kernel_fds.store(true, Ordering::SeqCst);
        }
        self.has_nested.store(!inner.nested.is_empty(), Ordering::SeqCst);
        Ok(known)
    }

    /// `outer` has this set by `fd` once less.
    fn forget_outer(&self, fd: RawFd, outer: &EpollSet) {
        let known = &mut self.inner.lock().outer;
        if let Some(at) = known.iter().position(|(by, set)| *by == fd && std::ptr::eq(*set, outer)) {
            known.remove(at);
        }
    }

    /// Something has happened to one of the sockets. `true`: a parked thread was woken for it.
    pub(super) fn tell(&self, inner: Guard<'_, Inner>, by: Option<&QueueSet>) -> bool {
        if inner.outer.is_empty() {
            return inner.waiters.tell(by);
        }
        drop(inner);
        // Who is woken finds it counted.
        self.tell_outer_sets(0);
        self.inner.lock().waiters.tell(by)
    }

    /// Something has happened here: it is counted in the sets that would tell of it, however far out. No lock of a set is held
    /// while another one's is taken.
    fn tell_outer_sets(&self, depth: u32) {
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
    fn count_in(&self, fd: RawFd, nested: &EpollSet) -> bool {
        let mut inner = self.inner.lock();
        let Some(noted) = inner.nested_mut(fd, nested).filter(|noted| noted.wants()) else { return false };
        noted.come += 1;
        true
    }

    /// See [`Inner::nestings`]: before the kernel is asked.
    pub(super) fn nestings(&self) -> u64 {
        if self.has_nested.load(Ordering::Acquire) { self.inner.lock().nestings } else { 0 }
    }

    pub(super) fn nested_have_sockets(&self, depth: u32) -> bool {
        depth < DEPTH && self.nested().iter().any(|nested| nested.set.has_sockets_at(depth + 1))
    }

    pub(super) fn nested_are_ready(&self, depth: u32) -> bool {
        depth < DEPTH && self.nested().iter().any(|nested| self.is_to_be_told(nested, depth))
    }

    /// Whether `nested` is ready and was not told of yet.
    fn is_to_be_told(&self, nested: &Nested, depth: u32) -> bool {
        if !nested.wants() {
            return false;
        }
        if !nested.is_due() {
            // What has come and was not looked at yet is counted by that.
            nested.set.each_home_at(depth + 1, &mut QueueSet::drain);
        }
        // What was told is not looked at, as in Linux: a look changes what the next event is.
        let noted = self.inner.lock().nested_mut(nested.fd, nested.set).copied();
        let Some(noted) = noted.filter(Nested::is_due) else { return false };
        if nested.set.is_ready_at(depth + 1) {
            return true;
        }
        if noted.events & EDGE == 0 {
            return false;
        }
        // What has happened is gone; Linux tells it all the same if there is anything else, and else forgets it.
        let is_ready =
            nested.set.kernel_fds.load(Ordering::SeqCst) && is_readable(nested.set.descriptor(nested.fd));
        if !is_ready
            && let Some(now) = self.inner.lock().nested_mut(nested.fd, nested.set)
            && now.come == noted.come
        {
            now.told = now.come;
        }
        is_ready
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
            if told.iter().any(|event| { event.u64 } == nested.data) {
                if nested.wants() {
                    self.note_told_of(epfd, &nested, nestings);
                }
            } else if taken < out.len()
                && self.is_to_be_told(&nested, 0)
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
        noted.note_told();
        if noted.events & ONE_SHOT != 0 {
            noted.disarm(epfd);
        }
        Some(noted.data)
    }

    /// The kernel has reported an inner set; one-shot, it has disarmed it.
    fn note_told_of(&self, epfd: RawFd, nested: &Nested, nestings: u64) {
        let mut inner = self.inner.lock();
        let Some(noted) = inner.nested_mut(nested.fd, nested.set) else { return };
        noted.note_told();
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
        let mut kept = found;
        for nested in self.inner.lock().nested.iter_mut().filter(|nested| nested.spent) {
            let Some(at) = events[..kept].iter().position(|event| { event.u64 } == nested.data) else {
                continue;
            };
            // By the data alone it could be another one; this one the kernel has disarmed by its report.
            if is_disarmed(epfd, nested.fd).unwrap_or(true) {
                nested.spent = false;
                events[at..kept].rotate_left(1);
                kept -= 1;
            }
        }
        kept
    }

    /// The kernel has reported these in a wait that began without inner sets.
    pub(super) fn note_told(&self, epfd: RawFd, told: &[libc::epoll_event]) {
        if self.has_nested.load(Ordering::Acquire) {
            self.harvest_nested(epfd, (told, 0), &mut []);
        }
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
