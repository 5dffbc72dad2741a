//! The engine's own addresses and the way to others: which path, which source address, which next hop.
//!
//! A port has addresses and perhaps a gateway of the engine's own, or it shares the kernel's: then its routes are the
//! kernel's routes, all of them, because one that leads elsewhere says that a destination is not the engine's to reach.

use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::{BTreeSet, HashMap};
use toe_base::{Addr, PortId};
use toe_wire::icmpv6::solicited_node;

/// How to reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It is one of the engine's own.
    Local { source: Addr },
    /// Over a port; `next_hop` is the neighbour to send to.
    Via { port: PortId, source: Addr, next_hop: Addr },
}

/// An address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    pub port: PortId,
    pub addr: Addr,
    pub prefix_len: u8,
    /// The kernel has it too, and the routes that come with it.
    pub shared: bool,
}

impl Interface {
    fn contains(&self, addr: Addr) -> bool {
        self.addr.is_v4() == addr.is_v4()
            && addr.network(self.prefix_len) == self.addr.network(self.prefix_len)
    }

    /// The broadcast address of its network, if that is one of IPv4 and has one (RFC 3021).
    fn broadcast(&self) -> Option<Addr> {
        let addr = self.addr.to_v4().filter(|_| self.prefix_len < 31)?;
        let host = u32::MAX.checked_shr(u32::from(self.prefix_len)).unwrap_or(0);
        Some(Addr::v4(Ipv4Addr::from_bits(addr.to_bits() | host)))
    }
}

/// Where a route of the kernel leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelVia {
    /// Over a port of the engine; without a gateway the destination itself is the neighbour.
    Port { port: PortId, gateway: Option<Addr>, source: Option<Addr> },
    /// Anywhere else, or nowhere: not for the engine.
    Elsewhere,
}

/// A route of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    pub dst: Addr,
    pub prefix_len: u8,
    /// The least wins among routes to the same network.
    pub metric: u32,
    /// It stands in the table that is looked into first (RT_TABLE_LOCAL), whatever its prefix.
    pub is_local: bool,
    pub via: KernelVia,
}

/// The kernel's routes by network; a lookup tries each prefix length that there is, the longest first.
#[derive(Debug, Default, PartialEq, Eq)]
struct KernelRoutes {
    by_network: HashMap<(bool, u8, Addr), (u32, KernelVia)>,
    /// Of IPv4, then of IPv6.
    lengths: [BTreeSet<u8>; 2],
}

impl KernelRoutes {
    fn new(routes: &[KernelRoute]) -> KernelRoutes {
        let mut by_network: HashMap<_, (u32, KernelVia)> = HashMap::with_capacity(routes.len());
        let mut lengths = [BTreeSet::new(), BTreeSet::new()];
        for route in routes {
            let prefix_len = route.prefix_len.min(route.dst.bits());
            let key = (route.is_local, prefix_len, route.dst.network(prefix_len));
            let known = by_network.get(&key);
            // Of two with the same metric the kernel uses the one that it names first.
            if known.is_none_or(|(metric, _)| route.metric < *metric) {
                by_network.insert(key, (route.metric, route.via));
            }
            lengths[usize::from(route.dst.is_v6())].insert(prefix_len);
        }
        KernelRoutes { by_network, lengths }
    }

    fn to(&self, dst: Addr) -> Option<KernelVia> {
        let find = |is_local| {
            let mut lengths = self.lengths[usize::from(dst.is_v6())].iter().rev();
            lengths.find_map(|len| self.by_network.get(&(is_local, *len, dst.network(*len))))
        };
        find(true).or_else(|| find(false)).map(|(_, via)| *via)
    }
}

/// All addresses, gateways and routes; addresses are few, so they are searched in order.
#[derive(Debug, Default)]
pub struct Routes {
    local: bool,
    interfaces: Vec<Interface>,
    gateways: Vec<(PortId, Addr)>,
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

    pub fn remove_interface(&mut self, port: PortId, addr: Addr) {
        self.interfaces.retain(|i| i.port != port || i.addr != addr);
    }

    pub fn set_gateway(&mut self, port: PortId, gateway: Addr) {
        self.gateways.retain(|(p, known)| *p != port || known.is_v4() != gateway.is_v4());
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
    pub fn is_own(&self, addr: Addr) -> bool {
        (self.local && addr.is_loopback()) || self.interfaces.iter().any(|i| i.addr == addr)
    }

    /// Whether `addr` is one that the kernel has, too.
    pub fn is_shared(&self, addr: Addr) -> bool {
        self.interfaces.iter().any(|i| i.shared && i.addr == addr)
    }

    /// Whether `addr` is an address of this port.
    pub fn is_own_on(&self, port: PortId, addr: Addr) -> bool {
        self.interfaces.iter().any(|i| i.port == port && i.addr == addr)
    }

    /// Whether `group` is the solicited-node address of one of this port's addresses (RFC 4291 section 2.7.1).
    pub fn is_solicited_on(&self, port: PortId, group: Ipv6Addr) -> bool {
        self.addrs_of(port).any(|i| i.addr.is_v6() && solicited_node(i.addr.to_v6()) == group)
    }

    /// Whether a peer may have `addr`: not multicast, broadcast, unspecified, loopback or our own.
    pub fn is_valid_peer(&self, addr: Addr) -> bool {
        const BROADCAST: Addr = Addr::v4(Ipv4Addr::BROADCAST);
        !(addr.is_unspecified()
            || addr.is_multicast()
            || addr.is_loopback()
            || addr == BROADCAST
            || self.interfaces.iter().any(|i| i.addr == addr || i.broadcast() == Some(addr)))
    }

    /// The way to `dst`; `None` when there is none and the kernel should be asked.
    pub fn to(&self, dst: Addr) -> Option<Route> {
        if self.is_own(dst) {
            // As Linux has it: from 127.0.0.1 to any loopback address, else from the address to itself.
            return Some(Route::Local { source: if dst.is_loopback() { dst.localhost() } else { dst } });
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
            let source = self.source_on(port, source, dst, next_hop)?;
            return Some(Route::Via { port, source, next_hop });
        }
        if dst.is_link_local() {
            // No gateway leads to another link's (RFC 4291 section 2.5.6).
            return None;
        }
        let (port, gateway) = *self.gateways.iter().find(|(_, gateway)| gateway.is_v4() == dst.is_v4())?;
        let source = self.sources_on(port, dst).next()?.addr;
        Some(Route::Via { port, source, next_hop: gateway })
    }

    /// The addresses of a port that can speak to `dst`: of its family, and of no smaller scope (RFC 6724 section 5, rule 2).
    fn sources_on(&self, port: PortId, dst: Addr) -> impl Iterator<Item = &Interface> {
        self.addrs_of(port).filter(move |i| {
            i.addr.is_v4() == dst.is_v4() && (dst.is_link_local() || !i.addr.is_link_local())
        })
    }

    /// The address to ask for a neighbour from.
    pub fn source_to_ask(&self, port: PortId, target: Addr) -> Option<Addr> {
        let mut same_family = self.addrs_of(port).filter(|i| i.addr.is_v4() == target.is_v4());
        let near = self.addrs_of(port).find(|i| i.contains(target));
        near.or_else(|| same_family.next()).map(|i| i.addr)
    }

    /// The address to speak to `dst` from, by `next_hop`: the one that the route names, else one of the same network, else
    /// any that can.
    fn source_on(&self, port: PortId, named: Option<Addr>, dst: Addr, next_hop: Addr) -> Option<Addr> {
        if let Some(source) = named {
            return self.is_own_on(port, source).then_some(source);
        }
        let same_network = self.sources_on(port, dst).find(|i| i.contains(next_hop));
        same_network.or_else(|| self.sources_on(port, dst).next()).map(|i| i.addr)
    }

    /// Addresses of a port.
    pub fn addrs_of(&self, port: PortId) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(move |i| i.port == port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(a: u8, d: u8) -> Addr {
        Addr::from([10, a, 0, d])
    }

    fn ip6(text: &str) -> Addr {
        Addr::v6(text.parse().expect("an address"), 0)
    }

    #[test]
    fn own_then_neighbour_then_gateway_then_none() {
        let mut routes = Routes::default();
        let port = PortId(0);
        routes.add_interface(Interface { port, addr: ip(1, 2), prefix_len: 24, shared: false });
        assert_eq!(routes.to(ip(1, 2)), Some(Route::Local { source: ip(1, 2) }));
        assert_eq!(routes.to(ip(1, 9)), Some(Route::Via { port, source: ip(1, 2), next_hop: ip(1, 9) }));
        assert_eq!(routes.to(ip(2, 1)), None);
        assert_eq!(routes.to(Addr::LOCALHOST_V4), None);
        routes.enable_local();
        assert_eq!(routes.to(Addr::from([127, 9, 9, 9])), Some(Route::Local { source: Addr::LOCALHOST_V4 }));
        routes.set_gateway(port, ip(1, 1));
        assert_eq!(routes.to(ip(2, 1)), Some(Route::Via { port, source: ip(1, 2), next_hop: ip(1, 1) }));
        assert_eq!(routes.to(ip(1, 255)), None, "broadcast is no peer");
    }

    #[test]
    fn each_family_has_its_own_networks_sources_and_gateway() {
        let (port, other) = (PortId(0), PortId(1));
        let link_local = |text: &str, zone| Addr::v6(text.parse().expect("an address"), zone);
        let mut routes = Routes::default();
        let mut add = |port, addr, prefix_len| {
            routes.add_interface(Interface { port, addr, prefix_len, shared: false });
        };
        add(port, ip(1, 2), 24);
        add(port, link_local("fe80::2", 5), 64);
        add(port, ip6("fd00::2"), 64);
        add(other, link_local("fe80::2", 6), 64);
        let via = |port, source, next_hop| Some(Route::Via { port, source, next_hop });
        assert_eq!(routes.to(ip6("fd00::9")), via(port, ip6("fd00::2"), ip6("fd00::9")));
        let (near, far) = (link_local("fe80::9", 5), link_local("fe80::9", 6));
        assert_eq!(routes.to(near), via(port, link_local("fe80::2", 5), near));
        assert_eq!(routes.to(far), via(other, link_local("fe80::2", 6), far), "the zone says which link");
        assert_eq!(routes.to(link_local("fe80::9", 0)), None, "no zone, no link");
        assert_eq!(routes.to(ip6("fd01::9")), None);
        routes.set_gateway(port, ip(1, 1));
        assert_eq!(routes.to(ip6("fd01::9")), None, "a gateway of IPv4");
        routes.set_gateway(port, link_local("fe80::1", 5));
        assert_eq!(
            routes.to(ip6("fd01::9")),
            via(port, ip6("fd00::2"), link_local("fe80::1", 5)),
            "from an address that is known there"
        );
        assert_eq!(routes.to(ip(2, 1)), via(port, ip(1, 2), ip(1, 1)), "the other gateway stays");
        assert_eq!(routes.to(ip6("ff02::1")), None);
        routes.enable_local();
        assert_eq!(routes.to(Addr::LOCALHOST_V6), Some(Route::Local { source: Addr::LOCALHOST_V6 }));
        assert_eq!(routes.to(ip6("fd00::2")), Some(Route::Local { source: ip6("fd00::2") }));
    }

    const PORT: PortId = PortId(0);

    fn over_port(gateway: Option<Addr>, source: Option<Addr>) -> KernelVia {
        KernelVia::Port { port: PORT, gateway, source }
    }

    fn route(dst: Addr, prefix_len: u8, metric: u32, via: KernelVia) -> KernelRoute {
        KernelRoute { dst, prefix_len, metric, is_local: false, via }
    }

    fn shared() -> Routes {
        let mut routes = Routes::default();
        for addr in [ip(1, 2), ip(2, 2)] {
            routes.add_interface(Interface { port: PORT, addr, prefix_len: 24, shared: true });
        }
        routes
    }

    fn next_hop(routes: &Routes, dst: Addr) -> Option<Addr> {
        match routes.to(dst)? {
            Route::Via { next_hop, .. } => Some(next_hop),
            Route::Local { .. } => None,
        }
    }

    #[test]
    fn of_the_kernels_routes_the_longest_prefix_wins_then_the_least_metric() {
        let mut routes = shared();
        assert_eq!(routes.to(ip(1, 9)), None, "an address alone is no route");
        let default = Addr::UNSPECIFIED_V4;
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
