//! What a socket minds because another process may hold its descriptor, too. Called by everything that makes or passes on
//! descriptors, and by whoever asks for a flag that belongs to the open file.

use super::copies::CopiesSeen;
use super::stream::{Link, Stream};
use super::{Kind, REGISTRY, Registry, Socket, TWIN_MARK};
use crate::leaving::give_up_at;
use crate::queue::{QueueGuard, QueueIo};
use crate::slots::Place;
use crate::stack::EngineIdx;
use crate::{fd_table, fork};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::entry::Command;

/// Device and inode of the open file behind a descriptor.
fn file_of(fd: RawFd) -> Option<(u64, u64)> {
    if fd == super::NO_FD {
        // Of sockets that wait to be used again, which may be many, the kernel need not be asked.
        return None;
    }
    let stat = rustix::fs::fstat(crate::sys::borrow(fd)).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// The link of a connection inside the engine ([`toe_abi::command::FlowInfo::port`]).
pub(super) const LOCAL: u8 = 255;

impl Registry {
    fn install_known(&self, file: (u64, u64), fd: RawFd) -> Option<&'static Socket> {
        // What was there at a fork is shared without a word; another socket for it would be two in one process.
        let is_unknown = |socket: &&&Socket| socket.inode.load(Ordering::Relaxed) == 0 && socket.is_shared();
        let unknown = self.all.iter().filter(is_unknown);
        unknown.for_each(|socket| socket.note_as(socket.of_descriptor(file_of)));
        let found = self.all.iter().find(|socket| socket.is_file(file)).copied()?;
        let join = |count| (count > 0).then_some(count + 1);
        // One whose last descriptor has gone is about to be another socket.
        found.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, join).ok()?;
        fd_table::put_counted(fd, found);
        Some(found)
    }
}

impl Socket {
    /// Whether another process may hold its descriptor.
    pub fn is_shared(&self) -> bool {
        self.copies().exist()
    }

    /// What is known of its copies. It is in a session if it has, or had when it was another process's, a flow or listener there.
    #[inline]
    pub(crate) fn copies(&self) -> CopiesSeen<'_> {
        self.sharing.copies.seen_by(fork::process(), self.place.load(Ordering::Relaxed) != super::NO_PLACE)
    }

    /// Its descriptor `fd` went to another process, or came from one.
    pub fn mark_shared(&self, fd: RawFd) {
        self.copies().note_uncounted();
        let file = file_of(fd);
        let _registry = REGISTRY.lock();
        self.note_as(file);
    }

    /// Only with the registry's lock: without it the socket could be another connection's by now.
    fn note_as(&self, file: Option<(u64, u64)>) {
        if let Some((device, inode)) = file {
            self.device.store(device, Ordering::Relaxed);
            self.inode.store(inode, Ordering::Relaxed);
        }
    }

    /// Waits until no thread is inside a call that began before [`Socket::mark_shared`], and gives up what only this process
    /// can reach: whoever gets the descriptor must not have to wait until this process makes a call.
    pub fn let_others_finish(&'static self) {
        self.with_stream(|_, _, _| ());
        let Some((mut queue, place)) = self.lock_home() else { return };
        queue.write_options(Some(place));
        let Some((io, stream)) = queue.stream(place, self) else { return };
        if let Some(anchor) = stream.anchor {
            // The receiver is believed only then, if the anchor had been another connection's.
            io.command(Command::Lend { anchor });
        }
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
        self.finish_yielding(queue, place);
    }

    /// At the end of a call: what is being given back is given back before the program goes on, which may make no other call.
    /// What the engine has to say first, and what it still brings, comes with the drains.
    pub(super) fn finish_yielding(&self, queue: QueueGuard<'static>, place: Place) {
        let awaits = queue.awaits_rest_of(place);
        drop(queue);
        if let (true, Some(home)) = (awaits, self.home()) {
            home.drain_until(give_up_at(), |queue| !queue.awaits_rest_of(place));
        }
    }

    /// Whether it is that open file. What was noted is asked again: an anchor is another connection's once it has been closed.
    fn is_file(&self, file: (u64, u64)) -> bool {
        let noted = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        noted == file && self.of_descriptor(file_of) == Some(file)
    }

    /// The socket of this process whose descriptor has gone to another one, or come from one, as the open file `inode` of
    /// `device`. `fd`, which is that file, too, counts as one of its descriptors from here on: another thread may be about to
    /// close the last one.
    pub fn install_shared(device: u64, inode: u64, fd: RawFd) -> Option<&'static Socket> {
        REGISTRY.lock().install_known((device, inode), fd)
    }

    /// The socket for `fd`, which came from another process that has what it stands for. Of two threads that are sent one socket at once both
    /// get the same.
    pub(crate) fn install_received(engine: EngineIdx, kind: Kind, fd: RawFd) -> &'static Socket {
        let made = Socket::allocate();
        made.set_engine(engine);
        made.kind.store(kind as u8, Ordering::Release);
        made.ready.store(0, Ordering::SeqCst);
        made.copies().set_moved(true);
        made.copies().note_uncounted();
        made.note_family(fd);
        let file = file_of(fd);
        let registry = REGISTRY.lock();
        if let Some(known) = file.and_then(|file| registry.install_known(file, fd)) {
            drop(registry);
            made.abandon();
            return known;
        }
        made.note_as(file);
        fd_table::install(fd, made);
        made
    }

    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// What the program wants, whichever process has said so: the flag belongs to the open file, which several may share.
    pub fn nonblocking(&self) -> bool {
        // Where system calls are filtered, fcntl may be the process's end: what was true before stays.
        if self.is_shared() && !crate::sys::is_filtered() {
            return self.shared_nonblocking();
        }
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// What `ask` says of one of its descriptors. Another thread may close that meanwhile, and the number be another file's at
    /// once; but it is closed only after the socket has been told (`drop_reference`), so then another one is asked.
    pub(crate) fn of_descriptor<R>(&self, ask: impl Fn(RawFd) -> R) -> R {
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

/// Whether no other process has the descriptor: the engine counts one copy.
pub(crate) fn is_single(socket: &Socket) -> bool {
    // Where system calls are filtered, fcntl may be the process's end.
    let asks = socket.is_shared() && !crate::sys::is_filtered();
    let is_single = !fork::is_forking() && socket.copies().is_single();
    // What another process has said of the flag up to now. Another thread may say something else at this moment.
    while is_single && asks && socket.nonblocking() != socket.shared_nonblocking() {
        socket.set_nonblocking(socket.shared_nonblocking());
    }
    is_single
}

/// The program has closed a connection that other processes may have, too.
pub(super) fn close_copy(io: &mut QueueIo, stream: &Stream) {
    if let (Some(anchor), Some(socket)) = (stream.anchor, stream.socket)
        && socket.is_shared()
    {
        io.command(Command::CloseCopy { lifetime: anchor });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    fn a_file() -> File {
        let made = rustix::fs::memfd_create("another", rustix::fs::MemfdFlags::CLOEXEC);
        File::from(made.expect("a file of its own"))
    }

    /// Found by the stress of threads that do everything at once: who was passed a descriptor read another connection's bytes.
    /// The number of a descriptor was another file's by the time that its inode was noted.
    #[test]
    fn what_was_noted_of_a_descriptor_is_not_believed() {
        let (mine, others, passed) = (a_file(), a_file(), a_file());
        let socket = Socket::allocate();
        fd_table::install(mine.as_raw_fd(), socket);
        let of = |file: &File| file_of(file.as_raw_fd()).expect("it is open");
        socket.note_as(Some(of(&others)));
        let (device, inode) = of(&others);
        assert!(Socket::install_shared(device, inode, passed.as_raw_fd()).is_none());
        socket.note_as(Some(of(&mine)));
        let (device, inode) = of(&mine);
        let found = Socket::install_shared(device, inode, passed.as_raw_fd()).expect("it is that file");
        assert!(std::ptr::eq(found, socket));
        for file in [&mine, &passed] {
            fd_table::remove(file.as_raw_fd());
        }
    }

    #[test]
    fn a_socket_knows_of_a_descriptor_that_came_while_another_was_closed() {
        let (first, second) = (a_file(), a_file());
        let socket = Socket::allocate();
        fd_table::install(first.as_raw_fd(), socket);
        // Half of what another thread does that makes `second`.
        socket.add_reference();
        fd_table::remove(first.as_raw_fd());
        fd_table::put_counted(second.as_raw_fd(), socket);
        assert_eq!(socket.descriptor(), Some(second.as_raw_fd()));
        fd_table::remove(second.as_raw_fd());
    }
}
