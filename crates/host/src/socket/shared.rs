//! What a socket minds because another process may hold its descriptor, too. Called by everything that makes or passes on
//! descriptors, and by whoever asks for a flag that belongs to the open file.

use super::stream::Stream;
use super::{Kind, REGISTRY, Socket, TWIN_MARK};
use crate::process;
use crate::queue::QueueIo;
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::entry::Command;

/// Device and inode of the open file behind a descriptor.
pub(crate) fn file_of(fd: RawFd) -> Option<(u64, u64)> {
    if fd == super::descriptors::NO_FD {
        // Of sockets that wait to be used again, which may be many, the kernel need not be asked.
        return None;
    }
    let stat = rustix::fs::fstat(crate::sys::borrow(fd)).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// The link of a connection inside the engine ([`toe_abi::command::FlowInfo::port`]).
pub(super) const LOCAL: u8 = 255;

impl Socket {
    /// Its descriptor `fd` went to another process, or came from one.
    pub fn mark_shared(&self, fd: RawFd) {
        self.copies().note_uncounted();
        let file = file_of(fd);
        let _registry = REGISTRY.lock();
        self.note_as(file);
    }

    /// Only with the registry's lock: without it the socket could be another connection's by now.
    pub(crate) fn note_as(&self, file: Option<(u64, u64)>) {
        file.into_iter().for_each(|file| self.file.note(file));
    }

    /// Whether it is that open file. What was noted is asked again: an anchor is another connection's once it has been closed.
    pub(crate) fn is_file(&self, file: (u64, u64)) -> bool {
        self.file.get() == Some(file) && self.fds.ask(file_of) == Some(file)
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

    fn shared_nonblocking(&self) -> bool {
        let flags = self.fds.ask(|fd| crate::sys::fcntl(fd, libc::F_GETFL, 0)).unwrap_or(0);
        // A twin is non-blocking for the library's sake when it is marked so.
        let for_library = self.kind() == Kind::Listener && flags & TWIN_MARK != 0;
        flags & libc::O_NONBLOCK != 0 && !for_library
    }
}

/// Whether no other process has the descriptor: the engine counts one copy.
pub(crate) fn is_single(socket: &Socket) -> bool {
    // Where system calls are filtered, fcntl may be the process's end.
    let asks = socket.is_shared() && !crate::sys::is_filtered();
    let is_single = !process::is_forking() && socket.copies().is_single();
    // What another process has said of the flag up to now. Another thread may say something else at this moment.
    while is_single && asks && socket.nonblocking() != socket.shared_nonblocking() {
        socket.set_nonblocking(socket.shared_nonblocking());
    }
    is_single
}

/// The program has closed a connection that other processes may have, too.
pub(super) fn close_copy(io: &mut QueueIo, stream: &Stream) {
    if let (Some(anchor), Some(socket)) = (stream.custody.anchor, stream.custody.socket())
        && socket.is_shared()
    {
        io.command(Command::CloseCopy { lifetime: anchor });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd_table;
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
            crate::fd_release::remove(file.as_raw_fd());
        }
    }

    #[test]
    fn a_socket_knows_of_a_descriptor_that_came_while_another_was_closed() {
        let (first, second) = (a_file(), a_file());
        let socket = Socket::allocate();
        fd_table::install(first.as_raw_fd(), socket);
        // Half of what another thread does that makes `second`.
        socket.add_reference();
        crate::fd_release::remove(first.as_raw_fd());
        fd_table::put_counted(second.as_raw_fd(), socket);
        assert_eq!(socket.fds.known(), Some(second.as_raw_fd()));
        crate::fd_release::remove(second.as_raw_fd());
    }
}
