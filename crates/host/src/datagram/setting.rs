//! Options that a program sets on a UDP socket, and what they do to its lanes.

use crate::datagram::Datagram;
use crate::datagram::options::{SendOptions, ancillary_by, option};
use core::ffi::c_int;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;

impl Datagram {
    /// The program is about to set an option. What changes where datagrams go, or how many wait, is looked at anew by the engine. `false`: lanes
    /// do not do it ([`Datagram::leave_to_kernel`]).
    pub fn may_set(&self, level: c_int, name: c_int) -> bool {
        match (level, name) {
            _ if ancillary_by(level, name).is_some() => {}
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {}
            (
                libc::SOL_SOCKET,
                libc::SO_SNDBUF
                | libc::SO_RCVTIMEO
                | libc::SO_SNDTIMEO
                | libc::SO_LINGER
                | libc::SO_KEEPALIVE,
            ) => {}
            (
                libc::SOL_SOCKET,
                libc::SO_RCVBUF
                | libc::SO_RCVBUFFORCE
                | libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_PRIORITY,
            )
            | (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_TTL | libc::IP_MTU_DISCOVER)
            | (
                libc::IPPROTO_IPV6,
                libc::IPV6_V6ONLY
                | libc::IPV6_TCLASS
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_DONTFRAG,
            ) => self.meet_again(),
            _ => return false,
        }
        true
    }

    /// The kernel has set an option: what lanes have to know of it is what that says now.
    pub fn was_set(&self, fd: RawFd, level: c_int, name: c_int) {
        if let Some(ancillary) = ancillary_by(level, name) {
            match option(fd, level, name).is_some_and(|is_on| is_on != 0) {
                true => self.ancillary.fetch_or(ancillary.0, Ordering::Relaxed),
                false => self.ancillary.fetch_and(!ancillary.0, Ordering::Relaxed),
            };
        }
        if self.has_engine() {
            self.by_engine.lock().options = SendOptions::read(fd);
        }
        if self.sends_by_lanes() {
            self.outgoing.lock().options = SendOptions::read(fd);
        }
    }
}
