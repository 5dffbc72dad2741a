//! A program lets go of a connection: one copy of its descriptor, the last one, or the connection itself.

use super::Engine;
use super::leftovers::ORPHANS_ONE_IN;
use crate::counter::Counter;
use crate::flow::record::Abort;
use crate::flow::tenancy::TenancyEvent;
use crate::hostif::HostSide;
use crate::hostif::anchors::AnchorTarget;
use toe_abi::attach::FenceReason;
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, FlowId, FlowIdx, Instant, QueueSetId, SessionId};
use toe_tcp::state::TcpState;
use toe_tcp::timeout;

impl Engine {
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
            self.hostif.anchors.release(anchor, AnchorTarget::Flow(idx));
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
        let arena = self.hostif.sessions.arena(flow.tcb.receive.session, flow.conn.user);
        flow.tcb.receive.release(arena);
        if untold && !flow.tcb.send_queue.uses(&self.tcp.extents, flow.conn.tenancy.owner().session) {
            // Its owner never heard of it, and need not hear of its end.
            self.disown(idx);
        }
        self.after(idx);
    }

    /// A process has closed its descriptor. The last close of any copy ends the flow ([`Engine::anchor_closed`]), in the way that was
    /// asked for.
    ///
    /// Its use of a channel ends now: the host has let go of that. What it had received there and not read (it says
    /// `abort` then) nobody else can have, and a stream with a hole is worse than none.
    fn close_one_copy<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, abort: bool, host: &mut H) {
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
        let idx = self.hostif.sessions.get(session).and_then(|s| s.flows.get(flow));
        let ends = idx.filter(|idx| {
            self.flows.get(*idx).conn.tenancy.lifetime() == Some(anchor)
                && self.hostif.anchors.home(anchor) == Some(session)
        });
        let answer = match ends {
            Some(idx) => {
                self.app_close(now, idx, abort, host);
                self.hostif.forget_anchor(anchor);
                self.hostif.anchors.keep(anchor);
                Completion::AnchorFree { anchor }
            }
            None => Completion::AnchorShared { anchor },
        };
        self.hostif.answer(session, queue_set, answer);
        if self.hostif.sessions.answers_are_full(session, queue_set) {
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
        let Some(AnchorTarget::Flow(idx)) = self.hostif.anchors.get(anchor) else { return Ok(()) };
        let conn = &mut self.flows.get_mut(idx).conn;
        if let Command::Lend { .. } = command {
            let has_it = conn.tenancy.owner().session == session;
            self.hostif.anchors.lend(session, anchor, has_it);
        } else if self.hostif.anchors.copy_closed(session, anchor)
            && let Some(earning) = conn.carrier.earning()
        {
            earning.next_unit();
        }
        Ok(())
    }

    /// `Command::Close`, of what its program has accepted or made and of what it has not, and `Command::Disconnect`.
    pub(super) fn end_flow<H: HostSide>(
        &mut self,
        now: Instant,
        idx: FlowIdx,
        command: Command,
        host: &mut H,
    ) {
        match command {
            Command::Close { abort, .. } if self.flows.get(idx).conn.tenancy.is_held() => {
                self.close_one_copy(now, idx, abort, host);
            }
            Command::Close { abort, .. } => self.app_close(now, idx, abort, host),
            _ => self.disconnect(now, idx, host),
        }
    }

    /// `Command::Disconnect`: as Linux's, it resets the peer, unless both ends have said their last.
    fn disconnect<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, host: &mut H) {
        self.let_go_of_channel(idx, host);
        let flow = self.flows.get(idx);
        let is_all_sent = !flow.tcb.queue_end().after(flow.tcb.snd.nxt);
        match flow.tcb.state {
            TcpState::Closed | TcpState::TimeWait => {}
            TcpState::SynSent => self.closed(idx, Errno::ECONNRESET),
            TcpState::Closing | TcpState::LastAck if is_all_sent => self.closed(idx, Errno::OK),
            // What Linux would have sent by then goes out first.
            _ => self.abort_behind_data(now, idx),
        }
        self.after(idx);
    }

    /// Whether another connection may close without its program. When there are too many, one is reset, as Linux does: first one whose
    /// peer has all bytes, so that peers which never acknowledge a FIN do not cut others' last bytes short; else this one.
    fn may_be_orphan(&mut self, now: Instant) -> bool {
        if self.flows.orphans() < self.config.flows_max / ORPHANS_ONE_IN {
            return true;
        }
        self.counters.add(Counter::OrphansReset);
        let told = self.flows.take_acknowledged_orphan();
        if let Some(told) = told {
            self.abort(now, told, Errno::OK);
            self.after(told);
        }
        told.is_some()
    }
}
