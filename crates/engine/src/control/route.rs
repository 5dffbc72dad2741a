//! The engine's own addresses and the way to others: which path, which source address, which next hop.

use core::net::Ipv4Addr;
use toe_base::PortId;

/// How to reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It is one of the engine's own.
    Local { source: Ipv4Addr },
    /// Over a port; `next_hop` is the neighbour to send to.
    Via { port: PortId, source: Ipv4Addr, next_hop: Ipv4Addr },
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    pub port: PortId,
    pub addr: Ipv4Addr,
    pub prefix_len: u8,
}

impl Interface {
    fn contains(&self, addr: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len)).unwrap_or(0);
        addr.to_bits() & mask == self.addr.to_bits() & mask
    }

    fn broadcast(&self) -> Ipv4Addr {
        let host = u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
        Ipv4Addr::from_bits(self.addr.to_bits() | host)
    }
}

/// All addresses and gateways; few, so they are searched in order.
#[derive(Debug, Default)]
pub struct Routes {
    local: bool,
    interfaces: Vec<Interface>,
    gateways: Vec<(PortId, Ipv4Addr)>,
}

impl Routes {
    pub fn enable_local(&mut self) {
        self.local = true;
    }

    pub fn add_interface(&mut self, interface: Interface) {
        self.interfaces.push(interface);
    }

    pub fn set_gateway(&mut self, port: PortId, gateway: Ipv4Addr) {
        self.gateways.retain(|(p, _)| *p != port);
        self.gateways.push((port, gateway));
    }

    /// Whether `addr` is the engine's own: one of a port's, or loopback when there is a `local` port.
    pub fn is_own(&self, addr: Ipv4Addr) -> bool {
        (self.local && addr.is_loopback()) || self.interfaces.iter().any(|i| i.addr == addr)
    }

    /// Whether `addr` is an address of this port.
    pub fn is_own_on(&self, port: PortId, addr: Ipv4Addr) -> bool {
        self.interfaces.iter().any(|i| i.port == port && i.addr == addr)
    }

    /// Whether a peer may have `addr`: not multicast, broadcast, unspecified, loopback or our own.
    pub fn is_valid_peer(&self, addr: Ipv4Addr) -> bool {
        !(addr.is_unspecified()
            || addr.is_multicast()
            || addr.is_loopback()
            || addr.is_broadcast()
            || self.interfaces.iter().any(|i| i.addr == addr || (i.prefix_len < 31 && i.broadcast() == addr)))
    }

    /// The way to `dst`; `None` when there is none and the kernel should be asked.
    pub fn to(&self, dst: Ipv4Addr) -> Option<Route> {
        if self.is_own(dst) {
            // As Linux has it: from 127.0.0.1 to any loopback address, else from the address to itself.
            return Some(Route::Local { source: if dst.is_loopback() { Ipv4Addr::LOCALHOST } else { dst } });
        }
        if !self.is_valid_peer(dst) {
            return None;
        }
        if let Some(i) = self.interfaces.iter().filter(|i| i.contains(dst)).max_by_key(|i| i.prefix_len) {
            return Some(Route::Via { port: i.port, source: i.addr, next_hop: dst });
        }
        let (port, gateway) = *self.gateways.first()?;
        let source = self.interfaces.iter().find(|i| i.port == port)?.addr;
        Some(Route::Via { port, source, next_hop: gateway })
    }

    /// Addresses of a port.
    pub fn addrs_of(&self, port: PortId) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(move |i| i.port == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(a: u8, d: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, a, 0, d)
    }

    #[test]
    fn own_then_neighbour_then_gateway_then_none() {
        let mut routes = Routes::default();
        let port = PortId(0);
        routes.add_interface(Interface { port, addr: ip(1, 2), prefix_len: 24 });
        assert_eq!(routes.to(ip(1, 2)), Some(Route::Local { source: ip(1, 2) }));
        assert_eq!(routes.to(ip(1, 9)), Some(Route::Via { port, source: ip(1, 2), next_hop: ip(1, 9) }));
        assert_eq!(routes.to(ip(2, 1)), None);
        assert_eq!(routes.to(Ipv4Addr::LOCALHOST), None);
        routes.enable_local();
        assert_eq!(
            routes.to(Ipv4Addr::new(127, 9, 9, 9)),
            Some(Route::Local { source: Ipv4Addr::LOCALHOST })
        );
        routes.set_gateway(port, ip(1, 1));
        assert_eq!(routes.to(ip(2, 1)), Some(Route::Via { port, source: ip(1, 2), next_hop: ip(1, 1) }));
        assert_eq!(routes.to(ip(1, 255)), None, "broadcast is no peer");
    }
}
