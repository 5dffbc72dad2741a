//! Connections that are handed to a process before it asks, by a listener that several processes take from. An exchange of host and engine for
//! each `accept` is what a server of short connections would wait for most of its time.
//!
//! Two rules see to it that no connection waits for one process that another would have taken. While several processes take, one that asks is
//! handed its share of what waits, and no more than it has shown to take ([`Allowance`]). And what a program has left for a
//! while goes back: its owner word is withdrawn, unless the program was faster, its session is told, and the connection waits anew.
//!
//! [`Allowance`]: crate::control::prefetch::Allowance

use super::hand_out::Handed;
use crate::control::listener_idx::ListenerIdx;
use crate::flow::tenancy::{AcceptOffer, GOES_BACK_AT_ONCE, TenancyEvent};
use crate::parts::Accepting;
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant, ListenerId, SessionId};
use toe_tcp::memory::HostMemory;

/// When it is tried again with one that was accepted, of which the engine is about to hear, or whose session takes no completions.
const AGAIN_US: u64 = 100_000;

impl<H: HostMemory> Accepting<'_, '_, H> {
    /// A process has asked for a connection, and got one: it is handed some of those that wait besides.
    pub(super) fn hand_more(&mut self, idx: ListenerIdx, (session, id): (SessionId, ListenerId)) {
        let Some(listener) = self.records.listeners.get_mut(idx) else { return };
        let share = (listener.queue.waiting.len() / listener.holders.takers().max(1)) as u32;
        let Some(holder) = listener.holders.get_mut(session, id) else { return };
        holder.prefetch.asked();
        let holder = *holder;
        for _ in 0..share.min(holder.prefetch.most()).min(holder.credit) {
            if !self.records.listeners.may_copy_more(self.now)
                || !self.hand_first(idx, &holder, Handed::Prefetched)
            {
                break;
            }
        }
        self.records.listeners.watch_untaken(self.now, idx);
    }

    /// Takes connections back from the sessions that have let them wait too long, if others take some, or that have let go of the listener.
    pub(super) fn take_back_late(&mut self, idx: ListenerIdx) {
        let Some(listener) = self.records.listeners.get(idx).filter(|listener| listener.queue.handed > 0)
        else {
            return;
        };
        let is_late_at = if listener.holders.is_asked() && listener.holders.takers() > 1 {
            self.now
        } else {
            GOES_BACK_AT_ONCE
        };
        let (mut late, mut next) = (Vec::new(), Instant::FAR_FUTURE);
        for flow in self.records.flows.came_in.iter(idx.slot()) {
            let offer = self.records.flows.get(flow).conn.tenancy.offer();
            let Some(due) = offer.map(|offer| offer.goes_back_at) else { continue };
            if due <= is_late_at {
                late.push(flow);
            } else if is_late_at == self.now {
                next = next.min(due);
            }
        }
        for flow in late {
            if !self.records.listeners.may_copy_more(self.now) {
                next = self.now.after_us(1);
                break;
            }
            if !self.take_back(flow) {
                let again_at = self.now.after_us(AGAIN_US);
                self.edit(flow, |room, idx| {
                    let tenancy = &mut room.records.flows.get_mut(idx).conn.tenancy;
                    if tenancy.offer().is_some_and(|offer| offer.goes_back_at != GOES_BACK_AT_ONCE) {
                        tenancy.apply(TenancyEvent::StaysUntil(again_at));
                    }
                });
                next = next.min(again_at);
            }
        }
        if let Some(at) = self.records.listeners.get(idx).map(|listener| listener.tell_all_at.min(next)) {
            self.records.listeners.set_tell_all(idx, at);
        }
    }

    /// Takes a connection back from a session whose program has not accepted it. `false`: it has, or has sent by it, or cannot be told now.
    fn take_back(&mut self, idx: FlowIdx) -> bool {
        let Some(AcceptOffer { arrival, owner, handed_to, .. }) =
            self.records.flows.get(idx).conn.tenancy.offer().copied()
        else {
            return true;
        };
        let flow = self.records.flows.get(idx);
        // One whose session has not heard of it yet goes back without a word.
        let is_known = !flow.report.is_accepted_untold();
        let cannot_hear =
            is_known && self.records.hostif.sessions.answers_are_full(owner.session, owner.queue_set);
        // What the next one answers must not follow what this one has said.
        if cannot_hear
            || flow.tcb.is_written()
            || !self.records.hostif.withdraw(self.records.flows, idx, self.host)
        {
            return false;
        }
        if is_known {
            let moved = Completion::Moved { flow: owner.flow_id };
            self.records.hostif.answer(owner.session, owner.queue_set, moved);
        }
        let Some(listener_idx) = arrival.listener else {
            // It has ended, and this session will not ask for it any more.
            self.edit(idx, |room, idx| room.records.app_close(room.now, idx, true, room.host));
            return true;
        };
        if let Some(holder) = self.records.listeners.holder_mut(listener_idx, owner.session, handed_to) {
            holder.prefetch.was_late();
        }
        self.have_wait_again(idx);
        self.hand_out(listener_idx);
        true
    }

    /// A connection has been withdrawn from a session whose program has not accepted it.
    pub(super) fn have_wait_again(&mut self, idx: FlowIdx) {
        self.edit(idx, |room, idx| {
            if !room.take_untaken(idx) {
                room.records.abort(room.now, idx, Errno::ENOMEM);
            }
            room.records.listeners.return_to_listener(room.records.flows, idx);
        });
    }
}
