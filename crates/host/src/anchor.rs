//! Anchors: the kernel objects that programs have open in the place of connections and listeners.
//!
//! The engine makes them in a directory of the session's; the host opens one when it is needed, which takes one system
//! call, and the engine says when nobody has it open any more ([`toe_abi::entry::Completion::AnchorFree`]). Used by
//! [`crate::stack`] and by everything that makes a socket.

use crate::errno::from_os;
use crate::fd_table;
use crate::own_fds::OwnCopy;
use crate::pool::{AnchorPool, Cached};
use crate::queue::QueueSet;
use crate::session::Session;
use crate::socket::Socket;
use crate::stack::Stack;
use crate::sys::{self, Fd};
use rustix::fd::{IntoRawFd, RawFd};
use rustix::fs::{Mode, OFlags};
use toe_abi::attach::{ANCHORS_AT_ONCE, Reply, Request};
use toe_abi::errno::Errno;
use toe_base::AnchorHandle;

/// What an anchor is to stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Connection,
    /// Other processes show it whose engine does not know them: of one that a connection had before, it would believe its session alone.
    Listener,
}

/// An anchor for one use. The program's descriptor of it is made once, after the engine has been told what it is for, and then it
/// belongs to whoever has that descriptor. Dropping it before ends what it is for.
#[derive(Debug)]
pub struct Anchor {
    pub handle: AnchorHandle,
    pub stack: &'static Stack,
    /// It is open already.
    cached: Option<OwnCopy>,
    /// A program has had it.
    is_used: bool,
}

impl AnchorPool {
    /// The last descriptor `fd` of the process's for what this anchor stands for is about to be closed: keeps it open for its next
    /// use, unless enough of them are. The engine is then to be told by [`Command::CloseRetained`].
    ///
    /// [`Command::CloseRetained`]: toe_abi::entry::Command::CloseRetained
    pub(crate) fn keep(&self, session: &'static Session, handle: AnchorHandle, fd: RawFd) -> bool {
        let has_room = {
            let stock = self.stock.lock();
            stock.cached.len() + stock.ending.len() < self.cached_max
        };
        let Some(Ok(cached)) = has_room.then(|| session.own_fds().copy_of(fd)) else { return false };
        self.stock.lock().ending.push(Cached::new(handle, cached));
        true
    }
}

impl Anchor {
    const fn closed(stack: &'static Stack, handle: AnchorHandle) -> Anchor {
        Anchor { handle, stack, cached: None, is_used: false }
    }

    /// One that is at hand.
    fn at_hand(stack: &'static Stack, of: Use) -> Option<Anchor> {
        let mut stock = stack.session.anchors().stock.lock();
        let cached = if of == Use::Connection { stock.take_cached() } else { None };
        let cached = cached.map(|cached| (cached.handle, cached.copy));
        let is_used = cached.is_some();
        if let Some((handle, copy)) = cached.or_else(|| stock.opened.pop()) {
            return Some(Anchor { handle, stack, cached: Some(copy), is_used });
        }
        stock.free.pop().map(|handle| Anchor::closed(stack, handle))
    }

    /// One that is not in use, open if there is such a one; the engine is asked for many at a time.
    pub fn take(stack: &'static Stack, of: Use) -> Result<Anchor, Errno> {
        let pool = &stack.session.anchors().stock;
        let spoiled = std::mem::take(&mut pool.lock().spoiled);
        spoiled.into_iter().for_each(|handle| drop(Anchor::closed(stack, handle)));
        if let Some(anchor) = Anchor::at_hand(stack, of) {
            return Ok(anchor);
        }
        // Others may have become free for threads that have not looked at their completions since.
        stack.queue_sets().for_each(QueueSet::drain);
        if let Some(anchor) = Anchor::at_hand(stack, of) {
            return Ok(anchor);
        }
        let reply = match stack.session.request(Request::TakeAnchors { count: ANCHORS_AT_ONCE }, &[]) {
            Ok(reply) => reply,
            // Other threads may have asked at the same moment, and got more than they needed.
            Err(errno) => {
                let handle = pool.lock().free.pop().ok_or(errno)?;
                return Ok(Anchor::closed(stack, handle));
            }
        };
        let Reply::Anchors { first, count } = reply else { return Err(Errno::EPROTO) };
        let mut stock = pool.lock();
        let fresh = (0..count.min(ANCHORS_AT_ONCE)).rev().map(|i| AnchorHandle(first.wrapping_add(i)));
        stock.free.extend(fresh);
        let handle = stock.free.pop().ok_or(Errno::EMFILE)?;
        Ok(Anchor::closed(stack, handle))
    }

    /// One that is not in use, and a descriptor for the program: the lowest free number.
    pub(crate) fn take_open(
        stack: &'static Stack,
        cloexec: bool,
        nonblocking: bool,
    ) -> Result<(Anchor, RawFd), Errno> {
        let anchor = Anchor::take(stack, Use::Connection)?;
        match anchor.open(cloexec, nonblocking) {
            Ok(fd) => Ok((anchor, fd)),
            Err(errno) => {
                anchor.put_back();
                Err(errno)
            }
        }
    }

    /// It was opened as `fd`, and is not needed after all. It stays open for the next use: the engine might hear of a close only
    /// after it has heard of that.
    pub(crate) fn keep_open(mut self, fd: RawFd) {
        let cached = self.cached.take().map_or_else(|| self.stack.session.own_fds().copy_of(fd), Ok);
        if let Ok(cached) = cached {
            self.stack.session.anchors().stock.lock().put_open(self.handle, cached, self.is_used);
        }
        let _ = sys::close(fd);
        self.opened();
    }

    /// The engine was told nothing of it, or would not have what it was for: it can be used for something else.
    pub fn put_back(mut self) {
        let mut stock = self.stack.session.anchors().stock.lock();
        match self.cached.take() {
            Some(cached) => stock.put_open(self.handle, cached, self.is_used),
            None => stock.free.push(self.handle),
        }
        drop(stock);
        std::mem::forget(self);
    }

    /// The engine answered its use with this error.
    pub fn refused(self, errno: Errno) {
        if matches!(errno, Errno::ENETDOWN | Errno::ETIMEDOUT) {
            // No answer: it may use it yet.
            drop(self);
        } else {
            self.put_back();
        }
    }

    /// Makes a descriptor of it: the lowest free number, for the program, unless there is an error. `nonblocking`: what F_GETFL is
    /// to show.
    pub fn open(&self, cloexec: bool, nonblocking: bool) -> Result<RawFd, Errno> {
        if let Some(cached) = &self.cached {
            set_flags(cached, nonblocking)?;
            return sys::dup_lowest(sys::borrow(cached.raw()), cloexec);
        }
        let mut flags = OFlags::RDONLY | OFlags::DIRECTORY;
        flags.set(OFlags::CLOEXEC, cloexec);
        flags.set(OFlags::NONBLOCK, nonblocking);
        let mut room = [0; 11];
        let name = sys::decimal(self.handle.0, &mut room);
        let fd = rustix::fs::openat(&self.stack.session.anchors().dir, name, flags, Mode::empty());
        Ok(fd.map_err(from_os)?.into_raw_fd())
    }

    /// The program's descriptor of it is made: from here on that, and its copies, count.
    pub fn opened(mut self) {
        drop(self.cached.take());
        std::mem::forget(self);
    }

    /// Puts it in the place of the descriptor `fd`, whatever that was before. With an error it may come back: it was not opened.
    pub fn open_as(self, fd: RawFd, cloexec: bool, nonblocking: bool) -> Result<(), (Errno, Option<Anchor>)> {
        if let Some(cached) = &self.cached {
            let placed = set_flags(cached, nonblocking)
                .and_then(|()| sys::dup_onto(sys::borrow(cached.raw()), fd, cloexec));
            if let Err(errno) = placed {
                return Err((errno, Some(self)));
            }
            self.opened();
            return Ok(());
        }
        // For a moment it is open twice, of which the program knows once.
        let _forks = self.stack.session.own_fds().lock();
        let opened = match self.open(true, nonblocking) {
            Ok(opened) => Fd::from_raw(opened),
            Err(errno) => return Err((errno, Some(self))),
        };
        self.opened();
        sys::dup_onto(opened, fd, cloexec).map_err(|errno| (errno, None))
    }

    /// Opens it in the place of a native socket's descriptor, and of the copies that the program has made of that: the
    /// connection lives until the last of them is closed.
    pub(crate) fn open_over(self, socket: &Socket, fd: RawFd) -> Result<(), Errno> {
        let cloexec = |fd| Ok(sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0);
        self.open_as(fd, cloexec(fd)?, socket.nonblocking()).map_err(|(errno, _)| errno)?;
        let mut outcome = Ok(());
        fd_table::for_each(0, RawFd::MAX, |copy| {
            if copy != fd && fd_table::get(copy).is_some_and(|other| std::ptr::eq(other, socket)) {
                let placed = cloexec(copy).and_then(|on| sys::dup_onto(sys::borrow(fd), copy, on));
                outcome = outcome.and(placed);
            }
        });
        outcome
    }

    /// Opens it at a high number, for a socket to keep from the program. A program after exec knows by O_NONBLOCK that it
    /// was hidden from the one before.
    pub(crate) fn open_hidden(self) -> Result<RawFd, Errno> {
        let fd = sys::move_to_high(Fd::from_raw(self.open(true, true)?));
        self.opened();
        crate::fd_words::mark_internal(fd.raw());
        Ok(fd.into_raw())
    }
}

/// The flags of an open file as a program finds them: whoever used it last may have left others.
fn set_flags(cached: &OwnCopy, nonblocking: bool) -> Result<(), Errno> {
    let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
    sys::fcntl(cached.raw(), libc::F_SETFL, flags.into()).map(|_| ())
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // What it was for ends with the close of what was kept.
        if self.cached.take().is_some() || !self.stack.session.alive() || self.stack.session.is_foreign() {
            return;
        }
        // What it was for ends with this close, and after that it can be used again.
        match self.open(true, false) {
            Ok(fd) => {
                let _ = sys::close(fd);
            }
            Err(_) => self.stack.session.anchors().stock.lock().spoiled.push(self.handle),
        }
    }
}
