//! A connection that waits at a listener is handed to a session: to one that has asked, or ahead, to one that takes often. Who sleeps
//! is told first.

use super::Edit;
use crate::control::holders::Holder;
use crate::control::listen::Listeners;
use crate::control::listener_idx::ListenerIdx;
use crate::flow::record::OpenNotice;
use crate::flow::tenancy::{AcceptOffer, TenancyEvent};
use crate::parts::{Accepting, HostInterface, Records};
use crate::work::Owner;
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{FlowIdx, Instant, ListenerId, SessionId};
use toe_tcp::memory::HostMemory;

/// How long a connection waits for the one that was told of it before all are.
pub(super) const TELL_ALL_AFTER_US: u64 = 1000;
/// How long until one is told that leaves its completions untaken.
const TELL_DEAF_AFTER_US: u64 = 100_000;
/// A connection that was handed out ahead, and that others want, goes back after so long.
const UNTAKEN_FOR_US: u64 = 1_000;
/// One that was asked for, after this: its program may have ceased to wait meanwhile (SO_RCVTIMEO, a signal), but most often it only lacks a processor.
const ASKED_FOR_US: u64 = 50_000;

/// Of connections that nobody has accepted, and that change hands, so many bytes are copied at one moment.
pub(super) const COPIED_AT_ONCE: u32 = 256 << 10;

/// Why a holder is handed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    Prefetched,
    /// It answers a question.
    AskedFor,
}

impl Handed {
    pub(super) fn goes_back_at(self, now: Instant) -> Instant {
        now.after_us(if self == Handed::AskedFor { ASKED_FOR_US } else { UNTAKEN_FOR_US })
    }
}

impl<H: HostMemory> Accepting<'_, '_, H> {
    /// Gives waiting connections to holders with credit, or says that they wait.
    pub(super) fn hand_out(&mut self, listener_idx: ListenerIdx) {
        let Some(listener) = self.records.listeners.get(listener_idx) else { return };
        if listener.holders.takers() == 0 && !listener.queue.waiting.is_empty() {
            let look_at = listener.tell_all_at.min(self.now.after_us(TELL_ALL_AFTER_US));
            self.records.listeners.set_tell_all(listener_idx, look_at);
            return;
        }
        if listener.holders.is_asked() {
            self.records.hostif.tell_waiting(self.records.listeners, self.now, listener_idx, false);
            self.records.listeners.watch_untaken(self.now, listener_idx);
            return;
        }
        let mut without_room = Vec::new();
        let mut again_at = self.now.after_us(TELL_DEAF_AFTER_US);
        while let Some(listener) =
            self.records.listeners.get_mut(listener_idx).filter(|l| !l.queue.waiting.is_empty())
        {
            let Some(holder) = listener.holders.next_taker() else { break };
            if !self.records.listeners.may_copy_more(self.now) {
                again_at = self.now.after_us(1);
                self.records.listeners.set_tell_all(listener_idx, again_at);
                break;
            }
            if self.hand_first(listener_idx, &holder, Handed::Prefetched) {
                continue;
            }
            if let Some(known) = self.records.listeners.holder_mut(listener_idx, holder.session, holder.id) {
                // Its quota is used up: what waits goes to others, or to this one a little later.
                without_room.push((holder.session, holder.id, holder.credit));
                known.credit = 0;
            }
        }
        // In vain now: who was told that connections wait while each was asked for.
        self.records.hostif.tell_nothing_waits(self.records.listeners, listener_idx);
        let Some(listener) =
            self.records.listeners.get_mut(listener_idx).filter(|_| !without_room.is_empty())
        else {
            return;
        };
        for (session, id, credit) in without_room {
            if let Some(holder) = listener.holders.get_mut(session, id) {
                holder.credit = credit;
            }
        }
        if !listener.queue.waiting.is_empty() {
            self.records.listeners.set_tell_all(listener_idx, again_at);
        }
    }

    /// Hands a holder the connection that has waited longest. `false`: none waits, or there is no room for it.
    pub(super) fn hand_first(&mut self, listener_idx: ListenerIdx, holder: &Holder, handed: Handed) -> bool {
        let listener = self.records.listeners.get(listener_idx);
        let first = listener.and_then(|listener| listener.queue.waiting.front().copied());
        let hand = |room: &mut Self, idx: Edit<'_>| room.hand_to(idx, (holder, handed));
        let is_handed = first.is_some_and(|idx| self.edit(idx, hand));
        if is_handed && let Some(listener) = self.records.listeners.get_mut(listener_idx) {
            listener.queue.waiting.pop_front();
            listener.queue.handed += 1;
            if let Some(known) = listener.holders.get_mut(holder.session, holder.id) {
                known.credit = known.credit.saturating_sub(1);
            }
        }
        is_handed
    }

    fn hand_to(&mut self, idx: Edit<'_>, (holder, handed): (&Holder, Handed)) -> bool {
        if self.records.memory().may_own(*idx, holder.session).is_err() {
            return false;
        }
        let Some(flow_id) =
            self.records.hostif.sessions.get_mut(holder.session).and_then(|s| s.flows.insert(*idx))
        else {
            return false;
        };
        if !self.move_unaccepted(idx, holder.session) {
            if let Some(session) = self.records.hostif.sessions.get_mut(holder.session) {
                session.flows.remove(flow_id);
            }
            return false;
        }
        let owner = Owner { session: holder.session, queue_set: holder.queue_set, flow_id, fd: u32::MAX };
        let goes_back_at = handed.goes_back_at(self.now);
        let asked_for = handed == Handed::AskedFor;
        self.records.hostif.own(
            self.records.flows,
            idx,
            TenancyEvent::Handed { owner, handed_to: holder.id, goes_back_at, asked_for },
        );
        let flow = self.records.flows.get_mut(idx);
        flow.report.opened = OpenNotice::Accepted(holder.id);
        flow.report.tell_end_again();
        self.records.hostif.write_owner_word(self.records.flows, *idx, Owned::Offered, self.host);
        self.records.memory().tell_flow_info(idx, self.host);
        true
    }

    /// Takes a flow from a session that was handed it and whose program has not taken it. `false`: there is no memory
    /// for what it holds. Nothing was sent by it.
    pub(super) fn take_untaken(&mut self, idx: Edit<'_>) -> bool {
        self.records.answer_otherwise(*idx);
        self.records.hostif.disown(self.records.flows, idx);
        self.move_unaccepted(idx, SessionId(0))
    }

    /// Whether the program of a connection's session has accepted it, which the engine is about to hear. If not it cannot any more. What has been
    /// accepted lives on without its listener.
    pub(super) fn was_accepted(&mut self, idx: Edit<'_>) -> bool {
        let was_accepted = self.records.flows.get(*idx).conn.tenancy.offer().is_some()
            && !self.records.hostif.withdraw(self.records.flows, *idx, self.host);
        if was_accepted {
            self.records.forget_in_listener(idx);
        }
        was_accepted
    }

    /// The handshake of a flow is complete.
    pub(super) fn established(&mut self, idx: Edit<'_>) {
        if self.completed_early(idx) {
            return;
        }
        let Some(listener_idx) = self.records.flows.get(*idx).conn.tenancy.listener() else {
            self.records.flows.get_mut(idx).report.opened = OpenNotice::Connected(Errno::OK);
            self.records.memory().tell_flow_info(idx, self.host);
            return;
        };
        let Some(listener) = self.records.listeners.get_mut(listener_idx) else { return };
        listener.queue.waiting.push_back(*idx);
        self.records.listeners.uncount_half_open(self.records.flows, listener_idx, idx);
        self.records.listeners.arrivals += 1;
        let number = self.records.listeners.arrivals;
        self.records.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::Opened { number });
        self.hand_out(listener_idx);
    }

    /// The handshake of a connection that its program may have had before is complete. `false`: it is no such one.
    fn completed_early(&mut self, idx: Edit<'_>) -> bool {
        if !core::mem::take(&mut self.records.flows.get_mut(idx).tcb.handshake.fast_open.early) {
            return false;
        }
        self.records.listeners.leave_fast_open_queue(self.records.flows, idx, None);
        self.records.memory().tell_flow_info(idx, self.host);
        true
    }

    /// Moves the unread data of a connection that nobody has accepted.
    fn move_unaccepted(&mut self, idx: Edit<'_>, to: SessionId) -> bool {
        let tcb = &self.records.flows.get(*idx).tcb;
        if tcb.receiving.buffer.session != to {
            self.records.listeners.note_copied(self.now, tcb.receiving.buffer.unconsumed(tcb.data_nxt()));
        }
        self.records.memory().move_receive_memory(idx, to, to, self.host)
    }
}

impl Records<'_> {
    /// A session whose question the flow was to answer has not heard of it, and will not: it has that answer to wait for no longer, and asks
    /// again once it is told that connections wait.
    fn answer_otherwise(&mut self, idx: FlowIdx) {
        let flow = self.flows.get(idx);
        let offer = flow.conn.tenancy.offer().filter(|offer| offer.asked_for);
        let Some(&AcceptOffer { arrival, owner, handed_to: id, .. }) =
            offer.filter(|_| flow.report.is_accepted_untold())
        else {
            return;
        };
        if let Some(listener) = arrival.listener {
            self.listeners.untell(listener, owner.session, id);
        }
        let nothing = Completion::NothingWaits { listener: id, answer: true };
        self.hostif.answer(owner.session, owner.queue_set, nothing);
    }
}

impl Listeners {
    /// Whether more may change hands at this moment. Of very many, each with bytes, the rest do later.
    pub(super) fn may_copy_more(&self, now: Instant) -> bool {
        self.copied.0 != now || self.copied.1 < COPIED_AT_ONCE
    }

    fn note_copied(&mut self, now: Instant, len: u32) {
        let before = if self.copied.0 == now { self.copied.1 } else { 0 };
        self.copied = (now, before.saturating_add(len));
    }

    pub(super) fn untell(&mut self, idx: ListenerIdx, session: SessionId, id: ListenerId) {
        if let Some(holder) = self.holder_mut(idx, session, id) {
            holder.notified = false;
        }
    }

    pub(super) fn holder_mut(
        &mut self,
        idx: ListenerIdx,
        session: SessionId,
        id: ListenerId,
    ) -> Option<&mut Holder> {
        self.get_mut(idx)?.holders.get_mut(session, id)
    }

    /// What is handed out and not taken is looked at in a while, if there is somebody else to take it.
    pub(super) fn watch_untaken(&mut self, now: Instant, idx: ListenerIdx) {
        let Some(listener) = self.get(idx) else { return };
        let at = listener.tell_all_at.min(now.after_us(UNTAKEN_FOR_US));
        if listener.queue.handed > 0 && listener.holders.takers() > 1 {
            self.set_tell_all(idx, at);
        }
    }
}

impl HostInterface {
    /// Tells one more holder that connections wait: most often it takes them, and the others sleep on. When one waits
    /// still after a moment, all are told.
    pub(super) fn tell_waiting(
        &mut self,
        listeners: &mut Listeners,
        now: Instant,
        listener_idx: ListenerIdx,
        all: bool,
    ) {
        let Some(listener) = listeners.get_mut(listener_idx) else { return };
        if listener.queue.waiting.is_empty() {
            return;
        }
        let sessions = &self.sessions;
        let has_room = |holder: &Holder| !sessions.answers_are_full(holder.session, holder.queue_set);
        let told = if all {
            listener.holders.all_untold(has_room)
        } else {
            listener.holders.next_untold(has_room).into_iter().collect()
        };
        if all {
            // Whoever takes no completions is told when it does again.
            let deaf = listener.holders.list.iter().any(|holder| holder.takes && !holder.notified);
            let again = if deaf { now.after_us(TELL_DEAF_AFTER_US) } else { Instant::FAR_FUTURE };
            listeners.set_tell_all(listener_idx, again);
        } else if listener.tell_all_at > now.after_us(TELL_ALL_AFTER_US) {
            // Later: it was nobody's for a while.
            listeners.set_tell_all(listener_idx, now.after_us(TELL_ALL_AFTER_US));
        }
        for holder in told {
            let listener = holder.id;
            self.answer(holder.session, holder.queue_set, Completion::ConnectionsWait { listener });
        }
    }

    /// When no connection waits any more, those who were told that one does need not ask.
    pub(super) fn tell_nothing_waits(&mut self, listeners: &mut Listeners, idx: ListenerIdx) {
        let Some(listener) =
            listeners.get_mut(idx).filter(|l| l.holders.is_shared && l.queue.waiting.is_empty())
        else {
            return;
        };
        let sessions = &self.sessions;
        // One that takes no completions goes on believing that it has to ask.
        let has_room = |holder: &Holder| !sessions.answers_are_full(holder.session, holder.queue_set);
        let mut told = Vec::new();
        for holder in listener.holders.list.iter_mut().filter(|holder| holder.notified && has_room(holder)) {
            holder.notified = false;
            told.push(*holder);
        }
        if listeners.get(idx).is_some_and(|listener| listener.queue.handed == 0) {
            listeners.set_tell_all(idx, Instant::FAR_FUTURE);
        }
        for holder in told {
            let nothing = Completion::NothingWaits { listener: holder.id, answer: false };
            self.answer(holder.session, holder.queue_set, nothing);
        }
    }
}
