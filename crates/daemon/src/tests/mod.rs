//! Tests of the daemon as a whole: a fake host at the other end of a control connection, real rings, no interface.

mod attach;
mod capture;
mod control_server;
mod datagrams;
mod direct;
mod fake_host;
mod follow;
mod fuse;
mod giving_back;
mod held_locks;
mod hostile;
mod lanes;
mod quanta;
mod stuck_page;
mod transfer;
mod via;
mod wakes;

use crate::config::Config;
use crate::daemon::Daemon;
use crate::policy::{Credentials, Policy};
use crate::report::View;
use crate::status::status_report;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use toe_abi::report::{SocketsReport, StatusReport};

/// A directory that goes with the test.
#[derive(Debug)]
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("toed-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a new directory");
        TempDir(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A daemon with the `local` port only and small sessions, driven by the test.
pub(crate) fn daemon() -> Daemon {
    daemon_with("toed --receive-memory-mib 16 --send-memory-mib 16")
}

pub(crate) fn daemon_with(line: &str) -> Daemon {
    let config = Config::from_command_line(line.split_whitespace().map(Into::into)).expect("good flags");
    // A test beside this one may have all inotify instances that a user can have, and lets go of them when it ends.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match Daemon::new(&config, [7; 16]) {
            Err(error) if error.raw_os_error() == Some(24) && std::time::Instant::now() < patience => {
                std::thread::yield_now();
            }
            made => return made.expect("a daemon"),
        }
    }
}

impl Daemon {
    /// The reports as root gets them.
    pub(crate) fn whole_status(&self) -> StatusReport {
        status_report(self, &self.view(&root(&self.hosts.policy)))
    }

    pub(crate) fn whole_sockets(&self) -> SocketsReport {
        self.sockets_report(&self.view(&root(&self.hosts.policy)))
    }

    pub(crate) fn view<'a>(&'a self, who: &'a Credentials) -> View<'a> {
        View { policy: &self.hosts.policy, who, sessions: &self.sessions, ports: &self.links.ports }
    }

    /// As a list shows them that is made in one step.
    pub(crate) fn sockets_report(&self, view: &View<'_>) -> SocketsReport {
        let sockets = self.engine.view().sockets(self.timing.clock.now());
        let visible = sockets.iter().filter(|socket| view.shows_socket(socket));
        SocketsReport { sockets: visible.map(|socket| view.socket(socket)).collect() }
    }

    /// The connection at `conn` is another user's from here on, as far as the engine's thread knows.
    pub(crate) fn pose(&mut self, conn: u32, uid: u32) {
        self.hosts.connections.get_mut(conn).expect("the connection").who.uid = uid;
    }
}

fn root(policy: &Policy) -> Credentials {
    Credentials { netns: policy.netns, ..Credentials::default() }
}

/// Works until nothing moves any more and nobody of the control server's has anything left to do.
pub(crate) fn settle(daemon: &mut Daemon) {
    let began = std::time::Instant::now();
    loop {
        let dealings = dealings(daemon);
        let settled = daemon.hosts.server.settle();
        while settled.recv_timeout(Duration::from_micros(20)) == Err(RecvTimeoutError::Timeout) {
            let now = daemon.timing.clock.now();
            daemon.round(now);
            daemon.tick(now).expect("a look outside");
            assert!(began.elapsed() < Duration::from_secs(60), "the control server never comes to rest");
        }
        come_to_rest(daemon);
        if self::dealings(daemon) == dealings {
            return;
        }
    }
}

fn dealings(daemon: &Daemon) -> u64 {
    daemon.hosts.server.dealings() + daemon.anchors.orders()
}

/// Works until `is_so`, which the control server may be about to make true while one of its threads stands still.
pub(crate) fn until(daemon: &mut Daemon, what: &str, mut is_so: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        come_to_rest(daemon);
        std::thread::yield_now();
        assert!(began.elapsed() < Duration::from_secs(60), "in vain: {what}");
    }
}

/// Rounds and looks outside until nothing moves any more.
pub(crate) fn come_to_rest(daemon: &mut Daemon) {
    let mut quiet = 0;
    for _ in 0..100_000 {
        let now = daemon.timing.clock.now();
        let moved = daemon.round(now);
        daemon.tick(now).expect("a look outside");
        // What a tick brought in moves in the next round.
        quiet = if moved == 0 { quiet + 1 } else { 0 };
        if quiet > 2 {
            return;
        }
    }
    panic!("the engine never comes to rest");
}
