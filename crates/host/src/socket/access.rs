//! The way to a socket's stream: the lock of its owner queue, what waits there taken first, and what another process is to have given back after.

use crate::queue::draining::give_up_at;
use crate::queue::{QueueGuard, QueueIo};
use crate::slots::SlotId;
use crate::socket::Socket;
use crate::socket::arrivals::{Closed, Listener};
use crate::socket::stream::Stream;

impl Socket {
    /// Does `f` to its stream, after taking the completions that wait. `None`: it has none.
    pub(crate) fn with_stream<R>(&self, f: impl FnOnce(&mut QueueIo, &mut Stream, SlotId) -> R) -> Option<R> {
        self.with_ready_stream(|_| false, f)
    }

    /// The same, but takes what waits only now and then when the stream says that it has what `f` needs.
    pub(crate) fn with_ready_stream<R>(
        &self,
        has: impl FnOnce(&Stream) -> bool,
        f: impl FnOnce(&mut QueueIo, &mut Stream, SlotId) -> R,
    ) -> Option<R> {
        let (mut queue, slot_id) = crate::socket::access::lock_claimed(self)?;
        let shared = self.is_shared();
        let used = if shared { crate::queue::draining::begin_use(&mut queue, slot_id) } else { None };
        let ready = queue.stream(slot_id, self).is_some_and(|(_, stream)| has(stream));
        if !ready || shared || queue.is_drain_due() {
            queue.drain();
        }
        let result = queue.stream(slot_id, self).map(|(io, stream)| {
            let result = f(io, stream, slot_id);
            (result, stream.send.shortage.starved)
        });
        if shared {
            queue.settle_pending();
            used.into_iter().for_each(|flow| queue.io.end_use(flow));
        }
        let is_newly_starved = matches!(result, Some((_, true))) && queue.starve(slot_id);
        if is_newly_starved {
            queue.starve_siblings(slot_id);
        }
        if shared {
            self.finish_yielding(queue, slot_id);
        } else {
            drop(queue);
        }
        if is_newly_starved && let Some(owner_queue) = self.owner_queue() {
            owner_queue.parking.tell_stuck();
        }
        result.map(|(result, _)| result)
    }

    /// Does `f` to its stream as it is.
    pub(crate) fn peek_stream<R>(&self, f: impl FnOnce(&mut Stream) -> R) -> Option<R> {
        let (mut queue, slot_id) = crate::socket::access::lock_claimed(self)?;
        queue.stream(slot_id, self).map(|(_, stream)| f(stream))
    }

    /// A look has found nothing: what anybody handed to its engines before comes first. Whether to drain and look again.
    pub(crate) fn let_engine_finish(&self) -> bool {
        self.owner_queues().fold(false, |waited, owner_queue| {
            let more = owner_queue.session.settle();
            if more {
                owner_queue.drain();
            }
            waited | more
        })
    }

    /// What `look` sees; once more if it says nothing yet (`is_nothing`) and what was handed to the engine may change that.
    pub(super) fn seen<T>(&self, is_nothing: impl Fn(&T) -> bool, look: impl Fn() -> T) -> T {
        let first = look();
        if is_nothing(&first) && self.let_engine_finish() { look() } else { first }
    }

    /// Gives the connection back to the engine. Waits for what its peer has said to send and the engine still brings, without
    /// a lock.
    pub(super) fn relinquish(&self) {
        let Some((mut queue, slot_id)) = self.lock_owner_queue() else { return };
        if queue.stream(slot_id, self).is_none() {
            return;
        }
        queue.relinquish(slot_id);
        self.finish_yielding(queue, slot_id);
    }

    /// At the end of a call: what is being given back is given back before the program goes on, which may make no other call.
    /// What the engine has to say first, and what it still brings, comes with the drains.
    pub(super) fn finish_yielding(&self, queue: QueueGuard<'static>, slot_id: SlotId) {
        let awaits = queue.awaits_rest_of(slot_id);
        drop(queue);
        if let (true, Some(owner_queue)) = (awaits, self.owner_queue()) {
            owner_queue.drain_until(give_up_at(), |queue| !queue.awaits_rest_of(slot_id));
        }
    }

    pub(super) fn with_listener<R>(&self, f: impl FnOnce(&mut QueueIo, &mut Listener) -> R) -> Option<R> {
        let (mut queue, slot_id) = self.lock_owner_queue()?;
        queue.drain();
        queue.listener(slot_id, self).map(|(io, listener)| f(io, listener))
    }

    /// Its engine is gone, or does not know it.
    pub(super) fn lose_engine(&self) {
        self.with_listener(|_, listener| listener.on_death());
    }

    pub(super) fn has_lost_engine(&self) -> bool {
        self.with_listener(|_, listener| listener.closed == Closed::EngineGone).unwrap_or(true)
    }
}

/// The lock of the queue set that a socket's stream is in, and where. A socket that another thread is claiming has no stream until that is
/// done, which is waited for: so not for who holds the lock of a queue set.
#[inline]
pub(super) fn lock_claimed(socket: &Socket) -> Option<(QueueGuard<'static>, SlotId)> {
    let locked = socket.lock_owner_queue()?;
    if socket.copies().is_moved() { wait_if_claiming(socket, locked) } else { Some(locked) }
}

#[cold]
fn wait_if_claiming(
    socket: &Socket,
    (mut queue, slot_id): (QueueGuard<'static>, SlotId),
) -> Option<(QueueGuard<'static>, SlotId)> {
    if queue.stream(slot_id, socket).is_some() {
        return Some((queue, slot_id));
    }
    drop(queue);
    drop(socket.sharing.claiming.lock());
    socket.lock_owner_queue()
}
