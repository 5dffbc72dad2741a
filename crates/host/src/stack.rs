//! The process's sessions with engines: one [`Stack`] for each engine, made at first use, replaced when its engine has
//! ended.
//!
//! Owns the control socket, the memory region and the queue sets. A stack is never freed: sockets
//! and parked threads refer to it, and it is one a lifetime of the engine.

use crate::attach::{Control, engines};
use crate::connect_credit::Heard;
use crate::errno::from_os;
use crate::lock::Lock;
use crate::own_fds::{LeftFile, OwnFds};
use crate::pool::AnchorPool;
use crate::queue::QueueSet;
use crate::settling::Settling;
use crate::sys::{self, Fd};
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::SessionId;
use toe_base::arena::Arena;
use toe_base::limits::QUEUE_SETS_MAX;
use toe_ring::{HostDoorbell, HostLooks, Region};

/// Least time between two looks at the control socket by threads that never park, in ms.
pub(crate) const LOOK_MS: u64 = 10;

pub use toe_abi::policy::ENGINES_MAX;

/// One of the engines that this process was given, by its place in their list ([`crate::attach::engines`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineIdx(u8);

impl EngineIdx {
    /// The first one: the only one of most programs.
    pub const FIRST: EngineIdx = EngineIdx(0);

    /// All that there are.
    pub fn all() -> impl DoubleEndedIterator<Item = EngineIdx> {
        (0..engines().len() as u8).map(EngineIdx)
    }

    /// `None`: there are not so many.
    pub fn new(index: usize) -> Option<EngineIdx> {
        (index < engines().len()).then_some(EngineIdx(index as u8))
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The live stacks of this process by engine, or null.
pub(crate) static CURRENT: [AtomicPtr<Stack>; ENGINES_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; ENGINES_MAX];
pub(crate) static ATTACHING: Attaching =
    Attaching { left: Lock::new(Vec::new()), at_fork: Lock::new([None; ENGINES_MAX]) };
/// When the last attempt to attach failed, by [`sys::coarse_ms`], and with which errno in the lowest 16 bits; 0: never.
pub(crate) static FAILED: [AtomicU64; ENGINES_MAX] = [const { AtomicU64::new(0) }; ENGINES_MAX];

/// What a fork writes, in one place: of each page that a child writes to it gets a copy.
#[derive(Debug)]
pub(crate) struct Attaching {
    /// Held while attaching. What the child of a fork has of its parent's files until it attaches.
    pub(crate) left: Lock<Vec<LeftFile>>,
    /// The live stacks when a fork was prepared: they are unlocked after it, and a child abandons them.
    at_fork: Lock<[Option<&'static Stack>; ENGINES_MAX]>,
}

/// A session.
#[derive(Debug)]
pub struct Stack {
    pub engine: EngineIdx,
    pub(crate) control: Control,
    pub session: SessionId,
    pub(crate) layout: RegionLayout,
    pub(crate) region: Region,
    doorbell: HostDoorbell,
    settling: Settling,
    send_arena: Arc<Lock<Arena>>,
    pub(crate) queue_sets: [AtomicPtr<QueueSet>; QUEUE_SETS_MAX],
    /// Held while a queue set is opened.
    pub(crate) opening: Lock<u8>,
    anchors: AnchorPool,
    /// The library's own descriptors of this session, for closing in the child of a fork.
    pub(crate) own_fds: Lock<OwnFds>,
    tokens: AtomicU32,
    pub(crate) dead: AtomicBool,
    /// Another process's: this one is its child.
    pub(crate) foreign: AtomicBool,
    pub(crate) looked_at: AtomicU64,
}

impl Stack {
    /// The session, if there is a live one.
    pub fn attached(engine: EngineIdx) -> Option<&'static Stack> {
        let stack = CURRENT[engine.index()].load(Ordering::Acquire);
        if stack.is_null() {
            return None;
        }
        // SAFETY: needed because the current stack is in an atomic. `CURRENT` holds null or what `adopt` leaked.
        let stack = unsafe { &*stack };
        stack.alive().then_some(stack)
    }

    /// All live sessions.
    pub fn all_attached() -> impl Iterator<Item = &'static Stack> {
        (0..ENGINES_MAX as u8).map(EngineIdx).filter_map(Stack::attached)
    }

    /// Whether the engine is there, as far as known.
    pub fn alive(&self) -> bool {
        !self.dead.load(Ordering::Acquire)
    }

    pub fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    pub fn layout(&self) -> &RegionLayout {
        &self.layout
    }

    pub fn doorbell(&self) -> &HostDoorbell {
        &self.doorbell
    }

    /// How far the engine is, for [`crate::connect_credit`].
    pub(crate) fn heard(&self) -> Heard {
        Heard { looks: self.settling.now(), now_ms: sys::coarse_ms() }
    }

    pub(crate) fn settling(&self) -> &Settling {
        &self.settling
    }

    /// Before a look says "nothing": waits until the engine has finished what it was handed. Whether to look again.
    pub(crate) fn settle(&self) -> bool {
        self.alive() && !self.is_foreign() && self.settling.settle()
    }

    /// Before the first of several looks, see [`crate::settling::Settling::settle_first`].
    pub(crate) fn settle_first(&self) {
        if self.alive() && !self.is_foreign() {
            self.settling.settle_first();
        }
    }

    /// Waits until the engine has finished what it was handed, if there is one that will.
    pub(crate) fn finish(&self) {
        let _ = self.alive() && !self.is_foreign() && self.settling.finish();
    }

    pub fn send_arena(&self) -> Arc<Lock<Arena>> {
        Arc::clone(&self.send_arena)
    }

    pub fn control_fd(&self) -> RawFd {
        self.control.raw_fd()
    }

    /// A number for a command that none of the session's unanswered commands has.
    pub fn next_token(&self) -> u32 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks the engine something, showing it a descriptor.
    pub fn request(&self, request: Request, show: &[BorrowedFd<'_>]) -> Result<Reply, Errno> {
        self.control.request(request, show).map(|(reply, _)| reply)
    }

    /// The same, with the descriptors that come beside the answer.
    pub fn request_fds(&self, request: Request, show: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<Fd>), Errno> {
        self.control.request(request, show)
    }

    /// Keeps a descriptor from the program: it is the library's own until [`Stack::disown_fd`].
    pub fn own_fd(&self, fd: Fd) -> OwnedFd {
        crate::fd_words::mark_internal(fd.raw());
        self.own_fds.lock().push(fd.raw());
        into_std(fd)
    }

    /// The library is about to close a descriptor that it kept.
    pub fn disown_fd(&self, fd: RawFd) {
        self.own_fds.lock().remove(fd);
        crate::fd_words::forget_internal(fd);
    }

    /// No fork happens until what this returns is dropped: for a descriptor of an anchor that must not be in a child that does not
    /// know of it, and would keep the connection from ending.
    pub fn hold_forks(&self) -> impl Drop + use<'_> {
        self.own_fds.lock()
    }

    /// The session's anchors.
    pub fn anchors(&self) -> &AnchorPool {
        &self.anchors
    }

    /// Whether `fd` is one that the library keeps for itself; what the program does to it must not reach the kernel.
    #[inline]
    pub fn is_internal_fd(fd: RawFd) -> bool {
        crate::fd_words::is_internal(fd)
    }

    /// While it is held no queue set is opened, for [`crate::fork`].
    pub fn opening_lock(&self) -> &Lock<u8> {
        &self.opening
    }

    /// A lock that [`crate::fork`] takes before a fork and gives back after, beside that of the anchors.
    pub fn own_fds_lock(&self) -> &Lock<OwnFds> {
        &self.own_fds
    }

    /// Opens a session over `control`.
    pub fn open(engine: EngineIdx, control: Control) -> Result<Stack, Errno> {
        Stack::open_within(engine, control, sys::address_room())
    }

    /// The same, with a region of at most `room` bytes; 0: no limit.
    pub fn open_within(engine: EngineIdx, control: Control, room: u64) -> Result<Stack, Errno> {
        let (reply, fds) = control.request(Request::Hello { room }, &[])?;
        let Reply::Welcome { session, layout } = reply else { return Err(Errno::EPROTO) };
        let [memory, to_read, doorbell, looks, anchor_dir] =
            <[Fd; 5]>::try_from(fds).map_err(|_| Errno::EPROTO)?;
        // Before the first queue set is asked for: with that the engine seals it against what would be mapped later.
        let region = Region::map_for(&layout, [memory, to_read]).map_err(from_os)?;
        let looks = HostLooks::map(&looks).map_err(from_os)?;
        let own_fds = OwnFds::new(vec![control.raw_fd(), doorbell.raw(), anchor_dir.raw()]);
        own_fds.all().for_each(crate::fd_words::mark_internal);
        Ok(Stack {
            engine,
            session: SessionId(session),
            doorbell: HostDoorbell::new(region.clone(), into_std(doorbell)),
            settling: Settling::new(looks),
            send_arena: Arc::new(Lock::new(Arena::new(layout.send_offset(), layout.send_len))),
            layout,
            region,
            control,
            queue_sets: Default::default(),
            opening: Lock::new(0),
            anchors: AnchorPool::new(anchor_dir),
            own_fds: Lock::new(own_fds),
            tokens: AtomicU32::new(1),
            dead: AtomicBool::new(false),
            foreign: AtomicBool::new(false),
            looked_at: AtomicU64::new(0),
        })
    }

    /// One that was opened and is not needed.
    pub fn discard(self) {
        self.own_fds.lock().all().for_each(crate::fd_words::forget_internal);
    }
}

/// The attach lock, for [`crate::fork`].
pub fn attach_lock() -> &'static Lock<Vec<LeftFile>> {
    &ATTACHING.left
}

/// Before a fork: the stacks that are live now are those of [`at_fork`].
pub(crate) fn note_at_fork() {
    let mut current = [None; ENGINES_MAX];
    Stack::all_attached().for_each(|stack| current[stack.engine.index()] = Some(stack));
    *ATTACHING.at_fork.lock() = current;
}

/// The stacks that were live when a fork was prepared.
pub(crate) fn at_fork() -> impl DoubleEndedIterator<Item = &'static Stack> {
    let stacks = *ATTACHING.at_fork.lock();
    stacks.into_iter().flatten()
}

/// For the ring ends, which keep their descriptors for the life of the process and never close them.
pub(crate) fn into_std(fd: Fd) -> OwnedFd {
    // SAFETY: needed because the ring crate's types own a standard descriptor. `into_raw` gives the ownership away.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}
