//! Time-outs (RFC 9293 section 3.10.8, RFC 6298 section 5, RFC 1122 section 4.2.3.6).

use crate::counter::{Counter, Counters};
use crate::record::{RoundTrip, Tcb};
use crate::scoreboard::SentPool;
use crate::segment::FlowEvent;
use crate::state::TcpState;
use crate::{Tcp, deferral, path_mtu, rack, recovery, soft_error};
use toe_abi::errno::Errno;
use toe_base::Instant;

/// 2 MSL: as long as Linux waits.
pub const TIME_WAIT_US: u64 = 60_000_000;
/// How long FIN_WAIT_2 lasts without a program that has said so (RFC 9293 leaves it open; Linux: tcp_fin_timeout), and how long at
/// most (TCP_FIN_TIMEOUT_MAX).
pub const FIN_WAIT_2_SECS: u32 = 60;
const FIN_WAIT_2_SECS_MAX: u32 = 120;
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
/// Time-outs after which the path is looked at, and whoever asked is told: R1 of RFC 9293 section 3.8.3.
pub const PATH_RETRIES: u8 = 3;
/// Time-outs until data is given up: R2 of RFC 9293 section 3.8.3 is at least 100 s; Linux: tcp_retries2.
const DATA_RETRIES: u8 = 15;
/// Time-outs until a connection that no program holds is given up (Linux: tcp_orphan_retries).
const ORPHAN_RETRIES: u8 = 8;
/// Window probes of a connection that no program holds, even when the peer answers them all: some ten minutes.
const ORPHAN_PROBES: u8 = 12;
/// After so many probes of a closed window nothing older than their answers is under way any more.
const PROBES_OF_DOUBT: u8 = 4;
/// TIME_WAIT of a connection between two local ends: nothing wanders about there, and the last ACK cannot get lost.
pub const TIME_WAIT_LOCAL_US: u64 = 10_000;
/// Between local ends only want of memory or of a place in a backlog drops a segment, and it may end at any moment:
/// the time-out starts at this and is doubled up to that.
const RETRANSMIT_LOCAL_US: core::ops::RangeInclusive<u64> = 10_000..=200_000;

/// Timers that say less than this wait so long.
pub const GRANULARITY_US: u64 = 1_000;

/// When to send again what is not acknowledged.
pub fn retransmit_us(flow: &Tcb) -> u64 {
    if flow.is_local {
        (RETRANSMIT_LOCAL_US.start() << flow.rtt.backoff.min(16)).min(*RETRANSMIT_LOCAL_US.end())
    } else {
        flow.rtt.timeout_us()
    }
}

/// Enters (or prolongs) TIME_WAIT.
pub fn start_time_wait(flow: &mut Tcb, now: Instant) {
    flow.timers.stop_all();
    flow.snd.probe = false;
    flow.timers.linger = now.after_us(if flow.is_local { TIME_WAIT_LOCAL_US } else { TIME_WAIT_US });
}

/// A program that is gone cannot end FIN_WAIT_2: time does.
pub fn start_fin_wait_2(flow: &mut Tcb, now: Instant) {
    let secs = flow.options.fin_wait_2_secs.map_or(0, |secs| secs.min(FIN_WAIT_2_SECS_MAX));
    flow.timers.linger = now.after_us(u64::from(secs) * 1_000_000);
}

/// Handles every timer of the flow that is due.
pub fn on_timeout(flow: &mut Tcb, tcp: &mut Tcp, now: Instant) -> FlowEvent {
    let Tcp { sent, counters, .. } = tcp;
    let off = Instant::FAR_FUTURE;
    if flow.timers.linger <= now {
        // As in Linux: the program that asked for another end than the usual one has the peer told.
        let tells = flow.options.fin_wait_2_secs.is_none_or(|secs| secs > FIN_WAIT_2_SECS);
        let aborts = flow.state == TcpState::FinWait2 && tells;
        flow.state = TcpState::Closed;
        return if aborts { FlowEvent::Abort(Errno::OK) } else { FlowEvent::Closed(Errno::OK) };
    }
    if flow.timers.delayed_ack <= now {
        flow.timers.delayed_ack = off;
        flow.rcv.ack_now = true;
    }
    if flow.timers.cork <= now {
        flow.timers.cork = off;
        flow.snd.uncork = true;
    }
    if flow.timers.pace <= now {
        flow.timers.pace = off;
        flow.rate.is_late = true;
    }
    if flow.timers.reorder <= now {
        flow.timers.reorder = off;
        recovery::on_reorder_timeout(flow, sent, now, counters);
    }
    if flow.timers.tail_probe <= now {
        counters.add(Counter::TailLossProbes);
        rack::tail_probe_due(flow, now);
    }
    if flow.timers.retransmit <= now {
        return retransmit(flow, sent, now, counters);
    }

    if flow.timers.persist <= now {
        return probe_window(flow, now, counters);
    }
    if flow.timers.keepalive <= now {
        return keepalive(flow, now, counters);
    }
    FlowEvent::None
}

/// RFC 6298 sections 5.4 to 5.6.
fn retransmit(flow: &mut Tcb, sent: &mut SentPool, now: Instant, counters: &mut Counters) -> FlowEvent {
    if deferral::ends(flow, sent, now) {
        return FlowEvent::None;
    }
    if is_given_up(flow, now) {
        return give_up(flow);
    }
    if flow.snd.wnd.octets() == 0 && flow.state.is_synchronized() && !flow.send_queue.is_empty() {
        // The peer closed its window under what is out, which may be why it is silent: it is asked, and lost is nothing yet.
        flow.timers.retransmit = Instant::FAR_FUTURE;
        flow.timers.tail_probe = Instant::FAR_FUTURE;
        return probe_window(flow, now, counters);
    }
    counters.add(Counter::RetransmitTimeouts);
    recovery::on_timeout(flow, sent, now);
    let is_linear = flow.state == TcpState::SynSent && flow.rtt.timeouts < SYN_LINEAR_TIMEOUTS;
    flow.rtt.backoff = flow.rtt.backoff.saturating_add(u8::from(!is_linear));
    flow.rtt.timeouts = flow.rtt.timeouts.saturating_add(1);
    flow.traffic.time_outs.note(now);
    path_mtu::timed_out(flow, now);
    soft_error::timed_out(flow);
    flow.timers.retransmit = now.after_us(retransmit_us(flow)).min(user_timeout_end(flow));
    FlowEvent::None
}

fn syn_retries(flow: &Tcb) -> u8 {
    if flow.options.syn_retries > 0 { flow.options.syn_retries } else { SYN_RETRIES }
}

/// Whether it was tried often enough. SYNs, and all between local ends, are tried more often: there the same time must pass.
fn is_hopeless(flow: &Tcb, now: Instant) -> bool {
    let retries = match flow.state {
        TcpState::SynSent => syn_retries(flow),
        TcpState::SynReceived => SYN_ACK_RETRIES,
        _ if flow.orphaned => ORPHAN_RETRIES,
        _ => DATA_RETRIES,
    };
    if !flow.is_local && flow.state != TcpState::SynSent {
        return flow.rtt.timeouts >= retries;
    }
    let wait = |backoff| RoundTrip { backoff, ..RoundTrip::initial() }.timeout_us();
    let limit: u64 = (0..=retries).map(wait).sum();
    now.since_us(flow.timers.stalled_since) >= limit
}

/// A user timeout takes the place of the count, be it shorter or longer (RFC 5482, RFC 9293 section 3.8.3).
fn is_given_up(flow: &Tcb, now: Instant) -> bool {
    if has_user_timeout(flow) && flow.state.is_synchronized() {
        user_timeout_passed(flow, now)
    } else {
        is_hopeless(flow, now) || user_timeout_passed(flow, now)
    }
}

/// Nobody waits any more for what a program has left.
fn has_user_timeout(flow: &Tcb) -> bool {
    flow.options.user_timeout_ms > 0 && !flow.orphaned
}

/// RFC 5482.
fn user_timeout_passed(flow: &Tcb, now: Instant) -> bool {
    user_timeout_end(flow) <= now
}

fn user_timeout_end(flow: &Tcb) -> Instant {
    if flow.options.user_timeout_ms == 0 || flow.timers.stalled_since.is_far_future() {
        return Instant::FAR_FUTURE;
    }
    flow.timers.stalled_since.after_us(u64::from(flow.options.user_timeout_ms) * 1000)
}

/// RFC 9293 section 3.8.6.1: the probes go on for as long as the peer answers them.
fn probe_window(flow: &mut Tcb, now: Instant, counters: &mut Counters) -> FlowEvent {
    debug_assert!(!flow.send_queue.is_empty(), "FIN needs no window");
    let orphan = flow.orphaned;
    let retries = if orphan { ORPHAN_RETRIES } else { DATA_RETRIES };
    let is_hopeless = flow.timers.probes_sent >= retries && !has_user_timeout(flow);
    if is_hopeless || user_timeout_passed(flow, now) || orphan && flow.rtt.backoff >= ORPHAN_PROBES {
        return give_up(flow);
    }
    counters.add(Counter::ZeroWindowProbes);
    flow.timers.probes_sent = flow.timers.probes_sent.saturating_add(1);
    flow.rtt.backoff = flow.rtt.backoff.saturating_add(1);
    flow.snd.probe = true;
    if flow.rtt.backoff > PROBES_OF_DOUBT {
        // What the peer answers now is news, even if a segment (a forged one) had told of a window with a number ahead of it.
        flow.snd.wl1 = flow.snd.wl1.earlier(flow.rcv.nxt);
    }
    if flow.timers.stalled_since.is_far_future() {
        flow.timers.stalled_since = now;
    }
    flow.timers.persist = now.after_us(flow.rtt.timeout_us()).min(user_timeout_end(flow));
    FlowEvent::None
}

/// RFC 1122 section 4.2.3.6, RFC 9293 section 3.8.4.
fn keepalive(flow: &mut Tcb, now: Instant, counters: &mut Counters) -> FlowEvent {
    let options = &flow.options;
    if !flow.state.is_synchronized() || flow.snd.nxt != flow.snd.una || !flow.send_queue.is_empty() {
        // Data on its way, or waiting for the window, asks the peer already, and counts its own probes.
        flow.timers.keepalive = now.after_us(u64::from(options.keep_idle_secs) * 1_000_000);
        return FlowEvent::None;
    }
    let idle_end = flow.timers.heard.after_us(u64::from(options.keep_idle_secs) * 1_000_000);
    if now < idle_end {
        flow.timers.keepalive = idle_end;
        return FlowEvent::None;
    }
    let count = u32::from(flow.timers.probes_sent);
    // A user timeout takes the place of the count here, too (RFC 5482 section 4.2; Linux since TCP_USER_TIMEOUT is there).
    let is_over = if has_user_timeout(flow) {
        count > 0 && now.since_us(flow.timers.heard) >= u64::from(options.user_timeout_ms) * 1000
    } else {
        count >= options.keep_count
    };
    if is_over {
        // A peer that is there after all learns of it, as with Linux.
        return FlowEvent::Abort(close_without_answer(flow));
    }
    counters.add(Counter::KeepaliveProbes);
    flow.timers.probes_sent = flow.timers.probes_sent.saturating_add(1);
    flow.snd.keepalive_probe = true;
    flow.timers.keepalive = now.after_us(u64::from(options.keep_interval_secs) * 1_000_000);
    FlowEvent::None
}

/// Starts or stops the keepalive timer after an option changed.
pub fn rearm_keepalive(flow: &mut Tcb, now: Instant) {
    let has_peer = !matches!(flow.state, TcpState::Closed | TcpState::TimeWait);
    flow.timers.keepalive = if flow.options.keepalive && has_peer {
        now.max(flow.timers.heard).after_us(u64::from(flow.options.keep_idle_secs) * 1_000_000)
    } else {
        Instant::FAR_FUTURE
    };
}

/// The peer is not told (RFC 9293 section 3.10.8): it has not answered for long.
fn give_up(flow: &mut Tcb) -> FlowEvent {
    FlowEvent::Closed(close_without_answer(flow))
}

/// Why it is over.
fn close_without_answer(flow: &mut Tcb) -> Errno {
    flow.state = TcpState::Closed;
    soft_error::reason_to_give_up(flow)
}
