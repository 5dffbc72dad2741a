//! Between two local ends segments go as they are, in the call that lets one of them send.
//!
//! Each session has its own rings, and which of them is read first is not the order of their programs' calls.
//! It seldom shows, as a connection brings its own order with it. It does where one end says that it takes no more: what its
//! local peer had sent before is data, and what the peer sends after is answered with a reset.

use super::EngineView;
use super::capture::MadeFrame;
use super::transmit::{QUANTUM_UNITS, QuantumEnd};
use crate::counter::Counter;
use crate::egress::builder::{Envelope, Hop};
use crate::egress::segment;
use crate::flow::key::FlowKey;
use crate::hostif::users::UserIdx;
use crate::parts::{HostInterface, TcpPlanes};
use crate::store::FlowStore;
use crate::work::{Path, RxWork, Sighting};
use toe_abi::entry::{Command, FlowOption};
use toe_base::{FlowIdx, SessionId};
use toe_tcp::memory::HostMemory;
use toe_tcp::output;
use toe_tcp::segment::{Payload, RxSegment, Segment};
use toe_tcp::send_queue::Pieces;
use toe_tcp::state::TcpState;
use toe_wire::link::LinkCaps;

impl EngineView<'_> {
    /// The sessions at the other ends of a session's connections.
    pub fn peers_of(self, session: SessionId, peers: &mut Vec<SessionId>) {
        let Some(record) = self.0.hostif.sessions.get(session) else { return };
        let ends = record.flows.values().filter_map(|idx| self.0.flows.peer_here(idx));
        let owners = ends.map(|peer| self.0.flows.get(peer).conn.tenancy.owner());
        peers.extend(owners.filter(|owner| !owner.is_nobody()).map(|owner| owner.session));
        peers.sort_unstable();
        peers.dedup();
    }

    /// Whose entries the driver takes before it carries out this command: those of the local peer of an end that takes no more, or
    /// whose words together say so. It may be the same session: each of its threads has rings of its own.
    pub fn counts_after(self, session: SessionId, command: Command) -> Option<SessionId> {
        let peer = self.0.hostif.sends_earlier(&self.0.flows, session, command)?;
        Some(self.0.flows.get(peer).conn.tenancy.owner().session)
    }
}

impl<H: HostMemory> TcpPlanes<'_, H> {
    /// Delivers what was sent before a command, as far as windows let it, a turn at most.
    pub(super) fn deliver_earlier(&mut self, session: SessionId, command: Command) {
        if let Some(peer) = self.records.hostif.sends_earlier(self.records.flows, session, command) {
            let user = self.records.flows.get(peer).conn.user;
            self.local_quantum(user, peer);
        }
    }

    /// Closes an end after what its local peer has done before, closed among it, is done at this end, too. Else both would be the first to
    /// close, and a name that the peer's end is to leave last would be in use for a minute. What the peer has sent and nobody
    /// has read makes the close a reset.
    pub(super) fn close_after_peer(&mut self, idx: FlowIdx, abort: bool) {
        let has_something = |peer: &FlowIdx| {
            let tcb = &self.records.flows.get(*peer).tcb;
            tcb.snd.fin.is_queued() || !tcb.sending.queue.is_empty()
        };
        let is_open = !self.records.flows.get(idx).tcb.orphaned;
        if let Some(peer) =
            self.records.flows.peer_here(idx).filter(|_| is_open && !abort).filter(has_something)
        {
            let user = self.records.flows.get(peer).conn.user;
            self.local_quantum(user, peer);
        }
        if self.records.flows.is_used(idx) {
            self.edit(idx, |planes, idx| planes.records.app_close(planes.now, idx, abort, planes.host));
        }
    }

    fn deliver_local(&mut self, (key, segment): (FlowKey, Segment), pieces: &Pieces) {
        self.records.counters.add(Counter::LocalSegments);
        let rx = RxSegment { segment, is_marked: false, payload: Payload::Memory(pieces) };
        let work = RxWork { key, path: Path::Local, rx };
        if self.records.hostif.capture.is_on() {
            self.deliver_watched(&work, pieces);
        } else {
            self.tcp_arrives(&work);
        }
    }

    /// [`TcpPlanes::deliver_local`] while somebody watches.
    fn deliver_watched(&mut self, work: &RxWork<'_>, pieces: &Pieces) {
        let key = work.key.reversed();
        let before = self.records.local_sighting(&key, None);
        self.records.take_drop();
        self.tcp_arrives(work);
        let reason = self.records.take_drop();
        let after = self.records.local_sighting(&key, reason);
        let sighting = Sighting {
            sender: before.sender.or(after.sender),
            receiver: before.receiver.or(after.receiver),
            ..after
        };
        if !self.records.hostif.may_want(&sighting) {
            return;
        }
        let (from, to) = (key.local.addr, key.remote.addr);
        // As Linux shows what goes over `lo`: no hardware addresses.
        let envelope = Envelope { hop: Hop::default(), from, to, ttl: toe_wire::ipv4::TTL, traffic_class: 0 };
        let header = segment::header(&key, &work.rx.segment);
        let mut made = MadeFrame(Vec::new());
        let emitted =
            segment::emit(&mut made, self.host, &envelope, LinkCaps::default(), &header, pieces, u16::MAX);
        if emitted.is_ok() {
            self.records.hostif.capture.show(sighting, made.0);
        }
    }

    fn local_quantum(&mut self, user: UserIdx, idx: FlowIdx) -> usize {
        let (units, _) = self.with_quantum(idx, |planes, idx| {
            for unit in 0..QUANTUM_UNITS {
                if !planes.records.flows.is_used(*idx)
                    || planes.records.flows.get(*idx).tcb.state == TcpState::Closed
                {
                    return (unit, QuantumEnd::Idle);
                }
                let Some(tx) = planes.records.next_unit(planes.now, *idx) else {
                    return (unit, QuantumEnd::Idle);
                };
                let (flow, path) = planes.records.flows.with_path_mut(idx);
                let key = flow.conn.key;
                let pieces =
                    flow.tcb.sending.queue.pieces(&planes.records.tcp.extents, tx.payload_at, tx.segment.len);
                output::commit(&mut flow.tcb, path, planes.records.tcp, planes.now, &tx);
                planes.records.count_sent(planes.now, idx, &tx);
                planes.records.ip.loopback.ready.spend(user, 1, u64::from(tx.segment.len));
                planes.deliver_local((key.reversed(), tx.segment), &pieces);
            }
            if planes.records.flows.is_used(*idx) {
                planes.records.ip.loopback.ready.push(user, *idx);
            }
            (QUANTUM_UNITS, QuantumEnd::More)
        });
        units
    }

    /// Moves segments between connections whose both ends are here, at most `budget` of them. Returns how many.
    pub(super) fn move_local(&mut self, budget: usize) -> usize {
        let mut moved = 0;
        while moved < budget && !self.records.hostif.capture.is_full() {
            if let Some(lone) = self.records.ip.loopback.control.pop_front() {
                self.deliver_local(lone, &Default::default());
                moved += 1;
                continue;
            }
            let Some((user, idx)) = self.records.ip.loopback.ready.pop() else { break };
            // A local connection may have stood here and ended, and its record be that of one over a port by now, whose
            // segments are not for this engine.
            if !self.records.flows.is_used(idx) || !self.records.flows.get(idx).tcb.is_local {
                continue;
            }
            moved += self.local_quantum(user, idx);
        }
        moved
    }
}

impl HostInterface {
    /// The local peer whose bytes count before this command: it says, by itself or with what was said before, that an end takes no more.
    fn sends_earlier(&self, flows: &FlowStore, session: SessionId, command: Command) -> Option<FlowIdx> {
        let (Command::SetOption { flow, option: FlowOption::ReceiveShut, .. }
        | Command::ShutdownSend { flow }) = command
        else {
            return None;
        };
        let idx = self.sessions.get(session)?.flows.get(flow)?;
        let takes_less = flows.get(idx).tcb.setup.options.receive_shut;
        let counts = takes_less || !matches!(command, Command::ShutdownSend { .. });
        flows.peer_here(idx).filter(|_| counts)
    }
}
