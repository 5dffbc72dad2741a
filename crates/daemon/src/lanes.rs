//! The memory of lanes: made when two sockets have met in the engine, fetched by the programs of both. Called by `attach`, and
//! by the run loop when a session ends.

use crate::attach::Answer;
use crate::daemon::Daemon;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use toe_abi::attach::{Reply, Way};
use toe_abi::errno::Errno;
use toe_base::{Endpoint, LaneId, SessionId};
use toe_engine::udp::{Asked, Presented};
use toe_ring::LaneMemory;

#[derive(Debug)]
struct Lane {
    memory: LaneMemory,
    /// Until both programs have it.
    file: Option<OwnedFd>,
}

impl Drop for Lane {
    /// Also with the engine: nobody would say any more that one of the two has gone.
    fn drop(&mut self) {
        self.memory.close();
    }
}

/// All lanes of the engine.
#[derive(Debug, Default)]
pub struct Lanes {
    table: HashMap<LaneId, Lane>,
}

impl Lanes {
    /// Makes the memory; what is returned is for who has asked. `None`: there is none.
    fn open(&mut self, id: LaneId, ring_len: u32) -> Option<OwnedFd> {
        let made = LaneMemory::create(ring_len).map_err(std::io::Error::from);
        match made.and_then(|(memory, file)| Ok((file.try_clone()?, Lane { memory, file: Some(file) }))) {
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

    fn is_closed(&self, id: LaneId) -> bool {
        self.table.get(&id).is_none_or(|lane| lane.memory.is_closed())
    }

    /// What was published stays with the receiver, who has the memory.
    fn close(&mut self, id: LaneId) {
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
    /// A program says of a socket where its datagrams come from or go to.
    pub(crate) fn ask_lane(
        &mut self,
        session: SessionId,
        way: Way,
        peer: Endpoint,
        presented: Presented,
    ) -> Answer {
        self.sweep_lanes(session);
        let Some(given) = self.engine.ask_lane(Asked { session, way, peer, presented })? else {
            return Ok((Reply::Done, Vec::new()));
        };
        let ring_len = given.ring_len;
        let memory = match given.is_new {
            true => self.lanes.open(given.lane, ring_len),
            false => self.lanes.fetch(given.lane),
        };
        let Some(memory) = memory else {
            self.end_lane(given.lane);
            return Err(Errno::ENOMEM);
        };
        Ok((Reply::Lane { ring_len }, vec![memory]))
    }

    /// Programs close lanes without a word to the engine, which looks when they want another one.
    fn sweep_lanes(&mut self, session: SessionId) {
        for lane in self.engine.lanes_of(session) {
            if self.lanes.is_closed(lane) {
                self.end_lane(lane);
            }
        }
    }

    fn end_lane(&mut self, lane: LaneId) {
        self.engine.end_lane(lane);
        self.lanes.close(lane);
    }

    /// The session is about to end: who sends to it, or receives from it, hears of that by the lane's word.
    pub(crate) fn leave_lanes(&mut self, session: SessionId) {
        for lane in self.engine.leave_lanes(session) {
            self.lanes.close(lane);
        }
    }
}
