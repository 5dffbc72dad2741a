//! Joins the stages: the only place that hands a work item from one to the next.
//!
//! | in this folder | what |
//! |---|---|
//! | in | [`receive`] (frames), [`segment_arrives`], [`local`] (between two local ends, and what counts before an entry of another session's), [`host`] (entries), [`events`] (what nobody waits for), [`datagrams`] (a room with UDP, its way out included), [`lanes`] (datagrams that go past it), [`errors`] (what did not arrive) |
//! | connections begin | [`connect`], [`connect_credit`] (without an answer), [`active_open`], [`syn`], [`fast_open`] |
//! | at listeners | [`listener_queue`] (half open, or waiting), [`hand_out`], [`accept`] (who takes from them), [`prefetch`] (before anybody asks), [`listener_end`] |
//! | change hands | [`change`] (a process asks), [`owners`], [`claim`], [`carry`] (what goes along, in steps before), [`direct`] (they leave the engine) |
//! | end | [`descriptors`] (the last one is closed), [`close`], [`abort`] (with RST), [`session_end`], [`life`] (their records, and how each change of one ends), [`leftovers`] (nobody has them any more) |
//! | out | [`transmit`] (segments), [`lone`] (those of no connection), [`notify`] (what a record has to say), [`completions`] |
//! | whose | [`names`] (addresses and ports), [`ports`] (which are free), [`network`] (links, addresses, routes), [`neighbours`], [`steering`] (of addresses that are the kernel's too), [`quota`], [`pressure`] (where receive memory is scarce) |
//! | beside TCP | [`protocols`], [`via`] |
//! | what it is made of | [`crate::parts`], and the rooms that TCP's subjects have there, each with the parts that it touches: `Records`, `FlowMemory`, `Accepting`, `TcpPlanes`; of TCP and UDP alike `LinkPlanes` |
//! | time, and who looks | [`timers`], [`report`], [`detail`] and [`tcp_report`] (how TCP stands), [`audit`], [`capture`] (copies for those who watch) |
//!
//! What its driver calls, by kind:
//!
//! | kind | which |
//! |---|---|
//! | set-up | `new`, `add_*` |
//! | something happened | `handle_*` |
//! | a request, answered by what it returns: sessions | `open_session`, `close_session`, `forget_session` |
//! | anchors | `take_anchor` |
//! | who has a connection | `prepare`, then `change` |
//! | datagrams | `open_datagrams`, `takes_datagrams`, `ask_lane`; virtual interfaces: `handle_via` |
//! | is there something to do, or to hand out? | `poll_*` |
//! | all that only look, those of simulator and tests among them | `view` |
//! | for simulator and tests | `rebuild_derived` |
//!
//! A round of the daemon (`crates/daemon/src/run_loop.rs`) is, in this order:
//!
//! 1. In: of each queue set `handle_send`, `handle_credit`, then `handle_command`; `handle_datagrams`; `handle_frame`. What the last two give for sockets
//!    is handed over at once, and told by `handle_control` (`HandedOver`).
//! 2. Time: `handle_timeout` if `poll_timeout` is over; `poll_local`.
//! 3. Out: `poll_request`; `poll_transmit` for each port; `poll_request`; the view's `lapses`; for each that `poll_queue_set` names `poll_completions`.
//!    `change` is followed by these two, before the program is answered: it looks at once.
//!
//! Now and then `poll_trim`, which `handle_control` answers. The simulator's round (`crates/sim/src/settle.rs`) begins with the
//! last two and ends with the time. The packet scripts and the tests in this folder poll `poll_local`, `poll_transmit`, `poll_completions`
//! and the time; a test that gives another poll work makes that itself.

mod abort;
mod accept;
mod active_open;
mod audit;
mod capture;
mod carry;
mod change;
mod claim;
mod close;
mod completions;
mod connect;
mod connect_credit;
mod datagrams;
mod descriptors;
mod detail;
mod direct;
mod errors;
mod events;
mod fast_open;
mod hand_out;
mod host;
mod lanes;
mod leftovers;
mod life;
mod listener_end;
mod listener_queue;
mod local;
mod lone;
mod names;
mod neighbours;
mod network;
mod notify;
mod owners;
mod ports;
mod prefetch;
mod pressure;
mod protocols;
mod quota;
mod receive;
mod report;
mod segment_arrives;
mod session_end;
mod steering;
mod syn;
mod tcp_report;
mod timers;
mod transmit;
mod via;

#[cfg(test)]
mod tests;

pub use audit::FlowAudit;
pub use completions::CompletionBatch;
pub use datagrams::control::{NewEnd, OpenedDatagrams};
pub use lanes::Given as GivenLane;
pub use network::DriverRequest;
pub use receive::RxFrame;
pub use report::{SessionView, SocketCursor, SocketView, Totals};
pub use session_end::LeftBehind;

use crate::control::listen::Listeners;
use crate::control::names::Names;
use crate::counter::Counters;
use crate::hostif::users::{Limit, Quotas, Resource, UserIdx};
use crate::parts::{HostInterface, IpLayer, KnownPeers, LinkPlanes, Records, TcpPlanes};
use crate::protocols::{Protocols, registered};
use crate::store::{Edit, FlowStore};
use crate::udp::Udp;
use crate::via::Via;
use crate::work::Link;
use toe_base::limits::FLOWS_MAX;
use toe_base::{Instant, NetNs, PortId, QueueSetId, SessionId};
use toe_tcp::Tcp;
use toe_tcp::config::TcpConfig;

/// What an engine is made with.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// Random; initial sequence numbers, ports and hash tables are keyed with it.
    pub secret: [u8; 16],
    /// The network namespace of its links.
    pub netns: NetNs,
    /// Ports that it chooses from for connections that name none.
    pub ports: PortRange,
    /// Connections that the engine can have at one time.
    pub flows_max: usize,
    /// Bytes of local connections may go through channels, past the engine.
    pub direct: bool,
    pub tcp: TcpConfig,
    /// What users may have; of connections there are no more than `flows_max`.
    pub quotas: Quotas,
}

impl EngineConfig {
    /// The default sizes with this secret.
    pub const fn with_secret(secret: [u8; 16]) -> EngineConfig {
        EngineConfig {
            secret,
            netns: NetNs(0),
            ports: PortRange::DEFAULT,
            flows_max: FLOWS_MAX,
            direct: true,
            tcp: TcpConfig::DEFAULT,
            quotas: Quotas::DEFAULT,
        }
    }
}

/// Port numbers from one to another, both among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    /// Linux's ip_local_port_range where nobody has set it.
    pub const DEFAULT: PortRange = PortRange { first: 32_768, last: 60_999 };

    /// How many they are.
    pub const fn count(self) -> u32 {
        (self.last as u32 + 1).saturating_sub(self.first as u32)
    }
}

/// How an engine stands, for who only looks: no call of it changes anything.
#[derive(Clone, Copy, Debug)]
pub struct EngineView<'e>(&'e Engine);

/// The engine. See the module for how to drive it.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    flows: FlowStore,
    tcp: Tcp,
    listeners: Listeners,
    names: Names,
    peers: KnownPeers,
    hostif: HostInterface,
    ip: IpLayer,
    udp: Udp<UserIdx>,
    via: Via<UserIdx>,
    protocols: Protocols,
    counters: Counters,
}

impl Engine {
    pub fn new(config: EngineConfig) -> Engine {
        let flows = Limit { total: config.flows_max as u64, ..config.quotas.of(Resource::Flows) };
        let quotas = config.quotas.with(Resource::Flows, flows);
        Engine {
            flows: FlowStore::new(config.flows_max, &config.secret),
            tcp: Tcp::new(config.flows_max, config.secret, config.tcp),
            listeners: Listeners::default(),
            names: Names::new(config.netns),
            peers: KnownPeers::new(config.secret),
            hostif: HostInterface::new(config.flows_max, quotas, config.netns),
            ip: IpLayer::new(config.flows_max),
            udp: Udp::new(config.secret),
            via: Via::default(),
            protocols: registered::all(),
            counters: Counters::default(),
            config,
        }
    }

    // ---- set-up ----

    pub fn add_port(&mut self, link: Link) -> PortId {
        self.ip.add_port(link, self.config.flows_max)
    }

    pub fn add_queue_set(&mut self, session: SessionId) -> Option<QueueSetId> {
        self.hostif.sessions.add_queue_set(session)
    }

    pub fn view(&self) -> EngineView<'_> {
        EngineView(self)
    }

    // ---- rooms, made of the parts that a subject touches ----

    pub(super) fn links(&mut self) -> LinkPlanes<'_> {
        LinkPlanes { ip: &mut self.ip, udp: &mut self.udp, counters: &mut self.counters, flows: &self.flows }
    }

    pub(super) fn planes<'e, H>(&'e mut self, now: Instant, host: &'e mut H) -> TcpPlanes<'e, H> {
        let EngineConfig { secret, direct, .. } = self.config;
        TcpPlanes { now, host, secret, direct, records: self.records() }
    }

    pub(super) fn records(&mut self) -> Records<'_> {
        Records {
            flows: &mut self.flows,
            tcp: &mut self.tcp,
            listeners: &mut self.listeners,
            names: &mut self.names,
            peers: &mut self.peers,
            hostif: &mut self.hostif,
            ip: &mut self.ip,
            counters: &mut self.counters,
        }
    }
}

/// When the engine wants to be called again, with nothing to do before.
fn soonest(deadlines: impl Iterator<Item = Instant>) -> Instant {
    deadlines.min().unwrap_or(Instant::FAR_FUTURE)
}
