//! A connection, from one of its sides: its memory, both ends of its fragments, and whom to wake. What channels (EVIL) and virtual interfaces
//! (VIPL) stand on.

use crate::core::Incoming;
use crate::core::operation::{HEADER_LEN, Operation};
use crate::error::Error;
use crate::far::carrier::Answer;
use crate::far::ddp;
use crate::far::inward::STRAIGHT_MIN;
use crate::far::set::{Far, Member};
use crate::session::{Session, owned};
use crate::sleep::{Deadline, until};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use toe::sys::Fd;
use toe_abi::attach::{Reply, Request};
use toe_abi::channel::Side;
use toe_abi::via::{Attributes, Fragment, NodeName, ViaState};
use toe_ring::irq::{IrqSender, Signal};
use toe_ring::via::{Arrived, Breach, Room};
use toe_ring::{ViaMemory, ViaReceiver, ViaSender};

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub memory: ViaMemory,
    pub side: Side,
    pub handle: u32,
    waker: Waker,
    pub peer: NodeName,
    pub sending: Mutex<ViaSender>,
    pub receiving: Mutex<Receiving>,
    /// Small fragments that came since this side sent something, or since a large one came.
    pub streak: AtomicU32,
}

/// Who is told that something has changed.
#[derive(Debug)]
enum Waker {
    /// The other program.
    Peer(IrqSender),
    /// Who stands for it here: it is at another host.
    Far(Arc<Far>),
}

#[derive(Debug)]
pub(crate) struct Receiving {
    pub end: ViaReceiver,
    pub incoming: Incoming,
}

/// What [`Link::readiness`] finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A message, or a part of one, has come.
    pub receives: bool,
    /// There is credit.
    pub sends: bool,
    /// The other side has left.
    pub is_closed: bool,
}

impl Link {
    /// The connection's handle, and what it is made into, with what the other side says of itself.
    pub fn of(reply: Reply, fds: Vec<Fd>, side: Side) -> (u32, Result<(Link, Attributes), Error>) {
        let Reply::ViaConnection { handle, peer, attributes } = reply else {
            return (u32::MAX, Err(Error::Refused));
        };
        let made = || {
            let [memory, waker] = <[Fd; 2]>::try_from(fds).map_err(|_| Error::Refused)?;
            let memory = ViaMemory::map(&memory).map_err(|_| Error::NoRoom)?;
            Ok((Link::new(memory, side, handle, IrqSender::from(owned(waker)), peer), attributes))
        };
        (handle, made())
    }

    pub fn new(memory: ViaMemory, side: Side, handle: u32, waker: IrqSender, peer: NodeName) -> Link {
        Link::with(memory, side, handle, Waker::Peer(waker), peer)
    }

    /// Of a connection whose other side is at another host, for which `far` stands. No engine knows of it.
    pub fn to_far(memory: ViaMemory, side: Side, far: Arc<Far>, peer: NodeName) -> Link {
        Link::with(memory, side, u32::MAX, Waker::Far(far), peer)
    }

    fn with(memory: ViaMemory, side: Side, handle: u32, waker: Waker, peer: NodeName) -> Link {
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
            streak: AtomicU32::new(0),
        }
    }

    /// Side 1 accepts, and says what it is; `false`: the other one has gone meanwhile.
    pub fn accept(&self, as_what: Attributes) -> bool {
        self.memory.set_attributes(Side::One, as_what);
        self.move_on(ViaState::Accepted)
    }

    /// Leaves: the other side receives what was sent, and then hears of the end.
    pub fn leave(&self, session: &Session) {
        self.move_on(ViaState::Closed);
        self.forget(session);
    }

    /// It is not to stay among the session's.
    pub fn forget(&self, session: &Session) {
        match &self.waker {
            Waker::Peer(_) => _ = session.request(Request::ViaForget { handle: self.handle }),
            Waker::Far(far) => far.leave(),
        }
    }

    /// Takes what has come from another host. Nothing to do where the other side writes the memory itself.
    #[inline]
    pub fn pull(&self) {
        if let Waker::Far(far) = &self.waker {
            far.pull();
        }
    }

    /// Why there is nothing more: the other side has gone, or the engine, and with it the way to a far one.
    #[cold]
    pub fn why_closed(&self, session: &Session) -> Error {
        let is_lost = match &self.waker {
            Waker::Peer(_) => false,
            Waker::Far(far) => far.has_lost_engine(),
        };
        if is_lost || session.is_gone() { Error::NoEngine } else { Error::Closed }
    }

    /// What the far side has answered.
    pub fn far_answer(&self) -> Option<Answer> {
        match &self.waker {
            Waker::Peer(_) => None,
            Waker::Far(far) => far.answer(),
        }
    }

    /// Whether the far side has heard that this one accepts, or is gone. Until then nothing may be sent to it (RFC 5044, 7.1).
    #[inline]
    pub fn is_settled(&self) -> bool {
        match &self.waker {
            Waker::Peer(_) => true,
            Waker::Far(far) => far.is_settled(),
        }
    }

    /// Waits until it is.
    #[cold]
    pub fn settle(&self, session: &Session, deadline: Deadline) -> Result<(), Error> {
        let is_settled = || {
            self.pull();
            Ok(self.is_settled().then_some(()))
        };
        until(session, deadline, || self.memory.arm(self.side), is_settled)
    }

    /// Most bytes of a message.
    pub const fn message_max(&self) -> u64 {
        match self.waker {
            Waker::Peer(_) => toe_abi::via::MESSAGE_MAX,
            Waker::Far(_) => ddp::MESSAGE_MAX,
        }
    }

    /// What a message of `total` bytes begins with. Copied once: the sender may write others meanwhile.
    pub fn operation(&self, arrived: Arrived, total: u64) -> Result<Operation, Breach> {
        let mut header = [0; HEADER_LEN];
        if (arrived.fragment.len as usize) < HEADER_LEN {
            return Err(Breach);
        }
        self.memory.read(arrived.offset, &mut header).map_err(|_| Breach)?;
        Operation::decode(&header, total).ok_or(Breach)
    }

    #[inline]
    pub fn wake_if(&self, is_time: bool) {
        if is_time {
            self.wake();
        }
    }

    /// Sends a fragment for which there is `room`, and tells the other side.
    #[inline]
    pub fn send(
        &self,
        sending: &mut ViaSender,
        fragment: Fragment,
        room: Room,
        bytes: &[u8],
    ) -> Result<(), Error> {
        if let Waker::Far(far) = &self.waker
            && bytes.len() >= STRAIGHT_MIN
            && far.take_from(sending, fragment, room, bytes)
        {
            return Ok(());
        }
        self.memory.write(room.offset, bytes).map_err(|_| Error::Broken)?;
        sending.publish(fragment, room);
        self.wake();
        Ok(())
    }

    /// Something has changed that the other side may wait for.
    #[inline]
    pub fn wake(&self) {
        match &self.waker {
            Waker::Peer(waker) if self.memory.must_wake(self.side.other()) => waker.signal(),
            Waker::Peer(_) => {}
            Waker::Far(far) => far.push(),
        }
    }

    /// Moves the state on and says so; `false`: it is further already.
    pub fn move_on(&self, to: ViaState) -> bool {
        let has_moved = self.memory.advance(to);
        self.wake();
        has_moved
    }

    /// A breach of the peer's is the connection's end.
    #[inline]
    pub fn broken_by<T>(&self, found: Result<T, Breach>) -> Result<T, Error> {
        found.map_err(|Breach| {
            self.move_on(ViaState::Closed);
            Error::Broken
        })
    }

    pub fn readiness(&self) -> Result<Readiness, Error> {
        self.pull();
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
