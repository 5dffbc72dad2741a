//! The control socket: finding an engine, asking it for a session, memory, queue sets and anchors.
//!
//! Owns the one socket over which [`toe_abi::attach`] messages go. Used by [`crate::stack`].

use crate::environment;
use crate::errno::{EKEYREJECTED, from_os};
use crate::lock::Lock;
use crate::silence::{ANSWER_WITHIN, PIECE, Silence};
use crate::sys::{Fd, move_to_high};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;
use toe_abi::attach::{DESCRIPTORS_MAX, Message, Reply, Request};
use toe_abi::discovery;
use toe_abi::errno::Errno;
use toe_abi::policy::ENGINES_MAX;
use zerocopy::IntoBytes;

const NO_ONE_THERE: Errno = Errno::ECONNREFUSED;

/// The engines of this process, and where each may listen: those that `TOE_ENGINE` lists, or else the engine named
/// "default" of the user and then of root. The first [`ENGINES_MAX`] of them.
///
/// Looked up once, as early as the library can: programs such as nginx clear their environment later.
pub fn engines() -> &'static [Vec<PathBuf>] {
    static ENGINES: OnceLock<Vec<Vec<PathBuf>>> = OnceLock::new();
    trusted_uids();
    ENGINES.get_or_init(|| {
        let mut engines = find_engines();
        engines.truncate(ENGINES_MAX);
        engines
    })
}

fn find_engines() -> Vec<Vec<PathBuf>> {
    if let Some(list) = environment::var_os(discovery::ENGINE_VARIABLE).filter(|list| !list.is_empty()) {
        return std::env::split_paths(&list)
            .filter(|path| !path.as_os_str().is_empty())
            .map(|path| vec![path])
            .collect();
    }
    let xdg = environment::var("XDG_RUNTIME_DIR");
    let dirs = discovery::search_dirs(rustix::process::geteuid().as_raw(), xdg.as_deref());
    let sockets =
        dirs.iter().map(|dir| PathBuf::from(discovery::socket_path(dir, discovery::DEFAULT_ENGINE)));
    vec![sockets.collect()]
}

/// Whether this process cannot even see the directory of an engine that `TOE_ENGINE` names: it has another root than who named it.
pub fn is_out_of_sight(engine: usize) -> bool {
    let is_named = environment::var_os(discovery::ENGINE_VARIABLE).is_some();
    let dirs = engines().get(engine).into_iter().flatten().filter_map(|path| path.parent());
    is_named
        && dirs
            .into_iter()
            .all(|dir| rustix::fs::stat(dir).is_err_and(|e| from_os(e) == crate::errno::ENOENT))
}

/// The value of TOE_ENGINE_UID; looked up as [`engines`] are.
fn trusted_uids() -> Option<&'static str> {
    static TRUSTED: OnceLock<Option<String>> = OnceLock::new();
    TRUSTED.get_or_init(|| environment::var(discovery::ENGINE_UID_VARIABLE)).as_deref()
}

/// Whether the engine at the other end is one to trust with everything that the program says: by the user as which it began
/// to listen. EKEYREJECTED: it is not.
fn check_engine(fd: &Fd) -> Result<(), Errno> {
    let engine = crate::sys::peer_uid(fd)?;
    let (real, effective) = (rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw());
    let own = discovery::own_users(real, effective, environment::is_secure());
    if discovery::trusts(engine, own, trusted_uids()) { Ok(()) } else { Err(EKEYREJECTED) }
}

/// Whether somebody else may have put a socket at `path`, in a directory that anybody could have made.
fn check_dir(path: &Path) -> Result<(), Errno> {
    let euid = rustix::process::geteuid().as_raw();
    let open_to_all = discovery::dir_in_tmp(euid);
    let Some(dir) = path.parent().filter(|dir| *dir == Path::new(&open_to_all)) else { return Ok(()) };
    let Ok(found) = rustix::fs::lstat(dir) else { return Ok(()) };
    let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    if discovery::is_good_dir(is_dir, found.st_uid, found.st_mode, euid) { Ok(()) } else { Err(EKEYREJECTED) }
}

/// An answer, and the descriptors beside it.
pub type Answered = (Reply, Vec<Fd>);

/// A connection to an engine.
#[derive(Debug)]
pub struct Control {
    fd: Fd,
    /// One request at a time: the engine answers in order. The one that was given up on, whose answer may come yet.
    pending: Lock<Option<Request>>,
    /// What the engine has for each answer.
    limit: Duration,
}

impl Control {
    /// Connects to the engine at `path`. ECONNREFUSED: none there. EACCES: no right to ask. EKEYREJECTED: it is a stranger's.
    pub fn connect(path: &Path) -> Result<Control, Errno> {
        Control::connect_within(path, ANSWER_WITHIN)
    }

    /// The same; ETIMEDOUT: it took longer than `limit`, as may all that asks for something new.
    pub fn connect_within(path: &Path, limit: Duration) -> Result<Control, Errno> {
        check_dir(path)?;
        let address = SocketAddrUnix::new(path).map_err(from_os)?;
        let fd =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(from_os)?;
        let fd = move_to_high(Fd::from(fd));
        sockopt::set_socket_timeout(&fd, Timeout::Send, Some(limit)).map_err(from_os)?;
        // One look at the answer.
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(limit.min(PIECE))).map_err(from_os)?;
        rustix::net::connect(&fd, &address).map_err(|error| match from_os(error) {
            crate::errno::ENOENT => NO_ONE_THERE,
            // So many wait already to be let in.
            Errno::EAGAIN => Errno::ETIMEDOUT,
            other => other,
        })?;
        check_engine(&fd)?;
        Ok(Control { fd, pending: Lock::new(None), limit })
    }

    /// Over a connected socket.
    pub fn over(fd: Fd) -> Control {
        Control { fd, pending: Lock::new(None), limit: ANSWER_WITHIN }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn raw_fd(&self) -> i32 {
        self.fd.raw()
    }

    /// Asks and waits for the answer. A refusal becomes its errno; a lost connection ECONNRESET. ETIMEDOUT: no answer within the time that
    /// there is for what is new, or still none to what was asked before.
    pub fn request(&self, request: Request, show: &[BorrowedFd<'_>]) -> Result<Answered, Errno> {
        let mut pending = self.pending.lock();
        let is_patient = !asks_for_something_new(&request);
        if pending.is_some() && !(is_patient || self.has_answer()) {
            return Err(Errno::ETIMEDOUT);
        }
        if let Some(earlier) = pending.take() {
            let late = self.answer_to(earlier, true, &mut pending);
            // What it brings is the engine's only answer to this.
            if earlier == request && show.is_empty() {
                return late;
            }
            late.map(drop).or_else(|error| if error == Errno::ECONNRESET { Err(error) } else { Ok(()) })?;
        }
        match self.send(request, show) {
            // An engine that turns this user away has said why before it was asked.
            Ok(()) | Err(Errno::ECONNRESET) => {}
            Err(error) => return Err(error),
        }
        self.answer_to(request, is_patient, &mut pending)
    }

    /// Waits for an answer, which is owed from then on if it does not come in time.
    fn answer_to(
        &self,
        request: Request,
        is_patient: bool,
        pending: &mut Option<Request>,
    ) -> Result<Answered, Errno> {
        loop {
            match self.answer() {
                Err(Errno::ETIMEDOUT) if is_patient => {}
                Err(Errno::ETIMEDOUT) => {
                    *pending = Some(request);
                    return Err(Errno::ETIMEDOUT);
                }
                answer => return answer,
            }
        }
    }

    fn answer(&self) -> Result<Answered, Errno> {
        let (message, fds) = self.receive()?;
        match Reply::decode(&message) {
            Ok(Reply::Refused { errno, .. }) => Err(Errno(errno)),
            Ok(reply) => Ok((reply, fds)),
            Err(_) => Err(Errno::EPROTO),
        }
    }

    fn send(&self, request: Request, show: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let message = request.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !show.is_empty() && !control.push(SendAncillaryMessage::ScmRights(show)) {
            return Err(Errno::EINVAL);
        }
        let packet = [IoSlice::new(message.as_bytes())];
        loop {
            match rustix::net::sendmsg(&self.fd, &packet, &mut control, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::PIPE) => return Err(Errno::ECONNRESET),
                Err(rustix::io::Errno::AGAIN) => return Err(Errno::ETIMEDOUT),
                Err(error) => return Err(from_os(error)),
            }
        }
    }

    fn receive(&self) -> Result<(Message, Vec<Fd>), Errno> {
        let mut packet = [0u8; size_of::<Message>() + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let silence = Silence::within(self.limit);
        let len = loop {
            let mut slices = [IoSliceMut::new(&mut packet)];
            match rustix::net::recvmsg(&self.fd, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => break message.bytes,
                // A program's timer may come again and again.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) if !silence.look().is_zero() => {}
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return Err(Errno::ETIMEDOUT),
                Err(error) => return Err(from_os(error)),
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights.map(|fd: OwnedFd| move_to_high(Fd::from(fd))));
            }
        }
        match packet.get(..len) {
            Some([]) | None => Err(Errno::ECONNRESET),
            Some(packet) => Message::parse(packet).map(|m| (m, fds)).map_err(|_| Errno::EPROTO),
        }
    }

    /// Whether something lies there to be received, or nothing ever will.
    fn has_answer(&self) -> bool {
        let mut polled = [libc::pollfd { fd: self.fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        crate::sys::poll_now(&mut polled).is_ok_and(|n| n > 0)
    }

    /// Whether the engine has closed its end: it ended, or it fenced the session.
    pub fn is_gone(&self) -> bool {
        let mut polled =
            [libc::pollfd { fd: self.fd.as_fd().as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
        match crate::sys::poll_now(&mut polled) {
            // Nothing may be polled (RLIMIT_NOFILE is 0).
            Err(Errno::EINVAL) => crate::sys::is_at_end(self.raw_fd()),
            found => found.is_ok_and(|n| n > 0) && is_hangup(polled[0].revents),
        }
    }
}

/// Whether a request is for what can be the kernel's instead. All others are about what the engine has already, and nobody else can answer.
fn asks_for_something_new(request: &Request) -> bool {
    !matches!(
        request,
        Request::Claim { .. } | Request::OpenChannel { .. } | Request::Relinquish { .. } | Request::Recognise
    )
}

/// Whether what poll says of a control socket means that the engine is gone.
pub fn is_hangup(revents: i16) -> bool {
    revents & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP | libc::POLLNVAL) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that is stopped, and goes on after it was given up on: nobody takes an answer for that to another question, and what it
    /// gave is not lost.
    #[test]
    fn what_was_given_up_on_is_not_asked_again_and_its_answer_is_nobody_elses() {
        let (ours, engine) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair");
        let limit = Duration::from_millis(1);
        sockopt::set_socket_timeout(&ours, Timeout::Recv, Some(limit)).expect("a limit");
        let control = Control { limit, ..Control::over(Fd::from(ours)) };
        let (anchors, twin) = (Request::TakeAnchors { count: 8 }, Request::ShowTwin);
        let answers = |reply: Reply| {
            rustix::net::send(&engine, reply.encode().as_bytes(), SendFlags::DONTWAIT).expect("room");
        };
        let asked = || {
            let mut packet = [0; size_of::<Message>()];
            rustix::net::recv(&engine, &mut packet[..], rustix::net::RecvFlags::DONTWAIT)
                .map(|got| got.0)
                .ok()
        };
        assert_eq!(control.request(anchors, &[]).err(), Some(Errno::ETIMEDOUT));
        assert_eq!(control.request(twin, &[]).err(), Some(Errno::ETIMEDOUT));
        assert!(asked().is_some() && asked().is_none(), "only once was it asked");
        answers(Reply::Anchors { first: 7, count: 8 });
        let (reply, _) = control.request(anchors, &[]).expect("what was asked before");
        assert_eq!((reply, asked()), (Reply::Anchors { first: 7, count: 8 }, None));
        assert_eq!(control.request(twin, &[]).err(), Some(Errno::ETIMEDOUT));
        answers(Reply::Handle { handle: 1 });
        answers(Reply::Anchors { first: 15, count: 8 });
        let (reply, _) = control.request(anchors, &[]).expect("its own answer");
        assert_eq!(reply, Reply::Anchors { first: 15, count: 8 });
        // What only the engine can say is waited for.
        assert_eq!(control.request(twin, &[]).err(), Some(Errno::ETIMEDOUT));
        answers(Reply::Handle { handle: 2 });
        answers(Reply::Done);
        assert_eq!(control.request(Request::Share, &[]).map(|(reply, _)| reply), Ok(Reply::Done));
    }

    /// By poll, and where nothing may be polled.
    #[test]
    fn an_end_is_told_from_an_answer() {
        let (ours, engine) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a pair");
        let control = Control::over(Fd::from(ours));
        let says = || [control.is_gone(), crate::sys::is_at_end(control.raw_fd())];
        assert_eq!(says(), [false; 2]);
        rustix::io::write(&engine, b"x").expect("room");
        assert_eq!(says(), [false; 2]);
        rustix::io::read(control.fd(), &mut [0u8; 1]).expect("what was written");
        drop(engine);
        assert_eq!(says(), [true; 2]);
    }
}
