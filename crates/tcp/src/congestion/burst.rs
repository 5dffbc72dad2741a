//! A window that was not used for longer than a time-out does not leave at once (RFC 7661 section 4.4.2): what it says of the path is
//! old, and no ACKs come that would space it out. As much as a first window goes at once, and the rest as evenly as the window was
//! filled before. That lasts until more than the former was seen to arrive in a round trip: from then on ACKs are the clock.
//!
//! Algorithms with a model of the path pace all that they send, and do not come here.

use super::window::initial_window;
use crate::record::{Pacing, Particulars, ParticularsPool, PathState, Tcb};
use toe_base::Instant;

/// A window leaves in this part of a round trip, so that the first ACKs find nothing left of it.
const SPREAD_PERCENT: u64 = 80;
/// Shorter round trips are within what a paced sender may make up for, and what timers are for.
const ROUND_TRIP_MIN_US: u32 = 4_000;

/// A connection may send, and nothing of it is out.
pub(super) fn begins(tcb: &mut Tcb, path: &mut PathState, pool: &mut ParticularsPool, now: Instant) {
    let is_idle = now.since_us(path.rate.delivered_at) >= path.rtt.timeout_us(tcb.sending.backoff);
    if !is_idle || path.cc.cwnd <= initial_window(tcb.snd.mss) || path.rtt.srtt_us < ROUND_TRIP_MIN_US {
        return;
    }
    // What was in flight before says nothing of today.
    path.cc.usage.most = 0;
    path.cc.usage.most_before = 0;
    let spread_us = u64::from(path.rtt.srtt_us) * SPREAD_PERCENT / 100;
    let rate = u64::from(path.cc.cwnd) * 1_000_000 / spread_us;
    if let Some(Particulars { pacing, .. }) = pool.one_mut(&mut tcb.setup.particulars) {
        pacing.rate = match pacing.rate_max {
            0 => rate,
            most => rate.min(u64::from(most)),
        };
    }
}

/// A round trip is over.
pub(super) fn ends(tcb: &Tcb, path: &PathState, pool: &mut ParticularsPool) {
    let Some(Particulars { pacing, .. }) = pool.taken_mut(&tcb.setup.particulars) else { return };
    let used = path.cc.usage.pipe_ack();
    if used > initial_window(tcb.snd.mss) || used >= path.cc.cwnd / 2 {
        pacing.rate = u64::from(pacing.rate_max);
    }
}

/// Bytes that a connection which is paced may send beyond that, as it could have at its start.
pub fn head_start(tcb: &Tcb, path: &PathState, pacing: &Pacing) -> u32 {
    if path.cc.follows_model() || pacing.rate == u64::from(pacing.rate_max) {
        return 0;
    }
    initial_window(tcb.snd.mss).saturating_sub(tcb.pipe(path))
}
