//! Connections begin and end: records are taken and given back, and what a session or an anchor held is let go.

use super::{Engine, EngineView};
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::flow::record::{Abort, Flow};
use crate::flow::tenancy::{Tenancy, TenancyEvent};
use crate::hostif::HostSide;
use crate::hostif::anchors::AnchorTarget;
use crate::hostif::users::{Resource, UserIdx};
use crate::via::Ended;
use crate::work::{AnchorUse, Owner};
use toe_abi::attach::FenceReason;
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, DatagramId, FlowId, FlowIdx, Instant, LaneId, QueueSetId, SessionId};
use toe_tcp::receive_buffer::Destination;
use toe_tcp::segment::FlowEvent;
use toe_tcp::state::{TcpEvent, TcpState};
use toe_tcp::{self, timeout};

/// Connections that closed sessions give up in one step: some tens of µs.
const LEAVES_AT_ONCE: usize = 128;

/// Which connections of a session end with RST when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resets {
    None,
    /// Those that its program has taken: it was fenced.
    Accepted,
    All,
}

/// A session that is closed and gives up what it had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closing {
    session: SessionId,
    resets: Resets,
    /// The place of its next flow.
    next: usize,
}

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

impl EngineView<'_> {
    /// What an anchor stands for.
    pub fn anchor_use(self, anchor: AnchorHandle) -> AnchorUse {
        match self.0.anchors.get(anchor) {
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
    /// Puts a new connection, of this user's, into the table. When it is full, the oldest in TIME_WAIT makes room.
    pub(super) fn insert_flow(&mut self, user: UserIdx, mut flow: Flow) -> Result<FlowIdx, Errno> {
        self.may_take(user, Resource::Flows)?;
        let mut idx = self.flows.alloc();
        if idx.is_none() && self.evict_oldest() {
            idx = self.flows.alloc();
        }
        let Some(idx) = idx else {
            self.counters.add(Counter::DropFlowTableFull);
            return Err(Errno::ENOBUFS);
        };
        self.sessions.users_mut().add(user, Resource::Flows, 1);
        flow.conn.user = user;
        flow.conn.indexed = true;
        let FlowKey { scope, local, .. } = flow.conn.key;
        self.names.scopes.hold(scope);
        self.names.in_use.add(scope, local, flow.conn.sharing, user);
        self.flows.insert(idx, flow);
        self.steer_flow(idx);
        Ok(idx)
    }

    /// Segments for this connection are for nobody any more.
    fn leave_index(&mut self, idx: FlowIdx) {
        self.flows.leave_index(idx);
        let conn = &self.flows.get(idx).conn;
        let (key, sharing) = (conn.key, conn.sharing);
        self.names.in_use.remove(key.scope, key.local, sharing);
        let steering = self.take_steering(idx);
        self.shared.stop(&key, steering);
    }

    /// What a segment or a timer did to a flow, for everybody else.
    pub(super) fn apply<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, event: FlowEvent, host: &mut H) {
        match event {
            FlowEvent::None | FlowEvent::Reject | FlowEvent::TimeWait => {}
            FlowEvent::Established => self.established(now, idx, host),
            FlowEvent::Closed(errno) => self.closed(idx, errno),
            FlowEvent::Abort(errno) => self.abort(now, idx, errno),
            FlowEvent::AbortBehindData => self.abort_behind_data(now, idx),
        }
        self.after(idx);
    }

    /// The connection is gone; the record stays until its owner has been told and has let go.
    ///
    /// One that its listener's program has not taken yet waits on, as in Linux: it is handed out with its bytes and its error.
    pub(super) fn closed(&mut self, idx: FlowIdx, errno: Errno) {
        if !self.flows.get(idx).tcb.snd.syn_acked || self.flows.get(idx).tcb.fast_open.early {
            self.forget_in_listener(idx);
        }
        self.fast_open_ended(idx, errno);
        let flow = self.flows.get_mut(idx);
        let was_connecting = !flow.tcb.snd.syn_acked && !flow.tcb.fast_open.was_passive;
        flow.tcb.state = flow.tcb.state.after(TcpEvent::Delete);
        flow.conn.abort = Abort::No;
        flow.tcb.timers.stop_all();
        flow.tcb.rcv.ack_now = false;
        if was_connecting {
            let errno = if errno.is_ok() { Errno::ECONNREFUSED } else { errno };
            flow.report.connected = Some(errno);
        } else if !errno.is_ok() || flow.tcb.orphaned {
            flow.report.reset = Some(if errno.is_ok() { Errno::ECONNRESET } else { errno });
        }
        if flow.report.reset.is_none() && !flow.conn.tenancy.owner().is_nobody() {
            // No reset will tell the owner that its memory is its own again.
            let returned = flow.tcb.send_queue.bytes_of(&self.tcp.extents, flow.conn.tenancy.owner().session);
            flow.tcb.events.sent = flow.tcb.events.sent.saturating_add(returned);
        }
        flow.tcb.send_queue.clear(&mut self.tcp.extents);
        flow.tcb.record_ends.clear(&mut self.tcp.record_ends);
        flow.tcb.board.clear(&mut self.tcp.sent);
        flow.tcb.events.return_late_bytes(&flow.tcb.send_queue);
        if flow.conn.indexed {
            self.leave_index(idx);
        }
        self.release_if_nobody_reads(idx);
    }

    fn release_if_nobody_reads(&mut self, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        // What came behind a hole will never be in order.
        flow.tcb.held.clear(&mut self.tcp.held);
        let nobody_reads = flow.conn.tenancy == Tenancy::Nobody;
        let all_read = flow.tcb.receive.unconsumed(flow.tcb.data_nxt()) == 0;
        // With an anchor, a process that shows it may still come and read.
        if flow.tcb.orphaned || nobody_reads || all_read {
            let arena = self.sessions.arena(flow.tcb.receive.session, flow.conn.user);
            flow.tcb.receive.release(arena);
        }
    }

    /// The program let go of the flow: FIN behind what is queued, or RST when it left data unread or asks for it
    /// (RFC 9293 section 3.10.4; RFC 2525 section 2.17).
    pub(super) fn app_close<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, abort: bool, host: &mut H) {
        if self.flows.get(idx).tcb.orphaned {
            return;
        }
        self.deliver_to(now, idx, host);
        if !self.flows.is_used(idx) {
            return;
        }
        let flow = self.flows.get_mut(idx);
        flow.tcb.orphaned = true;
        let abort = abort || flow.conn.abort != Abort::No;
        self.forget_options(idx);
        // A host may close what it was handed and has not taken.
        self.forget_in_listener(idx);
        let flow = self.flows.get_mut(idx);
        let untold = flow.report.accepted.take().is_some();
        if let Some(anchor) = flow.conn.tenancy.lifetime() {
            self.anchors.release(anchor, AnchorTarget::Flow(idx));
        }
        let unread_in_channel = self.let_go_of_channel(idx, host);
        let flow = self.flows.get(idx);
        let unread = unread_in_channel || flow.tcb.receive.unconsumed(flow.tcb.data_nxt()) > 0;
        let state = flow.tcb.state;
        self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::LetGo);
        match state {
            TcpState::Closed | TcpState::TimeWait => {}
            TcpState::SynSent => self.closed(idx, Errno::OK),
            _ if abort || unread => self.abort_behind_data(now, idx),
            _ if !self.may_be_orphan(now) => self.abort(now, idx, Errno::OK),
            _ => {
                let flow = self.flows.get_mut(idx);
                toe_tcp::shutdown_send(&mut flow.tcb);
                flow.tcb.held.clear(&mut self.tcp.held);
                if flow.tcb.state == TcpState::FinWait2 {
                    timeout::start_fin_wait_2(&mut flow.tcb, now);
                }
            }
        }
        let flow = self.flows.get_mut(idx);
        let arena = self.sessions.arena(flow.tcb.receive.session, flow.conn.user);
        flow.tcb.receive.release(arena);
        if untold && !flow.tcb.send_queue.uses(&self.tcp.extents, flow.conn.tenancy.owner().session) {
            // Its owner never heard of it, and need not hear of its end.
            self.disown(idx);
        }
        self.after(idx);
    }

    /// Gives back what the record no longer needs: staging memory, a dead session's region, a closed owner's slot.
    pub(super) fn let_go_of_memory(&mut self, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        if let Some(block) = flow.conn.staged
            && !flow.tcb.send_queue.uses(&self.tcp.extents, SessionId(0))
        {
            flow.conn.staged = None;
            self.sessions.arena(SessionId(0), flow.conn.user).free(block);
        }
        let flow = self.flows.get_mut(idx);
        if let Some(session) = flow.conn.pinned
            && !flow.tcb.send_queue.uses(&self.tcp.extents, session)
        {
            flow.conn.pinned = None;
            if let Some(session) = self.sessions.get_mut(session) {
                session.pins -= 1;
            }
        }
        let flow = self.flows.get(idx);
        let owner = flow.conn.tenancy.owner();
        let told = flow.tcb.events.sent == 0
            && flow.tcb.events.sent_behind == 0
            && (flow.report.reset.is_none() || flow.report.reset_told);
        if flow.tcb.orphaned
            && !owner.is_nobody()
            && told
            && !flow.tcb.send_queue.uses(&self.tcp.extents, owner.session)
        {
            self.disown(idx);
        }
    }

    /// Nobody on the host side has the flow any more.
    pub(super) fn disown(&mut self, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        let owner = flow.conn.tenancy.owner();
        flow.conn.tenancy.apply(TenancyEvent::Left);
        // What was for this owner is not for the next one.
        flow.tcb.events.sent = 0;
        flow.tcb.events.sent_behind = 0;
        self.outbox.remove(idx);
        if let Some(session) = self.sessions.get_mut(owner.session) {
            session.leave_slot(owner);
        }
    }

    pub(super) fn free_if_done(&mut self, idx: FlowIdx) {
        let flow = self.flows.get(idx);
        if flow.tcb.state == TcpState::Closed && flow.conn.tenancy == Tenancy::Nobody {
            self.remove_flow(idx);
        }
    }

    /// Takes the record out of everything, whatever its state.
    pub(super) fn remove_flow(&mut self, idx: FlowIdx) {
        self.empty_flow(idx);
        let conn = &self.flows.get(idx).conn;
        let indexed = conn.indexed;
        self.names.leave(conn.key.scope);
        if indexed {
            self.leave_index(idx);
        }
        self.flows.free(idx);
    }

    /// Takes all from the record but its name.
    pub(super) fn empty_flow(&mut self, idx: FlowIdx) {
        self.forget_in_listener(idx);
        self.leave_fast_open_queue(idx, None);
        let anchor = self.flows.get(idx).conn.tenancy.lifetime();
        self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::LetGo);
        if !self.flows.get(idx).conn.tenancy.owner().is_nobody() {
            self.disown(idx);
        }
        let flow = self.flows.get_mut(idx);
        debug_assert!(flow.conn.carrier.channel().is_none(), "whoever held it has let go of its channel");
        self.tcp.vacate(&mut flow.tcb);
        flow.tcb.orphaned = true;
        let arena = self.sessions.arena(flow.tcb.receive.session, flow.conn.user);
        flow.tcb.receive.release(arena);
        self.let_go_of_memory(idx);
        self.forget_options(idx);
        if let Some(anchor) = anchor {
            self.anchors.release(anchor, AnchorTarget::Flow(idx));
        }
        self.charge_flow_to(idx, UserIdx::NOBODY);
    }

    /// A process has closed its descriptor. The last close of any copy ends the flow ([`Engine::anchor_closed`]), in the way that was
    /// asked for.
    ///
    /// Its use of a channel ends now: the host has let go of that. What it had received there and not read (it says
    /// `abort` then) nobody else can have, and a stream with a hole is worse than none.
    pub(super) fn close_one_copy<H: HostSide>(
        &mut self,
        now: Instant,
        idx: FlowIdx,
        abort: bool,
        host: &mut H,
    ) {
        let flow = self.flows.get_mut(idx);
        if abort {
            flow.set_abort_at_close(true);
        }
        let was_direct = flow.conn.carrier.channel().is_some();
        if self.let_go_of_channel(idx, host) || was_direct && abort {
            self.abort_with_hole(now, idx);
        }
        self.after(idx);
    }

    /// `Command::CloseKept`: as if the anchor had been closed, which only its session has open still.
    pub(super) fn close_kept<H: HostSide>(
        &mut self,
        now: Instant,
        (session, queue_set): (SessionId, QueueSetId),
        (flow, anchor): (FlowId, AnchorHandle),
        abort: bool,
        host: &mut H,
    ) -> Result<(), FenceReason> {
        let idx = self.sessions.get(session).and_then(|s| s.flows.get(flow));
        let ends = idx.filter(|idx| {
            self.flows.get(*idx).conn.tenancy.lifetime() == Some(anchor)
                && self.anchors.home(anchor) == Some(session)
        });
        let answer = match ends {
            Some(idx) => {
                self.app_close(now, idx, abort, host);
                self.forget_anchor(anchor);
                self.anchors.keep(anchor);
                Completion::AnchorFree { anchor }
            }
            None => Completion::AnchorShared { anchor },
        };
        self.answer(session, queue_set, answer);
        if self.sessions.answers_are_full(session, queue_set) {
            return Err(FenceReason::CompletionOverflow);
        }
        Ok(())
    }

    /// `Command::Lend` and `Command::CloseCopy`: the anchor of what the session has, or has had, has a copy more or less. Once the flow is
    /// in one process alone it may have a channel.
    pub(super) fn count_copies(&mut self, session: SessionId, command: Command) -> Result<(), FenceReason> {
        let (Command::Lend { anchor } | Command::CloseCopy { lifetime: anchor }) = command else {
            return Ok(());
        };
        let Some(AnchorTarget::Flow(idx)) = self.anchors.get(anchor) else { return Ok(()) };
        let conn = &mut self.flows.get_mut(idx).conn;
        if let Command::Lend { .. } = command {
            let has_it = conn.tenancy.owner().session == session;
            self.anchors.lend(session, anchor, has_it);
        } else if self.anchors.copy_closed(session, anchor)
            && let Some(earning) = conn.carrier.earning()
        {
            earning.next_unit();
        }
        Ok(())
    }

    /// [`crate::ControlEvent::LastClose`].
    pub(super) fn anchor_closed<H: HostSide>(&mut self, now: Instant, anchor: AnchorHandle, host: &mut H) {
        match self.anchors.get(anchor) {
            Some(AnchorTarget::Flow(idx)) => {
                self.app_close(now, idx, false, host);
            }
            Some(AnchorTarget::Listener(idx)) => {
                if !self.send_listener_on_its_way(now, idx, anchor, host) {
                    self.close_listener_anchor(now, idx, anchor, host);
                }
            }
            Some(AnchorTarget::Nothing) => {}
            // Its session may have a command under way that binds it, unless it never got it.
            Some(AnchorTarget::Unused(_)) if self.anchors.home(anchor).is_some() => {
                return self.anchors.note_closed_early(anchor);
            }
            Some(AnchorTarget::Unused(_)) => {}
            None => return,
        }
        if let Some((home, queue_set)) = self.forget_anchor(anchor) {
            self.answer(home, queue_set, Completion::AnchorFree { anchor });
        }
    }

    /// A session's process is gone, or has detached. What other processes hold too lives on: each flow ends with its
    /// anchor, not with the session. One that had many of them gives them up in steps ([`Engine::poll_closing`]).
    /// Returns what its driver has for it, and is to take away.
    pub fn close_session<H: HostSide>(
        &mut self,
        now: Instant,
        session: SessionId,
        host: &mut H,
    ) -> LeftBehind {
        let left = LeftBehind {
            lanes: self.leave_lanes(session),
            datagrams: self.leave_datagrams(session),
            virtual_interfaces: self.leave_via(session),
        };
        self.begin_closing(now, session, Resets::None, host);
        left
    }

    /// The same; `resets`: which connections end with RST, at once.
    fn begin_closing<H: HostSide>(&mut self, now: Instant, session: SessionId, resets: Resets, host: &mut H) {
        let Some(record) = self.sessions.get_mut(session) else { return };
        if session.0 == 0 || !record.open {
            return;
        }
        record.open = false;
        record.leaving = true;
        let beginning = core::mem::take(&mut record.beginning);
        for answers in &mut record.answers {
            answers.clear();
        }
        let has_none = record.flows.is_empty();
        let listeners: Vec<_> = record.listeners.values().collect();
        // First of all: it is handed nothing more.
        for idx in listeners {
            if let Some(listener) = self.listeners.get_mut(idx) {
                listener.drop_holders(|holder| holder.session == session);
            }
        }
        self.note_end_of(now, beginning);
        if has_none {
            self.end_closing(now, session, host);
        } else {
            self.closing.push_back(Closing { session, resets, next: 0 });
            self.poll_closing(now, host);
        }
    }

    /// Takes some more of their connections from sessions that are closed. Returns how many.
    pub fn poll_closing<H: HostSide>(&mut self, now: Instant, host: &mut H) -> usize {
        for done in 0..LEAVES_AT_ONCE {
            let Some(Closing { session, resets, next }) = self.closing.front().copied() else { return done };
            let found = self.sessions.get(session).and_then(|record| record.flows.next_from(next));
            let Some((next, idx)) = found else {
                self.closing.pop_front();
                self.end_closing(now, session, host);
                continue;
            };
            if let Some(closing) = self.closing.front_mut() {
                closing.next = next;
            }
            // What nobody has accepted may be accepted elsewhere, as long as all of its bytes are there.
            let flow = self.flows.get(idx);
            let taken = flow.conn.tenancy.is_held() || flow.tcb.is_written();
            if resets == Resets::All || resets == Resets::Accepted && taken {
                self.app_close(now, idx, true, host);
            }
            if self.flows.is_used(idx) && self.flows.get(idx).conn.tenancy.owner().session == session {
                self.leave_flow(now, idx, session, host);
            }
        }
        LEAVES_AT_ONCE
    }

    /// The session has no connections any more.
    fn end_closing<H: HostSide>(&mut self, now: Instant, session: SessionId, host: &mut H) {
        let Some(record) = self.sessions.get_mut(session) else { return };
        record.leaving = false;
        let listeners: Vec<_> = record.listeners.values().collect();
        for idx in listeners {
            self.hand_out(now, idx, host);
        }
        self.leave_channels(session);
        self.forget_twins(session);
        let forgotten = self.anchors.forget_session(session);
        let user = self.sessions.user_of(session);
        self.sessions.users_mut().give(user, Resource::Anchors, u64::from(forgotten));
    }

    /// Takes a flow from a session that is going away.
    fn leave_flow<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, session: SessionId, host: &mut H) {
        let anchor = self.flows.get(idx).conn.tenancy.lifetime();
        if anchor.is_some_and(|anchor| self.anchors.is_private(anchor)) {
            // Nobody else can have it, and a copy of the anchor's last use would keep it for ever.
            self.app_close(now, idx, false, host);
        }
        let lost = self.let_go_of_channel(idx, host);
        let pinned = self.pin(idx, session, host) && self.move_options(idx, Owner::default(), host);
        self.disown(idx);
        if pinned && self.flows.get(idx).tcb.orphaned {
            self.after(idx);
            return;
        }
        if !pinned || !self.move_receive_memory(idx, SessionId(0), host) {
            self.abort(now, idx, Errno::ENOMEM);
            self.app_close(now, idx, true, host);
            self.after(idx);
            return;
        }
        if lost {
            // Another process may hold the descriptor, and what came through the channel died with this one.
            self.abort_with_hole(now, idx);
        }
        let flow = self.flows.get(idx);
        match flow.conn.tenancy.is_held() {
            true => {}
            // Its program had taken it, and only that had not come through: it ends as any that nobody has. So does one whose listener is gone.
            false if flow.tcb.is_written() || flow.conn.tenancy.listener().is_none() => {
                self.app_close(now, idx, false, host);
            }
            false => self.return_to_listener(idx),
        }
        self.after(idx);
    }

    /// Notes that a closed session's region is still read from. A flow notes one such region: when it reads from
    /// another one too, all goes to staging memory. `false`: there is not enough of that.
    fn pin<H: HostSide>(&mut self, idx: FlowIdx, session: SessionId, host: &mut H) -> bool {
        let flow = self.flows.get_mut(idx);
        if !flow.tcb.send_queue.uses(&self.tcp.extents, session) {
            return true;
        }
        if flow.conn.pinned.is_some() {
            return self.stage_send_data(idx, host);
        }
        flow.conn.pinned = Some(session);
        if let Some(record) = self.sessions.get_mut(session) {
            record.pins += 1;
        }
        true
    }

    /// Moves unread data to another session's memory.
    pub(super) fn move_receive_memory<H: HostSide>(
        &mut self,
        idx: FlowIdx,
        to: impl Into<Destination>,
        host: &mut H,
    ) -> bool {
        let to = to.into();
        let flow = self.flows.get_mut(idx);
        if flow.tcb.receive.session == to.session {
            return to.unread.is_none();
        }
        let (data_nxt, from) = (flow.tcb.data_nxt(), flow.tcb.receive.session);
        let held = flow.tcb.held.ranges(&self.tcp.held);
        let user = flow.conn.user;
        let moved = self.sessions.with_two_arenas((from, to.session), user, |from, to_arena| {
            flow.tcb.receive.move_to(to, from, to_arena, host, held, data_nxt).is_ok()
        });
        moved.unwrap_or(false)
    }

    /// Whether a closed session's region may be unmapped and its id given out again.
    pub(super) fn is_drained(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_none_or(|s| s.is_drained())
    }

    /// Frees the id of a closed session, unless something refers to its memory still; whether it is free.
    pub fn forget_session(&mut self, session: SessionId) -> bool {
        let is_drained = self.is_drained(session);
        if is_drained && let Some(record) = self.sessions.forget(session) {
            self.names.leave(record.scope);
        }
        is_drained
    }

    /// [`crate::ControlEvent::Fenced`].
    pub(super) fn fence<H: HostSide>(
        &mut self,
        now: Instant,
        session: SessionId,
        reason: FenceReason,
        host: &mut H,
    ) {
        self.counters.add(Counter::of_fence(reason));
        let resets = if reason == FenceReason::MemoryLost { Resets::All } else { Resets::Accepted };
        self.begin_closing(now, session, resets, host);
    }

    /// A session has the flow from now on, and its user is charged for it.
    pub(super) fn own(&mut self, idx: FlowIdx, event: TenancyEvent) {
        let tenancy = &mut self.flows.get_mut(idx).conn.tenancy;
        tenancy.apply(event);
        let owner = tenancy.owner();
        self.charge_flow_to(idx, self.sessions.user_of(owner.session));
    }
}
