//! The kernel sockets that are shown for what comes and goes by the engine's links, and whose a datagram is.
//!
//! A *socket* is known by what the kernel calls it, and stays until that is gone; an *end* is what one session has of it. What one session
//! alone has can be delivered to it past the kernel; all else is the kernel's to give to whoever has the name.

use super::Presented;
use crate::work::Delivered;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use toe_abi::report::UdpReport;
use toe_base::{Addr, DatagramId, Endpoint, SessionId};

/// What one session has of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    id: DatagramId,
    session: SessionId,
    /// What is charged for its lane.
    bytes: u64,
}

/// Ends that are gone: how many, and what was charged for their lanes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    pub ids: Vec<DatagramId>,
    pub bytes: u64,
}

impl Gone {
    fn add(&mut self, end: End) {
        self.ids.push(end.id);
        self.bytes += end.bytes;
    }
}

#[derive(Debug)]
struct Socket<P> {
    local: Endpoint,
    v6_only: bool,
    /// It hears nobody else.
    connected: Option<Endpoint>,
    ends: Vec<End>,
    /// Some session that had it is gone, and another process may have it still.
    is_shared: bool,
    payer: P,
    traffic: UdpReport,
}

/// One socket, as `toe ss` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketReport {
    pub identity: u64,
    pub local: Endpoint,
    pub connected: Option<Endpoint>,
    /// Those that have it.
    pub sessions: Vec<SessionId>,
    pub traffic: UdpReport,
}

/// Whose a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    Nobody,
    One(DatagramId),
    /// Of several sockets, or of one that several processes have.
    Several,
}

/// By what a socket is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    local: Endpoint,
    /// At `::` it hears IPv4, too.
    is_dual: bool,
    /// It hears nobody else.
    connected: Option<Endpoint>,
}

/// The sockets that hear the same.
#[derive(Debug, Default)]
struct ByAddr(BTreeMap<(Addr, bool), BTreeSet<u64>>);

impl ByAddr {
    /// Those that hear what is for `to`: no other one is looked at, for whoever may open many at somebody's port.
    fn hearing(&self, to: Addr) -> impl Iterator<Item = u64> {
        let any = to.unspecified();
        // What hears IPv4 at `::` is dual; what hears IPv6 there may be.
        let dual = Some((Addr::UNSPECIFIED_V6, true));
        let own = (to != any).then_some((to, false));
        [own, Some((any, false)), dual]
            .into_iter()
            .flatten()
            .filter_map(|key| self.0.get(&key))
            .flatten()
            .copied()
    }
}

/// The sockets of one port: a datagram is looked for among those that are connected to its sender and those that are not connected.
#[derive(Debug, Default)]
struct OfPort(BTreeMap<Option<Endpoint>, ByAddr>);

impl OfPort {
    fn add(&mut self, name: Name, identity: u64) {
        let by_addr = self.0.entry(name.connected).or_default();
        by_addr.0.entry((name.local.addr, name.is_dual)).or_default().insert(identity);
    }

    fn remove(&mut self, name: Name, identity: u64) {
        let Some(by_addr) = self.0.get_mut(&name.connected) else { return };
        let at = (name.local.addr, name.is_dual);
        if let Some(those) = by_addr.0.get_mut(&at) {
            those.remove(&identity);
            if those.is_empty() {
                by_addr.0.remove(&at);
            }
        }
        if by_addr.0.is_empty() {
            self.0.remove(&name.connected);
        }
    }

    fn hearing(&self, to: Addr, from: Endpoint) -> impl Iterator<Item = u64> {
        let by_addr = [Some(from), None].into_iter().filter_map(move |peer| self.0.get(&peer));
        by_addr.flat_map(move |by_addr| by_addr.hearing(to))
    }
}

/// All sockets, by what the kernel calls each.
#[derive(Debug)]
pub struct Sockets<P> {
    table: BTreeMap<u64, Socket<P>>,
    by_port: BTreeMap<u16, OfPort>,
    ends: BTreeMap<DatagramId, u64>,
    of_session: BTreeMap<SessionId, BTreeSet<DatagramId>>,
    /// Of ends that are gone and of which something is to be sent yet: from where, and who is charged for it.
    left: BTreeMap<DatagramId, (Endpoint, P)>,
    next: u32,
}

impl<P> Default for Sockets<P> {
    fn default() -> Sockets<P> {
        Sockets {
            table: BTreeMap::new(),
            by_port: BTreeMap::new(),
            ends: BTreeMap::new(),
            of_session: BTreeMap::new(),
            left: BTreeMap::new(),
            next: 0,
        }
    }
}

impl<P> Socket<P> {
    fn name(&self) -> Name {
        let is_dual = self.local.addr == Addr::UNSPECIFIED_V6 && !self.v6_only;
        Name { local: self.local, is_dual, connected: self.connected }
    }
}

impl<P: Copy> Sockets<P> {
    /// What a session has of a socket already.
    pub fn end_of(&self, session: SessionId, identity: u64) -> Option<DatagramId> {
        let socket = self.table.get(&identity)?;
        socket.ends.iter().find(|end| end.session == session).map(|end| end.id)
    }

    pub fn knows(&self, identity: u64) -> bool {
        self.table.contains_key(&identity)
    }

    /// A session shows a socket that is not charged for yet, or one that is; the payer is of the first time.
    /// `bytes` are charged for its lane.
    pub fn open(&mut self, session: SessionId, presented: &Presented, bytes: u64, payer: P) -> DatagramId {
        let id = DatagramId(self.next);
        self.next = self.next.wrapping_add(1);
        let socket = self.table.entry(presented.identity).or_insert_with(|| Socket {
            local: presented.local,
            v6_only: presented.v6_only,
            connected: None,
            ends: Vec::new(),
            is_shared: false,
            payer,
            traffic: UdpReport::default(),
        });
        socket.ends.push(End { id, session, bytes });
        self.ends.insert(id, presented.identity);
        self.of_session.entry(session).or_default().insert(id);
        let name = socket.name();
        self.by_port.entry(name.local.port).or_default().add(name, presented.identity);
        id
    }

    /// It is shown again, as it is now.
    pub fn update(&mut self, presented: &Presented, connected: Option<Endpoint>) {
        let Some(socket) = self.table.get_mut(&presented.identity) else { return };
        let before = socket.name();
        socket.connected = connected;
        socket.v6_only = presented.v6_only;
        socket.local = presented.local;
        let name = socket.name();
        if before != name {
            self.leave_port(before, presented.identity);
            self.by_port.entry(name.local.port).or_default().add(name, presented.identity);
        }
    }

    /// What it sends so many datagrams from, of so many bytes together, and who is charged for it.
    pub fn sends(&mut self, id: DatagramId, datagrams: usize, bytes: usize) -> Option<(Endpoint, P)> {
        let Some(identity) = self.ends.get(&id) else { return self.left.get(&id).copied() };
        let Socket { local, payer, traffic, .. } = self.table.get_mut(identity)?;
        traffic.tx_datagrams += datagrams as u64;
        traffic.tx_bytes += bytes as u64;
        Some((*local, *payer))
    }

    /// Datagrams of those were lost.
    pub fn send_failed(&mut self, id: DatagramId, datagrams: usize) {
        if let Some(socket) = self.ends.get(&id).and_then(|identity| self.table.get_mut(identity)) {
            socket.traffic.tx_drops += datagrams as u64;
        }
    }

    /// So many datagrams of so many bytes together came for it, and this became of them.
    pub fn came(&mut self, identity: u64, datagrams: usize, bytes: usize, became: Delivered) {
        let Some(Socket { traffic, .. }) = self.table.get_mut(&identity) else { return };
        let datagrams = datagrams as u64;
        traffic.rx_datagrams += datagrams;
        traffic.rx_bytes += bytes as u64;
        match became {
            Delivered::ByLane => {}
            Delivered::ByKernel => traffic.rx_by_kernel += datagrams,
            Delivered::QueueFull | Delivered::Nowhere => traffic.rx_drops += datagrams,
        }
    }

    /// The socket that comes after the one that is called so, in the order of what the kernel calls them.
    pub fn after(&self, identity: Option<u64>) -> Option<SocketReport> {
        let from = identity.map_or(Bound::Unbounded, Bound::Excluded);
        let (identity, socket) = self.table.range((from, Bound::Unbounded)).next()?;
        Some(SocketReport {
            identity: *identity,
            local: socket.local,
            connected: socket.connected,
            sessions: socket.ends.iter().map(|end| end.session).collect(),
            traffic: UdpReport { shared: socket.is_shared || socket.ends.len() > 1, ..socket.traffic },
        })
    }

    /// Of these two are looked at.
    pub(super) fn hearing(&self, to: Endpoint, from: Endpoint) -> impl Iterator<Item = u64> {
        let of_port = self.by_port.get(&to.port).into_iter();
        of_port.flat_map(move |of_port| of_port.hearing(to.addr, from))
    }

    /// Whose it is that comes there from there, and which socket, if it is of one.
    pub fn find(&self, to: Endpoint, from: Endpoint) -> (Receiver, Option<u64>) {
        let those = self.hearing(to, from);
        let mut hearing = those.filter_map(|identity| Some((identity, self.table.get(&identity)?)));
        match (hearing.next(), hearing.next()) {
            (None, _) => (Receiver::Nobody, None),
            (Some((identity, socket)), None) if socket.ends.len() == 1 && !socket.is_shared => {
                (Receiver::One(socket.ends[0].id), Some(identity))
            }
            (Some((identity, _)), None) => (Receiver::Several, Some(identity)),
            _ => (Receiver::Several, None),
        }
    }

    /// Whether some socket may have sent from there to there.
    pub fn may_have_sent(&self, own: Endpoint, peer: Endpoint) -> bool {
        self.find(own, peer).0 != Receiver::Nobody
    }

    /// What sessions have of a socket.
    pub fn ends_at(&self, identity: u64) -> Vec<DatagramId> {
        let socket = self.table.get(&identity);
        socket.map_or_else(Vec::new, |socket| socket.ends.iter().map(|end| end.id).collect())
    }

    /// The end is about to go, and something of it is to be sent yet: until [`Sockets::forget_sender`].
    pub fn keep_sender(&mut self, id: DatagramId) {
        if let Some(socket) = self.ends.get(&id).and_then(|identity| self.table.get(identity)) {
            self.left.insert(id, (socket.local, socket.payer));
        }
    }

    pub fn forget_sender(&mut self, id: DatagramId) {
        self.left.remove(&id);
    }

    /// The host lets go of what it has. What is charged for its lane, and who is for the socket, if it was the last of it.
    pub fn close(&mut self, id: DatagramId) -> Option<(u64, Option<P>)> {
        let identity = *self.ends.get(&id)?;
        let socket = self.table.get_mut(&identity)?;
        let at = socket.ends.iter().position(|end| end.id == id)?;
        let end = socket.ends.swap_remove(at);
        let is_last = socket.ends.is_empty() && !socket.is_shared;
        self.drop_end(end);
        Some((end.bytes, if is_last { self.forget(identity) } else { None }))
    }

    fn drop_end(&mut self, End { id, session, .. }: End) {
        self.ends.remove(&id);
        if let Some(of_session) = self.of_session.get_mut(&session) {
            of_session.remove(&id);
            if of_session.is_empty() {
                self.of_session.remove(&session);
            }
        }
    }

    /// A session is gone; other processes may have its sockets still. What it had of them.
    pub fn leave(&mut self, session: SessionId) -> Gone {
        let mut gone = Gone::default();
        for id in self.of_session.remove(&session).unwrap_or_default() {
            let identity = self.ends.remove(&id);
            if let Some(socket) = identity.and_then(|identity| self.table.get_mut(&identity)) {
                let of_session = |end: &mut End| end.id == id;
                socket.ends.extract_if(.., of_session).for_each(|end| gone.add(end));
                socket.is_shared = true;
            }
        }
        gone
    }

    /// The kernel has it no more. Who is charged for it, and what sessions have of it still.
    pub fn gone(&mut self, identity: u64) -> Option<(P, Gone)> {
        let ends = std::mem::take(&mut self.table.get_mut(&identity)?.ends);
        let mut gone = Gone::default();
        for end in ends {
            self.drop_end(end);
            gone.add(end);
        }
        self.forget(identity).map(|payer| (payer, gone))
    }

    fn forget(&mut self, identity: u64) -> Option<P> {
        let socket = self.table.remove(&identity)?;
        self.leave_port(socket.name(), identity);
        Some(socket.payer)
    }

    fn leave_port(&mut self, name: Name, identity: u64) {
        if let Some(of_port) = self.by_port.get_mut(&name.local.port) {
            of_port.remove(name, identity);
            if of_port.0.is_empty() {
                self.by_port.remove(&name.local.port);
            }
        }
    }

    pub fn ends_of(&self, session: SessionId) -> usize {
        self.of_session.get(&session).map_or(0, BTreeSet::len)
    }

    /// Who is charged for each.
    pub fn payers(&self) -> impl Iterator<Item = P> {
        self.table.values().map(|socket| socket.payer)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}
