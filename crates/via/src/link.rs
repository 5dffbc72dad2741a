//! A connection, from one of its sides: its memory, both ends of its fragments, and whom to wake. What channels (EVIL) and virtual interfaces
//! (VIPL) stand on.

use crate::core::Incoming;
use crate::error::Error;
use crate::session::{Session, owned};
use std::sync::{Mutex, MutexGuard, PoisonError};
use toe::sys::Fd;
use toe_abi::attach::{Reply, Request};
use toe_abi::channel::Side;
use toe_abi::via::{Attributes, NodeName, ViaState};
use toe_ring::irq::{IrqSender, Signal};
use toe_ring::via::Breach;
use toe_ring::{ViaMemory, ViaReceiver, ViaSender};

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub memory: ViaMemory,
    pub side: Side,
    pub handle: u32,
    waker: IrqSender,
    pub peer: NodeName,
    pub sending: Mutex<ViaSender>,
    pub receiving: Mutex<Receiving>,
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Side 1 accepts, and says what it is; `false`: the other one has gone meanwhile.
    pub fn accept(&self, as_what: Attributes) -> bool {
        self.memory.set_attributes(Side::One, as_what);
        self.move_on(ViaState::Accepted)
    }

    /// Leaves: the other side receives what was sent, and then hears of the end.
    pub fn leave(&self, session: &Session) {
        self.move_on(ViaState::Closed);
        let _ = session.request(Request::ViaForget { handle: self.handle });
    }

    #[inline]
    pub fn wake_if(&self, is_time: bool) {
        if is_time {
            self.wake();
        }
    }

    /// Something has changed that the other side may wait for.
    #[inline]
    pub fn wake(&self) {
        if self.memory.must_wake(self.side.other()) {
            self.waker.signal();
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
