//! Listeners; `accept` is in [`super::accept`].
//!
//! A listener takes connections only after somebody has asked for one: at the first `accept`, or when it is put into an
//! epoll set or polled, it posts accept credit to the engine, and one more for each connection taken. So a process that
//! merely holds a listener (a master of worker processes) is handed nothing.

use crate::anchor::{Anchor, Use};
use crate::slots::SlotId;
use crate::socket::arrivals::{CREDIT_MAX, Listener};
use crate::socket::{Kind, Socket, stream, twin};
use crate::stack::{EngineIdx, Stack};
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, RawFd};
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::attach::Request;
use toe_abi::command::{
    LISTEN_ASKS, LISTEN_KERNEL_TOO, LISTEN_SHARES_SHIFT, LISTEN_V6_ONLY, ListenArgs, NO_HANDLE,
    SHARES_REUSE_ADDR, SHARES_REUSE_PORT,
};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::{FlowId, ListenerId};

/// How long it may take to end a listener before its program goes on all the same.
pub(super) const ENDS_WITHIN: Duration = Duration::from_millis(100);

/// The kernel's listener at the same name, by which the engine knows whose that is.
#[derive(Clone, Copy, Debug)]
pub struct OfKernel<'a> {
    pub fd: BorrowedFd<'a>,
    /// The program takes its connections, too.
    pub is_taken_from: bool,
}

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
                socket.fds.hidden_anchor.keep(hidden);
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
        let owner_queue = stack.my_queue()?;
        let ask = || {
            let socket = Socket::allocate();
            let outcome =
                socket.command(owner_queue, &mut |queue| queue.start_listen(owner_queue, socket, &args));
            socket.abandon();
            outcome
        };
        let mut outcome = ask();
        if outcome.as_ref().is_err_and(|errno| *errno == Errno::EADDRINUSE) && !crate::sys::is_filtered() {
            // Whose connections are in the way may have ended just now. The engine hears of that before it answers what comes over the
            // control socket, whatever that is.
            let _ = stack.session.request(Request::Recognise, &[fd]);
            // What it does not answer takes nothing back.
            if let free @ Ok(_) = ask() {
                outcome = free;
            }
        }
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
        let twin_handle = twin.map_or(Ok(NO_HANDLE), |twin| twin::show(&stack.session, twin.fd))?;
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
        let owner_queue = stack.my_queue()?;
        self.kind.store(Kind::Listener as u8, Ordering::Release);
        self.ready.store(0, Ordering::SeqCst);
        let outcome = self.command(owner_queue, &mut |queue| queue.start_listen(owner_queue, self, &args));
        let id = outcome.inspect_err(|_| self.become_fresh())?;
        let mut settings = self.settings.lock();
        settings.local = Some(local);
        settings.backlog = backlog;
        drop(settings);
        let slot_id = owner_queue
            .lock()
            .add_listener(Listener::new(ListenerId(FlowId::from_raw(id)), self), Some(local));
        self.move_in(owner_queue, slot_id, Kind::Listener);
        Ok(())
    }

    /// Listens with a native socket, whose descriptor `fd` becomes the anchor.
    pub(crate) fn listen_native(&'static self, backlog: u32, fd: RawFd) -> Result<(), Errno> {
        let local = self.settings.lock().local.unwrap_or(super::UNBOUND);
        let anchor = Anchor::take(Stack::get(EngineIdx::FIRST).ok_or(Errno::ENETDOWN)?, Use::Listener)?;
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
                anchor.open_over(self, fd)
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

    /// Posts accept credit, once. The connections come to the calling thread's queue set.
    pub(super) fn activate_listener(&'static self) -> Result<(), Errno> {
        self.settle()?;
        if self.settings.lock().active {
            return Ok(());
        }
        let Some(old) = self.owner_queue().filter(|owner_queue| !owner_queue.is_dead()) else {
            return Ok(());
        };
        let owner_queue = Stack::of(old.session).ok_or(Errno::ENETDOWN)?.my_queue()?;
        let (backlog, local) = {
            let mut settings = self.settings.lock();
            if std::mem::replace(&mut settings.active, true) {
                return Ok(());
            }
            (settings.backlog, settings.local)
        };
        if !std::ptr::eq(old, owner_queue) {
            // Both at once: a thread that finds it in neither would take it for closed. In one order, for two that move.
            let (mut from, mut to) = if old.index < owner_queue.index {
                let from = old.lock();
                (from, owner_queue.lock())
            } else {
                let to = owner_queue.lock();
                (old.lock(), to)
            };
            let slot_id = SlotId::from_bits(self.slot_id.load(Ordering::Acquire));
            let Some(id) = from.listener(slot_id, self).map(|(_, listener)| listener.id) else {
                self.settings.lock().active = false;
                return Ok(());
            };
            from.remove_listener(slot_id);
            let slot_id = to.add_listener(Listener::new(id, self), local);
            self.move_in(owner_queue, slot_id, Kind::Listener);
        }
        let count = backlog.clamp(1, CREDIT_MAX);
        self.with_listener(|io, listener| {
            listener.credit = count;
            io.command(Command::AcceptCredit { listener: listener.id, count });
        });
        // The first look is to find what waits there already, whatever else it finds.
        owner_queue.session.finish();
        Ok(())
    }

    /// Its hidden anchors go over exec as the program's descriptors do.
    pub fn keep_over_exec(&'static self, keep: bool) {
        self.members(0).for_each(|member| member.keep_anchor_over_exec(keep));
    }

    fn keep_anchor_over_exec(&self, keep: bool) {
        if let Some(hidden) = self.fds.hidden_anchor.get() {
            let _ = sys::fcntl(
                hidden,
                libc::F_SETFD,
                if keep { 0 } else { libc::c_long::from(libc::FD_CLOEXEC) },
            );
        }
    }

    /// A listener begins to take connections at all of its engines. An error: at none.
    pub(super) fn activate_all(&'static self) -> Result<(), Errno> {
        self.members(0).map(Socket::activate_listener).reduce(Result::or).unwrap_or(Ok(()))
    }

    /// `sibling` listens at another engine for the same descriptor.
    pub fn join(&'static self, sibling: &'static Socket) {
        let slots = &self.siblings.others;
        let Some(free) = slots.iter().find(|slot_id| slot_id.load(Ordering::Relaxed).is_null()) else {
            // Cannot be: there are as many slots as further engines.
            return sibling.abandon();
        };
        free.store(std::ptr::from_ref(sibling).cast_mut(), Ordering::Release);
        sibling.siblings.primary.store(std::ptr::from_ref(self).cast_mut(), Ordering::Release);
        sibling.tell_primary(sibling.ready.load(Ordering::SeqCst));
    }

    /// Someone wants events of this socket: a listener begins to take connections.
    pub(crate) fn activate(&'static self) {
        if self.kind() == Kind::Listener {
            let _ = self.activate_all();
        }
    }

    /// The EPOLL bits that hold now, after taking the completions that wait.
    pub fn ready(&'static self) -> u32 {
        if self.settle().is_err() {
            return stream::ALL;
        }
        self.activate();
        self.owner_queues().for_each(|owner_queue| {
            owner_queue.drain();
            owner_queue.look();
        });
        self.ready_now()
    }
}
