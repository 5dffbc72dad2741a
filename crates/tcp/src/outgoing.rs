//! What every segment that goes out has: its header and options, what it may carry, and how much of the path is left.
//! [`crate::output`] decides which goes.

use crate::reassembly::SeqRange;
use crate::record::{PathState, PeerFin, SendDue, Tcb};
use crate::segment::{Segment, TxSegment};
use crate::state::TcpState;
use crate::{Tcp, congestion, rate, record_ends};
use toe_base::window::{UnscaledWindow, WindowSize};
use toe_base::{Instant, SeqNum};
use toe_wire::tcp::{SackBlock, SackBlocks, TcpFlags};

/// Timestamps take this much of each segment (RFC 7323 appendix A, RFC 9293 section 3.7.1).
pub const TIMESTAMPS_LEN: u16 = 12;

/// What a path allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// Largest payload of one unit: many segments where the link or the egress cuts them, else one.
    pub unit_max: u32,
    /// The MSS that we announce.
    pub announce_mss: u16,
}

/// What the next segment depends on beside the record.
#[derive(Clone, Copy, Debug)]
pub struct TxContext<'a> {
    pub now: Instant,
    pub path: &'a PathState,
    pub tcp: &'a Tcp,
    pub limits: SendLimits,
}

/// What all segments with data have in common now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) now: Instant,
    /// RFC 2018 section 4: all ACKs tell of what came out of order.
    pub(crate) sack: SackBlocks,
    /// Bytes of data that fit beside that.
    pub(crate) mss: u32,
    /// No segment spans one of these.
    pub(crate) record_ends: &'a [SeqNum],
}

impl<'a> Shape<'a> {
    pub(crate) fn of(tcb: &Tcb, cx: TxContext<'a>) -> Shape<'a> {
        let sack = sack_blocks(tcb, cx.tcp);
        // Any segment has room for all options and some data (`open::MSS_MIN`).
        let mss = u32::from(tcb.snd.mss).saturating_sub(sack.option_len() as u32).max(1);
        Shape { now: cx.now, sack, mss, record_ends: cx.tcp.record_ends_of(tcb) }
    }

    /// Bytes from `seq` on that are of one record.
    pub(crate) fn record_from(&self, seq: SeqNum) -> u32 {
        record_ends::room_from(self.record_ends, seq)
    }
}

/// Bytes that congestion control and pacing let go now; 0 or at least a segment.
pub(crate) fn path_left(tcb: &Tcb, path: &PathState, tcp: &Tcp, now: Instant) -> u32 {
    if tcb.is_local {
        return u32::MAX;
    }
    let mss = u32::from(tcb.snd.mss);
    let pacing = tcp
        .particulars
        .taken(&tcb.setup.particulars)
        .map(|particulars| particulars.pacing)
        .unwrap_or_default();
    let paced = match rate::paced_room(&pacing, now, mss) {
        u32::MAX => u32::MAX,
        room => room.max(congestion::burst::head_start(tcb, path, &pacing)),
    };
    let left = path.cc.cwnd.saturating_sub(tcb.pipe(path));
    if paced > 0 && (left >= mss || tcb.pipe(path) == 0) { left.max(mss).min(paced) } else { 0 }
}

/// Whether everything up to `seq` went out.
pub fn is_sent(tcb: &Tcb, seq: SeqNum) -> bool {
    seq.at_or_before(tcb.snd.nxt)
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

pub(crate) fn data_segment(tcb: &Tcb, shape: &Shape<'_>, seq: SeqNum, len: u32, again: bool) -> TxSegment {
    let end = seq.plus(len);
    let mut segment = header(tcb, shape.now, seq);
    segment.sack = shape.sack;
    segment.len = len;
    segment.flags = segment.flags.with_if(TcpFlags::FIN, tcb.snd.fin.is_queued() && end == tcb.queue_end());
    // Of a record it is set as the program's write would have set it, had it gone out at once. The last segment of a large
    // unit has it, as in Linux: whoever joins segments again (GRO) hands the unit on with it, and waits for nothing more.
    let ends = end == tcb.queue_end() || len > shape.mss || record_ends::is_end(shape.record_ends, end);
    segment.flags = segment.flags.with_if(TcpFlags::PSH, len > 0 && ends);
    segment.flags = segment.flags.with_if(TcpFlags::CWR, tcb.setup.ecn.tell_reduced && !again && len > 0);
    let unit = unit(tcb, segment, seq.distance_from(tcb.data_una()), again);
    TxSegment { mss: shape.mss as u16, ..unit }
}

pub(crate) fn unit(tcb: &Tcb, segment: Segment, payload_at: u32, is_retransmit: bool) -> TxSegment {
    // RFC 3168 sections 6.1.4 to 6.1.6: neither bare ACKs, nor what is sent again, nor window probes.
    let is_probe = tcb.sending.due.has(SendDue::WINDOW_PROBE);
    let is_ect = tcb.setup.ecn.on && segment.len > 0 && !is_retransmit && !is_probe && !segment.flags.syn();
    TxSegment { segment, payload_at, mss: tcb.snd.mss, is_retransmit, is_ect }
}

/// A segment with ACK, window and timestamps filled in.
pub(crate) fn header(tcb: &Tcb, now: Instant, seq: SeqNum) -> Segment {
    let window = WindowSize::new(offered_edge(tcb).distance_from(tcb.rcv.nxt));
    Segment {
        seq,
        urgent: urgent_pointer(tcb, seq),
        ack: (tcb.state != TcpState::SynSent).then_some(tcb.rcv.nxt),
        flags: TcpFlags::NONE.with_if(TcpFlags::ECE, tcb.setup.ecn.on && tcb.setup.ecn.echo),
        window: if tcb.state == TcpState::SynSent {
            UnscaledWindow(0)
        } else {
            window.to_field(tcb.setup.negotiated.rcv_scale)
        },
        mss: None,
        window_scale: None,
        sack_permitted: false,
        sack: SackBlocks::NONE,
        timestamps: timestamps(tcb, now),
        fast_open: None,
        len: 0,
    }
}

/// What leads from `seq` to the byte after the urgent one, while that is ahead. Farther than the field reaches, it says
/// that there is something (RFC 9293 section 3.8.5: "as soon as possible").
pub(crate) fn urgent_pointer(tcb: &Tcb, seq: SeqNum) -> Option<u16> {
    let up = tcb.is_urgent().then_some(tcb.snd.up).filter(|up| seq.before(*up))?;
    Some(u16::try_from(up.distance_from(seq)).unwrap_or(u16::MAX))
}

/// What lies beyond `rcv.nxt`, the latest news first, behind what came twice (RFC 2018 section 4, RFC 2883 section 4).
///
/// When more came in one batch than one ACK can tell of, the delayed ACKs for it tell of one part each, in the order
/// of the stream: to the peer it looks as if they had been sent one by one.
pub(crate) fn sack_blocks(tcb: &Tcb, tcp: &Tcp) -> SackBlocks {
    let mut blocks = SackBlocks::NONE;
    let fin = fin_held(tcb);
    let has_none = tcb.receiving.held.is_empty() && fin.is_none() && tcb.receiving.acks.reports.is_empty();
    if !tcb.has_sack() || has_none {
        return blocks;
    }
    let (held, reports) = (&tcp.held, tcp.reports.one(&tcb.receiving.acks.reports));
    if let Some(range) = reports.first() {
        blocks.push(SackBlock { left: range.start, right: range.end });
    }
    let room = sack_room(tcb) - blocks.as_slice().len();
    let ranges = tcb.receiving.held.ranges(held);
    // FIN takes the number behind the last byte.
    let block = |range: SeqRange| SackBlock {
        left: range.start,
        right: if fin == Some(range.end) { range.end.plus(1) } else { range.end },
    };
    let alone = fin.filter(|fin| ranges.last().is_none_or(|last| last.end != *fin));
    let alone = alone.map(|fin| SeqRange { start: fin, end: fin });
    let known = reports.up_to.later(tcb.rcv.nxt);
    let from = ranges.partition_point(|r| r.end.at_or_before(known));
    if ranges.len() - from > room && tcb.receiving.acks.duplicates > 1 {
        for range in ranges[from..from + room].iter().rev() {
            blocks.push(block(*range));
        }
        return blocks;
    }
    let containing = |seq: SeqNum| match alone {
        Some(fin) if fin.start == seq => alone,
        _ => tcb.receiving.held.containing(held, seq),
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
pub(crate) fn fin_held(tcb: &Tcb) -> Option<SeqNum> {
    match tcb.rcv.fin {
        PeerFin::Seen(fin) if fin.after(tcb.rcv.nxt) => Some(fin),
        _ => None,
    }
}

/// Blocks that fit a header (RFC 2018 section 3).
const fn sack_room(tcb: &Tcb) -> usize {
    if tcb.setup.negotiated.timestamps.is_some() { SackBlocks::MAX - 1 } else { SackBlocks::MAX }
}

/// TSval and TSecr, where timestamps are in use.
pub fn timestamps(tcb: &Tcb, now: Instant) -> Option<(u32, u32)> {
    tcb.setup.negotiated.timestamps.map(|ours| (ours.value_at(now), ours.recent))
}

/// The right edge to advertise: as far as memory allows, not in silly steps, and never back, unless memory has ended.
pub(crate) fn offered_edge(tcb: &Tcb) -> SeqNum {
    let data_nxt = tcb.data_nxt();
    let reach = data_nxt.plus(tcb.receiving.buffer.window(data_nxt));
    // The peer's largest segment may be one without options.
    let step =
        (u32::from(tcb.snd.mss) + u32::from(options_len(tcb))).min(tcb.receiving.buffer.window_max / 2);
    if tcb.receiving.buffer.is_starved() {
        return if reach.distance_from(data_nxt) >= step { reach } else { tcb.rcv.nxt };
    }
    if reach.distance_from(tcb.rcv.edge) >= step { reach } else { tcb.rcv.edge.later(tcb.rcv.nxt) }
}

/// Header bytes of the TCP options that [`header`] fills in.
pub const fn options_len(tcb: &Tcb) -> u16 {
    if tcb.setup.negotiated.timestamps.is_some() { TIMESTAMPS_LEN } else { 0 }
}
