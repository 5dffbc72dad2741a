//! A channel: one end of a connection, with EVIL's six calls.
//!
//! Two threads may use a channel at a time, one that sends and one that receives; others wait for their turn. [`Channel::close`] is for
//! when no thread is in another call.

#[cfg(test)]
mod tests;

use crate::core::{Incoming, Outgoing};
use crate::error::Error;
use crate::session::{Session, owned};
use crate::sleep::{Deadline, look, until};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use toe::sys::Fd;
use toe_abi::attach::{Reply, Request};
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName, ViaState};
use toe_ring::irq::{IrqSender, Signal};
use toe_ring::via::{Arrived, Breach};
use toe_ring::{ViaMemory, ViaReceiver, ViaSender};

/// A port of EVIL's: 1 to 255.
pub type Port = std::num::NonZeroU8;

/// What a connected channel has.
#[derive(Debug)]
struct Link {
    memory: ViaMemory,
    side: Side,
    handle: u32,
    waker: IrqSender,
    peer: NodeName,
    sending: Mutex<ViaSender>,
    receiving: Mutex<Receiving>,
}

#[derive(Debug)]
struct Receiving {
    end: ViaReceiver,
    incoming: Incoming,
}

/// What [`Channel::readiness`] finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A message, or a part of one, has come.
    pub receives: bool,
    /// There is credit.
    pub sends: bool,
    /// The other side has left.
    pub is_closed: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Channel {
    session: Arc<Session>,
    peer: Option<NodeName>,
    port: Port,
    /// Milliseconds; negative: no limit.
    timeout_ms: AtomicI32,
    link: OnceLock<Link>,
    closed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    /// A channel to `peer`, a node's name, at a port. An empty name, `*`: anybody, for one that waits; this node, for one that connects, as
    /// `localhost` is. Attaches the process to its engine.
    pub fn open(peer: &str, port: u8) -> Result<Channel, Error> {
        let port = Port::new(port).ok_or(Error::Invalid)?;
        let session = Session::get()?;
        let peer = match peer {
            "" | "*" => None,
            "localhost" => Some(session.node),
            name => Some(NodeName::new(name.as_bytes()).ok_or(Error::Invalid)?),
        };
        Ok(Channel {
            session,
            peer,
            port,
            timeout_ms: AtomicI32::new(-1),
            link: OnceLock::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// How long each of the following calls may take; negative: as long as it takes.
    pub fn set_timeout_ms(&self, limit_ms: i32) {
        self.timeout_ms.store(limit_ms, Ordering::Relaxed);
    }

    /// This node's name.
    pub fn node(&self) -> NodeName {
        self.session.node
    }

    /// The node at the other end; before there is one, the one that is wanted.
    pub fn peer(&self) -> Option<NodeName> {
        self.link.get().map(|link| link.peer).or(self.peer)
    }

    fn deadline(&self) -> Deadline {
        let limit = u64::try_from(self.timeout_ms.load(Ordering::Relaxed)).ok();
        Deadline::after(limit.map(Duration::from_millis))
    }

    /// Waits until the peer connects, and accepts.
    pub fn wait(&self) -> Result<(), Error> {
        self.check_unlinked()?;
        let deadline = self.deadline();
        let listen = Request::ViaListen { from: self.peer, discriminator: self.port.get().into() };
        let listener = self.ask_for(listen)?;
        let taken = self.take(listener, deadline);
        let _ = self.session.request(Request::ViaForget { handle: listener });
        self.set(taken?)
    }

    fn take(&self, listener: u32, deadline: Deadline) -> Result<Link, Error> {
        loop {
            let answer = self.answer_to(Request::ViaTake { listener }, deadline);
            if matches!(answer, Err(Error::Closed)) {
                // It went before it could be taken.
                continue;
            }
            let (reply, fds) = answer?;
            let (link, attributes) = Link::of(reply, fds, Side::One)?;
            if attributes.level() != Attributes::EVIL.level() {
                link.move_on(ViaState::Rejected);
                continue;
            }
            link.memory.set_attributes(Side::One, Attributes::EVIL);
            if !link.move_on(ViaState::Accepted) {
                // Gone meanwhile.
                let _ = self.session.request(Request::ViaForget { handle: link.handle });
                continue;
            }
            return Ok(link);
        }
    }

    /// Connects to the peer, which may come to wait later.
    pub fn connect(&self) -> Result<(), Error> {
        self.check_unlinked()?;
        let deadline = self.deadline();
        let (to, discriminator) = (self.peer.unwrap_or(self.session.node), self.port.get().into());
        let connect = Request::ViaConnect { to, discriminator, attributes: Attributes::EVIL };
        let handle = self.ask_for(connect)?;
        let fetched = self.fetch(handle, deadline);
        if fetched.is_err() {
            let _ = self.session.request(Request::ViaForget { handle });
        }
        self.set(fetched?)
    }

    fn fetch(&self, connection: u32, deadline: Deadline) -> Result<Link, Error> {
        let (reply, fds) = self.answer_to(Request::ViaFetch { connection }, deadline)?;
        let (link, _) = Link::of(reply, fds, Side::Zero)?;
        let answered = || match link.memory.state() {
            ViaState::Requested => Ok(None),
            ViaState::Rejected => Err(Error::Rejected),
            ViaState::Accepted | ViaState::Closed => Ok(Some(())),
        };
        until(&self.session, deadline, || link.memory.arm(Side::Zero), answered)?;
        Ok(link)
    }

    /// Asks the engine again, whenever there is an interrupt, until it has an answer.
    fn answer_to(&self, request: Request, deadline: Deadline) -> Result<(Reply, Vec<Fd>), Error> {
        let ask = || match self.session.request(request) {
            Err(Errno::EAGAIN) => Ok(None),
            answer => answer.map(Some).map_err(Error::from),
        };
        until(&self.session, deadline, || (), ask)
    }

    fn ask_for(&self, request: Request) -> Result<u32, Error> {
        match self.session.request(request)? {
            (Reply::ViaHandle { handle }, _) => Ok(handle),
            _ => Err(Error::Refused),
        }
    }

    fn check_unlinked(&self) -> Result<(), Error> {
        if self.link.get().is_some() { Err(Error::Connected) } else { Ok(()) }
    }

    fn set(&self, link: Link) -> Result<(), Error> {
        self.link.set(link).map_err(|_| Error::Connected)
    }

    #[inline]
    fn link(&self) -> Result<&Link, Error> {
        self.link.get().ok_or(Error::NotConnected)
    }

    /// Sends a message of any size. Returns when the last octet is where the peer finds it, not when it is received.
    pub fn send(&self, octets: &[u8]) -> Result<(), Error> {
        let link = self.link()?;
        let mut sending = lock(&link.sending);
        let mut message = Outgoing::new(octets.len() as u64);
        let mut deadline = None;
        while let Some(piece) = message.next() {
            // A bad peer is a breach, whatever it says of itself.
            if link.memory.state() == ViaState::Closed {
                return Err(Error::Closed);
            }
            let len = piece.fragment.len;
            let Some(room) = link.broken_by(sending.room(len))? else {
                let deadline = *deadline.get_or_insert_with(|| self.deadline());
                let waited = self.wait_for_credit(link, &mut sending, len, deadline);
                if waited.is_err() && message.is_begun() {
                    link.move_on(ViaState::Closed);
                }
                waited?;
                continue;
            };
            let at = piece.at as usize;
            let part = &octets[at..at + len as usize];
            link.memory.write(room.offset, part).map_err(|_| Error::Broken)?;
            sending.publish(piece.fragment, room);
            message.sent(piece);
            link.wake();
        }
        Ok(())
    }

    #[cold]
    fn wait_for_credit(
        &self,
        link: &Link,
        sending: &mut ViaSender,
        len: u32,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut has_room = || match link.memory.state() {
            ViaState::Closed => Err(Error::Closed),
            _ => link.broken_by(sending.room(len)).map(|room| room.map(|_| ())),
        };
        if look(|| !matches!(has_room(), Ok(None))) {
            return Ok(());
        }
        until(&self.session, deadline, || link.memory.arm(link.side), has_room)
    }

    /// Receives the next message, which is no longer than `octets`; gives its length.
    pub fn recv(&self, octets: &mut [u8]) -> Result<usize, Error> {
        let link = self.link()?;
        let mut receiving = lock(&link.receiving);
        let mut deadline = None;
        let mut is_begun = false;
        loop {
            let next = link.broken_by(receiving.end.first())?;
            let Some(arrived) = next else {
                let deadline = *deadline.get_or_insert_with(|| self.deadline());
                let waited = self.wait_for_fragment(link, &receiving, deadline);
                if waited.is_err() && is_begun {
                    link.move_on(ViaState::Closed);
                }
                waited?;
                continue;
            };
            let placed = link.broken_by(receiving.incoming.place(arrived.fragment))?;
            let at = placed.at as usize;
            if placed.total > octets.len() as u64 {
                return Err(Error::TooLong);
            }
            let part = octets.get_mut(at..at + arrived.fragment.len as usize).ok_or(Error::TooLong)?;
            link.memory.read(arrived.offset, part).map_err(|_| Error::Broken)?;
            receiving.end.take(arrived);
            receiving.incoming.took(placed, arrived.fragment);
            link.wake();
            if placed.is_last {
                return Ok(placed.total as usize);
            }
            is_begun = true;
        }
    }

    /// The length of the next message.
    pub fn size(&self) -> Result<u64, Error> {
        let link = self.link()?;
        let receiving = lock(&link.receiving);
        let arrived = match link.broken_by(receiving.end.first())? {
            Some(arrived) => arrived,
            None => self.wait_for_fragment(link, &receiving, self.deadline())?,
        };
        Ok(link.broken_by(receiving.incoming.place(arrived.fragment))?.total)
    }

    #[inline]
    fn wait_for_fragment(
        &self,
        link: &Link,
        receiving: &Receiving,
        deadline: Deadline,
    ) -> Result<Arrived, Error> {
        let end = &receiving.end;
        let next = || {
            // What was sent before the end comes before the end.
            let is_over = link.memory.state() == ViaState::Closed;
            match link.broken_by(end.first())? {
                None if is_over => Err(Error::Closed),
                found => Ok(found),
            }
        };
        if !look(|| end.is_there()) {
            return until(&self.session, deadline, || link.memory.arm(link.side), next);
        }
        link.broken_by(end.first())?.ok_or(Error::Broken)
    }

    /// What could be done without waiting. Where nothing that `wanted` names could, the channel is armed: the session's interrupt comes when
    /// that changes.
    pub(crate) fn readiness(&self, wanted: Readiness) -> Result<Readiness, Error> {
        let link = self.link()?;
        let found = link.readiness()?;
        if found.is_closed || found.receives && wanted.receives || found.sends && wanted.sends {
            return Ok(found);
        }
        link.memory.arm(link.side);
        link.readiness()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Closes it: the other side receives what was sent, and then hears of the end.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(link) = self.link.get() {
            link.move_on(ViaState::Closed);
            let _ = self.session.request(Request::ViaForget { handle: link.handle });
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

impl Link {
    fn of(reply: Reply, fds: Vec<Fd>, side: Side) -> Result<(Link, Attributes), Error> {
        let Reply::ViaConnection { handle, peer, attributes } = reply else { return Err(Error::Refused) };
        let [memory, waker] = <[Fd; 2]>::try_from(fds).map_err(|_| Error::Refused)?;
        let memory = ViaMemory::map(&memory).map_err(|_| Error::NoRoom)?;
        Ok((Link::new(memory, side, handle, IrqSender::from(owned(waker)), peer), attributes))
    }

    fn new(memory: ViaMemory, side: Side, handle: u32, waker: IrqSender, peer: NodeName) -> Link {
        let sending = ViaSender::new(memory.clone(), side);
        let receiving =
            Receiving { end: ViaReceiver::new(memory.clone(), side), incoming: Incoming::default() };
        Link {
            memory,
            side,
            handle,
            waker,
            peer,
            sending: Mutex::new(sending),
            receiving: Mutex::new(receiving),
        }
    }

    /// Something has changed that the other side may wait for.
    #[inline]
    fn wake(&self) {
        if self.memory.must_wake(self.side.other()) {
            self.waker.signal();
        }
    }

    /// Moves the state on and says so; `false`: it is further already.
    fn move_on(&self, to: ViaState) -> bool {
        let has_moved = self.memory.advance(to);
        self.wake();
        has_moved
    }

    /// A breach of the peer's is the connection's end.
    #[inline]
    fn broken_by<T>(&self, found: Result<T, Breach>) -> Result<T, Error> {
        found.map_err(|Breach| {
            self.move_on(ViaState::Closed);
            Error::Broken
        })
    }

    fn readiness(&self) -> Result<Readiness, Error> {
        let is_closed = self.memory.state() == ViaState::Closed;
        // Who is in a call at the moment does not have it wait.
        let receives = match self.receiving.try_lock() {
            Ok(receiving) => receiving.end.is_there(),
            Err(_) => false,
        };
        let sends = match self.sending.try_lock() {
            Ok(mut sending) => self.broken_by(sending.room(0))?.is_some(),
            Err(_) => false,
        };
        Ok(Readiness { receives, sends: sends && !is_closed, is_closed })
    }
}
