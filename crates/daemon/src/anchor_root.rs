//! The directory under which an engine keeps its anchors: a new one for each engine, gone with it.
//!
//! Programs get descriptors of what is in it, and from a directory one can go up. So it is the root of a file system in
//! memory that is mounted nowhere: there is nothing above it, whatever root directory or mount namespace a program is
//! confined to. That takes the right to mount. An engine without it makes a directory of its user's, in memory where it
//! can; no other user gets through it, and a program of the same user that is confined could.
//!
//! Such a directory is locked. What an engine left behind that was killed has no lock, and the next one removes it.
//! What is in it may be kept from being removed by programs that have it open, so an engine has it removed by the control server.
//! Used by [`crate::anchors`] and [`crate::irq_names`].

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the names of such directories begin with.
const PREFIX: &str = "opentoe-anchors-";

/// Directories of this process so far.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The directory; dropping it removes it.
#[derive(Debug)]
pub struct AnchorRoot {
    dir: OwnedFd,
    /// Where it is, unless it is nowhere. The descriptor holds the lock.
    path: Option<PathBuf>,
}

impl AnchorRoot {
    pub fn make() -> std::io::Result<AnchorRoot> {
        match mounted_nowhere() {
            Ok(dir) => Ok(AnchorRoot { dir, path: None }),
            Err(_) => AnchorRoot::make_in(&base()),
        }
    }

    fn make_in(base: &Path) -> std::io::Result<AnchorRoot> {
        remove_abandoned(base);
        loop {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                // Another process-id namespace may have had the same number here.
                Err(Errno::EXIST) => continue,
                other => other?,
            }
            if let Some(dir) = try_lock(&path) {
                return Ok(AnchorRoot { dir, path: Some(path) });
            }
            // Another engine, starting at this very moment, took it for abandoned.
        }
    }

    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Whether there is something to remove in the end.
    pub fn is_somewhere(&self) -> bool {
        self.path.is_some()
    }

    /// So many directories, or at least one: file systems that are each mounted nowhere, or directories in this one.
    pub fn divide(&self, count: usize) -> std::io::Result<Vec<OwnedFd>> {
        if self.path.is_none() {
            let others = (1..count).map_while(|_| mounted_nowhere().ok());
            return std::iter::once(self.dir.try_clone()).chain(others.map(Ok)).collect();
        }
        let part = |number: usize| {
            let name = format!("part-{number}");
            rustix::fs::mkdirat(&self.dir, &name, Mode::RWXU)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(rustix::fs::openat(&self.dir, &name, flags, Mode::empty())?)
        };
        (0..count.max(1)).map(part).collect()
    }

    /// A path that leads to `name` in it, for calls that take no directory's descriptor.
    pub fn path_to(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.dir.as_raw_fd())
    }
}

impl Drop for AnchorRoot {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // If something stays, the next engine tries again.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

/// The root of a new file system in memory.
fn mounted_nowhere() -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    // Nobody but the engine's user comes in this way; hosts are handed a descriptor of what is theirs.
    rustix::mount::fsconfig_set_string(context.as_fd(), "mode", "0700")?;
    // Directories take none of it. A container's root may write files here, which are nobody's to pay for.
    rustix::mount::fsconfig_set_string(context.as_fd(), "size", "64k")?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    // The same root may put a symbolic link in a session directory's place: it leads this engine nowhere. (Linux 5.14.)
    let closed = attributes | MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW;
    let mount =
        |attributes| rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes);
    let mount = mount(closed).or_else(|_| mount(attributes))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(&mount, ".", flags, Mode::empty())
}

/// Where a directory is made: in memory that is the user's, in memory that all have, or where temporary files are.
fn base() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let writable = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    runtime.into_iter().chain([PathBuf::from("/dev/shm")]).find(writable).unwrap_or_else(std::env::temp_dir)
}

/// The directory at `path`, locked, unless somebody has the lock or it is gone.
fn try_lock(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).ok()?;
    let ours = rustix::fs::fstat(&dir).ok()?;
    let there = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
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
        let path = living.path.clone().expect("a path");
        assert!(path.is_dir() && second.path.as_ref().is_some_and(|path| path.is_dir()) && others.is_dir());
        assert!(!dead.exists(), "nobody has its lock");
        std::fs::create_dir(path.join("1")).expect("made");
        drop(living);
        assert!(!path.exists());
    }

    #[test]
    fn there_is_no_way_up_from_one_that_is_mounted_nowhere() {
        let Ok(dir) = mounted_nowhere() else {
            println!("not tried: no right to mount");
            return;
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let up = rustix::fs::openat(&dir, "../../../..", flags, Mode::empty()).expect("opened");
        let (here, there) = (rustix::fs::fstat(&dir).expect("stat"), rustix::fs::fstat(&up).expect("stat"));
        assert_eq!((here.st_dev, here.st_ino), (there.st_dev, there.st_ino));
    }
}
