//! The reports behind `toe status` and `toe ss`, as JSON in sealed memory. Called by `attach` and, for a list of sockets, which is
//! made in steps, by `sockets`.

use crate::daemon::Daemon;
use crate::policy::{Credentials, Policy};
use rustix::fs::{MemfdFlags, SealFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use toe_abi::report::{
    AccountReport, PortReport, QuotaReport, SessionReport, SocketReport, StatusReport, UseReport, UserReport,
};
use toe_base::{Cred, NetNs, SessionId};
use toe_engine::{Limit, Resource, SocketView, User};
use toe_port::PortCounter;

/// For whom a report is.
pub(crate) struct View<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) who: &'a Credentials,
}

impl View<'_> {
    fn shows(&self, owner: Cred) -> bool {
        self.policy.may_see(self.who, owner)
    }

    /// Sockets that nobody holds any more are among what it shows.
    fn is_whole(&self) -> bool {
        self.policy.may_control(self.who)
    }
}

impl Daemon {
    /// What `toe status` shows to whom `view` is for. Counters and ports are everybody's, as those of /proc/net are.
    pub(crate) fn status_report(&self, view: &View<'_>) -> StatusReport {
        let sessions: Vec<SessionReport> = self
            .sessions
            .iter()
            .filter(|(_, session)| view.shows(session.peer.cred()))
            .map(|(id, session)| {
                let view = self.engine.view().session(id);
                SessionReport {
                    id: id.0,
                    pid: session.peer.pid,
                    uid: session.peer.uid,
                    netns: self.netns_report(self.engine.view().session(id).netns),
                    program: session.peer.program.clone(),
                    flows: view.flows,
                    listeners: view.listeners,
                    receive_memory_used: view.receive_memory_used,
                }
            })
            .collect();
        let closing: &[SessionId] = if view.is_whole() { self.sessions.closing() } else { &[] };
        let closing = closing.iter().map(|&id| self.engine.view().session(id).receive_memory_used);
        // Not by a look at each: there may be tens of thousands. A listener that several processes have is each one's.
        let (flows, listeners) = if view.is_whole() {
            (self.engine.view().totals().flows as u32, self.engine.view().totals().listeners as u32)
        } else {
            (sessions.iter().map(|s| s.flows).sum(), sessions.iter().map(|s| s.listeners).sum())
        };
        StatusReport {
            name: self.configured.name.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            interface_version: toe_abi::INTERFACE_VERSION,
            uptime_secs: self.clock.uptime_secs(),
            ports: self.links.ports.slots.iter().map(port_report).collect(),
            busy_permille: self.meter.busy_permille(self.clock.now()),
            flows,
            listeners,
            receive_memory_used: sessions.iter().map(|s| s.receive_memory_used).chain(closing).sum(),
            congestion: self.configured.tcp.congestion.as_str().to_owned(),
            ecn: self.configured.tcp.ecn.as_str().to_owned(),
            fast_open: self.configured.tcp.fast_open.as_str().to_owned(),
            sessions,
            quotas: self.quotas(),
            users: self.accounts(view),
            counters: self.all_counters(),
            rounds: self.stages.rounds(),
            stages: self.stages.report(),
        }
    }

    /// What there is of everything.
    fn quotas(&self) -> BTreeMap<String, QuotaReport> {
        let quotas = self.engine.view().users().quotas();
        let report = |resource: Resource| {
            let Limit { total, user } = quotas.of(resource);
            let user = (user < total).then_some(user);
            (
                resource.name().to_owned(),
                QuotaReport { total, user, used: self.engine.view().users().used(resource) },
            )
        };
        Resource::ALL.into_iter().map(report).collect()
    }

    /// What each user has of it; to who may not see the others, only himself.
    fn accounts(&self, view: &View<'_>) -> Vec<AccountReport> {
        let report = |user: &User| {
            let part =
                |resource: Resource| UseReport { used: user.used(resource), refused: user.refused(resource) };
            let parts = Resource::ALL.map(|resource| (resource.name().to_owned(), part(resource)));
            let parts = parts.into_iter().filter(|(_, part)| part.used + part.refused > 0).collect();
            AccountReport {
                uid: user.cred.uid,
                netns: self.netns_report(user.cred.netns),
                parts,
                engine_us: self.budget.used_ns(user.cred) / 1000,
            }
        };
        let own = self.engine.view().users().account(view.who.cred());
        let is_shown = |user: &&User| view.is_whole() || own == user.cred;
        let users = self.engine.view().users().iter().filter(is_shown);
        let mut accounts: Vec<_> = users.map(report).collect();
        accounts.sort_by_key(|account| (account.uid, account.netns));
        accounts
    }

    /// Whether a socket is shown to whom `view` is for.
    pub(crate) fn is_visible(&self, socket: &SocketView, view: &View<'_>) -> bool {
        let is_shown = |&(id, _): &(SessionId, u32)| {
            self.sessions.get(id).is_some_and(|session| view.shows(session.peer.cred()))
        };
        view.is_whole() || socket.holders.iter().any(is_shown)
    }

    /// What `toe ss` shows of it: of a socket that several users hold, to each his own processes.
    pub(crate) fn socket_report(&self, socket: &SocketView, view: &View<'_>) -> SocketReport {
        let users = socket.holders.iter().filter_map(|&(id, fd)| {
            let peer = &self.sessions.get(id)?.peer;
            view.shows(peer.cred()).then_some(())?;
            Some(UserReport { program: peer.program.clone(), pid: peer.pid, fd })
        });
        SocketReport {
            netns: self.netns_report(socket.netns),
            state: socket.state.to_owned(),
            local: address(socket.local),
            remote: address(socket.remote),
            recv_q: socket.recv_q,
            send_q: socket.send_q,
            users: users.collect(),
            device: match socket.port {
                None if socket.listener || socket.udp.is_some() => "*".to_owned(),
                port => self.links.ports.name(port).to_owned(),
            },
            tcp: socket.tcp.clone(),
            udp: socket.udp,
        }
    }

    /// A namespace by its cookie; none is the engine's own.
    fn netns_report(&self, netns: NetNs) -> Option<u64> {
        (netns != self.policy.netns).then_some(netns.0)
    }

    /// Everything that is counted anywhere and is not zero.
    fn all_counters(&self) -> BTreeMap<String, u64> {
        let counts = &self.counts;
        let own = [
            ("attached", counts.attached),
            ("attach_refused", counts.attach_refused),
            ("bad_messages", counts.bad_messages),
            ("unread_answers", counts.unread_answers),
            ("connections_refused", self.control_server.refused()),
            ("wakes_by_users", self.control_server.handed().load(Ordering::Relaxed)),
            ("reports", counts.reports),
            ("parks", counts.parks),
            ("port_numbers_refused", self.links.port_numbers_refused),
        ];
        let own = own.into_iter().map(|(name, n)| (name.to_owned(), n));
        let engine = self.engine.view().counters().map(|(name, n)| (name.to_owned(), n));
        let ports = self.links.ports.slots.iter().flat_map(|slot| {
            let id = slot.id;
            let errors = (format!("port{id}_errors"), slot.errors);
            let counters: Vec<_> =
                slot.port.counters().iter().map(|(name, n)| (format!("port{id}_{name}"), n)).collect();
            counters.into_iter().chain([errors])
        });
        own.chain(engine).chain(ports).filter(|(_, n)| *n != 0).collect()
    }
}

fn port_report(slot: &crate::ports::PortSlot) -> PortReport {
    let counters = slot.port.counters();
    PortReport {
        id: slot.id.0,
        name: slot.name.clone(),
        mac: slot.port.mac().to_string(),
        mtu: slot.port.mtu(),
        addrs: slot.addrs.clone(),
        is_veth: slot.is_veth,
        trouble: slot.trouble(),
        rx_frames: counters.get(PortCounter::RxFrames),
        tx_frames: counters.get(PortCounter::TxFrames),
        rx_bytes: counters.get(PortCounter::RxBytes),
        tx_bytes: counters.get(PortCounter::TxBytes),
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
