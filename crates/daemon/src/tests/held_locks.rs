//! Hosts that keep the lock of a directory of anchors while the engine has it removed.

use super::fake_host::Control;
use super::stuck_page::{Holding, StuckPage};
use super::{daemon_with, settle};
use crate::anchors::identity_of;
use crate::daemon::Daemon;
use rustix::fs::{Mode, OFlags, RawDir};
use std::os::fd::OwnedFd;
use toe_abi::attach::{Reply, Request};

const USER: u32 = 4242;
const HELLO: Request = Request::Hello { room: 0 };

/// Only root can be several users, and decide about the kernel's faults in its memory.
fn is_able() -> bool {
    let is_able = rustix::process::geteuid().is_root() && StuckPage::new().is_some();
    if !is_able {
        println!("not tried: it takes root and userfaultfd");
    }
    is_able
}

fn open_to_all() -> Daemon {
    daemon_with("toed --allow-all --receive-memory-mib 16 --send-memory-mib 16")
}

/// The directory of a new session's anchors, and one of them open.
fn settle_in(daemon: &mut Daemon, control: &Control) -> (OwnedFd, OwnedFd) {
    let (reply, mut fds) = control.ask(daemon, HELLO);
    assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
    let session_dir = fds.pop().expect("the last one");
    let (reply, _) = control.ask(daemon, Request::TakeAnchors { count: 2 });
    let Reply::Anchors { first, .. } = reply else { panic!("{reply:?}") };
    let anchor = open(&session_dir, &first.to_string());
    (session_dir, anchor)
}

fn open(dir: &OwnedFd, name: &str) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty()).expect("opened")
}

/// Lists a directory into memory that comes late, with the lock of it.
fn list(dir: OwnedFd) -> Holding {
    let call = move |page: &StuckPage| {
        let mut entries = RawDir::new(dir, page.room());
        entries.next().expect("an entry").expect("listed");
    };
    Holding::new(call).expect("a page")
}

/// Somebody else comes, and gets what he asks for.
fn others_are_served(daemon: &mut Daemon) {
    let other = Control::of_user(daemon, USER + 1);
    assert!(matches!(other.ask_meanwhile(daemon, HELLO).0, Reply::Welcome { .. }));
    let (reply, _) = other.ask_meanwhile(daemon, Request::TakeAnchors { count: 32 });
    assert!(matches!(reply, Reply::Anchors { count: 32, .. }), "{reply:?}");
}

#[test]
fn an_anchor_that_a_session_leaves_is_removed_when_its_lock_is_free() {
    if !is_able() {
        return;
    }
    let mut daemon = open_to_all();
    let hostile = Control::of_user(&mut daemon, USER);
    let (session_dir, anchor) = settle_in(&mut daemon, &hostile);
    let holding = list(anchor);
    drop(hostile);
    others_are_served(&mut daemon);
    holding.let_go();
    settle(&mut daemon);
    let gone = rustix::fs::openat(&session_dir, ".", OFlags::RDONLY, Mode::empty());
    let links = gone.map(|dir| rustix::fs::fstat(dir).expect("a stat").st_nlink);
    assert_eq!(links.unwrap_or(0), 0, "the session's directory is removed as well");
}

#[test]
fn an_anchor_that_another_process_shows_loses_its_name_when_its_lock_is_free() {
    if !is_able() {
        return;
    }
    let mut daemon = open_to_all();
    let (hostile, second) = (Control::of_user(&mut daemon, USER), Control::of_user(&mut daemon, USER));
    let (_home, anchor) = settle_in(&mut daemon, &hostile);
    settle_in(&mut daemon, &second);
    let handle = daemon.anchors.recognise(identity_of(&anchor).expect("an object")).expect("known");
    let holding = list(anchor);
    let now = daemon.timing.clock.now();
    daemon.anchors.share(now, &mut daemon.engine, &mut daemon.sessions, handle);
    others_are_served(&mut daemon);
    holding.let_go();
    settle(&mut daemon);
    // Two sessions took two each, and others, who took 32, have left.
    assert_eq!(daemon.anchors.len(), 3, "its end was told: nobody has it open");
}

#[test]
fn what_is_above_a_users_directories_is_above_nobody_elses() {
    if !is_able() {
        return;
    }
    let mut daemon = open_to_all();
    let contained = Control::of_new_namespace(&mut daemon);
    let (session_dir, _anchor) = settle_in(&mut daemon, &contained);
    let holding = list(open(&session_dir, ".."));
    others_are_served(&mut daemon);
    // What he leaves is removed there.
    drop(contained);
    others_are_served(&mut daemon);
    let outside = Control::new(&mut daemon);
    assert!(matches!(outside.ask_meanwhile(&mut daemon, HELLO).0, Reply::Welcome { .. }));
    holding.let_go();
    settle(&mut daemon);
}
