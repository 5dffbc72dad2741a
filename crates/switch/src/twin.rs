//! The kernel's socket that a program connects: held while engines are asked, moved out of the way when one takes the connection, and
//! put back when that fails. Used by `connect.rs`.

use crate::engines::keep_on_kernel;
use crate::replacing::{InKernel, Refusal, Replacing};
use crate::socket_state::{self, OptionKind, Replayed, State, option_kind};
use crate::why::{self, Decided, Reason, Stack as On};
use crate::{hidden_twin, real, twin_pool};
use core::ffi::c_int;
use libc::socklen_t;
use toe::block::OnSignal;
use toe::own_fds::OwnCopy;
use toe::signals::let_handlers_run;
use toe::socket::{Held as Waiting, Shutdown, Socket};
use toe::stack::Stack;
use toe::wait::restarts;
use toe::{Anchor, Errno, epoll, fd_release, fd_table, signal_io, sys};

/// Whether the engine's socket is what is at a number.
pub fn is_still(fd: c_int, socket: &'static Socket) -> bool {
    fd_table::get(fd).is_some_and(|now| core::ptr::eq(now, socket))
}

/// A program's socket while engines are asked for it.
#[derive(Debug)]
pub struct Held {
    replacing: Replacing,
    /// What it is, whatever becomes of the number; and with it there is room for a descriptor: a connection that is begun can be
    /// put in place, too.
    copy: OwnCopy,
    /// The copy's number is none that the program would get to.
    is_high: bool,
}

/// Why a program's socket cannot be held.
#[derive(Debug)]
pub enum NotHeld {
    NoDescriptor(Errno),
    Replaced(Refusal),
}

/// Why an engine's connection could not be put at the program's number.
#[derive(Debug)]
pub enum NoRoom {
    /// The program has ended the descriptor.
    Ended(Anchor),
    /// The connection has ended.
    Errno(Errno),
}

impl Held {
    pub fn take(stack: &'static Stack, fd: c_int) -> Result<Held, NotHeld> {
        let replacing = Replacing::begin_after_others(fd, State::TWIN).map_err(NotHeld::Replaced)?;
        let high = stack.session.own_fds().copy_of(fd).map(|copy| (copy, true));
        let copy = high.or_else(|_| stack.session.own_fds().copy_anywhere(fd).map(|copy| (copy, false)));
        let (copy, is_high) = copy.map_err(NotHeld::NoDescriptor)?;
        Ok(Held { replacing, copy, is_high })
    }

    /// The number of the copy: the same open file.
    pub fn number(&self) -> c_int {
        self.copy.raw()
    }

    /// No engine has it. `None`: the number is not what it was.
    pub fn leave_to_kernel(self) -> Option<InKernel> {
        self.replacing.leave_to_kernel()
    }

    /// Puts the anchor in its place: the program's descriptor is the engine's from now on.
    ///
    /// `nonblocking`: what the twin is. The socket itself would ask its descriptor, which it has not got yet, if a child has been
    /// made since.
    pub fn make_room(
        self,
        fd: c_int,
        nonblocking: bool,
        anchor: Anchor,
        (socket, on): (&'static Socket, Decided),
    ) -> Result<(Twin, Replacing), NoRoom> {
        let Held { replacing, copy, is_high } = self;
        if !replacing.begin_placing() {
            return Err(NoRoom::Ended(anchor));
        }
        let state = socket_state::get(fd).without(State::REPLACING);
        let flags = rustix::io::fcntl_getfd(sys::borrow(fd));
        let cloexec = flags.is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC));
        if state.has(State::IN_EPOLL) {
            epoll::note_disarmed(fd);
        }
        // The kernel would go on reporting one that is in an epoll set.
        let kept = (!state.has(State::IN_EPOLL)).then_some(copy);
        let stack = anchor.stack;
        let mut twin = Twin { stack, socket: kept, is_high, state, nonblocking };
        let outcome = match anchor.open_as(fd, cloexec, nonblocking) {
            // There may be room now.
            Err((_, Some(anchor))) if twin.socket.take().is_some() => {
                anchor.open_as(fd, cloexec, nonblocking)
            }
            outcome => outcome,
        };
        if let Err((error, _)) = outcome {
            socket.abandon();
            return Err(NoRoom::Errno(error));
        }
        if state.has(State::INET6) {
            socket.mark_inet6(fd);
        }
        fd_table::install(fd, socket);
        epoll::replace(fd, socket);
        // Whoever ends the number now waits until it is held (`Replacing`), and does not take the connection away before.
        socket_state::set(fd, State::REPLACING);
        why::set(fd, on);
        Ok((twin, replacing))
    }
}

/// The kernel's socket whose place an engine's has taken.
#[derive(Debug)]
pub struct Twin {
    stack: &'static Stack,
    /// `None`: its descriptor was the last, or the kernel must forget it, or the program's descriptor keeps it.
    socket: Option<OwnCopy>,
    /// Its number is none that the program would get to.
    is_high: bool,
    state: State,
    nonblocking: bool,
}

impl Twin {
    /// A signal's handler is about to run, and may not return: the program's descriptor keeps it.
    pub fn lend(&mut self, fd: c_int) {
        self.socket
            .take()
            .and_then(OwnCopy::into_fd)
            .into_iter()
            .for_each(|twin| hidden_twin::keep(fd, twin));
    }

    /// What [`Twin::lend`] has given away, if it is there still.
    pub fn take_back(&mut self, fd: c_int) {
        self.socket =
            hidden_twin::take_back(fd).and_then(|twin| self.stack.session.own_fds().keep_copy(twin).ok());
    }

    /// It is not needed for this connection any more, but to hold the port that the program bound.
    pub fn keep(self, fd: c_int) {
        let Some(socket) = self.socket.and_then(OwnCopy::into_fd) else { return };
        if self.state.has(State::BOUND) {
            hidden_twin::keep(fd, socket);
        } else if self.is_high
            && let Some(spare) = twin_pool::spare(socket, self.state, self.nonblocking)
        {
            spare.keep();
        }
    }

    /// The program's descriptor is the kernel's again, as it was before, and held. `None`: the program has ended it.
    pub fn put_back(self, fd: c_int, socket: &'static Socket) -> Option<Held> {
        let Some(copy) = self.socket else {
            reopen(fd).ok()?;
            return Held::take(self.stack, fd).ok();
        };
        let copies = if socket.has_copies() { others_of(fd, socket) } else { Vec::new() };
        // A shared kernel socket is simply kept, as by dup.
        let state = if copies.is_empty() { self.state } else { State::default() };
        let replacing = put_at(fd, copy.raw(), socket, state)?;
        for other in copies {
            let _ = put_at(other, copy.raw(), socket, State::default());
        }
        replacing.ask_again();
        Some(Held { replacing, copy, is_high: self.is_high })
    }
}

/// As [`Socket::wait_connected`], of a connection whose `twin` nobody else knows of yet. A signal's handler may not return, so
/// that is kept by the descriptor meanwhile. `held`: from when on it counts as waiting.
pub fn wait_connected(
    fd: c_int,
    (socket, held): (&'static Socket, Option<Waiting>),
    twin: &mut Twin,
    nonblocking: bool,
) -> Result<(), Errno> {
    let mut held = held;
    loop {
        let result = socket.wait_connected_until(nonblocking, OnSignal::Tell);
        drop(held.take());
        if result != Err(Errno::EINTR) || !restarts(socket.time_limits.send.get().is_some()) {
            return result;
        }
        twin.lend(fd);
        let_handlers_run();
        if !is_still(fd, socket) {
            return Err(Errno::EBADF);
        }
        twin.take_back(fd);
    }
}

/// The program's other descriptors of the engine's socket.
fn others_of(fd: c_int, socket: &'static Socket) -> Vec<c_int> {
    let mut others = Vec::new();
    fd_table::for_each(0, c_int::MAX, |other| {
        if other != fd && is_still(other, socket) {
            others.push(other);
        }
    });
    others
}

/// Puts the kernel's socket `twin` where the engine's is.
fn put_at(fd: c_int, twin: c_int, socket: &'static Socket, state: State) -> Option<Replacing> {
    let flags = rustix::io::fcntl_getfd(sys::borrow(fd));
    let is_watched = epoll::move_back(fd, socket);
    let replacing = take_out(fd, socket)?;
    let cloexec = flags.is_ok_and(|flags| flags.contains(rustix::io::FdFlags::CLOEXEC));
    let _ = sys::dup_onto(sys::borrow(twin), fd, cloexec);
    let watched = if is_watched { State::IN_EPOLL } else { State::default() };
    socket_state::set(fd, state.with(State::REPLACING).with(watched));
    if is_watched {
        epoll::register_in_kernel(fd);
    }
    why::set_reason(
        fd,
        On::Kernel,
        if state.has(State::TWIN) { Reason::Undecided } else { Reason::Duplicated },
    );
    Some(replacing)
}

/// Takes an engine's socket out of the table so that something else can be put at its number. `None`: the program has ended it.
fn take_out(fd: c_int, socket: &Socket) -> Option<Replacing> {
    let replacing = Replacing::begin_after_others(fd, State::default()).ok()?;
    (replacing.begin_placing() && fd_release::remove_only(fd, socket)).then_some(replacing)
}

/// Gives the program a kernel socket in the place of an engine's that has failed or was disconnected: the one that has kept the port that the
/// program bound, or a new one. It has the options that were set.
pub fn reopen(fd: c_int) -> Result<(), Errno> {
    let socket = fd_table::get(fd).ok_or(Errno::EBADF)?;
    let copies = if socket.has_copies() { others_of(fd, socket) } else { Vec::new() };
    let kept = [fd].iter().chain(&copies).find_map(|fd| hidden_twin::take_back(*fd));
    let bound = if kept.is_some() { State::BOUND } else { State::default() };
    let inet6 = if socket.is_inet6() { State::INET6 } else { State::default() };
    let twin = kept.map_or_else(|| new_socket(socket), Ok)?;
    let sends_signals = copy_settings(fd, socket, &twin)?;
    let shut = socket.disconnected().flatten();
    if let Some(how) = shut {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: numbers only. That it has no connection is the answer; it is shut all the same.
        unsafe { real::shutdown(twin.raw(), how) };
    }
    let options = socket.options_set();
    let state = if copies.is_empty() { twin_pool::state_of_new() } else { State::default() };
    let state = if copies.is_empty() { state.with(bound).with(inet6) } else { state };
    drop(put_at(fd, twin.raw(), socket, state).ok_or(Errno::EBADF)?);
    if sends_signals || shut.is_some() {
        keep_on_kernel(fd, if sends_signals { Reason::Signals } else { Reason::ShutBefore });
    }
    for other in copies {
        let _ = put_at(other, twin.raw(), socket, State::default());
    }
    for (level, name, value) in options {
        // SAFETY: a slice of that many bytes, which is only read.
        let result =
            unsafe { real::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as socklen_t) };
        if let (0, OptionKind::Replay(bit)) = (result, option_kind(level, name)) {
            socket_state::note_option(fd, bit, Replayed { level, name }, &value);
        }
    }
    Ok(())
}

fn new_socket(socket: &Socket) -> Result<sys::Fd, Errno> {
    let domain = if socket.is_inet6() { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: the call takes numbers only.
    let twin = unsafe { real::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if twin < 0 { Err(crate::ffi::last_errno()) } else { Ok(sys::Fd::from_raw(twin)) }
}

/// What the program has set on the open file (fcntl(2)), the kernel's has as well. Whether that has signals sent, which only the kernel can.
fn copy_settings(fd: c_int, socket: &Socket, twin: &sys::Fd) -> Result<bool, Errno> {
    let nonblocking = if socket.nonblocking() { libc::O_NONBLOCK } else { 0 };
    let signals = if socket.tells_by_signals() { libc::O_ASYNC } else { 0 };
    let others = sys::fcntl(twin.raw(), libc::F_GETFL, 0)? & !(libc::O_NONBLOCK | libc::O_ASYNC);
    let has_owner = toe::epoll::are_signals_used() && signal_io::copy(fd, twin.raw())?;
    sys::fcntl(twin.raw(), libc::F_SETFL, (others | nonblocking | signals).into())?;
    Ok(has_owner || signals != 0)
}
