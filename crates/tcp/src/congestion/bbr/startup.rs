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
        if self.full_bw_now || !self.round_start || ack.sample.app_limited || ack.sample.bw == 0 {
            return;
        }
        let sample = Rate::from_bytes(ack.sample.bw);
        if sample >= self.full_bw.part(GROWTH.0, GROWTH.1) {
            self.reset_full_bw();
            self.full_bw = sample;
            return;
        }
        self.full_bw_count += 1;
        self.full_bw_now = self.full_bw_count >= PLATEAU_ROUNDS;
        self.full_bw_reached |= self.full_bw_now;
    }

    /// BBRCheckStartupDone.
    pub(super) fn check_startup_done(&mut self, ack: &Ack) {
        self.check_startup_losses(ack);
        if self.state == State::Startup && self.full_bw_reached {
            self.state = State::Drain;
            self.drain_start_round = self.round_count;
        }
    }

    /// Section 5.3.1.3.
    fn check_startup_losses(&mut self, ack: &Ack) {
        if self.full_bw_reached {
            return;
        }
        let enough = if ack.has_sack { LOSS_EVENTS } else { 1 };
        if self.loss_round_start
            && ack.in_recovery
            && self.loss_events >= enough
            && ack.sample.is_lossy(ack.has_sack)
        {
            self.full_bw_reached = true;
            self.inflight_long = self.bdp(100).max(self.inflight_latest);
        }
        if self.loss_round_start {
            self.loss_events = 0;
        }
    }
}
