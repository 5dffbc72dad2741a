//! Who has a connection or a listener changes because a process asks: it shows a descriptor, gives a flow back, or is about to make a child.
//!
//! What goes along is copied in steps before ([`Engine::prepare`]); the change itself does what is left of that.

use super::Engine;
use super::carry::{carry, claimed};
use super::direct::{give_back, given_to_engine};
use crate::control::listener_idx::ListenerIdx;
use crate::work::{Change, Changed};
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant, SessionId};
use toe_tcp::memory::HostMemory;

impl Engine {
    /// One step of what comes before a change. Whether there are more. Of a change that would be refused there are none.
    pub fn prepare<H: HostMemory>(
        &mut self,
        now: Instant,
        asker: SessionId,
        change: Change,
        host: &mut H,
    ) -> bool {
        let found = match change {
            Change::Withdraw { .. } => None,
            Change::Share => return take_back_some(self, now, asker, host),
            Change::Claim { lifetime, .. } => claimed(self, asker, lifetime).map(|idx| (idx, asker.into())),
            Change::Relinquish { flow, unread } => given_to_engine(self, asker, flow, unread).ok(),
        };
        found.is_some_and(|(idx, to)| carry(&mut self.records().memory(), asker, (idx, to), host))
    }

    /// Carries it out. After an error nothing has changed, but that a flow's owner may have lost it ([`Change::Withdraw`]).
    pub fn change<H: HostMemory>(
        &mut self,
        now: Instant,
        asker: SessionId,
        change: Change,
        host: &mut H,
    ) -> Result<Changed, Errno> {
        match change {
            Change::Withdraw { lifetime } => self.begin_claim(asker, lifetime, host)?,
            Change::Share => share(self, now, asker, host)?,
            Change::Claim { lifetime, queue_set, fd } => {
                return self.claim(now, asker, queue_set, fd, lifetime, host);
            }
            Change::Relinquish { flow, unread } => {
                let given_back = give_back(self, asker, flow, unread, host);
                self.hostif.forget_carried(asker);
                given_back?;
            }
        }
        Ok(Changed::Nothing)
    }
}

/// Before [`share`]: what the session was handed goes back in steps. Whether there are more.
fn take_back_some<H: HostMemory>(
    engine: &mut Engine,
    now: Instant,
    session: SessionId,
    host: &mut H,
) -> bool {
    let Some(record) = engine.hostif.sessions.get(session) else { return false };
    let flows: Vec<FlowIdx> = record.flows.values().collect();
    let listeners: Vec<ListenerIdx> = record.listeners.values().collect();
    stop_handing(engine, session, &listeners);
    for idx in flows {
        if !engine.listeners.may_copy_more(now) {
            return true;
        }
        take_back_at_once(engine, now, idx, host);
    }
    false
}

/// What is in a session's reach must be in its child's, too: it asks from here on.
fn stop_handing(engine: &mut Engine, to: SessionId, listeners: &[ListenerIdx]) {
    for idx in listeners {
        if let Some(listener) = engine.listeners.get_mut(*idx) {
            listener.holders.is_shared = true;
            listener.holders.list.iter_mut().filter(|h| h.session == to).for_each(|h| h.credit = 0);
        }
    }
}

fn take_back_at_once<H: HostMemory>(engine: &mut Engine, now: Instant, idx: FlowIdx, host: &mut H) {
    let flow = engine.flows.get(idx);
    if flow.conn.tenancy.offer().is_some()
        && !flow.tcb.is_written()
        && engine.hostif.withdraw(&engine.flows, idx, host)
    {
        engine.records().accepting(now, host).have_wait_again(idx);
    }
}

/// [`crate::Change::Share`].
fn share<H: HostMemory>(
    engine: &mut Engine,
    now: Instant,
    session: SessionId,
    host: &mut H,
) -> Result<(), Errno> {
    let record = engine.hostif.sessions.get(session).ok_or(Errno::EINVAL)?;
    let flows: Vec<FlowIdx> = record.flows.values().collect();
    let listeners: Vec<ListenerIdx> = record.listeners.values().collect();
    stop_handing(engine, session, &listeners);
    flows.iter().for_each(|idx| take_back_at_once(engine, now, *idx, host));
    for idx in listeners {
        engine.records().accepting(now, host).hand_out(idx);
    }
    let untold = |idx: &FlowIdx| engine.flows.is_used(*idx) && engine.flows.get(*idx).report.direct;
    if flows.iter().any(untold) {
        return Err(Errno::EAGAIN);
    }
    let flows = engine.hostif.sessions.get(session).into_iter().flat_map(|record| record.flows.values());
    let has = flows.filter_map(|idx| engine.flows.get(idx).conn.tenancy.lifetime());
    engine.hostif.anchors.lend_all(session, has);
    Ok(())
}
