//! The descriptors that the library keeps for itself in a session: its own, and copies of the program's.
//!
//! The child of a fork closes them, but not those of files on disks: that may wait for a disk (a file system that is a process, or another
//! machine's), which fork() does not. The child keeps these until it has a session itself, and closes them in a thread.

use crate::file::at_hand;
use crate::own_copies::OwnCopy;
use crate::sys::{self};
use rustix::fd::RawFd;
use std::thread::Thread;

/// Those of a session.
#[derive(Debug, Default)]
pub struct OwnFds {
    /// Which a child closes at once.
    pub(crate) simple: Vec<RawFd>,
    /// Of files on disks.
    pub(crate) files: Vec<RawFd>,
    /// Those of files that nobody uses any more, and that are not closed yet.
    pub(crate) unused: Vec<Unused>,
    /// How often one came to be unused.
    unused_count: u64,
    /// Who closes them, while there are any.
    pub(crate) closer: Option<Thread>,
}

impl OwnFds {
    pub fn new(simple: Vec<RawFd>) -> OwnFds {
        OwnFds { simple, ..OwnFds::default() }
    }

    pub fn push(&mut self, fd: RawFd) {
        self.simple.push(fd);
    }

    pub fn remove(&mut self, fd: RawFd) {
        self.simple.retain(|own| *own != fd);
        self.files.retain(|own| *own != fd);
    }

    pub(crate) fn push_unused(&mut self, copies: Vec<OwnCopy>) {
        for copy in copies {
            self.unused_count += 1;
            self.unused.push(Unused { number: self.unused_count, copy });
        }
    }

    pub fn all(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.simple.iter().chain(&self.files).copied()
    }

    /// In the child of a fork: closes what can be closed without waiting. What is left.
    #[cold]
    pub fn leave_to_parent(&mut self) -> Vec<LeftFile> {
        for fd in self.simple.drain(..) {
            crate::fd_words::forget_internal(fd);
            let _ = sys::close(fd);
        }
        std::mem::forget(std::mem::take(&mut self.unused));
        self.files.drain(..).filter_map(LeftFile::of).collect()
    }
}

/// A copy that nobody uses; one that is used again meanwhile has another number afterwards.
#[derive(Debug)]
pub(crate) struct Unused {
    pub(crate) number: u64,
    pub(crate) copy: OwnCopy,
}

/// A parent's copy in its child.
#[derive(Debug)]
pub struct LeftFile {
    pub(crate) fd: RawFd,
    /// Device and inode: the program may close all numbers that it does not know, and use them anew.
    pub(crate) file: (u64, u64),
}

impl LeftFile {
    fn of(fd: RawFd) -> Option<LeftFile> {
        at_hand(sys::borrow(fd)).map(|known| LeftFile { fd, file: known.file })
    }
}
