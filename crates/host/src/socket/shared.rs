//! What a socket minds because another process may hold its descriptor, too. Called by everything that makes or passes on
//! descriptors, and by whoever asks for a flag that belongs to the open file.

use super::stream::Link;
use super::{Kind, REGISTRY, Socket, TWIN_MARK};
use crate::fork;
use crate::queue::Queue;
use rustix::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// The link of a connection inside the engine ([`toe_abi::command::FlowInfo::port`]).
const LOCAL: u8 = 255;

static EVER_CARRIED: AtomicBool = AtomicBool::new(false);

impl Socket {
    /// Whether another process may hold its descriptor.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed) || self.forks.load(Ordering::Relaxed) != fork::children()
    }

    /// Its descriptor `fd` went to another process, or came from one.
    pub fn mark_shared(&self, fd: RawFd) {
        self.shared.store(true, Ordering::Relaxed);
        if let Ok(stat) = rustix::fs::fstat(crate::sys::borrow(fd)) {
            self.device.store(stat.st_dev, Ordering::Relaxed);
            self.inode.store(stat.st_ino, Ordering::Relaxed);
        }
    }

    /// Waits until no thread is inside a call that began before [`Socket::mark_shared`], and gives up what only this process
    /// can reach: whoever gets the descriptor must not have to wait until this process makes a call.
    pub fn let_others_finish(&'static self) {
        self.with_stream(|_, _, _| ());
        let Some((mut queue, slot)) = self.lock_home() else { return };
        let Some((_, stream)) = queue.stream(slot, self) else { return };
        let flow = (stream.link == Link::Open && !stream.let_go).then_some(stream.flow);
        // One between programs may get a channel later.
        if flow.is_some_and(|flow| queue.flow_info(flow).port == LOCAL) {
            queue.relinquish(slot);
        }
    }

    /// It was claimed with octets of which the engine has no copy.
    pub(super) fn note_carried(&self) {
        self.carries.store(true, Ordering::Relaxed);
        EVER_CARRIED.store(true, Ordering::Relaxed);
    }

    /// Whether any socket of this process ever was.
    pub(crate) fn was_any_carried() -> bool {
        EVER_CARRIED.load(Ordering::Relaxed)
    }

    /// At the end of a call that only looked: what no other process could reach while this one makes no call goes back to
    /// the engine.
    pub(crate) fn give_back_carried(&'static self) {
        if self.carries.load(Ordering::Relaxed)
            && let Some((mut queue, slot)) = self.lock_home()
        {
            self.give_back_carried_of(&mut queue, slot);
        }
    }

    pub(super) fn give_back_carried_of(&self, queue: &mut Queue, slot: u32) {
        if !self.carries.load(Ordering::Relaxed) {
            return;
        }
        let Some((_, stream)) = queue.stream(slot, self) else { return };
        let still = stream.link == Link::Open && !stream.let_go && stream.received.private() > 0;
        self.carries.store(false, Ordering::Relaxed);
        if still {
            queue.relinquish(slot);
        }
    }

    /// Which open file it is, if others may have that and it has not been noted.
    fn note_file(&self) {
        let fd = self.fd.load(Ordering::Relaxed);
        if fd != super::NO_FD && self.inode.load(Ordering::Relaxed) == 0 && self.is_shared() {
            self.mark_shared(fd);
        }
    }

    /// The socket of this process whose descriptor has gone to another one, or come from one, as the open file `inode` of
    /// `device`.
    pub fn find_shared(device: u64, inode: u64) -> Option<&'static Socket> {
        let registry = REGISTRY.lock();
        // What was there at a fork is shared without a word; another socket for it would be two in one process.
        registry.all.iter().for_each(|socket| socket.note_file());
        let same = |socket: &&&Socket| {
            socket.inode.load(Ordering::Relaxed) == inode && socket.device.load(Ordering::Relaxed) == device
        };
        registry.all.iter().filter(|_| inode != 0).find(same).copied()
    }

    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// What the program wants, whichever process has said so: the flag belongs to the open file, which several may share.
    pub fn nonblocking(&self) -> bool {
        // Where system calls are filtered, fcntl may be the process's end: what was true before stays.
        if self.is_shared() && !crate::confine::is_filtered() {
            return self.shared_nonblocking();
        }
        self.nonblocking.load(Ordering::Relaxed)
    }

    fn shared_nonblocking(&self) -> bool {
        let fd = self.fd.load(Ordering::Relaxed);
        let flags = crate::sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
        // A twin is non-blocking for the library's sake when it is marked so.
        let for_library = self.kind() == Kind::Listener && flags & TWIN_MARK != 0;
        flags & libc::O_NONBLOCK != 0 && !for_library
    }
}
