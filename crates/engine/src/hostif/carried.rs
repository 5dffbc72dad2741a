//! Bytes of connections that are about to change hands, copied ahead of that: whoever asks for one has those that are for it.

use super::session::Sessions;
use super::users::UserIdx;
use crate::flow::key::FlowKey;
use std::collections::BTreeMap;
use toe_base::arena::Block;
use toe_base::{FlowIdx, SessionId};
use toe_tcp::receive_buffer::Prefetched;

/// Which connection, that its place is not another's by now, and who pays for what lies in staging memory.
pub(crate) type Of = (FlowIdx, FlowKey, UserIdx);

/// Of one connection.
#[derive(Debug)]
pub(crate) struct Ready {
    pub of: Of,
    /// What it has to send, in staging memory.
    pub sent: Option<Prefetched>,
    /// What it has received, in this session's memory.
    pub received: Option<(SessionId, Prefetched)>,
}

/// By the session that asks, each of which asks for one at a time.
#[derive(Debug, Default)]
pub(crate) struct Prefetches(BTreeMap<SessionId, Ready>);

impl Prefetches {
    pub fn get_mut(&mut self, asker: SessionId, of: Of) -> Option<&mut Ready> {
        self.0.get_mut(&asker).filter(|ready| ready.of == of)
    }

    pub fn insert(&mut self, asker: SessionId, ready: Ready) {
        self.0.insert(asker, ready);
    }

    /// The memory of what was not needed is free again.
    pub fn forget(&mut self, sessions: &mut Sessions, asker: SessionId) {
        let Some(Ready { of: (.., payer), sent, received }) = self.0.remove(&asker) else { return };
        let sent = sent.map(|ahead| (SessionId(0), ahead));
        for (session, ahead) in sent.into_iter().chain(received) {
            sessions.arena(session, payer).free(ahead.block);
        }
    }

    pub fn blocks(&self) -> impl Iterator<Item = (SessionId, Block)> {
        let of = |ready: &Ready| {
            let sent = ready.sent.map(|ahead| (SessionId(0), ahead.block));
            sent.into_iter().chain(ready.received.map(|(session, ahead)| (session, ahead.block)))
        };
        self.0.values().flat_map(of)
    }
}
