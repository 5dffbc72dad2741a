//! How a socket ends: with the last descriptor of the program's, or, as in Linux, with the last thread that waits in a call on it
//! by then, or is in one that will look at it again. Called by the descriptor table, and by whoever waits.

use crate::block::{BlockOn, OnSignal, block_on};
use crate::own_fds::OwnCopy;
use crate::session::Session;
use crate::slots::SlotId;
use crate::socket::arrivals::Closed;
use crate::socket::call::Held;
use crate::socket::listener::ENDS_WITHIN;
use crate::socket::options::Settings;
use crate::socket::shared::close_copy;
use crate::socket::stream::{self, Link};
use crate::socket::time_limit::TimeLimits;
use crate::socket::{Kind, NO_SLOT, REGISTRY, Socket, SocketCall};
use crate::waiter::Waiter;
use crate::{epoll, fd_table};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::entry::{Command, FlowOption};
use toe_base::ListenerId;

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

/// [`Socket::remove_waiter`] for a thread that does not hold the socket: with the last one that waits that may end.
pub(crate) fn stop_waiting(socket: &'static Socket, waiter: &'static Waiter) {
    socket.remove_waiter(waiter);
    let ended = socket.take_ending(&mut socket.watch.lock());
    socket.end_at_last(ended);
}

impl Socket {
    fn end_at_last(&'static self, ended: Option<OwnCopy>) {
        if let Some(held) = ended {
            self.release(None);
            drop(held);
        }
    }

    /// Whether the program has several descriptors of it.
    pub fn has_copies(&self) -> bool {
        self.references.load(Ordering::Relaxed) > 1
    }

    /// The program lets go of `fd`; with the last one the socket ends, unless a thread waits in a call on it: then when that is
    /// over, as in Linux. `is_open`: `fd` is what it was still, and is about to be closed.
    pub(crate) fn drop_reference(&'static self, fd: RawFd, is_open: bool) {
        if self.references.fetch_sub(1, Ordering::SeqCst) == 1 {
            if !self.ends_later(fd) {
                self.release(is_open.then_some(fd));
            }
        } else if self.fds.raw() == fd {
            let other = fd_table::find(self, fd);
            self.fds.set(other);
            if other.is_none() {
                // One that is counted and came into the table since then found that another was known.
                fd_table::find(self, fd).into_iter().for_each(|late| self.fds.learn(late));
            }
        }
    }

    /// Whether a thread waits in a call on it, or is in one that will look again. Then that one ends it, and what the engine counts as its end, the close of the
    /// last descriptor, comes then: a copy of `fd` is kept. Without room for one it ends now.
    fn ends_later(&'static self, fd: RawFd) -> bool {
        // A call that moves bytes at this moment has the lock, and leaves word when it is to go on.
        let owner_queue = self.lock_owner_queue();
        let mut watch = self.watch.lock();
        if !self.is_used(&watch) {
            return false;
        }
        let Some(Ok(held)) = self.owner_queue().map(|owner_queue| owner_queue.session.own_fds().copy_of(fd))
        else {
            return false;
        };
        drop(owner_queue);
        self.fds.set(Some(held.raw()));
        // No epoll set reports it any more.
        let sets = std::mem::take(&mut watch.sets);
        self.watched.fetch_sub(sets.len() as u32, Ordering::SeqCst);
        watch.ending = Some(held);
        // They may all have gone before they could find it.
        let ended = self.take_ending(&mut watch);
        drop(watch);
        sets.iter().for_each(|watcher| watcher.set.drop_interest(watcher.slot_id, self));
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
        watchers.iter().for_each(|watcher| watcher.set.drop_interest(watcher.slot_id, self));
        match self.kind() {
            _ if self.copies().is_moved() => self.detach(),
            Kind::Stream => self.close_stream(last),
            Kind::Listener => self.close_listener(),
            Kind::Fresh => {}
        }
        self.retire();
    }

    /// Leaves its owner queue: another session has the flow or listener, or will have it.
    fn detach(&'static self) {
        // A child's copy of its parent's queue sets: nobody looks there any more.
        if self.session().is_some_and(Session::is_foreign) {
            return;
        }
        let Some((mut queue, slot_id)) = self.lock_owner_queue() else { return };
        if let Some((io, stream)) = queue.stream(slot_id, self) {
            close_copy(io, stream);
            queue.orphan(slot_id);
        } else if queue.listener(slot_id, self).is_some() {
            queue.remove_listener(slot_id);
        }
    }

    fn close_stream(&'static self, last: Option<RawFd>) {
        let linger = self.settings.lock().linger.time();
        if linger.is_some_and(|time| !time.is_zero()) && !self.is_shared() {
            self.wait_drained(linger.unwrap_or_default());
        }
        let may_keep = last.filter(|_| !epoll::are_signals_used());
        // What this process has sent from the other end is unread, and makes it a reset.
        self.owner_queues().for_each(|owner_queue| owner_queue.session.settle_first());
        let Some((mut queue, slot_id)) = self.lock_owner_queue() else { return };
        // With the lock no child is made.
        let shared = self.is_shared();
        queue.drain();
        let Some((io, stream)) = queue.stream(slot_id, self) else { return };
        if shared && (stream.direct.is_some() || stream.recv.received.private() > 0) {
            // Whoever has the other copy may read on where this process stopped.
            drop(queue);
            self.relinquish();
            self.detach();
            return;
        } else if !shared && !stream.custody.has_let_go() && !stream.link.is_moved() {
            stream.end_records(io);
            stream.custody.let_go();
            let may_tell = io.may_tell_close(stream);
            let unread = stream.direct.as_mut().is_some_and(|direct| direct.let_go());
            // As for bytes that the engine knows of: RST when some were left unread (RFC 2525 section 2.17).
            let abort = unread || stream.recv.received.private() > 0;
            let resets = abort || stream.recv.unread() > 0 || linger.is_some_and(|time| time.is_zero());
            if may_tell && (resets || !stream.half_close.is_write_shut()) {
                io.tell_end(stream, resets);
            }
            let (session, flow) = (io.session, stream.flow);
            let keep = |anchor| may_keep.is_some_and(|fd| session.anchors().keep(session, anchor, fd));
            if let Some(fd) = may_keep.filter(|_| stream.ulp.tls.is_some()) {
                Socket::unmark_keys(fd);
            }
            if let Some(anchor) = stream.custody.anchor.filter(|anchor| session.alive() && keep(*anchor)) {
                io.command(Command::CloseRetained { flow, anchor, abort });
            } else if abort || resets && stream.link == Link::Open {
                // That the descriptor is closed the engine hears of the kernel, and later than of what this process does next.
                io.command(Command::Close { flow, abort: true });
            } else if !stream.half_close.is_write_shut() && stream.link == Link::Open {
                io.command(Command::ShutdownSend { flow });
            }
        }
        close_copy(io, stream);
        let session = io.session;
        queue.orphan(slot_id);
        drop(queue);
        // This process may have the other end: a call on that one finds the end, or the reset, not a peer.
        session.settle_first();
    }

    /// Puts it back for reuse. Nothing refers to it but threads that are still inside a call on it.
    pub(super) fn retire(&'static self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.kick_waiters();
        self.kind.store(Kind::Fresh as u8, Ordering::Release);
        self.slot_id.store(NO_SLOT, Ordering::Release);
        self.owner_queue.store(std::ptr::null_mut(), Ordering::Release);
        self.copies().set_moved(false);
        self.siblings.forget();
        self.nonblocking.store(false, Ordering::Relaxed);
        self.inet6.store(false, Ordering::Relaxed);
        self.tells_unread.store(false, Ordering::Relaxed);
        self.time_limits.copy(&TimeLimits::default());
        self.fds.forget();
        *self.settings.lock() = Settings::default();
        self.has_new_options.store(false, Ordering::Relaxed);
        self.fds.own_twin.close();
        self.fds.hidden_anchor.close();
        let mut registry = REGISTRY.lock();
        // With the lock, or whoever notes it at this moment (`install_shared`) would note it of the socket's next connection.
        self.file.forget();
        registry.free.push(self);
    }

    pub(super) fn close_listener(&'static self) {
        let last = !self.watched_as().is_shared();
        let Some((mut queue, slot_id)) = self.lock_owner_queue() else { return };
        let mut ends = None;
        if let Some((io, listener)) = queue.listener(slot_id, self)
            && listener.closed == Closed::No
        {
            io.command(Command::CloseListener { listener: listener.id, last });
            ends = Some(listener.id).filter(|_| last);
        }
        queue.remove_listener(slot_id);
        drop(queue);
        self.wait_until_lapsed(ends);
    }

    /// The engine was told that a listener ends. Before the kernel can give the name to somebody else, everybody is to know that it has
    /// lapsed: a client that goes on without asking would be refused though that one listens. Whatever is asked is answered behind it.
    fn wait_until_lapsed(&'static self, ends: Option<ListenerId>) {
        if let (Some(id), Some(owner_queue), true) = (ends, self.owner_queue(), self.has_twin()) {
            let _ = self.command_within(ENDS_WITHIN, owner_queue, &mut |queue| {
                queue.start_asking(owner_queue, self, |token| Command::CountWaiting { listener: id, token })
            });
        }
    }

    /// `shutdown` of a listener: it hands out nothing more, to nobody who has it.
    pub(super) fn end_listener(&'static self, why: Closed) {
        let ends = self.with_listener(|io, listener| {
            let was_open = listener.closed == Closed::No;
            if was_open {
                io.command(Command::EndListener { listener: listener.id });
                listener.end(why);
            }
            was_open.then_some(listener.id)
        });
        self.wait_until_lapsed(ends.flatten());
    }

    /// SO_LINGER: waits until all is acknowledged, the end of the stream among it, `time` at most. With bytes left unread there
    /// is nothing to wait for: the connection is reset.
    pub(super) fn wait_drained(&'static self, time: Duration) {
        let mut is_reported = false;
        let mut look = |io: &mut crate::queue::QueueIo, stream: &mut stream::Stream, _: SlotId| {
            if stream.link != Link::Open || stream.recv.unread() > 0 {
                return true;
            }
            if !std::mem::replace(&mut is_reported, true) {
                let option = FlowOption::TellEnd;
                io.command(Command::SetOption { flow: stream.flow, option, value: 1 });
                io.shut_write(stream);
            }
            if !stream.is_acknowledged(io) {
                return false;
            }
            io.end_is_acknowledged(stream.flow)
        };
        let mut done = || self.with_stream(&mut look).unwrap_or(true);
        // The descriptor is to be closed, whatever comes.
        let call = SocketCall::begin(self);
        let on = BlockOn { on_signal: OnSignal::Defer, ..Socket::block(&call, Some(time), None) };
        let _ = block_on(on, &mut || Ok(done().then_some(())));
    }
}
