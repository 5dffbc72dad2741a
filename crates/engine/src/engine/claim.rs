//! Claims: a process shows a descriptor and gets what it stands for, a listener or a flow with all that is on its way.
//!
//! Asked by the driver ([`Engine::claim`]). Of a flow that somebody has the owner word is withdrawn first ([`Engine::begin_claim`]), as of a
//! connection that is not accepted ([`super::ahead`]).

use super::Engine;
use crate::control::listen::{Holder, ListenerIdx};
use crate::control::process_each;
use crate::counter::Counter;
use crate::flow::tenancy::{Notice, Ownership, TenancyEvent};
use crate::hostif::HostSide;
use crate::hostif::anchors::AnchorTarget;
use crate::hostif::session::{Beginning, FirstClaim};
use crate::work::{Claimed, Owner, StreamCounts};
use core::sync::atomic::Ordering;
use toe_abi::command::{NO_HANDLE, SocketOptions};
use toe_abi::entry::{Completion, MemRange};
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{AnchorHandle, FlowId, FlowIdx, Instant, ListenerId, QueueSetId, SessionId};
use toe_tcp::memory::SharedMemory;
use toe_tcp::send_queue::Extent;
use zerocopy::IntoBytes;

impl Engine {
    /// A session is about to claim what the anchor stands for. Whoever has the flow loses it here and is told (`Moved`); what that one has
    /// published until then still counts: the caller takes its entries, then calls [`Engine::claim`]. It may be the same session: its host
    /// has closed a descriptor, and thrown away what it was told of the flow, before it got this one. EAGAIN: one of the owner's
    /// threads is at the flow, or it takes no completions; the claim is to be tried again. ENOENT: what the session shows does not
    /// count. EDQUOT: it may not have the flow.
    pub fn begin_claim<H: HostSide>(
        &mut self,
        session: SessionId,
        anchor: AnchorHandle,
        host: &mut H,
    ) -> Result<(), Errno> {
        self.may_show(session, anchor)?;
        let Some(AnchorTarget::Flow(idx)) = self.anchors.get(anchor) else { return Ok(()) };
        let conn = &self.flows.get(idx).conn;
        let Some(&Ownership { owner, notice, .. }) = conn.tenancy.hold() else { return Ok(()) };
        let must_yield = conn.carrier.channel().is_some();
        let is_open = self.sessions.get(owner.session).is_some_and(|session| session.open);
        if !is_open || notice == Notice::Moved || must_yield {
            return Ok(());
        }
        // Nobody loses it to one who then may not have it.
        self.may_own(idx, session)?;
        if !self.sessions.may_have_flow(session) {
            return Err(Errno::EDQUOT);
        }
        if self.sessions.answers_are_full(owner.session, owner.queue_set) || !self.withdraw(idx, host) {
            return Err(Errno::EAGAIN);
        }
        self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::Notified(Notice::Moved));
        self.answer(owner.session, owner.queue_set, Completion::Moved { flow: owner.flow_id });
        Ok(())
    }

    /// Takes the flow from its owner, unless the owner was faster ([`toe_abi::owner_word`]).
    pub(super) fn withdraw<H: HostSide>(&mut self, idx: FlowIdx, host: &mut H) -> bool {
        let tenancy = &self.flows.get(idx).conn.tenancy;
        let (owner, says) = (tenancy.owner(), if tenancy.is_held() { Owned::Held } else { Owned::Offered });
        let Some(at) = self.sessions.get(owner.session).map(|s| s.layout.owner_word(owner.flow_id.slot()))
        else {
            return true;
        };
        let flow = owner.flow_id;
        let (from, to) = (says.word(flow), Owned::Withdrawn.word(flow));
        // Where no host can change it, it says what the engine knows.
        host.word(SharedMemory::OfSession(owner.session), at)
            .is_none_or(|word| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Says what its owner may do from here on. Before the owner hears of the flow.
    pub(super) fn write_owner_word<H: HostSide>(&mut self, idx: FlowIdx, says: Owned, host: &mut H) {
        let Owner { session, flow_id, .. } = self.flows.get(idx).conn.tenancy.owner();
        if let Some(record) = self.sessions.get(session) {
            let at = record.layout.owner_word(flow_id.slot());
            let word = host.word(SharedMemory::OfSession(session), at);
            word.into_iter().for_each(|word| word.store(says.word(flow_id), Ordering::Release));
        }
    }

    /// A session shows an anchor: it becomes a holder of that listener, or the owner of that flow, whose unread data
    /// moves to its memory and is announced anew.
    pub fn claim<H: HostSide>(
        &mut self,
        now: Instant,
        session: SessionId,
        queue_set: QueueSetId,
        fd: u32,
        anchor: AnchorHandle,
        host: &mut H,
    ) -> Result<Claimed, Errno> {
        let record = self.sessions.get(session).filter(|s| s.open).ok_or(Errno::EBADF)?;
        if session.0 == 0 || queue_set.0 >= record.queue_sets {
            return Err(Errno::EINVAL);
        }
        self.may_show(session, anchor)?;
        self.counters.add(Counter::Claims);
        match self.anchors.get(anchor) {
            Some(AnchorTarget::Listener(idx)) => {
                let holder = Holder::new(session, queue_set, anchor, fd);
                self.hold_listener(holder, idx).map(Claimed::Listener)
            }
            Some(AnchorTarget::Flow(idx)) => {
                let is_untouched = record.flows.is_empty() && record.listeners.is_empty();
                let owner = Owner { session, queue_set, flow_id: FlowId::default(), fd };
                let conn = &self.flows.get(idx).conn;
                let claim =
                    FirstClaim { scope: conn.key.scope, local: conn.key.local, user: conn.user, at: now };
                let (id, counts) = self.claim_flow(owner, idx, host)?;
                if let Some(record) = self.sessions.get_mut(session)
                    && matches!(record.beginning, Beginning::Nothing)
                {
                    record.beginning =
                        if is_untouched { Beginning::Connection(claim) } else { Beginning::Other };
                }
                Ok(Claimed::Flow(id, counts))
            }
            _ => Err(Errno::ENOENT),
        }
    }

    /// A session holds the listener from now on, and by this name; one that does so by the same anchor has it already.
    pub(super) fn hold_listener(
        &mut self,
        mut holder: Holder,
        idx: ListenerIdx,
    ) -> Result<ListenerId, Errno> {
        let listener = self.listeners.get_mut(idx).ok_or(Errno::EBADF)?;
        let same = |known: &&Holder| known.session == holder.session && known.anchor == holder.anchor;
        if let Some(known) = listener.holders.iter().find(same) {
            return Ok(known.id);
        }
        let record = self.sessions.get_mut(holder.session).ok_or(Errno::EBADF)?;
        holder.id = ListenerId(record.listeners.insert(idx).ok_or(Errno::EMFILE)?);
        listener.holders.push(holder);
        listener.orphan_since = None;
        listener.is_shared |= listener.holders.len() > 1;
        Ok(holder.id)
    }

    /// A process that began with a connection ends: perhaps it was made for that one.
    pub(super) fn note_end_of(&mut self, now: Instant, beginning: Beginning) {
        let Beginning::Connection(claim) = beginning else { return };
        let at = self.listeners.find(claim.scope, claim.local);
        let listener = at.and_then(|at| self.listeners.get_mut(at));
        // Another user's listener may have the name by now.
        if let Some(listener) = listener.filter(|listener| listener.user == claim.user)
            && process_each::is_short(claim.at, now)
            && listener.process_each.on_short(now)
        {
            self.names.note_lapse();
        }
    }

    fn claim_flow<H: HostSide>(
        &mut self,
        mut owner: Owner,
        idx: FlowIdx,
        host: &mut H,
    ) -> Result<(FlowId, StreamCounts), Errno> {
        let tenancy = self.flows.get(idx).conn.tenancy;
        let (old, told) = (tenancy.owner(), tenancy.notice() == Notice::Moved);
        if self.sessions.answers_are_full(old.session, old.queue_set) {
            // A holder that takes no completions cannot be told that the flow has moved.
            return Err(Errno::EAGAIN);
        }
        let conn = &self.flows.get(idx).conn;
        if tenancy.hold().is_some() && conn.carrier.channel().is_some() {
            self.ask_to_yield(idx);
            return Err(Errno::EAGAIN);
        }
        self.may_own(idx, owner.session)?;
        if !self.sessions.may_have_flow(owner.session) {
            return Err(Errno::EDQUOT);
        }
        let record = self.sessions.get_mut(owner.session).ok_or(Errno::EBADF)?;
        owner.flow_id = record.flows.insert(idx).ok_or(Errno::EMFILE)?;
        if !self.stage_send_data(idx, host) || !self.move_receive_memory(idx, owner.session, host) {
            let record = self.sessions.get_mut(owner.session);
            // Most of its memory is out of reach until pages of it have been given back.
            let is_trimmed = record.as_ref().is_some_and(|record| record.arena.trimmed_from().is_some());
            if let Some(record) = record {
                record.flows.remove(owner.flow_id);
            }
            self.after(idx);
            return Err(if is_trimmed { Errno::EAGAIN } else { Errno::ENOMEM });
        }
        self.move_options(idx, owner, host);
        if !old.is_nobody() {
            self.return_send_memory(idx);
            if !told {
                self.answer(old.session, old.queue_set, Completion::Moved { flow: old.flow_id });
            }
            self.disown(idx);
        }
        self.own(idx, TenancyEvent::Claimed(owner));
        self.write_owner_word(idx, Owned::Held, host);
        let flow = self.flows.get_mut(idx);
        // The session may be the one that was told to let go, and has thrown away what was announced to it.
        flow.tcb.receive.announce_anew();
        flow.tcb.events.urgent = flow.tcb.rcv.up.at_or_after(flow.tcb.receive.published);
        if let Some(earning) = flow.conn.carrier.earning() {
            earning.next_unit();
        }
        flow.report.peer_closed_told = false;
        flow.report.reset_told = false;
        self.tell_flow_info(idx, host);
        self.after(idx);
        Ok((owner.flow_id, self.flows.get(idx).counts()))
    }

    /// The options that only hosts know go from who has, or had, the flow to `to`: to nobody, they wait in the engine's own memory.
    /// `false`: there is not enough of that.
    pub(super) fn move_options<H: HostSide>(&mut self, idx: FlowIdx, to: Owner, host: &mut H) -> bool {
        let conn = &self.flows.get(idx).conn;
        let (from, user) = (conn.tenancy.owner(), conn.user);
        let mut record = SocketOptions::default();
        if let Some(block) = conn.options {
            host.read(SessionId(0), block.offset(), record.as_mut_bytes());
        } else if let Some(at) = self.place_of_options(from) {
            host.read(from.session, at, record.as_mut_bytes());
            if record.flow != from.flow_id.raw() || conn.tenancy.hold().is_none() {
                return true;
            }
            // The id may come again.
            host.write(from.session, at, NO_HANDLE.as_bytes());
        } else {
            return true;
        }
        if let Some(at) = self.place_of_options(to) {
            record.flow = to.flow_id.raw();
            host.write(to.session, at, record.as_bytes());
            self.forget_options(idx);
        } else if self.flows.get(idx).conn.options.is_none() {
            let block = self.sessions.arena(SessionId(0), user).alloc(size_of::<SocketOptions>() as u32);
            let Some(block) = block else { return false };
            host.write(SessionId(0), block.offset(), record.as_bytes());
            self.flows.get_mut(idx).conn.options = Some(block);
        }
        true
    }

    /// Where the owner of a flow writes its options down. `None`: it is nobody.
    fn place_of_options(&self, owner: Owner) -> Option<u64> {
        let session = self.sessions.get(owner.session).filter(|_| !owner.is_nobody())?;
        Some(session.layout.socket_options(owner.flow_id.slot()))
    }

    pub(super) fn forget_options(&mut self, idx: FlowIdx) {
        let conn = &mut self.flows.get_mut(idx).conn;
        if let Some(block) = conn.options.take() {
            self.sessions.arena(SessionId(0), conn.user).free(block);
        }
    }

    /// Copies unacknowledged send data into the engine's own memory, so that the old owners' is their own again.
    pub(super) fn stage_send_data<H: HostSide>(&mut self, idx: FlowIdx, host: &mut H) -> bool {
        let flow = self.flows.get(idx);
        let (queue, owner, old_block) = (flow.tcb.send_queue, flow.conn.tenancy.owner(), flow.conn.staged);
        if !queue.uses_other_than(&self.tcp.extents, SessionId(0)) {
            return true;
        }
        let user = flow.conn.user;
        let Some(block) = self.sessions.arena(SessionId(0), user).alloc(queue.len()) else { return false };
        let mut at = block.offset();
        for piece in queue.pieces(&self.tcp.extents, 0, queue.len()).iter() {
            let Extent { session, range } = *piece;
            host.copy((session, range.offset), (SessionId(0), at), range.len);
            at += u64::from(range.len);
        }
        let flow = self.flows.get_mut(idx);
        if !owner.is_nobody() {
            let back =
                queue.bytes_of(&self.tcp.extents, owner.session).saturating_add(flow.tcb.events.sent_behind);
            flow.tcb.events.sent = flow.tcb.events.sent.saturating_add(back);
            flow.tcb.events.sent_behind = 0;
        }
        let (extents, range) = (&mut self.tcp.extents, MemRange { offset: block.offset(), len: queue.len() });
        flow.tcb.send_queue.clear(extents);
        let pushed = flow.tcb.send_queue.push(extents, SessionId(0), range);
        debug_assert!(pushed.is_ok(), "an empty queue takes one extent");
        flow.conn.staged = Some(block);
        if let Some(block) = old_block {
            self.sessions.arena(SessionId(0), user).free(block);
        }
        true
    }
}
