//! What losses say of the path (section 5.5.10): too much of them in a probe bounds later ones, and at other times the model
//! comes down to what is delivered.

use super::model::{Ack, BETA, Bbr, State, Undo};
use toe_base::SeqNum;

impl Bbr {
    /// BBRHandleLostPacket, for all that was lost since the last ACK. A mark of the network (RFC 3168) is a loss to the
    /// model: the draft leaves it open.
    pub(super) fn note_losses(&mut self, ack: &Ack, cwnd: u32) {
        if ack.losses.bytes == 0 && !ack.marked {
            return;
        }
        if !self.signals.loss_in_round {
            self.signals.loss_round = SeqNum::new(ack.delivered as u32);
            self.save_for_undo();
        }
        self.signals.loss_in_round = true;
        self.signals.mark_in_round |= ack.marked;
        self.signals.loss_events =
            self.signals.loss_events.saturating_add(ack.losses.stretches.min(15) as u8);
        if !self.probe.samples {
            return;
        }
        if let Some(excess) = ack.losses.excess {
            self.handle_too_high(ack, excess.in_flight, excess.app_limited, cwnd);
        } else if ack.marked || !ack.sender.has_sack {
            self.handle_too_high(ack, ack.sample.tx_in_flight, ack.sample.app_limited, cwnd);
        }
    }

    /// BBRHandleInflightTooHigh, once a probe.
    fn handle_too_high(&mut self, ack: &Ack, in_flight: u32, app_limited: bool, cwnd: u32) {
        self.probe.samples = false;
        if !app_limited {
            let least = u64::from(self.target_inflight(cwnd)) * BETA.0 / BETA.1;
            self.bounds.inflight_long = in_flight.max(least as u32);
        }
        if self.state == State::Up {
            self.start_down(ack);
        }
    }

    /// BBRSaveStateUponLoss.
    pub(super) fn save_for_undo(&mut self) {
        self.undo = Undo { state: self.state, bounds: self.bounds, ..self.undo };
    }

    /// BBRHandleSpuriousLossDetection: nothing was lost.
    pub fn undo(&mut self, ack: &Ack, cwnd: &mut u32) {
        self.recovery_ended(cwnd);
        self.signals.loss_in_round = false;
        self.full_bw.reset();
        self.bounds.bw_short = self.bounds.bw_short.max(self.undo.bounds.bw_short);
        self.bounds.inflight_short = self.bounds.inflight_short.max(self.undo.bounds.inflight_short);
        self.bounds.inflight_long = self.bounds.inflight_long.max(self.undo.bounds.inflight_long);
        if self.state == State::ProbeRtt || self.state == self.undo.state {
            return;
        }
        match self.undo.state {
            State::Startup => self.state = State::Startup,
            State::Up => self.start_up(ack, *cwnd),
            _ => {}
        }
    }
}
