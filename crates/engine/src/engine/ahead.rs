//! Connections that are handed to a process before it asks, by a listener that several processes take from. An exchange of host and engine for
//! each `accept` is what a server of short connections would wait for most of its time.
//!
//! Two rules see to it that no connection waits for one process that another would have taken. While several processes take, one that asks is
//! handed its share of what waits, and no more than it has shown to take ([`Allowance`]). And what a program has left for a
//! while goes back: its session is told, and when it is not at its connections (`BUSY`), the connection waits anew.
//!
//! [`Allowance`]: crate::control::ahead::Allowance

use super::Engine;
use crate::control::ahead::GoesBack;
use crate::control::listen::ListenerIdx;
use crate::flow::tenancy::{AcceptOffer, TenancyEvent};
use crate::hostif::HostSide;
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant, ListenerId, SessionId};

/// A connection that was handed out ahead, and that others want, goes back after so long.
const UNTAKEN_FOR_US: u64 = 1_000;
/// One that was asked for, after this: its program may have ceased to wait meanwhile (SO_RCVTIMEO, a signal), but most often it only lacks a processor.
const ASKED_FOR_US: u64 = 50_000;
/// When it is tried again with one whose session takes no completions.
const DEAF_AGAIN_US: u64 = 100_000;

/// Why a holder is handed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    Ahead,
    /// It answers a question.
    AskedFor,
}

impl Handed {
    pub(super) fn goes_back_at(self, now: Instant) -> Instant {
        now.after_us(if self == Handed::AskedFor { ASKED_FOR_US } else { UNTAKEN_FOR_US })
    }
}

impl Engine {
    /// A process has asked for a connection, and got one: it is handed some of those that wait besides.
    pub(super) fn hand_more<H: HostSide>(
        &mut self,
        now: Instant,
        idx: ListenerIdx,
        (session, id): (SessionId, ListenerId),
        host: &mut H,
    ) {
        let Some(listener) = self.listeners.get_mut(idx) else { return };
        let share = (listener.waiting.len() / listener.takers().max(1)) as u32;
        let Some(holder) = listener.holder_mut(session, id) else { return };
        holder.ahead.asked();
        let holder = *holder;
        for _ in 0..share.min(holder.ahead.most()).min(holder.credit) {
            if !self.hand_first(now, idx, &holder, Handed::Ahead, host) {
                break;
            }
        }
        self.watch_untaken(now, idx);
    }

    /// What is handed out and not taken is looked at in a while, if there is somebody else to take it.
    pub(super) fn watch_untaken(&mut self, now: Instant, idx: ListenerIdx) {
        let Some(listener) = self.listeners.get(idx) else { return };
        let at = listener.tell_all_at.min(now.after_us(UNTAKEN_FOR_US));
        if listener.handed > 0 && listener.takers() > 1 {
            self.listeners.set_tell_all(idx, at);
        }
    }

    /// Tells the sessions that have let connections wait too long that these go back.
    pub(super) fn take_back_late<H: HostSide>(&mut self, now: Instant, idx: ListenerIdx, host: &mut H) {
        if self.listeners.get(idx).is_none_or(|listener| listener.handed == 0 || listener.takers() < 2) {
            return;
        }
        let (mut late, mut next) = (Vec::new(), Instant::FAR_FUTURE);
        for flow in self.came_in.iter(idx.slot()) {
            let offer = self.flows.get(flow).conn.tenancy.offer();
            let Some(due) = offer.filter(|offer| !offer.is_withdrawn).map(|offer| offer.goes_back_at) else {
                continue;
            };
            if due <= now { late.push(flow) } else { next = next.min(due) }
        }
        for flow in late {
            if !self.begin_to_take_back(now, flow, host) {
                next = next.min(now.after_us(DEAF_AGAIN_US));
            }
        }
        if let Some(at) = self.listeners.get(idx).map(|listener| listener.tell_all_at.min(next)) {
            self.listeners.set_tell_all(idx, at);
        }
    }

    /// `false`: its session cannot be told now.
    fn begin_to_take_back<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, host: &mut H) -> bool {
        let flow = self.flows.get_mut(idx);
        let Some(offer) = flow.conn.tenancy.offer() else { return true };
        let owner = offer.owner;
        let one = GoesBack::new(owner.session, owner.queue_set, idx, offer.arrival.number);
        if flow.report.accepted.is_some() {
            // Its session has not heard of it yet, and never does.
            flow.conn.tenancy.apply(TenancyEvent::Withdrawn);
            self.take_back(now, one, host);
            return true;
        }
        if self.sessions.answers_are_full(owner.session, owner.queue_set) {
            return false;
        }
        self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::Withdrawn);
        self.answer(owner.session, owner.queue_set, Completion::Moved { flow: owner.flow_id });
        self.go_back.add(now, one);
        true
    }

    /// A program takes a connection. Was it to go back, and its session has not been told so, it never is.
    pub(super) fn stays_if_untold(&mut self, idx: FlowIdx) {
        let Some(offer) = self.flows.get(idx).conn.tenancy.offer() else { return };
        let (owner, moved) = (offer.owner, Completion::Moved { flow: offer.owner.flow_id });
        if offer.is_withdrawn && self.sessions.withdraw_answer(owner.session, owner.queue_set, moved) {
            self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::StaysAfterAll);
        }
    }

    /// When [`Engine::next_to_go_back`] has something.
    pub fn go_back_due(&self) -> Instant {
        self.go_back.due()
    }

    /// A connection that goes back. Its session has been told when all answers to it are posted; while its host may not have seen that
    /// ([`toe_abi::register::HostRegisters::BUSY`]) it is for [`Engine::goes_back_later`], else, once the session's entries have been taken,
    /// for [`Engine::take_back`].
    pub fn next_to_go_back(&mut self, now: Instant) -> Option<GoesBack> {
        self.go_back.next(now)
    }

    pub fn goes_back_later(&mut self, now: Instant, one: GoesBack) {
        self.go_back.later(now, one);
    }

    /// The session's host has seen that the connection is not its own any more, unless it took it before.
    pub fn take_back<H: HostSide>(&mut self, now: Instant, one: GoesBack, host: &mut H) {
        let idx = one.flow;
        if !self.flows.is_used(idx) {
            return;
        }
        // One that its program took first is claimed by it, and so moves to where it is.
        let is_it = |offer: &&AcceptOffer| {
            offer.arrival.number == one.arrival && offer.owner.session == one.session && offer.is_withdrawn
        };
        let Some(offer) = self.flows.get(idx).conn.tenancy.offer().filter(is_it).copied() else { return };
        let Some(listener_idx) = offer.arrival.listener else {
            // It has ended, and this session will not ask for it any more.
            self.app_close(now, idx, true, host);
            return;
        };
        let holder = self.listeners.get_mut(listener_idx);
        if let Some(holder) = holder.and_then(|l| l.holder_mut(one.session, offer.handed_to)) {
            holder.ahead.was_late();
        }
        if !self.take_untaken(idx, host) {
            self.abort(now, idx, Errno::ENOMEM);
        }
        self.return_to_listener(idx);
        self.after(idx);
        self.hand_out(now, listener_idx, host);
    }
}
