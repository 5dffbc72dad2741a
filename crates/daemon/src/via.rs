//! The memory of connections of virtual interfaces: made when one is taken, fetched by the program that has asked for it. What programs ask,
//! the engine decides; here it is carried out. Called by `attach`, and by the run loop when a session ends. The engine's thread does not look at
//! that memory, where the two programs can punch holes: their user's does.

use crate::control_server::pages::{Interrupt, Shared, ViaOver};
use crate::control_server::socket::Answer;
use crate::daemon::Daemon;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, ViaState};
use toe_base::{SessionId, ViaId};
use toe_engine::UserIdx;
use toe_engine::via::{Ended, Fetched, Taken, ViaOutcome};
use toe_ring::irq::Signal;
use toe_ring::{EngineQueueSet, ViaMemory};

/// Sessions that are interrupted in one go: each takes a system call.
const TOLD_AT_ONCE: usize = 16;

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
            after.chain(self.sessions.range(..=self.last)).copied().take(TOLD_AT_ONCE).collect();
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
        if end.is_kept {
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

impl Daemon {
    /// Answers a request about virtual interfaces.
    pub(crate) fn answer_via(&mut self, session: SessionId, request: Request) -> Answer {
        if let Request::ViaName { .. } = request {
            // Who could not be woken would be a fault to those that it meets.
            self.first_queue_set(session).ok_or(Errno::EINVAL)?;
        }
        let handle = |id: ViaId| Ok((Reply::ViaHandle { handle: id.0 }, Vec::new()));
        match self.engine.handle_via(session, request)? {
            ViaOutcome::Named => Ok((Reply::Done, Vec::new())),
            ViaOutcome::Listens(listener, is_awaited) => {
                if is_awaited {
                    self.interrupt(session);
                }
                handle(listener)
            }
            ViaOutcome::Asked(connection, listeners) => {
                self.via.untold.sessions.extend(listeners);
                self.tell_some_via();
                handle(connection)
            }
            ViaOutcome::Taken(taken) => self.hand_to_taker(taken),
            ViaOutcome::Fetched(fetched) => self.hand_to_asker(session, fetched),
            ViaOutcome::Ended(end) => {
                self::end(self, session, end);
                self.tell_some_via();
                Ok((Reply::Done, Vec::new()))
            }
        }
    }

    fn hand_to_taker(&mut self, taken: Taken) -> Answer {
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
                let request = Request::ViaForget { handle: taken.connection.0 };
                self.engine.handle_via(taken.asker, request)?;
                Err(errno)
            }
        }
    }

    fn hand_to_asker(&mut self, session: SessionId, Fetched { connection, other, peer }: Fetched) -> Answer {
        // One that has left needs no waking, but a reply has two descriptors.
        let waker = self.waker_of(other.unwrap_or(session))?;
        let memory = self.via.fetch(connection).ok_or(Errno::EALREADY)?;
        let attributes = Attributes::default();
        let reply = Reply::ViaConnection { handle: connection.0, peer, attributes };
        Ok((reply, vec![memory, waker]))
    }

    /// A sending end of the interrupt by which a session is woken.
    fn waker_of(&self, session: SessionId) -> Result<OwnedFd, Errno> {
        self.first_queue_set(session).ok_or(Errno::EINVAL)?.line().another().map_err(|_| Errno::EMFILE)
    }

    fn interrupt(&self, session: SessionId) {
        if let Some(queue_set) = self.first_queue_set(session) {
            queue_set.line().signal();
        }
    }

    /// By whose interrupt a session hears of virtual interfaces.
    fn first_queue_set(&self, session: SessionId) -> Option<&EngineQueueSet<Interrupt>> {
        self.sessions.get(session)?.queue_sets.first()
    }

    /// The session ends, and these with it: who has a connection to one hears of that.
    pub(crate) fn leave_via(&mut self, session: SessionId, ends: Vec<Ended<UserIdx>>) {
        for end in ends {
            self::end(self, session, end);
        }
        // Its number may be another's soon.
        self.via.untold.sessions.remove(&session);
        self.tell_some_via();
    }

    /// Interrupts some of those that are to be. How many.
    pub(crate) fn tell_some_via(&mut self) -> usize {
        let some = self.via.untold.some();
        some.iter().for_each(|session| self.interrupt(*session));
        some.len()
    }
}

/// The session has left a connection: its user's thread says so in the memory, and then to the other one.
fn end(daemon: &mut Daemon, session: SessionId, end: Ended<UserIdx>) {
    let Some((memory, left)) = daemon.via.close(&end).zip(daemon.sessions.get(session)) else {
        daemon.via.untold.sessions.extend(end.other);
        return;
    };
    let user = left.user().clone();
    let tells = end.other.and_then(|other| Some(Arc::clone(daemon.first_queue_set(other)?.line().line())));
    user.close(Shared::Via(ViaOver { memory, by_taker: end.by_taker, tells }));
    daemon.sessions.will_ring(&user);
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
