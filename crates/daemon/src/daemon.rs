//! Everything that one engine's thread owns. The parts of its work are in `run_loop` (the rounds), `attach` (what
//! hosts ask) and `entries` (what they put into their rings).
//!
//! There is one engine and one thread. Nothing in here is shared with another thread, so that a second engine can
//! stand beside it as a second [`Daemon`].

use crate::anchors::Anchors;
use crate::budget::{Budget, Place};
use crate::clock::Clock;
use crate::config::{Config, PortConfig};
use crate::connections::Connections;
use crate::control_server::ask::Ask;
use crate::control_server::{self, ControlServer};
use crate::datagrams::sending::DatagramSenders;
use crate::irq_names::IrqNames;
use crate::kernel::follow::{Links, Served};
use crate::lanes::Lanes;
use crate::load::Meter;
use crate::log_limit::LogLimit;
use crate::policy::Policy;
use crate::poller::{Poller, Token};
use crate::reports::{Configured, ReportQueue};
use crate::rest::Rest;
use crate::session::Sessions;
use crate::stages::Stages;
use crate::via::Connections as ViaConnections;
use crate::watchdog::Watchdog;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::limits::{QUEUE_SETS_MAX, SESSION_FLOWS_MAX};
use toe_base::{AnchorHandle, Cred, Instant, SessionId};
use toe_engine::{ControlEvent, Engine, EngineConfig, NetworkChange, Quotas, STAGING_LEN};
use toe_port::Port;
use toe_ring::EngineLooks;

/// More descriptors than sessions, connections and a copy of each can come to: 8 bytes each.
const DESCRIPTORS_ROOM: u64 = 1 << 16;

/// When the engine is to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    #[default]
    No,
    /// As soon as nobody is attached and nobody holds a socket of the engine.
    WhenUnused,
    Now,
}

/// What the daemon itself counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub attached: u64,
    pub attach_refused: u64,
    pub bad_messages: u64,
    pub unread_answers: u64,
    pub parks: u64,
}

/// The engine and all that it works on.
pub struct Daemon {
    pub(crate) engine: Engine,
    pub(crate) sessions: Sessions,
    pub(crate) senders: DatagramSenders,
    pub(crate) lanes: Lanes,
    pub(crate) via: ViaConnections,
    pub(crate) links: Links,
    pub(crate) anchors: Anchors,
    pub(crate) hosts: HostTable,
    pub(crate) reports: ReportQueue,
    pub(crate) turns: Turns,
    pub(crate) timing: Timing,
    pub(crate) outside: OutsideEvents,
}

/// Who may come, who has, and what they asked.
pub(crate) struct HostTable {
    pub(crate) policy: Arc<Policy>,
    pub(crate) server: ControlServer,
    pub(crate) connections: Connections,
    /// What users asked who had had their turn.
    pub(crate) deferred: VecDeque<Ask>,
    pub(crate) irq_names: IrqNames,
    pub(crate) log_limit: LogLimit,
    pub(crate) counts: Counts,
}

/// Whose turn it is to have entries taken, and lists that are kept between rounds for their memory.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    pub(crate) budget: Budget,
    /// Whether this round has taken all that hosts had published before it.
    pub(crate) took_all: bool,
    pub(crate) order: Vec<Place>,
    /// Sessions that something concerns.
    pub(crate) concerned: Vec<SessionId>,
    /// Anchors that were just closed.
    pub(crate) closed_anchors: Vec<AnchorHandle>,
}

/// What the engine does with its time.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) clock: Clock,
    pub(crate) rest: Rest,
    pub(crate) stages: Stages,
    pub(crate) meter: Meter,
    /// What every host sees of how far it is.
    pub(crate) looks: EngineLooks,
    pub(crate) next_tick: Instant,
    /// When memory that nobody needs is looked for again.
    pub(crate) trim_at: Instant,
}

/// What happens outside the rings.
pub(crate) struct OutsideEvents {
    pub(crate) poller: Poller,
    /// What has; kept between rounds for its memory.
    pub(crate) tokens: Vec<Token>,
    pub(crate) signals: Option<SignalFd>,
    /// The pipe of whoever started this private engine.
    pub(crate) owner: Option<OwnedFd>,
    pub(crate) watchdog: Option<Watchdog>,
    pub(crate) stop: Stop,
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
            receive_len: config.receive_len,
            send_len: config.send_len,
        };
        let poller = Poller::new()?;
        let anchors = Anchors::new(control_server::threads_max(&config.allowed), netns)?;
        let irq_names = IrqNames::new()?;
        let starter = Cred { uid: rustix::process::geteuid().as_raw(), netns };
        let policy = Arc::new(Policy::new(starter, config.allowed.clone(), layout));
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
            hosts: HostTable {
                policy,
                server,
                connections: Connections::default(),
                deferred: VecDeque::new(),
                irq_names,
                log_limit: LogLimit::default(),
                counts: Counts::default(),
            },
            reports,
            turns: Turns::default(),
            timing: Timing {
                clock: Clock::new(),
                rest: Rest::new(config.spin_us),
                stages: Stages::default(),
                meter: Meter::default(),
                looks: EngineLooks::new()?,
                next_tick: Instant::ZERO,
                trim_at: Instant::ZERO,
            },
            outside: OutsideEvents {
                poller,
                tokens: Vec::new(),
                signals: None,
                owner: None,
                watchdog: None,
                stop: Stop::No,
            },
        })
    }

    /// Adds a link.
    pub fn add_port(&mut self, config: &PortConfig, port: Box<dyn Port>) -> std::io::Result<()> {
        if !config.spec.driver.shares_address() {
            self.sessions.datagrams.open(self.hosts.server.handed());
        }
        self.links.ports.add(&mut self.engine, &self.outside.poller, config, port)
    }

    /// Begins to follow the kernel, after all links are open. Returns once all that is there is known.
    pub fn follow_kernel(&mut self) -> std::io::Result<()> {
        let now = self.timing.clock.now();
        self.links.begin(now, &mut self.engine, &self.outside.poller)?;
        self.serve_network(now);
        Ok(())
    }

    /// Does in the kernel what the engine wants of it. How many neighbours were known already.
    pub(crate) fn serve_network(&mut self, now: Instant) -> usize {
        let Served { neighbours, twins } = self.links.serve(now, &mut self.engine);
        if !twins.is_empty() {
            self.hosts.server.look_at_twins(twins);
        }
        neighbours
    }

    pub fn policy(&self) -> &Policy {
        &self.hosts.policy
    }

    /// The directories that must be the engine's user's.
    pub fn own_dirs(&self) -> Vec<BorrowedFd<'_>> {
        self.anchors.dirs().chain([self.hosts.irq_names.root().dir()]).collect()
    }

    /// Lets hosts come in through `socket`, which listens already.
    pub fn listen(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        self.hosts.server.listen(socket)
    }

    /// Serves a host that is connected already.
    pub fn serve(&mut self, socket: OwnedFd) -> std::io::Result<()> {
        self.hosts.server.serve(socket)
    }

    /// Ends the engine cleanly on SIGTERM and SIGINT. They are blocked from here on.
    pub fn catch_signals(&mut self) -> std::io::Result<()> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        self.outside.poller.add(&signals, Token::Signal)?;
        self.outside.signals = Some(signals);
        Ok(())
    }

    /// Tells a service manager of the rounds.
    pub fn notify(&mut self, watchdog: Option<Watchdog>) {
        self.outside.watchdog = watchdog;
    }

    /// Ends the engine when `pipe` is closed at its other end and nobody uses the engine any more.
    pub fn end_with(&mut self, pipe: OwnedFd) -> std::io::Result<()> {
        self.outside.poller.add_for_hangup(&pipe, Token::Owner)?;
        self.outside.owner = Some(pipe);
        Ok(())
    }

    /// Ends the capture of a connection, if it has one; whether it had.
    pub(crate) fn drop_capture(&mut self, now: Instant, place: u32) -> bool {
        let had = self.sessions.captures.end(place);
        if had && self.sessions.captures.is_empty() {
            self.engine.handle_control(now, ControlEvent::Capture { on: false }, &mut self.sessions);
        }
        had
    }

    /// Nobody has the anchor open any more.
    pub(crate) fn anchor_closed(&mut self, now: Instant, anchor: AnchorHandle) {
        self.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut self.sessions);
        self.anchors.closed(anchor);
    }

    /// The anchor is no longer for the session alone that it was made for.
    pub(crate) fn share_anchor(&mut self, now: Instant, anchor: AnchorHandle) {
        self.engine.handle_control(now, ControlEvent::Shared(anchor), &mut self.sessions);
        self.anchors.remove_name(anchor);
    }

    /// Frees the memory of closed sessions that nothing refers to any more.
    pub(crate) fn forget_drained_sessions(&mut self) {
        for place in (0..self.sessions.closing().len()).rev() {
            let id = self.sessions.closing()[place];
            if self.engine.forget_session(id) {
                self.sessions.forget(id);
            }
        }
    }

    /// Lets go of everything that outlives a thread of the control server that stands still in a program's descriptor: links,
    /// files, what hosts wait for. What is left is for the end of the process. The connections are the last that hosts
    /// look at.
    pub fn end(self) -> Connections {
        let Daemon { links, anchors, hosts, .. } = self;
        drop((links, anchors));
        hosts.connections
    }

    /// The session that a connection has opened.
    pub(crate) fn session_of(&self, place: u32) -> Result<SessionId, Errno> {
        let id = self.hosts.connections.get(place).and_then(|connection| connection.session);
        id.filter(|&id| self.sessions.get(id).is_some()).ok_or(Errno::EINVAL)
    }

    /// Whether nobody is attached and nobody holds a socket.
    pub(crate) fn is_unused(&self) -> bool {
        self.sessions.live().is_empty() && self.anchors.is_empty()
    }
}

/// What users may have. A private engine is for its starter's programs, who may all be one server's.
fn quotas(config: &Config) -> Quotas {
    if config.private { config.quotas.without_shares() } else { config.quotas }
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
