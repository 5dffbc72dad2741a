//! BBR.extra_acked (section 5.5.9): how much comes acknowledged at once beyond what the bandwidth explains. The window is
//! larger by that, so that the sender is not idle between lumps.

use super::model::{Ack, Aggregation, Bbr};

/// Half of BBRExtraAckedFilterLen: the window of the maximum is kept in two parts.
const HALF_WINDOW_ROUNDS: u8 = 5;

impl Bbr {
    /// BBRUpdateACKAggregation.
    pub(super) fn update_aggregation(&mut self, ack: &Ack, cwnd: u32) {
        if self.rounds.start {
            self.extra.rounds += 1;
            let rounds = if self.full_bw.reached { HALF_WINDOW_ROUNDS } else { 1 };
            if self.extra.rounds >= rounds {
                self.extra.rounds = 0;
                self.extra.acked = [self.extra.acked[1], 0];
            }
        }
        let now_us = ack.now.as_micros() as u32;
        let mut expected = self.bw().bytes_in(u64::from(now_us.wrapping_sub(self.extra.start_us)));
        if u64::from(self.extra.delivered) <= expected {
            self.extra.delivered = 0;
            self.extra.start_us = now_us;
            expected = 0;
        }
        self.extra.delivered = self.extra.delivered.saturating_add(ack.newly_acked);
        let extra = u64::from(self.extra.delivered).saturating_sub(expected).min(u64::from(cwnd)) as u32;
        self.extra.acked[1] = self.extra.acked[1].max(extra);
    }
}

impl Aggregation {
    pub(super) fn most(&self) -> u32 {
        self.acked[0].max(self.acked[1])
    }
}
