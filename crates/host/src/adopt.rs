//! Descriptors that came from elsewhere, over exec or in a message: the engines say what they stand for.

use crate::socket::claim::claim_or_why;
use crate::socket::shared::file_of;
use crate::socket::{Kind, REGISTRY, Registry, Socket};
use crate::stack::{EngineIdx, Stack};
use crate::{fd_table, sys};
use rustix::fd::RawFd;
use std::sync::atomic::Ordering;
use toe_abi::attach::{Reply, Request};

/// Whether the program before this one did not see the anchor.
pub fn is_hidden(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0)
}

/// The socket for a descriptor that this process got from elsewhere (over exec, or in a message): asks the engines and
/// installs it. `None`: it is none of an engine's. A connection stays with whoever has it until it is used here.
pub fn adopt(fd: i32) -> Option<&'static Socket> {
    let stat = rustix::fs::fstat(sys::borrow(fd)).ok()?;
    if let Some(known) = Socket::install_shared(stat.st_dev, stat.st_ino, fd) {
        return Some(known);
    }
    let recognised = |stack: &'static Stack| {
        let reply = stack.session.request(Request::Recognise, &[sys::borrow(fd)]).ok()?;
        let kind = if matches!(reply, Reply::Handle { .. }) { Kind::Listener } else { Kind::Stream };
        Some((stack.session.engine, kind))
    };
    let (engine, kind) = EngineIdx::all().filter_map(Stack::get).find_map(recognised)?;
    if kind == Kind::Listener && is_hidden(fd) {
        // By now this process holds the listener by its twin, if it has that.
        let _ = sys::close(fd);
        return None;
    }
    let found = Socket::install_received(engine, kind, fd);
    // A listener is held from now on: whoever it came from may be about to leave it.
    if kind == Kind::Listener && claim_or_why(found).is_err() {
        crate::fd_release::remove_only(fd, found);
        return None;
    }
    Some(found)
}

impl Registry {
    fn install_known(&self, file: (u64, u64), fd: RawFd) -> Option<&'static Socket> {
        // What was there at a fork is shared without a word; another socket for it would be two in one process.
        let is_unknown = |socket: &&&Socket| socket.file.get().is_none() && socket.is_shared();
        let unknown = self.all.iter().filter(is_unknown);
        unknown.for_each(|socket| socket.note_as(socket.fds.ask(file_of)));
        let found = self.all.iter().find(|socket| socket.is_file(file)).copied()?;
        let join = |count| (count > 0).then_some(count + 1);
        // One whose last descriptor has gone is about to be another socket.
        found.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, join).ok()?;
        fd_table::put_counted(fd, found);
        Some(found)
    }
}

impl Socket {
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
}
