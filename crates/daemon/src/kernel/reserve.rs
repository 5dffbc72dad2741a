//! Port numbers that the kernel keeps for the engine: each by a socket that is bound and nothing else. No program gets
//! such a number, neither by bind nor by connect, as long as the socket is open, which is until the engine ends.

use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrV4, SocketFlags, SocketType};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use toe_base::Instant;
use toe_engine::PortRange;

/// Most port numbers that one engine takes out of the kernel's ephemeral ones (28,232 unless set otherwise): the
/// kernel's programs need some, too. A connect that finds none is done by the kernel.
const RESERVED_MAX: usize = 8192;
/// And at most this part of them.
const SHARE: usize = 3;
/// Where the kernel says which are its ephemeral ports.
const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

#[derive(Debug)]
pub struct Reserved {
    sockets: Vec<OwnedFd>,
    max: usize,
    /// No more are reserved before this: there were none.
    pub(super) not_before: Instant,
}

impl Default for Reserved {
    fn default() -> Reserved {
        Reserved { sockets: Vec::new(), max: max_of(ephemeral_ports()), not_before: Instant::ZERO }
    }
}

/// The kernel's ephemeral ports, in the namespace that this process is in.
pub fn ephemeral_ports() -> PortRange {
    range_of(&std::fs::read_to_string(RANGE).unwrap_or_default())
}

/// A range as the kernel writes it: the first and the last.
fn range_of(text: &str) -> PortRange {
    let mut ends = text.split_whitespace().map_while(|end| end.parse::<u16>().ok());
    let ends = ends.next().zip(ends.next()).filter(|(first, last)| *first > 0 && first <= last);
    ends.map_or(PortRange::DEFAULT, |(first, last)| PortRange { first, last })
}

/// How many may be taken of a range.
fn max_of(range: PortRange) -> usize {
    RESERVED_MAX.min(range.count() as usize / SHARE)
}

impl Reserved {
    /// Lets the kernel keep up to `count` more port numbers; hands each to `each`. Fewer when there are no more.
    pub fn reserve(&mut self, count: usize, mut each: impl FnMut(u16)) -> std::io::Result<()> {
        let left = self.max.saturating_sub(self.sockets.len());
        if left == 0 {
            let why = format!("{} port numbers are in use, as many as an engine takes", self.max);
            return Err(std::io::Error::other(why));
        }
        for _ in 0..count.min(left) {
            let (socket, port) = reserve_one()?;
            self.sockets.push(socket);
            each(port);
        }
        Ok(())
    }
}

/// Without SO_REUSEADDR and SO_REUSEPORT, so that the number is nobody else's.
fn reserve_one() -> std::io::Result<(OwnedFd, u16)> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))?;
    let bound: SocketAddrAny = rustix::net::getsockname(&socket)?;
    let port = SocketAddrV4::try_from(bound)?.port();
    Ok((socket, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_kernels_programs_keep_most_of_a_small_range() {
        assert_eq!(range_of("40000 39000"), PortRange::DEFAULT);
        assert_eq!(range_of(""), PortRange::DEFAULT);
        assert_eq!(max_of(range_of("32768\t60999\n")), RESERVED_MAX);
        assert_eq!(max_of(range_of("40000 40299")), 100);
    }

    #[test]
    fn a_reserved_number_is_nobody_elses_until_it_is_given_up() {
        let mut reserved = Reserved::default();
        let mut ports = Vec::new();
        reserved.reserve(3, |port| ports.push(port)).expect("there are some");
        assert_eq!(ports.len(), 3);
        for port in &ports {
            // std sets SO_REUSEADDR on listeners.
            TcpListener::bind(("127.0.0.1", *port)).expect_err("kept");
        }
        drop(reserved);
        TcpListener::bind(("127.0.0.1", ports[0])).expect("free again");
    }
}
