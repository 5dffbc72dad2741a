//! Addresses that are the kernel's too: what the driver tells of addresses, routes, neighbours and port numbers, and what
//! it is to do about neighbours and about the steering of frames.

use super::Engine;
use crate::control::listen::ListenerIdx;
use crate::control::names::Twin;
use crate::control::route::{KernelRoute, Route};
use crate::control::steer::SteerChange;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::work::{Link, Path};
use std::collections::HashMap;
use toe_abi::errno::Errno;
use toe_base::{Addr, Endpoint, FlowIdx, PortId};
use toe_wire::link::MacAddr;

/// Room for the timestamps option in every segment.
const TIMESTAMPS_LEN: u16 = 12;

impl Engine {
    // ---- set-up ----

    /// The port's addresses, routes and neighbours are the kernel's. Before it has any.
    pub fn share_port(&mut self, port: PortId) {
        self.ports[port.index()].shared = true;
        self.shared.is_on = true;
        self.want_ports_for(Endpoint::new(Addr::UNSPECIFIED_V4, 0));
    }

    // ---- something happened ----

    /// The port's link is another by now: its interface was replaced, or its MTU changed.
    pub fn set_link(&mut self, port: PortId, link: Link) {
        self.ports[port.index()].link = link;
        let here: Vec<FlowIdx> =
            self.flows_by(|path| matches!(path, Path::Port { port: p, .. } if p == port));
        for idx in here {
            let conn = &self.flows.get(idx).conn;
            let mss_max = self.path_mss(conn.path, conn.key.remote.addr).saturating_sub(TIMESTAMPS_LEN);
            let flow = self.flows.get_mut(idx);
            flow.tcb.snd.mss = flow.tcb.snd.mss.min(mss_max);
            // Nor is a larger one probed for.
            flow.tcb.mtu.limit = flow.tcb.mtu.limit.min(mss_max);
        }
    }

    /// The port has this address no more. Connections that have it stay, as of Linux, and end when nobody answers.
    pub fn remove_addr(&mut self, port: PortId, addr: Addr) {
        self.routes.remove_interface(port, addr);
    }

    /// All routes that the kernel has now. Connections take the way that the new ones say.
    pub fn set_kernel_routes(&mut self, routes: &[KernelRoute]) {
        if !self.routes.set_kernel_routes(routes) {
            return;
        }
        // Many connections, few peers.
        let mut found: HashMap<Addr, Option<Route>> = HashMap::new();
        for idx in self.flows_by(|path| self.is_shared(path)) {
            let remote = self.flows.get(idx).conn.key.remote.addr;
            let route = *found.entry(remote).or_insert_with(|| self.routes.to(remote));
            let Some(Route::Via { port, next_hop, .. }) = route else { continue };
            let Some(neighbour) = self.neighbour(port, next_hop) else { continue };
            let path = Path::Port { port, neighbour };
            // Another way over a port of the engine's own addresses would be from a wrong one.
            if self.is_shared(path) && self.flows.get(idx).conn.path != path {
                self.set_path(idx, path);
                self.after(idx);
            }
        }
    }

    /// The kernel knows a neighbour's hardware address; `is_doubtful`: it has not heard of it for a while.
    pub fn neighbour_known(&mut self, port: PortId, addr: Addr, mac: MacAddr, is_doubtful: bool) {
        if let Some(neighbour) = self.ports[port.index()].neighbours.set(addr, mac, is_doubtful) {
            self.neighbour_found(Path::Port { port, neighbour });
        }
    }

    /// The kernel knows it no more; `failed`: it asked, and nobody answered.
    pub fn neighbour_gone(&mut self, port: PortId, addr: Addr, failed: bool) {
        let Some(neighbour) = self.ports[port.index()].neighbours.forget(addr) else { return };
        if failed {
            self.counters.add(Counter::NeighbourFailures);
            self.neighbour_lost(Path::Port { port, neighbour });
        } else {
            // Whoever has something to send asks again.
            self.neighbour_found(Path::Port { port, neighbour });
        }
    }

    /// What comes to a listener cannot be steered here: it is the kernel's, and the listener's kernel socket takes it.
    pub fn steering_refused(&mut self, local: Endpoint) {
        let idx = self.listeners.iter().find(|(_, l)| l.local == local && l.is_steered).map(|(idx, _)| idx);
        if let Some(listener) = idx.and_then(|idx| self.listeners.get_mut(idx)) {
            listener.is_steered = false;
            self.stop_steering_listener(local);
        }
    }

    /// The kernel keeps this port number for the engine, for connections that name none.
    pub fn add_reserved_port(&mut self, port: u16) {
        self.shared.add_reserved(port);
    }

    // ---- is there something to do? ----

    /// The next change of what is steered here; to be carried out before anything is sent or posted.
    pub fn poll_steer(&mut self) -> Option<SteerChange> {
        self.shared.poll_change()
    }

    /// A neighbour that the kernel is to find, or to make sure of.
    pub fn poll_neighbour(&mut self) -> Option<(PortId, Addr)> {
        self.shared.poll_neighbour()
    }

    /// How many more port numbers the kernel is asked to keep; asked once.
    pub fn poll_ports_wanted(&mut self) -> usize {
        self.shared.take_wanted()
    }

    /// The kernel sockets that steered listeners rely on: they must go on listening.
    pub fn steered_twins(&self) -> impl Iterator<Item = Twin> {
        self.listeners.iter().filter(|(_, l)| l.is_steered).flat_map(|(_, l)| l.twins())
    }

    /// Whether connections have this address.
    pub fn has_flows_at(&self, addr: Addr) -> bool {
        let mut conns = self.flows.indices().map(|idx| &self.flows.get(idx).conn);
        conns.any(|conn| conn.indexed && conn.key.local.addr == addr)
    }

    // ---- shared by the files of this folder ----

    pub(super) fn is_shared(&self, path: Path) -> bool {
        matches!(path, Path::Port { port, .. } if self.ports[port.index()].shared)
    }

    /// Whether what comes for `key`, of which there is no connection, is steered here.
    pub(super) fn is_steered(&self, key: &FlowKey) -> bool {
        let listener = self.listeners.find(key.scope, key.local).and_then(|idx| self.listeners.get(idx));
        self.shared.is_reserved(key.local.port) || listener.is_some_and(|listener| listener.is_steered)
    }

    /// A free 4-tuple with one of the ports that the kernel keeps.
    pub(super) fn choose_reserved(
        &mut self,
        hash: u64,
        source: Addr,
        remote: Endpoint,
    ) -> Result<FlowKey, Errno> {
        let first = self.port_counters.begin(hash);
        self.port_counters.advance(hash, 1);
        let key = |port| FlowKey::new(Endpoint::new(source, port), remote);
        let free = |port: &u16| self.index.get(&key(*port)).is_none();
        let found = self.shared.candidates(hash, first).find(free);
        let found = found.or_else(|| self.shared.all_if_some_is_free(first, remote).find(free)).map(key);
        self.want_ports_for(remote);
        found.ok_or(Errno::EADDRNOTAVAIL)
    }

    fn want_ports_for(&mut self, remote: Endpoint) {
        self.shared.want_for(remote);
    }

    /// A connection has begun: its segments must come here.
    pub(super) fn steer_flow(&mut self, idx: FlowIdx) {
        let conn = &self.flows.get(idx).conn;
        let key = conn.key;
        if !self.is_shared(conn.path) {
            return;
        }
        self.shared_flows.push(key.local.port.into(), idx);
        if self.shared.is_reserved(key.local.port) {
            self.shared.count_use(key.remote, true);
        } else if !self.is_steered(&key) {
            self.steer_alone(idx);
        }
    }

    fn steer_alone(&mut self, idx: FlowIdx) {
        let conn = &mut self.flows.get_mut(idx).conn;
        if !core::mem::replace(&mut conn.steered, true) {
            self.shared.change(SteerChange::Flow { key: conn.key, on: true });
        }
    }

    /// A connection has ended.
    pub(super) fn stop_steering_flow(&mut self, idx: FlowIdx) {
        let conn = &mut self.flows.get_mut(idx).conn;
        let (key, path) = (conn.key, conn.path);
        self.shared_flows.remove(idx);
        if core::mem::take(&mut conn.steered) {
            self.shared.change(SteerChange::Flow { key, on: false });
        } else if self.is_shared(path) && self.shared.is_reserved(key.local.port) {
            self.shared.count_use(key.remote, false);
        }
    }

    /// A listener has begun whose program holds the port in the kernel.
    pub(super) fn steer_listener(&mut self, idx: ListenerIdx) {
        let Some(listener) = self.listeners.get_mut(idx) else { return };
        let local = listener.local;
        // What is shared is IPv4: an address of IPv6 is the kernel's alone there.
        let takes_v4 = local.addr.is_v4() || local.addr.is_unspecified() && !listener.v6_only;
        if self.shared.is_on
            && listener.scope.is_own()
            && takes_v4
            && !local.addr.is_loopback()
            && !listener.is_steered
            && !listener.process_each.is_left()
        {
            listener.is_steered = true;
            self.shared.change(SteerChange::Listen { local, on: true });
        }
    }

    /// What comes to a listener is not steered any more. Its connections live on and must still come here: first each by
    /// itself.
    pub(super) fn stop_steering_listener(&mut self, local: Endpoint) {
        let there: Vec<FlowIdx> = self.shared_flows.iter(local.port.into()).collect();
        for idx in there {
            if !self.is_steered(&self.flows.get(idx).conn.key) {
                self.steer_alone(idx);
            }
        }
        self.shared.change(SteerChange::Listen { local, on: false });
    }

    fn flows_by(&self, is_it: impl Fn(Path) -> bool) -> Vec<FlowIdx> {
        self.flows.indices().filter(|idx| is_it(self.flows.get(*idx).conn.path)).collect()
    }
}
