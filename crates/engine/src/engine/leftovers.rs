//! Connections that no program has any more: orphans, which are still closing, and those in TIME_WAIT. How many there may
//! be, and when a new connection may take the place of one.

use super::Engine;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::flow::lists::FlowLists;
use crate::flow::record::{Flow, Leftover};
use crate::hostif::users::UserIdx;
use crate::store::is_evictable;
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant, SeqNum};
use toe_tcp::state::TcpState;
use toe_tcp::timeout::TIME_WAIT_US;

/// Of all records, those that orphans may have (Linux: tcp_max_orphans), and those in TIME_WAIT (tcp_max_tw_buckets).
const ORPHANS_ONE_IN: usize = 4;
const TIME_WAITS_ONE_IN: usize = 2;

/// RFC 6191 section 2: the clock of timestamps has surely gone on.
const REUSE_AFTER_US: u64 = 1_000_000;
/// A new connection's numbers begin so far beyond the old one's: farther than its window reached (as Linux has it).
const BEYOND: u32 = (1 << 16) + 1;

/// The list of orphans whose peers have all bytes, the first that came to that first.
const TOLD: u32 = 0;

/// How many there are, and which may go first.
#[derive(Debug)]
pub(super) struct Leftovers {
    pub(super) orphans: usize,
    pub(super) time_waits: usize,
    told: FlowLists,
}

impl Engine {
    /// A flow has changed: is it one of these now?
    pub(super) fn count_leftover(&mut self, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        let now = kind_of(flow);
        let before = core::mem::replace(&mut flow.conn.leftover, now);
        if before != now {
            self.leftovers.change(idx, before, now);
            if now == Leftover::TimeWait {
                // It makes room for anybody, so that it takes nothing of anybody's share.
                self.charge_flow_to(idx, UserIdx::NOBODY);
            }
        }
    }

    /// The record is given back.
    pub(super) fn uncount_leftover(&mut self, idx: FlowIdx) {
        let before = core::mem::take(&mut self.flows.get_mut(idx).conn.leftover);
        self.leftovers.change(idx, before, Leftover::No);
    }

    /// Whether another connection may close without its program. When there are too many, one is reset, as Linux does: first one whose
    /// peer has all bytes, so that peers which never acknowledge a FIN do not cut others' last bytes short; else this one.
    pub(super) fn may_be_orphan(&mut self, now: Instant) -> bool {
        if self.leftovers.orphans < self.config.flows_max / ORPHANS_ONE_IN {
            return true;
        }
        self.counters.add(Counter::OrphansReset);
        let told = self.leftovers.told.pop(TOLD);
        if let Some(told) = told {
            self.abort(now, told, Errno::OK);
            self.after(told);
        }
        told.is_some()
    }

    /// The oldest in TIME_WAIT go when there are too many; not the one that has just come to it, `newest`.
    pub(super) fn bound_time_wait(&mut self, newest: FlowIdx) {
        while self.leftovers.time_waits > self.config.flows_max / TIME_WAITS_ONE_IN {
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

    /// Whether a new connection whose program has named its port may have the 4-tuple: nobody has it, or it is in TIME_WAIT and has
    /// timestamps, or needs none because nothing of it can be late. As with Linux that is enough, without the clock of
    /// [`Engine::may_replace`]: the program has asked for this one and no other, and its numbers begin beyond those of the old one.
    pub(super) fn may_have(&self, key: &FlowKey) -> bool {
        self.flows.find(key).is_none_or(|idx| {
            let flow = self.flows.get(idx);
            is_evictable(flow) && (flow.tcb.is_local || flow.tcb.rcv.ts_recent.is_some())
        })
    }

    /// Whether this connection may make room for another one of the same name: timestamps will tell their segments apart
    /// (RFC 6191).
    pub(super) fn may_replace(&self, now: Instant, idx: FlowIdx) -> bool {
        let flow = self.flows.get(idx);
        let since = flow.tcb.timers.linger.since_us(now);
        is_evictable(flow)
            && flow.tcb.rcv.ts_recent.is_some()
            && since.saturating_add(REUSE_AFTER_US) <= TIME_WAIT_US
    }

    /// Takes the place of the connection that has the 4-tuple ([`Engine::may_have`]). Returns where the new one's numbers
    /// may begin.
    pub(super) fn replace(&mut self, key: &FlowKey) -> Option<SeqNum> {
        let idx = self.flows.find(key)?;
        let beyond = self.flows.get(idx).tcb.snd.nxt.plus(BEYOND);
        self.counters.add(Counter::TimeWaitReused);
        self.remove_flow(idx);
        Some(beyond)
    }
}

impl Leftovers {
    pub(super) fn new(flows: usize) -> Leftovers {
        Leftovers { orphans: 0, time_waits: 0, told: FlowLists::new(flows) }
    }

    fn change(&mut self, idx: FlowIdx, before: Leftover, now: Leftover) {
        match before {
            Leftover::No => {}
            Leftover::Orphan => self.orphans -= 1,
            Leftover::ToldOrphan => {
                self.orphans -= 1;
                self.told.remove(idx);
            }
            Leftover::TimeWait => self.time_waits -= 1,
        }
        match now {
            Leftover::No => {}
            Leftover::Orphan => self.orphans += 1,
            Leftover::ToldOrphan => {
                self.orphans += 1;
                self.told.push(TOLD, idx);
            }
            Leftover::TimeWait => self.time_waits += 1,
        }
    }
}

fn kind_of(flow: &Flow) -> Leftover {
    match flow.tcb.state {
        _ if !flow.tcb.orphaned => Leftover::No,
        TcpState::Closed => Leftover::No,
        TcpState::TimeWait if flow.conn.tenancy.owner().is_nobody() => Leftover::TimeWait,
        TcpState::TimeWait => Leftover::No,
        _ if flow.tcb.send_queue.is_empty() => Leftover::ToldOrphan,
        _ => Leftover::Orphan,
    }
}
