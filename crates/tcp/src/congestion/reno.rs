//! Congestion avoidance of RFC 5681 section 3.1, equation 3, with bytes counted (RFC 3465): with big units one ACK stands
//! for many segments.

use super::window::Growth;

/// One segment a round trip.
pub fn avoid(cwnd: &mut u32, growth: &Growth) {
    // mss * acked / cwnd, and no less than a byte.
    let bytes = u64::from(growth.mss) * u64::from(growth.acked) / u64::from((*cwnd).max(1));
    *cwnd = cwnd.saturating_add((bytes as u32).max(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::{Instant, SeqNum};

    #[test]
    fn a_window_of_bytes_brings_one_segment() {
        let mut cwnd = 20_000;
        for _ in 0..20 {
            let growth = Growth {
                now: Instant::ZERO,
                acked: 1000,
                mss: 1000,
                srtt_us: 1,
                rtt_us: None,
                una: SeqNum::new(0),
                nxt: SeqNum::new(0),
            };
            avoid(&mut cwnd, &growth);
        }
        assert!((20_950..=21_000).contains(&cwnd), "{cwnd}");
    }
}
