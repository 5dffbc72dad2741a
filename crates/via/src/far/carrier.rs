//! The one who stands in a connection's memory for the side at another host: takes what the program sends and puts it into the stream, writes
//! what comes out of the stream, and gives room back when the far program has taken what was sent (decision 0040).
//!
//! It does nothing by itself: [`Carrier::push`] is called when the program has changed something, [`Carrier::pull`] when it looks. Neither waits.

#[cfg(test)]
mod tests;

use super::Wrong;
use super::frames::Framer;
use super::introduction::{EARLY_MAX, Introduction, Refusal};
use super::inward::{Inward, STRAIGHT_MIN, publish};
use super::mpa::Start;
use super::outward::Frame;
use super::wire::Wire;
use crate::core::operation::HEADER_LEN;
use toe::native::{Bytes, Maker, Room};
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, FRAGMENT_MAX, Fragment, ViaState};
use toe_ring::via::{Breach, Room as RingRoom};
use toe_ring::{ViaMemory, ViaReceiver, ViaSender};

/// Bytes of frames that are put together before they are sent.
const BATCH: usize = 128 << 10;
/// Part of the slots, or of the data part, of whose return the other side is told at once.
const TELL_PART: u32 = 4;

/// What has become of the wish to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Accepted,
    Rejected,
    /// Nobody waits there, or he has gone: it can be tried again.
    NotThere,
    /// What waits there is of another kind.
    Wrong,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The stream is on its way to the peer.
    Connecting,
    /// The peer is to answer.
    Asking,
    /// The program is to answer.
    Deciding,
    /// It has accepted, and nothing may be sent before the first frame comes.
    Greeting,
    Open,
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Carrier {
    wire: Option<Box<dyn Wire>>,
    memory: ViaMemory,
    /// The side for which it stands.
    side: Side,
    out: ViaReceiver,
    framer: Framer,
    /// Frames that the stream has not taken, but for the first bytes, and memory for others.
    outbox: Vec<u8>,
    sent: usize,
    spare: Vec<u8>,
    /// The fragment that is on its way from the memory to there.
    fragment: Box<[u8; FRAGMENT_MAX as usize]>,
    inward: Inward,
    phase: Phase,
    me: Introduction,
    answer: Option<Answer>,
    /// What the other side was told to be done with: fragments, and bytes of the data part.
    credited: (u32, u64),
    /// What it has said to be done with.
    given_back: u32,
    is_prompt: bool,
    is_finished: bool,
    has_lost_engine: bool,
    has_changed: bool,
}

impl Carrier {
    /// For the far side of a connection that this program asks for: `me` says what it wants.
    pub fn asking(wire: Box<dyn Wire>, memory: ViaMemory, me: Introduction) -> Carrier {
        let attributes = me.attributes;
        Carrier::new(wire, memory, Side::One, me, Phase::Connecting, attributes)
    }

    /// For the far side that has asked, as `asked` says; `me` is what the answer says, but for the attributes.
    pub fn asked(wire: Box<dyn Wire>, memory: ViaMemory, me: Introduction, asked: &Introduction) -> Carrier {
        let mut carrier = Carrier::new(wire, memory, Side::Zero, me, Phase::Deciding, asked.attributes);
        carrier.publish_early(&asked.early);
        carrier
    }

    fn new(
        wire: Box<dyn Wire>,
        memory: ViaMemory,
        side: Side,
        me: Introduction,
        phase: Phase,
        attributes: Attributes,
    ) -> Carrier {
        let are_operations = attributes.are_operations();
        Carrier {
            wire: Some(wire),
            side,
            out: ViaReceiver::new(memory.clone(), side),
            inward: Inward::new(are_operations, memory.clone(), ViaSender::new(memory.clone(), side)),
            memory,
            framer: Framer::new(are_operations),
            outbox: Vec::new(),
            sent: 0,
            spare: Vec::new(),
            fragment: Box::new([0; FRAGMENT_MAX as usize]),
            phase,
            me,
            answer: None,
            credited: (0, 0),
            given_back: 0,
            is_prompt: are_operations && attributes.level() == 2,
            is_finished: false,
            has_lost_engine: false,
            has_changed: false,
        }
    }

    /// What has become of the wish to connect; `None`: not known yet.
    pub fn answer(&self) -> Option<Answer> {
        self.answer
    }

    /// Whether messages may go both ways, or never will.
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Over)
    }

    /// Whether the program's side of the memory may wait for what has changed since the last time.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed) && self.memory.must_wake(self.side.other())
    }

    /// The stream, as long as something may come from it, and whether it is waited for that it takes something.
    pub fn watched(&self) -> Option<(&dyn Wire, bool)> {
        let waits = self.phase == Phase::Connecting || self.sent < self.outbox.len();
        self.wire.as_deref().filter(|_| self.phase != Phase::Over).map(|wire| (wire, waits))
    }

    /// The program, which has left, can let go: the other host has what it sent, or there is none. What still comes is taken until then, because a
    /// stream that ends with something unread ends for both at once, with all that is under way.
    pub fn has_left(&mut self) -> bool {
        self.push();
        self.pull();
        let has_all = self.wire.as_deref().is_none_or(|wire| wire.unacknowledged() == 0);
        // Before the other host has said that it heard the answer, nothing may have been sent to it.
        matches!(self.phase, Phase::Over | Phase::Greeting) || self.is_finished && has_all
    }

    /// The stream ends.
    pub fn let_go(&mut self) {
        self.phase = Phase::Over;
        self.wire = None;
    }

    /// It is the end of the engine here that has ended it.
    pub fn has_lost_engine(&self) -> bool {
        self.has_lost_engine
    }

    /// The program has changed something in the memory.
    pub fn push(&mut self) {
        match self.phase {
            Phase::Connecting => self.ask(),
            Phase::Deciding => self.decide(),
            Phase::Open => return self.push_all(),
            Phase::Asking | Phase::Greeting | Phase::Over => {}
        }
        self.flush();
    }

    /// All that the program has sent, as far as the stream takes it.
    fn push_all(&mut self) {
        loop {
            self.send();
            self.flush();
            if self.phase != Phase::Open || self.sent < self.outbox.len() {
                return;
            }
            if !matches!(self.out.first(), Ok(Some(_))) {
                return self.finish_if_over();
            }
        }
    }

    /// Takes what has come.
    pub fn pull(&mut self) {
        if self.phase == Phase::Connecting {
            self.push();
        }
        let before = self.phase;
        while !matches!(self.phase, Phase::Over | Phase::Connecting) {
            let (came, all) = match self.receive() {
                Ok((0, _)) => return self.end(Answer::NotThere),
                Ok(received) => received,
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(_) => return self.end(Answer::NotThere),
            };
            if self.take_all().is_err() {
                return self.break_off();
            }
            if came < all {
                break;
            }
        }
        if self.phase != before || self.sent < self.outbox.len() {
            // What had to wait for this.
            self.push();
        }
    }

    /// How much has come of how much that could have.
    fn receive(&mut self) -> Result<(usize, usize), Errno> {
        let Some(wire) = &self.wire else { return Err(Errno::EAGAIN) };
        if matches!(self.phase, Phase::Greeting | Phase::Open) {
            let most = self.inward.begin(self.out.passed());
            return Ok((wire.recv_to(&mut self.inward)?, most));
        }
        let room = self.inward.room();
        let (most, came) = (room.len(), wire.recv(room)?);
        self.inward.came(came);
        Ok((came, most))
    }

    fn ask(&mut self) {
        if self.memory.state() == ViaState::Closed {
            return self.end(Answer::NotThere);
        }
        match self.wire.as_ref().map(|wire| wire.is_connected()) {
            Some(Ok(true)) => {}
            Some(Ok(false)) => return,
            _ => return self.end(Answer::NotThere),
        }
        let Some(early) = self.early(Side::Zero) else { return };
        self.me.early = early;
        let private = self.me.encode();
        Start { is_reply: false, is_rejected: false, private: &private }.put(&mut self.outbox);
        self.phase = Phase::Asking;
    }

    /// The fragment that goes with the introduction. `None`: the program has not sent it yet.
    fn early(&mut self, of: Side) -> Option<Vec<u8>> {
        if self.me.attributes != Attributes::ENDPOINTS {
            return Some(Vec::new());
        }
        match self.out.first() {
            Ok(Some(arrived)) if arrived.fragment.len as usize <= EARLY_MAX => {
                let mut bytes = vec![0; arrived.fragment.len as usize];
                self.memory.read(arrived.offset, &mut bytes).ok()?;
                self.out.pass(arrived);
                Some(bytes)
            }
            // Side 1 may have nothing to say.
            Ok(None) if of == Side::One => Some(Vec::new()),
            _ => None,
        }
    }

    fn publish_early(&mut self, early: &[u8]) {
        if !early.is_empty() {
            let fragment = Fragment { len: early.len() as u32, begins: Some(early.len() as u64) };
            // The first of all: there is room.
            let _ = publish(&self.memory, &mut self.inward.into, fragment, [early, &[]]);
        }
    }

    fn decide(&mut self) {
        let state = self.memory.state();
        if state == ViaState::Closed {
            return self.end(Answer::NotThere);
        }
        if state == ViaState::Requested {
            return;
        }
        let is_rejected = state == ViaState::Rejected;
        self.me.attributes = self.memory.attributes(Side::One);
        self.me.early = self.early(Side::One).unwrap_or_default();
        self.me.refusal = is_rejected.then_some(Refusal::Rejected);
        let private = self.me.encode();
        Start { is_reply: true, is_rejected, private: &private }.put(&mut self.outbox);
        self.phase = Phase::Greeting;
        if is_rejected {
            self.flush();
            self.phase = Phase::Over;
            self.wire.as_ref().inspect(|wire| wire.finish());
        }
    }

    fn send(&mut self) {
        while self.outbox.len() - self.sent < BATCH {
            let Ok(first) = self.out.first() else { return self.break_off() };
            let Some(arrived) = first else { break };
            if arrived.fragment.len as usize >= STRAIGHT_MIN {
                self.flush();
            }
            if self.outbox.is_empty() && arrived.fragment.len as usize >= STRAIGHT_MIN {
                let memory = self.memory.clone();
                let bytes = Bytes::Shared(memory.region(), arrived.offset);
                if self.send_straight(arrived.fragment, bytes).is_err() {
                    return self.break_off();
                }
                self.out.pass(arrived);
                continue;
            }
            let bytes = &mut self.fragment[..arrived.fragment.len as usize];
            let read = self.memory.read(arrived.offset, bytes);
            if read.is_err() || self.framer.put(&mut self.outbox, arrived.fragment, bytes).is_err() {
                return self.break_off();
            }
            self.out.pass(arrived);
            if self.outbox.len() >= BATCH {
                self.flush();
            }
        }
        let Ok((taken, freed)) = self.inward.into.taken() else { return self.break_off() };
        let since = (taken.wrapping_sub(self.credited.0), freed - self.credited.1);
        let shape = self.memory.shape();
        let is_much =
            since.0 >= shape.slots() / TELL_PART || since.1 >= shape.data_len() / u64::from(TELL_PART);
        if (is_much || self.is_prompt && since.0 > 0) && self.memory.state() != ViaState::Closed {
            self.framer.put_credit(&mut self.outbox, taken);
            self.credited = (taken, freed);
        }
    }

    /// The program's next fragment, for which `from` has room: publishes it and takes it at once, so that nobody reads its bytes in the memory, where they then
    /// need not be. `false`: it is to go the way of all, because something is before it.
    pub fn take_from(
        &mut self,
        from: &mut ViaSender,
        fragment: Fragment,
        room: RingRoom,
        bytes: &[u8],
    ) -> bool {
        if self.phase != Phase::Open || bytes.len() < STRAIGHT_MIN {
            return false;
        }
        self.flush();
        if !self.outbox.is_empty() || self.out.passed() != from.sent() {
            return false;
        }
        from.publish(fragment, room);
        match self.out.first() {
            Ok(Some(arrived)) if self.send_straight(fragment, Bytes::Own(bytes)).is_ok() => {
                self.out.pass(arrived);
                self.push_all();
            }
            _ => self.break_off(),
        }
        true
    }

    /// A fragment into the stream. What that does not take is in the outbox then, where nothing was.
    fn send_straight(&mut self, fragment: Fragment, bytes: Bytes<'_>) -> Result<(), Wrong> {
        let mut operation_header = [0; HEADER_LEN];
        let operation_header = &mut operation_header[..self.framer.header_len_of(fragment)];
        match bytes {
            Bytes::Shared(memory, at) => memory.read(at, operation_header).map_err(|_| Wrong::Segment)?,
            Bytes::Own(bytes) => operation_header.copy_from_slice(&bytes[..operation_header.len()]),
        }
        let opened = self.framer.open(&mut self.outbox, fragment, operation_header)?;
        let mut frame = Frame::new(&self.outbox, opened, bytes, fragment.len);
        let all = frame.left();
        let sent = match self.wire.as_ref().map(|wire| wire.send_made(&mut frame)) {
            Some(Ok(sent)) => sent,
            Some(Err(Errno::EAGAIN | Errno::EINTR)) => 0,
            // As in `flush`.
            _ => {
                return {
                    self.outbox.clear();
                    Ok(())
                };
            }
        };
        if all - frame.left() != sent {
            // What was made has not gone, and is not made again.
            return Err(Wrong::Segment);
        }
        self.spare.resize(frame.left(), 0);
        frame.make(Room::Own(&mut self.spare), all - sent);
        std::mem::swap(&mut self.outbox, &mut self.spare);
        self.spare.clear();
        Ok(())
    }

    /// Puts into the stream what it takes.
    fn flush(&mut self) {
        while self.sent < self.outbox.len() {
            let Some(wire) = &self.wire else { break };
            match wire.send(&self.outbox[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                Err(_) => {
                    // What had come before can still be read: the end is found there.
                    self.sent = self.outbox.len();
                }
            }
        }
        self.outbox.clear();
        self.sent = 0;
    }

    /// The program has left, and all that it sent is in the stream.
    fn finish_if_over(&mut self) {
        let is_over = self.memory.state() == ViaState::Closed;
        if is_over && !std::mem::replace(&mut self.is_finished, true) {
            self.wire.as_ref().inspect(|wire| wire.finish());
        }
    }

    /// All that has come whole.
    fn take_all(&mut self) -> Result<(), Wrong> {
        match self.phase {
            Phase::Asking => {
                let used = self.take_reply()?;
                self.inward.used(used);
                if self.phase != Phase::Open {
                    return Ok(());
                }
                // Frames may be behind it.
                self.inward.begin(self.out.passed());
                self.inward.look()?;
            }
            Phase::Greeting | Phase::Open => {}
            // Nothing may come before the answer.
            Phase::Deciding => return Err(Wrong::Start),
            Phase::Connecting | Phase::Over => return Ok(()),
        }
        let inward = &mut self.inward;
        if std::mem::take(&mut inward.has_come) {
            self.phase = Phase::Open;
        }
        if inward.given_back != self.given_back {
            self.given_back = inward.given_back;
            self.out.give_back(self.given_back);
        }
        self.has_changed |= std::mem::take(&mut inward.has_changed);
        inward.wrong.map_or(Ok(()), Err)
    }

    fn take_reply(&mut self) -> Result<usize, Wrong> {
        let Some((start, used)) = Start::first(self.inward.buffered(), true)? else { return Ok(0) };
        let said = Introduction::decode(start.private)?;
        self.has_changed = true;
        match said {
            Some(said) if !start.is_rejected => {
                self.memory.set_attributes(Side::One, said.attributes);
                self.publish_early(&said.early);
                self.memory.advance(ViaState::Accepted);
                self.answer = Some(Answer::Accepted);
                self.phase = Phase::Open;
                // The peer may not send before something has come.
                self.framer.put_credit(&mut self.outbox, 0);
            }
            Some(said) => {
                self.publish_early(&said.early);
                let nobody = said.refusal == Some(Refusal::Nobody);
                let answer = if nobody { Answer::NotThere } else { Answer::Rejected };
                self.memory.advance(ViaState::Rejected);
                self.end(answer);
            }
            None => self.end(Answer::Wrong),
        }
        Ok(used)
    }

    /// The other side has ended the stream, or it has broken.
    fn end(&mut self, answer: Answer) {
        self.answer.get_or_insert(answer);
        self.phase = Phase::Over;
        self.has_changed = true;
        self.memory.advance(ViaState::Closed);
        if let Some(wire) = &self.wire {
            self.has_lost_engine = !wire.has_engine();
            wire.finish();
        }
    }

    /// One of the two has done what it must not: this program finds it in the memory, the other that the stream has ended.
    fn break_off(&mut self) {
        self.inward.into.break_off();
        self.end(Answer::Wrong);
        self.wire = None;
    }
}

impl From<Breach> for Wrong {
    fn from(_: Breach) -> Wrong {
        Wrong::Credit
    }
}
