//! A queue set in use: its rings, the streams and listeners that it serves, and the way from completions to sockets.
//!
//! Owns everything behind one queue set's lock. Socket operations ([`crate::socket`]) work on it while they hold the
//! lock; threads that wait ([`crate::wait`], [`crate::epoll`], [`crate::poll`]) drain it. A stream belongs to the
//! queue set of the thread that made it and stays there; other threads may use it, at the price of sharing the lock.

use crate::connect_credit::ConnectCredit;
use crate::id_hasher::IdHasher;
use crate::leaving::{Distrusted, Yielding};
use crate::lock::{Lock, OwingGuard};
pub use crate::queue_io::QueueIo;
use crate::send_memory::Blocks;
use crate::slots::{Place, Slots};
use crate::socket::arrivals::Listener;
use crate::socket::stream::{Link, Stream};
use crate::socket::{Kind, Socket};
use crate::stack::Stack;
use crate::sys;
use crate::waiter::{ParkingLot, Waiter};
use rustix::fd::RawFd;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use toe_abi::command::{ConnectArgs, FlowInfo, ListenArgs};
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, FlowId, ListenerId};
use toe_ring::HostQueueSet;
use toe_ring::pending_wakes::PendingWakes;

/// Completions that one drain takes before it gives others the lock.
const DRAIN_MAX: usize = 4096;
/// How long entries wait for room before a flow that they may be about is given up all the same.
const ROOM_WITHIN: Duration = Duration::from_millis(100);
/// Drains of a thread that never sleeps until memory lent to peers is looked at.
const SWEEP_EVERY: u32 = 64;
/// Operations in a row that do without a drain.
const DRAIN_EVERY: u32 = 16;

/// The lock of a queue set; whom it owes a wake-up is woken after it was given back.
pub type QueueGuard<'a> = OwingGuard<'a, Queue, Waiter>;

/// One of the session's queue sets. Never freed: sockets and parked threads refer to it for ever.
#[derive(Debug)]
pub struct QueueSet {
    pub index: u8,
    pub stack: &'static Stack,
    inner: Lock<Queue>,
    /// Who is to be woken once the lock is free.
    pending_wakes: PendingWakes<Waiter>,
    /// Descriptor of the interrupt: readable once it came.
    pub irq_fd: i32,
    pub parking: ParkingLot,
    /// Live threads that call this queue set theirs.
    pub owners: AtomicU32,
}

impl QueueSet {
    pub fn new(stack: &'static Stack, index: u8, irq_fd: i32, ring: HostQueueSet) -> QueueSet {
        QueueSet {
            index,
            stack,
            inner: Lock::new(Queue::new(stack, ring)),
            pending_wakes: PendingWakes::default(),
            irq_fd,
            parking: ParkingLot::default(),
            owners: AtomicU32::new(0),
        }
    }

    pub fn lock(&self) -> QueueGuard<'_> {
        self.inner.lock().owing(&self.pending_wakes)
    }

    /// [`Waiter::kick`] for what `queue` has brought, whose lock the caller may hold: it is woken once that is free.
    pub(crate) fn kick_by(queue: Option<&QueueSet>, waiter: &'static Waiter) -> bool {
        let Some(queue) = queue else { return waiter.kick() };
        let parked = waiter.note_kick();
        if parked {
            queue.pending_wakes.add(waiter, queue.inner.word());
        }
        parked
    }

    /// Whom it owes a wake-up, for [`crate::fork`]: the lock is given back without a guard.
    pub(crate) fn pending_wakes(&self) -> &PendingWakes<Waiter> {
        &self.pending_wakes
    }

    /// The lock itself, for [`crate::fork`].
    pub fn raw_lock(&self) -> &Lock<Queue> {
        &self.inner
    }

    /// Moves completions to their sockets. When another thread is at it, it will tell whoever waits.
    pub fn drain(&self) {
        if let Some(queue) = self.inner.try_lock() {
            queue.owing(&self.pending_wakes).drain();
        }
    }

    /// Asks for an interrupt and takes what came before it was asked for. `true`: the queue set has something to be
    /// retried soon, so do not sleep long.
    pub fn arm(&self) -> bool {
        let mut queue = self.lock();
        queue.sweep_lent();
        // Before the interrupt is armed: that has the fence for them, too.
        queue.io.channels.iter().for_each(|channel| channel.end.arm());
        queue.io.ring.irq().arm();
        queue.drain();
        queue.is_stuck()
    }

    /// Takes an interrupt that came.
    pub fn quiet(&self) {
        let queue = self.lock();
        let _ = queue.io.ring.irq().receiver().drain();
    }

    /// The engine is gone: everything here is reset.
    pub fn on_death(&self) {
        self.lock().on_death();
    }

    pub fn is_dead(&self) -> bool {
        !self.stack.alive() || self.stack.is_foreign()
    }
}

/// A command that waits for its `CommandResult`.
#[derive(Debug)]
struct Pending {
    token: u32,
    socket: &'static Socket,
    /// The queue set that the command went through.
    home: &'static QueueSet,
    /// The result; `None` until it came.
    result: Option<Result<u32, Errno>>,
    /// Nobody waits any more: undo what it brings.
    abandoned: bool,
}

/// What the lock of a queue set guards.
#[derive(Debug)]
pub struct Queue {
    pub io: QueueIo,
    pub(crate) streams: Slots<Stream>,
    by_flow: HashMap<u32, Place, BuildHasherDefault<IdHasher>>,
    pub(crate) listeners: Slots<Listener>,
    pending: Vec<Pending>,
    pub(crate) connect_credit: ConnectCredit,
    /// Streams that wait for send memory or for room in `snd`.
    starved: Vec<Place>,
    /// Streams to be given back to the engine as soon as they can be.
    pub(crate) yielding: Vec<Yielding>,
    /// With whom no connection uses a channel.
    pub(crate) distrusted: Distrusted,
    /// Operations since the last drain that did without one.
    undrained: u32,
    drains: u32,
    /// Channels are drained one after the other, and nothing else is being done.
    pub(crate) is_at_channels: bool,
}

impl Queue {
    fn new(stack: &'static Stack, ring: HostQueueSet) -> Queue {
        Queue {
            io: QueueIo {
                stack,
                ring,
                region: stack.region().clone(),
                blocks: Blocks::new(stack.send_arena()),
                channels: Vec::new(),
                deferred: VecDeque::new(),
                owing: Vec::new(),
                records: Vec::new(),
            },
            streams: Slots::default(),
            by_flow: HashMap::default(),
            listeners: Slots::default(),
            pending: Vec::new(),
            connect_credit: ConnectCredit::default(),
            starved: Vec::new(),
            yielding: Vec::new(),
            distrusted: Distrusted::default(),
            undrained: 0,
            drains: 0,
            is_at_channels: false,
        }
    }

    /// The stream in `place` together with the rings, if it is `socket`'s.
    pub fn stream(&mut self, place: Place, socket: &Socket) -> Option<(&mut QueueIo, &mut Stream)> {
        let stream = self.streams.get_mut(place)?;
        stream.socket.is_some_and(|owner| std::ptr::eq(owner, socket)).then_some((&mut self.io, stream))
    }

    /// The listener in `place`, if it is `socket`'s.
    pub fn listener(&mut self, place: Place, socket: &Socket) -> Option<(&mut QueueIo, &mut Listener)> {
        let listener = self.listeners.get_mut(place)?;
        std::ptr::eq(listener.socket, socket).then_some((&mut self.io, listener))
    }

    /// Takes in a new stream.
    pub fn add_stream(&mut self, stream: Stream) -> Place {
        let flow = stream.flow;
        let place = self.streams.insert(stream);
        self.by_flow.insert(flow.raw(), place);
        place
    }

    /// A stream that the program has let go of but whose data the engine still reads, or that another process is to have.
    pub fn orphan(&mut self, place: Place) {
        let Some(stream) = self.streams.get_mut(place) else { return };
        stream.socket = None;
        let in_channel = stream.direct.as_ref().is_some_and(|direct| direct.lent);
        let is_held = (in_channel || stream.yields) && !self.io.stack.is_foreign();
        if !is_held && (stream.send.outstanding() == 0 || stream.link == Link::Closed) {
            self.remove_stream(place);
        }
    }

    /// Where a flow's stream is.
    pub(crate) fn place_of(&self, flow: FlowId) -> Option<Place> {
        self.by_flow.get(&flow.raw()).copied()
    }

    pub(crate) fn remove_stream(&mut self, place: Place) {
        if let Some(mut stream) = self.streams.remove(place) {
            stream.send.release_all(&mut self.io.blocks);
            if self.by_flow.get(&stream.flow.raw()) == Some(&place) {
                self.by_flow.remove(&stream.flow.raw());
            }
            if let Some(mut direct) = stream.direct.take() {
                self.end_direct(&mut direct);
            }
        }
    }

    /// Takes in a listener, and where it listens, if that is known.
    pub fn add_listener(&mut self, listener: Listener, local: Option<SocketAddr>) -> Place {
        self.io.stack.settling().note_listens(local);
        self.listeners.insert(listener)
    }

    /// Drops a listener and the connections that wait in it; they are another session's now.
    pub fn remove_listener(&mut self, place: Place) {
        if let Some(mut listener) = self.listeners.remove(place) {
            while let Some(stream) = listener.take_waiting() {
                self.remove_stream(stream);
            }
        }
    }

    /// Whether the connection in `place` waits for somebody to accept it.
    pub fn is_untaken(&self, place: Place) -> bool {
        self.streams.get(place).is_some_and(|stream| stream.waits_in_listener)
    }

    /// What the engine tells of a flow.
    pub fn flow_info(&self, flow: FlowId) -> FlowInfo {
        if flow.slot() >= self.io.stack.layout().flows as usize {
            return FlowInfo::default();
        }
        self.io.region.read_record(self.io.stack.layout().flow_info(flow.slot())).unwrap_or_default()
    }

    /// Publishes `Connect` for `socket`; the token of its result, or `None` when there is no room now.
    pub fn start_connect(
        &mut self,
        home: &'static QueueSet,
        socket: &'static Socket,
        args: &ConnectArgs,
    ) -> Option<u32> {
        let token = self.io.stack.next_token();
        self.io.ring.push_connect(token, args).ok()?;
        Some(self.await_result(token, home, socket))
    }

    /// Publishes a `Connect` that is not answered, from any port; the flow's id. `None`: there is no credit for it, or no room now.
    pub fn begin_connect(
        &mut self,
        (anchor, fd): (AnchorHandle, RawFd),
        remote: SocketAddr,
        names: u32,
    ) -> Option<FlowId> {
        let flow = self.connect_credit.take(remote, names, self.io.stack.heard())?;
        let (anchor, fd) = (anchor.0, fd as u32);
        let args =
            ConnectArgs { remote: remote.into(), anchor, fd, flow: flow.raw(), ..ConnectArgs::default() };
        if self.io.ring.push_connect(self.io.stack.next_token(), &args).is_err() {
            self.connect_credit.give(flow);
            return None;
        }
        self.io.ring();
        Some(flow)
    }

    /// Publishes `Listen` for `socket`; the token of its result, or `None` when there is no room now.
    pub fn start_listen(
        &mut self,
        home: &'static QueueSet,
        socket: &'static Socket,
        args: &ListenArgs,
    ) -> Option<u32> {
        let token = self.io.stack.next_token();
        self.io.ring.push_listen(token, args).ok()?;
        Some(self.await_result(token, home, socket))
    }

    pub(crate) fn await_result(
        &mut self,
        token: u32,
        home: &'static QueueSet,
        socket: &'static Socket,
    ) -> u32 {
        self.pending.push(Pending { token, socket, home, result: None, abandoned: false });
        self.io.ring();
        token
    }

    /// The result of a command, once.
    pub fn take_result(&mut self, token: u32) -> Option<Result<u32, Errno>> {
        let at = self.pending.iter().position(|p| p.token == token && p.result.is_some())?;
        self.pending.swap_remove(at).result
    }

    /// Nobody waits for `token` any more.
    pub fn abandon_result(&mut self, token: u32) {
        self.pending.iter_mut().filter(|p| p.token == token).for_each(|p| p.abandoned = true);
    }

    /// Whether the engine has not answered yet what nobody waits for any more.
    pub(crate) fn has_pending_answer(&self) -> bool {
        self.pending.iter().any(|pending| pending.abandoned && pending.result.is_none())
    }

    /// A send found no memory or no room: it is told when there may be some. `false`: it is to be told already.
    pub fn starve(&mut self, place: Place) -> bool {
        let is_new = !self.starved.contains(&place);
        if is_new {
            self.starved.push(place);
        }
        is_new
    }

    /// Whether something here must be retried that no interrupt will announce.
    pub fn is_stuck(&self) -> bool {
        !self.starved.is_empty()
            || !self.io.deferred.is_empty()
            || !self.io.owing.is_empty()
            || !self.yielding.is_empty()
            || self.io.channels.iter().any(|channel| channel.is_stuck())
    }

    /// An operation would do without what waits; not for ever, or a program that never has to wait would not hear of the
    /// end of a connection.
    pub fn is_drain_due(&mut self) -> bool {
        self.undrained += 1;
        self.undrained >= DRAIN_EVERY
    }

    /// Takes completions and tells their sockets. Returns how many.
    pub fn drain(&mut self) -> usize {
        if self.io.stack.is_foreign() {
            // The rings are the parent's.
            return 0;
        }
        self.undrained = 0;
        self.drains = self.drains.wrapping_add(1);
        if self.drains.is_multiple_of(SWEEP_EVERY) {
            self.sweep_lent();
        }
        let taken = self.drain_completions() + self.drain_channels();
        if self.is_stuck() {
            self.retry();
        }
        taken
    }

    pub(crate) fn drain_completions(&mut self) -> usize {
        let mut taken = 0;
        while taken < DRAIN_MAX {
            match self.io.ring.pop_completion() {
                // An entry of an engine that is newer than this library has nothing to say to it.
                Some(Ok(completion)) => self.apply(completion),
                Some(Err(_)) => {}
                None => break,
            }
            taken += 1;
        }
        if self.io.ring.publish_head() {
            let _ = self.io.stack.doorbell().ring_for_head();
        }
        taken
    }

    /// Publishes what found no room in the rings, before a flow that it may concern goes elsewhere: an engine that lives
    /// makes room at once. One that does not within a moment is left to find out by itself.
    pub(crate) fn settle_pending(&mut self) {
        let end =
            (!self.io.owing.is_empty() || !self.io.deferred.is_empty()).then(|| sys::now() + ROOM_WITHIN);
        while end.is_some_and(|end| sys::now() < end)
            && (!self.io.owing.is_empty() || !self.io.deferred.is_empty())
        {
            rustix::thread::sched_yield();
            self.retry_entries();
        }
    }

    fn retry(&mut self) {
        self.retry_entries();
        self.retry_channels();
        self.sweep_lent();
        self.retry_yields();
        for place in std::mem::take(&mut self.starved) {
            if self.streams.get_mut(place).is_some_and(|stream| stream.resume(&mut self.io)) {
                self.starved.push(place);
            }
        }
    }

    fn retry_entries(&mut self) {
        for place in std::mem::take(&mut self.io.owing) {
            if let Some(stream) = self.streams.get_mut(place) {
                self.io.credit(place, stream);
            }
        }
        while self.io.owing.is_empty()
            && let Some(command) = self.io.deferred.front()
            && self.io.ring.push_command(*command).is_ok()
        {
            self.io.deferred.pop_front();
        }
        self.io.ring();
    }

    fn apply(&mut self, completion: Completion) {
        match completion {
            Completion::CommandResult { token, command, errno, id } => {
                self.on_result(token, command, errno, id)
            }
            Completion::Accepted { listener, flow } => self.on_accepted(listener, flow),
            Completion::Connected { flow, errno } => {
                let info = self.flow_info(flow);
                self.with_flow(flow, |_, stream| {
                    stream.read_addrs(&info);
                    stream.on_connected(errno);
                });
            }
            Completion::Data { flow, data } => {
                self.catch_up(flow);
                self.with_flow(flow, |_, s| s.on_data(data));
            }
            Completion::Sent { flow, len } => {
                self.with_flow(flow, |io, stream| stream.on_sent(&mut io.blocks, len));
            }
            Completion::PeerClosed { flow } => {
                self.catch_up(flow);
                self.with_flow(flow, |io, stream| {
                    stream.release_sender(io);
                    stream.on_peer_closed();
                });
            }
            Completion::Reset { flow, errno } => {
                self.catch_up(flow);
                self.with_flow(flow, |io, stream| stream.on_reset(Some(&mut io.blocks), errno));
            }
            Completion::Moved { flow } => self.on_moved(flow),
            Completion::ConnectionsWait { listener } => {
                self.with_listener(listener, Listener::on_connections_wait);
            }
            Completion::NothingWaits { listener, answer } => {
                self.with_listener(listener, |found| found.on_nothing_waits(answer));
            }
            Completion::Urgent { flow, ahead } => {
                self.catch_up(flow);
                self.with_flow(flow, |_, stream| stream.on_urgent(ahead));
            }
            Completion::WentOut { flow, len } => self.with_flow(flow, |_, s| s.on_went_out(len)),
            Completion::SoftError { flow, errno } => self.with_flow(flow, |_, s| s.on_soft_error(errno)),
            Completion::AnchorFree { anchor } => self.io.stack.anchors().put(anchor),
            Completion::ConnectCredit { flow } => self.connect_credit.give(flow),
            Completion::AnchorShared { anchor } => drop(self.io.stack.anchors().take_ending(anchor)),
            Completion::OfferChannel { .. }
            | Completion::Direct { .. }
            | Completion::Yield { .. }
            | Completion::ChannelClosed { .. } => self.apply_to_channels(completion),
        }
    }

    /// Does `f` to the flow's stream, and lets the stream go when it was an orphan and has nothing left to wait for.
    pub(crate) fn with_flow(&mut self, flow: FlowId, f: impl FnOnce(&mut QueueIo, &mut Stream)) {
        let Some(place) = self.place_of(flow) else { return };
        let Some(stream) = self.streams.get_mut(place) else { return };
        let was_connecting = stream.link == Link::Connecting;
        f(&mut self.io, stream);
        if was_connecting && stream.link == Link::Closed && !stream.let_go {
            // Host interface: the host closes what could not connect.
            stream.let_go = true;
            self.io.command(Command::Close { flow, abort: false });
        }
        if stream.is_unwanted {
            self.reset_stream(place);
        } else if stream.socket.is_none() && !stream.waits_in_listener {
            self.orphan(place);
        }
    }

    fn on_result(&mut self, token: u32, command: u8, errno: Errno, id: u32) {
        let Some(at) = self.pending.iter().position(|p| p.token == token) else { return };
        let Pending { socket, home, .. } = self.pending[at];
        let abandoned = self.pending[at].abandoned;
        let result = if errno.is_ok() { Ok(id) } else { Err(errno) };
        if abandoned {
            self.pending.swap_remove(at);
            match result {
                Ok(id) if command == Command::CONNECT => {
                    self.io.command(Command::Close { flow: FlowId::from_raw(id), abort: true });
                }
                Ok(id) if command == Command::LISTEN => {
                    let listener = ListenerId(FlowId::from_raw(id));
                    self.io.command(Command::CloseListener { listener, last: true });
                }
                _ => {}
            }
            return;
        }
        if let (Ok(id), Command::CONNECT) = (result, command) {
            let flow = FlowId::from_raw(id);
            let mut stream = Stream::connecting(flow, socket);
            stream.read_addrs(&self.flow_info(flow));
            let place = self.add_stream(stream);
            socket.move_in(home, place, Kind::Stream);
        }
        self.pending[at].result = Some(result);
        socket.kick_waiters();
    }

    fn with_listener(&mut self, id: ListenerId, f: impl FnOnce(&mut Listener)) {
        if let Some(listener) = self.listeners.values_mut().find(|listener| listener.id == id) {
            f(listener);
        }
    }

    /// The engine has taken back what was handed to this session's listeners and not accepted yet.
    pub(crate) fn give_back_connections(&mut self) {
        self.listeners.values_mut().for_each(Listener::give_back);
        let untaken = |(place, stream): (Place, &Stream)| stream.waits_in_listener.then_some(place);
        let untaken: Vec<Place> = self.streams.iter().filter_map(untaken).collect();
        untaken.into_iter().for_each(|place| self.remove_stream(place));
    }

    /// Whether there is nothing here that another process could come to share, and that it does not share already.
    pub(crate) fn has_nothing_to_share(&mut self) -> bool {
        self.drain();
        self.by_flow.is_empty() && self.listeners.values().all(Listener::is_given_back)
    }

    fn on_accepted(&mut self, id: ListenerId, flow: FlowId) {
        if !self.listeners.values().any(|listener| listener.id == id) {
            return;
        }
        let mut stream = Stream::accepted(flow);
        stream.read_addrs(&self.flow_info(flow));
        let place = self.add_stream(stream);
        self.with_listener(id, |listener| listener.on_connection(place));
    }

    fn on_death(&mut self) {
        for stream in self.streams.values_mut() {
            if stream.link != Link::Closed {
                stream.on_reset(Some(&mut self.io.blocks), Errno::ECONNRESET);
            }
        }
        for listener in self.listeners.values_mut() {
            listener.on_death();
        }
        for pending in &mut self.pending {
            if pending.result.is_none() {
                pending.result = Some(Err(Errno::ENETDOWN));
                pending.socket.kick_waiters();
            }
        }
        self.io.deferred.clear();
        self.io.owing.clear();
        self.yielding.clear();
        self.starved.clear();
    }
}
