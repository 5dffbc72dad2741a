//! A call that receives: by a lane, or by the kernel's own call, as [`Datagram::receive`] says step by step. Called by the switch layer and the C API,
//! whose kernel's calls differ.

use super::{Datagram, Receive, Step, Taken};
use crate::{confine, signals, sys, wait};
use core::ffi::c_int;
use libc::ssize_t;
use rustix::fd::RawFd;
use rustix::net::sockopt::{self, Timeout};
use std::io::IoSliceMut;
use toe_abi::errno::Errno;

/// What the kernel is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub flags: c_int,
    /// One datagram: the next may be younger than what is in a lane.
    pub one: bool,
    /// It waits within the library, by [`sys::call`]: a signal that came before it began ends it too.
    pub sleeps: bool,
}

impl Datagram {
    /// `kernel` makes the call, which sets errno; each look at the lanes is made within `step`. `Err`: what the kernel's call gave.
    pub fn receive_beside(
        &self,
        fd: RawFd,
        into: &mut [IoSliceMut<'_>],
        flags: c_int,
        mut step: impl FnMut(&mut dyn FnMut() -> Step) -> Step,
        mut kernel: impl FnMut(Kernel) -> ssize_t,
    ) -> Result<Taken, ssize_t> {
        let waits = flags & libc::MSG_DONTWAIT == 0 && !self.nonblocking();
        if flags & libc::MSG_ERRQUEUE != 0 || !waits && !self.receives_by_lanes() {
            return Err(kernel(Kernel { flags, one: false, sleeps: false }));
        }
        let how = Receive { peeks: flags & libc::MSG_PEEK != 0, waits };
        let mut empty = None;
        loop {
            let next = if self.receives_by_lanes() {
                step(&mut || receive_asleep(self, fd, into, flags, (how, empty), &mut kernel))
            } else {
                match self.begin_wait_without_lanes() {
                    Some(generation) => Step::Sleep { generation },
                    // It has got one just now.
                    None => continue,
                }
            };
            match next {
                Step::Took(taken) => return Ok(taken),
                Step::Failed(error) => {
                    sys::set_errno(error);
                    return Err(-1);
                }
                Step::Sleep { generation } => {
                    let got = kernel(Kernel { flags, one: false, sleeps: false });
                    self.end_wait(generation);
                    return Err(got);
                }
                Step::Slept(got) => return Err(got),
                Step::Kernel { one, look } => {
                    let got = kernel(Kernel { flags: flags | libc::MSG_DONTWAIT, one, sleeps: false });
                    if got >= 0 || sys::last_errno() != Errno::EAGAIN {
                        return Err(got);
                    }
                    empty = Some(look);
                }
            }
        }
    }
}

/// [`Datagram::receive`], which sleeps where that says so: as a part of the same step, since a signal that comes while it
/// looks at the lanes has come during the call.
fn receive_asleep(
    datagram: &Datagram,
    fd: RawFd,
    into: &mut [IoSliceMut<'_>],
    flags: c_int,
    (how, empty): (Receive, Option<u32>),
    kernel: &mut impl FnMut(Kernel) -> ssize_t,
) -> Step {
    loop {
        let generation = match datagram.receive(fd, into, how, empty) {
            Step::Sleep { generation } => generation,
            other => return other,
        };
        let (slept, _) = wait::sleep(None, || match kernel(Kernel { flags, one: false, sleeps: true }) {
            got @ 0.. => Ok(got.unsigned_abs()),
            _ => Err(sys::last_errno()),
        });
        datagram.end_wait(generation);
        match slept {
            Ok(got) => return Step::Slept(got.cast_signed()),
            Err(Errno::EINTR) if signals::all_restart() == Some(true) => {
                match wait::interrupted(has_time_limit(fd)) {
                    Ok(()) => {}
                    Err(error) => return Step::Failed(error),
                }
            }
            Err(error) => return Step::Failed(error),
        }
    }
}

/// SO_RCVTIMEO.
fn has_time_limit(fd: RawFd) -> bool {
    let limit = || sockopt::socket_timeout(sys::borrow(fd), Timeout::Recv);
    !confine::is_filtered() && limit().is_ok_and(|limit| limit.is_some())
}
