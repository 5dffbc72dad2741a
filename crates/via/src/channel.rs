//! A channel: one end of a connection, with EVIL's six calls.
//!
//! Two threads may use a channel at a time, one that sends and one that receives; others wait for their turn. [`Channel::close`] is for
//! when no thread is in another call.

#[cfg(test)]
pub(crate) mod tests;

use crate::core::Outgoing;
use crate::error::Error;
use crate::link::{Link, Readiness, Receiving};
use crate::lock::lock;
use crate::meet::{self, Listener};
use crate::session::Session;
use crate::sleep::{Deadline, Peer, look, until};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use toe_abi::via::{Attributes, DATA_LEN, NodeName, ViaState};
use toe_ring::ViaSender;
use toe_ring::via::Arrived;

/// A port of EVIL's: 1 to 255.
pub type Port = std::num::NonZeroU8;

/// A channel's time limit of which nobody has said anything.
const NEVER_SET: i32 = i32::MIN;
/// How long a connect then takes.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub struct Channel {
    session: Arc<Session>,
    peer: Option<NodeName>,
    port: Port,
    /// Milliseconds; negative: no limit, or [`NEVER_SET`].
    timeout_ms: AtomicI32,
    link: OnceLock<Link>,
    closed: AtomicBool,
}

/// Bytes of a message that are taken before its sender is woken; at its end it always is.
const WAKE_AT: u64 = DATA_LEN / 4;

/// Fragments that make a stream of small ones where nothing goes the other way, most bytes of one, and how long who has come to its end looks
/// away: half a microsecond. With larger ones the copies take longer than that.
const STREAM: u32 = 16;
const SMALL_MAX: u32 = 4 << 10;
const LOOKS_AWAY: u32 = 32;

/// Who has caught up with a stream stays behind it a little. Close behind its sender each line goes from core to core once for each message, instead
/// of many one behind the other.
#[inline]
fn fall_behind(link: &Link) {
    if link.streak.load(Ordering::Relaxed) >= STREAM {
        for _ in 0..LOOKS_AWAY {
            std::hint::spin_loop();
        }
    }
}

const fn peer(is_begun: bool) -> Peer {
    if is_begun { Peer::InTheMiddle } else { Peer::Anywhere }
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
            timeout_ms: AtomicI32::new(NEVER_SET),
            link: OnceLock::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// How long each of the following calls may take; negative: as long as it takes.
    pub fn set_timeout_ms(&self, limit_ms: i32) {
        self.timeout_ms.store(limit_ms.max(-1), Ordering::Relaxed);
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

    /// How long a connect may take of which nobody has said it: what is wrong, a node's name often, would never be told else.
    fn connect_limit(&self) -> Option<Duration> {
        (self.timeout_ms.load(Ordering::Relaxed) == NEVER_SET).then_some(CONNECT_LIMIT)
    }

    /// Waits until the peer connects, and accepts.
    pub fn wait(&self) -> Result<(), Error> {
        self.check_unlinked()?;
        let deadline = self.deadline();
        let mut listener = Listener::new(&self.session, self.peer, self.port.get().into())?;
        loop {
            let (link, theirs) = listener.take(deadline)?;
            if !theirs.speaks_as(Attributes::EVIL) {
                link.move_on(ViaState::Rejected);
            } else if link.accept(Attributes::EVIL) {
                // Whether another host that asked goes on to say something is found by who sends to it, and keeps nobody else waiting.
                return self.set(link);
            }
            // Rejected, or gone meanwhile.
            link.forget(&self.session);
            if deadline.is_over() {
                // However many that are to be rejected come.
                return Err(Error::TimedOut);
            }
        }
    }

    /// Connects to the peer, which may come to wait later: within half a minute, if [`Channel::set_timeout_ms`] has not said otherwise.
    pub fn connect(&self) -> Result<(), Error> {
        self.check_unlinked()?;
        let address = (self.peer.unwrap_or(self.session.node), self.port.get().into());
        let limit = self.connect_limit();
        let deadline = if limit.is_some() { Deadline::after(limit) } else { self.deadline() };
        let link = meet::connect(&self.session, address, Attributes::EVIL, deadline);
        self.set(link.map_err(|error| {
            if error == Error::TimedOut && limit.is_some() { Error::Nobody } else { error }
        })?)
    }

    fn check_unlinked(&self) -> Result<(), Error> {
        if !self.session.is_this_process() {
            return Err(Error::NoChannel);
        }
        if self.link.get().is_some() { Err(Error::Connected) } else { Ok(()) }
    }

    fn set(&self, link: Link) -> Result<(), Error> {
        self.link.set(link).map_err(|link| {
            link.leave(&self.session);
            Error::Connected
        })
    }

    /// A child of fork has a copy of the channel, and its memory: what it did there would be taken for its parent's doing.
    #[inline]
    fn link(&self) -> Result<&Link, Error> {
        if !self.session.is_this_process() {
            return Err(Error::NoChannel);
        }
        self.link.get().ok_or(Error::NotConnected)
    }

    /// Sends a message of any size. Returns when the last byte is where the peer finds it, not when it is received.
    pub fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let link = self.link()?;
        if bytes.len() as u64 > link.message_max() {
            return Err(Error::Invalid);
        }
        if !link.is_settled() {
            link.settle(&self.session, self.deadline())?;
        }
        let mut sending = lock(&link.sending);
        if link.streak.load(Ordering::Relaxed) != 0 {
            link.streak.store(0, Ordering::Relaxed);
        }
        let mut message = Outgoing::new(bytes.len() as u64);
        let mut deadline = None;
        while let Some(piece) = message.next() {
            // A bad peer is a breach, whatever it says of itself.
            if link.memory.state() == ViaState::Closed {
                return Err(link.why_closed(&self.session));
            }
            let len = piece.fragment.len;
            let Some(room) = link.broken_by(sending.room(len))? else {
                let deadline = *deadline.get_or_insert_with(|| self.deadline());
                let waited = self.wait_for_credit(link, &mut sending, (len, message.is_begun()), deadline);
                if waited.is_err() && message.is_begun() {
                    link.move_on(ViaState::Closed);
                }
                waited?;
                continue;
            };
            let at = piece.at as usize;
            let part = &bytes[at..at + len as usize];
            link.send(&mut sending, piece.fragment, room, part)?;
            message.sent(piece);
        }
        Ok(())
    }

    #[cold]
    fn wait_for_credit(
        &self,
        link: &Link,
        sending: &mut ViaSender,
        (len, is_begun): (u32, bool),
        deadline: Deadline,
    ) -> Result<(), Error> {
        // Who goes on with each slot that is given back follows the receiver line by line, and each costs both of them a line that the other core has.
        let is_roomy = || {
            link.pull();
            let is_roomy = match len {
                0..=SMALL_MAX => sending.is_roomy(),
                _ => sending.room(len).map(|room| room.is_some()),
            };
            link.memory.state() == ViaState::Closed || is_roomy.unwrap_or(true)
        };
        if look(peer(is_begun), is_roomy) {
            return Ok(());
        }
        let has_room = || {
            link.pull();
            match link.memory.state() {
                ViaState::Closed => Err(link.why_closed(&self.session)),
                _ => link.broken_by(sending.room(len)).map(|room| room.map(|_| ())),
            }
        };
        until(&self.session, deadline, || link.memory.arm(link.side), has_room)
    }

    /// Receives the next message, which is no longer than `bytes`; gives its length.
    pub fn recv(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        let link = self.link()?;
        let mut receiving = lock(&link.receiving);
        let mut deadline = None;
        // Whether something of this message was taken, and bytes of it for which the sender was not woken yet.
        let (mut is_begun, mut unsaid) = (false, 0);
        loop {
            let next = link.broken_by(receiving.end.first())?;
            let Some(arrived) = next else {
                link.wake_if(std::mem::take(&mut unsaid) > 0);
                let deadline = *deadline.get_or_insert_with(|| self.deadline());
                fall_behind(link);
                let waited = self.wait_for_fragment(link, &receiving, is_begun, deadline);
                if waited.is_err() && is_begun {
                    link.move_on(ViaState::Closed);
                }
                waited?;
                continue;
            };
            let placed = link.broken_by(receiving.incoming.locate(arrived.fragment))?;
            let at = placed.at as usize;
            if placed.total > bytes.len() as u64 {
                return Err(Error::TooLong);
            }
            let part = bytes.get_mut(at..at + arrived.fragment.len as usize).ok_or(Error::TooLong)?;
            link.memory.read(arrived.offset, part).map_err(|_| Error::Broken)?;
            receiving.end.take(arrived);
            receiving.incoming.took(placed, arrived.fragment);
            // By nobody else at the same time: the lock is this thread's.
            let is_small = arrived.fragment.len <= SMALL_MAX;
            let streak = if is_small { link.streak.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
            link.streak.store(streak, Ordering::Relaxed);
            is_begun = true;
            unsaid += u64::from(arrived.fragment.len);
            // Not for each: one that is woken is to have room for more than the next.
            link.wake_if(placed.is_last || unsaid >= WAKE_AT);
            if placed.is_last {
                return Ok(placed.total as usize);
            }
            unsaid %= WAKE_AT;
        }
    }

    /// The length of the next message.
    pub fn size(&self) -> Result<u64, Error> {
        let link = self.link()?;
        let receiving = lock(&link.receiving);
        let arrived = match link.broken_by(receiving.end.first())? {
            Some(arrived) => arrived,
            None => self.wait_for_fragment(link, &receiving, false, self.deadline())?,
        };
        Ok(link.broken_by(receiving.incoming.locate(arrived.fragment))?.total)
    }

    #[inline]
    fn wait_for_fragment(
        &self,
        link: &Link,
        receiving: &Receiving,
        is_begun: bool,
        deadline: Deadline,
    ) -> Result<Arrived, Error> {
        let end = &receiving.end;
        let next = || {
            link.pull();
            // What was sent before the end comes before the end.
            let is_over = link.memory.state() == ViaState::Closed;
            match link.broken_by(end.first())? {
                None if is_over => Err(link.why_closed(&self.session)),
                found => Ok(found),
            }
        };
        let is_there = || {
            link.pull();
            end.is_there()
        };
        if !look(peer(is_begun), is_there) {
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
        if let Ok(link) = self.link() {
            link.leave(&self.session);
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}
