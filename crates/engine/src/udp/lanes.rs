//! Which two UDP sockets have a lane (decision 0034). Both stay the kernel's, and so do their names; here is only decided who
//! meets whom: the program of the one says that datagrams go from it to an address, that of the other that datagrams came
//! to it from one, both have shown the sockets, and what the kernel says of those fits.
//!
//! Plain values; the memory of a lane is the driver's. Joined by `engine/lanes`.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use toe_abi::attach::Way;
use toe_abi::errno::Errno;
use toe_abi::lane::LaneLayout;
use toe_base::{Addr, Cred, Endpoint, LaneId, NetNs, SessionId};

/// Lanes that end at one session, and sockets of one user that wait for another's word.
pub const SESSION_LANES_MAX: usize = 64;
const WAITING_MAX: usize = 128;

/// A kernel socket that a program has shown, as the kernel described it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presented {
    pub local: Endpoint,
    /// What it is connected to.
    pub peer: Option<Endpoint>,
    /// Of IPv6, and of that family alone (IPV6_V6ONLY).
    pub v6_only: bool,
    /// The same for every descriptor of this socket, in whatever process (Linux: SO_COOKIE).
    pub identity: u64,
    pub netns: NetNs,
    /// Others may be bound to its port, and get what is sent there (SO_REUSEADDR, SO_REUSEPORT).
    pub shares_port: bool,
    /// Bytes that its queue holds (SO_RCVBUF).
    pub receive_buffer: u32,
}

impl Presented {
    /// Whether what is sent to `to` comes to this socket.
    fn receives_at(&self, to: Endpoint) -> bool {
        let held = self.local.addr;
        let is_dual = held == Addr::UNSPECIFIED_V6 && !self.v6_only;
        self.local.port == to.port && (held == to.addr || held == to.addr.unspecified() || is_dual)
    }

    /// Whether what it sends to a loopback address comes from `from`. One that is bound to no address sends from the first of
    /// loopback, unless it names another for a datagram.
    fn sends_from(&self, from: Endpoint) -> bool {
        let is_own = self.local.addr == from.addr || from.addr == from.addr.localhost();
        self.receives_at(from) && is_own
    }
}

/// What a program says of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub session: SessionId,
    pub way: Way,
    pub peer: Endpoint,
    pub presented: Presented,
}

impl Asked {
    /// EINVAL: no socket of this kind has a lane.
    fn check(&self, who: Cred) -> Result<(), Errno> {
        let Presented { local, peer, netns, shares_port, receive_buffer, .. } = self.presented;
        let is_local = local.addr.is_loopback() || local.addr.is_unspecified();
        let fits = netns == who.netns && is_local && local.port != 0;
        let to_loopback = self.peer.addr.is_loopback() && self.peer.port != 0;
        let may_receive = self.way == Way::Sends
            || !shares_port
                && peer.is_none_or(|peer| peer == self.peer)
                && LaneLayout::ring_len(receive_buffer).is_some();
        if fits && to_loopback && may_receive { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Whether the datagrams that the one sends are those that come to the other.
    fn meets(&self, other: &Asked) -> bool {
        let (sender, receiver) = match (self.way, other.way) {
            (Way::Sends, Way::Receives) => (self, other),
            (Way::Receives, Way::Sends) => (other, self),
            _ => return false,
        };
        sender.presented.identity != receiver.presented.identity
            && receiver.presented.receives_at(sender.peer)
            && sender.presented.sends_from(receiver.peer)
    }

    fn is_of(&self, session: SessionId, way: Way, identity: u64) -> bool {
        self.session == session && self.way == way && self.presented.identity == identity
    }
}

/// One end of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    asked: Asked,
    /// Its program has the memory.
    fetched: bool,
}

#[derive(Debug)]
struct Lane<P> {
    ends: [End; 2],
    ring_len: u32,
    payer: P,
}

/// What comes of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other one has not said so yet.
    Wait,
    /// They have met: a lane for both, of which the other's program hears when it asks again.
    Met { other: Asked, ring_len: u32 },
    /// The lane that was made when the other one asked.
    Fetch { lane: LaneId, ring_len: u32 },
}

/// Who has asked, and the lanes of live sessions. `P`: who is charged for a lane.
#[derive(Debug)]
pub struct Lanes<P> {
    /// By user and network namespace; nobody meets another user's socket.
    waiting: BTreeMap<(u32, NetNs), VecDeque<Asked>>,
    table: BTreeMap<LaneId, Lane<P>>,
    next: u32,
}

impl<P> Default for Lanes<P> {
    fn default() -> Lanes<P> {
        Lanes { waiting: BTreeMap::new(), table: BTreeMap::new(), next: 0 }
    }
}

impl<P: Copy> Lanes<P> {
    /// A program of this user's asks. After [`Outcome::Met`] the lane is made by [`Lanes::add`], or nothing has happened.
    pub fn ask(&mut self, asked: Asked, who: Cred) -> Result<Outcome, Errno> {
        asked.check(who)?;
        let is_it = |end: &End| {
            !end.fetched
                && end.asked.peer == asked.peer
                && end.asked.is_of(asked.session, asked.way, asked.presented.identity)
        };
        for (id, lane) in &mut self.table {
            if let Some(end) = lane.ends.iter_mut().find(|end| is_it(end)) {
                end.fetched = true;
                return Ok(Outcome::Fetch { lane: *id, ring_len: lane.ring_len });
            }
        }
        let waiting = self.waiting.entry((who.uid, who.netns)).or_default();
        if let Some(at) = waiting.iter().position(|other| other.meets(&asked)) {
            let other = waiting[at];
            let receiver = if asked.way == Way::Receives { asked } else { other };
            // Its buffer was looked at.
            let ring_len = LaneLayout::ring_len(receiver.presented.receive_buffer).ok_or(Errno::EINVAL)?;
            return Ok(Outcome::Met { other, ring_len });
        }
        // Of one socket the last word counts.
        waiting.retain(|old| {
            old.peer != asked.peer || !old.is_of(asked.session, asked.way, asked.presented.identity)
        });
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(asked);
        Ok(Outcome::Wait)
    }

    /// Makes the lane between two that have met; the one that asks has its end.
    pub fn add(&mut self, asked: Asked, other: Asked, ring_len: u32, payer: P) -> LaneId {
        for waiting in self.waiting.values_mut() {
            waiting.retain(|waits| *waits != other);
        }
        let id = LaneId(self.next);
        self.next = self.next.wrapping_add(1);
        let ends = [End { asked, fetched: true }, End { asked: other, fetched: false }];
        self.table.insert(id, Lane { ends, ring_len, payer });
        id
    }

    /// The lanes that end at a session.
    pub fn of_session(&self, session: SessionId) -> impl Iterator<Item = LaneId> {
        let ends_here = move |lane: &Lane<P>| lane.ends.iter().any(|end| end.asked.session == session);
        self.table.iter().filter(move |(_, lane)| ends_here(lane)).map(|(id, _)| *id)
    }

    /// A lane is closed. Who was charged for it.
    pub fn remove(&mut self, lane: LaneId) -> Option<P> {
        self.table.remove(&lane).map(|lane| lane.payer)
    }

    /// The session has ended, and waits for nobody any more.
    pub fn forget_session(&mut self, session: SessionId) {
        self.waiting.retain(|_, waiting| {
            waiting.retain(|asked| asked.session != session);
            !waiting.is_empty()
        });
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}
