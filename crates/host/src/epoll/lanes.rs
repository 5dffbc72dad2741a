//! UDP sockets in a set that may have lanes beside the kernel's queue ([`crate::datagram`]). The kernel tells of its own queue alone:
//! before a wait the lanes are looked at, and diverted as long as it lasts; what is in one is told beside what the kernel tells.
//!
//! What is told once (EPOLLONESHOT) or to one (EPOLLEXCLUSIVE), a set in another set, and a set that poll(2) waits for are left to
//! the kernel: such a socket receives by no lane any more.

use super::{EDGE, EXCLUSIVE, EpollSet, ONE_SHOT};
use crate::datagram::{Datagram, Waits};
pub(super) use crate::epoll::Listed;
use crate::epoll::kernel::is_readable;
use crate::{fd_table, wait};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

/// What a registration has to ask for.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Sockets of one set that keep their lanes.
const SOCKETS_MAX: usize = 16;

/// What a wait has found and holds.
pub(super) struct LaneWait {
    asleep: [Option<(&'static Datagram, u32)>; SOCKETS_MAX],
    /// Places in the list, and what has come.
    ready: [Option<(usize, u64)>; SOCKETS_MAX],
    is_ready: bool,
}

impl Drop for LaneWait {
    fn drop(&mut self) {
        self.asleep.iter().flatten().for_each(|(datagram, generation)| datagram.end_wait(*generation));
    }
}

impl EpollSet {
    /// The kernel has carried out an operation for a descriptor: with an event unless that was removed.
    pub(super) fn note_datagram(&self, fd: RawFd, event: Option<libc::epoll_event>) {
        let Some(datagram) = fd_table::datagram(fd) else { return };
        let mut inner = self.inner.lock();
        inner.datagrams.retain(|listed| listed.fd != fd);
        let Some(event) = event else { return };
        self.has_datagrams.store(true, Ordering::SeqCst);
        // A thread that waits already does not know of it; one that comes from here on does.
        let may_have_lanes = event.events & (ONE_SHOT | EXCLUSIVE) == 0
            && self.sleepers.load(Ordering::SeqCst) == 0
            && !self.is_seen_elsewhere.load(Ordering::SeqCst)
            && inner.datagrams.len() < SOCKETS_MAX;
        if !may_have_lanes {
            return datagram.receive_from_kernel();
        }
        let (generation, events, data) = (datagram.generation(), event.events, event.u64);
        inner.datagrams.push(Listed { fd, datagram, generation, events, data, reported: None });
    }

    /// A descriptor is closed; its registration may go on with another descriptor of the socket.
    pub(super) fn forget_datagram(&self, fd: RawFd) {
        for listed in self.inner.lock().datagrams.extract_if(.., |listed| listed.fd == fd) {
            if listed.datagram.generation() == listed.generation {
                listed.datagram.receive_from_kernel();
            }
        }
    }

    /// Somebody waits for the set in another way than by a wait in it.
    pub fn leave_lanes(&self) {
        if self.is_seen_elsewhere.swap(true, Ordering::SeqCst) {
            return;
        }
        self.inner.lock().datagrams.drain(..).for_each(|listed| listed.datagram.receive_from_kernel());
    }

    /// A wait begins. `None`: there are no such sockets.
    pub(super) fn begin_lane_wait(&self, epfd: RawFd, is_brief: bool) -> Option<LaneWait> {
        if !self.has_datagrams.load(Ordering::SeqCst) {
            return None;
        }
        if !is_brief {
            self.look_at_lanes(epfd);
        }
        let mut inner = self.inner.lock();
        inner.datagrams.retain(|listed| listed.datagram.generation() == listed.generation);
        let mut lanes = LaneWait { asleep: [None; SOCKETS_MAX], ready: [None; SOCKETS_MAX], is_ready: false };
        for (at, listed) in inner.datagrams.iter().enumerate().take(SOCKETS_MAX) {
            if listed.events & READABLE == 0 {
                continue;
            }
            let waits = if is_brief { listed.datagram.tell() } else { listed.datagram.begin_wait_or_tell() };
            match waits {
                Waits::Nothing => {}
                Waits::Asleep(generation) => lanes.asleep[at] = Some((listed.datagram, generation)),
                // It has been told, and the program has not read it: what comes next the kernel is to tell.
                Waits::Readable(came) if listed.events & EDGE != 0 && listed.reported == Some(came) => {
                    if !is_brief {
                        listed.datagram.receive_from_kernel();
                    }
                }
                Waits::Readable(came) => {
                    lanes.ready[at] = Some((at, came));
                    lanes.is_ready = true;
                }
            }
        }
        Some(lanes)
    }

    /// Looks for a short time whether something comes by a lane that is open, or by the kernel.
    fn look_at_lanes(&self, epfd: RawFd) {
        let any = |what: fn(&Datagram) -> bool| self.inner.lock().datagrams.iter().any(|l| what(l.datagram));
        if !any(Datagram::has_open_lane) {
            return;
        }
        let mut round = 0u32;
        let _ = wait::spin(&mut || {
            round = round.wrapping_add(1);
            let is_over = any(Datagram::has_something)
                || crate::signals::is_any_deferred()
                || round.is_multiple_of(4) && is_readable(epfd);
            Ok(is_over.then_some(()))
        });
    }

    /// Tells what is in lanes beside the first `found` events, which are the kernel's; returns how many they all are.
    pub(super) fn tell_lanes(
        &self,
        lanes: &LaneWait,
        events: &mut [libc::epoll_event],
        found: usize,
    ) -> usize {
        let mut inner = self.inner.lock();
        let mut count = found;
        for (at, came) in lanes.ready.iter().flatten() {
            let Some(listed) = inner.datagrams.get_mut(*at) else { continue };
            let is_it = |event: &&mut libc::epoll_event| { event.u64 } == listed.data;
            if let Some(event) = events[..found].iter_mut().find(is_it) {
                event.events |= listed.events & READABLE;
            } else if let Some(event) = events.get_mut(count) {
                *event = libc::epoll_event { events: listed.events & READABLE, u64: listed.data };
                count += 1;
            } else {
                continue;
            }
            listed.reported = Some(*came);
        }
        count
    }
}

impl LaneWait {
    /// Something is in a lane.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }
}
