//! How loaded the engine is: for hosts that can choose one of several engines, and for `toe status`. The run loop tells
//! it of every round, and tells the sessions what it says now and then.

use toe_abi::region::Load;
use toe_base::Instant;

/// Over so long a time it is measured.
const WINDOW_US: u64 = 100_000;
/// The count of connections is told after so long, or before the engine sleeps.
const TELL_EVERY_US: u64 = 10_000;

/// What the engine did with its time.
#[derive(Debug)]
pub struct Meter {
    /// When the time that is being measured began, and how much of it was work.
    since: Instant,
    worked_us: u64,
    last_round: Instant,
    last_moved: bool,
    /// Of the time before that.
    busy_permille: u32,
    reported_at: Instant,
    reported_flows: u32,
}

impl Default for Meter {
    fn default() -> Meter {
        let start = Instant::ZERO;
        Meter {
            since: start,
            worked_us: 0,
            last_round: start,
            last_moved: false,
            busy_permille: 0,
            reported_at: start,
            reported_flows: 0,
        }
    }
}

impl Meter {
    /// A round began at `now`; `moved`: it had something to do. The time until the next one counts as it does.
    pub fn round(&mut self, now: Instant, moved: bool) {
        if self.last_moved {
            self.worked_us += now.since_us(self.last_round);
        }
        (self.last_round, self.last_moved) = (now, moved);
        let measured_us = now.since_us(self.since);
        if measured_us >= WINDOW_US {
            self.busy_permille = (self.worked_us * 1000 / measured_us).min(1000) as u32;
            (self.since, self.worked_us) = (now, 0);
        }
    }

    /// Whether the sessions are to be told now: it is time, or the engine is about to sleep and what they know is not true.
    pub fn is_due(&mut self, now: Instant, flows: u32, sleeps: bool) -> bool {
        let due = now.since_us(self.reported_at) >= TELL_EVERY_US || (sleeps && flows != self.reported_flows);
        if due {
            (self.reported_at, self.reported_flows) = (now, flows);
        }
        due
    }

    /// Of the last time that was measured, the thousandths in which there was work. None is left of it when the engine
    /// has slept since.
    pub fn busy_permille(&self, now: Instant) -> u32 {
        if now.since_us(self.last_round) > WINDOW_US { 0 } else { self.busy_permille }
    }

    /// What the sessions are told.
    pub fn load(&self, now: Instant, flows: u32) -> Load {
        Load { flows, busy_permille: self.busy_permille(now), at_ms: monotonic_ms() }
    }
}

/// What hosts compare with their own clock, which is the same.
fn monotonic_ms() -> u32 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    #[test]
    fn a_quarter_of_the_time_is_250_permille() {
        let mut meter = Meter::default();
        for round in 0..1000 {
            // 100 µs of work, 300 of nothing.
            meter.round(at(round * 400), true);
            meter.round(at(round * 400 + 100), false);
        }
        assert_eq!(meter.busy_permille(at(400_000)), 250);
        assert_eq!(meter.busy_permille(at(600_000)), 0, "it has slept since");
    }

    #[test]
    fn hosts_are_told_in_time_and_before_a_sleep() {
        let mut meter = Meter::default();
        assert!(meter.is_due(at(10_000), 1, false));
        assert!(!meter.is_due(at(10_100), 2, false));
        assert!(meter.is_due(at(10_200), 2, true));
        assert!(!meter.is_due(at(10_300), 2, true), "nothing new");
        assert!(meter.is_due(at(30_000), 2, false));
    }
}
