//! Completions of what a record says, and answers to commands. Which records have something to say is asked after each change;
//! [`super::completions`] brings it to the rings.

use super::Edit;
use crate::flow::record::{Flow, OpenNotice, Unsent};
use crate::hostif::outbox::Place;
use crate::parts::{FlowMemory, HostInterface};
use toe_abi::attach::FenceReason;
use toe_abi::command::{
    FLOW_ECN, FLOW_RECEIVE_SHUT, FLOW_SACK, FLOW_SYN_DATA, FLOW_TIMESTAMPS, FLOW_WAITS_FOR_DATA,
    FLOW_WINDOW_SCALE, FlowInfo, WireAddr,
};
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use toe_base::{QueueSetId, SessionId};
use toe_tcp::fast_open;
use toe_tcp::memory::HostMemory;
use toe_tcp::record::SynText;
use toe_tcp::send_queue::ExtentPool;
use toe_tcp::state::TcpState;
use zerocopy::IntoBytes;

/// Whether the owner has something to be told.
pub(super) fn has_something(flow: &Flow, extents: &ExtentPool) -> bool {
    let Flow { conn, report, tcb } = flow;
    !conn.tenancy.owner().is_nobody()
        && (report.opened != OpenNotice::None
            || report.direct
            || tcb.status.events.urgent
            || !tcb.status.events.soft_error.is_ok()
            || is_info_old(flow)
            || frees_enough(flow, extents)
            || went_out(flow) > 0
            || tcb.status.events.peer_closed && !report.peer_closed_notified
            || report.reset.is_some_and(|reset| !reset.notified)
            || has_end_to_tell(flow)
            || tcb.receiving.buffer.published != tcb.data_nxt())
}

impl FlowMemory<'_> {
    /// Writes the flow's information record, which its owner reads.
    pub(super) fn tell_flow_info<H: HostMemory>(&mut self, idx: Edit<'_>, host: &mut H) {
        let (flow, path) = self.flows.with_path_mut(idx);
        flow.report.state = flow.tcb.state;
        flow.report.published_error = flow.tcb.status.events.noted;
        let owner = flow.conn.tenancy.owner();
        if owner.is_nobody() {
            return;
        }
        let waits = is_waiting(flow);
        let info = FlowInfo {
            local: WireAddr::from(flow.conn.key.local_addr()),
            remote: WireAddr::from(flow.conn.key.remote_addr()),
            mss: if waits {
                self.tcp.openings.one(&flow.tcb.handshake.fast_open.opening).room
            } else {
                flow.tcb.snd.mss
            },
            soft_error: flow.tcb.status.events.noted.errno.0 as u8,
            soft_errors: flow.tcb.status.events.noted.count,
            srtt_us: path.rtt.srtt_us,
            rttvar_us: path.rtt.rttvar_us,
            cwnd: path.cc.cwnd,
            retransmits: self.tcp.particulars.one(&flow.tcb.setup.particulars).trouble.retransmits,
            port: match flow.conn.path {
                crate::work::Path::Local => 255,
                crate::work::Path::Port { port, .. } => port.0,
            },
            state: flow.tcb.state.linux_number(),
            flags: flow_flags(flow),
            congestion: path.cc.algorithm.name().number(),
        };
        if let Some(record) = self.hostif.sessions.get(owner.session) {
            host.write(owner.session, record.layout.flow_info(owner.flow_id.slot()), info.as_bytes());
        }
    }
}

fn flow_flags(flow: &Flow) -> u8 {
    let open = flow.tcb.snd.syn_acked;
    let scales =
        flow.tcb.setup.negotiated.snd_scale.shift() != 0 || flow.tcb.setup.negotiated.rcv_scale.shift() != 0;
    let flags = [
        (flow.tcb.setup.options.receive_shut, FLOW_RECEIVE_SHUT),
        (open && flow.tcb.ts_recent().is_some(), FLOW_TIMESTAMPS),
        (open && flow.tcb.has_sack(), FLOW_SACK),
        (open && scales, FLOW_WINDOW_SCALE),
        (open && flow.tcb.setup.ecn.on, FLOW_ECN),
        (flow.tcb.handshake.fast_open.syn_text == SynText::Taken, FLOW_SYN_DATA),
        (is_waiting(flow), FLOW_WAITS_FOR_DATA),
    ];
    flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
}

/// Whether the owner waits to hear that its end is acknowledged, and it is.
pub(super) fn has_end_to_tell(flow: &Flow) -> bool {
    let is_acknowledged =
        matches!(flow.tcb.state, TcpState::FinWait2 | TcpState::TimeWait | TcpState::Closed);
    flow.report.tells_end && is_acknowledged
}

/// Whether a third of the memory that the owner has in the queue is its own again, or all of it. Its program is woken at each
/// `Sent`, and one that waits for room has little to do for a segment's worth: Linux, too, wakes it for a third (`sk_stream_is_writeable`).
///
/// Less is told where no acknowledgement may follow that would make it more: nothing is on its way, or a timer had to expire.
fn frees_enough(flow: &Flow, extents: &ExtentPool) -> bool {
    let sent = flow.tcb.status.events.sent;
    let more_may_follow = flow.tcb.snd.una != flow.tcb.snd.nxt && flow.tcb.sending.backoff == 0;
    sent > 0
        && (!more_may_follow
            || sent >= flow.tcb.sending.queue.bytes_of(extents, flow.conn.tenancy.owner().session) / 2)
}

/// Bytes that have gone out and are to be told of.
pub(super) fn went_out(flow: &Flow) -> u32 {
    let Unsent { low_water, notified } = flow.report.unsent;
    if low_water == 0 {
        return 0;
    }
    let end = flow.tcb.queue_end();
    let out = flow.tcb.snd.nxt.earlier(end);
    let is_low = u64::from(end.distance_from(out)) * 2 < u64::from(low_water);
    if is_low && out.after(notified) { out.distance_from(notified) } else { 0 }
}

/// Whether the flow information record shows what is no longer so, of what a program must not find old.
pub(super) fn is_info_old(flow: &Flow) -> bool {
    flow.report.state != flow.tcb.state || flow.report.published_error != flow.tcb.status.events.noted
}

/// Whether a SYN is to have the bytes that the program sends first.
fn is_waiting(flow: &Flow) -> bool {
    flow.tcb.state == TcpState::SynSent && fast_open::waits(&flow.tcb)
}

impl HostInterface {
    /// Queues a completion that belongs to no live flow.
    pub(super) fn answer(&mut self, session: SessionId, queue_set: QueueSetId, completion: Completion) {
        if self.sessions.add_answer(session, queue_set, completion) {
            self.outbox.note(Place::of(session, queue_set));
        }
    }

    pub(super) fn answer_command(
        &mut self,
        session: SessionId,
        queue_set: QueueSetId,
        token: u32,
        command: Command,
        result: Result<u32, Errno>,
    ) -> Result<(), FenceReason> {
        let (errno, id) = match result {
            Ok(id) => (Errno::OK, id),
            Err(errno) => (errno, 0),
        };
        self.answer(
            session,
            queue_set,
            Completion::CommandResult { token, command: command.kind(), errno, id },
        );
        self.takes_answers(session, queue_set)
    }

    /// Whether the host takes what it is told.
    pub(super) fn takes_answers(&self, session: SessionId, queue_set: QueueSetId) -> Result<(), FenceReason> {
        let is_full = self.sessions.answers_are_full(session, queue_set);
        if is_full { Err(FenceReason::CompletionOverflow) } else { Ok(()) }
    }
}
