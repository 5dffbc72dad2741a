//! Connections that no program has any more: orphans, which are still closing, and those in TIME_WAIT. How many there may
//! be, and when a new connection may take the place of one.

use super::Engine;
use crate::counter::Counter;
use crate::flow::isn::timestamp_offset;
use crate::flow::key::{FlowKey, KeyHolder, TimeWaitIdx};
use crate::flow::record::Flow;
use crate::hostif::users::UserIdx;
use crate::store::is_over;
use crate::store::time_waits::TimeWaitFlow;
use crate::work::{Lone, RxWork};
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant, SeqNum};
use toe_tcp::output;
use toe_tcp::segment_arrives::time_wait;
use toe_tcp::time_wait::{TIME_WAIT_US, TimeWaitEffect, is_new_life};

/// Of all records, those that orphans may have (Linux: tcp_max_orphans).
const ORPHANS_ONE_IN: usize = 4;

/// A new connection's numbers begin so far beyond the old one's: farther than its window reached (as Linux has it).
const BEYOND: u32 = (1 << 16) + 1;

impl Engine {
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

    /// A flow has had its turn to send. In TIME_WAIT without a program it has a smaller record from now on, which makes room for anybody
    /// and is charged to nobody. The oldest gives way when there are too many.
    pub(super) fn enter_time_wait(&mut self, now: Instant, idx: FlowIdx) {
        if !self.flows.is_used(idx) || !is_over(self.flows.get(idx)) {
            return;
        }
        // Its neighbour is not known yet, and the last ACK waits for that by itself.
        while let Some(tx) = self.next_unit(now, idx) {
            let Flow { conn, tcb, .. } = self.flows.get_mut(idx);
            let lone = Lone { key: conn.key, segment: tx.segment, traffic_class: tcb.options.traffic_class };
            let path = conn.path;
            output::commit(tcb, &mut self.tcp, now, &tx);
            self.send_alone(now, path, lone);
        }
        let Flow { conn, tcb, .. } = self.flows.get(idx);
        let (key, sharing, tcp) = (conn.key, conn.sharing, time_wait(tcb, now));
        self.empty_flow(idx);
        let steering = self.take_steering(idx);
        if self.flows.time_waits.is_full() {
            self.evict_oldest();
        }
        self.flows.enter_time_wait(idx, TimeWaitFlow { key, sharing, steering, tcp });
    }

    /// A segment for a connection in TIME_WAIT that no program has. Returns where the numbers of a new life may begin, if it is for one.
    pub(super) fn arrives_in_time_wait(
        &mut self,
        now: Instant,
        idx: TimeWaitIdx,
        work: &RxWork<'_>,
    ) -> Option<SeqNum> {
        let waiting = self.flows.time_waits.get_mut(idx)?;
        let TimeWaitFlow { key, tcp, .. } = waiting;
        if is_new_life(tcp.rcv_nxt, tcp.ts_recent(), &work.rx.segment) {
            let beyond = tcp.snd_nxt.plus(1 << 16);
            self.leave_time_wait(idx);
            return Some(beyond);
        }
        match tcp.segment_arrives(&mut self.tcp.in_time_wait(now), &work.rx.segment) {
            TimeWaitEffect::Nothing => {}
            TimeWaitEffect::Answer(duplicate) => {
                let offset = timestamp_offset(&self.config.secret, key);
                let segment = tcp.ack(now.tcp_timestamp_ms().wrapping_add(offset), duplicate);
                let lone = Lone { key: *key, segment, traffic_class: tcp.traffic_class };
                self.send_alone(now, work.path, lone);
            }
            TimeWaitEffect::Reset => self.leave_time_wait(idx),
        }
        self.flows.time_waits.note_change(idx);
        None
    }

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
    fn leave_time_wait(&mut self, idx: TimeWaitIdx) {
        let Some(TimeWaitFlow { key, sharing, steering, .. }) = self.flows.leave_time_wait(idx) else {
            return;
        };
        self.names.in_use.remove(key.scope, key.local, sharing);
        self.names.leave(key.scope);
        self.shared.stop(&key, steering);
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
