//! The two ends of a connection, by the names that its program is shown.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use toe_abi::command::FlowInfo;

/// Both names, once they are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Endpoints {
    pair: Option<(SocketAddr, SocketAddr)>,
}

impl Endpoints {
    /// What the engine has written down.
    pub fn read(&mut self, info: &FlowInfo) {
        self.pair = info.local.to_socket_addr().zip(info.remote.to_socket_addr());
    }

    /// Only the peer's is known.
    pub fn name_only(&mut self, remote: SocketAddr) {
        let any: IpAddr =
            if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        self.pair = Some((SocketAddr::new(any, 0), remote));
    }

    /// Whether only the peer's is known.
    pub fn lacks_local(&self) -> bool {
        self.local().is_some_and(|local| local.port() == 0)
    }

    pub fn local(&self) -> Option<SocketAddr> {
        self.pair.map(|(local, _)| local)
    }

    pub fn remote(&self) -> Option<SocketAddr> {
        self.pair.map(|(_, remote)| remote)
    }

    /// The port that it had here, if it had one. It has none any more.
    pub fn take_port(&mut self) -> Option<u16> {
        self.pair.take().map(|(local, _)| local.port())
    }

    /// Whether options of this level concern it: those of IP are for connections of its own version.
    pub fn heed(&self, level: i32) -> bool {
        self.remote().is_none_or(|remote| match level {
            libc::IPPROTO_IP => remote.is_ipv4(),
            libc::IPPROTO_IPV6 => remote.is_ipv6(),
            _ => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_ip_are_for_a_peer_of_that_version() {
        let mut endpoints = Endpoints::default();
        assert!(endpoints.heed(libc::IPPROTO_IP) && endpoints.heed(libc::IPPROTO_IPV6), "not known yet");
        endpoints.name_only(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 9));
        assert!(!endpoints.heed(libc::IPPROTO_IP) && endpoints.heed(libc::IPPROTO_IPV6));
        assert!(endpoints.heed(libc::IPPROTO_TCP));
        assert!(endpoints.lacks_local());
        assert_eq!((endpoints.take_port(), endpoints.take_port()), (Some(0), None));
        assert!(!endpoints.lacks_local());
    }
}
