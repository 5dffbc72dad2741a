//! Addresses of both families in one shape, so that whoever keeps, compares or hashes them need not care which they are.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An IPv4 or IPv6 address in 16 bytes.
///
/// An IPv4 address is kept as IPv4-mapped (RFC 4291 section 2.5.5.2), which is never an address of its own on a wire. A
/// link-local IPv6 address means something only on one link: the number of that link, its zone (RFC 4007 section 6), stands
/// in bytes 4 to 8, which are zero in every such address (RFC 4291 section 2.5.6). So two links' `fe80::1` differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Addr([u8; 16]);

/// The first 96 bits of an IPv4-mapped address, as a number.
const MAPPED: u128 = 0xffff;
/// Bits of a mapped address before those of the IPv4 address.
const MAPPED_BITS: u8 = 96;

impl Addr {
    /// 0.0.0.0
    pub const UNSPECIFIED_V4: Addr = Addr::v4(Ipv4Addr::UNSPECIFIED);
    /// ::
    pub const UNSPECIFIED_V6: Addr = Addr([0; 16]);
    /// 127.0.0.1
    pub const LOCALHOST_V4: Addr = Addr::v4(Ipv4Addr::LOCALHOST);
    /// ::1
    pub const LOCALHOST_V6: Addr = Addr(Ipv6Addr::LOCALHOST.octets());

    pub const fn v4(addr: Ipv4Addr) -> Addr {
        let [a, b, c, d] = addr.octets();
        Addr([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// `zone` counts for a link-local address only. `None`: bytes that must be zero in such an address are not.
    pub fn checked_v6(addr: Ipv6Addr, zone: u32) -> Option<Addr> {
        let is_plain = !addr.is_unicast_link_local() || addr.octets()[2..8] == [0; 6];
        is_plain.then(|| Addr::v6(addr, zone))
    }

    /// The same of an address whose such bytes are zero, or do not matter.
    pub fn v6(addr: Ipv6Addr, zone: u32) -> Addr {
        let mut bytes = addr.octets();
        if addr.is_unicast_link_local() {
            bytes[4..8].copy_from_slice(&zone.to_be_bytes());
        }
        Addr(bytes)
    }

    /// As [`Addr::bytes`] gave them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Addr {
        Addr(bytes)
    }

    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    pub fn is_v4(self) -> bool {
        u128::from_be_bytes(self.0) >> 32 == MAPPED
    }

    pub fn is_v6(self) -> bool {
        !self.is_v4()
    }

    /// The address if it is IPv4's.
    pub fn to_v4(self) -> Option<Ipv4Addr> {
        let [.., a, b, c, d] = self.0;
        self.is_v4().then(|| Ipv4Addr::new(a, b, c, d))
    }

    /// As it stands in an IPv6 header, without its zone; an IPv4 address as mapped.
    pub fn to_v6(self) -> Ipv6Addr {
        let mut bytes = self.0;
        if self.is_link_local() {
            bytes[4..8].fill(0);
        }
        Ipv6Addr::from(bytes)
    }

    pub fn to_ip(self) -> IpAddr {
        self.to_v4().map_or_else(|| IpAddr::V6(self.to_v6()), IpAddr::V4)
    }

    /// The link that a link-local address belongs to; 0 of every other address, and where it is not known.
    pub fn zone(self) -> u32 {
        let [_, _, _, _, a, b, c, d, ..] = self.0;
        if self.is_link_local() { u32::from_be_bytes([a, b, c, d]) } else { 0 }
    }

    /// Link-local unicast of IPv6.
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    pub fn is_unspecified(self) -> bool {
        self == Addr::UNSPECIFIED_V4 || self == Addr::UNSPECIFIED_V6
    }

    pub fn is_loopback(self) -> bool {
        self == Addr::LOCALHOST_V6 || self.to_v4().is_some_and(|addr| addr.is_loopback())
    }

    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff || self.to_v4().is_some_and(|addr| addr.is_multicast())
    }

    /// The loopback address of the same family.
    #[must_use]
    pub fn localhost(self) -> Addr {
        if self.is_v4() { Addr::LOCALHOST_V4 } else { Addr::LOCALHOST_V6 }
    }

    /// The unspecified address of the same family.
    #[must_use]
    pub fn unspecified(self) -> Addr {
        if self.is_v4() { Addr::UNSPECIFIED_V4 } else { Addr::UNSPECIFIED_V6 }
    }

    /// Bits of such an address.
    pub fn bits(self) -> u8 {
        if self.is_v4() { 32 } else { 128 }
    }

    /// The network of the address: its first `prefix_len` bits, counted as its family does, and zeros.
    #[must_use]
    pub fn network(self, prefix_len: u8) -> Addr {
        let fixed = if self.is_v4() { MAPPED_BITS } else { 0 };
        let kept = u32::from(fixed) + u32::from(prefix_len.min(self.bits()));
        let mask = u128::MAX.checked_shl(128 - kept).unwrap_or(0);
        Addr((u128::from_be_bytes(self.0) & mask).to_be_bytes())
    }
}

impl Default for Addr {
    /// 0.0.0.0
    fn default() -> Addr {
        Addr::UNSPECIFIED_V4
    }
}

impl From<Ipv4Addr> for Addr {
    fn from(addr: Ipv4Addr) -> Addr {
        Addr::v4(addr)
    }
}

impl From<Ipv6Addr> for Addr {
    /// Without a zone.
    fn from(addr: Ipv6Addr) -> Addr {
        Addr::v6(addr, 0)
    }
}

impl From<[u8; 4]> for Addr {
    fn from(bytes: [u8; 4]) -> Addr {
        Addr::v4(bytes.into())
    }
}

impl From<IpAddr> for Addr {
    fn from(addr: IpAddr) -> Addr {
        match addr {
            IpAddr::V4(addr) => addr.into(),
            IpAddr::V6(addr) => addr.into(),
        }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ip().fmt(f)?;
        match self.zone() {
            0 => Ok(()),
            zone => write!(f, "%{zone}"),
        }
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address and a port number: one end of a connection, or where connections come in.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    pub addr: Addr,
    pub port: u16,
}

impl Endpoint {
    /// 0.0.0.0, port 0
    pub const UNSPECIFIED_V4: Endpoint = Endpoint { addr: Addr::UNSPECIFIED_V4, port: 0 };

    pub fn new(addr: impl Into<Addr>, port: u16) -> Endpoint {
        Endpoint { addr: addr.into(), port }
    }

    /// The same port at another address.
    #[must_use]
    pub const fn at(self, addr: Addr) -> Endpoint {
        Endpoint { addr, port: self.port }
    }

    /// As programs have it, with its zone.
    pub fn to_socket_addr(self) -> SocketAddr {
        match self.to_v4() {
            Some(v4) => SocketAddr::V4(v4),
            None => SocketAddr::V6(SocketAddrV6::new(self.addr.to_v6(), self.port, 0, self.addr.zone())),
        }
    }

    pub fn to_v4(self) -> Option<SocketAddrV4> {
        self.addr.to_v4().map(|addr| SocketAddrV4::new(addr, self.port))
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(from: SocketAddr) -> Endpoint {
        match from {
            SocketAddr::V4(v4) => v4.into(),
            SocketAddr::V6(v6) => Endpoint { addr: Addr::v6(*v6.ip(), v6.scope_id()), port: v6.port() },
        }
    }
}

impl From<SocketAddrV4> for Endpoint {
    fn from(from: SocketAddrV4) -> Endpoint {
        Endpoint { addr: Addr::v4(*from.ip()), port: from.port() }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_socket_addr().fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const _: () = assert!(size_of::<Endpoint>() == 18);

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> Addr {
        text.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn the_family_and_the_address_come_back() {
        let v4 = addr("10.1.2.3");
        assert_eq!((v4.is_v4(), v4.to_v4()), (true, Some(Ipv4Addr::new(10, 1, 2, 3))));
        assert_eq!(addr("::ffff:10.1.2.3"), v4, "a mapped address is the IPv4 address");
        let v6 = addr("2001:db8::7");
        assert_eq!((v6.is_v4(), v6.to_v4(), v6.to_string().as_str()), (false, None, "2001:db8::7"));
        assert_ne!(Addr::UNSPECIFIED_V4, Addr::UNSPECIFIED_V6);
        assert!(addr("::1").is_loopback() && addr("127.3.2.1").is_loopback() && !addr("::2").is_loopback());
        assert!(addr("ff02::1").is_multicast() && addr("224.0.0.1").is_multicast() && !v6.is_multicast());
    }

    #[test]
    fn a_link_local_address_keeps_its_zone_apart() {
        let one = Addr::v6("fe80::1".parse().expect("an address"), 1);
        let two = Addr::v6("fe80::1".parse().expect("an address"), 0x0203_0405);
        assert_ne!(one, two);
        assert_eq!((one.zone(), two.zone()), (1, 0x0203_0405));
        assert_eq!(one.to_v6(), two.to_v6());
        assert_eq!(one.to_string(), "fe80::1%1");
        assert_eq!(Addr::v6("2001:db8::1".parse().expect("an address"), 3).zone(), 0, "it needs none");
        assert_eq!(Addr::checked_v6("fe80:0:1::1".parse().expect("an address"), 3), None);
        assert_eq!(Addr::checked_v6("fe80::1".parse().expect("an address"), 1), Some(one));
        let end: SocketAddr = "[fe80::1%7]:80".parse().expect("an address");
        assert_eq!(Endpoint::from(end).to_socket_addr(), end);
    }

    #[test]
    fn a_network_is_as_long_as_its_family_counts() {
        assert_eq!(addr("10.1.2.3").network(24), addr("10.1.2.0"));
        assert_eq!(addr("10.1.2.3").network(0), Addr::UNSPECIFIED_V4);
        assert_eq!(addr("10.1.2.3").network(77), addr("10.1.2.3"));
        assert_eq!(addr("2001:db8:1:2::3").network(48), addr("2001:db8:1::"));
        assert_eq!(addr("2001:db8::3").network(0), Addr::UNSPECIFIED_V6);
        let local = Addr::v6("fe80::1".parse().expect("an address"), 9);
        assert_eq!(local.network(64).zone(), 9, "networks of different links differ");
    }
}
