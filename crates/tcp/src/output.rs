//! What a connection sends now: the SEND side of RFC 9293 sections 3.7 and 3.8.
//!
//! [`prepare`] only looks, so that a port without room costs nothing; [`commit`] does what sending means; [`settle`]
//! arms what has to wait. The caller repeats `prepare` and `commit` until nothing is left.

use crate::congestion::dctcp;
use crate::ecn::EcnMode;
use crate::open::{TIMESTAMPS_LEN, syn_window};
use crate::reassembly::SeqRange;
use crate::record::{Frto, Phase, Repair, Tcb, Wait};
use crate::record_ends;
use crate::scoreboard::{Resent, SentRange};
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
pub fn prepare(tcb: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    match tcb.state {
        TcpState::Closed => return None,
        TcpState::SynSent | TcpState::SynReceived => return prepare_syn(tcb, cx),
        _ => {}
    }
    let shape = Shape::of(tcb, cx);
    prepare_delayed_ack(tcb, cx)
        .or_else(|| prepare_resend(tcb, cx, &shape))
        .or_else(|| probe::of_silence(tcb, &shape))
        .or_else(|| probe::of_tail(tcb, &shape))
        .or_else(|| probe::of_mtu(tcb, &shape))
        .or_else(|| prepare_new(tcb, cx, &shape))
        .or_else(|| prepare_ack(tcb, cx))
}

/// What all segments with data have in common now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'a> {
    pub(super) now: Instant,
    /// RFC 2018 section 4: all ACKs tell of what came out of order.
    pub(super) sack: SackBlocks,
    /// Bytes of data that fit beside that.
    pub(super) mss: u32,
    /// No segment spans one of these.
    pub(super) record_ends: &'a [SeqNum],
}

impl<'a> Shape<'a> {
    fn of(tcb: &Tcb, cx: TxContext<'a>) -> Shape<'a> {
        let sack = sack_blocks(tcb, cx.tcp);
        // Any segment has room for all options and some data (`open::MSS_MIN`).
        let mss = u32::from(tcb.snd.mss).saturating_sub(sack.option_len() as u32).max(1);
        Shape { now: cx.now, sack, mss, record_ends: tcb.record_ends.ends(&cx.tcp.record_ends) }
    }

    /// Bytes from `seq` on that are of one record.
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

fn prepare_syn(tcb: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    let answers = tcb.state == TcpState::SynReceived;
    let was_sent = tcb.snd.nxt != tcb.snd.iss;
    if was_sent && !fast_open::is_syn_lost(tcb, &cx.tcp.sent) {
        // The program of a Fast Open may answer before the handshake is complete (RFC 7413 section 4.2.2).
        let early = tcb.fast_open.early.then(|| prepare_new(tcb, cx, &Shape::of(tcb, cx))).flatten();
        return early.or_else(|| if answers { prepare_ack(tcb, cx) } else { None });
    }
    if fast_open::waits(tcb) {
        return None;
    }
    let mut segment = header(tcb, cx.now, tcb.snd.iss);
    segment.syn = true;
    segment.ack = answers.then_some(tcb.rcv.nxt);
    segment.mss = Some(cx.limits.announce_mss);
    segment.sack_permitted = tcb.rcv.sack_permitted;
    // RFC 3168 section 6.1.1; one that is sent again does without (6.1.1.1), as the first may have been dropped for it.
    let asks = !answers && !was_sent && !tcb.is_local && cx.tcp.config.ecn == EcnMode::Request;
    segment.ece = asks || answers && tcb.ecn.on;
    segment.cwr = asks;
    // In an answer only what the peer's SYN offered is repeated (RFC 7323 sections 2.2 and 3.2).
    segment.window_scale = (!answers || tcb.rcv.scale != WindowScale::ZERO).then_some(tcb.rcv.scale);
    // What bytes of the peer's SYN have taken of it is gone: the edge was said by the numbers before them.
    let window = if answers {
        WindowSize::new(tcb.rcv.edge.distance_from(tcb.rcv.nxt).min(u32::from(u16::MAX)))
    } else {
        syn_window(tcb)
    };
    segment.window = window.to_field(WindowScale::ZERO);
    if !was_sent {
        let opening = cx.tcp.openings.one(&tcb.fast_open.opening);
        segment.fast_open = opening.option;
        let of_record = || record_ends::room_from(tcb.record_ends.ends(&cx.tcp.record_ends), tcb.data_una());
        segment.len = if answers { 0 } else { fast_open::syn_len(tcb, &opening).min(of_record()) };
    }
    Some(unit(tcb, segment, 0, was_sent))
}

/// The first stretch that is lost again, as far as the windows let it. After a time-out that may be spurious it is the
/// segment at `snd.una` alone, and nothing once that has gone (RFC 5682 section 2.1).
fn prepare_resend(tcb: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> Option<TxSegment> {
    let range = tcb.board.first_lost(&cx.tcp.sent)?;
    let mss = shape.mss;
    let only_head = match tcb.cc.frto {
        Frto::Off => false,
        Frto::Resent if range.start == tcb.snd.una => true,
        Frto::Resent | Frto::SentNew => return None,
    };
    let is_head = range.start == tcb.snd.una;
    let window_end = tcb.snd.una.plus(tcb.snd.wnd.bytes());
    let fin_alone = range.start == tcb.queue_end();
    let data_end = range.end.earlier(tcb.queue_end());
    let data_len = data_end.distance_from(range.start).min(shape.record_from(range.start));
    let offered = window_end.distance_from(range.start);
    let path_left = path_left(tcb, cx.now);
    if path_left == 0 || offered == 0 && !fin_alone {
        return None;
    }
    let whole_units = (path_left.min(cx.limits.unit_max) / mss * mss).max(mss);
    let most = if only_head || tcb.is_urgent() { mss } else { whole_units };
    let wanted = data_len.min(most);
    let len = if offered < wanted && offered > mss { offered / mss * mss } else { offered.min(wanted) };
    // What is not the first must be worth a segment, or the window's edge would be crept up to.
    if !is_head && len < mss.min(data_len) {
        return None;
    }
    Some(data_segment(tcb, shape, range.start, len, true))
}

/// Bytes that congestion control and pacing let go now; 0 or at least a segment.
pub(super) fn path_left(tcb: &Tcb, now: Instant) -> u32 {
    if tcb.is_local {
        return u32::MAX;
    }
    let mss = u32::from(tcb.snd.mss);
    let paced = match rate::paced_room(&tcb.rate, now, mss) {
        u32::MAX => u32::MAX,
        room => room.max(congestion::burst::head_start(tcb)),
    };
    let left = tcb.cc.cwnd.saturating_sub(tcb.pipe());
    if paced > 0 && (left >= mss || tcb.pipe() == 0) { left.max(mss).min(paced) } else { 0 }
}

fn prepare_new(tcb: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> Option<TxSegment> {
    let len = new_data_len(tcb, cx.limits.unit_max, shape);
    let fin_due = tcb.snd.fin_queued && tcb.snd.nxt.plus(len) == tcb.queue_end() && !tcb.snd.fin_acked;
    if len == 0 && !fin_due || len > 0 && tso::defers(tcb, &cx.tcp.sent, shape) {
        return None;
    }
    let mut tx = data_segment(tcb, shape, tcb.snd.nxt, len, false);
    tx.segment.psh |= len == shape.mss && ends_burst(tcb, cx, shape);
    Some(tx)
}

/// Whether a whole segment is the last of several that go at once, and the windows let no more go: to a link that cuts it would have been
/// the end of one large unit.
fn ends_burst(tcb: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> bool {
    let window_left = tcb.snd.wnd.bytes().saturating_sub(tcb.outstanding());
    let left = window_left.min(path_left(tcb, shape.now));
    left < 2 * shape.mss && tcb.board.last(&cx.tcp.sent).is_some_and(|last| last.sent_at == shape.now)
}

/// An ACK of what came before marks began or ended (RFC 8257 section 3.2).
fn prepare_delayed_ack(tcb: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    let (ack, ece) = dctcp::delayed_ack(tcb, &cx.tcp.models)?;
    let window = WindowSize::new(tcb.rcv.edge.distance_from(ack)).to_field(tcb.rcv.scale);
    let segment = Segment { ack: Some(ack), ece, window, ..header(tcb, cx.now, empty_seq(tcb)) };
    Some(unit(tcb, segment, 0, false))
}

fn prepare_ack(tcb: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    if !tcb.rcv.ack_now && tcb.rcv.dup_acks == 0 {
        return None;
    }
    let mut segment = header(tcb, cx.now, empty_seq(tcb));
    segment.sack = sack_blocks(tcb, cx.tcp);
    Some(unit(tcb, segment, 0, false))
}

/// What lies beyond `rcv.nxt`, the latest news first, behind what came twice (RFC 2018 section 4, RFC 2883 section 4).
///
/// When more came in one batch than one ACK can tell of, the delayed ACKs for it tell of one part each, in the order
/// of the stream: to the peer it looks as if they had been sent one by one.
fn sack_blocks(tcb: &Tcb, tcp: &Tcp) -> SackBlocks {
    let mut blocks = SackBlocks::NONE;
    let fin = fin_held(tcb);
    let has_none = tcb.held.is_empty() && fin.is_none() && tcb.rcv.reports.is_empty();
    if !tcb.rcv.sack_permitted || has_none {
        return blocks;
    }
    let (held, reports) = (&tcp.held, tcp.reports.one(&tcb.rcv.reports));
    if let Some(range) = reports.first() {
        blocks.push(SackBlock { left: range.start, right: range.end });
    }
    let room = sack_room(tcb) - blocks.as_slice().len();
    let ranges = tcb.held.ranges(held);
    // FIN takes the number behind the last byte.
    let block = |range: SeqRange| SackBlock {
        left: range.start,
        right: if fin == Some(range.end) { range.end.plus(1) } else { range.end },
    };
    let alone = fin.filter(|fin| ranges.last().is_none_or(|last| last.end != *fin));
    let alone = alone.map(|fin| SeqRange { start: fin, end: fin });
    let known = reports.up_to.later(tcb.rcv.nxt);
    let from = ranges.partition_point(|r| r.end.at_or_before(known));
    if ranges.len() - from > room && tcb.rcv.dup_acks > 1 {
        for range in ranges[from..from + room].iter().rev() {
            blocks.push(block(*range));
        }
        return blocks;
    }
    let containing = |seq: SeqNum| match alone {
        Some(fin) if fin.start == seq => alone,
        _ => tcb.held.containing(held, seq),
    };
    let latest = reports.latest.iter().filter_map(|seq| containing(*seq));
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
fn fin_held(tcb: &Tcb) -> Option<SeqNum> {
    tcb.rcv.fin.filter(|fin| fin.after(tcb.rcv.nxt))
}

/// Blocks that fit a header (RFC 2018 section 3).
const fn sack_room(tcb: &Tcb) -> usize {
    if tcb.rcv.ts_recent.is_some() { SackBlocks::MAX - 1 } else { SackBlocks::MAX }
}

/// The sequence number of an empty segment: the peer would not take an ACK from beyond its window, where a probe may
/// have reached.
pub fn empty_seq(tcb: &Tcb) -> SeqNum {
    if tcb.state.is_synchronized() {
        tcb.snd.nxt.earlier(tcb.snd.una.plus(tcb.snd.wnd.bytes()))
    } else {
        tcb.snd.nxt
    }
}

/// Whether everything up to `seq` went out.
pub fn is_sent(tcb: &Tcb, seq: SeqNum) -> bool {
    seq.at_or_before(tcb.snd.nxt)
}

/// Bytes of queued data that may go now from `snd.nxt` on.
fn new_data_len(tcb: &Tcb, unit_max: u32, shape: &Shape<'_>) -> u32 {
    let mss = shape.mss;
    // Whoever cuts a large unit would repeat the urgent pointer in each piece, where it leads elsewhere.
    let is_urgent = tcb.is_urgent() && tcb.snd.nxt.before(tcb.snd.up);
    let queued = tcb.queue_end().distance_from(tcb.snd.nxt);
    let ready = queued.min(shape.record_from(tcb.snd.nxt));
    let outstanding = tcb.outstanding();
    let window_left = tcb.snd.wnd.bytes().saturating_sub(outstanding);
    let path_left = path_left(tcb, shape.now);
    let may_go = ready.min(window_left).min(path_left);
    let len = if may_go < mss {
        may_go
    } else if is_urgent && !tcb.is_local {
        mss
    } else {
        may_go.min(whole_unit(tcb, unit_max, mss))
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
        let takes_all = tcb.is_local && outstanding == 0;
        len < mss && len < tcb.snd.max_wnd.bytes() / 2 && !takes_all || len > mss
    } else if ready < queued {
        // A record's end: nothing that could be waited for can join it (Linux: tcp_nagle_test, for what is not the last).
        false
    } else {
        let corked = waits_for_more(tcb);
        // Nagle: one partial segment in flight at most (RFC 9293 section 3.7.4). Only another partial one holds it back, not
        // whole ones (Minshall, draft-minshall-nagle-01, as Linux has it): the end of a long write need not wait for its ACKs.
        let nagle = !tcb.options.no_delay && tcb.snd.small.after(tcb.snd.una);
        (corked || nagle) && !tcb.snd.fin_queued
    };
    if hold_tail { len - tail } else { len }
}

/// As many segments as the link cuts, of which each has the options: without them one more byte would fit.
fn whole_unit(tcb: &Tcb, unit_max: u32, mss: u32) -> u32 {
    let segments = unit_max / u32::from(tcb.snd.mss).max(1);
    unit_max.min((segments * mss).max(mss))
}

pub(super) fn data_segment(tcb: &Tcb, shape: &Shape<'_>, seq: SeqNum, len: u32, again: bool) -> TxSegment {
    let end = seq.plus(len);
    let mut segment = header(tcb, shape.now, seq);
    segment.sack = shape.sack;
    segment.len = len;
    segment.fin = tcb.snd.fin_queued && end == tcb.queue_end();
    // Of a record it is set as the program's write would have set it, had it gone out at once. The last segment of a large
    // unit has it, as in Linux: whoever joins segments again (GRO) hands the unit on with it, and waits for nothing more.
    let ends = end == tcb.queue_end() || len > shape.mss || record_ends::is_end(shape.record_ends, end);
    segment.psh = len > 0 && ends;
    segment.cwr = tcb.ecn.tell_reduced && !again && len > 0;
    let unit = unit(tcb, segment, seq.distance_from(tcb.data_una()), again);
    TxSegment { mss: shape.mss as u16, ..unit }
}

pub(super) fn unit(tcb: &Tcb, segment: Segment, payload_at: u32, is_retransmit: bool) -> TxSegment {
    // RFC 3168 sections 6.1.4 to 6.1.6: neither bare ACKs, nor what is sent again, nor window probes.
    let is_ect = tcb.ecn.on && segment.len > 0 && !is_retransmit && !tcb.snd.probe && !segment.syn;
    TxSegment { segment, payload_at, mss: tcb.snd.mss, is_retransmit, is_ect }
}

/// A segment with ACK, window and timestamps filled in.
pub(super) fn header(tcb: &Tcb, now: Instant, seq: SeqNum) -> Segment {
    let window = WindowSize::new(offered_edge(tcb).distance_from(tcb.rcv.nxt));
    Segment {
        seq,
        urgent: urgent_pointer(tcb, seq),
        ack: (tcb.state != TcpState::SynSent).then_some(tcb.rcv.nxt),
        syn: false,
        fin: false,
        rst: false,
        psh: false,
        window: if tcb.state == TcpState::SynSent {
            UnscaledWindow(0)
        } else {
            window.to_field(tcb.rcv.scale)
        },
        mss: None,
        window_scale: None,
        sack_permitted: false,
        sack: SackBlocks::NONE,
        ece: tcb.ecn.on && tcb.ecn.echo,
        cwr: false,
        timestamps: timestamps(tcb, now),
        fast_open: None,
        len: 0,
    }
}

/// What leads from `seq` to the byte after the urgent one, while that is ahead. Farther than the field reaches, it says
/// that there is something (RFC 9293 section 3.8.5: "as soon as possible").
fn urgent_pointer(tcb: &Tcb, seq: SeqNum) -> Option<u16> {
    let up = tcb.is_urgent().then_some(tcb.snd.up).filter(|up| seq.before(*up))?;
    Some(u16::try_from(up.distance_from(seq)).unwrap_or(u16::MAX))
}

/// TSval: the millisecond clock plus a secret offset for each connection (RFC 7323 section 7.1).
pub fn timestamp(tcb: &Tcb, now: Instant) -> u32 {
    now.tcp_timestamp_ms().wrapping_add(tcb.snd.timestamp_offset)
}

/// TSval and TSecr, where timestamps are in use.
pub fn timestamps(tcb: &Tcb, now: Instant) -> Option<(u32, u32)> {
    tcb.rcv.ts_recent.map(|recent| (timestamp(tcb, now), recent))
}

/// The right edge to advertise: as far as memory allows, not in silly steps, and never back, unless memory has ended.
fn offered_edge(tcb: &Tcb) -> SeqNum {
    let data_nxt = tcb.data_nxt();
    let reach = data_nxt.plus(tcb.receive.window(data_nxt));
    // The peer's largest segment may be one without options.
    let step = (u32::from(tcb.snd.mss) + u32::from(options_len(tcb))).min(tcb.receive.window_max / 2);
    if tcb.receive.is_starved() {
        return if reach.distance_from(data_nxt) >= step { reach } else { tcb.rcv.nxt };
    }
    if reach.distance_from(tcb.rcv.edge) >= step { reach } else { tcb.rcv.edge.later(tcb.rcv.nxt) }
}

/// `tx` is on its way.
pub fn commit(tcb: &mut Tcb, tcp: &mut Tcp, now: Instant, tx: &TxSegment) {
    let segment = &tx.segment;
    if let Some((ack, _)) = dctcp::delayed_ack(tcb, &tcp.models) {
        // It goes before everything else.
        dctcp::delayed_ack_sent(tcb, &mut tcp.models);
        tcb.rcv.acked = ack;
        return;
    }
    if segment.ack.is_some() {
        tcb.rcv.ack_now = false;
        tcb.rcv.acked = tcb.rcv.nxt;
        tcb.timers.delayed_ack = Instant::FAR_FUTURE;
        if !segment.syn {
            tcb.rcv.edge = offered_edge(tcb);
        }
    }
    if segment.seq == tcb.snd.una {
        tcb.snd.probe = false;
    }
    let len = segment.seq_len();
    if len == 0 {
        if segment.seq == probe::before_una(tcb) {
            tcb.snd.probe = false;
            tcb.snd.keepalive_probe = false;
        }
        tcb.rcv.dup_acks = tcb.rcv.dup_acks.saturating_sub(1);
        sack_sent(tcb, tcp, &segment.sack);
        return;
    }
    if !segment.sack.is_empty() {
        sack_sent(tcb, tcp, &segment.sack);
    } else if !tcb.rcv.reports.is_empty() {
        // What came twice is still to be told of.
        tcb.rcv.ack_now |= tcp.reports.one(&tcb.rcv.reports).first().is_some();
    }
    note_sent(tcb, tcp, now, tx);
    if tx.mss > tcb.snd.mss {
        path_mtu::probe_sent(tcb, tx.mss);
    }
    if segment.syn
        && !tx.is_retransmit
        && let Some(opening) = tcp.openings.taken_mut(&tcb.fast_open.opening)
    {
        opening.sent = segment.len;
    }
    if segment.cwr {
        tcb.ecn.tell_reduced = false;
    }
    if tx.is_retransmit
        && let Some(trouble) = tcp.troubles.one_mut(&mut tcb.traffic.trouble)
    {
        trouble.note_resent(segment.len, tx.mss);
    }
    if tcb.snd.nxt == tcb.queue_end() {
        tcb.snd.uncork = false;
        tcb.timers.cork = Instant::FAR_FUTURE;
    }
    if tcb.timers.persist.is_far_future() && tcb.timers.retransmit.is_far_future() {
        tcb.timers.retransmit = now.after_us(timeout::retransmit_us(tcb));
    }
    if tcb.timers.stalled_since.is_far_future() {
        tcb.timers.stalled_since = now;
    }
    if tcb.snd.tail_probe {
        rack::tail_probe_sent(tcb, tx.is_retransmit);
    } else if !tx.is_retransmit {
        rack::schedule_tail_probe(tcb, now);
    }
}

/// An ACK went out. Duplicates of it are owed to a peer that counts them; one with SACK wants to be told of everything.
fn sack_sent(tcb: &mut Tcb, tcp: &mut Tcp, sack: &SackBlocks) {
    let Some(reports) = tcp.reports.taken_mut(&tcb.rcv.reports) else { return };
    reports.pop();
    let owes = reports.first().is_some();
    tcb.rcv.ack_now |= owes;
    for block in sack.as_slice() {
        reports.up_to = reports.up_to.later(block.right);
    }
    let end = tcb.held.ranges(&tcp.held).last().map_or(tcb.rcv.nxt, |r| r.end);
    if end.at_or_before(reports.up_to) {
        tcb.rcv.dup_acks = 0;
    }
    if !owes && tcb.held.is_empty() && fin_held(tcb).is_none() {
        tcp.reports.vacate(&mut tcb.rcv.reports);
    }
}

/// `tx` has numbers and went out: what of it was out before, again (a window probe may be both).
fn note_sent(tcb: &mut Tcb, tcp: &mut Tcp, now: Instant, tx: &TxSegment) {
    let (seq, len, mss) = (tx.segment.seq, tx.segment.seq_len(), tx.mss);
    let end = seq.plus(len);
    if tcb.pipe() == 0 {
        congestion::restart(tcb, &mut tcp.models, now);
    }
    let stamp = rate::stamp(tcb, now, len);
    let nxt = tcb.snd.nxt;
    if seq.before(nxt) {
        let again_end = end.earlier(nxt);
        tcb.board.resent(&mut tcp.sent, seq, again_end, Resent { at: now, mss, stamp });
        let first = tcb.rcv.ts_recent.map(|_| timestamp(tcb, now));
        recovery::resent(tcb, &mut tcp.repairs, again_end.distance_from(seq), first);
    }
    let start = seq.later(nxt);
    if start.before(end) {
        let range = SentRange { start, end, sent_at: now, mss, stamp, ..SentRange::default() };
        tcb.board.sent(&mut tcp.sent, range);
        tcb.snd.nxt = end;
        let (len, mss) = (tx.segment.len, u32::from(mss).max(1));
        // What fits one segment needs no division.
        let ends_small = if len < mss { len > 0 } else { !len.is_multiple_of(mss) };
        if ends_small {
            tcb.snd.small = end;
        }
    }
    if matches!(tcb.cc.phase, Phase::Recovery | Phase::Reduced)
        && let Some(Repair { prr, .. }) = tcp.repairs.one_mut(&mut tcb.cc.repair)
    {
        prr.out = prr.out.saturating_add(len);
    }
    rate::note_paced(tcb, now, len);
    let pipe = tcb.pipe();
    tcb.cc.usage.sent(pipe);
}

/// Whether less than a segment is kept for what the program says will follow (TCP_CORK, MSG_MORE).
fn waits_for_more(tcb: &Tcb) -> bool {
    (tcb.options.cork || tcb.snd.more) && !tcb.snd.uncork
}

/// Nothing more can be sent now: arms the timer that will change that, if none else will.
pub fn settle(tcb: &mut Tcb, now: Instant) {
    note_limit(tcb, now);
    if !tcb.state.is_synchronized() || tcb.snd.fin_acked {
        return;
    }
    let unsent = tcb.queue_end().distance_from(tcb.snd.nxt) > 0;
    let waiting = unsent || tcb.board.lost() > 0;
    let outstanding = tcb.snd.nxt != tcb.snd.una;
    if tcb.rate.pacing > 0 && waiting && now < tcb.rate.next_send_at {
        tcb.timers.pace = tcb.rate.next_send_at;
    } else {
        // It waits for something else.
        tcb.rate.is_late = false;
    }
    if !waiting && tcb.pipe() < tcb.cc.cwnd {
        rate::note_app_limited(tcb);
    }
    let asked = outstanding && tcb.snd.wnd.bytes() > 0;
    if !waiting || asked {
        // What is on its way brings an answer, or its time-out comes.
        if outstanding && tcb.timers.retransmit.is_far_future() && tcb.timers.persist.is_far_future() {
            tcb.timers.retransmit = now.after_us(timeout::retransmit_us(tcb));
        }
        return;
    }
    if tcb.snd.wnd.bytes() > 0 && waits_for_more(tcb) {
        if tcb.timers.cork.is_far_future() {
            tcb.timers.cork = now.after_us(CORK_US);
        }
        return;
    }
    if tcb.timers.persist.is_far_future() {
        // The window is closed, or too small to be worth a segment: ask for it (RFC 9293 section 3.8.6.1).
        tcb.timers.retransmit = Instant::FAR_FUTURE;
        tcb.timers.tail_probe = Instant::FAR_FUTURE;
        tcb.timers.persist = now.after_us(tcb.rtt.timeout_us());
    }
}

/// Whom what is queued waits for, for reports.
fn note_limit(tcb: &mut Tcb, now: Instant) {
    let window_end = tcb.snd.una.plus(tcb.snd.wnd.bytes());
    let unsent = tcb.queue_end().distance_from(tcb.snd.nxt);
    let wait = if tcb.send_queue.is_empty() {
        Wait::Nothing
    } else if unsent > 0 && window_end.diff(tcb.snd.nxt) < unsent.min(u32::from(tcb.snd.mss)) as i32 {
        Wait::Window
    } else {
        Wait::Path
    };
    tcb.traffic.limits.note(now, wait);
}

/// Header bytes of the TCP options that [`header`] fills in.
pub const fn options_len(tcb: &Tcb) -> u16 {
    if tcb.rcv.ts_recent.is_some() { TIMESTAMPS_LEN } else { 0 }
}
