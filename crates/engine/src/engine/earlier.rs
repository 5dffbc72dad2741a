//! Order among sessions: each has its own rings, and which of them is read first is not the order of their programs' calls.
//!
//! It seldom shows, as a connection brings its own order with it. It does where one end says that it takes no more: what its
//! local peer had sent before is data, and what the peer sends after is answered with a reset.

use super::Engine;
use crate::hostif::HostSide;
use toe_abi::entry::{Command, FlowOption};
use toe_base::{FlowId, FlowIdx, Instant, SessionId};

impl Engine {
    /// Whose entries the driver takes before it carries out this command, and then calls [`Engine::deliver_earlier`]: those of
    /// the local peer of an end that takes no more, or whose words together say so. It may be the same session: each of its threads has rings of its own.
    pub fn counts_after(&self, session: SessionId, command: Command) -> Option<(FlowId, SessionId)> {
        let takes_less =
            |flow| self.known(session, flow).is_some_and(|idx| self.flows.get(idx).options.receive_shut);
        let flow = match command {
            Command::SetOption { flow, option: FlowOption::ReceiveShut, .. } => flow,
            Command::ShutdownSend { flow } if takes_less(flow) => flow,
            _ => return None,
        };
        Some((flow, self.flows.get(self.local_peer(session, flow)?).conn.owner.session))
    }

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

    fn known(&self, session: SessionId, flow: FlowId) -> Option<FlowIdx> {
        self.sessions.get(session)?.flows.get(flow)
    }

    fn local_peer(&self, session: SessionId, flow: FlowId) -> Option<FlowIdx> {
        let flow = self.flows.get(self.known(session, flow)?);
        if flow.is_local() { self.index.get(&flow.conn.key.reversed()) } else { None }
    }
}
