//! How a socket ends: with the last descriptor of the program's, or, as in Linux, with the last thread that waits in a call on it
//! by then, or is in one that will look at it again. Called by the descriptor table, and by whoever waits.

use super::shared::close_copy;
use super::stream::Link;
use super::{Kind, NO_FD, Socket, Watch};
use crate::own_fds::OwnCopy;
use crate::waiter::Waiter;
use crate::{fd_table, signal_io};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::entry::Command;

/// While it lives the socket does not end: with its last descriptor closed it ends when this is dropped, or with the last thread
/// that waits then.
#[derive(Debug)]
pub struct Held(&'static Socket);

impl Drop for Held {
    fn drop(&mut self) {
        let holders = &self.0.holders;
        // In the child of a fork, which forgets those of its parent, a call that a handler forked in goes on: it counts no more.
        let before =
            holders.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| Some(count.saturating_sub(1)));
        // Whoever has closed the last descriptor looks at the holders after that, and once more after it has left its end to them.
        if matches!(before, Ok(..=1)) && self.0.references.load(Ordering::SeqCst) == 0 {
            let ended = self.0.take_ending(&mut self.0.watch.lock());
            self.0.end_at_last(ended);
        }
    }
}

impl Socket {
    pub(crate) fn add_waiter(&self, waiter: &'static Waiter) {
        self.watch.lock().waiters.push(waiter);
        self.watched.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove_waiter(&'static self, waiter: &'static Waiter) {
        let mut watch = self.watch.lock();
        if let Some(at) = watch.waiters.iter().position(|w| std::ptr::eq(*w, waiter)) {
            watch.waiters.swap_remove(at);
            self.watched.fetch_sub(1, Ordering::SeqCst);
        }
        let ended = self.take_ending(&mut watch);
        drop(watch);
        self.end_at_last(ended);
    }

    /// The calling thread is about to wait in a call on it, or to look at it several times: as if it waited already.
    pub fn hold(&'static self) -> Held {
        let _home = self.lock_home();
        self.hold_locked()
    }

    /// The same for who has the lock of its home, if it has one.
    pub(super) fn hold_locked(&'static self) -> Held {
        self.holders.fetch_add(1, Ordering::SeqCst);
        Held(self)
    }

    fn is_used(&self, watch: &Watch) -> bool {
        !watch.waiters.is_empty() || self.holders.load(Ordering::SeqCst) > 0
    }

    /// What was kept for the last thread, if that has gone.
    fn take_ending(&self, watch: &mut Watch) -> Option<OwnCopy> {
        if self.is_used(watch) { None } else { watch.ending.take() }
    }

    fn end_at_last(&'static self, ended: Option<OwnCopy>) {
        if let Some(kept) = ended {
            self.release(None);
            drop(kept);
        }
    }

    /// Whether the program has several descriptors of it.
    pub fn has_copies(&self) -> bool {
        self.references.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn add_reference(&self) {
        self.references.fetch_add(1, Ordering::AcqRel);
    }

    /// `fd`, which is in the descriptor table as one of its descriptors, is the one that it knows of, if it knows of none.
    pub(crate) fn has_descriptor(&self, fd: RawFd) {
        let _ = self.fd.compare_exchange(NO_FD, fd, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// The program lets go of `fd`; with the last one the socket ends, unless a thread waits in a call on it: then when that is
    /// over, as in Linux. `is_open`: `fd` is what it was still, and is about to be closed.
    pub(crate) fn drop_reference(&'static self, fd: RawFd, is_open: bool) {
        if self.references.fetch_sub(1, Ordering::SeqCst) == 1 {
            if !self.ends_later(fd) {
                self.release(is_open.then_some(fd));
            }
        } else if self.fd.load(Ordering::Relaxed) == fd {
            let other = fd_table::find(self, fd);
            self.fd.store(other.unwrap_or(NO_FD), Ordering::SeqCst);
            if other.is_none() {
                // One that is counted and came into the table since then found that another was known.
                fd_table::find(self, fd).into_iter().for_each(|late| self.has_descriptor(late));
            }
        }
    }

    /// Whether a thread waits in a call on it, or is in one that will look again. Then that one ends it, and what the engine counts as its end, the close of the
    /// last descriptor, comes then: a copy of `fd` is kept. Without room for one it ends now.
    fn ends_later(&'static self, fd: RawFd) -> bool {
        // A call that moves bytes at this moment has the lock, and leaves word when it is to go on.
        let home = self.lock_home();
        let mut watch = self.watch.lock();
        if !self.is_used(&watch) {
            return false;
        }
        let Some(Ok(kept)) = self.home().map(|home| home.stack.copy_of(fd)) else { return false };
        drop(home);
        self.fd.store(kept.raw(), Ordering::Release);
        // No epoll set reports it any more.
        let sets = std::mem::take(&mut watch.sets);
        self.watched.fetch_sub(sets.len() as u32, Ordering::SeqCst);
        watch.ending = Some(kept);
        // They may all have gone before they could find it.
        let ended = self.take_ending(&mut watch);
        drop(watch);
        sets.iter().for_each(|watcher| watcher.set.drop_interest(watcher.place, self));
        self.end_at_last(ended);
        true
    }

    /// Ends a socket that never got a descriptor.
    pub fn abandon(&'static self) {
        self.release(None);
    }

    /// `last`: its last descriptor, which is open.
    fn release(&'static self, last: Option<RawFd>) {
        self.take_siblings().into_iter().for_each(|sibling| sibling.release(None));
        let watchers = std::mem::take(&mut self.watch.lock().sets);
        self.watched.fetch_sub(watchers.len() as u32, Ordering::SeqCst);
        watchers.iter().for_each(|watcher| watcher.set.drop_interest(watcher.place, self));
        match self.kind() {
            _ if self.copies().is_moved() => self.detach(),
            Kind::Stream => self.close_stream(last),
            Kind::Listener => self.close_listener(),
            Kind::Fresh => {}
        }
        self.retire();
    }

    /// Leaves its home: another session has the flow or listener, or will have it.
    fn detach(&'static self) {
        let Some((mut queue, place)) = self.lock_home() else { return };
        if let Some((io, stream)) = queue.stream(place, self) {
            close_copy(io, stream);
            queue.orphan(place);
        } else if queue.listener(place, self).is_some() {
            queue.remove_listener(place);
        }
    }

    fn close_stream(&'static self, last: Option<RawFd>) {
        let linger = self.settings.lock().linger.time();
        if linger.is_some_and(|time| !time.is_zero()) && !self.is_shared() {
            self.wait_drained(linger.unwrap_or_default());
        }
        let may_keep = last.filter(|_| !signal_io::is_used());
        // What this process has sent from the other end is unread, and makes it a reset.
        self.homes().for_each(|home| home.stack.settle_first());
        let Some((mut queue, place)) = self.lock_home() else { return };
        // With the lock no child is made.
        let shared = self.is_shared();
        let mut ends_at_once = false;
        queue.drain();
        let Some((io, stream)) = queue.stream(place, self) else { return };
        if shared && (stream.direct.is_some() || stream.received.private() > 0) {
            // Whoever has the other copy may read on where this process stopped.
            drop(queue);
            self.relinquish();
            self.detach();
            return;
        } else if !shared && !stream.let_go && stream.link != Link::Moved {
            stream.end_records(io);
            stream.let_go = true;
            let may_tell = io.may_tell_close(stream);
            let unread = stream.direct.as_mut().is_some_and(|direct| direct.let_go());
            // As for bytes that the engine knows of: RST when some were left unread (RFC 2525 section 2.17).
            let abort = unread || stream.received.private() > 0;
            let resets = abort || stream.unread() > 0 || linger.is_some_and(|time| time.is_zero());
            if may_tell && (resets || !stream.write_shut) {
                io.tell_end(stream, resets);
            }
            let (stack, flow) = (io.stack, stream.flow);
            let keep = |anchor| may_keep.is_some_and(|fd| stack.anchors().keep(stack, anchor, fd));
            if let Some(fd) = may_keep.filter(|_| stream.tls.is_some()) {
                Socket::unmark_keys(fd);
            }
            if let Some(anchor) = stream.anchor.filter(|anchor| stack.alive() && keep(*anchor)) {
                io.command(Command::CloseKept { flow, anchor, abort });
            } else if abort || resets && stream.link == Link::Open {
                // That the descriptor is closed the engine hears of the kernel, and later than of what this process does next.
                io.command(Command::Close { flow, abort: true });
            } else if !stream.write_shut && stream.link == Link::Open {
                io.command(Command::ShutdownSend { flow });
            }
            ends_at_once = resets;
        }
        close_copy(io, stream);
        let stack = io.stack;
        queue.orphan(place);
        drop(queue);
        if ends_at_once {
            // This process may have the other end: a call on that one finds the reset, not a peer.
            stack.settle_first();
        }
    }
}
