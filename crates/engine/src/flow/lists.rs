//! Many lists of flows, linked through the same fixed arrays: a flow stands in at most one of them, and every step costs
//! the same however long they are.

use toe_base::FlowIdx;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
    /// The list that it stands in.
    list: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

const OUT: Link = Link { next: NONE, prev: NONE, list: NONE };
const EMPTY: Ends = Ends { head: NONE, tail: NONE };

/// Lists by number. There are as many as the largest number that was used.
#[derive(Debug)]
pub struct FlowLists {
    links: Vec<Link>,
    ends: Vec<Ends>,
}

impl FlowLists {
    pub fn new(flows: usize) -> FlowLists {
        FlowLists { links: vec![OUT; flows], ends: Vec::new() }
    }

    /// The list that the flow stands in.
    pub fn list_of(&self, flow: FlowIdx) -> Option<u32> {
        let list = self.links[flow.index()].list;
        (list != NONE).then_some(list)
    }

    pub fn is_empty(&self, list: u32) -> bool {
        self.head(list) == NONE
    }

    fn head(&self, list: u32) -> u32 {
        self.ends.get(list as usize).map_or(NONE, |ends| ends.head)
    }

    /// Appends the flow; one that stands somewhere stays there.
    pub fn push(&mut self, list: u32, flow: FlowIdx) {
        if self.links[flow.index()].list != NONE {
            return;
        }
        let ends = self.ends_mut(list);
        let last = core::mem::replace(&mut ends.tail, flow.0);
        if last == NONE {
            ends.head = flow.0;
        } else {
            self.links[last as usize].next = flow.0;
        }
        self.links[flow.index()] = Link { next: NONE, prev: last, list };
    }

    /// Puts the flow before all others; one that stands somewhere stays there.
    pub fn push_front(&mut self, list: u32, flow: FlowIdx) {
        if self.links[flow.index()].list != NONE {
            return;
        }
        let ends = self.ends_mut(list);
        let first = core::mem::replace(&mut ends.head, flow.0);
        if first == NONE {
            ends.tail = flow.0;
        } else {
            self.links[first as usize].prev = flow.0;
        }
        self.links[flow.index()] = Link { next: first, prev: NONE, list };
    }

    pub fn pop(&mut self, list: u32) -> Option<FlowIdx> {
        let head = self.head(list);
        let flow = (head != NONE).then_some(FlowIdx(head))?;
        self.remove(flow);
        Some(flow)
    }

    /// Takes the flow out of whatever list it stands in.
    pub fn remove(&mut self, flow: FlowIdx) {
        let Link { next, prev, list } = core::mem::replace(&mut self.links[flow.index()], OUT);
        if list == NONE {
            return;
        }
        match prev {
            NONE => self.ends[list as usize].head = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => self.ends[list as usize].tail = prev,
            next => self.links[next as usize].prev = prev,
        }
    }

    /// Those in a list, in its order.
    pub fn iter(&self, list: u32) -> impl Iterator<Item = FlowIdx> + '_ {
        let after = |at: &u32| self.links.get(*at as usize).map(|link| link.next);
        core::iter::successors(Some(self.head(list)), after).take_while(|at| *at != NONE).map(FlowIdx)
    }

    pub fn clear(&mut self) {
        for list in 0..self.ends.len() as u32 {
            while self.pop(list).is_some() {}
        }
    }

    fn ends_mut(&mut self, list: u32) -> &mut Ends {
        let at = list as usize;
        if at >= self.ends.len() {
            self.ends.resize(at + 1, EMPTY);
        }
        &mut self.ends[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_queues_whatever_is_done_to_them() {
        let mut lists = FlowLists::new(16);
        let mut models = [const { Vec::<u32>::new() }; 3];
        let mut seed = 7u32;
        let mut next = move |n: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % n
        };
        for _ in 0..20_000 {
            let (list, flow) = (next(3), next(16));
            let stands = models.iter().any(|model| model.contains(&flow));
            match next(4) {
                0 | 1 => {
                    lists.push(list, FlowIdx(flow));
                    if !stands {
                        models[list as usize].push(flow);
                    }
                }
                2 => {
                    let first = (!models[list as usize].is_empty()).then(|| models[list as usize].remove(0));
                    assert_eq!(lists.pop(list).map(|flow| flow.0), first);
                }
                _ => {
                    lists.remove(FlowIdx(flow));
                    models.iter_mut().for_each(|model| model.retain(|other| *other != flow));
                    lists.push_front(list, FlowIdx(flow));
                    models[list as usize].insert(0, flow);
                }
            }
            for (list, model) in models.iter().enumerate() {
                let has: Vec<u32> = lists.iter(list as u32).map(|flow| flow.0).collect();
                assert_eq!(&has, model);
                assert_eq!(lists.is_empty(list as u32), model.is_empty());
            }
        }
        lists.clear();
        assert!((0..16).all(|flow| lists.list_of(FlowIdx(flow)).is_none()));
    }
}
