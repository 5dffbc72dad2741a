//! Where directories of anchors are: each user's thread of the control server has a file system in memory of its own.
//!
//! Whoever has a directory open can keep its lock for as long as he likes (he lists it into memory that comes late), and root of a
//! container can open any directory of the file system that he got a descriptor of. So nobody shares one with others, and the lock
//! of one that is kept keeps up its own user's thread.
//!
//! They are made at the start, since that takes a right that the engine gives up. A room that its user has left is used again: for
//! him first, since programs of his may still have descriptors that lead there, and one that root of a container had only
//! for roots of containers. An engine without the right has a directory for each instead, below one that only its user gets through.
//!
//! Each has an inotify instance as long as there are some (fs.inotify.max_user_instances); the rest shares one. None is closed, as
//! closing waits for a grace period of the kernel's. Used by [`super::keeper`].

use super::SessionDirId;
use crate::anchor_root::AnchorRoot;
use rustix::fs::inotify::{self, CreateFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use toe_base::{Cred, NetNs};

/// The place of an inotify instance.
pub(crate) type ReportsId = u32;
/// The instance of those rooms for which there is no other.
pub(super) const SHARED: ReportsId = 0;

/// An inotify instance. Users' threads say what it watches, and the engine's reads what it reports.
#[derive(Debug)]
pub struct Reports {
    pub(super) id: ReportsId,
    pub(super) inotify: OwnedFd,
}

impl Reports {
    fn open(id: ReportsId) -> std::io::Result<Arc<Reports>> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Arc::new(Reports { id, inotify }))
    }
}

/// One file system.
#[derive(Debug)]
pub(super) struct Room {
    dir: OwnedFd,
    reports: OnceLock<Arc<Reports>>,
}

/// Who has a room.
#[derive(Clone, Copy, Debug, Default)]
struct Occupancy {
    /// Threads that have it: one, but for the last room.
    threads: usize,
    /// Who had it last.
    last: Option<Cred>,
}

/// All rooms.
#[derive(Debug)]
pub struct Rooms {
    rooms: Vec<Room>,
    occupancies: Mutex<Vec<Occupancy>>,
    shared: Arc<Reports>,
    session_dirs_made: AtomicU64,
    /// The engine's own network namespace: root of another is root of a container.
    netns: NetNs,
}

impl Rooms {
    /// So many, below `root` unless each is mounted by itself.
    pub(super) fn make(root: &AnchorRoot, count: usize, netns: NetNs) -> std::io::Result<Rooms> {
        let dirs = root.divide(count)?;
        let occupancies = Mutex::new(vec![Occupancy::default(); dirs.len()]);
        let rooms = dirs.into_iter().map(|dir| Room { dir, reports: OnceLock::new() }).collect();
        let shared = Reports::open(SHARED)?;
        Ok(Rooms { rooms, occupancies, shared, session_dirs_made: AtomicU64::new(0), netns })
    }

    pub(super) fn dirs(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rooms.iter().map(|room| room.dir.as_fd())
    }

    fn occupancies(&self) -> MutexGuard<'_, Vec<Occupancy>> {
        self.occupancies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A room for a thread, until that is dropped.
    pub(super) fn take(self: &Arc<Rooms>, who: Cred) -> Lodging {
        let mut occupancies = self.occupancies();
        let index = choose(&occupancies, who, self.netns);
        if let Some(tenancy) = occupancies.get_mut(index) {
            tenancy.threads += 1;
            tenancy.last = Some(who);
        }
        drop(occupancies);
        Lodging { rooms: Arc::clone(self), index }
    }
}

/// The place of the room that `who` gets.
fn choose(occupancies: &[Occupancy], who: Cred, own: NetNs) -> usize {
    let is_contained_root = |cred: Cred| cred.uid == 0 && cred.netns != own;
    let free = |is_right: &dyn Fn(Option<Cred>) -> bool| {
        occupancies.iter().position(|tenancy| tenancy.threads == 0 && is_right(tenancy.last))
    };
    let of_his = free(&|last| last == Some(who));
    let unused = || free(&|last| last.is_none());
    let of_his_kind = || free(&|last| last.is_some_and(|l| is_contained_root(l) == is_contained_root(who)));
    let other =
        || if is_contained_root(who) { of_his_kind().or_else(unused) } else { unused().or_else(of_his_kind) };
    of_his.or_else(other).unwrap_or(occupancies.len().saturating_sub(1))
}

/// A thread's room.
#[derive(Debug)]
pub(super) struct Lodging {
    rooms: Arc<Rooms>,
    index: usize,
}

impl Lodging {
    fn room(&self) -> &Room {
        &self.rooms.rooms[self.index]
    }

    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.room().dir.as_fd()
    }

    /// A path that leads to `name` in it, for calls that take no directory's descriptor.
    pub(super) fn path_to(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.room().dir.as_raw_fd())
    }

    pub(super) fn reports(&self) -> &Arc<Reports> {
        // Refused by fs.inotify.max_user_instances.
        let open = || Reports::open(self.index as u32 + 1).unwrap_or_else(|_| Arc::clone(&self.rooms.shared));
        self.room().reports.get_or_init(open)
    }

    /// A name for a directory that no other has had.
    pub(super) fn next_session_dir(&self) -> SessionDirId {
        self.rooms.session_dirs_made.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Lodging {
    fn drop(&mut self) {
        if let Some(tenancy) = self.rooms.occupancies().get_mut(self.index) {
            tenancy.threads -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: NetNs = NetNs(1);

    fn cred(uid: u32, netns: u64) -> Cred {
        Cred { uid, netns: NetNs(netns) }
    }

    #[test]
    fn who_comes_back_gets_his_room_and_nobody_one_that_root_of_a_container_had() {
        let mut occupancies = vec![Occupancy::default(); 4];
        let mut come = |who: Cred| {
            let index = choose(&occupancies, who, OWN);
            occupancies[index].last = Some(who);
            index
        };
        assert_eq!([come(cred(7, 1)), come(cred(8, 1)), come(cred(0, 2)), come(cred(7, 1))], [0, 1, 2, 0]);
        assert_eq!(come(cred(0, 3)), 2, "the next root of a container");
        assert_eq!(come(cred(0, 1)), 3, "root outside");
        assert_eq!(come(cred(9, 1)), 0, "there is no other");
        occupancies.iter_mut().for_each(|tenancy| tenancy.threads = 1);
        assert_eq!(choose(&occupancies, cred(10, 1), OWN), 3, "the last one is for all that come then");
    }
}
