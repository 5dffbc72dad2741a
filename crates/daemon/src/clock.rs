//! The engine's clock. Read by the run loop, and by whoever measures what something takes.

use toe_base::{Forward, Instant};

/// The engine's clock starts here, so that "a while before now" is always a time.
const CLOCK_START_US: u64 = 1_000_000;

/// Virtual time from the machine's monotonic clock.
#[derive(Debug)]
pub(crate) struct Clock {
    start: std::time::Instant,
    /// A machine that is moved to another one may have a clock there that is behind.
    forward: Forward,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { start: std::time::Instant::now(), forward: Forward::default() }
    }

    pub(crate) fn now(&self) -> Instant {
        self.forward.follow(Instant::from_micros(CLOCK_START_US + self.start.elapsed().as_micros() as u64))
    }

    /// For measuring how long something took.
    pub(crate) fn nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    pub(crate) fn uptime_secs(&self) -> u64 {
        self.start.elapsed().as_secs()
    }
}
