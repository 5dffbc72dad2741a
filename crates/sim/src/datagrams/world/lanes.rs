//! Lanes between sockets of one host: programs say where their datagrams go to and come from, and who meets whom gets one. Programs leave lanes, have
//! no memory for them, end, and ask for what cannot be.

use super::World;
use crate::random::Random;
use crate::tally::Tally;
use std::collections::VecDeque;
use toe_abi::attach::Way;
use toe_abi::errno::Errno;
use toe_base::{Cred, Endpoint, LaneId, NetNs, SessionId};
use toe_engine::udp::{Asked, Presented, SESSION_LANES_MAX};
use toe_engine::{ControlEvent, Resource};

/// Sockets of each host's loopback address that lanes are asked for, and where they begin.
const SOCKETS: u32 = 6;
const FIRST_PORT: u16 = 6000;
/// Another user than the one of all other sessions.
const OTHER_USER: u32 = 7;
/// Questions of which the oldest is forgotten.
const WAITING_MAX: usize = 128;

/// A lane as this world knows it: its two ends, of which the second has not fetched it yet.
#[derive(Clone, Copy, Debug)]
struct Lane {
    id: LaneId,
    ends: [Asked; 2],
    is_fetched: bool,
}

/// What is to come of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Waits,
    Fetches(LaneId),
    Meets(Asked),
    /// One of the two sessions has as many as there may be.
    Full,
    Refused,
}

/// Of one host.
#[derive(Debug, Default)]
pub(super) struct KnownLanes {
    lanes: Vec<Lane>,
    waiting: VecDeque<Asked>,
    /// A session of another user.
    other: Option<SessionId>,
}

fn socket(number: u32) -> Endpoint {
    Endpoint::new([127, 0, 0, 1], FIRST_PORT + number as u16)
}

fn is_same(one: &Asked, other: &Asked) -> bool {
    (one.session, one.way, one.peer) == (other.session, other.way, other.peer)
        && one.presented.identity == other.presented.identity
}

impl KnownLanes {
    fn is_others(&self, asked: &Asked) -> bool {
        Some(asked.session) == self.other
    }

    /// Of two sockets that are bound to one address each.
    fn meets(&self, one: &Asked, other: &Asked) -> bool {
        one.way != other.way
            && one.presented.identity != other.presented.identity
            && one.peer == other.presented.local
            && other.peer == one.presented.local
            && self.is_others(one) == self.is_others(other)
    }

    /// Those of a session, in the order of their numbers.
    fn of(&self, session: SessionId) -> Vec<LaneId> {
        let its = self.lanes.iter().filter(|lane| lane.ends.iter().any(|end| end.session == session));
        its.map(|lane| lane.id).collect()
    }

    fn expect(&self, asked: &Asked) -> Expected {
        let Presented { netns, shares_port, .. } = asked.presented;
        if netns != NetNs(0) || shares_port && asked.way == Way::Receives || !asked.peer.addr.is_loopback() {
            return Expected::Refused;
        }
        if let Some(lane) = self.lanes.iter().find(|lane| !lane.is_fetched && is_same(&lane.ends[1], asked)) {
            return Expected::Fetches(lane.id);
        }
        let is_full = |session| self.of(session).len() >= SESSION_LANES_MAX;
        match self.waiting.iter().find(|other| self.meets(asked, other)) {
            None => Expected::Waits,
            Some(other) if is_full(asked.session) || is_full(other.session) => Expected::Full,
            Some(other) => Expected::Meets(*other),
        }
    }

    fn wait(&mut self, asked: Asked) {
        self.waiting.retain(|old| !is_same(old, &asked));
        let same_user = |waits: &&Asked| self.is_others(waits) == self.is_others(&asked);
        if self.waiting.iter().filter(same_user).count() >= WAITING_MAX {
            let oldest = self.waiting.iter().position(|waits| same_user(&waits));
            oldest.and_then(|oldest| self.waiting.remove(oldest));
        }
        self.waiting.push_back(asked);
    }

    pub(super) fn session_ended(&mut self, session: SessionId) -> Vec<LaneId> {
        let left = self.of(session);
        self.lanes.retain(|lane| !left.contains(&lane.id));
        self.waiting.retain(|asked| asked.session != session);
        left
    }
}

impl World {
    /// Some program of some host says something of lanes.
    pub(super) fn ask_for_lanes(&mut self) {
        let at = self.lane_draws.below(self.nodes.len() as u32) as usize;
        for _ in 0..self.lane_draws.any_size(12) {
            self.ask_for_lane(at);
            if self.lane_draws.one_in(6) {
                self.leave_some_lane(at);
            }
        }
        if self.lane_draws.one_in(8) {
            self.end_other_session(at);
        }
        self.check_lanes(at);
    }

    fn question(at: &super::Node, random: &mut Random) -> Option<Asked> {
        let (own, peer) = (random.below(SOCKETS), random.below(SOCKETS));
        let sessions: Vec<SessionId> = at.sessions.iter().copied().chain(at.lanes.other).collect();
        // Mostly its own program's.
        let session = match random.one_in(8) {
            false => *sessions.get(own as usize % sessions.len().max(1))?,
            true if sessions.is_empty() => return None,
            true => random.pick(&sessions),
        };
        let presented = Presented {
            local: socket(own),
            peer: None,
            v6_only: false,
            identity: u64::from(own) + 1,
            netns: NetNs(u64::from(random.one_in(30))),
            shares_port: random.one_in(30),
            receive_buffer: random.pick(&[4096, 212_992]),
        };
        let way = if random.one_in(2) { Way::Sends } else { Way::Receives };
        let beyond = random.one_in(30);
        let peer = if beyond { Endpoint::new([10, 0, 0, 1], 9) } else { socket(peer) };
        Some(Asked { session, way, peer, presented })
    }

    fn ask_for_lane(&mut self, at: usize) {
        let Some(asked) = World::question(&self.nodes[at], &mut self.lane_draws) else { return };
        let clock = self.clock();
        let node = &mut self.nodes[at];
        let (expected, known) = (node.lanes.expect(&asked), node.lanes.of(asked.session));
        let listed = node.engine.view().lanes_of(asked.session);
        let answer = node.engine.ask_lane(asked);
        let is_right = match (expected, answer) {
            (Expected::Refused, Err(Errno::EINVAL))
            | (Expected::Full, Err(Errno::ENOBUFS))
            | (Expected::Waits, Ok(None)) => true,
            (Expected::Fetches(lane), Ok(Some(given))) => !given.is_new && given.lane == lane,
            (Expected::Meets(_), Ok(Some(given))) => given.is_new,
            _ => false,
        };
        if listed != known || !is_right {
            let what =
                format!("engine {at}: {asked:?} has {known:?}, not {listed:?}; {expected:?}: {answer:?}");
            return self.checker.fail(what);
        }
        match (expected, answer) {
            (Expected::Waits, _) => node.lanes.wait(asked),
            (Expected::Fetches(id), _) => {
                let lane = node.lanes.lanes.iter_mut().find(|lane| lane.id == id);
                lane.into_iter().for_each(|lane| lane.is_fetched = true);
            }
            (Expected::Meets(other), Ok(Some(given))) => {
                node.lanes.waiting.retain(|waits| *waits != other);
                self.tallies.add(Tally::Lanes);
                if self.lane_draws.one_in(8) {
                    // There is no memory for it.
                    return node.tell(clock, ControlEvent::Left(given.lane));
                }
                node.lanes.lanes.push(Lane { id: given.lane, ends: [asked, other], is_fetched: false });
            }
            _ => {}
        }
    }

    fn leave_some_lane(&mut self, at: usize) {
        let clock = self.clock();
        let node = &mut self.nodes[at];
        if !node.lanes.lanes.is_empty() {
            let number = self.lane_draws.below(node.lanes.lanes.len() as u32) as usize;
            let lane = node.lanes.lanes.remove(number);
            node.tell(clock, ControlEvent::Left(lane.id));
        }
    }

    /// The other user's process ends, and another one begins.
    fn end_other_session(&mut self, at: usize) {
        if let Some(other) = self.nodes[at].lanes.other.take() {
            self.session_ends(at, other);
        }
        let cred = Cred::of_user(OTHER_USER);
        self.nodes[at].lanes.other = self.nodes[at].engine.open_session(cred, super::LAYOUT).ok();
    }

    /// Each lane is some user's to pay for: his whose program met the other's.
    fn check_lanes(&mut self, at: usize) {
        let Self { nodes, checker, .. } = self;
        let node = &nodes[at];
        let (users, totals) = (node.engine.view().users(), node.engine.view().totals());
        let (there, charged) = (totals.lanes, users.used(Resource::Channels));
        // Ends of sockets have lanes to the engine.
        let (known, ends) = (node.lanes.lanes.len(), node.ends.len());
        if there != known || charged != (known + ends) as u64 {
            checker.fail(format!(
                "engine {at} has {there} lanes of {known}, {ends} ends, {charged} are charged"
            ));
        }
        let others = node.lanes.lanes.iter().filter(|lane| Some(lane.ends[0].session) == node.lanes.other);
        let charged =
            users.by_cred(Cred::of_user(OTHER_USER)).map_or(0, |user| user.used(Resource::Channels));
        if charged != others.count() as u64 {
            checker.fail(format!("engine {at}: the other user is charged for {charged} lanes"));
        }
    }

    /// At the end all sessions are gone, and all lanes with them.
    pub(super) fn lanes_end(&mut self, at: usize) {
        self.end_other_session(at);
        for session in self.nodes[at].sessions.clone() {
            self.session_ends(at, session);
        }
        self.check_lanes(at);
        if !self.nodes[at].lanes.lanes.is_empty() {
            self.checker.fail(format!("engine {at} has lanes at the end"));
        }
    }
}
