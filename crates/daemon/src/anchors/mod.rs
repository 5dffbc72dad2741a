//! Anchors: the kernel objects that tell when the last copy of a program's descriptor was closed, wherever copies went.
//!
//! An anchor is an empty directory. A host opens it, and that open file is the program's descriptor: it can be copied,
//! inherited and passed on, and the kernel reports its last close, by name, to whoever watches the directory above. So an
//! anchor costs the engine no descriptor, a host opens one without asking, and it can be used again once it was closed.
//! Reading and writing a directory fail, so that bytes which a call that the switch does not see moves are not lost in
//! silence.
//!
//! The report by name holds while only the session that the anchor was made for can open it. Once another process has
//! shown it, or the session is gone, its name is removed: then the kernel reports the end of the directory itself, which
//! is when nobody has it open, whatever anybody does.
//!
//! Who has a directory open can keep its lock. So nothing that takes the lock of one is done on the engine's thread: users'
//! threads make, watch and remove directories ([`keeper`]), each in a file system of its own ([`room`]), and the engine's keeps
//! the accounts ([`table`]) and reads what inotify reports, which takes no such lock. What holds between them:
//!
//! - *The engine reads closes in the order in which they happened, and says `AnchorFree` behind them.* So a close that it reads is
//!   not that of a later use of the directory, unless its own session has opened it twice.
//! - *From the order to remove a name on, closes by name count no more*; from then on it is the directory's end. That is reported
//!   for sure, also if everybody has closed it before: then at its removal.
//! - *Who reads the end of a directory finds what it was*: its watch is told before its name goes, and what was told is taken
//!   before a report that nobody knows. The same after reports were lost: what was told is taken before the kernel is asked which
//!   watches there are.
//! - *No name is made twice*: a session directory's is never used again, and an anchor's handle in it only 2^32 handles later; were its old name still
//!   there, it would not be made.
//!
//! The kernel keeps a limited number of reports (fs.inotify.max_queued_events) and says when it lost some. Then every
//! anchor of the user whose reports they were is in doubt, and is looked after one by one.
//!
//! Called by `attach`, `daemon`, the run loop and the control server.

mod ends;
pub mod keeper;
mod room;
mod table;
#[cfg(test)]
mod tests;

pub use keeper::{Keeper, Made, SessionDir, Supplies};
pub use table::{Anchors, Unwatched};

use rustix::fs::{AtFlags, StatxFlags};
use std::os::fd::AsFd;

/// What the kernel calls a descriptor's object: device and inode number.
pub type Identity = (u64, u64);
/// A session's directory. A session's number is given again; this one is not.
pub type SessionDirId = u64;

/// Which object a descriptor has open. Asks nobody: what a file system has to ask others for is left as it was.
pub fn identity_of(fd: impl AsFd) -> std::io::Result<Identity> {
    identity_at(fd, "", AtFlags::EMPTY_PATH)
}

fn identity_at(dir: impl AsFd, name: &str, flags: AtFlags) -> std::io::Result<Identity> {
    let flags = flags | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(dir, name, flags, StatxFlags::TYPE | StatxFlags::INO)?;
    Ok((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}
