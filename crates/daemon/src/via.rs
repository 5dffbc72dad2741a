//! The memory of connections of virtual interfaces: made when one is taken, fetched by the program that has asked for it. What programs ask,
//! the engine decides; here it is carried out. Called by `attach`, and by the run loop when a session ends.

use crate::attach::Answer;
use crate::daemon::Daemon;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, ViaState};
use toe_base::{SessionId, ViaId};
use toe_ring::ViaMemory;

#[derive(Debug)]
struct Connection {
    memory: ViaMemory,
    /// Until the one that has asked for it has fetched it.
    file: Option<OwnedFd>,
}

impl Drop for Connection {
    /// Also with the engine: nobody would say any more that one of the two has gone.
    fn drop(&mut self) {
        self.memory.advance(ViaState::Closed);
    }
}

/// All connections of the engine whose memory is made.
#[derive(Debug, Default)]
pub struct Connections {
    table: HashMap<ViaId, Connection>,
}

impl Connections {
    /// Makes the memory; what is returned is for who has taken the connection.
    fn open(&mut self, id: ViaId) -> std::io::Result<OwnedFd> {
        let (memory, file) = ViaMemory::create()?;
        let copy = file.try_clone()?;
        self.table.insert(id, Connection { memory, file: Some(file) });
        Ok(copy)
    }

    /// For the other one. Nobody else gets it.
    fn fetch(&mut self, id: ViaId) -> Option<OwnedFd> {
        self.table.get_mut(&id)?.file.take()
    }

    /// What was sent stays with the receiver, who has the memory.
    fn close(&mut self, id: ViaId) {
        self.table.remove(&id);
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl Daemon {
    /// Answers a request about virtual interfaces.
    pub(crate) fn answer_via(&mut self, session: SessionId, request: Request) -> Answer {
        let handle = |id: ViaId| Ok((Reply::ViaHandle { handle: id.0 }, Vec::new()));
        match request {
            Request::ViaName { name } => {
                self.engine.via_name(session, name)?;
                Ok((Reply::Done, Vec::new()))
            }
            Request::ViaListen { from, discriminator } => {
                let (listener, is_awaited) = self.engine.via_listen(session, from, discriminator)?;
                if is_awaited {
                    self.interrupt(session);
                }
                handle(listener)
            }
            Request::ViaConnect { to, discriminator, attributes } => {
                let (connection, listeners) =
                    self.engine.via_ask(session, (to, discriminator), attributes)?;
                listeners.into_iter().for_each(|listener| self.interrupt(listener));
                handle(connection)
            }
            Request::ViaTake { listener } => self.take_via(session, ViaId(listener)),
            Request::ViaFetch { connection } => self.fetch_via(session, ViaId(connection)),
            Request::ViaForget { handle } => {
                let handle = ViaId(handle);
                if let Some(other) = self.engine.via_forget(session, handle)? {
                    self.close_via(handle, other);
                }
                Ok((Reply::Done, Vec::new()))
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn take_via(&mut self, session: SessionId, listener: ViaId) -> Answer {
        let taken = self.engine.via_take(session, listener)?;
        let made = self.waker_of(taken.asker).and_then(|waker| {
            let memory = self.via.open(taken.connection).map_err(|error| {
                tracing::debug!(%error, "no memory for a connection of virtual interfaces");
                Errno::ENOMEM
            })?;
            Ok(vec![memory, waker])
        });
        // The one that has asked finds its connection gone when it cannot be made.
        self.interrupt(taken.asker);
        match made {
            Ok(fds) => {
                let (handle, peer) = (taken.connection.0, taken.peer);
                Ok((Reply::ViaConnection { handle, peer, attributes: taken.attributes }, fds))
            }
            Err(errno) => {
                self.engine.via_forget(session, taken.connection)?;
                Err(errno)
            }
        }
    }

    fn fetch_via(&mut self, session: SessionId, connection: ViaId) -> Answer {
        let (other, peer) = self.engine.via_fetch(session, connection)?;
        let waker = self.waker_of(other)?;
        let memory = self.via.fetch(connection).ok_or(Errno::EALREADY)?;
        let attributes = Attributes::default();
        Ok((Reply::ViaConnection { handle: connection.0, peer, attributes }, vec![memory, waker]))
    }

    /// A sending end of the interrupt by which a session is woken.
    fn waker_of(&self, session: SessionId) -> Result<OwnedFd, Errno> {
        let queue_set = self.sessions.get(session).and_then(|session| session.queue_sets.first());
        queue_set.ok_or(Errno::EINVAL)?.waker().map_err(|_| Errno::EMFILE)
    }

    fn interrupt(&self, session: SessionId) {
        if let Some(queue_set) = self.sessions.get(session).and_then(|session| session.queue_sets.first()) {
            queue_set.interrupt();
        }
    }

    /// One side has left: the other one is to see it.
    fn close_via(&mut self, connection: ViaId, other: SessionId) {
        self.via.close(connection);
        self.interrupt(other);
    }

    /// The session is about to end: who has a connection to it hears of that.
    pub(crate) fn leave_via(&mut self, session: SessionId) {
        for (connection, other) in self.engine.via_leave(session) {
            self.close_via(connection, other);
        }
    }
}
