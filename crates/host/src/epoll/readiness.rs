//! What a look at a set finds, by a wait in it, by poll(2), or by a set that has it: with all sets in it.

use crate::epoll::kernel::is_readable;
use crate::epoll::telling::DEPTH;
use crate::epoll::{EDGE, EpollSet, Interest, Nested};
use crate::queue::QueueSet;
use crate::socket::{Kind, Socket};
use std::sync::atomic::Ordering;

impl EpollSet {
    /// Whether a wait would find a socket ready: for polling the epoll descriptor itself.
    pub fn is_ready(&self) -> bool {
        self.is_ready_at(0)
    }

    pub(super) fn is_ready_at(&self, depth: u32) -> bool {
        self.wake_listeners();
        self.drain();
        let own = self.inner.lock().has_due();
        own || self.nested_are_ready(depth)
    }

    /// Whether it holds sockets on the engine, by itself or in a set within it.
    pub fn has_sockets(&self) -> bool {
        self.has_sockets_at(0)
    }

    fn has_sockets_at(&self, depth: u32) -> bool {
        self.sockets.load(Ordering::SeqCst) > 0 || self.nested_have_sockets(depth)
    }

    /// Calls `each` for every live queue set of its sockets.
    pub(crate) fn each_owner_queue(&self, each: &mut dyn FnMut(&'static QueueSet)) {
        self.each_owner_queue_at(0, each);
    }

    fn each_owner_queue_at(&self, depth: u32, each: &mut dyn FnMut(&'static QueueSet)) {
        self.owner_queues().for_each(&mut *each);
        self.each_nested_owner_queue(depth, each);
    }

    /// At a wait: listeners that came into the set since the last one begin to take connections. In the child of a fork
    /// those that were in it are claimed by that.
    pub(super) fn wake_listeners(&self) {
        if !self.idle_listeners.load(Ordering::Acquire) || !self.idle_listeners.swap(false, Ordering::AcqRel)
        {
            return;
        }
        let of = |interest: &Interest| interest.socket;
        let sockets: Vec<&'static Socket> = self.inner.lock().interests.values().map(of).collect();
        sockets.into_iter().filter(|socket| socket.kind() == Kind::Listener).for_each(Socket::activate);
    }

    /// Whoever waits for a socket wants its events: those that are not this process's are claimed, also in sets in this one. In the
    /// child of a fork that is all of them.
    pub(crate) fn take_back_moved(&self) {
        let nested = self.all_nested();
        for set in std::iter::once(self).chain(nested) {
            if !set.moved.load(Ordering::Acquire) || !set.moved.swap(false, Ordering::AcqRel) {
                continue;
            }
            let of = |interest: &Interest| interest.socket;
            let sockets: Vec<&'static Socket> = set.inner.lock().interests.values().map(of).collect();
            for socket in sockets.into_iter().filter(|socket| socket.is_moved()) {
                // A claim that fails shows as readiness.
                let _ = socket.settle();
            }
        }
    }

    /// Whether one in it is not, or in a set in it.
    pub(crate) fn has_moved(&self) -> bool {
        let is_own = self.moved.load(Ordering::Acquire);
        is_own || self.all_nested().iter().any(|set| set.moved.load(Ordering::Acquire))
    }

    pub(crate) fn drain(&self) {
        self.owner_queues().for_each(QueueSet::drain);
    }

    pub(super) fn nested_have_sockets(&self, depth: u32) -> bool {
        depth < DEPTH && self.nested().iter().any(|nested| nested.set.has_sockets_at(depth + 1))
    }

    pub(super) fn nested_are_ready(&self, depth: u32) -> bool {
        depth < DEPTH && self.nested().iter().any(|nested| self.is_reportable(nested, depth))
    }

    /// Whether `nested` is ready and was not told of yet.
    pub(super) fn is_reportable(&self, nested: &Nested, depth: u32) -> bool {
        if !nested.wants() {
            return false;
        }
        if !nested.is_due() {
            // What has come and was not looked at yet is counted by that.
            nested.set.each_owner_queue_at(depth + 1, &mut QueueSet::drain);
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
            now.reported = now.come;
        }
        is_ready
    }

    pub(super) fn each_nested_owner_queue(&self, depth: u32, each: &mut dyn FnMut(&'static QueueSet)) {
        if depth < DEPTH {
            for nested in self.nested() {
                nested.set.each_owner_queue_at(depth + 1, each);
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
}
