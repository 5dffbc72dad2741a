//! The engine's accounts of all anchors: whose they are, how their ends are told, and which are in doubt. Nothing in here
//! touches a directory; what is to be done to one is an order to its user's thread.

use super::keeper::{KeeperEvent, Made, Order, SessionDir, Supplies, Way};
use super::room::{Reports, ReportsId, Rooms, SHARED};
use super::{Identity, SessionDirId};
use crate::anchor_root::AnchorRoot;
use crate::poller::{Poller, Token};
use rustix::fs::inotify::{self, ReadFlags};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use toe_base::{AnchorHandle, Cred, Instant, NetNs, SessionId};
use toe_ring::EventFd;

/// Bytes of reports of one user taken in one look: some sixty. The rest is reported again, or lost by who makes so many.
const REPORTS_LEN: usize = 2 << 10;
/// How long an instance is not heard that reports nothing but openings for nothing.
const MUTED_US: u64 = 1_000;
/// What users' threads tell is taken so many at once.
const EVENTS_PER_ROUND: usize = 64;

/// How an anchor's end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// By its name.
    Named,
    /// Its user's thread was asked to remove the name. `closed`: by name it was, since then.
    Leaving { closed: bool },
    /// By itself.
    Unnamed(i32),
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    identity: Identity,
    session_dir: SessionDirId,
    end: End,
    /// In the list of those to be looked after.
    doubted: bool,
}

/// The directory of a session's anchors.
#[derive(Debug)]
struct SessionDirRecord {
    reports: ReportsId,
    watch: i32,
    way: Way,
    /// Anchors in it that have a name, or are about to lose it.
    named: BTreeSet<AnchorHandle>,
    open: bool,
}

#[derive(Clone, Copy, Debug)]
enum Watched {
    SessionDir(SessionDirId),
    Anchor(AnchorHandle),
}

/// An inotify instance, what each of its watches is on, and whose it is.
#[derive(Debug)]
struct Source {
    reports: Arc<Reports>,
    watched: HashMap<i32, Watched>,
    cred: Option<Cred>,
}

/// A user's thread could not watch an anchor, which keeps its name.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched {
    pub handle: AnchorHandle,
    /// It was closed meanwhile.
    pub closed: bool,
}

/// What users' threads are told to do.
#[derive(Debug, Default)]
struct Orders {
    sent: u64,
    /// Of threads that have not been woken yet.
    eventfds: Vec<Arc<EventFd>>,
}

/// All anchors of the engine.
#[derive(Debug)]
pub struct Anchors {
    by_handle: HashMap<AnchorHandle, Anchor>,
    by_identity: HashMap<Identity, AnchorHandle>,
    sessions: HashMap<SessionId, SessionDirId>,
    session_dirs: HashMap<SessionDirId, SessionDirRecord>,
    sources: HashMap<ReportsId, Source>,
    /// To be looked after: their session is gone, or reports were lost and with them perhaps theirs.
    doubtful: VecDeque<AnchorHandle>,
    supplies: Supplies,
    events: Receiver<KeeperEvent>,
    root: Arc<AnchorRoot>,
    orders: Orders,
    /// Sources that are not heard, and until when.
    muted: VecDeque<(ReportsId, Instant)>,
    unwatched: Vec<Unwatched>,
}

impl Anchors {
    /// With room for so many users' threads, in an engine of this network namespace.
    pub fn new(rooms: usize, netns: NetNs) -> std::io::Result<Anchors> {
        let root = Arc::new(AnchorRoot::make()?);
        let (sender, events) = channel();
        let supplies = Supplies { rooms: Arc::new(Rooms::make(&root, rooms, netns)?), events: sender };
        Ok(Anchors {
            by_handle: HashMap::new(),
            by_identity: HashMap::new(),
            sessions: HashMap::new(),
            session_dirs: HashMap::new(),
            sources: HashMap::new(),
            doubtful: VecDeque::new(),
            supplies,
            events,
            root,
            orders: Orders::default(),
            muted: VecDeque::new(),
            unwatched: Vec::new(),
        })
    }

    /// The directories that all of them are in.
    pub fn dirs(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.root.dir()).chain(self.supplies.rooms.dirs())
    }

    /// What is to be removed in the end.
    pub fn root(&self) -> &Arc<AnchorRoot> {
        &self.root
    }

    /// For users' threads.
    pub fn supplies(&self) -> Supplies {
        self.supplies.clone()
    }

    /// A user's new session has this directory.
    pub fn open_session_dir(
        &mut self,
        poller: &Poller,
        session: SessionId,
        cred: Cred,
        session_dir: &SessionDir,
    ) -> std::io::Result<()> {
        let id = session_dir.reports.id;
        let source = match self.sources.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                poller.add(&session_dir.reports.inotify, Token::Anchors(id))?;
                let reports = Arc::clone(&session_dir.reports);
                place.insert(Source { reports, watched: HashMap::new(), cred: None })
            }
        };
        source.watched.insert(session_dir.watch, Watched::SessionDir(session_dir.id));
        source.cred = Some(cred).filter(|_| id != SHARED);
        let (watch, way, named) = (session_dir.watch, session_dir.way.clone(), BTreeSet::new());
        self.session_dirs
            .insert(session_dir.id, SessionDirRecord { reports: id, watch, way, named, open: true });
        self.sessions.insert(session, session_dir.id);
        Ok(())
    }

    /// The session for which this was made did not come about.
    pub fn refuse_session_dir(&mut self, session_dir: &SessionDir) {
        self.send(&session_dir.way, Order::Leave { session_dir: session_dir.id });
    }

    pub fn session_dir_of(&self, session: SessionId) -> Option<SessionDirId> {
        self.sessions.get(&session).copied()
    }

    /// Anchors were made in the directory of a session that lives.
    pub fn add(&mut self, made: &Made) {
        let Some(session_dir) = self.session_dirs.get_mut(&made.session_dir) else { return };
        for (n, &identity) in (0..).zip(&made.identities) {
            let handle = AnchorHandle(made.first.0.wrapping_add(n));
            session_dir.named.insert(handle);
            let anchor = Anchor { identity, session_dir: made.session_dir, end: End::Named, doubted: false };
            self.by_handle.insert(handle, anchor);
            self.by_identity.insert(identity, handle);
        }
    }

    /// Anchors were made while their session ended.
    pub fn refuse(&mut self, made: &Made) {
        for n in 0..made.identities.len() as u32 {
            let handle = AnchorHandle(made.first.0.wrapping_add(n));
            self.send(&made.way, Order::Discard { session_dir: made.session_dir, handle });
        }
    }

    fn send(&mut self, way: &Way, order: Order) {
        way.send(order);
        self.orders.sent += 1;
        if !self.orders.eventfds.iter().any(|eventfd| Arc::ptr_eq(eventfd, way.eventfd())) {
            self.orders.eventfds.push(Arc::clone(way.eventfd()));
        }
    }

    /// Orders sent so far.
    pub fn orders(&self) -> u64 {
        self.orders.sent
    }

    /// Wakes the threads to which orders were sent.
    pub fn ring(&mut self) {
        for eventfd in self.orders.eventfds.drain(..) {
            // Own eventfds do not fail.
            let _ = eventfd.signal();
        }
    }

    /// The anchor that is this object, if it is one.
    pub fn recognise(&self, object: Identity) -> Option<AnchorHandle> {
        self.by_identity.get(&object).copied()
    }

    /// Whose reports come by this instance, if they are of one user.
    pub fn cred_of(&self, id: ReportsId) -> Option<Cred> {
        self.sources.get(&id)?.cred
    }

    /// What this instance reports is not heard for a while: it is for nothing, and the engine would not sleep.
    pub fn mute(&mut self, poller: &Poller, id: ReportsId, now: Instant) {
        if let Some(source) = self.sources.get(&id) {
            poller.remove(&source.reports.inotify);
            self.muted.push_back((id, now.after_us(MUTED_US)));
        }
    }

    /// When [`Anchors::unmute`] is due next.
    pub fn next_unmute(&self) -> Instant {
        self.muted.front().map_or(Instant::FAR_FUTURE, |(_, until)| *until)
    }

    /// Instances that are to be heard again.
    pub fn unmute(&mut self, poller: &Poller, now: Instant) {
        while let Some((id, _)) = self.muted.front().copied().filter(|(_, until)| *until <= now) {
            self.muted.pop_front();
            let again =
                self.sources.get(&id).map(|source| poller.add(&source.reports.inotify, Token::Anchors(id)));
            if let Some(Err(_)) = again {
                self.muted.push_back((id, now.after_us(MUTED_US)));
                return;
            }
        }
    }

    /// Adds anchors to `closed` that nobody has open any more, as the instance `id` reports them; when there are many, not
    /// all of them at once.
    pub fn take_closed(&mut self, id: ReportsId, closed: &mut Vec<AnchorHandle>) {
        let Some(source) = self.sources.get(&id) else { return };
        let reports = Arc::clone(&source.reports);
        let mut buffer = [const { MaybeUninit::uninit() }; REPORTS_LEN];
        let mut reader = inotify::Reader::new(&reports.inotify, &mut buffer);
        let mut lost = false;
        // An error means that there is no more.
        while let Ok(report) = reader.next() {
            let kind = report.events();
            lost |= kind.contains(ReadFlags::QUEUE_OVERFLOW);
            if kind.contains(ReadFlags::CLOSE_NOWRITE) {
                let name = report.file_name().and_then(|name| name.to_str().ok());
                let handle = name.and_then(|name| name.parse().ok()).map(AnchorHandle);
                closed.extend(handle.and_then(|handle| self.closed_by_name(id, report.wd(), handle)));
            } else if kind.contains(ReadFlags::DELETE_SELF) {
                closed.extend(self.ended(id, report.wd()));
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        if lost {
            self.recover(id, closed);
        }
    }

    fn closed_by_name(&mut self, id: ReportsId, watch: i32, handle: AnchorHandle) -> Option<AnchorHandle> {
        let Some(&Watched::SessionDir(session_dir)) = self.sources.get(&id)?.watched.get(&watch) else {
            return None;
        };
        let anchor = self.by_handle.get_mut(&handle).filter(|anchor| anchor.session_dir == session_dir)?;
        match &mut anchor.end {
            End::Named => return Some(handle),
            End::Leaving { closed } => *closed = true,
            End::Unnamed(_) => {}
        }
        None
    }

    /// The anchor that this watch was on.
    fn ended(&mut self, id: ReportsId, watch: i32) -> Option<AnchorHandle> {
        if !self.sources.get(&id)?.watched.contains_key(&watch) {
            // It was told before it could be reported.
            while self.take_events() > 0 {}
        }
        match self.sources.get_mut(&id)?.watched.remove(&watch)? {
            Watched::Anchor(handle) => Some(handle),
            Watched::SessionDir(_) => None,
        }
    }

    /// Takes some of what users' threads have found out; returns how much.
    pub fn take_events(&mut self) -> usize {
        for taken in 0..EVENTS_PER_ROUND {
            let Ok(event) = self.events.try_recv() else { return taken };
            let (KeeperEvent::Watched { session_dir, handle, .. }
            | KeeperEvent::Unwatched { session_dir, handle }) = event;
            let reports = self.session_dirs.get(&session_dir).map(|record| record.reports);
            let anchor = self.by_handle.get_mut(&handle).filter(|anchor| anchor.session_dir == session_dir);
            let (Some(reports), Some(anchor)) = (reports, anchor) else { continue };
            let End::Leaving { closed } = anchor.end else { continue };
            match event {
                KeeperEvent::Watched { watch, .. } => {
                    anchor.end = End::Unnamed(watch);
                    if let Some(source) = self.sources.get_mut(&reports) {
                        source.watched.insert(watch, Watched::Anchor(handle));
                    }
                    self.lost_name(session_dir, handle);
                }
                KeeperEvent::Unwatched { .. } => {
                    anchor.end = End::Named;
                    self.unwatched.push(Unwatched { handle, closed });
                }
            }
        }
        EVENTS_PER_ROUND
    }

    /// The next anchor that has its name still.
    pub fn next_unwatched(&mut self) -> Option<Unwatched> {
        self.unwatched.pop()
    }

    /// Reports were lost. Of the anchors without names the kernel says which it still watches; the others are in doubt.
    fn recover(&mut self, id: ReportsId, closed: &mut Vec<AnchorHandle>) {
        // What is lost was told before.
        while self.take_events() > 0 {}
        let Some(source) = self.sources.get_mut(&id) else { return };
        let info =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", source.reports.inotify.as_raw_fd()));
        let info = info.unwrap_or_default();
        let live: HashSet<i32> = info.lines().filter_map(watch_in).collect();
        // Some watch there is, that of a session directory at least; without any, nothing was told.
        if !live.is_empty() {
            source.watched.retain(|watch, watched| match watched {
                Watched::Anchor(handle) if !live.contains(watch) => {
                    closed.push(*handle);
                    false
                }
                _ => true,
            });
        }
        let session_dirs = self.session_dirs.values().filter(|session_dir| session_dir.reports == id);
        for &handle in session_dirs.flat_map(|session_dir| &session_dir.named) {
            doubt(&mut self.by_handle, &mut self.doubtful, handle);
        }
    }

    /// The next anchor to look after.
    pub fn next_doubtful(&mut self) -> Option<AnchorHandle> {
        let handle = self.doubtful.pop_front()?;
        if let Some(anchor) = self.by_handle.get_mut(&handle) {
            anchor.doubted = false;
        }
        Some(handle)
    }

    /// It is to be looked after, if it still is there.
    pub fn doubt(&mut self, handle: AnchorHandle) {
        doubt(&mut self.by_handle, &mut self.doubtful, handle);
    }

    pub fn doubts(&self) -> usize {
        self.doubtful.len()
    }

    /// Whether the session that the anchor was made for is gone.
    pub fn is_left(&self, handle: AnchorHandle) -> bool {
        let session_dir =
            self.by_handle.get(&handle).and_then(|anchor| self.session_dirs.get(&anchor.session_dir));
        session_dir.is_none_or(|session_dir| !session_dir.open)
    }

    /// From now on the anchor's end is reported by the anchor itself, and nobody will be able to open it any more. If that
    /// cannot be had, it comes by [`Anchors::next_unwatched`], and nothing has changed.
    pub fn remove_name(&mut self, handle: AnchorHandle) {
        let Some(anchor) = self.by_handle.get_mut(&handle).filter(|anchor| anchor.end == End::Named) else {
            return;
        };
        anchor.end = End::Leaving { closed: false };
        let session_dir = anchor.session_dir;
        if let Some(way) = self.session_dirs.get(&session_dir).map(|record| record.way.clone()) {
            self.send(&way, Order::Unname { session_dir, handle });
        }
    }

    /// Removes an anchor that stands for nothing, or that cannot be watched.
    pub fn remove(&mut self, handle: AnchorHandle) {
        let Some(anchor) = self.by_handle.get(&handle).copied() else { return };
        match anchor.end {
            // Its end is about to be told.
            End::Leaving { .. } => return,
            End::Unnamed(_) => {}
            End::Named => {
                if let Some(way) = self.session_dirs.get(&anchor.session_dir).map(|record| record.way.clone())
                {
                    self.send(&way, Order::Discard { session_dir: anchor.session_dir, handle });
                }
            }
        }
        self.forget(handle);
    }

    /// An anchor was closed: it can be used again, or, without a name, goes.
    pub fn closed(&mut self, handle: AnchorHandle) {
        if self.by_handle.get(&handle).is_some_and(|anchor| matches!(anchor.end, End::Unnamed(_))) {
            self.forget(handle);
        }
    }

    fn forget(&mut self, handle: AnchorHandle) {
        let Some(anchor) = self.by_handle.remove(&handle) else { return };
        // The kernel may have given the number to another directory already.
        if self.by_identity.get(&anchor.identity) == Some(&handle) {
            self.by_identity.remove(&anchor.identity);
        }
        self.lost_name(anchor.session_dir, handle);
    }

    fn lost_name(&mut self, id: SessionDirId, handle: AnchorHandle) {
        if let Some(session_dir) = self.session_dirs.get_mut(&id) {
            session_dir.named.remove(&handle);
            self.forget_left_session_dir(id);
        }
    }

    fn forget_left_session_dir(&mut self, id: SessionDirId) {
        if self
            .session_dirs
            .get(&id)
            .is_some_and(|session_dir| !session_dir.open && session_dir.named.is_empty())
            && let Some(session_dir) = self.session_dirs.remove(&id)
            && let Some(source) = self.sources.get_mut(&session_dir.reports)
        {
            source.watched.remove(&session_dir.watch);
        }
    }

    /// The session is gone and its number will be given again. Its anchors are to be looked after.
    pub fn leave_session_dir(&mut self, session: SessionId) {
        let Some(id) = self.sessions.remove(&session) else { return };
        let Some(session_dir) = self.session_dirs.get_mut(&id) else { return };
        session_dir.open = false;
        let way = session_dir.way.clone();
        for &handle in &session_dir.named {
            doubt(&mut self.by_handle, &mut self.doubtful, handle);
        }
        self.forget_left_session_dir(id);
        self.send(&way, Order::Leave { session_dir: id });
    }

    /// Whether nothing of a session that has gone is held any more. (What a living one has goes with it.)
    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_handle.len()
    }

    #[cfg(test)]
    pub(super) fn sources(&self) -> Vec<ReportsId> {
        self.sources.keys().copied().collect()
    }

    #[cfg(test)]
    pub(crate) fn session_dirs(&self) -> usize {
        self.session_dirs.len()
    }
}

/// Anchors without names are told for sure; one that is about to lose its name will be.
fn doubt(
    anchors: &mut HashMap<AnchorHandle, Anchor>,
    doubtful: &mut VecDeque<AnchorHandle>,
    handle: AnchorHandle,
) {
    if let Some(anchor) = anchors.get_mut(&handle).filter(|anchor| anchor.end == End::Named)
        && !std::mem::replace(&mut anchor.doubted, true)
    {
        doubtful.push_back(handle);
    }
}

/// The watch that a line of an inotify descriptor's fdinfo is about; it is in hexadecimal.
pub(super) fn watch_in(line: &str) -> Option<i32> {
    let number = line.strip_prefix("inotify wd:")?.split(' ').next()?;
    i32::from_str_radix(number, 16).ok()
}
