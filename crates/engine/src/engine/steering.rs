//! Addresses that are the kernel's too: which frames are steered to the engine, and the port numbers that the kernel keeps for it.

use super::{Edit, Engine};
use crate::control::listen::Listeners;
use crate::control::listener_idx::ListenerIdx;
use crate::control::network::SteerChange;
use crate::control::steer::SteeredBy;
use crate::flow::key::FlowKey;
use crate::parts::{IpLayer, Records};
use crate::store::FlowStore;
use crate::work::Path;
use toe_abi::errno::Errno;
use toe_base::{Addr, Endpoint, FlowIdx, PortId};

impl Records<'_> {
    // ---- shared by the files of this folder ----

    /// What comes to a listener is the kernel's, and the listener's kernel socket takes it.
    pub(super) fn leave_listener_to_kernel(&mut self, local: Endpoint) {
        let idx = self.listeners.iter().find(|(_, l)| l.local == local && l.is_steered).map(|(idx, _)| idx);
        if let Some(listener) = idx.and_then(|idx| self.listeners.get_mut(idx)) {
            listener.is_steered = false;
            self.stop_steering_listener(local);
        }
    }

    /// A connection has begun: its segments must come here.
    pub(super) fn steer_flow(&mut self, idx: Edit<'_>) {
        let conn = &self.flows.get(*idx).conn;
        let key = conn.key;
        if !self.ip.is_shared(conn.path) {
            return;
        }
        self.flows.on_shared.push(key.local.port.into(), *idx);
        if self.ip.steering.is_reserved(key.local.port) {
            self.ip.steering.count_use(key.remote, true);
        } else if !self.ip.is_steered(self.listeners, &key) {
            self.ip.steer_alone(self.flows, idx);
        }
    }

    /// What comes to a listener is not steered any more. Its connections live on and must still come here: first each by
    /// itself.
    pub(super) fn stop_steering_listener(&mut self, local: Endpoint) {
        let there: Vec<FlowIdx> = self.flows.on_shared.iter(local.port.into()).collect();
        for idx in there {
            if !self.ip.is_steered(self.listeners, &self.flows.get(idx).conn.key) {
                // Nothing follows from it for anybody else.
                let alone = |records: &mut Self, idx: Edit<'_>| records.ip.steer_alone(records.flows, idx);
                Edit::run(self, idx, alone, |_, _, ()| {});
            }
        }
        for idx in self.flows.time_waits.on_shared(local.port) {
            let Some(key) = self.flows.time_waits.get(idx).map(|waiting| waiting.key) else { continue };
            if !self.ip.is_steered(self.listeners, &key)
                && let Some(waiting) = self.flows.time_waits.get_mut(idx)
                && core::mem::replace(&mut waiting.steering, SteeredBy::Alone) != SteeredBy::Alone
            {
                self.ip.steering.change(SteerChange::Flow { key, on: true });
            }
        }
        self.ip.steering.change(SteerChange::Listen { local, on: false });
    }
}

impl Engine {
    /// A free 4-tuple with one of the ports that the kernel keeps.
    pub(super) fn choose_reserved(
        &mut self,
        hash: u64,
        source: Addr,
        remote: Endpoint,
    ) -> Result<FlowKey, Errno> {
        let first = self.names.port_counters.begin(hash);
        self.names.port_counters.advance(hash, 1);
        let key = |port| FlowKey::new(Endpoint::new(source, port), remote);
        let free = |port: &u16| self.flows.named(&key(*port)).is_none();
        let found = self.ip.steering.candidates(hash, first).find(free);
        let found = found.or_else(|| self.ip.steering.all_if_some_is_free(first, remote).find(free)).map(key);
        self.ip.steering.want_for(remote);
        found.ok_or(Errno::EADDRNOTAVAIL)
    }
}

impl IpLayer {
    /// Why the segments of a connection come here, which it does not see to any more.
    pub(super) fn take_steering(&mut self, flows: &mut FlowStore, idx: Edit<'_>) -> SteeredBy {
        flows.on_shared.remove(*idx);
        let conn = &mut flows.get_mut(idx).conn;
        let (key, path) = (conn.key, conn.path);
        match core::mem::take(&mut conn.steered) {
            true => SteeredBy::Alone,
            false if !self.is_shared(path) => SteeredBy::None,
            false if self.steering.is_reserved(key.local.port) => SteeredBy::Reserved,
            false => SteeredBy::Listener,
        }
    }

    fn steer_alone(&mut self, flows: &mut FlowStore, idx: Edit<'_>) {
        let conn = &mut flows.get_mut(idx).conn;
        if !core::mem::replace(&mut conn.steered, true) {
            self.steering.change(SteerChange::Flow { key: conn.key, on: true });
        }
    }

    /// A listener has begun whose program holds the port in the kernel.
    pub(super) fn steer_listener(&mut self, listeners: &mut Listeners, idx: ListenerIdx) {
        let Some(listener) = listeners.get_mut(idx) else { return };
        let local = listener.local;
        // What is shared is IPv4: an address of IPv6 is the kernel's alone there.
        let takes_v4 = local.addr.is_v4() || local.addr.is_unspecified() && !listener.v6_only;
        if self.steering.is_on
            && listener.scope.is_own()
            && takes_v4
            && !local.addr.is_loopback()
            && !listener.is_steered
            && !listener.process_each.is_left()
        {
            listener.is_steered = true;
            self.steering.change(SteerChange::Listen { local, on: true });
        }
    }

    /// Whether what comes for `key`, of which there is no connection, is steered here.
    pub(super) fn is_steered(&self, listeners: &Listeners, key: &FlowKey) -> bool {
        let listener = listeners.find(key.scope, key.local).and_then(|idx| listeners.get(idx));
        self.steering.is_reserved(key.local.port) || listener.is_some_and(|listener| listener.is_steered)
    }

    /// [`crate::NetworkChange::Shared`].
    pub(super) fn share_port(&mut self, port: PortId) {
        self.ports[port.index()].shared = true;
        self.steering.is_on = true;
        self.steering.want_for(Endpoint::new(Addr::UNSPECIFIED_V4, 0));
    }

    pub(super) fn is_shared(&self, path: Path) -> bool {
        matches!(path, Path::Port { port, .. } if self.ports[port.index()].shared)
    }
}
