//! Virtual interfaces (decision 0036): who may ask, and who is charged.

use super::Engine;
use crate::counter::Counter;
use crate::hostif::users::{Resource, UserIdx};
use crate::parts::HostInterface;
use crate::via::{Ended, Via, ViaOutcome};
use toe_abi::attach::Request;
use toe_abi::errno::Errno;
use toe_base::{SessionId, ViaId};

impl Engine {
    /// A session asks for something of virtual interfaces. EINVAL: of something else.
    pub fn handle_via(&mut self, id: SessionId, request: Request) -> Result<ViaOutcome<UserIdx>, Errno> {
        match request {
            Request::ViaName { name } => {
                let session =
                    self.hostif.sessions.get(id).filter(|session| session.is_open()).ok_or(Errno::EINVAL)?;
                let cred = session.cred;
                if !self.config.direct {
                    return Err(Errno::EOPNOTSUPP);
                }
                self.via.name(id, cred, name).map(|()| ViaOutcome::Named)
            }
            Request::ViaListen { from, discriminator } => {
                self.via.may_add(id)?;
                let payer = self.hostif.charge(&mut self.counters, id, Resource::Listeners)?;
                let listens = self.via.listen(id, from, discriminator, payer);
                self.hostif.charge_back(&listens, payer, Resource::Listeners);
                listens.map(|(listener, is_awaited)| ViaOutcome::Listens(listener, is_awaited))
            }
            Request::ViaConnect { to, discriminator, attributes } => {
                // It will be memory that two processes and the engine map, as a channel is.
                self.via.may_add(id)?;
                let payer = self.hostif.charge(&mut self.counters, id, Resource::Channels)?;
                let asked = self.via.ask(id, (to, discriminator), attributes, payer);
                self.hostif.charge_back(&asked, payer, Resource::Channels);
                asked.map(|(connection, listeners)| ViaOutcome::Asked(connection, listeners))
            }
            Request::ViaTake { listener } => {
                let taken = self.via.take(id, ViaId(listener))?;
                self.counters.add(Counter::ViaConnections);
                Ok(ViaOutcome::Taken(taken))
            }
            Request::ViaFetch { connection } => {
                self.via.fetch(id, ViaId(connection)).map(ViaOutcome::Fetched)
            }
            Request::ViaForget { handle } => {
                let ended = self.via.forget(id, ViaId(handle))?;
                self.hostif.uncharge(ended);
                Ok(ViaOutcome::Ended(ended))
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

impl HostInterface {
    /// A session is about to end, and with it all its listeners and connections.
    pub(super) fn leave_via(&mut self, via: &mut Via<UserIdx>, id: SessionId) -> Vec<Ended<UserIdx>> {
        let ended = via.forget_session(id);
        ended.iter().for_each(|ended| self.uncharge(*ended));
        ended
    }

    /// The payer gets back what there is not.
    fn charge_back<T>(&mut self, made: &Result<T, Errno>, payer: UserIdx, resource: Resource) {
        if made.is_err() {
            self.sessions.users_mut().give(payer, resource, 1);
        }
    }

    fn uncharge(&mut self, ended: Ended<UserIdx>) {
        self.give(ended.payer, if ended.is_listener { Resource::Listeners } else { Resource::Channels });
    }
}
