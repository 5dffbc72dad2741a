//! Draining a queue set: what has come is taken, what found no room is tried again, and what leaves is looked at.

use crate::leaving::{BETWEEN_LOOKS, GIVEN_BACK_WITHIN, LOOKS_AT_ONCE};
use crate::queue::{Queue, QueueSet, SWEEP_EVERY};
use crate::slots::SlotId;
use crate::socket::arrivals::Listener;
use crate::socket::stream::Link;
use crate::sys;
use std::time::Duration;
use toe_abi::errno::Errno;
use toe_base::FlowId;
use toe_ring::owner_word;
use toe_ring::owner_word::UseOutcome;

impl Queue {
    /// Takes what came through all channels.
    pub(crate) fn drain_channels(&mut self) -> usize {
        self.is_at_channels = true;
        let taken = (0..self.io.channels.len()).map(|at| self.drain_channel(at)).sum();
        self.is_at_channels = false;
        // Backwards: as in `sweep_lent`.
        for at in (0..self.io.channels.len()).rev() {
            self.settle_leaving(at);
        }
        taken
    }

    /// Takes completions and tells their sockets. Returns how many.
    pub fn drain(&mut self) -> usize {
        if self.io.session.is_foreign() {
            // The rings are the parent's.
            return 0;
        }
        self.undrained = 0;
        self.drains = self.drains.wrapping_add(1);
        if self.drains.is_multiple_of(SWEEP_EVERY) {
            self.sweep_lent();
        }
        let taken = self.drain_completions() + self.drain_channels();
        if self.is_stuck() {
            self.retry();
        }
        taken
    }

    fn retry(&mut self) {
        self.retry_entries();
        self.retry_channels();
        self.sweep_lent();
        self.retry_yields();
        for slot_id in std::mem::take(&mut self.starved) {
            if self.streams.get_mut(slot_id).is_some_and(|stream| stream.resume(&mut self.io)) {
                self.starved.push(slot_id);
            }
        }
    }

    fn on_death(&mut self) {
        for stream in self.streams.values_mut() {
            if !stream.link.is_closed() {
                stream.on_reset(Some(&mut self.io.blocks), Errno::ECONNRESET);
            }
        }
        for listener in self.listeners.values_mut() {
            listener.on_death();
        }
        for pending in &mut self.pending {
            if pending.result.is_none() {
                pending.result = Some(Err(Errno::ENETDOWN));
                pending.socket.kick_waiters();
            }
        }
        self.io.deferred.clear();
        self.io.owing.clear();
        self.yielding.clear();
        self.starved.clear();
    }

    /// Whether there is nothing here that another process could come to share, and that it does not share already.
    pub(crate) fn has_nothing_to_share(&mut self) -> bool {
        self.drain();
        self.by_flow.is_empty() && self.listeners.values().all(Listener::is_given_back)
    }
}

impl QueueSet {
    /// Moves completions to their sockets. When another thread is at it, it will tell whoever waits.
    pub fn drain(&self) {
        if let Some(queue) = self.inner.try_lock() {
            queue.owing(&self.pending_wakes).drain();
        }
    }

    /// Asks for an interrupt and takes what came before it was asked for. `true`: the queue set has something to be
    /// retried soon, so do not sleep long.
    pub fn arm(&self) -> bool {
        let mut queue = self.lock();
        queue.sweep_lent();
        // Before the interrupt is armed: that has the fence for them, too.
        queue.io.channels.iter().for_each(|channel| channel.end.arm());
        queue.io.ring.irq().arm();
        queue.drain();
        queue.is_stuck()
    }

    /// The engine is gone: everything here is reset.
    pub fn on_death(&self) {
        self.lock().on_death();
    }

    /// Waits, without the lock, until nothing that leaves a channel is owed bytes. Ends soon after
    /// [`crate::leaving::LAST_ENTRY_WITHIN`], because then the channels of those that are owed some are reset.
    pub(crate) fn wait_until_left(&self) {
        self.drain_until(give_up_at(), |queue| !queue.is_leaving());
    }

    /// Waits, without the lock, until `done` says so of what the drains have brought, or until `end`.
    pub(crate) fn drain_until(&self, end: Duration, mut done: impl FnMut(&Queue) -> bool) {
        for look in 0_u32.. {
            let mut queue = self.lock();
            queue.drain();
            if done(&queue) || self.is_dead() {
                return;
            }
            drop(queue);
            if look < LOOKS_AT_ONCE {
                rustix::thread::sched_yield();
                continue;
            }
            // Whoever is waited for may need this very core.
            if sys::now() >= end {
                return;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }
}

/// When a wait that begins now is over whatever comes; after the last moment of those that may be reset for it.
pub(crate) fn give_up_at() -> Duration {
    sys::now() + GIVEN_BACK_WITHIN + GIVEN_BACK_WITHIN / 4
}

/// A thread is about to take or give bytes of a stream whose flow other processes may have. `Some`: it is at that flow until
/// [`crate::queue::QueueIo::end_use`]. A flow that was withdrawn is another's, though the completion that says so is not here yet.
pub(crate) fn begin_use(queue: &mut Queue, slot_id: SlotId) -> Option<FlowId> {
    let flow = queue.streams.get(slot_id)?.flow;
    let at = queue.io.owner_word(flow)?;
    match owner_word::begin_use(&queue.io.region, at, flow) {
        UseOutcome::Begun => return Some(flow),
        UseOutcome::Withdrawn => queue.on_moved(flow),
        UseOutcome::OfAnother if queue.streams.get(slot_id)?.link == Link::Open => _ = queue.drain(),
        UseOutcome::OfAnother => {}
    }
    None
}
