//! Loss recovery: what an ACK or a time-out means for the window and for what is sent again.
//!
//! ```text
//!             loss (RACK, 3 duplicates)              time-out
//!     Open ───────────────────────────▶ Recovery ──────────────▶ Loss
//!      ▲ │ ECE                              │                      │
//!      │ └────────▶ Reduced                 │ all of it acked, or  │
//!      └───────────────┴────────────────────┴── nothing was lost ──┘
//! ```
//!
//! Recovery and Reduced shrink the window in proportion to what is delivered (PRR, RFC 9937); Loss is slow start from one
//! segment, unless F-RTO (RFC 5682) finds the time-out spurious. A loss that was none is undone when D-SACKs (RFC 3708)
//! or timestamps (RFC 4015) say so. Called by SEGMENT ARRIVES with each ACK and by the time-outs.

use crate::ack_event::AckEvent;
use crate::congestion::window::Growth;
use crate::congestion::{self, marks};
use crate::counter::Counter;
use crate::rack::Loss;
use crate::record::{Frto, PathState, Phase, Prr, Repair, RepairPool, SendDue, TailProbe, Tcb, Undo};
use crate::rtt::RTO_AFTER_LOST_SYN_US;
use crate::scoreboard::Fate;
use crate::{Tcp, path_mtu, rack};
use toe_base::Instant;

/// An ACK arrived.
pub fn on_ack(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant, event: &AckEvent) {
    if tcb.is_local {
        return;
    }
    if event.duplicated > 0 {
        rack::widen(tcb, &mut tcp.particulars);
        if let Some(undo) = undo_of(path, &mut tcp.repairs) {
            undo.unexplained = undo.unexplained.saturating_sub(event.duplicated);
        }
    }
    if !tcb.has_sack() {
        count_duplicates(tcb, path, event);
    }
    let is_empty_dup = event.is_duplicate && event.acked == 0;
    if rack::probe_answered(path, tcb.snd.una, event.duplicated > 0, is_empty_dup) {
        // What was lost at the tail is repaired already: once down with the window is all (RFC 8985 section 7.4.2).
        reduce(tcb, path, tcp, Phase::Reduced, event);
    }
    path_mtu::acknowledged(tcb, &mut tcp.particulars, now);
    marks::on_ack(tcb, path, &mut tcp.models, event.acked, event.ece);
    let was = path.cc.phase;
    let mistaken = is_mistaken(path, &mut tcp.repairs, event);
    match path.cc.phase {
        Phase::Open | Phase::Reduced => open(tcb, path, tcp, now, event),
        Phase::Recovery => recovery(tcb, path, tcp, now, event, mistaken),
        Phase::Loss => loss(tcb, path, tcp, now, event, mistaken),
    }
    if was == Phase::Loss && path.cc.phase == Phase::Open {
        path.cc.recovered(&tcp.models);
    }
    // The ACK that ends recovery sets the window; it does not grow it as well.
    let is_over = matches!(was, Phase::Recovery | Phase::Reduced) && path.cc.phase == Phase::Open;
    if !is_over {
        resize_window(tcb, path, tcp, now, event);
    }
    congestion::note_usage(tcb, path, &mut tcp.particulars, now);
}

/// What is put back if nothing was lost.
fn undo_of<'a>(path: &PathState, repairs: &'a mut RepairPool) -> Option<&'a mut Undo> {
    repairs.taken_mut(&path.cc.repair)?.undo.as_mut()
}

/// What is put back is what there is now.
fn note_for_undo(path: &mut PathState, repairs: &mut RepairPool) {
    let undo = Undo { cwnd: path.cc.cwnd, ssthresh: path.cc.ssthresh, ..Undo::default() };
    if let Some(repair) = repairs.one_mut(&mut path.cc.repair) {
        repair.undo = Some(undo);
    }
}

/// Bytes went out again.
pub fn resent(path: &PathState, repairs: &mut RepairPool, len: u32, timestamp: Option<u32>) {
    if let Some(undo) = undo_of(path, repairs) {
        undo.unexplained = undo.unexplained.saturating_add(len);
        undo.any_resent = true;
        undo.first_resent = undo.first_resent.or(timestamp);
    }
}

/// Duplicate ACKs stand for segments that left the network; a new ACK takes back those that it explains.
fn count_duplicates(tcb: &mut Tcb, path: &mut PathState, event: &AckEvent) {
    let mss = u32::from(tcb.snd.mss).max(1);
    if event.acked > 0 {
        // One of the acknowledged segments filled the hole, the others had been counted.
        let explained = event.acked.div_ceil(mss).saturating_sub(1);
        path.cc.dup_acks = if path.cc.phase == Phase::Recovery && tcb.snd.una.before(path.cc.recover) {
            path.cc.dup_acks.saturating_sub(explained)
        } else {
            0
        };
    } else if event.is_duplicate {
        // Those that begin no recovery let two segments go and no more (RFC 3042 section 2).
        let is_open = matches!(path.cc.phase, Phase::Open | Phase::Reduced);
        let most = if is_open && !may_begin(tcb, path) { rack::DUP_THRESHOLD - 1 } else { u32::MAX };
        path.cc.dup_acks = (path.cc.dup_acks + 1).min(tcb.outstanding() / mss).min(most);
    }
}

/// RFC 6582 section 3.2 step 2: duplicates of what an earlier recovery or time-out sent again begin no recovery.
fn may_begin(tcb: &Tcb, path: &PathState) -> bool {
    tcb.snd.una.after(path.cc.recover) || path.cc.recover == tcb.handshake.iss
}

/// Whether what was sent again had arrived the first time.
fn is_mistaken(path: &PathState, repairs: &mut RepairPool, event: &AckEvent) -> bool {
    let Some(undo) = undo_of(path, repairs) else { return false };
    let all_twice = event.duplicated > 0 && undo.any_resent && undo.unexplained == 0;
    let echoes_first = event.acked > 0
        && matches!((event.echo, undo.first_resent),
            (Some(echo), Some(resent)) if (echo.wrapping_sub(resent) as i32) < 0);
    all_twice || echoes_first
}

fn open(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant, event: &AckEvent) {
    if is_lost(tcb, path, tcp, now) && !path_mtu::is_probe_alone_lost(tcb, tcp, now) {
        tcp.counters.add(Counter::FastRetransmits);
        enter_recovery(tcb, path, tcp, event);
        return;
    }
    if path.cc.phase == Phase::Reduced {
        if tcb.snd.una.at_or_after(path.cc.recover) {
            path.cc.cwnd = path.cc.cwnd.min(path.cc.ssthresh);
            path.cc.phase = Phase::Open;
            tcp.repairs.vacate(&mut path.cc.repair);
        }
    } else if is_mistaken(path, &mut tcp.repairs, event) {
        // Recovery is over, and only now do D-SACKs explain the last of what was sent again.
        undo(tcb, path, tcp);
    }
    // Once a window: what the last reduction covered does not count again (RFC 3168 section 6.1.2).
    let is_event = tcb.snd.una.after(path.cc.recover);
    if event.ece && tcb.setup.ecn.on && path.cc.phase == Phase::Open && is_event {
        reduce(tcb, path, tcp, Phase::Reduced, event);
        tcb.setup.ecn.tell_reduced = true;
        tcp.counters.add(Counter::EcnReductions);
    }
}

/// Whether something is found lost outside of recovery.
fn is_lost(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) -> bool {
    if tcb.has_sack() {
        return rack::detect_loss(tcb, path, tcp, now, false) != Loss::None;
    }
    if path.cc.dup_acks >= rack::DUP_THRESHOLD && may_begin(tcb, path) {
        return tcb.sending.board.mark_head_lost(&mut tcp.sent, u32::from(tcb.snd.mss));
    }
    false
}

fn enter_recovery(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, event: &AckEvent) {
    note_for_undo(path, &mut tcp.repairs);
    path.cc.recovery_begins(&mut tcp.models);
    if path.cc.phase == Phase::Reduced {
        // The window is on its way down already for this round trip.
        path.cc.phase = Phase::Recovery;
        path.cc.recover = tcb.snd.nxt;
    } else {
        reduce(tcb, path, tcp, Phase::Recovery, event);
    }
    forget_tail_probe(tcb, path);
}

/// What a probe would find out is known.
fn forget_tail_probe(tcb: &mut Tcb, path: &mut PathState) {
    path.rack.tlp = TailProbe::None;
    tcb.sending.due.remove(SendDue::TAIL_PROBE);
    path.rack.timers.tail_probe = Instant::FAR_FUTURE;
}

/// Starts to reduce the window.
fn reduce(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, phase: Phase, event: &AckEvent) {
    // More than the window lies between una and nxt where holes stay open for long.
    let flight = event.outstanding_before.min(path.cc.cwnd);
    let mss = u32::from(tcb.snd.mss);
    let by_mark = phase == Phase::Reduced && tcb.setup.ecn.on;
    path.cc.ssthresh = path.cc.reduced(&mut tcp.models, flight, mss, by_mark);
    if let Some(repair) = tcp.repairs.one_mut(&mut path.cc.repair) {
        repair.lost_before = tcb.sending.board.lost_ever();
        repair.prr = Prr { recover_fs: event.pipe_before.max(mss), delivered: 0, out: 0 };
        repair.undo = repair.undo.filter(|_| phase != Phase::Reduced);
    }
    path.cc.recover = tcb.snd.nxt;
    path.cc.phase = phase;
}

/// What went out again after the last reduction is lost too: a second sign of congestion (RFC 5681 section 4.3).
fn reduce_again(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, event: &AckEvent) {
    if path.cc.phase == Phase::Recovery && !path.cc.follows_model() {
        path.cc.cwnd = path.cc.ssthresh;
        reduce(tcb, path, tcp, Phase::Recovery, event);
    }
}

fn recovery(
    tcb: &mut Tcb,
    path: &mut PathState,
    tcp: &mut Tcp,
    now: Instant,
    event: &AckEvent,
    mistaken: bool,
) {
    if mistaken {
        undo(tcb, path, tcp);
        return;
    }
    if tcb.snd.una.at_or_after(path.cc.recover) {
        path.cc.recovered(&tcp.models);
        path.cc.phase = Phase::Open;
        path.cc.dup_acks = 0;
        rack::recovery_ended(tcb, &mut tcp.particulars);
        return;
    }
    if tcb.has_sack() {
        if rack::detect_loss(tcb, path, tcp, now, true) == Loss::OfRetransmission {
            reduce_again(tcb, path, tcp, event);
        }
    } else if event.acked > 0 {
        // A partial ACK: the next segment is missing too (RFC 6582 section 3.2 step 3).
        tcb.sending.board.mark_head_lost(&mut tcp.sent, u32::from(tcb.snd.mss));
    }
}

/// After a time-out; the SACK-enhanced F-RTO of RFC 5682 section 3, which does for a peer without SACK as well (section 2).
fn loss(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant, event: &AckEvent, mistaken: bool) {
    // Step 3 (b): what was not sent again has arrived, in order or not.
    let spurious = path.cc.frto == Frto::SentNew && event.originals;
    if mistaken || spurious {
        tcp.counters.add(Counter::SpuriousTimeouts);
        undo(tcb, path, tcp);
        return;
    }
    let recovered = tcb.snd.una.at_or_after(path.cc.recover);
    match path.cc.frto {
        Frto::Off => {}
        // Step 2: the first ACK after the time-out.
        Frto::Resent if event.acked > 0 && !recovered && may_send_new(tcb) => {
            path.cc.frto = Frto::SentNew;
            path.cc.recover = tcb.snd.nxt;
            path.cc.cwnd = tcb.pipe(path) + 2 * u32::from(tcb.snd.mss);
            return;
        }
        // A D-SACK of what was sent again says nothing of the others yet.
        Frto::Resent if event.acked == 0 && event.delivered == 0 && !event.is_duplicate => {}
        // The head's retransmission is still on its way: SACKs of what was behind it decide nothing yet (section 3.1).
        Frto::Resent if event.acked == 0 && tcb.has_sack() => {}
        // Step 3 (a), or nothing new to send: the loss was real.
        Frto::Resent | Frto::SentNew => path.cc.frto = Frto::Off,
    }
    if recovered {
        path.cc.phase = Phase::Open;
        path.cc.frto = Frto::Off;
        path.cc.dup_acks = 0;
        rack::recovery_ended(tcb, &mut tcp.particulars);
        return;
    }
    if tcb.has_sack() {
        rack::detect_loss(tcb, path, tcp, now, true);
    }
}

fn may_send_new(tcb: &Tcb) -> bool {
    let unsent = tcb.queue_end().distance_from(tcb.snd.nxt);
    unsent > 0 && tcb.snd.una.plus(tcb.snd.wnd.bytes()).after(tcb.snd.nxt)
}

/// The retransmission timer ran out (RFC 5681 section 3.1, RFC 6298 section 5, RFC 8985 section 6.3).
pub fn on_timeout(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) {
    let mss = u32::from(tcb.snd.mss);
    if !tcb.state.is_synchronized() {
        tcb.sending.board.mark_lost(&mut tcp.sent, |_| true);
        handshake_lost(tcb, path);
        return;
    }
    if tcb.sending.board.first(&tcp.sent).is_some_and(|r| r.fate == Fate::Sacked) {
        // The peer said that it has the first byte and acknowledges less: it forgot (RFC 2018 section 8).
        tcb.sending.board.unmark_sacked(&mut tcp.sent);
    }
    if tcb.is_local {
        // No path to spare: there was no memory, and there may be some now.
        tcb.sending.board.mark_lost(&mut tcp.sent, |_| true);
        return;
    }
    let anew = path.cc.phase != Phase::Loss || tcb.snd.una.at_or_after(path.cc.recover);
    if anew || tcb.sending.timeouts == 0 {
        note_for_undo(path, &mut tcp.repairs);
        path.cc.ssthresh = path.cc.reduced(&mut tcp.models, tcb.outstanding().min(path.cc.cwnd), mss, false);
        path.cc.timed_out(&mut tcp.models);
    }
    path.cc.recovery_begins(&mut tcp.models);
    rack::mark_lost_on_timeout(tcb, path, tcp, now);
    path.cc.frto = if anew { Frto::Resent } else { Frto::Off };
    path.cc.phase = Phase::Loss;
    path.cc.recover = tcb.snd.nxt;
    path.cc.dup_acks = 0;
    path.cc.cwnd = tcb.pipe(path) + mss;
    forget_tail_probe(tcb, path);
}

/// A SYN, or the answer to one, went out more than once: data starts with one segment (RFC 5681 section 3.1) and a patient
/// time-out (RFC 6298 section 5.7), until a round trip is measured. Of congestion it says nothing.
pub fn handshake_lost(tcb: &mut Tcb, path: &mut PathState) {
    path.cc.cwnd = u32::from(tcb.snd.mss);
    if path.rtt.srtt_us == 0 && tcb.state.is_synchronized() {
        path.rtt.rto_us = RTO_AFTER_LOST_SYN_US;
    }
}

/// The reordering timer ran out (RFC 8985 section 6.3): what was waited for is lost.
pub fn on_reorder_timeout(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) {
    let before = tcb.pipe(path);
    let in_recovery = matches!(path.cc.phase, Phase::Recovery | Phase::Loss);
    let lost = rack::detect_loss(tcb, path, tcp, now, in_recovery);
    let outstanding_before = tcb.outstanding();
    let event = AckEvent { pipe_before: before, outstanding_before, ..AckEvent::default() };
    if in_recovery {
        if lost == Loss::OfRetransmission {
            reduce_again(tcb, path, tcp, &event);
            resize_window(tcb, path, tcp, now, &event);
        }
    } else if lost != Loss::None && !path_mtu::is_probe_alone_lost(tcb, tcp, now) {
        tcp.counters.add(Counter::FastRetransmits);
        enter_recovery(tcb, path, tcp, &event);
        resize_window(tcb, path, tcp, now, &event);
    }
}

/// Nothing was lost: the window is what it was.
fn undo(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp) {
    let Some(undo) = undo_of(path, &mut tcp.repairs).copied() else { return };
    tcp.repairs.vacate(&mut path.cc.repair);
    tcp.counters.add(Counter::Undos);
    path.cc.cwnd = path.cc.cwnd.max(undo.cwnd);
    path.cc.ssthresh = path.cc.ssthresh.max(undo.ssthresh);
    congestion::restore(tcb, path, &mut tcp.models);
    path.cc.phase = Phase::Open;
    path.cc.frto = Frto::Off;
    path.cc.dup_acks = 0;
    tcb.sending.backoff = 0;
    tcb.sending.board.unmark_lost(&mut tcp.sent);
}

fn resize_window(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant, event: &AckEvent) {
    if congestion::follow_model(tcb, path, tcp, now, event) {
        return;
    }
    match path.cc.phase {
        Phase::Recovery | Phase::Reduced => prr(tcb, path, &mut tcp.repairs, event),
        Phase::Loss if path.cc.frto != Frto::Off => {}
        Phase::Open | Phase::Loss => {
            if event.acked > 0 && (path.cc.phase == Phase::Loss || congestion::is_limiting(tcb, path)) {
                let mss = u32::from(tcb.snd.mss);
                // After a time-out one ACK may cover what had arrived long before (RFC 3465 section 2.3).
                let most = if path.cc.phase == Phase::Loss { mss } else { u32::MAX };
                let growth = Growth {
                    now,
                    acked: event.acked.min(most),
                    mss,
                    srtt_us: path.rtt.srtt_us,
                    rtt_us: event.rtt_us,
                    una: tcb.snd.una,
                    nxt: tcb.snd.nxt,
                };
                path.cc.grow(&mut tcp.models, &growth);
            }
        }
    }
}

/// RFC 9937 section 6.2, with the bound that depends on whether recovery makes progress (PRR-SSRB where it does, PRR-CRB
/// where it does not).
fn prr(tcb: &mut Tcb, path: &mut PathState, repairs: &mut RepairPool, event: &AckEvent) {
    let mss = u32::from(tcb.snd.mss);
    let pipe = tcb.pipe(path);
    if event.delivered == 0 && pipe == event.pipe_before {
        // It says nothing of what left the network, and what an ACK before it in the same batch allows has not gone yet.
        return;
    }
    let Some(Repair { prr, .. }) = repairs.one_mut(&mut path.cc.repair) else { return };
    prr.delivered = prr.delivered.saturating_add(event.delivered);
    let may_send = if pipe > path.cc.ssthresh {
        let share = u64::from(prr.delivered) * u64::from(path.cc.ssthresh);
        (share.div_ceil(u64::from(prr.recover_fs)) as u32).saturating_sub(prr.out)
    } else {
        // What this ACK delivers may be replaced, though the forced first retransmission went out before anything arrived.
        let limit = prr.delivered.saturating_sub(prr.out).max(event.delivered);
        let is_safe = event.acked > 0 && tcb.sending.board.lost_ever() == event.lost_before;
        (path.cc.ssthresh - pipe).min(if is_safe { limit + mss } else { limit })
    };
    // The first retransmission goes at once.
    let least = if prr.out == 0 && path.cc.phase == Phase::Recovery { mss } else { 0 };
    // A segment may go when nothing is in the network, whatever went out before (`outgoing::path_left`): the window says so.
    path.cc.cwnd = (pipe + may_send.max(least)).max(mss);
}
