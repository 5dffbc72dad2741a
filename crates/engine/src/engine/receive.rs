//! Frames in: ingress, then the flow core or the control plane.

use super::Engine;
use super::capture::finish_checksum;
use crate::control::icmp;
use crate::counter::Counter;
use crate::flow::isn::timestamp_offset;
use crate::flow::key::{KeyHolder, TimeWaitIdx};
use crate::ingress;
use crate::ingress::At;
use crate::ingress::arrived::{Arrived, ArrivedTcp};
use crate::ingress::facts::facts_of;
use crate::parts::{Records, TcpPlanes};
use crate::store::time_waits::TimeWaitFlow;
use crate::work::{Incoming, Lone, Piece, RxPacket, RxWork, Sighting};
use toe_abi::capture::{Direction, Facts};
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant, PortId, SeqNum};
use toe_tcp::memory::HostMemory;
use toe_tcp::segment::{Payload, RxSegment, Segment};
use toe_tcp::state::TcpState;
use toe_tcp::time_wait::{TimeWaitEffect, is_new_life};
use toe_wire::link::{FrameTail, RxOffload};

/// A frame as a link hands it over.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'f> {
    bytes: &'f [u8],
    /// It is a large segment, or large datagrams, whose checksum needs no look: behind the headers `bytes` have no meaning, and are to be
    /// had from here. Not while a capture goes on ([`EngineView::needs_whole_frames`](crate::EngineView::needs_whole_frames)).
    tail: Option<&'f dyn FrameTail>,
}

impl<'f, B: AsRef<[u8]> + ?Sized> From<&'f B> for RxFrame<'f> {
    fn from(bytes: &'f B) -> RxFrame<'f> {
        RxFrame { bytes: bytes.as_ref(), tail: None }
    }
}

impl<'f> From<(&'f [u8], Option<&'f dyn FrameTail>)> for RxFrame<'f> {
    fn from((bytes, tail): (&'f [u8], Option<&'f dyn FrameTail>)) -> RxFrame<'f> {
        RxFrame { bytes, tail }
    }
}

impl Engine {
    /// A frame arrived at `port`. What it has for a socket is for the driver to hand over.
    pub fn handle_frame<'f, H: HostMemory>(
        &mut self,
        now: Instant,
        port: PortId,
        frame: impl Into<RxFrame<'f>>,
        offload: RxOffload,
        host: &mut H,
    ) -> Option<Incoming<'f>> {
        let RxFrame { bytes, tail } = frame.into();
        if self.hostif.capture.is_on() && tail.is_none() {
            self.handle_watched_frame(now, port, bytes, offload, host)
        } else {
            self.take_frame(now, port, bytes, offload, tail, host)
        }
    }

    pub(super) fn take_frame<'f, H: HostMemory>(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &'f [u8],
        offload: RxOffload,
        tail: Option<&'f dyn FrameTail>,
        host: &mut H,
    ) -> Option<Incoming<'f>> {
        self.counters.add(Counter::RxFrames);
        let at = At { port, link: &self.ip.ports[port.index()].link, routes: &self.ip.routes };
        match (ingress::parse(frame, offload, at), tail) {
            (Ok(Arrived::Tcp(tcp)), Some(tail)) => {
                let at = tcp.payload.as_ptr().addr() - frame.as_ptr().addr();
                self.tcp_frame_arrives(now, port, &tcp, Payload::Tail(tail, at), host);
            }
            (Ok(Arrived::Datagram(datagram)), Some(tail)) => {
                let at = datagram.text.as_ptr().addr() - frame.as_ptr().addr();
                return self.datagrams().arrives(now, Some(port), datagram, Some((tail, at)));
            }
            // A link keeps back nothing else.
            (Ok(_), Some(_)) => self.counters.add(Counter::DropProtocol),
            (Ok(arrived), None) => return self.arrived(now, port, arrived, host),
            (Err(reason), _) => self.counters.add(reason),
        }
        None
    }

    /// What is complete goes on as if it had come in one piece; nobody has looked at its checksum yet.
    fn fragment_arrived<H: HostMemory>(
        &mut self,
        now: Instant,
        port: PortId,
        piece: &Piece<'_>,
        host: &mut H,
    ) -> Option<Incoming<'static>> {
        match self.ip.fragments.add(now, piece) {
            Ok(Some(whole)) => {
                self.counters.add(Counter::Reassembled);
                match ingress::parse_reassembled(&whole.arrival, whole.protocol, &whole.bytes) {
                    Ok(arrived) => {
                        return self.arrived(now, port, arrived, host).map(Incoming::into_owned);
                    }
                    Err(reason) => self.counters.add(reason),
                }
            }
            Ok(None) => {}
            Err(reason) => self.counters.add(reason),
        }
        None
    }

    pub(super) fn arrived<'f, H: HostMemory>(
        &mut self,
        now: Instant,
        port: PortId,
        arrived: Arrived<'f>,
        host: &mut H,
    ) -> Option<Incoming<'f>> {
        match arrived {
            Arrived::Tcp(tcp) => self.tcp_frame_arrives(now, port, &tcp, Payload::Frame(tcp.payload), host),
            Arrived::Arp(message) => self.links().arp_arrives(port, &message),
            Arrived::Neighbour(message) => self.links().neighbour_message(port, &message),
            Arrived::EchoRequest { arrival, ident, seq, data } => {
                match icmp::echo_reply(arrival.from_mac, arrival.src, arrival.dst, ident, seq, data) {
                    Some(reply) => self.ip.push_control(&mut self.counters, port, reply),
                    None => self.counters.add(Counter::DropBadIcmp),
                }
            }
            Arrived::IcmpError(error) => self.records().icmp_error(now, &error),
            Arrived::Fragment(piece) => return self.fragment_arrived(now, port, &piece, host),
            Arrived::Datagram(datagram) => return self.datagrams().arrives(now, Some(port), datagram, None),
            Arrived::DatagramError(error) => return self.datagrams().error_arrives(now, error),
            Arrived::Other { arrival, protocol, bytes } => {
                let others = (&mut self.protocols, &mut self.counters);
                self.ip.packet_arrives(others, now, &RxPacket { port, arrival, protocol, bytes });
            }
            Arrived::Ignored => {}
        }
        None
    }

    fn tcp_frame_arrives<H: HostMemory>(
        &mut self,
        now: Instant,
        port: PortId,
        tcp: &ArrivedTcp<'_>,
        payload: Payload<'_>,
        host: &mut H,
    ) {
        self.counters.add(Counter::RxSegments);
        if tcp.is_scale_too_large {
            self.counters.add(Counter::WindowScaleTooLarge);
        }
        let ArrivedTcp { key, segment, is_marked, .. } = *tcp;
        let known = self.flows.named(&key);
        let flow = known.and_then(KeyHolder::flow);
        let path = match flow {
            // It has its path already, and keeps it while routes do not change.
            Some(idx) => Some(self.flows.get(idx).conn.path),
            None => self.links().path_of_sender(port, &key, tcp.from_mac),
        };
        let Some(path) = path else {
            self.counters.add(Counter::DropBadAddress);
            return;
        };
        let mut own = Vec::new();
        let payload = match payload {
            Payload::Tail(tail, at)
                if flow.is_some_and(|idx| self.records().holds_some_of(idx, &segment)) =>
            {
                own.resize(tcp.payload.len(), 0);
                if !tail.read(at, &mut own) {
                    self.counters.add(Counter::DropTruncated);
                    return;
                }
                Payload::Frame(&own)
            }
            payload => payload,
        };
        self.planes(now, host)
            .tcp_arrives_for(known, &RxWork { key, path, rx: RxSegment { segment, is_marked, payload } });
    }

    /// [`Engine::handle_frame`] while somebody watches.
    fn handle_watched_frame<'f, H: HostMemory>(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &'f [u8],
        offload: RxOffload,
        host: &mut H,
    ) -> Option<Incoming<'f>> {
        let known = facts_of(frame);
        let zone = self.ip.ports[port.index()].link.zone;
        let key = known.key(Direction::In, zone);
        // A segment that ends its connection is that connection's all the same.
        let owner = key.and_then(|key| self.records().end_of(&key));
        self.records().take_drop();
        let incoming = self.take_frame(now, port, frame, offload, None, host);
        let reason = self.records().take_drop();
        let owner = owner.or_else(|| key.and_then(|key| self.records().end_of(&key)));
        let sighting = known.sighting(Some(port), Direction::In, [None, owner], reason);
        let wants = |packet: &Sighting| self.hostif.may_want(packet);
        // What is still to be handed over may be dropped yet.
        let is_settled = incoming.is_none();
        let dropped = Sighting { facts: Facts { dropped: true, ..sighting.facts }, ..sighting };
        if wants(&sighting) || !is_settled && wants(&dropped) {
            let mut bytes = frame.to_vec();
            if let Some(at) = known.unfinished_checksum(frame, offload) {
                finish_checksum(&mut bytes, at);
            }
            if is_settled {
                self.hostif.capture.show(sighting, bytes);
            } else {
                self.hostif.capture.unsettled = Some((sighting, bytes));
            }
        }
        incoming
    }
}

impl Records<'_> {
    /// Whether some of its bytes came before, beyond a hole. A link that writes to a program's memory itself may fail in the middle of it, and
    /// bytes that the peer was told have come would be lost.
    fn holds_some_of(&self, idx: FlowIdx, segment: &Segment) -> bool {
        let (start, end) = (segment.seq, segment.seq.plus(segment.len));
        let held = self.flows.get(idx).tcb.receiving.held.ranges(&self.tcp.held);
        held.iter().any(|range| range.start.before(end) && start.before(range.end))
    }
}

impl<H: HostMemory> TcpPlanes<'_, H> {
    /// A segment for one connection, from a frame or from another flow of this engine.
    pub(super) fn tcp_arrives(&mut self, work: &RxWork<'_>) {
        self.tcp_arrives_for(self.records.flows.named(&work.key), work);
    }

    /// The same, `known` being who has its name.
    fn tcp_arrives_for(&mut self, known: Option<KeyHolder>, work: &RxWork<'_>) {
        let segment = &work.rx.segment;
        // The sequence numbers of a new life lie beyond those of the old one.
        let mut beyond = None;
        if let Some(KeyHolder::TimeWait(idx)) = known {
            beyond = self.arrives_in_time_wait(idx, work);
            if beyond.is_none() {
                return;
            }
        }
        let known = known.and_then(KeyHolder::flow);
        if let Some(idx) = known.filter(|idx| self.answers_earlier_cookie(*idx, work)) {
            self.records.edit(idx, Records::remove_flow);
        } else if let Some(idx) = known.filter(|idx| self.records.is_listeners(*idx, work)) {
            // Whoever is opening it has the port from before the listener had it.
            self.edit(idx, |planes, idx| planes.records.closed(idx, Errno::EADDRINUSE));
        } else if let Some(idx) = known {
            if self.records.must_wait_for_accept(idx, segment) {
                self.records.counters.add(Counter::DropAcceptQueueFull);
                return;
            }
            let tcb = &self.records.flows.get(idx).tcb;
            if tcb.state != TcpState::TimeWait || !is_new_life(tcb.rcv.nxt, tcb.ts_recent(), segment) {
                self.edit(idx, |planes, idx| planes.flow_receives(idx, work));
                return;
            }
            beyond = Some(tcb.snd.nxt.plus(1 << 16));
            // The record stays while a program holds it: there may be data that it has not read.
            self.edit(idx, |planes, idx| planes.records.closed(idx, Errno::OK));
        }
        if segment.flags.syn() && segment.ack.is_none() && !segment.flags.rst() {
            self.syn_arrives(work, beyond);
            return;
        }
        if self.cookie_arrives(work) {
            return;
        }
        self.records.nobodys(self.now, work);
    }

    /// A segment for a connection in TIME_WAIT that no program has. Returns where the numbers of a new life may begin, if it is for one.
    fn arrives_in_time_wait(&mut self, idx: TimeWaitIdx, work: &RxWork<'_>) -> Option<SeqNum> {
        let waiting = self.records.flows.time_waits.get_mut(idx)?;
        let TimeWaitFlow { key, tcp, .. } = waiting;
        if is_new_life(tcp.rcv_nxt, tcp.ts_recent(), &work.rx.segment) {
            let beyond = tcp.snd_nxt.plus(1 << 16);
            self.records.leave_time_wait(idx);
            return Some(beyond);
        }
        match tcp.segment_arrives(&mut self.records.tcp.in_time_wait(self.now), &work.rx.segment) {
            TimeWaitEffect::Nothing => {}
            TimeWaitEffect::Answer(duplicate) => {
                let offset = timestamp_offset(&self.secret, key);
                let segment = tcp.ack(self.now.tcp_timestamp_ms().wrapping_add(offset), duplicate);
                let lone = Lone { key: *key, segment, traffic_class: tcp.traffic_class };
                self.records.ip.send_alone(self.records.counters, self.now, work.path, lone);
            }
            TimeWaitEffect::Reset => self.records.leave_time_wait(idx),
        }
        self.records.flows.time_waits.note_change(idx);
        None
    }
}
