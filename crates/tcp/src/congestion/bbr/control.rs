//! What the model steers (section 5.6): how fast data goes out, and how much may be in the network.

use super::model::{Ack, Bbr, INFINITE, MIN_PIPE_SEGMENTS, State, Steered};
use super::probe_bw::HEADROOM;
use super::units::Rate;
use crate::congestion::window::initial_window;
use crate::rate;

/// BBR.PacingMarginPercent.
const MARGIN_PERCENT: u64 = 1;
/// BBR.offload_budget in quanta (section 5.5.8.1).
const OFFLOAD_QUANTA: u32 = 3;

impl Bbr {
    /// BBRInitPacingRate: the initial window in a round trip, as far as one is known.
    pub(super) fn init_pacing(&self, srtt_us: u32, steered: &mut Steered<'_>) {
        let rtt_us = if srtt_us > 0 { u64::from(srtt_us) } else { 1000 };
        *steered.pacing = u64::from(*steered.cwnd) * 1_000_000 / rtt_us * State::Startup.pacing_gain() / 100;
    }

    /// BBRSetPacingRate.
    pub(super) fn set_pacing(&self, steered: &mut Steered<'_>) {
        self.set_pacing_with(self.state.pacing_gain(), steered);
    }

    /// BBRSetPacingRateWithGain.
    pub(super) fn set_pacing_with(&self, gain: u64, steered: &mut Steered<'_>) {
        let rate = self.bw().part(gain * (100 - MARGIN_PERCENT), 100 * 100).bytes();
        if rate > 0 && (self.full_bw.reached || rate > *steered.pacing) {
            *steered.pacing = rate;
        }
    }

    /// BBRBDPMultiple: what is in the network when the pipe is just full, in hundredths of `gain`.
    pub(super) fn bdp(&self, gain: u64) -> u32 {
        self.bdp_of(self.bw(), gain)
    }

    fn bdp_of(&self, bw: Rate, gain: u64) -> u32 {
        if self.min_rtt.us == INFINITE {
            return 0;
        }
        let bytes = bw.bytes_in(u64::from(self.min_rtt.us)).saturating_mul(gain) / 100;
        bytes.min(u64::from(INFINITE / 2)) as u32
    }

    /// BBRInflight.
    pub(super) fn inflight(&self, gain: u64, mss: u32, pacing: u64) -> u32 {
        self.inflight_of(self.bw(), gain, mss, pacing)
    }

    pub(super) fn inflight_of(&self, bw: Rate, gain: u64, mss: u32, pacing: u64) -> u32 {
        self.quantization_budget(self.bdp_of(bw, gain), mss, pacing)
    }

    /// BBRQuantizationBudget.
    fn quantization_budget(&self, cap: u32, mss: u32, pacing: u64) -> u32 {
        let budget = OFFLOAD_QUANTA * rate::quantum(pacing, mss);
        let cap = cap.max(budget).max(MIN_PIPE_SEGMENTS * mss);
        if self.state == State::Up { cap.saturating_add(2 * mss) } else { cap }
    }

    /// BBRTargetInflight.
    pub(super) fn target_inflight(&self, cwnd: u32) -> u32 {
        self.bdp(100).min(cwnd)
    }

    /// BBRSetCwnd (section 5.6.4.6).
    pub(super) fn set_cwnd(&self, ack: &Ack, steered: &mut Steered<'_>) {
        let initial = initial_window(u16::try_from(ack.sender.mss).unwrap_or(u16::MAX));
        let cap = if self.min_rtt.us == INFINITE { initial } else { self.bdp(self.state.cwnd_gain()) };
        let cap = cap.saturating_add(self.extra.most());
        let max_inflight = self.quantization_budget(cap, ack.sender.mss, *steered.pacing);
        let cwnd = *steered.cwnd;
        let grown = cwnd.saturating_add(ack.newly_acked);
        let cwnd = if self.full_bw.reached {
            grown.min(max_inflight)
        } else if cwnd < max_inflight || ack.delivered < u64::from(initial) {
            grown
        } else {
            cwnd
        };
        let least = MIN_PIPE_SEGMENTS * ack.sender.mss;
        *steered.cwnd = self.bound_cwnd(cwnd.max(least), ack.sender.mss);
    }

    /// BBRBoundCwndForProbeRTT and BBRBoundCwndForModel (section 5.6.4.7).
    fn bound_cwnd(&self, cwnd: u32, mss: u32) -> u32 {
        let cap = match self.state {
            State::Down | State::Refill | State::Up => self.bounds.inflight_long,
            State::Cruise => self.inflight_with_headroom(mss),
            State::ProbeRtt => self.inflight_with_headroom(mss).min(self.probe_rtt_cwnd(mss)),
            State::Startup | State::Drain => INFINITE,
        };
        cwnd.min(cap.min(self.bounds.inflight_short).max(MIN_PIPE_SEGMENTS * mss))
    }

    /// BBRInflightWithHeadroom: what leaves others some room.
    pub(super) fn inflight_with_headroom(&self, mss: u32) -> u32 {
        if self.bounds.inflight_long == INFINITE {
            return INFINITE;
        }
        let headroom =
            (u64::from(self.bounds.inflight_long) * u64::from(HEADROOM.0) / u64::from(HEADROOM.1)) as u32;
        self.bounds.inflight_long.saturating_sub(headroom.max(mss)).max(MIN_PIPE_SEGMENTS * mss)
    }

    /// BBRProbeRTTCwnd.
    pub(super) fn probe_rtt_cwnd(&self, mss: u32) -> u32 {
        self.bdp(State::ProbeRtt.cwnd_gain()).max(MIN_PIPE_SEGMENTS * mss)
    }

    /// BBRSaveCwnd.
    pub(super) fn save_cwnd(&mut self, cwnd: u32, in_recovery: bool) {
        self.undo.cwnd =
            if !in_recovery && self.state != State::ProbeRtt { cwnd } else { self.undo.cwnd.max(cwnd) };
    }

    /// It is over: all is repaired.
    pub fn recovery_ended(&self, cwnd: &mut u32) {
        *cwnd = (*cwnd).max(self.undo.cwnd);
    }
}
