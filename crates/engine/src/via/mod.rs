//! Who meets whom by virtual interfaces (decision 0036): what sessions call their nodes, who listens where, who has asked for a connection, and
//! which two sessions have one. Messages never come here.
//!
//! Plain values; the memory of a connection is the driver's. Joined by `engine/via`.

#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, HANDLES_MAX, NodeName};
use toe_base::{Cred, SessionId, ViaId};

/// Where somebody listens, or is wanted. Of another user nobody is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    uid: u32,
    node: NodeName,
    discriminator: u64,
}

/// A session that has said what its node is called.
#[derive(Debug)]
struct Node {
    uid: u32,
    name: NodeName,
    handles: BTreeSet<ViaId>,
}

#[derive(Debug)]
enum Thing<P> {
    Listener {
        session: SessionId,
        at: Place,
        from: Option<NodeName>,
        payer: P,
    },
    Asked {
        session: SessionId,
        /// What its node is called.
        by: NodeName,
        to: Place,
        ticket: u64,
        attributes: Attributes,
        payer: P,
    },
    /// Side 0 has asked for it, side 1 has taken it.
    Made {
        ends: [SessionId; 2],
        names: [NodeName; 2],
        payer: P,
        /// Side 0 has its memory.
        is_fetched: bool,
    },
    /// Side 1 has left before side 0 fetched the memory: it finds there what was sent, or that it was rejected.
    Left {
        session: SessionId,
        peer: NodeName,
        payer: P,
    },
}

/// What has become of a request, and what the driver is to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViaOutcome<P> {
    Named,
    /// The listener, and whether a connection waits for it already.
    Listens(ViaId, bool),
    /// The connection that is asked for, and who listens for it.
    Asked(ViaId, Vec<SessionId>),
    Taken(Taken),
    Fetched(Fetched),
    /// A listener or connection.
    Ended(Ended<P>),
}

/// A connection that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub connection: ViaId,
    /// Who has asked for it, and is to hear that it can be fetched.
    pub asker: SessionId,
    pub peer: NodeName,
    pub attributes: Attributes,
}

/// A connection that was taken, to the one that has asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    pub connection: ViaId,
    /// `None`: it has left since.
    pub other: Option<SessionId>,
    pub peer: NodeName,
}

/// The end of a listener or connection, and what the driver is to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended<P> {
    pub handle: ViaId,
    /// Who was charged for it.
    pub payer: Option<P>,
    pub is_listener: bool,
    /// Its memory was made, and this is the other side, which hears of it.
    pub other: Option<SessionId>,
    /// Side 1 has ended it: if it has rejected it, that stands.
    pub by_taker: bool,
    /// That one has yet to fetch the memory, and finds there how it ended.
    pub is_retained: bool,
}

/// All nodes, listeners and connections of live sessions. `P`: who is charged for one.
///
/// Any number of a user's sessions may have the same place, each with all that a session may have: nothing here walks over what there is at one.
#[derive(Debug)]
pub struct Via<P> {
    nodes: BTreeMap<SessionId, Node>,
    things: BTreeMap<ViaId, Thing<P>>,
    /// How many listeners a session has at a place, for connections from a node or from any.
    listening: BTreeMap<(Place, Option<NodeName>, SessionId), usize>,
    /// In the order in which they were asked for; each twice: for listeners that want its node, and for those that want any.
    asked: BTreeMap<(Place, Option<NodeName>, u64), ViaId>,
    next: u32,
    /// Of the next connection that is asked for.
    next_ticket: u64,
}

impl<P> Default for Via<P> {
    fn default() -> Via<P> {
        Via {
            nodes: BTreeMap::new(),
            things: BTreeMap::new(),
            listening: BTreeMap::new(),
            asked: BTreeMap::new(),
            next: 0,
            next_ticket: 0,
        }
    }
}

impl<P: Copy> Via<P> {
    pub fn name(&mut self, session: SessionId, who: Cred, name: NodeName) -> Result<(), Errno> {
        if self.nodes.contains_key(&session) {
            return Err(Errno::EALREADY);
        }
        self.nodes.insert(session, Node { uid: who.uid, name, handles: BTreeSet::new() });
        Ok(())
    }

    /// The listener, and whether a connection waits for it already.
    pub fn listen(
        &mut self,
        session: SessionId,
        from: Option<NodeName>,
        discriminator: u64,
        payer: P,
    ) -> Result<(ViaId, bool), Errno> {
        let node = self.with_room(session)?;
        let at = Place { uid: node.uid, node: node.name, discriminator };
        let handle = self.add(session, Thing::Listener { session, at, from, payer });
        *self.listening.entry((at, from, session)).or_default() += 1;
        Ok((handle, self.first_for(at, from).is_some()))
    }

    /// Whether a session may have one more listener or connection; before anybody is charged for it.
    pub fn may_add(&self, session: SessionId) -> Result<(), Errno> {
        self.with_room(session).map(|_| ())
    }

    /// A connection is asked for; and who listens for it.
    pub fn ask(
        &mut self,
        session: SessionId,
        (to, discriminator): (NodeName, u64),
        attributes: Attributes,
        payer: P,
    ) -> Result<(ViaId, Vec<SessionId>), Errno> {
        let node = self.with_room(session)?;
        let (by, to) = (node.name, Place { uid: node.uid, node: to, discriminator });
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let handle = self.add(session, Thing::Asked { session, by, to, ticket, attributes, payer });
        for from in [None, Some(by)] {
            self.asked.insert((to, from, ticket), handle);
        }
        let of = |from| {
            let (first, last) = ((to, from, SessionId(0)), (to, from, SessionId(u16::MAX)));
            self.listening.range(first..=last).map(|((_, _, session), _)| *session)
        };
        // However many listeners a session has, it hears of it once.
        let sessions: BTreeSet<SessionId> = of(None).chain(of(Some(by))).collect();
        Ok((handle, sessions.into_iter().collect()))
    }

    /// What waits for a listener longest. EAGAIN: nothing does.
    pub fn take(&mut self, session: SessionId, listener: ViaId) -> Result<Taken, Errno> {
        let Some(Thing::Listener { session: owner, at, from, .. }) = self.things.get(&listener) else {
            return Err(Errno::ENOENT);
        };
        let (owner, at, from) = (*owner, *at, *from);
        if owner != session {
            return Err(Errno::ENOENT);
        }
        let connection = self.first_for(at, from).ok_or(Errno::EAGAIN)?;
        let own = self.with_room(session)?.name;
        let Some(Thing::Asked { session: asker, by, ticket, attributes, payer, .. }) =
            self.things.get(&connection)
        else {
            return Err(Errno::EAGAIN);
        };
        let (asker, peer, ticket, attributes, payer) = (*asker, *by, *ticket, *attributes, *payer);
        self.no_longer_asked(at, peer, ticket);
        let made = Thing::Made { ends: [asker, session], names: [peer, own], payer, is_fetched: false };
        self.things.insert(connection, made);
        self.own(session, connection);
        Ok(Taken { connection, asker, peer, attributes })
    }

    /// For the one that has asked: the other side, if somebody has taken it. EAGAIN: nobody has. EALREADY: it was told before.
    pub fn fetch(&mut self, session: SessionId, connection: ViaId) -> Result<Fetched, Errno> {
        match self.things.get_mut(&connection) {
            Some(Thing::Made { ends: [asker, taker], names: [_, peer], is_fetched, .. })
                if *asker == session =>
            {
                if std::mem::replace(is_fetched, true) {
                    return Err(Errno::EALREADY);
                }
                Ok(Fetched { connection, other: Some(*taker), peer: *peer })
            }
            Some(Thing::Left { session: asker, peer, .. }) if *asker == session => {
                Ok(Fetched { connection, other: None, peer: *peer })
            }
            Some(Thing::Asked { session: asker, .. }) if *asker == session => Err(Errno::EAGAIN),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Ends a listener or a connection of a session's.
    pub fn forget(&mut self, session: SessionId, handle: ViaId) -> Result<Ended<P>, Errno> {
        let is_its = self.nodes.get(&session).is_some_and(|node| node.handles.contains(&handle));
        if !is_its {
            return Err(Errno::ENOENT);
        }
        self.end(session, handle).ok_or(Errno::ENOENT)
    }

    /// The session has ended, and with it all that it had.
    pub fn forget_session(&mut self, session: SessionId) -> Vec<Ended<P>> {
        let handles = self.nodes.remove(&session).map(|node| node.handles).unwrap_or_default();
        handles.into_iter().filter_map(|handle| self.end(session, handle)).collect()
    }

    /// Listeners and connections.
    pub fn len(&self) -> usize {
        self.things.len()
    }

    pub fn is_empty(&self) -> bool {
        self.things.is_empty()
    }

    /// Who is charged for each listener.
    pub fn payers_of_listeners(&self) -> impl Iterator<Item = P> {
        self.things.values().filter_map(|thing| match thing {
            Thing::Listener { payer, .. } => Some(*payer),
            _ => None,
        })
    }

    fn with_room(&self, session: SessionId) -> Result<&Node, Errno> {
        let node = self.nodes.get(&session).ok_or(Errno::EINVAL)?;
        if node.handles.len() < HANDLES_MAX { Ok(node) } else { Err(Errno::ENOBUFS) }
    }

    fn add(&mut self, session: SessionId, thing: Thing<P>) -> ViaId {
        while self.things.contains_key(&ViaId(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = ViaId(self.next);
        self.next = self.next.wrapping_add(1);
        self.things.insert(handle, thing);
        self.own(session, handle);
        handle
    }

    fn own(&mut self, session: SessionId, handle: ViaId) {
        if let Some(node) = self.nodes.get_mut(&session) {
            node.handles.insert(handle);
        }
    }

    /// The connection that waits longest at a place for who listens there for `from`.
    fn first_for(&self, at: Place, from: Option<NodeName>) -> Option<ViaId> {
        self.asked.range((at, from, 0)..=(at, from, u64::MAX)).next().map(|(_, handle)| *handle)
    }

    fn no_longer_asked(&mut self, to: Place, by: NodeName, ticket: u64) {
        for from in [None, Some(by)] {
            self.asked.remove(&(to, from, ticket));
        }
    }

    fn no_longer_listens(&mut self, session: SessionId, at: Place, from: Option<NodeName>) {
        if let Entry::Occupied(mut listeners) = self.listening.entry((at, from, session)) {
            *listeners.get_mut() -= 1;
            if *listeners.get() == 0 {
                listeners.remove();
            }
        }
    }

    fn end(&mut self, session: SessionId, handle: ViaId) -> Option<Ended<P>> {
        let thing = self.things.remove(&handle)?;
        if let Thing::Made { ends: [asker, taker], names: [_, peer], payer, is_fetched: false } = thing
            && asker != taker
            && session == taker
        {
            self.things.insert(handle, Thing::Left { session: asker, peer, payer });
            if let Some(node) = self.nodes.get_mut(&taker) {
                node.handles.remove(&handle);
            }
            let other = Some(asker);
            let is_listener = false;
            return Some(Ended {
                handle,
                payer: None,
                is_listener,
                other,
                by_taker: true,
                is_retained: true,
            });
        }
        let is_listener = matches!(thing, Thing::Listener { .. });
        let mut by_taker = false;
        let (ends, payer, other) = match thing {
            Thing::Listener { session, at, from, payer } => {
                self.no_longer_listens(session, at, from);
                ([session; 2], Some(payer), None)
            }
            Thing::Asked { session, by, to, ticket, payer, .. } => {
                self.no_longer_asked(to, by, ticket);
                ([session; 2], Some(payer), None)
            }
            Thing::Left { session, payer, .. } => ([session; 2], Some(payer), None),
            Thing::Made { ends, payer, .. } => {
                by_taker = ends[0] != session;
                let other = if by_taker { ends[0] } else { ends[1] };
                (ends, Some(payer), Some(other))
            }
        };
        for end in ends {
            if let Some(node) = self.nodes.get_mut(&end) {
                node.handles.remove(&handle);
            }
        }
        Some(Ended { handle, payer, is_listener, other, by_taker, is_retained: false })
    }
}
