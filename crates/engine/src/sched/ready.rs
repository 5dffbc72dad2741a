//! First-in first-out lists of flows, one list per purpose, linked through fixed arrays: no allocation, and a flow
//! stands in a list at most once.

use toe_base::FlowIdx;

const NONE: u32 = u32::MAX;

/// One list.
#[derive(Debug)]
pub struct ReadyList {
    next: Vec<u32>,
    queued: Vec<bool>,
    head: u32,
    tail: u32,
}

impl ReadyList {
    pub fn new(flows: usize) -> ReadyList {
        ReadyList { next: vec![NONE; flows], queued: vec![false; flows], head: NONE, tail: NONE }
    }

    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Appends the flow unless it is in the list.
    pub fn push(&mut self, flow: FlowIdx) {
        let idx = flow.index();
        if self.queued[idx] {
            return;
        }
        self.queued[idx] = true;
        self.next[idx] = NONE;
        if self.tail == NONE {
            self.head = flow.0;
        } else {
            self.next[self.tail as usize] = flow.0;
        }
        self.tail = flow.0;
    }

    /// Puts the flow back to where `pop` took it from.
    pub fn push_front(&mut self, flow: FlowIdx) {
        let idx = flow.index();
        if self.queued[idx] {
            return;
        }
        self.queued[idx] = true;
        self.next[idx] = self.head;
        self.head = flow.0;
        if self.tail == NONE {
            self.tail = flow.0;
        }
    }

    pub fn pop(&mut self) -> Option<FlowIdx> {
        if self.head == NONE {
            return None;
        }
        let flow = FlowIdx(self.head);
        self.head = self.next[flow.index()];
        if self.head == NONE {
            self.tail = NONE;
        }
        self.queued[flow.index()] = false;
        Some(flow)
    }

    pub fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_stands_in_the_list_once_and_comes_out_in_order() {
        let mut list = ReadyList::new(4);
        for i in [2, 0, 2, 3] {
            list.push(FlowIdx(i));
        }
        assert_eq!(list.pop(), Some(FlowIdx(2)));
        list.push_front(FlowIdx(2));
        let order: Vec<_> = std::iter::from_fn(|| list.pop()).map(|f| f.0).collect();
        assert_eq!(order, [2, 0, 3]);
        assert!(list.is_empty());
        list.push(FlowIdx(1));
        assert_eq!(list.pop(), Some(FlowIdx(1)));
    }
}
