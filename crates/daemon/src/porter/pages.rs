//! Pages of sessions' regions, on their way back to the system.
//!
//! Whoever punches a hole in a region waits for the lock of its inode. The host has that file as well, and a `write` of its to
//! it, from memory whose page it leaves out (userfaultfd, a file that it serves), holds the lock until the page comes. So the
//! engine's thread hands the range to the thread of the session's user, and hears from that when the pages are gone. Meanwhile the
//! engine writes nothing there.
//!
//! What a session was made of goes the same way once nothing refers to it: to unmap a region and to remove the names of its interrupts
//! makes nobody wait, but takes as long as some hundred segments, and a program that makes processes has many sessions.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use toe_base::SessionId;
use toe_ring::{EngineQueueSet, EventFd, Region};

/// Ranges and leftovers that wait for one user's thread. What is beyond that stays where it is.
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

/// All that is left of a session, to be dropped.
#[derive(Debug)]
pub struct Leftovers {
    pub region: Region,
    pub queue_sets: Vec<EngineQueueSet>,
}

#[derive(Debug)]
enum Parcel {
    Pages(Pages),
    Leftovers(Leftovers),
    /// Memory that two sessions have mapped, to be settled.
    Settle(Region, OwnedFd),
}

/// The engine's end: to one user's thread.
#[derive(Clone, Debug)]
pub struct PagesOut {
    parcels: SyncSender<Parcel>,
    bell: Arc<EventFd>,
}

impl PagesOut {
    /// `false`: there is no room, or the thread is gone. It hears of it with the next ring of its bell.
    pub fn send(&self, pages: Pages) -> bool {
        self.parcels.try_send(Parcel::Pages(pages)).is_ok()
    }

    /// `false`: there is no room, or the thread is gone, and they were dropped here.
    pub fn leave(&self, leftovers: Leftovers) -> bool {
        self.parcels.try_send(Parcel::Leftovers(leftovers)).is_ok()
    }

    /// `false`: there is no room, or the thread is gone, and it is never settled.
    pub fn settle(&self, region: Region, file: OwnedFd) -> bool {
        self.parcels.try_send(Parcel::Settle(region, file)).is_ok()
    }

    /// The user's bell.
    pub fn bell(&self) -> &Arc<EventFd> {
        &self.bell
    }
}

/// The end of the user's thread.
#[derive(Debug)]
pub(super) struct PagesIn {
    parcels: Receiver<Parcel>,
    out: PagesOut,
}

impl PagesIn {
    /// `bell` wakes the thread.
    pub(super) fn new(bell: &Arc<EventFd>) -> PagesIn {
        let (sender, parcels) = sync_channel(WAITING_MAX);
        PagesIn { parcels, out: PagesOut { parcels: sender, bell: Arc::clone(bell) } }
    }

    /// For the engine.
    pub(super) fn out(&self) -> PagesOut {
        self.out.clone()
    }

    /// Gives some of what waits back to the system, which takes as long as the host likes.
    pub(super) fn give_back(&self) -> Vec<GivenBack> {
        let (mut given, mut taken) = (Vec::new(), 0);
        for parcel in self.parcels.try_iter().take(AT_ONCE) {
            taken += 1;
            match parcel {
                Parcel::Pages(pages) => {
                    let is_gone = pages.region.fill_hole(pages.offset, u64::from(pages.len)).is_ok();
                    given.push(GivenBack { pages, is_gone });
                }
                Parcel::Leftovers(leftovers) => drop(leftovers),
                // What cannot be stays withheld.
                Parcel::Settle(region, file) => _ = region.settle(file),
            }
        }
        if taken == AT_ONCE {
            // The rest after what the user's programs have asked.
            let _ = self.out.bell.signal();
        }
        given
    }
}
