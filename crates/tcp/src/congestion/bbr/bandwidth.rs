//! Rounds (section 5.5.1) and BBR.max_bw (sections 5.5.2 to 5.5.6): the largest delivery rate of this ProbeBW cycle and the
//! last one.

use super::model::{Ack, Bbr, FullBw, Rounds};
use super::units::Rate;
use toe_base::SeqNum;

impl FullBw {
    /// BBRResetFullBW.
    pub(super) fn reset(&mut self) {
        *self = FullBw { reached: self.reached, ..FullBw::default() };
    }
}

impl Rounds {
    /// A round lasts until something is delivered that is sent from now on.
    pub(super) fn begin(&mut self, delivered: u64) {
        self.next = SeqNum::new(delivered as u32);
    }

    fn update(&mut self, ack: &Ack) {
        self.start = SeqNum::new(ack.sample.prior_delivered as u32).at_or_after(self.next);
        if self.start {
            self.begin(ack.delivered);
            self.count = self.count.wrapping_add(1);
        }
    }
}

impl Bbr {
    /// BBRUpdateMaxBw.
    pub(super) fn update_max_bw(&mut self, ack: &Ack) {
        self.rounds.update(ack);
        self.probe.rounds_since = self.probe.rounds_since.saturating_add(self.rounds.start.into());
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
        self.max_bw().min(self.bounds.bw_short)
    }
}
