//! A program closes a descriptor: one copy of it, or the last one, with which what it stands for ends.

use super::{Edit, Engine};
use crate::flow::carrier::Earning;
use crate::hostif::anchors::AnchorTarget;
use crate::parts::Records;
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

    /// A process has closed its descriptor. The last close of any copy ends the flow ([`Engine::anchor_closed`]), in the way that was
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

impl Engine {
    /// `Command::Close`, of what its program has accepted or made and of what it has not, and `Command::Disconnect`.
    pub(super) fn end_flow<H: HostMemory>(
        &mut self,
        now: Instant,
        (session, flow): (SessionId, FlowId),
        command: Command,
        host: &mut H,
    ) {
        let Some(idx) = self.hostif.flow_of(&mut self.counters, session, flow) else { return };
        match command {
            Command::Close { abort, .. } if self.flows.get(idx).conn.tenancy.is_held() => {
                self.edit(idx, |engine, idx| engine.records().close_one_copy(now, idx, abort, host));
            }
            Command::Close { abort, .. } => self.close_after_peer(now, idx, abort, host),
            _ => self.edit(idx, |engine, idx| engine.records().disconnect(now, idx, host)),
        }
    }

    /// `Command::CloseRetained`: as if the anchor had been closed, which only its session has open still.
    pub(super) fn close_retained<H: HostMemory>(
        &mut self,
        now: Instant,
        (session, queue_set): (SessionId, QueueSetId),
        (flow, anchor): (FlowId, AnchorHandle),
        abort: bool,
        host: &mut H,
    ) -> Result<(), FenceReason> {
        let idx = self.hostif.sessions.get(session).and_then(|s| s.flows.get(flow));
        let ends = idx.filter(|idx| {
            self.flows.get(*idx).conn.tenancy.lifetime() == Some(anchor)
                && self.hostif.anchors.owner(anchor) == Some(session)
        });
        let answer = match ends {
            Some(idx) => {
                self.close_after_peer(now, idx, abort, host);
                self.hostif.forget_anchor(anchor);
                self.hostif.anchors.keep(anchor);
                Completion::AnchorFree { anchor }
            }
            None => Completion::AnchorShared { anchor },
        };
        self.hostif.answer(session, queue_set, answer);
        if self.hostif.sessions.answers_are_full(session, queue_set) {
            return Err(FenceReason::CompletionOverflow);
        }
        Ok(())
    }

    /// [`crate::ControlEvent::LastClose`].
    pub(super) fn anchor_closed<H: HostMemory>(&mut self, now: Instant, anchor: AnchorHandle, host: &mut H) {
        match self.hostif.anchors.get(anchor) {
            Some(AnchorTarget::Flow(idx)) => {
                self.close_after_peer(now, idx, false, host);
            }
            Some(AnchorTarget::Listener(idx)) => {
                if !self.accepting(now, host).send_listener_on_its_way(idx, anchor) {
                    self.accepting(now, host).close_listener_anchor(idx, anchor);
                }
            }
            Some(AnchorTarget::Nothing) => {}
            // Its session may have a command under way that binds it, unless it never got it.
            Some(AnchorTarget::Unused(_)) if self.hostif.anchors.owner(anchor).is_some() => {
                return self.hostif.anchors.note_closed_early(anchor);
            }
            Some(AnchorTarget::Unused(_)) => {}
            None => return,
        }
        if let Some((owner, queue_set)) = self.hostif.forget_anchor(anchor) {
            self.hostif.answer(owner, queue_set, Completion::AnchorFree { anchor });
        }
    }
}
