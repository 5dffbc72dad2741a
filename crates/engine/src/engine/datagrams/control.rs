//! Which sockets are heard for and send: they are shown, and end.

use super::super::Engine;
use super::UdpPlanes;
use crate::control::route::Route;
use crate::counter::Counter;
use crate::hostif::users::{Resource, UserIdx};
use crate::parts::HostInterface;
use crate::udp::Presented;
use toe_abi::attach::Use;
use toe_abi::errno::Errno;
use toe_abi::lane::{LaneLayout, RING_LEN_MAX};
use toe_base::{Addr, DatagramId, Endpoint, Instant, NetNs, PortId, SessionId};

/// Ends that one session has.
const SESSION_ENDS_MAX: usize = 1024;

/// What a session gets for a socket that it has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedDatagrams {
    /// `None`: nothing is new.
    pub end: Option<NewEnd>,
    /// The address that the engine speaks to the peer from.
    pub source: Addr,
    /// Bytes of the largest packets that get to the peer, and that its link takes; 0: there is no peer.
    pub path_mtu: u16,
    pub link_mtu: u16,
}

/// Lanes that are yet to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEnd {
    pub id: DatagramId,
    pub ring_len: u32,
}

impl Engine {
    /// A program shows a UDP socket for what comes and goes by the engine's links.
    pub fn open_datagrams(
        &mut self,
        now: Instant,
        session: SessionId,
        what: (Use, Endpoint),
        presented: &Presented,
    ) -> Result<OpenedDatagrams, Errno> {
        self.datagrams().open(now, session, what, presented)
    }
}

impl UdpPlanes<'_> {
    /// [`Engine::open_datagrams`].
    fn open(
        &mut self,
        now: Instant,
        session: SessionId,
        (purpose, peer): (Use, Endpoint),
        presented: &Presented,
    ) -> Result<OpenedDatagrams, Errno> {
        let record =
            self.hostif.sessions.get(session).filter(|session| session.is_open()).ok_or(Errno::EINVAL)?;
        let (user, netns) = (record.user, record.cred.netns);
        let source = self.source_of(purpose, peer, presented, netns)?;
        let (path_mtu, link_mtu) = self.mtus_of(now, self.ip.routes.to(peer.addr), peer.addr);
        let opened = OpenedDatagrams { end: None, source, path_mtu, link_mtu };
        if presented.local.port == 0 {
            return if purpose == Use::Sends { Ok(opened) } else { Err(Errno::EINVAL) };
        }
        let connected = (purpose == Use::Connects).then_some(peer);
        if self.udp.sockets.end_of(session, presented.identity).is_some() {
            if purpose != Use::Sends {
                self.udp.sockets.update(presented, connected);
            }
            return Ok(opened);
        }
        if self.udp.sockets.ends_of(session) >= SESSION_ENDS_MAX {
            return Err(Errno::EMFILE);
        }
        // Beyond the largest the kernel's queue is the larger one.
        let ring_len = LaneLayout::ring_len(presented.receive_buffer).unwrap_or(RING_LEN_MAX);
        // To the engine, too: what the smallest ring holds of super-segments is done before a program that waits for room looks again.
        let ring_len = LaneLayout::from_engine(ring_len);
        let is_new = !self.udp.sockets.knows(presented.identity);
        // Of the other lane the memory is its program's, which fills it.
        let bytes = u64::from(ring_len);
        let wanted =
            [(Resource::Channels, 1), (Resource::SessionMemory, bytes), (Resource::Flows, u64::from(is_new))];
        let users = self.hostif.sessions.users_mut();
        for (at, (resource, n)) in wanted.into_iter().enumerate() {
            if let Err(refused) = users.take(user, resource, n) {
                wanted[..at].iter().for_each(|(taken, n)| users.give(user, *taken, *n));
                self.counters.add(Counter::OverQuota);
                return Err(refused.into());
            }
        }
        let id = self.udp.sockets.open(session, presented, bytes, user);
        if is_new || purpose != Use::Sends {
            self.udp.sockets.update(presented, connected);
        }
        Ok(OpenedDatagrams { end: Some(NewEnd { id, ring_len }), ..opened })
    }

    /// Which address of the engine's such a socket speaks from. ENETUNREACH, EADDRNOTAVAIL: it is the kernel's.
    fn source_of(
        &self,
        purpose: Use,
        peer: Endpoint,
        presented: &Presented,
        netns: NetNs,
    ) -> Result<Addr, Errno> {
        if netns != self.netns || presented.netns != netns {
            return Err(Errno::ENETUNREACH);
        }
        let own = presented.local.addr;
        if !own.is_unspecified() && !self.ip.is_alone_at(own) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if purpose == Use::Hears {
            let is_heard = |addr: Addr| own.is_v6() && !presented.v6_only || addr.is_v4() == own.is_v4();
            let mut addrs = (0..self.ip.ports.len()).flat_map(|n| self.ip.routes.addrs_of(PortId(n as u8)));
            let hears = addrs.any(|interface| !interface.shared && is_heard(interface.addr));
            return if hears { Ok(own) } else { Err(Errno::EADDRNOTAVAIL) };
        }
        if peer.port == 0 || peer.addr.is_loopback() {
            return Err(Errno::ENETUNREACH);
        }
        let source = match self.ip.routes.to(peer.addr) {
            Some(Route::Local { source }) if self.ip.is_alone_at(source) => source,
            Some(Route::Via { port, source, .. }) if !self.ip.ports[port.index()].shared => source,
            _ => return Err(Errno::ENETUNREACH),
        };
        Ok(if own.is_unspecified() { source } else { own })
    }

    /// [`crate::ControlEvent::DatagramsClosed`].
    pub fn close(&mut self, session: SessionId, id: DatagramId) {
        let user = self.hostif.sessions.user_of(session);
        let Some((bytes, payer)) = self.udp.sockets.close(id) else { return };
        self.hostif.give_lanes(user, 1, bytes);
        if let Some(payer) = payer {
            self.hostif.sessions.users_mut().give(payer, Resource::Flows, 1);
        }
    }

    /// A session is about to end. What it had of sockets, which other processes may have still.
    pub fn leave(&mut self, session: SessionId) -> Vec<DatagramId> {
        let left = self.udp.sockets.leave(session);
        let user = self.hostif.sessions.user_of(session);
        self.hostif.give_lanes(user, left.ids.len(), left.bytes);
        left.ids
    }

    /// [`crate::ControlEvent::SocketGone`].
    pub fn socket_gone(&mut self, identity: u64) {
        let Some((payer, ends)) = self.udp.sockets.gone(identity) else { return };
        self.hostif.give_lanes(payer, ends.ids.len(), ends.bytes);
        // Last: it may be the last thing that he had.
        self.hostif.sessions.users_mut().give(payer, Resource::Flows, 1);
    }
}

impl HostInterface {
    fn give_lanes(&mut self, user: UserIdx, count: usize, bytes: u64) {
        let users = self.sessions.users_mut();
        users.give(user, Resource::SessionMemory, bytes);
        users.give(user, Resource::Channels, count as u64);
    }
}
