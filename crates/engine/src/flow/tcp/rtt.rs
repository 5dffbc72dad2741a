//! Round-trip time and the retransmission time-out (RFC 6298).

use crate::flow::record::RoundTrip;
use toe_base::{Instant, SeqNum};

/// RFC 6298 section 2.1.
pub const RTO_INITIAL_US: u32 = 1_000_000;
/// Below RFC 6298's one second, as Linux has it: it spares a second of silence on short paths, and the variance
/// term keeps it safe on longer ones.
pub const RTO_MIN_US: u32 = 200_000;
/// RFC 6298 section 2.5 allows a ceiling of at least 60 s; Linux has 120 s.
pub const RTO_MAX_US: u32 = 120_000_000;
/// Clock granularity G.
const GRANULARITY_US: u32 = 1_000;

impl RoundTrip {
    /// A record with no measurement yet.
    pub fn initial() -> RoundTrip {
        RoundTrip { rto_us: RTO_INITIAL_US, ..RoundTrip::default() }
    }

    /// The time-out with its doublings.
    pub fn timeout_us(&self) -> u64 {
        (u64::from(self.rto_us) << self.backoff.min(16)).min(u64::from(RTO_MAX_US))
    }

    /// Starts timing the octet at `seq`, unless another is being timed.
    pub fn start(&mut self, seq: SeqNum, now: Instant) {
        if self.timing.is_none() {
            self.timing = Some((seq, now));
        }
    }

    /// Something was sent again: what is being timed would be ambiguous (Karn's algorithm, RFC 6298 section 3).
    pub fn cancel(&mut self) {
        self.timing = None;
    }

    /// `ack` arrived.
    pub fn acknowledged(&mut self, ack: SeqNum, now: Instant) {
        if let Some((seq, sent)) = self.timing
            && ack.after(seq)
        {
            self.timing = None;
            self.sample(now.since_us(sent).min(u64::from(RTO_MAX_US)) as u32);
        }
    }

    /// RFC 6298 sections 2.2 and 2.3.
    fn sample(&mut self, r_us: u32) {
        let r_us = r_us.max(1);
        if self.srtt_us == 0 {
            self.srtt_us = r_us;
            self.rttvar_us = r_us / 2;
        } else {
            let error = self.srtt_us.abs_diff(r_us);
            self.rttvar_us = self.rttvar_us - self.rttvar_us / 4 + error / 4;
            self.srtt_us = (self.srtt_us - self.srtt_us / 8 + r_us / 8).max(1);
        }
        let rto = self.srtt_us.saturating_add(GRANULARITY_US.max(4 * self.rttvar_us));
        self.rto_us = rto.clamp(RTO_MIN_US, RTO_MAX_US);
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_sets_and_later_ones_smooth() {
        let mut rtt = RoundTrip::initial();
        assert_eq!(rtt.timeout_us(), 1_000_000);
        rtt.start(SeqNum::new(10), Instant::ZERO);
        rtt.acknowledged(SeqNum::new(10), Instant::from_millis(5));
        assert!(rtt.timing.is_some(), "an ACK up to the octet does not cover it");
        rtt.acknowledged(SeqNum::new(11), Instant::from_millis(400));
        assert_eq!((rtt.srtt_us, rtt.rttvar_us), (400_000, 200_000));
        assert_eq!(rtt.rto_us, 1_200_000);
        rtt.start(SeqNum::new(20), Instant::from_millis(1000));
        rtt.acknowledged(SeqNum::new(30), Instant::from_millis(1400));
        assert_eq!((rtt.srtt_us, rtt.rttvar_us), (400_000, 150_000));
    }

    #[test]
    fn karn_no_sample_from_what_was_sent_again() {
        let mut rtt = RoundTrip::initial();
        rtt.start(SeqNum::new(10), Instant::ZERO);
        rtt.cancel();
        rtt.acknowledged(SeqNum::new(11), Instant::from_millis(1));
        assert_eq!(rtt.srtt_us, 0);
    }

    #[test]
    fn doubling_stops_at_the_ceiling() {
        let mut rtt = RoundTrip::initial();
        rtt.backoff = 200;
        assert_eq!(rtt.timeout_us(), u64::from(RTO_MAX_US));
    }
}
