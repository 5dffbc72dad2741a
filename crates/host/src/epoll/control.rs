//! `epoll_ctl` of descriptors on the engine.

use crate::epoll::{
    EDGE, EXCLUSIVE, EpollSet, Interest, Nested, ONE_SHOT, Registered, WITH_EXCLUSIVE, has_twin, key, once,
    unused,
};
use crate::queue::QueueSet;
use crate::slots::SlotId;
use crate::socket::{Kind, Socket, Watcher};
use crate::{fd_table, sys};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

/// Whether a descriptor that the library does not know is one of an epoll set. EBADF, EINVAL: it is not.
pub fn check(epfd: RawFd) -> Result<(), Errno> {
    rustix::io::fcntl_getfd(sys::borrow(epfd)).map_err(crate::errno::from_os)?;
    let name = rustix::fs::readlink(format!("/proc/self/fd/{epfd}"), Vec::new());
    // Without /proc it gets the benefit of the doubt.
    let is_other = name.is_ok_and(|name| name.as_bytes() != b"anon_inode:[eventpoll]");
    if is_other { Err(Errno::EINVAL) } else { Ok(()) }
}

/// EPOLL_CTL_ADD for a descriptor on the engine. EEXIST: it is in already. A listener begins to take connections with the
/// first wait, so that a process which only prepares the set for its children is handed none; its twin goes into the
/// kernel's epoll as well.
pub fn ctl_add(epfd: RawFd, fd: RawFd, event: libc::epoll_event) -> Result<(), Errno> {
    let socket = fd_table::get(fd).ok_or(crate::errno::ENOENT)?;
    let events = event.events;
    if events & EXCLUSIVE != 0 && events & !WITH_EXCLUSIVE != 0 {
        return Err(Errno::EINVAL);
    }
    let set = find_or_make(epfd);
    if set.holds(fd, socket) {
        // The kernel's set has not always what this one has (`once`).
        return Err(crate::errno::EEXIST);
    }
    if has_twin(socket) {
        sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(event))?;
        set.kernel_fds.store(true, Ordering::SeqCst);
    }
    // A claim that fails shows as readiness.
    let _ = socket.settle();
    set.add(fd, socket, Registered { events, data: event.u64, armed: true, absent: false })
}

/// EPOLL_CTL_ADD, MOD or DEL for a descriptor of another epoll set. EBADF: it is none any more. The kernel's set is asked, with the
/// kernel's errors.
pub fn ctl_set(epfd: RawFd, op: i32, fd: RawFd, event: Option<libc::epoll_event>) -> Result<(), Errno> {
    let nested = fd_table::epoll_set(fd).ok_or(Errno::EBADF)?;
    if fd_table::epoll_set(epfd).is_none() {
        check(epfd)?;
    }
    find_or_make(epfd).control_nested(epfd, op, (fd, nested), event)
}

/// EPOLL_CTL_MOD for a descriptor on the engine. ENOENT: it is not in.
pub fn ctl_mod(epfd: RawFd, fd: RawFd, event: libc::epoll_event) -> Result<(), Errno> {
    let socket = fd_table::get(fd).ok_or(crate::errno::ENOENT)?;
    let set = fd_table::epoll_set(epfd).ok_or(crate::errno::ENOENT)?;
    if event.events & EXCLUSIVE != 0 {
        return Err(Errno::EINVAL);
    }
    set.modify(fd, socket, event.events, event.u64)?;
    if has_twin(socket) { crate::epoll::kernel::rearm_twin(epfd, fd, event) } else { Ok(()) }
}

/// EPOLL_CTL_DEL for a descriptor on the engine. ENOENT: it is not in.
pub fn ctl_del(epfd: RawFd, fd: RawFd) -> Result<(), Errno> {
    let socket = fd_table::get(fd).ok_or(crate::errno::ENOENT)?;
    let set = fd_table::epoll_set(epfd).ok_or(crate::errno::ENOENT)?;
    set.delete(fd, socket)?;
    if has_twin(socket) { once::remove_twin(epfd, fd) } else { Ok(()) }
}

/// The program has made an epoll descriptor.
pub fn created(epfd: RawFd) {
    make(epfd, false);
}

fn make(epfd: RawFd, kernel_fds: bool) -> &'static EpollSet {
    crate::fd_release::remove(epfd);
    let set = unused();
    set.epfd.store(epfd, Ordering::Relaxed);
    set.kernel_fds.store(kernel_fds, Ordering::Relaxed);
    fd_table::install_epoll(epfd, set);
    set
}

/// The set of `epfd`, made now if the descriptor came from elsewhere (over exec), with who knows what in it.
fn find_or_make(epfd: RawFd) -> &'static EpollSet {
    fd_table::epoll_set(epfd).unwrap_or_else(|| make(epfd, true))
}

/// The kernel has carried out `op` (EPOLL_CTL_*) for a descriptor that is not on the engine: remembered in case it goes
/// there later.
pub fn note_kernel_fd(epfd: RawFd, fd: RawFd, op: i32, event: Option<libc::epoll_event>) {
    let set = find_or_make(epfd);
    set.note_datagram(fd, event.filter(|_| op != libc::EPOLL_CTL_DEL));
    let mut inner = set.inner.lock();
    match (op, event) {
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) => {
            let (events, data) = (event.events, event.u64);
            inner.kernel.insert(fd, Registered { events, data, armed: true, absent: false });
            set.kernel_fds.store(true, Ordering::SeqCst);
            // A thread that is parked now does not look at the kernel's epoll if that was empty.
            inner.waiters.kick_all();
        }
        _ => {
            inner.kernel.remove(&fd);
        }
    }
}

impl EpollSet {
    /// Registers a socket, edge-triggered, for what happens from now on: with its descriptor as the data. One that is registered
    /// stays as it is.
    pub(crate) fn watch_from_now(&'static self, fd: RawFd, socket: &'static Socket, events: u32) {
        // It may be ready: the first event is the next one.
        let inserted = self.insert(
            fd,
            socket,
            Registered { events: events | EDGE, data: fd as u64, armed: true, absent: false },
        );
        if inserted.is_ok() && socket.kind() == Kind::Listener {
            self.listener_came();
        }
    }

    pub(crate) fn stop_watching(&self, fd: RawFd, socket: &Socket) {
        let _ = self.delete(fd, socket);
    }

    pub(super) fn add(
        &'static self,
        fd: RawFd,
        socket: &'static Socket,
        wanted: Registered,
    ) -> Result<(), Errno> {
        let slot_id = self.insert(fd, socket, wanted)?;
        socket.owner_queues().for_each(QueueSet::drain);
        self.check(slot_id);
        if socket.kind() == Kind::Listener {
            self.listener_came();
        }
        self.end_kernel_waits();
        Ok(())
    }

    fn insert(
        &'static self,
        fd: RawFd,
        socket: &'static Socket,
        wanted: Registered,
    ) -> Result<SlotId, Errno> {
        let Registered { events, data, armed, .. } = wanted;
        if events & ONE_SHOT != 0 && has_twin(socket) {
            self.fires_once.store(true, Ordering::Relaxed);
        }
        let mut inner = self.inner.lock();
        if inner.by_fd.contains_key(&key(fd, socket)) {
            return Err(crate::errno::EEXIST);
        }
        let interest = Interest { fd, socket, events, data, armed, queued: false, happened: 0 };
        let slot_id = inner.interests.insert(interest);
        inner.by_fd.insert(key(fd, socket), slot_id);
        // Room for all on the ready list, so that telling the set never allocates.
        let (len, count) = (inner.ready.len(), inner.interests.capacity());
        inner.ready.reserve(count - len.min(count));
        drop(inner);
        self.sockets.fetch_add(1, Ordering::SeqCst);
        // First of all: where it goes from here on this set is told, and where it went before is looked at.
        socket.add_watcher(Watcher { set: self, slot_id, exclusive: events & EXCLUSIVE != 0 });
        socket.owner_queues().for_each(|owner_queue| self.add_owner_queue(owner_queue));
        if socket.is_moved() {
            self.note_moved();
        }
        Ok(slot_id)
    }

    fn modify(&self, fd: RawFd, socket: &Socket, events: u32, data: u64) -> Result<(), Errno> {
        let slot_id = {
            let mut inner = self.inner.lock();
            let slot_id = *inner.by_fd.get(&key(fd, socket)).ok_or(crate::errno::ENOENT)?;
            if events & ONE_SHOT != 0 && has_twin(socket) {
                self.fires_once.store(true, Ordering::Relaxed);
            }
            if let Some(interest) = inner.interests.get_mut(slot_id) {
                if interest.events & EXCLUSIVE != 0 {
                    return Err(Errno::EINVAL);
                }
                (interest.events, interest.data, interest.armed) = (events, data, true);
            }
            slot_id
        };
        socket.owner_queues().for_each(QueueSet::drain);
        self.check(slot_id);
        Ok(())
    }

    fn holds(&self, fd: RawFd, socket: &Socket) -> bool {
        self.inner.lock().by_fd.contains_key(&key(fd, socket))
    }

    fn delete(&self, fd: RawFd, socket: &Socket) -> Result<(), Errno> {
        let slot_id = self.inner.lock().by_fd.get(&key(fd, socket)).copied().ok_or(crate::errno::ENOENT)?;
        socket.remove_watcher(self, slot_id);
        self.drop_interest(slot_id, socket);
        Ok(())
    }

    /// The next wait has a listener to look at; one that goes on looks now.
    fn listener_came(&self) {
        self.idle_listeners.store(true, Ordering::Release);
        self.inner.lock().waiters.kick_all();
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
            let (come, reported) = known.map_or((0, 0), |known| (known.come, known.reported));
            inner.nestings += 1;
            let (set, armed, spent, nesting) = (nested, true, false, inner.nestings);
            inner.nested.push(Nested { fd, set, events, data, come, reported, armed, spent, nesting });
            inner.kernel.insert(fd, Registered { events, data, armed: true, absent: false });
            self.kernel_fds.store(true, Ordering::SeqCst);
        }
        self.has_nested.store(!inner.nested.is_empty(), Ordering::SeqCst);
        Ok(known)
    }
}
