//! The memory of lanes: made when two sockets have met in the engine, fetched by the programs of both. Called by `attach`, and
//! by the run loop when a session ends.

use crate::control_server::pages::{PagesOut, Shared};
use crate::control_server::socket::Answer;
use crate::session::Sessions;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use toe_abi::attach::Reply;
use toe_abi::errno::Errno;
use toe_base::{Instant, LaneId};
use toe_engine::udp::Asked;
use toe_engine::{ControlEvent, Engine};
use toe_ring::LaneMemory;

#[derive(Debug)]
struct Lane {
    memory: LaneMemory,
    /// Until both programs have it.
    file: Option<OwnedFd>,
    /// Whose it is.
    user: PagesOut,
}

/// All lanes of the engine.
#[derive(Debug, Default)]
pub struct Lanes {
    table: HashMap<LaneId, Lane>,
}

impl Drop for Lanes {
    /// With the engine: nobody would say any more that one of the two has gone.
    fn drop(&mut self) {
        self.table.values().for_each(|lane| lane.memory.close());
    }
}

impl Lanes {
    /// Makes the memory; what is returned is for who has asked. `None`: there is none.
    fn open(&mut self, id: LaneId, ring_len: u32, user: PagesOut) -> Option<OwnedFd> {
        let made = LaneMemory::create(ring_len).map_err(std::io::Error::from);
        let made = made.and_then(|(memory, file)| Ok((file.try_clone()?, memory, file)));
        match made.map(|(copy, memory, file)| (copy, Lane { memory, file: Some(file), user })) {
            Ok((copy, lane)) => {
                self.table.insert(id, lane);
                Some(copy)
            }
            Err(error) => {
                tracing::debug!(%error, "no lane between two sockets");
                None
            }
        }
    }

    /// For the other one. Nobody else gets it.
    fn fetch(&mut self, id: LaneId) -> Option<OwnedFd> {
        self.table.get_mut(&id)?.file.take()
    }

    /// What was published stays with the receiver, who has the memory.
    pub(crate) fn close(&mut self, id: LaneId) {
        if let Some(Lane { memory, user, .. }) = self.table.remove(&id) {
            user.close(Shared::Lane(memory));
            ring(&user);
        }
    }

    /// Has the thread of the user look which of these are closed.
    fn look_at(&self, ids: Vec<LaneId>) {
        let lanes = || ids.iter().filter_map(|id| self.table.get(id).map(|lane| (*id, lane)));
        let Some(user) = lanes().next().map(|(_, lane)| &lane.user) else { return };
        if user.look_at(lanes().map(|(id, lane)| (id, lane.memory.clone())).collect()) {
            ring(user);
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// Wakes the thread to which something was handed.
fn ring(user: &PagesOut) {
    // Own eventfds do not fail.
    let _ = user.eventfd().signal();
}

impl Lanes {
    /// A program says of a socket where its datagrams come from or go to.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        (engine, sessions): (&mut Engine, &mut Sessions),
        user: PagesOut,
        asked: Asked,
    ) -> Answer {
        // Programs close lanes without a word to the engine, which has them looked at when they want another one.
        self.look_at(engine.view().lanes_of(asked.session));
        let Some(given) = engine.ask_lane(asked)? else {
            return Ok((Reply::Done, Vec::new()));
        };
        let ring_len = given.ring_len;
        let memory = match given.is_new {
            true => self.open(given.lane, ring_len, user),
            false => self.fetch(given.lane),
        };
        let Some(memory) = memory else {
            self.end(now, engine, sessions, given.lane);
            return Err(Errno::ENOMEM);
        };
        Ok((Reply::Lane { ring_len }, vec![memory]))
    }

    pub(crate) fn end(&mut self, now: Instant, engine: &mut Engine, sessions: &mut Sessions, lane: LaneId) {
        engine.handle_control(now, ControlEvent::Left(lane), sessions);
        self.close(lane);
    }
}
