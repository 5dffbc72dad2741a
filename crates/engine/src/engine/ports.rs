//! A free 4-tuple for a connection that a program opens: which port it comes from where the program does not say.

use super::Engine;
use crate::control::ephemeral;
use crate::control::listen::Listeners;
use crate::flow::isn::{HashPurpose, keyed_hash};
use crate::flow::key::FlowKey;
use crate::store::FlowStore;
use crate::work::Path;
use toe_abi::errno::Errno;
use toe_base::{Endpoint, Instant};

impl Engine {
    /// A free 4-tuple: the one that `name` says, or one with a port of the engine's choice where it says port 0: per RFC
    /// 6056 algorithm 4 (a keyed offset per destination, then counting). EAGAIN: there may be one, and to ask again goes on looking.
    /// Over a port that shares the kernel's address it is one that the kernel keeps for the engine.
    pub(super) fn choose_key(&mut self, now: Instant, path: Path, name: FlowKey) -> Result<FlowKey, Errno> {
        let FlowKey { local, remote, .. } = name;
        if local.port != 0 {
            // A connection of a socket with itself would need one record for both of its ends.
            let free = self.flows.may_have(&name) && name != name.reversed();
            return if free { Ok(name) } else { Err(Errno::EADDRNOTAVAIL) };
        }
        let key = |port| FlowKey { local: Endpoint { port, ..local }, ..name };
        let (start, count) = (self.config.ports.first, self.config.ports.count());
        let hash = keyed_hash(&self.config.secret, &name, HashPurpose::ConnectPort);
        if self.ip.is_shared(path) {
            return self.choose_reserved(hash, local.addr, remote);
        }
        let first = self.names.port_counters.begin(hash);
        let mut in_time_wait = None;
        let most = self.names.port_counters.places(hash, now);
        for (at, tried) in ephemeral::places(hash, first, count).zip(1..).take(most) {
            let key = key(start + at as u16);
            // First what as a rule decides where many are taken, and is looked up at once.
            if let Some(named) = self.flows.named(&key) {
                if in_time_wait.is_none()
                    && self.flows.may_replace(now, named)
                    && !self.listeners.is_another_s(&self.flows, path, &key)
                {
                    in_time_wait = Some(key);
                }
            } else if !self.listeners.is_another_s(&self.flows, path, &key) {
                self.names.port_counters.advance(hash, tried);
                self.names.port_counters.note_found(hash);
                return Ok(key);
            }
        }
        if let Some(key) = in_time_wait {
            self.names.port_counters.advance(hash, 1);
            self.names.port_counters.note_found(hash);
            return Ok(key);
        }
        let looked = ephemeral::IN_ORDER.min(count).min(most as u32);
        let is_none_free = self.names.port_counters.note_crowded(hash, now, (looked, count));
        Err(if is_none_free { Errno::EADDRNOTAVAIL } else { Errno::EAGAIN })
    }
}

impl Listeners {
    /// Whether a connection that the engine chose this name for would be in somebody's way: a port that somebody listens at is
    /// theirs, and a connection of a socket with itself, or with one that opens it from its side, would need one record for
    /// both of its ends. Such a one stays inside.
    fn is_another_s(&self, flows: &FlowStore, path: Path, key: &FlowKey) -> bool {
        let meets_itself = || {
            let reversed = key.reversed();
            *key == reversed || flows.named(&reversed).is_some()
        };
        path == Path::Local && meets_itself() || self.find(key.scope, key.local).is_some()
    }
}
