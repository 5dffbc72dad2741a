//! All sessions, and what each is charged for.

use crate::flow::key::Scope;
use crate::hostif::session::{Session, SessionQueueSet};
use crate::hostif::users::{Quotas, Refused, Resource, UserIdx, Users};
use std::collections::VecDeque;
use toe_abi::entry::Completion;
use toe_abi::region::{
    ENTRY_LEN, FLOW_DETAIL_LEN, FLOW_INFO_LEN, OWNER_WORD_LEN, PAGE, QUEUE_SET_STRIDE, RegionLayout,
};
use toe_base::arena::{Arena, Room};
use toe_base::limits::{QUEUE_SETS_MAX, SESSIONS_MAX};
use toe_base::{Cred, Instant, NetNs, QueueSetId, SessionId};

/// Answers that wait for room in `cpl`, per queue set. A host that leaves more than this untaken is fenced.
pub const ANSWERS_MAX: usize = 8192;

/// All sessions. Session 0 is the engine's staging memory.
#[derive(Debug)]
pub struct Sessions {
    table: Vec<Option<Session>>,
    users: Users,
    /// The arena that was asked for last; what came of it is not charged yet.
    lent: Option<Lent>,
    /// Sessions with pages that nobody needs, and since when.
    trims: VecDeque<(SessionId, Option<Instant>)>,
}

/// An arena in somebody's hands.
#[derive(Clone, Copy, Debug)]
struct Lent {
    session: SessionId,
    payer: UserIdx,
    /// What was charged for it then.
    before: u64,
}

/// Pages that nobody needs stay so long: whoever ends one transfer may begin another.
const TRIM_AFTER_US: u64 = 1_000_000;
/// So many bytes of them are worth a system call.
const TRIM_MIN: u64 = 1 << 20;
/// So many of them are given back at once: some tenths of a millisecond.
const TRIM_STEP: u64 = 4 << 20;
/// The same of staging memory, which the engine's own thread gives back: some 20 µs of its time.
const TRIM_STEP_STAGING: u64 = 512 << 10;
/// So many stay behind what is handed out: meanwhile nothing beyond can be.
const TRIM_SLACK: u64 = TRIM_MIN / 2;

/// What a session takes without anything in it: its header, objects of the kernel's, what the driver knows of it.
const SESSION_COST: u64 = 32 << 10;
/// The same of a queue set, beside its rings.
const QUEUE_SET_COST: u64 = QUEUE_SET_STRIDE + (8 << 10);
/// So many places of flows are paid for at once: a page of their information, and what their owner words and details take.
const FLOW_PLACES: u32 = (PAGE / FLOW_INFO_LEN) as u32;
const FLOW_PLACES_COST: u64 = FLOW_PLACES as u64 * (FLOW_INFO_LEN + OWNER_WORD_LEN + FLOW_DETAIL_LEN);
/// Answers that are paid for with their queue set, and what each beyond takes.
const ANSWERS_PAID: usize = 256;
const ANSWER_COST: u64 = 2 * ENTRY_LEN;

const fn trim_step(id: SessionId) -> u64 {
    if id.0 == 0 { TRIM_STEP_STAGING } else { TRIM_STEP }
}

impl Sessions {
    pub fn new(staging_len: u64, quotas: Quotas, own: NetNs) -> Sessions {
        let layout = RegionLayout { queue_sets: 0, flows: 0, receive_len: 0, send_len: 0 };
        let mut staging = Session::new(Cred::default(), Scope::OWN, UserIdx::NOBODY, layout);
        staging.receive.arena = Arena::new(0, staging_len);
        Sessions {
            table: vec![Some(staging)],
            users: Users::new(quotas, own),
            lent: None,
            trims: VecDeque::new(),
        }
    }

    pub fn open(&mut self, cred: Cred, scope: Scope, layout: RegionLayout) -> Result<SessionId, Refused> {
        let at = match self.table.iter().position(Option::is_none) {
            Some(at) => at,
            None if self.table.len() < SESSIONS_MAX => {
                self.table.push(None);
                self.table.len() - 1
            }
            None => return Err(Refused::UsedUp),
        };
        let user = self.users_mut().enter(cred, Resource::Sessions)?;
        self.table[at] = Some(Session::new(cred, scope, user, layout));
        let id = SessionId(at as u16);
        if let Err(refused) = self.take_memory(id, SESSION_COST) {
            self.forget(id);
            return Err(refused);
        }
        Ok(id)
    }

    /// The session's memory beside the receive part becomes larger.
    fn take_memory(&mut self, id: SessionId, bytes: u64) -> Result<(), Refused> {
        let user = self.user_of(id);
        self.users_mut().take(user, Resource::SessionMemory, bytes)?;
        self.charge_memory(id, bytes);
        Ok(())
    }

    fn charge_memory(&mut self, id: SessionId, bytes: u64) {
        if let Some(session) = self.get_mut(id) {
            session.counts.memory += bytes;
        }
    }

    /// A new queue set, if there may be one.
    pub fn add_queue_set(&mut self, id: SessionId) -> Option<QueueSetId> {
        let session = self.get(id)?;
        let most = QUEUE_SETS_MAX.min(session.layout.queue_sets as usize);
        if session.queue_sets.len() >= most {
            return None;
        }
        self.take_memory(id, QUEUE_SET_COST).ok()?;
        let queue_sets = &mut self.get_mut(id)?.queue_sets;
        queue_sets.push(SessionQueueSet::default());
        Some(QueueSetId(queue_sets.len() as u8 - 1))
    }

    /// Makes room for one more flow of a session, as far as its region has it. `false`: its user may not have the memory.
    pub fn may_have_flow(&mut self, id: SessionId) -> bool {
        let grows = |session: &&Session| session.flows.is_full() && session.flows.max < session.layout.flows;
        if self.get(id).filter(grows).is_none() {
            return true;
        }
        let may = self.take_memory(id, FLOW_PLACES_COST).is_ok();
        if let Some(session) = self.get_mut(id).filter(|_| may) {
            session.flows.max = (session.flows.max + FLOW_PLACES).min(session.layout.flows);
        }
        may
    }

    /// A completion waits for room in `cpl`. `false`: there is no such queue set.
    pub fn add_answer(&mut self, id: SessionId, queue_set: QueueSetId, answer: Completion) -> bool {
        let Some(record) = self.get_mut(id).filter(|record| record.is_open()) else { return false };
        let Some(SessionQueueSet { answers, .. }) = record.queue_sets.get_mut(queue_set.index()) else {
            return false;
        };
        let before = answers.capacity();
        answers.push_back(answer);
        let beyond = answers.capacity().saturating_sub(before.max(ANSWERS_PAID)) as u64 * ANSWER_COST;
        if beyond > 0 {
            // They have to be told; whether there may be more is asked elsewhere.
            let user = record.user;
            self.users_mut().add(user, Resource::SessionMemory, beyond);
            self.charge_memory(id, beyond);
        }
        true
    }

    /// What each user has. What the arena that was lent last has cost is not in it yet.
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// The same, with everything charged.
    pub fn users_mut(&mut self) -> &mut Users {
        self.settle();
        &mut self.users
    }

    /// Who is charged for what a session has.
    pub fn user_of(&self, id: SessionId) -> UserIdx {
        self.get(id).map_or(UserIdx::NOBODY, |session| session.user)
    }

    /// What is charged for an arena: of a session's receive part all pages that there may be, of the staging memory, in
    /// which many have a part, what is handed out.
    fn charged(id: SessionId, arena: &Arena) -> u64 {
        if id.0 == 0 { arena.used() } else { arena.touched() }
    }

    fn settle(&mut self) {
        let Some(Lent { session: id, payer, before }) = self.lent.take() else { return };
        let Some(Some(session)) = self.table.get_mut(id.index()) else { return };
        let now = Sessions::charged(id, &session.receive.arena);
        let resource = if id.0 == 0 { Resource::StagingMemory } else { Resource::ReceiveMemory };
        if now > before {
            self.users.add(payer, resource, now - before);
        } else if now < before {
            self.users.give(payer, resource, before - now);
        }
        let idle = session.receive.arena.touched() - session.receive.arena.used();
        if idle >= TRIM_MIN && !core::mem::replace(&mut session.receive.trimming, true) {
            self.trims.push_back((id, None));
        }
    }

    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.table.get(id.index())?.as_ref()
    }

    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.table.get_mut(id.index())?.as_mut()
    }

    /// The arena that the receive memory of a flow of `user` comes from; it hands out what the one who pays may take. A
    /// session that flows still refer to is there.
    pub fn arena(&mut self, id: SessionId, user: UserIdx) -> &mut Arena {
        self.settle();
        let id = if self.get(id).is_some() { id } else { SessionId(0) };
        match &mut self.table[id.index()] {
            Some(session) => {
                let payer = if id.0 == 0 { user } else { session.user };
                // Of the staging memory each time another one may take.
                if id.0 == 0 || session.receive.room_version != Some(self.users.version()) {
                    session.receive.arena.set_room(Sessions::room(&self.users, id, payer));
                    session.receive.room_version = Some(self.users.version());
                }
                self.lent =
                    Some(Lent { session: id, payer, before: Sessions::charged(id, &session.receive.arena) });
                &mut session.receive.arena
            }
            None => unreachable!("session 0 is never removed"),
        }
    }

    /// How much the one who pays may take of a session's arena.
    fn room(users: &Users, id: SessionId, payer: UserIdx) -> Room {
        if id.0 == 0 {
            Room { used: users.room(payer, Resource::StagingMemory), ..Room::UNLIMITED }
        } else {
            Room { touched: users.room(payer, Resource::ReceiveMemory), ..Room::UNLIMITED }
        }
    }

    /// Moves memory of a flow of `user` from one session to another: `change` gets both arenas.
    pub fn with_two_arenas<R>(
        &mut self,
        (from, to): (SessionId, SessionId),
        user: UserIdx,
        change: impl FnOnce(&mut Arena, &mut Arena) -> R,
    ) -> Option<R> {
        self.settle();
        let users = &self.users;
        let [a, b] = self.table.get_disjoint_mut([from.index(), to.index()]).ok()?;
        let (a, b) = (a.as_mut()?, b.as_mut()?);
        let lend = |id: SessionId, session: &mut Session| {
            let payer = if id.0 == 0 { user } else { session.user };
            session.receive.arena.set_room(Sessions::room(users, id, payer));
            session.receive.room_version = Some(users.version());
            Lent { session: id, payer, before: Sessions::charged(id, &session.receive.arena) }
        };
        let lent = [lend(from, a), lend(to, b)];
        let result = change(&mut a.receive.arena, &mut b.receive.arena);
        for one in lent {
            self.lent = Some(one);
            self.settle();
        }
        Some(result)
    }

    /// The next pages of a session's receive part, or of the staging memory, that nobody needs: where they begin, and how many bytes. Nothing is
    /// handed out there or beyond until [`Sessions::end_trim`].
    pub fn next_trim(&mut self, now: Instant) -> Option<(SessionId, u64, u64)> {
        self.settle();
        let (id, since) = self.trims.front_mut()?;
        let (id, since) = (*id, *since.get_or_insert(now));
        if now < since.after_us(TRIM_AFTER_US) {
            return None;
        }
        self.trims.pop_front();
        let session = self.get_mut(id)?;
        let (at, len) = session.receive.arena.trim(trim_step(id), TRIM_SLACK);
        session.receive.trimming = len > 0;
        (len > 0).then_some((id, at, len))
    }

    /// A trim is over; `gone`: nobody is charged for those pages any more.
    pub fn end_trim(&mut self, id: SessionId, gone: bool) {
        let user = self.user_of(id);
        if self.get(id).is_none() {
            return;
        }
        let len = self.arena(id, user).end_trim(gone);
        self.settle();
        if gone && len == trim_step(id) {
            // There may be more. It has waited.
            self.trims.push_front((id, Some(Instant::ZERO)));
        } else if let Some(session) = self.get_mut(id) {
            session.receive.trimming = false;
        }
    }

    /// When [`Sessions::next_trim`] is to be asked, or has to be in order to know: nobody need look before.
    pub fn trim_due(&self) -> Option<Instant> {
        self.trims
            .front()
            .map(|(_, since)| since.map_or(Instant::ZERO, |since| since.after_us(TRIM_AFTER_US)))
    }

    /// Whether a queue set leaves so many answers untaken that no more may be added to them.
    pub fn answers_are_full(&self, id: SessionId, queue_set: QueueSetId) -> bool {
        let Some(session) = self.get(id) else { return false };
        let waiting = session.answers(queue_set).map_or(0, VecDeque::len);
        let is_over_quota = || self.users.room(session.user, Resource::SessionMemory) == 0;
        waiting > ANSWERS_MAX || waiting > ANSWERS_PAID && is_over_quota()
    }

    pub fn forget(&mut self, id: SessionId) -> Option<Session> {
        self.settle();
        let session = self.table.get_mut(id.index()).filter(|_| id.0 != 0)?.take()?;
        self.trims.retain(|(other, _)| *other != id);
        self.users.give(session.user, Resource::ReceiveMemory, session.receive.arena.touched());
        self.users.give(session.user, Resource::SessionMemory, session.counts.memory);
        self.users.give(session.user, Resource::Sessions, 1);
        Some(session)
    }

    pub fn ids(&self) -> impl Iterator<Item = SessionId> + '_ {
        (1..self.table.len()).filter(|i| self.table[*i].is_some()).map(|i| SessionId(i as u16))
    }
}
