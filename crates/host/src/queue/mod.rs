//! A queue set in use: its rings, the streams and listeners that it serves, and the way from completions to sockets.
//!
//! Owns everything behind one queue set's lock. Socket operations ([`crate::socket`]) work on it while they hold the
//! lock; threads that wait ([`crate::wait`], [`crate::epoll`], [`crate::poll`]) drain it. A stream belongs to the
//! queue set of the thread that made it and stays there; other threads may use it, at the price of sharing the lock.

mod asking;

pub(crate) mod draining;
mod giving_back;
mod incoming;
mod leaving;
mod pipes;
pub(crate) mod sets;
mod streams;

use crate::connect_credit::ConnectCredit;
use crate::id_hasher::IdHasher;
use crate::leaving::{Distrusted, Yielding};
use crate::lock::{Lock, OwingGuard};
pub use crate::queue_io::QueueIo;
use crate::send_memory::Blocks;
use crate::session::Session;
use crate::slots::{SlotId, Slots};
use crate::socket::Socket;
use crate::socket::arrivals::Listener;
use crate::socket::stream::Stream;
use crate::waiter::{ParkingLot, Waiter};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use toe_abi::command::FlowInfo;
use toe_abi::errno::Errno;
use toe_base::FlowId;
use toe_ring::HostQueueSet;
use toe_ring::pending_wakes::PendingWakes;

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
    pub session: &'static Session,
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
    pub fn new(session: &'static Session, index: u8, irq_fd: i32, ring: HostQueueSet) -> QueueSet {
        QueueSet {
            index,
            session,
            inner: Lock::new(Queue::new(session, ring)),
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

    /// Takes an interrupt that came.
    pub fn quiet(&self) {
        let queue = self.lock();
        let _ = queue.io.ring.irq().receiver().drain();
    }

    pub fn is_dead(&self) -> bool {
        !self.session.alive() || self.session.is_foreign()
    }
}

/// A command that waits for its `CommandResult`.
#[derive(Debug)]
struct Pending {
    token: u32,
    socket: &'static Socket,
    /// The queue set that the command went through.
    owner_queue: &'static QueueSet,
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
    by_flow: HashMap<u32, SlotId, BuildHasherDefault<IdHasher>>,
    pub(crate) listeners: Slots<Listener>,
    pending: Vec<Pending>,
    pub(crate) connect_credit: ConnectCredit,
    /// Streams that wait for send memory or for room in `snd`.
    starved: Vec<SlotId>,
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
    fn new(session: &'static Session, ring: HostQueueSet) -> Queue {
        Queue {
            io: QueueIo {
                session,
                ring,
                region: session.region().clone(),
                blocks: Blocks::new(session.send_arena()),
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

    /// The stream in `slot_id` together with the rings, if it is `socket`'s.
    pub fn stream(&mut self, slot_id: SlotId, socket: &Socket) -> Option<(&mut QueueIo, &mut Stream)> {
        let stream = self.streams.get_mut(slot_id)?;
        stream
            .custody
            .socket()
            .is_some_and(|owner| std::ptr::eq(owner, socket))
            .then_some((&mut self.io, stream))
    }

    /// The listener in `slot_id`, if it is `socket`'s.
    pub fn listener(&mut self, slot_id: SlotId, socket: &Socket) -> Option<(&mut QueueIo, &mut Listener)> {
        let listener = self.listeners.get_mut(slot_id)?;
        std::ptr::eq(listener.socket, socket).then_some((&mut self.io, listener))
    }

    /// Takes in a new stream.
    pub fn add_stream(&mut self, stream: Stream) -> SlotId {
        let flow = stream.flow;
        let slot_id = self.streams.insert(stream);
        self.by_flow.insert(flow.raw(), slot_id);
        slot_id
    }

    /// Where a flow's stream is.
    pub(crate) fn slot_id_of(&self, flow: FlowId) -> Option<SlotId> {
        self.by_flow.get(&flow.raw()).copied()
    }

    /// Takes in a listener, and where it listens, if that is known.
    pub fn add_listener(&mut self, listener: Listener, local: Option<SocketAddr>) -> SlotId {
        self.io.session.settling().note_listens(local);
        self.listeners.insert(listener)
    }

    /// Whether the connection in `slot_id` waits for somebody to accept it.
    pub fn is_untaken(&self, slot_id: SlotId) -> bool {
        self.streams.get(slot_id).is_some_and(|stream| stream.custody.is_untaken())
    }

    /// What the engine tells of a flow.
    pub fn flow_info(&self, flow: FlowId) -> FlowInfo {
        if flow.slot() >= self.io.session.layout().flows as usize {
            return FlowInfo::default();
        }
        self.io.region.read_record(self.io.session.layout().flow_info(flow.slot())).unwrap_or_default()
    }

    /// A send found no memory or no room: it is told when there may be some. `false`: it is to be told already.
    pub fn starve(&mut self, slot_id: SlotId) -> bool {
        let is_new = !self.starved.contains(&slot_id);
        if is_new {
            self.starved.push(slot_id);
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
}
