//! `Connect`, as a program asks for it, with an answer or without ([`super::connect_credit`]).

use super::Engine;
use super::active_open::promised;
use crate::hostif::anchors::AnchorTarget;
use crate::work::Owner;
use toe_abi::attach::FenceReason;
use toe_abi::command::{CONNECT_FLAGS, ConnectArgs};
use toe_abi::entry::Command;
use toe_base::{AnchorHandle, FlowId, Instant, QueueSetId, SessionId};
use toe_tcp::memory::HostMemory;
use zerocopy::FromBytes;

impl Engine {
    /// `Connect`.
    pub(super) fn connect<H: HostMemory>(
        &mut self,
        now: Instant,
        (session, queue_set): (SessionId, QueueSetId),
        token: u32,
        args: &[u8; 64],
        host: &mut H,
    ) -> Result<(), FenceReason> {
        let args = ConnectArgs::read_from_bytes(args).map_err(|_| FenceReason::BadArgument)?;
        if args.reserved.iter().any(|b| *b != 0) || args.flags & !CONNECT_FLAGS != 0 {
            return Err(FenceReason::BadArgument);
        }
        let anchor = AnchorHandle(args.anchor);
        if self.hostif.anchors.get(anchor) != Some(AnchorTarget::Unused(session)) {
            return Err(FenceReason::UnknownHandle);
        }
        let mut owner = Owner { session, queue_set, flow_id: FlowId::default(), fd: args.fd };
        if let Some(flow) = promised(&args) {
            owner.flow_id = flow;
            return self.connect_by_credit(now, owner, &args, host);
        }
        let result = self.connect_to(now, owner, &args, host);
        let idx = result.ok().and_then(|id| self.hostif.sessions.get(session)?.flows.get(id));
        self.hostif.answer_command(
            session,
            queue_set,
            token,
            Command::Connect { token },
            result.map(FlowId::raw),
        )?;
        if idx.is_some_and(|idx| self.flows.get(idx).tcb.is_local) {
            self.give_connect_credit(session, queue_set, host);
        }
        Ok(())
    }
}
