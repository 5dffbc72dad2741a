//! Sockets: what a descriptor of the program on the engine stands for.
//!
//! A [`Socket`] is the part of it that never moves and that any thread may look at without a lock: kind, readiness,
//! flags, who watches. The connection or listener itself is plain state in a queue set ([`stream`], [`listener`]); the
//! socket says where. Read on in the order of a connection's life: [`connect`], [`listener`] (with [`arrivals`]), [`transfer`],
//! [`options`], [`claim`].
//!
//! Called by the switch layer and the C API.

mod accept;
pub mod arrivals;
pub mod claim;
pub mod connect;
pub(crate) mod copies;
pub mod direct;
mod ending;
mod family;
mod kept;
pub mod listener;
pub mod options;
mod own_options;
pub mod received;
pub(crate) mod shared;
mod siblings;
pub mod slices;
pub mod stream;
mod tcp_info;
pub mod transfer;
mod turn;
mod twin;
pub mod urgent;
pub mod zerocopy;

pub use accept::{AcceptError, AcceptHow, Accepted};
pub use connect::{ConnectHow, FastOpen};
pub use ending::Held;
pub use listener::OfKernel;
pub use options::TCP_INQ;
pub use transfer::{RecvFlags, SendFlags, Shutdown};
pub use turn::Turn;

use crate::epoll::EpollSet;
use crate::fork;
use crate::leaving;
use crate::lock::Lock;
use crate::own_fds::OwnCopy;
use crate::queue::{QueueGuard, QueueIo, QueueSet};
use crate::slots::Place;
use crate::waiter::Waiter;
use claim::Claimable;
use copies::Copies;
use options::Settings;
use rustix::fd::RawFd;
use siblings::Siblings;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use stream::{Link, Stream};
use toe_abi::errno::Errno;

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Neither connected nor listening.
    Fresh = 0,
    Stream = 1,
    Listener = 2,
}

/// The file status flag of a listener's twin that says: non-blocking for the library's sake, the program's own flag is clear.
/// A program after exec inherits it, and one that is sent the descriptor; O_APPEND does nothing to a socket.
pub const TWIN_MARK: i32 = libc::O_APPEND;

/// Not in any queue set.
const NO_PLACE: u64 = u64::MAX;
const NO_FD: RawFd = -1;

/// Everybody who wants to know when a socket's readiness changes.
#[derive(Debug, Default)]
pub struct Watch {
    /// Epoll sets, with the place in each.
    pub sets: Vec<Watcher>,
    /// Threads inside a call on this socket.
    waiters: Vec<&'static Waiter>,
    /// The program has closed it; the last of those threads ends it. The copy of its descriptor that is kept until then.
    ending: Option<OwnCopy>,
}

/// A registration of a socket in an epoll set.
#[derive(Clone, Copy, Debug)]
pub struct Watcher {
    pub set: &'static EpollSet,
    pub place: Place,
    pub exclusive: bool,
}

/// A socket. Never freed; reused after its last descriptor was closed.
#[derive(Debug)]
pub struct Socket {
    kind: AtomicU8,
    /// EPOLL bits.
    ready: AtomicU32,
    home: AtomicPtr<QueueSet>,
    /// A [`Place`] there.
    place: AtomicU64,
    /// Whose it is, or was: an index for [`crate::stack::EngineIdx`].
    engine: AtomicU8,
    /// Descriptors of this process.
    references: AtomicU32,
    /// Counts reuses: a thread that is inside a call when the socket goes away notices by it.
    generation: AtomicU32,
    sharing: Claimable,
    /// The inode of its anchor, once it is shared with a process that may send it back.
    device: AtomicU64,
    inode: AtomicU64,
    nonblocking: AtomicBool,
    /// Of AF_INET6, see [`Socket::is_inet6`].
    inet6: AtomicBool,
    /// TCP_INQ: who receives a message is told how many bytes wait behind it.
    tells_unread: AtomicBool,
    /// Timeouts in µs; 0: none.
    receive_timeout: AtomicU64,
    send_timeout: AtomicU64,
    /// A descriptor of the program's.
    fd: AtomicI32,
    /// The hidden anchor of a listener whose descriptor is its twin.
    hidden_anchor: AtomicI32,
    /// The kernel socket that has a native socket's name.
    own_twin: AtomicI32,
    /// Number of entries in `watch`.
    watched: AtomicU32,
    /// Calls that will look at it again.
    holders: AtomicU32,
    watch: Lock<Watch>,
    settings: Lock<Settings>,
    /// Options were set since they were last written down for who else may come to have the connection.
    has_new_options: AtomicBool,
    siblings: Siblings,
}

/// All sockets that were ever made, and those that can be used again.
#[derive(Debug)]
pub struct Registry {
    all: Vec<&'static Socket>,
    free: Vec<&'static Socket>,
}

static REGISTRY: Lock<Registry> = Lock::new(Registry { all: Vec::new(), free: Vec::new() });

/// The registry's lock, for [`crate::fork`].
pub fn registry_lock() -> &'static Lock<Registry> {
    &REGISTRY
}

/// In the child of a fork: every socket in use is the parent's until it is claimed ([`copies`]); nobody waits.
#[cold]
pub fn after_fork_in_child() {
    REGISTRY.lock().all.iter().for_each(|socket| socket.forget_threads());
}

impl Socket {
    fn unused() -> Socket {
        Socket {
            kind: AtomicU8::new(Kind::Fresh as u8),
            ready: AtomicU32::new(0),
            home: AtomicPtr::new(std::ptr::null_mut()),
            place: AtomicU64::new(NO_PLACE),
            engine: AtomicU8::new(0),
            references: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            sharing: Claimable { copies: Copies::none(), claiming: Lock::new(()) },
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            nonblocking: AtomicBool::new(false),
            inet6: AtomicBool::new(false),
            tells_unread: AtomicBool::new(false),
            receive_timeout: AtomicU64::new(0),
            send_timeout: AtomicU64::new(0),
            fd: AtomicI32::new(NO_FD),
            hidden_anchor: AtomicI32::new(NO_FD),
            own_twin: AtomicI32::new(NO_FD),
            watched: AtomicU32::new(0),
            holders: AtomicU32::new(0),
            watch: Lock::new(Watch { sets: Vec::new(), waiters: Vec::new(), ending: None }),
            settings: Lock::new(Settings::default()),
            has_new_options: AtomicBool::new(false),
            siblings: Siblings::default(),
        }
    }

    /// A fresh socket without a descriptor.
    pub fn allocate() -> &'static Socket {
        let mut registry = REGISTRY.lock();
        let socket = match registry.free.pop() {
            Some(socket) => socket,
            None => {
                let socket: &'static Socket = Box::leak(Box::new(Socket::unused()));
                registry.all.push(socket);
                socket
            }
        };
        drop(registry);
        socket.sharing.copies.begin(fork::process());
        // What poll shows of a socket that is neither connected nor listening.
        socket.ready.store(stream::OUT | stream::HUP, Ordering::SeqCst);
        socket
    }

    /// Puts it back for reuse. Nothing refers to it but threads that are still inside a call on it.
    fn retire(&'static self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.kick_waiters();
        self.kind.store(Kind::Fresh as u8, Ordering::Release);
        self.place.store(NO_PLACE, Ordering::Release);
        self.home.store(std::ptr::null_mut(), Ordering::Release);
        self.copies().set_moved(false);
        self.siblings.forget();
        self.nonblocking.store(false, Ordering::Relaxed);
        self.inet6.store(false, Ordering::Relaxed);
        self.tells_unread.store(false, Ordering::Relaxed);
        self.receive_timeout.store(0, Ordering::Relaxed);
        self.send_timeout.store(0, Ordering::Relaxed);
        self.fd.store(NO_FD, Ordering::Relaxed);
        *self.settings.lock() = Settings::default();
        self.has_new_options.store(false, Ordering::Relaxed);
        self.drop_twin();
        let hidden = self.hidden_anchor.swap(NO_FD, Ordering::AcqRel);
        if hidden != NO_FD {
            crate::fd_words::forget_internal(hidden);
            let _ = crate::sys::close(hidden);
        }
        let mut registry = REGISTRY.lock();
        // With the lock, or whoever notes it at this moment (`install_shared`) would note it of the socket's next connection.
        self.inode.store(0, Ordering::Relaxed);
        registry.free.push(self);
    }

    pub fn kind(&self) -> Kind {
        match self.kind.load(Ordering::Acquire) {
            1 => Kind::Stream,
            2 => Kind::Listener,
            _ => Kind::Fresh,
        }
    }

    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The queue set that serves it.
    pub fn home(&self) -> Option<&'static QueueSet> {
        let home = self.home.load(Ordering::Acquire);
        // SAFETY: needed because the home is in an atomic. It holds null or an address from `set_home`, which takes
        // `&'static QueueSet`.
        (!home.is_null()).then(|| unsafe { &*home })
    }

    pub(crate) fn set_home(&'static self, home: &'static QueueSet) {
        self.home.store(std::ptr::from_ref(home).cast_mut(), Ordering::Release);
        self.set_engine(home.stack.engine);
        for watcher in &self.watched_as().watch.lock().sets {
            watcher.set.add_home(home);
        }
    }

    /// It is in `place` of `home` from now on. The caller holds the lock of `home`.
    pub(crate) fn move_in(&'static self, home: &'static QueueSet, place: Place, kind: Kind) {
        self.copies().begin_session();
        self.place.store(place.to_bits(), Ordering::Release);
        self.kind.store(kind as u8, Ordering::Release);
        self.set_home(home);
    }

    /// The lock of its home, with its place there.
    pub(crate) fn lock_home(&self) -> Option<(QueueGuard<'static>, Place)> {
        loop {
            let home = self.home()?;
            let queue = home.lock();
            if self.home().is_some_and(|now| std::ptr::eq(now, home)) {
                return Some((queue, Place::from_bits(self.place.load(Ordering::Acquire))));
            }
        }
    }

    /// Does `f` to its stream, after taking the completions that wait. `None`: it has none.
    pub(crate) fn with_stream<R>(&self, f: impl FnOnce(&mut QueueIo, &mut Stream, Place) -> R) -> Option<R> {
        self.with_ready_stream(|_| false, f)
    }

    /// The same, but takes what waits only now and then when the stream says that it has what `f` needs.
    pub(crate) fn with_ready_stream<R>(
        &self,
        has: impl FnOnce(&Stream) -> bool,
        f: impl FnOnce(&mut QueueIo, &mut Stream, Place) -> R,
    ) -> Option<R> {
        let (mut queue, place) = claim::lock_claimed(self)?;
        let shared = self.is_shared();
        let used = if shared { leaving::begin_use(&mut queue, place) } else { None };
        let ready = queue.stream(place, self).is_some_and(|(_, stream)| has(stream));
        if !ready || shared || queue.is_drain_due() {
            queue.drain();
        }
        let result = queue.stream(place, self).map(|(io, stream)| {
            let result = f(io, stream, place);
            (result, stream.is_starved())
        });
        if shared {
            queue.settle_pending();
            used.into_iter().for_each(|flow| queue.io.end_use(flow));
        }
        let is_newly_starved = matches!(result, Some((_, true))) && queue.starve(place);
        if is_newly_starved {
            queue.starve_siblings(place);
        }
        if shared {
            self.finish_yielding(queue, place);
        } else {
            drop(queue);
        }
        if is_newly_starved && let Some(home) = self.home() {
            home.parking.tell_stuck();
        }
        result.map(|(result, _)| result)
    }

    /// Does `f` to its stream as it is.
    pub(crate) fn peek_stream<R>(&self, f: impl FnOnce(&mut Stream) -> R) -> Option<R> {
        let (mut queue, place) = claim::lock_claimed(self)?;
        queue.stream(place, self).map(|(_, stream)| f(stream))
    }

    /// Whether another process has it, as far as is known, so that it must be claimed before use.
    pub fn is_moved(&self) -> bool {
        self.copies().is_moved() || self.siblings.have_moved()
    }

    pub(crate) fn set_moved(&self) {
        self.copies().set_moved(true);
        for watcher in &self.watched_as().watch.lock().sets {
            watcher.set.note_moved();
        }
    }

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

    // Readiness.

    /// Stores what holds now; `key`: what has just happened, 0 when nothing did that anybody waits for.
    pub(crate) fn publish(&self, ready: u32, key: u32) {
        // Only the holder of the queue set's lock writes it, so what has not changed need not be stored.
        if self.ready.load(Ordering::Relaxed) != ready {
            self.ready.store(ready, Ordering::SeqCst);
            self.tell_head(ready);
        }
        self.tell(key);
    }

    /// `key` has just happened to it: tells who watches.
    fn tell(&self, key: u32) {
        let watched_as = self.watched_as();
        if !std::ptr::eq(watched_as, self) {
            return watched_as.tell(key);
        }
        if key == 0 || self.watched.load(Ordering::SeqCst) == 0 {
            return;
        }
        let watch = self.watch.lock();
        // The lock is held by whoever tells, as a rule.
        let home = self.home();
        watch.waiters.iter().for_each(|waiter| {
            QueueSet::kick_by(home, waiter);
        });
        // Of the exclusive registrations the first that wakes somebody ends the round.
        let mut served = false;
        for watcher in watch.sets.iter().filter(|_| key != stream::DRAINED) {
            if !(watcher.exclusive && served) {
                let woke = watcher.set.notify(watcher.place, key, home);
                served |= woke && watcher.exclusive;
            }
        }
    }

    /// The EPOLL bits that hold, as last published.
    pub fn ready_now(&self) -> u32 {
        self.ready.load(Ordering::SeqCst) | self.ready_elsewhere()
    }

    /// Whether a receive has something to say at once, as far as is known.
    pub fn is_readable(&self) -> bool {
        self.ready_now() & (stream::IN | stream::HUP | stream::ERR) != 0
    }

    /// The EPOLL bits that hold now, after taking the completions that wait.
    pub fn ready(&'static self) -> u32 {
        if self.settle().is_err() {
            return stream::ALL;
        }
        self.activate();
        self.homes().for_each(|home| {
            home.drain();
            home.stack.look();
        });
        self.ready_now()
    }

    /// Someone wants events of this socket: a listener begins to take connections.
    pub(crate) fn activate(&'static self) {
        if self.kind() == Kind::Listener {
            let _ = self.activate_all();
        }
    }

    pub(crate) fn kick_waiters(&self) {
        self.watch.lock().waiters.iter().for_each(|waiter| {
            waiter.kick();
        });
    }

    /// An epoll set watches it from now on.
    pub(crate) fn add_watcher(&self, watcher: Watcher) {
        self.watch.lock().sets.push(watcher);
        self.watched.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove_watcher(&self, set: &EpollSet, place: Place) {
        let mut watch = self.watch.lock();
        if let Some(at) = watch.sets.iter().position(|w| std::ptr::eq(w.set, set) && w.place == place) {
            watch.sets.remove(at);
            self.watched.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// In the child of a fork, whose other threads are not there. Where none was in a call nothing is written: the child would get a copy of
    /// the page. Epoll sets that it has forgotten come again ([`crate::epoll::after_fork_in_child`]).
    fn forget_threads(&self) {
        if self.holders.load(Ordering::SeqCst) != 0 {
            self.holders.store(0, Ordering::SeqCst);
        }
        let watched = self.watched.load(Ordering::SeqCst) as usize;
        let has_sets_alone =
            |watch: &Watch| watch.waiters.is_empty() && watch.ending.is_none() && watch.sets.len() == watched;
        let forgotten = || {
            self.watched.store(0, Ordering::SeqCst);
            Watch::default()
        };
        // SAFETY: needed for a lock that was not taken before the fork. The child has this thread alone, which was in `fork` and not in a call that
        // locks.
        unsafe { self.watch.renew_after_fork(has_sets_alone, forgotten) };
        self.settings.free_after_fork();
        self.sharing.claiming.free_after_fork();
    }

    /// In the child of a fork: whether it knows of a registration.
    pub(crate) fn is_watched_by(&self, set: &EpollSet, place: Place) -> bool {
        let is_it = |watcher: &Watcher| std::ptr::eq(watcher.set, set) && watcher.place == place;
        // SAFETY: as in `forget_threads`.
        unsafe { self.watch.peek_in_child() }.is_some_and(|watch| watch.sets.iter().any(is_it))
    }

    // Small things.

    /// Bytes received and not yet read (FIONREAD).
    pub fn unread(&'static self) -> usize {
        let _ = self.settle_here();
        let look = || self.with_stream(|_, stream, _| stream.countable()).unwrap_or(0);
        self.seen(|unread| *unread == 0, look)
    }

    /// What TCP_INQ tells with a message, if it was asked for: bytes that wait, the end of the stream for one. It stays one
    /// when it has been read, so that the program comes and finds it.
    pub fn told_unread(&'static self) -> Option<usize> {
        let tells = self.tells_unread.load(Ordering::Relaxed);
        tells.then(|| self.with_stream(|_, stream, _| stream.unread_with_end()).unwrap_or(0))
    }

    /// Whether the next byte is the urgent one (SIOCATMARK).
    pub fn is_at_mark(&'static self) -> bool {
        let _ = self.settle_here();
        let look = || self.with_stream(|_, stream, _| stream.is_at_mark()).unwrap_or(false);
        self.seen(|is_at_mark| !is_at_mark, look)
    }

    /// Whether the urgent byte is next, and here.
    pub fn stops_at_mark(&self) -> bool {
        self.peek_stream(|stream| stream.is_at_mark() && stream.unread() > 0) == Some(true)
    }

    /// Bytes sent and not yet acknowledged (SIOCOUTQ).
    pub fn unsent(&'static self) -> usize {
        let _ = self.settle_here();
        let look = || self.with_stream(|io, stream, _| stream.outstanding(io) as usize).unwrap_or(0);
        self.seen(|unsent| *unsent > 0, look)
    }

    pub fn local_addr(&'static self) -> Result<SocketAddr, Errno> {
        let _ = self.settle();
        let _ = self.wait_for_turn();
        let of_stream =
            self.peek_stream(|stream| stream.addrs.filter(|_| stream.disconnected().is_none())).flatten();
        let bound = self.settings.lock().local;
        let named = of_stream.map(|(local, _)| local).or(bound);
        // Linux goes on showing the port that it had.
        let left = || self.peek_stream(|stream| stream.port_left()).flatten();
        Ok(named.or_else(left).unwrap_or(UNBOUND))
    }

    /// ENOTCONN unless established.
    pub fn peer_addr(&'static self) -> Result<SocketAddr, Errno> {
        let _ = self.settle_here();
        let _ = self.wait_for_turn();
        let peer = self.with_stream(|_, stream, _| match stream.link {
            // With both directions closed there is nobody any more.
            Link::Open | Link::Moved if !(stream.peer_closed && stream.write_shut) => {
                stream.addrs.map(|(_, remote)| remote)
            }
            _ => None,
        });
        peer.flatten().ok_or(Errno::ENOTCONN)
    }

    /// SO_ERROR: the error that waits, once.
    pub fn take_error(&'static self) -> Errno {
        if let Err(errno) = self.settle_here() {
            return errno;
        }
        let look = || self.with_stream(|_, stream, _| stream.take_error()).unwrap_or(Errno::OK);
        self.seen(|error| error.is_ok(), look)
    }

    /// Puts back an error of the connection that was taken too early.
    pub fn put_error(&'static self, errno: Errno) {
        self.peek_stream(|stream| stream.put_error(errno));
    }

    /// SO_RCVTIMEO.
    pub fn receive_timeout(&self) -> Option<Duration> {
        Self::time_limit(&self.receive_timeout)
    }

    /// SO_SNDTIMEO.
    pub fn send_timeout(&self) -> Option<Duration> {
        Self::time_limit(&self.send_timeout)
    }
}

const UNBOUND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);
