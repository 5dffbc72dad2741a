//! Moving data: `recv`, `send`, `shutdown` and everything that is one of them under another name.

use crate::block::{BlockOn, block_on};
use crate::errno::ERESTART;
use crate::pace::Pace;
use crate::program_memory;
use crate::socket::arrivals::Closed;
use crate::socket::flags::{RecvFlags, SendFlags, Shutdown};
use crate::socket::shared::LOCAL;
use crate::socket::slices::{Gather, Scatter, Source, Target};
use crate::socket::stream::{self, Attempt, Link};
use crate::socket::{Kind, Socket, SocketCall};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;
use toe_abi::entry::{Command, FlowOption};
use toe_abi::errno::Errno;

/// How often one call that does not wait takes its connection back from another process: on busy processors more turns are lost than won, and
/// each is one of the other's, too.
const TAKEN_BACK_MAX: u32 = 256;
const MOVED: Errno = Errno::EAGAIN;

/// What a look for bytes came to.
enum Look {
    /// So many are there, and not all of where they go is at hand. Nothing was taken.
    Unprepared(usize),
    /// With it, how many bytes end the call.
    Over(Result<Attempt, Errno>, usize),
}

/// What a call is told that finds no stream: `otherwise`, unless that is because the socket that it began on has ended.
fn gone(call: &SocketCall, otherwise: Errno) -> Errno {
    if call.is_on() { otherwise } else { Errno::EBADF }
}

/// What a call returns that has `got` so many bytes when it ends.
fn received(
    socket: &'static Socket,
    outcome: Result<(), Errno>,
    got: usize,
    into: &mut impl Target,
    peek: bool,
) -> Result<usize, Errno> {
    match outcome {
        Ok(()) => Ok(got),
        Err(_) if got > 0 => Ok(got),
        // A look that waited in vain for all of it, or for SO_RCVLOWAT, shows what is there.
        Err(errno @ (Errno::EINTR | ERESTART | Errno::EAGAIN)) if peek => socket.look_once(into).ok_or(errno),
        Err(errno) => Err(errno),
    }
}

/// There was nothing, and that the program has shut this direction was the reason. What came before this call is read all the same, so
/// what this process has handed to the engine comes first: whether to look again.
fn may_have_more_behind_shut(socket: &Socket) -> bool {
    let ends_by_shut = socket.peek_stream(|stream| {
        stream.half_close.is_read_shut()
            && !stream.half_close.has_peer_closed()
            && stream.link == stream::Link::Open
            && !stream.so_error.waits()
    });
    ends_by_shut == Some(true) && socket.let_engine_finish()
}

/// As `attempt` says, else what `wait` comes to. How long that may be another process can have said: so a connection that this look
/// finds to be another's is taken back before, with its options.
fn when_settled<A: FnMut() -> Result<Option<()>, Errno>>(
    socket: &'static Socket,
    attempt: &mut A,
    wait: impl FnOnce(&mut A) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if socket.is_shared() {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        socket.settle()?;
    }
    wait(attempt)
}

impl Socket {
    /// Receives into `into`: what is there, at least a byte; 0 at the end of the stream.
    ///
    /// Waits until something is there, unless the socket or the call is non-blocking (EAGAIN), until SO_RCVTIMEO is
    /// over (EAGAIN) or a signal comes (EINTR). ECONNRESET and other errors of the connection are told once.
    pub fn recv(&'static self, into: &mut [IoSliceMut<'_>], flags: RecvFlags) -> Result<usize, Errno> {
        if self.kind() != Kind::Stream {
            return Err(Errno::ENOTCONN);
        }
        self.settle()?;
        if flags.discard {
            return self.discard(into.iter().map(|slice| slice.len()).sum(), flags);
        }
        self.recv_to(&mut Scatter::of_program(into), flags)
    }

    /// The same, into whatever takes bytes.
    pub(crate) fn recv_to(&'static self, into: &mut impl Target, flags: RecvFlags) -> Result<usize, Errno> {
        self.recv_in(&SocketCall::begin(self), into, flags)
    }

    /// The same as part of a call.
    pub(crate) fn recv_in(
        &'static self,
        call: &SocketCall,
        into: &mut impl Target,
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        // Of no bytes it waits as of one: what counts is whether there is something.
        let is_empty = into.left() == 0;
        let all = into.left().max(1);
        let got = Cell::new(0);
        let nonblocking = self.nonblocking();
        let waits = !flags.dont_wait && !nonblocking;
        let (mut known, mut has_looked, mut is_settled) = (0, false, false);
        let mut attempt = || loop {
            into.prepare(known);
            let so_far = (has_looked, got.get(), std::mem::take(&mut known));
            has_looked = true;
            let look = self.recv_once(call, into, flags, (waits, all, so_far));
            let (step, at_least) = match look.ok_or_else(|| gone(call, Errno::ENOTCONN))? {
                Look::Unprepared(there) => {
                    known = there;
                    continue;
                }
                Look::Over(step, at_least) => (step, at_least),
            };
            return match step {
                Ok(Attempt::Done(0))
                    if !std::mem::replace(&mut is_settled, true) && may_have_more_behind_shut(self) =>
                {
                    continue;
                }
                Ok(Attempt::Done(n)) => {
                    got.set(got.get() + n);
                    if n == 0 || flags.peek || got.get() >= at_least || into.is_stopped() {
                        return Ok(Some(()));
                    }
                    Ok(None)
                }
                Ok(Attempt::Wait) => {
                    self.look_at_engine();
                    Ok(None)
                }
                // The rest of the buffers is not there.
                Err(program_memory::EFAULT) if got.get() > 0 => Ok(Some(())),
                // Linux: what was copied comes first, the error with the next call. It was taken, so it is put back.
                Err(errno) if got.get() > 0 && call.is_on() => {
                    self.peek_stream(|stream| stream.put_error(errno));
                    Ok(Some(()))
                }
                Err(errno) => Err(errno),
            };
        };
        let outcome = if !waits {
            self.at_once(&mut attempt)
        } else {
            let pace = flags.wait_all.then(|| Pace::new(all, &got));
            let waited = when_settled(self, &mut attempt, |attempt| {
                let on = Socket::block(call, self.time_limits.receive.get(), Some(&got));
                block_on(BlockOn { pace: pace.as_ref(), ..on }, attempt)
            });
            match waited {
                // Whatever ends the wait, Linux then finds that there is nothing to do.
                Err(Errno::EINTR | ERESTART | Errno::EAGAIN) if is_empty => Ok(()),
                outcome => outcome,
            }
        };
        received(self, outcome, got.get(), into, flags.peek)
    }

    /// What is there, of a stream that has something, without taking it.
    fn look_once(&'static self, into: &mut impl Target) -> Option<usize> {
        match self.with_stream(|io, stream, slot_id| stream.recv(io, slot_id, into, 1, true)) {
            Some(Ok(Attempt::Done(there @ 1..))) => Some(there),
            _ => None,
        }
    }

    /// One look for bytes, under the lock, for a call that wants `all` and has `got`, if it has looked before. All that is there is taken in one go, as nobody else may
    /// have some of it: so if more is there than is at hand where it goes, that comes first, unless so many are `known` already.
    fn recv_once(
        &'static self,
        call: &SocketCall,
        into: &mut impl Target,
        flags: RecvFlags,
        (waits, all, (has_looked, got, known)): (bool, usize, (bool, usize, usize)),
    ) -> Option<Look> {
        let room = into.left();
        let has = |stream: &stream::Stream| {
            let unread = stream.recv.unread();
            stream.ulp.fills(unread, room) || known > 0 && stream.ulp.most_readable(unread) >= known
        };
        self.with_ready_stream(has, |io, stream, slot_id| {
            if !call.is_on() {
                return Look::Over(Err(Errno::EBADF), all);
            }
            if stream.link.is_disconnected() && has_looked {
                // Another thread has disconnected it meanwhile: that is not what the error is for that waits.
                let over = if got > 0 { Ok(Attempt::Done(0)) } else { Err(Errno::EPIPE) };
                return Look::Over(over, all);
            }
            if got > 0 && stream.recv.is_at_mark() {
                // Linux: a call that has bytes ends before the urgent one, which only the next one may leave out.
                return Look::Over(Ok(Attempt::Done(0)), all);
            }
            let there = stream.ulp.most_readable(stream.recv.unread()).min(room);
            if known == 0 && there > into.most_at_once() {
                return Look::Unprepared(there);
            }
            let patient = flags.wait_all && waits;
            let at_least = match flags.wait_all {
                true if patient || !flags.peek => all,
                // A peek that does not wait takes what is there.
                true => 1,
                false => stream.recv.low_water.clamp(1, all),
            };
            // What was copied makes room for more to come; so all but a peek take it bit by bit.
            let target = if flags.peek { at_least } else { 1 };
            let step = stream.recv(io, slot_id, into, target, flags.peek);
            let goes_on = match step {
                Ok(Attempt::Done(n)) => n > 0 && !flags.peek && got + n < at_least && waits,
                Ok(Attempt::Wait) => waits,
                Err(_) => false,
            };
            if goes_on {
                call.hold_locked();
            }
            Look::Over(step, at_least)
        })
    }

    /// MSG_OOB: the urgent byte, `None` at the end of the stream. Never waits (EAGAIN: announced, but not here yet). EINVAL:
    /// there is none, it has been read, or SO_OOBINLINE leaves it in the stream.
    pub fn recv_urgent(&'static self, peek: bool) -> Result<Option<u8>, Errno> {
        if self.kind() != Kind::Stream {
            return Err(Errno::ENOTCONN);
        }
        self.settle()?;
        self.with_stream(|io, stream, slot_id| stream.recv_urgent(io, slot_id, peek))
            .unwrap_or(Err(Errno::ENOTCONN))
    }

    /// MSG_TRUNC: throws `len` bytes away as a receive would take them.
    pub fn discard(&'static self, mut len: usize, flags: RecvFlags) -> Result<usize, Errno> {
        if len == 0 {
            // It waits as a receive of one byte does.
            return self.recv(&mut [], RecvFlags { discard: false, ..flags });
        }
        let mut scratch = [0u8; 4096];
        let mut done = 0;
        let call = SocketCall::begin(self);
        call.hold()?;
        let mut flags = RecvFlags { discard: false, ..flags };
        while len > 0 {
            let piece = len.min(scratch.len());
            let got = match self.recv_in(
                &call,
                &mut Scatter::new(&mut [IoSliceMut::new(&mut scratch[..piece])]),
                flags,
            ) {
                Ok(got) => got,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            };
            done += got;
            len -= got;
            if flags.peek {
                // What stays would be looked at again: behind as much as was looked at, only its number counts.
                let there = self.peek_stream(|stream| stream.recv.countable()).unwrap_or(0);
                return Ok(if got < piece { got } else { there.clamp(got, got + len) });
            }
            if got == 0 {
                break;
            }
            flags.dont_wait |= !flags.wait_all;
            // The error that may be next is for the next call, and so is what is behind an urgent byte.
            let ends = |stream: &mut stream::Stream| {
                stream.recv.is_at_mark() || stream.recv.unread() == 0 && stream.so_error.waits()
            };
            if self.peek_stream(ends) == Some(true) {
                break;
            }
        }
        Ok(done)
    }

    /// As `attempt` says, EAGAIN instead of waiting. That another process has just taken the connection is no reason for
    /// EAGAIN: it is taken back first. Two processes that do only this could go on forever, so it is done a few times.
    fn at_once(&'static self, attempt: &mut impl FnMut() -> Result<Option<()>, Errno>) -> Result<(), Errno> {
        let mut is_settled = false;
        for _ in 0..TAKEN_BACK_MAX {
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            if self.is_moved() {
                self.settle()?;
            } else if !std::mem::replace(&mut is_settled, true) && !self.let_engine_finish() {
                break;
            }
        }
        Err(Errno::EAGAIN)
    }

    fn look_at_engine(&self) {
        if let Some(owner_queue) = self.owner_queue() {
            owner_queue.look();
        }
    }

    /// Sends `from`: all of it, or as much as fits when the socket or the call is non-blocking (EAGAIN: nothing fits).
    ///
    /// Also ends early when SO_SNDTIMEO is over or a signal comes; then what was sent so far counts. EPIPE: the
    /// connection is closed or shut for sending; raising SIGPIPE is the caller's task ([`sys::raise_sigpipe`]).
    pub fn send(&'static self, from: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
        self.send_from(&mut Gather::of_program(from), flags)
    }

    /// The same out of any source.
    pub(crate) fn send_from(
        &'static self,
        source: &mut impl Source,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.send_in(&SocketCall::begin(self), source, flags)
    }

    /// The same as part of a call.
    pub(crate) fn send_in(
        &'static self,
        call: &SocketCall,
        source: &mut impl Source,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        if self.kind() != Kind::Stream {
            return Err(Errno::EPIPE);
        }
        self.settle()?;
        let sent = Cell::new(0);
        let mut is_full = false;
        let waits = !flags.dont_wait && !self.nonblocking();
        let mut attempt = || {
            if is_full && source.prefers_room() && !self.has_room() {
                return Ok(None);
            }
            loop {
                source.refill();
                let has = |stream: &stream::Stream| stream.send.sends_directly(stream.direct.as_deref());
                let step = self.with_ready_stream(has, |io, stream, _| {
                    if !call.is_on() {
                        return Err(Errno::EBADF);
                    }
                    // Something went out before: the error is for the next call.
                    if !stream.send_error(sent.get() > 0)? {
                        return Ok(Attempt::Done(0));
                    }
                    let step = stream.send(io, source, flags)?;
                    if !matches!(step, Attempt::Done(0)) && !source.is_done() && (waits || source.waits()) {
                        call.hold_locked();
                    }
                    Ok(step)
                });
                match step.ok_or_else(|| gone(call, Errno::EPIPE))?? {
                    Attempt::Done(0) => return Ok(Some(())),
                    Attempt::Done(n) => sent.set(sent.get() + n),
                    Attempt::Wait => self.look_at_engine(),
                }
                if source.is_done() {
                    return Ok(Some(()));
                }
                if !source.waits() {
                    if waits && !is_full {
                        source.about_to_wait(self.session());
                    }
                    is_full = true;
                    return Ok(None);
                }
            }
        };
        let outcome = if !waits {
            self.at_once(&mut attempt)
        } else {
            when_settled(self, &mut attempt, |attempt| {
                block_on(Socket::block(call, self.time_limits.send.get(), Some(&sent)), attempt)
            })
        };
        if sent.get() > 0 {
            self.let_peer_answer();
        }
        match outcome {
            Ok(()) => Ok(sent.get()),
            Err(_) if sent.get() > 0 => Ok(sent.get()),
            // As with Linux, what is sent right after connect goes out.
            Err(Errno::EAGAIN) if call.is_on() && self.await_connect() => self.send_in(call, source, flags),
            Err(errno) => Err(errno),
        }
    }

    /// Something was sent to a peer that has ended. If that is here and has closed, it answers with a reset, which the next call finds.
    fn let_peer_answer(&self) {
        let has_ended = self.ready.load(Ordering::Relaxed) & stream::RDHUP != 0;
        let sent_by_engine = || {
            let (mut queue, slot_id) = self.lock_owner_queue()?;
            let (_, stream) = queue.stream(slot_id, self)?;
            let (flow, directly) = (stream.flow, stream.send.sends_directly(stream.direct.as_deref()));
            (!directly && queue.flow_info(flow).port == LOCAL).then_some(())
        };
        if let (true, Some(owner_queue)) = (has_ended && sent_by_engine().is_some(), self.owner_queue()) {
            owner_queue.session.finish();
        }
    }

    /// Whether enough fits for a call to be worth its while, or an error is to be told.
    fn has_room(&self) -> bool {
        self.with_stream(|_, _, _| ());
        let has = self.ready_now() & (stream::OUT | stream::HUP | stream::ERR) != 0;
        if !has {
            self.look_at_engine();
        }
        has
    }

    /// Ends one direction or both. ENOTCONN when there is no connection (any more).
    pub fn shutdown(&'static self, how: Shutdown) -> Result<(), Errno> {
        for _ in 0..TAKEN_BACK_MAX {
            let outcome = self.shutdown_here(how);
            if outcome != Err(MOVED) {
                return outcome;
            }
        }
        Err(Errno::ENOTCONN)
    }

    /// connect to AF_UNSPEC: ends the connection for all who have it, and wakes them. The socket may be connected anew.
    pub fn disconnect(&'static self) {
        for _ in 0..TAKEN_BACK_MAX {
            if self.settle().is_err() {
                return;
            }
            // Its port is shown when it has none any more.
            let _ = self.await_connect();
            let had_connection = self.state() != super::state::CLOSED;
            self.with_stream(|io, stream, _| stream.disconnect(io, had_connection));
            if !self.is_moved() {
                return;
            }
        }
    }

    /// `MOVED`: another process has just taken the connection; of what the engine is told now it would know nothing.
    fn shutdown_here(&'static self, how: Shutdown) -> Result<(), Errno> {
        self.settle()?;
        match self.kind() {
            Kind::Fresh => return Err(Errno::ENOTCONN),
            Kind::Listener => {
                if how != Shutdown::Write {
                    self.members(0).for_each(|member| member.end_listener(Closed::Shut));
                }
                return Ok(());
            }
            Kind::Stream => {}
        }
        let_connect_answer(self);
        let state = self.state();
        // Both ends have said their last.
        let ended = state == super::state::CLOSED;
        let shut = self.with_stream(|io, stream, _| {
            match stream.link {
                Link::Closed(_) => {
                    if stream.link.is_disconnected() {
                        // An error, but it is shut all the same.
                        stream.half_close.shut(how);
                        stream.publish(stream::ALL);
                    }
                    return Err(Errno::ENOTCONN);
                }
                // Both SYNs have crossed: of Linux the FIN goes out when the connection stands.
                Link::Connecting { .. } if state == super::state::SYN_RECV => {}
                Link::Connecting { .. } => {
                    stream.disconnect(io, true);
                    return Ok((false, false));
                }
                Link::Moved { .. } => return Err(MOVED),
                Link::Open if ended => return Err(Errno::ENOTCONN),
                // Linux: "connecting" is over with it, also for whoever has not asked how that went. Who waits in connect hears it.
                Link::Open if stream.connect_answer == stream::ConnectAnswer::InProgress => {
                    stream.connect_answer = stream::ConnectAnswer::Result;
                }
                Link::Open => {}
            }
            if how != Shutdown::Read && !stream.half_close.is_write_shut() {
                io.shut_write(stream);
            }
            // As in Linux, what arrives later can still be read, unless both directions are shut.
            if how != Shutdown::Write && !stream.half_close.is_read_shut() {
                stream.half_close.shut(Shutdown::Read);
                let option = FlowOption::ReceiveShut;
                io.command(Command::SetOption { flow: stream.flow, option, value: 1 });
            }
            stream.publish(stream::ALL);
            Ok((stream.half_close.shut_by_program() == Some(Shutdown::Both), stream.direct.is_some()))
        });
        let (takes_nothing, has_channel) = shut.ok_or(Errno::ENOTCONN)??;
        if takes_nothing {
            // The engine answers what comes now: it must not come through a channel, nor be taken for what came before.
            if has_channel {
                self.leave_channel();
            }
            self.owner_queues().for_each(|owner_queue| owner_queue.session.finish());
        }
        Ok(())
    }
}

/// Another thread connects the socket: where the peer is on this machine, Linux has its answer before anybody else gets at the socket.
fn let_connect_answer(socket: &Socket) {
    let connects = socket.with_stream(|_, stream, _| stream.link.is_connecting());
    if let (Some(true), Some(owner_queue)) = (connects, socket.owner_queue()) {
        owner_queue.session.finish();
    }
}
