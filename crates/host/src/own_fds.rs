//! The descriptors that the library keeps for itself in a session: its own, and copies of the program's, for as long as it needs them.
//!
//! The child of a fork closes them, but not those of files on disks: that may wait for a disk (a file system that is a process, or another
//! machine's), which fork() does not. The child keeps these until it has a session itself, and closes them in a thread.

use crate::file::{at_hand, has_own_locks};
use crate::lock::{Guard, Lock};
use crate::sys::Fd;
use crate::{helper, sys};
use rustix::fd::RawFd;
use std::thread::Thread;
use std::time::Duration;
use toe_abi::errno::Errno;

/// How long locks are waited for at first, and at most, before it is looked again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

const LOOK_AGAIN_MAX: Duration = Duration::from_secs(10);

/// Those of a session.
#[derive(Debug)]
pub struct OwnFds(Lock<OwnFdList>);

/// Which they are.
#[derive(Debug, Default)]
pub struct OwnFdList {
    /// Which a child closes at once.
    simple: Vec<RawFd>,
    /// Of files on disks.
    files: Vec<RawFd>,
    /// Those of files that nobody uses any more, and that are not closed yet.
    unused: Vec<Unused>,
    /// How often one came to be unused.
    unused_count: u64,
    /// Who closes them, while there are any.
    closer: Option<Thread>,
}

impl OwnFdList {
    pub fn push(&mut self, fd: RawFd) {
        self.simple.push(fd);
    }

    pub fn remove(&mut self, fd: RawFd) {
        self.simple.retain(|own| *own != fd);
        self.files.retain(|own| *own != fd);
    }

    fn push_unused(&mut self, copies: Vec<OwnCopy>) {
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
struct Unused {
    number: u64,
    copy: OwnCopy,
}

/// A parent's copy in its child.
#[derive(Debug)]
pub struct LeftFile {
    fd: RawFd,
    /// Device and inode: the program may close all numbers that it does not know, and use them anew.
    file: (u64, u64),
}

impl LeftFile {
    fn of(fd: RawFd) -> Option<LeftFile> {
        at_hand(sys::borrow(fd)).map(|known| LeftFile { fd, file: known.file })
    }
}

/// A copy of a descriptor that the library keeps. It is made while no fork can happen: the child of one knows of it. So it is closed, but for that of
/// a file on a disk: other threads do not wait for that, and a child that is made at that very moment has one more descriptor of the file until
/// it executes something.
#[derive(Debug)]
pub struct OwnCopy {
    of: &'static OwnFds,
    copy: Option<Fd>,
    is_file: bool,
}

impl OwnCopy {
    fn new(of: &'static OwnFds, own: &mut OwnFdList, copy: Fd, is_file: bool) -> OwnCopy {
        crate::fd_words::mark_internal(copy.raw());
        if is_file {
            own.files.push(copy.raw())
        } else {
            own.simple.push(copy.raw())
        }
        OwnCopy { of, copy: Some(copy), is_file }
    }

    pub fn raw(&self) -> RawFd {
        self.copy.as_ref().map_or(-1, Fd::raw)
    }

    /// From here on the caller keeps it, and whatever a child has of it.
    pub fn into_fd(mut self) -> Option<Fd> {
        let mut own = self.of.lock();
        let copy = self.copy.take()?;
        own.remove(copy.raw());
        crate::fd_words::forget_internal(copy.raw());
        Some(copy)
    }

    /// Closes one of a file, unless this process has locks of that: with the close of any descriptor of a file it loses them (fcntl(2), F_SETLK).
    /// Then it is closed once they are gone.
    pub fn close_without_locks(self) {
        if has_own_locks(sys::borrow(self.raw())) {
            self.of.close_later(vec![self]);
        }
    }
}

impl Drop for OwnCopy {
    fn drop(&mut self) {
        let mut own = self.of.lock();
        let Some(copy) = self.copy.take() else { return };
        own.remove(copy.raw());
        crate::fd_words::forget_internal(copy.raw());
        if self.is_file {
            drop(own);
        }
        drop(copy);
    }
}

impl OwnFds {
    pub fn new(simple: Vec<RawFd>) -> OwnFds {
        OwnFds(Lock::new(OwnFdList { simple, ..OwnFdList::default() }))
    }

    /// Keeps a descriptor from the program: it is the library's own until [`OwnFds::disown`].
    pub fn own(&self, fd: RawFd) {
        crate::fd_words::mark_internal(fd);
        self.lock().push(fd);
    }

    /// The library is about to close a descriptor that it kept.
    pub fn disown(&self, fd: RawFd) {
        self.lock().remove(fd);
        crate::fd_words::forget_internal(fd);
    }

    /// No fork happens while it is held: for a descriptor of an anchor that must not be in a child that does not know of it, and would keep
    /// the connection from ending.
    pub fn lock(&self) -> Guard<'_, OwnFdList> {
        self.0.lock()
    }

    /// For [`crate::fork`], which takes it before a fork and gives it back after.
    pub fn as_lock(&self) -> &Lock<OwnFdList> {
        &self.0
    }

    /// A copy of a descriptor of the program's, for as long as the library needs one.
    pub fn copy_of(&'static self, fd: RawFd) -> Result<OwnCopy, Errno> {
        self.own_copy(false, || sys::dup_to_high(sys::borrow(fd)))
    }

    /// The same of a file on a disk.
    pub fn copy_of_file(&'static self, fd: RawFd) -> Result<OwnCopy, Errno> {
        self.own_copy(true, || sys::dup_to_high(sys::borrow(fd)))
    }

    /// Another descriptor of such a file, that the library has opened.
    pub fn keep_file(&'static self, fd: Fd) -> Result<OwnCopy, Errno> {
        self.own_copy(true, || Ok(fd))
    }

    /// The same, at whatever number there is, which may be one that the program could have got.
    pub fn copy_anywhere(&'static self, fd: RawFd) -> Result<OwnCopy, Errno> {
        self.own_copy(false, || sys::dup_anywhere(sys::borrow(fd)))
    }

    /// A descriptor that was kept otherwise until now.
    pub fn keep_copy(&'static self, fd: Fd) -> Result<OwnCopy, Errno> {
        self.own_copy(false, || Ok(fd))
    }

    fn own_copy(
        &'static self,
        is_file: bool,
        make: impl FnOnce() -> Result<Fd, Errno>,
    ) -> Result<OwnCopy, Errno> {
        let mut own = self.lock();
        let copy = make()?;
        Ok(OwnCopy::new(self, &mut own, copy, is_file))
    }

    /// A child has a session: what it has of its parent's is closed.
    pub fn close_left(&'static self, left: Vec<LeftFile>) {
        let mut copies = Vec::new();
        for LeftFile { fd, file } in left {
            if at_hand(sys::borrow(fd)).is_some_and(|known| known.file == file) {
                let mut own = self.lock();
                copies.push(OwnCopy::new(self, &mut own, Fd::from_raw(fd), true));
            } else {
                crate::fd_words::forget_internal(fd);
            }
        }
        if !copies.is_empty() {
            self.close_later(copies);
        }
    }

    /// One of those that nobody uses, if one is as `wanted`.
    pub fn take_unused(&self, wanted: impl Fn(RawFd) -> bool) -> Option<OwnCopy> {
        let mut own = self.lock();
        let at = own.unused.iter().position(|unused| wanted(unused.copy.raw()))?;
        Some(own.unused.swap_remove(at).copy)
    }

    fn close_later(&'static self, copies: Vec<OwnCopy>) {
        let closer = {
            let mut own = self.lock();
            own.push_unused(copies);
            own.closer.clone()
        };
        match closer {
            Some(closer) => closer.unpark(),
            // Where there can be no thread they stay open until there is one: that costs the program descriptors, and not its locks.
            None => _ = helper::start("toe-close", &[], move || self.close_unused()),
        }
    }

    /// Closes those whose files this process has no locks of, until there are no others.
    fn close_unused(&'static self) {
        {
            let mut own = self.lock();
            if own.closer.is_some() {
                return;
            }
            own.closer = Some(std::thread::current());
        }
        let mut pause = LOOK_AGAIN;
        loop {
            drop(self.unlocked());
            let mut own = self.lock();
            if own.unused.is_empty() {
                own.closer = None;
                return;
            }
            drop(own);
            let before = sys::now();
            std::thread::park_timeout(pause);
            // Woken: there are more.
            let was_woken = sys::now() - before < pause;
            pause = if was_woken { LOOK_AGAIN } else { (pause * 2).min(LOOK_AGAIN_MAX) };
        }
    }

    /// Those that can be closed. Which ones is asked without the lock, as a file system may take its time, and with all of them in their place, as
    /// who needs one would make another.
    fn unlocked(&self) -> Vec<Unused> {
        let list = |own: &OwnFdList| -> Vec<_> {
            own.unused.iter().map(|one| (one.number, one.copy.raw())).collect()
        };
        let all = list(&self.lock());
        let is_free = |(number, fd): (u64, RawFd)| (!has_own_locks(sys::borrow(fd))).then_some(number);
        let free: Vec<u64> = all.into_iter().filter_map(is_free).collect();
        self.lock().unused.extract_if(.., |one| free.contains(&one.number)).collect()
    }
}
