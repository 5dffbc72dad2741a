//! The round trip without a queue (sections 5.3.4 and 5.5.7): the least of ten seconds, and ProbeRTT, a moment with half a
//! window when five have not shown a shorter one.

use super::model::{Ack, AckPhase, Bbr, SenderState, State, Steered};
use super::units::Stamp;
use toe_base::Instant;

const MIN_RTT_FILTER_MS: u32 = 10_000;
const PROBE_RTT_INTERVAL_MS: u32 = 5_000;
const PROBE_RTT_DURATION_MS: u32 = 200;

impl Bbr {
    /// BBRUpdateMinRTT.
    pub(super) fn update_min_rtt(&mut self, ack: &Ack) {
        let now = Stamp::of(ack.now);
        self.min_rtt.probe.expired = self.min_rtt.probe.stamp.after_ms(PROBE_RTT_INTERVAL_MS).is_past(now);
        if let Some(rtt_us) = ack.rtt_us
            && (rtt_us < self.min_rtt.probe.us || self.min_rtt.probe.expired)
        {
            self.min_rtt.probe.us = rtt_us.max(1);
            self.min_rtt.probe.stamp = now;
        }
        let expired = self.min_rtt.stamp.after_ms(MIN_RTT_FILTER_MS).is_past(now);
        if self.min_rtt.probe.us < self.min_rtt.us || expired {
            self.min_rtt.us = self.min_rtt.probe.us;
            self.min_rtt.stamp = self.min_rtt.probe.stamp;
        }
    }

    /// BBRCheckProbeRTT. Returns whether samples of what is out now say nothing of the path.
    pub(super) fn check_probe_rtt(&mut self, ack: &Ack, steered: &mut Steered<'_>) -> bool {
        if self.state != State::ProbeRtt && self.min_rtt.probe.expired && !self.idle_restart {
            self.save_cwnd(*steered.cwnd, ack.sender.in_recovery);
            self.state = State::ProbeRtt;
            self.min_rtt.probe.done = None;
            self.probe.ack_phase = AckPhase::Stopping;
            self.rounds.begin(ack.delivered);
        }
        let holds_back = self.state == State::ProbeRtt;
        if holds_back {
            self.handle_probe_rtt(ack, steered);
        }
        self.idle_restart = false;
        holds_back
    }

    /// BBRHandleProbeRTT.
    fn handle_probe_rtt(&mut self, ack: &Ack, steered: &mut Steered<'_>) {
        if self.min_rtt.probe.done.is_none() {
            if ack.sender.inflight <= self.probe_rtt_cwnd(ack.sender.mss) {
                self.min_rtt.probe.done = Some(Stamp::of(ack.now).after_ms(PROBE_RTT_DURATION_MS));
                self.min_rtt.probe.round_done = false;
                self.rounds.begin(ack.delivered);
            }
            return;
        }
        self.min_rtt.probe.round_done |= self.rounds.start;
        if self.min_rtt.probe.round_done {
            self.check_probe_rtt_done(ack.now, ack.delivered, ack.sender.salt, steered);
        }
    }

    /// BBRCheckProbeRTTDone.
    pub(super) fn check_probe_rtt_done(
        &mut self,
        now: Instant,
        delivered: u64,
        salt: u32,
        steered: &mut Steered<'_>,
    ) {
        if self.min_rtt.probe.done.is_none_or(|done| !done.is_past(Stamp::of(now))) {
            return;
        }
        self.min_rtt.probe.stamp = Stamp::of(now);
        *steered.cwnd = (*steered.cwnd).max(self.undo.cwnd);
        self.reset_short_term();
        if self.full_bw.reached {
            let sender = SenderState { salt, ..SenderState::default() };
            self.start_down(&Ack { now, delivered, sender, ..Ack::default() });
            self.start_cruise();
        } else {
            self.state = State::Startup;
        }
    }
}
