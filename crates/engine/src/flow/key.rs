//! The 4-tuple that names a connection, and the hash table from it to flow records.

use core::net::SocketAddr;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use toe_base::{Endpoint, FlowIdx};

/// Where addresses and ports mean something: a network namespace, by its place in the engine's table of them
/// ([`crate::control::scopes`]). The same loopback address in two of them is two addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(pub u16);

impl Scope {
    /// The engine's own network namespace, which its links belong to.
    pub const OWN: Scope = Scope(0);

    pub const fn is_own(self) -> bool {
        self.0 == 0
    }
}

/// A connection's addresses and ports, from the engine's side. Both are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    pub local: Endpoint,
    pub remote: Endpoint,
    pub scope: Scope,
}

impl FlowKey {
    /// A connection of the engine's own namespace: one over a link is always that.
    pub const fn new(local: Endpoint, remote: Endpoint) -> FlowKey {
        FlowKey { local, remote, scope: Scope::OWN }
    }

    /// The same connection from the other end.
    #[must_use]
    pub const fn reversed(self) -> FlowKey {
        FlowKey { local: self.remote, remote: self.local, ..self }
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local.to_socket_addr()
    }

    pub fn remote_addr(&self) -> SocketAddr {
        self.remote.to_socket_addr()
    }

    pub fn is_v4(&self) -> bool {
        self.local.addr.is_v4()
    }

    /// Both ends, for keyed hashes. In IPv4 it is 12 bytes, in IPv6 36, and two more of another namespace than the
    /// engine's: none is ever taken for the other.
    pub fn hash_into(&self, hasher: &mut impl Hasher) {
        let mut bytes = [0; 36];
        bytes[0..2].copy_from_slice(&self.local.port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.remote.port.to_be_bytes());
        let (local, remote) = (self.local.addr.bytes(), self.remote.addr.bytes());
        if self.is_v4() && self.remote.addr.is_v4() {
            bytes[4..8].copy_from_slice(&local[12..]);
            bytes[8..12].copy_from_slice(&remote[12..]);
            hasher.write(&bytes[..12]);
        } else {
            bytes[4..20].copy_from_slice(&local);
            bytes[20..36].copy_from_slice(&remote);
            hasher.write(&bytes);
        }
        if !self.scope.is_own() {
            hasher.write(&self.scope.0.to_be_bytes());
        }
    }
}

/// The unspecified address and port 0 at both ends: a record that stands for no connection.
pub const NO_KEY: FlowKey = FlowKey::new(Endpoint::UNSPECIFIED_V4, Endpoint::UNSPECIFIED_V4);

/// The two halves of the engine's secret.
pub(super) fn key_halves(secret: &[u8; 16]) -> (u64, u64) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *secret;
    (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p]))
}

/// SipHash-1-3 with a secret key: a peer that picks its ports cannot aim them at one bucket.
#[derive(Clone, Copy, Debug)]
struct Keyed {
    k0: u64,
    k1: u64,
}

/// Hashes the 64-bit digest that [`FlowIndex`] uses as the map's key: it is uniform already.
#[derive(Clone, Copy, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only digests are hashed")
    }
    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }
}

/// The place of a connection in TIME_WAIT that no program has ([`crate::store`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWaitIdx(pub FlowIdx);

/// Who has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHolder {
    Flow(FlowIdx),
    TimeWait(TimeWaitIdx),
}

impl KeyHolder {
    /// The flow, if it is one.
    pub fn flow(self) -> Option<FlowIdx> {
        if let KeyHolder::Flow(idx) = self { Some(idx) } else { None }
    }
}

/// From 4-tuple to record. Derived from the records: it can be rebuilt from them.
#[derive(Debug)]
pub struct FlowIndex {
    keyed: Keyed,
    map: HashMap<u64, (FlowKey, KeyHolder), BuildHasherDefault<Identity>>,
}

impl FlowIndex {
    pub fn new(secret: &[u8; 16], capacity: usize) -> FlowIndex {
        let (k0, k1) = key_halves(secret);
        FlowIndex {
            keyed: Keyed { k0, k1 },
            map: HashMap::with_capacity_and_hasher(capacity, Default::default()),
        }
    }

    fn digest(&self, key: &FlowKey) -> u64 {
        use siphasher::sip::SipHasher13;
        let mut hasher = SipHasher13::new_with_keys(self.keyed.k0, self.keyed.k1);
        key.hash_into(&mut hasher);
        hasher.finish()
    }

    pub fn get(&self, key: &FlowKey) -> Option<KeyHolder> {
        let mut digest = self.digest(key);
        // Two keys with one 64-bit digest sit at neighbouring digests (see `insert`).
        while let Some((have, named)) = self.map.get(&digest) {
            if have == key {
                return Some(*named);
            }
            digest = digest.wrapping_add(1);
        }
        None
    }

    /// It has the name from now on, whoever had it before.
    pub fn insert(&mut self, key: FlowKey, named: KeyHolder) {
        let mut digest = self.digest(&key);
        while self.map.get(&digest).is_some_and(|(have, _)| *have != key) {
            digest = digest.wrapping_add(1);
        }
        self.map.insert(digest, (key, named));
    }

    pub fn remove(&mut self, key: &FlowKey) {
        let mut digest = self.digest(key);
        while let Some((have, _)) = self.map.get(&digest) {
            if have == key {
                self.map.remove(&digest);
                self.close_gap(digest);
                return;
            }
            digest = digest.wrapping_add(1);
        }
    }

    /// Re-inserts what stood behind a removed entry because of it, so that `get` need not look past gaps.
    fn close_gap(&mut self, removed: u64) {
        let mut digest = removed.wrapping_add(1);
        while let Some((key, named)) = self.map.remove(&digest) {
            self.insert(key, named);
            digest = digest.wrapping_add(1);
        }
    }

    pub fn clear(&mut self) {
        self.map.clear();
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}
