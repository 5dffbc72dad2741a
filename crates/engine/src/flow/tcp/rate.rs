//! How fast octets arrive at the peer (draft-cheng-iccrg-delivery-rate-estimation), and pacing.
//! [`stamp`] when a stretch goes out, [`Sample`] when it is delivered.

use crate::flow::record::{DeliveryRate, Flow};
use crate::flow::scoreboard::{DeliveryStamp, SentRange};
use toe_base::Instant;

/// What to note of octets that go out now.
pub fn stamp(flow: &mut Flow, now: Instant) -> DeliveryStamp {
    if flow.pipe() == 0 {
        // Nothing is out: a new flight begins, and the time before it says nothing.
        flow.rate.first_sent_at = now;
        flow.rate.delivered_at = now;
    }
    DeliveryStamp {
        delivered: flow.rate.delivered,
        delivered_at: flow.rate.delivered_at,
        first_sent_at: flow.rate.first_sent_at,
        app_limited: flow.rate.app_limited_until > flow.rate.delivered,
    }
}

/// The program has nothing more to send while the window would allow it (section 3.3).
pub fn note_app_limited(flow: &mut Flow) {
    flow.rate.app_limited_until = (flow.rate.delivered + u64::from(flow.pipe())).max(1);
}

/// The most recently sent of what one ACK delivered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    latest: Option<(Instant, DeliveryStamp)>,
}

impl Sample {
    pub fn take(&mut self, range: &SentRange) {
        if self.latest.is_none_or(|(_, stamp)| range.stamp.delivered >= stamp.delivered) {
            self.latest = Some((range.sent_at, range.stamp));
        }
    }

    /// `octets` were delivered by this ACK.
    pub fn finish(self, rate: &mut DeliveryRate, octets: u32, min_rtt_us: u32, now: Instant) {
        rate.delivered += u64::from(octets);
        if octets > 0 {
            rate.delivered_at = now;
        }
        let Some((sent_at, stamp)) = self.latest else { return };
        rate.first_sent_at = sent_at;
        let send_us = sent_at.since_us(stamp.first_sent_at);
        let ack_us = now.since_us(stamp.delivered_at);
        let interval_us = send_us.max(ack_us);
        // Shorter than any round trip: ACKs that came in a bunch.
        if interval_us == 0 || interval_us < u64::from(min_rtt_us) {
            return;
        }
        let sample = (rate.delivered - stamp.delivered).saturating_mul(1_000_000) / interval_us;
        // What a program held back says only that the path can do at least so much.
        if !stamp.app_limited || sample >= rate.latest {
            rate.latest = sample;
            rate.latest_app_limited = stamp.app_limited;
        }
    }
}
