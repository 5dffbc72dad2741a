//! ProbeBW (section 5.3.3): at a time of its own choice a connection fills the pipe, sends a quarter faster until that brings
//! nothing more, and then lets others in.

use super::model::{Ack, AckPhase, Bbr, INFINITE, State, Steered};
use super::startup::DRAIN_ROUNDS;
use super::units::{Rate, Stamp};

/// Shortest time between probes and what chance adds to it (section 5.3.3.5).
const WAIT_MS: u16 = 2000;
const WAIT_CHANCE_MS: u16 = 1000;
/// Rounds after which Reno would be back at its window, at most.
const RENO_ROUNDS_MAX: u32 = 63;
/// BBR.Headroom: 0.15.
pub(super) const HEADROOM: (u32, u32) = (15, 100);

impl Bbr {
    /// BBRStartProbeBW_DOWN.
    pub(super) fn start_down(&mut self, ack: &Ack) {
        self.reset_congestion_signals();
        self.probe.up_count = INFINITE;
        self.pick_wait(ack.sender.salt);
        self.probe.cycle_stamp = Stamp::of(ack.now);
        self.probe.ack_phase = AckPhase::Stopping;
        self.rounds.begin(ack.delivered);
        self.state = State::Down;
    }

    /// BBRStartProbeBW_CRUISE.
    pub(super) fn start_cruise(&mut self) {
        self.state = State::Cruise;
    }

    /// BBRStartProbeBW_REFILL.
    fn start_refill(&mut self, ack: &Ack) {
        self.reset_short_term();
        self.probe.up_rounds = 0;
        self.probe.up_acked = 0;
        self.probe.ack_phase = AckPhase::Refilling;
        self.rounds.begin(ack.delivered);
        self.state = State::Refill;
    }

    /// BBRStartProbeBW_UP.
    pub(super) fn start_up(&mut self, ack: &Ack, cwnd: u32) {
        self.probe.ack_phase = AckPhase::Starting;
        self.rounds.begin(ack.delivered);
        self.full_bw.reset();
        self.full_bw.bw = Rate::from_bytes(ack.sample.bw);
        self.state = State::Up;
        self.raise_slope(cwnd, ack.sender.mss);
    }

    /// BBRUpdateProbeBWCyclePhase.
    pub(super) fn update_probe_bw(&mut self, ack: &Ack, cwnd: u32, steered: &Steered<'_>) {
        if !self.full_bw.reached {
            return;
        }
        self.adapt_long_term(ack, cwnd);
        match self.state {
            State::Down | State::Cruise if self.is_time_to_probe(ack, cwnd) => self.start_refill(ack),
            State::Down if self.is_time_to_cruise(ack, *steered.pacing) => self.start_cruise(),
            State::Refill if self.rounds.start => {
                self.probe.samples = true;
                self.start_up(ack, cwnd);
            }
            State::Up => self.end_if_useless(ack, cwnd),
            _ => {}
        }
    }

    /// BBRIsTimeToProbeBW: a while has passed, or Reno would have probed (section 5.3.3.5).
    fn is_time_to_probe(&self, ack: &Ack, cwnd: u32) -> bool {
        let reno_rounds = (self.target_inflight(cwnd) / ack.sender.mss.max(1)).min(RENO_ROUNDS_MAX);
        self.probe.cycle_stamp.after_ms(u32::from(self.probe.wait_ms)).is_past(Stamp::of(ack.now))
            || u32::from(self.probe.rounds_since) >= reno_rounds
    }

    /// BBRPickProbeWait.
    fn pick_wait(&mut self, salt: u32) {
        let random = salt.wrapping_mul(0x9e37_79b1) >> 8;
        self.probe.rounds_since = (random & 1) as u8;
        self.probe.wait_ms = WAIT_MS + ((random >> 1) % u32::from(WAIT_CHANCE_MS)) as u16;
    }

    /// BBRIsTimeToCruise.
    fn is_time_to_cruise(&self, ack: &Ack, pacing: u64) -> bool {
        ack.sender.inflight <= self.inflight_with_headroom(ack.sender.mss)
            && ack.sender.inflight <= self.inflight_of(self.max_bw(), 100, ack.sender.mss, pacing)
    }

    /// BBRIsTimeToGoDown: sending faster brings nothing more.
    fn end_if_useless(&mut self, ack: &Ack, cwnd: u32) {
        if ack.sender.cwnd_limited && cwnd >= self.bounds.inflight_long {
            // The bound, not the path, limits the bandwidth: no plateau.
            self.full_bw.reset();
            self.full_bw.bw = Rate::from_bytes(ack.sample.bw);
        } else if self.full_bw.now {
            self.start_down(ack);
        }
    }

    /// BBRAdaptLongTermModel.
    fn adapt_long_term(&mut self, ack: &Ack, cwnd: u32) {
        match self.probe.ack_phase {
            AckPhase::Starting if self.rounds.start => self.probe.ack_phase = AckPhase::Feedback,
            AckPhase::Stopping if self.rounds.start => {
                // What the probe sent has been answered.
                self.probe.samples = false;
                self.probe.ack_phase = AckPhase::Idle;
                if self.state.is_probe_bw() && !ack.sample.app_limited {
                    self.advance_max_bw();
                }
            }
            _ => {}
        }
        if ack.sample.is_lossy(ack.sender.has_sack) || self.bounds.inflight_long == INFINITE {
            return;
        }
        self.bounds.inflight_long = self.bounds.inflight_long.max(ack.sample.tx_in_flight);
        if self.state == State::Up {
            self.raise_long_term(ack, cwnd);
        }
    }

    /// BBRProbeInflightLongtermUpward.
    fn raise_long_term(&mut self, ack: &Ack, cwnd: u32) {
        if !ack.sender.cwnd_limited || cwnd < self.bounds.inflight_long {
            return;
        }
        self.probe.up_acked = self.probe.up_acked.saturating_add(ack.newly_acked);
        let delta = self.probe.up_acked / self.probe.up_count.max(1);
        self.probe.up_acked -= delta * self.probe.up_count.max(1);
        self.bounds.inflight_long = self.bounds.inflight_long.saturating_add(delta).min(INFINITE - 1);
        if self.rounds.start {
            self.raise_slope(cwnd, ack.sender.mss);
        }
    }

    /// BBRRaiseInflightLongtermSlope: a segment in the first round, then twice as much each.
    fn raise_slope(&mut self, cwnd: u32, mss: u32) {
        let growth = u64::from(mss) << self.probe.up_rounds;
        self.probe.up_rounds = (self.probe.up_rounds + 1).min(30);
        self.probe.up_count = (u64::from(cwnd) / growth.max(1)).max(1) as u32;
    }

    /// BBRCheckDrainDone.
    pub(super) fn check_drain_done(&mut self, ack: &Ack, steered: &Steered<'_>) {
        if self.state != State::Drain {
            return;
        }
        let rounds = self.rounds.count.wrapping_sub(self.rounds.drain_start);
        if ack.sender.inflight <= self.inflight(100, ack.sender.mss, *steered.pacing) || rounds > DRAIN_ROUNDS
        {
            self.start_down(ack);
        }
    }
}
