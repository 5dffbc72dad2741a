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
        self.up_count = INFINITE;
        self.pick_wait(ack.salt);
        self.cycle_stamp = Stamp::of(ack.now);
        self.ack_phase = AckPhase::Stopping;
        self.start_round(ack.delivered);
        self.state = State::Down;
    }

    /// BBRStartProbeBW_CRUISE.
    pub(super) fn start_cruise(&mut self) {
        self.state = State::Cruise;
    }

    /// BBRStartProbeBW_REFILL.
    fn start_refill(&mut self, ack: &Ack) {
        self.reset_short_term();
        self.up_rounds = 0;
        self.up_acked = 0;
        self.ack_phase = AckPhase::Refilling;
        self.start_round(ack.delivered);
        self.state = State::Refill;
    }

    /// BBRStartProbeBW_UP.
    pub(super) fn start_up(&mut self, ack: &Ack, cwnd: u32) {
        self.ack_phase = AckPhase::Starting;
        self.start_round(ack.delivered);
        self.reset_full_bw();
        self.full_bw = Rate::from_bytes(ack.sample.bw);
        self.state = State::Up;
        self.raise_slope(cwnd, ack.mss);
    }

    /// BBRUpdateProbeBWCyclePhase.
    pub(super) fn update_probe_bw(&mut self, ack: &Ack, cwnd: u32, steered: &Steered<'_>) {
        if !self.full_bw_reached {
            return;
        }
        self.adapt_long_term(ack, cwnd);
        match self.state {
            State::Down | State::Cruise if self.is_time_to_probe(ack, cwnd) => self.start_refill(ack),
            State::Down if self.is_time_to_cruise(ack, *steered.pacing) => self.start_cruise(),
            State::Refill if self.round_start => {
                self.probe_samples = true;
                self.start_up(ack, cwnd);
            }
            State::Up => self.end_if_useless(ack, cwnd),
            _ => {}
        }
    }

    /// BBRIsTimeToProbeBW: a while has passed, or Reno would have probed (section 5.3.3.5).
    fn is_time_to_probe(&self, ack: &Ack, cwnd: u32) -> bool {
        let reno_rounds = (self.target_inflight(cwnd) / ack.mss.max(1)).min(RENO_ROUNDS_MAX);
        self.cycle_stamp.after_ms(u32::from(self.probe_wait_ms)).is_past(Stamp::of(ack.now))
            || u32::from(self.rounds_since_probe) >= reno_rounds
    }

    /// BBRPickProbeWait.
    fn pick_wait(&mut self, salt: u32) {
        let random = salt.wrapping_mul(0x9e37_79b1) >> 8;
        self.rounds_since_probe = (random & 1) as u8;
        self.probe_wait_ms = WAIT_MS + ((random >> 1) % u32::from(WAIT_CHANCE_MS)) as u16;
    }

    /// BBRIsTimeToCruise.
    fn is_time_to_cruise(&self, ack: &Ack, pacing: u64) -> bool {
        ack.inflight <= self.inflight_with_headroom(ack.mss)
            && ack.inflight <= self.inflight_of(self.max_bw(), 100, ack.mss, pacing)
    }

    /// BBRIsTimeToGoDown: sending faster brings nothing more.
    fn end_if_useless(&mut self, ack: &Ack, cwnd: u32) {
        if ack.cwnd_limited && cwnd >= self.inflight_long {
            // The bound, not the path, limits the bandwidth: no plateau.
            self.reset_full_bw();
            self.full_bw = Rate::from_bytes(ack.sample.bw);
        } else if self.full_bw_now {
            self.start_down(ack);
        }
    }

    /// BBRAdaptLongTermModel.
    fn adapt_long_term(&mut self, ack: &Ack, cwnd: u32) {
        match self.ack_phase {
            AckPhase::Starting if self.round_start => self.ack_phase = AckPhase::Feedback,
            AckPhase::Stopping if self.round_start => {
                // What the probe sent has been answered.
                self.probe_samples = false;
                self.ack_phase = AckPhase::Idle;
                if self.state.is_probe_bw() && !ack.sample.app_limited {
                    self.advance_max_bw();
                }
            }
            _ => {}
        }
        if ack.sample.is_lossy(ack.has_sack) || self.inflight_long == INFINITE {
            return;
        }
        self.inflight_long = self.inflight_long.max(ack.sample.tx_in_flight);
        if self.state == State::Up {
            self.raise_long_term(ack, cwnd);
        }
    }

    /// BBRProbeInflightLongtermUpward.
    fn raise_long_term(&mut self, ack: &Ack, cwnd: u32) {
        if !ack.cwnd_limited || cwnd < self.inflight_long {
            return;
        }
        self.up_acked = self.up_acked.saturating_add(ack.newly_acked);
        let delta = self.up_acked / self.up_count.max(1);
        self.up_acked -= delta * self.up_count.max(1);
        self.inflight_long = self.inflight_long.saturating_add(delta).min(INFINITE - 1);
        if self.round_start {
            self.raise_slope(cwnd, ack.mss);
        }
    }

    /// BBRRaiseInflightLongtermSlope: a segment in the first round, then twice as much each.
    fn raise_slope(&mut self, cwnd: u32, mss: u32) {
        let growth = u64::from(mss) << self.up_rounds;
        self.up_rounds = (self.up_rounds + 1).min(30);
        self.up_count = (u64::from(cwnd) / growth.max(1)).max(1) as u32;
    }

    /// BBRCheckDrainDone.
    pub(super) fn check_drain_done(&mut self, ack: &Ack, steered: &Steered<'_>) {
        if self.state != State::Drain {
            return;
        }
        let rounds = self.round_count.wrapping_sub(self.drain_start_round);
        if ack.inflight <= self.inflight(100, ack.mss, *steered.pacing) || rounds > DRAIN_ROUNDS {
            self.start_down(ack);
        }
    }
}
