//! Flows that one session is to have no more: its host is told, and looked at until it cannot be at the flow any more. For claims (`attach`), and
//! for connections that a program was handed and does not take. Called by the run loop.

use crate::daemon::Daemon;
use toe_base::{Instant, QueueSetId, SessionId};

/// Looks at a host that is in the middle of something with a flow that it has to let go of: a fraction of a µs. Most often it
/// is not; if it is, it may stand still, and is looked at again later.
const BUSY_LOOKS: u32 = 16;
/// Connections taken back in one round.
const BACK_A_ROUND: usize = 64;

impl Daemon {
    /// Whether the session has been told what it was to be told (`Moved`), and its host is not at a flow without having seen that.
    pub(crate) fn has_let_go(&mut self, holder: SessionId, queue_set: QueueSetId) -> bool {
        let is_told = self.engine.post_answers_to(holder, &mut self.sessions);
        let queue_set =
            self.sessions.get(holder).and_then(|session| session.queue_sets.get(queue_set.index()));
        let Some(queue_set) = queue_set else { return true };
        let is_done = (0..BUSY_LOOKS).any(|_| {
            core::hint::spin_loop();
            !queue_set.is_busy()
        });
        is_told && is_done
    }

    /// Connections that were handed to programs which do not take them wait anew.
    pub(crate) fn take_connections_back(&mut self, now: Instant) {
        for _ in 0..BACK_A_ROUND {
            let Some(one) = self.engine.next_to_go_back(now) else { return };
            if self.has_let_go(one.session, one.queue_set) {
                // It may have taken the connection before it was told.
                self.catch_up(now, one.session);
                self.engine.take_back(now, one, &mut self.sessions);
            } else {
                self.engine.goes_back_later(now, one);
            }
        }
    }
}
