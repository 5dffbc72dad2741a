//! What captures are shown: each frame of a port and each local segment that they want, once and with its bytes, and nothing else. A
//! local connection that one of them wants begins to use no channel, and one that has a channel is asked to give it up.
//!
//! The driver's filters, and what it was shown since it looked last. [`crate::memory::Memory`] brings what the engine hands out;
//! [`crate::watching`] has the captures begin and end, and says what there was to be shown.

use crate::checkers::{Checker, Verdict};
use crate::frame::{self, TcpFrame};
use std::collections::BTreeSet;
use toe_abi::capture::{Direction, Facts, Filter, LOCAL_INTERFACE};
use toe_base::{FlowId, SessionId};
use toe_engine::flow::key::FlowKey;
use toe_engine::work::Owner;
use toe_engine::{CaptureRule, Captured, Sighting};
use toe_wire::link::{RxOffload, TxOffload};

/// One end of a connection whose bytes go past the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectEnd {
    pub key: FlowKey,
    pub owner: Owner,
    /// Its owner is to give it up.
    pub is_asked: bool,
    /// The other end's is.
    pub is_peer_asked: bool,
}

/// A deliberate mistake with captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blunder {
    /// Every second copy is lost.
    LosesCopies,
    /// A copy comes twice.
    ShowsTwice,
    /// A byte of each copy is wrong.
    FlipsCopies,
    /// The engine is told that nobody wants local segments.
    HidesLocal,
}

/// The captures of one engine.
#[derive(Debug, Default)]
pub struct Captures {
    running: Vec<Filter>,
    /// What was shown and not looked at yet.
    shown: Vec<(Sighting, Vec<u8>)>,
    /// Local segments until the last look.
    moved: u64,
    /// Ends that used a channel when a capture began that wants them.
    leaving: Vec<FlowKey>,
    /// Flows whose owners were told to give them up, as session and name.
    told: BTreeSet<(u16, u32)>,
    pub blunder: Option<Blunder>,
    /// Copies that were looked at, and local segments among them.
    pub copies: u64,
    pub local_copies: u64,
}

impl Captures {
    pub fn len(&self) -> usize {
        self.running.len()
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Before the engine hears of it.
    pub fn begin(&mut self, filter: Filter, direct: impl Iterator<Item = DirectEnd>) {
        self.running.push(filter);
        self.leaving = direct.map(|end| end.key).filter(|key| self.wants_connection(key)).collect();
    }

    pub fn end(&mut self, number: usize) {
        if number < self.running.len() {
            self.running.swap_remove(number);
        }
    }

    fn wants(&self, facts: &Facts) -> bool {
        self.running.iter().any(|filter| filter.matches(facts))
    }

    fn wants_all(&self) -> bool {
        self.running.contains(&Filter::All)
    }

    /// `None`: some filter may want it for what this parser does not find.
    fn wants_frame(&self, frame: &[u8]) -> Option<bool> {
        if self.wants_all() {
            return Some(true);
        }
        TcpFrame::parse(frame).map(|tcp| self.wants(&facts_of(&tcp)))
    }

    fn wants_connection(&self, key: &FlowKey) -> bool {
        let ports = Some((key.local.port, key.remote.port));
        self.wants(&Facts { ports, ..Facts::default() })
    }

    // ---- what the engine is told, and says ----

    pub fn rules(&self) -> Box<[CaptureRule]> {
        // That of the port alone.
        let interface = (self.blunder == Some(Blunder::HidesLocal)).then_some(LOCAL_INTERFACE + 1);
        let rule = |filter: &Filter| CaptureRule { filter: filter.clone(), only: None, interface };
        self.running.iter().map(rule).collect()
    }

    pub fn show(&mut self, Captured { packet, bytes }: Captured, verdict: &mut Verdict) {
        if !self.wants(&packet.facts) {
            verdict.fail(Checker::Captures, format!("{packet:?} was shown, which no capture wants"));
        }
        if packet.facts.dropped != packet.reason.is_some() {
            verdict.fail(Checker::Captures, format!("{packet:?} was dropped and was not"));
        }
        let mut copy = bytes;
        self.copies += 1;
        match self.blunder {
            Some(Blunder::LosesCopies) if self.copies.is_multiple_of(2) => return,
            Some(Blunder::ShowsTwice) => self.shown.push((packet, copy.clone())),
            Some(Blunder::FlipsCopies) => copy.last_mut().into_iter().for_each(|byte| *byte ^= 1),
            _ => {}
        }
        self.shown.push((packet, copy));
    }

    pub fn was_told(&mut self, session: SessionId, flow: FlowId) {
        self.told.insert((session.0, flow.raw()));
    }

    // ---- what there was to be shown ----

    /// The engine has taken a frame from a port.
    pub fn arrived(&mut self, frame: &[u8], offload: RxOffload) -> Result<(), String> {
        let shown = std::mem::take(&mut self.shown);
        let wants = self.wants_frame(frame).filter(|_| !self.is_empty());
        let count = shown.len();
        if count > 1 || wants.is_some_and(|wants| usize::from(wants) != count) {
            return Err(format!("a frame that arrived was shown {count} times; wanted: {wants:?}"));
        }
        for (packet, bytes) in &shown {
            is_of(packet, Direction::In, bytes)?;
            if !are_bytes_of(bytes, frame, offload) {
                return Err(format!("{packet:?}: of what arrived other bytes were shown"));
            }
        }
        Ok(())
    }

    /// The engine has sent these through a port, in this order.
    pub fn sent(&mut self, frames: &[(Vec<u8>, TxOffload)]) -> Result<(), String> {
        let mut shown = std::mem::take(&mut self.shown).into_iter().peekable();
        if self.is_empty() {
            return shown.next().map_or(Ok(()), |(packet, _)| Err(format!("{packet:?}: no capture is on")));
        }
        for (frame, offload) in frames {
            let mut whole = frame.clone();
            offload.checksum.into_iter().for_each(|partial| frame::finish(&mut whole, partial));
            let next = shown.next_if(|(_, bytes)| *bytes == whole);
            let wants = self.wants_frame(frame);
            if wants.is_some_and(|wants| wants != next.is_some()) {
                return Err(format!(
                    "a frame of {} bytes that left; wanted: {wants:?}, shown: {next:?}",
                    frame.len()
                ));
            }
            if let Some((packet, bytes)) = next {
                is_of(&packet, Direction::Out, &bytes)?;
            }
        }
        match shown.next() {
            None => Ok(()),
            Some((packet, bytes)) => Err(format!("{packet:?}: {} bytes that did not leave", bytes.len())),
        }
    }

    /// So many segments went from program to program since the engine began. Asked before a port has its turn and before the filters
    /// change, because they go while a program's entries are taken, too.
    pub fn moved(&mut self, total: u64) -> Result<(), String> {
        let shown = std::mem::take(&mut self.shown);
        let count = total - std::mem::replace(&mut self.moved, total);
        self.local_copies += shown.len() as u64;
        if self.wants_all() && shown.len() as u64 != count {
            return Err(format!("{count} local segments went, {} were shown", shown.len()));
        }
        for (packet, bytes) in &shown {
            is_of(packet, Direction::Local, bytes)?;
            if !TcpFrame::parse(bytes).is_some_and(|tcp| tcp.checksum_is_valid(bytes)) {
                return Err(format!("{packet:?} was shown as {} bytes that are no segment", bytes.len()));
            }
        }
        Ok(())
    }

    // ---- channels ----

    /// A capture has begun: of each connection that it wants and that uses a channel one end has been asked to give it up.
    pub fn all_are_asked(&self, mut direct: impl Iterator<Item = DirectEnd>) -> Result<(), String> {
        let forgotten =
            direct.find(|end| self.wants_connection(&end.key) && !end.is_asked && !end.is_peer_asked);
        forgotten.map_or(Ok(()), |end| Err(format!("{end:?} uses a channel, and nobody was asked to yield")))
    }

    /// `is_all_told`: no completion waits for room.
    pub fn none_began(&mut self, direct: &[DirectEnd], is_all_told: bool) -> Result<(), String> {
        if self.is_empty() {
            self.leaving.clear();
            return Ok(());
        }
        self.leaving.retain(|key| direct.iter().any(|end| end.key == *key));
        let began = |end: &&DirectEnd| self.wants_connection(&end.key) && !self.leaving.contains(&end.key);
        if let Some(end) = direct.iter().find(began) {
            return Err(format!("{end:?} began to use a channel, though a capture wants it"));
        }
        let is_told = |end: &DirectEnd| self.told.contains(&(end.owner.session.0, end.owner.flow_id.raw()));
        match direct.iter().find(|end| is_all_told && end.is_asked && !is_told(end)) {
            None => Ok(()),
            Some(end) => Err(format!("{end:?} is to yield and was not told")),
        }
    }
}

fn facts_of(tcp: &TcpFrame) -> Facts {
    let (from, to) = (tcp.way.from, tcp.way.to);
    Facts { addrs: Some((from.0, to.0)), ports: Some((from.1, to.1)), ..Facts::default() }
}

/// Whether what is said of a packet is true of its bytes.
fn is_of(packet: &Sighting, direction: Direction, bytes: &[u8]) -> Result<(), String> {
    let is_right = TcpFrame::parse(bytes).is_none_or(|tcp| {
        let facts = facts_of(&tcp);
        (facts.addrs, facts.ports) == (packet.facts.addrs, packet.facts.ports)
    });
    let has_port = packet.port.is_some() == (direction != Direction::Local);
    if is_right && has_port && packet.direction == direction {
        return Ok(());
    }
    Err(format!("{packet:?} is said of a packet that goes {direction:?}, {:?}", TcpFrame::parse(bytes)))
}

/// Whether `shown` is the frame, with the checksum that was left to its link.
fn are_bytes_of(shown: &[u8], frame: &[u8], offload: RxOffload) -> bool {
    let mut whole = frame.to_vec();
    let left_out = TcpFrame::parse(frame).filter(|_| offload.checksum_ok);
    left_out.into_iter().for_each(|tcp| tcp.store_checksum(&mut whole));
    shown == whole
}
