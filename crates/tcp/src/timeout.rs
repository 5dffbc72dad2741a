//! Time-outs (RFC 9293 section 3.10.8, RFC 6298 section 5, RFC 1122 section 4.2.3.6).

use crate::counter::Counter;
use crate::record::{
    Deadlines, Particulars, ParticularsPool, PathState, PeerTimer, RackTimers, RoundTrip, SendDue, Tcb,
    WaitTimes,
};
use crate::rtt::retransmit_us;
use crate::segment::FlowEvent;
use crate::state::{TcpEvent, TcpState};
use crate::{Tcp, deferral, path_mtu, rack, recovery, soft_error, time_wait};
use toe_abi::errno::Errno;
use toe_base::Instant;

/// How long FIN_WAIT_2 lasts at most (Linux: TCP_FIN_TIMEOUT_MAX).
const FIN_WAIT_2_SECS_MAX: u16 = 120;
/// So often a SYN is sent again at intervals of a second, before they double (Linux: tcp_syn_linear_timeouts).
const SYN_LINEAR_TIMEOUTS: u8 = 4;
/// It is given up when so many retransmissions at intervals that double from the first on would have been in vain (Linux:
/// tcp_syn_retries, TCP_SYNCNT): after 127 s, and so with the one that would go after 131 s. RFC 9293 section 3.8.3 asks for three
/// minutes; programs are made for the former.
const SYN_RETRIES: u8 = 6;
/// What TCP_SYNCNT may say at most.
pub const SYN_RETRIES_MAX: u8 = 127;
/// Of a SYN-ACK (Linux: tcp_synack_retries): whoever sends SYNs and nothing more must not hold a record for long.
const SYN_ACK_RETRIES: u8 = 5;
/// Time-outs until data is given up: R2 of RFC 9293 section 3.8.3 is at least 100 s; Linux: tcp_retries2.
const DATA_RETRIES: u8 = 15;
/// Time-outs until a connection that no program holds is given up (Linux: tcp_orphan_retries).
const ORPHAN_RETRIES: u8 = 8;
/// Window probes of a connection that no program holds, even when the peer answers them all: some ten minutes.
const ORPHAN_PROBES: u8 = 12;
/// After so many probes of a closed window nothing older than their answers is under way any more.
const PROBES_OF_DOUBT: u8 = 4;

/// Enters (or prolongs) TIME_WAIT.
pub fn start_time_wait(tcb: &mut Tcb, path: &mut PathState, pool: &mut ParticularsPool, now: Instant) {
    stop_all(tcb, path, pool);
    tcb.sending.due.remove(SendDue::WINDOW_PROBE);
    tcb.timers.peer = PeerTimer::Linger(now.after_us(time_wait::lasts_us(tcb.is_local)));
}

/// Disarms everything that concerns the peer.
pub fn stop_all(tcb: &mut Tcb, path: &mut PathState, pool: &mut ParticularsPool) {
    tcb.timers.stop_all();
    path.rack.timers = RackTimers::default();
    tcb.sending.probes = 0;
    if let Some(Particulars { deadlines, .. }) = pool.taken_mut(&tcb.setup.particulars) {
        *deadlines = Deadlines::default();
    }
}

/// A program that is gone cannot end FIN_WAIT_2: time does.
pub fn start_fin_wait_2(tcb: &mut Tcb, pool: &ParticularsPool, now: Instant) {
    let secs = patience(tcb, pool).fin_wait_2_secs.map_or(0, |secs| secs.min(FIN_WAIT_2_SECS_MAX));
    tcb.timers.peer = PeerTimer::Linger(now.after_us(u64::from(secs) * 1_000_000));
}

/// How long it waits.
fn patience(tcb: &Tcb, pool: &ParticularsPool) -> WaitTimes {
    pool.one(&tcb.setup.particulars).patience
}

impl Tcp {
    /// When the connection next has something to do, whatever comes. What follows from the record, and is set nowhere, is computed here.
    pub fn deadline(&self, tcb: &Tcb, path: &PathState) -> Instant {
        let mut often = tcb.timers.earliest();
        if !tcb.is_local {
            often = often.min(path.rack.timers.earliest());
        }
        let particulars = self.particulars.taken(&tcb.setup.particulars);
        particulars.map_or(often, |particulars| often.min(particulars.deadlines.earliest()))
    }
}

/// Handles every timer of the connection that is due, as [`Tcp::deadline`] knows them, but for `release`: that is the caller's, who has the memory.
pub fn on_timeout(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) -> FlowEvent {
    let off = Instant::FAR_FUTURE;
    if tcb.timers.linger() <= now {
        // As in Linux: the program that asked for another end than the usual one has the peer told.
        let lasts = patience(tcb, &tcp.particulars).fin_wait_2_secs;
        let tells = lasts.is_none_or(|secs| secs > WaitTimes::FIN_WAIT_2_SECS);
        let aborts = tcb.state == TcpState::FinWait2 && tells;
        tcb.state = tcb.state.after(TcpEvent::Timeout);
        return if aborts { FlowEvent::Abort(Errno::OK) } else { FlowEvent::Closed(Errno::OK) };
    }
    if tcb.timers.delayed_ack <= now {
        tcb.timers.delayed_ack = off;
        tcb.receiving.acks.now = true;
    }
    if let Some(Particulars { pacing, deadlines, .. }) = tcp.particulars.taken_mut(&tcb.setup.particulars) {
        if deadlines.cork <= now {
            deadlines.cork = off;
            tcb.sending.due.add(SendDue::UNCORKED);
        }
        if deadlines.pace <= now {
            deadlines.pace = off;
            pacing.is_late = true;
        }
    }
    if path.rack.timers.reorder <= now {
        path.rack.timers.reorder = off;
        recovery::on_reorder_timeout(tcb, path, tcp, now);
    }
    if path.rack.timers.tail_probe <= now {
        tcp.counters.add(Counter::TailLossProbes);
        rack::tail_probe_due(tcb, path, now);
    }
    if tcb.timers.retransmit() <= now {
        return retransmit(tcb, path, tcp, now);
    }

    if tcb.timers.persist() <= now {
        return probe_window(tcb, path, tcp, now);
    }
    if tcp.particulars.one(&tcb.setup.particulars).deadlines.keepalive <= now {
        return keepalive(tcb, tcp, now);
    }
    FlowEvent::None
}

/// RFC 6298 sections 5.4 to 5.6.
fn retransmit(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) -> FlowEvent {
    if deferral::ends(tcb, path, tcp, now) {
        return FlowEvent::None;
    }
    if is_given_up(tcb, &patience(tcb, &tcp.particulars), now) {
        return give_up(tcb);
    }
    if tcb.snd.wnd.bytes() == 0 && tcb.state.is_synchronized() && !tcb.sending.queue.is_empty() {
        // The peer closed its window under what is out, which may be why it is silent: it is asked, and lost is nothing yet.
        tcb.timers.stop_retransmit();
        path.rack.timers.tail_probe = Instant::FAR_FUTURE;
        return probe_window(tcb, path, tcp, now);
    }
    tcp.counters.add(Counter::RetransmitTimeouts);
    recovery::on_timeout(tcb, path, tcp, now);
    let is_linear = tcb.state == TcpState::SynSent && tcb.sending.timeouts < SYN_LINEAR_TIMEOUTS;
    tcb.sending.backoff = tcb.sending.backoff.saturating_add(u8::from(!is_linear));
    tcb.sending.timeouts = tcb.sending.timeouts.saturating_add(1);
    if let Some(Particulars { trouble, .. }) = tcp.particulars.one_mut(&mut tcb.setup.particulars) {
        trouble.time_outs.note(now);
    }
    path_mtu::timed_out(tcb, &mut tcp.particulars, now);
    soft_error::timed_out(tcb);
    let user_timeout_end = user_timeout_end(tcb, &patience(tcb, &tcp.particulars));
    tcb.timers.peer = PeerTimer::Retransmit(now.after_us(retransmit_us(tcb, path)).min(user_timeout_end));
    FlowEvent::None
}

fn syn_retries(patience: &WaitTimes) -> u8 {
    if patience.syn_retries > 0 { patience.syn_retries } else { SYN_RETRIES }
}

/// Whether it was tried often enough. SYNs, and all between local ends, are tried more often: there the same time must pass.
fn is_hopeless(tcb: &Tcb, patience: &WaitTimes, now: Instant) -> bool {
    let retries = match tcb.state {
        TcpState::SynSent => syn_retries(patience),
        TcpState::SynReceived => SYN_ACK_RETRIES,
        _ if tcb.orphaned => ORPHAN_RETRIES,
        _ => DATA_RETRIES,
    };
    if !tcb.is_local && tcb.state != TcpState::SynSent {
        return tcb.sending.timeouts >= retries;
    }
    let wait = |backoff| RoundTrip::initial().timeout_us(backoff);
    let limit: u64 = (0..=retries).map(wait).sum();
    now.since_us(tcb.timers.stalled_since) >= limit
}

/// A user timeout takes the place of the count, be it shorter or longer (RFC 5482, RFC 9293 section 3.8.3).
fn is_given_up(tcb: &Tcb, patience: &WaitTimes, now: Instant) -> bool {
    if has_user_timeout(tcb, patience) && tcb.state.is_synchronized() {
        user_timeout_passed(tcb, patience, now)
    } else {
        is_hopeless(tcb, patience, now) || user_timeout_passed(tcb, patience, now)
    }
}

/// Nobody waits any more for what a program has left.
fn has_user_timeout(tcb: &Tcb, patience: &WaitTimes) -> bool {
    patience.user_timeout_ms > 0 && !tcb.orphaned
}

/// RFC 5482.
fn user_timeout_passed(tcb: &Tcb, patience: &WaitTimes, now: Instant) -> bool {
    user_timeout_end(tcb, patience) <= now
}

fn user_timeout_end(tcb: &Tcb, patience: &WaitTimes) -> Instant {
    if patience.user_timeout_ms == 0 || tcb.timers.stalled_since.is_far_future() {
        return Instant::FAR_FUTURE;
    }
    tcb.timers.stalled_since.after_us(u64::from(patience.user_timeout_ms) * 1000)
}

/// RFC 9293 section 3.8.6.1: the probes go on for as long as the peer answers them.
fn probe_window(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant) -> FlowEvent {
    debug_assert!(!tcb.sending.queue.is_empty(), "FIN needs no window");
    let orphan = tcb.orphaned;
    let patience = patience(tcb, &tcp.particulars);
    let retries = if orphan { ORPHAN_RETRIES } else { DATA_RETRIES };
    let is_hopeless = tcb.sending.probes >= retries && !has_user_timeout(tcb, &patience);
    if is_hopeless
        || user_timeout_passed(tcb, &patience, now)
        || orphan && tcb.sending.backoff >= ORPHAN_PROBES
    {
        return give_up(tcb);
    }
    tcp.counters.add(Counter::ZeroWindowProbes);
    tcb.sending.probes = tcb.sending.probes.saturating_add(1);
    tcb.sending.backoff = tcb.sending.backoff.saturating_add(1);
    tcb.sending.due.add(SendDue::WINDOW_PROBE);
    if tcb.sending.backoff > PROBES_OF_DOUBT {
        // What the peer answers now is news, even if a segment (a forged one) had told of a window with a number ahead of it.
        tcb.snd.wl1 = tcb.snd.wl1.earlier(tcb.rcv.nxt);
    }
    if tcb.timers.stalled_since.is_far_future() {
        tcb.timers.stalled_since = now;
    }
    tcb.timers.peer = PeerTimer::Persist(
        now.after_us(path.rtt.timeout_us(tcb.sending.backoff)).min(user_timeout_end(tcb, &patience)),
    );
    FlowEvent::None
}

/// RFC 1122 section 4.2.3.6, RFC 9293 section 3.8.4.
fn keepalive(tcb: &mut Tcb, tcp: &mut Tcp, now: Instant) -> FlowEvent {
    let Some(Particulars { patience, deadlines, .. }) = tcp.particulars.taken_mut(&tcb.setup.particulars)
    else {
        return FlowEvent::None;
    };
    if !tcb.state.is_synchronized() || tcb.snd.nxt != tcb.snd.una || !tcb.sending.queue.is_empty() {
        // Data on its way, or waiting for the window, asks the peer already, and counts its own probes.
        deadlines.keepalive = now.after_us(u64::from(patience.keep_idle_secs) * 1_000_000);
        return FlowEvent::None;
    }
    let idle_end = tcb.timers.heard.after_us(u64::from(patience.keep_idle_secs) * 1_000_000);
    if now < idle_end {
        deadlines.keepalive = idle_end;
        return FlowEvent::None;
    }
    let count = tcb.sending.probes;
    // A user timeout takes the place of the count here, too (RFC 5482 section 4.2; Linux since TCP_USER_TIMEOUT is there).
    let is_over = if has_user_timeout(tcb, patience) {
        count > 0 && now.since_us(tcb.timers.heard) >= u64::from(patience.user_timeout_ms) * 1000
    } else {
        count >= patience.keep_count
    };
    if is_over {
        // A peer that is there after all learns of it, as with Linux.
        return FlowEvent::Abort(close_without_answer(tcb));
    }
    tcp.counters.add(Counter::KeepaliveProbes);
    tcb.sending.probes = tcb.sending.probes.saturating_add(1);
    tcb.sending.due.add(SendDue::KEEPALIVE);
    deadlines.keepalive = now.after_us(u64::from(patience.keep_interval_secs) * 1_000_000);
    FlowEvent::None
}

/// Starts or stops the keepalive timer after an option changed.
pub fn rearm_keepalive(tcb: &mut Tcb, pool: &mut ParticularsPool, now: Instant) {
    let has_peer = !matches!(tcb.state, TcpState::Closed | TcpState::TimeWait);
    let Some(Particulars { patience, deadlines, .. }) = pool.one_mut(&mut tcb.setup.particulars) else {
        return;
    };
    deadlines.keepalive = if tcb.setup.options.keepalive && has_peer {
        now.max(tcb.timers.heard).after_us(u64::from(patience.keep_idle_secs) * 1_000_000)
    } else {
        Instant::FAR_FUTURE
    };
}

/// The peer is not told (RFC 9293 section 3.10.8): it has not answered for long.
fn give_up(tcb: &mut Tcb) -> FlowEvent {
    FlowEvent::Closed(close_without_answer(tcb))
}

/// Why it is over.
fn close_without_answer(tcb: &mut Tcb) -> Errno {
    tcb.state = tcb.state.after(TcpEvent::Timeout);
    soft_error::reason_to_give_up(tcb)
}
