//! What the engine has of addresses that it shares with the kernel: which changes of the steering are due, and the port
//! numbers that the kernel keeps for it.
//!
//! Steered are listeners (all that the kernel has no connection for), reserved port numbers (all), and single
//! connections: of a program that had bound its port, or whose listener is closed by now.

use crate::control::ephemeral;
use crate::control::network::{NetworkRequest, SteerChange};
use std::collections::{HashMap, HashSet, VecDeque};
use toe_base::{Addr, Endpoint, PortId};

use crate::flow::key::FlowKey;

/// So many reserved ports are to be free for one more connection to a remote address at any time.
const FREE_MIN: usize = 16;
/// Ports asked for at a time: so many, or a part of what is there, so that asking becomes rare.
const BATCH_MIN: usize = 32;
const BATCH_MAX: usize = 512;

/// Listeners and connections that can be steered each by itself; `bpf/steer.bpf.c` of the port has room for them.
const LISTENERS_MAX: usize = 65_536;
const FLOWS_MAX: usize = 131_072;

/// Why segments come to the engine that are for an address of the kernel's, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SteeredBy {
    /// The address is the engine's own.
    #[default]
    None,
    /// As those of its listener do.
    Listener,
    /// The port is one that the kernel keeps for the engine.
    Reserved,
    /// By itself.
    Alone,
}

/// The changes that are due, the ports that are there, the neighbours that are asked for.
#[derive(Debug, Default)]
pub struct Shared {
    /// Some port shares its address.
    pub is_on: bool,
    changes: VecDeque<SteerChange>,
    /// So many are steered each by itself.
    listeners: usize,
    flows: usize,
    /// In the order in which they came, and the same to look them up.
    reserved: Vec<u16>,
    is_reserved: HashSet<u16>,
    /// Connections by reserved ports to each remote address.
    uses: HashMap<Endpoint, u32>,
    wanted: usize,
    neighbours: VecDeque<(PortId, Addr)>,
}

impl Shared {
    pub fn change(&mut self, change: SteerChange) {
        let (count, on) = match change {
            SteerChange::Listen { on, .. } => (&mut self.listeners, on),
            SteerChange::Flow { on, .. } => (&mut self.flows, on),
        };
        *count = if on { *count + 1 } else { count.saturating_sub(1) };
        self.changes.push_back(change);
    }

    /// Whether one more listener can be steered.
    pub fn has_room_for_listener(&self) -> bool {
        self.listeners < LISTENERS_MAX
    }

    /// Whether one more connection can be steered by itself.
    pub fn has_room_for_flow(&self) -> bool {
        self.flows < FLOWS_MAX
    }

    /// What the driver is to do next. Ports are there, and frames are steered, before anybody is looked for.
    pub fn poll(&mut self) -> Option<NetworkRequest> {
        match core::mem::take(&mut self.wanted) {
            0 => {}
            wanted => return Some(NetworkRequest::ReservePorts(wanted)),
        }
        if let Some(change) = self.changes.pop_front() {
            return Some(NetworkRequest::Steer(change));
        }
        let (port, addr) = self.neighbours.pop_front()?;
        Some(NetworkRequest::FindNeighbour { port, addr })
    }

    /// The kernel keeps this number for the engine from now on.
    pub fn add_reserved(&mut self, port: u16) {
        if self.is_reserved.insert(port) {
            self.reserved.push(port);
        }
    }

    pub fn is_reserved(&self, port: u16) -> bool {
        self.is_reserved.contains(&port)
    }

    /// The reserved ports, beginning somewhere.
    pub fn candidates(&self, hash: u64, first: u32) -> impl Iterator<Item = u16> + '_ {
        let places = ephemeral::places(hash, first, self.reserved.len() as u32);
        places.map(|place| self.reserved[place as usize])
    }

    /// All of them, from the same one on: for connections to `remote` when the row of candidates has none free and there is
    /// one. As there are never many more than are in use, that is usual, and ends soon: at 8192 (the driver's limit).
    pub fn all_if_some_is_free(&self, first: u32, remote: Endpoint) -> impl Iterator<Item = u16> + '_ {
        let used = self.uses.get(&remote).map_or(0, |uses| *uses as usize);
        let all = if used < self.reserved.len() { &self.reserved[..] } else { &[] };
        let (before, after) = all.split_at(first as usize % all.len().max(1));
        after.iter().chain(before).copied()
    }

    /// A connection to `remote` uses a reserved port, or does so no longer.
    pub fn count_use(&mut self, remote: Endpoint, on: bool) {
        let uses = self.uses.entry(remote).or_default();
        *uses = if on { *uses + 1 } else { uses.saturating_sub(1) };
        if *uses == 0 {
            self.uses.remove(&remote);
        }
    }

    /// A connection has ended.
    pub fn stop(&mut self, key: &FlowKey, steering: SteeredBy) {
        match steering {
            SteeredBy::None | SteeredBy::Listener => {}
            SteeredBy::Reserved => self.count_use(key.remote, false),
            SteeredBy::Alone => self.change(SteerChange::Flow { key: *key, on: false }),
        }
    }

    /// Asks for more ports when few are left for connections to `remote`.
    pub fn want_for(&mut self, remote: Endpoint) {
        let used = self.uses.get(&remote).map_or(0, |uses| *uses as usize);
        if self.is_on && used + FREE_MIN > self.reserved.len() {
            self.wanted = (self.reserved.len() / 2).clamp(BATCH_MIN, BATCH_MAX);
        }
    }

    pub fn ask_neighbour(&mut self, port: PortId, addr: Addr) {
        self.neighbours.push_back((port, addr));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_asked_for_before_they_run_out_for_one_remote() {
        let remote = |port| Endpoint::new(Addr::from([10, 0, 0, 1]), port);
        let mut shared = Shared { is_on: true, ..Shared::default() };
        shared.want_for(remote(80));
        assert_eq!(shared.poll(), Some(NetworkRequest::ReservePorts(BATCH_MIN)));
        assert_eq!(shared.poll(), None, "said once");
        (0..BATCH_MIN as u16).for_each(|n| shared.add_reserved(40_000 + n));
        for _ in 0..BATCH_MIN - FREE_MIN {
            shared.count_use(remote(80), true);
            shared.want_for(remote(80));
        }
        assert_eq!(shared.poll(), None);
        shared.count_use(remote(80), true);
        shared.want_for(remote(81));
        assert_eq!(shared.poll(), None, "another remote can have the same ports");
        shared.want_for(remote(80));
        assert_eq!(shared.poll(), Some(NetworkRequest::ReservePorts(BATCH_MIN)));
        shared.count_use(remote(80), false);
        shared.want_for(remote(80));
        assert_eq!(shared.poll(), None, "one is free again");
    }

    #[test]
    fn no_more_is_steered_than_there_is_room_for() {
        let at = |n: u32| Endpoint::new(n.to_be_bytes(), 80);
        let mut shared = Shared::default();
        let listen = |n, on| SteerChange::Listen { local: at(n), on };
        (0..LISTENERS_MAX as u32).for_each(|n| shared.change(listen(n, true)));
        assert!(!shared.has_room_for_listener() && shared.has_room_for_flow());
        shared.change(listen(0, false));
        assert!(shared.has_room_for_listener());
        let flow = |n, on| SteerChange::Flow { key: FlowKey::new(at(0), at(n)), on };
        (0..FLOWS_MAX as u32).for_each(|n| shared.change(flow(n, true)));
        assert!(!shared.has_room_for_flow() && shared.has_room_for_listener());
    }

    #[test]
    fn candidates_begin_anywhere_and_leave_none_out() {
        let mut shared = Shared::default();
        assert_eq!(shared.candidates(0, 7).count(), 0);
        [5, 6, 7].into_iter().for_each(|port| shared.add_reserved(port));
        shared.add_reserved(6);
        assert_eq!(shared.candidates(0, 4).collect::<Vec<_>>(), [6, 7, 5]);
        assert!(shared.is_reserved(7) && !shared.is_reserved(8));
    }
}
