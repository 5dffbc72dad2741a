//! Startup and Drain (sections 5.3.1 and 5.3.2), and the plateau that tells that the pipe is full, which a later probe looks
//! for as well.

use super::model::{Ack, Bbr, State};
use super::units::Rate;

/// BBRStartupFullLossCnt.
const LOSS_EVENTS: u8 = 6;
/// Rounds without much growth that make a plateau, and "much".
const PLATEAU_ROUNDS: u8 = 3;
const GROWTH: (u64, u64) = (5, 4);
/// Drain takes no longer than this.
pub(super) const DRAIN_ROUNDS: u8 = 3;

impl Bbr {
    /// BBRCheckFullBWReached (section 5.3.1.2).
    pub(super) fn check_full_pipe(&mut self, ack: &Ack) {
        if self.full_bw.now || !self.rounds.start || ack.sample.app_limited || ack.sample.bw == 0 {
            return;
        }
        let sample = Rate::from_bytes(ack.sample.bw);
        if sample >= self.full_bw.bw.part(GROWTH.0, GROWTH.1) {
            self.full_bw.reset();
            self.full_bw.bw = sample;
            return;
        }
        self.full_bw.count += 1;
        self.full_bw.now = self.full_bw.count >= PLATEAU_ROUNDS;
        self.full_bw.reached |= self.full_bw.now;
    }

    /// BBRCheckStartupDone.
    pub(super) fn check_startup_done(&mut self, ack: &Ack) {
        self.check_startup_losses(ack);
        if self.state == State::Startup && self.full_bw.reached {
            self.state = State::Drain;
            self.rounds.drain_start = self.rounds.count;
        }
    }

    /// Section 5.3.1.3.
    fn check_startup_losses(&mut self, ack: &Ack) {
        if self.full_bw.reached {
            return;
        }
        let enough = if ack.sender.has_sack { LOSS_EVENTS } else { 1 };
        if self.signals.loss_round_start
            && ack.sender.in_recovery
            && self.signals.loss_events >= enough
            && ack.sample.is_lossy(ack.sender.has_sack)
        {
            self.full_bw.reached = true;
            self.bounds.inflight_long = self.bdp(100).max(self.signals.inflight_latest);
        }
        if self.signals.loss_round_start {
            self.signals.loss_events = 0;
        }
    }
}
