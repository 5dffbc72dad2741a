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
//! anchor in use is in doubt, and is looked after one by one. Called by `attach`, `daemon` and the run loop.

use crate::anchor_root::AnchorRoot;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use toe_base::{AnchorHandle, SessionId};

/// Octets of reports taken at once: some hundred.
const REPORTS_LEN: usize = 16 << 10;
/// Closed anchors that are told in one turn; the rest is reported again.
const CLOSED_PER_TURN: usize = 4096;
/// Whoever has a descriptor of a session's directory may open what is in it, and nothing else.
const HOME_MODE: Mode = Mode::from_raw_mode(0o711);
const ANCHOR_MODE: Mode = Mode::from_raw_mode(0o555);

/// What the kernel calls a descriptor's object: device and inode number.
type Identity = (u64, u64);
/// A session's directory. A session's number is given again; this one is not.
type HomeId = u64;

#[derive(Clone, Copy, Debug)]
struct Anchor {
    identity: Identity,
    home: HomeId,
    /// Present when it has no name any more and is watched by itself.
    watch: Option<i32>,
    /// In the list of those to be looked after.
    doubted: bool,
}

/// The directory of a session's anchors. It stays until the last anchor in it has lost its name.
#[derive(Debug)]
struct Home {
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

/// All anchors of the engine.
#[derive(Debug)]
pub struct Anchors {
    by_handle: HashMap<AnchorHandle, Anchor>,
    by_identity: HashMap<Identity, AnchorHandle>,
    sessions: HashMap<SessionId, HomeId>,
    homes: HashMap<HomeId, Home>,
    watched: HashMap<i32, Watched>,
    /// To be looked after: their session is gone, or reports were lost and with them perhaps theirs.
    doubtful: VecDeque<AnchorHandle>,
    homes_made: u64,
    reports: OwnedFd,
    root: AnchorRoot,
}

impl Anchors {
    pub fn new() -> std::io::Result<Anchors> {
        Ok(Anchors {
            by_handle: HashMap::new(),
            by_identity: HashMap::new(),
            sessions: HashMap::new(),
            homes: HashMap::new(),
            watched: HashMap::new(),
            doubtful: VecDeque::new(),
            homes_made: 0,
            reports: inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?,
            root: AnchorRoot::make()?,
        })
    }

    /// Readable when anchors may have been closed: then [`Anchors::take_closed`] tells which.
    pub fn reports(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }

    /// Makes the directory of a new session; returns the descriptor by which its host opens anchors.
    pub fn open_home(&mut self, session: SessionId) -> std::io::Result<OwnedFd> {
        let id = self.homes_made;
        self.homes_made += 1;
        let name = id.to_string();
        self.make_dir(&name, HOME_MODE)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(self.root.dir(), &*name, flags, Mode::empty()).and_then(|dir| {
            let path = self.root.path_to(&name);
            Ok((dir, inotify::add_watch(&self.reports, path, WatchFlags::CLOSE_NOWRITE)?))
        });
        match opened {
            Ok((dir, watch)) => {
                self.watched.insert(watch, Watched::Home(id));
                self.homes.insert(id, Home { watch, anchors: 0, named: 0, open: true });
                self.sessions.insert(session, id);
                Ok(dir)
            }
            Err(errno) => {
                self.remove_dir(&name);
                Err(errno.into())
            }
        }
    }

    /// Makes an anchor for `session`.
    pub fn add(&mut self, session: SessionId, handle: AnchorHandle) -> std::io::Result<()> {
        let id = *self.sessions.get(&session).ok_or(Errno::BADF)?;
        let name = format!("{id}/{handle}");
        self.make_dir(&name, ANCHOR_MODE)?;
        let stat = rustix::fs::statat(self.root.dir(), &*name, AtFlags::SYMLINK_NOFOLLOW)?;
        let identity = (stat.st_dev, stat.st_ino);
        if let Some(home) = self.homes.get_mut(&id) {
            home.anchors += 1;
            home.named += 1;
        }
        self.by_handle.insert(handle, Anchor { identity, home: id, watch: None, doubted: false });
        self.by_identity.insert(identity, handle);
        Ok(())
    }

    /// The anchor that `fd` has open, if it is one.
    pub fn recognise(&self, fd: impl AsFd) -> Option<AnchorHandle> {
        let stat = rustix::fs::fstat(fd).ok()?;
        self.by_identity.get(&(stat.st_dev, stat.st_ino)).copied()
    }

    /// Adds anchors to `closed` that nobody has open any more; when there are many, not all of them at once.
    pub fn take_closed(&mut self, closed: &mut Vec<AnchorHandle>) {
        let mut buffer = [const { MaybeUninit::uninit() }; REPORTS_LEN];
        let mut lost = false;
        while closed.len() < CLOSED_PER_TURN {
            let mut reader = inotify::Reader::new(&self.reports, &mut buffer);
            // An error means that there is no more.
            let Ok(mut report) = reader.next() else { break };
            loop {
                let kind = report.events();
                lost |= kind.contains(ReadFlags::QUEUE_OVERFLOW);
                match self.watched.get(&report.wd()) {
                    Some(&Watched::Home(id)) if kind.contains(ReadFlags::CLOSE_NOWRITE) => {
                        let name = report.file_name().and_then(|name| name.to_str().ok());
                        let handle = name.and_then(|name| name.parse().ok()).map(AnchorHandle);
                        let is_named = |handle: &AnchorHandle| {
                            self.by_handle.get(handle).is_some_and(|a| a.home == id && a.watch.is_none())
                        };
                        closed.extend(handle.filter(is_named));
                    }
                    Some(&Watched::Anchor(handle)) if kind.contains(ReadFlags::DELETE_SELF) => {
                        self.watched.remove(&report.wd());
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
            self.recover(closed);
        }
    }

    /// Reports were lost. Of the anchors without names the kernel says which it still watches; the others are in doubt.
    fn recover(&mut self, closed: &mut Vec<AnchorHandle>) {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.reports.as_raw_fd()));
        let info = info.unwrap_or_default();
        let live: HashSet<i32> = info.lines().filter_map(watch_in).collect();
        for (&handle, anchor) in &mut self.by_handle {
            match anchor.watch {
                None if anchor.doubted => {}
                None => {
                    anchor.doubted = true;
                    self.doubtful.push_back(handle);
                }
                // Some watch there is, that of a home at least; without any, nothing was told.
                Some(watch) if !live.is_empty() && !live.contains(&watch) => {
                    // It may also have been reported after all.
                    if self.watched.remove(&watch).is_some() {
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
        let Ok(watch) = inotify::add_watch(&self.reports, self.root.path_to(&name), flags) else {
            return false;
        };
        anchor.watch = Some(watch);
        self.watched.insert(watch, Watched::Anchor(handle));
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
            self.watched.remove(&home.watch);
            let _ = inotify::remove_watch(&self.reports, home.watch);
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

    /// Makes a directory with just this mode, whatever the process's mask is.
    fn make_dir(&self, name: &str, mode: Mode) -> std::io::Result<()> {
        rustix::fs::mkdirat(self.root.dir(), name, mode)?;
        Ok(rustix::fs::chmodat(self.root.dir(), name, mode, AtFlags::empty())?)
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

    #[test]
    fn the_kernel_writes_watches_in_hexadecimal() {
        assert_eq!(watch_in("inotify wd:1f ino:9e7e sdev:800013 mask:800afce ignored_mask:0"), Some(31));
        assert_eq!(watch_in("pos:\t0"), None);
    }

    const SESSION: SessionId = SessionId(3);

    struct World {
        anchors: Anchors,
        home: OwnedFd,
    }

    impl World {
        fn new(handles: std::ops::Range<u32>) -> World {
            let mut anchors = Anchors::new().expect("anchors");
            let home = anchors.open_home(SESSION).expect("a home");
            for handle in handles {
                anchors.add(SESSION, AnchorHandle(handle)).expect("added");
            }
            World { anchors, home }
        }

        fn open(&self, handle: u32) -> OwnedFd {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(&self.home, handle.to_string(), flags, Mode::empty()).expect("opened")
        }

        fn closed(&mut self) -> Vec<AnchorHandle> {
            let mut closed = Vec::new();
            self.anchors.take_closed(&mut closed);
            closed.iter().for_each(|handle| self.anchors.closed(*handle));
            closed
        }
    }

    #[test]
    fn any_copy_of_an_anchor_is_recognised_and_nothing_else_is() {
        let mut world = World::new(1..3);
        let (a, b) = (world.open(1), world.open(2));
        assert_eq!(world.anchors.recognise(&a), Some(AnchorHandle(1)));
        assert_eq!(world.anchors.recognise(b.try_clone().expect("dup")), Some(AnchorHandle(2)));
        assert_eq!(world.anchors.recognise(std::io::stdin()), None);
        assert_eq!(world.anchors.recognise(&world.home), None);
        assert!(world.anchors.remove_name(AnchorHandle(1)));
        assert_eq!(world.anchors.recognise(&a), Some(AnchorHandle(1)), "also without a name");
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
        world.anchors.open_home(SESSION).expect("the number is given again");
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
