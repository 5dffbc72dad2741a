//! Everything that one engine's thread owns. The parts of its work are in `run_loop` (the rounds), `attach` (what
//! hosts ask) and `entries` (what they put into their rings).
//!
//! There is one engine and one thread. Nothing in here is shared with another thread, so that a second engine can
//! stand beside it as a second [`Daemon`].

use crate::anchors::Anchors;
use crate::budget::{AccountIndex, Budget};
use crate::config::{Config, PortConfig};
use crate::connections::Connections;
use crate::control_server::{self, ControlServer};
use crate::datagrams::sending::DatagramSenders;
use crate::hosts::HostTable;
use crate::irq_names::IrqNames;
use crate::kernel::follow::Links;
use crate::lanes::Lanes;
use crate::outside::OutsideEvents;
use crate::policy::Policy;
use crate::poller::Poller;
use crate::reports::{Configured, ReportQueue};
use crate::session::Sessions;
use crate::timing::Timing;
use crate::via::Connections as ViaConnections;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use toe_abi::region::RegionLayout;
use toe_base::limits::{QUEUE_SETS_MAX, SESSION_FLOWS_MAX};
use toe_base::{AnchorHandle, Cred, SessionId};
use toe_engine::{Engine, EngineConfig, NetworkChange, Quotas, STAGING_LEN};
use toe_port::Port;

/// More descriptors than sessions, connections and a copy of each can come to: 8 bytes each.
const DESCRIPTORS_ROOM: u64 = 1 << 16;

/// The engine and all that it works on.
pub struct Daemon {
    pub(crate) engine: Engine,
    pub(crate) sessions: Sessions,
    pub(crate) senders: DatagramSenders,
    pub(crate) lanes: Lanes,
    pub(crate) via: ViaConnections,
    pub(crate) links: Links,
    pub(crate) anchors: Anchors,
    pub hosts: HostTable,
    pub(crate) reports: ReportQueue,
    pub(crate) schedule: Schedule,
    pub(crate) timing: Timing,
    pub outside: OutsideEvents,
}

/// Whose turn it is to have entries taken, and lists that are kept between rounds for their memory.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    pub(crate) budget: Budget,
    /// Whether this round has taken all that hosts had published before it.
    pub(crate) took_all: bool,
    pub(crate) order: Vec<AccountIndex>,
    /// Sessions that something concerns.
    pub(crate) concerned: Vec<SessionId>,
    /// Anchors that were just closed.
    pub(crate) closed_anchors: Vec<AnchorHandle>,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon")
            .field("name", &self.reports.configured.name)
            .field("stop", &self.outside.stop)
            .finish_non_exhaustive()
    }
}

impl Daemon {
    /// An engine as configured, without links and without a socket yet. `secret` keys its initial sequence numbers.
    pub fn new(config: &Config, secret: [u8; 16]) -> std::io::Result<Daemon> {
        make_room_for_descriptors();
        let quotas = quotas(config);
        let netns = crate::sys::own_netns()?;
        let mut engine = Engine::new(EngineConfig {
            netns,
            ports: crate::kernel::reserve::ephemeral_ports(),
            direct: config.direct,
            quotas,
            tcp: config.tcp,
            ..EngineConfig::with_secret(secret)
        });
        let _ = config.local.then(|| engine.handle_network(NetworkChange::Loopback));
        let layout = RegionLayout {
            queue_sets: QUEUE_SETS_MAX as u32,
            flows: SESSION_FLOWS_MAX as u32,
            receive_len: config.session.receive_len,
            send_len: config.session.send_len,
        };
        let poller = Poller::new()?;
        let anchors = Anchors::new(control_server::threads_max(&config.users.allowed), netns)?;
        let irq_names = IrqNames::new()?;
        let starter = Cred { uid: rustix::process::geteuid().as_raw(), netns };
        let policy = Arc::new(Policy::new(starter, config.users.allowed.clone(), layout));
        let roots = [anchors.root(), irq_names.root()].map(Arc::clone);
        let server = ControlServer::new(Arc::clone(&policy), anchors.supplies(), roots, &poller)?;
        let reports = ReportQueue::of(Configured { name: config.name.clone(), tcp: config.tcp });
        Ok(Daemon {
            engine,
            sessions: Sessions::new(STAGING_LEN)?,
            senders: DatagramSenders::default(),
            lanes: Lanes::default(),
            via: ViaConnections::default(),
            links: Links::default(),
            anchors,
            hosts: HostTable::new(policy, server, irq_names),
            reports,
            schedule: Schedule::default(),
            timing: Timing::new(config.spin_us)?,
            outside: OutsideEvents::new(poller),
        })
    }

    /// Adds a link.
    pub fn open_port(&mut self, config: &PortConfig, port: Box<dyn Port>) -> std::io::Result<()> {
        if !config.spec.driver.shares_address() {
            self.sessions.datagrams.open(self.hosts.server.handed());
        }
        self.links.ports.add(&mut self.engine, &self.outside.poller, config, port)
    }

    /// The directories that must be the engine's user's.
    pub fn own_dirs(&self) -> Vec<BorrowedFd<'_>> {
        self.anchors.dirs().chain([self.hosts.irq_names.root().dir()]).collect()
    }

    /// Lets go of everything that outlives a thread of the control server that stands still in a program's descriptor: links,
    /// files, what hosts wait for. What is left is for the end of the process. The connections are the last that hosts
    /// look at.
    pub fn end(self) -> Connections {
        let Daemon { links, anchors, hosts, .. } = self;
        drop((links, anchors));
        hosts.connections
    }

    /// Whether nobody is attached and nobody holds a socket.
    pub(crate) fn is_unused(&self) -> bool {
        self.sessions.live().is_empty() && self.anchors.is_empty()
    }
}

/// What users may have. A private engine is for its starter's programs, who may all be one server's.
fn quotas(config: &Config) -> Quotas {
    if config.process.private { config.quotas.without_shares() } else { config.quotas }
}

/// Has the kernel make room for descriptors now, while there is one thread: where several share the table, whoever needs a larger one waits for
/// a grace period of the kernel's, which is as long as programs make it. How many descriptors there are is up to hosts.
fn make_room_for_descriptors() {
    let last = raise_descriptor_limit().min(DESCRIPTORS_ROOM).saturating_sub(1) as i32;
    // Without it things are as they were.
    let _ = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
        .and_then(|fd| rustix::io::fcntl_dupfd_cloexec(&fd, last));
}

/// Raises the limit of open descriptors as far as allowed. Returns the limit.
fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let old = limit.current;
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit of open descriptors cannot be raised");
            limit.current = old;
        }
    }
    limit.current.unwrap_or(1 << 20)
}
