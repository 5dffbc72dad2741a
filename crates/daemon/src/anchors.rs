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
//! is when nobody has it open, whatever anybody does. Called by `attach`, `daemon` and the run loop.

use crate::anchor_root::AnchorRoot;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use toe_base::limits::{SESSION_FLOWS_MAX, SESSION_LISTENERS_MAX};
use toe_base::{AnchorHandle, SessionId};

/// Anchors that one session may have. It needs one a flow and one a listener, and some in hand.
const SESSION_ANCHORS_MAX: u32 = (SESSION_FLOWS_MAX + SESSION_LISTENERS_MAX) as u32 + 64;
/// Octets of reports taken at once: some hundred.
const REPORTS_LEN: usize = 16 << 10;
/// Whoever has a descriptor of a session's directory may open what is in it, and nothing else.
const HOME_MODE: Mode = Mode::from_raw_mode(0o711);
const ANCHOR_MODE: Mode = Mode::from_raw_mode(0o555);

/// What the kernel calls a descriptor's object: device and inode number.
type Identity = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Anchor {
    identity: Identity,
    /// Who asked for it, as long as that session lives.
    home: Option<SessionId>,
    /// It has no name any more and is watched by itself.
    nameless: bool,
}

/// The directory of a session's anchors.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    watch: i32,
    anchors: u32,
}

#[derive(Clone, Copy, Debug)]
enum Watched {
    Home(SessionId),
    Anchor(AnchorHandle),
}

/// All anchors of the engine.
#[derive(Debug)]
pub struct Anchors {
    by_handle: HashMap<AnchorHandle, Anchor>,
    by_identity: HashMap<Identity, AnchorHandle>,
    homes: HashMap<SessionId, Home>,
    watched: HashMap<i32, Watched>,
    /// Reports were lost, and with them perhaps theirs.
    doubtful: VecDeque<AnchorHandle>,
    /// Directories made so far: a session's number is given again, its directory's name is not.
    homes_made: u64,
    reports: OwnedFd,
    root: AnchorRoot,
}

impl Anchors {
    pub fn new() -> std::io::Result<Anchors> {
        Ok(Anchors {
            by_handle: HashMap::new(),
            by_identity: HashMap::new(),
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
        let path = self.root.path().join(self.homes_made.to_string());
        self.homes_made += 1;
        make_dir(&path, HOME_MODE)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, &path, flags, Mode::empty())
            .and_then(|dir| Ok((dir, inotify::add_watch(&self.reports, &path, WatchFlags::CLOSE_NOWRITE)?)));
        match opened {
            Ok((dir, watch)) => {
                self.watched.insert(watch, Watched::Home(session));
                self.homes.insert(session, Home { path, watch, anchors: 0 });
                Ok(dir)
            }
            Err(errno) => {
                let _ = rustix::fs::rmdir(&path);
                Err(errno.into())
            }
        }
    }

    /// Whether `session` may make another one.
    pub fn may_add(&self, session: SessionId) -> bool {
        self.homes.get(&session).is_some_and(|home| home.anchors < SESSION_ANCHORS_MAX)
    }

    /// Makes an anchor for `session`.
    pub fn add(&mut self, session: SessionId, handle: AnchorHandle) -> std::io::Result<()> {
        let home = self.homes.get_mut(&session).ok_or(Errno::BADF)?;
        let path = home.path.join(handle.to_string());
        make_dir(&path, ANCHOR_MODE)?;
        let stat = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW)?;
        let identity = (stat.st_dev, stat.st_ino);
        home.anchors += 1;
        self.by_handle.insert(handle, Anchor { identity, home: Some(session), nameless: false });
        self.by_identity.insert(identity, handle);
        Ok(())
    }

    /// The anchor that `fd` has open, if it is one.
    pub fn recognise(&self, fd: impl AsFd) -> Option<AnchorHandle> {
        let stat = rustix::fs::fstat(fd).ok()?;
        self.by_identity.get(&(stat.st_dev, stat.st_ino)).copied()
    }

    /// Adds the anchors to `closed` that nobody has open any more.
    pub fn take_closed(&mut self, closed: &mut Vec<AnchorHandle>) {
        let mut buffer = [const { MaybeUninit::uninit() }; REPORTS_LEN];
        let mut reader = inotify::Reader::new(&self.reports, &mut buffer);
        // An error means that there is no more.
        while let Ok(report) = reader.next() {
            let kind = report.events();
            if kind.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.doubtful.extend(self.by_handle.iter().filter(|(_, a)| !a.nameless).map(|(h, _)| *h));
                continue;
            }
            match self.watched.get(&report.wd()) {
                Some(&Watched::Home(session)) if kind.contains(ReadFlags::CLOSE_NOWRITE) => {
                    let name = report.file_name().and_then(|name| name.to_str().ok());
                    let handle = name.and_then(|name| name.parse().ok()).map(AnchorHandle);
                    let known = handle.filter(|handle| {
                        let anchor = self.by_handle.get(handle);
                        anchor.is_some_and(|anchor| anchor.home == Some(session) && !anchor.nameless)
                    });
                    closed.extend(known);
                }
                Some(&Watched::Anchor(handle)) if kind.contains(ReadFlags::DELETE_SELF) => {
                    closed.push(handle);
                    self.watched.remove(&report.wd());
                }
                _ => {}
            }
        }
    }

    /// The next anchor of which a report may have been lost. Once its name is removed, its end is reported for sure.
    pub fn next_doubtful(&mut self) -> Option<AnchorHandle> {
        self.doubtful.pop_front()
    }

    pub fn has_doubtful(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// From now on the anchor's end is reported by the anchor itself, and nobody can open it any more. `false`: that
    /// cannot be had; it counts as closed.
    pub fn remove_name(&mut self, handle: AnchorHandle) -> bool {
        let Some(anchor) = self.by_handle.get_mut(&handle) else { return true };
        let Some(home) = anchor.home.and_then(|home| self.homes.get(&home)).filter(|_| !anchor.nameless)
        else {
            return true;
        };
        let path = home.path.join(handle.to_string());
        let watch = inotify::add_watch(&self.reports, &path, WatchFlags::DELETE_SELF | WatchFlags::ONLYDIR);
        anchor.nameless = true;
        let Ok(watch) = watch else {
            // The user's watches are used up (fs.inotify.max_user_watches).
            let _ = rustix::fs::rmdir(&path);
            return false;
        };
        self.watched.insert(watch, Watched::Anchor(handle));
        rustix::fs::rmdir(&path).is_ok()
    }

    /// An anchor was closed: it can be used again, or, without a name, goes.
    pub fn closed(&mut self, handle: AnchorHandle) {
        if self.by_handle.get(&handle).is_some_and(|anchor| anchor.nameless) {
            self.forget(handle);
        }
    }

    fn forget(&mut self, handle: AnchorHandle) {
        let Some(anchor) = self.by_handle.remove(&handle) else { return };
        // The kernel may have given the number to another directory already.
        if self.by_identity.get(&anchor.identity) == Some(&handle) {
            self.by_identity.remove(&anchor.identity);
        }
        if let Some(home) = anchor.home.and_then(|home| self.homes.get_mut(&home)) {
            home.anchors -= 1;
        }
    }

    /// The session is gone and its number will be given again. Its anchors that still stand for something live on with
    /// whoever has them open. Those that cannot be watched come back: they count as closed.
    pub fn close_home(
        &mut self,
        session: SessionId,
        stands: impl Fn(AnchorHandle) -> bool,
    ) -> Vec<AnchorHandle> {
        let of_session = |(handle, anchor): (&AnchorHandle, &Anchor)| {
            (anchor.home == Some(session)).then_some((*handle, anchor.nameless))
        };
        let anchors: Vec<(AnchorHandle, bool)> = self.by_handle.iter().filter_map(of_session).collect();
        let mut lost = Vec::new();
        for (handle, nameless) in anchors {
            if stands(handle) {
                if !self.remove_name(handle) {
                    lost.push(handle);
                }
                if let Some(anchor) = self.by_handle.get_mut(&handle) {
                    anchor.home = None;
                }
                continue;
            }
            if let Some(home) = self.homes.get(&session).filter(|_| !nameless) {
                let _ = rustix::fs::rmdir(home.path.join(handle.to_string()));
            }
            self.forget(handle);
        }
        if let Some(home) = self.homes.remove(&session) {
            self.watched.remove(&home.watch);
            let _ = inotify::remove_watch(&self.reports, home.watch);
            let _ = rustix::fs::rmdir(&home.path);
        }
        lost
    }

    /// Whether nothing of a session that has gone is held any more. (What a living one has goes with it.)
    pub fn is_empty(&self) -> bool {
        self.by_handle.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_handle.len()
    }
}

/// Makes a directory with just this mode, whatever the process's mask is.
fn make_dir(path: &std::path::Path, mode: Mode) -> std::io::Result<()> {
    rustix::fs::mkdir(path, mode)?;
    Ok(rustix::fs::chmod(path, mode)?)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn of_a_session_that_has_gone_only_what_stands_for_something_and_is_open_stays() {
        let mut world = World::new(1..4);
        let (open, of_nothing) = (world.open(1), world.open(2));
        // The third one stands for something and nobody has it open.
        let lost = world.anchors.close_home(SESSION, |handle| handle != AnchorHandle(2));
        assert_eq!(lost, []);
        assert_eq!(world.closed(), [AnchorHandle(3)]);
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
        let closed = world.closed();
        assert!(!closed.contains(&AnchorHandle(2)), "the report did not fit");
        let mut sure = Vec::new();
        while let Some(handle) = world.anchors.next_doubtful() {
            assert!(world.anchors.remove_name(handle));
        }
        sure.extend(world.closed());
        assert!(sure.contains(&AnchorHandle(2)) && !sure.contains(&AnchorHandle(3)), "{sure:?}");
        drop(held);
        assert_eq!(world.closed(), [AnchorHandle(3)]);
    }

    #[test]
    fn a_session_is_charged_until_its_anchors_are_gone() {
        let mut world = World::new(1..3);
        assert_eq!(world.anchors.homes[&SESSION].anchors, 2);
        assert!(world.anchors.remove_name(AnchorHandle(1)));
        assert_eq!(world.closed(), [AnchorHandle(1)]);
        assert_eq!(world.anchors.homes[&SESSION].anchors, 1);
        assert!(world.anchors.may_add(SESSION) && !world.anchors.may_add(SessionId(4)));
    }
}
