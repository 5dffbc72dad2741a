//! Rounds (section 5.5.1) and BBR.max_bw (sections 5.5.2 to 5.5.6): the largest delivery rate of this ProbeBW cycle and the
//! last one.

use super::model::{Ack, Bbr};
use super::units::Rate;
use toe_base::SeqNum;

impl Bbr {
    /// BBRResetFullBW.
    pub(super) fn reset_full_bw(&mut self) {
        self.full_bw = Rate::ZERO;
        self.full_bw_count = 0;
        self.full_bw_now = false;
    }

    /// A round lasts until something is delivered that is sent from now on.
    pub(super) fn start_round(&mut self, delivered: u64) {
        self.next_round = SeqNum::new(delivered as u32);
    }

    fn update_round(&mut self, ack: &Ack) {
        self.round_start = SeqNum::new(ack.sample.prior_delivered as u32).at_or_after(self.next_round);
        if self.round_start {
            self.start_round(ack.delivered);
            self.round_count = self.round_count.wrapping_add(1);
            self.rounds_since_probe = self.rounds_since_probe.saturating_add(1);
        }
    }

    /// BBRUpdateMaxBw.
    pub(super) fn update_max_bw(&mut self, ack: &Ack) {
        self.update_round(ack);
        let sample = Rate::from_bytes(ack.sample.bw);
        if sample > Rate::ZERO && (sample >= self.max_bw() || !ack.sample.app_limited) {
            self.max_bw[1] = self.max_bw[1].max(sample);
        }
    }

    /// BBRAdvanceMaxBwFilter: the cycle before the last one is forgotten.
    pub(super) fn advance_max_bw(&mut self) {
        if self.max_bw[1] > Rate::ZERO {
            self.max_bw = [self.max_bw[1], Rate::ZERO];
        }
    }

    pub(super) fn max_bw(&self) -> Rate {
        self.max_bw[0].max(self.max_bw[1])
    }

    /// BBR.bw.
    pub(super) fn bw(&self) -> Rate {
        self.max_bw().min(self.bw_short)
    }
}
