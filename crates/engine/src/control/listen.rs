//! Listeners: where connections come in, who may take them, and who takes the next one.

use core::net::{Ipv4Addr, SocketAddrV4};
use std::collections::{HashMap, VecDeque};
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, FlowIdx, ListenerId, QueueSetId, SessionId};

/// The place of a listener's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerIdx(pub u32);

/// A session that holds the listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub session: SessionId,
    pub queue_set: QueueSetId,
    pub id: ListenerId,
    /// Connections that it may still be handed.
    pub credit: u32,
    pub fd: u32,
}

/// Most connections that one holder can ask for in advance.
pub const CREDIT_MAX: u32 = 4096;
/// Longest backlog; longer ones count as this.
pub const BACKLOG_MAX: u32 = 4096;

/// One listener.
#[derive(Debug)]
pub struct Listener {
    pub local: SocketAddrV4,
    pub backlog: u32,
    pub anchor: AnchorHandle,
    pub holders: Vec<Holder>,
    /// Whose turn it is.
    turn: usize,
    /// Established connections that no session has been handed.
    pub waiting: VecDeque<FlowIdx>,
    /// Connections in SYN_RECEIVED.
    pub half_open: u32,
    /// Connections handed to a session and not taken by its program yet.
    pub handed: u32,
}

impl Listener {
    /// Whether another SYN is welcome.
    pub fn has_room(&self) -> bool {
        self.half_open < self.backlog.max(128) && (self.waiting.len() as u32 + self.handed) <= self.backlog
    }

    /// The next holder with credit, round robin; its credit is used up by one.
    pub fn next_taker(&mut self) -> Option<Holder> {
        let n = self.holders.len();
        for step in 0..n {
            let at = (self.turn + step) % n;
            if self.holders[at].credit > 0 {
                self.holders[at].credit -= 1;
                self.turn = at + 1;
                return Some(self.holders[at]);
            }
        }
        None
    }

    pub fn holder_mut(&mut self, session: SessionId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|h| h.session == session)
    }

    /// Removes a session from the holders.
    pub fn drop_holder(&mut self, session: SessionId) {
        self.holders.retain(|h| h.session != session);
    }
}

/// All listeners of an engine.
#[derive(Debug, Default)]
pub struct Listeners {
    records: Vec<Option<Listener>>,
    by_addr: HashMap<SocketAddrV4, ListenerIdx>,
}

impl Listeners {
    /// A new listener at `local`, without holders yet.
    pub fn open(
        &mut self,
        local: SocketAddrV4,
        backlog: u32,
        anchor: AnchorHandle,
    ) -> Result<ListenerIdx, Errno> {
        if self.by_addr.contains_key(&local) {
            return Err(Errno::EADDRINUSE);
        }
        let slot = match self.records.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                self.records.push(None);
                self.records.len() - 1
            }
        };
        let listener = Listener {
            local,
            backlog: backlog.clamp(1, BACKLOG_MAX),
            anchor,
            holders: Vec::new(),
            turn: 0,
            waiting: VecDeque::new(),
            half_open: 0,
            handed: 0,
        };
        self.records[slot] = Some(listener);
        let idx = ListenerIdx(slot as u32);
        self.by_addr.insert(local, idx);
        Ok(idx)
    }

    /// Removes a listener and returns its record.
    pub fn close(&mut self, idx: ListenerIdx) -> Option<Listener> {
        let listener = self.records.get_mut(idx.0 as usize)?.take()?;
        self.by_addr.remove(&listener.local);
        Some(listener)
    }

    pub fn get(&self, idx: ListenerIdx) -> Option<&Listener> {
        self.records.get(idx.0 as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, idx: ListenerIdx) -> Option<&mut Listener> {
        self.records.get_mut(idx.0 as usize)?.as_mut()
    }

    /// The listener for a connection to `local`: one bound to the address goes before one bound to all.
    pub fn find(&self, local: SocketAddrV4) -> Option<ListenerIdx> {
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, local.port());
        self.by_addr.get(&local).or_else(|| self.by_addr.get(&any)).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (ListenerIdx, &Listener)> {
        self.records.iter().enumerate().filter_map(|(i, r)| Some((ListenerIdx(i as u32), r.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: [u8; 4], port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(ip.into(), port)
    }

    #[test]
    fn the_bound_address_goes_before_any_address() {
        let mut listeners = Listeners::default();
        let any = listeners.open(at([0; 4], 80), 5, AnchorHandle(1)).expect("free");
        let one = listeners.open(at([10, 0, 0, 2], 80), 5, AnchorHandle(2)).expect("free");
        assert_eq!(listeners.open(at([0; 4], 80), 5, AnchorHandle(3)), Err(Errno::EADDRINUSE));
        assert_eq!(listeners.find(at([10, 0, 0, 2], 80)), Some(one));
        assert_eq!(listeners.find(at([10, 0, 0, 3], 80)), Some(any));
        assert_eq!(listeners.find(at([10, 0, 0, 2], 81)), None);
        listeners.close(one);
        assert_eq!(listeners.find(at([10, 0, 0, 2], 80)), Some(any));
    }

    #[test]
    fn connections_go_round_the_holders_that_asked_for_some() {
        let mut listeners = Listeners::default();
        let idx = listeners.open(at([0; 4], 80), 5, AnchorHandle(1)).expect("free");
        let listener = listeners.get_mut(idx).expect("open");
        for (session, credit) in [(1, 2), (2, 0), (3, 2)] {
            listener.holders.push(Holder {
                session: SessionId(session),
                queue_set: QueueSetId(0),
                id: ListenerId::default(),
                credit,
                fd: 3,
            });
        }
        let order: Vec<_> = std::iter::from_fn(|| listener.next_taker()).map(|h| h.session.0).collect();
        assert_eq!(order, [1, 3, 1, 3]);
    }
}
