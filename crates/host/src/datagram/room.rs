//! What a call does that finds the lane to the engine full: what Linux does where a socket's send buffer is full. One that may wait waits, until
//! SO_SNDTIMEO is over, a signal comes or the thread is cancelled; another is told EAGAIN. Nothing is lost here. Called by `by_engine`.
//!
//! The kernel's socket, which programs wait for with poll and epoll, is writable all the time. So who is told EAGAIN is told of room at once,
//! in the way in which the kernel tells of it (EPOLLOUT, also with EPOLLET), and tries again; from the second attempt in a row on each sleeps
//! for a moment first, so that the processor is the engine's meanwhile.

use crate::{sys, wait, wait_calls};
use rustix::fd::RawFd;
use rustix::net::sockopt::{self, Timeout};
use std::time::Duration;
use toe_abi::errno::Errno;

/// Between two looks for room. A full lane is some ms of the engine's work, so it does not run empty meanwhile; who looked all the time took
/// more of the processors than the engine.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// Until there is room. EAGAIN: SO_SNDTIMEO is over.
pub(super) fn wait_for<T>(
    fd: RawFd,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    let limit = if sys::is_filtered() { None } else { limit_of(fd) };
    let deadline = limit.map(|limit| sys::now() + limit);
    loop {
        let left = deadline.map_or(LOOK_AGAIN, |deadline| deadline.saturating_sub(sys::now()));
        if left.is_zero() {
            return attempt()?.ok_or(Errno::EAGAIN);
        }
        // By the call that all waits sleep in: a filter of the program's that lets it wait lets it do this.
        let (slept, interrupted) =
            wait::sleep(None, || wait_calls::ppoll(&mut [], Some(left.min(LOOK_AGAIN)), None));
        if let Err(error) = slept
            && error != Errno::EINTR
        {
            return Err(error);
        }
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        if interrupted {
            wait::interrupted(deadline.is_some())?;
        }
    }
}

/// For a call that is not to wait. `again`: the one before it found no room either.
pub(super) fn look_again<T>(
    fd: RawFd,
    again: bool,
    attempt: &mut dyn FnMut() -> Result<Option<T>, Errno>,
) -> Result<T, Errno> {
    if again {
        let _ = wait_calls::ppoll(&mut [], Some(LOOK_AGAIN), None);
        if let Some(done) = attempt()? {
            return Ok(done);
        }
    }
    tell_of_room(fd);
    Err(Errno::EAGAIN)
}

/// SO_SNDTIMEO.
fn limit_of(fd: RawFd) -> Option<Duration> {
    sockopt::socket_timeout(sys::borrow(fd), Timeout::Send).ok().flatten()
}

/// Sets SO_SNDBUF to what it is, at which the kernel tells those who wait for a socket that it is writable (`sk_write_space`). The forced form
/// is for a buffer larger than the administrator's limit, to which the other one would shrink it.
fn tell_of_room(fd: RawFd) {
    if sys::is_filtered() {
        return;
    }
    let socket = sys::borrow(fd);
    // The kernel says twice as much as it was told.
    let Ok(bytes) = sockopt::socket_send_buffer_size(socket).map(|bytes| bytes / 2) else { return };
    if sockopt::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
    }
}
