//! What a connection sends now: the SEND side of RFC 9293 sections 3.7 and 3.8.
//!
//! [`prepare`] only looks, so that a port without room costs nothing; [`commit`] does what sending means; [`settle`]
//! arms what has to wait. The caller repeats `prepare` and `commit` until nothing is left.

use crate::congestion::dctcp;
use crate::ecn::EcnMode;
use crate::open::{TIMESTAMPS_LEN, syn_window};
use crate::reassembly::{HeldPool, SeqRange};
use crate::record::{Frto, Phase, Tcb, Wait};
use crate::record_ends;
use crate::scoreboard::{Resent, SentPool, SentRange};
use crate::segment::{Segment, TxSegment};
use crate::state::TcpState;
use crate::{Tcp, congestion, fast_open, path_mtu, probe, rack, rate, recovery, timeout, tso};
use toe_base::window::{UnscaledWindow, WindowScale, WindowSize};
use toe_base::{Instant, SeqNum};
use toe_wire::tcp::{SackBlock, SackBlocks};

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
pub fn prepare(flow: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    match flow.state {
        TcpState::Closed => return None,
        TcpState::SynSent | TcpState::SynReceived => return prepare_syn(flow, cx),
        _ => {}
    }
    let shape = Shape::of(flow, cx);
    prepare_owed(flow, cx.now)
        .or_else(|| prepare_resend(flow, cx, &shape))
        .or_else(|| probe::of_silence(flow, &shape))
        .or_else(|| probe::of_tail(flow, &shape))
        .or_else(|| probe::of_mtu(flow, &shape))
        .or_else(|| prepare_new(flow, cx, &shape))
        .or_else(|| prepare_ack(flow, cx))
}

/// What all segments with data have in common now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    pub(super) now: Instant,
    /// RFC 2018 section 4: all ACKs tell of what came out of order.
    pub(super) sack: SackBlocks,
    /// Octets of data that fit beside that.
    pub(super) mss: u32,
    /// No segment spans one of these.
    pub(super) record_ends: &'a [SeqNum],
}

impl<'a> Shape<'a> {
    fn of(flow: &Tcb, cx: TxContext<'a>) -> Shape<'a> {
        let sack = sack_blocks(flow, &cx.tcp.held);
        // Any segment has room for all options and some data (`open::MSS_MIN`).
        let mss = u32::from(flow.snd.mss).saturating_sub(sack.option_len() as u32).max(1);
        Shape { now: cx.now, sack, mss, record_ends: flow.record_ends.ends(&cx.tcp.record_ends) }
    }

    /// Octets from `seq` on that are of one record.
    pub(super) fn record_from(&self, seq: SeqNum) -> u32 {
        record_ends::room_from(self.record_ends, seq)
    }
}

/// What the next segment depends on beside the record.
#[derive(Clone, Copy, Debug)]
pub struct TxContext<'a> {
    pub now: Instant,
    pub tcp: &'a Tcp,
    pub limits: SendLimits,
}

fn prepare_syn(flow: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    let answers = flow.state == TcpState::SynReceived;
    let was_sent = flow.snd.nxt != flow.snd.iss;
    if was_sent && !fast_open::is_syn_lost(flow, &cx.tcp.sent) {
        // The program of a Fast Open may answer before the handshake is complete (RFC 7413 section 4.2.2).
        let early = flow.fast_open.early.then(|| prepare_new(flow, cx, &Shape::of(flow, cx))).flatten();
        return early.or_else(|| if answers { prepare_ack(flow, cx) } else { None });
    }
    if fast_open::waits(flow) {
        return None;
    }
    let mut segment = header(flow, cx.now, flow.snd.iss);
    segment.syn = true;
    segment.ack = answers.then_some(flow.rcv.nxt);
    segment.mss = Some(cx.limits.announce_mss);
    segment.sack_permitted = flow.rcv.sack_permitted;
    // RFC 3168 section 6.1.1; one that is sent again does without (6.1.1.1), as the first may have been dropped for it.
    let asks = !answers && !was_sent && !flow.is_local && cx.tcp.config.ecn == EcnMode::Request;
    segment.ece = asks || answers && flow.ecn.on;
    segment.cwr = asks;
    // In an answer only what the peer's SYN offered is repeated (RFC 7323 sections 2.2 and 3.2).
    segment.window_scale = (!answers || flow.rcv.scale != WindowScale::ZERO).then_some(flow.rcv.scale);
    // What octets of the peer's SYN have taken of it is gone: the edge was said by the numbers before them.
    let window = if answers {
        WindowSize::new(flow.rcv.edge.distance_from(flow.rcv.nxt).min(u32::from(u16::MAX)))
    } else {
        syn_window(flow)
    };
    segment.window = window.to_field(WindowScale::ZERO);
    if !was_sent {
        segment.fast_open = flow.fast_open.option;
        let of_record =
            || record_ends::room_from(flow.record_ends.ends(&cx.tcp.record_ends), flow.data_una());
        segment.len = if answers { 0 } else { fast_open::syn_len(flow).min(of_record()) };
    }
    Some(unit(flow, segment, 0, was_sent))
}

/// The first stretch that is lost again, as far as the windows let it. After a time-out that may be spurious it is the
/// segment at `snd.una` alone, and nothing once that has gone (RFC 5682 section 2.1).
fn prepare_resend(flow: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> Option<TxSegment> {
    let range = flow.board.first_lost(&cx.tcp.sent)?;
    let mss = shape.mss;
    let only_head = match flow.cc.frto {
        Frto::Off => false,
        Frto::Resent if range.start == flow.snd.una => true,
        Frto::Resent | Frto::SentNew => return None,
    };
    let is_head = range.start == flow.snd.una;
    let window_end = flow.snd.una.plus(flow.snd.wnd.octets());
    let fin_alone = range.start == flow.queue_end();
    let data_end = range.end.earlier(flow.queue_end());
    let data_len = data_end.distance_from(range.start).min(shape.record_from(range.start));
    let offered = window_end.distance_from(range.start);
    let path_left = path_left(flow, cx.now);
    if path_left == 0 || offered == 0 && !fin_alone {
        return None;
    }
    let whole_units = (path_left.min(cx.limits.unit_max) / mss * mss).max(mss);
    let most = if only_head || flow.snd.up.is_some() { mss } else { whole_units };
    let wanted = data_len.min(most);
    let len = if offered < wanted && offered > mss { offered / mss * mss } else { offered.min(wanted) };
    // What is not the first must be worth a segment, or the window's edge would be crept up to.
    if !is_head && len < mss.min(data_len) {
        return None;
    }
    Some(data_segment(flow, shape, range.start, len, true))
}

/// Octets that congestion control and pacing let go now; 0 or at least a segment.
pub(super) fn path_left(flow: &Tcb, now: Instant) -> u32 {
    if flow.is_local {
        return u32::MAX;
    }
    let mss = u32::from(flow.snd.mss);
    let paced = match rate::paced_room(&flow.rate, now, mss) {
        u32::MAX => u32::MAX,
        room => room.max(congestion::burst::head_start(flow)),
    };
    let left = flow.cc.cwnd.saturating_sub(flow.pipe());
    if paced > 0 && (left >= mss || flow.pipe() == 0) { left.max(mss).min(paced) } else { 0 }
}

fn prepare_new(flow: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> Option<TxSegment> {
    let len = new_data_len(flow, cx.limits.unit_max, shape);
    let fin_due = flow.snd.fin_queued && flow.snd.nxt.plus(len) == flow.queue_end() && !flow.snd.fin_acked;
    if len == 0 && !fin_due || len > 0 && tso::defers(flow, &cx.tcp.sent, shape) {
        return None;
    }
    let mut tx = data_segment(flow, shape, flow.snd.nxt, len, false);
    tx.segment.psh |= len == shape.mss && ends_burst(flow, cx, shape);
    Some(tx)
}

/// Whether a whole segment is the last of several that go at once, and the windows let no more go: to a link that cuts it would have been
/// the end of one large unit.
fn ends_burst(flow: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> bool {
    let window_left = flow.snd.wnd.octets().saturating_sub(flow.outstanding());
    let left = window_left.min(path_left(flow, shape.now));
    left < 2 * shape.mss && flow.board.last(&cx.tcp.sent).is_some_and(|last| last.sent_at == shape.now)
}

/// An ACK of what came before marks began or ended (RFC 8257 section 3.2).
fn prepare_owed(flow: &Tcb, now: Instant) -> Option<TxSegment> {
    let (ack, ece) = dctcp::owed(flow)?;
    let window = WindowSize::new(flow.rcv.edge.distance_from(ack)).to_field(flow.rcv.scale);
    let segment = Segment { ack: Some(ack), ece, window, ..header(flow, now, empty_seq(flow)) };
    Some(unit(flow, segment, 0, false))
}

fn prepare_ack(flow: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    if !flow.rcv.ack_now && flow.rcv.dup_acks == 0 {
        return None;
    }
    let mut segment = header(flow, cx.now, empty_seq(flow));
    segment.sack = sack_blocks(flow, &cx.tcp.held);
    Some(unit(flow, segment, 0, false))
}

/// What lies beyond `rcv.nxt`, the latest news first, behind what came twice (RFC 2018 section 4, RFC 2883 section 4).
///
/// When more came in one batch than one ACK can tell of, the ACKs that are owed for it tell of one part each, in the order
/// of the stream: to the peer it looks as if they had been sent one by one.
fn sack_blocks(flow: &Tcb, held: &HeldPool) -> SackBlocks {
    let mut blocks = SackBlocks::NONE;
    let fin = fin_held(flow);
    let has_none = flow.held.is_empty() && fin.is_none() && flow.rcv.duplicates.first().is_none();
    if !flow.rcv.sack_permitted || has_none {
        return blocks;
    }
    if let Some(range) = flow.rcv.duplicates.first() {
        blocks.push(SackBlock { left: range.start, right: range.end });
    }
    let room = sack_room(flow) - blocks.as_slice().len();
    let ranges = flow.held.ranges(held);
    // FIN takes the number behind the last octet.
    let block = |range: SeqRange| SackBlock {
        left: range.start,
        right: if fin == Some(range.end) { range.end.plus(1) } else { range.end },
    };
    let alone = fin.filter(|fin| ranges.last().is_none_or(|last| last.end != *fin));
    let alone = alone.map(|fin| SeqRange { start: fin, end: fin });
    let known = flow.rcv.reported_up_to.later(flow.rcv.nxt);
    let from = ranges.partition_point(|r| r.end.at_or_before(known));
    if ranges.len() - from > room && flow.rcv.dup_acks > 1 {
        for range in ranges[from..from + room].iter().rev() {
            blocks.push(block(*range));
        }
        return blocks;
    }
    let containing = |seq: SeqNum| match alone {
        Some(fin) if fin.start == seq => alone,
        _ => flow.held.containing(held, seq),
    };
    let latest = flow.rcv.reported.iter().filter_map(|seq| containing(*seq));
    let skip = blocks.as_slice().len();
    for range in latest.chain(alone).chain(ranges.iter().rev().copied()).take(2 * SackBlocks::MAX) {
        let told = &blocks.as_slice()[skip..];
        if told.len() < room && !told.contains(&block(range)) {
            blocks.push(block(range));
        }
    }
    blocks
}

/// The number of a FIN that came before what it follows.
fn fin_held(flow: &Tcb) -> Option<SeqNum> {
    flow.rcv.fin.filter(|fin| fin.after(flow.rcv.nxt))
}

/// Blocks that fit a header (RFC 2018 section 3).
const fn sack_room(flow: &Tcb) -> usize {
    if flow.rcv.ts_recent.is_some() { SackBlocks::MAX - 1 } else { SackBlocks::MAX }
}

/// The sequence number of an empty segment: the peer would not take an ACK from beyond its window, where a probe may
/// have reached.
pub fn empty_seq(flow: &Tcb) -> SeqNum {
    if flow.state.is_synchronized() {
        flow.snd.nxt.earlier(flow.snd.una.plus(flow.snd.wnd.octets()))
    } else {
        flow.snd.nxt
    }
}

/// Whether everything up to `seq` went out.
pub fn is_sent(flow: &Tcb, seq: SeqNum) -> bool {
    seq.at_or_before(flow.snd.nxt)
}

/// Octets of queued data that may go now from `snd.nxt` on.
fn new_data_len(flow: &Tcb, unit_max: u32, shape: &Shape<'_>) -> u32 {
    let mss = shape.mss;
    // Whoever cuts a large unit would repeat the urgent pointer in each piece, where it leads elsewhere.
    let is_urgent = flow.snd.up.is_some_and(|up| flow.snd.nxt.before(up));
    let queued = flow.queue_end().distance_from(flow.snd.nxt);
    let ready = queued.min(shape.record_from(flow.snd.nxt));
    let outstanding = flow.outstanding();
    let window_left = flow.snd.wnd.octets().saturating_sub(outstanding);
    let path_left = path_left(flow, shape.now);
    let may_go = ready.min(window_left).min(path_left);
    let len = if may_go < mss {
        may_go
    } else if is_urgent && !flow.is_local {
        mss
    } else {
        may_go.min(whole_unit(flow, unit_max, mss))
    };
    // What fits one segment needs no division.
    let tail = if len < mss { len } else { len % mss };
    if len == 0 || tail == 0 {
        return len;
    }
    let hold_tail = if len < ready {
        // Silly window avoidance (RFC 9293 section 3.8.6.2.1): more is queued than fits; whole segments only, or
        // half of what the peer can ever take. Between local ends a segment is as large as a window may be that scarce memory has
        // cut down, and the peer tells of no more before half of that is free: what it takes goes when nothing is under way.
        let takes_all = flow.is_local && outstanding == 0;
        len < mss && len < flow.snd.max_wnd.octets() / 2 && !takes_all || len > mss
    } else if ready < queued {
        // A record's end: nothing that could be waited for can join it (Linux: tcp_nagle_test, for what is not the last).
        false
    } else {
        let corked = waits_for_more(flow);
        // Nagle: one partial segment in flight at most (RFC 9293 section 3.7.4). Only another partial one holds it back, not
        // whole ones (Minshall, draft-minshall-nagle-01, as Linux has it): the end of a long write need not wait for its ACKs.
        let nagle = !flow.options.no_delay && flow.snd.small.after(flow.snd.una);
        (corked || nagle) && !flow.snd.fin_queued
    };
    if hold_tail { len - tail } else { len }
}

/// As many segments as the link cuts, of which each has the options: without them one more octet would fit.
fn whole_unit(flow: &Tcb, unit_max: u32, mss: u32) -> u32 {
    let segments = unit_max / u32::from(flow.snd.mss).max(1);
    unit_max.min((segments * mss).max(mss))
}

pub(super) fn data_segment(flow: &Tcb, shape: &Shape<'_>, seq: SeqNum, len: u32, again: bool) -> TxSegment {
    let end = seq.plus(len);
    let mut segment = header(flow, shape.now, seq);
    segment.sack = shape.sack;
    segment.len = len;
    segment.fin = flow.snd.fin_queued && end == flow.queue_end();
    // Of a record it is set as the program's write would have set it, had it gone out at once. The last segment of a large
    // unit has it, as in Linux: whoever joins segments again (GRO) hands the unit on with it, and waits for nothing more.
    let ends = end == flow.queue_end() || len > shape.mss || record_ends::is_end(shape.record_ends, end);
    segment.psh = len > 0 && ends;
    segment.cwr = flow.ecn.tell_reduced && !again && len > 0;
    let unit = unit(flow, segment, seq.distance_from(flow.data_una()), again);
    TxSegment { mss: shape.mss as u16, ..unit }
}

pub(super) fn unit(flow: &Tcb, segment: Segment, payload_at: u32, is_retransmit: bool) -> TxSegment {
    // RFC 3168 sections 6.1.4 to 6.1.6: neither bare ACKs, nor what is sent again, nor window probes.
    let is_ect = flow.ecn.on && segment.len > 0 && !is_retransmit && !flow.snd.probe && !segment.syn;
    TxSegment { segment, payload_at, mss: flow.snd.mss, is_retransmit, is_ect }
}

/// A segment with ACK, window and timestamps filled in.
pub(super) fn header(flow: &Tcb, now: Instant, seq: SeqNum) -> Segment {
    let window = WindowSize::new(offered_edge(flow).distance_from(flow.rcv.nxt));
    Segment {
        seq,
        urgent: urgent_pointer(flow, seq),
        ack: (flow.state != TcpState::SynSent).then_some(flow.rcv.nxt),
        syn: false,
        fin: false,
        rst: false,
        psh: false,
        window: if flow.state == TcpState::SynSent {
            UnscaledWindow(0)
        } else {
            window.to_field(flow.rcv.scale)
        },
        mss: None,
        window_scale: None,
        sack_permitted: false,
        sack: SackBlocks::NONE,
        ece: flow.ecn.on && flow.ecn.echo,
        cwr: false,
        timestamps: timestamps(flow, now),
        fast_open: None,
        len: 0,
    }
}

/// What leads from `seq` to the octet after the urgent one, while that is ahead. Farther than the field reaches, it says
/// that there is something (RFC 9293 section 3.8.5: "as soon as possible").
fn urgent_pointer(flow: &Tcb, seq: SeqNum) -> Option<u16> {
    let up = flow.snd.up.filter(|up| seq.before(*up))?;
    Some(u16::try_from(up.distance_from(seq)).unwrap_or(u16::MAX))
}

/// TSval: the millisecond clock plus a secret offset for each connection (RFC 7323 section 7.1).
pub fn timestamp(flow: &Tcb, now: Instant) -> u32 {
    now.tcp_timestamp_ms().wrapping_add(flow.snd.timestamp_offset)
}

/// TSval and TSecr, where timestamps are in use.
pub fn timestamps(flow: &Tcb, now: Instant) -> Option<(u32, u32)> {
    flow.rcv.ts_recent.map(|recent| (timestamp(flow, now), recent))
}

/// The right edge to advertise: as far as memory allows, not in silly steps, and never back, unless memory has ended.
fn offered_edge(flow: &Tcb) -> SeqNum {
    let data_nxt = flow.data_nxt();
    let reach = data_nxt.plus(flow.receive.window(data_nxt));
    // The peer's largest segment may be one without options.
    let step = (u32::from(flow.snd.mss) + u32::from(options_len(flow))).min(flow.receive.window_max / 2);
    if flow.receive.is_starved() {
        return if reach.distance_from(data_nxt) >= step { reach } else { flow.rcv.nxt };
    }
    if reach.distance_from(flow.rcv.edge) >= step { reach } else { flow.rcv.edge.later(flow.rcv.nxt) }
}

/// `tx` is on its way.
pub fn commit(flow: &mut Tcb, tcp: &mut Tcp, now: Instant, tx: &TxSegment) {
    let segment = &tx.segment;
    if let Some((ack, _)) = dctcp::owed(flow) {
        // It goes before everything else.
        dctcp::owed_sent(flow);
        flow.rcv.acked = ack;
        return;
    }
    if segment.ack.is_some() {
        flow.rcv.ack_now = false;
        flow.rcv.acked = flow.rcv.nxt;
        flow.timers.delayed_ack = Instant::FAR_FUTURE;
        if !segment.syn {
            flow.rcv.edge = offered_edge(flow);
        }
    }
    if segment.seq == flow.snd.una {
        flow.snd.probe = false;
    }
    let len = segment.seq_len();
    if len == 0 {
        if segment.seq == probe::before_una(flow) {
            flow.snd.probe = false;
            flow.snd.keepalive_probe = false;
        }
        flow.rcv.dup_acks = flow.rcv.dup_acks.saturating_sub(1);
        sack_sent(flow, &tcp.held, &segment.sack);
        return;
    }
    if segment.sack.is_empty() {
        // What came twice is still to be told of.
        flow.rcv.ack_now |= flow.rcv.duplicates.first().is_some();
    } else {
        sack_sent(flow, &tcp.held, &segment.sack);
    }
    note_sent(flow, &mut tcp.sent, now, tx);
    if tx.mss > flow.snd.mss {
        path_mtu::probe_sent(flow, tx.mss);
    }
    if segment.syn && !tx.is_retransmit {
        flow.fast_open.sent = segment.len;
    }
    if segment.cwr {
        flow.ecn.tell_reduced = false;
    }
    if tx.is_retransmit {
        flow.rtt.retransmits = flow.rtt.retransmits.saturating_add(1);
    }
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
    if flow.snd.tail_probe {
        rack::tail_probe_sent(flow, tx.is_retransmit);
    } else if !tx.is_retransmit {
        rack::schedule_tail_probe(flow, now);
    }
}

/// An ACK went out. Duplicates of it are owed to a peer that counts them; one with SACK wants to be told of everything.
fn sack_sent(flow: &mut Tcb, held: &HeldPool, sack: &SackBlocks) {
    if flow.rcv.sack_permitted {
        flow.rcv.duplicates.pop();
        flow.rcv.ack_now |= flow.rcv.duplicates.first().is_some();
        for block in sack.as_slice() {
            flow.rcv.reported_up_to = flow.rcv.reported_up_to.later(block.right);
        }
        let end = flow.held.ranges(held).last().map_or(flow.rcv.nxt, |r| r.end);
        if end.at_or_before(flow.rcv.reported_up_to) {
            flow.rcv.dup_acks = 0;
        }
    }
}

/// `tx` has numbers and went out: what of it was out before, again (a window probe may be both).
fn note_sent(flow: &mut Tcb, pool: &mut SentPool, now: Instant, tx: &TxSegment) {
    let (seq, len, mss) = (tx.segment.seq, tx.segment.seq_len(), tx.mss);
    let end = seq.plus(len);
    if flow.pipe() == 0 {
        congestion::restart(flow, now);
    }
    let stamp = rate::stamp(flow, now, len);
    let nxt = flow.snd.nxt;
    if seq.before(nxt) {
        let again_end = end.earlier(nxt);
        flow.board.resent(pool, seq, again_end, Resent { at: now, mss, stamp });
        recovery::resent(
            flow,
            again_end.distance_from(seq),
            flow.rcv.ts_recent.map(|_| timestamp(flow, now)),
        );
    }
    let start = seq.later(nxt);
    if start.before(end) {
        let range = SentRange { start, end, sent_at: now, mss, stamp, ..SentRange::default() };
        flow.board.sent(pool, range);
        flow.snd.nxt = end;
        let (len, mss) = (tx.segment.len, u32::from(mss).max(1));
        // What fits one segment needs no division.
        let ends_small = if len < mss { len > 0 } else { !len.is_multiple_of(mss) };
        if ends_small {
            flow.snd.small = end;
        }
    }
    if matches!(flow.cc.phase, Phase::Recovery | Phase::Reduced) {
        flow.cc.prr.out = flow.cc.prr.out.saturating_add(len);
    }
    rate::note_paced(flow, now, len);
    let pipe = flow.pipe();
    flow.cc.usage.sent(pipe);
}

/// Whether less than a segment is kept for what the program says will follow (TCP_CORK, MSG_MORE).
fn waits_for_more(flow: &Tcb) -> bool {
    (flow.options.cork || flow.snd.more) && !flow.snd.uncork
}

/// Nothing more can be sent now: arms the timer that will change that, if none else will.
pub fn settle(flow: &mut Tcb, now: Instant) {
    note_limit(flow, now);
    if !flow.state.is_synchronized() || flow.snd.fin_acked {
        return;
    }
    let unsent = flow.queue_end().distance_from(flow.snd.nxt) > 0;
    let waiting = unsent || flow.board.lost() > 0;
    let outstanding = flow.snd.nxt != flow.snd.una;
    if flow.rate.pacing > 0 && waiting && now < flow.rate.next_send_at {
        flow.timers.pace = flow.rate.next_send_at;
    } else {
        // It waits for something else.
        flow.rate.is_late = false;
    }
    if !waiting && flow.pipe() < flow.cc.cwnd {
        rate::note_app_limited(flow);
    }
    let asked = outstanding && flow.snd.wnd.octets() > 0;
    if !waiting || asked {
        // What is on its way brings an answer, or its time-out comes.
        if outstanding && flow.timers.retransmit.is_far_future() && flow.timers.persist.is_far_future() {
            flow.timers.retransmit = now.after_us(timeout::retransmit_us(flow));
        }
        return;
    }
    if flow.snd.wnd.octets() > 0 && waits_for_more(flow) {
        if flow.timers.cork.is_far_future() {
            flow.timers.cork = now.after_us(CORK_US);
        }
        return;
    }
    if flow.timers.persist.is_far_future() {
        // The window is closed, or too small to be worth a segment: ask for it (RFC 9293 section 3.8.6.1).
        flow.timers.retransmit = Instant::FAR_FUTURE;
        flow.timers.tail_probe = Instant::FAR_FUTURE;
        flow.timers.persist = now.after_us(flow.rtt.timeout_us());
    }
}

/// Whom what is queued waits for, for reports.
fn note_limit(flow: &mut Tcb, now: Instant) {
    let window_end = flow.snd.una.plus(flow.snd.wnd.octets());
    let unsent = flow.queue_end().distance_from(flow.snd.nxt);
    let wait = if flow.send_queue.is_empty() {
        Wait::Nothing
    } else if unsent > 0 && window_end.diff(flow.snd.nxt) < unsent.min(u32::from(flow.snd.mss)) as i32 {
        Wait::Window
    } else {
        Wait::Path
    };
    flow.traffic.limits.note(now, wait);
}

/// Header octets of the TCP options that [`header`] fills in.
pub const fn options_len(flow: &Tcb) -> u16 {
    if flow.rcv.ts_recent.is_some() { TIMESTAMPS_LEN } else { 0 }
}
