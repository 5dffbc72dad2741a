//! How a connection's TCP stands, for `toe ss -i`.

use super::{Engine, TCP_LEN};
use crate::egress::builder::ip_header_len;
use crate::flow::record::{Flow, Phase};
use crate::flow::tcp::{output, timeout};
use crate::work::Path;
use toe_abi::report::TcpReport;

impl Engine {
    pub(super) fn tcp_report(&self, flow: &Flow) -> TcpReport {
        let Flow { snd, rcv, cc, rtt, rate, traffic, board, .. } = flow;
        let scaled = snd.scale.shift() != 0 || rcv.scale.shift() != 0;
        let headers = ip_header_len(flow.conn.key.remote.addr) as u32;
        let pmtu = match flow.conn.path {
            Path::Port { port, .. } if snd.mss >= flow.mtu.limit => self.ports[port.index()].link.mtu,
            // What fits one segment: of a path that is known to take less than its link, or of none.
            _ => u32::from(snd.mss + output::options_len(flow)) + TCP_LEN + headers,
        };
        TcpReport {
            congestion: cc.algorithm.name().as_str().to_owned(),
            ca_state: ca_state(cc.phase).to_owned(),
            timestamps: snd.syn_acked && rcv.ts_recent.is_some(),
            sack: snd.syn_acked && snd.sack_permitted,
            ecn: flow.ecn.on,
            wscale: (snd.syn_acked && scaled).then(|| [snd.scale.shift(), rcv.scale.shift()]),
            direct: flow.conn.direct.is_some(),
            rto_us: u32::try_from(timeout::retransmit_us(flow)).unwrap_or(u32::MAX),
            backoff: rtt.backoff,
            srtt_us: rtt.srtt_us,
            rttvar_us: rtt.rttvar_us,
            min_rtt_us: rtt.min_us,
            mss: snd.mss,
            pmtu,
            cwnd: cc.cwnd,
            ssthresh: (cc.ssthresh != u32::MAX).then_some(cc.ssthresh),
            bytes_sent: traffic.sent,
            bytes_retrans: traffic.resent,
            bytes_acked: traffic.acked,
            bytes_received: traffic.received,
            segs_out: traffic.segments_out,
            segs_in: traffic.segments_in,
            delivery_rate: rate.latest,
            app_limited: rate.latest_app_limited,
            pacing_rate: rate.pacing,
            unacked: flow.outstanding(),
            sacked: board.sacked(),
            lost: board.lost(),
            retransmits: rtt.retransmits,
            reordering_seen: flow.rack.reordering_seen,
            reordering_window: flow.rack.reo_wnd_mult,
            notsent: flow.send_queue.len().saturating_sub(snd.nxt.distance_from(flow.data_una())),
            snd_wnd: snd.wnd.octets(),
            rcv_wnd: if snd.syn_acked { flow.receive.window(rcv.nxt) } else { 0 },
            rcv_space: flow.receive.window_max,
        }
    }
}

/// Linux's names: TCP_CA_Open and its like.
const fn ca_state(phase: Phase) -> &'static str {
    match phase {
        Phase::Open => "open",
        Phase::Reduced => "cwr",
        Phase::Recovery => "recovery",
        Phase::Loss => "loss",
    }
}
