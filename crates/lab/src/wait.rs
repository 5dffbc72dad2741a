//! Waiting for a condition. Used by everything here that starts something; nothing waits for a fixed time.

use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a start, a stop or a small request may take. Generous: the machine may be busy.
pub const SOON: Duration = Duration::from_secs(20);

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Set once the user wants to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends every wait of this process, now and later, with [`Error::Interrupted`]; what is held then is dropped, and so
/// ended and removed.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Release);
}

/// Fails once [`interrupt`] was called.
pub fn check_interrupted() -> Result<()> {
    if INTERRUPTED.load(Ordering::Acquire) { Err(Error::Interrupted) } else { Ok(()) }
}

/// Looks again and again until `look` gives a value, and returns it and how long it took. The error names `what`.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<(T, Duration)> {
    let start = Instant::now();
    loop {
        if let Some(value) = look()? {
            return Ok((value, start.elapsed()));
        }
        check_interrupted()?;
        if start.elapsed() >= limit {
            return Err(Error::NotInTime { what: what.to_owned(), limit, said: String::new() });
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Waits for `look` while cleaning up: also when the user wants to end, and nothing fails if it takes too long.
pub fn briefly(limit: Duration, mut look: impl FnMut() -> bool) {
    let start = Instant::now();
    while !look() && start.elapsed() < limit {
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// [`until`] for a plain condition.
pub fn until_true(what: &str, limit: Duration, mut look: impl FnMut() -> bool) -> Result<Duration> {
    Ok(until(what, limit, || Ok(look().then_some(())))?.1)
}
