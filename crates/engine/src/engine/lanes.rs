//! UDP sockets of two programs that are given a lane (decision 0034): who may have one, and who is charged for it.

use super::Engine;
use crate::counter::Counter;
use crate::hostif::users::Resource;
use crate::parts::HostInterface;
use crate::udp::{Asked, Outcome, SESSION_LANES_MAX};
use toe_abi::errno::Errno;
use toe_base::{LaneId, SessionId};

/// A lane for who has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    pub lane: LaneId,
    pub ring_len: u32,
    /// Its memory is yet to be made.
    pub is_new: bool,
}

impl Engine {
    /// A program says of a socket where its datagrams come from or go to. `None`: the other one has not said so yet.
    pub fn ask_lane(&mut self, asked: Asked) -> Result<Option<Given>, Errno> {
        let session = self.hostif.sessions.get(asked.session);
        let session = session.filter(|session| session.is_open()).ok_or(Errno::EINVAL)?;
        let cred = session.cred;
        if !self.config.direct {
            return Err(Errno::EOPNOTSUPP);
        }
        let (other, ring_len) = match self.hostif.lanes.ask(asked, cred)? {
            Outcome::Wait => return Ok(None),
            Outcome::Fetch { lane, ring_len } => return Ok(Some(Given { lane, ring_len, is_new: false })),
            Outcome::Met { other, ring_len } => (other, ring_len),
        };
        let is_full = |session| self.hostif.lanes.of_session(session).count() >= SESSION_LANES_MAX;
        if is_full(asked.session) || is_full(other.session) {
            return Err(Errno::ENOBUFS);
        }
        // It is memory that two processes and the engine map, as a channel is.
        let payer = self.hostif.charge(&mut self.counters, asked.session, Resource::Channels)?;
        self.counters.add(Counter::Lanes);
        let lane = self.hostif.lanes.add(asked, other, ring_len, payer);
        Ok(Some(Given { lane, ring_len, is_new: true }))
    }
}

impl HostInterface {
    /// [`crate::ControlEvent::Left`].
    pub(super) fn end_lane(&mut self, lane: LaneId) {
        let payer = self.lanes.remove(lane);
        self.give(payer, Resource::Channels);
    }

    /// A session is about to end: the lanes whose memory is to be closed.
    pub(super) fn leave_lanes(&mut self, session: SessionId) -> Vec<LaneId> {
        self.lanes.forget_session(session);
        let lanes: Vec<LaneId> = self.lanes.of_session(session).collect();
        lanes.iter().for_each(|lane| self.end_lane(*lane));
        lanes
    }
}
