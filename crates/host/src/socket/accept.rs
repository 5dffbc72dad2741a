//! `accept` and what it waits for. A listener's own side is [`super::listener`]; what a session knows of it [`super::arrivals`].

use crate::anchor::Anchor;
use crate::block::{BlockOn, OnSignal, block_on};
use crate::silence::{ANSWER_WITHIN, Silence};
use crate::slots::SlotId;
use crate::socket::arrivals::{Closed, Found};
use crate::socket::{Kind, Socket, SocketCall};
use crate::stack::Stack;
use crate::{fd_table, sys, thread};
use rustix::fd::RawFd;
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::entry::Command;
use toe_abi::errno::Errno;

/// With connections waiting at both, every so many accepts the kernel's is taken.
const KERNEL_EVERY: u32 = 8;

/// So long until an engine that did not take part in a wait is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How to accept.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcceptHow {
    /// Do not wait, whatever the listener's own flag says.
    pub dont_wait: bool,
    /// Close the new descriptor on exec.
    pub cloexec: bool,
    /// The new socket is non-blocking.
    pub nonblocking: bool,
    /// The program's descriptor is the kernel's listener on the same port, of which connections are taken, too.
    pub with_twin: bool,
}

/// A connection taken.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// The lowest free number, already in the table.
    pub fd: RawFd,
    pub socket: &'static Socket,
    pub peer: SocketAddr,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptError {
    /// The kernel had one, and who was asked for it has it ([`Socket::accept_of_both`]).
    OfKernel,
    Errno(Errno),
}

impl From<Errno> for AcceptError {
    fn from(errno: Errno) -> AcceptError {
        AcceptError::Errno(errno)
    }
}

impl Socket {
    /// Takes a connection of an engine's. Waits for one unless non-blocking.
    ///
    /// EAGAIN: none now (or SO_RCVTIMEO is over). EINVAL: not listening (any more). EMFILE, ENFILE: no descriptor is
    /// free; the connection waits on.
    pub fn accept(&'static self, how: AcceptHow) -> Result<Accepted, AcceptError> {
        self.accept_of_both(how, &mut |_| false)
    }

    /// The same, or of the kernel's when `how` says so: `of_kernel` is asked when it seems to have one, with a descriptor of
    /// its listener, and says whether there was one, or an error instead. It is asked while the wait goes on: another
    /// thread may close the program's descriptor, and what is left of the listener may end with the wait.
    pub fn accept_of_both(
        &'static self,
        how: AcceptHow,
        of_kernel: &mut dyn FnMut(RawFd) -> bool,
    ) -> Result<Accepted, AcceptError> {
        loop {
            match self.accept_one(how, of_kernel) {
                // It went back to the engine while this thread was about to take it, for a child to take; or the engine is to be asked again.
                Err(AcceptError::Errno(Errno::ECONNABORTED)) => {}
                other => return other,
            }
        }
    }

    fn accept_one(
        &'static self,
        how: AcceptHow,
        of_kernel: &mut dyn FnMut(RawFd) -> bool,
    ) -> Result<Accepted, AcceptError> {
        if self.kind() != Kind::Listener {
            return Err(Errno::EINVAL.into());
        }
        // An engine that is gone leaves the twin; its errors are found below.
        let settled = self.activate_all();
        // The thread's own count: a server that forks for each connection writes it, and of each page that it writes its child gets a copy.
        let round = thread::with(|thread| thread.accepts.replace(thread.accepts.get().wrapping_add(1)));
        if let (true, 0) = (how.with_twin, round % KERNEL_EVERY)
            && self.fds.known().is_some_and(&mut *of_kernel)
        {
            return Err(AcceptError::OfKernel);
        }
        if how.dont_wait || self.nonblocking() {
            settled?;
            let mut found = self.look_for_one(round, how.with_twin)?;
            if matches!(found, Found::Nothing) && self.let_engine_finish() {
                found = self.look_for_one(round, how.with_twin)?;
            }
            return match found {
                Found::Stream((at, slot_id)) => Ok(at.take_in(self, slot_id, how)?),
                Found::Asked => Ok(self.wait_for_answer(round, how)?),
                Found::Nothing => Err(Errno::EAGAIN.into()),
            };
        }
        self.wait_for_connection(round, how, of_kernel, settled.is_ok())
    }

    /// Looks at all engines that have it, at the first of them by `round`: none is to starve the others. One is asked at a
    /// time, so that no connection is handed out that this call does not take.
    fn look_for_one(
        &'static self,
        round: u32,
        with_twin: bool,
    ) -> Result<Found<(&'static Socket, SlotId)>, Errno> {
        // First what is there, or has been asked for.
        if self.has_siblings()
            && let found @ (Found::Stream(_) | Found::Asked) = self.look_at_all(round, with_twin, false)?
        {
            return Ok(found);
        }
        self.look_at_all(round, with_twin, true)
    }

    fn look_at_all(
        &'static self,
        round: u32,
        with_twin: bool,
        may_ask: bool,
    ) -> Result<Found<(&'static Socket, SlotId)>, Errno> {
        let mut outcome = Err(Errno::EINVAL);
        for member in self.members(round) {
            match member.try_take(with_twin, may_ask) {
                Ok(Found::Stream(slot_id)) => return Ok(Found::Stream((member, slot_id))),
                Ok(Found::Asked) => return Ok(Found::Asked),
                Ok(Found::Nothing) => outcome = Ok(Found::Nothing),
                Err(Errno::EINVAL) => return Err(Errno::EINVAL),
                Err(errno) => outcome = outcome.or(Err(errno)),
            }
        }
        outcome
    }

    fn try_take(&'static self, with_twin: bool, may_ask: bool) -> Result<Found, Errno> {
        let found = self.with_listener(|io, listener| match listener.closed {
            Closed::Shut => Err(Errno::EINVAL),
            Closed::EngineGone if !with_twin => Err(Errno::ECONNRESET),
            Closed::EngineGone => Ok(Found::Nothing),
            Closed::No => Ok(listener.look(io, may_ask)),
        });
        let found = found.unwrap_or(Err(Errno::EINVAL))?;
        if let (Found::Asked | Found::Nothing, Some(owner_queue)) = (found, self.owner_queue()) {
            owner_queue.look();
        }
        Ok(found)
    }

    /// For an accept that does not wait for connections: the engine says at once whether there is one.
    fn wait_for_answer(&'static self, round: u32, how: AcceptHow) -> Result<Accepted, Errno> {
        let silence = Silence::within(ANSWER_WITHIN);
        let call = SocketCall::begin(self);
        loop {
            let on = BlockOn {
                silence: Some(&silence),
                on_signal: OnSignal::Defer,
                ..Socket::block(&call, None, None)
            };
            let outcome = block_on(on, &mut || match self.look_for_one(round, how.with_twin)? {
                // While the wait goes on: with its end the listener may end, if another thread has closed it.
                Found::Stream((at, slot_id)) => at.take_in(self, slot_id, how).map(Some),
                Found::Asked => Ok(None),
                Found::Nothing => Err(Errno::EAGAIN),
            });
            match outcome {
                Err(Errno::EINTR) => {}
                other => return other,
            }
        }
    }

    fn wait_for_connection(
        &'static self,
        round: u32,
        how: AcceptHow,
        of_kernel: &mut dyn FnMut(RawFd) -> bool,
        is_taking: bool,
    ) -> Result<Accepted, AcceptError> {
        let seen = std::cell::Cell::new(false);
        let timeout = self.accept_timeout();
        // An engine that could not be asked to hand out connections may be in a while, and wakes nobody who has not asked.
        let asks_again = !is_taking && timeout.is_none();
        let patience = if asks_again { Some(ASK_AGAIN) } else { timeout };
        let call = SocketCall::begin(self);
        let twin_ready = how.with_twin.then_some(&seen);
        let on = BlockOn { twin_ready, ..Socket::block(&call, patience, None) };
        let outcome = block_on(on, &mut || {
            match self.look_for_one(round, how.with_twin)? {
                // As above.
                Found::Stream((at, slot_id)) => return Ok(Some(Some(at.take_in(self, slot_id, how)?))),
                // It would wait for this program behind the kernel's.
                Found::Asked => return Ok(None),
                Found::Nothing => {}
            }
            let is_kernels = seen.take() && self.fds.known().is_some_and(&mut *of_kernel);
            Ok(is_kernels.then_some(None))
        });
        match outcome {
            Ok(outcome) => outcome.ok_or(AcceptError::OfKernel),
            Err(Errno::EAGAIN) if asks_again => Err(Errno::ECONNABORTED.into()),
            // What has been asked for is on its way to this process, and another would wait for it.
            Err(errno @ (Errno::EAGAIN | Errno::EINTR)) if self.members(round).any(has_asked) => {
                self.wait_for_answer(round, how).map_err(|_| errno.into())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// SO_RCVTIMEO; of a listener that another process may have, whoever has set it: the twin keeps it. One that is over at once only who has
    /// set it knows: Linux shows it as none.
    fn accept_timeout(&self) -> Option<Duration> {
        // Where system calls are filtered, asking may be the process's end.
        let may_ask = self.is_shared() && self.has_twin() && !crate::sys::is_filtered();
        let twin = may_ask.then(|| self.fds.raw());
        match twin.map(|fd| sockopt::socket_timeout(sys::borrow(fd), sockopt::Timeout::Recv)) {
            Some(Ok(Some(timeout))) => Some(timeout),
            Some(Ok(None)) => self.time_limits.receive.get().filter(Duration::is_zero),
            _ => self.time_limits.receive.get(),
        }
    }

    /// Gives the connection in `slot_id` a socket and a descriptor. `primary`: the program's socket. A fork of another thread may
    /// give the connection back to the engine meanwhile; then there is none at that place.
    fn take_in(
        &'static self,
        primary: &'static Socket,
        slot_id: SlotId,
        how: AcceptHow,
    ) -> Result<Accepted, Errno> {
        let owner_queue = self.owner_queue().ok_or(Errno::EINVAL)?;
        let (anchor, fd) = match Stack::of(owner_queue.session)
            .ok_or(Errno::ENETDOWN)
            .and_then(|stack| Anchor::take_open(stack, how.cloexec, how.nonblocking))
        {
            Ok(made) => made,
            Err(errno) => {
                self.put_back(slot_id);
                if matches!(errno, Errno::ENETDOWN | Errno::ECONNRESET) {
                    // It is gone, and what it had with it.
                    owner_queue.end_session();
                }
                return Err(errno);
            }
        };
        let socket = Socket::allocate();
        if primary.is_inet6() {
            socket.mark_inet6(fd);
        }
        let settings = primary.settings.lock().for_accepted();
        let mut queue = owner_queue.lock();
        // Its first bytes are often there: without this its program would ask for them once more than it needs to.
        queue.drain();
        let Some((io, stream)) = queue.accept_stream(slot_id, socket) else {
            drop(queue);
            socket.retire();
            anchor.keep_open(fd);
            return Err(Errno::ECONNABORTED);
        };
        let flow = stream.flow;
        io.command_quietly(Command::Accept { flow, anchor: anchor.handle, fd: fd as u32 });
        stream.custody.anchor = Some(anchor.handle);
        anchor.opened();
        settings.apply(io, stream);
        let peer = stream.endpoints.remote().unwrap_or(super::UNBOUND);
        socket.move_in(owner_queue, slot_id, Kind::Stream);
        stream.publish(0);
        let listener = SlotId::from_bits(self.slot_id.load(Ordering::Acquire));
        if let Some((io, listener)) = queue.listener(listener, self) {
            if !listener.only_asks {
                io.command_quietly(Command::AcceptCredit { listener: listener.id, count: 1 });
            }
            if listener.rings_for_taken() {
                io.ring();
            }
        }
        // Who is shown the descriptor next must find the connection there.
        queue.settle_pending();
        drop(queue);
        socket.tells_unread.store(settings.tells_unread(), Ordering::Relaxed);
        *socket.settings.lock() = settings;
        socket.has_new_options.store(primary.has_new_options.load(Ordering::Acquire), Ordering::Release);
        socket.time_limits.copy(&primary.time_limits);
        socket.set_nonblocking(how.nonblocking);
        fd_table::install(fd, socket);
        Ok(Accepted { fd, socket, peer })
    }

    /// The connection at `slot_id` could not be taken after all.
    fn put_back(&'static self, stream: SlotId) {
        if let Some((mut queue, listener)) = self.lock_owner_queue()
            && queue.is_untaken(stream)
            && let Some((_, listener)) = queue.listener(listener, self)
        {
            listener.put_back(stream);
        }
    }
}

/// The engine was asked for a connection for it, and has not answered.
fn has_asked(member: &'static Socket) -> bool {
    member.with_listener(|_, listener| listener.asked) == Some(true)
}
