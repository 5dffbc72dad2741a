//! Virtual interfaces (decision 0036): who may ask, and who is charged.

use super::Engine;
use crate::counter::Counter;
use crate::hostif::users::{Resource, UserIdx};
use crate::via::{Ended, Taken};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName};
use toe_base::{SessionId, ViaId};

impl Engine {
    /// What a session's node is called.
    pub fn via_name(&mut self, id: SessionId, name: NodeName) -> Result<(), Errno> {
        let session = self.sessions.get(id).filter(|session| session.open).ok_or(Errno::EINVAL)?;
        let cred = session.cred;
        if !self.config.direct {
            return Err(Errno::EOPNOTSUPP);
        }
        self.via.name(id, cred, name)
    }

    /// The listener, and whether a connection waits for it already.
    pub fn via_listen(
        &mut self,
        id: SessionId,
        from: Option<NodeName>,
        discriminator: u64,
    ) -> Result<(ViaId, bool), Errno> {
        self.via.listen(id, from, discriminator)
    }

    /// Asks for a connection; also gives the sessions that listen for it.
    pub fn via_ask(
        &mut self,
        id: SessionId,
        to: (NodeName, u64),
        attributes: Attributes,
    ) -> Result<(ViaId, Vec<SessionId>), Errno> {
        self.via.may_ask(id)?;
        let payer = self.sessions.get(id).ok_or(Errno::EINVAL)?.user;
        // It will be memory that two processes and the engine map, as a channel is.
        if let Err(refused) = self.sessions.users_mut().take(payer, Resource::Channels, 1) {
            self.counters.add(Counter::OverQuota);
            return Err(refused.into());
        }
        let asked = self.via.ask(id, to, attributes, payer);
        if asked.is_err() {
            self.sessions.users_mut().give(payer, Resource::Channels, 1);
        }
        asked
    }

    pub fn via_take(&mut self, id: SessionId, listener: ViaId) -> Result<Taken, Errno> {
        let taken = self.via.take(id, listener)?;
        self.counters.add(Counter::ViaConnections);
        Ok(taken)
    }

    pub fn via_fetch(&self, id: SessionId, connection: ViaId) -> Result<(SessionId, NodeName), Errno> {
        self.via.fetch(id, connection)
    }

    /// Ends a listener or connection; the session of the other side, if its memory is to be closed.
    pub fn via_forget(&mut self, id: SessionId, handle: ViaId) -> Result<Option<SessionId>, Errno> {
        let ended = self.via.forget(id, handle)?;
        self.uncharge(ended);
        Ok(ended.other)
    }

    /// A session is about to end: the connections whose memory is to be closed, each with its other side.
    pub fn via_leave(&mut self, id: SessionId) -> Vec<(ViaId, SessionId)> {
        let ended = self.via.forget_session(id);
        ended.iter().for_each(|ended| self.uncharge(*ended));
        ended.into_iter().filter_map(|ended| Some((ended.handle, ended.other?))).collect()
    }

    /// Listeners and connections.
    pub fn via_count(&self) -> usize {
        self.via.len()
    }

    fn uncharge(&mut self, ended: Ended<UserIdx>) {
        if let Some(payer) = ended.payer {
            self.sessions.users_mut().give(payer, Resource::Channels, 1);
        }
    }
}
