//! The model of the path, and where the state machine stands. Changed by the other files of this folder alone.

use super::units::{Rate, Stamp};
use crate::rate::RateSample;
use crate::scoreboard::Losses;
use toe_base::{Instant, SeqNum};

/// "No bound", for volumes.
pub(super) const INFINITE: u32 = u32::MAX;
/// BBR.MinPipeCwnd (section 5.6.4.3).
pub(super) const MIN_PIPE_SEGMENTS: u32 = 4;
/// BBR.Beta: 0.7.
pub(super) const BETA: (u64, u64) = (7, 10);

/// Where the state machine stands (section 5.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

impl State {
    /// One of the ProbeBW states.
    pub(super) const fn is_probe_bw(self) -> bool {
        matches!(self, State::Down | State::Cruise | State::Refill | State::Up)
    }

    /// It speeds up to find more.
    pub(super) const fn is_probing(self) -> bool {
        matches!(self, State::Startup | State::Refill | State::Up)
    }

    /// In hundredths (section 5.6.1).
    pub(super) const fn pacing_gain(self) -> u64 {
        match self {
            State::Startup => 277,
            State::Drain => 50,
            State::Down => 90,
            State::Up => 125,
            State::Cruise | State::Refill | State::ProbeRtt => 100,
        }
    }

    pub(super) const fn cwnd_gain(self) -> u64 {
        match self {
            State::Up => 225,
            State::ProbeRtt => 50,
            _ => 200,
        }
    }
}

/// Which part of a probe for bandwidth the ACKs that come in tell of (BBR.ack_phase).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AckPhase {
    #[default]
    Idle,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

/// The model and where the state machine stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bbr {
    pub(super) state: State,
    /// The first ACK or the first data has set what the beginning needs to know.
    pub(super) started: bool,
    pub(super) idle_restart: bool,
    pub(super) rounds: Rounds,
    /// BBR.max_bw: the largest sample of the last cycle and of this one.
    pub(super) max_bw: [Rate; 2],
    pub(super) bounds: Bounds,
    pub(super) signals: Signals,
    pub(super) full_bw: FullBw,
    pub(super) probe: BandwidthProbe,
    pub(super) min_rtt: MinRtt,
    pub(super) extra: Aggregation,
    pub(super) undo: Undo,
}

/// Round trips by what is delivered (section 5.5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rounds {
    /// This ACK begins one.
    pub(super) start: bool,
    pub(super) count: u8,
    /// This one ends when what is sent from here on is delivered.
    pub(super) next: SeqNum,
    /// Its number when Drain began.
    pub(super) drain_start: u8,
}

/// What bounds the model (sections 5.5.10 and 5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// What losses leave of the model until the next probe: BBR.bw_shortterm, BBR.inflight_shortterm.
    pub(super) bw_short: Rate,
    pub(super) inflight_short: u32,
    /// What losses of a probe said is too much: BBR.inflight_longterm.
    pub(super) inflight_long: u32,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { bw_short: Rate::INFINITE, inflight_short: INFINITE, inflight_long: INFINITE }
    }
}

/// Largest samples since the last round that told of losses, and what this one tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signals {
    pub(super) bw_latest: Rate,
    pub(super) inflight_latest: u32,
    pub(super) loss_round: SeqNum,
    pub(super) loss_round_start: bool,
    pub(super) loss_in_round: bool,
    /// The network has marked something since then.
    pub(super) mark_in_round: bool,
    /// Stretches lost in this round.
    pub(super) loss_events: u8,
}

/// Whether the pipe is full (section 5.3.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FullBw {
    pub(super) bw: Rate,
    pub(super) count: u8,
    pub(super) now: bool,
    pub(super) reached: bool,
}

/// Probing for bandwidth (section 5.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BandwidthProbe {
    pub(super) ack_phase: AckPhase,
    /// When Down began, and how long until the next probe (section 5.3.3.5).
    pub(super) cycle_stamp: Stamp,
    pub(super) wait_ms: u16,
    pub(super) rounds_since: u8,
    /// The probe that goes on: how steeply the long-term bound rises, and whether losses may still stop it.
    pub(super) up_rounds: u8,
    pub(super) up_count: u32,
    pub(super) up_acked: u32,
    pub(super) samples: bool,
}

impl Default for BandwidthProbe {
    fn default() -> BandwidthProbe {
        BandwidthProbe {
            ack_phase: AckPhase::Idle,
            cycle_stamp: Stamp::default(),
            wait_ms: 0,
            rounds_since: 0,
            up_rounds: 0,
            up_count: INFINITE,
            up_acked: 0,
            samples: false,
        }
    }
}

/// Round trips (section 5.3.4.3), in µs; `INFINITE` while unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MinRtt {
    pub(super) us: u32,
    pub(super) stamp: Stamp,
    pub(super) probe: ProbeRtt,
}

impl Default for MinRtt {
    fn default() -> MinRtt {
        let probe =
            ProbeRtt { us: INFINITE, stamp: Stamp::default(), expired: false, done: None, round_done: false };
        MinRtt { us: INFINITE, stamp: Stamp::default(), probe }
    }
}

/// The least of the time between two probes for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeRtt {
    pub(super) us: u32,
    pub(super) stamp: Stamp,
    pub(super) expired: bool,
    /// The window has been small since; it may stop after this time and a round.
    pub(super) done: Option<Stamp>,
    pub(super) round_done: bool,
}

/// Acknowledged beyond what the bandwidth explains (section 5.5.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Aggregation {
    /// Of these rounds and of those before.
    pub(super) acked: [u32; 2],
    pub(super) rounds: u8,
    pub(super) start_us: u32,
    pub(super) delivered: u32,
}

/// What is put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Undo {
    /// BBR.prior_cwnd: the last window that no loss and no probe for the round trip had cut.
    pub(super) cwnd: u32,
    /// The rest, when a loss turns out to have been none (section 5.5.11).
    pub(super) state: State,
    pub(super) bounds: Bounds,
}

/// What an ACK says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ack {
    pub now: Instant,
    /// Bytes that the peer is newly known to have, in order or not.
    pub newly_acked: u32,
    /// All that ever were (C.delivered).
    pub delivered: u64,
    pub sample: RateSample,
    pub losses: Losses,
    /// The network marked something, and that is the first mark of this round trip.
    pub marked: bool,
    pub rtt_us: Option<u32>,
    pub sender: SenderState,
}

/// How the sender stands after it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SenderState {
    pub mss: u32,
    pub srtt_us: u32,
    /// Bytes in the network now.
    pub inflight: u32,
    pub has_sack: bool,
    /// The window, not the program, limits what is in the network.
    pub cwnd_limited: bool,
    pub in_recovery: bool,
    /// Anything but the same in two connections.
    pub salt: u32,
}

/// The two things that the model steers.
#[derive(Debug)]
pub struct Steered<'a> {
    pub cwnd: &'a mut u32,
    /// Bytes a second.
    pub pacing: &'a mut u64,
}
