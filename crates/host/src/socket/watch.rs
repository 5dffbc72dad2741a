//! Who watches a socket: threads that wait in a call, and epoll sets. Its readiness is kept here, and told to them when it changes.
//!
//! Called by the queue set that serves it, with that one's lock, and by whoever waits.

use crate::epoll::EpollSet;
use crate::own_fds::OwnCopy;
use crate::queue::QueueSet;
use crate::slots::SlotId;
use crate::socket::{Kind, REGISTRY, Socket, Watch, Watcher, stream};
use crate::waiter::Waiter;
use std::sync::atomic::Ordering;

impl Socket {
    /// The thread is told from now on of what happens to it.
    pub(crate) fn add_waiter(&self, waiter: &'static Waiter) {
        self.watch.lock().waiters.push(waiter);
        self.watched.fetch_add(1, Ordering::SeqCst);
    }

    /// Not any more. Whoever holds the socket ([`Socket::hold`]) ends it when that is over, if its last descriptor has gone meanwhile.
    pub(crate) fn remove_waiter(&self, waiter: &'static Waiter) {
        let mut watch = self.watch.lock();
        if let Some(at) = watch.waiters.iter().position(|w| std::ptr::eq(*w, waiter)) {
            watch.waiters.swap_remove(at);
            self.watched.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn set_owner_queue(&'static self, owner_queue: &'static QueueSet) {
        self.owner_queue.store(std::ptr::from_ref(owner_queue).cast_mut(), Ordering::Release);
        self.set_engine(owner_queue.session.engine);
        for watcher in &self.watched_as().watch.lock().sets {
            watcher.set.add_owner_queue(owner_queue);
        }
    }

    /// It is in `slot_id` of `owner_queue` from now on. The caller holds the lock of `owner_queue`.
    pub(crate) fn move_in(&'static self, owner_queue: &'static QueueSet, slot_id: SlotId, kind: Kind) {
        self.copies().begin_session();
        self.slot_id.store(slot_id.to_bits(), Ordering::Release);
        self.kind.store(kind as u8, Ordering::Release);
        self.set_owner_queue(owner_queue);
    }

    pub(crate) fn set_moved(&self) {
        self.copies().set_moved(true);
        for watcher in &self.watched_as().watch.lock().sets {
            watcher.set.note_moved();
        }
    }

    // Readiness.

    /// Stores what holds now; `key`: what has just happened, 0 when nothing did that anybody waits for.
    pub(crate) fn publish(&self, ready: u32, key: u32) {
        // Only the holder of the queue set's lock writes it, so what has not changed need not be stored.
        if self.ready.load(Ordering::Relaxed) != ready {
            self.ready.store(ready, Ordering::SeqCst);
            self.tell_primary(ready);
        }
        self.tell(key);
    }

    /// `key` has just happened to it: tells who watches.
    fn tell(&self, key: u32) {
        let watched_as = self.watched_as();
        if !std::ptr::eq(watched_as, self) {
            return watched_as.tell(key);
        }
        if key == 0 || self.watched.load(Ordering::SeqCst) == 0 {
            return;
        }
        let watch = self.watch.lock();
        // The lock is held by whoever tells, as a rule.
        let owner_queue = self.owner_queue();
        watch.waiters.iter().for_each(|waiter| {
            QueueSet::kick_by(owner_queue, waiter);
        });
        // Of the exclusive registrations the first that wakes somebody ends the round.
        let mut served = false;
        for watcher in watch.sets.iter().filter(|_| key != stream::DRAINED) {
            if !(watcher.exclusive && served) {
                let woke = watcher.set.notify(watcher.slot_id, key, owner_queue);
                served |= woke && watcher.exclusive;
            }
        }
    }

    pub(crate) fn kick_waiters(&self) {
        self.watch.lock().waiters.iter().for_each(|waiter| {
            waiter.kick();
        });
    }

    /// An epoll set watches it from now on.
    pub(crate) fn add_watcher(&self, watcher: Watcher) {
        self.watch.lock().sets.push(watcher);
        self.watched.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove_watcher(&self, set: &EpollSet, slot_id: SlotId) {
        let mut watch = self.watch.lock();
        if let Some(at) = watch.sets.iter().position(|w| std::ptr::eq(w.set, set) && w.slot_id == slot_id) {
            watch.sets.remove(at);
            self.watched.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// In the child of a fork, whose other threads are not there. Where none was in a call nothing is written: the child would get a copy of
    /// the page. Epoll sets that it has forgotten come again ([`crate::epoll::after_fork_in_child`]).
    pub(super) fn forget_threads(&self) {
        if self.holders.load(Ordering::SeqCst) != 0 {
            self.holders.store(0, Ordering::SeqCst);
        }
        let watched = self.watched.load(Ordering::SeqCst) as usize;
        let has_sets_alone =
            |watch: &Watch| watch.waiters.is_empty() && watch.ending.is_none() && watch.sets.len() == watched;
        let forgotten = || {
            self.watched.store(0, Ordering::SeqCst);
            Watch::default()
        };
        // SAFETY: needed for a lock that was not taken before the fork. The child has this thread alone, which was in `fork` and not in a call that
        // locks.
        unsafe { self.watch.renew_after_fork(has_sets_alone, forgotten) };
        self.settings.free_after_fork();
        self.sharing.claiming.free_after_fork();
    }

    /// In the child of a fork: whether it knows of a registration.
    pub(crate) fn is_watched_by(&self, set: &EpollSet, slot_id: SlotId) -> bool {
        let is_it = |watcher: &Watcher| std::ptr::eq(watcher.set, set) && watcher.slot_id == slot_id;
        // SAFETY: as in `forget_threads`.
        unsafe { self.watch.peek_in_child() }.is_some_and(|watch| watch.sets.iter().any(is_it))
    }

    pub(super) fn is_used(&self, watch: &Watch) -> bool {
        !watch.waiters.is_empty() || self.holders.load(Ordering::SeqCst) > 0
    }

    /// What was kept for the last thread, if that has gone.
    pub(super) fn take_ending(&self, watch: &mut Watch) -> Option<OwnCopy> {
        if self.is_used(watch) { None } else { watch.ending.take() }
    }
}

/// In the child of a fork: every socket in use is the parent's until it is claimed ([`super::copies`]); nobody waits.
#[cold]
pub fn after_fork_in_child() {
    REGISTRY.lock().all.iter().for_each(|socket| socket.forget_threads());
}
