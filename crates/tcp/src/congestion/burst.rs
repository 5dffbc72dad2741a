//! A window that was not used for longer than a time-out does not leave at once (RFC 7661 section 4.4.2): what it says of the path is
//! old, and no ACKs come that would space it out. As much as a first window goes at once, and the rest as evenly as the window was
//! filled before. That lasts until more than the former was seen to arrive in a round trip: from then on ACKs are the clock.
//!
//! Algorithms with a model of the path pace all that they send, and do not come here.

use super::initial_window;
use crate::record::Tcb;
use toe_base::Instant;

/// A window leaves in this part of a round trip, so that the first ACKs find nothing left of it.
const SPREAD_PERCENT: u64 = 80;
/// Shorter round trips are within what a paced sender may make up for, and what timers are for.
const ROUND_TRIP_MIN_US: u32 = 4_000;

/// A flow may send, and nothing of it is out.
pub(super) fn begins(flow: &mut Tcb, now: Instant) {
    let is_idle = now.since_us(flow.rate.delivered_at) >= flow.rtt.timeout_us();
    if !is_idle || flow.cc.cwnd <= initial_window(flow.snd.mss) || flow.rtt.srtt_us < ROUND_TRIP_MIN_US {
        return;
    }
    // What was in flight before says nothing of today.
    flow.cc.usage.most = 0;
    flow.cc.usage.most_before = 0;
    let spread_us = u64::from(flow.rtt.srtt_us) * SPREAD_PERCENT / 100;
    let rate = u64::from(flow.cc.cwnd) * 1_000_000 / spread_us;
    flow.rate.pacing = match flow.rate.pacing_max {
        0 => rate,
        most => rate.min(u64::from(most)),
    };
}

/// A round trip is over.
pub(super) fn ends(flow: &mut Tcb) {
    let used = flow.cc.usage.pipe_ack();
    if used > initial_window(flow.snd.mss) || used >= flow.cc.cwnd / 2 {
        flow.rate.pacing = u64::from(flow.rate.pacing_max);
    }
}

/// Octets that a flow which is paced may send beyond that, as it could have at its start.
pub fn head_start(flow: &Tcb) -> u32 {
    if flow.cc.follows_model() || flow.rate.pacing == u64::from(flow.rate.pacing_max) {
        return 0;
    }
    initial_window(flow.snd.mss).saturating_sub(flow.pipe())
}
