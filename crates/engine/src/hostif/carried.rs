//! Bytes of connections that are about to change hands, copied ahead of that: whoever asks for one has those that are for it.

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

    /// What was not needed: whose memory it is, who pays for it, and where it lies.
    pub fn take(&mut self, asker: SessionId) -> impl Iterator<Item = (SessionId, UserIdx, Block)> + use<> {
        let of = |ready: Ready| {
            let (.., payer) = ready.of;
            let sent = ready.sent.map(|ahead| (SessionId(0), ahead));
            sent.into_iter().chain(ready.received).map(move |(session, ahead)| (session, payer, ahead.block))
        };
        self.0.remove(&asker).into_iter().flat_map(of)
    }

    pub fn blocks(&self) -> impl Iterator<Item = (SessionId, Block)> {
        let of = |ready: &Ready| {
            let sent = ready.sent.map(|ahead| (SessionId(0), ahead.block));
            sent.into_iter().chain(ready.received.map(|(session, ahead)| (session, ahead.block)))
        };
        self.0.values().flat_map(of)
    }
}
