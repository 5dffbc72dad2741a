//! Sockets end while others go on: their program closes them, the kernel has them no more, or their process ends. Others begin.

use super::{NAME_LEN, World};
use crate::tally::Tally;
use toe_base::{Cred, DatagramId, Endpoint, SessionId};
use toe_engine::ControlEvent;
use toe_engine::kit::FakeHosts;

/// What a session has of a socket.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub id: DatagramId,
    pub port: u16,
    pub session: SessionId,
    /// Of the kernel socket.
    pub identity: u64,
}

impl World {
    /// Some end, or some socket with all its ends, is no more; another socket begins.
    pub(super) fn end_something(&mut self) {
        let at = self.endings.below(self.nodes.len() as u32) as usize;
        if !self.nodes[at].ends.is_empty() {
            let end = self.endings.pick(&self.nodes[at].ends);
            match self.endings.below(3) {
                0 => self.close_end(at, end),
                1 => self.socket_gone(at, end.identity),
                _ => self.session_ends(at, end.session),
            }
            self.tallies.add(Tally::DatagramEnds);
        }
        if self.endings.one_in(2) {
            self.begin_socket(at);
        }
    }

    /// Its program closes it. What it has sent before goes out all the same.
    fn close_end(&mut self, at: usize, end: End) {
        let (clock, sends_late) = (self.clock(), self.endings.one_in(2));
        if sends_late {
            self.nodes[at].tell(clock, ControlEvent::SenderLingers(end.id));
        }
        self.nodes[at].tell(clock, ControlEvent::DatagramsClosed(end.session, end.id));
        let socket = self.nodes[at].sockets.iter().copied().find(|socket| socket.id == end.id);
        self.forget_ends(at, &[end.id]);
        if sends_late {
            if let Some(socket) = socket.filter(|socket| !socket.is_hostile) {
                let to = Endpoint { port: socket.local.port + 1, ..socket.local };
                self.send(at, socket, to, (1, NAME_LEN), false);
            }
            self.nodes[at].tell(clock, ControlEvent::SenderForgotten(end.id));
        }
    }

    /// The kernel has the socket no more.
    fn socket_gone(&mut self, at: usize, identity: u64) {
        let known = self.ends_where(at, |end| end.identity == identity);
        let found = sorted(self.nodes[at].engine.view().datagram_ends(identity));
        let clock = self.clock();
        self.nodes[at].tell(clock, ControlEvent::SocketGone(identity, clock));
        let left = self.nodes[at].engine.view().datagram_ends(identity);
        if found != known || !left.is_empty() {
            self.checker
                .fail(format!("engine {at}: {known:?} is gone, and it says {found:?}, then {left:?}"));
        }
        self.forget_ends(at, &known);
    }

    pub(super) fn session_ends(&mut self, at: usize, session: SessionId) {
        let known = self.ends_where(at, |end| end.session == session);
        let clock = self.clock();
        let node = &mut self.nodes[at];
        let left = node.engine.close_session(clock, session, &mut FakeHosts::default());
        let (lanes, known_lanes) = (left.lanes, node.lanes.session_ended(session));
        let (left, is_free) = (sorted(left.datagrams), node.engine.forget_session(session));
        if let Some(place) = node.sessions.iter_mut().find(|of| **of == session) {
            *place = node.engine.open_session(Cred::default(), super::LAYOUT).unwrap_or(session);
        }
        if lanes != known_lanes {
            self.checker.fail(format!("engine {at}: lanes {known_lanes:?} end, and {lanes:?} are said to"));
        }
        if left != known || !is_free {
            self.checker.fail(format!("engine {at}: a session had {known:?}, and {left:?} are said to end"));
        }
        self.forget_ends(at, &known);
    }

    fn begin_socket(&mut self, at: usize) {
        let mut node = self.nodes.remove(at);
        if !node.sessions.is_empty() {
            let session = self.endings.pick(&node.sessions);
            let mut random = self.endings.clone();
            self.open(&mut node, (at, session), false, &mut random);
            self.endings = random;
        }
        self.nodes.insert(at, node);
    }

    fn ends_where(&self, at: usize, is_it: impl Fn(&End) -> bool) -> Vec<DatagramId> {
        sorted(self.nodes[at].ends.iter().filter(|end| is_it(end)).map(|end| end.id).collect())
    }

    fn forget_ends(&mut self, at: usize, ends: &[DatagramId]) {
        let node = &mut self.nodes[at];
        node.ends.retain(|end| !ends.contains(&end.id));
        node.sockets.retain(|socket| !ends.contains(&socket.id));
    }

    /// At the end all sockets are gone, and nobody is charged for one.
    pub(super) fn all_ends(&mut self) {
        for at in 0..self.nodes.len() {
            for number in 0..self.nodes[at].opened {
                self.socket_gone(at, super::identity_of(at, number));
            }
            self.lanes_end(at);
            let engine = &self.nodes[at].engine;
            let sockets = engine.view().totals().datagram_sockets;
            if let Err(wrong) = engine.view().audit() {
                self.checker.fail(format!("engine {at}: {wrong}"));
            } else if sockets > 0 {
                self.checker.fail(format!("engine {at} has {sockets} sockets at the end"));
            }
        }
    }
}

fn sorted(mut ends: Vec<DatagramId>) -> Vec<DatagramId> {
    ends.sort_by_key(|end| end.0);
    ends
}
