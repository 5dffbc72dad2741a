//! Whose flow sends next: users take turns, and the flows of one user take turns among themselves. So one flow of somebody's
//! waits for one turn of each other user, not for one of each of their flows.
//!
//! Deficit round robin (Shreedhar and Varghese, "Efficient Fair Queueing using Deficit Round Robin", 1995): each time it is
//! a user's turn he may send [`QUANTUM`] more; what he sent too much in one turn he lacks in the next.

use crate::flow::lists::FlowLists;
use crate::work::UserIdx;
use std::collections::VecDeque;
use toe_base::FlowIdx;
use toe_base::limits::SEGMENT_PAYLOAD_MAX;

/// What a unit costs beside its bytes, in bytes that could be copied meanwhile.
pub const UNIT_COST: u32 = 4096;
/// A user's turn: some units of the largest size.
const QUANTUM: i64 = 4 * (SEGMENT_PAYLOAD_MAX as i64 + UNIT_COST as i64);

/// Flows with something to send, by user.
#[derive(Debug)]
pub struct FairList {
    flows: FlowLists,
    /// Users whose list is not empty, or was not when it was their turn last; whose turn it is first.
    users: VecDeque<UserIdx>,
    deficits: Vec<Deficit>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Deficit {
    waits: bool,
    /// What the user may still send.
    credit: i64,
}

impl FairList {
    pub fn new(flows: usize) -> FairList {
        FairList { flows: FlowLists::new(flows), users: VecDeque::new(), deficits: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.users.iter().all(|user| self.flows.is_empty(user.0))
    }

    /// Appends the flow unless it waits already.
    pub fn push(&mut self, user: UserIdx, flow: FlowIdx) {
        self.flows.push(user.0, flow);
        self.wait(user);
    }

    /// Puts the flow back to where [`FairList::pop`] took it from.
    pub fn push_front(&mut self, user: UserIdx, flow: FlowIdx) {
        self.flows.push_front(user.0, flow);
        self.wait(user);
    }

    fn wait(&mut self, user: UserIdx) {
        let deficit = self.deficit_mut(user);
        if !core::mem::replace(&mut deficit.waits, true) {
            deficit.credit = QUANTUM;
            self.users.push_back(user);
        }
    }

    fn deficit_mut(&mut self, user: UserIdx) -> &mut Deficit {
        if user.index() >= self.deficits.len() {
            self.deficits.resize(user.index() + 1, Deficit::default());
        }
        &mut self.deficits[user.index()]
    }

    /// The next flow, and whose turn it comes off.
    pub fn pop(&mut self) -> Option<(UserIdx, FlowIdx)> {
        loop {
            let user = *self.users.front()?;
            if self.deficit_mut(user).credit <= 0 {
                self.deficit_mut(user).credit += QUANTUM;
                self.users.rotate_left(1);
            } else if let Some(flow) = self.flows.pop(user.0) {
                return Some((user, flow));
            } else {
                self.users.pop_front();
                *self.deficit_mut(user) = Deficit::default();
            }
        }
    }

    /// What came of a turn: so many units, so many bytes in all.
    pub fn spend(&mut self, user: UserIdx, units: usize, bytes: u64) {
        let deficit = self.deficit_mut(user);
        if deficit.waits {
            deficit.credit -= (units as u64 * u64::from(UNIT_COST) + bytes) as i64;
        }
    }

    pub fn clear(&mut self) {
        self.flows.clear();
        self.users.clear();
        self.deficits.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pops and pushes back `turns` times, each flow sending what `bytes` says of its user; who had them.
    fn run(list: &mut FairList, turns: usize, bytes: impl Fn(UserIdx) -> u64) -> Vec<u32> {
        let turn = |_| {
            let (user, flow) = list.pop().expect("somebody waits");
            list.spend(user, 1, bytes(user));
            list.push(user, flow);
            user.0
        };
        (0..turns).map(turn).collect()
    }

    #[test]
    fn one_flow_waits_for_one_turn_of_another_user_and_not_for_all_of_his_flows() {
        let mut list = FairList::new(2000);
        for flow in 0..1999 {
            list.push(UserIdx(1), FlowIdx(flow));
        }
        list.push(UserIdx(2), FlowIdx(1999));
        let order = run(&mut list, 1000, |_| 64 << 10);
        let gaps = order.split(|user| *user == 2).map(<[u32]>::len).max();
        assert!(gaps <= Some(5), "{gaps:?} turns of the other's in a row");
    }

    #[test]
    fn bytes_count_and_not_turns() {
        let mut list = FairList::new(2);
        list.push(UserIdx(1), FlowIdx(0));
        list.push(UserIdx(2), FlowIdx(1));
        let order = run(&mut list, 10_000, |user| if user.0 == 1 { 60 << 10 } else { 0 });
        let [large, small] = [1, 2].map(|user| order.iter().filter(|other| **other == user).count() as u64);
        let (large, small) = (large * (64 << 10), small * u64::from(UNIT_COST));
        assert!(large.abs_diff(small) <= 2 * QUANTUM as u64, "{large} and {small}");
    }

    #[test]
    fn a_user_alone_goes_on_and_his_flows_take_turns() {
        let mut list = FairList::new(3);
        for flow in [2, 0, 2, 1] {
            list.push(UserIdx(9), FlowIdx(flow));
        }
        let mut order = Vec::new();
        for _ in 0..6 {
            let (user, flow) = list.pop().expect("waits");
            list.spend(user, 4, 4 << 16);
            list.push(user, flow);
            order.push(flow.0);
        }
        assert_eq!(order, [2, 0, 1, 2, 0, 1]);
        let (user, flow) = list.pop().expect("waits");
        list.push_front(user, flow);
        assert_eq!(list.pop(), Some((user, flow)), "back to where it was");
        list.clear();
        assert!(list.pop().is_none() && list.is_empty());
    }
}
