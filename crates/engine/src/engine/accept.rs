//! Listeners: connections come in, wait, are handed to a session that asked for some, and are taken by its program.

use super::EngineView;
use super::hand_out::{Handed, TELL_ALL_AFTER_US};
use super::listener_end::ON_ITS_WAY_FOR_US;
use crate::control::listener_idx::ListenerIdx;
use crate::counter::Counter;
use crate::hostif::anchors::AnchorTarget;
use crate::parts::Accepting;
use toe_abi::attach::FenceReason;
use toe_abi::entry::Completion;
use toe_base::{AnchorHandle, Instant, ListenerId, QueueSetId, SessionId};
use toe_tcp::memory::HostMemory;

/// How long connections wait at a listener whose descriptor some process has, but that no session holds. Linux waits for
/// ever; but that process may be one that knows nothing of the engine.
const ORPHAN_FOR_US: u64 = 60_000_000;
/// So long connections wait at a listener from which no program has ever taken one: then new ones are the kernel's, which whoever has its socket can take.
const UNTAKEN_FOR_US: u64 = 1_000_000;

impl EngineView<'_> {
    /// Adds to `sessions` those whose entries may be about what an anchor stands for, each once.
    pub fn sessions_at(self, anchor: AnchorHandle, sessions: &mut Vec<SessionId>) {
        let mut add = |session: SessionId| {
            if session.0 != 0 && !sessions.contains(&session) {
                sessions.push(session);
            }
        };
        match self.0.hostif.anchors.get(anchor) {
            // A command under way may bind it.
            Some(AnchorTarget::Unused(session)) => add(session),
            Some(AnchorTarget::Flow(idx)) => {
                add(self.0.flows.get(idx).conn.tenancy.owner().session);
                // What its other end did before comes before its close.
                let peer = self.0.flows.peer_here(idx).map(|peer| self.0.flows.get(peer));
                peer.into_iter().for_each(|peer| add(peer.conn.tenancy.owner().session));
            }
            Some(AnchorTarget::Listener(idx)) => {
                let listener = self.0.listeners.get(idx);
                listener.into_iter().flat_map(|l| &l.holders.list).for_each(|holder| add(holder.session));
            }
            Some(AnchorTarget::Nothing) | None => {}
        }
    }
}

impl<H: HostMemory> Accepting<'_, '_, H> {
    /// Listeners whose time has come.
    pub(super) fn tell_waiting_when_due(&mut self) {
        while let Some(idx) = self.records.listeners.due(self.now) {
            self.records.listeners.set_tell_all(idx, Instant::FAR_FUTURE);
            if self.records.listeners.is_orphaned(self.now, idx) {
                self.look_after_orphan(idx);
            } else if self.records.listeners.get(idx).is_some_and(|listener| listener.holders.is_asked()) {
                self.records.hostif.tell_waiting(self.records.listeners, self.now, idx, true);
            } else {
                self.hand_out(idx);
            }
            self.take_back_late(idx);
        }
    }

    /// `Command::TakeConnection`. A host that goes on asking and takes no answer is told so.
    pub(super) fn take_connection(
        &mut self,
        session: SessionId,
        queue_set: QueueSetId,
        id: ListenerId,
    ) -> Result<(), FenceReason> {
        self.records.hostif.takes_answers(session, queue_set)?;
        let Some(idx) = self.records.hostif.sessions.get(session).and_then(|s| s.listener(id)) else {
            self.records.counters.add(Counter::StaleEntries);
            return Ok(());
        };
        let Some(listener) = self.records.listeners.get_mut(idx) else { return Ok(()) };
        let is_waiting = !listener.queue.waiting.is_empty();
        let Some(holder) = listener.holders.get_mut(session, id) else { return Ok(()) };
        holder.queue_set = queue_set;
        let holder = *holder;
        if self.hand_first(idx, &holder, Handed::AskedFor) {
            self.hand_more(idx, (session, id));
        } else {
            self.records.listeners.untell(idx, session, id);
            let nothing = Completion::NothingWaits { listener: id, answer: true };
            self.records.hostif.answer(session, queue_set, nothing);
            if is_waiting {
                // Its quota is used up: it is for the others, and later for this one.
                self.records.listeners.set_tell_all(idx, self.now.after_us(TELL_ALL_AFTER_US));
            }
        }
        self.records.hostif.tell_nothing_waits(self.records.listeners, idx);
        Ok(())
    }

    /// Connections wait at a listener that no session takes from.
    fn look_after_orphan(&mut self, idx: ListenerIdx) {
        let Some(listener) = self.records.listeners.get_mut(idx) else { return };
        let (local, is_held) = (listener.local, !listener.holders.list.is_empty());
        let since = listener.orphan_since.unwrap_or(self.now);
        let patience_us = if listener.holders.is_on_its_way() { ON_ITS_WAY_FOR_US } else { ORPHAN_FOR_US };
        let (left_at, closes_at) = (since.after_us(UNTAKEN_FOR_US), since.after_us(patience_us));
        if self.now < left_at {
            self.records.listeners.set_tell_all(idx, left_at);
            return;
        }
        if listener.process_each.on_nobody_takes() {
            self.records.counters.add(Counter::ListenersLeft);
            self.records.names.note_lapse();
            self.records.leave_listener_to_kernel(local);
        }
        if is_held {
            // Its program may come to it: what waits, waits on.
        } else if self.now < closes_at {
            self.records.listeners.set_tell_all(idx, closes_at);
        } else {
            self.close_listener(idx);
        }
    }
}
