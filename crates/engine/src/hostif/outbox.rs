//! Which queue sets have something to be told, and which of them had no room for it.
//!
//! A queue set whose ring was full is left alone until its host has made room; whether it has is looked at less and less
//! often, and at [`LOOKS_A_ROUND`] of them in any one round, so that hosts that take nothing cost next to nothing however many
//! they are, and their flows keep nobody else's from being told.

use crate::flow::lists::FlowLists;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
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
    /// Looks in vain so far, up to [`PATIENCE_MAX`].
    patience: u8,
}

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    flows: FlowLists,
    ready: VecDeque<Place>,
    stalled: BinaryHeap<Reverse<Stall>>,
    /// Rounds so far.
    round: u64,
    states: Vec<State>,
}

impl Outbox {
    pub fn new(flows: usize) -> Outbox {
        Outbox {
            flows: FlowLists::new(flows),
            ready: VecDeque::new(),
            stalled: BinaryHeap::new(),
            round: 0,
            states: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.stalled.is_empty()
    }

    /// There is something for the queue set.
    pub fn note(&mut self, place: Place) {
        let state = self.state_mut(place);
        if *state == State::Quiet {
            *state = State::Ready;
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

    /// The next queue set to be told what there is for it.
    pub fn next_place(&mut self) -> Option<Place> {
        let place = self.ready.pop_front()?;
        *self.state_mut(place) = State::Quiet;
        Some(place)
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
        if core::mem::replace(self.state_mut(place), State::Stalled) == State::Ready {
            self.ready.retain(|other| *other != place);
        }
        self.stalled.push(Reverse(Stall { due: self.round, place, patience: 0 }));
    }

    /// Looks at queue sets that had no room: those that have some now are to be told.
    pub fn retry(&mut self, mut has_room: impl FnMut(SessionId, QueueSetId) -> bool) {
        self.round += 1;
        for _ in 0..LOOKS_A_ROUND {
            let Some(Reverse(stall)) = self.stalled.peek().copied().filter(|stall| stall.0.due <= self.round)
            else {
                return;
            };
            self.stalled.pop();
            if has_room(stall.place.session(), stall.place.queue_set()) {
                *self.state_mut(stall.place) = State::Ready;
                self.ready.push_back(stall.place);
            } else {
                let patience = (stall.patience + 1).min(PATIENCE_MAX);
                let due = self.round + (1 << patience);
                self.stalled.push(Reverse(Stall { due, patience, ..stall }));
            }
        }
    }

    /// Of no flow anything is to be told.
    pub fn clear_flows(&mut self) {
        self.flows.clear();
    }

    fn state_mut(&mut self, place: Place) -> &mut State {
        let at = place.0 as usize;
        if at >= self.states.len() {
            self.states.resize(at + 1, State::Quiet);
        }
        &mut self.states[at]
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
        let mut looks = 0;
        for _ in 0..1000 {
            outbox.retry(|_, _| {
                looks += 1;
                false
            });
            outbox.push(A, FlowIdx(2));
        }
        assert!((10..30).contains(&looks), "{looks} looks in 1000 rounds");
        assert_eq!(outbox.next_place(), Some(B), "it keeps nobody from being told");
        assert_eq!(outbox.next_place(), None);
        (0..64).for_each(|_| outbox.retry(|_, _| true));
        assert_eq!(outbox.next_place(), Some(A));
        let told: Vec<u32> = std::iter::from_fn(|| outbox.next_flow(A)).map(|flow| flow.0).collect();
        assert_eq!(told, [0, 2]);
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
            let mut looks = 0;
            outbox.retry(|session, queue_set| {
                looks += 1;
                seen.insert((session, queue_set));
                false
            });
            assert!(looks <= LOOKS_A_ROUND, "{looks} in one round");
        }
        assert_eq!(seen.len(), 4000, "each has its turn");
        let with_room = |session: SessionId, queue_set: QueueSetId| Place::of(session, queue_set) == A;
        (0..2000).for_each(|_| outbox.retry(with_room));
        assert_eq!(outbox.next_place(), Some(A));
    }
}
