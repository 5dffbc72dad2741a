//! Pages of sessions' regions, on their way back to the system.
//!
//! Whoever punches a hole in a region waits for the lock of its inode. The host has that file as well, and a `write` of its to
//! it, from memory whose page it leaves out (userfaultfd, a file that it serves), holds the lock until the page comes. So the
//! engine's thread hands the range to the thread of the session's user, and hears from that when the pages are gone. Meanwhile the
//! engine writes nothing there.
//!
//! What a session was made of goes the same way once nothing refers to it: to unmap a region and to remove the names of its interrupts
//! makes nobody wait, but takes as long as some hundred segments, and a program that makes processes has many sessions.
//!
//! And so do descriptors that a host has, too, wake-ups of hosts that take long ([`super::wake`]), and what is to be done in memory that two
//! programs of the user's share: they can punch holes there, and a page fault in one waits until the punch is over.

use super::wake::{Pace, Wake};
use rustix::fs::SealFlags;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use toe_abi::via::ViaState;
use toe_base::{LaneId, SessionId};
use toe_ring::irq::Signal;
use toe_ring::{EngineDoorbell, EngineQueueSet, EventFd, IrqLine, LaneMemory, Region, ViaMemory};

/// Ranges that wait for one user's thread. What is beyond that stays where it is.
const WAITING_MAX: usize = 512;
/// Those that are dealt with at once.
const AT_ONCE: usize = 64;

/// One range. The region keeps the memory there, and says later whether the session's number still means it.
#[derive(Debug)]
pub struct Pages {
    pub session: SessionId,
    pub region: Region,
    pub offset: u64,
    pub len: u32,
}

/// What has become of one.
#[derive(Debug)]
pub struct GivenBack {
    pub pages: Pages,
    pub is_gone: bool,
}

/// What the thread has to say to the engine's.
#[derive(Debug)]
pub enum Returned {
    Pages(GivenBack),
    /// A lane that one of its programs has left.
    Closed(LaneId),
}

/// All that is left of a session, to be dropped.
#[derive(Debug)]
pub struct Leftovers {
    pub region: Region,
    pub queue_sets: Vec<EngineQueueSet<Interrupt>>,
}

/// What a host has, too, and perhaps waits for. Who closes the last copy of such a descriptor waits for all who wait for it.
#[derive(Debug)]
pub(crate) enum Shared {
    Doorbell(EngineDoorbell),
    Sent(Vec<OwnedFd>),
    /// Memory that was never settled: who unmaps it waits for who punches holes in it.
    Unsettled(Vec<(Region, OwnedFd)>),
    /// Ended, for the program that is left.
    Lane(LaneMemory),
    Via(ViaOver),
}

/// The memory of a connection of virtual interfaces that one of two programs has left.
#[derive(Debug)]
pub(crate) struct ViaOver {
    pub memory: ViaMemory,
    /// It was left by the one that had taken it: then it may have been rejected, and stays so.
    pub by_taker: bool,
    /// By which the other one hears of it.
    pub tells: Option<Arc<IrqLine>>,
}

impl ViaOver {
    fn end(self) {
        if !(self.by_taker && self.memory.state() == ViaState::Rejected) {
            self.memory.advance(ViaState::Closed);
        }
        self.tells.into_iter().for_each(|line| line.signal());
    }
}

/// How many there are is bounded by something else: ranges by a number, a session has one of the leftovers and one doorbell, and of
/// wake-ups see [`Wake`].
#[derive(Debug)]
enum Parcel {
    Pages(Pages),
    Leftovers(Leftovers),
    Close(Shared),
    /// To be looked at: which of them are closed?
    Look(Vec<(LaneId, LaneMemory)>),
    Wake(Wake),
    /// Memory that two sessions have mapped, to be settled.
    Settle(Region, OwnedFd),
}

/// The engine's end: to one user's thread.
#[derive(Clone, Debug)]
pub struct PagesOut {
    parcels: Sender<Parcel>,
    common: Arc<Common>,
}

/// What both ends see.
#[derive(Debug)]
struct Common {
    pages_waiting: AtomicUsize,
    pace: Pace,
    eventfd: Arc<EventFd>,
}

impl PagesOut {
    /// `false`: there is no room, or the thread is gone. It hears of it with the next write to its eventfd.
    pub fn send(&self, pages: Pages) -> bool {
        if self.common.pages_waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            return false;
        }
        self.common.pages_waiting.fetch_add(1, Ordering::Relaxed);
        self.parcels.send(Parcel::Pages(pages)).is_ok()
    }

    /// `false`: the thread is gone, and they were dropped here.
    pub fn leave(&self, leftovers: Leftovers) -> bool {
        self.parcels.send(Parcel::Leftovers(leftovers)).is_ok()
    }

    /// The thread closes them. It is there as long as the connection of those hosts is.
    pub(crate) fn close(&self, shared: Shared) {
        if let Err(SendError(parcel)) = self.parcels.send(Parcel::Close(shared)) {
            // A descriptor less is better than to stand still.
            std::mem::forget(parcel);
        }
    }

    /// Makes a wake-up of one of the user's hosts `now`, with `what` it takes, or has his thread make it (`None`).
    pub(crate) fn wake<T, R>(
        &self,
        what: T,
        now: impl FnOnce(&T) -> R,
        later: impl FnOnce(T) -> Wake,
    ) -> Option<(R, T)> {
        if let Some(made) = self.common.pace.make(|| now(&what)) {
            return Some((made, what));
        }
        if let Err(SendError(parcel)) = self.parcels.send(Parcel::Wake(later(what))) {
            self.common.pace.forget_handed();
            std::mem::forget(parcel);
        }
        // Own eventfds do not fail.
        let _ = self.eventfd().signal();
        None
    }

    /// Wake-ups that the thread has not made yet.
    pub(crate) fn handed(&self) -> u32 {
        self.common.pace.handed()
    }

    /// `false`: the thread is gone, and says nothing of them.
    pub(crate) fn look_at(&self, lanes: Vec<(LaneId, LaneMemory)>) -> bool {
        self.parcels.send(Parcel::Look(lanes)).is_ok()
    }

    /// `false`: the thread is gone, and it is never settled.
    pub fn settle(&self, region: Region, file: OwnedFd) -> bool {
        self.parcels.send(Parcel::Settle(region, file)).is_ok()
    }

    /// The user's eventfd.
    pub fn eventfd(&self) -> &Arc<EventFd> {
        &self.common.eventfd
    }
}

/// The interrupt of a queue set. Where that takes long its user's thread makes it.
#[derive(Debug)]
pub struct Interrupt {
    line: Arc<IrqLine>,
    user: PagesOut,
}

impl Interrupt {
    pub(crate) fn new(line: IrqLine, user: &PagesOut) -> Interrupt {
        Interrupt { line: Arc::new(line), user: user.clone() }
    }

    pub(crate) fn line(&self) -> &Arc<IrqLine> {
        &self.line
    }

    /// A sending end for another session, which wakes this host itself (see [`toe_ring::channel`]).
    pub fn another(&self) -> rustix::io::Result<OwnedFd> {
        self.line.another()
    }
}

impl Signal for Interrupt {
    fn signal(&self) {
        self.user.wake((), |()| self.line.signal(), |()| Wake::Interrupt(Arc::clone(&self.line)));
    }
}

/// The end of the user's thread.
#[derive(Debug)]
pub(crate) struct PagesIn {
    parcels: Receiver<Parcel>,
    out: PagesOut,
    reports: Reports,
}

/// The last reports that the user's programs were sent, and how long each is. Whoever keeps more of them finds that the older ones are empty: their
/// pages are charged to the engine's cgroup.
#[derive(Debug, Default)]
struct Reports(VecDeque<(OwnedFd, u64)>);

const REPORTS_MAX: usize = 8;
const REPORTS_LEN_MAX: u64 = 8 << 20;

impl Reports {
    /// Closes what a host was sent, but for reports: memory that nobody may write, and that can be made shorter.
    fn keep(&mut self, sent: Vec<OwnedFd>) {
        for fd in sent {
            let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
            let len = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_size as u64);
            if seals.contains(SealFlags::WRITE) && !seals.contains(SealFlags::SHRINK) {
                self.0.push_back((fd, len));
            }
        }
        let len = |reports: &Reports| reports.0.iter().map(|(_, len)| len).sum::<u64>();
        while self.0.len() > REPORTS_MAX || self.0.len() > 1 && len(self) > REPORTS_LEN_MAX {
            self.empty_oldest();
        }
    }

    fn empty_oldest(&mut self) {
        if let Some((report, _)) = self.0.pop_front() {
            // If it cannot be it stays as it is.
            let _ = rustix::fs::ftruncate(report, 0);
        }
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        while !self.0.is_empty() {
            self.empty_oldest();
        }
    }
}

impl PagesIn {
    /// `eventfd` wakes the thread; `handed` counts the wake-ups that it is to make.
    pub(crate) fn new(eventfd: &Arc<EventFd>, handed: &Arc<AtomicU64>) -> PagesIn {
        let (sender, parcels) = channel();
        let (pages_waiting, pace) = (AtomicUsize::new(0), Pace::new(handed));
        let common = Arc::new(Common { pages_waiting, pace, eventfd: Arc::clone(eventfd) });
        PagesIn { parcels, out: PagesOut { parcels: sender, common }, reports: Reports::default() }
    }

    /// For the engine.
    pub(crate) fn out(&self) -> PagesOut {
        self.out.clone()
    }

    /// Does some of what waits: pages go back to the system, which takes as long as the host likes.
    pub(crate) fn give_back(&mut self) -> Vec<Returned> {
        let (mut returned, mut taken) = (Vec::new(), 0);
        while taken < AT_ONCE
            && let Ok(parcel) = self.parcels.try_recv()
        {
            taken += 1;
            self.take(parcel, &mut returned);
        }
        if taken == AT_ONCE {
            // The rest after what the user's programs have asked.
            let _ = self.out.eventfd().signal();
        }
        returned
    }

    /// For a thread that does nothing else, until the engine ends.
    pub(crate) fn run(mut self) {
        while let Ok(parcel) = self.parcels.recv() {
            self.take(parcel, &mut Vec::new());
        }
    }

    /// The thread ends: what was handed to it is done yet, or a program would not hear that another one has left.
    pub(crate) fn finish(mut self) {
        while let Ok(parcel) = self.parcels.try_recv() {
            self.take(parcel, &mut Vec::new());
        }
    }

    fn take(&mut self, parcel: Parcel, returned: &mut Vec<Returned>) {
        match parcel {
            Parcel::Pages(pages) => {
                self.out.common.pages_waiting.fetch_sub(1, Ordering::Relaxed);
                let is_gone = pages.region.fill_hole(pages.offset, u64::from(pages.len)).is_ok();
                returned.push(Returned::Pages(GivenBack { pages, is_gone }));
            }
            Parcel::Look(lanes) => {
                let closed = lanes.into_iter().filter(|(_, memory)| memory.is_closed());
                returned.extend(closed.map(|(lane, _)| Returned::Closed(lane)));
            }
            Parcel::Close(Shared::Unsettled(memory)) => drop(memory),
            Parcel::Close(Shared::Lane(memory)) => memory.close(),
            Parcel::Close(Shared::Via(over)) => over.end(),
            Parcel::Leftovers(leftovers) => drop(leftovers),
            // What cannot be settled stays withheld.
            Parcel::Settle(region, file) => _ = region.settle(file),
            Parcel::Close(Shared::Doorbell(doorbell)) => drop(doorbell),
            Parcel::Close(Shared::Sent(fds)) => self.reports.keep(fds),
            Parcel::Wake(wake) => self.reports.keep(self.out.common.pace.make_handed(wake)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_abi::lane::RING_LEN_MIN;

    /// The last connection of a user in a network namespace ends; the other program is in another one, and has a thread of its own.
    #[test]
    fn what_was_handed_to_a_thread_is_done_when_it_ends() {
        let eventfd = Arc::new(EventFd::new().expect("an eventfd"));
        let end = PagesIn::new(&eventfd, &Arc::default());
        let (lane, _file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
        let (memory, _file) = ViaMemory::create().expect("memory");
        let out = end.out();
        out.close(Shared::Lane(lane.clone()));
        out.close(Shared::Via(ViaOver { memory: memory.clone(), by_taker: false, tells: None }));
        end.finish();
        assert!(lane.is_closed());
        assert_eq!(memory.state(), ViaState::Closed);
    }
}
