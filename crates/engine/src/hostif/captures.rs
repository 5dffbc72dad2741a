//! What captures want, and copies of it that wait for the driver.

use crate::work::{CaptureRule, Captured, Sighting, SightingEnd};
use std::collections::VecDeque;
use toe_abi::capture::{Direction, Facts};
use toe_base::{Cred, SessionId};

/// Bytes of copies that wait for the driver, beyond which no local segment goes.
const WAITING_MAX: usize = 1 << 20;

/// What captures want, and what is on its way to them.
#[derive(Debug, Default)]
pub struct Capture {
    pub rules: Box<[CaptureRule]>,
    /// Whose the sessions are, by their numbers.
    pids: Vec<u32>,
    waiting: VecDeque<Captured>,
    waiting_len: usize,
    /// A frame of which it is yet to be told what became of what is in it.
    pub unsettled: Option<(Sighting, Vec<u8>)>,
}

impl Capture {
    pub fn is_on(&self) -> bool {
        !self.rules.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.waiting_len > WAITING_MAX
    }

    pub fn note_process(&mut self, session: SessionId, pid: u32) {
        let at = session.index();
        self.pids.resize(self.pids.len().max(at + 1), 0);
        self.pids[at] = pid;
    }

    /// Whether a capture wants the packet, or may want it for a process that has left an end of it.
    pub fn may_want(&self, packet: &Sighting, cred_of: impl Fn(SessionId) -> Option<Cred>) -> bool {
        let ends = [packet.sender, packet.receiver];
        let is_known = |end: Option<SightingEnd>| end.is_some_and(|end| !end.listens);
        let is_clear = match packet.direction {
            Direction::In => is_known(packet.receiver),
            Direction::Out => is_known(packet.sender),
            Direction::Local => ends.into_iter().all(is_known),
        };
        let pid = |end: Option<SightingEnd>| {
            end.and_then(|end| self.pids.get(end.session.index()).copied()).unwrap_or(0)
        };
        let facts = Facts { pids: ends.map(pid), ..packet.facts };
        let is_of = |cred: Cred| ends.into_iter().flatten().any(|end| cred_of(end.session) == Some(cred));
        self.rules.iter().any(|rule| {
            rule.interface.is_none_or(|only| only == packet.interface())
                && rule.only.is_none_or(|only| !is_clear || is_of(only))
                && (!is_clear && rule.filter.names_processes() || rule.filter.matches(&facts))
        })
    }

    pub fn show(&mut self, packet: Sighting, bytes: Vec<u8>) {
        self.waiting_len += bytes.len();
        self.waiting.push_back(Captured { packet, bytes });
    }

    /// What is to be shown next.
    pub fn poll(&mut self) -> Option<Captured> {
        let next = self.waiting.pop_front()?;
        self.waiting_len -= next.bytes.len();
        Some(next)
    }
}
