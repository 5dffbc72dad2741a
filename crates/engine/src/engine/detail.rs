//! How a connection's TCP stands, for TCP_INFO and TCP_CC_INFO: written down when a host asks, so that nobody pays for it who
//! does not. `toe ss -i` shows the same numbers.

use super::EngineView;
use crate::egress::builder::ip_header_len;
use crate::flow::record::Flow;
use crate::parts::IpLayer;
use crate::work::Path;
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_abi::tcp_info::{CA_CWR, CA_DISORDER, CA_LOSS, CA_OPEN, CA_RECOVERY, FlowDetail, NO_SSTHRESH};
use toe_base::{FlowId, FlowIdx, Instant, ListenerId, SessionId};
use toe_tcp::memory::HostMemory;
use toe_tcp::record::{Negotiated, Particulars, PathState, PeerFin, Phase, SendSide, SynText, TroubleCounts};
use toe_tcp::scoreboard::Fate;
use toe_tcp::state::TcpState;
use toe_tcp::{Tcb, outgoing, rtt};
use zerocopy::IntoBytes;

/// Linux's numbers.
const CLOSED: u8 = 7;
const OPT_TIMESTAMPS: u8 = 1;
const OPT_SACK: u8 = 2;
const OPT_WSCALE: u8 = 4;
const OPT_ECN: u8 = 8;
const OPT_SYN_DATA: u8 = 32;
/// Linux's tcp_reordering; RACK goes by time, not by a count (RFC 8985 section 3.3.2).
const REORDERING: u32 = 3;
/// Longest delay of an ACK of ours.
const ATO_US: u32 = 40_000;

impl EngineView<'_> {
    /// `Command::Inspect`.
    fn inspect<H: HostMemory>(
        self,
        now: Instant,
        session: SessionId,
        id: FlowId,
        host: &mut H,
    ) -> Result<u32, Errno> {
        let record = self.0.hostif.sessions.get(session).ok_or(Errno::ENOTCONN)?;
        let flow = record.flows.get(id).ok_or(Errno::ENOTCONN)?;
        let detail = self.flow_detail(now, flow);
        host.write(session, record.layout.flow_detail(id.slot()), detail.as_bytes());
        Ok(id.raw())
    }

    /// `Command::Inspect` and `Command::CountWaiting`.
    pub(super) fn look_at<H: HostMemory>(
        self,
        now: Instant,
        session: SessionId,
        command: Command,
        host: &mut H,
    ) -> Result<u32, Errno> {
        match command {
            Command::Inspect { flow, .. } => self.inspect(now, session, flow, host),
            Command::CountWaiting { listener, .. } => self.count_waiting(session, listener),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Those of a listener that its program has not taken, handed out or not.
    fn count_waiting(self, session: SessionId, id: ListenerId) -> Result<u32, Errno> {
        let idx = self.0.hostif.sessions.get(session).and_then(|session| session.listener(id));
        let listener = idx.and_then(|idx| self.0.listeners.get(idx)).ok_or(Errno::EINVAL)?;
        Ok(listener.queue.not_taken())
    }

    pub(super) fn flow_detail(self, now: Instant, idx: FlowIdx) -> FlowDetail {
        let (flow, path) = self.0.flows.with_path(idx);
        let mut detail = standing(flow, path, now);
        detail.pmtu = self.0.ip.path_mtu_of(flow);
        detail.retrans = flow
            .tcb
            .sending
            .board
            .ranges(&self.0.tcp.sent)
            .filter(|range| range.resent && range.fate == Fate::InFlight)
            .map(|range| range.len().div_ceil(u32::from(flow.tcb.snd.mss).max(1)))
            .sum();
        let limitless = |rate: u64| if rate == 0 { u64::MAX } else { rate };
        let Particulars { pacing, trouble, .. } = self.0.tcp.particulars.one(&flow.tcb.setup.particulars);
        detail.pacing_rate = limitless(pacing.rate);
        detail.max_pacing_rate = limitless(pacing.rate_max.into());
        counted((flow, path), &trouble, now, &mut detail);
        if let Some((len, info)) = path.cc.algorithm.info(&self.0.tcp.models) {
            (detail.cc_len, detail.cc) = (len, info);
        }
        detail
    }
}

/// The state of the moment.
fn standing(flow: &Flow, path: &PathState, now: Instant) -> FlowDetail {
    let Tcb { state, snd, rcv, sending, receiving, timers, setup, .. } = &flow.tcb;
    let (PathState { rtt, cc, rate, .. }, SendSide { board, .. }) = (path, sending);
    let Negotiated { snd_scale, rcv_scale, .. } = setup.negotiated;
    let mss = u32::from(snd.mss).max(1);
    let segments = |bytes: u32| bytes.div_ceil(mss);
    let open = snd.syn_acked;
    FlowDetail {
        state: match state {
            // Its last wait is not the program's any more: what that has is closed.
            TcpState::TimeWait => CLOSED,
            state => state.linux_number(),
        },
        ca_state: ca_state(flow, path),
        retransmits: sending.timeouts,
        probes: sending.probes,
        backoff: sending.backoff,
        options: options(flow),
        wscale: if open { snd_scale.shift() & 15 | rcv_scale.shift() << 4 } else { 0 },
        app_limited: rate.latest_app_limited.into(),
        rto: u32::try_from(rtt::retransmit_us(&flow.tcb, path)).unwrap_or(u32::MAX),
        ato: if timers.delayed_ack.is_far_future() && receiving.acks.quick > 0 { 0 } else { ATO_US },
        snd_mss: mss,
        rcv_mss: mss,
        unacked: segments(flow.tcb.outstanding()),
        sacked: segments(board.sacked()),
        lost: segments(board.lost()),
        last_ack_recv: milliseconds(now.since_us(timers.heard)),
        rcv_ssthresh: flow.tcb.receiving.buffer.window_max,
        rtt: rtt.srtt_us,
        rttvar: rtt.rttvar_us,
        snd_ssthresh: if cc.ssthresh == u32::MAX { NO_SSTHRESH } else { cc.ssthresh / mss },
        snd_cwnd: (cc.cwnd / mss).max(1),
        advmss: mss,
        reordering: REORDERING,
        rcv_space: flow.tcb.receiving.buffer.window_max,
        notsent_bytes: flow
            .tcb
            .sending
            .queue
            .len()
            .saturating_sub(snd.nxt.distance_from(flow.tcb.data_una())),
        min_rtt: if rtt.min_us == 0 { u32::MAX } else { rtt.min_us },
        delivery_rate: rate.latest,
        snd_wnd: snd.wnd.bytes(),
        rcv_wnd: if open { flow.tcb.receiving.buffer.window(rcv.nxt) } else { 0 },
        ..FlowDetail::default()
    }
}

/// What was counted since the beginning.
fn counted(
    (flow, path): (&Flow, &PathState),
    trouble: &TroubleCounts,
    now: Instant,
    detail: &mut FlowDetail,
) {
    let traffic = &flow.tcb.status.traffic;
    let ago = |at: Instant| milliseconds(now.since_us(at));
    let is_active = flow.tcb.snd.syn_acked && !flow.tcb.handshake.fast_open.was_passive;
    // A connection that has sent nothing counts from its beginning, as in Linux: the peer was heard then at the latest.
    detail.last_data_sent = ago(traffic.sent_at);
    detail.last_data_recv = ago(traffic.received_at);
    detail.rcv_rtt = if traffic.text_segments_in > 0 { path.rtt.srtt_us } else { 0 };
    detail.total_retrans = trouble.resent_segments;
    detail.bytes_acked = traffic.acked + u64::from(is_active) + u64::from(flow.tcb.snd.fin.is_acked());
    detail.bytes_received = traffic.received + u64::from(flow.tcb.rcv.fin == PeerFin::Received);
    detail.segs_out = traffic.segments_out;
    detail.segs_in = traffic.segments_in;
    detail.data_segs_in = traffic.text_segments_in;
    detail.data_segs_out = traffic.text_segments_out;
    detail.busy_time = traffic.limits.busy_us(now);
    detail.rwnd_limited = traffic.limits.window_us(now);
    let under_way = detail.unacked.saturating_sub(detail.sacked);
    let originals = traffic.text_segments_out.wrapping_sub(trouble.resent_segments);
    detail.delivered = originals.saturating_sub(under_way) + u32::from(flow.tcb.snd.syn_acked);
    detail.delivered_ce = trouble.delivered_marked;
    detail.bytes_sent = traffic.sent;
    detail.bytes_retrans = trouble.resent;
    detail.dsack_dups = trouble.dsack_dups;
    detail.reord_seen = trouble.overtaken;
    detail.rcv_ooopack = trouble.out_of_order;
    detail.total_rto = trouble.time_outs.count;
    detail.total_rto_recoveries = trouble.time_outs.overcome;
    detail.total_rto_time = milliseconds(trouble.time_outs.us(now));
    detail.received_ce = trouble.received_marked;
}

fn options(flow: &Flow) -> u8 {
    let open = flow.tcb.snd.syn_acked;
    let scales =
        flow.tcb.setup.negotiated.snd_scale.shift() != 0 || flow.tcb.setup.negotiated.rcv_scale.shift() != 0;
    let options = [
        (open && flow.tcb.ts_recent().is_some(), OPT_TIMESTAMPS),
        (open && flow.tcb.has_sack(), OPT_SACK),
        (open && scales, OPT_WSCALE),
        (open && flow.tcb.setup.ecn.on, OPT_ECN),
        (flow.tcb.handshake.fast_open.syn_text == SynText::Taken, OPT_SYN_DATA),
    ];
    options.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, option)| all | option)
}

/// TCP_CA_Open and its like. Disorder: something came out of order, and nothing is found lost yet.
const fn ca_state(flow: &Flow, path: &PathState) -> u8 {
    match path.cc.phase {
        Phase::Open if flow.tcb.sending.board.sacked() > 0 || path.cc.dup_acks > 0 => CA_DISORDER,
        Phase::Open => CA_OPEN,
        Phase::Reduced => CA_CWR,
        Phase::Recovery => CA_RECOVERY,
        Phase::Loss => CA_LOSS,
    }
}

fn milliseconds(us: u64) -> u32 {
    u32::try_from(us / 1000).unwrap_or(u32::MAX)
}

impl IpLayer {
    /// The largest IP datagram of the path.
    pub(super) fn path_mtu_of(&self, flow: &Flow) -> u32 {
        match flow.conn.path {
            Path::Port { port, .. } if flow.tcb.snd.mss >= flow.tcb.snd.mss_max => {
                self.ports[port.index()].link.mtu
            }
            // What fits one segment: of a path that is known to take less than its link, or of none.
            _ => {
                let headers = ip_header_len(flow.conn.key.remote.addr) as u32;
                u32::from(flow.tcb.snd.mss + outgoing::options_len(&flow.tcb))
                    + crate::parts::TCP_LEN
                    + headers
            }
        }
    }
}
