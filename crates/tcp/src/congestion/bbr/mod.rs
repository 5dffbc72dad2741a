//! BBR version 3 (draft-ietf-ccwg-bbr-05): the sender keeps a model of its path, how fast it delivers and how long it
//! takes, and sends by that instead of by losses. Section numbers in this folder are that draft's.
//!
//! ```text
//!   Startup ──▶ Drain ──▶ Down ──▶ Cruise ──▶ Refill ──▶ Up          any of them ──▶ ProbeRtt, every 5 s
//!                          ▲                              │                          without a shorter round trip
//!                          └──────────────────────────────┘
//! ```
//!
//! | to read | where |
//! |---|---|
//! | rounds and the bandwidth of the path | [`bandwidth`] |
//! | finding it at first, and letting the queue go that this made | [`startup`] |
//! | looking for more of it from time to time | [`probe_bw`] |
//! | the round trip without a queue | [`probe_rtt`] |
//! | what losses say | [`signals`], [`loss`] |
//! | acknowledgements that come in lumps | [`aggregation`] |
//! | pacing rate and window | [`control`] |
//! | the model itself | [`model`] |
//!
//! The record has no pointer and a little more bytes than CUBIC's. Called by [`super`] only.

mod aggregation;
mod bandwidth;
mod control;
mod loss;
mod model;
mod probe_bw;
mod probe_rtt;
mod signals;
mod startup;
#[cfg(test)]
mod tests;
mod units;

pub use model::{Ack, Bbr, SenderState, State, Steered};

use model::INFINITE;
use toe_base::Instant;
use units::Stamp;

impl Bbr {
    pub const fn state(&self) -> State {
        self.state
    }

    /// `struct tcp_bbr_info`: bandwidth in bytes a second, its lower and its upper half, the least round trip in µs, and the
    /// gains in parts of 256.
    pub fn info(&self) -> [u32; 5] {
        let bw = self.max_bw().bytes();
        let gain = |hundredths: u64| (hundredths * 256 / 100) as u32;
        let (pacing, cwnd) = (self.state.pacing_gain(), self.state.cwnd_gain());
        [bw as u32, (bw >> 32) as u32, self.min_rtt.us, gain(pacing), gain(cwnd)]
    }

    /// BBROnInit (section 5.2.1), as soon as there is something to begin with.
    fn start(&mut self, now: Instant, srtt_us: u32, delivered: u64, steered: &mut Steered<'_>) {
        self.started = true;
        self.min_rtt.us = if srtt_us > 0 { srtt_us } else { INFINITE };
        self.min_rtt.stamp = Stamp::of(now);
        self.min_rtt.probe.us = self.min_rtt.us;
        self.min_rtt.probe.stamp = Stamp::of(now);
        self.extra.start_us = now.as_micros() as u32;
        self.rounds.begin(delivered);
        self.signals.loss_round = self.rounds.next;
        self.init_pacing(srtt_us, steered);
    }

    /// BBRUpdateOnACK (section 5.2.3). Returns whether the samples of what is out now are to count as the program's limit.
    pub fn on_ack(&mut self, ack: &Ack, steered: &mut Steered<'_>) -> bool {
        if !self.started {
            self.start(ack.now, ack.sender.srtt_us, ack.delivered - u64::from(ack.newly_acked), steered);
        }
        self.note_losses(ack, *steered.cwnd);
        if ack.newly_acked == 0 {
            return false;
        }
        self.update_latest_signals(ack);
        self.update_max_bw(ack);
        self.adapt_short_term(ack, *steered.cwnd);
        self.update_aggregation(ack, *steered.cwnd);
        self.check_full_pipe(ack);
        self.check_startup_done(ack);
        self.check_drain_done(ack, steered);
        self.update_probe_bw(ack, *steered.cwnd, steered);
        self.update_min_rtt(ack);
        let holds_back = self.check_probe_rtt(ack, steered);
        self.advance_latest_signals(ack);
        self.set_pacing(steered);
        self.set_cwnd(ack, steered);
        holds_back
    }

    /// Something goes out after nothing was (section 5.4.1): the first data, or the first after a pause of the program.
    pub fn on_restart(
        &mut self,
        now: Instant,
        srtt_us: u32,
        delivered: u64,
        app_limited: bool,
        steered: &mut Steered<'_>,
    ) {
        if !self.started {
            self.start(now, srtt_us, delivered, steered);
        } else if app_limited {
            self.idle_restart = true;
            self.extra.start_us = now.as_micros() as u32;
            if self.state.is_probe_bw() {
                self.set_pacing_with(100, steered);
            } else if self.state == State::ProbeRtt {
                self.check_probe_rtt_done(now, delivered, 0, steered);
            }
        }
    }

    /// A recovery begins, after a loss or a time-out (section 5.6.4.4).
    pub fn recovery_begins(&mut self, cwnd: u32, in_recovery: bool) {
        self.save_cwnd(cwnd, in_recovery);
        self.save_for_undo();
    }
}
