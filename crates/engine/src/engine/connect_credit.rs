//! Connections whose program does not wait for the engine. A session is given flow ids in advance; `Connect` may name one, and the
//! host goes on at once. What it has to know before that, whether somebody listens, it knows from an earlier connection and from
//! a number that changes when that may be so no longer ([`crate::EngineView::lapses`]; host interface, "Connect without waiting").

use super::Engine;
use crate::hostif::anchors::AnchorTarget;
use crate::hostif::session::SessionQueueSet;
use crate::hostif::users::Resource;
use crate::work::Owner;
use toe_abi::attach::FenceReason;
use toe_abi::command::{ConnectArgs, FlowInfo};
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, FlowId, Instant, QueueSetId, SessionId};
use toe_tcp::memory::HostMemory;
use zerocopy::IntoBytes;

/// Ids that a queue set has at most: a turn of a program's loop begins hardly more connections. It gets twice as many as it has
/// made connections, so who makes one has two.
const CREDIT_MAX: u8 = 64;
/// Nothing is promised to a user who is nearer to what he may have than this part of all flows: a promise that cannot be kept is an
/// error that the kernel's stack would not have given.
const HEADROOM_ONE_IN: usize = 16;
/// Where most ports are in use: so many searches, of some µs each, before it is said that there is none.
const SEARCHES: usize = 4;

impl Engine {
    /// `Connect` with an id that the session was given. Nothing is answered unless it cannot be tried.
    pub(super) fn connect_by_credit<H: HostMemory>(
        &mut self,
        now: Instant,
        owner: Owner,
        args: &ConnectArgs,
        host: &mut H,
    ) -> Result<(), FenceReason> {
        let Owner { session, queue_set, flow_id: flow, .. } = owner;
        let record = self.hostif.sessions.get_mut(session).ok_or(FenceReason::BadArgument)?;
        if !record.flows.is_promised(flow) {
            return Err(FenceReason::BadArgument);
        }
        if let Some(of) = record.queue_sets.get_mut(queue_set.index()) {
            // It may have been given through another queue set.
            of.connect_credit.has = of.connect_credit.has.saturating_sub(1);
        }
        let mut result = Err(Errno::EAGAIN);
        for _ in 0..SEARCHES {
            result = self.connect_to(now, owner, args, host);
            if result != Err(Errno::EAGAIN) {
                break;
            }
        }
        if let Err(errno) = result {
            // The program has the anchor already.
            self.hostif.anchors.bind(session, queue_set, AnchorHandle(args.anchor), AnchorTarget::Nothing);
            if let Some(record) = self.hostif.sessions.get_mut(session) {
                record.flows.withdraw(flow);
            }
            let errno = if errno == Errno::EAGAIN { Errno::EADDRNOTAVAIL } else { errno };
            self.hostif.answer(session, queue_set, Completion::Connected { flow, errno });
        }
        self.give_connect_credit(session, queue_set, host);
        self.hostif.takes_answers(session, queue_set)
    }

    /// A queue set's program connects within this host: it is given ids for the next times.
    pub(super) fn give_connect_credit<H: HostMemory>(
        &mut self,
        session: SessionId,
        queue_set: QueueSetId,
        host: &mut H,
    ) {
        let ports = self.config.ports.count();
        if self.flows.len() - self.flows.time_waits.len() >= ports as usize {
            // Local connections have half of all ports, or more: that there is none left is said at once.
            self.names.note_lapse();
            return;
        }
        let user = self.hostif.sessions.user_of(session);
        let headroom = (self.config.flows_max / HEADROOM_ONE_IN) as u64;
        let may_have_more = self.hostif.sessions.users().may_take(user, Resource::Flows, headroom).is_ok()
            && self.hostif.sessions.may_have_flow(session);
        let Some(record) = self.hostif.sessions.get_mut(session).filter(|record| record.is_open()) else {
            return;
        };
        let Some(SessionQueueSet { connect_credit: credit, .. }) =
            record.queue_sets.get_mut(queue_set.index())
        else {
            return;
        };
        let most =
            u32::from(CREDIT_MAX).min(record.layout.flows / u32::from(CREDIT_MAX)).min(ports / 4) as u8;
        credit.wants = (credit.wants * 2).clamp(2, CREDIT_MAX).min(most);
        if !may_have_more {
            return;
        }
        let layout = record.layout;
        let mut given: [FlowId; CREDIT_MAX as usize] = [FlowId::default(); CREDIT_MAX as usize];
        let mut count = 0;
        while credit.has < credit.wants
            && let Some(flow) = record.flows.promise()
        {
            credit.has += 1;
            given[count] = flow;
            count += 1;
        }
        for &flow in &given[..count] {
            // What stands there is of the last connection of that id, and is not to be taken for the next one's.
            host.write(session, layout.flow_info(flow.slot()), FlowInfo::default().as_bytes());
            self.hostif.answer(session, queue_set, Completion::ConnectCredit { flow });
        }
    }
}
