//! How two endpoints come to a connection, without waiting: each call looks how far it is. What [`crate::meet`] does for those who wait.
//!
//! Side 0 asks the engine for the connection, fetches its memory and sends a *greeting*: who it is, for whom it came, and the program's own bytes.
//! Side 1 takes the memory, reads the greeting, and accepts or rejects with a greeting of its own.

use super::Endpoint;
use super::inside::Phase;
use super::receiving::give_back;
use crate::core::operation::{HEADER_LEN, Kind, Operation};
use crate::core::{Outgoing, Piece};
use crate::error::Error;
use crate::link::Link;
use crate::lock::lock;
use crate::session::Session;
use std::sync::Arc;
use toe_abi::attach::Request;
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName, ViaState};
use toe_ring::via::Breach;

/// Bytes of the address of an endpoint. What they say is the provider's.
pub const ADDRESS_LEN: usize = 32;
/// The program's bytes in a greeting, at most.
pub const PRIVATE_MAX: usize = 256;

/// The first message in each direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// Who sends it, and whom he wants.
    pub from: [u8; ADDRESS_LEN],
    pub to: [u8; ADDRESS_LEN],
    /// At most [`PRIVATE_MAX`].
    pub private: Vec<u8>,
}

impl Greeting {
    fn encode(&self) -> Vec<u8> {
        let private = &self.private[..self.private.len().min(PRIVATE_MAX)];
        let len = 2 * ADDRESS_LEN + private.len();
        let header = Operation::greet(len as u32).encode();
        [&header[..], &self.from, &self.to, private].concat()
    }

    fn decode(data: &[u8]) -> Result<Greeting, Breach> {
        let (from, rest) = data.split_first_chunk().ok_or(Breach)?;
        let (to, private) = rest.split_first_chunk().ok_or(Breach)?;
        if private.len() > PRIVATE_MAX {
            return Err(Breach);
        }
        Ok(Greeting { from: *from, to: *to, private: private.to_vec() })
    }

    fn send(&self, link: &Link) -> Result<(), Breach> {
        let message = self.encode();
        let mut sender = lock(&link.sending);
        let Piece { fragment, .. } = Outgoing::new(message.len() as u64).next().ok_or(Breach)?;
        // The first of all messages: there is room.
        let room = sender.room(fragment.len)?.ok_or(Breach)?;
        link.memory.write(room.offset, &message).map_err(|_| Breach)?;
        sender.publish(fragment, room);
        drop(sender);
        link.wake();
        Ok(())
    }

    /// `None`: it has not come yet.
    fn take(link: &Link) -> Result<Option<Greeting>, Breach> {
        let mut receiving = lock(&link.receiving);
        let Some(arrived) = receiving.end.first()? else { return Ok(None) };
        let total = arrived.fragment.begins.ok_or(Breach)?;
        let operation = link.operation(arrived, total)?;
        if operation.kind != Kind::Greet || total != u64::from(arrived.fragment.len) {
            return Err(Breach);
        }
        let mut data = vec![0; operation.len as usize];
        link.memory.read(arrived.offset + HEADER_LEN as u64, &mut data).map_err(|_| Breach)?;
        give_back(&mut receiving, arrived)?;
        Greeting::decode(&data).map(Some)
    }
}

/// What an endpoint's connection has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Met {
    Connected(Greeting),
    /// With what the other side said, if it said something.
    Rejected(Option<Greeting>),
    Failed(Error),
}

/// An endpoint on its way to a peer.
#[derive(Debug)]
pub struct Approach {
    /// Of the connection that the engine was asked for; `None`: its memory is here.
    asked: Option<u32>,
    greeting: Greeting,
}

impl Approach {
    /// Asks for a connection to a node at a discriminator.
    pub fn begin(
        session: &Session,
        endpoint: &Endpoint,
        (to, discriminator): (NodeName, u64),
        greeting: Greeting,
    ) -> Result<Approach, Error> {
        let attributes = Attributes::ENDPOINTS;
        let handle = crate::meet::ask_for(session, Request::ViaConnect { to, discriminator, attributes })?;
        endpoint.lock().meet();
        Ok(Approach { asked: Some(handle), greeting })
    }

    /// How far it is. `None`: it goes on. The engine is asked only where there `may_have_events` from it.
    pub fn look(&mut self, session: &Session, endpoint: &Endpoint, may_have_events: bool) -> Option<Met> {
        if let Some(handle) = self.asked {
            if !may_have_events {
                return None;
            }
            match session.request(Request::ViaFetch { connection: handle }) {
                Err(Errno::EAGAIN) => return None,
                Err(errno) => return Some(Met::Failed(errno.into())),
                Ok((reply, fds)) => {
                    self.asked = None;
                    match Link::of(reply, fds, Side::Zero).1 {
                        Err(error) => {
                            let _ = session.request(Request::ViaForget { handle });
                            return Some(Met::Failed(error));
                        }
                        Ok((link, _)) => {
                            let sent = self.greeting.send(&link);
                            endpoint.lock().link = Some(link);
                            if sent.is_err() {
                                return Some(Met::Failed(Error::Broken));
                            }
                        }
                    }
                }
            }
        }
        Approach::answer(endpoint)
    }

    fn answer(endpoint: &Endpoint) -> Option<Met> {
        let mut inside = endpoint.lock();
        let Some(link) = inside.link.as_ref() else { return Some(Met::Failed(Error::Closed)) };
        let state = link.memory.state();
        if state == ViaState::Requested {
            return None;
        }
        // It came before the state moved on.
        let said = Greeting::take(link);
        let met = match (state, said) {
            (_, Err(Breach)) => Met::Failed(Error::Broken),
            (ViaState::Accepted | ViaState::Closed, Ok(Some(greeting))) => Met::Connected(greeting),
            (_, Ok(said)) => Met::Rejected(said),
        };
        if matches!(met, Met::Connected(_)) {
            inside.connect();
        } else {
            inside.end_quietly();
        }
        Some(met)
    }

    /// Leaves off.
    pub fn abandon(&self, session: &Session) {
        if let Some(handle) = self.asked {
            let _ = session.request(Request::ViaForget { handle });
        }
    }
}

/// One who waits at a discriminator, until it is dropped.
#[derive(Debug)]
pub struct Door {
    session: Arc<Session>,
    handle: u32,
    /// Those who have not said yet who they are.
    silent: Vec<Link>,
}

impl Door {
    pub fn open(session: &Arc<Session>, discriminator: u64) -> Result<Door, Error> {
        let handle = crate::meet::ask_for(session, Request::ViaListen { from: None, discriminator })?;
        Ok(Door { session: Arc::clone(session), handle, silent: Vec::new() })
    }

    /// Who has come and said who he is. The engine is asked only where there `may_have_events` from it.
    pub fn look(&mut self, may_have_events: bool) -> Vec<Visitor> {
        while may_have_events
            && let Ok((reply, fds)) = self.session.request(Request::ViaTake { listener: self.handle })
        {
            match Link::of(reply, fds, Side::One) {
                (_, Ok((link, theirs))) if theirs.speaks_as(Attributes::ENDPOINTS) => self.silent.push(link),
                (_, Ok((link, _))) => {
                    link.move_on(ViaState::Rejected);
                    let _ = self.session.request(Request::ViaForget { handle: link.handle });
                }
                (handle, Err(_)) => {
                    let _ = self.session.request(Request::ViaForget { handle });
                }
            }
        }
        let mut visitors = Vec::new();
        for link in std::mem::take(&mut self.silent) {
            match Greeting::take(&link) {
                Ok(Some(greeting)) => {
                    let session = Arc::clone(&self.session);
                    visitors.push(Visitor { link: Some(link), session, greeting });
                }
                Ok(None) if link.memory.state() != ViaState::Closed => self.silent.push(link),
                Ok(None) | Err(Breach) => link.leave(&self.session),
            }
        }
        visitors
    }

    /// What a silent one says next wakes the session.
    pub fn arm(&self) {
        self.silent.iter().for_each(|link| link.memory.arm(link.side));
    }

    pub fn has_events(&self) -> bool {
        self.silent
            .iter()
            .any(|link| lock(&link.receiving).end.is_there() || link.memory.state() == ViaState::Closed)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.silent.drain(..).for_each(|link| link.leave(&self.session));
        let _ = self.session.request(Request::ViaForget { handle: self.handle });
    }
}

/// One who has come, and is neither accepted nor rejected. Who drops him rejects him.
#[derive(Debug)]
pub struct Visitor {
    link: Option<Link>,
    session: Arc<Session>,
    pub greeting: Greeting,
}

impl Visitor {
    /// Accepts him at an endpoint. `false`: he has gone meanwhile.
    pub fn accept(mut self, endpoint: &Endpoint, answer: &Greeting) -> bool {
        let Some(link) = self.link.take() else { return false };
        let is_accepted = answer.send(&link).is_ok() && link.accept(Attributes::ENDPOINTS);
        let mut inside = endpoint.lock();
        if !is_accepted {
            link.leave(&self.session);
            return false;
        }
        inside.link = Some(link);
        inside.connect();
        true
    }

    /// Rejects him, with a word to him.
    pub fn reject(mut self, answer: &Greeting) {
        self.send_rejection(answer);
    }

    fn send_rejection(&mut self, answer: &Greeting) {
        if let Some(link) = self.link.take() {
            // One who does not hear why is rejected all the same.
            let _ = answer.send(&link);
            link.move_on(ViaState::Rejected);
            let _ = self.session.request(Request::ViaForget { handle: link.handle });
        }
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        self.send_rejection(&Greeting::default());
    }
}

impl Endpoint {
    /// Whether an approach's look would find something.
    pub fn is_answered(&self) -> bool {
        let inside = self.lock();
        inside.phase == Phase::Meeting
            && inside.link.as_ref().is_some_and(|link| link.memory.state() != ViaState::Requested)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::tests::process;
    use toe_ring::ViaMemory;
    use toe_ring::irq::IrqSender;

    fn greeting(len: usize) -> Greeting {
        Greeting { from: [1; ADDRESS_LEN], to: [2; ADDRESS_LEN], private: vec![3; len] }
    }

    fn links() -> [Link; 2] {
        let process = process();
        let (memory, _file) = ViaMemory::create().expect("memory");
        [Side::Zero, Side::One].map(|side| {
            let waker = IrqSender::from(process.line.another().expect("a waker"));
            Link::new(memory.clone(), side, 0, waker, process.session.node)
        })
    }

    #[test]
    fn greetings_come_out_as_they_went_in() {
        let [zero, one] = links();
        assert_eq!(Greeting::take(&one), Ok(None));
        for len in [0, 1, PRIVATE_MAX] {
            greeting(len).send(&zero).expect("sent");
            assert_eq!(Greeting::take(&one), Ok(Some(greeting(len))));
        }
        greeting(PRIVATE_MAX + 1).send(&zero).expect("sent");
        assert_eq!(Greeting::take(&one), Ok(Some(greeting(PRIVATE_MAX))), "what is too much is left out");
    }

    #[test]
    fn what_is_no_greeting_is_a_breach() {
        let message = greeting(8).encode();
        for (at, byte) in [(0, 1), (0, 9), (20, 0), (20, 3), (21, 2)] {
            let [zero, one] = links();
            let mut message = message.clone();
            message[at] = byte;
            let mut sender = lock(&zero.sending);
            let Piece { fragment, .. } = Outgoing::new(message.len() as u64).next().expect("a fragment");
            let room = sender.room(fragment.len).expect("no breach").expect("room");
            zero.memory.write(room.offset, &message).expect("within");
            sender.publish(fragment, room);
            assert_eq!(Greeting::take(&one), Err(Breach), "byte {at}");
        }
        assert_eq!(Greeting::decode(&[0; 2 * ADDRESS_LEN - 1]), Err(Breach));
        assert_eq!(Greeting::decode(&[0; 2 * ADDRESS_LEN + PRIVATE_MAX + 1]), Err(Breach));
    }
}
