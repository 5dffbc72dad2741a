//! What a host can wait for, and what the engine's thread does to that.

use super::fake_host::{Control, FakeHost};
use super::{daemon, settle, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use toe_abi::attach::{ReportKind, Request};

/// The host's own copy of its eventfd.
fn eventfd_of(host: &FakeHost) -> OwnedFd {
    host.doorbell.as_fd().try_clone_to_owned().expect("a copy")
}

fn ring(eventfd: &OwnedFd) {
    rustix::io::write(eventfd, &1u64.to_ne_bytes()).expect("rung");
}

fn is_readable(eventfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(eventfd, PollFlags::IN)], Some(&now)) == Ok(1)
}

/// To read it wakes all who wait until it can be written to, and a host can have any number of those.
#[test]
fn a_doorbell_is_heard_at_each_ring_and_never_read() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    let eventfd = eventfd_of(&host);
    settle(&mut daemon);
    for _ in 0..3 {
        let now = daemon.timing.clock.now();
        assert!(!daemon.tick(now).expect("a look"), "no news");
        ring(&eventfd);
        assert!(daemon.tick(now).expect("a look"), "heard");
        assert!(is_readable(&eventfd), "not read");
    }
}

/// Its number is another session's soon, whose user would be charged for what rings in vain.
#[test]
fn the_bell_of_a_session_that_is_over_is_not_heard() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    let eventfd = eventfd_of(&host);
    drop(host);
    settle(&mut daemon);
    assert!(daemon.is_unused());
    ring(&eventfd);
    let now = daemon.timing.clock.now();
    assert!(!daemon.tick(now).expect("a look"), "nobody's");
}

/// One that is not heard for a while is heard then, if it was rung meanwhile.
#[test]
fn a_bell_that_was_muted_is_heard_again() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    let eventfd = eventfd_of(&host);
    settle(&mut daemon);
    let now = daemon.timing.clock.now();
    let is_muted = |daemon: &crate::daemon::Daemon| !daemon.sessions.next_unmute().is_far_future();
    for _ in 0..1000 {
        if is_muted(&daemon) {
            break;
        }
        ring(&eventfd);
        daemon.tick(now).expect("a look");
    }
    assert!(is_muted(&daemon), "rung in vain too often");
    ring(&eventfd);
    assert!(!daemon.tick(now).expect("a look"), "not heard");
    let later = daemon.sessions.next_unmute();
    daemon.tick(later).expect("a look, at the end of which it is heard again");
    assert!(daemon.tick(later).expect("a look"), "heard");
}

/// Pages of a report are the engine's cgroup's as long as somebody has it.
#[test]
fn who_keeps_reports_keeps_the_last_ones_only() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    let mut kept = Vec::new();
    for _ in 0..20 {
        daemon.reports.not_before = daemon.timing.clock.now();
        let (_, fds) = control.ask(&mut daemon, Request::Report { what: ReportKind::Status });
        kept.extend(fds);
    }
    settle(&mut daemon);
    let is_there = |report: &&OwnedFd| rustix::fs::fstat(report).expect("its size").st_size > 0;
    assert_eq!((kept.len(), kept.iter().filter(is_there).count()), (20, 8));
    assert!(kept.last().iter().all(is_there), "the last one is whole");
    drop(control);
    settle(&mut daemon);
    until(&mut daemon, "a user who has left has none", || !kept.iter().any(|report| is_there(&report)));
}

/// Calls that wake whoever waits for a descriptor, and where they are made. docs/security.md says of each that is about what a host has, too,
/// why the engine's thread is not held by it: who adds one adds it there.
const CALLS: [(&str, &str, usize); 9] = [
    // By a thread of its own.
    ("capture.rs", "net::send", 1),
    // Measured.
    ("datagrams/raw.rs", "net::send", 2),
    ("control_server/socket.rs", "net::send", 1),
    ("control_server/wake.rs", "line.signal()", 1),
    // Measured, and by the user's thread.
    ("control_server/pages.rs", "line.signal()", 2),
    ("via.rs", "line().signal()", 1),
    // To the kernel itself.
    ("kernel/netlink.rs", "net::send", 1),
    ("control_server/listening.rs", "net::send", 1),
    // Measured, and the door's.
    ("control_server/socket.rs", "net::shutdown(", 2),
];
const PATTERNS: [&str; 6] =
    ["net::send", "net::shutdown(", "io::write(", "line.signal()", "line().signal()", "doorbell.drain"];

#[test]
fn every_call_that_wakes_a_host_is_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut found, mut dirs) = (Vec::new(), vec![root.clone()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
            let path = entry.path();
            let name = path.strip_prefix(&root).expect("below it").to_string_lossy().into_owned();
            if path.is_dir() {
                dirs.extend(Some(path).filter(|_| name != "tests"));
            } else if !name.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                let text = text.split("mod tests {").next().unwrap_or_default();
                let count = |pattern: &str| text.matches(pattern).count();
                found.extend(PATTERNS.map(|pattern| (name.clone(), pattern, count(pattern))));
            }
        }
    }
    found.retain(|(_, _, count)| *count > 0);
    found.sort();
    let mut known = CALLS.map(|(name, call, count)| (name.to_owned(), call, count));
    known.sort();
    assert_eq!(found, known);
}
