//! Waiting for a condition, as [`toe_lab::wait`] does; here what does not come is a failed test.

pub use toe_lab::wait::SOON;

use std::time::Duration;

/// Looks again and again until `look` gives a value, and returns it and how long it took.
///
/// # Panics
/// When there is none within `limit`; the message names `what`.
#[track_caller]
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> (T, Duration) {
    crate::must(toe_lab::wait::until(what, limit, || Ok(look())))
}

/// [`until`] for a plain condition.
#[track_caller]
pub fn until_true(what: &str, limit: Duration, look: impl FnMut() -> bool) -> Duration {
    crate::must(toe_lab::wait::until_true(what, limit, look))
}
