//! Sockets: what a descriptor of the program on the engine stands for.
//!
//! A [`Socket`] is the part of it that never moves and that any thread may look at without a lock: kind, readiness,
//! flags, who watches. The connection or listener itself is plain state in a queue set ([`stream`], [`listener`]); the
//! socket says where. Read on in the order of a connection's life: [`connect`], [`listener`] (with [`arrivals`]), [`transfer`],
//! [`options`], [`claim`].
//!
//! Called by the switch layer and the C API.

mod accept;
mod access;
pub mod arrivals;
mod asked;
mod call;
mod carried;
pub mod claim;
pub mod connect;
pub(crate) mod copies;
mod descriptors;
pub mod direct;
pub(crate) mod ending;
mod family;
mod flags;
pub mod listener;
mod noted_file;
pub mod options;
mod own_options;
mod passing;
pub mod received;
mod saved_options;
pub(crate) mod shared;
pub mod shortage;
mod siblings;
pub mod slices;
mod state;
pub mod stream;
mod tcp_info;
mod time_limit;
pub mod transfer;
mod twin;
mod typed;
pub mod urgent;
pub(crate) mod waits;
pub(crate) mod watch;
pub mod zerocopy;

pub use accept::{AcceptError, AcceptHow, Accepted};
pub use call::{Held, SocketCall};
pub use connect::ConnectHow;
pub use flags::{FastOpen, RecvFlags, SendFlags, Shutdown};
pub use listener::OfKernel;
pub use options::{TCP_INQ, offloaded};

use crate::epoll::EpollSet;
use crate::lock::Lock;
use crate::own_fds::OwnCopy;
use crate::process;
use crate::queue::{QueueGuard, QueueSet};
use crate::session::Session;
use crate::slots::SlotId;
use crate::socket::copies::CopiesSeen;
use crate::waiter::Waiter;
use copies::Copies;
use descriptors::Descriptors;
use noted_file::NotedFile;
use options::Settings;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use stream::Link;
use time_limit::TimeLimits;
use toe_abi::policy::ENGINES_MAX;

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
const NO_SLOT: u64 = u64::MAX;

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
    pub slot_id: SlotId,
    pub exclusive: bool,
}

/// A socket. Never freed; reused after its last descriptor was closed.
#[derive(Debug)]
pub struct Socket {
    pub(crate) kind: AtomicU8,
    /// EPOLL bits.
    pub(crate) ready: AtomicU32,
    owner_queue: AtomicPtr<QueueSet>,
    /// A [`SlotId`] there.
    slot_id: AtomicU64,
    /// Whose it is, or was: an index for [`crate::stack::EngineIdx`].
    engine: AtomicU8,
    /// Descriptors of this process.
    pub(crate) references: AtomicU32,
    /// Counts reuses: a thread that is inside a call when the socket goes away notices by it.
    generation: AtomicU32,
    sharing: Claimable,
    pub(crate) file: NotedFile,
    nonblocking: AtomicBool,
    /// Of AF_INET6, see [`Socket::is_inet6`].
    inet6: AtomicBool,
    /// TCP_INQ: who receives a message is told how many bytes wait behind it.
    tells_unread: AtomicBool,
    pub time_limits: TimeLimits,
    pub fds: Descriptors,
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
    pub(crate) all: Vec<&'static Socket>,
    free: Vec<&'static Socket>,
}

pub(crate) static REGISTRY: Lock<Registry> = Lock::new(Registry { all: Vec::new(), free: Vec::new() });

/// The registry's lock, for [`crate::fork`].
pub fn registry_lock() -> &'static Lock<Registry> {
    &REGISTRY
}

impl Socket {
    fn unused() -> Socket {
        Socket {
            kind: AtomicU8::new(Kind::Fresh as u8),
            ready: AtomicU32::new(0),
            owner_queue: AtomicPtr::new(std::ptr::null_mut()),
            slot_id: AtomicU64::new(NO_SLOT),
            engine: AtomicU8::new(0),
            references: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            sharing: Claimable { copies: Copies::none(), claiming: Lock::new(()) },
            file: NotedFile::default(),
            nonblocking: AtomicBool::new(false),
            inet6: AtomicBool::new(false),
            tells_unread: AtomicBool::new(false),
            time_limits: TimeLimits::default(),
            fds: Descriptors::none(),
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
        socket.sharing.copies.begin(process::image());
        // What poll shows of a socket that is neither connected nor listening.
        socket.ready.store(stream::OUT | stream::HUP, Ordering::SeqCst);
        socket
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
    pub fn owner_queue(&self) -> Option<&'static QueueSet> {
        let owner_queue = self.owner_queue.load(Ordering::Acquire);
        // SAFETY: needed because the owner queue is in an atomic. It holds null or an address from `set_owner_queue`, which takes
        // `&'static QueueSet`.
        (!owner_queue.is_null()).then(|| unsafe { &*owner_queue })
    }

    /// The session of its engine.
    pub fn session(&self) -> Option<&'static Session> {
        self.owner_queue().map(|owner_queue| owner_queue.session)
    }

    /// The lock of its owner queue, with its place there.
    pub(crate) fn lock_owner_queue(&self) -> Option<(QueueGuard<'static>, SlotId)> {
        loop {
            let owner_queue = self.owner_queue()?;
            let queue = owner_queue.lock();
            if self.owner_queue().is_some_and(|now| std::ptr::eq(now, owner_queue)) {
                return Some((queue, SlotId::from_bits(self.slot_id.load(Ordering::Acquire))));
            }
        }
    }

    /// Whether another process has it, as far as is known, so that it must be claimed before use.
    pub fn is_moved(&self) -> bool {
        self.copies().is_moved() || self.siblings.have_moved()
    }

    /// Whether another process may hold its descriptor.
    pub fn is_shared(&self) -> bool {
        self.copies().exist()
    }

    /// What is known of its copies. It is in a session if it has, or had when it was another process's, a flow or listener there.
    #[inline]
    pub(crate) fn copies(&self) -> CopiesSeen<'_> {
        self.sharing.copies.seen_by(process::image(), self.slot_id.load(Ordering::Relaxed) != NO_SLOT)
    }

    /// Whether the kernel listens on the same port with the program's descriptor.
    pub fn has_twin(&self) -> bool {
        self.settings.lock().has_twin
    }

    pub(crate) fn add_reference(&self) {
        self.references.fetch_add(1, Ordering::AcqRel);
    }

    /// The EPOLL bits that hold, as last published.
    pub fn ready_now(&self) -> u32 {
        self.ready.load(Ordering::SeqCst) | self.ready_elsewhere()
    }

    /// Whether a receive has something to say at once, as far as is known.
    pub fn is_readable(&self) -> bool {
        self.ready_now() & (stream::IN | stream::HUP | stream::ERR) != 0
    }

    pub(super) fn ready_elsewhere(&self) -> u32 {
        if self.siblings.ready.load(Ordering::SeqCst) == 0 { 0 } else { stream::IN }
    }
}

const UNBOUND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// Who has a socket: which other processes may, and whether a thread of this one is about to.
#[derive(Debug)]
pub(super) struct Claimable {
    pub copies: Copies,
    /// Held by a thread that claims it: whoever comes to the socket meanwhile finds it claimed.
    pub claiming: Lock<()>,
}

/// What binds them together. Of most sockets empty.
#[derive(Debug, Default)]
pub(super) struct Siblings {
    /// Of a sibling: its head.
    primary: AtomicPtr<Socket>,
    /// Of a head: its siblings, without gaps.
    others: [AtomicPtr<Socket>; ENGINES_MAX - 1],
    /// Of a head: a bit for each sibling that has a connection.
    ready: AtomicU32,
}

impl Siblings {
    pub(super) fn forget(&self) {
        self.primary.store(std::ptr::null_mut(), Ordering::Release);
        self.let_go();
    }

    fn let_go(&self) {
        for other in &self.others {
            other.store(std::ptr::null_mut(), Ordering::Release);
        }
        self.ready.store(0, Ordering::Relaxed);
    }

    fn at(&self, index: usize) -> Option<&'static Socket> {
        as_socket(self.others.get(index)?.load(Ordering::Acquire))
    }

    fn iter(&self) -> impl Iterator<Item = &'static Socket> {
        (0..ENGINES_MAX - 1).map_while(|index| self.at(index))
    }

    /// Whether another session has one of them.
    pub(super) fn have_moved(&self) -> bool {
        self.iter().any(|other| other.copies().is_moved())
    }
}

fn as_socket(at: *mut Socket) -> Option<&'static Socket> {
    // SAFETY: needed because siblings are in atomics. They hold null or what `join` got: a socket, which is never freed.
    (!at.is_null()).then(|| unsafe { &*at })
}
