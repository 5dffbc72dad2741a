//! One engine with what the daemon would keep beside it: its sessions, their memory, and the frames it sends.

use crate::checkers::reports::Reports;
use crate::entries;
use crate::hostile::Mischief;
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::network::{Outbox, mac_of};
use crate::program::Cx;
use crate::program::socket::Socket;
use crate::random::{Draws, Random};
use crate::swarm::{EngineSpec, Swarm};
use crate::tally::Tally;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use toe_abi::region::RegionLayout;
use toe_base::arena::Arena;
use toe_base::{AnchorHandle, FlowId, Forward, Instant, ListenerId, PortId, QueueSetId, SessionId};
use toe_engine::{ControlEvent, Engine, EngineConfig, Link, NetworkChange};
use toe_wire::link::LinkCaps;

/// The only port and queue set.
pub const PORT: PortId = PortId(0);
pub const QS: QueueSetId = QueueSetId(0);

/// Of so many anchors one cannot be made.
const UNMADE_ONE_IN: u32 = 16;

/// The engines' clocks start here, so that nothing is ever at time zero.
const EPOCH_US: u64 = 1_000_000;

/// See the module.
#[derive(Debug)]
pub struct Node {
    pub engine: Engine,
    pub memory: Memory,
    pub outbox: Outbox,
    pub sessions: Vec<Session>,
    pub spec: EngineSpec,
    /// The one with which the engine shares its address.
    pub kernel: Option<Kernel>,
    /// The machine's clock is ahead of the world's by this; it grows and shrinks at a clock jump.
    pub clock_ahead_us: u64,
    /// The engine's follows it, and never goes back.
    clock: Forward,
    /// Something happened to it, and it has not been polled since.
    pub touched: bool,
    /// It will be polled again at this time, because something had no room.
    pub retry_at_us: u64,
    pub reports: Reports,
    /// It is called, too, when pages that nobody needs may go.
    pub sees_to_trims: bool,
}

/// A listener of a program, which others may have too: each has a record with the same anchor.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    pub port: u16,
    pub anchor: AnchorHandle,
    pub id: Option<ListenerId>,
    /// Connections that may be handed out before their handshake is complete; 0: it does not ask for Fast Open.
    pub fast_open: u32,
    /// It has no descriptor of it any more: what comes in is others', or nobody's.
    pub closed: bool,
    /// It has let go of it, and is handed nothing any more.
    pub left: bool,
    /// It was told that connections wait, and asks for one after the other.
    pub asks: bool,
}

impl Listening {
    pub fn new(port: u16, anchor: AnchorHandle) -> Listening {
        Listening { port, anchor, id: None, fast_open: 0, closed: false, left: false, asks: false }
    }
}

/// One attached process.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    pub layout: RegionLayout,
    pub alive: bool,
    /// Its id may be another session's by now.
    pub forgotten: bool,
    pub send_arena: Arena,
    pub sockets: Vec<Socket>,
    /// From the engine's name of a flow to the socket.
    pub by_id: BTreeMap<u32, usize>,
    pub listeners: Vec<Listening>,
    pub free_anchors: Vec<AnchorHandle>,
    /// Kept open while the engine has not answered `CloseRetained`.
    pub kept_anchors: Vec<AnchorHandle>,
    /// Of which some copy may be left: that others may show them must be said.
    pub once_kept: BTreeSet<u32>,
    /// For connections that need not be answered.
    pub connect_ids: Vec<FlowId>,
    /// Where it has connected to within its host, by family and port, and how often names had lapsed before.
    pub reached: BTreeMap<(bool, u16), u32>,
    /// It takes no completions before this.
    pub stalled_until_us: u64,
    pub wake_scheduled: bool,
    /// Sockets that want send memory.
    pub hungry: Vec<usize>,
    /// It gives flows up until it is done, though nobody asks again, and shows their descriptors then.
    pub sees_to_yields: bool,
    /// It gives back unread bytes with them.
    pub gives_back: bool,
    /// Those that could not be given up yet, and sockets whose flows were.
    pub yields: Vec<FlowId>,
    pub given_up: Vec<usize>,
    /// Bytes that it sends to whoever connects and is not known.
    pub greets: u32,
    /// Set once it means harm.
    pub mischief: Option<Mischief>,
}

/// The address of an engine.
pub fn address_of(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, node as u8 + 1)
}

/// The same in IPv6.
pub fn v6_address_of(node: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, node as u16 + 1)
}

/// The link of an engine.
pub fn link_of(number: usize, spec: &EngineSpec) -> Link {
    let caps = LinkCaps { tx_checksum: spec.tx_checksum, gso_max: spec.gso_max, ..LinkCaps::default() };
    Link { mac: mac_of(number), mtu: spec.mtu, caps, zone: 0, vlan: None }
}

impl Node {
    pub fn new(
        number: usize,
        spec: EngineSpec,
        has_ipv6: bool,
        mut memory: Memory,
        secret: [u8; 16],
        random: Random,
    ) -> Node {
        let kernels = random.beside(Draws::Kernel);
        let (flows_max, direct, tcp) = (spec.flows_max, spec.direct, spec.tcp);
        let config = EngineConfig { flows_max, direct, tcp, ..EngineConfig::with_secret(secret) };
        let mut engine = Engine::new(config);
        let port = engine.add_port(link_of(number, &spec));
        engine.handle_network(NetworkChange::Loopback);
        let kernel = spec.kept_ports.map(|kept| Kernel::begin(number, &mut engine, kept, kernels));
        if kernel.is_none() {
            let addr = address_of(number).into();
            engine.handle_network(NetworkChange::Address { port, addr, prefix_len: 24 });
        }
        if has_ipv6 {
            engine.handle_network(NetworkChange::Address {
                port,
                addr: v6_address_of(number).into(),
                prefix_len: 64,
            });
        }
        memory.reset(random);
        Node {
            engine,
            memory,
            outbox: Outbox::default(),
            sessions: Vec::new(),
            spec,
            kernel,
            clock_ahead_us: EPOCH_US,
            clock: Forward::default(),
            touched: true,
            retry_at_us: u64::MAX,
            reports: Reports::default(),
            sees_to_trims: false,
        }
    }

    /// The engine's clock.
    pub fn clock(&self, now_us: u64) -> Instant {
        self.clock.follow(Instant::from_micros(now_us + self.clock_ahead_us))
    }

    /// When the engine wants to be called, in the world's time.
    pub fn next_deadline_us(&self) -> u64 {
        let trim = self.engine.view().trim_due().filter(|_| self.sees_to_trims);
        let next = self.engine.poll_timeout().min(trim.unwrap_or(Instant::FAR_FUTURE));
        match next {
            _ if next.is_far_future() => u64::MAX,
            // Due, though the machine's clock has gone back behind it since the engine was told the time.
            _ if next <= self.clock.latest() => 0,
            _ => next.as_micros().saturating_sub(self.clock_ahead_us),
        }
    }

    /// A process attaches. `None`: the engine has too many.
    pub fn attach(&mut self, swarm: &Swarm) -> Option<usize> {
        let layout = RegionLayout {
            queue_sets: 1,
            flows: swarm.session_flows,
            receive_len: swarm.receive_len,
            send_len: swarm.send_len,
        };
        let id = self.engine.open_session(toe_base::Cred::default(), layout).ok()?;
        if id.index() >= crate::memory::SESSIONS_MAX {
            self.engine.close_session(Instant::ZERO, id, &mut self.memory);
            self.engine.forget_session(id);
            return None;
        }
        self.engine.add_queue_set(id)?;
        self.memory.open(id, &layout, swarm.ring_len);
        let process = ControlEvent::Process(id, 1 + u32::from(id.0));
        self.engine.handle_control(Instant::ZERO, process, &mut self.memory);
        self.sessions.push(Session {
            id,
            layout,
            alive: true,
            forgotten: false,
            send_arena: Arena::new(layout.send_offset(), layout.send_len),
            sockets: Vec::new(),
            by_id: BTreeMap::new(),
            listeners: Vec::new(),
            free_anchors: Vec::new(),
            kept_anchors: Vec::new(),
            once_kept: BTreeSet::new(),
            connect_ids: Vec::new(),
            reached: BTreeMap::new(),
            stalled_until_us: 0,
            wake_scheduled: false,
            hungry: Vec::new(),
            sees_to_yields: swarm.driver.watches > 0 || swarm.driver.gives_back,
            gives_back: swarm.driver.gives_back,
            yields: Vec::new(),
            given_up: Vec::new(),
            greets: 0,
            mischief: None,
        });
        Some(self.sessions.len() - 1)
    }

    /// Processes that have a descriptor of what listens by this anchor.
    pub fn listening_by(&self, anchor: AnchorHandle) -> impl Iterator<Item = usize> {
        let has_it = move |s: &Session| s.listeners.iter().any(|l| l.anchor == anchor && !l.closed);
        self.sessions.iter().enumerate().filter(move |(_, s)| s.alive && has_it(s)).map(|(at, _)| at)
    }

    /// A process closes its descriptor of a listener; with the last one the anchor closes.
    pub fn close_listening(&mut self, clock: Instant, session: usize, number: usize) {
        let listening = &mut self.sessions[session].listeners[number];
        let anchor = listening.anchor;
        if !std::mem::replace(&mut listening.closed, true) && self.listening_by(anchor).next().is_none() {
            entries::anchor_closed(&mut self.engine, &mut self.memory, clock, anchor);
        }
    }

    /// The session that has the id now.
    pub fn session_by_id(&self, id: usize) -> Option<usize> {
        self.sessions.iter().rposition(|s| s.id.index() == id && s.alive)
    }
}

impl Session {
    pub fn is_hostile(&self) -> bool {
        self.mischief.is_some()
    }

    /// `None`: it has as many in hand as it may.
    pub fn take_anchor(&mut self, cx: &mut Cx<'_>) -> Option<AnchorHandle> {
        if let Some(free) = self.free_anchors.pop() {
            return Some(free);
        }
        let anchor = cx.engine.take_anchor(self.id).ok()?;
        if anchor.0 % UNMADE_ONE_IN != UNMADE_ONE_IN - 1 {
            return Some(anchor);
        }
        // Its object cannot be made.
        cx.tallies.add(Tally::Unmade);
        cx.engine.handle_control(cx.clock, ControlEvent::Shared(anchor), cx.memory);
        entries::anchor_closed(cx.engine, cx.memory, cx.clock, anchor);
        cx.engine.take_anchor(self.id).ok()
    }
}
