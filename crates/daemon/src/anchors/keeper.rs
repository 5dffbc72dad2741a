//! The part of a user's thread that makes, watches and removes directories: whatever takes a lock that a program may keep.
//!
//! The engine's thread sends [`Order`]s, which wait in a channel without a bound of its own: there is at most one for
//! each directory that was made; a new session's comes behind all orders, and what a session has is counted against its user. A thread
//! that stands still makes none. What it finds out comes back as [`KeeperEvent`], of which there is one for each order at most.
//!
//! The thread counts the names in each session directory by itself, and removes the session directory behind the last of them. It lives until then.
//!
//! Owned by the control server's thread of a user (`control_server::user`).

use super::room::{Lodging, Reports, Rooms};
use super::{Identity, SessionDirId, identity_at};
use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use toe_base::{AnchorHandle, Cred};
use toe_ring::EventFd;

/// Whoever has a descriptor of a session's directory may open what is in it, and nothing else.
const SESSION_DIR_MODE: Mode = Mode::from_raw_mode(0o711);
const ANCHOR_MODE: Mode = Mode::from_raw_mode(0o555);
/// Orders carried out before the user's programs get their turn.
const ORDERS_PER_ROUND: usize = 64;

/// What the engine's thread wants of a directory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// The anchor is to be watched by itself, and then loses its name.
    Unname { session_dir: SessionDirId, handle: AnchorHandle },
    /// The anchor stands for nothing: it is removed.
    Discard { session_dir: SessionDirId, handle: AnchorHandle },
    /// The session is gone, or has not come about: its session directory goes once there are no names in it.
    Leave { session_dir: SessionDirId },
}

/// What a user's thread tells the engine's.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeeperEvent {
    /// Of [`Order::Unname`]: told before the name goes, so it is there before this watch reports anything.
    Watched { session_dir: SessionDirId, handle: AnchorHandle, watch: i32 },
    /// It cannot be watched (fs.inotify.max_user_watches), and keeps its name.
    Unwatched { session_dir: SessionDirId, handle: AnchorHandle },
}

/// The way to the thread that keeps a session directory.
#[derive(Clone, Debug)]
pub struct Way {
    orders: Sender<Order>,
    eventfd: Arc<EventFd>,
}

impl Way {
    pub(super) fn send(&self, order: Order) {
        // Without a thread there is nothing to remove: it lives as long as it has session directories.
        let _ = self.orders.send(order);
    }

    /// What wakes the thread.
    pub(super) fn eventfd(&self) -> &Arc<EventFd> {
        &self.eventfd
    }
}

/// A new directory for a session's anchors.
#[derive(Debug)]
pub struct SessionDir {
    pub id: SessionDirId,
    /// By which its host opens them.
    pub dir: OwnedFd,
    pub(super) watch: i32,
    pub(super) reports: Arc<Reports>,
    pub(super) way: Way,
}

/// New anchors in a session directory, and the way to who keeps it.
#[derive(Debug)]
pub struct Made {
    pub(crate) session_dir: SessionDirId,
    pub(crate) first: AnchorHandle,
    pub(crate) identities: Vec<Identity>,
    pub(super) way: Way,
}

/// What all keepers have in common.
#[derive(Clone, Debug)]
pub struct Supplies {
    pub(super) rooms: Arc<Rooms>,
    pub(super) events: Sender<KeeperEvent>,
}

/// What the thread knows of a session directory.
#[derive(Debug)]
struct Watching {
    watch: i32,
    names: usize,
    is_left: bool,
}

/// Whether something is left for the next turn, and whether the engine's thread must hear of what was found out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CarriedOut {
    pub(crate) is_more: bool,
    pub(crate) has_events: bool,
}

/// All directories of one thread.
#[derive(Debug)]
pub struct Keeper {
    supplies: Supplies,
    who: Cred,
    /// From the first session directory on.
    lodging: Option<Lodging>,
    session_dirs: HashMap<SessionDirId, Watching>,
    /// How many those are, for who decides how long the thread lives.
    count: Arc<AtomicUsize>,
    orders: Receiver<Order>,
    way: Way,
}

impl Keeper {
    /// `eventfd` wakes the thread.
    pub fn new(supplies: Supplies, who: Cred, eventfd: &Arc<EventFd>, count: &Arc<AtomicUsize>) -> Keeper {
        let (sender, orders) = channel();
        let way = Way { orders: sender, eventfd: Arc::clone(eventfd) };
        Keeper {
            supplies,
            who,
            lodging: None,
            session_dirs: HashMap::new(),
            count: Arc::clone(count),
            orders,
            way,
        }
    }

    /// The directory of a new session, watched.
    pub fn make_session_dir(&mut self) -> std::io::Result<SessionDir> {
        let (rooms, who) = (&self.supplies.rooms, self.who);
        let lodging = self.lodging.get_or_insert_with(|| rooms.take(who));
        let id = lodging.next_session_dir();
        let name = id.to_string();
        make_dir(lodging, &name, SESSION_DIR_MODE)?;
        let open = || {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(lodging.dir(), &*name, flags, Mode::empty())?;
            let flags = WatchFlags::CLOSE_NOWRITE | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
            Ok((dir, inotify::add_watch(&lodging.reports().inotify, lodging.path_to(&name), flags)?))
        };
        let (dir, watch) = open().inspect_err(|_: &std::io::Error| remove_dir(lodging, &name))?;
        self.session_dirs.insert(id, Watching { watch, names: 0, is_left: false });
        self.count.fetch_add(1, Ordering::AcqRel);
        Ok(SessionDir { id, dir, watch, reports: Arc::clone(lodging.reports()), way: self.way.clone() })
    }

    /// Anchors in it, from `first` on; as many as can be had.
    pub fn make_anchors(&mut self, session_dir: SessionDirId, first: AnchorHandle, count: u32) -> Made {
        let mut made = Made { session_dir, first, identities: Vec::new(), way: self.way.clone() };
        let (Some(lodging), Some(watching)) = (&self.lodging, self.session_dirs.get_mut(&session_dir)) else {
            return made;
        };
        let handles = (0..count).map(|n| AnchorHandle(first.0.wrapping_add(n)));
        let identities = handles.map_while(|handle| {
            let name = name_of(session_dir, handle);
            // A name that was not removed yet is not made again.
            make_dir(lodging, &name, ANCHOR_MODE).ok()?;
            let identity = identity_at(lodging.dir(), &name, AtFlags::SYMLINK_NOFOLLOW);
            identity.inspect_err(|_| remove_dir(lodging, &name)).ok()
        });
        made.identities.extend(identities);
        watching.names += made.identities.len();
        made
    }

    /// Does some of what the engine's thread wants. That may take as long as the user's programs like.
    pub(crate) fn carry_out(&mut self) -> CarriedOut {
        let mut done = CarriedOut::default();
        for _ in 0..ORDERS_PER_ROUND {
            let Ok(order) = self.orders.try_recv() else { return done };
            done.has_events |= self.obey(order);
        }
        done.is_more = true;
        done
    }

    /// Whether the engine's thread must hear of it.
    fn obey(&mut self, order: Order) -> bool {
        let Some(lodging) = &self.lodging else { return false };
        let (Order::Unname { session_dir, .. }
        | Order::Discard { session_dir, .. }
        | Order::Leave { session_dir }) = order;
        let Some(watching) = self.session_dirs.get_mut(&session_dir) else { return false };
        match order {
            Order::Leave { .. } => watching.is_left = true,
            Order::Discard { handle, .. } => {
                remove_dir(lodging, &name_of(session_dir, handle));
                watching.names = watching.names.saturating_sub(1);
            }
            Order::Unname { handle, .. } => {
                let name = name_of(session_dir, handle);
                let flags = WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
                let watch = inotify::add_watch(&lodging.reports().inotify, lodging.path_to(&name), flags);
                let Ok(watch) = watch else {
                    let _ = self.supplies.events.send(KeeperEvent::Unwatched { session_dir, handle });
                    return true;
                };
                // Before the name goes: see the module's head.
                let _ = self.supplies.events.send(KeeperEvent::Watched { session_dir, handle, watch });
                remove_dir(lodging, &name);
                watching.names = watching.names.saturating_sub(1);
            }
        }
        if watching.is_left && watching.names == 0 {
            // Somebody may keep a descriptor of it, but nobody else pays for the watch.
            let _ = inotify::remove_watch(&lodging.reports().inotify, watching.watch);
            remove_dir(lodging, &session_dir.to_string());
            self.session_dirs.remove(&session_dir);
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        false
    }
}

fn name_of(session_dir: SessionDirId, handle: AnchorHandle) -> String {
    format!("{session_dir}/{handle}")
}

/// Makes a directory with just this mode, whatever the process's mask is.
fn make_dir(lodging: &Lodging, name: &str, mode: Mode) -> std::io::Result<()> {
    rustix::fs::mkdirat(lodging.dir(), name, mode)?;
    let changed = rustix::fs::chmodat(lodging.dir(), name, mode, AtFlags::empty());
    Ok(changed.inspect_err(|_| remove_dir(lodging, name))?)
}

/// If something of root's hinders it, it stays until the engine ends.
fn remove_dir(lodging: &Lodging, name: &str) {
    let _ = rustix::fs::unlinkat(lodging.dir(), name, AtFlags::REMOVEDIR);
}
