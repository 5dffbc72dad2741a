//! The engine's own addresses and the way to others: which path, which source address, which next hop.
//!
//! A port has addresses and perhaps a gateway of the engine's own, or it shares the kernel's: then its routes are the
//! kernel's routes, all of them, because one that leads elsewhere says that a destination is not the engine's to reach.

use core::net::Ipv4Addr;
use std::collections::HashMap;
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
    /// The kernel has it too, and the routes that come with it.
    pub shared: bool,
}

/// The network of an address.
fn masked(addr: Ipv4Addr, prefix_len: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0);
    Ipv4Addr::from_bits(addr.to_bits() & mask)
}

impl Interface {
    fn contains(&self, addr: Ipv4Addr) -> bool {
        masked(addr, self.prefix_len) == masked(self.addr, self.prefix_len)
    }

    fn broadcast(&self) -> Ipv4Addr {
        let host = u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
        Ipv4Addr::from_bits(self.addr.to_bits() | host)
    }
}

/// Where a route of the kernel leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelVia {
    /// Over a port of the engine; without a gateway the destination itself is the neighbour.
    Port { port: PortId, gateway: Option<Ipv4Addr>, source: Option<Ipv4Addr> },
    /// Anywhere else, or nowhere: not for the engine.
    Elsewhere,
}

/// A route of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    pub dst: Ipv4Addr,
    pub prefix_len: u8,
    /// The least wins among routes to the same network.
    pub metric: u32,
    /// It stands in the table that is looked into first (RT_TABLE_LOCAL), whatever its prefix.
    pub is_local: bool,
    pub via: KernelVia,
}

/// The kernel's routes by network; a lookup tries each prefix length, the longest first.
#[derive(Debug, Default, PartialEq, Eq)]
struct KernelRoutes {
    by_network: HashMap<(bool, u8, Ipv4Addr), (u32, KernelVia)>,
}

impl KernelRoutes {
    fn new(routes: &[KernelRoute]) -> KernelRoutes {
        let mut by_network: HashMap<_, (u32, KernelVia)> = HashMap::with_capacity(routes.len());
        for route in routes {
            let prefix_len = route.prefix_len.min(32);
            let key = (route.is_local, prefix_len, masked(route.dst, prefix_len));
            let known = by_network.get(&key);
            // Of two with the same metric the kernel uses the one that it names first.
            if known.is_none_or(|(metric, _)| route.metric < *metric) {
                by_network.insert(key, (route.metric, route.via));
            }
        }
        KernelRoutes { by_network }
    }

    fn to(&self, dst: Ipv4Addr) -> Option<KernelVia> {
        let find = |is_local| {
            let mut lengths = (0..=32u8).rev();
            lengths.find_map(|len| self.by_network.get(&(is_local, len, masked(dst, len))))
        };
        find(true).or_else(|| find(false)).map(|(_, via)| *via)
    }
}

/// All addresses, gateways and routes; addresses are few, so they are searched in order.
#[derive(Debug, Default)]
pub struct Routes {
    local: bool,
    interfaces: Vec<Interface>,
    gateways: Vec<(PortId, Ipv4Addr)>,
    kernel: KernelRoutes,
}

impl Routes {
    pub fn enable_local(&mut self) {
        self.local = true;
    }

    pub fn add_interface(&mut self, interface: Interface) {
        let same = |i: &&mut Interface| i.port == interface.port && i.addr == interface.addr;
        match self.interfaces.iter_mut().find(same) {
            Some(known) => *known = interface,
            None => self.interfaces.push(interface),
        }
    }

    pub fn remove_interface(&mut self, port: PortId, addr: Ipv4Addr) {
        self.interfaces.retain(|i| i.port != port || i.addr != addr);
    }

    pub fn set_gateway(&mut self, port: PortId, gateway: Ipv4Addr) {
        self.gateways.retain(|(p, _)| *p != port);
        self.gateways.push((port, gateway));
    }

    /// Replaces what is known of the kernel's routes; `false`: nothing has changed.
    pub fn set_kernel_routes(&mut self, routes: &[KernelRoute]) -> bool {
        let new = KernelRoutes::new(routes);
        let is_changed = new != self.kernel;
        self.kernel = new;
        is_changed
    }

    /// Whether `addr` is the engine's own: one of a port's, or loopback when there is a `local` port.
    pub fn is_own(&self, addr: Ipv4Addr) -> bool {
        (self.local && addr.is_loopback()) || self.interfaces.iter().any(|i| i.addr == addr)
    }

    /// Whether `addr` is one that the kernel has, too.
    pub fn is_shared(&self, addr: Ipv4Addr) -> bool {
        self.interfaces.iter().any(|i| i.shared && i.addr == addr)
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
        let neighbours = self.interfaces.iter().filter(|i| !i.shared && i.contains(dst));
        if let Some(i) = neighbours.max_by_key(|i| i.prefix_len) {
            return Some(Route::Via { port: i.port, source: i.addr, next_hop: dst });
        }
        if let Some(KernelVia::Port { port, gateway, source }) = self.kernel.to(dst) {
            let next_hop = gateway.unwrap_or(dst);
            let source = self.source_on(port, source, next_hop)?;
            return Some(Route::Via { port, source, next_hop });
        }
        let (port, gateway) = *self.gateways.first()?;
        let source = self.interfaces.iter().find(|i| i.port == port)?.addr;
        Some(Route::Via { port, source, next_hop: gateway })
    }

    /// The address to speak to `next_hop` from: the one that the route names, else one of the same network, else any.
    fn source_on(&self, port: PortId, named: Option<Ipv4Addr>, next_hop: Ipv4Addr) -> Option<Ipv4Addr> {
        if let Some(source) = named {
            return self.is_own_on(port, source).then_some(source);
        }
        let same_network = self.addrs_of(port).find(|i| i.contains(next_hop));
        same_network.or_else(|| self.addrs_of(port).next()).map(|i| i.addr)
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
        routes.add_interface(Interface { port, addr: ip(1, 2), prefix_len: 24, shared: false });
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

    const PORT: PortId = PortId(0);

    fn over_port(gateway: Option<Ipv4Addr>, source: Option<Ipv4Addr>) -> KernelVia {
        KernelVia::Port { port: PORT, gateway, source }
    }

    fn route(dst: Ipv4Addr, prefix_len: u8, metric: u32, via: KernelVia) -> KernelRoute {
        KernelRoute { dst, prefix_len, metric, is_local: false, via }
    }

    fn shared() -> Routes {
        let mut routes = Routes::default();
        for addr in [ip(1, 2), ip(2, 2)] {
            routes.add_interface(Interface { port: PORT, addr, prefix_len: 24, shared: true });
        }
        routes
    }

    fn next_hop(routes: &Routes, dst: Ipv4Addr) -> Option<Ipv4Addr> {
        match routes.to(dst)? {
            Route::Via { next_hop, .. } => Some(next_hop),
            Route::Local { .. } => None,
        }
    }

    #[test]
    fn of_the_kernels_routes_the_longest_prefix_wins_then_the_least_metric() {
        let mut routes = shared();
        assert_eq!(routes.to(ip(1, 9)), None, "an address alone is no route");
        let default = Ipv4Addr::UNSPECIFIED;
        routes.set_kernel_routes(&[
            route(default, 0, 200, over_port(Some(ip(1, 250)), None)),
            route(default, 0, 100, over_port(Some(ip(1, 254)), None)),
            route(ip(1, 0), 24, 0, over_port(None, None)),
            route(ip(3, 0), 16, 0, over_port(Some(ip(1, 253)), None)),
            route(ip(3, 128), 25, 0, KernelVia::Elsewhere),
        ]);
        assert_eq!(next_hop(&routes, ip(1, 9)), Some(ip(1, 9)));
        assert_eq!(next_hop(&routes, ip(7, 9)), Some(ip(1, 254)), "the lesser metric");
        assert_eq!(next_hop(&routes, ip(3, 9)), Some(ip(1, 253)));
        assert_eq!(routes.to(ip(3, 130)), None, "a longer one leads to another interface");
        assert!(routes.set_kernel_routes(&[]) && !routes.set_kernel_routes(&[]), "changed once");
        assert_eq!(routes.to(ip(7, 9)), None);
    }

    #[test]
    fn what_is_local_to_the_host_is_the_kernels() {
        let mut routes = shared();
        let via = KernelVia::Elsewhere;
        routes.set_kernel_routes(&[
            route(ip(9, 0), 24, 0, over_port(Some(ip(1, 254)), None)),
            KernelRoute { dst: ip(9, 0), prefix_len: 16, metric: 0, is_local: true, via },
        ]);
        assert_eq!(routes.to(ip(9, 1)), None, "the table of local addresses goes first");
    }

    #[test]
    fn the_source_is_the_routes_else_one_of_the_next_hops_network() {
        let mut routes = shared();
        routes.set_kernel_routes(&[
            route(ip(2, 0), 24, 0, over_port(None, None)),
            route(ip(4, 0), 24, 0, over_port(Some(ip(1, 254)), Some(ip(2, 2)))),
            route(ip(5, 0), 24, 0, over_port(Some(ip(1, 254)), Some(ip(8, 8)))),
            route(ip(6, 0), 24, 0, over_port(Some(ip(7, 7)), None)),
        ]);
        let source = |dst| match routes.to(dst) {
            Some(Route::Via { source, .. }) => Some(source),
            _ => None,
        };
        assert_eq!(source(ip(2, 9)), Some(ip(2, 2)));
        assert_eq!(source(ip(4, 9)), Some(ip(2, 2)));
        assert_eq!(source(ip(5, 9)), None, "an address that the port does not have");
        assert_eq!(source(ip(6, 9)), Some(ip(1, 2)));
        routes.remove_interface(PORT, ip(1, 2));
        assert_eq!(routes.to(ip(1, 2)), None, "no longer the engine's own");
    }
}
