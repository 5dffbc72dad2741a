//! The program's file for the length of a call. Another thread may close its number, or give that to something else; a call of Linux's goes
//! on with the file that it found, so one that is to wait keeps a copy of the descriptor.

use crate::confine;
use crate::socket::Socket;
use crate::stack::OwnCopy;
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::cell::OnceCell;

/// A descriptor of the program's and, once the call waits, what goes on standing for its file.
#[derive(Debug)]
pub struct KeptFile<'a> {
    file: BorrowedFd<'a>,
    kept: OnceCell<Kept>,
}

#[derive(Debug)]
enum Kept {
    Copy(OwnCopy),
    /// There can be none: device and inode of the file, to know it by. `None`: it was no file by then.
    Identity(Option<(u64, u64)>),
}

impl<'a> KeptFile<'a> {
    pub fn of(file: BorrowedFd<'a>) -> KeptFile<'a> {
        KeptFile { file, kept: OnceCell::new() }
    }

    /// What to read from or write to.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self.kept.get() {
            Some(Kept::Copy(copy)) => sys::borrow(copy.raw()),
            _ => self.file,
        }
    }

    /// The call cannot go on at once: from here on the file is the one that has the number now. Nothing is done for one that can.
    pub fn keep(&self, socket: &Socket) {
        self.kept.get_or_init(|| {
            let identity = identity(self.file);
            // Closing a copy would give back the locks that the process has of the file (fcntl(2), F_SETLK).
            let may_copy = identity.is_some() && !confine::is_filtered() && !has_locks(self.file);
            let home = socket.home().filter(|_| may_copy);
            match home.map(|home| home.stack.copy_of(self.file.as_raw_fd())) {
                Some(Ok(copy)) => Kept::Copy(copy),
                _ => Kept::Identity(identity),
            }
        });
    }

    /// Whether what was just read through [`KeptFile::fd`] is this file's. Where no copy could be kept the number may be another's by now.
    pub fn is_same(&self) -> bool {
        match self.kept.get() {
            Some(Kept::Identity(then)) => then.is_some() && identity(self.file) == *then,
            _ => true,
        }
    }
}

fn identity(file: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Whether a process has locks of the file: asked in the name of its open description, so that those of this one count.
fn has_locks(file: BorrowedFd<'_>) -> bool {
    // SAFETY: all zeros are a valid value: from the beginning to the end of the file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: needed because no crate has the command. The structure is the kernel's and outlives the call.
    let outcome = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    // What cannot be locked has none.
    outcome == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    fn file() -> std::fs::File {
        rustix::fs::memfd_create("kept-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file").into()
    }

    #[test]
    fn locks_of_this_process_are_seen() {
        let locked = file();
        assert!(!has_locks(locked.as_fd()));
        rustix::fs::fcntl_lock(&locked, rustix::fs::FlockOperation::LockExclusive).expect("nobody else's");
        assert!(has_locks(locked.as_fd()));
        let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(!has_locks(pipe.as_fd()));
    }

    #[test]
    fn without_a_copy_another_file_at_the_number_is_known() {
        let (first, second) = (file(), file());
        let number = sys::dup_anywhere(&first).expect("room");
        let kept = KeptFile::of(sys::borrow(number.raw()));
        assert!(kept.is_same(), "nothing is asked of a call that does not wait");
        // A socket without a home has no session to keep a copy in.
        let socket = Socket::allocate();
        kept.keep(socket);
        assert!(kept.is_same());
        sys::dup_onto(&second, number.raw(), true).expect("it is open");
        assert!(!kept.is_same());
        socket.abandon();
    }
}
