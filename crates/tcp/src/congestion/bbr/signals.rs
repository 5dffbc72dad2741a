//! What the latest round trips delivered and lost (sections 5.5.6 and 5.5.10): the bounds that hold until the next probe for bandwidth.

use super::model::{Ack, BETA, Bbr, INFINITE};
use super::units::Rate;
use toe_base::SeqNum;

impl Bbr {
    /// BBRUpdateLatestDeliverySignals.
    pub(super) fn update_latest_signals(&mut self, ack: &Ack) {
        self.bw_latest = self.bw_latest.max(Rate::from_bytes(ack.sample.bw));
        self.inflight_latest = self.inflight_latest.max(ack.sample.delivered);
        self.loss_round_start = SeqNum::new(ack.sample.prior_delivered as u32).at_or_after(self.loss_round);
        if self.loss_round_start {
            self.loss_round = SeqNum::new(ack.delivered as u32);
        }
    }

    /// BBRAdvanceLatestDeliverySignals.
    pub(super) fn advance_latest_signals(&mut self, ack: &Ack) {
        if self.loss_round_start {
            self.bw_latest = Rate::from_bytes(ack.sample.bw);
            self.inflight_latest = ack.sample.delivered;
        }
    }

    pub(super) fn reset_congestion_signals(&mut self) {
        self.loss_in_round = false;
        self.mark_in_round = false;
        self.bw_latest = Rate::ZERO;
        self.inflight_latest = 0;
    }

    /// BBRAdaptLowerBoundsFromCongestion, at the end of a round.
    ///
    /// The draft comes down for any loss. Then a window that is as large as what is delivered loses a little in each round in
    /// which something is lost, and what a stretched round trip delivers becomes the rate: with 1 % lost at random a sender on a
    /// busy machine came down to a third between two probes. Less than BBR.LossThresh says nothing of the path's limit in a probe,
    /// nor here; Linux's BBR does not come down for losses at all.
    pub(super) fn adapt_short_term(&mut self, ack: &Ack, cwnd: u32) {
        if !self.loss_round_start {
            return;
        }
        let is_much = self.mark_in_round || ack.sample.is_lossy(ack.has_sack);
        if self.loss_in_round && is_much && !self.state.is_probing() {
            if self.bw_short == Rate::INFINITE {
                self.bw_short = self.max_bw();
            }
            if self.inflight_short == INFINITE {
                self.inflight_short = cwnd;
            }
            self.bw_short = self.bw_latest.max(self.bw_short.part(BETA.0, BETA.1));
            let volume = u64::from(self.inflight_short) * BETA.0 / BETA.1;
            self.inflight_short = self.inflight_latest.max(volume as u32);
        }
        self.loss_in_round = false;
        self.mark_in_round = false;
    }

    /// BBRResetShortTermModel.
    pub(super) fn reset_short_term(&mut self) {
        self.bw_short = Rate::INFINITE;
        self.inflight_short = INFINITE;
    }
}
