//! Addresses of endpoints. libfabric's layers above (ofi_rxm) want socket addresses, so they look like IPv6 (`struct sockaddr_in6`), but nothing is ever sent
//! to one: they name a node and a place there.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | 0xfd, as of addresses that are nobody's in the Internet (RFC 4193) |
//! | 1–7 | the node: the hash of its name |
//! | 8–9 | zero |
//! | 10–15 | who at the node: zero for a port that was asked for, else random |
//!
//! Of the engine a node is known as `fi.` and its eight bytes in hexadecimal; the discriminator is "who" and the port.

use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, Hasher};
use toe_abi::via::NodeName;
use toe_via::endpoint::meeting::ADDRESS_LEN;
use toe_via::session::own_name;

const PREFIX: u8 = 0xfd;
/// Ports that are handed out.
const EPHEMERAL: u16 = 49152;

/// An address with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub bytes: [u8; 16],
    pub port: u16,
}

/// `struct sockaddr_in6`.
pub const SOCKADDR_LEN: usize = size_of::<libc::sockaddr_in6>();

/// 64 random bits: the standard library's hash has a key of its own each time.
pub fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

impl Address {
    /// The node that has a name.
    pub fn of_node(name: &[u8], port: u16) -> Address {
        let mut hasher = SipHasher13::new();
        hasher.write(name);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&hasher.finish().to_be_bytes());
        bytes[0] = PREFIX;
        Address { bytes, port }
    }

    /// A place of its own at this node.
    pub fn own(node: &NodeName) -> Address {
        let mut address = Address::of_node(node.as_bytes(), 0);
        address.bytes[10..].copy_from_slice(&random().to_be_bytes()[2..]);
        address
    }

    /// The same of this process's node, whatever it is called.
    pub fn own_of_process() -> Address {
        own_name().map_or_else(|_| Address::of_node(b"", 0), |name| Address::own(&name))
    }

    /// The same place with a port, if it has none.
    pub fn with_port(self) -> Address {
        let port = if self.port == 0 { EPHEMERAL | random() as u16 } else { self.port };
        Address { port, ..self }
    }

    /// The node's own place at the port.
    pub fn at_node(mut self) -> Address {
        self.bytes[8..].fill(0);
        self
    }

    /// Who is where, for the engine.
    pub fn node_and_port(&self) -> (NodeName, u64) {
        let hex: String = self.bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let name = NodeName::new(format!("fi.{hex}").as_bytes()).expect("19 bytes, none of them zero");
        let who = self.bytes[8..].iter().fold(0, |who, byte| who << 8 | u64::from(*byte));
        (name, who << 16 | u64::from(self.port))
    }

    /// What a program wrote for an address: a name of a node, or an address of this kind. This node: nothing, `localhost`, a loopback address.
    pub fn parse(node: Option<&str>, own: &NodeName, port: u16) -> Address {
        let Some(node) = node.filter(|node| !node.is_empty()) else {
            return Address::of_node(own.as_bytes(), port);
        };
        let ip = node.parse::<std::net::IpAddr>().ok();
        match ip {
            Some(std::net::IpAddr::V6(ip)) if ip.octets()[0] == PREFIX => {
                Address { bytes: ip.octets(), port }
            }
            Some(ip) if ip.is_loopback() || ip.is_unspecified() => Address::of_node(own.as_bytes(), port),
            _ if node == "localhost" => Address::of_node(own.as_bytes(), port),
            _ => Address::of_node(node.as_bytes(), port),
        }
    }

    /// As `struct sockaddr_in6`, in network order where that has it.
    pub fn to_sockaddr(self) -> [u8; SOCKADDR_LEN] {
        let mut sockaddr = [0; SOCKADDR_LEN];
        sockaddr[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        sockaddr[2..4].copy_from_slice(&self.port.to_be_bytes());
        sockaddr[8..24].copy_from_slice(&self.bytes);
        sockaddr
    }

    /// `None`: it is no address of this kind.
    pub fn from_sockaddr(sockaddr: &[u8]) -> Option<Address> {
        let family = u16::from_ne_bytes(*sockaddr.first_chunk()?);
        let bytes: [u8; 16] = sockaddr.get(8..24)?.try_into().ok()?;
        let port = u16::from_be_bytes(sockaddr[2..4].try_into().ok()?);
        (i32::from(family) == libc::AF_INET6 && bytes[0] == PREFIX).then_some(Address { bytes, port })
    }

    /// As it stands in greetings.
    pub fn to_greeting(self) -> [u8; ADDRESS_LEN] {
        let mut bytes = [0; ADDRESS_LEN];
        bytes[..SOCKADDR_LEN].copy_from_slice(&self.to_sockaddr());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> NodeName {
        NodeName::new(name.as_bytes()).expect("a name")
    }

    #[test]
    fn addresses_come_out_as_they_went_in() {
        let address = Address { port: 4711, ..Address::own(&name("alice")) };
        assert_eq!(Address::from_sockaddr(&address.to_sockaddr()), Some(address));
        assert_eq!(Address::from_sockaddr(&address.to_greeting()), Some(address));
        let text = std::net::Ipv6Addr::from(address.bytes).to_string();
        assert_eq!(Address::parse(Some(&text), &name("bob"), 4711), address);
        assert_eq!(Address::from_sockaddr(&[0; 28]), None);
        assert_eq!(Address::from_sockaddr(&address.to_sockaddr()[..23]), None);
    }

    #[test]
    fn a_node_is_where_its_name_says() {
        let own = name("alice");
        let here = Address::of_node(b"alice", 9);
        for node in [None, Some(""), Some("localhost"), Some("127.0.0.1"), Some("::1"), Some("alice")] {
            assert_eq!(Address::parse(node, &own, 9), here, "{node:?}");
        }
        assert_ne!(Address::parse(Some("10.0.0.1"), &own, 9), here);
        assert_eq!(Address::parse(Some("10.0.0.1"), &own, 9), Address::of_node(b"10.0.0.1", 9));
        assert_eq!(here.node_and_port(), Address { bytes: here.bytes, port: 9 }.node_and_port());
        assert_eq!(here.node_and_port().1, 9, "a port of the node's alone");
        let one = Address::own(&own);
        assert_eq!(
            (one.node_and_port().0, one.at_node()),
            (here.node_and_port().0, Address { port: 0, ..here })
        );
        assert_ne!(one, Address::own(&own), "two places");
        assert!(one.with_port().port >= EPHEMERAL && here.with_port().port == 9);
    }
}
