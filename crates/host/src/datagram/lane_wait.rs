//! poll and select on UDP sockets that have lanes beside the kernel's queue, or may get some meanwhile: what is in
//! a lane is told, and with nothing there the lanes are diverted, so that whatever comes wakes the kernel's call.

use super::Datagram;
use crate::fd_table;
use core::ffi::c_int;
use libc::pollfd;

/// Sockets of one call; those beyond have no lanes to receive by any more.
const SOCKETS_MAX: usize = 16;

/// What poll says of a socket with something to be received.
const READABLE: i16 = libc::POLLIN | libc::POLLRDNORM;

/// The sockets that a call waits for.
#[derive(Debug)]
pub struct LaneWait {
    /// Whose lanes are diverted until the call is over.
    asleep: [Option<(&'static Datagram, u32)>; SOCKETS_MAX],
    asleep_count: usize,
    /// Where something is in a lane.
    readable: [c_int; SOCKETS_MAX],
    readable_count: usize,
}

impl LaneWait {
    /// The call is about to wait until one of these can be read from. What is done of it is done within `enter`.
    pub fn begin(fds: impl Iterator<Item = c_int>, enter: impl Fn(&mut dyn FnMut())) -> LaneWait {
        let mut wait = LaneWait {
            asleep: [None; SOCKETS_MAX],
            asleep_count: 0,
            readable: [-1; SOCKETS_MAX],
            readable_count: 0,
        };
        for fd in fds {
            if let Some(datagram) = fd_table::datagram(fd) {
                enter(&mut || wait.add(fd, datagram));
            } else if let Some(set) = fd_table::epoll_set(fd) {
                // What is in lanes of its sockets this call does not see.
                enter(&mut || set.leave_lanes());
            }
        }
        wait
    }

    fn add(&mut self, fd: c_int, datagram: &'static Datagram) {
        if self.asleep_count == SOCKETS_MAX {
            datagram.receive_from_kernel();
        }
        match datagram.begin_wait() {
            Some(generation) => match self.asleep.get_mut(self.asleep_count) {
                Some(slot) => {
                    *slot = Some((datagram, generation));
                    self.asleep_count += 1;
                }
                None => datagram.end_wait(generation),
            },
            None => {
                if let Some(slot) = self.readable.get_mut(self.readable_count) {
                    *slot = fd;
                    self.readable_count += 1;
                }
            }
        }
    }

    /// Something is in a lane: the kernel's call must not wait.
    pub fn is_over(&self) -> bool {
        self.readable_count > 0
    }

    /// Those with something in a lane.
    fn readable(&self) -> &[c_int] {
        &self.readable[..self.readable_count]
    }

    /// The call is over.
    fn end(&self) {
        for (datagram, generation) in self.asleep.iter().flatten() {
            datagram.end_wait(*generation);
        }
    }

    /// What poll tells: `ready` of these, says the kernel.
    pub fn end_poll(self, fds: &mut [pollfd], ready: c_int) -> c_int {
        self.end();
        if ready < 0 {
            return ready;
        }
        let mut more = 0;
        for polled in fds.iter_mut().filter(|polled| self.readable().contains(&polled.fd)) {
            let reported = polled.events & READABLE;
            more += c_int::from(polled.revents == 0 && reported != 0);
            polled.revents |= reported;
        }
        ready + more
    }

    /// The same of select; `add` puts one into the set of those that can be read from, and says whether it was not there.
    pub fn end_select(self, ready: c_int, mut add: impl FnMut(c_int) -> bool) -> c_int {
        self.end();
        if ready < 0 {
            return ready;
        }
        ready + self.readable().iter().filter(|fd| add(**fd)).count() as c_int
    }
}
