//! The table of connection records: all of them at the start, given out by index.

use crate::flow::record::Flow;
use toe_base::FlowIdx;

/// The records.
#[derive(Debug)]
pub struct FlowTable {
    records: Vec<Flow>,
    used: Vec<bool>,
    free: Vec<u32>,
    /// Records below this were in use at some time; those above were never touched, so their pages were not either.
    high: u32,
    max: u32,
}

impl FlowTable {
    pub fn new(max: usize) -> FlowTable {
        FlowTable {
            records: Vec::with_capacity(max),
            used: Vec::with_capacity(max),
            free: Vec::new(),
            high: 0,
            max: max as u32,
        }
    }

    /// A vacant record, or `None` when all are in use.
    pub fn alloc(&mut self) -> Option<FlowIdx> {
        if let Some(idx) = self.free.pop() {
            self.used[idx as usize] = true;
            self.records[idx as usize] = Flow::vacant();
            return Some(FlowIdx(idx));
        }
        if self.high == self.max {
            return None;
        }
        self.records.push(Flow::vacant());
        self.used.push(true);
        self.high += 1;
        Some(FlowIdx(self.high - 1))
    }

    pub fn free(&mut self, idx: FlowIdx) {
        debug_assert!(self.used[idx.index()]);
        self.used[idx.index()] = false;
        self.free.push(idx.0);
    }

    pub fn get(&self, idx: FlowIdx) -> &Flow {
        &self.records[idx.index()]
    }

    pub fn get_mut(&mut self, idx: FlowIdx) -> &mut Flow {
        &mut self.records[idx.index()]
    }

    pub fn is_used(&self, idx: FlowIdx) -> bool {
        self.used.get(idx.index()).copied().unwrap_or(false)
    }

    /// Every record in use.
    pub fn indices(&self) -> impl Iterator<Item = FlowIdx> + '_ {
        (0..self.high).filter(|i| self.used[*i as usize]).map(FlowIdx)
    }

    /// Records from this one on were never in use.
    pub fn high(&self) -> u32 {
        self.high
    }

    /// Records in use.
    pub fn len(&self) -> usize {
        self.high as usize - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn capacity(&self) -> usize {
        self.max as usize
    }
}
