//! Reports: what is shown to whom, and the sealed memory that they are in. Used by `status` and by `reports`.

use crate::policy::{Credentials, Policy};
use crate::ports::Ports;
use crate::session::Sessions;
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use toe_abi::report::{SocketReport, UserReport};
use toe_base::{Cred, NetNs, SessionId};
use toe_engine::SocketView;

/// For whom a report is.
pub(crate) struct View<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) who: &'a Credentials,
    pub(crate) sessions: &'a Sessions,
    pub(crate) ports: &'a Ports,
}

impl View<'_> {
    pub(crate) fn shows(&self, owner: Cred) -> bool {
        self.policy.may_see(self.who, owner)
    }

    /// Sockets that nobody holds any more are among what it shows.
    pub(crate) fn is_whole(&self) -> bool {
        self.policy.may_control(self.who)
    }

    /// Whether a socket is shown.
    pub(crate) fn shows_socket(&self, socket: &SocketView) -> bool {
        let is_shown = |&(id, _): &(SessionId, u32)| {
            self.sessions.get(id).is_some_and(|session| self.shows(session.peer.cred()))
        };
        self.is_whole() || socket.holders.iter().any(is_shown)
    }

    /// What `toe ss` shows of it: of a socket that several users hold, to each his own processes.
    pub(crate) fn socket(&self, socket: &SocketView) -> SocketReport {
        let users = socket.holders.iter().filter_map(|&(id, fd)| {
            let peer = &self.sessions.get(id)?.peer;
            self.shows(peer.cred()).then_some(())?;
            Some(UserReport { program: peer.program.clone(), pid: peer.pid, fd })
        });
        SocketReport {
            netns: self.netns(socket.netns),
            state: socket.state.to_owned(),
            local: address(socket.local),
            remote: address(socket.remote),
            recv_q: socket.recv_q,
            send_q: socket.send_q,
            users: users.collect(),
            device: match socket.port {
                None if socket.listener || socket.udp.is_some() => "*".to_owned(),
                port => self.ports.name(port).to_owned(),
            },
            tcp: socket.tcp.clone(),
            udp: socket.udp,
        }
    }

    /// A namespace by its cookie; none is the engine's own.
    pub(crate) fn netns(&self, netns: NetNs) -> Option<u64> {
        (netns != self.policy.netns).then_some(netns.0)
    }
}

/// An address as `ss` writes it: `*` for any port.
fn address(addr: SocketAddr) -> String {
    if addr.port() == 0 { format!("{}:*", addr.ip()) } else { addr.to_string() }
}

/// Memory that holds `bytes` and can never change, for a host to read at leisure.
pub(crate) fn sealed_memory(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let mut file = report_memory()?;
    file.write_all(bytes)?;
    sealed(file)
}

/// Memory for a report that is being made.
pub(crate) fn report_memory() -> std::io::Result<File> {
    Ok(rustix::fs::memfd_create("toe-report", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into())
}

/// It is made. Its pages are the engine's, as long as anybody has it: so its user's thread takes them back when he has had some others
/// ([`crate::control_server::pages`]).
pub(crate) fn sealed(file: File) -> std::io::Result<OwnedFd> {
    let seals = SealFlags::SEAL | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}
