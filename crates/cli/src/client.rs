//! One conversation with an engine over its control socket. Used by every subcommand that asks an engine something.

use crate::locate;
use rustix::io::{Errno as OsError, IoSlice, IoSliceMut};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use toe_abi::INTERFACE_VERSION;
use toe_abi::attach::{BadMessage, Message, Reply, ReportKind, Request};
use toe_abi::discovery;
use toe_abi::errno::Errno;
use zerocopy::IntoBytes;

/// An engine answers within a round of its loop; this long only when it is stopped, hangs, or the machine is overloaded.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How long to go on asking an engine that is busy with other reports.
const REPORT_WITHIN: Duration = Duration::from_secs(5);
/// Pause between such questions.
const REPORT_PAUSE: Duration = Duration::from_millis(10);
/// Longest report taken, against an engine gone mad.
const REPORT_LEN_MAX: u64 = 256 << 20;

/// Why an engine could not be asked, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "no engine named '{name}' runs (looked for {looked}); start one with 'toe start --name {name} …'"
    )]
    NotRunning { name: String, looked: String },
    #[error(
        "{path}: the engine does not let user {uid} attach; start it with --allow-uid {uid}, --allow-group or --allow-all, \
         or run this as the user who started it, or as root{}",
        if *uid == *inside { String::new() } else { format!(" (to the engine user {inside} of this user namespace is user {uid})") }
    )]
    NoPermission { path: PathBuf, uid: u32, inside: u32 },
    #[error(
        "{path}: the engine or its directory is another user's ({uid}), who could read and change all that goes through it; start \
         one as yourself or as root, or name its user in TOE_ENGINE_UID{}",
        if *is_outside { ". In this user namespace all users outside, root too, look like that one" } else { "" }
    )]
    Untrusted { path: PathBuf, uid: u32, is_outside: bool },
    #[error("{path}: cannot connect to the engine ({error})")]
    Connect { path: PathBuf, error: OsError },
    #[error("the engine does not answer ({0}); see its log, or stop it with kill")]
    NoAnswer(String),
    #[error(
        "the engine (process {pid}) is there and has not answered within {} s: it is stopped or hangs, and what programs make \
         anew is the kernel's meanwhile. If 'ps -o stat= {pid}' begins with T or t, 'kill -CONT {pid}' lets it go on; else see its log, and \
         end it with 'kill -9 {pid}'",
        ANSWER_WITHIN.as_secs()
    )]
    Silent { pid: i32 },
    #[error(
        "the engine speaks version {theirs} of the host interface and this 'toe' version {ours}; use programs of one \
         release (stop the engine and start it again)"
    )]
    Version { theirs: u16, ours: u16 },
    #[error("the engine refused: {0}")]
    Refused(String),
    #[error("the engine's answer makes no sense ({0}); use 'toe' and 'toed' of one release")]
    Nonsense(String),
}

impl ClientError {
    /// The word for it in JSON.
    pub fn code(&self) -> &'static str {
        match self {
            ClientError::NotRunning { .. } => "not-running",
            ClientError::NoPermission { .. } => "no-permission",
            ClientError::Untrusted { .. } => "untrusted",
            ClientError::Connect { .. } => "no-connection",
            ClientError::NoAnswer(_) => "no-answer",
            ClientError::Silent { .. } => "silent",
            ClientError::Version { .. } => "other-version",
            ClientError::Refused(_) => "refused",
            ClientError::Nonsense(_) => "no-sense",
        }
    }
}

/// A connection to an engine.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    path: PathBuf,
}

impl Client {
    /// Connects to the engine at `path`.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let failed = |error| ClientError::Connect { path: path.to_path_buf(), error };
        if let Some(uid) = stranger_of_place(path) {
            return Err(untrusted(path, uid));
        }
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        let addr = SocketAddrUnix::new(path).map_err(failed)?;
        for direction in [Timeout::Recv, Timeout::Send] {
            sockopt::set_socket_timeout(&socket, direction, Some(ANSWER_WITHIN)).map_err(failed)?;
        }
        rustix::net::connect(&socket, &addr).map_err(|error| match error {
            OsError::NOENT | OsError::CONNREFUSED => {
                ClientError::NotRunning { name: locate::name_of(path), looked: path.display().to_string() }
            }
            OsError::ACCESS | OsError::PERM => no_permission(path),
            // So many wait already to be let in.
            OsError::AGAIN => ClientError::Silent { pid: pid_of(&socket) },
            error => failed(error),
        })?;
        // Not rustix's: it takes it for an error that the engine has no process number in this process's space of them.
        let peer = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials);
        let engine = peer.map_err(|error| failed(OsError::from_raw_os_error(error as i32)))?.uid();
        let own = [rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw()];
        let listed = std::env::var(discovery::ENGINE_UID_VARIABLE).ok();
        if !discovery::trusts(engine, own, listed.as_deref()) {
            return Err(untrusted(path, engine));
        }
        Ok(Client { socket, path: path.to_path_buf() })
    }

    /// Connects to the engine of that name; without a name, to the one that `TOE_ENGINE` names, else to the default.
    pub fn find(name: Option<&str>) -> Result<Client, ClientError> {
        let paths = locate::sockets(name);
        let mut denied = None;
        for path in &paths {
            match Client::connect(path) {
                Err(ClientError::NotRunning { .. }) => {}
                Err(error @ (ClientError::NoPermission { .. } | ClientError::Untrusted { .. })) => {
                    denied = Some(error);
                }
                other => return other,
            }
        }
        Err(denied.unwrap_or_else(|| ClientError::NotRunning {
            name: name.unwrap_or(toe_abi::discovery::DEFAULT_ENGINE).to_owned(),
            looked: paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "),
        }))
    }

    /// The engine's process, if it is one that this process can see.
    pub fn engine_pid(&self) -> Option<rustix::process::Pid> {
        rustix::process::Pid::from_raw(pid_of(&self.socket))
    }

    /// Sends a request and takes its answer.
    pub fn ask(&self, request: Request) -> Result<(Reply, Option<OwnedFd>), ClientError> {
        self.ask_with(request, None)
    }

    /// The same with a descriptor beside the request.
    pub fn ask_with(
        &self,
        request: Request,
        presented: Option<BorrowedFd<'_>>,
    ) -> Result<(Reply, Option<OwnedFd>), ClientError> {
        let broken = |error: OsError| match error {
            OsError::AGAIN => ClientError::Silent { pid: pid_of(&self.socket) },
            error => ClientError::NoAnswer(error.to_string()),
        };
        let message = request.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let presented: Vec<BorrowedFd<'_>> = presented.into_iter().collect();
        if !presented.is_empty() {
            // There is room for one.
            beside.push(SendAncillaryMessage::ScmRights(&presented));
        }
        let iov = [IoSlice::new(message.as_bytes())];
        match rustix::net::sendmsg(&self.socket, &iov, &mut beside, SendFlags::NOSIGNAL) {
            // An engine that turns this user away has said why before it was asked.
            Ok(_) | Err(OsError::PIPE) => {}
            Err(error) => return Err(broken(error)),
        }
        let mut bytes = [0; size_of::<Message>() + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(&self.socket, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)
            .map_err(broken)?;
        let len = got.bytes;
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        if len == 0 {
            return Err(ClientError::NoAnswer("it closed the connection".to_owned()));
        }
        let reply = Message::parse(&bytes[..len]).and_then(|message| Reply::decode(&message));
        match reply {
            Ok(Reply::Refused { errno, version }) => Err(self.refused(Errno(errno), version)),
            Ok(reply) => Ok((reply, fd)),
            Err(BadMessage::Version(theirs)) => Err(ClientError::Version { theirs, ours: INTERFACE_VERSION }),
            Err(bad) => Err(ClientError::Nonsense(format!("{bad:?}"))),
        }
    }

    /// Asks for a report, again and again while the engine is busy with others.
    pub fn report<T: DeserializeOwned>(&self, what: ReportKind) -> Result<T, ClientError> {
        let until = Instant::now() + REPORT_WITHIN;
        let (reply, memory) = loop {
            match self.ask(Request::Report { what }) {
                Err(ClientError::Refused(_)) if Instant::now() < until => std::thread::sleep(REPORT_PAUSE),
                other => break other?,
            }
        };
        let (Reply::Report { len }, Some(memory)) = (reply, memory) else {
            return Err(ClientError::Nonsense("no report".to_owned()));
        };
        if len > REPORT_LEN_MAX {
            return Err(ClientError::Nonsense(format!("a report of {len} bytes")));
        }
        let mut text = vec![0; len as usize];
        File::from(memory)
            .read_exact_at(&mut text, 0)
            .map_err(|error| ClientError::Nonsense(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| ClientError::Nonsense(error.to_string()))
    }

    fn refused(&self, errno: Errno, version: u16) -> ClientError {
        if version != INTERFACE_VERSION {
            return ClientError::Version { theirs: version, ours: INTERFACE_VERSION };
        }
        ClientError::Refused(match errno {
            Errno::EACCES => return no_permission(&self.path),
            Errno::EPERM => {
                "only the user who started it, or root, may do that, in the engine's own network namespace"
                    .to_owned()
            }
            Errno::EAGAIN => "it is busy; try again".to_owned(),
            errno => OsError::from_raw_os_error(i32::from(errno.0)).to_string(),
        })
    }

    /// Becomes readable when the engine ends.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The process at the other end; 0: it cannot be seen from here.
fn pid_of(socket: &OwnedFd) -> i32 {
    nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::PeerCredentials)
        .map_or(0, |peer| peer.pid())
}

fn no_permission(path: &Path) -> ClientError {
    let inside = rustix::process::geteuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    ClientError::NoPermission { path: path.to_path_buf(), uid: uid_outside(inside, &map), inside }
}

fn untrusted(path: &Path, uid: u32) -> ClientError {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let is_overflow = read("/proc/sys/kernel/overflowuid").trim().parse() == Ok(uid);
    let is_first = read("/proc/self/uid_map").split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    ClientError::Untrusted { path: path.to_path_buf(), uid, is_outside: is_overflow && !is_first }
}

/// The user outside this user namespace, by the lines of its /proc/self/uid_map: first inside, first outside, how many.
fn uid_outside(uid: u32, map: &str) -> u32 {
    let outside = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        uid.checked_sub(inside).filter(|at| *at < count).and_then(|at| outside.checked_add(at))
    };
    map.lines().find_map(outside).unwrap_or(uid)
}

/// Whose the directory is, if he may have put a socket there: one that anybody could have made.
fn stranger_of_place(path: &Path) -> Option<u32> {
    let euid = rustix::process::geteuid().as_raw();
    let open_to_all = discovery::dir_in_tmp(euid);
    let dir = path.parent().filter(|dir| *dir == Path::new(&open_to_all))?;
    let found = std::fs::symlink_metadata(dir).ok()?;
    (!discovery::is_good_dir(found.is_dir(), found.uid(), found.mode(), euid)).then(|| found.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_a_namespace_is_another_outside() {
        let map = "         0     100000      65536\n     70000 5 1\n";
        assert_eq!(
            (uid_outside(0, map), uid_outside(33, map), uid_outside(70_000, map)),
            (100_000, 100_033, 5)
        );
        assert_eq!(uid_outside(65_536, map), 65_536, "nobody outside");
        assert_eq!(uid_outside(7, "0 0 4294967295"), 7);
        assert_eq!(uid_outside(7, "nonsense"), 7);
    }
}
