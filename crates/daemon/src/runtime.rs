//! The engine's name on this machine: the runtime directory, the lock that makes a name unique, the socket and the
//! process-id file. Held by `main` for as long as the engine runs.
//!
//! The lock decides: whoever holds `NAME.lock` owns `NAME.sock` and `NAME.pid`, so what a dead engine left behind is
//! simply replaced, and a living one is never disturbed.

use crate::config::RunAs;
use crate::policy::Policy;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use toe_abi::place;

/// Hosts that may wait to be greeted.
const LISTEN_BACKLOG: i32 = 256;

/// Why the engine cannot have its name, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error(
        "an engine named '{name}' runs already{pid}; stop it with 'toe stop --name {name}', or choose another --name"
    )]
    Running { name: String, pid: String },
    #[error("{path}: {what} ({error}); check its owner and permissions")]
    Io { path: PathBuf, what: &'static str, error: std::io::Error },
    #[error("{0}: it belongs to somebody else or others may write there; remove it, or set XDG_RUNTIME_DIR")]
    NotOurs(PathBuf),
}

/// Root's directory is for all of its engines, each of which may run as a user of its own: that user's group may make and
/// remove what is its own there, and nobody anything else (the sticky bit).
const SHARED_DIR_MODE: u32 = 0o1775;

/// The name, taken. Dropping it removes the files.
#[derive(Debug)]
pub struct EngineName {
    dir: PathBuf,
    socket_path: PathBuf,
    pid_path: PathBuf,
    lock_path: PathBuf,
    /// Locked until closed; the last field, so that the files are gone before.
    _lock: File,
}

/// The directory of engines that this process starts.
pub fn default_dir() -> PathBuf {
    let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
    PathBuf::from(place::runtime_dir(rustix::process::geteuid().as_raw(), xdg.as_deref()))
}

/// Makes the directory if it is missing, and checks that nobody else can put things into it. `is_open`: other users than
/// its owner are to find engines in it.
pub fn make_dir(dir: &Path, is_open: bool) -> Result<(), RuntimeError> {
    let uid = rustix::process::geteuid().as_raw();
    let failed = |what| move |error| RuntimeError::Io { path: dir.to_path_buf(), what, error };
    let mode = match (uid, is_open) {
        // Anyone may come to root's engines (who may attach is policy); a user's directory is the user's.
        (0, _) => 0o755,
        (_, true) => 0o711,
        (_, false) => 0o700,
    };
    fs::DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(failed("cannot make it"))?;
    let found = fs::symlink_metadata(dir).map_err(failed("cannot look at it"))?;
    let is_shared = uid == 0 && found.mode() & 0o7777 == SHARED_DIR_MODE;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 && !is_shared {
        return Err(RuntimeError::NotOurs(dir.to_path_buf()));
    }
    if uid != 0 && is_open && found.mode() & 0o011 == 0 {
        let opened = fs::Permissions::from_mode(found.mode() & 0o7777 | 0o011);
        fs::set_permissions(dir, opened).map_err(failed("cannot open it to other users"))?;
    }
    Ok(())
}

impl EngineName {
    /// Takes the name, unless a living engine has it.
    pub fn take(dir: &Path, name: &str, is_open: bool) -> Result<EngineName, RuntimeError> {
        make_dir(dir, is_open)?;
        let lock_path = dir.join(format!("{name}.lock"));
        let pid_path = dir.join(format!("{name}.pid"));
        let lock = lock(&lock_path, &pid_path, name)?;
        let socket_path = PathBuf::from(place::socket_path(&dir.to_string_lossy(), name));
        Ok(EngineName { dir: dir.to_path_buf(), socket_path, pid_path, lock_path, _lock: lock })
    }

    /// Opens the socket in place of whatever a dead engine left there, and writes the process id. The kernel keeps from now
    /// on, and tells everyone who connects, that the calling process's user listens: so this comes before it becomes another.
    pub fn listen(&self, policy: &Policy) -> Result<OwnedFd, RuntimeError> {
        let failed = |what| move |error| RuntimeError::Io { path: self.socket_path.clone(), what, error };
        let errno = |what| move |e: Errno| failed(what)(e.into());
        remove(&self.socket_path).map_err(failed("cannot replace it"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(errno("cannot make a socket"))?;
        let addr = SocketAddrUnix::new(&self.socket_path).map_err(errno("the path is too long"))?;
        rustix::net::bind(&socket, &addr).map_err(errno("cannot bind it"))?;
        if let Some(group) = policy.socket_group() {
            chown(&self.socket_path, None, Some(group)).map_err(failed("cannot give it to the group"))?;
        }
        fs::set_permissions(&self.socket_path, fs::Permissions::from_mode(policy.socket_mode()))
            .map_err(failed("cannot open it to hosts"))?;
        rustix::net::listen(&socket, LISTEN_BACKLOG).map_err(errno("cannot listen"))?;
        policy.guard_socket(self.socket_path.clone());
        let mut file =
            File::create(&self.pid_path).map_err(failed("cannot write the process id beside it"))?;
        writeln!(file, "{}", std::process::id()).map_err(failed("cannot write the process id beside it"))?;
        Ok(socket)
    }

    /// The engine goes on as this user: it must be able to open its socket to others, and to remove its files in the end.
    pub fn hand_over(&self, user: RunAs) -> Result<(), RuntimeError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error| RuntimeError::Io { path, what: "cannot give it to the engine's user", error }
        };
        for path in [&self.socket_path, &self.pid_path, &self.lock_path] {
            chown(path, Some(user.uid), None).map_err(failed(path))?;
        }
        chown(&self.dir, None, Some(user.gid)).map_err(failed(&self.dir))?;
        let mode = fs::Permissions::from_mode(SHARED_DIR_MODE);
        fs::set_permissions(&self.dir, mode).map_err(failed(&self.dir))
    }

    pub fn socket_path(&self) -> &Path {
        &self.socket_path
    }
}

impl Drop for EngineName {
    fn drop(&mut self) {
        // The lock is still held, so these are ours; nothing can be done about a failure.
        for path in [&self.socket_path, &self.pid_path, &self.lock_path] {
            let _ = remove(path);
        }
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The locked lock file. An engine removes its lock file as it ends, so after locking the file must still be the one
/// that the path names; if not, somebody else may lock the new one.
fn lock(path: &Path, pid_path: &Path, name: &str) -> Result<File, RuntimeError> {
    let failed = |what| move |error| RuntimeError::Io { path: path.to_path_buf(), what, error };
    loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .map_err(failed("cannot open it"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let pid = fs::read_to_string(pid_path).ok().and_then(|text| text.trim().parse::<u32>().ok());
                let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                return Err(RuntimeError::Running { name: name.to_owned(), pid });
            }
            Err(errno) => return Err(failed("cannot lock it")(errno.into())),
        }
        let held = file.metadata().map_err(failed("cannot look at it"))?;
        match fs::metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => return Ok(file),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Allowed;
    use crate::tests::TempDir;
    use toe_abi::region::RegionLayout;
    use toe_base::Cred;

    fn policy(allowed: Allowed) -> Policy {
        let layout = RegionLayout { queue_sets: 1, flows: 1, receive_len: 4096, send_len: 4096 };
        Policy::new(Cred::of_user(rustix::process::geteuid().as_raw()), allowed, layout)
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).expect("there").mode() & 0o7777
    }

    #[test]
    fn the_socket_is_as_open_as_the_policy() {
        let dir = TempDir::new();
        let name = EngineName::take(dir.path(), "a", false).expect("free");
        let _socket = name.listen(&policy(Allowed::default())).expect("socket");
        assert_eq!(mode_of(name.socket_path()), 0o600);
        let all = policy(Allowed { all: true, ..Allowed::default() });
        let _socket = name.listen(&all).expect("socket");
        assert_eq!(mode_of(name.socket_path()), 0o666);
        let gid = rustix::process::getegid().as_raw();
        let group = policy(Allowed { gids: vec![gid], ..Allowed::default() });
        let _socket = name.listen(&group).expect("socket");
        assert_eq!(mode_of(name.socket_path()), 0o660);
        assert_eq!(fs::metadata(name.socket_path()).expect("there").gid(), gid);
    }

    #[test]
    fn an_engine_that_is_another_user_removes_what_is_its_own() {
        if !rustix::process::geteuid().is_root() {
            println!("not tried: it takes root to become somebody else");
            return;
        }
        let dir = TempDir::new();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let name = EngineName::take(dir.path(), "a", false).expect("free");
        let _socket = name.listen(&policy(Allowed::default())).expect("socket");
        name.hand_over(RunAs { uid: 4242, gid: 4243, is_default: false }).expect("root may");
        let owner = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).expect("there");
        assert_eq!(owner(name.socket_path()).0, 4242);
        assert_eq!((owner(dir.path()), mode_of(dir.path())), ((0, 4243), 0o1775));
        EngineName::take(dir.path(), "b", false).expect("root's next engine finds the directory good");
    }

    #[test]
    fn a_living_engine_keeps_its_name() {
        let dir = TempDir::new();
        let first = EngineName::take(dir.path(), "a", false).expect("free");
        let _socket = first.listen(&policy(Allowed::default())).expect("socket");
        let error = EngineName::take(dir.path(), "a", false).expect_err("taken").to_string();
        assert!(error.contains("runs already") && error.contains(&std::process::id().to_string()), "{error}");
        assert!(error.contains("toe stop --name a"), "{error}");
        EngineName::take(dir.path(), "b", false).expect("another name is free");
    }

    #[test]
    fn what_a_dead_engine_left_is_replaced() {
        let dir = TempDir::new();
        for file in ["a.lock", "a.sock", "a.pid"] {
            fs::write(dir.path().join(file), "999999\n").expect("a file");
        }
        let name = EngineName::take(dir.path(), "a", false).expect("free");
        let _socket = name.listen(&policy(Allowed::default())).expect("socket");
        let pid = fs::read_to_string(dir.path().join("a.pid")).expect("pid");
        assert_eq!(pid.trim(), std::process::id().to_string());
        drop(name);
        assert_eq!(fs::read_dir(dir.path()).expect("dir").count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = TempDir::new();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(matches!(EngineName::take(dir.path(), "a", false), Err(RuntimeError::NotOurs(_))));
    }
}
