//! `connect`: asking the engine, and waiting for the peer.

use crate::anchor::{Anchor, Use};
use crate::block::{BlockOn, OnSignal, block_on};
use crate::silence::{ANSWER_WITHIN, Silence};
use crate::socket::FastOpen;
use crate::socket::stream::{self, ConnectAnswer, Link, Stream};
use crate::socket::{Kind, NO_SLOT, Socket, SocketCall, twin};
use crate::stack::{EngineIdx, Stack};
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, RawFd};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::command::{CONNECT_FAST_OPEN, CONNECT_KERNEL_TOO, ConnectArgs, NO_HANDLE, WireAddr};
use toe_abi::errno::Errno;

/// How to connect.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectHow {
    pub fast: FastOpen,
    /// Where the engine says so the kernel's stack is asked.
    pub kernel_too: bool,
}

impl ConnectHow {
    const fn flags(self) -> u32 {
        let fast = if matches!(self.fast, FastOpen::No) { 0 } else { CONNECT_FAST_OPEN };
        fast | if self.kernel_too { CONNECT_KERNEL_TOO } else { 0 }
    }
}

impl Socket {
    /// Starts to connect to `remote`. Waits for the engine's answer only (1 s at most), not for the peer: see
    /// [`Socket::wait_connected`]. A `local` port is the one of the kernel socket `twin`, which the engine is shown.
    ///
    /// An error is the engine's reason not to try: ENETUNREACH (no route: try the kernel), EADDRINUSE,
    /// EADDRNOTAVAIL; EHOSTDOWN (with `kernel_too`): the kernel's listener does better; ENETDOWN: it is gone; ETIMEDOUT: it does not answer.
    pub fn connect(
        anchor: &Anchor,
        local: Option<(SocketAddr, BorrowedFd<'_>)>,
        remote: SocketAddr,
        fd: RawFd,
        how: ConnectHow,
    ) -> Result<&'static Socket, Errno> {
        let socket = Socket::allocate();
        match socket.connect_with(anchor, local, remote, fd, how) {
            Ok(()) => Ok(socket),
            Err(errno) => {
                socket.abandon();
                Err(errno)
            }
        }
    }

    /// What the engine would answer to a connect with `kernel_too`, if that is known: it said a moment ago that the kernel's listener does
    /// better (EHOSTDOWN), or that nobody listens (ECONNREFUSED).
    pub fn left_to_kernel(stack: &'static Stack, remote: SocketAddr) -> Option<Errno> {
        let names = stack.session.region().names();
        stack.my_queue().ok()?.lock().connect_credit.left(remote, names, sys::coarse_ms())
    }

    /// Starts to connect as [`Socket::connect`] does, from a port of the engine's choice, and does not wait for its answer, as there is
    /// nothing to be asked: the engine has connected to the same listener before, and goes round. `None`: it has to be asked. That it could not even
    /// try is found where the peer's answer is.
    pub fn connect_at_once(anchor: &Anchor, remote: SocketAddr, fd: RawFd) -> Option<&'static Socket> {
        let owner_queue = anchor.stack.my_queue().ok()?;
        anchor.stack.session.settling().note_connects(remote);
        let names = anchor.stack.session.region().names();
        let socket = Socket::allocate();
        socket.ready.store(0, Ordering::SeqCst);
        let mut queue = owner_queue.lock();
        queue.drain();
        let begun = queue.begin_connect((anchor.handle, fd), remote, names);
        let Some(flow) = begun.filter(|_| !owner_queue.is_dead()) else {
            drop(queue);
            socket.abandon();
            return None;
        };
        let mut stream = Stream::connecting(flow, socket);
        stream.endpoints.name_only(remote);
        stream.custody.anchor = Some(anchor.handle);
        let slot_id = queue.add_stream(stream);
        socket.move_in(owner_queue, slot_id, Kind::Stream);
        Some(socket)
    }

    /// Connects a native socket, whose descriptor `fd` becomes the anchor.
    pub(crate) fn connect_native(&'static self, remote: SocketAddr, fd: RawFd) -> Result<(), Errno> {
        let (local, fast) = {
            let settings = self.settings.lock();
            (settings.local, settings.fast_open())
        };
        let anchor = Anchor::take(Stack::get(EngineIdx::FIRST).ok_or(Errno::ENETDOWN)?, Use::Connection)?;
        let own = match local.filter(|local| local.port() != 0).map(twin::bind).transpose() {
            Ok(own) => own,
            Err(errno) => {
                anchor.refused(errno);
                return Err(errno);
            }
        };
        let presented = own.as_ref().map(|(twin, bound)| (*bound, twin.as_fd()));
        let local = presented.or(local.map(|local| (local, sys::borrow(fd))));
        match self.connect_with(&anchor, local, remote, fd, ConnectHow { fast, kernel_too: false }) {
            Ok(()) => {
                if let Some((twin, _)) = own {
                    self.keep_twin(twin);
                }
                anchor.open_over(self, fd)
            }
            Err(errno) => {
                anchor.refused(errno);
                Err(errno)
            }
        }
    }

    /// Connects this fresh socket, whose anchor is `anchor`.
    fn connect_with(
        &'static self,
        anchor: &Anchor,
        local: Option<(SocketAddr, BorrowedFd<'_>)>,
        remote: SocketAddr,
        fd: RawFd,
        how: ConnectHow,
    ) -> Result<(), Errno> {
        anchor.stack.session.settling().note_connects(remote);
        let handle = match local {
            Some((local, twin)) if local.port() != 0 => twin::show(&anchor.stack.session, twin)?,
            _ => NO_HANDLE,
        };
        let args = ConnectArgs {
            remote: remote.into(),
            local: local.map(|(local, _)| WireAddr::from(local)).unwrap_or_default(),
            twin: handle,
            anchor: anchor.handle.0,
            fd: fd as u32,
            flags: how.flags(),
            ..ConnectArgs::default()
        };
        let owner_queue = anchor.stack.my_queue()?;
        let names = anchor.stack.session.region().names();
        self.ready.store(0, Ordering::SeqCst);
        let outcome = loop {
            match self.command(owner_queue, &mut |queue| queue.start_connect(owner_queue, self, &args)) {
                // Where most ports are in use the engine looks for a free one a little at a time.
                Err(Errno::EAGAIN) => {}
                outcome => break outcome,
            }
        };
        if let Err(answer @ (Errno::EHOSTDOWN | Errno::ECONNREFUSED)) = outcome {
            owner_queue.lock().connect_credit.note_left(remote, answer, names, sys::coarse_ms());
        }
        outcome.inspect_err(|_| self.become_fresh())?;
        // The kernel's stack has these addresses, too: what ends there is known to be refused when it is.
        if remote.ip().is_loopback() {
            owner_queue.lock().connect_credit.note(remote, names, owner_queue.session.heard());
        }
        if how.fast == FastOpen::Option {
            self.settings.lock().set_fast_open();
        }
        let settings = {
            let mut settings = self.settings.lock();
            settings.local = local.map(|(local, _)| local);
            settings.clone()
        };
        let info = if how.fast == FastOpen::No { None } else { self.flow_info() };
        self.with_stream(|io, stream, _| {
            stream.custody.anchor = Some(anchor.handle);
            settings.apply(io, stream);
            if let Some(info) = info {
                stream.open_fast(how.fast, &info);
            }
        });
        Ok(())
    }

    /// Whether the SYN waits for what the program sends first.
    pub fn waits_for_bytes(&'static self) -> bool {
        self.peek_stream(|stream| stream.link.waits_for_bytes()) == Some(true)
    }

    /// What MSG_FASTOPEN gives on a socket that connects already or is connected: `None` while the SYN waits for bytes.
    pub fn fast_open_error(&'static self) -> Option<Errno> {
        self.peek_stream(|stream| match stream.link {
            link if link.waits_for_bytes() => None,
            Link::Connecting { .. } => Some(Errno::EALREADY),
            _ => Some(Errno::EISCONN),
        })
        .flatten()
    }

    pub(super) fn become_fresh(&self) {
        self.kind.store(Kind::Fresh as u8, Ordering::Release);
        self.slot_id.store(NO_SLOT, Ordering::Release);
        self.ready.store(stream::OUT | stream::HUP, Ordering::SeqCst);
    }

    /// What `connect` returns. Blocking: waits until the peer has answered; EINPROGRESS after SO_SNDTIMEO. Non-blocking:
    /// EINPROGRESS the first time, then EALREADY, until there is a result: success or the error, once; then EISCONN
    /// or ECONNABORTED. ENETDOWN: the engine, which was not asked whether it could connect, says nothing.
    pub fn wait_connected(&'static self, nonblocking: bool) -> Result<(), Errno> {
        self.wait_connected_until(nonblocking, OnSignal::Restart)
    }

    /// The same, with what a signal does to it.
    pub fn wait_connected_until(&'static self, nonblocking: bool, on_signal: OnSignal) -> Result<(), Errno> {
        self.settle()?;
        let mut attempt = || {
            let answered = self.with_stream(|io, stream, _| {
                let result = stream.connect_result();
                if matches!(result, Some(Err(error)) if error != Errno::EISCONN) {
                    // Linux: after that it is as one that never connected, and may try anew.
                    stream.disconnect(io, false);
                }
                result
            });
            let result = answered.ok_or(Errno::ECONNABORTED)?;
            if result.is_none()
                && let Some(owner_queue) = self.owner_queue()
            {
                owner_queue.look();
            }
            result.transpose()
        };
        if nonblocking || self.time_limits.send.get() == Some(Duration::ZERO) {
            // Linux says so even when the peer has answered by then; there are programs that count on it.
            let first = self.peek_stream(|stream| {
                let first = stream.connect_answer == ConnectAnswer::Nothing && !stream.link.waits_for_bytes();
                if first {
                    stream.connect_answer = ConnectAnswer::InProgress;
                }
                first
            });
            if first == Some(true) {
                return Err(Errno::EINPROGRESS);
            }
            return attempt()?.ok_or(Errno::EALREADY);
        }
        let call = SocketCall::begin(self);
        let limit = self.time_limits.send.get().map(|timeout| sys::now() + timeout);
        let is_unanswered = || self.peek_stream(|stream| stream.is_unanswered()) == Some(true);
        let mut silence = is_unanswered().then(|| Silence::within(ANSWER_WITHIN));
        loop {
            let on = BlockOn {
                deadline: limit,
                silence: silence.as_ref(),
                too_late: Errno::EINPROGRESS,
                on_signal,
                ..Socket::block(&call, None, None)
            };
            let outcome = block_on(on, &mut attempt);
            let is_silent = silence.as_ref().is_some_and(Silence::is_over);
            if outcome != Err(Errno::EINPROGRESS) || !is_silent {
                return outcome;
            }
            // Where the peer alone is waited for the engine has given it a name.
            let info = self.flow_info();
            self.peek_stream(|stream| info.inspect(|info| stream.read_name(info)));
            if is_unanswered() {
                return Err(Errno::ENETDOWN);
            }
            silence = None;
        }
    }
}
