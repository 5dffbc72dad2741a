//! What the latest round trips delivered and lost (sections 5.5.6 and 5.5.10): the bounds that hold until the next probe for bandwidth.

use super::model::{Ack, BETA, Bbr, INFINITE};
use super::units::Rate;
use toe_base::SeqNum;

impl Bbr {
    /// BBRUpdateLatestDeliverySignals.
    pub(super) fn update_latest_signals(&mut self, ack: &Ack) {
        self.signals.bw_latest = self.signals.bw_latest.max(Rate::from_bytes(ack.sample.bw));
        self.signals.inflight_latest = self.signals.inflight_latest.max(ack.sample.delivered);
        self.signals.loss_round_start =
            SeqNum::new(ack.sample.prior_delivered as u32).at_or_after(self.signals.loss_round);
        if self.signals.loss_round_start {
            self.signals.loss_round = SeqNum::new(ack.delivered as u32);
        }
    }

    /// BBRAdvanceLatestDeliverySignals.
    pub(super) fn advance_latest_signals(&mut self, ack: &Ack) {
        if self.signals.loss_round_start {
            self.signals.bw_latest = Rate::from_bytes(ack.sample.bw);
            self.signals.inflight_latest = ack.sample.delivered;
        }
    }

    pub(super) fn reset_congestion_signals(&mut self) {
        self.signals.loss_in_round = false;
        self.signals.mark_in_round = false;
        self.signals.bw_latest = Rate::ZERO;
        self.signals.inflight_latest = 0;
    }

    /// BBRAdaptLowerBoundsFromCongestion, at the end of a round.
    ///
    /// The draft comes down for any loss. Then a window that is as large as what is delivered loses a little in each round in
    /// which something is lost, and what a stretched round trip delivers becomes the rate: with 1 % lost at random a sender on a
    /// busy machine came down to a third between two probes. Less than BBR.LossThresh says nothing of the path's limit in a probe,
    /// nor here; Linux's BBR does not come down for losses at all.
    pub(super) fn adapt_short_term(&mut self, ack: &Ack, cwnd: u32) {
        if !self.signals.loss_round_start {
            return;
        }
        let is_much = self.signals.mark_in_round || ack.sample.is_lossy(ack.sender.has_sack);
        if self.signals.loss_in_round && is_much && !self.state.is_probing() {
            if self.bounds.bw_short == Rate::INFINITE {
                self.bounds.bw_short = self.max_bw();
            }
            if self.bounds.inflight_short == INFINITE {
                self.bounds.inflight_short = cwnd;
            }
            self.bounds.bw_short = self.signals.bw_latest.max(self.bounds.bw_short.part(BETA.0, BETA.1));
            let volume = u64::from(self.bounds.inflight_short) * BETA.0 / BETA.1;
            self.bounds.inflight_short = self.signals.inflight_latest.max(volume as u32);
        }
        self.signals.loss_in_round = false;
        self.signals.mark_in_round = false;
    }

    /// BBRResetShortTermModel.
    pub(super) fn reset_short_term(&mut self) {
        self.bounds.bw_short = Rate::INFINITE;
        self.bounds.inflight_short = INFINITE;
    }
}
