//! Anchors: the kernel objects that tell when the last copy of a program's descriptor was closed, wherever copies went.
//!
//! An anchor is an empty directory. A host opens it, and that open file is the program's descriptor: it can be copied,
//! inherited and passed on, and the kernel reports its last close, by name, to whoever watches the directory above. So an
//! anchor costs the engine no descriptor, a host opens one without asking, and it can be used again once it was closed.
//! Reading and writing a directory fail, so that octets which a call that the switch does not see moves are not lost in
//! silence.
//!
//! The report by name holds while only the session that the anchor was made for can open it. Once another process has
//! shown it, or the session is gone, its name is removed: then the kernel reports the end of the directory itself, which
//! is when nobody has it open, whatever anybody does.
//!
//! The kernel keeps a limited number of reports (fs.inotify.max_queued_events) and says when it lost some. Then every
//! anchor of the user whose reports they were is in doubt, and is looked after one by one: each user's come by an inotify
//! instance of his own, as long as there are instances (fs.inotify.max_user_instances); the rest shares one.
//!
//! Directories are made by the users' threads of the porter ([`AnchorMaker`]), and taken notice of, watched and removed
//! by the engine's. Called by `attach`, `daemon` and the run loop.

use crate::anchor_root::AnchorRoot;
use crate::poller::{Poller, Token};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use toe_base::{AnchorHandle, SessionId};

/// Octets of reports taken at once: some hundred.
const REPORTS_LEN: usize = 16 << 10;
/// Closed anchors that are told in one turn; the rest is reported again.
const CLOSED_PER_TURN: usize = 4096;
/// Whoever has a descriptor of a session's directory may open what is in it, and nothing else.
const HOME_MODE: Mode = Mode::from_raw_mode(0o711);
const ANCHOR_MODE: Mode = Mode::from_raw_mode(0o555);

/// What the kernel calls a descriptor's object: device and inode number.
pub type Identity = (u64, u64);
/// A session's directory. A session's number is given again; this one is not.
pub type HomeId = u64;
/// The place of an inotify instance.
type ReportsId = usize;
/// The instance of those users for whom there is no other.
const SHARED: ReportsId = 0;

/// Which object a descriptor has open. Asks nobody: what a file system has to ask others for is left as it was.
pub fn identity_of(fd: impl AsFd) -> std::io::Result<Identity> {
    identity_at(fd, "", AtFlags::EMPTY_PATH)
}

fn identity_at(dir: impl AsFd, name: &str, flags: AtFlags) -> std::io::Result<Identity> {
    let flags = flags | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(dir, name, flags, StatxFlags::TYPE | StatxFlags::INO)?;
    Ok((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

/// Makes the directories; used by many threads.
#[derive(Clone, Debug)]
pub struct AnchorMaker {
    root: Arc<OwnedFd>,
    homes_made: Arc<AtomicU64>,
}

impl AnchorMaker {
    /// The directory of a new session, and the descriptor by which its host opens anchors in it.
    pub fn make_home(&self) -> std::io::Result<(HomeId, OwnedFd)> {
        let id = self.homes_made.fetch_add(1, Ordering::Relaxed);
        let name = id.to_string();
        self.make_dir(&name, HOME_MODE)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.root, &*name, flags, Mode::empty()).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&self.root, &*name, AtFlags::REMOVEDIR);
        })?;
        Ok((id, dir))
    }

    /// An anchor in it.
    pub fn make_anchor(&self, home: HomeId, handle: AnchorHandle) -> std::io::Result<Identity> {
        let name = format!("{home}/{handle}");
        self.make_dir(&name, ANCHOR_MODE)?;
        identity_at(&self.root, &name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Makes a directory with just this mode, whatever the process's mask is.
    fn make_dir(&self, name: &str, mode: Mode) -> std::io::Result<()> {
        rustix::fs::mkdirat(&self.root, name, mode)?;
        Ok(rustix::fs::chmodat(&self.root, name, mode, AtFlags::empty())?)
    }
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    identity: Identity,
    home: HomeId,
    reports: ReportsId,
    /// Present when it has no name any more and is watched by itself.
    watch: Option<i32>,
    /// In the list of those to be looked after.
    doubted: bool,
}

/// The directory of a session's anchors. It stays until the last anchor in it has lost its name.
#[derive(Debug)]
struct Home {
    reports: ReportsId,
    watch: i32,
    /// Anchors made and not gone, with a name or without.
    anchors: u32,
    named: u32,
    open: bool,
}

#[derive(Clone, Copy, Debug)]
enum Watched {
    Home(HomeId),
    Anchor(AnchorHandle),
}

/// An inotify instance, and what each of its watches is on.
#[derive(Debug)]
struct Reports {
    inotify: OwnedFd,
    watched: HashMap<i32, Watched>,
}

impl Reports {
    fn open(poller: &Poller, id: ReportsId) -> std::io::Result<Reports> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        poller.add(&inotify, Token::Anchors(id as u32))?;
        Ok(Reports { inotify, watched: HashMap::new() })
    }
}

/// All anchors of the engine.
#[derive(Debug)]
pub struct Anchors {
    by_handle: HashMap<AnchorHandle, Anchor>,
    by_identity: HashMap<Identity, AnchorHandle>,
    sessions: HashMap<SessionId, HomeId>,
    homes: HashMap<HomeId, Home>,
    /// None is ever closed, which waits for a grace period of the kernel's: the next user gets one that is not used.
    reports: Vec<Reports>,
    /// By uid.
    reports_of: HashMap<u32, ReportsId>,
    /// To be looked after: their session is gone, or reports were lost and with them perhaps theirs.
    doubtful: VecDeque<AnchorHandle>,
    root: AnchorRoot,
    maker: AnchorMaker,
}

impl Anchors {
    pub fn new(poller: &Poller) -> std::io::Result<Anchors> {
        let root = AnchorRoot::make()?;
        let maker =
            AnchorMaker { root: Arc::new(root.dir().try_clone_to_owned()?), homes_made: Arc::default() };
        Ok(Anchors {
            by_handle: HashMap::new(),
            by_identity: HashMap::new(),
            sessions: HashMap::new(),
            homes: HashMap::new(),
            reports: vec![Reports::open(poller, SHARED)?],
            reports_of: HashMap::new(),
            doubtful: VecDeque::new(),
            root,
            maker,
        })
    }

    /// The directory that all of them are in.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.dir()
    }

    pub fn maker(&self) -> AnchorMaker {
        self.maker.clone()
    }

    /// The inotify instance of a user who has none yet: one that nobody uses, a new one, or the shared one.
    fn reports_for(&mut self, poller: &Poller, uid: u32) -> ReportsId {
        if let Some(&id) = self.reports_of.get(&uid) {
            return id;
        }
        let unused = (SHARED + 1..self.reports.len()).find(|&id| self.reports[id].watched.is_empty());
        let id = unused.or_else(|| {
            let id = self.reports.len();
            // Refused by fs.inotify.max_user_instances.
            self.reports.push(Reports::open(poller, id).ok()?);
            Some(id)
        });
        let Some(id) = id else { return SHARED };
        self.reports_of.retain(|_, of_another| *of_another != id);
        self.reports_of.insert(uid, id);
        id
    }

    /// A user's new session has this directory.
    pub fn open_home(
        &mut self,
        poller: &Poller,
        session: SessionId,
        uid: u32,
        id: HomeId,
    ) -> std::io::Result<()> {
        let reports = self.reports_for(poller, uid);
        let path = self.root.path_to(&id.to_string());
        let watch = inotify::add_watch(&self.reports[reports].inotify, path, WatchFlags::CLOSE_NOWRITE)?;
        self.reports[reports].watched.insert(watch, Watched::Home(id));
        self.homes.insert(id, Home { reports, watch, anchors: 0, named: 0, open: true });
        self.sessions.insert(session, id);
        Ok(())
    }

    /// Removes the directory of a session that did not come about.
    pub fn remove_home(&mut self, id: HomeId) {
        self.remove_dir(&id.to_string());
    }

    pub fn home_of(&self, session: SessionId) -> Option<HomeId> {
        self.sessions.get(&session).copied()
    }

    /// An anchor was made in the directory `id`, which is a session's.
    pub fn add(&mut self, id: HomeId, handle: AnchorHandle, identity: Identity) {
        let Some(home) = self.homes.get_mut(&id) else { return };
        home.anchors += 1;
        home.named += 1;
        let anchor = Anchor { identity, home: id, reports: home.reports, watch: None, doubted: false };
        self.by_handle.insert(handle, anchor);
        self.by_identity.insert(identity, handle);
    }

    /// Anchors were made in the directory `id` while its session ended.
    pub fn remove_late(&mut self, id: HomeId, handles: impl Iterator<Item = AnchorHandle>) {
        for handle in handles {
            self.remove_dir(&format!("{id}/{handle}"));
        }
        // What else is in it is removed by itself, and the directory after it.
        if !self.homes.contains_key(&id) {
            self.remove_home(id);
        }
    }

    /// The anchor that is this object, if it is one.
    pub fn recognise(&self, object: Identity) -> Option<AnchorHandle> {
        self.by_identity.get(&object).copied()
    }

    /// Adds anchors to `closed` that nobody has open any more, as the instance `id` reports them; when there are many, not
    /// all of them at once.
    pub fn take_closed(&mut self, id: u32, closed: &mut Vec<AnchorHandle>) {
        let id = id as ReportsId;
        let Some(reports) = self.reports.get_mut(id) else { return };
        let mut buffer = [const { MaybeUninit::uninit() }; REPORTS_LEN];
        let mut lost = false;
        while closed.len() < CLOSED_PER_TURN {
            let mut reader = inotify::Reader::new(&reports.inotify, &mut buffer);
            // An error means that there is no more.
            let Ok(mut report) = reader.next() else { break };
            loop {
                let kind = report.events();
                lost |= kind.contains(ReadFlags::QUEUE_OVERFLOW);
                match reports.watched.get(&report.wd()) {
                    Some(&Watched::Home(id)) if kind.contains(ReadFlags::CLOSE_NOWRITE) => {
                        let name = report.file_name().and_then(|name| name.to_str().ok());
                        let handle = name.and_then(|name| name.parse().ok()).map(AnchorHandle);
                        let is_named = |handle: &AnchorHandle| {
                            self.by_handle.get(handle).is_some_and(|a| a.home == id && a.watch.is_none())
                        };
                        closed.extend(handle.filter(is_named));
                    }
                    Some(&Watched::Anchor(handle)) if kind.contains(ReadFlags::DELETE_SELF) => {
                        reports.watched.remove(&report.wd());
                        closed.push(handle);
                    }
                    _ => {}
                }
                if reader.is_buffer_empty() {
                    break;
                }
                let Ok(next) = reader.next() else { break };
                report = next;
            }
        }
        if lost {
            self.recover(id, closed);
        }
    }

    /// Reports were lost. Of the anchors without names the kernel says which it still watches; the others are in doubt.
    fn recover(&mut self, id: ReportsId, closed: &mut Vec<AnchorHandle>) {
        let Some(reports) = self.reports.get_mut(id) else { return };
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", reports.inotify.as_raw_fd()));
        let info = info.unwrap_or_default();
        let live: HashSet<i32> = info.lines().filter_map(watch_in).collect();
        for (&handle, anchor) in self.by_handle.iter_mut().filter(|(_, anchor)| anchor.reports == id) {
            match anchor.watch {
                None if anchor.doubted => {}
                None => {
                    anchor.doubted = true;
                    self.doubtful.push_back(handle);
                }
                // Some watch there is, that of a home at least; without any, nothing was told.
                Some(watch) if !live.is_empty() && !live.contains(&watch) => {
                    // It may also have been reported after all.
                    if reports.watched.remove(&watch).is_some() {
                        closed.push(handle);
                    }
                }
                Some(_) => {}
            }
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
        if let Some(anchor) = self.by_handle.get_mut(&handle)
            && !std::mem::replace(&mut anchor.doubted, true)
        {
            self.doubtful.push_back(handle);
        }
    }

    pub fn doubts(&self) -> usize {
        self.doubtful.len()
    }

    /// Whether the session that the anchor was made for is gone.
    pub fn is_left(&self, handle: AnchorHandle) -> bool {
        let home = self.by_handle.get(&handle).and_then(|anchor| self.homes.get(&anchor.home));
        home.is_none_or(|home| !home.open)
    }

    /// From now on the anchor's end is reported by the anchor itself, and nobody can open it any more. `false`: that
    /// cannot be had (fs.inotify.max_user_watches), and nothing has changed.
    pub fn remove_name(&mut self, handle: AnchorHandle) -> bool {
        let Some(anchor) = self.by_handle.get_mut(&handle).filter(|anchor| anchor.watch.is_none()) else {
            return true;
        };
        let (home, name) = (anchor.home, format!("{}/{handle}", anchor.home));
        let flags = WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR;
        let Some(reports) = self.reports.get_mut(anchor.reports) else { return false };
        let Ok(watch) = inotify::add_watch(&reports.inotify, self.root.path_to(&name), flags) else {
            return false;
        };
        anchor.watch = Some(watch);
        reports.watched.insert(watch, Watched::Anchor(handle));
        self.remove_dir(&name);
        self.lost_name(home);
        true
    }

    /// Removes an anchor that stands for nothing, or that cannot be watched.
    pub fn remove(&mut self, handle: AnchorHandle) {
        let Some(anchor) = self.by_handle.get(&handle).copied() else { return };
        if anchor.watch.is_none() {
            self.remove_dir(&format!("{}/{handle}", anchor.home));
        }
        self.forget(handle);
        if anchor.watch.is_none() {
            self.lost_name(anchor.home);
        }
    }

    /// An anchor was closed: it can be used again, or, without a name, goes.
    pub fn closed(&mut self, handle: AnchorHandle) {
        if self.by_handle.get(&handle).is_some_and(|anchor| anchor.watch.is_some()) {
            self.forget(handle);
        }
    }

    fn forget(&mut self, handle: AnchorHandle) {
        let Some(anchor) = self.by_handle.remove(&handle) else { return };
        // The kernel may have given the number to another directory already.
        if self.by_identity.get(&anchor.identity) == Some(&handle) {
            self.by_identity.remove(&anchor.identity);
        }
        if let Some(home) = self.homes.get_mut(&anchor.home) {
            home.anchors -= 1;
        }
    }

    fn lost_name(&mut self, id: HomeId) {
        if let Some(home) = self.homes.get_mut(&id) {
            home.named -= 1;
        }
        self.remove_left_home(id);
    }

    fn remove_left_home(&mut self, id: HomeId) {
        if self.homes.get(&id).is_some_and(|home| !home.open && home.named == 0)
            && let Some(home) = self.homes.remove(&id)
        {
            if let Some(reports) = self.reports.get_mut(home.reports) {
                reports.watched.remove(&home.watch);
                let _ = inotify::remove_watch(&reports.inotify, home.watch);
            }
            self.remove_dir(&id.to_string());
        }
    }

    /// The session is gone and its number will be given again. Its anchors are to be looked after.
    pub fn leave_home(&mut self, session: SessionId) {
        let Some(id) = self.sessions.remove(&session) else { return };
        if let Some(home) = self.homes.get_mut(&id) {
            home.open = false;
        }
        let named = self.by_handle.iter().filter(|(_, a)| a.home == id && a.watch.is_none());
        let named: Vec<AnchorHandle> = named.map(|(handle, _)| *handle).collect();
        named.into_iter().for_each(|handle| self.doubt(handle));
        self.remove_left_home(id);
    }

    /// Whether nothing of a session that has gone is held any more. (What a living one has goes with it.)
    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_handle.len()
    }

    /// If something of root's hinders it, it stays until the engine ends.
    fn remove_dir(&self, name: &str) {
        let _ = rustix::fs::unlinkat(self.root.dir(), name, AtFlags::REMOVEDIR);
    }
}

/// The watch that a line of an inotify descriptor's fdinfo is about; it is in hexadecimal.
fn watch_in(line: &str) -> Option<i32> {
    let number = line.strip_prefix("inotify wd:")?.split(' ').next()?;
    i32::from_str_radix(number, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn the_kernel_writes_watches_in_hexadecimal() {
        assert_eq!(watch_in("inotify wd:1f ino:9e7e sdev:800013 mask:800afce ignored_mask:0"), Some(31));
        assert_eq!(watch_in("pos:\t0"), None);
    }

    const SESSION: SessionId = SessionId(3);
    const USER: u32 = 1000;

    struct World {
        anchors: Anchors,
        poller: Poller,
        home: OwnedFd,
    }

    impl World {
        fn new(handles: std::ops::Range<u32>) -> World {
            let poller = Poller::new().expect("epoll");
            let mut anchors = Anchors::new(&poller).expect("anchors");
            let home = settle_in(&mut anchors, &poller, SESSION, USER, handles);
            World { anchors, poller, home }
        }

        fn recognise(&self, fd: impl AsFd) -> Option<AnchorHandle> {
            self.anchors.recognise(identity_of(fd).expect("an identity"))
        }

        fn open(&self, handle: u32) -> OwnedFd {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(&self.home, handle.to_string(), flags, Mode::empty()).expect("opened")
        }

        fn closed(&mut self) -> Vec<AnchorHandle> {
            let mut closed = Vec::new();
            (0..self.anchors.reports.len() as u32).for_each(|id| self.anchors.take_closed(id, &mut closed));
            closed.iter().for_each(|handle| self.anchors.closed(*handle));
            closed
        }
    }

    /// A session's directory with anchors, as a user's thread and the engine's make it.
    fn settle_in(
        anchors: &mut Anchors,
        poller: &Poller,
        session: SessionId,
        uid: u32,
        handles: std::ops::Range<u32>,
    ) -> OwnedFd {
        let (id, home) = anchors.maker().make_home().expect("a directory");
        anchors.open_home(poller, session, uid, id).expect("a home");
        for handle in handles.map(AnchorHandle) {
            let identity = anchors.maker().make_anchor(id, handle).expect("made");
            anchors.add(id, handle, identity);
        }
        home
    }

    #[test]
    fn any_copy_of_an_anchor_is_recognised_and_nothing_else_is() {
        let mut world = World::new(1..3);
        let (a, b) = (world.open(1), world.open(2));
        assert_eq!(world.recognise(&a), Some(AnchorHandle(1)));
        assert_eq!(world.recognise(b.try_clone().expect("dup")), Some(AnchorHandle(2)));
        assert_eq!(world.recognise(std::io::stdin()), None);
        assert_eq!(world.recognise(&world.home), None);
        assert!(world.anchors.remove_name(AnchorHandle(1)));
        assert_eq!(world.recognise(&a), Some(AnchorHandle(1)), "also without a name");
        drop(a);
        world.closed();
        assert_eq!(world.anchors.len(), 1, "without a name it is not used again");
    }

    #[test]
    fn the_last_close_is_reported_and_the_anchor_can_be_used_again() {
        let mut world = World::new(7..9);
        for _ in 0..3 {
            let end = world.open(7);
            let copy = end.try_clone().expect("dup");
            drop(end);
            assert_eq!(world.closed(), [], "a copy is open");
            drop(copy);
            assert_eq!(world.closed(), [AnchorHandle(7)]);
        }
    }

    #[test]
    fn octets_that_go_past_the_switch_fail_and_are_not_lost() {
        let world = World::new(1..2);
        let end = world.open(1);
        assert_eq!(rustix::io::write(&end, b"lost?"), Err(Errno::BADF));
        assert_eq!(rustix::io::read(&end, &mut [0; 8]), Err(Errno::ISDIR));
    }

    #[test]
    fn one_that_another_process_has_shown_cannot_be_ended_by_its_first_session() {
        let mut world = World::new(1..2);
        let (own, passed_on) = (world.open(1), world.open(1));
        assert!(world.anchors.remove_name(AnchorHandle(1)));
        let name = rustix::fs::openat(&world.home, "1", OFlags::RDONLY, Mode::empty());
        assert_eq!(name.err(), Some(Errno::NOENT));
        drop(own);
        assert_eq!(world.closed(), []);
        drop(passed_on);
        assert_eq!(world.closed(), [AnchorHandle(1)]);
        assert!(world.anchors.is_empty());
    }

    /// What the daemon does with anchors in doubt.
    fn look_after_all(world: &mut World, stands: impl Fn(AnchorHandle) -> bool) {
        while let Some(handle) = world.anchors.next_doubtful() {
            if stands(handle) {
                assert!(world.anchors.remove_name(handle));
            } else {
                world.anchors.remove(handle);
            }
        }
    }

    #[test]
    fn of_a_session_that_has_gone_only_what_stands_for_something_and_is_open_stays() {
        let mut world = World::new(1..4);
        let (open, of_nothing) = (world.open(1), world.open(2));
        // The third one stands for something and nobody has it open.
        world.anchors.leave_home(SESSION);
        assert!(world.anchors.is_left(AnchorHandle(1)) && world.anchors.doubts() == 3);
        look_after_all(&mut world, |handle| handle != AnchorHandle(2));
        assert_eq!(world.closed(), [AnchorHandle(3)]);
        assert!(world.anchors.homes.is_empty(), "its directory is gone");
        drop(of_nothing);
        assert_eq!(world.closed(), []);
        drop(open);
        assert_eq!(world.closed(), [AnchorHandle(1)]);
        assert!(world.anchors.is_empty());
        settle_in(&mut world.anchors, &world.poller, SESSION, USER, 0..0);
    }

    #[test]
    fn lost_reports_are_made_up_for() {
        let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
        let limit: u32 = limit.trim().parse().expect("a number");
        let mut world = World::new(0..4);
        let held = world.open(3);
        // Reports of the same kind in a row are joined, so two take turns.
        for turn in 0..limit + 2 {
            drop(world.open(turn % 2));
        }
        drop(world.open(2));
        let closed: Vec<AnchorHandle> = std::iter::repeat_with(|| world.closed())
            .take_while(|closed| !closed.is_empty())
            .flatten()
            .collect();
        assert!(!closed.contains(&AnchorHandle(2)), "the report did not fit");
        look_after_all(&mut world, |_| true);
        let sure = world.closed();
        assert!(sure.contains(&AnchorHandle(2)) && !sure.contains(&AnchorHandle(3)), "{sure:?}");
        drop(held);
        assert_eq!(world.closed(), [AnchorHandle(3)]);
    }

    #[test]
    fn what_one_user_loses_puts_nothing_of_anothers_in_doubt() {
        let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
        let limit: u32 = limit.trim().parse().expect("a number");
        let mut world = World::new(0..3);
        let (neighbour, next) = (SessionId(4), SessionId(5));
        let _home = settle_in(&mut world.anchors, &world.poller, neighbour, USER + 1, 10..20);
        for turn in 0..limit + 2 {
            drop(world.open(turn % 2));
        }
        while !world.closed().is_empty() {}
        let doubted: Vec<AnchorHandle> = std::iter::from_fn(|| world.anchors.next_doubtful()).collect();
        assert_eq!(doubted.len(), 3, "{doubted:?}");
        assert!(doubted.iter().all(|handle| handle.0 < 3), "{doubted:?}");
        // Who comes when a user's last directory has gone gets his instance.
        world.anchors.leave_home(neighbour);
        for handle in 10..20 {
            world.anchors.remove(AnchorHandle(handle));
        }
        let instances = world.anchors.reports.len();
        let _home = settle_in(&mut world.anchors, &world.poller, next, USER + 2, 20..21);
        assert_eq!(world.anchors.reports.len(), instances);
    }

    #[test]
    fn lost_reports_of_anchors_without_names_are_made_up_for() {
        let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
        let limit: u32 = limit.trim().parse().expect("a number");
        let mut world = World::new(0..4);
        let (gone, held) = (world.open(2), world.open(3));
        assert!(world.anchors.remove_name(AnchorHandle(2)) && world.anchors.remove_name(AnchorHandle(3)));
        for turn in 0..limit + 2 {
            drop(world.open(turn % 2));
        }
        drop(gone);
        let closed: HashSet<AnchorHandle> = std::iter::repeat_with(|| world.closed())
            .take_while(|closed| !closed.is_empty())
            .flatten()
            .collect();
        assert!(closed.contains(&AnchorHandle(2)) && !closed.contains(&AnchorHandle(3)), "{closed:?}");
        drop(held);
        assert_eq!(world.closed(), [AnchorHandle(3)]);
    }

    #[test]
    fn a_session_is_charged_until_its_anchors_are_gone() {
        let mut world = World::new(1..3);
        let charged = |world: &World| world.anchors.homes[&world.anchors.sessions[&SESSION]].anchors;
        assert_eq!(charged(&world), 2);
        assert!(world.anchors.remove_name(AnchorHandle(1)));
        assert_eq!(world.closed(), [AnchorHandle(1)]);
        assert_eq!(charged(&world), 1);
    }
}
