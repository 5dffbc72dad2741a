//! How long a call may wait, and with what signal mask, as programs say it.

use core::ffi::c_int;
use core::time::Duration;
use libc::{sigset_t, timespec, timeval};
use toe::{Errno, program_memory};

/// A timeout of poll and epoll_wait: negative is none.
pub fn timeout_ms(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// A timespec, when it is a valid one.
pub fn duration_of(time: &timespec) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanoseconds = u32::try_from(time.tv_nsec).ok().filter(|&n| n < 1_000_000_000)?;
    Some(Duration::new(seconds, nanoseconds))
}

/// A timeout by pointer: null is none.
///
/// # Safety
/// `time` is null or readable.
pub unsafe fn timeout_of(time: *const timespec) -> Result<Option<Duration>, Errno> {
    if time.is_null() {
        return Ok(None);
    }
    // SAFETY: numbers, of which all are looked at.
    let time = unsafe { program_memory::read(time)? };
    duration_of(&time).map(Some).ok_or(Errno::EINVAL)
}

/// A signal mask by pointer: null is none. The kernel's is shorter than the C library's type.
///
/// # Safety
/// `mask` is null or points to a mask, if anything is there.
pub unsafe fn mask_at<'a>(mask: *const sigset_t) -> Result<Option<&'a sigset_t>, Errno> {
    if !mask.is_null() {
        program_memory::check(mask.cast::<u64>(), 1)?;
    }
    // SAFETY: the caller's promise; it is there.
    Ok(unsafe { mask.as_ref() })
}

/// Linux takes microseconds beyond a second, but nothing negative.
pub fn select_timeout(time: &timeval) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let microseconds = u64::try_from(time.tv_usec).ok()?;
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(microseconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_checked() {
        assert_eq!(timeout_ms(-1), None);
        assert_eq!(timeout_ms(5), Some(Duration::from_millis(5)));
        let time = |tv_sec, tv_nsec| duration_of(&timespec { tv_sec, tv_nsec });
        assert_eq!(time(1, 5), Some(Duration::new(1, 5)));
        assert_eq!(time(1, 1_000_000_000), None);
        assert_eq!(time(-1, 0), None);
        assert_eq!(select_timeout(&timeval { tv_sec: 1, tv_usec: 2_000_000 }), Some(Duration::from_secs(3)));
        assert_eq!(select_timeout(&timeval { tv_sec: 0, tv_usec: -1 }), None);
    }
}
