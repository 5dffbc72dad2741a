//! Waiting for a condition. Used by everything here that starts something; nothing waits for a fixed time.

use std::time::{Duration, Instant};

/// How long a start, a stop or a small request may take before a test fails. Generous: the machine may be busy.
pub const SOON: Duration = Duration::from_secs(20);

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks again and again until `look` gives a value, and returns it and how long it took.
///
/// # Panics
/// When there is none within `limit`; the message names `what`.
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> (T, Duration) {
    let start = Instant::now();
    loop {
        if let Some(value) = look() {
            return (value, start.elapsed());
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// [`until`] for a plain condition.
pub fn until_true(what: &str, limit: Duration, mut look: impl FnMut() -> bool) -> Duration {
    until(what, limit, || look().then_some(())).1
}
