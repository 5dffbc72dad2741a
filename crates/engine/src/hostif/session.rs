//! Sessions: one attached process each, its memory and what it may name.

use crate::control::listen::ListenerIdx;
use crate::control::listen::Twin;
use std::collections::VecDeque;
use toe_abi::entry::Completion;
use toe_abi::region::RegionLayout;
use toe_base::arena::Arena;
use toe_base::limits::{QUEUE_SETS_MAX, SESSION_LISTENERS_MAX, SESSIONS_MAX};
use toe_base::{Cred, FlowId, FlowIdx, ListenerId, QueueSetId, SessionId};

/// Slots under generation-checked ids: what a session calls its flows or listeners.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<(u16, Option<T>)>,
    free: Vec<u32>,
    used: u32,
    max: u32,
}

impl<T: Copy> Slots<T> {
    fn new(max: u32) -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new(), used: 0, max }
    }

    pub fn insert(&mut self, value: T) -> Option<FlowId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if (self.slots.len() as u32) < self.max => {
                self.slots.push((0, None));
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let entry = &mut self.slots[slot as usize];
        entry.1 = Some(value);
        self.used += 1;
        Some(FlowId::new(slot, entry.0))
    }

    pub fn get(&self, id: FlowId) -> Option<T> {
        let (generation, value) = self.slots.get(id.slot())?;
        if *generation == id.generation() { *value } else { None }
    }

    pub fn remove(&mut self, id: FlowId) -> Option<T> {
        self.get(id)?;
        let entry = &mut self.slots[id.slot()];
        entry.0 = (entry.0 + 1) & 0xfff;
        self.free.push(id.slot() as u32);
        self.used -= 1;
        entry.1.take()
    }

    pub fn len(&self) -> u32 {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.slots.iter().filter_map(|(_, v)| *v)
    }
}

/// Answers that wait for room in `cpl`, per queue set. A host that leaves more than this untaken is fenced.
pub const ANSWERS_MAX: usize = 8192;

/// One session.
#[derive(Debug)]
pub struct Session {
    pub cred: Cred,
    pub layout: RegionLayout,
    /// Cleared when the process is gone; the record stays until nothing refers to the region.
    pub open: bool,
    pub queue_sets: u8,
    pub flows: Slots<FlowIdx>,
    pub listeners: Slots<ListenerIdx>,
    /// Kernel sockets shown as evidence of a bound address.
    pub twins: Vec<Twin>,
    /// The receive part of the region.
    pub arena: Arena,
    /// Answers and notices that belong to no live flow.
    pub answers: Vec<VecDeque<Completion>>,
    /// Flows that still send from this region after the session was closed.
    pub pins: u32,
}

/// All sessions. Session 0 is the engine's staging memory.
#[derive(Debug)]
pub struct Sessions {
    table: Vec<Option<Session>>,
}

/// Kernel sockets that one session may have shown.
const TWINS_MAX: usize = 4096;

impl Sessions {
    pub fn new(staging_len: u64) -> Sessions {
        let layout = RegionLayout { queue_sets: 0, flows: 0, receive_len: 0, send_len: 0 };
        let mut staging = Session::new(Cred::default(), layout);
        staging.arena = Arena::new(0, staging_len);
        Sessions { table: vec![Some(staging)] }
    }

    pub fn open(&mut self, cred: Cred, layout: RegionLayout) -> Option<SessionId> {
        let at = match self.table.iter().position(Option::is_none) {
            Some(at) => at,
            None if self.table.len() < SESSIONS_MAX => {
                self.table.push(None);
                self.table.len() - 1
            }
            None => return None,
        };
        self.table[at] = Some(Session::new(cred, layout));
        Some(SessionId(at as u16))
    }

    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.table.get(id.index())?.as_ref()
    }

    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.table.get_mut(id.index())?.as_mut()
    }

    /// The arena that a flow's receive memory comes from. A session that flows still refer to is there.
    pub fn arena(&mut self, id: SessionId) -> &mut Arena {
        let id = if self.get(id).is_some() { id } else { SessionId(0) };
        match &mut self.table[id.index()] {
            Some(session) => &mut session.arena,
            None => unreachable!("session 0 is never removed"),
        }
    }

    /// Two arenas at once, for a move from one session to another.
    pub fn two_arenas(&mut self, a: SessionId, b: SessionId) -> Option<(&mut Arena, &mut Arena)> {
        let [a, b] = self.table.get_disjoint_mut([a.index(), b.index()]).ok()?;
        Some((&mut a.as_mut()?.arena, &mut b.as_mut()?.arena))
    }

    /// Whether a queue set leaves so many answers untaken that no more may be added to them.
    pub fn answers_are_full(&self, id: SessionId, queue_set: QueueSetId) -> bool {
        let answers = self.get(id).and_then(|s| s.answers.get(queue_set.index()));
        answers.is_some_and(|a| a.len() > ANSWERS_MAX)
    }

    pub fn forget(&mut self, id: SessionId) {
        if id.0 != 0
            && let Some(slot) = self.table.get_mut(id.index())
        {
            *slot = None;
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = SessionId> + '_ {
        (1..self.table.len()).filter(|i| self.table[*i].is_some()).map(|i| SessionId(i as u16))
    }
}

impl Session {
    fn new(cred: Cred, layout: RegionLayout) -> Session {
        Session {
            cred,
            layout,
            open: true,
            queue_sets: 0,
            flows: Slots::new(layout.flows),
            listeners: Slots::new(SESSION_LISTENERS_MAX as u32),
            twins: Vec::new(),
            arena: Arena::new(layout.receive_offset(), layout.receive_len),
            answers: Vec::new(),
            pins: 0,
        }
    }

    pub fn add_queue_set(&mut self) -> Option<QueueSetId> {
        if usize::from(self.queue_sets) >= QUEUE_SETS_MAX.min(self.layout.queue_sets as usize) {
            return None;
        }
        self.queue_sets += 1;
        self.answers.push(VecDeque::new());
        Some(QueueSetId(self.queue_sets - 1))
    }

    pub fn add_twin(&mut self, twin: Twin) -> u32 {
        if self.twins.len() < TWINS_MAX {
            self.twins.push(twin);
            return self.twins.len() as u32 - 1;
        }
        let at = self.twins.len() - 1;
        self.twins[at] = twin;
        at as u32
    }

    /// The listener's record behind the session's name for it.
    pub fn listener(&self, id: ListenerId) -> Option<ListenerIdx> {
        self.listeners.get(id.0)
    }

    /// Closed, and nothing of the engine refers to its region any more.
    pub fn is_drained(&self) -> bool {
        !self.open && self.arena.used() == 0 && self.pins == 0
    }
}
