//! The engine's name on this machine: the runtime directory, the lock that makes a name unique, the socket and the
//! process-id file. Held by `main` for as long as the engine runs.
//!
//! The lock decides: whoever holds `NAME.lock` owns `NAME.sock` and `NAME.pid`, so what a dead engine left behind is
//! simply replaced, and a living one is never disturbed.

use crate::config::RunAs;
use crate::own_file;
use crate::policy::Policy;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use toe_abi::discovery;

/// Hosts that may wait to be greeted.
const LISTEN_BACKLOG: i32 = 256;
/// How long an engine that was just killed may take to be gone; who finds a living one waits as long to be told.
const ENDS_WITHIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// Why the engine cannot have its name, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error(
        "an engine named '{name}' runs already{pid}; stop it with 'toe stop --name {name}', or choose another --name"
    )]
    Running { name: String, pid: String },
    #[error("{path}: {what} ({error}); check its owner and permissions, or set XDG_RUNTIME_DIR")]
    Io { path: PathBuf, what: &'static str, error: std::io::Error },
    #[error("{0}: it belongs to somebody else or others may write there; remove it, or set XDG_RUNTIME_DIR")]
    NotOurs(PathBuf),
}

/// Root's directory once an engine runs as the user that is there for engines: that user's group may make and remove what is
/// its own there, and nobody anything else (the sticky bit). A group that has other members never gets it: what an engine
/// of another user leaves there is replaced by the next.
const SHARED_DIR_MODE: u32 = 0o1775;

/// Of the lock file.
const LOCK_MODE: u32 = 0o600;

/// The name, taken. Dropping it removes the files.
#[derive(Debug)]
pub struct EngineName {
    dir: File,
    socket_path: PathBuf,
    pid_path: PathBuf,
    lock_path: PathBuf,
    /// The socket's file and the process-id file, once they are there: what their paths name may be another by the time
    /// when they are given away.
    made: Option<(OwnedFd, File)>,
    /// Locked until closed; the last field, so that the files are gone before.
    lock: File,
}

/// The directory of engines that this process starts: the first of those where they are looked for that is there or can be
/// made, else the first.
pub fn default_dir(is_open: bool) -> PathBuf {
    let xdg = std::env::var("XDG_RUNTIME_DIR").ok();
    let dirs = discovery::runtime_dirs(rustix::process::geteuid().as_raw(), xdg.as_deref());
    let mut dirs = dirs.iter().map(PathBuf::from);
    let first = dirs.next().unwrap_or_default();
    let can_be_had = |dir: &PathBuf| make_dir(dir, is_open).is_ok_and(|_| can_write(dir));
    if can_be_had(&first) { first } else { dirs.find(can_be_had).unwrap_or(first) }
}

fn can_write(dir: &Path) -> bool {
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Makes the directory if it is missing, and checks that nobody else can put things into it. `is_open`: other users than
/// its owner are to find engines in it.
fn make_dir(dir: &Path, is_open: bool) -> Result<File, RuntimeError> {
    let uid = rustix::process::geteuid().as_raw();
    let failed = |what| move |error| RuntimeError::Io { path: dir.to_path_buf(), what, error };
    let mode = match (uid, is_open) {
        // Anyone may come to root's engines (who may attach is policy); a user's directory is the user's.
        (0, _) => 0o755,
        (_, true) => 0o711,
        (_, false) => 0o700,
    };
    fs::DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(failed("cannot make it"))?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = match rustix::fs::open(dir, flags, Mode::empty()) {
        Ok(held) => File::from(held),
        Err(Errno::LOOP | Errno::NOTDIR | Errno::ACCESS) => {
            return Err(RuntimeError::NotOurs(dir.to_path_buf()));
        }
        Err(errno) => return Err(failed("cannot open it")(errno.into())),
    };
    let found = held.metadata().map_err(failed("cannot look at it"))?;
    let is_shared = uid == 0 && found.mode() & 0o7777 == SHARED_DIR_MODE && RunAs::is_own_group(found.gid());
    if found.uid() != uid || found.mode() & 0o022 != 0 && !is_shared {
        return Err(RuntimeError::NotOurs(dir.to_path_buf()));
    }
    if uid != 0 && is_open && found.mode() & 0o011 == 0 {
        let opened = fs::Permissions::from_mode(found.mode() & 0o7777 | 0o011);
        held.set_permissions(opened).map_err(failed("cannot open it to other users"))?;
    }
    Ok(held)
}

impl EngineName {
    /// Takes the name, unless a living engine has it.
    pub fn take(dir: &Path, name: &str, is_open: bool) -> Result<EngineName, RuntimeError> {
        let held = make_dir(dir, is_open)?;
        let lock_path = dir.join(format!("{name}.lock"));
        let pid_path = dir.join(format!("{name}.pid"));
        let lock = lock(&lock_path, &pid_path, name)?;
        let socket_path = PathBuf::from(discovery::socket_path(&dir.to_string_lossy(), name));
        Ok(EngineName { dir: held, socket_path, pid_path, lock_path, made: None, lock })
    }

    /// Opens the socket in place of whatever a dead engine left there, and writes the process id. The kernel keeps from now
    /// on, and tells everyone who connects, that the calling process's user listens: so this comes before it becomes another.
    pub fn listen(&mut self, policy: &Policy) -> Result<OwnedFd, RuntimeError> {
        let path = &self.socket_path;
        let failed = |what| move |error| RuntimeError::Io { path: path.clone(), what, error };
        let errno = |what| move |e: Errno| failed(what)(e.into());
        remove(&self.socket_path).map_err(failed("cannot replace it"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(errno("cannot make a socket"))?;
        let addr = SocketAddrUnix::new(&self.socket_path).map_err(errno("the path is too long"))?;
        rustix::net::bind(&socket, &addr).map_err(errno("cannot bind it"))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let bound = rustix::fs::open(path, flags, Mode::empty()).map_err(errno("cannot look at it"))?;
        if let Some(group) = policy.socket_group() {
            let group = Some(Gid::from_raw(group));
            rustix::fs::chownat(&bound, "", None, group, AtFlags::EMPTY_PATH)
                .map_err(errno("cannot give it to the group"))?;
        }
        // A file's mode can be changed by a path alone, here by one that names what is held.
        let named = format!("/proc/self/fd/{}", bound.as_raw_fd());
        fs::set_permissions(named, fs::Permissions::from_mode(policy.socket_mode()))
            .map_err(failed("cannot open it to hosts"))?;
        rustix::net::listen(&socket, LISTEN_BACKLOG).map_err(errno("cannot listen"))?;
        policy.guard_socket(self.socket_path.clone());
        let file = self.write_pid().map_err(|error| RuntimeError::Io {
            path: self.pid_path.clone(),
            what: "cannot write the process id",
            error,
        })?;
        self.made = Some((bound, file));
        Ok(socket)
    }

    /// A new file, whatever was there.
    fn write_pid(&self) -> std::io::Result<File> {
        remove(&self.pid_path)?;
        let mut file = File::create_new(&self.pid_path)?;
        writeln!(file, "{}", std::process::id())?;
        Ok(file)
    }

    /// The engine goes on as this user: it must be able to open its socket to others, and to remove its files in the end,
    /// unless others are in its group.
    pub fn hand_over(&self, user: RunAs) -> Result<(), RuntimeError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |error| RuntimeError::Io { path, what: "cannot give it to the engine's user", error }
        };
        if let Some((socket, _)) = &self.made {
            rustix::fs::chownat(socket, "", Some(Uid::from_raw(user.uid)), None, AtFlags::EMPTY_PATH)
                .map_err(|errno| failed(&self.socket_path)(errno.into()))?;
        }
        if !RunAs::is_own_group(user.gid) {
            return Ok(());
        }
        if let Some((_, pid)) = &self.made {
            fchown(pid, Some(user.uid), None).map_err(failed(&self.pid_path))?;
        }
        fchown(&self.lock, Some(user.uid), None).map_err(failed(&self.lock_path))?;
        let dir = self.socket_path.parent().unwrap_or(&self.socket_path);
        fchown(&self.dir, None, Some(user.gid)).map_err(failed(dir))?;
        let mode = fs::Permissions::from_mode(SHARED_DIR_MODE);
        self.dir.set_permissions(mode).map_err(failed(dir))
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
/// that the path names; if not, somebody else may lock the new one. Nobody else may open it: whoever can may lock it, and keep the name
/// once its engine has died.
fn lock(path: &Path, pid_path: &Path, name: &str) -> Result<File, RuntimeError> {
    let failed = |what| move |error| RuntimeError::Io { path: path.to_path_buf(), what, error };
    let mut has_waited = false;
    loop {
        let mut own = File::options();
        own.write(true).mode(LOCK_MODE);
        let file = own_file::open(path, &mut own).map_err(failed("cannot open it"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let pid = own_file::read_pid(pid_path);
                if !std::mem::replace(&mut has_waited, true) && pid.is_some_and(is_ending) {
                    continue;
                }
                let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                return Err(RuntimeError::Running { name: name.to_owned(), pid });
            }
            Err(errno) => return Err(failed("cannot lock it")(errno.into())),
        }
        // One that an older engine has left may be anybody's to open.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(LOCK_MODE))
            .map_err(|errno| failed("cannot keep it from others")(errno.into()))?;
        let held = file.metadata().map_err(failed("cannot look at it"))?;
        match fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => return Ok(file),
            _ => {}
        }
    }
}

/// Whether a process is gone, or goes while one looks: what was killed a moment ago keeps its lock until the kernel has taken
/// it apart.
fn is_ending(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|pid| *pid != rustix::process::getpid());
    let Some(pid) = pid else { return false };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&ENDS_WITHIN)).is_ok_and(|n| n > 0)
        }
        Err(errno) => errno == Errno::SRCH,
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

    /// Whoever has a descriptor of it may lock it, and does so when the engine dies: the next one would not begin.
    #[test]
    fn nobody_else_can_open_the_lock() {
        let dir = TempDir::new();
        let lock = dir.path().join("a.lock");
        for is_left in [false, true] {
            if is_left {
                fs::write(&lock, "").expect("a file");
                fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).expect("chmod");
            }
            let name = EngineName::take(dir.path(), "a", false).expect("free");
            assert_eq!(mode_of(&lock), LOCK_MODE);
            drop(name);
        }
    }

    #[test]
    fn the_socket_is_as_open_as_the_policy() {
        let dir = TempDir::new();
        let mut name = EngineName::take(dir.path(), "a", false).expect("free");
        let _socket = name.listen(&policy(Allowed::default())).expect("socket");
        let own = if rustix::process::geteuid().is_root() { 0o660 } else { 0o600 };
        assert_eq!(mode_of(name.socket_path()), own);
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
        let mut name = EngineName::take(dir.path(), "a", false).expect("free");
        let _socket = name.listen(&policy(Allowed::default())).expect("socket");
        let own = RunAs { is_default: false, ..RunAs::own() };
        if name.hand_over(own).is_err() {
            println!("not tried: there are not all users here");
            return;
        }
        let owner = |path: &Path| fs::metadata(path).map(|found| (found.uid(), found.gid())).expect("there");
        for file in ["a.sock", "a.pid", "a.lock"] {
            assert_eq!(owner(&dir.path().join(file)).0, own.uid, "{file}");
        }
        assert_eq!((owner(dir.path()), mode_of(dir.path())), ((0, own.gid), 0o1775));
        EngineName::take(dir.path(), "b", false).expect("root's next engine finds the directory good");
    }

    #[test]
    fn a_group_that_others_are_in_gets_nothing_but_the_socket() {
        if !rustix::process::geteuid().is_root() {
            println!("not tried: it takes root to become somebody else");
            return;
        }
        let dir = TempDir::new();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let mut name = EngineName::take(dir.path(), "a", false).expect("free");
        let _socket = name.listen(&policy(Allowed::default())).expect("socket");
        name.hand_over(RunAs { uid: 4242, gid: 4243, is_default: false }).expect("root may");
        let owner = |file: &str| {
            fs::metadata(dir.path().join(file)).map(|found| (found.uid(), found.gid())).expect("there")
        };
        assert_eq!((owner(""), mode_of(dir.path())), ((0, 0), 0o755));
        assert_eq!(["a.sock", "a.pid", "a.lock"].map(|file| owner(file).0), [4242, 0, 0]);
        // As that user leaves them.
        name.lock = File::open("/dev/null").expect("no lock");
        let mut next = EngineName::take(dir.path(), "a", false).expect("the next engine has the name");
        next.listen(&policy(Allowed::default())).expect("and the socket");
        assert_eq!(owner("a.sock").0, 0);
    }

    #[test]
    fn planted_links_lead_nowhere() {
        let dir = TempDir::new();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").expect("a file");
        let plant = |file: &str, is_hard: bool| {
            let path = dir.path().join(file);
            let planted = if is_hard {
                fs::hard_link(&victim, path)
            } else {
                std::os::unix::fs::symlink(&victim, path)
            };
            planted.expect("a link");
        };
        for is_hard in [false, true] {
            plant("a.lock", is_hard);
            let error = EngineName::take(dir.path(), "a", false).expect_err("a link").to_string();
            assert!(error.contains("a.lock") && error.contains("remove it"), "{error}");
            fs::remove_file(dir.path().join("a.lock")).expect("removed");

            // A log may lie anywhere; it is where others can put things that links are refused.
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).expect("chmod");
            plant("a.log", is_hard);
            let error = crate::log::open(&dir.path().join("a.log")).expect_err("a link").to_string();
            assert!(error.contains("a.log") && error.contains("remove it"), "{error}");
            fs::remove_file(dir.path().join("a.log")).expect("removed");
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");

            // Those are replaced.
            plant("a.pid", is_hard);
            plant("a.sock", is_hard);
            let mut name = EngineName::take(dir.path(), "a", false).expect("free");
            let _socket = name.listen(&policy(Allowed::default())).expect("socket");
            assert!(fs::symlink_metadata(dir.path().join("a.pid")).expect("there").is_file());
            drop(name);
            assert_eq!(fs::read_to_string(&victim).expect("there"), "precious");
        }
        // Nor does the start wait for whoever holds the other end of this.
        let fifo = dir.path().join("a.lock");
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a FIFO");
        EngineName::take(dir.path(), "a", false).expect_err("no plain file");
    }

    #[test]
    fn a_living_engine_keeps_its_name() {
        let dir = TempDir::new();
        let mut first = EngineName::take(dir.path(), "a", false).expect("free");
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
        let mut name = EngineName::take(dir.path(), "a", false).expect("free");
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
