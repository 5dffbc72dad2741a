//! Files that root opens where others, too, can put things: no link leads it elsewhere, nothing that is there makes it wait,
//! and a file that is somebody else's is refused before anything is done to it. Called by `runtime` and `log`.

use crate::config::RunAs;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// No link is followed, and the open does not wait for the other end of a FIFO.
const FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);
/// More than any process id is long.
const PID_LEN_MAX: u64 = 32;

/// Opens a file, which is made if there is none. It must be the caller's or the engines' own user's, who may have left it.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    options.custom_flags(FLAGS.bits() as i32);
    loop {
        // Two steps, because in a sticky directory the kernel opens nothing of others when it might have made it
        // (fs.protected_regular), and what a dead engine left is that.
        match options.create_new(false).open(path) {
            Ok(file) => return check(&file).map(|()| file),
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => return Err(no_link()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match options.create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            done => return done,
        }
    }
}

/// Opens a file in a directory where only the caller and root can put things, wherever it leads: who put it there may. In any
/// other directory `None`. It does not wait for the other end of a FIFO, but what is written later may.
pub(crate) fn open_undisturbed(path: &Path, options: &mut OpenOptions) -> Option<std::io::Result<File>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = rustix::fs::open(parent, flags, Mode::empty()).ok()?;
    let found = rustix::fs::fstat(&dir).ok()?;
    let is_ours = found.st_uid == 0 || found.st_uid == rustix::process::geteuid().as_raw();
    if !is_ours || found.st_mode & 0o022 != 0 {
        return None;
    }
    // By the directory that was looked at: the path may name another by now.
    let held = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(path.file_name()?);
    let open = |options: &mut OpenOptions| {
        let file = options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(held)?;
        let status = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, status - OFlags::NONBLOCK)?;
        Ok(file)
    };
    Some(open(options))
}

/// What a process-id file says.
pub(crate) fn read_pid(path: &Path) -> Option<u32> {
    let file = File::options().read(true).custom_flags(FLAGS.bits() as i32).open(path).ok()?;
    check(&file).ok()?;
    let mut text = String::new();
    file.take(PID_LEN_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn check(file: &File) -> std::io::Result<()> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(Error::other("it is no plain file, so somebody else has put it there: remove it"));
    }
    // None at all: its engine has just removed it.
    if found.nlink() > 1 {
        return Err(no_link());
    }
    let owner = found.uid();
    if owner != rustix::process::geteuid().as_raw() && owner != RunAs::own().uid {
        return Err(Error::other(format!("it is user {owner}'s: remove it")));
    }
    Ok(())
}

fn no_link() -> Error {
    Error::other("it is a link, which somebody else may have put there: remove it")
}
