//! UDP over the engine's links (decision 0035): which sockets are heard for and send, datagrams and ICMP errors in, records out.

use super::Engine;
use crate::control::route::Route;
use crate::counter::Counter;
use crate::egress::builder::ip_header_len;
use crate::hostif::users::{Resource, UserIdx};
use crate::parts::{CONTROL_QUEUE_MAX, HostInterface, IpLayer};
use crate::udp::sockets::Receiver;
use crate::udp::{Presented, errors};
use crate::work::{
    Arrival, ControlFrame, Delivered, ForSocket, HandedOver, Incoming, RxDatagram, RxDatagramError,
    TxDatagram,
};
use toe_abi::attach::Use;
use toe_abi::errno::Errno;
use toe_abi::lane::{DATAGRAM_MAX, DatagramHeader, LaneLayout, MtuDiscover, RING_LEN_MAX};
use toe_base::{Addr, DatagramId, Endpoint, Instant, NetNs, PortId, SessionId};
use toe_wire::ipv4::TTL;
use toe_wire::link::{FrameTail, MacAddr};
use toe_wire::{UdpRepr, udp};

/// Ends that one session has.
const SESSION_ENDS_MAX: usize = 1024;
/// Datagrams in one record (Linux: UDP_MAX_SEGMENTS).
const SEGMENTS_MAX: usize = 128;

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

/// Where a record's datagrams go.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// To another socket of this engine's.
    Round,
    /// By a port, to a neighbour by its number there.
    By(PortId, u16),
}

/// A record that is sound.
#[derive(Debug)]
struct Outgoing {
    id: DatagramId,
    datagram: TxDatagram,
    /// Or how each of its datagrams counts.
    way: Result<Way, Counter>,
    payer: UserIdx,
}

/// Control plane.
impl Engine {
    /// A program shows a UDP socket for what comes and goes by the engine's links.
    pub fn open_datagrams(
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

    /// Bytes of the largest packets that get to a peer, and that its link takes.
    fn mtus_of(&self, now: Instant, route: Option<Route>, peer: Addr) -> (u16, u16) {
        match route {
            Some(Route::Via { port, .. }) => {
                let link_mtu = u16::try_from(self.ip.ports[port.index()].link.mtu).unwrap_or(u16::MAX);
                let path_mtu = self.udp.paths.of(now, peer).map_or(link_mtu, |mtu| mtu.min(link_mtu));
                (path_mtu, link_mtu)
            }
            Some(Route::Local { .. }) => (u16::MAX, u16::MAX),
            None => (0, 0),
        }
    }

    /// Which address of the engine's such a socket speaks from. ENETUNREACH, EADDRNOTAVAIL: it is the kernel's.
    fn source_of(
        &self,
        purpose: Use,
        peer: Endpoint,
        presented: &Presented,
        netns: NetNs,
    ) -> Result<Addr, Errno> {
        if netns != self.config.netns || presented.netns != netns {
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
    pub(super) fn close_datagrams(&mut self, session: SessionId, id: DatagramId) {
        let user = self.hostif.sessions.user_of(session);
        let Some((bytes, payer)) = self.udp.sockets.close(id) else { return };
        self.hostif.give_lanes(user, 1, bytes);
        if let Some(payer) = payer {
            self.hostif.sessions.users_mut().give(payer, Resource::Flows, 1);
        }
    }

    /// A session is about to end. What it had of sockets, which other processes may have still.
    pub(super) fn leave_datagrams(&mut self, session: SessionId) -> Vec<DatagramId> {
        let left = self.udp.sockets.leave(session);
        let user = self.hostif.sessions.user_of(session);
        self.hostif.give_lanes(user, left.ids.len(), left.bytes);
        left.ids
    }

    /// [`crate::ControlEvent::SocketGone`].
    pub(super) fn datagram_socket_gone(&mut self, identity: u64) {
        let Some((payer, ends)) = self.udp.sockets.gone(identity) else { return };
        self.hostif.give_lanes(payer, ends.ids.len(), ends.bytes);
        // Last: it may be the last thing that he had.
        self.hostif.sessions.users_mut().give(payer, Resource::Flows, 1);
    }
}

/// Receive plane.
impl Engine {
    /// What the driver is to hand over. `tail`: of a large frame only the headers were read.
    pub(super) fn datagram_arrives<'f>(
        &mut self,
        now: Instant,
        port: Option<PortId>,
        mut datagram: RxDatagram<'f>,
        tail: Option<(&'f dyn FrameTail, usize)>,
    ) -> Option<Incoming<'f>> {
        let len = datagram.text.len();
        datagram.segment = datagram.segment.filter(|segment| usize::from(*segment) < len);
        let (receiver, socket) = self.udp.sockets.find(datagram.to(), datagram.from());
        let to = match receiver {
            Receiver::Nobody => {
                self.nobodys_datagram(now, port, datagram, tail);
                return None;
            }
            Receiver::One(id) => Some(id),
            Receiver::Several => None,
        };
        let mut one = ForSocket::new(to, socket, datagram);
        one.tail = tail;
        Some(Incoming::Datagram(one))
    }

    fn nobodys_datagram(
        &mut self,
        now: Instant,
        port: Option<PortId>,
        mut datagram: RxDatagram<'_>,
        tail: Option<(&dyn FrameTail, usize)>,
    ) {
        if let Some((tail, at)) = tail
            && !tail.read(at, datagram.text.to_mut())
        {
            self.counters.add(Counter::DropTruncated);
            return;
        }
        let count = datagram.count() as u64;
        self.counters.add_many(Counter::RxDatagrams, count);
        self.counters.add_many(Counter::DropNoSocket, count);
        // A shared address has the kernel's sockets, too.
        let Some(port) = port.filter(|port| !self.ip.ports[port.index()].shared) else { return };
        let Some(len) = datagram.segment else { return self.answer_unknown_port(now, port, &datagram) };
        for text in datagram.text.chunks(usize::from(len).max(1)) {
            // In its packet it had other headers.
            let one = RxDatagram { text: text.into(), headers: &[], segment: None, ..datagram };
            self.answer_unknown_port(now, port, &one);
        }
    }

    fn answer_unknown_port(&mut self, now: Instant, port: PortId, datagram: &RxDatagram<'_>) {
        if self.udp.unreachables.allows(now) {
            self.counters.add(Counter::Unreachables);
            self.ip.push_control(&mut self.counters, port, errors::port_unreachable(datagram));
        } else {
            self.counters.add(Counter::UnreachablesHeldBack);
        }
    }

    /// Anybody can send such a message: only one about a socket that there is counts.
    pub(super) fn datagram_error_arrives<'f>(
        &mut self,
        now: Instant,
        error: RxDatagramError<'f>,
    ) -> Option<Incoming<'f>> {
        if !self.udp.sockets.may_have_sent(error.own, error.peer) {
            self.counters.add(Counter::IcmpErrorsStray);
            return None;
        }
        if let Some(mtu) = error.mtu {
            self.udp.paths.learn(now, error.peer.addr, mtu);
        }
        Some(Incoming::Error(error))
    }

    /// [`crate::ControlEvent::HandedOver`].
    pub(super) fn handed_over(&mut self, what: HandedOver) {
        match what {
            HandedOver::Datagrams { socket, count, bytes, became } => {
                if let Some(socket) = socket {
                    self.udp.sockets.came(socket, count, bytes, became);
                }
                self.counters.add_many(Counter::RxDatagrams, count as u64);
                self.counters.add_many(counter_of(became), count as u64);
            }
            HandedOver::Error(Delivered::ByKernel) => self.counters.add(Counter::DatagramErrors),
            HandedOver::Error(_) => self.counters.add(Counter::IcmpErrorsStray),
        }
        self.show_unsettled();
    }
}

/// Transmit plane.
impl Engine {
    /// Whether [`Engine::handle_datagrams`] may be called: else records stay where they are.
    pub fn takes_datagrams(&mut self) -> bool {
        self.udp.has_room()
    }

    /// A record that a host has put into its lane: where to, and the bytes. Returns how many datagrams it was, one at least, and what comes
    /// of them to a socket of this engine's.
    pub fn handle_datagrams<'b>(
        &mut self,
        now: Instant,
        id: DatagramId,
        head: &DatagramHeader,
        bytes: &'b [u8],
    ) -> (usize, Option<Incoming<'b>>) {
        let out = match self.read_head(now, id, head, bytes.len()) {
            Ok(out) => out,
            Err(reason) => {
                self.counters.add(reason);
                self.udp.sockets.send_failed(id, 1);
                return (1, None);
            }
        };
        let len = if head.segment == 0 { bytes.len() } else { head.segment.into() }.max(1);
        let count = bytes.len().div_ceil(len).max(1);
        if let Ok(Way::Round) = out.way {
            self.counters.add_many(Counter::TxDatagrams, count as u64);
            let segment = (head.segment != 0).then_some(head.segment);
            let datagram = RxDatagram { segment, ..turned_round(&out.datagram, bytes) };
            return (count, self.datagram_arrives(now, None, datagram, None));
        }
        if head.segment != 0 && self.send_joined(&out, bytes, head.segment) {
            return (count, None);
        }
        let parts = (0..count).map(|n| &bytes[n * len..bytes.len().min((n + 1) * len)]);
        // Of all that are too large for the path the program hears once.
        (count, parts.fold(None, |first, text| self.send_datagram(now, &out, text).or(first)))
    }

    /// Datagrams that lie one behind the other, in one frame. `false`: they go one by one.
    fn send_joined(&mut self, out: &Outgoing, bytes: &[u8], segment: u16) -> bool {
        let Ok(Way::By(port, neighbour)) = out.way else { return false };
        let neighbours = &self.ip.ports[port.index()].neighbours;
        // One that is asked for anew is for the first that goes alone to do.
        let Some(to_mac) = neighbours.mac_without_doubt(neighbour) else { return false };
        let link = self.ip.ports[port.index()].link;
        if !self.udp.queue(port.index()).push_joined(&link, to_mac, &out.datagram, bytes, segment) {
            return false;
        }
        let count = bytes.len().div_ceil(usize::from(segment));
        self.counters.add_many(Counter::TxDatagrams, count as u64);
        true
    }

    fn read_head(
        &mut self,
        now: Instant,
        id: DatagramId,
        head: &DatagramHeader,
        len: usize,
    ) -> Result<Outgoing, Counter> {
        let bad = Counter::DropDatagramBadRecord;
        let discover = MtuDiscover::decode(head.mtu_discover).ok_or(bad)?;
        let to = head.peer.to_endpoint().filter(|to| to.port != 0).ok_or(bad)?;
        let count = if head.segment == 0 { 1 } else { len.div_ceil(usize::from(head.segment)) };
        let (local, payer) = self.udp.sockets.sends(id, count, len).ok_or(bad)?;
        let is_sound = len <= DATAGRAM_MAX as usize && count <= SEGMENTS_MAX;
        let named = match head.own.family {
            0 => Some(local.addr).filter(|own| !own.is_unspecified()),
            _ => Some(head.own.to_endpoint().ok_or(bad)?.addr),
        };
        let route = self.ip.routes.to(to.addr).ok_or(Counter::DropDatagramNoRoute)?;
        let (Route::Via { source, .. } | Route::Local { source }) = route;
        let source = named.unwrap_or(source);
        if !is_sound || !self.ip.is_alone_at(source) || source.is_v4() != to.addr.is_v4() {
            return Err(bad);
        }
        let (path_mtu, link_mtu) = self.mtus_of(now, Some(route), to.addr);
        let datagram = TxDatagram {
            from: Endpoint { addr: source, port: local.port },
            to,
            ttl: if head.hop_limit == 0 { TTL } else { head.hop_limit },
            traffic_class: head.traffic_class,
            mtu: if discover.believes_routers() { path_mtu } else { link_mtu },
            discover,
        };
        Ok(Outgoing { id, datagram, way: self.way_of(route), payer })
    }

    fn way_of(&mut self, route: Route) -> Result<Way, Counter> {
        match route {
            Route::Local { .. } => Ok(Way::Round),
            Route::Via { port, .. } if self.ip.ports[port.index()].shared => {
                Err(Counter::DropDatagramNoRoute)
            }
            Route::Via { port, next_hop, .. } => {
                let neighbour = self.neighbour(port, next_hop);
                neighbour.map(|n| Way::By(port, n)).ok_or(Counter::DropDatagramNoNeighbour)
            }
        }
    }

    fn send_datagram(&mut self, now: Instant, out: &Outgoing, text: &[u8]) -> Option<Incoming<'static>> {
        match out.way {
            Ok(Way::By(..)) if is_too_big(&out.datagram, text) => {
                return Some(self.refuse_too_big(out, text));
            }
            Ok(Way::By(port, neighbour)) => self.send_datagram_by(now, (port, neighbour), out, text),
            Ok(Way::Round) => {}
            Err(reason) => {
                self.counters.add(reason);
                self.udp.sockets.send_failed(out.id, 1);
            }
        }
        None
    }

    /// The path has become narrower than the program's library knows: it is told as by a router.
    #[cold]
    fn refuse_too_big(&mut self, out: &Outgoing, text: &[u8]) -> Incoming<'static> {
        self.counters.add(Counter::DropDatagramTooBig);
        self.udp.sockets.send_failed(out.id, 1);
        let TxDatagram { from, to, mtu, .. } = out.datagram;
        let arrival = turned_round(&out.datagram, text).arrival;
        let message = errors::too_big(&out.datagram, text).into();
        Incoming::Error(RxDatagramError {
            arrival: Arrival { src: from.addr, dst: from.addr, hop_limit: TTL, ..arrival },
            own: from,
            peer: to,
            mtu: Some(mtu.into()),
            message,
        })
    }

    fn send_datagram_by(
        &mut self,
        now: Instant,
        (port, neighbour): (PortId, u16),
        Outgoing { id, datagram, payer, .. }: &Outgoing,
        text: &[u8],
    ) {
        let neighbours = &mut self.ip.ports[port.index()].neighbours;
        let known = neighbours.mac(neighbour);
        let asked = match known {
            Some(_) => neighbours.take_doubt(neighbour),
            None => neighbours.ask(neighbour, now),
        };
        // Others' questions and answers have room beside them. What is not asked now is when the neighbour is asked again.
        let is_room = self.ip.ports[port.index()].control.len() < CONTROL_QUEUE_MAX / 2;
        if let Some(target) = asked.filter(|_| is_room) {
            let ask = ControlFrame::AskNeighbour { target, source: datagram.from.addr };
            self.ip.push_control(&mut self.counters, port, ask);
        }
        match known {
            Some(to_mac) => {
                if !self.queue_datagram(port, to_mac, datagram, text) {
                    self.udp.sockets.send_failed(*id, 1);
                }
            }
            None => {
                for gone in self.udp.waiting.push((port, neighbour), *payer, *datagram, text) {
                    self.counters.add(Counter::DropDatagramNoNeighbour);
                    if !self.udp.waiting.is_for(gone) {
                        self.ip.ports[gone.0.index()].neighbours.cease(gone.1);
                    }
                }
            }
        }
    }
}

fn counter_of(delivered: Delivered) -> Counter {
    match delivered {
        Delivered::ByLane => Counter::DatagramsByLane,
        Delivered::ByKernel => Counter::DatagramsByKernel,
        Delivered::QueueFull => Counter::DropDatagramQueueFull,
        Delivered::Nowhere => Counter::DropDatagramUndeliverable,
    }
}

/// Whether it fits no packet and may not go in several.
fn is_too_big(datagram: &TxDatagram, text: &[u8]) -> bool {
    let len = ip_header_len(datagram.to.addr) + udp::HEADER_LEN + text.len();
    len > usize::from(datagram.mtu) && !datagram.discover.may_be_cut()
}

/// As it arrives at another socket of this engine's.
fn turned_round<'a>(datagram: &TxDatagram, text: &'a [u8]) -> RxDatagram<'a> {
    let TxDatagram { from, to, ttl, traffic_class, .. } = *datagram;
    RxDatagram {
        arrival: Arrival {
            from_mac: MacAddr::default(),
            src: from.addr,
            dst: to.addr,
            hop_limit: ttl,
            traffic_class,
            zone: 0,
        },
        ports: UdpRepr { src_port: from.port, dst_port: to.port },
        headers: &[],
        text: text.into(),
        segment: None,
    }
}

impl HostInterface {
    fn give_lanes(&mut self, user: UserIdx, count: usize, bytes: u64) {
        let users = self.sessions.users_mut();
        users.give(user, Resource::SessionMemory, bytes);
        users.give(user, Resource::Channels, count as u64);
    }
}

impl IpLayer {
    /// Whether an address of a link is the engine's alone.
    fn is_alone_at(&self, addr: Addr) -> bool {
        self.routes.is_own(addr) && !self.routes.is_shared(addr) && !addr.is_loopback()
    }
}
