//! Listeners: connections come in, wait, are handed to a session that asked for some, and are taken by its program.

use super::ahead::Handed;
use super::{Engine, EngineView};
use crate::control::listen::{Holder, Listener, ListenerIdx, ON_ITS_WAY};
use crate::control::names::Rest;
use crate::counter::Counter;
use crate::flow::tenancy::{AcceptOffer, QueuePosition, Tenancy, TenancyEvent};
use crate::hostif::HostSide;
use crate::hostif::anchors::AnchorTarget;
use crate::work::Owner;
use toe_abi::attach::FenceReason;
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{AnchorHandle, FlowIdx, Instant, ListenerId, QueueSetId, SessionId};

/// How long a connection waits for the one that was told of it before all are.
const TELL_ALL_AFTER_US: u64 = 1000;

/// How long until one is told that leaves its completions untaken.
const TELL_DEAF_AFTER_US: u64 = 100_000;

/// How long connections wait at a listener whose descriptor some process has, but that no session holds. Linux waits for
/// ever; but that process may be one that knows nothing of the engine.
const ORPHAN_FOR_US: u64 = 60_000_000;
/// So long connections wait at a listener from which no program has ever taken one: then new ones are the kernel's, which whoever has its socket can take.
const UNTAKEN_FOR_US: u64 = 1_000_000;
/// So long a listener waits for whoever was sent its kernel socket; after that the receiver is a program that knows nothing of the
/// engine.
const ON_ITS_WAY_FOR_US: u64 = 2_000_000;

impl EngineView<'_> {
    /// Adds to `sessions` those whose entries may be about what an anchor stands for, each once.
    pub fn sessions_at(self, anchor: AnchorHandle, sessions: &mut Vec<SessionId>) {
        let mut add = |session: SessionId| {
            if session.0 != 0 && !sessions.contains(&session) {
                sessions.push(session);
            }
        };
        match self.0.anchors.get(anchor) {
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
                listener.into_iter().flat_map(|l| &l.holders).for_each(|holder| add(holder.session));
            }
            Some(AnchorTarget::Nothing) | None => {}
        }
    }
}

impl Engine {
    /// The handshake of a flow is complete.
    pub(super) fn established<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, host: &mut H) {
        if self.completed_early(idx, host) {
            return;
        }
        let Some(listener_idx) = self.flows.get(idx).conn.tenancy.listener() else {
            self.flows.get_mut(idx).report.connected = Some(Errno::OK);
            self.tell_flow_info(idx, host);
            return;
        };
        let Some(listener) = self.listeners.get_mut(listener_idx) else { return };
        listener.waiting.push_back(idx);
        self.uncount_half_open(listener_idx, idx);
        self.arrivals += 1;
        self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::Opened { number: self.arrivals });
        self.hand_out(now, listener_idx, host);
    }

    /// Gives waiting connections to holders with credit, or says that they wait.
    pub(super) fn hand_out<H: HostSide>(&mut self, now: Instant, listener_idx: ListenerIdx, host: &mut H) {
        let Some(listener) = self.listeners.get(listener_idx) else { return };
        if listener.takers() == 0 && !listener.waiting.is_empty() {
            let look_at = listener.tell_all_at.min(now.after_us(TELL_ALL_AFTER_US));
            self.listeners.set_tell_all(listener_idx, look_at);
            return;
        }
        if listener.is_asked() {
            self.tell_waiting(now, listener_idx, false);
            self.watch_untaken(now, listener_idx);
            return;
        }
        let mut without_room = Vec::new();
        while let Some(listener) = self.listeners.get_mut(listener_idx).filter(|l| !l.waiting.is_empty()) {
            let Some(holder) = listener.next_taker() else { break };
            if self.hand_first(now, listener_idx, &holder, Handed::Ahead, host) {
                continue;
            }
            if let Some(known) =
                self.listeners.get_mut(listener_idx).and_then(|l| l.holder_mut(holder.session, holder.id))
            {
                // Its quota is used up: what waits goes to others, or to this one a little later.
                without_room.push((holder.session, holder.id, holder.credit));
                known.credit = 0;
            }
        }
        // In vain now: who was told that connections wait while each was asked for.
        self.tell_nothing_waits(listener_idx);
        let Some(listener) = self.listeners.get_mut(listener_idx).filter(|_| !without_room.is_empty()) else {
            return;
        };
        for (session, id, credit) in without_room {
            if let Some(holder) = listener.holder_mut(session, id) {
                holder.credit = credit;
            }
        }
        if !listener.waiting.is_empty() {
            self.listeners.set_tell_all(listener_idx, now.after_us(TELL_DEAF_AFTER_US));
        }
    }

    /// Tells one more holder that connections wait: most often it takes them, and the others sleep on. When one waits
    /// still after a moment, all are told.
    fn tell_waiting(&mut self, now: Instant, listener_idx: ListenerIdx, all: bool) {
        let Some(listener) = self.listeners.get_mut(listener_idx) else { return };
        if listener.waiting.is_empty() {
            return;
        }
        let sessions = &self.sessions;
        let has_room = |holder: &Holder| !sessions.answers_are_full(holder.session, holder.queue_set);
        let told = if all {
            listener.all_untold(has_room)
        } else {
            listener.next_untold(has_room).into_iter().collect()
        };
        if all {
            // Whoever takes no completions is told when it does again.
            let deaf = listener.holders.iter().any(|holder| holder.takes && !holder.told);
            let again = if deaf { now.after_us(TELL_DEAF_AFTER_US) } else { Instant::FAR_FUTURE };
            self.listeners.set_tell_all(listener_idx, again);
        } else if listener.tell_all_at > now.after_us(TELL_ALL_AFTER_US) {
            // Later: it was nobody's for a while.
            self.listeners.set_tell_all(listener_idx, now.after_us(TELL_ALL_AFTER_US));
        }
        for holder in told {
            let listener = holder.id;
            self.answer(holder.session, holder.queue_set, Completion::ConnectionsWait { listener });
        }
    }

    /// Listeners whose time has come.
    pub(super) fn tell_waiting_when_due<H: HostSide>(&mut self, now: Instant, host: &mut H) {
        while let Some(idx) = self.listeners.due(now) {
            self.listeners.set_tell_all(idx, Instant::FAR_FUTURE);
            if !self.is_orphaned(now, idx) {
                if self.listeners.get(idx).is_some_and(Listener::is_asked) {
                    self.tell_waiting(now, idx, true);
                    self.take_back_late(now, idx, host);
                } else {
                    self.hand_out(now, idx, host);
                }
                continue;
            }
            let Some(listener) = self.listeners.get_mut(idx) else { continue };
            let (local, is_held) = (listener.local, !listener.holders.is_empty());
            let since = listener.orphan_since.unwrap_or(now);
            let patience_us = if listener.is_on_its_way() { ON_ITS_WAY_FOR_US } else { ORPHAN_FOR_US };
            let (left_at, closes_at) = (since.after_us(UNTAKEN_FOR_US), since.after_us(patience_us));
            if now < left_at {
                self.listeners.set_tell_all(idx, left_at);
                continue;
            }
            if listener.process_each.on_nobody_takes() {
                self.counters.add(Counter::ListenersLeft);
                self.names.note_lapse();
                self.leave_listener_to_kernel(local);
            }
            if is_held {
                // Its program may come to it: what waits, waits on.
            } else if now < closes_at {
                self.listeners.set_tell_all(idx, closes_at);
            } else {
                self.close_listener(now, idx, host);
            }
        }
    }

    /// A session lets go of a listener, and says whether nobody else has it.
    pub(super) fn note_passed_on(&mut self, session: SessionId, id: ListenerId, last: bool) {
        let idx = self.sessions.get(session).and_then(|session| session.listener(id));
        if let Some(listener) = idx.and_then(|idx| self.listeners.get_mut(idx)) {
            listener.is_passed_on |= !last;
        }
    }

    /// The last descriptor of a listener's last anchor was closed. If others may have the kernel's socket, that holds the listener for
    /// a moment: in a message it outlives all descriptors (unix(7), SCM_RIGHTS), and Linux loses no connection meanwhile.
    pub(super) fn send_listener_on_its_way<H: HostSide>(
        &mut self,
        now: Instant,
        idx: ListenerIdx,
        anchor: AnchorHandle,
        host: &mut H,
    ) -> bool {
        let passed_on = self.listeners.get_mut(idx).filter(|listener| listener.is_passed_on);
        let Some(twin) = passed_on.and_then(|listener| listener.send_on_its_way(anchor)) else {
            return false;
        };
        self.names.rests.remove(twin.identity, Rest::Listener(idx, anchor));
        self.names.rests.add(twin.identity, Rest::Listener(idx, ON_ITS_WAY));
        self.names.note_lapse();
        self.names.doubted.push(twin.identity);
        // Nobody listens by it any more; what was handed out and not taken waits again.
        self.drop_holders_of(now, idx, anchor, host);
        if let Some(listener) = self.listeners.get_mut(idx) {
            listener.is_shared = true;
            listener.orphan_since = Some(now);
        }
        self.listeners.set_tell_all(idx, now.after_us(ON_ITS_WAY_FOR_US));
        true
    }

    /// Whether a listener that no session takes from is kept: connections wait at it, or its kernel socket is on its way.
    fn is_orphaned(&mut self, now: Instant, idx: ListenerIdx) -> bool {
        let Some(listener) = self.listeners.get_mut(idx) else { return false };
        let orphaned = listener.takers() == 0 && (!listener.waiting.is_empty() || listener.is_on_its_way());
        listener.orphan_since = orphaned.then(|| listener.orphan_since.unwrap_or(now));
        orphaned
    }

    /// `Command::TakeConnection`. A host that goes on asking and takes no answer is told so.
    pub(super) fn take_connection<H: HostSide>(
        &mut self,
        now: Instant,
        session: SessionId,
        queue_set: QueueSetId,
        id: ListenerId,
        host: &mut H,
    ) -> Result<(), FenceReason> {
        if self.sessions.answers_are_full(session, queue_set) {
            return Err(FenceReason::CompletionOverflow);
        }
        let Some(idx) = self.sessions.get(session).and_then(|s| s.listener(id)) else {
            self.counters.add(Counter::StaleEntries);
            return Ok(());
        };
        let Some(listener) = self.listeners.get_mut(idx) else { return Ok(()) };
        let is_waiting = !listener.waiting.is_empty();
        let Some(holder) = listener.holder_mut(session, id) else { return Ok(()) };
        holder.queue_set = queue_set;
        let holder = *holder;
        if self.hand_first(now, idx, &holder, Handed::AskedFor, host) {
            self.hand_more(now, idx, (session, id), host);
        } else {
            self.untell(idx, session, id);
            self.answer(session, queue_set, Completion::NothingWaits { listener: id, answer: true });
            if is_waiting {
                // Its quota is used up: it is for the others, and later for this one.
                self.listeners.set_tell_all(idx, now.after_us(TELL_ALL_AFTER_US));
            }
        }
        self.tell_nothing_waits(idx);
        Ok(())
    }

    fn untell(&mut self, idx: ListenerIdx, session: SessionId, id: ListenerId) {
        if let Some(holder) = self.listeners.get_mut(idx).and_then(|l| l.holder_mut(session, id)) {
            holder.told = false;
        }
    }

    /// When no connection waits any more, those who were told that one does need not ask.
    fn tell_nothing_waits(&mut self, idx: ListenerIdx) {
        let Some(listener) = self.listeners.get_mut(idx).filter(|l| l.is_shared && l.waiting.is_empty())
        else {
            return;
        };
        let sessions = &self.sessions;
        // One that takes no completions goes on believing that it has to ask.
        let has_room = |holder: &Holder| !sessions.answers_are_full(holder.session, holder.queue_set);
        let mut told = Vec::new();
        for holder in listener.holders.iter_mut().filter(|holder| holder.told && has_room(holder)) {
            holder.told = false;
            told.push(*holder);
        }
        if self.listeners.get(idx).is_some_and(|listener| listener.handed == 0) {
            self.listeners.set_tell_all(idx, Instant::FAR_FUTURE);
        }
        for holder in told {
            let nothing = Completion::NothingWaits { listener: holder.id, answer: false };
            self.answer(holder.session, holder.queue_set, nothing);
        }
    }

    /// A child process is about to get copies of all that the session has ([`toe_abi::attach::Request::Share`]). EAGAIN:
    /// something is not announced yet for want of room.
    pub fn share<H: HostSide>(
        &mut self,
        now: Instant,
        session: SessionId,
        host: &mut H,
    ) -> Result<(), Errno> {
        let record = self.sessions.get(session).ok_or(Errno::EINVAL)?;
        let flows: Vec<FlowIdx> = record.flows.values().collect();
        let listeners: Vec<ListenerIdx> = record.listeners.values().collect();
        for idx in listeners.iter().copied() {
            if let Some(listener) = self.listeners.get_mut(idx) {
                listener.is_shared = true;
                // What is in its reach must be in its child's, too: it asks from here on.
                listener.holders.iter_mut().filter(|h| h.session == session).for_each(|h| h.credit = 0);
            }
        }
        for idx in flows.iter().copied() {
            let flow = self.flows.get(idx);
            if flow.conn.tenancy.offer().is_some() && !flow.tcb.is_written() && self.withdraw(idx, host) {
                if !self.take_untaken(idx, host) {
                    self.abort(now, idx, Errno::ENOMEM);
                }
                self.return_to_listener(idx);
                self.after(idx);
            }
        }
        for idx in listeners {
            self.hand_out(now, idx, host);
        }
        let untold = |idx: &FlowIdx| self.flows.is_used(*idx) && self.flows.get(*idx).report.direct;
        if flows.iter().any(untold) {
            return Err(Errno::EAGAIN);
        }
        let flows = self.sessions.get(session).into_iter().flat_map(|record| record.flows.values());
        let has = flows.filter_map(|idx| self.flows.get(idx).conn.tenancy.lifetime());
        self.anchors.lend_all(session, has);
        Ok(())
    }

    /// A session whose question the flow was to answer has not heard of it, and will not: it has that answer to wait for no longer, and asks
    /// again once it is told that connections wait.
    fn answer_otherwise(&mut self, idx: FlowIdx) {
        let flow = self.flows.get(idx);
        let offer = flow.conn.tenancy.offer().filter(|offer| offer.asked_for);
        let Some(&AcceptOffer { arrival, owner, handed_to: id, .. }) =
            offer.filter(|_| flow.report.accepted.is_some())
        else {
            return;
        };
        if let Some(listener) = arrival.listener {
            self.untell(listener, owner.session, id);
        }
        let nothing = Completion::NothingWaits { listener: id, answer: true };
        self.answer(owner.session, owner.queue_set, nothing);
    }

    /// Takes a flow from a session that was handed it and whose program has not taken it. `false`: there is no memory
    /// for what it holds. Nothing was sent by it.
    pub(super) fn take_untaken<H: HostSide>(&mut self, idx: FlowIdx, host: &mut H) -> bool {
        self.answer_otherwise(idx);
        self.disown(idx);
        self.move_receive_memory(idx, SessionId(0), host)
    }

    /// Hands a holder the connection that has waited longest. `false`: none waits, or there is no room for it.
    pub(super) fn hand_first<H: HostSide>(
        &mut self,
        now: Instant,
        listener_idx: ListenerIdx,
        holder: &Holder,
        handed: Handed,
        host: &mut H,
    ) -> bool {
        let first = self.listeners.get(listener_idx).and_then(|listener| listener.waiting.front().copied());
        let Some(idx) = first.filter(|idx| self.hand_to(now, *idx, (holder, handed), host)) else {
            return false;
        };
        if let Some(listener) = self.listeners.get_mut(listener_idx) {
            listener.waiting.pop_front();
            listener.handed += 1;
            if let Some(known) = listener.holder_mut(holder.session, holder.id) {
                known.credit = known.credit.saturating_sub(1);
            }
        }
        self.after(idx);
        true
    }

    fn hand_to<H: HostSide>(
        &mut self,
        now: Instant,
        idx: FlowIdx,
        (holder, handed): (&Holder, Handed),
        host: &mut H,
    ) -> bool {
        if self.may_own(idx, holder.session).is_err() || !self.sessions.may_have_flow(holder.session) {
            return false;
        }
        let Some(flow_id) = self.sessions.get_mut(holder.session).and_then(|s| s.flows.insert(idx)) else {
            return false;
        };
        if !self.move_receive_memory(idx, holder.session, host) {
            if let Some(session) = self.sessions.get_mut(holder.session) {
                session.flows.remove(flow_id);
            }
            return false;
        }
        let owner = Owner { session: holder.session, queue_set: holder.queue_set, flow_id, fd: u32::MAX };
        let goes_back_at = handed.goes_back_at(now);
        let asked_for = handed == Handed::AskedFor;
        self.own(idx, TenancyEvent::Handed { owner, handed_to: holder.id, goes_back_at, asked_for });
        let flow = self.flows.get_mut(idx);
        flow.report.accepted = Some(holder.id);
        // Whoever has it next hears of the end again.
        flow.report.peer_closed_told = false;
        flow.report.reset_told = false;
        self.write_owner_word(idx, Owned::Offered, host);
        self.tell_flow_info(idx, host);
        true
    }

    /// A connection that was handed out but not taken waits again, before all that came later.
    pub(super) fn return_to_listener(&mut self, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        flow.report.accepted = None;
        flow.tcb.events.sent = 0;
        flow.tcb.events.sent_behind = 0;
        let Tenancy::Queued(QueuePosition { listener, number }) = flow.conn.tenancy else { return };
        let Some(listener) = listener.and_then(|l| self.listeners.get_mut(l)) else { return };
        listener.handed -= 1;
        let later =
            |waiting: &FlowIdx| self.flows.get(*waiting).conn.tenancy.arrival().is_some_and(|n| n > number);
        let at = listener.waiting.iter().position(later).unwrap_or(listener.waiting.len());
        listener.waiting.insert(at, idx);
    }

    /// A flow that its listener still counts is going away.
    pub(super) fn forget_in_listener(&mut self, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        // An owner that has been told of it may still take it, and finds it reset.
        let Some(listener_idx) = flow.conn.tenancy.listener() else { return };
        if matches!(flow.conn.tenancy, Tenancy::HalfOpen { .. }) {
            self.uncount_half_open(listener_idx, idx);
            self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::Forgotten);
            return;
        }
        flow.conn.tenancy.apply(TenancyEvent::Forgotten);
        let Some(listener) = self.listeners.get_mut(listener_idx) else { return };
        if let Some(at) = listener.waiting.iter().position(|w| *w == idx) {
            listener.waiting.remove(at);
        } else {
            listener.handed -= 1;
        }
        self.call_next_in_line(listener_idx);
    }

    /// Whether the program of a connection's session has accepted it, which the engine is about to hear. If not it cannot any more. What has been
    /// accepted lives on without its listener.
    fn was_accepted<H: HostSide>(&mut self, idx: FlowIdx, host: &mut H) -> bool {
        let was_accepted = self.flows.get(idx).conn.tenancy.offer().is_some() && !self.withdraw(idx, host);
        if was_accepted {
            self.forget_in_listener(idx);
        }
        was_accepted
    }

    /// The last descriptor of a listener was closed: what nobody took is reset, as Linux does.
    pub(super) fn close_listener<H: HostSide>(&mut self, now: Instant, idx: ListenerIdx, host: &mut H) {
        let Some(listener) = self.remove_listener(idx) else { return };
        for holder in &listener.holders {
            if let Some(session) = self.sessions.get_mut(holder.session) {
                session.listeners.remove(holder.id.0);
            }
        }
        for anchor in listener.anchors() {
            self.anchors.release(anchor, AnchorTarget::Listener(idx));
        }
        while let Some(flow) = self.flows.came_in.pop(idx.slot()) {
            if self.was_accepted(flow, host) {
                continue;
            }
            let is_half_open = matches!(self.flows.get(flow).conn.tenancy, Tenancy::HalfOpen { .. });
            self.forget_in_listener(flow);
            if is_half_open {
                // The peer learns of it when it asks, as with Linux.
                self.closed(flow, Errno::OK);
                self.after(flow);
            } else {
                self.app_close(now, flow, true, host);
            }
        }
    }

    /// The last descriptor of one of a listener's anchors was closed.
    pub(super) fn close_listener_anchor<H: HostSide>(
        &mut self,
        now: Instant,
        idx: ListenerIdx,
        anchor: AnchorHandle,
        host: &mut H,
    ) {
        if self.unanchor(idx, anchor) {
            self.close_listener(now, idx, host);
            return;
        }
        self.drop_holders_of(now, idx, anchor, host);
    }

    fn drop_holders_of<H: HostSide>(
        &mut self,
        now: Instant,
        idx: ListenerIdx,
        anchor: AnchorHandle,
        host: &mut H,
    ) {
        let Some(listener) = self.listeners.get(idx) else { return };
        let gone: Vec<Holder> = listener.holders.iter().filter(|h| h.anchor == anchor).copied().collect();
        for holder in gone {
            self.drop_listener_holder(now, holder.session, holder.id, false, host);
        }
    }

    /// One session lets go of a listener; what it was handed and did not take goes to others.
    pub(super) fn drop_listener_holder<H: HostSide>(
        &mut self,
        now: Instant,
        session: SessionId,
        id: ListenerId,
        last: bool,
        host: &mut H,
    ) {
        let Some(record) = self.sessions.get_mut(session) else { return };
        let Some(idx) = record.listeners.remove(id.0) else {
            self.counters.add(Counter::StaleEntries);
            return;
        };
        let is_mine = |flow: &FlowIdx| self.flows.get(*flow).conn.tenancy.was_handed(session, id);
        let mine: Vec<FlowIdx> = self.flows.came_in.iter(idx.slot()).filter(is_mine).collect();
        let mut anchor = None;
        if let Some(listener) = self.listeners.get_mut(idx) {
            anchor = listener.holder_mut(session, id).map(|holder| holder.anchor);
            listener.drop_holders(|h| h.session == session && h.id == id);
        }
        for flow in mine {
            if self.was_accepted(flow, host) {
                continue;
            }
            if self.flows.get(flow).conn.tenancy.listener().is_none() {
                // It has ended, and this session will not ask for it any more.
                self.app_close(now, flow, true, host);
                continue;
            }
            if !self.flows.get(flow).tcb.is_written() && self.take_untaken(flow, host) {
                self.return_to_listener(flow);
            } else {
                self.app_close(now, flow, true, host);
            }
        }
        // At once, not at the anchor's hang-up: after close() has returned nobody may get in any more. Other sessions
        // that hold the listener by the same anchor know better than the one that says it was the last.
        let listener = self.listeners.get(idx).filter(|_| last);
        if let Some((listener, anchor)) = listener.zip(anchor)
            && listener.holders.iter().all(|holder| holder.anchor != anchor)
        {
            self.anchors.release(anchor, AnchorTarget::Listener(idx));
            if self.unanchor(idx, anchor) {
                self.close_listener(now, idx, host);
                return;
            }
        }
        self.hand_out(now, idx, host);
    }

    /// Whether what the session shows counts. ENOENT: it is a copy of an anchor whose session has said of nobody else.
    pub(super) fn may_show(&self, session: SessionId, anchor: AnchorHandle) -> Result<(), Errno> {
        if self.anchors.is_private_from(anchor, session) { Err(Errno::ENOENT) } else { Ok(()) }
    }
}
