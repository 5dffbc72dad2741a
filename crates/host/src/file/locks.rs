//! Locks that this process has of a file (fcntl(2), F_SETLK): it loses them with the close of any of its descriptors of that.

use crate::file::kind::at_hand;
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io::Read;

/// A reading of the kernel's list of locks is of one moment, and gives a page at most, of whole lines. What is shorter by far is the whole list.
/// Between two readings a lock that goes makes the next lines come a place earlier, and one of them is missed.
const LIST_MAX: usize = 3 << 10;

/// Whether this process has locks of the file (fcntl(2), F_SETLK).
pub fn has_own_locks(file: BorrowedFd<'_>) -> bool {
    // SAFETY: all zeros are a valid value: from the beginning to the end of the file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // Asked in the name of the open description, so that those of this process count.
    // SAFETY: needed because no crate has the command. The structure is the kernel's and outlives the call.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    // What cannot be locked has none.
    let has_some = outcome == 0 && lock.l_type != libc::F_UNLCK as libc::c_short;
    // The first of them is told. Behind another process's there may be one of this.
    has_some && (lock.l_pid == sys::pid() || is_listed(file))
}

/// Whether the kernel's list has a lock of this process of a file of that number; so it is taken to be where there is no list.
pub(super) fn is_listed(file: BorrowedFd<'_>) -> bool {
    let Some(inode) = at_hand(file).map(|known| known.file.1) else { return true };
    std::fs::File::open("/proc/locks").map_or(true, |list| is_in(list, sys::pid(), inode))
}

/// A list that may be longer than one reading is taken to have such a lock. Any user can make it so.
pub(super) fn is_in(mut list: impl Read, pid: i32, inode: u64) -> bool {
    let mut text = [0; LIST_MAX];
    let text = list.read(&mut text).ok().filter(|len| *len < LIST_MAX).map(|len| &text[..len]);
    let text = text.and_then(|text| std::str::from_utf8(text).ok());
    text.is_none_or(|text| text.lines().any(|line| is_lock_of(line, pid, inode)))
}

/// A line is, for example, `1: POSIX  ADVISORY  WRITE 3568 00:1f:5372 0 EOF`. The device is left out: some file systems tell it and fstat(2) differently.
fn is_lock_of(line: &str, pid: i32, inode: u64) -> bool {
    // One that is waited for has an arrow before its kind.
    let mut words = line.split_ascii_whitespace().skip(1).skip_while(|word| *word == "->");
    let is_posix = words.next() == Some("POSIX");
    let owner = words.nth(2).and_then(|pid| pid.parse().ok());
    let number = words.next().and_then(|file| file.rsplit(':').next()).and_then(|inode| inode.parse().ok());
    is_posix && owner == Some(pid) && number == Some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn locks_of_this_process_are_seen() {
        let locked = rustix::fs::memfd_create("copy-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        assert!(!has_own_locks(locked.as_fd()));
        rustix::fs::fcntl_lock(&locked, rustix::fs::FlockOperation::LockShared).expect("nobody else's");
        assert!(has_own_locks(locked.as_fd()));
        assert!(is_listed(locked.as_fd()));
        let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(!has_own_locks(pipe.as_fd()));
    }

    #[test]
    fn a_list_that_one_reading_may_not_have_whole_is_not_relied_on() {
        let line = b"1: POSIX  ADVISORY  WRITE 3568 00:1f:5372 0 EOF\n";
        assert!(is_in(&line[..], 3568, 5372) && !is_in(&line[..], 3569, 5372));
        assert!(!is_in(&line.repeat(60)[..], 3569, 5372) && is_in(&line.repeat(70)[..], 3569, 5372));
        assert!(is_in(std::io::repeat(b'x'), 3569, 5372));
    }

    #[test]
    fn a_lock_in_the_list_is_this_processs_and_the_files() {
        let line = "1: POSIX  ADVISORY  WRITE 3568 00:1f:5372 0 EOF";
        assert!(is_lock_of(line, 3568, 5372));
        assert!(!is_lock_of(line, 3569, 5372) && !is_lock_of(line, 3568, 5373));
        assert!(!is_lock_of("2: OFDLCK ADVISORY  READ -1 00:1f:5372 0 EOF", -1, 5372));
        assert!(!is_lock_of("3: FLOCK  ADVISORY  WRITE 3568 00:1f:5372 0 EOF", 3568, 5372));
        assert!(!is_lock_of("", 0, 0));
    }
}
