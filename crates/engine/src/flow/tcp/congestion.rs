//! Congestion control: slow start, congestion avoidance (RFC 5681), NewReno recovery (RFC 6582), IW10 (RFC 6928).
//! Local connections have no path to congest and do not come here.

use crate::flow::record::{Congestion, Flow};
use toe_base::SeqNum;

/// RFC 6928: ten segments.
pub const INITIAL_SEGMENTS: u32 = 10;
/// Duplicate ACKs that mean a loss (RFC 5681 section 3.2).
pub const DUP_ACK_THRESHOLD: u32 = 3;

impl Congestion {
    pub fn initial(mss: u16) -> Congestion {
        Congestion { cwnd: u32::from(mss) * INITIAL_SEGMENTS, ssthresh: u32::MAX, ..Congestion::default() }
    }
}

/// What a duplicate ACK calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DupAck {
    Nothing,
    /// Send the segment at `snd.una` again.
    Retransmit,
}

/// A duplicate ACK arrived (RFC 5681 section 3.2 steps 1 to 4).
pub fn on_duplicate_ack(flow: &mut Flow) -> DupAck {
    let mss = u32::from(flow.snd.mss);
    flow.cc.dup_acks = flow.cc.dup_acks.saturating_add(1);
    if flow.cc.recover.is_some() {
        flow.cc.cwnd = flow.cc.cwnd.saturating_add(mss);
        return DupAck::Nothing;
    }
    if flow.cc.dup_acks != DUP_ACK_THRESHOLD {
        return DupAck::Nothing;
    }
    flow.cc.ssthresh = (flow.in_flight() / 2).max(2 * mss);
    flow.cc.cwnd = flow.cc.ssthresh + DUP_ACK_THRESHOLD * mss;
    flow.cc.recover = Some(flow.snd.max);
    DupAck::Retransmit
}

/// `acked` octets up to `ack` were newly acknowledged. Returns whether the next hole must be sent again at once (a
/// partial ACK, RFC 6582 section 3.2 step 3).
pub fn on_new_ack(flow: &mut Flow, ack: SeqNum, acked: u32) -> bool {
    let mss = u32::from(flow.snd.mss);
    flow.cc.dup_acks = 0;
    if let Some(recover) = flow.cc.recover {
        if ack.at_or_after(recover) {
            flow.cc.cwnd = flow.cc.ssthresh.min(flow.in_flight().max(mss) + mss);
            flow.cc.recover = None;
            return false;
        }
        flow.cc.cwnd = flow.cc.cwnd.saturating_sub(acked).max(mss) + mss.min(acked);
        return true;
    }
    if flow.cc.cwnd < flow.cc.ssthresh {
        // Bytes are counted, not ACKs (RFC 3465): with big units one ACK stands for many segments.
        flow.cc.cwnd = flow.cc.cwnd.saturating_add(acked);
    } else {
        flow.cc.avoided = flow.cc.avoided.saturating_add(acked);
        if flow.cc.avoided >= flow.cc.cwnd {
            flow.cc.avoided -= flow.cc.cwnd;
            flow.cc.cwnd = flow.cc.cwnd.saturating_add(mss);
        }
    }
    flow.cc.cwnd = flow.cc.cwnd.min(toe_base::limits::WINDOW_MAX * 4);
    false
}

/// The retransmission timer ran out (RFC 5681 section 3.1, equation 4).
pub fn on_timeout(flow: &mut Flow) {
    let mss = u32::from(flow.snd.mss);
    let flight = flow.snd.max.distance_from(flow.snd.una);
    if flow.rtt.backoff == 0 {
        flow.cc.ssthresh = (flight / 2).max(2 * mss);
    }
    flow.cc.cwnd = mss;
    flow.cc.dup_acks = 0;
    flow.cc.avoided = 0;
    flow.cc.recover = None;
}
