//! Between two local ends segments go as they are, in the call that lets one of them send.
//!
//! Each session has its own rings, and which of them is read first is not the order of their programs' calls.
//! It seldom shows, as a connection brings its own order with it. It does where one end says that it takes no more: what its
//! local peer had sent before is data, and what the peer sends after is answered with a reset.

use super::capture::MadeFrame;
use super::transmit::{QUANTUM_UNITS, QuantumEnd};
use super::{Engine, EngineView};
use crate::counter::Counter;
use crate::egress::builder::{Envelope, Hop};
use crate::egress::segment;
use crate::flow::key::FlowKey;
use crate::hostif::users::UserIdx;
use crate::work::{Path, RxWork, Sighting};
use toe_abi::entry::{Command, FlowOption};
use toe_base::{FlowIdx, Instant, SessionId};
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
        let peer = self.sends_earlier(session, command)?;
        Some(self.0.flows.get(peer).conn.tenancy.owner().session)
    }

    /// The local peer whose bytes count before this command: it says, by itself or with what was said before, that an end takes no more.
    fn sends_earlier(self, session: SessionId, command: Command) -> Option<FlowIdx> {
        let (Command::SetOption { flow, option: FlowOption::ReceiveShut, .. }
        | Command::ShutdownSend { flow }) = command
        else {
            return None;
        };
        let idx = self.0.hostif.sessions.get(session)?.flows.get(flow)?;
        let takes_less = self.0.flows.get(idx).tcb.setup.options.receive_shut;
        let counts = takes_less || !matches!(command, Command::ShutdownSend { .. });
        self.0.flows.peer_here(idx).filter(|_| counts)
    }
}

impl Engine {
    /// Delivers what was sent before a command, as far as windows let it, a turn at most.
    pub(super) fn deliver_earlier<H: HostMemory>(
        &mut self,
        now: Instant,
        session: SessionId,
        command: Command,
        host: &mut H,
    ) {
        if let Some(peer) = self.view().sends_earlier(session, command) {
            let user = self.flows.get(peer).conn.user;
            self.local_quantum(now, user, peer, host);
        }
    }

    /// Closes an end after what its local peer has done before, closed among it, is done at this end, too. Else both would be the first to
    /// close, and a name that the peer's end is to leave last would be in use for a minute. What the peer has sent and nobody
    /// has read makes the close a reset.
    pub(super) fn close_after_peer<H: HostMemory>(
        &mut self,
        now: Instant,
        idx: FlowIdx,
        abort: bool,
        host: &mut H,
    ) {
        let has_something = |peer: &FlowIdx| {
            let tcb = &self.flows.get(*peer).tcb;
            tcb.snd.fin.is_queued() || !tcb.sending.queue.is_empty()
        };
        let is_open = !self.flows.get(idx).tcb.orphaned;
        if let Some(peer) = self.flows.peer_here(idx).filter(|_| is_open && !abort).filter(has_something) {
            let user = self.flows.get(peer).conn.user;
            self.local_quantum(now, user, peer, host);
        }
        if self.flows.is_used(idx) {
            self.edit(idx, |engine, idx| engine.records().app_close(now, idx, abort, host));
        }
    }

    fn deliver_local<H: HostMemory>(
        &mut self,
        now: Instant,
        (key, segment): (FlowKey, Segment),
        pieces: &Pieces,
        host: &mut H,
    ) {
        self.counters.add(Counter::LocalSegments);
        let rx = RxSegment { segment, is_marked: false, payload: Payload::Memory(pieces) };
        let work = RxWork { key, path: Path::Local, rx };
        if self.hostif.capture.is_on() {
            self.deliver_watched(now, &work, pieces, host);
        } else {
            self.tcp_arrives(now, &work, host);
        }
    }

    /// [`Engine::deliver_local`] while somebody watches.
    fn deliver_watched<H: HostMemory>(
        &mut self,
        now: Instant,
        work: &RxWork<'_>,
        pieces: &Pieces,
        host: &mut H,
    ) {
        let key = work.key.reversed();
        let before = self.local_sighting(&key, None);
        self.records().take_drop();
        self.tcp_arrives(now, work, host);
        let reason = self.records().take_drop();
        let after = self.local_sighting(&key, reason);
        let sighting = Sighting {
            sender: before.sender.or(after.sender),
            receiver: before.receiver.or(after.receiver),
            ..after
        };
        if !self.hostif.may_want(&sighting) {
            return;
        }
        let (from, to) = (key.local.addr, key.remote.addr);
        // As Linux shows what goes over `lo`: no hardware addresses.
        let envelope = Envelope { hop: Hop::default(), from, to, ttl: toe_wire::ipv4::TTL, traffic_class: 0 };
        let header = segment::header(&key, &work.rx.segment);
        let mut made = MadeFrame(Vec::new());
        let emitted =
            segment::emit(&mut made, host, &envelope, LinkCaps::default(), &header, pieces, u16::MAX);
        if emitted.is_ok() {
            self.hostif.capture.show(sighting, made.0);
        }
    }

    fn local_quantum<H: HostMemory>(
        &mut self,
        now: Instant,
        user: UserIdx,
        idx: FlowIdx,
        host: &mut H,
    ) -> usize {
        let (units, _) = self.with_quantum(now, idx, |engine, idx| {
            for unit in 0..QUANTUM_UNITS {
                if !engine.flows.is_used(*idx) || engine.flows.get(*idx).tcb.state == TcpState::Closed {
                    return (unit, QuantumEnd::Idle);
                }
                let Some(tx) = engine.ip.next_unit(now, engine.flows.with_path(*idx), &engine.tcp) else {
                    return (unit, QuantumEnd::Idle);
                };
                let (flow, path) = engine.flows.with_path_mut(idx);
                let key = flow.conn.key;
                let pieces =
                    flow.tcb.sending.queue.pieces(&engine.tcp.extents, tx.payload_at, tx.segment.len);
                output::commit(&mut flow.tcb, path, &mut engine.tcp, now, &tx);
                engine.records().count_sent(now, idx, &tx);
                engine.ip.loopback.ready.spend(user, 1, u64::from(tx.segment.len));
                engine.deliver_local(now, (key.reversed(), tx.segment), &pieces, host);
            }
            if engine.flows.is_used(*idx) {
                engine.ip.loopback.ready.push(user, *idx);
            }
            (QUANTUM_UNITS, QuantumEnd::More)
        });
        units
    }

    /// Moves segments between connections whose both ends are here, at most `budget` of them. Returns how many.
    pub(super) fn move_local<H: HostMemory>(&mut self, now: Instant, host: &mut H, budget: usize) -> usize {
        let mut moved = 0;
        while moved < budget && !self.hostif.capture.is_full() {
            if let Some(lone) = self.ip.loopback.control.pop_front() {
                self.deliver_local(now, lone, &Default::default(), host);
                moved += 1;
                continue;
            }
            let Some((user, idx)) = self.ip.loopback.ready.pop() else { break };
            // A local connection may have stood here and ended, and its record be that of one over a port by now, whose
            // segments are not for this engine.
            if !self.flows.is_used(idx) || !self.flows.get(idx).tcb.is_local {
                continue;
            }
            moved += self.local_quantum(now, user, idx, host);
        }
        moved
    }
}
