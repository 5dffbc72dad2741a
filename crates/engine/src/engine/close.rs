//! A program lets go of a connection.

use super::Edit;
use super::leftovers::ORPHANS_ONE_IN;
use crate::counter::Counter;
use crate::flow::record::Abort;
use crate::flow::tenancy::TenancyEvent;
use crate::hostif::anchors::AnchorTarget;
use crate::parts::Records;
use toe_abi::errno::Errno;
use toe_base::Instant;
use toe_tcp::memory::HostMemory;
use toe_tcp::state::TcpState;
use toe_tcp::timeout;

impl Records<'_> {
    /// The program let go of the flow: FIN behind what is queued, or RST when it left data unread or asks for it
    /// (RFC 9293 section 3.10.4; RFC 2525 section 2.17).
    pub(super) fn app_close<H: HostMemory>(
        &mut self,
        now: Instant,
        idx: Edit<'_>,
        abort: bool,
        host: &mut H,
    ) {
        if self.flows.get(*idx).tcb.orphaned {
            return;
        }
        let flow = self.flows.get_mut(idx);
        flow.tcb.orphaned = true;
        let abort = abort || flow.conn.abort != Abort::No;
        self.hostif.forget_options(self.flows, idx);
        // A host may close what it was handed and has not taken.
        self.forget_in_listener(idx);
        let flow = self.flows.get_mut(idx);
        let untold = flow.report.take_accepted();
        if let Some(anchor) = flow.conn.tenancy.lifetime() {
            self.hostif.anchors.release(anchor, AnchorTarget::Flow(*idx));
        }
        let unread_in_channel = self.hostif.let_go_of_channel(self.flows, idx, host);
        let flow = self.flows.get(*idx);
        let unread = unread_in_channel || flow.tcb.receiving.buffer.unconsumed(flow.tcb.data_nxt()) > 0;
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
                flow.tcb.receiving.held.clear(&mut self.tcp.held);
                if flow.tcb.state == TcpState::FinWait2 {
                    timeout::start_fin_wait_2(&mut flow.tcb, &self.tcp.particulars, now);
                }
            }
        }
        let flow = self.flows.get_mut(idx);
        let arena = self.hostif.sessions.arena(flow.tcb.receiving.buffer.session, flow.conn.user);
        flow.tcb.receiving.buffer.release(arena);
        if untold && !flow.tcb.sending.queue.uses(&self.tcp.extents, flow.conn.tenancy.owner().session) {
            // Its owner never heard of it, and need not hear of its end.
            self.hostif.disown(self.flows, idx);
        }
    }

    /// `Command::Disconnect`: as Linux's, it resets the peer, unless both ends have said their last.
    pub(super) fn disconnect<H: HostMemory>(&mut self, now: Instant, idx: Edit<'_>, host: &mut H) {
        self.hostif.let_go_of_channel(self.flows, idx, host);
        let flow = self.flows.get(*idx);
        let is_all_sent = !flow.tcb.queue_end().after(flow.tcb.snd.nxt);
        match flow.tcb.state {
            TcpState::Closed | TcpState::TimeWait => {}
            TcpState::SynSent => self.closed(idx, Errno::ECONNRESET),
            TcpState::Closing | TcpState::LastAck if is_all_sent => self.closed(idx, Errno::OK),
            // What Linux would have sent by then goes out first.
            _ => self.abort_behind_data(now, idx),
        }
    }

    /// Whether another connection may close without its program. When there are too many, one is reset, as Linux does: first one whose
    /// peer has all bytes, so that peers which never acknowledge a FIN do not cut others' last bytes short; else this one.
    fn may_be_orphan(&mut self, now: Instant) -> bool {
        if self.flows.orphans() < self.flows.max() / ORPHANS_ONE_IN {
            return true;
        }
        self.counters.add(Counter::OrphansReset);
        let told = self.flows.take_acknowledged_orphan();
        if let Some(told) = told {
            self.edit(told, |records, told| records.abort(now, told, Errno::OK));
        }
        told.is_some()
    }
}
