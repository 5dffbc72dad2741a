//! Listeners and `accept`.
//!
//! A listener takes connections only after somebody has asked for one: at the first `accept`, or when it is put into an
//! epoll set or polled, it posts accept credit to the engine, and one more for each connection taken. So a process that
//! merely holds a listener (a master of worker processes) is handed nothing.

use crate::anchor::Anchor;
use crate::queue::QueueIo;
use crate::slots::Place;
use crate::socket::arrivals::{CREDIT_MAX, Closed, Found, Listener};
use crate::socket::{Kind, NO_FD, Socket, Turn, twin};
use crate::stack::{EngineIdx, OwnCopy, Stack};
use crate::wait::{BlockOn, OnSignal, block_on};
use crate::{fd_table, sys};
use rustix::fd::{AsFd, BorrowedFd, RawFd};
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use toe_abi::command::{
    LISTEN_ASKS, LISTEN_KERNEL_TOO, LISTEN_SHARES_SHIFT, LISTEN_V6_ONLY, ListenArgs, NO_HANDLE,
    SHARES_REUSE_ADDR, SHARES_REUSE_PORT,
};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::{FlowId, ListenerId};

/// How long an engine may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long it may take to end a listener before its program goes on all the same.
const ENDS_WITHIN: Duration = Duration::from_millis(100);
/// With connections waiting at both, every so many accepts the kernel's is taken.
const KERNEL_EVERY: u32 = 8;

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

/// The kernel's listener at the same name, by which the engine knows whose that is.
#[derive(Clone, Copy, Debug)]
pub struct OfKernel<'a> {
    pub fd: BorrowedFd<'a>,
    /// The program takes its connections, too.
    pub is_taken_from: bool,
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

static ACCEPTS: AtomicU32 = AtomicU32::new(0);

impl Socket {
    /// Listens at `local`. The engine is shown the `twin`, the program's descriptor `fd`: a kernel socket that listens there;
    /// the anchor stays hidden. Does not wait beyond the engine's answer.
    pub fn listen(
        anchor: Anchor,
        local: SocketAddr,
        backlog: u32,
        twin: Option<OfKernel<'_>>,
        fd: RawFd,
    ) -> Result<&'static Socket, Errno> {
        let socket = Socket::allocate();
        let hidden = match socket.listen_with(&anchor, local, backlog, twin, fd) {
            Ok(()) => {
                socket.settings.lock().has_twin = twin.is_some();
                anchor.open_hidden()
            }
            Err(errno) => {
                anchor.refused(errno);
                Err(errno)
            }
        };
        match hidden {
            Ok(hidden) => {
                socket.hidden_anchor.store(hidden, Ordering::Release);
                Ok(socket)
            }
            Err(errno) => {
                socket.abandon();
                Err(errno)
            }
        }
    }

    /// Whether an engine has an address: it says so to who asks to listen there, though it lets nobody who shows no kernel
    /// socket.
    pub fn engine_has(anchor: Anchor, addr: SocketAddr, fd: RawFd) -> Result<bool, Errno> {
        let socket = Socket::allocate();
        let answer = socket.listen_with(&anchor, addr, 1, None, fd);
        socket.abandon();
        match answer {
            Ok(()) => Err(Errno::EPROTO),
            Err(errno) => {
                anchor.refused(errno);
                match errno {
                    Errno::EACCES => Ok(true),
                    Errno::EADDRNOTAVAIL => Ok(false),
                    _ => Err(errno),
                }
            }
        }
    }

    /// Whether connections of an engine are in the way of a kernel socket, of the options that `fd` has, which is to be bound
    /// there.
    pub fn is_in_use(stack: &'static Stack, local: SocketAddr, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        let bit = |is_on: rustix::io::Result<bool>, bit| if is_on == Ok(true) { bit } else { 0 };
        let shares = bit(sockopt::socket_reuseaddr(fd), SHARES_REUSE_ADDR)
            | bit(sockopt::socket_reuseport(fd), SHARES_REUSE_PORT);
        let v6_only = if local.is_ipv6() { bit(sockopt::ipv6_v6only(fd), LISTEN_V6_ONLY) } else { 0 };
        let flags = LISTEN_ASKS | v6_only | shares << LISTEN_SHARES_SHIFT;
        let args = ListenArgs {
            local: local.into(),
            anchor: NO_HANDLE,
            twin: NO_HANDLE,
            flags,
            ..ListenArgs::default()
        };
        let home = stack.my_queue()?;
        let socket = Socket::allocate();
        let outcome = socket.command(home, &mut |queue| queue.start_listen(home, socket, &args));
        socket.abandon();
        match outcome {
            Ok(_) => Ok(false),
            Err(Errno::EADDRINUSE) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// Makes this fresh socket a listener.
    fn listen_with(
        &'static self,
        anchor: &Anchor,
        local: SocketAddr,
        backlog: u32,
        twin: Option<OfKernel<'_>>,
        fd: RawFd,
    ) -> Result<(), Errno> {
        let stack = anchor.stack;
        let twin_handle = twin.map_or(Ok(NO_HANDLE), |twin| twin::show(stack, twin.fd))?;
        let v6_only = local.is_ipv6() && twin.is_some_and(|twin| sockopt::ipv6_v6only(twin.fd) == Ok(true));
        let kernel_too = twin.is_some_and(|twin| twin.is_taken_from);
        let args = ListenArgs {
            local: local.into(),
            backlog,
            anchor: anchor.handle.0,
            twin: twin_handle,
            fd: fd as u32,
            flags: if v6_only { LISTEN_V6_ONLY } else { 0 } | if kernel_too { LISTEN_KERNEL_TOO } else { 0 },
            ..ListenArgs::default()
        };
        let home = stack.my_queue()?;
        self.kind.store(Kind::Listener as u8, Ordering::Release);
        self.ready.store(0, Ordering::SeqCst);
        let outcome = self.command(home, &mut |queue| queue.start_listen(home, self, &args));
        let id = outcome.inspect_err(|_| self.become_fresh())?;
        let place = home.lock().add_listener(Listener::new(ListenerId(FlowId::from_raw(id)), self));
        let mut settings = self.settings.lock();
        settings.local = Some(local);
        settings.backlog = backlog;
        drop(settings);
        self.move_in(home, place, Kind::Listener);
        Ok(())
    }

    /// Listens with a native socket, whose descriptor `fd` becomes the anchor.
    pub(crate) fn listen_native(&'static self, backlog: u32, fd: RawFd) -> Result<(), Errno> {
        let local = self.settings.lock().local.unwrap_or(super::UNBOUND);
        let anchor = Anchor::take(Stack::get(EngineIdx::FIRST).ok_or(Errno::ENETDOWN)?)?;
        let (twin, local) = match twin::listen(local) {
            Ok(own) => own,
            Err(errno) => {
                anchor.refused(errno);
                return Err(errno);
            }
        };
        let of_kernel = OfKernel { fd: twin.as_fd(), is_taken_from: false };
        match self.listen_with(&anchor, local, backlog, Some(of_kernel), fd) {
            Ok(()) => {
                self.keep_twin(twin);
                anchor.open_in_place_of(self, fd)
            }
            Err(errno) => {
                anchor.refused(errno);
                Err(errno)
            }
        }
    }

    /// `listen` again.
    pub fn set_backlog(&self, backlog: u32) {
        self.settings.lock().backlog = backlog;
    }

    /// Whether the kernel listens on the same port with the program's descriptor.
    pub fn has_twin(&self) -> bool {
        self.settings.lock().has_twin
    }

    /// Posts accept credit, once. The connections come to the calling thread's queue set.
    pub(super) fn activate_listener(&'static self) -> Result<(), Errno> {
        self.settle()?;
        if self.settings.lock().active {
            return Ok(());
        }
        let Some(old) = self.home().filter(|home| !home.is_dead()) else { return Ok(()) };
        let home = old.stack.my_queue()?;
        let backlog = {
            let mut settings = self.settings.lock();
            if std::mem::replace(&mut settings.active, true) {
                return Ok(());
            }
            settings.backlog
        };
        if !std::ptr::eq(old, home) {
            // Both at once: a thread that finds it in neither would take it for closed. In one order, for two that move.
            let (mut from, mut to) = if old.index < home.index {
                let from = old.lock();
                (from, home.lock())
            } else {
                let to = home.lock();
                (old.lock(), to)
            };
            let place = Place::from_bits(self.place.load(Ordering::Acquire));
            let Some(id) = from.listener(place, self).map(|(_, listener)| listener.id) else {
                self.settings.lock().active = false;
                return Ok(());
            };
            from.remove_listener(place);
            let place = to.add_listener(Listener::new(id, self));
            self.move_in(home, place, Kind::Listener);
        }
        let count = backlog.clamp(1, CREDIT_MAX);
        self.with_listener(|io, listener| {
            listener.credit = count;
            io.command(Command::AcceptCredit { listener: listener.id, count });
        });
        Ok(())
    }

    /// Its engine is gone, or does not know it.
    pub(super) fn lose_engine(&self) {
        self.with_listener(|_, listener| listener.on_death());
    }

    pub(super) fn has_lost_engine(&self) -> bool {
        self.with_listener(|_, listener| listener.closed == Closed::EngineGone).unwrap_or(true)
    }

    pub(super) fn with_listener<R>(&self, f: impl FnOnce(&mut QueueIo, &mut Listener) -> R) -> Option<R> {
        let (mut queue, place) = self.lock_home()?;
        queue.drain();
        queue.listener(place, self).map(|(io, listener)| f(io, listener))
    }

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
                // It went back to the engine while this thread was about to take it, for a child to take.
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
        let turn = ACCEPTS.fetch_add(1, Ordering::Relaxed);
        if let (true, 0) = (how.with_twin, turn % KERNEL_EVERY)
            && self.descriptor().is_some_and(&mut *of_kernel)
        {
            return Err(AcceptError::OfKernel);
        }
        if how.dont_wait || self.nonblocking() {
            settled?;
            return match self.look_for_one(turn, how.with_twin)? {
                Found::Stream((at, place)) => Ok(at.take_in(self, place, how)?),
                Found::Asked => Ok(self.wait_for_answer(turn, how)?),
                Found::Nothing => Err(Errno::EAGAIN.into()),
            };
        }
        self.wait_for_connection(turn, how, of_kernel)
    }

    /// Looks at all engines that have it, at the first of them by `turn`: none is to starve the others. One is asked at a
    /// time, so that no connection is handed out that this call does not take.
    fn look_for_one(
        &'static self,
        turn: u32,
        with_twin: bool,
    ) -> Result<Found<(&'static Socket, Place)>, Errno> {
        // First what is there, or has been asked for.
        if self.has_siblings()
            && let found @ (Found::Stream(_) | Found::Asked) = self.look_at_all(turn, with_twin, false)?
        {
            return Ok(found);
        }
        self.look_at_all(turn, with_twin, true)
    }

    fn look_at_all(
        &'static self,
        turn: u32,
        with_twin: bool,
        may_ask: bool,
    ) -> Result<Found<(&'static Socket, Place)>, Errno> {
        let mut outcome = Err(Errno::EINVAL);
        for member in self.members(turn) {
            match member.try_take(with_twin, may_ask) {
                Ok(Found::Stream(place)) => return Ok(Found::Stream((member, place))),
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
        if let (Found::Asked | Found::Nothing, Some(home)) = (found, self.home()) {
            home.stack.look();
        }
        Ok(found)
    }

    /// For an accept that does not wait for connections: the engine says at once whether there is one.
    fn wait_for_answer(&'static self, turn: u32, how: AcceptHow) -> Result<Accepted, Errno> {
        let deadline = sys::now() + ANSWER;
        let call = Turn::begin(self);
        loop {
            let on = BlockOn {
                turn: &call,
                deadline: Some(deadline),
                too_late: Errno::EAGAIN,
                twin_ready: None,
                on_signal: OnSignal::Defer,
                moved: None,
            };
            let outcome = block_on(on, &mut || match self.look_for_one(turn, how.with_twin)? {
                // While the wait goes on: with its end the listener may end, if another thread has closed it.
                Found::Stream((at, place)) => at.take_in(self, place, how).map(Some),
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
        turn: u32,
        how: AcceptHow,
        of_kernel: &mut dyn FnMut(RawFd) -> bool,
    ) -> Result<Accepted, AcceptError> {
        let seen = std::cell::Cell::new(false);
        let on = BlockOn {
            turn: &Turn::begin(self),
            deadline: self.accept_timeout().map(|timeout| sys::now() + timeout),
            too_late: Errno::EAGAIN,
            twin_ready: how.with_twin.then_some(&seen),
            on_signal: OnSignal::Restart,
            moved: None,
        };
        let outcome = block_on(on, &mut || {
            if let Found::Stream((at, place)) = self.look_for_one(turn, how.with_twin)? {
                // As above.
                return Ok(Some(Some(at.take_in(self, place, how)?)));
            }
            let is_kernels = seen.take() && self.descriptor().is_some_and(&mut *of_kernel);
            Ok(is_kernels.then_some(None))
        })?;
        outcome.ok_or(AcceptError::OfKernel)
    }

    /// SO_RCVTIMEO; of a listener that another process may have, whoever has set it: the twin keeps it.
    fn accept_timeout(&self) -> Option<Duration> {
        // Where system calls are filtered, asking may be the process's end.
        let may_ask = self.is_shared() && self.has_twin() && !crate::confine::is_filtered();
        let twin = may_ask.then(|| self.fd.load(Ordering::Relaxed));
        match twin.map(|fd| sockopt::socket_timeout(sys::borrow(fd), sockopt::Timeout::Recv)) {
            Some(Ok(timeout)) => timeout,
            _ => self.receive_timeout(),
        }
    }

    /// Gives the connection in `place` a socket and a descriptor. `head`: the program's socket. A fork of another thread may
    /// give the connection back to the engine meanwhile; then there is none at that place.
    fn take_in(
        &'static self,
        head: &'static Socket,
        place: Place,
        how: AcceptHow,
    ) -> Result<Accepted, Errno> {
        let home = self.home().ok_or(Errno::EINVAL)?;
        let (anchor, fd) = match Anchor::take_open(home.stack, how.cloexec, how.nonblocking) {
            Ok(made) => made,
            Err(errno) => {
                self.put_back(place);
                if matches!(errno, Errno::ENETDOWN | Errno::ECONNRESET) {
                    // It is gone, and what it had with it.
                    home.stack.on_death();
                }
                return Err(errno);
            }
        };
        let socket = Socket::allocate();
        if head.is_inet6() {
            socket.mark_inet6(fd);
        }
        let settings = head.settings.lock().for_accepted();
        let mut queue = home.lock();
        // Whether it still is this session's is told by a completion: another process may have come to take from the listener.
        queue.io.ring.begin_busy();
        queue.drain();
        let Some((io, stream)) = queue.give_stream(place, socket) else {
            queue.io.ring.end_busy();
            drop(queue);
            socket.retire();
            anchor.keep_open(fd);
            return Err(Errno::ECONNABORTED);
        };
        let flow = stream.flow;
        io.command_quietly(Command::Accept { flow, anchor: anchor.handle, fd: fd as u32 });
        stream.anchor = Some(anchor.handle);
        anchor.opened();
        settings.apply(io, stream);
        let peer = stream.addrs.map_or(super::UNBOUND, |(_, remote)| remote);
        socket.move_in(home, place, Kind::Stream);
        stream.publish(0);
        let listener = Place::from_bits(self.place.load(Ordering::Acquire));
        if let Some((io, listener)) = queue.listener(listener, self) {
            if !listener.only_asks {
                io.command_quietly(Command::AcceptCredit { listener: listener.id, count: 1 });
            }
            if listener.rings_for_taken() {
                io.ring();
            }
        }
        // The engine must not take it back for want of an entry that had no room yet.
        queue.settle_owed();
        queue.io.ring.end_busy();
        drop(queue);
        socket.tells_unread.store(settings.tells_unread(), Ordering::Relaxed);
        *socket.settings.lock() = settings;
        socket.receive_timeout.store(head.receive_timeout.load(Ordering::Relaxed), Ordering::Relaxed);
        socket.send_timeout.store(head.send_timeout.load(Ordering::Relaxed), Ordering::Relaxed);
        socket.set_nonblocking(how.nonblocking);
        fd_table::install(fd, socket);
        Ok(Accepted { fd, socket, peer })
    }

    /// The connection at `place` could not be taken after all.
    fn put_back(&'static self, stream: Place) {
        if let Some((mut queue, listener)) = self.lock_home()
            && queue.is_untaken(stream)
            && let Some((_, listener)) = queue.listener(listener, self)
        {
            listener.put_back(stream);
        }
    }

    /// `shutdown` of a listener: it hands out nothing more.
    pub(super) fn end_listener(&'static self, why: Closed) {
        let last = !self.watched_as().is_shared();
        let ends = self.with_listener(|io, listener| {
            let was_open = listener.closed == Closed::No;
            if was_open {
                io.command(Command::CloseListener { listener: listener.id, last });
                listener.end(why);
            }
            was_open.then_some(listener.id)
        });
        self.wait_until_lapsed(ends.flatten());
    }

    /// The engine was told that a listener ends. Before the kernel can give the name to somebody else, everybody is to know that it has
    /// lapsed: a client that goes on without asking would be refused though that one listens. Whatever is asked is answered behind it.
    fn wait_until_lapsed(&'static self, ends: Option<ListenerId>) {
        if let (Some(id), Some(home), true) = (ends, self.home(), self.has_twin()) {
            let _ =
                self.command_within(ENDS_WITHIN, home, &mut |queue| queue.start_inspect(home, self, id.0));
        }
    }

    pub(super) fn close_listener(&'static self) {
        let last = !self.watched_as().is_shared();
        let Some((mut queue, place)) = self.lock_home() else { return };
        let mut ends = None;
        if let Some((io, listener)) = queue.listener(place, self)
            && listener.closed == Closed::No
        {
            io.command(Command::CloseListener { listener: listener.id, last });
            ends = Some(listener.id).filter(|_| last);
        }
        queue.remove_listener(place);
        drop(queue);
        self.wait_until_lapsed(ends);
    }

    /// Its hidden anchors go over exec as the program's descriptors do.
    pub fn keep_over_exec(&'static self, keep: bool) {
        self.members(0).for_each(|member| member.keep_anchor_over_exec(keep));
    }

    fn keep_anchor_over_exec(&self, keep: bool) {
        let hidden = self.hidden_anchor.load(Ordering::Acquire);
        if hidden != NO_FD {
            let _ = sys::fcntl(
                hidden,
                libc::F_SETFD,
                if keep { 0 } else { libc::c_long::from(libc::FD_CLOEXEC) },
            );
        }
    }

    /// The anchor to show for a claim: the hidden one, or a descriptor of the program's.
    /// `None`: it has none.
    ///
    /// A copy, if there is room for one, because another thread may close that one meanwhile, and the number be another
    /// connection's.
    pub(super) fn anchor(&self, stack: &'static Stack) -> Option<(RawFd, Option<OwnCopy>)> {
        let hidden = self.hidden_anchor.load(Ordering::Acquire);
        let copied = |fd| (fd, stack.copy_of(fd).ok());
        let known = || Some(self.of_descriptor(copied)).filter(|(fd, _)| *fd != NO_FD);
        // None is known for a moment while one is closed and another has just been made.
        let any = || fd_table::find(self, NO_FD).map(copied);
        let (fd, copy) = if hidden == NO_FD { known().or_else(any)? } else { copied(hidden) };
        Some((copy.as_ref().map_or(fd, OwnCopy::raw), copy))
    }
}
