//! How a connection's TCP stands, for `toe ss -i`.

use super::EngineView;
use toe_abi::report::{TcpCounts, TcpReport};
use toe_abi::tcp_info::{CA_CWR, CA_DISORDER, CA_LOSS, CA_RECOVERY, FlowDetail};
use toe_base::{FlowIdx, Instant};
use toe_tcp::record::{Negotiated, Particulars, PathState, SendSide, Status};
use toe_tcp::{Tcb, rtt};

impl EngineView<'_> {
    pub(super) fn tcp_report(self, now: Instant, idx: FlowIdx) -> TcpReport {
        let (flow, path) = self.0.flows.with_path(idx);
        let detail = self.flow_detail(now, idx);
        let Tcb { snd, rcv, sending: SendSide { board, .. }, setup, status: Status { traffic, .. }, .. } =
            &flow.tcb;
        let (PathState { rtt, cc, rate, .. }, Negotiated { snd_scale, rcv_scale, .. }) =
            (path, setup.negotiated);
        let Particulars { pacing, reordering, trouble, .. } =
            self.0.tcp.particulars.one(&flow.tcb.setup.particulars);
        let scaled = snd_scale.shift() != 0 || rcv_scale.shift() != 0;
        TcpReport {
            congestion: cc.algorithm.name().as_str().to_owned(),
            ca_state: ca_state(detail.ca_state).to_owned(),
            timestamps: snd.syn_acked && flow.tcb.ts_recent().is_some(),
            sack: snd.syn_acked && flow.tcb.has_sack(),
            ecn: flow.tcb.setup.ecn.on,
            wscale: (snd.syn_acked && scaled).then(|| [snd_scale.shift(), rcv_scale.shift()]),
            direct: flow.conn.carrier.channel().is_some(),
            rto_us: u32::try_from(rtt::retransmit_us(&flow.tcb, path)).unwrap_or(u32::MAX),
            backoff: flow.tcb.sending.backoff,
            srtt_us: rtt.srtt_us,
            rttvar_us: rtt.rttvar_us,
            min_rtt_us: rtt.min_us,
            mss: snd.mss,
            pmtu: self.0.ip.path_mtu_of(flow),
            cwnd: cc.cwnd,
            ssthresh: (cc.ssthresh != u32::MAX).then_some(cc.ssthresh),
            bytes_sent: traffic.sent,
            bytes_retrans: trouble.resent,
            bytes_acked: traffic.acked,
            bytes_received: traffic.received,
            segs_out: traffic.segments_out.into(),
            segs_in: traffic.segments_in.into(),
            delivery_rate: rate.latest,
            app_limited: rate.latest_app_limited,
            pacing_rate: pacing.rate,
            unacked: flow.tcb.outstanding(),
            sacked: board.sacked(),
            lost: board.lost(),
            retransmits: trouble.retransmits,
            reordering_seen: reordering.seen,
            reordering_window: reordering.reo_wnd_mult,
            notsent: flow.tcb.sending.queue.len().saturating_sub(snd.nxt.distance_from(flow.tcb.data_una())),
            snd_wnd: snd.wnd.bytes(),
            rcv_wnd: if snd.syn_acked { flow.tcb.receiving.buffer.window(rcv.nxt) } else { 0 },
            rcv_space: flow.tcb.receiving.buffer.window_max,
            counts: counts(&detail),
        }
    }
}

/// What is counted since the beginning, as TCP_INFO tells it.
fn counts(detail: &FlowDetail) -> TcpCounts {
    TcpCounts {
        data_segs_out: detail.data_segs_out,
        data_segs_in: detail.data_segs_in,
        delivered: detail.delivered,
        delivered_ce: detail.delivered_ce,
        dsack_dups: detail.dsack_dups,
        reord_seen: detail.reord_seen,
        rcv_ooopack: detail.rcv_ooopack,
        rcv_rtt_us: detail.rcv_rtt,
        lastsnd_ms: detail.last_data_sent,
        lastrcv_ms: detail.last_data_recv,
        lastack_ms: detail.last_ack_recv,
        busy_us: detail.busy_time,
        rwnd_limited_us: detail.rwnd_limited,
        timeouts: detail.total_rto,
    }
}

/// Linux's names: TCP_CA_Open and its like.
pub(super) const fn ca_state(number: u8) -> &'static str {
    match number {
        CA_DISORDER => "disorder",
        CA_CWR => "cwr",
        CA_RECOVERY => "recovery",
        CA_LOSS => "loss",
        _ => "open",
    }
}
