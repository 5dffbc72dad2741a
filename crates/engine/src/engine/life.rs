//! Records of connections are taken, kept in step with what is derived from them, and given back.

use super::notify::has_something;
use super::{Edit, Engine, EngineView};
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::flow::record::{Abort, Aside, Flow, OpenNotice, ResetNotice};
use crate::flow::tenancy::{Tenancy, TenancyEvent};
use crate::hostif::anchors::AnchorTarget;
use crate::hostif::outbox::Place;
use crate::hostif::users::{Resource, UserIdx};
use crate::parts::{Accepting, FlowMemory, Records, TcpPlanes};
use crate::work::AnchorUse;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, FlowIdx, SessionId};
use toe_tcp::state::{TcpEvent, TcpState};
use toe_tcp::{open, timeout};

impl EngineView<'_> {
    /// What an anchor stands for.
    pub fn anchor_use(self, anchor: AnchorHandle) -> AnchorUse {
        match self.0.hostif.anchors.get(anchor) {
            Some(AnchorTarget::Unused(_)) | None => AnchorUse::Unused,
            Some(AnchorTarget::Nothing) => AnchorUse::Over,
            Some(AnchorTarget::Listener(_)) => AnchorUse::Listener,
            Some(AnchorTarget::Flow(idx)) => match self.0.flows.get(idx).tcb.state {
                TcpState::SynSent | TcpState::SynReceived => AnchorUse::Opening,
                _ => AnchorUse::Connection,
            },
        }
    }
}

impl Engine {
    /// [`Records::edit`], of changes that need more of the engine.
    #[inline]
    pub(super) fn edit<R>(&mut self, idx: FlowIdx, change: impl FnOnce(&mut Engine, Edit<'_>) -> R) -> R {
        Edit::run(self, idx, change, |engine, idx, _| engine.records().settle(idx))
    }
}

impl<H> Accepting<'_, '_, H> {
    /// The same, of changes that need to know who takes from listeners.
    pub(super) fn edit<R>(&mut self, idx: FlowIdx, change: impl FnOnce(&mut Self, Edit<'_>) -> R) -> R {
        Edit::run(self, idx, change, |room, idx, _| room.records.settle(idx))
    }
}

impl<H> TcpPlanes<'_, H> {
    /// The same, of changes that need the moment and the memory of hosts.
    #[inline]
    pub(super) fn edit<R>(&mut self, idx: FlowIdx, change: impl FnOnce(&mut Self, Edit<'_>) -> R) -> R {
        Edit::run(self, idx, change, |planes, idx, _| planes.records.settle(idx))
    }
}

impl Records<'_> {
    /// Puts a new connection, of this user's, into the table; an edit has it begin. When there is no room, the oldest in TIME_WAIT makes some.
    pub(super) fn insert_flow(&mut self, user: UserIdx, mut flow: Flow) -> Result<FlowIdx, Errno> {
        self.hostif.may_take(self.counters, user, Resource::Flows)?;
        let mut idx = self.flows.alloc();
        if idx.is_none() && self.evict_oldest() {
            idx = self.flows.alloc();
        }
        let Some(idx) = idx else {
            self.counters.add(Counter::DropFlowTableFull);
            return Err(Errno::ENOBUFS);
        };
        self.hostif.sessions.users_mut().add(user, Resource::Flows, 1);
        flow.conn.user = user;
        flow.conn.indexed = true;
        let FlowKey { scope, local, .. } = flow.conn.key;
        self.names.scopes.hold(scope);
        self.names.in_use.add(scope, local, flow.conn.sharing, user);
        let path = open::path_of(&flow.tcb, self.tcp.config.congestion);
        self.flows.insert(idx, flow, path);
        Edit::run(self, idx, |records, idx| records.steer_flow(idx), |_, _, ()| {});
        Ok(idx)
    }

    /// Segments for this connection are for nobody any more.
    fn leave_index(&mut self, idx: Edit<'_>) {
        self.flows.leave_index(idx);
        let conn = &self.flows.get(*idx).conn;
        let (key, sharing) = (conn.key, conn.sharing);
        self.names.in_use.remove(key.scope, key.local, sharing);
        let steering = self.ip.take_steering(self.flows, idx);
        self.ip.steering.stop(&key, steering);
    }

    /// The connection is gone; the record stays until its owner has been told and has let go.
    ///
    /// One that its listener's program has not taken yet waits on, as in Linux: it is handed out with its bytes and its error.
    pub(super) fn closed(&mut self, idx: Edit<'_>, errno: Errno) {
        if !self.flows.get(*idx).tcb.snd.syn_acked || self.flows.get(*idx).tcb.handshake.fast_open.early {
            self.forget_in_listener(idx);
        }
        self.fast_open_ended(idx, errno);
        let (flow, path) = self.flows.with_path_mut(idx);
        let was_connecting = !flow.tcb.snd.syn_acked && !flow.tcb.handshake.fast_open.was_passive;
        flow.tcb.state = flow.tcb.state.after(TcpEvent::Delete);
        flow.conn.abort = Abort::No;
        timeout::stop_all(&mut flow.tcb, path, &mut self.tcp.particulars);
        flow.tcb.receiving.acks.now = false;
        if was_connecting {
            let errno = if errno.is_ok() { Errno::ECONNREFUSED } else { errno };
            flow.report.opened = OpenNotice::Connected(errno);
        } else if !errno.is_ok() || flow.tcb.orphaned {
            let errno = if errno.is_ok() { Errno::ECONNRESET } else { errno };
            let notified = flow.report.reset.is_some_and(|reset| reset.notified);
            flow.report.reset = Some(ResetNotice { errno, notified });
        }
        if flow.report.reset.is_none() && !flow.conn.tenancy.owner().is_nobody() {
            // No reset will tell the owner that its memory is its own again.
            let returned =
                flow.tcb.sending.queue.bytes_of(&self.tcp.extents, flow.conn.tenancy.owner().session);
            flow.tcb.status.events.sent = flow.tcb.status.events.sent.saturating_add(returned);
        }
        flow.tcb.sending.queue.clear(&mut self.tcp.extents);
        self.tcp.forget_record_ends(&flow.tcb);
        flow.tcb.sending.board.clear(&mut self.tcp.sent);
        flow.tcb.status.events.return_late_bytes(&flow.tcb.sending.queue);
        if flow.conn.indexed {
            self.leave_index(idx);
        }
        self.memory().release_if_nobody_reads(idx);
    }

    /// Takes the record out of everything, whatever its state.
    pub(super) fn remove_flow(&mut self, idx: Edit<'_>) {
        self.empty_flow(idx);
        let conn = &self.flows.get(*idx).conn;
        let indexed = conn.indexed;
        self.names.leave(conn.key.scope);
        if indexed {
            self.leave_index(idx);
        }
        self.flows.free(idx);
    }

    /// Takes all from the record but its name.
    pub(super) fn empty_flow(&mut self, idx: Edit<'_>) {
        self.forget_in_listener(idx);
        self.listeners.leave_fast_open_queue(self.flows, idx, None);
        let anchor = self.flows.get(*idx).conn.tenancy.lifetime();
        self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::LetGo);
        if !self.flows.get(*idx).conn.tenancy.owner().is_nobody() {
            self.hostif.disown(self.flows, idx);
        }
        let (flow, path) = self.flows.with_path_mut(idx);
        debug_assert!(flow.conn.carrier.channel().is_none(), "whoever held it has let go of its channel");
        self.tcp.vacate(&mut flow.tcb, path);
        flow.tcb.orphaned = true;
        let arena = self.hostif.sessions.arena(flow.tcb.receiving.buffer.session, flow.conn.user);
        flow.tcb.receiving.buffer.release(arena);
        self.memory().let_go_of_memory(idx);
        self.hostif.forget_options(self.flows, idx);
        if let Some(anchor) = anchor {
            self.hostif.anchors.release(anchor, AnchorTarget::Flow(*idx));
        }
        self.hostif.charge_flow_to(self.flows, idx, UserIdx::NOBODY);
    }

    /// Has `change` change a connection's record: then what is derived from it agrees with it again, its owner will hear of it, and what it
    /// has to send will go. Another edit of the same record within this one may be its end.
    #[inline]
    pub(super) fn edit<R>(&mut self, idx: FlowIdx, change: impl FnOnce(&mut Self, Edit<'_>) -> R) -> R {
        Edit::run(self, idx, change, |records, idx, _| records.settle(idx))
    }

    /// How an edit ends.
    pub(super) fn settle(&mut self, idx: Edit<'_>) {
        if !self.flows.is_used(*idx) {
            return;
        }
        self.memory().let_go_of_memory(idx);
        let (flow, path) = self.flows.with_path(*idx);
        let deadline = self.tcp.deadline(&flow.tcb, path);
        self.flows.note_change(idx, deadline);
        let flow = self.flows.get(*idx);
        debug_assert!(flow.is_consistent(), "{:?} of an orphan", flow.conn.tenancy);
        if has_something(flow, &self.tcp.extents) {
            let owner = flow.conn.tenancy.owner();
            self.hostif.outbox.push(Place::of(owner.session, owner.queue_set), *idx);
        }
        self.ip.schedule(self.flows.get(*idx), *idx);
        let flow = self.flows.get(*idx);
        if flow.tcb.state == TcpState::Closed && flow.conn.tenancy == Tenancy::Nobody {
            self.remove_flow(idx);
        }
    }
}

impl FlowMemory<'_> {
    fn release_if_nobody_reads(&mut self, idx: Edit<'_>) {
        let flow = self.flows.get_mut(idx);
        // What came behind a hole will never be in order.
        flow.tcb.receiving.held.clear(&mut self.tcp.held);
        let nobody_reads = flow.conn.tenancy == Tenancy::Nobody;
        let all_read = flow.tcb.receiving.buffer.unconsumed(flow.tcb.data_nxt()) == 0;
        // With an anchor, a process that shows it may still come and read.
        if flow.tcb.orphaned || nobody_reads || all_read {
            let arena = self.hostif.sessions.arena(flow.tcb.receiving.buffer.session, flow.conn.user);
            flow.tcb.receiving.buffer.release(arena);
        }
    }

    /// Gives back what the record no longer needs: staging memory, a dead session's region, a closed owner's slot.
    fn let_go_of_memory(&mut self, idx: Edit<'_>) {
        let flow = self.flows.get(*idx);
        if !flow.conn.aside.is_empty() {
            let (queue, user) = (flow.tcb.sending.queue, flow.conn.user);
            let Aside { staged, pinned, .. } = self.flows.aside(*idx);
            if let Some(block) = staged.filter(|_| !queue.uses(&self.tcp.extents, SessionId(0))) {
                self.flows.change_aside(idx, |aside| aside.staged = None);
                self.hostif.sessions.arena(SessionId(0), user).free(block);
            }
            if let Some(session) = pinned.filter(|session| !queue.uses(&self.tcp.extents, *session)) {
                self.flows.change_aside(idx, |aside| aside.pinned = None);
                if let Some(session) = self.hostif.sessions.get_mut(session) {
                    session.counts.pins -= 1;
                }
            }
        }
        let flow = self.flows.get(*idx);
        let owner = flow.conn.tenancy.owner();
        let told = flow.tcb.status.events.sent == 0
            && flow.tcb.status.events.sent_behind == 0
            && flow.report.reset.is_none_or(|reset| reset.notified);
        if flow.tcb.orphaned
            && !owner.is_nobody()
            && told
            && !flow.tcb.sending.queue.uses(&self.tcp.extents, owner.session)
        {
            self.hostif.disown(self.flows, idx);
        }
    }
}
