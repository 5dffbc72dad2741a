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
    /// Ids promised for connections that are to come.
    pub connect_credit: ConnectCredit,
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
    /// finds another flow's owner word there finds that among its completions.
    pub fn leave_slot(&mut self, owner: Owner) {
        match self.answers(owner.queue_set) {
            Some(answers) if !answers.is_empty() => self.flows.retire(owner.flow_id, owner.queue_set),
            _ => _ = self.flows.remove(owner.flow_id),
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
