//! Claiming: taking over a flow or listener by showing its descriptor.
//!
//! Holding the descriptor is the right to the socket. A child after fork, a program after exec, a process that was sent
//! one, and the process that lost a flow to one of these, all get it (back) the same way.

use crate::fork::notified_of_claims;
use crate::lock::Lock;
use crate::queue::{QueueGuard, QueueSet};
use crate::slots::Place;
use crate::socket::arrivals::Listener;
use crate::socket::copies::Copies;
use crate::socket::stream::{self, Stream};
use crate::socket::{Kind, Socket, Turn};
use crate::stack::Stack;
use crate::sys;
use crate::tls::mark;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_base::{FlowId, ListenerId};

/// How often, and after what pause, a flow is asked for again whose holder has to give it up first.
const YIELD_LOOKS: u32 = 10_000;
const YIELD_PAUSE: Duration = Duration::from_millis(1);
/// The same of a holder of another user's (EBUSY), who may never do so.
const STRANGER_LOOKS: u32 = 100;

/// Who has a socket: which other processes may, and whether a thread of this one is about to.
#[derive(Debug)]
pub(super) struct Claimable {
    pub copies: Copies,
    /// Held by a thread that claims it: whoever comes to the socket meanwhile finds it claimed.
    pub claiming: Lock<()>,
}

/// Notified of a connection that was claimed, and of its descriptor.
pub type Notified = fn(&Socket, RawFd);

/// The lock of the queue set that a socket's stream is in, and where. A socket that another thread is claiming has no stream until that is
/// done, which is waited for: so not for who holds the lock of a queue set.
#[inline]
pub(super) fn lock_claimed(socket: &Socket) -> Option<(QueueGuard<'static>, Place)> {
    let locked = socket.lock_home()?;
    if socket.copies().is_moved() { wait_if_claiming(socket, locked) } else { Some(locked) }
}

#[cold]
fn wait_if_claiming(
    socket: &Socket,
    (mut queue, place): (QueueGuard<'static>, Place),
) -> Option<(QueueGuard<'static>, Place)> {
    if queue.stream(place, socket).is_some() {
        return Some((queue, place));
    }
    drop(queue);
    drop(socket.sharing.claiming.lock());
    socket.lock_home()
}

/// Makes `socket` this session's. ECONNRESET: there is no engine, or it does not know the anchor any more. ENOBUFS: it does,
/// and the process may not have it, or may not attach at all, because it or its user has too much. EAGAIN: it does not answer, and the
/// socket is non-blocking. EBADF: another thread has closed it.
pub fn claim(socket: &'static Socket) -> Result<(), Errno> {
    let turn = Turn::begin(socket);
    let mut outcome = claim_or_why(socket);
    // An engine that stands still has the connection yet: it is waited for, as by whoever holds one.
    while outcome == Err(Errno::ETIMEDOUT) && !(socket.nonblocking() || socket.has_twin()) {
        outcome = Stack::attach(socket.engine()).and_then(|_| claim_or_why(socket));
    }
    if !turn.is_on() {
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
        (outcome, socket.kind(), notified_of_claims(), socket.descriptor())
    {
        notified(socket, fd);
    }
    outcome
}

/// Whether keys of TLS go with the connection that this process has not; those in a child's copy are its parent's.
fn lacks_keys(socket: &'static Socket, anchor: RawFd) -> bool {
    let here = socket.lock_home().and_then(|(mut queue, place)| {
        let has_keys = queue.stream(place, socket).is_some_and(|(_, stream)| stream.tls.is_some());
        has_keys.then(|| queue.io.stack.is_foreign())
    });
    here.unwrap_or_else(|| mark::is_marked(anchor))
}

/// Asks for a flow until its holder has given it up. Between two looks the lock is free.
fn ask(
    (mut queue, home): (QueueGuard<'static>, &'static QueueSet),
    stack: &Stack,
    request: Request,
    anchor: RawFd,
) -> (QueueGuard<'static>, Result<Reply, Errno>) {
    for look in 0.. {
        let reply = stack.request(request, &[sys::borrow(anchor)]);
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
        queue = home.lock();
        // This session may itself hold what the other one waits for.
        queue.drain();
    }
    (queue, Err(Errno::EAGAIN))
}

fn take_over(stack: &'static Stack, socket: &'static Socket, anchor: RawFd) -> Result<(), Errno> {
    let home: &'static QueueSet = stack.my_queue()?;
    if lacks_keys(socket, anchor) {
        return Err(Errno::EOPNOTSUPP);
    }
    // What the program did before; the old home may be the parent's, of which this is a copy.
    let before = socket.lock_home().and_then(|(mut queue, place)| {
        let before =
            queue.stream(place, socket).map(|(_, stream)| (stream.socket_state(), stream.tls.take()))?;
        // What was sent from here is read from here until it is acknowledged.
        queue.orphan(place);
        Some(before)
    });
    // Held from before the request until the stream is in: completions for it may follow the answer at once, and
    // another thread must not take them before there is a stream to take them.
    let queue = home.lock();
    let request = Request::Claim { queue_set: home.index, fd: socket.fd.load(Ordering::Relaxed) as u32 };
    let (mut queue, reply) = ask((queue, home), stack, request, anchor);
    match reply? {
        Reply::ClaimedFlow { flow, read, written, .. } => {
            let flow = FlowId::from_raw(flow);
            let mut stream = Stream::claimed(flow, socket, &queue.flow_info(flow), (read, written));
            if let Some((state, tls)) = before {
                stream.set_socket_state(state);
                stream.tls = tls;
            }
            socket.take_options(&queue.io, &mut stream);
            socket.copies().claimed();
            let place = queue.add_stream(stream);
            socket.copies().set_moved(false);
            socket.move_in(home, place, Kind::Stream);
            queue.drain();
            if let Some((_, stream)) = queue.stream(place, socket) {
                stream.publish(stream::ALL);
            }
            Ok(())
        }
        Reply::ClaimedListener { listener, .. } => {
            let id = ListenerId(FlowId::from_raw(listener));
            let local = socket.settings.lock().local;
            let place = queue.add_listener(Listener::new(id, socket), local);
            socket.settings.lock().active = false;
            socket.copies().set_moved(false);
            // What the parent saw there before a fork is not true here, nor at the head of a sibling.
            socket.publish(0, 0);
            socket.move_in(home, place, Kind::Listener);
            Ok(())
        }
        _ => Err(Errno::EPROTO),
    }
}
