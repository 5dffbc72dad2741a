//! Fencing: what happens to a session whose host broke the contract. It is told why, cut off, and nobody else
//! notices.

use crate::daemon::Daemon;
use toe_abi::attach::FenceReason;
use toe_base::{Instant, SessionId};
use toe_engine::ControlEvent;

impl Daemon {
    /// Ends `id` for `reason`: its flows are reset, its control connection is closed.
    pub(crate) fn fence(&mut self, now: Instant, id: SessionId, reason: FenceReason) {
        let Some(session) = self.sessions.get(id) else { return };
        session.mark_fenced(reason);
        if self.log_limit.allows(now) {
            let peer = &session.peer;
            tracing::warn!(
                session = id.0,
                pid = peer.pid,
                uid = peer.uid,
                program = peer.program,
                reason = reason.name(),
                "session fenced"
            );
        }
        self.engine.handle_control(now, ControlEvent::Fenced(id, reason), &mut self.sessions);
        self.close_session(now, id, "fenced");
    }

    /// Fences every session with a fault that was found while the engine was posting to it.
    pub(crate) fn fence_faults(&mut self, now: Instant) {
        for (id, reason) in std::mem::take(&mut self.sessions.faults) {
            self.fence(now, id, reason);
        }
    }
}
