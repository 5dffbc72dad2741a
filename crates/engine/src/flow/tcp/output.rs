//! What a connection sends now: the SEND side of RFC 9293 sections 3.7 and 3.8.
//!
//! [`prepare`] only looks, so that a port without room costs nothing; [`commit`] does what sending means; [`settle`]
//! arms what has to wait. The caller repeats `prepare` and `commit` until nothing is left.

use crate::flow::record::Flow;
use crate::flow::tcp::open::TIMESTAMPS_LEN;
use crate::flow::tcp::state::TcpState;
use crate::flow::tcp::timeout;
use crate::work::{Segment, TxSegment};
use toe_base::window::{UnscaledWindow, WindowScale, WindowSize};
use toe_base::{Instant, SeqNum};

/// Longest time that a corked partial segment waits, as Linux has it.
const CORK_US: u64 = 200_000;

/// What a path allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Largest payload of one unit: many segments where the link or the egress cuts them, else one.
    pub unit_max: u32,
    /// The MSS that we announce.
    pub announce_mss: u16,
}

/// The next segment to send, or `None`.
pub fn prepare(flow: &Flow, now: Instant, limits: SendLimits) -> Option<TxSegment> {
    match flow.conn.state {
        TcpState::Closed => None,
        TcpState::SynSent | TcpState::SynReceived => prepare_syn(flow, now, limits),
        _ => prepare_resend(flow, now)
            .or_else(|| prepare_probe(flow, now))
            .or_else(|| prepare_new(flow, now, limits))
            .or_else(|| prepare_ack(flow, now)),
    }
}

fn prepare_syn(flow: &Flow, now: Instant, limits: SendLimits) -> Option<TxSegment> {
    if flow.snd.nxt != flow.snd.iss {
        return if flow.conn.state == TcpState::SynReceived { prepare_ack(flow, now) } else { None };
    }
    let answers = flow.conn.state == TcpState::SynReceived;
    let mut segment = header(flow, now, flow.snd.iss);
    segment.syn = true;
    segment.ack = answers.then_some(flow.rcv.nxt);
    segment.mss = Some(limits.announce_mss);
    // In an answer only what the peer's SYN offered is repeated (RFC 7323 sections 2.2 and 3.2).
    segment.window_scale = (!answers || flow.rcv.scale != WindowScale::ZERO).then_some(flow.rcv.scale);
    let window = WindowSize::new(flow.receive.window_max.min(u32::from(u16::MAX)));
    segment.window = window.to_field(WindowScale::ZERO);
    Some(unit(flow, segment, 0, flow.snd.max != flow.snd.iss))
}

/// The segment at `snd.una` again (fast retransmit, partial ACK).
fn prepare_resend(flow: &Flow, now: Instant) -> Option<TxSegment> {
    if !flow.snd.resend || flow.snd.una == flow.snd.max {
        return None;
    }
    let was_sent = flow.snd.max.distance_from(flow.snd.una);
    let len = flow.send_queue.len().min(u32::from(flow.snd.mss)).min(was_sent);
    Some(data_segment(flow, now, flow.snd.una, len, true))
}

fn prepare_probe(flow: &Flow, now: Instant) -> Option<TxSegment> {
    if flow.snd.probe && !flow.send_queue.is_empty() {
        let again = flow.snd.max != flow.snd.una;
        // One octet into a closed window; into one that silly window avoidance did not use, what fits.
        let room = flow.snd.wnd.octets().min(u32::from(flow.snd.mss)).max(1);
        return Some(data_segment(flow, now, flow.snd.una, flow.send_queue.len().min(room), again));
    }
    if flow.snd.keepalive_probe {
        return Some(unit(flow, header(flow, now, flow.snd.una.minus(1)), 0, false));
    }
    None
}

fn prepare_new(flow: &Flow, now: Instant, limits: SendLimits) -> Option<TxSegment> {
    let len = new_data_len(flow, limits.unit_max);
    let fin_due = flow.snd.fin_queued && flow.snd.nxt.plus(len) == flow.queue_end() && !flow.snd.fin_acked;
    if len == 0 && !fin_due {
        return None;
    }
    let again = flow.snd.nxt.before(flow.snd.max);
    Some(data_segment(flow, now, flow.snd.nxt, len, again))
}

fn prepare_ack(flow: &Flow, now: Instant) -> Option<TxSegment> {
    (flow.rcv.ack_now || flow.rcv.dup_acks > 0)
        .then(|| unit(flow, header(flow, now, empty_seq(flow)), 0, false))
}

/// The sequence number of an empty segment. `snd.nxt` may have gone back, and the peer would not take an ACK from
/// before its `rcv.nxt`, nor one from beyond its window, where a probe may have reached.
pub fn empty_seq(flow: &Flow) -> SeqNum {
    if flow.conn.state.is_synchronized() {
        flow.snd.max.earlier(flow.snd.una.plus(flow.snd.wnd.octets()))
    } else {
        flow.snd.max
    }
}

/// Octets of queued data that may go now from `snd.nxt` on.
fn new_data_len(flow: &Flow, unit_max: u32) -> u32 {
    let mss = u32::from(flow.snd.mss);
    // Whoever cuts a large unit would repeat the urgent pointer in each piece, where it leads elsewhere.
    let is_urgent = flow.snd.up.is_some_and(|up| flow.snd.nxt.before(up));
    let unit_max = if is_urgent && !flow.is_local() { mss } else { unit_max };
    let queued = flow.queue_end().distance_from(flow.snd.nxt);
    let in_flight = flow.in_flight();
    let window_left = flow.snd.wnd.octets().saturating_sub(in_flight);
    let path_left = if flow.is_local() { u32::MAX } else { flow.cc.cwnd.saturating_sub(in_flight) };
    let len = queued.min(window_left).min(path_left).min(unit_max);
    let tail = len % mss;
    if len == 0 || tail == 0 {
        return len;
    }
    let hold_tail = if len < queued {
        // Silly window avoidance (RFC 9293 section 3.8.6.2.1): more is queued than fits; whole segments only, or
        // half of what the peer can ever take.
        len < mss && len < flow.snd.max_wnd.octets() / 2 || len > mss
    } else {
        let corked = (flow.options.cork || flow.snd.more) && !flow.snd.uncork;
        // Nagle: one partial segment in flight at most (RFC 9293 section 3.7.4).
        let nagle = !flow.options.no_delay && in_flight > 0;
        (corked || nagle) && !flow.snd.fin_queued && !flow.snd.nxt.before(flow.snd.max)
    };
    if hold_tail { len - tail } else { len }
}

fn data_segment(flow: &Flow, now: Instant, seq: SeqNum, len: u32, again: bool) -> TxSegment {
    let end = seq.plus(len);
    let mut segment = header(flow, now, seq);
    segment.len = len;
    segment.fin = flow.snd.fin_queued && !flow.snd.fin_acked && end == flow.queue_end();
    segment.psh = len > 0 && end == flow.queue_end();
    unit(flow, segment, seq.distance_from(flow.data_una()), again)
}

fn unit(flow: &Flow, segment: Segment, payload_at: u32, is_retransmit: bool) -> TxSegment {
    TxSegment { segment, payload_at, mss: flow.snd.mss, is_retransmit }
}

/// A segment with ACK, window and timestamps filled in.
fn header(flow: &Flow, now: Instant, seq: SeqNum) -> Segment {
    let window = WindowSize::new(offered_edge(flow).distance_from(flow.rcv.nxt));
    Segment {
        seq,
        urgent: urgent_pointer(flow, seq),
        ack: (flow.conn.state != TcpState::SynSent).then_some(flow.rcv.nxt),
        syn: false,
        fin: false,
        rst: false,
        psh: false,
        window: if flow.conn.state == TcpState::SynSent {
            UnscaledWindow(0)
        } else {
            window.to_field(flow.rcv.scale)
        },
        mss: None,
        window_scale: None,
        timestamps: flow.rcv.ts_recent.map(|recent| (timestamp(flow, now), recent)),
        len: 0,
    }
}

/// What leads from `seq` to the octet after the urgent one, while that is ahead. Farther than the field reaches, it says
/// that there is something (RFC 9293 section 3.8.5: "as soon as possible").
fn urgent_pointer(flow: &Flow, seq: SeqNum) -> Option<u16> {
    let up = flow.snd.up.filter(|up| seq.before(*up))?;
    Some(u16::try_from(up.distance_from(seq)).unwrap_or(u16::MAX))
}

/// TSval: the millisecond clock plus an offset per connection (RFC 7323 section 5.4), which the secret initial
/// sequence number already is.
fn timestamp(flow: &Flow, now: Instant) -> u32 {
    now.tcp_timestamp_ms().wrapping_add(flow.snd.iss.raw())
}

/// The right edge to advertise: as far as memory allows, never back, and not in silly steps.
fn offered_edge(flow: &Flow) -> SeqNum {
    let data_nxt = flow.data_nxt();
    let reach = data_nxt.plus(flow.receive.window(data_nxt));
    let step = u32::from(flow.snd.mss).min(flow.receive.window_max / 2);
    if reach.distance_from(flow.rcv.edge) >= step { reach } else { flow.rcv.edge.later(flow.rcv.nxt) }
}

/// `tx` is on its way.
pub fn commit(flow: &mut Flow, now: Instant, tx: &TxSegment) {
    let segment = &tx.segment;
    if segment.ack.is_some() {
        flow.rcv.ack_now = false;
        flow.rcv.acked = flow.rcv.nxt;
        flow.timers.delayed_ack = Instant::FAR_FUTURE;
        if !segment.syn {
            flow.rcv.edge = offered_edge(flow);
        }
    }
    if segment.seq == flow.snd.una {
        flow.snd.resend = false;
        flow.snd.probe = false;
    }
    let len = segment.seq_len();
    if len == 0 {
        flow.snd.keepalive_probe = false;
        flow.rcv.dup_acks = flow.rcv.dup_acks.saturating_sub(1);
        return;
    }
    let end = segment.seq.plus(len);
    if segment.seq.at_or_before(flow.snd.nxt) {
        flow.snd.nxt = flow.snd.nxt.later(end);
    }
    if tx.is_retransmit {
        flow.rtt.retransmits = flow.rtt.retransmits.saturating_add(1);
    } else {
        flow.rtt.start(segment.seq, now);
    }
    flow.snd.max = flow.snd.max.later(flow.snd.nxt);
    if flow.snd.nxt == flow.queue_end() {
        flow.snd.uncork = false;
        flow.timers.cork = Instant::FAR_FUTURE;
    }
    if flow.timers.persist.is_far_future() && flow.timers.retransmit.is_far_future() {
        flow.timers.retransmit = now.after_us(timeout::retransmit_us(flow));
    }
    if flow.timers.stalled_since.is_far_future() {
        flow.timers.stalled_since = now;
    }
}

/// Nothing more can be sent now: arms the timer that will change that, if none else will.
pub fn settle(flow: &mut Flow, now: Instant) {
    if !flow.conn.state.is_synchronized() || flow.snd.fin_acked {
        return;
    }
    let waiting = flow.queue_end().distance_from(flow.snd.nxt) > 0;
    let asked = flow.snd.nxt != flow.snd.una && flow.snd.wnd.octets() > 0;
    if !waiting || asked {
        // What is on its way brings an answer, or its time-out comes.
        let outstanding = flow.snd.max != flow.snd.una;
        if outstanding && flow.timers.retransmit.is_far_future() && flow.timers.persist.is_far_future() {
            flow.timers.retransmit = now.after_us(timeout::retransmit_us(flow));
        }
        return;
    }
    if flow.snd.wnd.octets() > 0 && (flow.options.cork || flow.snd.more) && !flow.snd.uncork {
        if flow.timers.cork.is_far_future() {
            flow.timers.cork = now.after_us(CORK_US);
        }
        return;
    }
    if flow.timers.persist.is_far_future() {
        // The window is closed, or too small to be worth a segment: ask for it (RFC 9293 section 3.8.6.1).
        flow.timers.retransmit = Instant::FAR_FUTURE;
        flow.timers.persist = now.after_us(flow.rtt.timeout_us());
    }
}

/// Header octets of the TCP options that [`header`] fills in.
pub const fn options_len(flow: &Flow) -> u16 {
    if flow.rcv.ts_recent.is_some() { TIMESTAMPS_LEN } else { 0 }
}
