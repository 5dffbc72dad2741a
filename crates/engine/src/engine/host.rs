//! Entries in: what a session asked for, checked for range and ownership, then done.
//!
//! `Err` means that the session broke the contract and is to be fenced. An id that is merely no longer valid is no
//! breach: a completion that ends a flow and an entry that still names it may cross.

use super::Engine;
use super::names::endpoint_of;
use crate::control::accept_queue::BACKLOG_MAX;
use crate::control::holders::{CREDIT_MAX, Holder, ON_ITS_WAY};
use crate::control::listener_idx::ListenerIdx;
use crate::control::names;
use crate::control::names::{Purpose, Rest, Twin};
use crate::counter::Counter;
use crate::flow::key::Scope;
use crate::flow::record::Flow;
use crate::flow::tenancy::TenancyEvent;
use crate::hostif::anchors::AnchorTarget;
use crate::hostif::users::Resource;
use crate::parts::{Accepting, HostInterface, Records};
use toe_abi::attach::FenceReason;
use toe_abi::command::{LISTEN_ASKS, LISTEN_FLAGS, LISTEN_KERNEL_TOO, LISTEN_V6_ONLY, ListenArgs};
use toe_abi::entry::{Command, Completion, FlowOption, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_base::limits::RECEIVE_WINDOW_INITIAL;
use toe_base::{AnchorHandle, Endpoint, FlowId, Instant, ListenerId, QueueSetId, SessionId};
use toe_tcp::memory::HostMemory;
use toe_tcp::options;
use toe_tcp::record::PathState;
use toe_tcp::segment_arrives::credit_given;
use zerocopy::FromBytes;

/// Receive memory that lies idle this long goes back.
const RELEASE_US: u64 = 1_000_000;

impl Engine {
    /// One command, with its argument block.
    pub fn handle_command<H: HostMemory>(
        &mut self,
        now: Instant,
        session: SessionId,
        queue_set: QueueSetId,
        command: Command,
        args: &[u8; 64],
        host: &mut H,
    ) -> Result<(), FenceReason> {
        self.planes(now, host).deliver_earlier(session, command);
        match command {
            Command::Listen { token } => {
                let result = self.records().accepting(now, host).listen(session, queue_set, args)?;
                self.hostif.answer_command(session, queue_set, token, command, result.map(|id| id.0.raw()))
            }
            Command::Connect { token } => self.connect(now, (session, queue_set), token, args, host),
            Command::AcceptCredit { listener, count } => {
                self.records().accepting(now, host).accept_credit(session, queue_set, listener, count);
                Ok(())
            }
            Command::Accept { flow, anchor, fd } => {
                self.records().accept(session, queue_set, flow, anchor, fd)?;
                if self.hostif.anchors.take_closed_early(anchor) {
                    // The entry waited for room in the host while its program closed the descriptor.
                    self.planes(now, host).anchor_closed(anchor);
                }
                Ok(())
            }
            Command::CloseListener { .. } | Command::EndListener { .. } => {
                self.records().accepting(now, host).listener_ends(session, command);
                Ok(())
            }
            Command::ShutdownSend { flow } => {
                self.records().with_flow(session, flow, |_, (flow, _)| toe_tcp::shutdown_send(&mut flow.tcb))
            }
            Command::Close { flow, .. } | Command::Disconnect { flow } => {
                self.planes(now, host).end_flow((session, flow), command);
                Ok(())
            }
            Command::CloseRetained { flow, anchor, abort } => {
                self.planes(now, host).close_retained((session, queue_set), (flow, anchor), abort)
            }
            Command::Lend { .. } | Command::CloseCopy { .. } => self.records().count_copies(session, command),
            Command::SetOption { flow, option: FlowOption::SharesName, value } => {
                self.records().set_sharing(session, flow, value);
                Ok(())
            }
            Command::SetOption { flow, option, value } => {
                self.records().with_flow(session, flow, |tcp, flow| set_option(flow, tcp, now, option, value))
            }
            Command::ChannelReady { channel } => {
                if !self.hostif.channels.mark_ready(channel, session) {
                    self.counters.add(Counter::StaleEntries);
                }
                Ok(())
            }
            Command::FastOpen { listener, .. } | Command::DeferAccept { listener, .. } => {
                self.records().set_listener(session, listener, command);
                Ok(())
            }
            Command::Inspect { token, .. } | Command::CountWaiting { token, .. } => {
                let result = self.view().look_at(now, session, command, host);
                self.hostif.answer_command(session, queue_set, token, command, result)
            }
            Command::TakeConnection { listener } => {
                self.records().accepting(now, host).take_connection(session, queue_set, listener)
            }
        }
    }

    /// Bytes to send.
    pub fn handle_send(&mut self, _now: Instant, session: SessionId, send: Send) -> Result<(), FenceReason> {
        let layout = self.hostif.sessions.get(session).ok_or(FenceReason::BadArgument)?.layout;
        if !send.data.lies_in(layout.send_offset(), layout.send_len) {
            return Err(FenceReason::BadSendRange);
        }
        let Some(idx) = self.hostif.flow_of(&mut self.counters, session, send.flow) else { return Ok(()) };
        self.edit(idx, |Engine { flows, tcp, .. }, idx| {
            let Flow { tcb, conn, .. } = flows.get_mut(idx);
            if tcb.orphaned || tcb.snd.fin.is_queued() || !tcb.state.may_send() {
                // The connection ended while the entry was on its way: the memory goes back, in the order of the stream.
                tcb.status.events.sent_behind = tcb.status.events.sent_behind.saturating_add(send.data.len);
                tcb.status.events.return_late_bytes(&tcb.sending.queue);
                return Ok(());
            }
            let pushed = tcb.sending.queue.push(&mut tcp.extents, session, send.data);
            pushed.map_err(|_| FenceReason::BadSendRange)?;
            tcb.sending.nagle.more = send.more && conn.carrier.channel().is_none();
            if send.urgent {
                tcb.snd.up = tcb.queue_end();
            }
            let end = tcb.queue_end();
            if send.end_of_record
                && let Some(particulars) = tcp.particulars.one_mut(&mut tcb.setup.particulars)
            {
                particulars.record_ends.push(&mut tcp.record_ends, end);
            }
            Ok(())
        })
    }

    /// Received bytes that the host is done with.
    pub fn handle_credit(
        &mut self,
        now: Instant,
        session: SessionId,
        credit: ReceiveCredit,
    ) -> Result<(), FenceReason> {
        let Some(idx) = self.hostif.flow_of(&mut self.counters, session, credit.flow) else { return Ok(()) };
        if self.flows.get(idx).tcb.orphaned {
            return Ok(());
        }
        self.edit(idx, |engine, idx| {
            let (Flow { tcb, conn, .. }, path) = engine.flows.with_path_mut(idx);
            let memory = tcb.receiving.buffer.session;
            let arena = engine.hostif.sessions.arena(memory, conn.user);
            tcb.receiving.buffer.consume(arena, credit.len).map_err(|_| FenceReason::CreditBeyondData)?;
            let pressure = engine.hostif.pressure(memory);
            credit_given(tcb, path, &engine.tcp.particulars, now, credit.len, pressure);
            let empty = tcb.receiving.buffer.unconsumed(tcb.data_nxt()) == 0;
            tcb.timers.release = if empty { now.after_us(RELEASE_US) } else { Instant::FAR_FUTURE };
            Ok(())
        })
    }
}

impl Records<'_> {
    /// What a command changes of a listener of the session's.
    fn set_listener(&mut self, session: SessionId, id: ListenerId, command: Command) {
        let listener = self.hostif.sessions.get(session).and_then(|s| s.listener(id));
        let Some(listener) = listener.and_then(|idx| self.listeners.get_mut(idx)) else {
            return self.counters.add(Counter::StaleEntries);
        };
        match command {
            Command::FastOpen { limit, .. } => listener.fast_open.limit = limit.min(BACKLOG_MAX),
            Command::DeferAccept { secs, .. } => listener.defer_secs = secs,
            _ => {}
        }
    }

    fn open_listener(
        &mut self,
        (scope, local, v6_only): (Scope, Endpoint, bool),
        backlog: u32,
        anchor: AnchorHandle,
        twin: Twin,
    ) -> Result<ListenerIdx, Errno> {
        let before = self.listeners.len();
        let idx = self.listeners.open(scope, (local, v6_only), backlog, anchor, twin)?;
        self.names.rests.add(&twin, Rest::Listener(idx, anchor));
        if self.listeners.len() > before {
            self.names.scopes.hold(scope);
        }
        self.ip.steer_listener(self.listeners, idx);
        Ok(idx)
    }

    pub(super) fn accept(
        &mut self,
        session: SessionId,
        queue_set: QueueSetId,
        id: FlowId,
        anchor: AnchorHandle,
        fd: u32,
    ) -> Result<(), FenceReason> {
        let there =
            self.hostif.flow_of(self.counters, session, id).filter(|idx| !self.flows.get(*idx).tcb.orphaned);
        let Some(idx) = there else {
            // The connection went away in the meantime.
            return self.hostif.accept_nothing(session, queue_set, id, anchor);
        };
        if self.flows.get(idx).conn.tenancy.is_held() {
            return Err(FenceReason::BadArgument);
        }
        if !self.hostif.anchors.bind(session, queue_set, anchor, AnchorTarget::Flow(idx)) {
            return Err(FenceReason::UnknownHandle);
        }
        self.flows.came_in.remove(idx);
        self.edit(idx, |records, idx| {
            let tenancy = &mut records.flows.get_mut(idx).conn.tenancy;
            let came_in = tenancy.listener();
            tenancy.apply(TenancyEvent::Accepted { lifetime: anchor, fd });
            if let Some(listener) = came_in.and_then(|l| records.listeners.get_mut(l)) {
                listener.queue.handed -= 1;
            }
            came_in.into_iter().for_each(|listener| records.call_next_in_line(listener));
        });
        Ok(())
    }
}

impl<H: HostMemory> Accepting<'_, '_, H> {
    // ---- listen, accept, connect ----

    pub(super) fn listen(
        &mut self,
        session: SessionId,
        queue_set: QueueSetId,
        args: &[u8; 64],
    ) -> Result<Result<ListenerId, Errno>, FenceReason> {
        let args = ListenArgs::read_from_bytes(args).map_err(|_| FenceReason::BadArgument)?;
        if args.reserved.iter().any(|b| *b != 0) || args.flags & !LISTEN_FLAGS != 0 {
            return Err(FenceReason::BadArgument);
        }
        if args.flags & LISTEN_ASKS != 0 {
            let may = self.records.hostif.asks_to_bind(self.records.names, self.now, session, &args);
            return Ok(may.map(|()| ListenerId::default()));
        }
        let anchor = AnchorHandle(args.anchor);
        if self.records.hostif.anchors.get(anchor) != Some(AnchorTarget::Unused(session)) {
            return Err(FenceReason::UnknownHandle);
        }
        let presented = self.records.hostif.take_twin(self.records.names, session, args.twin);
        Ok(self.listen_at((session, queue_set), &args, presented))
    }

    fn listen_at(
        &mut self,
        (session, queue_set): (SessionId, QueueSetId),
        args: &ListenArgs,
        presented: Option<Twin>,
    ) -> Result<ListenerId, Errno> {
        let local = endpoint_of(args.local)?;
        let v6_only = args.flags & LISTEN_V6_ONLY != 0;
        let record = self.records.hostif.sessions.get(session).ok_or(Errno::EBADF)?;
        let (scope, netns) = (record.scope, record.cred.netns);
        if !local.addr.is_unspecified() && !self.records.ip.has_addr(scope, local.addr) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let twin = names::require(presented, netns, local, Purpose::Listen { v6_only })?;
        if scope.is_own() && !self.records.ip.steering.has_room_for_listener() {
            return Err(Errno::ENOBUFS);
        }
        let user = record.user;
        self.records.hostif.may_take(self.records.counters, user, Resource::Listeners)?;
        self.oust_rivals((scope, local, v6_only), &twin)?;
        let anchor = AnchorHandle(args.anchor);
        let idx = self.records.open_listener((scope, local, v6_only), args.backlog, anchor, twin)?;
        // It has arrived.
        self.records.listeners.unanchor(self.records.names, idx, ON_ITS_WAY);
        self.records.hostif.charge_listener(self.records.listeners, idx, user);
        if let Some(listener) = self.records.listeners.get_mut(idx) {
            listener.process_each.on_listen(args.flags & LISTEN_KERNEL_TOO != 0);
            self.records.names.note_lapse();
        }
        let holder = Holder::new(session, queue_set, anchor, args.fd);
        match self.records.hostif.hold_listener(self.records.listeners, holder, idx) {
            Ok(id) => {
                self.records.hostif.anchors.bind(session, queue_set, anchor, AnchorTarget::Listener(idx));
                Ok(id)
            }
            Err(errno) => {
                if self.records.listeners.unanchor(self.records.names, idx, anchor) {
                    self.records.remove_listener(idx);
                }
                Err(errno)
            }
        }
    }

    fn accept_credit(&mut self, session: SessionId, queue_set: QueueSetId, id: ListenerId, count: u32) {
        let Some(idx) = self.records.hostif.sessions.get(session).and_then(|s| s.listener(id)) else {
            self.records.counters.add(Counter::StaleEntries);
            return;
        };
        let Some(listener) = self.records.listeners.get_mut(idx) else { return };
        if let Some(holder) = listener.holders.get_mut(session, id) {
            holder.credit = holder.credit.saturating_add(count).min(CREDIT_MAX);
            holder.takes |= count > 0;
            holder.queue_set = queue_set;
        }
        if count > 0 && listener.process_each.on_taker() {
            self.records.ip.steer_listener(self.records.listeners, idx);
        }
        self.hand_out(idx);
    }
}

impl Records<'_> {
    fn with_flow(
        &mut self,
        session: SessionId,
        id: FlowId,
        change: impl FnOnce(&mut toe_tcp::Tcp, (&mut Flow, &mut PathState)),
    ) -> Result<(), FenceReason> {
        let idx = self.hostif.flow_of(self.counters, session, id);
        if let Some(idx) = idx.filter(|idx| !self.flows.get(*idx).tcb.orphaned) {
            self.edit(idx, |records, idx| change(records.tcp, records.flows.with_path_mut(idx)));
        }
        Ok(())
    }
}

/// What an option changes beside TCP, and there.
fn set_option(
    (flow, path): (&mut Flow, &mut PathState),
    tcp: &mut toe_tcp::Tcp,
    now: Instant,
    option: FlowOption,
    value: u32,
) {
    match option {
        // Nothing goes by TCP that could be held back.
        FlowOption::Cork if flow.conn.carrier.channel().is_some() => {
            return options::set(&mut flow.tcb, path, tcp, now, option, 0);
        }
        // A channel's bytes wait in memory that only their sender bounds.
        FlowOption::ReceiveWindowMax if value < RECEIVE_WINDOW_INITIAL => {
            flow.conn.carrier.stay_with_engine()
        }
        FlowOption::UnsentLowWater => {
            if flow.report.unsent.low_water == 0 {
                flow.report.unsent.notified = flow.tcb.snd.nxt.later(flow.tcb.data_una());
            }
            flow.report.unsent.low_water = value;
        }
        FlowOption::TellEnd => flow.report.tells_end = value != 0,
        FlowOption::AbortAtClose => flow.set_abort_at_close(value != 0),
        _ => {}
    }
    options::set(&mut flow.tcb, path, tcp, now, option, value);
}

impl HostInterface {
    /// The program took a connection that is no more: it finds it reset.
    fn accept_nothing(
        &mut self,
        session: SessionId,
        queue_set: QueueSetId,
        id: FlowId,
        anchor: AnchorHandle,
    ) -> Result<(), FenceReason> {
        if !self.anchors.bind(session, queue_set, anchor, AnchorTarget::Nothing) {
            return Err(FenceReason::UnknownHandle);
        }
        self.answer(session, queue_set, Completion::Reset { flow: id, errno: Errno::ECONNRESET });
        self.takes_answers(session, queue_set)
    }
}
