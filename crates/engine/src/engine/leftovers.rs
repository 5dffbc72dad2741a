//! Connections that no program has any more: orphans, which are still closing, and those in TIME_WAIT. How many there may
//! be, and when a new connection may take the place of one.

use crate::counter::Counter;
use crate::flow::key::{FlowKey, KeyHolder, TimeWaitIdx};
use crate::hostif::users::UserIdx;
use crate::parts::Records;
use crate::store::time_waits::TimeWaitFlow;
use toe_base::{Instant, SeqNum};
use toe_tcp::time_wait::TIME_WAIT_US;

/// Of all records, those that orphans may have (Linux: tcp_max_orphans).
pub(super) const ORPHANS_ONE_IN: usize = 4;
/// A new connection's numbers begin so far beyond the old one's: farther than its window reached (as Linux has it).
const BEYOND: u32 = (1 << 16) + 1;

impl Records<'_> {
    /// Time ends TIME_WAIT of so many at most.
    pub(super) fn time_waits_timeout(&mut self, now: Instant, at_once: usize) {
        for _ in 0..at_once {
            let Some(idx) = self.flows.time_waits.pop_due(now) else { return };
            if let Some(TimeWaitFlow { key, sharing, tcp, .. }) = self.flows.time_waits.get(idx).copied() {
                if tcp.is_local() {
                    // For bind(2) it is as long as Linux's.
                    let until = now.after_us(TIME_WAIT_US);
                    self.names.in_use.keep((now, until), (key.scope, key.local), sharing, UserIdx::NOBODY);
                }
                self.leave_time_wait(idx);
            }
        }
    }

    /// The name is free.
    pub(super) fn leave_time_wait(&mut self, idx: TimeWaitIdx) {
        let Some(TimeWaitFlow { key, sharing, steering, .. }) = self.flows.leave_time_wait(idx) else {
            return;
        };
        self.names.in_use.remove(key.scope, key.local, sharing);
        self.names.leave(key.scope);
        self.ip.steering.stop(&key, steering);
    }

    /// Makes room for another connection. `false`: none is in TIME_WAIT.
    pub(super) fn evict_oldest(&mut self) -> bool {
        let oldest = self.flows.time_waits.oldest();
        if let Some(idx) = oldest {
            self.counters.add(Counter::TimeWaitEvicted);
            self.leave_time_wait(idx);
        }
        oldest.is_some()
    }

    /// Takes the place of the connection that has the 4-tuple ([`crate::store::FlowStore::may_have`]). Returns where the new one's numbers
    /// may begin.
    pub(super) fn replace(&mut self, key: &FlowKey) -> Option<SeqNum> {
        let Some(KeyHolder::TimeWait(idx)) = self.flows.named(key) else { return None };
        let beyond = self.flows.time_waits.get(idx)?.tcp.snd_nxt.plus(BEYOND);
        self.counters.add(Counter::TimeWaitReused);
        self.leave_time_wait(idx);
        Some(beyond)
    }
}
