//! The directory under which an engine keeps its anchors: a new one for each engine, gone with it.
//!
//! It lies in shared memory, where making and opening an anchor touches no disk. The engine holds a lock on it; what an
//! engine left behind that was killed has none, and the next engine removes it. Used by [`crate::anchors`].

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory that every Linux system has as a file system.
const SHARED_MEMORY: &str = "/dev/shm";
/// What the names of these directories begin with.
const PREFIX: &str = "opentoe-anchors-";

/// Directories of this process so far.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The directory; dropping it removes it.
#[derive(Debug)]
pub struct AnchorRoot {
    path: PathBuf,
    /// Locked for as long as the engine lives.
    _lock: OwnedFd,
}

impl AnchorRoot {
    pub fn make() -> std::io::Result<AnchorRoot> {
        AnchorRoot::make_in(&base())
    }

    fn make_in(base: &Path) -> std::io::Result<AnchorRoot> {
        remove_abandoned(base);
        loop {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("{PREFIX}{}-{number}", std::process::id()));
            // Nobody but the engine's user comes in this way; hosts are handed a descriptor of what is theirs.
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                // Another process-id namespace may have had the same number here.
                Err(Errno::EXIST) => continue,
                other => other?,
            }
            if let Some(lock) = try_lock(&path) {
                return Ok(AnchorRoot { path, _lock: lock });
            }
            // Another engine, starting at this very moment, took it for abandoned.
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for AnchorRoot {
    fn drop(&mut self) {
        // If something stays, the next engine tries again.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn base() -> PathBuf {
    let usable = |path: &Path| {
        let writable = rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
        let read_only =
            rustix::fs::statvfs(path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
        writable && !read_only
    };
    let shared = PathBuf::from(SHARED_MEMORY);
    if usable(&shared) { shared } else { std::env::temp_dir() }
}

/// The lock on the directory at `path`, unless somebody has it or the directory is gone.
fn try_lock(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).ok()?;
    let (ours, there) = (rustix::fs::fstat(&dir).ok()?, rustix::fs::stat(path).ok()?);
    (ours.st_ino == there.st_ino && ours.st_dev == there.st_dev).then_some(dir)
}

/// Removes what engines of this user left behind that did not live to do it.
fn remove_abandoned(base: &Path) {
    let uid = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir() && found.uid() == uid);
        let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if ours
            && named
            && let Some(_lock) = try_lock(&path)
        {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::TempDir;

    #[test]
    fn what_a_dead_engine_left_goes_and_a_living_ones_stays() {
        let base = TempDir::new();
        let living = AnchorRoot::make_in(base.path()).expect("made");
        let dead = base.path().join(format!("{PREFIX}7-0"));
        std::fs::create_dir_all(dead.join("3").join("17")).expect("made");
        let others = base.path().join("something-else");
        std::fs::create_dir(&others).expect("made");
        let second = AnchorRoot::make_in(base.path()).expect("made");
        assert!(living.path().is_dir() && second.path().is_dir() && others.is_dir());
        assert!(!dead.exists(), "nobody has its lock");
        let path = living.path().to_path_buf();
        std::fs::create_dir(path.join("1")).expect("made");
        drop(living);
        assert!(!path.exists());
    }
}
