//! HyStart++ (RFC 9406): slow start ends when the round trip grows, before the queue on the path overflows.

use super::window::Growth;
use toe_base::SeqNum;

/// Constants of section 4.3.
const MIN_RTT_THRESH_US: u32 = 4_000;
const MAX_RTT_THRESH_US: u32 = 16_000;
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u8 = 8;
pub const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u8 = 5;

/// How fast slow start goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    Full,
    /// Conservative slow start.
    Conservative,
    /// The path is full.
    Leave,
}

/// Variables of section 4.2; times are 0 while unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HyStart {
    window_end: Option<SeqNum>,
    last_round_min_us: u32,
    this_round_min_us: u32,
    samples: u8,
    /// The least round trip when conservative slow start began, and its rounds so far.
    css_baseline_us: u32,
    css_rounds: u8,
    /// Only the first slow start is watched.
    done: bool,
}

impl HyStart {
    pub fn done(&mut self) {
        self.done = true;
    }

    pub fn on_ack(&mut self, growth: &Growth) -> Pace {
        if self.done {
            return Pace::Full;
        }
        if self.window_end.is_none_or(|end| growth.una.at_or_after(end)) {
            self.new_round(growth.nxt);
            if self.css_baseline_us > 0 {
                self.css_rounds += 1;
                if self.css_rounds >= CSS_ROUNDS {
                    self.done = true;
                    return Pace::Leave;
                }
            }
        }
        if let Some(rtt_us) = growth.rtt_us {
            self.samples = self.samples.saturating_add(1);
            let least = if self.this_round_min_us == 0 { rtt_us } else { self.this_round_min_us.min(rtt_us) };
            self.this_round_min_us = least.max(1);
        }
        if self.samples >= N_RTT_SAMPLE && self.last_round_min_us > 0 {
            self.compare();
        }
        if self.css_baseline_us > 0 { Pace::Conservative } else { Pace::Full }
    }

    fn compare(&mut self) {
        let thresh = (self.last_round_min_us / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH_US, MAX_RTT_THRESH_US);
        if self.css_baseline_us == 0 {
            if self.this_round_min_us >= self.last_round_min_us + thresh {
                self.css_baseline_us = self.this_round_min_us;
                self.css_rounds = 0;
            }
        } else if self.this_round_min_us < self.css_baseline_us {
            // It was a passing delay.
            self.css_baseline_us = 0;
        }
    }

    fn new_round(&mut self, nxt: SeqNum) {
        self.window_end = Some(nxt);
        self.last_round_min_us = self.this_round_min_us;
        self.this_round_min_us = 0;
        self.samples = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::Instant;

    /// One round of ten ACKs with a round trip.
    fn round(hystart: &mut HyStart, number: u32, rtt_us: u32) -> Pace {
        let mut pace = Pace::Full;
        for ack in 0..10 {
            let una = SeqNum::new(number * 1000 + ack * 100);
            pace = hystart.on_ack(&Growth {
                now: Instant::ZERO,
                acked: 100,
                mss: 100,
                srtt_us: rtt_us,
                rtt_us: Some(rtt_us),
                una,
                nxt: SeqNum::new((number + 1) * 1000),
            });
            if pace == Pace::Leave {
                break;
            }
        }
        pace
    }

    #[test]
    fn a_queue_that_builds_up_ends_slow_start() {
        let mut hystart = HyStart::default();
        assert_eq!(round(&mut hystart, 0, 20_000), Pace::Full);
        assert_eq!(round(&mut hystart, 1, 21_000), Pace::Full);
        assert_eq!(round(&mut hystart, 2, 26_000), Pace::Conservative);
        for number in 3..7 {
            assert_eq!(round(&mut hystart, number, 26_500), Pace::Conservative);
        }
        assert_eq!(round(&mut hystart, 7, 26_500), Pace::Leave);
    }

    /// RFC 9406 section 4.2.
    #[test]
    fn only_the_first_slow_start_is_watched() {
        let mut hystart = HyStart::default();
        hystart.done();
        for number in 0..10 {
            assert_eq!(round(&mut hystart, number, 20_000 * (number + 1)), Pace::Full);
        }
    }

    #[test]
    fn a_passing_delay_does_not() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 0, 20_000);
        assert_eq!(round(&mut hystart, 1, 26_000), Pace::Conservative);
        assert_eq!(round(&mut hystart, 2, 20_000), Pace::Full);
    }
}
