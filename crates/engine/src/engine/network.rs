//! Links, addresses, routes and neighbours: what the driver tells of them ([`NetworkChange`]), and what it is to do ([`NetworkRequest`]).

use super::Engine;
use super::names::in_zone;
use crate::control::network::{NetworkChange, NetworkRequest};
use crate::control::route::{Interface, KernelRoute, Route};
use crate::hostif::channels::ChannelRequest;
use crate::parts::Records;
use crate::work::{Captured, Link, Path};
use std::collections::HashMap;
use toe_base::{Addr, FlowIdx, PortId};

/// Room for the timestamps option in every segment.
const TIMESTAMPS_LEN: u16 = 12;

/// Something that the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverRequest {
    Network(NetworkRequest),
    Channel(ChannelRequest),
    /// To show it to the captures that want it. Of processes that have gone only the driver knows, so it may be that none does.
    Show(Captured),
}

impl Engine {
    /// Something has changed.
    pub fn handle_network(&mut self, change: NetworkChange<'_>) {
        match change {
            NetworkChange::Loopback => self.ip.routes.enable_local(),
            NetworkChange::Shared { port } => self.ip.share_port(port),
            NetworkChange::Link { port, link } => self.records().link_changed(port, link),
            NetworkChange::Address { port, addr, prefix_len } => {
                let crate::parts::Port { link, shared, .. } = self.ip.ports[port.index()];
                let (addr, prefix_len) = (in_zone(addr, link.zone), prefix_len.min(addr.bits()));
                self.ip.routes.add_interface(Interface { port, addr, prefix_len, shared });
            }
            NetworkChange::NoAddress { port, addr } => self.ip.routes.remove_interface(port, addr),
            NetworkChange::Gateway { port, gateway } => {
                let gateway = in_zone(gateway, self.ip.ports[port.index()].link.zone);
                self.ip.routes.set_gateway(port, gateway);
            }
            NetworkChange::Routes(routes) => self.routes_changed(routes),
            NetworkChange::Neighbour { port, addr, mac, is_doubtful } => {
                let known = self.ip.ports[port.index()].neighbours.set(addr, mac, is_doubtful);
                if let Some(neighbour) = known {
                    self.links().neighbour_found(Path::Port { port, neighbour });
                }
            }
            NetworkChange::NoNeighbour { port, addr, failed } => {
                let lost = self.links().neighbour_gone(port, addr, failed);
                lost.into_iter().for_each(|path| self.records().neighbour_lost(path));
            }
            NetworkChange::PortReserved(port) => self.ip.steering.add_reserved(port),
            NetworkChange::SteeringRefused { local } => self.records().leave_listener_to_kernel(local),
        }
    }

    /// What the driver is to do next.
    pub fn poll_request(&mut self) -> Option<DriverRequest> {
        if let Some(captured) = self.hostif.capture.poll() {
            return Some(DriverRequest::Show(captured));
        }
        let doubted = self.names.doubted.pop();
        let network = doubted.map(|identity| NetworkRequest::LookAtTwin { identity });
        let network = network.or_else(|| self.ip.steering.poll()).map(DriverRequest::Network);
        network.or_else(|| self.hostif.channels.poll().map(DriverRequest::Channel))
    }

    fn routes_changed(&mut self, routes: &[KernelRoute]) {
        if !self.ip.routes.set_kernel_routes(routes) {
            return;
        }
        // Many connections, few peers.
        let mut found: HashMap<Addr, Option<Route>> = HashMap::new();
        for idx in self.flows.by_path(|path| self.ip.is_shared(path)) {
            let remote = self.flows.get(idx).conn.key.remote.addr;
            let route = *found.entry(remote).or_insert_with(|| self.ip.routes.to(remote));
            let Some(Route::Via { port, next_hop, .. }) = route else { continue };
            let Some(neighbour) = self.ip.neighbour((&self.flows, &self.udp), port, next_hop) else {
                continue;
            };
            let path = Path::Port { port, neighbour };
            // Another way over a port of the engine's own addresses would be from a wrong one.
            if self.ip.is_shared(path) && self.flows.get(idx).conn.path != path {
                self.edit(idx, |engine, idx| engine.flows.set_path(idx, path));
            }
        }
    }
}

impl Records<'_> {
    fn link_changed(&mut self, port: PortId, link: Link) {
        self.ip.ports[port.index()].link = link;
        let here: Vec<FlowIdx> =
            self.flows.by_path(|path| matches!(path, Path::Port { port: p, .. } if p == port));
        for idx in here {
            let conn = &self.flows.get(idx).conn;
            let mss_max = self.ip.path_mss(conn.path, conn.key.remote.addr).saturating_sub(TIMESTAMPS_LEN);
            self.edit(idx, |records, idx| {
                let snd = &mut records.flows.get_mut(idx).tcb.snd;
                snd.mss = snd.mss.min(mss_max);
                // Nor is a larger one probed for.
                snd.mss_max = snd.mss_max.min(mss_max);
            });
        }
    }
}
