//! The process's sessions with engines: one [`Stack`] for each engine, made at first use, replaced when its engine has
//! ended.
//!
//! Owns the control socket, the memory region and the queue sets. A stack is never freed: sockets
//! and parked threads refer to it, and it is one a lifetime of the engine.

use crate::anchor::AnchorPool;
use crate::attach::{Control, engines, is_hangup};
use crate::connect_credit::Heard;
use crate::errno::{EKEYREJECTED, from_os};
use crate::lock::Lock;
use crate::own_fds::{self, LeftFile, OwnCopy, OwnFds};
use crate::queue::QueueSet;
use crate::settling::Settling;
use crate::sys::{self, Fd};
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::SessionId;
use toe_base::arena::Arena;
use toe_base::limits::QUEUE_SETS_MAX;
use toe_ring::{HostDoorbell, HostLooks, HostQueueSet, Region};

/// Least time between two attempts to find an engine, in ms.
const RETRY_MS: u64 = 100;
/// The same where it was found and did not answer: asking takes as long as is waited for it.
const RETRY_SILENT_MS: u64 = 5_000;
/// Least time between two looks at the control socket by threads that never park, in ms.
const LOOK_MS: u64 = 10;

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
static CURRENT: [AtomicPtr<Stack>; ENGINES_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; ENGINES_MAX];
/// Held while attaching. What the child of a fork has of its parent's files until it attaches.
static ATTACHING: Lock<Vec<LeftFile>> = Lock::new(Vec::new());
/// When the last attempt to attach failed, by [`sys::coarse_ms`], and with which errno in the lowest 16 bits; 0: never.
static FAILED: [AtomicU64; ENGINES_MAX] = [const { AtomicU64::new(0) }; ENGINES_MAX];

/// A session.
#[derive(Debug)]
pub struct Stack {
    pub engine: EngineIdx,
    control: Control,
    pub session: SessionId,
    layout: RegionLayout,
    region: Region,
    doorbell: HostDoorbell,
    settling: Settling,
    send_arena: Arc<Lock<Arena>>,
    queue_sets: [AtomicPtr<QueueSet>; QUEUE_SETS_MAX],
    /// Held while a queue set is opened.
    opening: Lock<u8>,
    anchors: AnchorPool,
    /// The library's own descriptors of this session, for closing in the child of a fork.
    own_fds: Lock<OwnFds>,
    tokens: AtomicU32,
    dead: AtomicBool,
    /// Another process's: this one is its child.
    foreign: AtomicBool,
    looked_at: AtomicU64,
}

/// The queue sets of a thread, one for each engine; their owner counts go down when the thread ends.
#[derive(Debug)]
struct Mine(Chosen);

type Chosen = [Cell<Option<&'static QueueSet>>; ENGINES_MAX];

impl Drop for Mine {
    fn drop(&mut self) {
        for queue in self.0.iter().filter_map(Cell::take) {
            queue.owners.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static MINE: Mine = const { Mine([const { Cell::new(None) }; ENGINES_MAX]) };
    /// The same without a destructor, for the fast path and for what runs after the thread's destructors.
    static CHOSEN: Chosen = const { [const { Cell::new(None) }; ENGINES_MAX] };
}

impl Stack {
    /// The session, attaching on first use and again after the engine has ended. `None`: there is no engine now, or
    /// it refuses.
    pub fn get(engine: EngineIdx) -> Option<&'static Stack> {
        Stack::get_or_why(engine).ok()
    }

    /// The same, with the reason, which may be that of the last attempt: an engine that is not there is not looked for each
    /// time. As of [`Stack::attach`].
    pub fn get_or_why(engine: EngineIdx) -> Result<&'static Stack, Errno> {
        if let Some(stack) = Stack::attached(engine) {
            return Ok(stack);
        }
        not_now(engine).and_then(|()| Stack::attach(engine))
    }

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

    /// Like [`Stack::get`], at once and with the reason. ECONNREFUSED: no engine. EACCES: it does not let this
    /// user attach. EKEYREJECTED: it is a stranger's.
    /// EPROTO: it speaks another version of the interface.
    pub fn attach(engine: EngineIdx) -> Result<&'static Stack, Errno> {
        Stack::attach_by(engine, Stack::open)
    }

    /// The same, with a region of at most `room` bytes. ENOMEM: the engine makes none so small.
    pub fn attach_within(engine: EngineIdx, room: u64) -> Result<&'static Stack, Errno> {
        Stack::attach_by(engine, |engine, control| Stack::open_within(engine, control, room))
    }

    /// `open` opens a session.
    fn attach_by(
        engine: EngineIdx,
        open: impl Fn(EngineIdx, Control) -> Result<Stack, Errno>,
    ) -> Result<&'static Stack, Errno> {
        let failed_before = FAILED[engine.index()].load(Ordering::Relaxed);
        let mut attaching = ATTACHING.lock();
        if let Some(stack) = Stack::attached(engine) {
            return Ok(stack);
        }
        // What another thread has found out meanwhile.
        let failed = FAILED[engine.index()].load(Ordering::Relaxed);
        if failed != failed_before && failed != 0 {
            return Err(Errno(failed as u16));
        }
        let mut outcome = Err(Errno::ECONNREFUSED);
        for path in engines().get(engine.index()).into_iter().flatten() {
            let tried = Control::connect(path).and_then(|control| open(engine, control));
            match tried {
                Err(Errno::ECONNREFUSED) => {}
                // Who puts himself in the way of another's engine does not keep anybody from it.
                Err(EKEYREJECTED) => outcome = tried,
                _ => {
                    outcome = tried;
                    break;
                }
            }
        }
        match outcome {
            Ok(stack) => {
                FAILED[engine.index()].store(0, Ordering::Relaxed);
                crate::fork::install_handlers();
                let stack = Stack::adopt(stack);
                own_fds::close_left(stack, std::mem::take(&mut attaching));
                Ok(stack)
            }
            Err(errno) => {
                let failed = sys::coarse_ms() << 16 | u64::from(errno.0);
                FAILED[engine.index()].store(failed, Ordering::Relaxed);
                Err(errno)
            }
        }
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

    /// Makes `stack` the process's.
    pub fn adopt(stack: Stack) -> &'static Stack {
        let stack: &'static Stack = Box::leak(Box::new(stack));
        CURRENT[stack.engine.index()].store(std::ptr::from_ref(stack).cast_mut(), Ordering::Release);
        // The engine looks at no region before its first queue set, not even for who has datagrams alone. What cannot be had now is asked
        // for again when it is needed.
        let _ = stack.choose_queue();
        stack
    }

    /// Ends the sessions: the engines end all their flows.
    pub fn detach() {
        for stack in Stack::all_attached() {
            let _ = rustix::net::shutdown(stack.control.fd(), rustix::net::Shutdown::Both);
            stack.on_death();
        }
    }

    /// Whether the engine is there, as far as known.
    pub fn alive(&self) -> bool {
        !self.dead.load(Ordering::Acquire)
    }

    /// Looks whether the engine is there, unless that was done a moment ago: for threads that poll without parking.
    pub fn look(&'static self) {
        let now = sys::coarse_ms();
        let before = self.looked_at.load(Ordering::Relaxed);
        // A filter may forbid the look; a thread that parks learns of the end by poll.
        let is_due = now.saturating_sub(before) >= LOOK_MS && !crate::sys::is_filtered();
        if !is_due || !self.alive() || self.is_foreign() {
            return;
        }
        self.looked_at.store(now, Ordering::Relaxed);
        if self.control.is_gone() {
            self.on_death();
        }
    }

    /// A thread that waited on the control socket was woken by this of it.
    pub fn on_control(&'static self, revents: i16) {
        // select(2) cannot tell the end from an answer for which another thread waits. Behind a filter there are no answers.
        let is_readable = revents & libc::POLLIN != 0;
        if is_hangup(revents) || is_readable && (crate::sys::is_filtered() || self.control.is_gone()) {
            self.on_death();
        }
    }

    /// The engine has ended or fenced the session: every socket of it is reset.
    pub fn on_death(&'static self) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        for queue in self.queue_sets() {
            queue.on_death();
        }
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

    /// A copy of a descriptor of the program's, for as long as the library needs one.
    pub fn copy_of(&'static self, fd: RawFd) -> Result<OwnCopy, Errno> {
        self.own_copy(false, || sys::dup_to_high(sys::borrow(fd)))
    }

    /// The same of a file on a disk.
    pub fn copy_of_file(&'static self, fd: RawFd) -> Result<OwnCopy, Errno> {
        self.own_copy(true, || sys::dup_to_high(sys::borrow(fd)))
    }

    /// Another descriptor of such a file, that the library has opened.
    pub fn keep_file(&'static self, fd: Fd) -> Result<OwnCopy, Errno> {
        self.own_copy(true, || Ok(fd))
    }

    /// The same, at whatever number there is, which may be one that the program could have got.
    pub fn copy_anywhere(&'static self, fd: RawFd) -> Result<OwnCopy, Errno> {
        self.own_copy(false, || sys::dup_anywhere(sys::borrow(fd)))
    }

    /// A descriptor that was kept otherwise until now.
    pub fn keep_copy(&'static self, fd: Fd) -> Result<OwnCopy, Errno> {
        self.own_copy(false, || Ok(fd))
    }

    fn own_copy(
        &'static self,
        is_file: bool,
        make: impl FnOnce() -> Result<Fd, Errno>,
    ) -> Result<OwnCopy, Errno> {
        let mut own = self.own_fds.lock();
        let copy = make()?;
        Ok(OwnCopy::new(self, &mut own, copy, is_file))
    }

    /// No fork happens until what this returns is dropped: for a descriptor of an anchor that must not be in a child that does not
    /// know of it, and would keep the connection from ending.
    pub fn hold_forks(&self) -> impl Drop + use<'_> {
        self.own_fds.lock()
    }

    /// The queue sets that are open.
    pub fn queue_sets(&self) -> impl Iterator<Item = &'static QueueSet> {
        self.queue_sets.iter().filter_map(|slot| {
            let queue = slot.load(Ordering::Acquire);
            // SAFETY: needed because queue sets are in atomics. A slot holds null or what `open_queue_set` leaked.
            (!queue.is_null()).then(|| unsafe { &*queue })
        })
    }

    /// The calling thread's queue set: its own while there are enough, one that it shares otherwise.
    pub fn my_queue(&'static self) -> Result<&'static QueueSet, Errno> {
        let engine = self.engine.index();
        if let Some(queue) = CHOSEN.try_with(|chosen| chosen[engine].get()).ok().flatten()
            && std::ptr::eq(queue.stack, self)
        {
            return Ok(queue);
        }
        let queue = self.choose_queue()?;
        queue.owners.fetch_add(1, Ordering::Relaxed);
        let before = MINE.try_with(|mine| mine.0[engine].replace(Some(queue)));
        if let Ok(Some(before)) = before {
            before.owners.fetch_sub(1, Ordering::Relaxed);
        }
        let _ = CHOSEN.try_with(|chosen| chosen[engine].set(Some(queue)));
        Ok(queue)
    }

    fn choose_queue(&'static self) -> Result<&'static QueueSet, Errno> {
        let mut opened = self.opening.lock();
        let owners = |queue: &&'static QueueSet| queue.owners.load(Ordering::Relaxed);
        let least = self.queue_sets().min_by_key(owners);
        let most = usize::min(self.layout.queue_sets as usize, QUEUE_SETS_MAX);
        match least {
            Some(queue) if owners(&queue) == 0 || usize::from(*opened) >= most => Ok(queue),
            _ => {
                let queue = self.open_queue_set();
                *opened += u8::from(queue.is_ok());
                // An engine that gives no more leaves those that there are.
                queue.or_else(|errno| least.ok_or(errno))
            }
        }
    }

    fn open_queue_set(&'static self) -> Result<&'static QueueSet, Errno> {
        let (reply, fds) = self.control.request(Request::AddQueueSet, &[])?;
        let Reply::QueueSet { index } = reply else { return Err(Errno::EPROTO) };
        let slot = self.queue_sets.get(usize::from(index)).ok_or(Errno::EPROTO)?;
        let [irq] = <[Fd; 1]>::try_from(fds).map_err(|_| Errno::EPROTO)?;
        let irq_fd = irq.raw();
        let ring =
            HostQueueSet::new(&self.region, &self.layout, index, into_std(irq)).map_err(|_| Errno::EPROTO)?;
        crate::fd_words::mark_internal(irq_fd);
        self.own_fds.lock().push(irq_fd);
        let queue: &'static QueueSet = Box::leak(Box::new(QueueSet::new(self, index, irq_fd, ring)));
        slot.store(std::ptr::from_ref(queue).cast_mut(), Ordering::Release);
        Ok(queue)
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

    /// In the child of a fork: the session is the parent's. Its descriptors are closed here, so that the parent's
    /// death and closes count, as far as that waits for nothing; its memory is unmapped.
    #[cold]
    pub fn abandon_in_child(&self) {
        self.foreign.store(true, Ordering::Release);
        let engine = self.engine.index();
        CURRENT[engine].store(std::ptr::null_mut(), Ordering::Release);
        FAILED[engine].store(0, Ordering::Relaxed);
        ATTACHING.lock().extend(self.own_fds.lock().leave_to_parent());
        let _ = MINE.try_with(|mine| mine.0[engine].take());
        let _ = CHOSEN.try_with(|chosen| chosen[engine].set(None));
        for queue in self.queue_sets() {
            for channel in &queue.lock().io.channels {
                // SAFETY: needed to give the memory back. The child of a fork has one thread, and it is here.
                unsafe { channel.end.memory().region().abandon() };
            }
        }
        // SAFETY: as above.
        unsafe { self.region.abandon() };
    }
}

/// The reason why there is no session, as of a moment ago.
fn not_now(engine: EngineIdx) -> Result<(), Errno> {
    let failed = FAILED[engine.index()].load(Ordering::Relaxed);
    let retry_ms = if failed as u16 == Errno::ETIMEDOUT.0 { RETRY_SILENT_MS } else { RETRY_MS };
    let is_fresh = failed != 0 && sys::coarse_ms().saturating_sub(failed >> 16) < retry_ms;
    if is_fresh { Err(Errno(failed as u16)) } else { Ok(()) }
}

/// The attach lock, for [`crate::fork`].
pub fn attach_lock() -> &'static Lock<Vec<LeftFile>> {
    &ATTACHING
}

/// For the ring ends, which keep their descriptors for the life of the process and never close them.
fn into_std(fd: Fd) -> OwnedFd {
    // SAFETY: needed because the ring crate's types own a standard descriptor. `into_raw` gives the ownership away.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}
