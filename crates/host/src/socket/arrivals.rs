//! A listener as the queue set knows it: the connections that came in, and those that can be asked for. The calls on it are
//! [`super::listener`]'s; the queue set tells it what the engine says.

use crate::queue::QueueIo;
use crate::slots::SlotId;
use crate::socket::{Socket, stream};
use std::collections::VecDeque;
use toe_abi::entry::Command;
use toe_base::ListenerId;

/// Most connections that a session asks for ahead of `accept`.
pub(super) const CREDIT_MAX: u32 = 64;

/// A sleeping engine is rung at the latest when the program has taken one of so many of those.
const QUIET_PART: u32 = 4;

/// Why a listener hands out nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    No,
    /// `shutdown`.
    Shut,
    /// The engine is gone. With a twin, the kernel goes on.
    EngineGone,
}

/// A listener as the queue set knows it that its connections come to.
#[derive(Debug)]
pub struct Listener {
    pub id: ListenerId,
    pub socket: &'static Socket,
    /// Streams of connections that came in, in order.
    waiting: VecDeque<SlotId>,
    /// Of a listener that other processes take from, too: connections wait at the engine, to be asked for.
    may_ask: bool,
    /// One has been asked for, and there is no answer yet.
    pub(super) asked: bool,
    /// This process has made a child since it had it: it hands out none in advance any more, for the child may be the one to take them.
    pub(super) only_asks: bool,
    /// How many connections the session has asked for ahead of `accept`.
    pub(super) credit: u32,
    /// Taken since the engine was rung for one.
    taken_quietly: u32,
    pub closed: Closed,
}

/// What a look for a connection finds: of one listener the place of its stream, of all of a program's that, too, with the
/// socket that it came in by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<T = SlotId> {
    Stream(T),
    /// The engine has been asked for one.
    Asked,
    Nothing,
}

impl Listener {
    pub fn new(id: ListenerId, socket: &'static Socket) -> Listener {
        Listener {
            id,
            socket,
            waiting: VecDeque::with_capacity(CREDIT_MAX as usize),
            may_ask: false,
            asked: false,
            only_asks: false,
            credit: 0,
            taken_quietly: 0,
            closed: Closed::No,
        }
    }

    fn ready(&self) -> u32 {
        match self.closed {
            Closed::No if self.waiting.is_empty() && !self.may_ask => 0,
            Closed::No => stream::IN,
            Closed::Shut => stream::IN | stream::OUT | stream::HUP | stream::RDHUP,
            // The twin speaks for itself.
            Closed::EngineGone if self.socket.has_twin() => 0,
            Closed::EngineGone => stream::ALL,
        }
    }

    pub fn publish(&self, key: u32) {
        self.socket.publish(self.ready(), key);
    }

    pub fn on_connection(&mut self, stream: SlotId) {
        self.waiting.push_back(stream);
        self.asked = false;
        self.publish(stream::IN);
    }

    /// Connections wait at the engine.
    pub fn on_connections_wait(&mut self) {
        self.may_ask = true;
        self.publish(stream::IN);
    }

    /// None waits there any more; `answer`: one had been asked for.
    pub fn on_nothing_waits(&mut self, answer: bool) {
        self.may_ask = false;
        self.asked &= !answer;
        self.publish(stream::DRAINED);
    }

    /// A child is about to have the listener, too: what was handed to this process has gone back.
    pub fn give_back(&mut self) {
        self.only_asks = true;
        self.may_ask |= self.asked || !self.waiting.is_empty();
        self.asked = false;
        self.waiting.clear();
        self.publish(stream::DRAINED);
    }

    /// Whether there is nothing to give back: it was, and none has been asked for since.
    pub fn is_given_back(&self) -> bool {
        self.only_asks && self.waiting.is_empty() && !self.asked
    }

    /// With `may_ask` not set, one that could be asked for is nothing, unless it has been asked for.
    pub(super) fn look(&mut self, io: &mut QueueIo, may_ask: bool) -> Found {
        if let Some(stream) = self.take_waiting() {
            return Found::Stream(stream);
        }
        if !self.may_ask || !(may_ask || self.asked) {
            return Found::Nothing;
        }
        if !self.asked {
            self.asked = true;
            io.command(Command::TakeConnection { listener: self.id });
        }
        Found::Asked
    }

    pub fn on_death(&mut self) {
        self.closed = Closed::EngineGone;
        self.waiting.clear();
        self.publish(stream::ALL);
    }

    pub fn take_waiting(&mut self) -> Option<SlotId> {
        let taken = self.waiting.pop_front();
        self.publish(0);
        taken
    }

    /// The program has taken one; whether the engine, if it sleeps, is to be woken for that. It need not: nobody waits for it to
    /// know, the next connection wakes it in any case, and what the program does with this one does. But it is to have credit
    /// left, and a true picture of the backlog: so it hears of a part of them at least.
    pub(super) fn rings_for_taken(&mut self) -> bool {
        self.taken_quietly += 1;
        let rings = self.only_asks || self.taken_quietly >= self.credit / QUIET_PART;
        if rings {
            self.taken_quietly = 0;
        }
        rings
    }

    /// The engine has taken back a connection that its program has left waiting; whether it waited here.
    pub fn take_back(&mut self, stream: SlotId) -> bool {
        let at = self.waiting.iter().position(|waiting| *waiting == stream);
        if let Some(at) = at {
            self.waiting.remove(at);
            self.publish(stream::DRAINED);
        }
        at.is_some()
    }

    /// A connection that could not be taken after all waits again. It must be there still.
    pub(crate) fn put_back(&mut self, stream: SlotId) {
        self.waiting.push_front(stream);
        self.publish(stream::IN);
    }

    pub(super) fn end(&mut self, why: Closed) {
        self.closed = why;
        self.publish(stream::ALL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::FlowId;

    fn rung(credit: u32, only_asks: bool) -> Vec<bool> {
        let mut listener = Listener::new(ListenerId(FlowId::from_raw(1)), Socket::allocate());
        (listener.credit, listener.only_asks) = (credit, only_asks);
        (0..32).map(|_| listener.rings_for_taken()).collect()
    }

    #[test]
    fn a_sleeping_engine_hears_of_a_quarter_of_the_credit_at_once() {
        let rings: Vec<usize> = rung(CREDIT_MAX, false)
            .iter()
            .enumerate()
            .filter_map(|(at, rings)| rings.then_some(at))
            .collect();
        assert_eq!(rings, [15, 31]);
    }

    #[test]
    fn of_a_short_backlog_and_of_a_listener_that_is_asked_it_hears_each_time() {
        assert!(
            rung(1, false).iter().chain(&rung(3, false)).chain(&rung(CREDIT_MAX, true)).all(|rings| *rings)
        );
    }
}
