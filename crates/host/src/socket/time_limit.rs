//! How long a call on a socket waits: SO_RCVTIMEO and SO_SNDTIMEO.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use toe_abi::errno::Errno;

/// No time: whoever would wait does not.
const AT_ONCE: u64 = u64::MAX;

/// One of the two, in µs; 0: none.
#[derive(Debug, Default)]
pub struct TimeLimit(AtomicU64);

/// Both.
#[derive(Debug, Default)]
pub struct TimeLimits {
    pub receive: TimeLimit,
    pub send: TimeLimit,
}

impl TimeLimit {
    /// From a `struct timeval`. EDOM: its microseconds are none.
    pub fn set(&self, value: &[u8]) -> Result<(), Errno> {
        let (secs, rest) = value.split_first_chunk().ok_or(Errno::EINVAL)?;
        let (secs, us) = (i64::from_ne_bytes(*secs), rest.first_chunk().ok_or(Errno::EINVAL)?);
        let us = i64::from_ne_bytes(*us);
        if !(0..1_000_000).contains(&us) {
            return Err(crate::errno::EDOM);
        }
        let limit = match u64::try_from(secs) {
            Ok(secs) => secs.saturating_mul(1_000_000).saturating_add(us as u64).min(AT_ONCE - 1),
            Err(_) => AT_ONCE,
        };
        self.0.store(limit, Ordering::Relaxed);
        Ok(())
    }

    pub fn get(&self) -> Option<Duration> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            AT_ONCE => Some(Duration::ZERO),
            us => Some(Duration::from_micros(us)),
        }
    }

    /// As a `struct timeval`.
    pub fn value(&self) -> [u8; 16] {
        let us = self.get().unwrap_or_default().as_micros() as u64;
        let mut value = [0; 16];
        value[..8].copy_from_slice(&(us / 1_000_000).to_ne_bytes());
        value[8..].copy_from_slice(&(us % 1_000_000).to_ne_bytes());
        value
    }

    /// As it is written down for who else may come to have the connection.
    pub fn raw(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set_raw(&self, raw: u64) {
        self.0.store(raw, Ordering::Relaxed);
    }
}

impl TimeLimits {
    /// Each with the name of its option.
    pub fn named(&self) -> [(i32, &TimeLimit); 2] {
        [(libc::SO_RCVTIMEO, &self.receive), (libc::SO_SNDTIMEO, &self.send)]
    }

    /// They are as `others`.
    pub fn copy(&self, others: &TimeLimits) {
        self.receive.set_raw(others.receive.raw());
        self.send.set_raw(others.send.raw());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(secs: i64, us: i64) -> Vec<u8> {
        [secs.to_ne_bytes(), us.to_ne_bytes()].concat()
    }

    #[test]
    fn a_negative_time_limit_is_no_time() {
        let cell = TimeLimit::default();
        assert_eq!(cell.get(), None);
        assert_eq!(cell.set(&limit(-1, 0)), Ok(()));
        assert_eq!(cell.get(), Some(Duration::ZERO));
        assert_eq!(cell.value().to_vec(), limit(0, 0));
        assert_eq!(cell.set(&limit(i64::MAX, 7)), Ok(()));
        assert!(cell.get().is_some_and(|limit| limit > Duration::from_secs(1 << 40)));
        assert_eq!(cell.set(&limit(0, 1_000_000)), Err(crate::errno::EDOM));
        assert_eq!(cell.set(&limit(0, 0)), Ok(()));
        assert_eq!(cell.get(), None);
    }
}
