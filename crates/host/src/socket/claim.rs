//! Claiming: taking over a flow or listener by showing its descriptor.
//!
//! Holding the descriptor is the right to the socket. A child after fork, a program after exec, a process that was sent
//! one, and the process that lost a flow to one of these, all get it (back) the same way.

use crate::own_fds::OwnCopy;
use crate::queue::{QueueGuard, QueueSet};
use crate::socket::arrivals::Listener;
use crate::socket::descriptors::NO_FD;
use crate::socket::stream::{self, Stream};
use crate::socket::{Kind, Socket, SocketCall};
use crate::stack::Stack;
use crate::tls::mark;
use crate::{fd_table, sys};
use rustix::fd::RawFd;
use std::sync::OnceLock;
use std::time::Duration;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_base::{FlowId, ListenerId};

/// How often, and after what pause, a flow is asked for again whose holder has to give it up first.
const YIELD_LOOKS: u32 = 10_000;
const YIELD_PAUSE: Duration = Duration::from_millis(1);
/// The same of a holder of another user's (EBUSY), who may never do so.
const STRANGER_LOOKS: u32 = 100;

/// Notified of a connection that was claimed, and of its descriptor.
pub type Notified = fn(&Socket, RawFd);

static NOTIFIED: OnceLock<Notified> = OnceLock::new();

/// `notified` is told from now on of each descriptor whose connection this process has claimed because it came to use it.
pub fn notify_of_claims(notified: Notified) {
    let _ = NOTIFIED.set(notified);
}

/// Makes `socket` this session's. ECONNRESET: there is no engine, or it does not know the anchor any more. ENOBUFS: it does,
/// and the process may not have it, or may not attach at all, because it or its user has too much. EAGAIN: it does not answer, and the
/// socket is non-blocking. EBADF: another thread has closed it.
pub fn claim(socket: &'static Socket) -> Result<(), Errno> {
    let call = SocketCall::begin(socket);
    let mut outcome = claim_or_why(socket);
    // An engine that stands still has the connection yet: it is waited for, as by whoever holds one.
    while outcome == Err(Errno::ETIMEDOUT) && !(socket.nonblocking() || socket.has_twin()) {
        outcome = Stack::attach(socket.engine()).and_then(|_| claim_or_why(socket));
    }
    if !call.is_on() {
        return Err(Errno::EBADF);
    }
    outcome.map_err(|errno| match errno {
        Errno::EOPNOTSUPP | Errno::EBADF => errno,
        Errno::ETIMEDOUT => Errno::EAGAIN,
        Errno::EDQUOT | Errno::ENOBUFS | Errno::ENOMEM | Errno::EMFILE => Errno::ENOBUFS,
        _ => Errno::ECONNRESET,
    })
}

/// The same, with the reason: ENOENT when the engine does not know the anchor, ECONNREFUSED when there is none, or what stood in
/// the way for the moment.
pub fn claim_or_why(socket: &'static Socket) -> Result<(), Errno> {
    // It does not end under the claim and become another connection's: whoever closes it leaves its end to this call.
    let _held = socket.hold();
    let claiming = socket.sharing.claiming.lock();
    if !socket.copies().is_moved() {
        return Ok(());
    }
    let outcome = Stack::get_or_why(socket.engine())
        .and_then(|stack| socket.anchor(stack).map(|anchor| (stack, anchor)).ok_or(Errno::EBADF))
        .and_then(|(stack, (anchor, _copy))| take_over(stack, socket, anchor));
    if outcome.is_err() {
        socket.publish(if socket.has_twin() { 0 } else { stream::ALL }, stream::ALL);
    }
    drop(claiming);
    if let (Ok(()), Kind::Stream, Some(notified), Some(fd)) =
        (outcome, socket.kind(), NOTIFIED.get(), socket.fds.known())
    {
        notified(socket, fd);
    }
    outcome
}

/// Whether keys of TLS go with the connection that this process has not; those in a child's copy are its parent's.
fn lacks_keys(socket: &'static Socket, anchor: RawFd) -> bool {
    let here = socket.lock_owner_queue().and_then(|(mut queue, slot_id)| {
        let has_keys = queue.stream(slot_id, socket).is_some_and(|(_, stream)| stream.ulp.tls.is_some());
        has_keys.then(|| queue.io.session.is_foreign())
    });
    here.unwrap_or_else(|| mark::is_marked(anchor))
}

/// Asks for a flow until its holder has given it up. Between two looks the lock is free.
fn ask(
    (mut queue, owner_queue): (QueueGuard<'static>, &'static QueueSet),
    stack: &Stack,
    request: Request,
    anchor: RawFd,
) -> (QueueGuard<'static>, Result<Reply, Errno>) {
    for look in 0.. {
        let reply = stack.session.request(request, &[sys::borrow(anchor)]);
        let waits = match reply {
            Err(Errno::EAGAIN) => look < YIELD_LOOKS,
            Err(Errno::EBUSY) => look < STRANGER_LOOKS,
            _ => false,
        };
        if !waits {
            return (queue, reply);
        }
        // Its holder has been asked to give it up, and does so at its next call.
        drop(queue);
        std::thread::sleep(YIELD_PAUSE);
        queue = owner_queue.lock();
        // This session may itself hold what the other one waits for.
        queue.drain();
    }
    (queue, Err(Errno::EAGAIN))
}

fn take_over(stack: &'static Stack, socket: &'static Socket, anchor: RawFd) -> Result<(), Errno> {
    let owner_queue: &'static QueueSet = stack.my_queue()?;
    if lacks_keys(socket, anchor) {
        return Err(Errno::EOPNOTSUPP);
    }
    // What the program did before; the old owner queue may be the parent's, of which this is a copy.
    let before = socket.lock_owner_queue().and_then(|(mut queue, slot_id)| {
        let before = queue
            .stream(slot_id, socket)
            .map(|(_, stream)| (stream.socket_state(), stream.ulp.tls.take()))?;
        // What was sent from here is read from here until it is acknowledged.
        queue.orphan(slot_id);
        Some(before)
    });
    // Held from before the request until the stream is in: completions for it may follow the answer at once, and
    // another thread must not take them before there is a stream to take them.
    let queue = owner_queue.lock();
    let request = Request::Claim { queue_set: owner_queue.index, fd: socket.fds.raw() as u32 };
    let (mut queue, reply) = ask((queue, owner_queue), stack, request, anchor);
    match reply? {
        Reply::ClaimedFlow { flow, read, written, .. } => {
            let flow = FlowId::from_raw(flow);
            let mut stream = Stream::claimed(flow, socket, &queue.flow_info(flow), (read, written));
            if let Some((state, tls)) = before {
                stream.set_socket_state(state);
                stream.ulp.tls = tls;
            }
            socket.take_options(&queue.io, &mut stream);
            socket.copies().claimed();
            let slot_id = queue.add_stream(stream);
            socket.copies().set_moved(false);
            socket.move_in(owner_queue, slot_id, Kind::Stream);
            queue.drain();
            if let Some((_, stream)) = queue.stream(slot_id, socket) {
                stream.publish(stream::ALL);
            }
            Ok(())
        }
        Reply::ClaimedListener { listener, .. } => {
            let id = ListenerId(FlowId::from_raw(listener));
            let local = socket.settings.lock().local;
            let slot_id = queue.add_listener(Listener::new(id, socket), local);
            socket.settings.lock().active = false;
            socket.copies().set_moved(false);
            // What the parent saw there before a fork is not true here, nor at the head of a sibling.
            socket.publish(0, 0);
            socket.move_in(owner_queue, slot_id, Kind::Listener);
            Ok(())
        }
        _ => Err(Errno::EPROTO),
    }
}

impl Socket {
    /// Makes it usable in this process: claims it if need be.
    pub fn settle(&'static self) -> Result<(), Errno> {
        if self.is_moved() { self.claim_all() } else { Ok(()) }
    }

    /// The same, and what other processes have done up to now is known: for what is told to the engine and not asked of
    /// it. Told of a connection that has just moved away, it would be lost.
    pub(crate) fn settle_here(&'static self) -> Result<(), Errno> {
        self.settle()?;
        if self.is_shared() {
            // Takes what the engine has to say of it.
            self.with_stream(|_, _, _| ());
            self.settle()?;
        }
        Ok(())
    }

    /// Claims it of each engine that has it. Of a listener those engines that do not know it (any more) are left out: it is not asked
    /// for again.
    pub(super) fn claim_all(&'static self) -> Result<(), Errno> {
        let mut outcome = claim(self);
        let is_lost = outcome == Err(Errno::ECONNRESET);
        if self.kind() != Kind::Listener || self.siblings.at(0).is_none() && !is_lost {
            return outcome;
        }
        for member in self.members(0).filter(|member| member.copies().is_moved()) {
            match claim_or_why(member) {
                Ok(()) => outcome = Ok(()),
                Err(crate::errno::ENOENT | Errno::ECONNREFUSED | Errno::ECONNRESET | Errno::ENETDOWN) => {
                    member.copies().set_moved(false);
                    member.lose_engine();
                }
                // It is tried again with the next call.
                Err(_) => {}
            }
        }
        if self.has_engine() { Ok(()) } else { outcome.and(Err(Errno::ECONNRESET)) }
    }

    /// The anchor to show for a claim: the hidden one, or a descriptor of the program's.
    /// `None`: it has none.
    ///
    /// A copy, if there is room for one, because another thread may close that one meanwhile, and the number be another
    /// connection's.
    pub(super) fn anchor(&self, stack: &'static Stack) -> Option<(RawFd, Option<OwnCopy>)> {
        let copied = |fd| (fd, stack.session.own_fds().copy_of(fd).ok());
        let known = || Some(self.fds.ask(copied)).filter(|(fd, _)| *fd != NO_FD);
        // None is known for a moment while one is closed and another has just been made.
        let any = || fd_table::find(self, NO_FD).map(copied);
        let hidden = self.fds.hidden_anchor.get();
        let (fd, copy) = hidden.map(copied).or_else(known).or_else(any)?;
        Some((copy.as_ref().map_or(fd, OwnCopy::raw), copy))
    }

    /// Whether an engine serves this listener still.
    pub fn has_engine(&'static self) -> bool {
        self.members(0).any(|member| !member.has_lost_engine())
    }
}
