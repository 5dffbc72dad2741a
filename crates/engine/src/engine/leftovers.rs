//! Connections that no program has any more: orphans, which are still closing, and those in TIME_WAIT. How many there may
//! be, and when a new connection may take the place of one.

use super::Engine;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::hostif::users::UserIdx;
use crate::store::is_evictable;
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant, SeqNum};

/// Of all records, those that orphans may have (Linux: tcp_max_orphans), and those in TIME_WAIT (tcp_max_tw_buckets).
const ORPHANS_ONE_IN: usize = 4;
const TIME_WAITS_ONE_IN: usize = 2;

/// A new connection's numbers begin so far beyond the old one's: farther than its window reached (as Linux has it).
const BEYOND: u32 = (1 << 16) + 1;

impl Engine {
    /// A flow has changed: is it one of these now?
    pub(super) fn count_leftover(&mut self, idx: FlowIdx) {
        if self.flows.count_leftover(idx) {
            // It makes room for anybody, so that it takes nothing of anybody's share.
            self.charge_flow_to(idx, UserIdx::NOBODY);
        }
    }

    /// Whether another connection may close without its program. When there are too many, one is reset, as Linux does: first one whose
    /// peer has all bytes, so that peers which never acknowledge a FIN do not cut others' last bytes short; else this one.
    pub(super) fn may_be_orphan(&mut self, now: Instant) -> bool {
        if self.flows.orphans() < self.config.flows_max / ORPHANS_ONE_IN {
            return true;
        }
        self.counters.add(Counter::OrphansReset);
        let told = self.flows.take_acknowledged_orphan();
        if let Some(told) = told {
            self.abort(now, told, Errno::OK);
            self.after(told);
        }
        told.is_some()
    }

    /// The oldest in TIME_WAIT go when there are too many; not the one that has just come to it, `newest`.
    pub(super) fn bound_time_wait(&mut self, newest: FlowIdx) {
        while self.flows.time_waits() > self.config.flows_max / TIME_WAITS_ONE_IN {
            match self.flows.time_wait.pop() {
                Some(oldest) if oldest != newest => _ = self.evict(oldest),
                Some(newest) => {
                    self.flows.time_wait.push(newest);
                    return;
                }
                None => return,
            }
        }
    }

    /// Gives the record back if it is in TIME_WAIT and of no use to anybody but the peer.
    pub(super) fn evict(&mut self, idx: FlowIdx) -> bool {
        let may = self.flows.is_used(idx) && is_evictable(self.flows.get(idx));
        if may {
            self.counters.add(Counter::TimeWaitEvicted);
            self.remove_flow(idx);
        }
        may
    }

    /// Takes the place of the connection that has the 4-tuple ([`crate::store::FlowStore::may_have`]). Returns where the new one's numbers
    /// may begin.
    pub(super) fn replace(&mut self, key: &FlowKey) -> Option<SeqNum> {
        let idx = self.flows.find(key)?;
        let beyond = self.flows.get(idx).tcb.snd.nxt.plus(BEYOND);
        self.counters.add(Counter::TimeWaitReused);
        self.remove_flow(idx);
        Some(beyond)
    }
}
