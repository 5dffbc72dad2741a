//! Copies of packets for whoever watches (`toe capture`): frames of the ports, and what would be a frame where two
//! programs of the engine talk to each other.
//!
//! Without a capture each frame and each local segment pays one look at [`Capture::is_on`]. With one, a packet that its filter wants is
//! copied and handed out ([`crate::DriverRequest::Show`]).

use super::Engine;
use crate::counter::Counter;
use crate::egress::builder::{Envelope, Hop};
use crate::egress::segment;
use crate::flow::key::{FlowKey, KeyHolder};
use crate::flow::tenancy::Notice;
use crate::hostif::HostSide;
use crate::hostif::session::Sessions;
use crate::ingress::facts::{Known, facts_of};
use crate::work::{CaptureRule, Captured, Sighting, SightingEnd};
use core::net::IpAddr;
use std::collections::VecDeque;
use toe_abi::capture::{Direction, Facts};
use toe_base::{Addr, Cred, Endpoint, FlowIdx, Instant, PortId, SessionId};
use toe_tcp::segment::Segment;
use toe_tcp::send_queue::Pieces;
use toe_wire::checksum::{Sum, pseudo_header_sum};
use toe_wire::eth::EtherType;
use toe_wire::ipv4::Protocol;
use toe_wire::link::{FrameSink, LinkCaps, PartialChecksum, RxOffload, TxOffload};
use toe_wire::tcp;

/// Bytes of copies that wait for the driver, beyond which no local segment goes.
const WAITING_MAX: usize = 1 << 20;

/// What captures want, and what is on its way to them.
#[derive(Debug, Default)]
pub(super) struct Capture {
    rules: Box<[CaptureRule]>,
    /// Whose the sessions are, by their numbers.
    pids: Vec<u32>,
    waiting: VecDeque<Captured>,
    waiting_len: usize,
}

impl Capture {
    pub(super) fn is_on(&self) -> bool {
        !self.rules.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting_len > WAITING_MAX
    }

    pub(super) fn note_process(&mut self, session: SessionId, pid: u32) {
        let at = session.index();
        self.pids.resize(self.pids.len().max(at + 1), 0);
        self.pids[at] = pid;
    }

    /// Whether a capture wants the packet, or may want it for a process that has left an end of it.
    fn may_want(&self, packet: &Sighting, sessions: &Sessions) -> bool {
        let ends = [packet.sender, packet.receiver];
        let is_known = |end: Option<SightingEnd>| end.is_some_and(|end| !end.listens);
        let is_clear = match packet.direction {
            Direction::In => is_known(packet.receiver),
            Direction::Out => is_known(packet.sender),
            Direction::Local => ends.into_iter().all(is_known),
        };
        let pid = |end: Option<SightingEnd>| {
            end.and_then(|end| self.pids.get(end.session.index()).copied()).unwrap_or(0)
        };
        let facts = Facts { pids: ends.map(pid), ..packet.facts };
        let is_of = |cred: Cred| {
            let owners = ends.into_iter().flatten().filter_map(|end| sessions.get(end.session));
            owners.map(|session| session.cred).any(|owner| owner == cred)
        };
        self.rules.iter().any(|rule| {
            rule.interface.is_none_or(|only| only == packet.interface())
                && rule.only.is_none_or(|only| !is_clear || is_of(only))
                && (!is_clear && rule.filter.names_processes() || rule.filter.matches(&facts))
        })
    }

    fn show(&mut self, packet: Sighting, bytes: Vec<u8>) {
        self.waiting_len += bytes.len();
        self.waiting.push_back(Captured { packet, bytes });
    }

    /// What is to be shown next.
    pub(super) fn poll(&mut self) -> Option<Captured> {
        let next = self.waiting.pop_front()?;
        self.waiting_len -= next.bytes.len();
        Some(next)
    }
}

impl Engine {
    /// Why something was dropped since the last call.
    fn take_drop(&mut self) -> Option<Counter> {
        let by_tcp = self.tcp.counters.take_drop().map(Counter::of_tcp);
        self.counters.take_drop().or(by_tcp)
    }

    /// [`crate::ControlEvent::Captures`].
    pub(super) fn set_captures(&mut self, rules: Box<[CaptureRule]>) {
        let before = core::mem::replace(&mut self.capture.rules, rules);
        if self.capture.rules.len() < before.len() {
            // One that ends wants nothing new.
            return;
        }
        let direct: Vec<FlowIdx> = self
            .flows
            .indices()
            .filter(|idx| self.flows.get(*idx).conn.carrier.channel().is_some())
            .collect();
        for idx in direct {
            let key = self.flows.get(idx).conn.key;
            let peer = self.flows.find(&key.reversed());
            // One end that gives it up is enough.
            let asked = peer.is_some_and(|peer| self.flows.get(peer).conn.tenancy.notice() == Notice::Yield);
            if !asked && self.is_watched(&key) {
                self.ask_to_yield(idx);
            }
        }
    }

    /// Whether segments of a local connection are wanted.
    pub(super) fn is_watched(&self, key: &FlowKey) -> bool {
        [*key, key.reversed()]
            .iter()
            .any(|key| self.capture.may_want(&self.local_sighting(key, None), &self.sessions))
    }

    /// [`Engine::handle_frame`] while somebody watches.
    pub(super) fn handle_watched_frame<H: HostSide>(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &[u8],
        offload: RxOffload,
        host: &mut H,
    ) {
        let known = facts_of(frame);
        let zone = self.ports[port.index()].link.zone;
        let key = known.key(Direction::In, zone);
        // A segment that ends its connection is that connection's all the same.
        let owner = key.and_then(|key| self.end_of(&key));
        self.take_drop();
        self.take_frame(now, port, frame, offload, None, host);
        let reason = self.take_drop();
        let owner = owner.or_else(|| key.and_then(|key| self.end_of(&key)));
        let sighting = known.sighting(Some(port), Direction::In, [None, owner], reason);
        if self.capture.may_want(&sighting, &self.sessions) {
            let mut bytes = frame.to_vec();
            if let Some(at) = known.unfinished_checksum(frame, offload) {
                finish_checksum(&mut bytes, at);
            }
            self.capture.show(sighting, bytes);
        }
    }

    /// [`Engine::poll_transmit`] while somebody watches.
    pub(super) fn transmit_watched<H: HostSide>(
        &mut self,
        now: Instant,
        port: PortId,
        sink: &mut dyn FrameSink,
        host: &mut H,
        budget: usize,
    ) -> usize {
        let mut copies = Vec::new();
        let units = self.transmit(
            now,
            port,
            &mut CopyingSink { sink, copies: &mut copies, frame: Vec::new() },
            host,
            budget,
        );
        let zone = self.ports[port.index()].link.zone;
        for frame in copies {
            let known = facts_of(&frame);
            let owner = known.key(Direction::Out, zone).and_then(|key| self.end_of(&key));
            let sighting = known.sighting(Some(port), Direction::Out, [owner, None], None);
            if self.capture.may_want(&sighting, &self.sessions) {
                self.capture.show(sighting, frame);
            }
        }
        units
    }

    /// [`Engine::deliver_local`] while somebody watches.
    pub(super) fn deliver_watched<H: HostSide>(
        &mut self,
        now: Instant,
        key: FlowKey,
        segment: Segment,
        pieces: &Pieces,
        host: &mut H,
    ) {
        let before = self.local_sighting(&key.reversed(), None);
        self.take_drop();
        self.take_local(now, key, segment, pieces, host);
        let reason = self.take_drop();
        let after = self.local_sighting(&key.reversed(), reason);
        let sighting = Sighting {
            sender: before.sender.or(after.sender),
            receiver: before.receiver.or(after.receiver),
            ..after
        };
        if !self.capture.may_want(&sighting, &self.sessions) {
            return;
        }
        let key = key.reversed();
        let (from, to) = (key.local.addr, key.remote.addr);
        // As Linux shows what goes over `lo`: no hardware addresses.
        let envelope = Envelope { hop: Hop::default(), from, to, ttl: toe_wire::ipv4::TTL, traffic_class: 0 };
        let header = segment::header(&key, &segment);
        let mut made = MadeFrame(Vec::new());
        let emitted =
            segment::emit(&mut made, host, &envelope, LinkCaps::default(), &header, pieces, u16::MAX);
        if emitted.is_ok() {
            self.capture.show(sighting, made.0);
        }
    }

    /// A segment from `key.local` to `key.remote`, both here.
    fn local_sighting(&self, key: &FlowKey, reason: Option<Counter>) -> Sighting {
        let facts = Facts {
            ethertype: if key.is_v4() { EtherType::Ipv4 } else { EtherType::Ipv6 }.raw(),
            addrs: Some((key.local_addr().ip(), key.remote_addr().ip())),
            protocol: Some(Protocol::Tcp.raw()),
            ports: Some((key.local.port, key.remote.port)),
            pids: [0; 2],
            dropped: reason.is_some(),
        };
        Sighting {
            port: None,
            direction: Direction::Local,
            facts,
            sender: self.end_of(key),
            receiver: self.end_of(&key.reversed()),
            reason,
        }
    }

    /// Who has the connection of this key, or the listener that it came in at or would come to.
    fn end_of(&self, key: &FlowKey) -> Option<SightingEnd> {
        let listener = match self.flows.named(key) {
            Some(KeyHolder::TimeWait(_)) => None,
            Some(KeyHolder::Flow(idx)) => {
                let conn = &self.flows.get(idx).conn;
                if !conn.tenancy.owner().is_nobody() {
                    return Some(SightingEnd {
                        session: conn.tenancy.owner().session,
                        fd: conn.tenancy.owner().fd,
                        listens: false,
                    });
                }
                conn.tenancy.listener()
            }
            None => self.listeners.find(key.scope, key.local),
        };
        let holder = self.listeners.get(listener?)?.holders.first()?;
        Some(SightingEnd { session: holder.session, fd: holder.fd, listens: true })
    }
}

impl Known {
    /// The connection of a frame, from this end; the zone is of its port's link.
    fn key(&self, direction: Direction, zone: u32) -> Option<FlowKey> {
        let (from, to) = self.facts.addrs?;
        let (from_port, to_port) =
            self.facts.ports.filter(|_| self.facts.protocol == Some(Protocol::Tcp.raw()))?;
        let in_zone = |addr| match addr {
            IpAddr::V4(addr) => Addr::v4(addr),
            IpAddr::V6(addr) => Addr::v6(addr, zone),
        };
        let (from, to) = (Endpoint::new(in_zone(from), from_port), Endpoint::new(in_zone(to), to_port));
        Some(match direction {
            Direction::In => FlowKey::new(to, from),
            Direction::Out | Direction::Local => FlowKey::new(from, to),
        })
    }

    fn sighting(
        &self,
        port: Option<PortId>,
        direction: Direction,
        [sender, receiver]: [Option<SightingEnd>; 2],
        reason: Option<Counter>,
    ) -> Sighting {
        let facts = Facts { dropped: reason.is_some(), ..self.facts };
        Sighting { port, direction, facts, sender, receiver, reason }
    }

    /// A frame that never left the machine may hold the pseudo-header's sum where the checksum belongs.
    fn unfinished_checksum(&self, frame: &[u8], offload: RxOffload) -> Option<PartialChecksum> {
        let (start, end) = self.transport.filter(|_| offload.checksum_ok)?;
        let (from, to) = self.facts.addrs?;
        let at = tcp::CHECKSUM_OFFSET;
        let is_tcp = self.facts.protocol == Some(Protocol::Tcp.raw()) && end == frame.len();
        let field = frame.get(start + usize::from(at)..)?.first_chunk::<2>().filter(|_| is_tcp)?;
        let len = u32::try_from(end - start).ok()?;
        let pseudo = pseudo_header_sum(from, to, Protocol::Tcp.raw(), len).folded();
        (u16::from_be_bytes(*field) == pseudo).then_some(PartialChecksum { start: start as u16, offset: at })
    }
}

/// Does what a link would do.
fn finish_checksum(frame: &mut [u8], at: PartialChecksum) {
    let (start, field) = (usize::from(at.start), usize::from(at.start) + usize::from(at.offset));
    if frame.len() >= field + 2 {
        let sum = Sum::of(&frame[start..]).checksum();
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Keeps a copy of each frame that goes on to the port.
struct CopyingSink<'a> {
    sink: &'a mut dyn FrameSink,
    copies: &'a mut Vec<Vec<u8>>,
    /// The one that is being filled.
    frame: Vec<u8>,
}

impl FrameSink for CopyingSink<'_> {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.sink.frame(len)?;
        self.frame = vec![0; len];
        Some(&mut self.frame)
    }

    fn commit(&mut self, offload: TxOffload) {
        let mut frame = core::mem::take(&mut self.frame);
        let Some(room) = self.sink.frame(frame.len()) else { return };
        room.copy_from_slice(&frame);
        self.sink.commit(offload);
        // What the link fills in, so that nobody takes the copy for broken.
        if let Some(partial) = offload.checksum {
            finish_checksum(&mut frame, partial);
        }
        self.copies.push(frame);
    }
}

/// A frame for nobody but the capture.
struct MadeFrame(Vec<u8>);

impl FrameSink for MadeFrame {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0 = vec![0; len];
        Some(&mut self.0)
    }

    fn commit(&mut self, _: TxOffload) {}
}
