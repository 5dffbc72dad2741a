//! Segments out: over a port as frames, between two local ends as they are.

use super::capture::CopyingSink;
use super::notify::has_something;
use super::{Edit, Engine};
use crate::counter::{Counter, Counters};
use crate::egress::builder::{ECT_0, Envelope, Hop};
use crate::egress::{control, segment};
use crate::flow::record::Flow;
use crate::hostif::outbox::Place;
use crate::ingress::facts::facts_of;
use crate::parts::{IpLayer, Records, TcpPlanes};
use crate::store::is_over;
use crate::store::time_waits::TimeWaitFlow;
use crate::work::{ControlFrame, Lone, Path};
use toe_abi::capture::Direction;
use toe_base::{Addr, FlowIdx, Instant, PortId};
use toe_tcp::memory::HostMemory;
use toe_tcp::record::PeerTimer;
use toe_tcp::segment::TxSegment;
use toe_tcp::segment_arrives::time_wait;
use toe_tcp::{congestion, output, rtt};
use toe_wire::link::FrameSink;

/// Units that one flow may send before it is the next one's turn.
pub(super) const QUANTUM_UNITS: usize = 4;
/// Bytes after which no more go in a round: a stream's program hears of what was acknowledged, and makes more, while the engine
/// copies what comes next, instead of all waiting for a whole window.
const BYTES_PER_ROUND: u64 = 256 << 10;

/// Why a flow's turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuantumEnd {
    /// It has nothing more to send now.
    Idle,
    /// It has more, and waits behind the others.
    More,
    /// The port has no room.
    PortFull,
}

impl Engine {
    /// Sends what the flows of a port have, at most `budget` units. Returns how many frames went to `sink`.
    pub fn poll_transmit<H: HostMemory>(
        &mut self,
        now: Instant,
        port: PortId,
        sink: &mut dyn FrameSink,
        host: &mut H,
        budget: usize,
    ) -> usize {
        if self.hostif.capture.is_on() {
            self.transmit_watched(now, port, sink, host, budget)
        } else {
            self.transmit(now, port, sink, host, budget)
        }
    }

    pub(super) fn transmit<H: HostMemory>(
        &mut self,
        now: Instant,
        port: PortId,
        sink: &mut dyn FrameSink,
        host: &mut H,
        budget: usize,
    ) -> usize {
        let mut sent = self.ip.transmit_control(&mut self.counters, port, sink);
        // Connections have their turn beside them.
        sent += self.datagrams().transmit(port, sink, budget / 2);
        let mut gone = 0;
        while sent < budget && gone < BYTES_PER_ROUND {
            let Some((user, idx)) = self.ip.ports[port.index()].ready.pop() else { break };
            if !self.flows.is_used(idx) {
                continue;
            }
            match self.flows.get(idx).conn.path {
                Path::Port { port: of, .. } if of == port => {}
                Path::Port { port: of, .. } => {
                    // Its route has moved while it stood here. Its neighbour's number is of the other port's table.
                    self.ip.ports[of.index()].ready.push(user, idx);
                    continue;
                }
                // The record is another connection's by now, and stands where that belongs.
                Path::Local => continue,
            }
            let before = self.flows.get(idx).tcb.status.traffic.sent;
            let (units, end) = self
                .planes(now, host)
                .with_quantum(idx, |planes, idx| planes.transmit_units(port, idx, sink));
            let bytes = self.flows.get(idx).tcb.status.traffic.sent.saturating_sub(before);
            self.ip.ports[port.index()].ready.spend(user, units, bytes);
            sent += units;
            gone += bytes;
            match end {
                QuantumEnd::Idle => {}
                QuantumEnd::More => self.ip.ports[port.index()].ready.push(user, idx),
                QuantumEnd::PortFull => {
                    self.ip.ports[port.index()].ready.push_front(user, idx);
                    break;
                }
            }
        }
        // A turn may end with a reset: nothing else may call for a long time.
        sent + self.ip.transmit_control(&mut self.counters, port, sink)
    }

    /// [`Engine::poll_transmit`] while somebody watches.
    fn transmit_watched<H: HostMemory>(
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
        let zone = self.ip.ports[port.index()].link.zone;
        for frame in copies {
            let known = facts_of(&frame);
            let owner = known.key(Direction::Out, zone).and_then(|key| self.records().end_of(&key));
            let sighting = known.sighting(Some(port), Direction::Out, [owner, None], None);
            if self.hostif.may_want(&sighting) {
                self.hostif.capture.show(sighting, frame);
            }
        }
        units
    }
}

impl<H: HostMemory> TcpPlanes<'_, H> {
    /// It is a flow's turn: `send` has it send. If that was all, its timers follow from it, and its owner may want to hear of it.
    pub(super) fn with_quantum(
        &mut self,
        idx: FlowIdx,
        send: impl FnOnce(&mut Self, Edit<'_>) -> (usize, QuantumEnd),
    ) -> (usize, QuantumEnd) {
        Edit::run(self, idx, send, |planes, idx, (_, end)| {
            if *end == QuantumEnd::Idle && planes.records.flows.is_used(*idx) {
                planes.records.all_sent(planes.now, idx);
            }
        })
    }

    fn transmit_units(
        &mut self,
        port: PortId,
        idx: Edit<'_>,
        sink: &mut dyn FrameSink,
    ) -> (usize, QuantumEnd) {
        let mut units = 0;
        let (flow, path) = self.records.flows.with_path_mut(idx);
        congestion::wake(&mut flow.tcb, path, &mut self.records.tcp.particulars, self.now);
        while let Some(tx) = self.records.next_unit(self.now, *idx) {
            if units == QUANTUM_UNITS {
                return (units, QuantumEnd::More);
            }
            match self.transmit_unit(port, idx, &tx, sink) {
                Sent::Yes => units += 1,
                Sent::PortFull => return (units, QuantumEnd::PortFull),
                Sent::NoNeighbour => {
                    let (flow, path) = self.records.flows.with_path_mut(idx);
                    if flow.tcb.timers.peer == PeerTimer::Off {
                        // A neighbour that stays silent must not keep the record for ever.
                        flow.tcb.timers.peer =
                            PeerTimer::Retransmit(self.now.after_us(rtt::retransmit_us(&flow.tcb, path)));
                    }
                    break;
                }
            }
        }
        (units, QuantumEnd::Idle)
    }

    fn transmit_unit(
        &mut self,
        port_id: PortId,
        idx: Edit<'_>,
        tx: &TxSegment,
        sink: &mut dyn FrameSink,
    ) -> Sent {
        let flow = self.records.flows.get_mut(idx);
        let Path::Port { neighbour, .. } = flow.conn.path else { return Sent::NoNeighbour };
        let port = &mut self.records.ip.ports[port_id.index()];
        let (from, to) = (flow.conn.key.local.addr, flow.conn.key.remote.addr);
        let known = port.neighbours.mac(neighbour);
        let asked = match known {
            Some(_) => port.neighbours.take_doubt(neighbour),
            None => port.neighbours.ask(neighbour, self.now),
        };
        if let Some(target) = asked {
            self.records.ip.ask_neighbour(self.records.counters, port_id, target, from, sink);
        }
        let Some(to_mac) = known else { return Sent::NoNeighbour };
        let (flow, path) = self.records.flows.with_path_mut(idx);
        let port = &mut self.records.ip.ports[port_id.index()];
        let options = &flow.tcb.setup.options;
        let traffic_class = options.traffic_class | if tx.is_ect { ECT_0 } else { 0 };
        let ttl = options.hop_limit;
        let envelope = Envelope { hop: Hop::over(&port.link, to_mac), from, to, ttl, traffic_class };
        let header = segment::header(&flow.conn.key, &tx.segment);
        let pieces = flow.tcb.sending.queue.pieces(&self.records.tcp.extents, tx.payload_at, tx.segment.len);
        if segment::emit(sink, self.host, &envelope, port.link.caps, &header, &pieces, tx.mss).is_err() {
            return Sent::PortFull;
        }
        output::commit(&mut flow.tcb, path, self.records.tcp, self.now, tx);
        self.records.count_sent(self.now, idx, tx);
        Sent::Yes
    }
}

impl Records<'_> {
    fn all_sent(&mut self, now: Instant, idx: Edit<'_>) {
        let (flow, path) = self.flows.with_path_mut(idx);
        output::settle(&mut flow.tcb, path, self.tcp, now);
        let deadline = self.tcp.deadline(&flow.tcb, path);
        self.flows.wheel.set(*idx, deadline);
        let flow = self.flows.get(*idx);
        if flow.report.unsent.low_water > 0 && has_something(flow, &self.tcp.extents) {
            let owner = flow.conn.tenancy.owner();
            self.hostif.outbox.push(Place::of(owner.session, owner.queue_set), *idx);
        }
        self.abort_if_due(now, *idx);
        self.enter_time_wait(now, idx);
    }

    pub(super) fn count_sent(&mut self, now: Instant, idx: Edit<'_>, tx: &TxSegment) {
        self.counters.add(Counter::TxSegments);
        self.flows.get_mut(idx).tcb.status.traffic.note_sent(now, tx.segment.len, tx.mss);
        if tx.is_retransmit {
            self.counters.add(Counter::Retransmits);
        }
    }

    /// A flow has had its turn to send. In TIME_WAIT without a program it has a smaller record from now on, which makes room for anybody
    /// and is charged to nobody. The oldest gives way when there are too many.
    fn enter_time_wait(&mut self, now: Instant, idx: Edit<'_>) {
        if !self.flows.is_used(*idx) || !is_over(self.flows.get(*idx)) {
            return;
        }
        // Its neighbour is not known yet, and the last ACK waits for that by itself.
        while let Some(tx) = self.next_unit(now, *idx) {
            let (Flow { conn, tcb, .. }, known) = self.flows.with_path_mut(idx);
            let lone =
                Lone { key: conn.key, segment: tx.segment, traffic_class: tcb.setup.options.traffic_class };
            let path = conn.path;
            output::commit(tcb, known, self.tcp, now, &tx);
            self.ip.send_alone(self.counters, now, path, lone);
        }
        let Flow { conn, tcb, .. } = self.flows.get(*idx);
        let (key, sharing, tcp) = (conn.key, conn.sharing, time_wait(tcb, &self.tcp.particulars, now));
        self.empty_flow(idx);
        let steering = self.ip.take_steering(self.flows, idx);
        if self.flows.time_waits.is_full() {
            self.evict_oldest();
        }
        self.flows.enter_time_wait(idx, TimeWaitFlow { key, sharing, steering, tcp });
    }
}

/// What became of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Yes,
    PortFull,
    NoNeighbour,
}

impl IpLayer {
    fn transmit_control(&mut self, counters: &mut Counters, port: PortId, sink: &mut dyn FrameSink) -> usize {
        let port = &mut self.ports[port.index()];
        let mut sent = 0;
        while let Some(frame) = port.control.front() {
            if control::emit(sink, &port.link, frame).is_err() {
                break;
            }
            port.control.pop_front();
            counters.add(Counter::TxControl);
            sent += 1;
        }
        sent
    }

    fn ask_neighbour(
        &mut self,
        counters: &mut Counters,
        port: PortId,
        target: Addr,
        source: Addr,
        sink: &mut dyn FrameSink,
    ) {
        if self.ports[port.index()].shared {
            self.steering.ask_neighbour(port, target);
        } else {
            self.push_control(counters, port, ControlFrame::AskNeighbour { target, source });
            self.transmit_control(counters, port, sink);
        }
    }
}
