//! Order among sessions: each has its own rings, and which of them is read first is not the order of their programs' calls.
//!
//! It seldom shows, as a connection brings its own order with it. It does where one end says that it takes no more: what its
//! local peer had sent before is data, and what the peer sends after is answered with a reset.

use super::{Engine, EngineView};
use crate::hostif::HostSide;
use toe_abi::entry::{Command, FlowOption};
use toe_base::{FlowId, FlowIdx, Instant, SessionId};

impl EngineView<'_> {
    /// The sessions at the other ends of a session's connections.
    pub fn peers_of(self, session: SessionId, peers: &mut Vec<SessionId>) {
        let Some(record) = self.0.sessions.get(session) else { return };
        let ends = record.flows.values().filter_map(|idx| self.0.flows.peer_here(idx));
        let owners = ends.map(|peer| self.0.flows.get(peer).conn.tenancy.owner());
        peers.extend(owners.filter(|owner| !owner.is_nobody()).map(|owner| owner.session));
        peers.sort_unstable();
        peers.dedup();
    }

    /// Whose entries the driver takes before it carries out this command, and then calls [`Engine::deliver_earlier`]: those of
    /// the local peer of an end that takes no more, or whose words together say so. It may be the same session: each of its threads has rings of its own.
    pub fn counts_after(self, session: SessionId, command: Command) -> Option<(FlowId, SessionId)> {
        let of = |idx| &self.0.flows.get(idx).tcb.options;
        let takes_less = |flow| self.0.known(session, flow).is_some_and(|idx| of(idx).receive_shut);
        let flow = match command {
            Command::SetOption { flow, option: FlowOption::ReceiveShut, .. } => flow,
            Command::ShutdownSend { flow } if takes_less(flow) => flow,
            _ => return None,
        };
        Some((flow, self.0.flows.get(self.0.local_peer(session, flow)?).conn.tenancy.owner().session))
    }
}

impl Engine {
    /// Delivers to `flow` what its local peer has queued, as far as windows let it, a turn at most.
    pub fn deliver_earlier<H: HostSide>(
        &mut self,
        now: Instant,
        session: SessionId,
        flow: FlowId,
        host: &mut H,
    ) {
        if let Some(peer) = self.local_peer(session, flow) {
            let user = self.flows.get(peer).conn.user;
            self.local_turn(now, user, peer, host);
        }
    }

    /// The same, for an end that is about to be closed: what its peer has done before, closed among it, is done at this end, too. Else
    /// both would be the first to close, and a name that the peer's end is to leave last would be in use for a minute. So is what it has sent
    /// and nobody has read, for which the close is a reset.
    pub(super) fn deliver_to<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, host: &mut H) {
        let has_something = |peer: &FlowIdx| {
            let tcb = &self.flows.get(*peer).tcb;
            tcb.snd.fin_queued || !tcb.send_queue.is_empty()
        };
        if let Some(peer) = self.flows.peer_here(idx).filter(has_something) {
            let user = self.flows.get(peer).conn.user;
            self.local_turn(now, user, peer, host);
        }
    }

    fn known(&self, session: SessionId, flow: FlowId) -> Option<FlowIdx> {
        self.sessions.get(session)?.flows.get(flow)
    }

    fn local_peer(&self, session: SessionId, flow: FlowId) -> Option<FlowIdx> {
        self.flows.peer_here(self.known(session, flow)?)
    }
}
