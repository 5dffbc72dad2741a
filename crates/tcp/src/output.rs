//! What a connection sends now: the SEND side of RFC 9293 sections 3.7 and 3.8.
//!
//! [`prepare`] only looks, so that a port without room costs nothing; [`commit`] does what sending means; [`settle`]
//! arms what has to wait. The caller repeats `prepare` and `commit` until nothing is left.

use crate::config::EcnMode;
use crate::congestion::marks;
use crate::open::syn_window;
use crate::outgoing::{
    Shape, TxContext, data_segment, empty_seq, fin_held, header, offered_edge, path_left, sack_blocks, unit,
};
use crate::record::{Frto, Particulars, PathState, PeerTimer, Phase, Repair, Sack, SendDue, Tcb, Wait};
use crate::scoreboard::{Resent, SentRange};
use crate::segment::{Segment, TxSegment};
use crate::state::TcpState;
use crate::{Tcp, congestion, fast_open, path_mtu, probe, rack, rate, record_ends, recovery, rtt, tso};
use toe_base::Instant;
use toe_base::window::{WindowScale, WindowSize};
use toe_wire::tcp::{SackBlocks, TcpFlags};

/// Longest time that a corked partial segment waits, as Linux has it.
const CORK_US: u64 = 200_000;

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
        .or_else(|| probe::of_mtu(tcb, cx.path, cx.tcp, &shape))
        .or_else(|| prepare_new(tcb, cx, &shape))
        .or_else(|| prepare_ack(tcb, cx))
}

fn prepare_syn(tcb: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    let answers = tcb.state == TcpState::SynReceived;
    let was_sent = tcb.snd.nxt != tcb.handshake.iss;
    if was_sent && !fast_open::is_syn_lost(tcb, &cx.tcp.sent) {
        // The program of a Fast Open may answer before the handshake is complete (RFC 7413 section 4.2.2).
        let early =
            tcb.handshake.fast_open.early.then(|| prepare_new(tcb, cx, &Shape::of(tcb, cx))).flatten();
        return early.or_else(|| if answers { prepare_ack(tcb, cx) } else { None });
    }
    if fast_open::waits(tcb) {
        return None;
    }
    let mut segment = header(tcb, cx.now, tcb.handshake.iss);
    segment.flags = segment.flags.with(TcpFlags::SYN);
    segment.ack = answers.then_some(tcb.rcv.nxt);
    segment.mss = Some(cx.limits.announce_mss);
    segment.sack_permitted = tcb.setup.negotiated.sack != Sack::Off;
    // RFC 3168 section 6.1.1; one that is sent again does without (6.1.1.1), as the first may have been dropped for it.
    let asks = !answers && !was_sent && !tcb.is_local && cx.tcp.config.ecn == EcnMode::Request;
    segment.flags = segment.flags.with_if(TcpFlags::ECE, asks || answers && tcb.setup.ecn.on);
    segment.flags = segment.flags.with_if(TcpFlags::CWR, asks);
    // In an answer only what the peer's SYN offered is repeated (RFC 7323 sections 2.2 and 3.2).
    let scale = tcb.setup.negotiated.rcv_scale;
    segment.window_scale = (!answers || scale != WindowScale::ZERO).then_some(scale);
    // What bytes of the peer's SYN have taken of it is gone: the edge was said by the numbers before them.
    let window = if answers {
        WindowSize::new(tcb.rcv.edge.distance_from(tcb.rcv.nxt).min(u32::from(u16::MAX)))
    } else {
        syn_window(tcb)
    };
    segment.window = window.to_field(WindowScale::ZERO);
    if !was_sent {
        let opening = cx.tcp.openings.one(&tcb.handshake.fast_open.opening);
        segment.fast_open = opening.option;
        let of_record = || record_ends::room_from(cx.tcp.record_ends_of(tcb), tcb.data_una());
        segment.len = if answers { 0 } else { fast_open::syn_len(tcb, &opening).min(of_record()) };
    }
    Some(unit(tcb, segment, 0, was_sent))
}

/// The first stretch that is lost again, as far as the windows let it. After a time-out that may be spurious it is the
/// segment at `snd.una` alone, and nothing once that has gone (RFC 5682 section 2.1).
fn prepare_resend(tcb: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> Option<TxSegment> {
    let range = tcb.sending.board.first_lost(&cx.tcp.sent)?;
    let mss = shape.mss;
    let only_head = match cx.path.cc.frto {
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
    let path_left = path_left(tcb, cx.path, cx.tcp, cx.now);
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

fn prepare_new(tcb: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> Option<TxSegment> {
    let len = new_data_len(tcb, cx, shape);
    let fin_due =
        tcb.snd.fin.is_queued() && tcb.snd.nxt.plus(len) == tcb.queue_end() && !tcb.snd.fin.is_acked();
    if len == 0 && !fin_due || len > 0 && tso::defers(tcb, cx.path, cx.tcp, shape) {
        return None;
    }
    let mut tx = data_segment(tcb, shape, tcb.snd.nxt, len, false);
    tx.segment.flags =
        tx.segment.flags.with_if(TcpFlags::PSH, len == shape.mss && ends_burst(tcb, cx, shape));
    Some(tx)
}

/// Whether a whole segment is the last of several that go at once, and the windows let no more go: to a link that cuts it would have been
/// the end of one large unit.
fn ends_burst(tcb: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> bool {
    let window_left = tcb.snd.wnd.bytes().saturating_sub(tcb.outstanding());
    let left = window_left.min(path_left(tcb, cx.path, cx.tcp, shape.now));
    left < 2 * shape.mss && tcb.sending.board.last(&cx.tcp.sent).is_some_and(|last| last.sent_at == shape.now)
}

/// An ACK of what came before marks began or ended (RFC 8257 section 3.2).
fn prepare_delayed_ack(tcb: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    let (ack, ece) = marks::delayed_ack(cx.path, &cx.tcp.models)?;
    let window = WindowSize::new(tcb.rcv.edge.distance_from(ack)).to_field(tcb.setup.negotiated.rcv_scale);
    let segment = header(tcb, cx.now, empty_seq(tcb));
    let flags = TcpFlags::NONE.with_if(TcpFlags::ECE, ece);
    let segment = Segment { ack: Some(ack), flags, window, ..segment };
    Some(unit(tcb, segment, 0, false))
}

fn prepare_ack(tcb: &Tcb, cx: TxContext<'_>) -> Option<TxSegment> {
    if !tcb.receiving.acks.now && tcb.receiving.acks.duplicates == 0 {
        return None;
    }
    let mut segment = header(tcb, cx.now, empty_seq(tcb));
    segment.sack = sack_blocks(tcb, cx.tcp);
    Some(unit(tcb, segment, 0, false))
}

/// Bytes of queued data that may go now from `snd.nxt` on.
fn new_data_len(tcb: &Tcb, cx: TxContext<'_>, shape: &Shape<'_>) -> u32 {
    let mss = shape.mss;
    // Whoever cuts a large unit would repeat the urgent pointer in each piece, where it leads elsewhere.
    let is_urgent = tcb.is_urgent() && tcb.snd.nxt.before(tcb.snd.up);
    let queued = tcb.queue_end().distance_from(tcb.snd.nxt);
    let ready = queued.min(shape.record_from(tcb.snd.nxt));
    let outstanding = tcb.outstanding();
    let window_left = tcb.snd.wnd.bytes().saturating_sub(outstanding);
    let path_left = path_left(tcb, cx.path, cx.tcp, shape.now);
    let may_go = ready.min(window_left).min(path_left);
    let len = if may_go < mss {
        may_go
    } else if is_urgent && !tcb.is_local {
        mss
    } else {
        may_go.min(whole_unit(tcb, cx.limits.unit_max, mss))
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
        let nagle = !tcb.sending.nagle.no_delay && tcb.sending.nagle.small.after(tcb.snd.una);
        (corked || nagle) && !tcb.snd.fin.is_queued()
    };
    if hold_tail { len - tail } else { len }
}

/// As many segments as the link cuts, of which each has the options: without them one more byte would fit.
fn whole_unit(tcb: &Tcb, unit_max: u32, mss: u32) -> u32 {
    let segments = unit_max / u32::from(tcb.snd.mss).max(1);
    unit_max.min((segments * mss).max(mss))
}

/// `tx` is on its way.
pub fn commit(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant, tx: &TxSegment) {
    let segment = &tx.segment;
    if let Some((ack, _)) = marks::delayed_ack(path, &tcp.models) {
        // It goes before everything else.
        marks::delayed_ack_sent(path, &mut tcp.models);
        tcb.receiving.acks.last_sent = ack;
        return;
    }
    if segment.ack.is_some() {
        tcb.receiving.acks.now = false;
        tcb.receiving.acks.last_sent = tcb.rcv.nxt;
        tcb.timers.delayed_ack = Instant::FAR_FUTURE;
        if !segment.flags.syn() {
            tcb.rcv.edge = offered_edge(tcb);
        }
    }
    if segment.seq == tcb.snd.una {
        tcb.sending.due.remove(SendDue::WINDOW_PROBE);
    }
    let len = segment.seq_len();
    if len == 0 {
        if segment.seq == probe::before_una(tcb) {
            tcb.sending.due.remove(SendDue::WINDOW_PROBE);
            tcb.sending.due.remove(SendDue::KEEPALIVE);
        }
        tcb.receiving.acks.duplicates = tcb.receiving.acks.duplicates.saturating_sub(1);
        sack_sent(tcb, tcp, &segment.sack);
        return;
    }
    if !segment.sack.is_empty() {
        sack_sent(tcb, tcp, &segment.sack);
    } else if !tcb.receiving.acks.reports.is_empty() {
        // What came twice is still to be told of.
        tcb.receiving.acks.now |= tcp.reports.one(&tcb.receiving.acks.reports).first().is_some();
    }
    note_sent(tcb, path, tcp, now, tx);
    if tx.mss > tcb.snd.mss {
        path_mtu::probe_sent(tcb, &mut tcp.particulars, tx.mss);
    }
    if segment.flags.syn()
        && !tx.is_retransmit
        && let Some(opening) = tcp.openings.taken_mut(&tcb.handshake.fast_open.opening)
    {
        opening.sent = segment.len;
    }
    if segment.flags.contains(TcpFlags::CWR) {
        tcb.setup.ecn.tell_reduced = false;
    }
    if tx.is_retransmit
        && let Some(Particulars { trouble, .. }) = tcp.particulars.one_mut(&mut tcb.setup.particulars)
    {
        trouble.note_resent(segment.len, tx.mss);
    }
    if tcb.snd.nxt == tcb.queue_end() {
        all_is_out(tcb, tcp);
    }
    if tcb.timers.peer == PeerTimer::Off {
        tcb.timers.peer = PeerTimer::Retransmit(now.after_us(rtt::retransmit_us(tcb, path)));
    }
    if tcb.timers.stalled_since.is_far_future() {
        tcb.timers.stalled_since = now;
    }
    if tcb.sending.due.has(SendDue::TAIL_PROBE) {
        rack::tail_probe_sent(tcb, path, tx.is_retransmit);
    } else if !tx.is_retransmit {
        rack::schedule_tail_probe(tcb, path, now);
    }
}

/// All that was queued is out: no cork holds any of it.
fn all_is_out(tcb: &mut Tcb, tcp: &mut Tcp) {
    tcb.sending.due.remove(SendDue::UNCORKED);
    if let Some(Particulars { deadlines, .. }) = tcp.particulars.taken_mut(&tcb.setup.particulars) {
        deadlines.cork = Instant::FAR_FUTURE;
    }
}

/// An ACK went out. Duplicates of it are owed to a peer that counts them; one with SACK wants to be told of everything.
fn sack_sent(tcb: &mut Tcb, tcp: &mut Tcp, sack: &SackBlocks) {
    let Some(reports) = tcp.reports.taken_mut(&tcb.receiving.acks.reports) else { return };
    reports.pop();
    let owes = reports.first().is_some();
    tcb.receiving.acks.now |= owes;
    for block in sack.as_slice() {
        reports.up_to = reports.up_to.later(block.right);
    }
    let end = tcb.receiving.held.ranges(&tcp.held).last().map_or(tcb.rcv.nxt, |r| r.end);
    if end.at_or_before(reports.up_to) {
        tcb.receiving.acks.duplicates = 0;
    }
    if !owes && tcb.receiving.held.is_empty() && fin_held(tcb).is_none() {
        tcp.reports.vacate(&mut tcb.receiving.acks.reports);
    }
}

/// `tx` has numbers and went out: what of it was out before, again (a window probe may be both).
fn note_sent(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant, tx: &TxSegment) {
    let (seq, len, mss) = (tx.segment.seq, tx.segment.seq_len(), tx.mss);
    let end = seq.plus(len);
    if tcb.pipe(path) == 0 {
        congestion::restart(tcb, path, tcp, now);
    }
    let stamp = rate::stamp(tcb, path, now, len);
    let nxt = tcb.snd.nxt;
    if seq.before(nxt) {
        let again_end = end.earlier(nxt);
        tcb.sending.board.resent(&mut tcp.sent, seq, again_end, Resent { at: now, mss, stamp });
        let first = tcb.setup.negotiated.timestamps.map(|ours| ours.value_at(now));
        recovery::resent(path, &mut tcp.repairs, again_end.distance_from(seq), first);
    }
    let start = seq.later(nxt);
    if start.before(end) {
        let range = SentRange { start, end, sent_at: now, mss, stamp, ..SentRange::default() };
        tcb.sending.board.sent(&mut tcp.sent, range);
        tcb.snd.nxt = end;
        let (len, mss) = (tx.segment.len, u32::from(mss).max(1));
        // What fits one segment needs no division.
        let ends_small = if len < mss { len > 0 } else { !len.is_multiple_of(mss) };
        if ends_small {
            tcb.sending.nagle.small = end;
        }
    }
    if matches!(path.cc.phase, Phase::Recovery | Phase::Reduced)
        && let Some(Repair { prr, .. }) = tcp.repairs.one_mut(&mut path.cc.repair)
    {
        prr.out = prr.out.saturating_add(len);
    }
    rate::note_paced(tcb, path, &mut tcp.particulars, now, len);
    let pipe = tcb.pipe(path);
    path.cc.usage.sent(pipe);
}

/// Whether less than a segment is kept for what the program says will follow (TCP_CORK, MSG_MORE).
fn waits_for_more(tcb: &Tcb) -> bool {
    (tcb.sending.nagle.cork || tcb.sending.nagle.more) && !tcb.sending.due.has(SendDue::UNCORKED)
}

/// Nothing more can be sent now: arms the timer that will change that, if none else will.
pub fn settle(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) {
    note_limit(tcb, now);
    if !tcb.state.is_synchronized() || tcb.snd.fin.is_acked() {
        return;
    }
    let unsent = tcb.queue_end().distance_from(tcb.snd.nxt) > 0;
    let waiting = unsent || tcb.sending.board.lost() > 0;
    let outstanding = tcb.snd.nxt != tcb.snd.una;
    if let Some(Particulars { pacing, deadlines, .. }) = tcp.particulars.taken_mut(&tcb.setup.particulars) {
        if pacing.rate > 0 && waiting && now < pacing.next_send_at {
            deadlines.pace = pacing.next_send_at;
        } else {
            // It waits for something else.
            pacing.is_late = false;
        }
    }
    if !waiting && tcb.pipe(path) < path.cc.cwnd {
        rate::note_app_limited(tcb, path);
    }
    let asked = outstanding && tcb.snd.wnd.bytes() > 0;
    if !waiting || asked {
        // What is on its way brings an answer, or its time-out comes.
        if outstanding && tcb.timers.peer == PeerTimer::Off {
            tcb.timers.peer = PeerTimer::Retransmit(now.after_us(rtt::retransmit_us(tcb, path)));
        }
        return;
    }
    if tcb.snd.wnd.bytes() > 0 && waits_for_more(tcb) {
        if let Some(Particulars { deadlines, .. }) = tcp.particulars.one_mut(&mut tcb.setup.particulars) {
            deadlines.cork = deadlines.cork.min(now.after_us(CORK_US));
        }
        return;
    }
    if tcb.timers.persist().is_far_future() {
        // The window is closed, or too small to be worth a segment: ask for it (RFC 9293 section 3.8.6.1).
        tcb.timers.stop_retransmit();
        path.rack.timers.tail_probe = Instant::FAR_FUTURE;
        tcb.timers.peer = PeerTimer::Persist(now.after_us(path.rtt.timeout_us(tcb.sending.backoff)));
    }
}

/// Whom what is queued waits for, for reports.
fn note_limit(tcb: &mut Tcb, now: Instant) {
    let window_end = tcb.snd.una.plus(tcb.snd.wnd.bytes());
    let unsent = tcb.queue_end().distance_from(tcb.snd.nxt);
    let wait = if tcb.sending.queue.is_empty() {
        Wait::Nothing
    } else if unsent > 0 && window_end.diff(tcb.snd.nxt) < unsent.min(u32::from(tcb.snd.mss)) as i32 {
        Wait::Window
    } else {
        Wait::Path
    };
    tcb.status.traffic.limits.note(now, wait);
}
