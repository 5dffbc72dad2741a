//! A session ends, and gives up what it had: what others have too is pinned for them, what nobody has is closed. A step at a time, as
//! it may be a million connections.

use super::carry::{STEP, carry};
use super::{Edit, Engine};
use crate::counter::Counter;
use crate::hostif::closing::{Closing, Resets};
use crate::hostif::session::{SessionQueueSet, SessionStage};
use crate::hostif::users::{Resource, UserIdx};
use crate::parts::{FlowMemory, HostInterface, Records, TcpPlanes};
use crate::store::FlowStore;
use crate::via::Ended;
use crate::work::Owner;
use toe_abi::attach::FenceReason;
use toe_abi::errno::Errno;
use toe_base::{DatagramId, FlowIdx, Instant, LaneId, SessionId};
use toe_tcp::memory::HostMemory;

/// Connections that closed sessions give up in one step: some tens of µs.
const LEAVES_AT_ONCE: usize = 128;

/// What ended with a session, beside its connections and listeners.
#[derive(Debug, Default)]
pub struct LeftBehind {
    /// Lanes whose memory is to be closed.
    pub lanes: Vec<LaneId>,
    /// What it had of sockets, which other processes may have still.
    pub datagrams: Vec<DatagramId>,
    /// Who has a connection to one of them is to hear of that.
    pub virtual_interfaces: Vec<Ended<UserIdx>>,
}

impl Engine {
    /// A session's process is gone, or has detached. What other processes hold too lives on: each flow ends with its
    /// anchor, not with the session. One that had many of them gives them up in steps (`leave_some`).
    /// Returns what its driver has for it, and is to take away.
    pub fn close_session<H: HostMemory>(
        &mut self,
        now: Instant,
        session: SessionId,
        host: &mut H,
    ) -> LeftBehind {
        let left = LeftBehind {
            lanes: self.hostif.leave_lanes(session),
            datagrams: self.datagrams().leave(session),
            virtual_interfaces: self.hostif.leave_via(&mut self.via, session),
        };
        self.planes(now, host).begin_closing(session, Resets::None);
        left
    }

    /// Frees the id of a closed session, unless something refers to its memory still; whether it is free.
    pub fn forget_session(&mut self, session: SessionId) -> bool {
        let is_drained = self.hostif.is_drained(session);
        if is_drained && let Some(record) = self.hostif.sessions.forget(session) {
            self.names.leave(record.scope);
        }
        is_drained
    }
}

impl<H: HostMemory> TcpPlanes<'_, H> {
    /// The same; `resets`: which connections end with RST, at once.
    fn begin_closing(&mut self, session: SessionId, resets: Resets) {
        let Some(record) = self.records.hostif.sessions.get_mut(session) else { return };
        if session.0 == 0 || !record.is_open() {
            return;
        }
        self.records.hostif.forget_carried(session);
        let Some(record) = self.records.hostif.sessions.get_mut(session) else { return };
        record.stage = SessionStage::Leaving;
        let beginning = core::mem::take(&mut record.beginning);
        for SessionQueueSet { answers, .. } in &mut record.queue_sets {
            answers.clear();
        }
        let has_none = record.flows.is_empty();
        let listeners: Vec<_> = record.listeners.values().collect();
        // First of all: it is handed nothing more.
        for idx in listeners {
            if let Some(listener) = self.records.listeners.get_mut(idx) {
                listener.holders.remove(|holder| holder.session == session);
            }
        }
        self.records.note_end_of(self.now, beginning);
        if has_none {
            self.end_closing(session);
        } else {
            self.records.hostif.closing.push_back(Closing { session, resets, next: 0 });
            self.leave_some();
        }
    }

    /// Takes some more of their connections from sessions that are closed. Returns how many.
    pub(super) fn leave_some(&mut self) -> usize {
        let mut copied = 0;
        for done in 0..LEAVES_AT_ONCE {
            let Some(Closing { session, resets, next: at }) = self.records.hostif.closing.front().copied()
            else {
                return done;
            };
            let found =
                self.records.hostif.sessions.get(session).and_then(|record| record.flows.next_from(at));
            let Some((next, idx)) = found else {
                self.records.hostif.closing.pop_front();
                self.end_closing(session);
                continue;
            };
            if let Some(closing) = self.records.hostif.closing.front_mut() {
                closing.next = next;
            }
            // What nobody has accepted may be accepted elsewhere, as long as all of its bytes are there.
            let flow = self.records.flows.get(idx);
            let taken = flow.conn.tenancy.is_held() || flow.tcb.is_written();
            if resets == Resets::All || resets == Resets::Accepted && taken {
                self.edit(idx, |planes, idx| planes.records.app_close(planes.now, idx, true, planes.host));
            }
            if !self.records.flows.is_used(idx)
                || self.records.flows.get(idx).conn.tenancy.owner().session != session
            {
                continue;
            }
            let goes_along =
                if is_private(&self.records, idx) { 0 } else { unread_len(self.records.flows, idx) };
            copied = goes_along.saturating_add(copied);
            if goes_along > 0
                && carry(&mut self.records.memory(), session, (idx, SessionId(0).into()), self.host)
            {
                // The rest of it, and the connections behind it, in the next steps.
                if let Some(closing) = self.records.hostif.closing.front_mut() {
                    closing.next = at;
                }
                return done + 1;
            }
            if is_private(&self.records, idx) {
                // Nobody else can have it, and a copy of the anchor's last use would keep it for ever.
                self.close_after_peer(idx, false);
            }
            self.edit(idx, |planes, idx| planes.leave_flow(idx, session));
            self.records.hostif.forget_carried(session);
            if copied >= STEP {
                return done + 1;
            }
        }
        LEAVES_AT_ONCE
    }

    /// The session has no connections any more.
    fn end_closing(&mut self, session: SessionId) {
        let Some(record) = self.records.hostif.sessions.get_mut(session) else { return };
        record.stage = SessionStage::Closed;
        let listeners: Vec<_> = record.listeners.values().collect();
        for idx in listeners {
            self.records.accepting(self.now, self.host).hand_out(idx);
        }
        self.records.hostif.leave_channels(session);
        self.records.hostif.forget_twins(self.records.names, session);
        let forgotten = self.records.hostif.anchors.forget_session(session);
        let user = self.records.hostif.sessions.user_of(session);
        self.records.hostif.sessions.users_mut().give(user, Resource::Anchors, u64::from(forgotten));
    }

    /// Takes a flow from a session that is going away.
    fn leave_flow(&mut self, idx: Edit<'_>, session: SessionId) {
        let lost = self.records.hostif.let_go_of_channel(self.records.flows, idx, self.host);
        let pinned = self.records.memory().pin(idx, session, self.host)
            && self.records.hostif.move_options(self.records.flows, idx, Owner::default(), self.host);
        self.records.hostif.disown(self.records.flows, idx);
        if pinned && self.records.flows.get(*idx).tcb.orphaned {
            return;
        }
        if !pinned || !self.records.memory().move_receive_memory(idx, session, SessionId(0), self.host) {
            self.records.abort(self.now, idx, Errno::ENOMEM);
            self.records.app_close(self.now, idx, true, self.host);
            return;
        }
        if lost {
            // Another process may hold the descriptor, and what came through the channel died with this one.
            self.records.abort_with_hole(self.now, idx);
        }
        let flow = self.records.flows.get(*idx);
        match flow.conn.tenancy.is_held() {
            true => {}
            // Its program had taken it, and only that had not come through: it ends as any that nobody has. So does one whose listener is gone.
            false if flow.tcb.is_written() || flow.conn.tenancy.listener().is_none() => {
                self.close_after_peer(*idx, false);
            }
            false => self.records.listeners.return_to_listener(self.records.flows, idx),
        }
    }

    /// [`crate::ControlEvent::Fenced`].
    pub(super) fn fence(&mut self, session: SessionId, reason: FenceReason) {
        self.records.counters.add(Counter::of_fence(reason));
        let resets = if reason == FenceReason::MemoryLost { Resets::All } else { Resets::Accepted };
        self.begin_closing(session, resets);
    }
}

impl FlowMemory<'_> {
    /// Notes that a closed session's region is still read from. A flow notes one such region: when it reads from
    /// another one too, all goes to staging memory. `false`: there is not enough of that.
    fn pin<H: HostMemory>(&mut self, idx: Edit<'_>, session: SessionId, host: &mut H) -> bool {
        if !self.flows.get(*idx).tcb.sending.queue.uses(&self.tcp.extents, session) {
            return true;
        }
        if self.flows.aside(*idx).pinned.is_some() {
            return self.stage_send_data(idx, session, host);
        }
        self.flows.change_aside(idx, |aside| aside.pinned = Some(session));
        if let Some(record) = self.hostif.sessions.get_mut(session) {
            record.counts.pins += 1;
        }
        true
    }
}

/// Whether nobody but the session that goes can have the flow.
fn is_private(records: &Records<'_>, idx: FlowIdx) -> bool {
    let anchor = records.flows.get(idx).conn.tenancy.lifetime();
    anchor.is_some_and(|anchor| records.hostif.anchors.is_private(anchor))
}

/// How much of what it has received somebody else may read.
fn unread_len(flows: &FlowStore, idx: FlowIdx) -> u32 {
    let tcb = &flows.get(idx).tcb;
    if tcb.receiving.buffer.session.0 == 0 { 0 } else { tcb.receiving.buffer.unconsumed(tcb.data_nxt()) }
}

impl HostInterface {
    /// Whether a closed session's region may be unmapped and its id given out again.
    pub(super) fn is_drained(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_none_or(|s| s.is_drained())
    }
}
