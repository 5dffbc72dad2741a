//! Who is charged for what, as things begin, change hands and end. The rule and the counts are in
//! [`crate::hostif::users`].

use super::{Edit, Engine};
use crate::control::listen::Listeners;
use crate::control::listener_idx::ListenerIdx;
use crate::counter::{Counter, Counters};
use crate::hostif::anchors::{Closed, IN_HAND_MAX};
use crate::hostif::users::{Refused, Resource, UserIdx};
use crate::parts::{FlowMemory, HostInterface};
use crate::store::FlowStore;
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::{AnchorHandle, Cred, FlowIdx, Instant, QueueSetId, SessionId};
use toe_tcp::memory::{GivenBack, HostMemory};

impl Engine {
    /// A process attached. EDQUOT: its user has his share of sessions, or of their memory. ENOBUFS: there are no more.
    pub fn open_session(&mut self, cred: Cred, layout: RegionLayout) -> Result<SessionId, Errno> {
        let scope = self.names.scopes.enter(cred.netns).ok_or(Errno::ENOBUFS)?;
        self.hostif.sessions.open(cred, scope, layout).map_err(|refused| {
            self.names.leave(scope);
            let user = self.hostif.sessions.users_mut().idx(cred);
            self.hostif.refuse(&mut self.counters, user, Resource::Sessions, refused)
        })
    }

    /// A new anchor for the session, which may have one for each of its flows and listeners, and some in hand; the driver makes the
    /// object.
    pub fn take_anchor(&mut self, session: SessionId) -> Result<AnchorHandle, Errno> {
        let record =
            self.hostif.sessions.get(session).filter(|session| session.is_open()).ok_or(Errno::EINVAL)?;
        let user = record.user;
        if record.counts.anchors >= record.flows.len() + record.listeners.len() + IN_HAND_MAX {
            return Err(self.hostif.refuse(&mut self.counters, user, Resource::Anchors, Refused::OverQuota));
        }
        self.hostif.may_take(&mut self.counters, user, Resource::Anchors)?;
        Ok(self.hostif.new_anchor(session))
    }

    /// Gives some pages of a session's receive part back that nobody needs any more. `false`: there are none now.
    pub fn poll_trim<H: HostMemory>(&mut self, now: Instant, host: &mut H) -> bool {
        let Some((session, offset, len)) = self.hostif.sessions.next_trim(now) else { return false };
        match host.give_back(session, offset, len as u32) {
            GivenBack::Now => self.hostif.sessions.end_trim(session, true),
            GivenBack::Retained => self.hostif.sessions.end_trim(session, false),
            GivenBack::Later => {}
        }
        true
    }
}

impl FlowMemory<'_> {
    /// Whether a flow may be the session's, as far as what it and its user may have decides it.
    pub(super) fn may_own(&mut self, idx: FlowIdx, session: SessionId) -> Result<(), Errno> {
        let user = self.hostif.sessions.user_of(session);
        if self.flows.get(idx).conn.user != user {
            self.hostif.may_take(self.counters, user, Resource::Flows)?;
        }
        if self.hostif.sessions.may_have_flow(session) { Ok(()) } else { Err(Errno::EDQUOT) }
    }
}

impl HostInterface {
    /// Another user is charged for the flow, and for what it has of the staging memory.
    pub(super) fn charge_flow_to(&mut self, flows: &mut FlowStore, idx: Edit<'_>, user: UserIdx) {
        let flow = flows.get_mut(idx);
        let before = core::mem::replace(&mut flow.conn.user, user);
        if before == user {
            return;
        }
        let received =
            if flow.tcb.receiving.buffer.session.0 == 0 { flow.tcb.receiving.buffer.memory() } else { 0 };
        let staged = received + flows.aside(*idx).blocks().map(|block| u64::from(block.len())).sum::<u64>();
        let users = self.sessions.users_mut();
        users.add(user, Resource::Flows, 1);
        users.add(user, Resource::StagingMemory, staged);
        // Last: what was charged before may be the last thing that the other one had.
        users.give(before, Resource::StagingMemory, staged);
        users.give(before, Resource::Flows, 1);
    }

    /// [`crate::ControlEvent::GivenBack`].
    pub(super) fn handle_given_back(&mut self, session: SessionId, offset: u64, len: u32, gone: bool) {
        let Some(record) = self.sessions.get(session) else { return };
        let user = record.user;
        if record.receive.arena.trimmed_from() == Some(offset) {
            self.sessions.end_trim(session, gone);
        } else if record.receive.arena.retired() >= u64::from(len) {
            self.sessions.arena(session, user).reclaim(offset, len);
        }
    }

    /// The listener is charged to who opened it; one that was there is already.
    pub(super) fn charge_listener(&mut self, listeners: &mut Listeners, idx: ListenerIdx, user: UserIdx) {
        let Some(listener) = listeners.get_mut(idx).filter(|l| l.user == UserIdx::NOBODY) else {
            return;
        };
        listener.user = user;
        self.sessions.users_mut().add(user, Resource::Listeners, 1);
    }

    pub(super) fn new_anchor(&mut self, session: SessionId) -> AnchorHandle {
        let user = self.sessions.user_of(session);
        self.sessions.users_mut().add(user, Resource::Anchors, 1);
        if let Some(record) = self.sessions.get_mut(session) {
            record.counts.anchors += 1;
        }
        self.anchors.take(session, user)
    }

    /// Counts a refusal; the error that says so.
    pub(super) fn refuse(
        &mut self,
        counters: &mut Counters,
        user: UserIdx,
        resource: Resource,
        refused: Refused,
    ) -> Errno {
        self.sessions.users_mut().note_refused(user, resource);
        counters.add(Counter::OverQuota);
        refused.into()
    }

    /// A SYN came to a listener whose user has his share of connections: its peer sends it again.
    pub(super) fn refuse_syn(&mut self, counters: &mut Counters, user: UserIdx) {
        self.sessions.users_mut().note_refused(user, Resource::Flows);
        counters.add(Counter::DropOverQuota);
    }

    /// The anchor is for nobody any more; the session that is to be told when it can use it again.
    pub(super) fn forget_anchor(&mut self, anchor: AnchorHandle) -> Option<(SessionId, QueueSetId)> {
        match self.anchors.closed(anchor) {
            Closed::Owned(session, queue_set) => return Some((session, queue_set)),
            Closed::Gone(payer) => self.sessions.users_mut().give(payer, Resource::Anchors, 1),
            Closed::Unknown => {}
        }
        None
    }

    /// Whether the user may have one more; if not, that is counted.
    pub(super) fn may_take(
        &mut self,
        counters: &mut Counters,
        user: UserIdx,
        resource: Resource,
    ) -> Result<(), Errno> {
        let may = self.sessions.users().may_take(user, resource, 1);
        may.map_err(|refused| self.refuse(counters, user, resource, refused))
    }

    /// There is one less of what somebody was charged for, if anybody was.
    pub(super) fn give(&mut self, payer: Option<UserIdx>, resource: Resource) {
        payer.into_iter().for_each(|payer| self.sessions.users_mut().give(payer, resource, 1));
    }

    /// The session's user, who is charged for one more of that.
    pub(super) fn charge(
        &mut self,
        counters: &mut Counters,
        id: SessionId,
        resource: Resource,
    ) -> Result<UserIdx, Errno> {
        let payer = self.sessions.get(id).ok_or(Errno::EINVAL)?.user;
        match self.sessions.users_mut().take(payer, resource, 1) {
            Ok(()) => Ok(payer),
            Err(refused) => {
                counters.add(Counter::OverQuota);
                Err(refused.into())
            }
        }
    }
}
