//! Pages of sessions' regions, on their way back to the system.
//!
//! Whoever punches a hole in a region waits for the lock of its inode. The host has that file as well, and a `write` of its to
//! it, from memory whose page it leaves out (userfaultfd, a file that it serves), holds the lock until the page comes. So the
//! engine's thread hands the range to the thread of the session's user, and hears from that when the pages are gone. Meanwhile the
//! engine writes nothing there.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use toe_base::SessionId;
use toe_ring::{EventFd, Region};

/// Ranges that wait for one user's thread. What is beyond that stays where it is.
const WAITING_MAX: usize = 512;
/// Ranges that are reported at once.
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

/// The engine's end: to one user's thread.
#[derive(Clone, Debug)]
pub struct PagesOut {
    pages: SyncSender<Pages>,
    bell: Arc<EventFd>,
}

impl PagesOut {
    /// `false`: there is no room, or the thread is gone. It hears of it with the next ring of its bell.
    pub fn send(&self, pages: Pages) -> bool {
        self.pages.try_send(pages).is_ok()
    }

    /// The user's bell.
    pub fn bell(&self) -> &Arc<EventFd> {
        &self.bell
    }
}

/// The end of the user's thread.
#[derive(Debug)]
pub(super) struct PagesIn {
    pages: Receiver<Pages>,
    out: PagesOut,
}

impl PagesIn {
    /// `bell` wakes the thread.
    pub(super) fn new(bell: &Arc<EventFd>) -> PagesIn {
        let (sender, pages) = sync_channel(WAITING_MAX);
        PagesIn { pages, out: PagesOut { pages: sender, bell: Arc::clone(bell) } }
    }

    /// For the engine.
    pub(super) fn out(&self) -> PagesOut {
        self.out.clone()
    }

    /// Gives some of what waits back to the system, which takes as long as the host likes.
    pub(super) fn give_back(&self) -> Vec<GivenBack> {
        let punch = |pages: Pages| {
            let is_gone = pages.region.fill_hole(pages.offset, u64::from(pages.len)).is_ok();
            GivenBack { pages, is_gone }
        };
        let given: Vec<_> = self.pages.try_iter().take(AT_ONCE).map(punch).collect();
        if given.len() == AT_ONCE {
            // The rest after what the user's programs have asked.
            let _ = self.out.bell.signal();
        }
        given
    }
}
