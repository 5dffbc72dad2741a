//! What a connection knows of its path: how much may be in the network, how long it takes, what is lost there. A record beside
//! [`super::Tcb`]; [`crate`] works on it.

use crate::pool::{Pool, PoolSlot};
use toe_base::{Instant, SeqNum};

/// Each connection has one, beside its [`super::Tcb`] and in a table of its own: what is known of a path is no part of what a segment of an
/// established connection is checked by. Local connections have no path to congest, and are measured all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathState {
    pub rtt: RoundTrip,
    pub cc: Congestion,
    pub rack: Rack,
    pub rate: DeliveryRate,
    pub tuning: WindowTuning,
}

/// A congestion control algorithm, and where [`crate::congestion::models::Models`] has its state: nowhere until an ACK has something to say to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Reno(PoolSlot),
    Cubic(PoolSlot),
    Dctcp(PoolSlot),
    Bbr(PoolSlot),
}

/// Congestion control and loss recovery: see [`crate::recovery`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Congestion {
    pub cwnd: u32,
    pub ssthresh: u32,
    pub phase: Phase,
    pub algorithm: Algorithm,
    /// Duplicate ACKs of a peer without SACK: each stands for a segment that has left the network.
    pub dup_acks: u32,
    /// NewReno's `recover`, RFC 6675's RecoveryPoint: a phase other than open lasts until it is acknowledged.
    pub recover: SeqNum,
    /// Where [`RepairPool`] has what a reduced window needs.
    pub repair: PoolSlot,
    pub frto: Frto,
    pub usage: WindowUse,
}

impl Congestion {
    /// Losses do not say how large the window is.
    pub const fn follows_model(&self) -> bool {
        matches!(self.algorithm, Algorithm::Bbr(_))
    }
}

/// Where loss recovery stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Open,
    /// The window was reduced because of ECN (RFC 3168 section 6.1.2).
    Reduced,
    /// Fast recovery.
    Recovery,
    /// After a time-out.
    Loss,
}

/// Where the repairs of all connections lie that have one. Each can have one.
pub type RepairPool = Pool<Repair, 1>;

/// What a connection needs that has reduced its window, until that is known to have been right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    pub prr: Prr,
    pub undo: Option<Undo>,
    /// [`crate::scoreboard::Scoreboard::lost_ever`] when the window was last reduced.
    pub lost_before: u32,
}

/// Proportional rate reduction (RFC 9937): its variables have their names there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prr {
    pub recover_fs: u32,
    pub delivered: u32,
    pub out: u32,
}

/// What is restored when a loss turns out to have been none (RFC 5682 section 3.2, RFC 3708, RFC 4015).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undo {
    pub cwnd: u32,
    pub ssthresh: u32,
    pub any_resent: bool,
    /// Bytes sent again that the peer has not said to have twice.
    pub unexplained: u32,
    /// The timestamp of the first of them.
    pub first_resent: Option<u32>,
}

/// Forward RTO-recovery (RFC 5682): is a time-out spurious?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frto {
    #[default]
    Off,
    /// The first segment went out again; its ACK decides what is sent next.
    Resent,
    /// New data went out; if what was sent before the time-out is acknowledged now, nothing was lost.
    SentNew,
}

/// How much of the congestion window is used, a round trip at a time (RFC 7661 sections 4.2 and 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowUse {
    /// Most bytes in flight in this round trip and in the last one.
    pub most: u32,
    pub most_before: u32,
    /// This round trip ends when that is acknowledged.
    pub round_end: SeqNum,
    /// Since when less than half of the window is used.
    pub unvalidated_since: Option<Instant>,
}

impl WindowUse {
    /// Something went out; `pipe` bytes are in the network now.
    pub fn sent(&mut self, pipe: u32) {
        self.most = self.most.max(pipe);
    }

    /// Bytes that were in flight at most in this round trip or the last one: pipeACK of RFC 7661 section 4.2.
    pub const fn pipe_ack(&self) -> u32 {
        if self.most > self.most_before { self.most } else { self.most_before }
    }
}

/// RACK-TLP (RFC 8985): its variables have their names there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rack {
    /// When the latest-sent of the segments that arrived went out, and where it ends.
    pub xmit_at: Instant,
    pub end_seq: SeqNum,
    pub rtt_us: u32,
    /// End of the furthest segment that arrived.
    pub fack: SeqNum,
    /// A tail probe is on its way: `snd.nxt` behind it.
    pub tlp_end_seq: SeqNum,
    pub tlp: TailProbe,
    pub timers: RackTimers,
}

/// Deadlines; `FAR_FUTURE` when not armed, as of local connections and of peers without SACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RackTimers {
    /// Tail loss probe (section 7.2).
    pub tail_probe: Instant,
    /// What is late by then is lost (section 6.3).
    pub reorder: Instant,
}

impl RackTimers {
    pub(crate) fn earliest(&self) -> Instant {
        self.tail_probe.min(self.reorder)
    }
}

impl Default for RackTimers {
    fn default() -> Self {
        RackTimers { tail_probe: Instant::FAR_FUTURE, reorder: Instant::FAR_FUTURE }
    }
}

/// Whether a tail probe is on its way, and what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TailProbe {
    #[default]
    None,
    New,
    Again,
}

/// Round-trip time and retransmission time-out (RFC 6298).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    /// 0 until the first measurement.
    pub srtt_us: u32,
    pub rttvar_us: u32,
    pub rto_us: u32,
    /// Least of the last minutes (RFC 8985 section 6.2 step 1), and when it was measured; 0 until the first.
    pub min_us: u32,
    pub min_at: Instant,
}

/// How fast bytes are delivered (draft-cheng-iccrg-delivery-rate-estimation). No bytes are left between them, as each record has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct DeliveryRate {
    /// Bytes that arrived at the peer, in order or not.
    pub delivered: u64,
    pub delivered_at: Instant,
    pub first_sent_at: Instant,
    /// Samples are limited by the program, until more than this is delivered: the low half of the number, of which no more is ever
    /// in the network.
    pub app_limited: bool,
    pub app_limited_until: u32,
    /// The latest sample, in bytes a second.
    pub latest: u64,
    pub latest_app_limited: bool,
}

/// Window auto-tuning: how fast the program reads. No bytes are left between them, as each record has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct WindowTuning {
    /// Bytes that it read since.
    pub consumed: u32,
    /// When the measurement began.
    pub since: Instant,
}
