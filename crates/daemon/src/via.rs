//! The memory of connections of virtual interfaces: made when one is taken, fetched by the program that has asked for it. What programs ask,
//! the engine decides; here it is carried out. Called by `attach`, and by the run loop when a session ends.

use crate::attach::Answer;
use crate::daemon::Daemon;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, HANDLES_MAX, ViaState};
use toe_base::{SessionId, ViaId};
use toe_engine::ViaEnd;
use toe_ring::{EngineQueueSet, ViaMemory};

#[derive(Debug)]
struct Connection {
    memory: ViaMemory,
    /// Until the one that has asked for it has fetched it.
    file: Option<OwnedFd>,
}

/// All connections of the engine whose memory is made.
#[derive(Debug, Default)]
pub struct Connections {
    table: HashMap<ViaId, Connection>,
    /// Of those that are over. Whoever has the last of a memory frees it, which takes up to 100 µs: one a round.
    over: Vec<Connection>,
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

    /// What was sent stays with the receiver, who has the memory or is yet to fetch it.
    fn close(&mut self, end: ViaEnd) {
        let Some(connection) = self.table.get(&end.handle) else { return };
        let is_rejected = end.by_taker && connection.memory.state() == ViaState::Rejected;
        if !is_rejected {
            connection.memory.advance(ViaState::Closed);
        }
        if !end.is_kept {
            self.over.extend(self.table.remove(&end.handle));
        }
    }

    /// Frees a memory that is over, and as many more as there are too many of: nobody has what he gives back faster than that. How many.
    pub(crate) fn free_one(&mut self) -> usize {
        let before = self.over.len();
        self.over.truncate(before.saturating_sub(1).min(HANDLES_MAX));
        before - self.over.len()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl Drop for Connections {
    /// With the engine: nobody would say any more that one of the two has gone.
    fn drop(&mut self) {
        for connection in self.table.values() {
            connection.memory.advance(ViaState::Closed);
        }
    }
}

impl Daemon {
    /// Answers a request about virtual interfaces.
    pub(crate) fn answer_via(&mut self, session: SessionId, request: Request) -> Answer {
        let handle = |id: ViaId| Ok((Reply::ViaHandle { handle: id.0 }, Vec::new()));
        match request {
            Request::ViaName { name } => {
                // Who could not be woken would be a fault to those that it meets.
                self.first_queue_set(session).ok_or(Errno::EINVAL)?;
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
                let end = self.engine.via_forget(session, handle)?;
                self.end_via(end);
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
                // By the one that has asked: there is nothing to fetch.
                self.engine.via_forget(taken.asker, taken.connection)?;
                Err(errno)
            }
        }
    }

    fn fetch_via(&mut self, session: SessionId, connection: ViaId) -> Answer {
        let fetched = self.engine.via_fetch(session, connection)?;
        // One that has left needs no waking, but a reply has two descriptors.
        let waker = self.waker_of(fetched.other.unwrap_or(session))?;
        let memory = self.via.fetch(connection).ok_or(Errno::EALREADY)?;
        let attributes = Attributes::default();
        let reply = Reply::ViaConnection { handle: connection.0, peer: fetched.peer, attributes };
        Ok((reply, vec![memory, waker]))
    }

    /// A sending end of the interrupt by which a session is woken.
    fn waker_of(&self, session: SessionId) -> Result<OwnedFd, Errno> {
        self.first_queue_set(session).ok_or(Errno::EINVAL)?.waker().map_err(|_| Errno::EMFILE)
    }

    fn interrupt(&self, session: SessionId) {
        if let Some(queue_set) = self.first_queue_set(session) {
            queue_set.interrupt();
        }
    }

    /// By whose interrupt a session hears of virtual interfaces.
    fn first_queue_set(&self, session: SessionId) -> Option<&EngineQueueSet> {
        self.sessions.get(session)?.queue_sets.first()
    }

    /// One side has left: the other one is to see it.
    fn end_via(&mut self, end: ViaEnd) {
        self.via.close(end);
        if let Some(other) = end.other {
            self.interrupt(other);
        }
    }

    /// The session is about to end: who has a connection to it hears of that.
    pub(crate) fn leave_via(&mut self, session: SessionId) {
        for end in self.engine.via_leave(session) {
            self.end_via(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that ended with many connections had the engine free the memory of all at once.
    #[test]
    fn memory_of_connections_that_are_over_is_freed_one_a_round() {
        let mut connections = Connections::default();
        let handles = [0, 1, 2].map(ViaId);
        for handle in handles {
            connections.open(handle).expect("memory");
        }
        for handle in handles {
            connections.close(ViaEnd { handle, other: None, by_taker: false, is_kept: false });
        }
        assert!(connections.is_empty());
        assert_eq!([(); 5].map(|()| connections.free_one()), [1, 1, 1, 0, 0]);
    }
}
