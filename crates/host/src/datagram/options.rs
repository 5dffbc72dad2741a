//! What the program has set of a socket that lanes have to know: how its datagrams go, and what it wants to be told of those that come. The
//! kernel has all of it; here is what is needed with each datagram.

use crate::sys;
use core::ffi::c_int;
use rustix::fd::RawFd;
use rustix::net::sockopt;
use toe_base::Addr;

/// What the program says of a datagram beside where it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// IP_PKTINFO, IPV6_PKTINFO.
    pub from: Option<Addr>,
    /// UDP_SEGMENT.
    pub segment: Option<u16>,
    /// IP_TTL, IPV6_HOPLIMIT.
    pub hop_limit: Option<u8>,
    /// IP_TOS, IPV6_TCLASS.
    pub traffic_class: Option<u8>,
}

/// The same as setsockopt has set it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SendOptions {
    /// For IPv4 and IPv6. 0: the default.
    hop_limits: [u8; 2],
    traffic_classes: [u8; 2],
    /// By the number of a record.
    mtu_discover: [u8; 2],
    segment: u16,
}

/// linux/udp.h.
const UDP_SEGMENT: c_int = 103;

impl SendOptions {
    /// As the kernel has them.
    pub fn read(fd: RawFd) -> SendOptions {
        let socket = sys::borrow(fd);
        let small = |value: rustix::io::Result<u32>| value.map_or(0, |value| value as u8);
        let number = |level, name| option(fd, level, name);
        let plus_one = |value: Option<i32>| value.and_then(|value| u8::try_from(value + 1).ok()).unwrap_or(0);
        SendOptions {
            // Of a socket of IPv4 there is nothing to be read of IPv6.
            hop_limits: [small(sockopt::ip_ttl(socket)), sockopt::ipv6_unicast_hops(socket).unwrap_or(0)],
            traffic_classes: [sockopt::ip_tos(socket).unwrap_or(0), small(sockopt::ipv6_tclass(socket))],
            mtu_discover: [
                plus_one(number(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)),
                plus_one(number(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)),
            ],
            segment: number(libc::IPPROTO_UDP, UDP_SEGMENT).map_or(0, |segment| segment as u16),
        }
    }

    pub fn hop_limit(&self, to: Addr, details: &Details) -> u8 {
        details.hop_limit.unwrap_or(self.hop_limits[usize::from(to.is_v6())])
    }

    pub fn traffic_class(&self, to: Addr, details: &Details) -> u8 {
        details.traffic_class.unwrap_or(self.traffic_classes[usize::from(to.is_v6())])
    }

    pub fn mtu_discover(&self, to: Addr) -> u8 {
        self.mtu_discover[usize::from(to.is_v6())]
    }

    pub fn segment(&self, details: &Details) -> u16 {
        details.segment.unwrap_or(self.segment)
    }
}

/// An option that is a number and that rustix does not have.
pub(super) fn option(fd: RawFd, level: c_int, name: c_int) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let args =
        [fd as usize, level as usize, name as usize, (&raw mut value).addr(), (&raw mut len).addr(), 0];
    // SAFETY: needed because there is no safe call for it. The kernel writes a number, and its length, to locals.
    let result = unsafe { sys::raw(libc::SYS_getsockopt, args) };
    (result == 0).then_some(value)
}

/// What is told beside a datagram, as the program has asked by setsockopt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ancillary(pub(super) u32);

impl Ancillary {
    /// IP_PKTINFO and IP_RECVTOS.
    pub const V4_OWN: Ancillary = Ancillary(1);
    pub const V4_CLASS: Ancillary = Ancillary(2);
    /// IPV6_RECVPKTINFO and IPV6_RECVTCLASS.
    pub const V6_OWN: Ancillary = Ancillary(4);
    pub const V6_CLASS: Ancillary = Ancillary(8);
    /// UDP_GRO: several come as one, and how long each is.
    pub const JOINED: Ancillary = Ancillary(16);

    pub fn has(self, other: Ancillary) -> bool {
        self.0 & other.0 != 0
    }

    pub fn is_nothing(self) -> bool {
        self.0 == 0
    }
}

/// What an option has a program told beside datagrams, as far as lanes know it.
pub(super) fn ancillary_by(level: c_int, name: c_int) -> Option<Ancillary> {
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => Some(Ancillary::V4_OWN),
        (libc::IPPROTO_IP, libc::IP_RECVTOS) => Some(Ancillary::V4_CLASS),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => Some(Ancillary::V6_OWN),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) => Some(Ancillary::V6_CLASS),
        (libc::SOL_UDP, libc::UDP_GRO) => Some(Ancillary::JOINED),
        _ => None,
    }
}
