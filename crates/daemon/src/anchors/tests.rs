//! What is reported of anchors, with a user's thread that works when the test says so.

use super::table::watch_in;
use super::*;
use crate::poller::Poller;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use toe_base::{AnchorHandle, Cred, Instant, NetNs, SessionId};
use toe_ring::EventFd;

#[test]
fn the_kernel_writes_watches_in_hexadecimal() {
    assert_eq!(watch_in("inotify wd:1f ino:9e7e sdev:800013 mask:800afce ignored_mask:0"), Some(31));
    assert_eq!(watch_in("pos:\t0"), None);
}

const SESSION: SessionId = SessionId(3);
const USER: u32 = 1000;
const OWN: NetNs = NetNs(1);

/// The part of a user's thread.
struct Thread {
    keeper: Keeper,
    session_dirs: Arc<AtomicUsize>,
}

impl Thread {
    fn of(anchors: &Anchors, uid: u32) -> Thread {
        let (eventfd, session_dirs) = (Arc::new(EventFd::new().expect("an eventfd")), Arc::default());
        let keeper = Keeper::new(anchors.supplies(), Cred { uid, netns: OWN }, &eventfd, &session_dirs);
        Thread { keeper, session_dirs }
    }

    /// A session's directory with anchors.
    fn settle_in(
        &mut self,
        anchors: &mut Anchors,
        poller: &Poller,
        session: SessionId,
        handles: std::ops::Range<u32>,
    ) -> SessionDir {
        let session_dir = self.keeper.make_session_dir().expect("a directory");
        anchors
            .open_session_dir(poller, session, Cred { uid: USER, netns: OWN }, &session_dir)
            .expect("a home");
        let made =
            self.keeper.make_anchors(session_dir.id, AnchorHandle(handles.start), handles.len() as u32);
        assert_eq!(made.identities.len(), handles.len());
        anchors.add(&made);
        session_dir
    }
}

struct World {
    anchors: Anchors,
    poller: Poller,
    thread: Thread,
    session_dir: SessionDir,
}

impl World {
    fn new(handles: std::ops::Range<u32>) -> World {
        let poller = Poller::new().expect("epoll");
        let mut anchors = Anchors::new(4, OWN).expect("anchors");
        let mut thread = Thread::of(&anchors, USER);
        let session_dir = thread.settle_in(&mut anchors, &poller, SESSION, handles);
        World { anchors, poller, thread, session_dir }
    }

    fn recognise(&self, fd: impl AsFd) -> Option<AnchorHandle> {
        self.anchors.recognise(identity_of(fd).expect("an identity"))
    }

    fn open(&self, handle: u32) -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.session_dir.dir, handle.to_string(), flags, Mode::empty()).expect("opened")
    }

    /// The user's thread has its turn.
    fn carry_out(&mut self) {
        while self.thread.keeper.carry_out().is_more {}
    }

    /// What the engine's thread finds closed without it.
    fn closed(&mut self) -> Vec<AnchorHandle> {
        let mut closed = Vec::new();
        self.anchors.sources().into_iter().for_each(|id| self.anchors.take_closed(id, &mut closed));
        closed.iter().for_each(|handle| self.anchors.closed(*handle));
        closed
    }

    /// Closes of the anchors 0 and 1 in turns, because reports of the same kind in a row are joined. No test of this program
    /// forks: a child's copies would make closes late (`tests/just_killed.rs`).
    fn make_more_reports_than_fit(&self) {
        let limit = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
        let limit: u32 = limit.trim().parse().expect("a number");
        for round in 0..limit + 2 {
            drop(self.open(round % 2));
        }
    }

    fn remove_name(&mut self, handle: u32) {
        self.anchors.remove_name(AnchorHandle(handle));
        self.carry_out();
    }
}

#[test]
fn any_copy_of_an_anchor_is_recognised_and_nothing_else_is() {
    let mut world = World::new(1..3);
    let (a, b) = (world.open(1), world.open(2));
    assert_eq!(world.recognise(&a), Some(AnchorHandle(1)));
    assert_eq!(world.recognise(b.try_clone().expect("dup")), Some(AnchorHandle(2)));
    assert_eq!(world.recognise(std::io::stdin()), None);
    assert_eq!(world.recognise(&world.session_dir.dir), None);
    world.remove_name(1);
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
fn bytes_that_go_past_the_switch_fail_and_are_not_lost() {
    let world = World::new(1..2);
    let end = world.open(1);
    assert_eq!(rustix::io::write(&end, b"lost?"), Err(Errno::BADF));
    assert_eq!(rustix::io::read(&end, &mut [0; 8]), Err(Errno::ISDIR));
}

#[test]
fn one_that_another_process_has_shown_cannot_be_ended_by_its_first_session() {
    let mut world = World::new(1..2);
    let (own, passed_on) = (world.open(1), world.open(1));
    world.remove_name(1);
    let name = rustix::fs::openat(&world.session_dir.dir, "1", OFlags::RDONLY, Mode::empty());
    assert_eq!(name.err(), Some(Errno::NOENT));
    drop(own);
    assert_eq!(world.closed(), []);
    drop(passed_on);
    assert_eq!(world.closed(), [AnchorHandle(1)]);
    assert!(world.anchors.is_empty());
}

/// Root of a container can rename what is in his room, and put a link in its place.
#[test]
fn a_link_in_the_place_of_a_home_leads_nowhere() {
    if !rustix::process::geteuid().is_root() {
        return; // Who may not mount has no rooms: SECURITY.md.
    }
    let mut world = World::new(0..4);
    let elsewhere =
        Thread::of(&world.anchors, USER + 1).keeper.make_session_dir().expect("another user's home");
    let elsewhere = format!("/proc/self/fd/{}", elsewhere.dir.as_raw_fd());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let room = rustix::fs::openat(&world.session_dir.dir, "..", flags, Mode::empty()).expect("the room");
    let name = world.session_dir.id.to_string();
    rustix::fs::renameat(&room, &*name, &room, "moved").expect("renamed");
    rustix::fs::symlinkat(&elsewhere, &room, &*name).expect("a link");
    let made = world.thread.keeper.make_anchors(world.session_dir.id, AnchorHandle(100), 4);
    assert_eq!(made.identities.len(), 0);
    assert_eq!(std::fs::read_dir(&elsewhere).expect("a directory").count(), 0);
    let file = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(&room, "file", file, Mode::RUSR | Mode::WUSR).expect("a file");
    let too_much = rustix::io::retry_on_intr(|| {
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20)
    });
    assert_eq!(too_much, Err(Errno::NOSPC), "nobody pays for it");
}

/// What the daemon does with anchors in doubt.
fn look_after_all(world: &mut World, stands: impl Fn(AnchorHandle) -> bool) {
    while let Some(handle) = world.anchors.next_doubtful() {
        if stands(handle) {
            world.anchors.remove_name(handle);
        } else {
            world.anchors.remove(handle);
        }
    }
    world.carry_out();
}

#[test]
fn of_a_session_that_has_gone_only_what_stands_for_something_and_is_open_stays() {
    let mut world = World::new(1..4);
    let (open, of_nothing) = (world.open(1), world.open(2));
    // The third one stands for something and nobody has it open.
    world.anchors.leave_session_dir(SESSION);
    assert!(world.anchors.is_left(AnchorHandle(1)) && world.anchors.doubts() == 3);
    look_after_all(&mut world, |handle| handle != AnchorHandle(2));
    assert_eq!(world.closed(), [AnchorHandle(3)]);
    assert_eq!(world.thread.session_dirs.load(Ordering::Relaxed), 0, "its directory is gone");
    drop(of_nothing);
    assert_eq!(world.closed(), []);
    drop(open);
    assert_eq!(world.closed(), [AnchorHandle(1)]);
    assert!(world.anchors.is_empty());
    assert_eq!(world.anchors.session_dirs(), 0);
    world.thread.settle_in(&mut world.anchors, &world.poller, SESSION, 0..0);
}

#[test]
fn lost_reports_are_made_up_for() {
    let mut world = World::new(0..4);
    let held = world.open(3);
    world.make_more_reports_than_fit();
    drop(world.open(2));
    let closed: Vec<AnchorHandle> =
        std::iter::repeat_with(|| world.closed()).take_while(|closed| !closed.is_empty()).flatten().collect();
    assert!(!closed.contains(&AnchorHandle(2)), "the report did not fit");
    look_after_all(&mut world, |_| true);
    let sure = world.closed();
    assert!(sure.contains(&AnchorHandle(2)) && !sure.contains(&AnchorHandle(3)), "{sure:?}");
    drop(held);
    assert_eq!(world.closed(), [AnchorHandle(3)]);
}

#[test]
fn what_one_user_loses_puts_nothing_of_anothers_in_doubt() {
    let mut world = World::new(0..3);
    let mut other = Thread::of(&world.anchors, USER + 1);
    let _home = other.settle_in(&mut world.anchors, &world.poller, SessionId(4), 10..20);
    world.make_more_reports_than_fit();
    while !world.closed().is_empty() {}
    let doubted: Vec<AnchorHandle> = std::iter::from_fn(|| world.anchors.next_doubtful()).collect();
    assert_eq!(doubted.len(), 3, "{doubted:?}");
    assert!(doubted.iter().all(|handle| handle.0 < 3), "{doubted:?}");
}

#[test]
fn lost_reports_of_anchors_without_names_are_made_up_for() {
    let mut world = World::new(0..4);
    let (gone, held) = (world.open(2), world.open(3));
    world.remove_name(2);
    world.remove_name(3);
    world.make_more_reports_than_fit();
    drop(gone);
    let closed: HashSet<AnchorHandle> =
        std::iter::repeat_with(|| world.closed()).take_while(|closed| !closed.is_empty()).flatten().collect();
    assert!(closed.contains(&AnchorHandle(2)) && !closed.contains(&AnchorHandle(3)), "{closed:?}");
    drop(held);
    assert_eq!(world.closed(), [AnchorHandle(3)]);
}

#[test]
fn a_close_by_name_while_the_name_is_being_removed_is_told_at_its_removal() {
    let mut world = World::new(1..2);
    world.anchors.remove_name(AnchorHandle(1));
    drop(world.open(1));
    assert_eq!(world.closed(), []);
    world.carry_out();
    assert_eq!(world.closed(), [AnchorHandle(1)], "read before what the thread told of it");
    assert!(world.anchors.is_empty());
}

#[test]
fn one_that_cannot_be_watched_keeps_its_name_and_is_closed_if_it_was() {
    for was_closed in [false, true] {
        let mut world = World::new(1..2);
        let mut end = Some(world.open(1));
        world.anchors.remove_name(AnchorHandle(1));
        end.take_if(|_| was_closed);
        assert_eq!(world.closed(), []);
        // As if there were no watch to be had.
        rustix::fs::unlinkat(&world.session_dir.dir, "1", AtFlags::REMOVEDIR).expect("removed");
        world.carry_out();
        world.anchors.take_events();
        let unwatched = world.anchors.next_unwatched().expect("told");
        assert_eq!((unwatched.handle, unwatched.closed), (AnchorHandle(1), was_closed));
        assert_eq!(world.anchors.len(), 1);
    }
}

#[test]
fn a_name_that_is_still_there_is_not_made_again() {
    let mut world = World::new(1..3);
    world.anchors.remove(AnchorHandle(2));
    let make = |world: &mut World| {
        world.thread.keeper.make_anchors(world.session_dir.id, AnchorHandle(2), 1).identities.len()
    };
    assert_eq!(make(&mut world), 0);
    world.carry_out();
    assert_eq!(make(&mut world), 1);
}

#[test]
fn a_thread_has_its_home_until_the_last_name_in_it_is_gone() {
    let mut world = World::new(1..3);
    let session_dirs = Arc::clone(&world.thread.session_dirs);
    world.anchors.leave_session_dir(SESSION);
    world.carry_out();
    assert_eq!(session_dirs.load(Ordering::Relaxed), 1);
    // Made while the session ended.
    let late = world.thread.keeper.make_anchors(world.session_dir.id, AnchorHandle(9), 2);
    world.anchors.refuse(&late);
    look_after_all(&mut world, |handle| handle == AnchorHandle(1));
    assert_eq!(session_dirs.load(Ordering::Relaxed), 0);
    let name = rustix::fs::openat(&world.session_dir.dir, "9", OFlags::RDONLY, Mode::empty());
    assert_eq!(name.err(), Some(Errno::NOENT));
}

#[test]
fn users_share_no_directory() {
    let mut world = World::new(0..0);
    let mut other = Thread::of(&world.anchors, USER + 1);
    let session_dir = other.settle_in(&mut world.anchors, &world.poller, SessionId(4), 0..0);
    let above = |session_dir: &SessionDir| {
        identity_at(&session_dir.dir, "..", AtFlags::empty()).expect("a directory")
    };
    assert_ne!(above(&session_dir), above(&world.session_dir));
}

#[test]
fn a_flood_of_reports_is_read_a_few_at_a_time() {
    let mut world = World::new(0..4);
    for round in 0..1000 {
        drop(world.open(round % 4));
    }
    let told = std::iter::repeat_with(|| world.closed().len()).take_while(|told| *told > 0);
    let told: Vec<usize> = told.collect();
    assert!(told.iter().all(|told| *told <= 64) && told.iter().sum::<usize>() == 1000, "{told:?}");
}

#[test]
fn what_is_muted_is_heard_again_a_little_later() {
    let mut world = World::new(0..4);
    let heard = |world: &World| {
        let mut tokens = Vec::new();
        world.poller.wait(Some(Duration::ZERO), &mut tokens).expect("a look");
        tokens.len()
    };
    let now = Instant::from_micros(1_000_000);
    drop(world.open(1));
    assert_eq!(heard(&world), 1);
    let id = world.anchors.sources()[0];
    world.anchors.mute(&world.poller, id, now);
    assert_eq!(heard(&world), 0);
    let until = world.anchors.next_unmute();
    assert!(until > now && !until.is_far_future());
    world.anchors.unmute(&world.poller, until);
    assert_eq!((heard(&world), world.anchors.next_unmute().is_far_future()), (1, true));
    assert_eq!(world.closed(), [AnchorHandle(1)]);
}
