//! epoll over both worlds: kernel descriptors stay in the program's real epoll, sockets on the engine are kept here.
//!
//! An [`EpollSet`] belongs to an epoll descriptor of the program. Registered sockets tell it of what happens
//! ([`EpollSet::notify`]); a wait drains the queue sets that its sockets belong to, takes what is on its ready list after
//! looking again whether it still holds, asks the kernel for the rest, and parks when there is nothing ([`wait`]).
//!
//! Level-triggered registrations stay on the ready list while they are ready; edge-triggered ones leave it when they are
//! reported and come back with the next event, as in Linux; one-shot ones are disarmed; of several exclusive ones one is
//! woken.

mod control;
mod ending;
mod kernel;
mod lanes;
mod moves;
mod nested;
mod once;
mod readiness;
mod telling;
pub mod wait;
mod waiters;
mod watching;

pub use control::{check, created, ctl_add, ctl_del, ctl_mod, ctl_set, note_kernel_fd};
pub use ending::after_fork_in_child;
pub use moves::{forget_kernel_fd, move_back, note_disarmed, register_in_kernel, replace};
pub use once::{KernelOp, kernel_op};
pub use wait::wait;
pub(crate) use watching::Watched;

use crate::datagram::Datagram;
use crate::lock::Lock;
use crate::queue::QueueSet;
use crate::slots::{SlotId, Slots};
use crate::socket::{Kind, Socket, stream};
use rustix::fd::RawFd;
use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use toe_abi::policy::ENGINES_MAX;
use toe_base::limits::QUEUE_SETS_MAX;

const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Bits that are always reported.
const ALWAYS: u32 = stream::ERR | stream::HUP;
/// Bits that may stand beside EPOLLEXCLUSIVE.
const WITH_EXCLUSIVE: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP) as u32
        | EDGE
        | EXCLUSIVE;
/// Tag of the event that gets threads out of a plain kernel wait.
const WAKE_TAG: u64 = u64::from_le_bytes(*b"toe-wake");

/// The descriptor of a set that has none.
const NO_DESCRIPTOR: RawFd = -1;

/// Queue sets that the sockets of one set may be served by.
const OWNER_QUEUES_MAX: usize = QUEUE_SETS_MAX * ENGINES_MAX;

/// A registered socket.
#[derive(Clone, Copy, Debug)]
struct Interest {
    fd: RawFd,
    socket: &'static Socket,
    events: u32,
    data: u64,
    /// Not disarmed by one-shot.
    armed: bool,
    /// On the ready list.
    queued: bool,
    /// What has come since it was last reported: of a set without a descriptor that is what is told, whatever has become of it.
    happened: u32,
}

impl Interest {
    /// What would be reported now.
    fn due(&self) -> u32 {
        if self.armed { self.socket.ready_now() & (self.events | ALWAYS) } else { 0 }
    }
}

#[derive(Debug, Default)]
struct Inner {
    interests: Slots<Interest>,
    /// By descriptor and socket: a number that was closed and given out again is another registration.
    by_fd: HashMap<(RawFd, usize), SlotId>,
    ready: VecDeque<SlotId>,
    waiters: waiters::Waiters,
    /// Epoll sets in this one.
    nested: Vec<nested::Nested>,
    /// The sets that have this one, each with the number by which it does: those are told of what happens here.
    outer: Vec<(RawFd, &'static EpollSet)>,
    /// Counts what was done to those.
    nestings: u64,
    /// UDP sockets that may have lanes.
    datagrams: Vec<lanes::Listed>,
    /// Kernel descriptors, so that one can move here when it turns into a socket on the engine.
    kernel: HashMap<RawFd, Registered>,
    /// The program has closed it; the last thread that sleeps on it ends it. The copy of its descriptor that is kept until then.
    ending: Option<crate::sys::Fd>,
}

impl Inner {
    /// Whether a socket is ready. As in Linux, a look takes those that are not off the list: their next event, or being armed anew, brings
    /// them back.
    fn has_due(&mut self) -> bool {
        while let Some(slot_id) = self.ready.front() {
            match self.interests.get_mut(*slot_id) {
                Some(interest) if interest.due() != 0 => return true,
                Some(interest) => interest.queued = false,
                None => {}
            }
            self.ready.pop_front();
        }
        false
    }
}

/// The sockets of one epoll descriptor. Never freed; reused after the descriptor was closed.
#[derive(Debug)]
pub struct EpollSet {
    epfd: AtomicI32,
    references: AtomicU32,
    inner: Lock<Inner>,
    /// Queue sets of the sockets, without gaps; entries of engines that have ended are replaced.
    owner_queues: [AtomicPtr<QueueSet>; OWNER_QUEUES_MAX],
    /// Sockets in it.
    sockets: AtomicU32,
    /// Whether the kernel's epoll has, or may have, anything in it.
    kernel_fds: AtomicBool,
    /// Threads in the plain kernel wait.
    kernel_waiters: AtomicU32,
    /// Threads in a call that may sleep on it.
    sleepers: AtomicU32,
    /// Counts waits, for those who have room for one event.
    wait_count: AtomicU32,
    /// It may have listeners that ask for no connections yet: added, or inherited over a fork, since the last wait.
    idle_listeners: AtomicBool,
    /// One of its sockets went to another process, or was given back to the engine before a fork, since the last wait.
    moved: AtomicBool,
    /// It has other sets in it.
    has_nested: AtomicBool,
    /// It has, or had, UDP sockets that may have lanes.
    has_datagrams: AtomicBool,
    /// Somebody waits for it, or has, in another way than by a wait in it.
    is_seen_elsewhere: AtomicBool,
    /// It has, or had, one-shot registrations of listeners, which the kernel may fire, too.
    fires_once: AtomicBool,
}

/// All sets that were ever made, and those that can be used again.
#[derive(Debug)]
pub struct Registry {
    all: Vec<&'static EpollSet>,
    free: Vec<&'static EpollSet>,
}

static REGISTRY: Lock<Registry> = Lock::new(Registry { all: Vec::new(), free: Vec::new() });

/// The registry's lock, for [`crate::fork`].
pub fn registry_lock() -> &'static Lock<Registry> {
    &REGISTRY
}

/// Takes the lock of every set; the registry's lock is held. Before a fork.
pub fn lock_all() {
    for_all_held(|set| set.inner.lock_raw());
}

/// Undoes [`lock_all`].
pub fn unlock_all() {
    for_all_held(|set| _ = set.inner.unlock_raw());
}

fn for_all_held(each: impl FnMut(&&'static EpollSet)) {
    // SAFETY: needed because the registry's lock is held without a guard, by `fork::prepare` on this thread, from
    // before this call until after it; nobody else can change the list meanwhile.
    unsafe { REGISTRY.peek_held() }.all.iter().for_each(each);
}

/// An empty set.
fn unused() -> &'static EpollSet {
    let mut registry = REGISTRY.lock();
    match registry.free.pop() {
        Some(set) => set,
        None => {
            let set: &'static EpollSet = Box::leak(Box::new(EpollSet {
                epfd: AtomicI32::new(NO_DESCRIPTOR),
                references: AtomicU32::new(0),
                inner: Lock::new(Inner::default()),
                owner_queues: [const { AtomicPtr::new(std::ptr::null_mut()) }; OWNER_QUEUES_MAX],
                sockets: AtomicU32::new(0),
                kernel_fds: AtomicBool::new(false),
                kernel_waiters: AtomicU32::new(0),
                sleepers: AtomicU32::new(0),
                wait_count: AtomicU32::new(0),
                idle_listeners: AtomicBool::new(false),
                moved: AtomicBool::new(false),
                has_nested: AtomicBool::new(false),
                has_datagrams: AtomicBool::new(false),
                is_seen_elsewhere: AtomicBool::new(false),
                fires_once: AtomicBool::new(false),
            }));
            registry.all.push(set);
            set
        }
    }
}

fn has_twin(socket: &Socket) -> bool {
    socket.kind() == Kind::Listener && socket.has_twin()
}

fn key(fd: RawFd, socket: &Socket) -> (RawFd, usize) {
    (fd, std::ptr::from_ref(socket).addr())
}

/// The set that the thread waits in which sends signals of input and output ([`crate::signal_io`]); no descriptor stands for it.
static OF_SIGNALS: OnceLock<&'static EpollSet> = OnceLock::new();

/// Whether the program has ever said of a socket who is to be told by signals, or how: its open files may still say so.
pub fn are_signals_used() -> bool {
    OF_SIGNALS.get().is_some()
}

impl EpollSet {
    /// The one of the thread that sends signals, which waits by [`EpollSet::wait_for_sockets`].
    pub(crate) fn of_signals() -> &'static EpollSet {
        OF_SIGNALS.get_or_init(|| {
            let set = unused();
            set.epfd.store(NO_DESCRIPTOR, Ordering::Relaxed);
            set
        })
    }

    /// Forgets the registration in `slot_id`, if it is `socket`'s.
    pub(crate) fn drop_interest(&self, slot_id: SlotId, socket: &Socket) {
        let mut inner = self.inner.lock();
        let Some(interest) = inner.interests.remove(slot_id) else { return };
        if interest.queued {
            inner.ready.retain(|queued| *queued != slot_id);
        }
        inner.by_fd.remove(&key(interest.fd, socket));
        self.sockets.fetch_sub(1, Ordering::SeqCst);
    }

    /// Its sockets' completions come to `owner_queue`.
    pub(crate) fn add_owner_queue(&self, owner_queue: &'static QueueSet) {
        let me = std::ptr::from_ref(owner_queue).cast_mut();
        loop {
            let owner_queues = || self.owner_queues.iter().map(|slot| (slot, slot.load(Ordering::Acquire)));
            if owner_queues().any(|(_, at)| at == me) {
                return;
            }
            let room = owner_queues()
                .find(|(_, at)| as_owner_queue(*at).is_none_or(|owner_queue| owner_queue.is_dead()));
            let Some((slot, old)) = room else { return };
            if slot.compare_exchange(old, me, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // A thread that is parked now does not listen to this queue set.
                self.inner.lock().waiters.kick_all();
                return;
            }
        }
    }

    fn owner_queues(&self) -> impl Iterator<Item = &'static QueueSet> {
        self.owner_queues
            .iter()
            .map_while(|slot| as_owner_queue(slot.load(Ordering::Acquire)))
            .filter(|owner_queue| !owner_queue.is_dead())
    }

    /// A socket in it is not this process's for now.
    pub(crate) fn note_moved(&self) {
        if self.epfd.load(Ordering::Relaxed) == NO_DESCRIPTOR {
            // Who looks on behalf of nobody takes nothing from who makes calls.
            return;
        }
        self.moved.store(true, Ordering::Release);
        self.inner.lock().waiters.kick_all();
    }

    pub(crate) fn add_reference(&self) {
        self.references.fetch_add(1, Ordering::SeqCst);
    }
}

fn as_owner_queue(at: *mut QueueSet) -> Option<&'static QueueSet> {
    // SAFETY: needed because owner queues are in atomics. They hold null or what `add_owner_queue` got, which is never freed.
    (!at.is_null()).then(|| unsafe { &*at })
}

/// What a descriptor was registered for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    pub events: u32,
    pub data: u64,
    /// Not disarmed by one-shot.
    pub armed: bool,
    /// Of a kernel descriptor: not in the kernel's set, because the engine has disarmed it (`once`).
    pub absent: bool,
}

/// An inner set as its outer one has it: as in Linux, the set and the number together, which may be another one's by now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested {
    fd: RawFd,
    set: &'static EpollSet,
    events: u32,
    data: u64,
    /// Counts what has happened in the inner set while this one would have told of it.
    come: u64,
    /// That many of it are told, unless it is level-triggered.
    reported: u64,
    /// Not disarmed by one-shot.
    armed: bool,
    /// Disarmed, and the kernel could not be told, as the number is no descriptor of the set any more: it reports it once more.
    spent: bool,
    /// Which of the outer set's [`Inner::nestings`] made it so.
    nesting: u64,
}

/// A registered socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    fd: RawFd,
    datagram: &'static Datagram,
    generation: u32,
    events: u32,
    data: u64,
    /// What had come by lanes when it was last told.
    reported: Option<u64>,
}
