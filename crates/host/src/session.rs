//! A session with one engine: its control socket, its memory, and what all of the library that works on it shares.
//!
//! Its queue sets are [`crate::stack::Stack`]'s, which knows of sockets; a session does not.

use crate::attach::{Control, engines};
use crate::connect_credit::Heard;
use crate::errno::from_os;
use crate::lock::Lock;
use crate::own_fds::{LeftFile, OwnFds};
use crate::pool::AnchorPool;
use crate::settling::Settling;
use crate::sys::{self, Fd};
use rustix::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::policy::ENGINES_MAX;
use toe_abi::region::RegionLayout;
use toe_base::SessionId;
use toe_base::arena::Arena;
use toe_ring::{HostDoorbell, HostLooks, Region};

/// Least time between two looks at the control socket by threads that never park, in ms.
const LOOK_MS: u64 = 10;

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

    /// The places of as many engines as a process can have, whether it was given them or not.
    pub(crate) fn possible() -> impl Iterator<Item = EngineIdx> {
        (0..ENGINES_MAX as u8).map(EngineIdx)
    }

    /// `None`: there are not so many.
    pub fn new(index: usize) -> Option<EngineIdx> {
        (index < engines().len()).then_some(EngineIdx(index as u8))
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A session.
#[derive(Debug)]
pub struct Session {
    pub engine: EngineIdx,
    pub(crate) control: Control,
    pub id: SessionId,
    pub(crate) layout: RegionLayout,
    pub(crate) region: Region,
    doorbell: HostDoorbell,
    settling: Settling,
    send_arena: Arc<Lock<Arena>>,
    anchors: AnchorPool,
    /// The library's own descriptors of this session, for closing in the child of a fork.
    own_fds: OwnFds,
    tokens: AtomicU32,
    life: Life,
}

/// Whether there is somebody at the other end.
#[derive(Debug, Default)]
struct Life {
    /// The engine has ended or fenced the session.
    dead: AtomicBool,
    /// Another process's: this one is its child.
    foreign: AtomicBool,
    looked_at_ms: AtomicU64,
}

impl Session {
    /// Whether the engine is there, as far as known.
    pub fn alive(&self) -> bool {
        !self.life.dead.load(Ordering::Acquire)
    }

    pub fn is_foreign(&self) -> bool {
        self.life.foreign.load(Ordering::Relaxed)
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

    /// The library's own descriptors of this session.
    pub fn own_fds(&self) -> &OwnFds {
        &self.own_fds
    }

    /// The session's anchors.
    pub fn anchors(&self) -> &AnchorPool {
        &self.anchors
    }

    /// Opens a session over `control`.
    pub fn open(engine: EngineIdx, control: Control) -> Result<Session, Errno> {
        Session::open_within(engine, control, sys::address_room())
    }

    /// The same, with a region of at most `room` bytes; 0: no limit.
    pub fn open_within(engine: EngineIdx, control: Control, room: u64) -> Result<Session, Errno> {
        let (reply, fds) = control.request(Request::Hello { room }, &[])?;
        let Reply::Welcome { session, layout } = reply else { return Err(Errno::EPROTO) };
        let [memory, to_read, doorbell, looks, anchor_dir] =
            <[Fd; 5]>::try_from(fds).map_err(|_| Errno::EPROTO)?;
        // Before the first queue set is asked for: with that the engine seals it against what would be mapped later.
        let region = Region::map_for(&layout, [memory, to_read]).map_err(from_os)?;
        let looks = HostLooks::map(&looks).map_err(from_os)?;
        let own_fds = OwnFds::new(vec![control.raw_fd(), doorbell.raw(), anchor_dir.raw()]);
        own_fds.lock().all().for_each(crate::fd_words::mark_internal);
        Ok(Session {
            engine,
            id: SessionId(session),
            doorbell: HostDoorbell::new(region.clone(), into_std(doorbell)),
            settling: Settling::new(looks),
            send_arena: Arc::new(Lock::new(Arena::new(layout.send_offset(), layout.send_len))),
            layout,
            region,
            control,
            anchors: AnchorPool::new(anchor_dir),
            own_fds,
            tokens: AtomicU32::new(1),
            life: Life::default(),
        })
    }

    /// The engine has ended or fenced the session. Whether that is new.
    pub(crate) fn end(&self) -> bool {
        !self.life.dead.swap(true, Ordering::AcqRel)
    }

    /// In the child of a fork: it is the parent's.
    pub(crate) fn leave_to_parent(&self) -> Vec<LeftFile> {
        self.life.foreign.store(true, Ordering::Release);
        self.own_fds.lock().leave_to_parent()
    }

    /// Whether the engine has gone, where it is time to look: for threads that poll without parking.
    pub(crate) fn is_found_gone(&self) -> bool {
        let now = sys::coarse_ms();
        let before = self.life.looked_at_ms.load(Ordering::Relaxed);
        // A filter may forbid the look; a thread that parks learns of the end by poll.
        let is_due = now.saturating_sub(before) >= LOOK_MS && !sys::is_filtered();
        if !is_due || !self.alive() || self.is_foreign() {
            return false;
        }
        self.life.looked_at_ms.store(now, Ordering::Relaxed);
        self.control.is_gone()
    }

    /// One that was opened and is not needed.
    pub fn discard(self) {
        self.own_fds.lock().all().for_each(crate::fd_words::forget_internal);
    }
}

/// For the ring ends, which keep their descriptors for the life of the process and never close them.
pub(crate) fn into_std(fd: Fd) -> OwnedFd {
    // SAFETY: needed because the ring crate's types own a standard descriptor. `into_raw` gives the ownership away.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}
