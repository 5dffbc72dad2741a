//! Round-trip time and the retransmission time-out (RFC 6298).

use crate::ack_event::{AckEvent, RttSample};
use crate::record::{PathState, RoundTrip, Tcb};
use toe_base::Instant;

/// RFC 6298 section 2.1.
pub const RTO_INITIAL_US: u32 = 1_000_000;
/// RFC 6298 section 5.7.
pub const RTO_AFTER_LOST_SYN_US: u32 = 3_000_000;
/// What the time-out exceeds the round trip by at least, as Linux has it, in the place of RFC 6298's least time-out of one second:
/// it spares silence on short paths, and on long steady ones, whose variance comes near to nothing, an ACK that is a little
/// late brings no time-out in vain.
pub const RTO_MARGIN_MIN_US: u32 = 200_000;
/// RFC 6298 section 2.5 allows a ceiling of at least 60 s; Linux has 120 s.
pub const RTO_MAX_US: u32 = 120_000_000;
/// How long the least round trip counts (as Linux has it; RFC 8985 section 6.2 step 1 leaves it open).
const MIN_RTT_WINDOW_US: u64 = 300_000_000;
/// Timers that say less than this wait so long.
pub const GRANULARITY_US: u64 = 1_000;

impl RoundTrip {
    /// A record with no measurement yet.
    pub fn initial() -> RoundTrip {
        RoundTrip { rto_us: RTO_INITIAL_US, ..RoundTrip::default() }
    }

    /// The time-out, doubled so many times.
    pub fn timeout_us(&self, backoff: u8) -> u64 {
        (u64::from(self.rto_us) << backoff.min(16)).min(u64::from(RTO_MAX_US))
    }

    /// An ACK arrived: `sample` of what was sent once, or else the timestamp's echo (RFC 7323 section 4.1), in
    /// milliseconds and so coarser, but it tells the transmissions of one segment apart. Returns whether it tells of a round trip: then the
    /// time-out is not doubled any more.
    pub fn acknowledged(
        &mut self,
        sample: &RttSample,
        event: &AckEvent,
        timestamp: u32,
        now: Instant,
    ) -> bool {
        if let Some(latest_us) = sample.latest {
            self.note_least(latest_us, now);
        }
        if let Some(first_us) = sample.first {
            self.sample(first_us.min(RTO_MAX_US));
            return true;
        } else if let Some(echo) = event.echo.filter(|echo| event.acked > 0 && *echo != 0) {
            let ms = timestamp.wrapping_sub(echo);
            if (ms as i32) >= 0 && ms < RTO_MAX_US / 1000 {
                self.sample(ms * 1000);
                return true;
            }
        }
        false
    }

    fn note_least(&mut self, us: u32, now: Instant) {
        let us = us.max(1);
        if self.min_us == 0 || us <= self.min_us || now.since_us(self.min_at) > MIN_RTT_WINDOW_US {
            self.min_us = us;
            self.min_at = now;
        }
    }

    /// RFC 6298 sections 2.2 and 2.3.
    pub(super) fn sample(&mut self, r_us: u32) {
        let r_us = r_us.max(1);
        if self.srtt_us == 0 {
            self.srtt_us = r_us;
            self.rttvar_us = r_us / 2;
        } else {
            let error = self.srtt_us.abs_diff(r_us);
            self.rttvar_us = self.rttvar_us - self.rttvar_us / 4 + error / 4;
            self.srtt_us = (self.srtt_us - self.srtt_us / 8 + r_us / 8).max(1);
        }
        let rto = self.srtt_us.saturating_add(RTO_MARGIN_MIN_US.max(4 * self.rttvar_us));
        self.rto_us = rto.min(RTO_MAX_US);
    }
}

/// Between local ends only want of memory or of a place in a backlog drops a segment, and it may end at any moment:
/// the time-out starts at this and is doubled up to that.
const RETRANSMIT_LOCAL_US: core::ops::RangeInclusive<u64> = 10_000..=200_000;

/// When to send again what is not acknowledged.
pub fn retransmit_us(tcb: &Tcb, path: &PathState) -> u64 {
    if tcb.is_local {
        (RETRANSMIT_LOCAL_US.start() << tcb.sending.backoff.min(16)).min(*RETRANSMIT_LOCAL_US.end())
    } else {
        path.rtt.timeout_us(tcb.sending.backoff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(us: u32) -> RttSample {
        RttSample { first: Some(us), latest: Some(us) }
    }

    #[test]
    fn the_first_sample_sets_and_later_ones_smooth() {
        let mut rtt = RoundTrip::initial();
        assert_eq!(rtt.timeout_us(0), 1_000_000);
        rtt.acknowledged(&once(400_000), &AckEvent::default(), 0, Instant::from_millis(400));
        assert_eq!((rtt.srtt_us, rtt.rttvar_us), (400_000, 200_000));
        assert_eq!(rtt.rto_us, 1_200_000);
        rtt.acknowledged(&once(400_000), &AckEvent::default(), 0, Instant::from_millis(1400));
        assert_eq!((rtt.srtt_us, rtt.rttvar_us), (400_000, 150_000));
        rtt.acknowledged(&once(800_000), &AckEvent::default(), 0, Instant::from_millis(2400));
        // RTTVAR by the SRTT of before: 3/4 of 150 and a quarter of 400; SRTT: 7/8 of 400 and an eighth of 800.
        assert_eq!((rtt.srtt_us, rtt.rttvar_us), (450_000, 212_500));
    }

    #[test]
    fn karn_what_was_sent_again_counts_by_its_timestamp_only() {
        let mut rtt = RoundTrip::initial();
        let none = RttSample::default();
        let event = AckEvent { acked: 100, ..AckEvent::default() };
        rtt.acknowledged(&none, &event, 5000, Instant::from_millis(5000));
        assert_eq!(rtt.srtt_us, 0);
        let event = AckEvent { echo: Some(4970), ..event };
        rtt.acknowledged(&none, &event, 5000, Instant::from_millis(5000));
        assert_eq!(rtt.srtt_us, 30_000);
    }

    #[test]
    fn an_echo_of_what_was_never_sent_is_no_measurement() {
        let mut rtt = RoundTrip::initial();
        for echo in [5001, 5000u32.wrapping_sub(RTO_MAX_US / 1000)] {
            let event = AckEvent { acked: 100, echo: Some(echo), ..AckEvent::default() };
            rtt.acknowledged(&RttSample::default(), &event, 5000, Instant::from_millis(5000));
        }
        assert_eq!((rtt.srtt_us, rtt.rto_us), (0, RTO_INITIAL_US));
    }

    #[test]
    fn the_least_round_trip_is_forgotten_after_a_while() {
        let mut rtt = RoundTrip::initial();
        for (at_s, us, least) in [(1, 500, 500), (2, 900, 500), (3, 400, 400), (400, 900, 900)] {
            let now = Instant::from_millis(at_s * 1000);
            rtt.acknowledged(&once(us), &AckEvent::default(), 0, now);
            assert_eq!(rtt.min_us, least);
        }
    }

    #[test]
    fn doubling_stops_at_the_ceiling() {
        let rtt = RoundTrip::initial();
        assert_eq!(rtt.timeout_us(200), u64::from(RTO_MAX_US));
    }
}
