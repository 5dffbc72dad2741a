//! Copies of the program's descriptors that the library keeps while it needs them, and how those of files are closed.

use crate::file::{at_hand, has_own_locks};
use crate::own_fds::{LeftFile, OwnFds, Unused};
use crate::stack::Stack;
use crate::sys::Fd;
use crate::{helper, sys};
use rustix::fd::RawFd;
use std::time::Duration;
use toe_abi::errno::Errno;

/// How long locks are waited for at first, and at most, before it is looked again.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

const LOOK_AGAIN_MAX: Duration = Duration::from_secs(10);

/// A copy of a descriptor that the library keeps. It is made while no fork can happen: the child of one knows of it. So it is closed, but for that of
/// a file on a disk: other threads do not wait for that, and a child that is made at that very moment has one more descriptor of the file until
/// it executes something.
#[derive(Debug)]
pub struct OwnCopy {
    stack: &'static Stack,
    copy: Option<Fd>,
    is_file: bool,
}

impl OwnCopy {
    pub(crate) fn new(stack: &'static Stack, own: &mut OwnFds, copy: Fd, is_file: bool) -> OwnCopy {
        crate::fd_words::mark_internal(copy.raw());
        if is_file {
            own.files.push(copy.raw())
        } else {
            own.simple.push(copy.raw())
        }
        OwnCopy { stack, copy: Some(copy), is_file }
    }

    pub fn raw(&self) -> RawFd {
        self.copy.as_ref().map_or(-1, Fd::raw)
    }

    /// From here on the caller keeps it, and whatever a child has of it.
    pub fn into_fd(mut self) -> Option<Fd> {
        let mut own = self.stack.own_fds_lock().lock();
        let copy = self.copy.take()?;
        own.remove(copy.raw());
        crate::fd_words::forget_internal(copy.raw());
        Some(copy)
    }

    /// Closes one of a file, unless this process has locks of that: with the close of any descriptor of a file it loses them (fcntl(2), F_SETLK).
    /// Then it is closed once they are gone.
    pub fn close_without_locks(self) {
        if has_own_locks(sys::borrow(self.raw())) {
            close_later(self.stack, vec![self]);
        }
    }
}

impl Drop for OwnCopy {
    fn drop(&mut self) {
        let mut own = self.stack.own_fds_lock().lock();
        let Some(copy) = self.copy.take() else { return };
        own.remove(copy.raw());
        crate::fd_words::forget_internal(copy.raw());
        if self.is_file {
            drop(own);
        }
        drop(copy);
    }
}

/// A child has a session: what it has of its parent's is closed.
pub fn close_left(stack: &'static Stack, left: Vec<LeftFile>) {
    let mut copies = Vec::new();
    for LeftFile { fd, file } in left {
        if at_hand(sys::borrow(fd)).is_some_and(|known| known.file == file) {
            let mut own = stack.own_fds_lock().lock();
            copies.push(OwnCopy::new(stack, &mut own, Fd::from_raw(fd), true));
        } else {
            crate::fd_words::forget_internal(fd);
        }
    }
    if !copies.is_empty() {
        close_later(stack, copies);
    }
}

/// One of those that nobody uses, if one is as `wanted`.
pub fn take_unused(stack: &Stack, wanted: impl Fn(RawFd) -> bool) -> Option<OwnCopy> {
    let mut own = stack.own_fds_lock().lock();
    let at = own.unused.iter().position(|unused| wanted(unused.copy.raw()))?;
    Some(own.unused.swap_remove(at).copy)
}

fn close_later(stack: &'static Stack, copies: Vec<OwnCopy>) {
    let closer = {
        let mut own = stack.own_fds_lock().lock();
        own.push_unused(copies);
        own.closer.clone()
    };
    match closer {
        Some(closer) => closer.unpark(),
        // Where there can be no thread they stay open until there is one: that costs the program descriptors, and not its locks.
        None => _ = helper::start("toe-close", &[], move || close_unused(stack)),
    }
}

/// Closes those whose files this process has no locks of, until there are no others.
fn close_unused(stack: &'static Stack) {
    {
        let mut own = stack.own_fds_lock().lock();
        if own.closer.is_some() {
            return;
        }
        own.closer = Some(std::thread::current());
    }
    let mut pause = LOOK_AGAIN;
    loop {
        drop(unlocked(stack));
        let mut own = stack.own_fds_lock().lock();
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
fn unlocked(stack: &'static Stack) -> Vec<Unused> {
    let list =
        |own: &OwnFds| -> Vec<_> { own.unused.iter().map(|one| (one.number, one.copy.raw())).collect() };
    let all = list(&stack.own_fds_lock().lock());
    let is_free = |(number, fd): (u64, RawFd)| (!has_own_locks(sys::borrow(fd))).then_some(number);
    let free: Vec<u64> = all.into_iter().filter_map(is_free).collect();
    stack.own_fds_lock().lock().unused.extract_if(.., |one| free.contains(&one.number)).collect()
}

impl Stack {
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
        let mut own = self.own_fds.lock();
        let copy = make()?;
        Ok(OwnCopy::new(self, &mut own, copy, is_file))
    }
}
