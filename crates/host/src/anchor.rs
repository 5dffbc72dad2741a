//! Anchors: the kernel objects that programs have open in the place of connections and listeners.
//!
//! The engine makes them in a directory of the session's; the host opens one when it is needed, which takes one system
//! call, and the engine says when nobody has it open any more ([`toe_abi::entry::Completion::AnchorFree`]). Used by
//! [`crate::stack`] and by everything that makes a socket.

use crate::errno::from_os;
use crate::fd_table;
use crate::lock::Lock;
use crate::queue::QueueSet;
use crate::socket::Socket;
use crate::stack::{OwnCopy, Stack};
use crate::sys::{self, Fd};
use rustix::fd::{IntoRawFd, RawFd};
use rustix::fs::{Mode, OFlags};
use toe_abi::attach::{ANCHORS_AT_ONCE, Reply, Request};
use toe_abi::errno::Errno;
use toe_base::AnchorHandle;

/// The anchors of a session that are not in use.
#[derive(Debug)]
pub struct AnchorPool {
    dir: Fd,
    stock: Lock<Stock>,
}

/// What a pool has.
#[derive(Debug, Default)]
pub struct Stock {
    free: Vec<AnchorHandle>,
    /// To be opened and closed, once there is a descriptor for it; see [`Anchor`].
    spoiled: Vec<AnchorHandle>,
    /// Open already, with the descriptors, of which the engine knows nothing: made for a connection that went elsewhere.
    opened: Vec<(AnchorHandle, OwnCopy)>,
}

/// An anchor for one use. It is opened once, after the engine has been told what it is for, and then belongs to whoever
/// has the descriptor. Dropping it unopened ends what it is for.
#[derive(Debug)]
pub struct Anchor {
    pub handle: AnchorHandle,
    pub stack: &'static Stack,
}

impl AnchorPool {
    /// `dir`: the directory that the engine has given this session.
    pub fn new(dir: Fd) -> AnchorPool {
        AnchorPool { dir, stock: Lock::new(Stock::default()) }
    }

    /// Nobody has this anchor of the session open any more, and it stands for nothing.
    pub fn put(&self, handle: AnchorHandle) {
        self.stock.lock().free.push(handle);
    }

    /// A descriptor for a native socket that is neither connected nor listening yet: the lowest free number.
    pub(crate) fn placeholder(&self, cloexec: bool) -> Result<RawFd, Errno> {
        sys::dup_lowest(&self.dir, cloexec)
    }

    /// For [`crate::fork`].
    pub fn lock(&self) -> &Lock<Stock> {
        &self.stock
    }
}

impl Anchor {
    /// One that is not in use; the engine is asked for many at a time.
    pub fn take(stack: &'static Stack) -> Result<Anchor, Errno> {
        let pool = &stack.anchors().stock;
        let (free, spoiled) = {
            let mut stock = pool.lock();
            (stock.free.pop(), std::mem::take(&mut stock.spoiled))
        };
        spoiled.into_iter().for_each(|handle| drop(Anchor { handle, stack }));
        if let Some(handle) = free {
            return Ok(Anchor { handle, stack });
        }
        // Others may have been closed by threads that have not looked at their completions since.
        stack.queue_sets().for_each(QueueSet::drain);
        if let Some(handle) = pool.lock().free.pop() {
            return Ok(Anchor { handle, stack });
        }
        let reply = match stack.request(Request::TakeAnchors { count: ANCHORS_AT_ONCE }, &[]) {
            Ok(reply) => reply,
            // Other threads may have asked at the same moment, and got more than they needed.
            Err(errno) => {
                let handle = pool.lock().free.pop().ok_or(errno)?;
                return Ok(Anchor { handle, stack });
            }
        };
        let Reply::Anchors { first, count } = reply else { return Err(Errno::EPROTO) };
        let mut stock = pool.lock();
        let fresh = (0..count.min(ANCHORS_AT_ONCE)).rev().map(|i| AnchorHandle(first.wrapping_add(i)));
        stock.free.extend(fresh);
        let handle = stock.free.pop().ok_or(Errno::EMFILE)?;
        Ok(Anchor { handle, stack })
    }

    /// One that is not in use, and a descriptor for the program: the lowest free number.
    pub(crate) fn take_open(
        stack: &'static Stack,
        cloexec: bool,
        nonblocking: bool,
    ) -> Result<(Anchor, RawFd), Errno> {
        let kept = stack.anchors().stock.lock().opened.pop();
        let Some((handle, kept)) = kept else {
            let anchor = Anchor::take(stack)?;
            return match anchor.open(cloexec, nonblocking) {
                Ok(fd) => Ok((anchor, fd)),
                Err(errno) => {
                    anchor.put_back();
                    Err(errno)
                }
            };
        };
        let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
        let copy = sys::fcntl(kept.raw(), libc::F_SETFL, flags.into())
            .and_then(|_| sys::dup_lowest(sys::borrow(kept.raw()), cloexec));
        match copy {
            Ok(fd) => Ok((Anchor { handle, stack }, fd)),
            Err(errno) => {
                stack.anchors().stock.lock().opened.push((handle, kept));
                Err(errno)
            }
        }
    }

    /// It was opened as `fd`, and is not needed after all. It stays open for the next use: the engine might hear of a close only
    /// after it has heard of that.
    pub(crate) fn keep_open(self, fd: RawFd) {
        if let Ok(kept) = self.stack.copy_of(fd) {
            self.stack.anchors().stock.lock().opened.push((self.handle, kept));
        }
        let _ = sys::close(fd);
        self.opened();
    }

    /// The engine was told nothing of it, or would not have what it was for: it can be used for something else.
    pub fn put_back(self) {
        self.stack.anchors().put(self.handle);
        std::mem::forget(self);
    }

    /// The engine answered its use with this error.
    pub fn refused(self, errno: Errno) {
        if errno == Errno::ENETDOWN {
            // No answer: it may use it yet.
            drop(self);
        } else {
            self.put_back();
        }
    }

    /// Opens it: the lowest free number, for the program, unless there is an error. `nonblocking`: what F_GETFL is to show.
    pub fn open(&self, cloexec: bool, nonblocking: bool) -> Result<RawFd, Errno> {
        let mut flags = OFlags::RDONLY | OFlags::DIRECTORY;
        flags.set(OFlags::CLOEXEC, cloexec);
        flags.set(OFlags::NONBLOCK, nonblocking);
        let mut room = [0; 11];
        let name = sys::decimal(self.handle.0, &mut room);
        let fd = rustix::fs::openat(&self.stack.anchors().dir, name, flags, Mode::empty());
        Ok(fd.map_err(from_os)?.into_raw_fd())
    }

    /// It was opened: from here on its descriptors count.
    pub fn opened(self) {
        std::mem::forget(self);
    }

    /// Opens it in the place of the descriptor `fd`, whatever that was before. With an error it may come back: it was not opened.
    pub fn open_as(self, fd: RawFd, cloexec: bool, nonblocking: bool) -> Result<(), (Errno, Option<Anchor>)> {
        // For a moment it is open twice, of which the program knows once.
        let _forks = self.stack.hold_forks();
        let opened = match self.open(true, nonblocking) {
            Ok(opened) => Fd::from_raw(opened),
            Err(errno) => return Err((errno, Some(self))),
        };
        self.opened();
        sys::dup_onto(opened, fd, cloexec).map_err(|errno| (errno, None))
    }

    /// Opens it in the place of a native socket's descriptor, and of the copies that the program has made of that: the
    /// connection lives until the last of them is closed.
    pub(crate) fn open_in_place_of(self, socket: &Socket, fd: RawFd) -> Result<(), Errno> {
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
        fd_table::mark_internal(fd.raw());
        Ok(fd.into_raw())
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        if !self.stack.alive() || self.stack.is_foreign() {
            return;
        }
        // What it was for ends with this close, and after that it can be used again.
        match self.open(true, false) {
            Ok(fd) => {
                let _ = sys::close(fd);
            }
            Err(_) => self.stack.anchors().stock.lock().spoiled.push(self.handle),
        }
    }
}
