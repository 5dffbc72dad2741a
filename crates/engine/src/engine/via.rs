//! Virtual interfaces (decision 0036): who may ask, and who is charged.

use super::Engine;
use crate::counter::Counter;
use crate::hostif::users::{Resource, UserIdx};
use crate::via::{Ended, Fetched, Taken};
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
        let payer = self.charge_via(id, Resource::Listeners)?;
        let listens = self.via.listen(id, from, discriminator, payer);
        if listens.is_err() {
            self.sessions.users_mut().give(payer, Resource::Listeners, 1);
        }
        listens
    }

    /// Asks for a connection; also gives the sessions that listen for it.
    pub fn via_ask(
        &mut self,
        id: SessionId,
        to: (NodeName, u64),
        attributes: Attributes,
    ) -> Result<(ViaId, Vec<SessionId>), Errno> {
        // It will be memory that two processes and the engine map, as a channel is.
        let payer = self.charge_via(id, Resource::Channels)?;
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

    pub fn via_fetch(&mut self, id: SessionId, connection: ViaId) -> Result<Fetched, Errno> {
        self.via.fetch(id, connection)
    }

    /// Ends a listener or connection.
    pub fn via_forget(&mut self, id: SessionId, handle: ViaId) -> Result<Ended<UserIdx>, Errno> {
        let ended = self.via.forget(id, handle)?;
        self.uncharge(ended);
        Ok(ended)
    }

    /// A session is about to end, and with it all its listeners and connections.
    pub(super) fn leave_via(&mut self, id: SessionId) -> Vec<Ended<UserIdx>> {
        let ended = self.via.forget_session(id);
        ended.iter().for_each(|ended| self.uncharge(*ended));
        ended
    }

    /// The session's user, who is charged for one more of that.
    fn charge_via(&mut self, id: SessionId, resource: Resource) -> Result<UserIdx, Errno> {
        self.via.may_add(id)?;
        let payer = self.sessions.get(id).ok_or(Errno::EINVAL)?.user;
        match self.sessions.users_mut().take(payer, resource, 1) {
            Ok(()) => Ok(payer),
            Err(refused) => {
                self.counters.add(Counter::OverQuota);
                Err(refused.into())
            }
        }
    }

    fn uncharge(&mut self, ended: Ended<UserIdx>) {
        if let Some(payer) = ended.payer {
            let resource = if ended.is_listener { Resource::Listeners } else { Resource::Channels };
            self.sessions.users_mut().give(payer, resource, 1);
        }
    }
}
