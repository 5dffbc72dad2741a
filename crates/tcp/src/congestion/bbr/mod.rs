//! BBR version 3 (draft-ietf-ccwg-bbr-05): the sender keeps a model of its path, how fast it delivers and how long it
//! takes, and sends by that instead of by losses. Section numbers in this folder are that draft's.
//!
//! ```text
//!   Startup ──▶ Drain ──▶ Down ──▶ Cruise ──▶ Refill ──▶ Up          any of them ──▶ ProbeRtt, every 5 s
//!                          ▲                              │                          without a shorter round trip
//!                          └──────────────────────────────┘
//! ```
//!
//! | to read | where |
//! |---|---|
//! | rounds and the bandwidth of the path | [`bandwidth`] |
//! | finding it at first, and letting the queue go that this made | [`startup`] |
//! | looking for more of it from time to time | [`probe_bw`] |
//! | the round trip without a queue | [`probe_rtt`] |
//! | what losses say | [`loss`] |
//! | acknowledgements that come in lumps | [`aggregation`] |
//! | pacing rate and window | [`control`] |
//!
//! The record has no pointer and a little more bytes than CUBIC's. Called by [`super`] only.

mod aggregation;
mod bandwidth;
mod control;
mod loss;
mod probe_bw;
mod probe_rtt;
mod startup;
#[cfg(test)]
mod tests;
mod units;

use crate::rate::RateSample;
use crate::scoreboard::Losses;
use toe_base::{Instant, SeqNum};
use units::{Rate, Stamp};

/// "No bound", for volumes.
const INFINITE: u32 = u32::MAX;
/// BBR.MinPipeCwnd (section 5.6.4.3).
const MIN_PIPE_SEGMENTS: u32 = 4;
/// BBR.Beta: 0.7.
const BETA: (u64, u64) = (7, 10);

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
    const fn is_probe_bw(self) -> bool {
        matches!(self, State::Down | State::Cruise | State::Refill | State::Up)
    }

    /// It speeds up to find more.
    const fn is_probing(self) -> bool {
        matches!(self, State::Startup | State::Refill | State::Up)
    }

    /// In hundredths (section 5.6.1).
    const fn pacing_gain(self) -> u64 {
        match self {
            State::Startup => 277,
            State::Drain => 50,
            State::Down => 90,
            State::Up => 125,
            State::Cruise | State::Refill | State::ProbeRtt => 100,
        }
    }

    const fn cwnd_gain(self) -> u64 {
        match self {
            State::Up => 225,
            State::ProbeRtt => 50,
            _ => 200,
        }
    }
}

/// Which part of a probe for bandwidth the ACKs that come in tell of (BBR.ack_phase).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AckPhase {
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
    state: State,
    ack_phase: AckPhase,
    /// The first ACK or the first data has set what the beginning needs to know.
    started: bool,
    /// Rounds (section 5.5.1): this one ends when what is sent from `next_round` on is delivered.
    round_start: bool,
    round_count: u8,
    next_round: SeqNum,
    /// BBR.max_bw: the largest sample of the last cycle and of this one.
    max_bw: [Rate; 2],
    /// What losses leave of the model until the next probe: BBR.bw_shortterm, BBR.inflight_shortterm.
    bw_short: Rate,
    inflight_short: u32,
    /// What losses of a probe said is too much: BBR.inflight_longterm.
    inflight_long: u32,
    /// Largest samples since the last round that told of losses.
    bw_latest: Rate,
    inflight_latest: u32,
    loss_round: SeqNum,
    loss_round_start: bool,
    loss_in_round: bool,
    /// The network has marked something since then.
    mark_in_round: bool,
    /// Stretches lost in this round.
    loss_events: u8,
    /// Whether the pipe is full (section 5.3.1.2).
    full_bw: Rate,
    full_bw_count: u8,
    full_bw_now: bool,
    full_bw_reached: bool,
    drain_start_round: u8,
    /// When Down began, and how long until the next probe (section 5.3.3.5).
    cycle_stamp: Stamp,
    probe_wait_ms: u16,
    rounds_since_probe: u8,
    /// The probe that goes on: how steeply `inflight_long` rises, and whether losses may still stop it.
    up_rounds: u8,
    up_count: u32,
    up_acked: u32,
    probe_samples: bool,
    /// Round trips (section 5.3.4.3), in µs; `INFINITE` while unknown.
    min_rtt_us: u32,
    min_rtt_stamp: Stamp,
    probe_rtt_min_us: u32,
    probe_rtt_min_stamp: Stamp,
    probe_rtt_expired: bool,
    /// The window has been small since; it may stop after this time and a round.
    probe_rtt_done: Option<Stamp>,
    probe_rtt_round_done: bool,
    idle_restart: bool,
    /// Acknowledged beyond what the bandwidth explains (section 5.5.9): of these rounds and of those before.
    extra_acked: [u32; 2],
    extra_rounds: u8,
    extra_start_us: u32,
    extra_delivered: u32,
    /// The last window that no loss and no probe for the round trip had cut.
    prior_cwnd: u32,
    undo: Undo,
}

/// What is put back when a loss turns out to have been none (section 5.5.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Undo {
    state: State,
    bw_short: Rate,
    inflight_short: u32,
    inflight_long: u32,
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

impl Bbr {
    pub const fn state(&self) -> State {
        self.state
    }

    /// `struct tcp_bbr_info`: bandwidth in bytes a second, its lower and its upper half, the least round trip in µs, and the
    /// gains in parts of 256.
    pub fn info(&self) -> [u32; 5] {
        let bw = self.max_bw().bytes();
        let gain = |hundredths: u64| (hundredths * 256 / 100) as u32;
        let (pacing, cwnd) = (self.state.pacing_gain(), self.state.cwnd_gain());
        [bw as u32, (bw >> 32) as u32, self.min_rtt_us, gain(pacing), gain(cwnd)]
    }

    /// BBROnInit (section 5.2.1), as soon as there is something to begin with.
    fn start(&mut self, now: Instant, srtt_us: u32, delivered: u64, steered: &mut Steered<'_>) {
        self.started = true;
        self.min_rtt_us = if srtt_us > 0 { srtt_us } else { INFINITE };
        self.min_rtt_stamp = Stamp::of(now);
        self.probe_rtt_min_us = self.min_rtt_us;
        self.probe_rtt_min_stamp = Stamp::of(now);
        self.extra_start_us = now.as_micros() as u32;
        self.start_round(delivered);
        self.loss_round = self.next_round;
        self.init_pacing(srtt_us, steered);
    }

    /// BBRUpdateOnACK (section 5.2.3). Returns whether the samples of what is out now are to count as the program's limit.
    pub fn on_ack(&mut self, ack: &Ack, steered: &mut Steered<'_>) -> bool {
        if !self.started {
            self.start(ack.now, ack.srtt_us, ack.delivered - u64::from(ack.newly_acked), steered);
        }
        self.note_losses(ack, *steered.cwnd);
        if ack.newly_acked == 0 {
            return false;
        }
        self.update_latest_signals(ack);
        self.update_max_bw(ack);
        self.adapt_short_term(ack, *steered.cwnd);
        self.update_aggregation(ack, *steered.cwnd);
        self.check_full_pipe(ack);
        self.check_startup_done(ack);
        self.check_drain_done(ack, steered);
        self.update_probe_bw(ack, *steered.cwnd, steered);
        self.update_min_rtt(ack);
        let holds_back = self.check_probe_rtt(ack, steered);
        self.advance_latest_signals(ack);
        self.set_pacing(steered);
        self.set_cwnd(ack, steered);
        holds_back
    }

    /// Something goes out after nothing was (section 5.4.1): the first data, or the first after a pause of the program.
    pub fn on_restart(
        &mut self,
        now: Instant,
        srtt_us: u32,
        delivered: u64,
        app_limited: bool,
        steered: &mut Steered<'_>,
    ) {
        if !self.started {
            self.start(now, srtt_us, delivered, steered);
        } else if app_limited {
            self.idle_restart = true;
            self.extra_start_us = now.as_micros() as u32;
            if self.state.is_probe_bw() {
                self.set_pacing_with(100, steered);
            } else if self.state == State::ProbeRtt {
                self.check_probe_rtt_done(now, delivered, 0, steered);
            }
        }
    }

    /// A recovery begins, after a loss or a time-out (section 5.6.4.4).
    pub fn recovery_begins(&mut self, cwnd: u32, in_recovery: bool) {
        self.save_cwnd(cwnd, in_recovery);
        self.save_for_undo();
    }

    /// It is over: all is repaired.
    pub fn recovery_ended(&self, cwnd: &mut u32) {
        *cwnd = (*cwnd).max(self.prior_cwnd);
    }

    /// BBRSaveCwnd.
    fn save_cwnd(&mut self, cwnd: u32, in_recovery: bool) {
        self.prior_cwnd =
            if !in_recovery && self.state != State::ProbeRtt { cwnd } else { self.prior_cwnd.max(cwnd) };
    }
}
