//! Copies of descriptors of the program's files. With the close of any descriptor of a file a process loses its locks of it (fcntl(2), F_SETLK),
//! so a copy of a locked one is closed once no process has locks of it. The child of a fork does not have it.

use crate::helper;
use crate::stack::{OwnCopy, Stack};
use crate::sys::{self, Fd};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::mem::ManuallyDrop;
use std::time::Duration;
use toe_abi::errno::Errno;

/// How long locks are waited for at first, and at most, before it is looked again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(10);

/// Such a copy.
#[derive(Debug)]
pub struct Copy(Option<OwnCopy>);

impl Copy {
    pub fn of(stack: &'static Stack, file: BorrowedFd<'_>) -> Result<Copy, Errno> {
        stack.copy_of(file.as_raw_fd()).map(|copy| Copy(Some(copy)))
    }

    /// Another descriptor of the file that the library has opened.
    pub fn keep(stack: &'static Stack, opened: Fd) -> Result<Copy, Errno> {
        stack.keep_copy(opened).map(|copy| Copy(Some(copy)))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        sys::borrow(self.0.as_ref().map_or(-1, OwnCopy::raw))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let Some(copy) = self.0.take().filter(|copy| has_locks(sys::borrow(copy.raw()))) else { return };
        // Where there can be no thread it stays open: that costs the program a descriptor, and not its locks.
        let copy = ManuallyDrop::new(copy);
        let _ = helper::start("toe-locked", &[], move || {
            let mut pause = LOOK_AGAIN;
            while has_locks(sys::borrow(copy.raw())) {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LOOK_AGAIN_MAX);
            }
            drop(ManuallyDrop::into_inner(copy));
        });
    }
}

/// Whether a process has locks of the file: asked in the name of its open description, so that those of this one count.
pub fn has_locks(file: BorrowedFd<'_>) -> bool {
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

    #[test]
    fn locks_of_this_process_are_seen() {
        let locked = rustix::fs::memfd_create("copy-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        assert!(!has_locks(locked.as_fd()));
        rustix::fs::fcntl_lock(&locked, rustix::fs::FlockOperation::LockExclusive).expect("nobody else's");
        assert!(has_locks(locked.as_fd()));
        let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(!has_locks(pipe.as_fd()));
    }
}
