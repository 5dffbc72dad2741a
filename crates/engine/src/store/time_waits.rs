//! Connections in TIME_WAIT that no program has any more: a small record each, and by what it is found.

use crate::control::steer::SteeredBy;
use crate::flow::key::{FlowKey, TimeWaitIdx};
use crate::flow::lists::FlowLists;
use crate::sched::timer_wheel::TimerWheel;
use crate::work::Sharing;
use toe_base::{FlowIdx, Instant};
use toe_tcp::time_wait::TimeWait;

/// All are in one list, the oldest first.
const BY_AGE: u32 = 0;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct TimeWaitFlow {
    pub key: FlowKey,
    /// It is counted so ([`crate::control::in_use`]).
    pub sharing: Sharing,
    pub steering: SteeredBy,
    pub tcp: TimeWait,
}

/// A busy host has many of them.
const _: () = assert!(size_of::<TimeWaitFlow>() <= 64);

/// All of them.
#[derive(Debug)]
pub struct TimeWaits {
    records: Vec<TimeWaitFlow>,
    free: Vec<u32>,
    max: usize,
    wheel: TimerWheel,
    by_age: FlowLists,
    /// By their own port: those over links that share the kernel's address.
    on_shared: FlowLists,
}

impl TimeWaits {
    /// For so many at most.
    pub fn new(max: usize) -> TimeWaits {
        TimeWaits {
            records: Vec::with_capacity(max),
            free: Vec::new(),
            max,
            wheel: TimerWheel::new(max),
            by_age: FlowLists::new(max),
            on_shared: FlowLists::new(max),
        }
    }

    pub fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() == self.max
    }

    /// The one of this place; `None`: it is vacant.
    pub fn get(&self, idx: TimeWaitIdx) -> Option<&TimeWaitFlow> {
        let is_used = self.records.len() > idx.0.index() && self.by_age.list_of(idx.0).is_some();
        is_used.then(|| &self.records[idx.0.index()])
    }

    pub fn get_mut(&mut self, idx: TimeWaitIdx) -> Option<&mut TimeWaitFlow> {
        self.get(idx)?;
        self.records.get_mut(idx.0.index())
    }

    /// Places from this one on were never in use.
    pub fn high(&self) -> u32 {
        self.records.len() as u32
    }

    pub fn iter(&self) -> impl Iterator<Item = (TimeWaitIdx, &TimeWaitFlow)> {
        (0..self.high()).map(|n| TimeWaitIdx(FlowIdx(n))).filter_map(|idx| Some((idx, self.get(idx)?)))
    }

    /// Not while it is full.
    pub fn insert(&mut self, waiting: TimeWaitFlow) -> TimeWaitIdx {
        let idx = match self.free.pop().map(FlowIdx) {
            Some(idx) => {
                self.records[idx.index()] = waiting;
                idx
            }
            None => {
                self.records.push(waiting);
                FlowIdx(self.high() - 1)
            }
        };
        self.by_age.push(BY_AGE, idx);
        self.wheel.set(idx, waiting.tcp.until);
        if waiting.steering != SteeredBy::None {
            self.on_shared.push(waiting.key.local.port.into(), idx);
        }
        TimeWaitIdx(idx)
    }

    pub fn remove(&mut self, idx: TimeWaitIdx) {
        self.wheel.set(idx.0, Instant::FAR_FUTURE);
        self.by_age.remove(idx.0);
        self.on_shared.remove(idx.0);
        self.free.push(idx.0.0);
    }

    pub fn oldest(&self) -> Option<TimeWaitIdx> {
        self.by_age.iter(BY_AGE).next().map(TimeWaitIdx)
    }

    /// Those of a port over links that share the kernel's address.
    pub fn on_shared(&self, port: u16) -> Vec<TimeWaitIdx> {
        self.on_shared.iter(port.into()).map(TimeWaitIdx).collect()
    }

    // ---- time ----

    /// Its end may have moved.
    pub fn note_change(&mut self, idx: TimeWaitIdx) {
        if let Some(waiting) = self.get(idx) {
            let until = waiting.tcp.until;
            self.wheel.set(idx.0, until);
        }
    }

    pub fn next_deadline(&self) -> Instant {
        self.wheel.next_deadline()
    }

    pub fn pop_due(&mut self, now: Instant) -> Option<TimeWaitIdx> {
        self.wheel.pop_due(now).map(TimeWaitIdx)
    }
}
