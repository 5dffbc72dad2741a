//! System calls that wait: the only ones that a signal may keep from being made ([`crate::signals::wait_call`]). All others are [`crate::sys`]'s.

use crate::signals::wait_call;
use crate::sys::{SIGSET_LEN, timespec};
use rustix::fd::RawFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use toe_abi::errno::Errno;

fn syscall(number: libc::c_long, args: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: needed for the calls that rustix has no form of (a signal mask beside a timeout) or that must not be missed by a signal. Each caller
    // in this file passes pointers to live memory of the length that the call takes, or null.
    let result = unsafe { wait_call(number, args) };
    usize::try_from(result).map_err(|_| Errno(result.unsigned_abs() as u16))
}

/// `ppoll(2)`.
pub fn ppoll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    // The kernel writes the time left into it.
    let mut time = timeout.map(timespec);
    let time = time.as_mut().map_or(0, |t| std::ptr::from_mut(t) as usize);
    let mask = sigmask.map_or(0, |m| std::ptr::from_ref(m) as usize);
    syscall(libc::SYS_ppoll, [fds.as_mut_ptr() as usize, fds.len(), time, mask, SIGSET_LEN, 0])
}

/// `pselect(2)`, of sets of bits that are equally long.
pub fn pselect(
    sets: &mut [Vec<usize>; 3],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let mut time = timeout.map(timespec);
    let time = time.as_mut().map_or(0, |t| std::ptr::from_mut(t) as usize);
    let mask = [sigmask.map_or(0, |m| std::ptr::from_ref(m) as usize), SIGSET_LEN];
    let bits = sets.iter().map(Vec::len).min().unwrap_or(0) * usize::BITS as usize;
    let [read, write, except] = sets.each_mut().map(|set| set.as_mut_ptr() as usize);
    syscall(libc::SYS_pselect6, [bits, read, write, except, time, mask.as_ptr() as usize])
}

/// Sleeps as long as `word` is `value` (`futex(2)`). ETIMEDOUT: for this long.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Option<Duration>) -> Result<usize, Errno> {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as usize);
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    syscall(libc::SYS_futex, [word.as_ptr() as usize, operation, value as usize, time, 0, 0])
}

/// `epoll_pwait2(2)`, or `epoll_pwait(2)` where the kernel has no such call.
pub fn epoll_pwait(
    epfd: RawFd,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let time = timeout.map(timespec);
    let time_at = time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as usize);
    let mask = sigmask.map_or(0, |m| std::ptr::from_ref(m) as usize);
    let common = [epfd as usize, events.as_mut_ptr() as usize, events.len(), time_at, mask, SIGSET_LEN];
    const ENOSYS: Errno = Errno(38);
    match syscall(libc::SYS_epoll_pwait2, common) {
        Err(ENOSYS) => {
            let ms =
                timeout.map_or(-1, |t| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
            let [epfd, events, len, _, mask, size] = common;
            syscall(libc::SYS_epoll_pwait, [epfd, events, len, ms as usize, mask, size])
        }
        other => other,
    }
}
