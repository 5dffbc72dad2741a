//! A session: one attached process, its memory and what it may name.

use crate::control::listener_idx::ListenerIdx;
use crate::control::names::Twin;
use crate::flow::key::Scope;
use crate::hostif::id_table::Slots;
use crate::hostif::users::UserIdx;
use crate::work::Owner;
use std::collections::VecDeque;
use toe_abi::entry::Completion;
use toe_abi::region::RegionLayout;
use toe_base::arena::Arena;
use toe_base::limits::SESSION_LISTENERS_MAX;
use toe_base::{Cred, Endpoint, FlowIdx, Instant, ListenerId, QueueSetId};

/// Kernel sockets that one session may have shown for commands that are still to come: many more than it has threads.
const TWINS_MAX: u32 = 1024;

/// How many ids a queue set has for connections whose answer nobody waits for, and how many it is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectCredit {
    pub has: u8,
    pub wants: u8,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    pub cred: Cred,
    /// Its network namespace, by the engine's number.
    pub scope: Scope,
    /// Who is charged for what it has.
    pub user: UserIdx,
    pub layout: RegionLayout,
    pub stage: SessionStage,
    pub queue_sets: Vec<SessionQueueSet>,
    /// As many as its user has paid for, of those that the region has room for.
    pub flows: Slots<FlowIdx>,
    pub listeners: Slots<ListenerIdx>,
    /// Kernel sockets shown as evidence of a bound address that no command has named yet.
    pub twins: Slots<Twin>,
    pub receive: ReceivePart,
    pub counts: SessionCounts,
    /// What it has begun with.
    pub beginning: Beginning,
}

/// What is counted of a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionCounts {
    /// Flows that still send from its region after it was closed.
    pub pins: u32,
    /// Anchors that it may have, and has not lost yet.
    pub anchors: u32,
    /// Bytes of memory beside the receive part that its user is charged for.
    pub memory: u64,
}

/// How far a session is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStage {
    Open,
    /// The process is gone, and what it had is being given up.
    Leaving,
    /// The record stays until nothing refers to the region.
    Closed,
}

/// What the engine keeps for a queue set.
#[derive(Debug, Default)]
pub struct SessionQueueSet {
    /// Answers and notices that belong to no live flow.
    pub answers: VecDeque<Completion>,
    /// How many of them have been posted so far.
    posted: u64,
    /// Slots of flows that are free once so many have been ([`Session::leave_slot`]).
    retired: VecDeque<(u64, u32)>,
    /// Ids promised for connections that are to come.
    pub connect_credit: ConnectCredit,
}

impl SessionQueueSet {
    /// Posts answers, as long as there is room. `false`: some are left.
    pub fn tell_answers(&mut self, post: &mut impl FnMut(Completion) -> bool) -> bool {
        while let Some(answer) = self.answers.front() {
            if !post(*answer) {
                return false;
            }
            self.answers.pop_front();
            self.posted += 1;
        }
        true
    }
}

/// The receive part of a session's region.
#[derive(Debug)]
pub struct ReceivePart {
    pub arena: Arena,
    /// What the arena may hand out was true at this version of what users have.
    pub room_version: Option<u64>,
    /// It may have pages that nobody needs: it is in the list of those, or some are on their way.
    pub trimming: bool,
}

impl ReceivePart {
    fn new(arena: Arena) -> ReceivePart {
        ReceivePart { arena, room_version: None, trimming: false }
    }
}

/// What a session has begun with.
#[derive(Clone, Copy, Debug, Default)]
pub enum Beginning {
    #[default]
    Nothing,
    /// With something of its own, or with a connection that had been another process's already.
    Other,
    /// With a connection of a listener's: perhaps the one that its process was made for.
    Connection(FirstClaim),
}

/// A connection that is the first thing which a process has claimed.
#[derive(Clone, Copy, Debug)]
pub struct FirstClaim {
    pub scope: Scope,
    pub local: Endpoint,
    /// Who was charged for it before: the listener's user.
    pub user: UserIdx,
    pub at: Instant,
}

impl Session {
    /// The flow of `owner` is not this session's any more. Its slot is nobody's before the queue set has been told what became of it: a host that
    /// finds another flow's owner word there finds that among its completions. What is answered later does not count: it may never come to an end.
    pub fn leave_slot(&mut self, owner: Owner) {
        let queue_set = self.queue_sets.get_mut(owner.queue_set.index());
        let Some(of) = queue_set.filter(|of| !of.answers.is_empty()) else {
            self.flows.remove(owner.flow_id);
            return;
        };
        let once_posted = of.posted + of.answers.len() as u64;
        of.retired.extend(self.flows.retire(owner.flow_id).map(|slot| (once_posted, slot)));
    }

    /// A queue set has been told more.
    pub fn reuse_slots(&mut self, queue_set: QueueSetId) {
        let Some(of) = self.queue_sets.get_mut(queue_set.index()) else { return };
        while let Some((_, slot)) = of.retired.front().filter(|(once_posted, _)| *once_posted <= of.posted) {
            self.flows.reuse(*slot);
            of.retired.pop_front();
        }
    }

    pub fn new(cred: Cred, scope: Scope, user: UserIdx, layout: RegionLayout) -> Session {
        Session {
            cred,
            scope,
            user,
            layout,
            stage: SessionStage::Open,
            queue_sets: Vec::new(),
            flows: Slots::new(0),
            listeners: Slots::new(SESSION_LISTENERS_MAX as u32),
            twins: Slots::new(TWINS_MAX),
            receive: ReceivePart::new(Arena::new(layout.receive_offset(), layout.receive_len)),
            counts: SessionCounts::default(),
            beginning: Beginning::Nothing,
        }
    }

    pub fn is_open(&self) -> bool {
        self.stage == SessionStage::Open
    }

    /// What waits for room in a queue set's `cpl`, of no live flow.
    pub fn answers(&self, queue_set: QueueSetId) -> Option<&VecDeque<Completion>> {
        self.queue_sets.get(queue_set.index()).map(|of| &of.answers)
    }

    /// The listener's record behind the session's name for it.
    pub fn listener(&self, id: ListenerId) -> Option<ListenerIdx> {
        self.listeners.get(id.0)
    }

    /// Closed, and nothing of the engine refers to its region any more.
    pub fn is_drained(&self) -> bool {
        self.stage == SessionStage::Closed
            && self.receive.arena.used() == self.receive.arena.retired()
            && self.counts.pins == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::{FlowId, SessionId};

    const QUEUE_SET: QueueSetId = QueueSetId(0);

    fn slot_of_next(session: &mut Session) -> usize {
        session.flows.insert(FlowIdx::default()).expect("room").slot()
    }

    /// Answers that come afterwards do not keep it.
    #[test]
    fn a_slot_is_nobodys_until_what_waits_has_been_told() {
        let layout = RegionLayout { queue_sets: 1, flows: 8, receive_len: 0, send_len: 0 };
        let mut session = Session::new(Cred::default(), Scope::OWN, UserIdx::NOBODY, layout);
        session.flows.max = layout.flows;
        session.queue_sets.push(SessionQueueSet::default());
        let flow_id = session.flows.insert(FlowIdx::default()).expect("room");
        let moved = Completion::Moved { flow: flow_id };
        session.queue_sets[0].answers.push_back(moved);
        session.leave_slot(Owner { session: SessionId(1), queue_set: QUEUE_SET, flow_id, fd: 0 });
        session.reuse_slots(QUEUE_SET);
        assert_ne!(slot_of_next(&mut session), flow_id.slot(), "its host finds another flow's word there");
        session.queue_sets[0].answers.push_back(Completion::Moved { flow: FlowId::default() });
        let mut told = Vec::new();
        let has_room = session.queue_sets[0].tell_answers(&mut |answer| {
            let fits = told.is_empty();
            told.extend(fits.then_some(answer));
            fits
        });
        assert_eq!((has_room, told), (false, vec![moved]));
        session.reuse_slots(QUEUE_SET);
        assert_eq!(slot_of_next(&mut session), flow_id.slot());
    }
}
