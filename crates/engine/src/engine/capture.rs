//! Copies of packets for whoever watches (`toe capture`): frames of the ports, and what would be a frame where two
//! programs of the engine talk to each other.
//!
//! Without a capture each frame and each local segment pays one look at [`Capture::on`]. With one, a packet is shown to
//! the driver ([`HostSide::capture_wants`]), which knows the filters, and only what it wants is copied.

use super::Engine;
use crate::counter::Counter;
use crate::egress::builder::{Envelope, Hop};
use crate::egress::segment;
use crate::flow::key::{FlowKey, KeyHolder};
use crate::flow::tenancy::Notice;
use crate::hostif::HostSide;
use crate::ingress::facts::{Known, facts_of};
use crate::work::{Sighting, SightingEnd};
use core::net::IpAddr;
use toe_abi::capture::{Direction, Facts};
use toe_base::{Addr, Endpoint, FlowIdx, Instant, PortId};
use toe_tcp::segment::Segment;
use toe_tcp::send_queue::Pieces;
use toe_wire::checksum::{Sum, pseudo_header_sum};
use toe_wire::eth::EtherType;
use toe_wire::ipv4::Protocol;
use toe_wire::link::{FrameSink, LinkCaps, PartialChecksum, RxOffload, TxOffload};
use toe_wire::tcp;

/// Memory kept for copies between rounds.
const KEPT_LEN: usize = 1 << 20;

/// Whether anybody watches, and memory for what is on its way to him.
#[derive(Debug, Default)]
pub(super) struct Capture {
    pub(super) on: bool,
    /// Frames that a port has just taken, one behind the other.
    sent: Vec<u8>,
    lens: Vec<usize>,
    /// One frame that is made for the capture alone.
    made: Vec<u8>,
}

impl Engine {
    /// Why something was dropped since the last call.
    fn take_drop(&mut self) -> Option<Counter> {
        let by_tcp = self.tcp.counters.take_drop().map(Counter::of_tcp);
        self.counters.take_drop().or(by_tcp)
    }

    /// [`crate::ControlEvent::Capture`].
    pub(super) fn set_capture<H: HostSide>(&mut self, on: bool, host: &mut H) {
        self.capture = Capture { on, ..Capture::default() };
        if !on {
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
            if !asked && self.is_watched(&key, host) {
                self.ask_to_yield(idx);
            }
        }
    }

    /// Whether segments of a local connection are wanted.
    pub(super) fn is_watched<H: HostSide>(&self, key: &FlowKey, host: &mut H) -> bool {
        self.capture.on
            && [*key, key.reversed()].iter().any(|key| host.capture_wants(&self.local_sighting(key, None)))
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
        if !host.capture_wants(&sighting) {
            return;
        }
        match known.unfinished_checksum(frame, offload) {
            None => host.capture(&sighting, frame),
            Some(at) => {
                let made = &mut self.capture.made;
                made.clear();
                made.extend_from_slice(frame);
                finish_checksum(made, at);
                host.capture(&sighting, made);
            }
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
        let mut copies = core::mem::take(&mut self.capture);
        let units =
            self.transmit(now, port, &mut CopyingSink { sink, copies: &mut copies, at: 0 }, host, budget);
        let zone = self.ports[port.index()].link.zone;
        let mut start = 0;
        for &len in &copies.lens {
            let frame = &copies.sent[start..start + len];
            start += len;
            let known = facts_of(frame);
            let owner = known.key(Direction::Out, zone).and_then(|key| self.end_of(&key));
            let sighting = known.sighting(Some(port), Direction::Out, [owner, None], None);
            if host.capture_wants(&sighting) {
                host.capture(&sighting, frame);
            }
        }
        copies.lens.clear();
        copies.sent.clear();
        copies.sent.shrink_to(KEPT_LEN);
        self.capture = copies;
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
        if !host.capture_wants(&sighting) {
            return;
        }
        let key = key.reversed();
        let (from, to) = (key.local.addr, key.remote.addr);
        // As Linux shows what goes over `lo`: no hardware addresses.
        let envelope = Envelope { hop: Hop::default(), from, to, ttl: toe_wire::ipv4::TTL, traffic_class: 0 };
        let header = segment::header(&key, &segment);
        let mut made = core::mem::take(&mut self.capture.made);
        let sink = &mut MadeFrame(&mut made);
        let emitted = segment::emit(sink, host, &envelope, LinkCaps::default(), &header, pieces, u16::MAX);
        if emitted.is_ok() {
            host.capture(&sighting, &made);
        }
        self.capture.made = made;
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
    copies: &'a mut Capture,
    /// Where the frame that is being filled starts.
    at: usize,
}

impl FrameSink for CopyingSink<'_> {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.sink.frame(len)?;
        // One that was asked for before and not committed is not sent.
        let sent = &mut self.copies.sent;
        self.at = self.copies.lens.iter().sum();
        sent.truncate(self.at);
        sent.resize(self.at + len, 0);
        Some(&mut sent[self.at..])
    }

    fn commit(&mut self, offload: TxOffload) {
        let frame = &mut self.copies.sent[self.at..];
        let Some(room) = self.sink.frame(frame.len()) else { return };
        room.copy_from_slice(frame);
        self.sink.commit(offload);
        self.copies.lens.push(frame.len());
        // What the link fills in, so that nobody takes the copy for broken.
        if let Some(partial) = offload.checksum {
            finish_checksum(frame, partial);
        }
    }
}

/// A frame for nobody but the capture.
struct MadeFrame<'a>(&'a mut Vec<u8>);

impl FrameSink for MadeFrame<'_> {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.clear();
        self.0.resize(len, 0);
        Some(self.0)
    }

    fn commit(&mut self, _: TxOffload) {}
}
