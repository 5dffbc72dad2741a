//! A call that receives: by a lane, or by the kernel's own call, as [`Datagram::receive`] says step by step. Called by the switch layer and the C API,
//! whose kernel's calls differ.

use super::{Datagram, Receive, Step, Taken};
use crate::{signals, sys};
use core::ffi::c_int;
use libc::ssize_t;
use rustix::fd::RawFd;
use std::io::IoSliceMut;
use toe_abi::errno::Errno;

/// What the kernel is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub flags: c_int,
    /// One datagram: the next may be younger than what is in a lane.
    pub one: bool,
}

impl Datagram {
    /// `kernel` makes the call, which sets errno; each look at the lanes is made within `step`. `Err`: what the kernel's call gave.
    pub fn receive_with_kernel(
        &self,
        fd: RawFd,
        into: &mut [IoSliceMut<'_>],
        flags: c_int,
        mut step: impl FnMut(&mut dyn FnMut() -> Step) -> Step,
        mut kernel: impl FnMut(Kernel) -> ssize_t,
    ) -> Result<Taken, ssize_t> {
        let waits = flags & libc::MSG_DONTWAIT == 0 && !self.nonblocking();
        if flags & libc::MSG_ERRQUEUE != 0 || !waits && !self.receives_by_lanes() {
            return Err(kernel(Kernel { flags, one: false }));
        }
        let how = Receive { peeks: flags & libc::MSG_PEEK != 0, waits };
        let mut empty = None;
        loop {
            let next = if self.receives_by_lanes() {
                step(&mut || match self.receive(fd, into, how, empty) {
                    // It came while the lanes were looked at, which is a part of the call: the kernel's must not sleep.
                    Step::Sleep { generation } if signals::is_any_deferred() => {
                        self.end_wait(generation);
                        Step::Failed(super::taking::interruption(fd))
                    }
                    next => next,
                })
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
                    let got = kernel(Kernel { flags, one: false });
                    self.end_wait(generation);
                    return Err(got);
                }
                Step::Kernel { one, look } => {
                    let got = kernel(Kernel { flags: flags | libc::MSG_DONTWAIT, one });
                    if got >= 0 || sys::last_errno() != Errno::EAGAIN {
                        return Err(got);
                    }
                    empty = Some(look);
                }
            }
        }
    }
}
