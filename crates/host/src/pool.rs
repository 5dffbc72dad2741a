//! The anchors of a session that are not in use.

use crate::lock::Lock;
use crate::own_fds::OwnCopy;
use crate::sys;
use crate::sys::Fd;
use rustix::fd::RawFd;
use toe_abi::errno::Errno;
use toe_base::AnchorHandle;

/// Of the descriptors that a process may have, one in so many may be that of an anchor that is kept open between two uses…
const CACHED_SHARE: u64 = 32;

/// …and so many at most: connections that a program closes before the engine has taken the first of them out of its hands.
const CACHED_MAX: u64 = 64;

/// The anchors of a session that are not in use.
#[derive(Debug)]
pub struct AnchorPool {
    pub(crate) dir: Fd,
    pub(crate) cached_max: usize,
    pub(crate) stock: Lock<Stock>,
}

/// What a pool has.
#[derive(Debug, Default)]
pub struct Stock {
    pub(crate) free: Vec<AnchorHandle>,
    /// To be opened and closed, once there is a descriptor for it; see [`crate::anchor::Anchor`].
    pub(crate) spoiled: Vec<AnchorHandle>,
    /// Open already, with the descriptors, of which the engine knows nothing: made for a connection that went elsewhere.
    pub(crate) opened: Vec<(AnchorHandle, OwnCopy)>,
    /// Those of connections that have ended.
    pub(crate) cached: Vec<Cached>,
    /// Of connections that the engine is about to end.
    pub(crate) ending: Vec<Cached>,
}

/// An anchor that stays open from one use to the next.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) handle: AnchorHandle,
    pub(crate) copy: OwnCopy,
    /// [`crate::process::image`] then: a child that was made since may have a copy, and it is not used again.
    children: u32,
}

impl Cached {
    pub(crate) fn new(handle: AnchorHandle, copy: OwnCopy) -> Cached {
        Cached { handle, copy, children: crate::process::image().children }
    }
}

impl AnchorPool {
    /// `dir`: the directory that the engine has given this session.
    pub fn new(dir: Fd) -> AnchorPool {
        let cached_max = (sys::descriptors_max() / CACHED_SHARE).min(CACHED_MAX) as usize;
        AnchorPool { dir, cached_max, stock: Lock::new(Stock::default()) }
    }

    /// This anchor of the session stands for nothing, and nobody else has it open ([`Completion::AnchorFree`]).
    ///
    /// [`Completion::AnchorFree`]: toe_abi::entry::Completion::AnchorFree
    pub fn put(&self, handle: AnchorHandle) {
        let mut stock = self.stock.lock();
        match stock.take_ending(handle) {
            Some(cached) => stock.cached.push(cached),
            None => stock.free.push(handle),
        }
    }

    /// What was kept of this anchor: another process may have it, too, and then only closes count.
    pub(crate) fn take_ending(&self, handle: AnchorHandle) -> Option<OwnCopy> {
        self.stock.lock().take_ending(handle).map(|cached| cached.copy)
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

impl Stock {
    pub(crate) fn put_open(&mut self, handle: AnchorHandle, copy: OwnCopy, is_used: bool) {
        if is_used {
            self.cached.push(Cached::new(handle, copy));
        } else {
            self.opened.push((handle, copy));
        }
    }

    fn take_ending(&mut self, handle: AnchorHandle) -> Option<Cached> {
        let at = self.ending.iter().position(|ending| ending.handle == handle)?;
        Some(self.ending.swap_remove(at))
    }

    pub(crate) fn take_cached(&mut self) -> Option<Cached> {
        let children = crate::process::image().children;
        self.cached.pop_if(|cached| cached.children == children)
    }
}
