//! Claims: a process shows a descriptor and gets what it stands for, a listener or a flow with all that is on its way.
//!
//! Of a flow that somebody has the owner word is withdrawn first ([`crate::Change::Withdraw`]), as of a
//! connection that is not accepted ([`super::prefetch`]).

use super::{Edit, Engine};
use crate::control::holders::Holder;
use crate::counter::Counter;
use crate::flow::tenancy::{Notice, Ownership, TenancyEvent};
use crate::hostif::anchors::AnchorTarget;
use crate::hostif::session::{Beginning, FirstClaim};
use crate::work::{Changed, Owner, StreamCounts};
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{AnchorHandle, FlowId, Instant, QueueSetId, SessionId};
use toe_tcp::memory::HostMemory;

impl Engine {
    /// [`crate::Change::Withdraw`].
    pub(super) fn begin_claim<H: HostMemory>(
        &mut self,
        session: SessionId,
        anchor: AnchorHandle,
        host: &mut H,
    ) -> Result<(), Errno> {
        self.hostif.may_show(session, anchor)?;
        let Some(AnchorTarget::Flow(idx)) = self.hostif.anchors.get(anchor) else { return Ok(()) };
        let conn = &self.flows.get(idx).conn;
        let Some(&Ownership { owner, notice, .. }) = conn.tenancy.hold() else { return Ok(()) };
        let must_yield = conn.carrier.channel().is_some();
        let is_open = self.hostif.sessions.get(owner.session).is_some_and(|session| session.is_open());
        if !is_open || notice == Notice::Moved || must_yield {
            return Ok(());
        }
        // Nobody loses it to one who then may not have it.
        self.records().memory().may_own(idx, session)?;
        if self.hostif.sessions.answers_are_full(owner.session, owner.queue_set)
            || !self.hostif.withdraw(&self.flows, idx, host)
        {
            return Err(Errno::EAGAIN);
        }
        self.edit(idx, |engine, idx| {
            engine.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::Notified(Notice::Moved));
        });
        self.hostif.answer(owner.session, owner.queue_set, Completion::Moved { flow: owner.flow_id });
        Ok(())
    }

    /// [`crate::Change::Claim`].
    pub(super) fn claim<H: HostMemory>(
        &mut self,
        now: Instant,
        session: SessionId,
        queue_set: QueueSetId,
        fd: u32,
        anchor: AnchorHandle,
        host: &mut H,
    ) -> Result<Changed, Errno> {
        let record = self.hostif.sessions.get(session).filter(|s| s.is_open()).ok_or(Errno::EBADF)?;
        if session.0 == 0 || queue_set.index() >= record.queue_sets.len() {
            return Err(Errno::EINVAL);
        }
        self.hostif.may_show(session, anchor)?;
        self.counters.add(Counter::Claims);
        match self.hostif.anchors.get(anchor) {
            Some(AnchorTarget::Listener(idx)) => {
                let holder = Holder::new(session, queue_set, anchor, fd);
                self.hostif.hold_listener(&mut self.listeners, holder, idx).map(Changed::Listener)
            }
            Some(AnchorTarget::Flow(idx)) => {
                let is_untouched = record.flows.is_empty() && record.listeners.is_empty();
                let owner = Owner { session, queue_set, flow_id: FlowId::default(), fd };
                let conn = &self.flows.get(idx).conn;
                let claim =
                    FirstClaim { scope: conn.key.scope, local: conn.key.local, user: conn.user, at: now };
                let claimed = self.edit(idx, |engine, idx| engine.claim_flow(owner, idx, host));
                self.hostif.forget_carried(session);
                let (id, counts) = claimed?;
                if let Some(record) = self.hostif.sessions.get_mut(session)
                    && matches!(record.beginning, Beginning::Nothing)
                {
                    record.beginning =
                        if is_untouched { Beginning::Connection(claim) } else { Beginning::Other };
                }
                Ok(Changed::Flow(id, counts))
            }
            _ => Err(Errno::ENOENT),
        }
    }

    fn claim_flow<H: HostMemory>(
        &mut self,
        mut owner: Owner,
        idx: Edit<'_>,
        host: &mut H,
    ) -> Result<(FlowId, StreamCounts), Errno> {
        let tenancy = self.flows.get(*idx).conn.tenancy;
        let (old, told) = (tenancy.owner(), tenancy.notice() == Notice::Moved);
        if self.hostif.sessions.answers_are_full(old.session, old.queue_set) {
            // A holder that takes no completions cannot be told that the flow has moved.
            return Err(Errno::EAGAIN);
        }
        let conn = &self.flows.get(*idx).conn;
        if tenancy.hold().is_some() && conn.carrier.channel().is_some() {
            self.records().memory().ask_to_yield(idx);
            return Err(Errno::EAGAIN);
        }
        self.records().memory().may_own(*idx, owner.session)?;
        let record = self.hostif.sessions.get_mut(owner.session).ok_or(Errno::EBADF)?;
        owner.flow_id = record.flows.insert(*idx).ok_or(Errno::EMFILE)?;
        let (to, asker) = (owner.session, owner.session);
        if !self.records().memory().stage_send_data(idx, asker, host)
            || !self.records().memory().move_receive_memory(idx, asker, to, host)
        {
            let record = self.hostif.sessions.get_mut(owner.session);
            // Most of its memory is out of reach until pages of it have been given back.
            let is_trimmed =
                record.as_ref().is_some_and(|record| record.receive.arena.trimmed_from().is_some());
            if let Some(record) = record {
                record.flows.remove(owner.flow_id);
            }
            return Err(if is_trimmed { Errno::EAGAIN } else { Errno::ENOMEM });
        }
        self.hostif.move_options(&mut self.flows, idx, owner, host);
        if !old.is_nobody() {
            self.hostif.return_send_memory(&self.flows, *idx);
            if !told {
                self.hostif.answer(old.session, old.queue_set, Completion::Moved { flow: old.flow_id });
            }
            self.hostif.disown(&mut self.flows, idx);
        }
        self.hostif.own(&mut self.flows, idx, TenancyEvent::Claimed(owner));
        self.hostif.write_owner_word(&self.flows, *idx, Owned::Held, host);
        let flow = self.flows.get_mut(idx);
        // The session may be the one that was told to let go, and has thrown away what was announced to it.
        flow.tcb.receiving.buffer.announce_anew();
        flow.tcb.status.events.urgent = flow.tcb.rcv.up.at_or_after(flow.tcb.receiving.buffer.published);
        if let Some(earning) = flow.conn.carrier.earning() {
            earning.next_unit();
        }
        flow.report.tell_end_again();
        self.records().memory().tell_flow_info(idx, host);
        Ok((owner.flow_id, self.flows.get(*idx).counts()))
    }
}
