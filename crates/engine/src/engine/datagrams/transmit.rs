//! Records out: read, and sent to a neighbour or to another socket of this engine's.

use super::super::Engine;
use super::UdpPlanes;
use crate::control::route::Route;
use crate::counter::Counter;
use crate::egress::builder::ip_header_len;
use crate::hostif::users::UserIdx;
use crate::parts::CONTROL_QUEUE_MAX;
use crate::udp::errors;
use crate::work::{Arrival, ControlFrame, Incoming, RxDatagram, RxDatagramError, TxDatagram};
use toe_abi::lane::{DATAGRAM_MAX, DatagramHeader, MtuDiscover};
use toe_base::{DatagramId, Endpoint, Instant, PortId};
use toe_wire::ipv4::TTL;
use toe_wire::link::MacAddr;
use toe_wire::{UdpRepr, udp};

/// Datagrams in one record (Linux: UDP_MAX_SEGMENTS).
const SEGMENTS_MAX: usize = 128;

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
        self.datagrams().send(now, id, head, bytes)
    }
}

impl UdpPlanes<'_> {
    /// [`Engine::handle_datagrams`].
    fn send<'b>(
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
            return (count, self.arrives(now, None, datagram, None));
        }
        if head.segment != 0 && self.send_joined(&out, bytes, head.segment) {
            return (count, None);
        }
        let parts = (0..count).map(|n| &bytes[n * len..bytes.len().min((n + 1) * len)]);
        // Of all that are too large for the path the program hears once.
        (count, parts.fold(None, |first, text| self.send_one(now, &out, text).or(first)))
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
                let neighbour = self.ip.neighbour((self.flows, self.udp), port, next_hop);
                neighbour.map(|n| Way::By(port, n)).ok_or(Counter::DropDatagramNoNeighbour)
            }
        }
    }

    fn send_one(&mut self, now: Instant, out: &Outgoing, text: &[u8]) -> Option<Incoming<'static>> {
        match out.way {
            Ok(Way::By(..)) if is_too_big(&out.datagram, text) => {
                return Some(self.refuse_too_big(out, text));
            }
            Ok(Way::By(port, neighbour)) => self.send_by(now, (port, neighbour), out, text),
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

    fn send_by(
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
            self.ip.push_control(self.counters, port, ask);
        }
        match known {
            Some(to_mac) => {
                if !self.links().queue(port, to_mac, datagram, text) {
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
