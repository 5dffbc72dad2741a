//! The memory of connections of virtual interfaces: made when one is taken, fetched by the program that has asked for it. What programs ask,
//! the engine decides; here it is carried out. Called by `attach`, and by the run loop when a session ends. The engine's thread does not look at
//! that memory, where the two programs can punch holes: their user's does.

use crate::control_server::pages::{Interrupt, Shared, ViaOver};
use crate::control_server::socket::Answer;
use crate::session::Sessions;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, ViaState};
use toe_base::{SessionId, ViaId};
use toe_engine::via::{Ended, Fetched, Taken, ViaOutcome};
use toe_engine::{Engine, UserIdx};
use toe_ring::irq::Signal;
use toe_ring::{EngineQueueSet, ViaMemory};

/// Sessions that are interrupted in one go: each takes a system call.
const NOTIFIED_AT_ONCE: usize = 16;

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
    untold: Untold,
}

/// Sessions that are to be interrupted, each once: one connection may concern all of a user's. Some a round, in turn.
#[derive(Debug, Default)]
struct Untold {
    sessions: BTreeSet<SessionId>,
    /// The last one that had its turn.
    last: SessionId,
}

impl Untold {
    /// Those whose turn it is.
    fn some(&mut self) -> Vec<SessionId> {
        let after = self.sessions.range((Bound::Excluded(self.last), Bound::Unbounded));
        let some: Vec<SessionId> =
            after.chain(self.sessions.range(..=self.last)).copied().take(NOTIFIED_AT_ONCE).collect();
        self.last = some.last().copied().unwrap_or(self.last);
        some.iter().for_each(|session| _ = self.sessions.remove(session));
        some
    }
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

    /// What was sent stays with the receiver, who has the memory or is yet to fetch it. `None`: it was never made.
    fn close(&mut self, end: &Ended<UserIdx>) -> Option<ViaMemory> {
        if end.is_retained {
            return self.table.get(&end.handle).map(|connection| connection.memory.clone());
        }
        self.table.remove(&end.handle).map(|connection| connection.memory)
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

impl Connections {
    /// Answers a request about virtual interfaces.
    pub(crate) fn answer(
        &mut self,
        engine: &mut Engine,
        sessions: &mut Sessions,
        session: SessionId,
        request: Request,
    ) -> Answer {
        if let Request::ViaName { .. } = request {
            // Who could not be woken would be a fault to those that it meets.
            first_queue_set(sessions, session).ok_or(Errno::EINVAL)?;
        }
        let handle = |id: ViaId| Ok((Reply::ViaHandle { handle: id.0 }, Vec::new()));
        match engine.handle_via(session, request)? {
            ViaOutcome::Named => Ok((Reply::Done, Vec::new())),
            ViaOutcome::Listens(listener, is_awaited) => {
                if is_awaited {
                    interrupt(sessions, session);
                }
                handle(listener)
            }
            ViaOutcome::Asked(connection, listeners) => {
                self.untold.sessions.extend(listeners);
                self.tell_some(sessions);
                handle(connection)
            }
            ViaOutcome::Taken(taken) => self.hand_to_taker(engine, sessions, taken),
            ViaOutcome::Fetched(fetched) => self.hand_to_asker(sessions, session, fetched),
            ViaOutcome::Ended(end) => {
                self.end(sessions, session, end);
                self.tell_some(sessions);
                Ok((Reply::Done, Vec::new()))
            }
        }
    }

    fn hand_to_taker(&mut self, engine: &mut Engine, sessions: &Sessions, taken: Taken) -> Answer {
        let made = waker_of(sessions, taken.asker).and_then(|waker| {
            let memory = self.open(taken.connection).map_err(|error| {
                tracing::debug!(%error, "no memory for a connection of virtual interfaces");
                Errno::ENOMEM
            })?;
            Ok(vec![memory, waker])
        });
        // The one that has asked finds its connection gone when it cannot be made.
        interrupt(sessions, taken.asker);
        match made {
            Ok(fds) => {
                let (handle, peer) = (taken.connection.0, taken.peer);
                Ok((Reply::ViaConnection { handle, peer, attributes: taken.attributes }, fds))
            }
            Err(errno) => {
                // By the one that has asked: there is nothing to fetch.
                let request = Request::ViaForget { handle: taken.connection.0 };
                engine.handle_via(taken.asker, request)?;
                Err(errno)
            }
        }
    }

    fn hand_to_asker(&mut self, sessions: &Sessions, session: SessionId, fetched: Fetched) -> Answer {
        let Fetched { connection, other, peer } = fetched;
        // One that has left needs no waking, but a reply has two descriptors.
        let waker = waker_of(sessions, other.unwrap_or(session))?;
        let memory = self.fetch(connection).ok_or(Errno::EALREADY)?;
        let attributes = Attributes::default();
        let reply = Reply::ViaConnection { handle: connection.0, peer, attributes };
        Ok((reply, vec![memory, waker]))
    }

    /// The session ends, and these with it: who has a connection to one hears of that.
    pub(crate) fn leave(&mut self, sessions: &mut Sessions, session: SessionId, ends: Vec<Ended<UserIdx>>) {
        for end in ends {
            self.end(sessions, session, end);
        }
        // Its number may be another's soon.
        self.untold.sessions.remove(&session);
        self.tell_some(sessions);
    }

    /// The session has left a connection: its user's thread says so in the memory, and then to the other one.
    fn end(&mut self, sessions: &mut Sessions, session: SessionId, end: Ended<UserIdx>) {
        let Some((memory, left)) = self.close(&end).zip(sessions.get(session)) else {
            self.untold.sessions.extend(end.other);
            return;
        };
        let user = left.user().clone();
        let other = end.other.and_then(|other| first_queue_set(sessions, other));
        let tells = other.map(|queue_set| Arc::clone(queue_set.line().line()));
        user.close(Shared::Via(ViaOver { memory, by_taker: end.by_taker, tells }));
        sessions.will_ring(&user);
    }

    /// Interrupts some of those that are to be. How many.
    pub(crate) fn tell_some(&mut self, sessions: &Sessions) -> usize {
        let some = self.untold.some();
        some.iter().for_each(|session| interrupt(sessions, *session));
        some.len()
    }
}

/// A sending end of the interrupt by which a session is woken.
fn waker_of(sessions: &Sessions, session: SessionId) -> Result<OwnedFd, Errno> {
    let queue_set = first_queue_set(sessions, session).ok_or(Errno::EINVAL)?;
    queue_set.line().another().map_err(|_| Errno::EMFILE)
}

fn interrupt(sessions: &Sessions, session: SessionId) {
    if let Some(queue_set) = first_queue_set(sessions, session) {
        queue_set.line().signal();
    }
}

/// By whose interrupt a session hears of virtual interfaces.
fn first_queue_set(sessions: &Sessions, session: SessionId) -> Option<&EngineQueueSet<Interrupt>> {
    sessions.get(session)?.queue_sets.first()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One connection that was asked for had the engine interrupt all sessions of a user in one go.
    #[test]
    fn sessions_are_told_some_at_a_time_and_each_in_its_turn() {
        let mut untold = Untold::default();
        untold.sessions.extend((1..=40).map(SessionId));
        let first = untold.some();
        assert_eq!(first, (1..=16).map(SessionId).collect::<Vec<_>>());
        // Those that are to be told again come after those that wait.
        untold.sessions.extend(first);
        let next: Vec<SessionId> = [untold.some(), untold.some()].concat();
        assert_eq!(next, (17..=40).chain(1..=8).map(SessionId).collect::<Vec<_>>());
        assert_eq!([(); 2].map(|()| untold.some().len()), [8, 0]);
    }
}
