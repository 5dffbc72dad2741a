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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bbr {
    pub(super) state: State,
    pub(super) ack_phase: AckPhase,
    /// The first ACK or the first data has set what the beginning needs to know.
    pub(super) started: bool,
    /// Rounds (section 5.5.1): this one ends when what is sent from `next_round` on is delivered.
    pub(super) round_start: bool,
    pub(super) round_count: u8,
    pub(super) next_round: SeqNum,
    /// BBR.max_bw: the largest sample of the last cycle and of this one.
    pub(super) max_bw: [Rate; 2],
    /// What losses leave of the model until the next probe: BBR.bw_shortterm, BBR.inflight_shortterm.
    pub(super) bw_short: Rate,
    pub(super) inflight_short: u32,
    /// What losses of a probe said is too much: BBR.inflight_longterm.
    pub(super) inflight_long: u32,
    /// Largest samples since the last round that told of losses.
    pub(super) bw_latest: Rate,
    pub(super) inflight_latest: u32,
    pub(super) loss_round: SeqNum,
    pub(super) loss_round_start: bool,
    pub(super) loss_in_round: bool,
    /// The network has marked something since then.
    pub(super) mark_in_round: bool,
    /// Stretches lost in this round.
    pub(super) loss_events: u8,
    /// Whether the pipe is full (section 5.3.1.2).
    pub(super) full_bw: Rate,
    pub(super) full_bw_count: u8,
    pub(super) full_bw_now: bool,
    pub(super) full_bw_reached: bool,
    pub(super) drain_start_round: u8,
    /// When Down began, and how long until the next probe (section 5.3.3.5).
    pub(super) cycle_stamp: Stamp,
    pub(super) probe_wait_ms: u16,
    pub(super) rounds_since_probe: u8,
    /// The probe that goes on: how steeply `inflight_long` rises, and whether losses may still stop it.
    pub(super) up_rounds: u8,
    pub(super) up_count: u32,
    pub(super) up_acked: u32,
    pub(super) probe_samples: bool,
    /// Round trips (section 5.3.4.3), in µs; `INFINITE` while unknown.
    pub(super) min_rtt_us: u32,
    pub(super) min_rtt_stamp: Stamp,
    pub(super) probe_rtt_min_us: u32,
    pub(super) probe_rtt_min_stamp: Stamp,
    pub(super) probe_rtt_expired: bool,
    /// The window has been small since; it may stop after this time and a round.
    pub(super) probe_rtt_done: Option<Stamp>,
    pub(super) probe_rtt_round_done: bool,
    pub(super) idle_restart: bool,
    /// Acknowledged beyond what the bandwidth explains (section 5.5.9): of these rounds and of those before.
    pub(super) extra_acked: [u32; 2],
    pub(super) extra_rounds: u8,
    pub(super) extra_start_us: u32,
    pub(super) extra_delivered: u32,
    /// The last window that no loss and no probe for the round trip had cut.
    pub(super) prior_cwnd: u32,
    pub(super) undo: Undo,
}

/// What is put back when a loss turns out to have been none (section 5.5.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Undo {
    pub(super) state: State,
    pub(super) bw_short: Rate,
    pub(super) inflight_short: u32,
    pub(super) inflight_long: u32,
}

/// What an ACK says, and how the sender stands after it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ack {
    pub now: Instant,
    pub mss: u32,
    /// Bytes that the peer is newly known to have, in order or not.
    pub newly_acked: u32,
    /// All that ever were (C.delivered).
    pub delivered: u64,
    pub sample: RateSample,
    pub losses: Losses,
    /// The network marked something, and that is the first mark of this round trip.
    pub marked: bool,
    pub rtt_us: Option<u32>,
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

impl Default for Bbr {
    fn default() -> Bbr {
        Bbr {
            state: State::Startup,
            ack_phase: AckPhase::Idle,
            started: false,
            round_start: false,
            round_count: 0,
            next_round: SeqNum::default(),
            max_bw: [Rate::ZERO; 2],
            bw_short: Rate::INFINITE,
            inflight_short: INFINITE,
            inflight_long: INFINITE,
            bw_latest: Rate::ZERO,
            inflight_latest: 0,
            loss_round: SeqNum::default(),
            loss_round_start: false,
            loss_in_round: false,
            mark_in_round: false,
            loss_events: 0,
            full_bw: Rate::ZERO,
            full_bw_count: 0,
            full_bw_now: false,
            full_bw_reached: false,
            drain_start_round: 0,
            cycle_stamp: Stamp::default(),
            probe_wait_ms: 0,
            rounds_since_probe: 0,
            up_rounds: 0,
            up_count: INFINITE,
            up_acked: 0,
            probe_samples: false,
            min_rtt_us: INFINITE,
            min_rtt_stamp: Stamp::default(),
            probe_rtt_min_us: INFINITE,
            probe_rtt_min_stamp: Stamp::default(),
            probe_rtt_expired: false,
            probe_rtt_done: None,
            probe_rtt_round_done: false,
            idle_restart: false,
            extra_acked: [0; 2],
            extra_rounds: 0,
            extra_start_us: 0,
            extra_delivered: 0,
            prior_cwnd: 0,
            undo: Undo {
                state: State::Startup,
                bw_short: Rate::INFINITE,
                inflight_short: INFINITE,
                inflight_long: INFINITE,
            },
        }
    }
}
