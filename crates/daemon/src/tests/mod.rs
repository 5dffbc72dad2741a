//! Tests of the daemon as a whole: a fake host at the other end of a control connection, real rings, no interface.

mod attach;
mod capture;
mod direct;
mod fake_host;
mod follow;
mod hostile;
mod transfer;
mod turns;

use crate::config::Config;
use crate::daemon::Daemon;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

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
    Daemon::new(&config, [7; 16]).expect("a daemon")
}

/// Rounds and looks outside until nothing moves any more.
pub(crate) fn settle(daemon: &mut Daemon) {
    let mut quiet = 0;
    for _ in 0..100_000 {
        let now = daemon.clock.now();
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
