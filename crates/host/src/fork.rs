//! Fork: what a child takes over, and what stays its parent's.
//!
//! Before a fork connections leave their channels ([`crate::channel`]), and all locks that guard what the child goes on using are taken, so that the child's copy is whole. In the
//! child the session is its parent's ([`Stack::abandon_in_child`]): sockets stay in the descriptor table, and each is
//! claimed for the child's own session at its first use there, by showing its anchor ([`crate::socket::Socket::settle`]).
//! In both, sockets that existed at the fork count as shared from then on: their last close in this process just
//! closes the descriptor, because another process may hold it still.

use crate::epoll;
use crate::leaving::give_up_at;
use crate::lock::Lock;
use crate::queue::{Queue, QueueSet};
use crate::socket::claim::{Notified, claim_or_why};
use crate::socket::copies::{ProcessImage, child_of};
use crate::socket::{self, Kind, Socket};
use crate::stack::{self, ENGINES_MAX, EngineIdx, Stack};
use crate::{datagram, fd_table, signals, sys, wait, waiter};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;

static HANDLERS: Once = Once::new();
/// What is written at each fork, in one place: of each page that a child writes to it gets a copy. As its first value is not all zeros, the
/// linker puts it beside the library's other locks and not among its large tables.
static FAMILY: Family = Family {
    pid: AtomicI32::new(NO_PID),
    forks: AtomicU32::new(0),
    forking: AtomicU32::new(0),
    children: AtomicU32::new(0),
    image: AtomicU32::new(0),
    inherited: AtomicU32::new(0),
    asked: AtomicU32::new(0),
    notified: OnceLock::new(),
    stacks: Lock::new([None; ENGINES_MAX]),
};

const NO_PID: i32 = -1;

/// This process and its children.
#[derive(Debug)]
#[repr(align(128))]
struct Family {
    /// This process, to know the child of a vfork by.
    pid: AtomicI32,
    /// Counts forks.
    forks: AtomicU32,
    /// Threads between the preparations for a fork and its end: the C library lets several prepare at once.
    forking: AtomicU32,
    /// See [`ProcessImage`].
    children: AtomicU32,
    image: AtomicU32,
    inherited: AtomicU32,
    /// How often [`is_vfork_child`] has found by its number that this is no such child.
    asked: AtomicU32,
    /// Who is told what this process has claimed.
    notified: OnceLock<Notified>,
    /// The live stacks when a fork was prepared: they are unlocked after it, and a child abandons them.
    stacks: Lock<[Option<&'static Stack>; ENGINES_MAX]>,
}

/// Watches for forks from now on.
pub fn install_handlers() {
    HANDLERS.call_once(|| {
        FAMILY.pid.store(sys::pid(), Ordering::Relaxed);
        // SAFETY: needed to learn of forks; the three functions live as long as the library, which is never unloaded
        // (its thread-local destructors pin it).
        unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    });
}

/// `notified` is told from now on of each descriptor whose connection this process has claimed because it came to use it.
pub fn notify_of_claims(notified: Notified) {
    let _ = FAMILY.notified.set(notified);
}

pub(crate) fn notified_of_claims() -> Option<&'static Notified> {
    FAMILY.notified.get()
}

/// How many forks there were.
pub fn count() -> u32 {
    FAMILY.forks.load(Ordering::Relaxed)
}

/// This process.
#[inline]
pub(crate) fn process() -> ProcessImage {
    let Family { image, children, inherited, .. } = &FAMILY;
    let [image, children, inherited] =
        [image, children, inherited].map(|count| count.load(Ordering::Relaxed));
    ProcessImage { image, children, inherited }
}

/// A child is about to be made in another way than by fork; it gets copies of descriptors all the same.
pub fn before_child() {
    FAMILY.children.fetch_add(1, Ordering::Relaxed);
    datagram::before_child();
    share_all();
}

/// How often the engine is asked again when it had no room to tell of all that changes.
const SHARE_TRIES: u32 = 100;

/// Before a child: what is only in this process's reach goes back to the engine, and nothing new gets there that a child
/// could come to need.
fn share_all() {
    Stack::all_attached().for_each(share);
}

fn share(stack: &'static Stack) {
    if stack.queue_sets().all(|queue| queue.lock().has_nothing_to_share()) {
        return;
    }
    // What peers have said to send is waited for before, without a lock.
    for queue in stack.queue_sets() {
        queue.lock().begin_leaving();
    }
    stack.queue_sets().for_each(QueueSet::wait_until_left);
    give_back(stack);
    // And for what began to use a channel meanwhile, or could not be given back at once: this process may not get round to it
    // before the child needs it.
    let end = give_up_at();
    let has_left = |queue: &Queue| !queue.is_leaving() && !queue.awaits_rest();
    stack.queue_sets().for_each(|set| set.drain_until(end, has_left));
}

fn give_back(stack: &'static Stack) {
    // None comes to them that is not locked.
    let _opening = stack.opening_lock().lock();
    // All locked until all is given back: what another thread is handed after the engine has answered must not be taken
    // for one of those that went back.
    let mut queues: Vec<_> = stack.queue_sets().map(|queue| queue.lock()).collect();
    // What the program has accepted must be known to be its own.
    queues.iter_mut().for_each(|queue| queue.settle_pending());
    let mut is_counted = false;
    for _ in 0..SHARE_TRIES {
        let outcome = stack.request(Request::Share, &[]);
        queues.iter_mut().for_each(|queue| {
            queue.drain();
        });
        is_counted = outcome.is_ok();
        if outcome.err() != Some(Errno::EAGAIN) {
            break;
        }
    }
    for queue in &mut queues {
        if !is_counted {
            let sockets = queue.streams.iter().filter_map(|(_, stream)| stream.socket);
            sockets.for_each(|socket| socket.copies().note_uncounted());
        }
        queue.write_options(None);
        queue.give_back_connections();
        queue.leave_all();
    }
}

/// Whether somebody says by [`note_shared_memory`] when a child may run in this process's memory, and whether one may.
static WATCHED: AtomicBool = AtomicBool::new(false);
static MAY_BE_SHARED: AtomicBool = AtomicBool::new(false);

/// Who asks less often does without a page of its own: a child that serves one connection.
const ASKED_OFTEN: u32 = 64;

/// A word that is 1 here and that the kernel wipes in the child of any fork, also of one that no handler sees.
static NOT_WIPED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// From now on [`note_shared_memory`] is called before every vfork.
pub fn watch_shared_memory() {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    const PAGE: usize = 4096;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: needed for a page that the kernel wipes in a child. A new private mapping, at an address of the kernel's
    // choice, that is never unmapped; the advice changes nothing in this process.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE)
            .and_then(|page| madvise(page, PAGE, Advice::LinuxWipeOnFork).map(|()| page))
    };
    if let Ok(page) = page {
        NOT_WIPED.store(page.cast(), Ordering::Release);
        WATCHED.store(true, Ordering::Release);
    }
}

fn not_wiped() -> Option<&'static AtomicU32> {
    let word = NOT_WIPED.load(Ordering::Acquire);
    // SAFETY: needed because the address is in an atomic. It is null or that of a page that stays mapped, and all access
    // to the word is atomic.
    (!word.is_null()).then(|| unsafe { &*word })
}

/// Whether this process certainly is the one that [`install_handlers`] or the handler in the child saw.
fn is_known_process() -> bool {
    FAMILY.asked.load(Ordering::Relaxed) >= ASKED_OFTEN
        && WATCHED.load(Ordering::Acquire)
        && !MAY_BE_SHARED.load(Ordering::Relaxed)
        && not_wiped().is_some_and(|word| word.load(Ordering::Relaxed) == 1)
}

/// A child may be made that runs in this process's memory.
pub fn note_shared_memory() {
    MAY_BE_SHARED.store(true, Ordering::SeqCst);
}

/// Whether this is a child of vfork, which runs in its parent's memory until it executes something.
pub fn is_vfork_child() -> bool {
    if is_known_process() {
        return false;
    }
    let pid = FAMILY.pid.load(Ordering::Relaxed);
    let is_child = pid != NO_PID && pid != sys::pid();
    let asked = FAMILY.asked.load(Ordering::Relaxed);
    if !is_child && asked < ASKED_OFTEN {
        // Two threads that count as one only ask once more.
        if asked + 1 == ASKED_OFTEN
            && let Some(word) = not_wiped()
        {
            word.store(1, Ordering::Relaxed);
        }
        FAMILY.asked.store(asked + 1, Ordering::Relaxed);
    }
    is_child
}

fn at_fork() -> impl DoubleEndedIterator<Item = &'static Stack> {
    let stacks = *FAMILY.stacks.lock();
    stacks.into_iter().flatten()
}

/// Whether a fork is under way: no stream may begin to use a channel, which would not follow it into the child.
pub fn is_forking() -> bool {
    FAMILY.forking.load(Ordering::Acquire) > 0
}

/// Before a fork. Called by the C library, or by whoever forks past it; then [`in_parent`] and [`in_child`], too.
#[cold]
pub extern "C" fn prepare() {
    signals::before_fork();
    FAMILY.forking.fetch_add(1, Ordering::AcqRel);
    datagram::before_child();
    share_all();
    stack::attach_lock().lock_raw();
    socket::registry_lock().lock_raw();
    epoll::registry_lock().lock_raw();
    waiter::spare_lock().lock_raw();
    let mut current = [None; ENGINES_MAX];
    Stack::all_attached().for_each(|stack| current[stack.engine.index()] = Some(stack));
    *FAMILY.stacks.lock() = current;
    for stack in at_fork() {
        // First of its locks: those of the queue sets that there are now are given back afterwards, and no others, or a thread that
        // has just opened one would have its lock taken away.
        stack.opening_lock().lock_raw();
        for queue in stack.queue_sets() {
            queue.raw_lock().lock_raw();
        }
        stack.anchors().lock().lock_raw();
        stack.own_fds_lock().lock_raw();
    }
    epoll::lock_all();
    datagram::before_fork();
}

/// `settle` is told of each queue set once its lock is free.
fn unlock(settle: impl Fn(&QueueSet)) {
    datagram::after_fork();
    epoll::unlock_all();
    for stack in at_fork().rev() {
        stack.own_fds_lock().unlock_raw();
        stack.anchors().lock().unlock_raw();
        for queue in stack.queue_sets() {
            queue.raw_lock().unlock_raw();
            settle(queue);
        }
        stack.opening_lock().unlock_raw();
    }
    waiter::spare_lock().unlock_raw();
    epoll::registry_lock().unlock_raw();
    socket::registry_lock().unlock_raw();
    stack::attach_lock().unlock_raw();
}

/// After a fork, in the parent.
#[cold]
pub extern "C" fn in_parent() {
    FAMILY.forks.fetch_add(1, Ordering::Relaxed);
    FAMILY.children.fetch_add(1, Ordering::Relaxed);
    FAMILY.forking.fetch_sub(1, Ordering::AcqRel);
    unlock(|queue| queue.pending_wakes().pay());
    signals::after_fork(false);
}

/// After a fork, in the child.
#[cold]
pub extern "C" fn in_child() {
    leave_to_parent();
    signals::after_fork(true);
}

/// The sessions of this process end, and what they had is claimed at its first use, as in a child of this process.
/// There is no other thread.
pub fn leave_sessions() {
    prepare();
    leave_to_parent();
    // What was kept of signals is still this process's.
    signals::after_fork(false);
}

#[cold]
fn leave_to_parent() {
    FAMILY.forks.fetch_add(1, Ordering::Relaxed);
    let children = FAMILY.children.load(Ordering::Relaxed).wrapping_add(1);
    FAMILY.children.store(children, Ordering::Relaxed);
    FAMILY.inherited.store(children, Ordering::Relaxed);
    FAMILY.image.store(child_of(FAMILY.image.load(Ordering::Relaxed)), Ordering::Relaxed);
    FAMILY.forking.store(0, Ordering::Release);
    FAMILY.asked.store(0, Ordering::Relaxed);
    FAMILY.pid.store(sys::pid(), Ordering::Relaxed);
    // Whom the parent owes a wake-up, the parent wakes.
    unlock(|queue| queue.pending_wakes().forget());
    wait::after_fork_in_child();
    crate::cancel::after_fork_in_child();
    socket::after_fork_in_child();
    epoll::after_fork_in_child();
    datagram::after_fork_in_child();
    at_fork().for_each(Stack::abandon_in_child);
}

/// Whether the program before this one did not see the anchor.
pub fn is_hidden(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// The socket for a descriptor that this process got from elsewhere (over exec, or in a message): asks the engines and
/// installs it. `None`: it is none of an engine's. A connection stays with whoever has it until it is used here.
pub fn adopt(fd: i32) -> Option<&'static Socket> {
    let stat = rustix::fs::fstat(sys::borrow(fd)).ok()?;
    if let Some(known) = Socket::install_shared(stat.st_dev, stat.st_ino, fd) {
        return Some(known);
    }
    let recognised = |stack: &'static Stack| {
        let reply = stack.request(Request::Recognise, &[sys::borrow(fd)]).ok()?;
        let kind = if matches!(reply, Reply::Handle { .. }) { Kind::Listener } else { Kind::Stream };
        Some((stack.engine, kind))
    };
    let (engine, kind) = EngineIdx::all().filter_map(Stack::get).find_map(recognised)?;
    if kind == Kind::Listener && is_hidden(fd) {
        // By now this process holds the listener by its twin, if it has that.
        let _ = sys::close(fd);
        return None;
    }
    let found = Socket::install_received(engine, kind, fd);
    // A listener is held from now on: whoever it came from may be about to leave it.
    if kind == Kind::Listener && claim_or_why(found).is_err() {
        fd_table::remove_only(fd, found);
        return None;
    }
    Some(found)
}
