//! What a socket minds because another process may hold its descriptor, too. Called by everything that makes or passes on
//! descriptors, and by whoever asks for a flag that belongs to the open file.

use super::stream::Link;
use super::{Kind, REGISTRY, Socket, TWIN_MARK};
use crate::leaving::give_up_at;
use crate::queue::Queue;
use crate::slots::Place;
use crate::{fd_table, fork};
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
        let Some((mut queue, place)) = self.lock_home() else { return };
        let Some((_, stream)) = queue.stream(place, self) else { return };
        let flow = (stream.link == Link::Open && !stream.let_go).then_some(stream.flow);
        // One between programs may get a channel later.
        let may_be_direct = flow.is_some_and(|flow| queue.flow_info(flow).port == LOCAL);
        drop(queue);
        if may_be_direct {
            self.relinquish();
        }
    }

    /// Gives the connection back to the engine. Waits for what its peer has said to send and the engine still brings, without
    /// a lock.
    pub(super) fn relinquish(&self) {
        let Some((mut queue, place)) = self.lock_home() else { return };
        if queue.stream(place, self).is_none() {
            return;
        }
        queue.relinquish(place);
        drop(queue);
        // What the engine has to say first, and what it still brings, comes with the drains.
        if let Some(home) = self.home() {
            home.drain_until(give_up_at(), |queue| !queue.is_yielding(place));
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
            && let Some((mut queue, place)) = self.lock_home()
        {
            self.give_back_carried_of(&mut queue, place);
        }
    }

    pub(super) fn give_back_carried_of(&self, queue: &mut Queue, place: Place) {
        if !self.carries.load(Ordering::Relaxed) {
            return;
        }
        let Some((_, stream)) = queue.stream(place, self) else { return };
        let still = stream.link == Link::Open && !stream.let_go && stream.received.private() > 0;
        self.carries.store(false, Ordering::Relaxed);
        if still {
            queue.relinquish(place);
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
    /// `device`. `fd`, which is that file, too, counts as one of its descriptors from here on: another thread may be about to
    /// close the last one.
    pub fn install_shared(device: u64, inode: u64, fd: RawFd) -> Option<&'static Socket> {
        let registry = REGISTRY.lock();
        // What was there at a fork is shared without a word; another socket for it would be two in one process.
        registry.all.iter().for_each(|socket| socket.note_file());
        let same = |socket: &&&Socket| {
            socket.inode.load(Ordering::Relaxed) == inode && socket.device.load(Ordering::Relaxed) == device
        };
        let found = registry.all.iter().filter(|_| inode != 0).find(same).copied()?;
        let joined = found
            .references
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| (count > 0).then_some(count + 1));
        // One whose last descriptor has gone is about to be another socket.
        joined.ok()?;
        fd_table::put_socket(fd, found);
        Some(found)
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

    /// What `ask` says of one of its descriptors. Another thread may close that meanwhile, and the number be another file's at
    /// once; but it is closed only after the socket has been told (`drop_reference`), so then another one is asked.
    pub(super) fn of_descriptor<R>(&self, ask: impl Fn(RawFd) -> R) -> R {
        loop {
            let fd = self.fd.load(Ordering::Acquire);
            let answer = ask(fd);
            if self.fd.load(Ordering::Acquire) == fd {
                return answer;
            }
        }
    }

    /// One of its descriptors: the program's, or the copy that is kept for a wait which outlives the last of those.
    pub fn descriptor(&self) -> Option<RawFd> {
        Some(self.fd.load(Ordering::Acquire)).filter(|fd| *fd != super::NO_FD)
    }

    fn shared_nonblocking(&self) -> bool {
        let flags = self.of_descriptor(|fd| crate::sys::fcntl(fd, libc::F_GETFL, 0)).unwrap_or(0);
        // A twin is non-blocking for the library's sake when it is marked so.
        let for_library = self.kind() == Kind::Listener && flags & TWIN_MARK != 0;
        flags & libc::O_NONBLOCK != 0 && !for_library
    }
}
