//! What losses say of the path (section 5.5.10): too much of them in a probe bounds later ones, and at other times the model
//! comes down to what is delivered.

use super::units::Rate;
use super::{Ack, BETA, Bbr, INFINITE, State, Undo};
use toe_base::SeqNum;

impl Bbr {
    /// BBRHandleLostPacket, for all that was lost since the last ACK. A mark of the network (RFC 3168) is a loss to the
    /// model: the draft leaves it open.
    pub(super) fn note_losses(&mut self, ack: &Ack, cwnd: u32) {
        if ack.losses.bytes == 0 && !ack.marked {
            return;
        }
        if !self.loss_in_round {
            self.loss_round = SeqNum::new(ack.delivered as u32);
            self.save_for_undo();
        }
        self.loss_in_round = true;
        self.mark_in_round |= ack.marked;
        self.loss_events = self.loss_events.saturating_add(ack.losses.stretches.min(15) as u8);
        if !self.probe_samples {
            return;
        }
        if let Some(excess) = ack.losses.excess {
            self.handle_too_high(ack, excess.in_flight, excess.app_limited, cwnd);
        } else if ack.marked || !ack.has_sack {
            self.handle_too_high(ack, ack.sample.tx_in_flight, ack.sample.app_limited, cwnd);
        }
    }

    /// BBRHandleInflightTooHigh, once a probe.
    fn handle_too_high(&mut self, ack: &Ack, in_flight: u32, app_limited: bool, cwnd: u32) {
        self.probe_samples = false;
        if !app_limited {
            let least = u64::from(self.target_inflight(cwnd)) * BETA.0 / BETA.1;
            self.inflight_long = in_flight.max(least as u32);
        }
        if self.state == State::Up {
            self.start_down(ack);
        }
    }

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

    /// BBRSaveStateUponLoss.
    pub(super) fn save_for_undo(&mut self) {
        self.undo = Undo {
            state: self.state,
            bw_short: self.bw_short,
            inflight_short: self.inflight_short,
            inflight_long: self.inflight_long,
        };
    }

    /// BBRHandleSpuriousLossDetection: nothing was lost.
    pub fn undo(&mut self, ack: &Ack, cwnd: &mut u32) {
        self.recovery_ended(cwnd);
        self.loss_in_round = false;
        self.reset_full_bw();
        self.bw_short = self.bw_short.max(self.undo.bw_short);
        self.inflight_short = self.inflight_short.max(self.undo.inflight_short);
        self.inflight_long = self.inflight_long.max(self.undo.inflight_long);
        if self.state == State::ProbeRtt || self.state == self.undo.state {
            return;
        }
        match self.undo.state {
            State::Startup => self.enter_startup(),
            State::Up => self.start_up(ack, *cwnd),
            _ => {}
        }
    }
}
