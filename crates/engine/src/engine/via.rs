//! Virtual interfaces (decision 0036): who may ask, and who is charged.

use super::Engine;
use crate::counter::Counter;
use crate::hostif::users::{Resource, UserIdx};
use crate::via::{Ended, Fetched, Taken};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName};
use toe_base::{SessionId, ViaId};

/// What the driver does about a listener or connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViaEnd {
    pub handle: ViaId,
    /// Hears of it.
    pub other: Option<SessionId>,
    /// Side 1 has ended it: if it has rejected it, that stands.
    pub by_taker: bool,
    /// That one has yet to fetch the memory, and finds there how it ended.
    pub is_kept: bool,
}

impl From<Ended<UserIdx>> for ViaEnd {
    fn from(ended: Ended<UserIdx>) -> ViaEnd {
        let Ended { handle, payer: _, is_listener: _, other, by_taker, is_kept } = ended;
        ViaEnd { handle, other, by_taker, is_kept }
    }
}

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
    pub fn via_forget(&mut self, id: SessionId, handle: ViaId) -> Result<ViaEnd, Errno> {
        let ended = self.via.forget(id, handle)?;
        self.uncharge(ended);
        Ok(ended.into())
    }

    /// A session is about to end, and with it all its listeners and connections.
    pub fn via_leave(&mut self, id: SessionId) -> Vec<ViaEnd> {
        let ended = self.via.forget_session(id);
        ended.iter().for_each(|ended| self.uncharge(*ended));
        ended.into_iter().map(ViaEnd::from).collect()
    }

    /// Listeners and connections.
    pub fn via_count(&self) -> usize {
        self.via.len()
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
