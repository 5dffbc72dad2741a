//! Connections that no program has any more: orphans, which are still closing, and those in TIME_WAIT. How many there may
//! be, and when a new connection may take the place of one.

use super::Engine;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::flow::record::{Flow, Leftover};
use crate::flow::tcp::state::TcpState;
use crate::flow::tcp::timeout::TIME_WAIT_US;
use crate::hostif::users::UserIdx;
use toe_base::{FlowIdx, Instant, SeqNum};

/// Of all records, those that orphans may have (Linux: tcp_max_orphans), and those in TIME_WAIT (tcp_max_tw_buckets).
const ORPHANS_ONE_IN: usize = 4;
const TIME_WAITS_ONE_IN: usize = 2;

/// RFC 6191 section 2: the clock of timestamps has surely gone on.
const REUSE_AFTER_US: u64 = 1_000_000;
/// A new connection's numbers begin so far beyond the old one's: farther than its window reached (as Linux has it).
const BEYOND: u32 = (1 << 16) + 1;

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leftovers {
    pub(super) orphans: usize,
    pub(super) time_waits: usize,
}

impl Engine {
    /// A flow has changed: is it one of these now?
    pub(super) fn count_leftover(&mut self, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        let now = kind_of(flow);
        let before = core::mem::replace(&mut flow.conn.leftover, now);
        if before != now {
            self.leftovers.change(before, now);
            if now == Leftover::TimeWait {
                // It makes room for anybody, so that it takes nothing of anybody's share.
                self.charge_flow_to(idx, UserIdx::NOBODY);
            }
        }
    }

    /// The record is given back.
    pub(super) fn uncount_leftover(&mut self, idx: FlowIdx) {
        let before = core::mem::take(&mut self.flows.get_mut(idx).conn.leftover);
        self.leftovers.change(before, Leftover::No);
    }

    /// Whether another connection may close without its program; one too many is reset, as Linux does.
    pub(super) fn may_be_orphan(&mut self) -> bool {
        let may = self.leftovers.orphans < self.config.flows_max / ORPHANS_ONE_IN;
        if !may {
            self.counters.add(Counter::OrphansReset);
        }
        may
    }

    /// The oldest in TIME_WAIT go when there are too many; not the one that has just come to it, `newest`.
    pub(super) fn bound_time_wait(&mut self, newest: FlowIdx) {
        while self.leftovers.time_waits > self.config.flows_max / TIME_WAITS_ONE_IN {
            match self.time_wait.pop() {
                Some(oldest) if oldest != newest => _ = self.evict(oldest),
                Some(newest) => {
                    self.time_wait.push(newest);
                    return;
                }
                None => return,
            }
        }
    }

    /// Gives the record back if it is in TIME_WAIT and of no use to anybody but the peer.
    pub(super) fn evict(&mut self, idx: FlowIdx) -> bool {
        let may = self.flows.is_used(idx) && super::is_evictable(self.flows.get(idx));
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
        self.index.get(key).is_none_or(|idx| {
            let flow = self.flows.get(idx);
            super::is_evictable(flow) && (flow.is_local() || flow.rcv.ts_recent.is_some())
        })
    }

    /// Whether this connection may make room for another one of the same name: timestamps will tell their segments apart
    /// (RFC 6191).
    pub(super) fn may_replace(&self, now: Instant, idx: FlowIdx) -> bool {
        let flow = self.flows.get(idx);
        let since = flow.timers.linger.since_us(now);
        super::is_evictable(flow)
            && flow.rcv.ts_recent.is_some()
            && since.saturating_add(REUSE_AFTER_US) <= TIME_WAIT_US
    }

    /// Takes the place of the connection that has the 4-tuple ([`Engine::may_have`]). Returns where the new one's numbers
    /// may begin.
    pub(super) fn replace(&mut self, key: &FlowKey) -> Option<SeqNum> {
        let idx = self.index.get(key)?;
        let beyond = self.flows.get(idx).snd.nxt.plus(BEYOND);
        self.counters.add(Counter::TimeWaitReused);
        self.remove_flow(idx);
        Some(beyond)
    }
}

impl Leftovers {
    fn change(&mut self, before: Leftover, now: Leftover) {
        match before {
            Leftover::No => {}
            Leftover::Orphan => self.orphans -= 1,
            Leftover::TimeWait => self.time_waits -= 1,
        }
        match now {
            Leftover::No => {}
            Leftover::Orphan => self.orphans += 1,
            Leftover::TimeWait => self.time_waits += 1,
        }
    }
}

fn kind_of(flow: &Flow) -> Leftover {
    match flow.conn.state {
        _ if !flow.conn.app_closed => Leftover::No,
        TcpState::Closed => Leftover::No,
        TcpState::TimeWait if flow.conn.owner.is_nobody() => Leftover::TimeWait,
        TcpState::TimeWait => Leftover::No,
        _ => Leftover::Orphan,
    }
}
