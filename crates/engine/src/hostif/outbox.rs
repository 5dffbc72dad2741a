//! Which queue sets have something to be told, and which of them had no room for it.
//!
//! A queue set whose ring was full is left alone until its host has made room; whether it has is looked at less and less
//! often, and at [`LOOKS_A_ROUND`] of them in any one round, so that hosts that take nothing cost next to nothing however many
//! they are, and their flows keep nobody else's from being told.

use crate::flow::lists::FlowLists;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use toe_abi::entry::Completion;
use toe_base::limits::QUEUE_SETS_MAX;
use toe_base::{FlowIdx, QueueSetId, SessionId};

/// Looks in vain after which a queue set is looked at every 2^n-th time only.
const PATIENCE_MAX: u8 = 6;
/// Queue sets without room that are looked at in one round.
const LOOKS_A_ROUND: usize = 8;

/// A queue set's number among all there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u32);

impl Place {
    pub const fn of(session: SessionId, queue_set: QueueSetId) -> Place {
        Place(session.0 as u32 * QUEUE_SETS_MAX as u32 + queue_set.0 as u32)
    }

    pub const fn session(self) -> SessionId {
        SessionId((self.0 / QUEUE_SETS_MAX as u32) as u16)
    }

    pub const fn queue_set(self) -> QueueSetId {
        QueueSetId((self.0 % QUEUE_SETS_MAX as u32) as u8)
    }
}

/// A queue set, and what is known of its `cpl`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CplState {
    state: State,
    /// Looks that found no room, one after the other, up to [`PATIENCE_MAX`].
    patience: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Quiet,
    Ready,
    Stalled,
}

/// A queue set that had no room. Their order is that in which they are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Stall {
    /// The round of the next look.
    due: u64,
    place: Place,
}

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    flows: FlowLists,
    ready: VecDeque<Place>,
    stalled: BinaryHeap<Reverse<Stall>>,
    /// Rounds so far.
    round: u64,
    /// The round has queue sets left.
    goes_on: bool,
    queue_sets: Vec<CplState>,
    /// What one queue set is told at a time: memory that is used again.
    pub batch: Vec<Completion>,
}

impl Outbox {
    pub fn new(flows: usize) -> Outbox {
        Outbox {
            flows: FlowLists::new(flows),
            ready: VecDeque::new(),
            stalled: BinaryHeap::new(),
            round: 0,
            goes_on: false,
            queue_sets: Vec::new(),
            batch: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.stalled.is_empty()
    }

    /// There is something for the queue set.
    pub fn note(&mut self, place: Place) {
        let queue_set = self.queue_set_mut(place);
        if queue_set.state == State::Quiet {
            queue_set.state = State::Ready;
            self.ready.push_back(place);
        }
    }

    /// There is something of this flow's for the queue set.
    pub fn push(&mut self, place: Place, flow: FlowIdx) {
        if self.flows.list_of(flow).is_some_and(|list| list != place.0) {
            self.flows.remove(flow);
        }
        self.flows.push(place.0, flow);
        self.note(place);
    }

    /// Nobody is to be told of the flow.
    pub fn remove(&mut self, flow: FlowIdx) {
        self.flows.remove(flow);
    }

    /// The next queue set to be told what there is for it. `None` ends a round; the next one begins with some that had no room.
    pub fn next_place(&mut self) -> Option<Place> {
        if !core::mem::replace(&mut self.goes_on, true) {
            self.round += 1;
            self.retry();
        }
        let place = self.ready.pop_front();
        match place {
            Some(place) => self.queue_set_mut(place).state = State::Quiet,
            None => self.goes_on = false,
        }
        place
    }

    /// The next flow that the queue set is to hear of.
    pub fn next_flow(&mut self, place: Place) -> Option<FlowIdx> {
        self.flows.pop(place.0)
    }

    /// The queue set has no room for what there is of this flow's.
    pub fn put_back(&mut self, place: Place, flow: FlowIdx) {
        self.flows.push_front(place.0, flow);
    }

    /// The queue set has no room.
    pub fn stall(&mut self, place: Place) {
        let round = self.round;
        let queue_set = self.queue_set_mut(place);
        let patience = queue_set.patience;
        queue_set.patience = (patience + 1).min(PATIENCE_MAX);
        if core::mem::replace(&mut queue_set.state, State::Stalled) == State::Ready {
            self.ready.retain(|other| *other != place);
        }
        // The first look is in the next round.
        let due = round + if patience == 0 { 0 } else { 1 << patience };
        self.stalled.push(Reverse(Stall { due, place }));
    }

    /// The queue set has some.
    pub fn has_room(&mut self, place: Place) {
        self.queue_set_mut(place).patience = 0;
    }

    /// Queue sets that had no room, and are to be looked at by now.
    fn retry(&mut self) {
        for _ in 0..LOOKS_A_ROUND {
            let Some(Reverse(stall)) = self.stalled.peek().copied().filter(|stall| stall.0.due <= self.round)
            else {
                return;
            };
            self.stalled.pop();
            self.queue_set_mut(stall.place).state = State::Ready;
            self.ready.push_back(stall.place);
        }
    }

    /// Of no flow anything is to be told.
    pub fn clear_flows(&mut self) {
        self.flows.clear();
    }

    fn queue_set_mut(&mut self, place: Place) -> &mut CplState {
        let at = place.0 as usize;
        if at >= self.queue_sets.len() {
            self.queue_sets.resize(at + 1, CplState::default());
        }
        &mut self.queue_sets[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Place = Place::of(SessionId(1), QueueSetId(3));
    const B: Place = Place::of(SessionId(2), QueueSetId(0));

    #[test]
    fn a_place_is_a_session_and_a_queue_set() {
        assert_eq!((A.session(), A.queue_set()), (SessionId(1), QueueSetId(3)));
        let last = Place::of(SessionId(u16::MAX), QueueSetId(QUEUE_SETS_MAX as u8 - 1));
        assert_eq!((last.session().0, last.queue_set().index()), (u16::MAX, QUEUE_SETS_MAX - 1));
    }

    #[test]
    fn a_flow_waits_at_the_queue_set_that_has_it_last() {
        let mut outbox = Outbox::new(4);
        outbox.push(A, FlowIdx(2));
        outbox.push(B, FlowIdx(2));
        assert_eq!(outbox.next_place(), Some(A));
        assert_eq!(outbox.next_flow(A), None);
        assert_eq!(outbox.next_place(), Some(B));
        assert_eq!(outbox.next_flow(B), Some(FlowIdx(2)));
        assert!(outbox.is_empty());
    }

    #[test]
    fn who_takes_nothing_is_looked_at_less_and_less_and_told_once_there_is_room() {
        let mut outbox = Outbox::new(4);
        outbox.push(A, FlowIdx(0));
        outbox.push(B, FlowIdx(1));
        assert_eq!(outbox.next_place(), Some(A));
        let flow = outbox.next_flow(A).expect("there");
        outbox.put_back(A, flow);
        outbox.stall(A);
        assert_eq!(outbox.next_place(), Some(B), "it keeps nobody from being told");
        assert_eq!(outbox.next_place(), None);
        let mut looks = 0;
        for _ in 0..1000 {
            looks += looked_at(&mut outbox, |outbox, place| outbox.stall(place)).len();
            outbox.push(A, FlowIdx(2));
        }
        assert!((10..30).contains(&looks), "{looks} looks in 1000 rounds");
        let found = (0..64).find_map(|_| outbox.next_place());
        assert_eq!(found, Some(A));
        let told: Vec<u32> = std::iter::from_fn(|| outbox.next_flow(A)).map(|flow| flow.0).collect();
        assert_eq!(told, [0, 2]);
    }

    /// The queue sets of one round, with each of which something is done.
    fn looked_at(outbox: &mut Outbox, mut look: impl FnMut(&mut Outbox, Place)) -> Vec<Place> {
        let mut places = Vec::new();
        while let Some(place) = outbox.next_place() {
            look(outbox, place);
            places.push(place);
        }
        places
    }

    #[test]
    fn however_many_take_nothing_a_round_looks_at_a_few_of_them() {
        let mut outbox = Outbox::new(4);
        let places = (0..4000).map(|n| Place::of(SessionId(n / 16), QueueSetId((n % 16) as u8)));
        places.clone().for_each(|place| {
            outbox.note(place);
            assert_eq!(outbox.next_place(), Some(place));
            outbox.stall(place);
        });
        let mut seen = std::collections::HashSet::new();
        for _ in 0..2000 {
            let looks = looked_at(&mut outbox, |outbox, place| outbox.stall(place));
            assert!(looks.len() <= LOOKS_A_ROUND, "{looks:?} in one round");
            seen.extend(looks.into_iter().map(|place| (place.session(), place.queue_set())));
        }
        assert_eq!(seen.len(), 4000, "each has its turn");
        let all_but_a = |outbox: &mut Outbox, place| {
            if place != A {
                outbox.stall(place)
            }
        };
        let rounds = (0..2000).filter(|_| looked_at(&mut outbox, all_but_a).contains(&A)).count();
        assert_eq!(rounds, 1, "once there is room it is told, and left alone");
    }
}
