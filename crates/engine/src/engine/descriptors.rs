//! A program closes a descriptor: one copy of it, or the last one, with which what it stands for ends.

use super::Edit;
use crate::flow::carrier::Earning;
use crate::hostif::anchors::AnchorTarget;
use crate::parts::{Records, TcpPlanes};
use toe_abi::attach::FenceReason;
use toe_abi::entry::{Command, Completion};
use toe_base::{AnchorHandle, FlowId, Instant, QueueSetId, SessionId};
use toe_tcp::memory::HostMemory;

impl Records<'_> {
    /// `Command::Lend` and `Command::CloseCopy`: the anchor of what the session has, or has had, has a copy more or less. Once the flow is
    /// in one process alone it may have a channel.
    pub(super) fn count_copies(&mut self, session: SessionId, command: Command) -> Result<(), FenceReason> {
        let (Command::Lend { anchor } | Command::CloseCopy { lifetime: anchor }) = command else {
            return Ok(());
        };
        let Some(AnchorTarget::Flow(idx)) = self.hostif.anchors.get(anchor) else { return Ok(()) };
        if let Command::Lend { .. } = command {
            let has_it = self.flows.get(idx).conn.tenancy.owner().session == session;
            self.hostif.anchors.lend(session, anchor, has_it);
        } else if self.hostif.anchors.copy_closed(session, anchor) {
            self.edit(idx, |records, idx| {
                let earning = records.flows.get_mut(idx).conn.carrier.earning();
                earning.into_iter().for_each(Earning::next_unit);
            });
        }
        Ok(())
    }

    /// A process has closed its descriptor. The last close of any copy ends the flow ([`TcpPlanes::anchor_closed`]), in the way that was
    /// asked for.
    ///
    /// Its use of a channel ends now: the host has let go of that. What it had received there and not read (it says
    /// `abort` then) nobody else can have, and a stream with a hole is worse than none.
    fn close_one_copy<H: HostMemory>(&mut self, now: Instant, idx: Edit<'_>, abort: bool, host: &mut H) {
        let flow = self.flows.get_mut(idx);
        if abort {
            flow.set_abort_at_close(true);
        }
        let was_direct = flow.conn.carrier.channel().is_some();
        if self.hostif.let_go_of_channel(self.flows, idx, host) || was_direct && abort {
            self.abort_with_hole(now, idx);
        }
    }
}

impl<H: HostMemory> TcpPlanes<'_, H> {
    /// `Command::Close`, of what its program has accepted or made and of what it has not, and `Command::Disconnect`.
    pub(super) fn end_flow(&mut self, (session, flow): (SessionId, FlowId), command: Command) {
        let Some(idx) = self.records.hostif.flow_of(self.records.counters, session, flow) else { return };
        match command {
            Command::Close { abort, .. } if self.records.flows.get(idx).conn.tenancy.is_held() => {
                self.edit(idx, |planes, idx| {
                    planes.records.close_one_copy(planes.now, idx, abort, planes.host)
                });
            }
            Command::Close { abort, .. } => self.close_after_peer(idx, abort),
            _ => self.edit(idx, |planes, idx| planes.records.disconnect(planes.now, idx, planes.host)),
        }
    }

    /// `Command::CloseRetained`: as if the anchor had been closed, which only its session has open still.
    pub(super) fn close_retained(
        &mut self,
        (session, queue_set): (SessionId, QueueSetId),
        (flow, anchor): (FlowId, AnchorHandle),
        abort: bool,
    ) -> Result<(), FenceReason> {
        let idx = self.records.hostif.sessions.get(session).and_then(|s| s.flows.get(flow));
        let ends = idx.filter(|idx| {
            self.records.flows.get(*idx).conn.tenancy.lifetime() == Some(anchor)
                && self.records.hostif.anchors.owner(anchor) == Some(session)
        });
        let answer = match ends {
            Some(idx) => {
                self.close_after_peer(idx, abort);
                self.records.hostif.forget_anchor(anchor);
                self.records.hostif.anchors.keep(anchor);
                Completion::AnchorFree { anchor }
            }
            None => Completion::AnchorShared { anchor },
        };
        self.records.hostif.answer(session, queue_set, answer);
        self.records.hostif.takes_answers(session, queue_set)
    }

    /// [`crate::ControlEvent::LastClose`].
    pub(super) fn anchor_closed(&mut self, anchor: AnchorHandle) {
        match self.records.hostif.anchors.get(anchor) {
            Some(AnchorTarget::Flow(idx)) => {
                self.close_after_peer(idx, false);
            }
            Some(AnchorTarget::Listener(idx)) => {
                if !self.records.accepting(self.now, self.host).send_listener_on_its_way(idx, anchor) {
                    self.records.accepting(self.now, self.host).close_listener_anchor(idx, anchor);
                }
            }
            Some(AnchorTarget::Nothing) => {}
            // Its session may have a command under way that binds it, unless it never got it.
            Some(AnchorTarget::Unused(_)) if self.records.hostif.anchors.owner(anchor).is_some() => {
                return self.records.hostif.anchors.note_closed_early(anchor);
            }
            Some(AnchorTarget::Unused(_)) => {}
            None => return,
        }
        if let Some((owner, queue_set)) = self.records.hostif.forget_anchor(anchor) {
            self.records.hostif.answer(owner, queue_set, Completion::AnchorFree { anchor });
        }
    }
}
