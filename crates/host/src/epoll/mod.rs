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
mod lanes;
mod moves;
mod nested;
mod once;
pub mod wait;
mod waiters;

pub use control::{check, ctl_add, ctl_del, ctl_mod, ctl_set};
use moves::Registered;
pub use moves::{move_back, note_disarmed, register_in_kernel};
pub use once::{KernelOp, kernel_op};
pub use wait::wait;
pub(crate) use waiters::Watched;

use crate::fd_table;
use crate::lock::Lock;
use crate::queue::QueueSet;
use crate::slots::{Place, Slots};
use crate::socket::{Kind, Socket, Watcher, stream};
use crate::stack::ENGINES_MAX;
use rustix::fd::RawFd;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use toe_abi::errno::Errno;
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
const HOMES_MAX: usize = QUEUE_SETS_MAX * ENGINES_MAX;

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
    by_fd: HashMap<(RawFd, usize), Place>,
    ready: VecDeque<Place>,
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
        while let Some(place) = self.ready.front() {
            match self.interests.get_mut(*place) {
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
    homes: [AtomicPtr<QueueSet>; HOMES_MAX],
    /// Sockets in it.
    sockets: AtomicU32,
    /// Whether the kernel's epoll has, or may have, anything in it.
    kernel_fds: AtomicBool,
    /// Threads in the plain kernel wait.
    kernel_waiters: AtomicU32,
    /// Threads in a call that may sleep on it.
    sleepers: AtomicU32,
    /// Counts waits, for those who have room for one event.
    turn: AtomicU32,
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

/// In the child of a fork: the sets are copies of the parent's; nobody waits; a socket in whose list a
/// thread was at work has forgotten them.
#[cold]
pub fn after_fork_in_child() {
    let sets: Vec<&'static EpollSet> = REGISTRY.lock().all.clone();
    for set in &sets {
        let mut inner = set.inner.lock();
        inner.waiters.clear();
        set.kernel_waiters.store(0, Ordering::Relaxed);
        set.sleepers.store(0, Ordering::Relaxed);
        set.idle_listeners.store(true, Ordering::Relaxed);
        set.moved.store(true, Ordering::Relaxed);
        set.homes.iter().for_each(|home| home.store(std::ptr::null_mut(), Ordering::Relaxed));
        for (place, interest) in inner.interests.iter() {
            if interest.socket.is_watched_by(set, place) {
                continue;
            }
            let exclusive = interest.events & EXCLUSIVE != 0;
            interest.socket.add_watcher(Watcher { set, place, exclusive });
        }
    }
    // Those who waited in them are not here.
    sets.into_iter().for_each(EpollSet::end_if_due);
}

/// The program has made an epoll descriptor.
pub fn created(epfd: RawFd) {
    make(epfd, false);
}

fn make(epfd: RawFd, kernel_fds: bool) -> &'static EpollSet {
    fd_table::remove(epfd);
    let set = unused();
    set.epfd.store(epfd, Ordering::Relaxed);
    set.kernel_fds.store(kernel_fds, Ordering::Relaxed);
    fd_table::install_epoll(epfd, set);
    set
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
                homes: [const { AtomicPtr::new(std::ptr::null_mut()) }; HOMES_MAX],
                sockets: AtomicU32::new(0),
                kernel_fds: AtomicBool::new(false),
                kernel_waiters: AtomicU32::new(0),
                sleepers: AtomicU32::new(0),
                turn: AtomicU32::new(0),
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

/// The set of `epfd`, made now if the descriptor came from elsewhere (over exec), with who knows what in it.
fn find_or_make(epfd: RawFd) -> &'static EpollSet {
    fd_table::epoll_set(epfd).unwrap_or_else(|| make(epfd, true))
}

fn has_twin(socket: &Socket) -> bool {
    socket.kind() == Kind::Listener && socket.has_twin()
}

/// The kernel has carried out `op` (EPOLL_CTL_*) for a descriptor that is not on the engine: remembered in case it goes
/// there later.
pub fn note_kernel_fd(epfd: RawFd, fd: RawFd, op: i32, event: Option<libc::epoll_event>) {
    let set = find_or_make(epfd);
    set.note_datagram(fd, event.filter(|_| op != libc::EPOLL_CTL_DEL));
    let mut inner = set.inner.lock();
    match (op, event) {
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) => {
            let (events, data) = (event.events, event.u64);
            inner.kernel.insert(fd, Registered { events, data, armed: true, absent: false });
            set.kernel_fds.store(true, Ordering::SeqCst);
            // A thread that is parked now does not look at the kernel's epoll if that was empty.
            inner.waiters.kick_all();
        }
        _ => {
            inner.kernel.remove(&fd);
        }
    }
}

/// `fd` was the kernel's and is a socket on the engine now: its registrations move here.
pub fn replace(fd: RawFd, socket: &'static Socket) {
    let sets: Vec<&'static EpollSet> = REGISTRY.lock().all.clone();
    for set in sets {
        let noted = set.inner.lock().kernel.remove(&fd);
        if let Some(registered) = noted {
            let _ = set.add(fd, socket, registered);
        }
    }
}

/// A kernel descriptor was closed.
pub fn forget_kernel_fd(fd: RawFd) {
    for set in &REGISTRY.lock().all {
        set.inner.lock().kernel.remove(&fd);
        set.forget_datagram(fd);
    }
}

fn key(fd: RawFd, socket: &Socket) -> (RawFd, usize) {
    (fd, std::ptr::from_ref(socket).addr())
}

impl EpollSet {
    /// For a thread of the library's own, which waits by [`EpollSet::wait_for_sockets`].
    pub(crate) fn without_descriptor() -> &'static EpollSet {
        let set = unused();
        set.epfd.store(NO_DESCRIPTOR, Ordering::Relaxed);
        set
    }

    /// Registers a socket, edge-triggered, for what happens from now on: with its descriptor as the data. One that is registered
    /// stays as it is.
    pub(crate) fn watch_from_now(&'static self, fd: RawFd, socket: &'static Socket, events: u32) {
        // It may be ready: the first event is the next one.
        let inserted = self.insert(
            fd,
            socket,
            Registered { events: events | EDGE, data: fd as u64, armed: true, absent: false },
        );
        if inserted.is_ok() && socket.kind() == Kind::Listener {
            self.listener_came();
        }
    }

    pub(crate) fn stop_watching(&self, fd: RawFd, socket: &Socket) {
        let _ = self.delete(fd, socket);
    }

    fn add(&'static self, fd: RawFd, socket: &'static Socket, wanted: Registered) -> Result<(), Errno> {
        let place = self.insert(fd, socket, wanted)?;
        socket.homes().for_each(QueueSet::drain);
        self.check(place);
        if socket.kind() == Kind::Listener {
            self.listener_came();
        }
        self.end_kernel_waits();
        Ok(())
    }

    fn insert(&'static self, fd: RawFd, socket: &'static Socket, wanted: Registered) -> Result<Place, Errno> {
        let Registered { events, data, armed, .. } = wanted;
        if events & ONE_SHOT != 0 && has_twin(socket) {
            self.fires_once.store(true, Ordering::Relaxed);
        }
        let mut inner = self.inner.lock();
        if inner.by_fd.contains_key(&key(fd, socket)) {
            return Err(crate::errno::EEXIST);
        }
        let interest = Interest { fd, socket, events, data, armed, queued: false, happened: 0 };
        let place = inner.interests.insert(interest);
        inner.by_fd.insert(key(fd, socket), place);
        // Room for all on the ready list, so that telling the set never allocates.
        let (len, count) = (inner.ready.len(), inner.interests.capacity());
        inner.ready.reserve(count - len.min(count));
        drop(inner);
        self.sockets.fetch_add(1, Ordering::SeqCst);
        // First of all: where it goes from here on this set is told, and where it went before is looked at.
        socket.add_watcher(Watcher { set: self, place, exclusive: events & EXCLUSIVE != 0 });
        socket.homes().for_each(|home| self.add_home(home));
        if socket.is_moved() {
            self.note_moved();
        }
        Ok(place)
    }

    /// Puts a registration on the ready list if it is ready now.
    fn check(&self, place: Place) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        if let Some(interest) = inner.interests.get_mut(place)
            && interest.due() != 0
            && !interest.queued
        {
            interest.queued = true;
            inner.ready.push_back(place);
            self.tell(guard, None);
        }
    }

    fn modify(&self, fd: RawFd, socket: &Socket, events: u32, data: u64) -> Result<(), Errno> {
        let place = {
            let mut inner = self.inner.lock();
            let place = *inner.by_fd.get(&key(fd, socket)).ok_or(crate::errno::ENOENT)?;
            if events & ONE_SHOT != 0 && has_twin(socket) {
                self.fires_once.store(true, Ordering::Relaxed);
            }
            if let Some(interest) = inner.interests.get_mut(place) {
                if interest.events & EXCLUSIVE != 0 {
                    return Err(Errno::EINVAL);
                }
                (interest.events, interest.data, interest.armed) = (events, data, true);
            }
            place
        };
        socket.homes().for_each(QueueSet::drain);
        self.check(place);
        Ok(())
    }

    fn holds(&self, fd: RawFd, socket: &Socket) -> bool {
        self.inner.lock().by_fd.contains_key(&key(fd, socket))
    }

    fn delete(&self, fd: RawFd, socket: &Socket) -> Result<(), Errno> {
        let place = self.inner.lock().by_fd.get(&key(fd, socket)).copied().ok_or(crate::errno::ENOENT)?;
        socket.remove_watcher(self, place);
        self.drop_interest(place, socket);
        Ok(())
    }

    /// Forgets the registration in `place`, if it is `socket`'s.
    pub(crate) fn drop_interest(&self, place: Place, socket: &Socket) {
        let mut inner = self.inner.lock();
        let Some(interest) = inner.interests.remove(place) else { return };
        if interest.queued {
            inner.ready.retain(|queued| *queued != place);
        }
        inner.by_fd.remove(&key(interest.fd, socket));
        self.sockets.fetch_sub(1, Ordering::SeqCst);
    }

    /// A socket tells of an event. `true`: a parked thread was woken for it.
    pub(crate) fn notify(&self, place: Place, key: u32, by: Option<&QueueSet>) -> bool {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(interest) = inner.interests.get_mut(place) else { return false };
        if !interest.armed || key & (interest.events | ALWAYS) == 0 {
            return false;
        }
        interest.happened |= key;
        if !interest.queued {
            interest.queued = true;
            inner.ready.push_back(place);
        }
        self.tell(guard, by)
    }

    /// Takes what is ready into `out`; returns how many.
    fn harvest(&self, out: &mut [libc::epoll_event]) -> usize {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let tells_past = self.epfd.load(Ordering::Relaxed) == NO_DESCRIPTOR;
        let mut taken = 0;
        for _ in 0..inner.ready.len() {
            if taken == out.len() {
                break;
            }
            let Some(place) = inner.ready.pop_front() else { break };
            let Some(interest) = inner.interests.get_mut(place) else { continue };
            let happened = std::mem::take(&mut interest.happened) & (interest.events | ALWAYS);
            let due = if tells_past { happened } else { interest.due() };
            interest.queued = false;
            if due == 0 {
                continue;
            }
            out[taken] = libc::epoll_event { events: due, u64: interest.data };
            taken += 1;
            if interest.events & ONE_SHOT != 0 {
                interest.armed = false;
                if has_twin(interest.socket) {
                    let _ = once::remove_twin(self.epfd.load(Ordering::Relaxed), interest.fd);
                }
            } else if interest.events & EDGE == 0 {
                interest.queued = true;
                inner.ready.push_back(place);
            }
        }
        taken
    }

    /// Whether a wait would find a socket ready: for polling the epoll descriptor itself.
    pub fn is_ready(&self) -> bool {
        self.is_ready_at(0)
    }

    fn is_ready_at(&self, depth: u32) -> bool {
        self.wake_listeners();
        self.drain();
        let own = self.inner.lock().has_due();
        own || self.nested_are_ready(depth)
    }

    /// Whether it holds sockets on the engine, by itself or in a set within it.
    pub fn has_sockets(&self) -> bool {
        self.has_sockets_at(0)
    }

    fn has_sockets_at(&self, depth: u32) -> bool {
        self.sockets.load(Ordering::SeqCst) > 0 || self.nested_have_sockets(depth)
    }

    /// Its sockets' completions come to `home`.
    pub(crate) fn add_home(&self, home: &'static QueueSet) {
        let me = std::ptr::from_ref(home).cast_mut();
        loop {
            let homes = || self.homes.iter().map(|slot| (slot, slot.load(Ordering::Acquire)));
            if homes().any(|(_, at)| at == me) {
                return;
            }
            let room = homes().find(|(_, at)| as_home(*at).is_none_or(|home| home.is_dead()));
            let Some((slot, old)) = room else { return };
            if slot.compare_exchange(old, me, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // A thread that is parked now does not listen to this queue set.
                self.inner.lock().waiters.kick_all();
                return;
            }
        }
    }

    fn homes(&self) -> impl Iterator<Item = &'static QueueSet> {
        self.homes
            .iter()
            .map_while(|slot| as_home(slot.load(Ordering::Acquire)))
            .filter(|home| !home.is_dead())
    }

    /// Calls `each` for every live queue set of its sockets.
    pub(crate) fn each_home(&self, each: &mut dyn FnMut(&'static QueueSet)) {
        self.each_home_at(0, each);
    }

    fn each_home_at(&self, depth: u32, each: &mut dyn FnMut(&'static QueueSet)) {
        self.homes().for_each(&mut *each);
        self.each_nested_home(depth, each);
    }

    pub(crate) fn drain(&self) {
        self.homes().for_each(QueueSet::drain);
    }

    /// The next wait has a listener to look at; one that goes on looks now.
    fn listener_came(&self) {
        self.idle_listeners.store(true, Ordering::Release);
        self.inner.lock().waiters.kick_all();
    }

    /// At a wait: listeners that came into the set since the last one begin to take connections. In the child of a fork
    /// those that were in it are claimed by that.
    fn wake_listeners(&self) {
        if !self.idle_listeners.load(Ordering::Acquire) || !self.idle_listeners.swap(false, Ordering::AcqRel)
        {
            return;
        }
        let of = |interest: &Interest| interest.socket;
        let sockets: Vec<&'static Socket> = self.inner.lock().interests.values().map(of).collect();
        sockets.into_iter().filter(|socket| socket.kind() == Kind::Listener).for_each(Socket::activate);
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

    /// Whether one in it is not, or in a set in it.
    pub(crate) fn has_moved(&self) -> bool {
        let is_own = self.moved.load(Ordering::Acquire);
        is_own || self.all_nested().iter().any(|set| set.moved.load(Ordering::Acquire))
    }

    /// Whoever waits for a socket wants its events: those that are not this process's are claimed, also in sets in this one. In the
    /// child of a fork that is all of them.
    pub(crate) fn take_back_moved(&self) {
        let nested = self.all_nested();
        for set in std::iter::once(self).chain(nested) {
            if !set.moved.load(Ordering::Acquire) || !set.moved.swap(false, Ordering::AcqRel) {
                continue;
            }
            let of = |interest: &Interest| interest.socket;
            let sockets: Vec<&'static Socket> = set.inner.lock().interests.values().map(of).collect();
            for socket in sockets.into_iter().filter(|socket| socket.is_moved()) {
                // A claim that fails shows as readiness.
                let _ = socket.settle();
            }
        }
    }
}

fn as_home(at: *mut QueueSet) -> Option<&'static QueueSet> {
    // SAFETY: needed because homes are in atomics. They hold null or what `add_home` got, which is never freed.
    (!at.is_null()).then(|| unsafe { &*at })
}
