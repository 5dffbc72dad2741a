//! The kernel of a machine whose address its engine shares (decision 0014), with what follows it in the daemon: it keeps port numbers, finds
//! neighbours, answers for the address, and steers to the engine what it is told to. All else would be the kernel's.

use crate::checkers::Checker;
use crate::frame::Way;
use crate::hostile::HOSTILE_TWINS;
use crate::memory::Memory;
use crate::network::mac_of;
use crate::node::{Node, PORT, address_of, link_of};
use crate::random::Random;
use crate::tally::Tally;
use crate::world::World;
use std::collections::BTreeSet;
use toe_base::{Addr, Endpoint, Instant};
use toe_engine::{
    ControlEvent, DriverRequest, Engine, FlowAudit, KernelRoute, KernelVia, Link, NetworkChange,
    NetworkRequest, SteerChange,
};
use toe_tcp::state::TcpState;
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::eth::{EthRepr, EtherType};

/// The port numbers that it keeps for the engine, from the first on.
const FIRST_KEPT: u16 = 40_000;
const KEPT_MAX: u16 = 8192;
/// How long a neighbour takes to answer it.
const ANSWERS_WITHIN_US: u32 = 5_000;
/// One neighbour in so many does not answer when it is first asked for.
const UNANSWERED_ONE_IN: u32 = 4;
/// One listener in so many cannot be steered.
const REFUSES_ONE_IN: u32 = 16;

/// See the module.
#[derive(Debug)]
pub struct Kernel {
    node: usize,
    listeners: BTreeSet<Endpoint>,
    /// Local and remote end.
    flows: BTreeSet<(Endpoint, Endpoint)>,
    kept: u16,
    /// Neighbours that the engine looks for, and when they answer.
    sought: Vec<(u64, Addr)>,
    /// Those that have been asked for once.
    asked_once: BTreeSet<Addr>,
    /// Sockets of its own that are to be looked at, whether any program has them.
    doubted: Vec<u64>,
    /// Listeners that it keeps for itself.
    refused: BTreeSet<Endpoint>,
    /// It forgets what it is told to steer.
    pub is_forgetful: bool,
    wrong: Option<String>,
    random: Random,
}

impl Kernel {
    /// Before the engine's port has an address.
    pub fn begin(node: usize, engine: &mut Engine, kept: u16, random: Random) -> Kernel {
        engine.handle_network(NetworkChange::Shared { port: PORT });
        let mut kernel = Kernel {
            node,
            listeners: BTreeSet::new(),
            flows: BTreeSet::new(),
            kept: 0,
            sought: Vec::new(),
            asked_once: BTreeSet::new(),
            doubted: Vec::new(),
            refused: BTreeSet::new(),
            is_forgetful: false,
            wrong: None,
            random,
        };
        kernel.tell_address(engine);
        kernel.keep(engine, kept);
        kernel
    }

    fn keep(&mut self, engine: &mut Engine, count: u16) {
        let to = KEPT_MAX.min(self.kept + count);
        for port in self.kept..to {
            engine.handle_network(NetworkChange::PortReserved(FIRST_KEPT + port));
        }
        self.kept = to;
    }

    fn tell_address(&mut self, engine: &mut Engine) {
        let addr = address_of(self.node).into();
        engine.handle_network(NetworkChange::Address { port: PORT, addr, prefix_len: 24 });
        let via = KernelVia::Port { port: PORT, gateway: None, source: None };
        let on_link = KernelRoute { dst: addr, prefix_len: 24, metric: 0, is_local: false, via };
        let elsewhere = KernelRoute { dst: Addr::from([192, 0, 2, 0]), via: KernelVia::Elsewhere, ..on_link };
        let routes = [on_link, elsewhere];
        engine.handle_network(NetworkChange::Routes(if self.random.one_in(2) {
            &routes
        } else {
            &routes[..1]
        }));
    }

    /// Whether it keeps a listener at the port for itself.
    pub fn refuses(&self, port: u16) -> bool {
        self.refused.iter().any(|local| local.port == port)
    }

    /// Does what the engine wants done.
    fn serve(&mut self, engine: &mut Engine, request: NetworkRequest, now_us: u64) {
        match request {
            NetworkRequest::ReservePorts(count) => self.keep(engine, count as u16),
            NetworkRequest::Steer(change) => self.steer(engine, change),
            NetworkRequest::LookAtTwin { identity } => self.doubted.push(identity),
            NetworkRequest::FindNeighbour { addr, .. } => {
                if self.asked_once.insert(addr) && self.random.one_in(UNANSWERED_ONE_IN) {
                    return;
                }
                let due_us = now_us + u64::from(self.random.below(ANSWERS_WITHIN_US));
                self.sought.push((due_us, addr));
            }
        }
    }

    fn steer(&mut self, engine: &mut Engine, change: SteerChange) {
        let is_change = match change {
            SteerChange::Listen { local, on: true } => {
                if self.random.one_in(REFUSES_ONE_IN) {
                    self.refused.insert(local);
                    engine.handle_network(NetworkChange::SteeringRefused { local });
                    return;
                }
                self.refused.remove(&local);
                self.is_forgetful || self.listeners.insert(local)
            }
            // It was refused.
            SteerChange::Listen { local, .. } if self.refused.contains(&local) => true,
            SteerChange::Listen { local, .. } => self.listeners.remove(&local),
            SteerChange::Flow { key, on: true } => {
                self.is_forgetful || self.flows.insert((key.local, key.remote))
            }
            SteerChange::Flow { key, .. } => self.flows.remove(&(key.local, key.remote)),
        };
        if !is_change && !self.is_forgetful {
            self.wrong.get_or_insert_with(|| format!("{change:?} changes nothing"));
        }
    }

    /// When a neighbour answers next.
    pub fn next_us(&self) -> u64 {
        self.sought.iter().map(|(due_us, _)| *due_us).min().unwrap_or(u64::MAX)
    }

    /// Neighbours that have answered by now; whether there were any.
    pub fn answer(&mut self, engine: &mut Engine, now_us: u64) -> bool {
        let (due, later) = self.sought.iter().partition(|(due_us, _)| *due_us <= now_us);
        self.sought = later;
        let due: Vec<(u64, Addr)> = due;
        for (_, addr) in &due {
            if let Some(node) = node_of(*addr) {
                let (addr, mac) = (*addr, mac_of(node));
                engine.handle_network(NetworkChange::Neighbour { port: PORT, addr, mac, is_doubtful: false });
            }
        }
        !due.is_empty()
    }

    /// Something changes that no connection notices.
    fn change(&mut self, engine: &mut Engine, link: Link) {
        let other = Addr::from(address_of(self.random.below(3) as usize));
        let mac = node_of(other).map(mac_of).unwrap_or_default();
        match self.random.below(4) {
            // It has not heard of it for a while.
            0 => engine.handle_network(NetworkChange::Neighbour {
                port: PORT,
                addr: other,
                mac,
                is_doubtful: true,
            }),
            1 => engine.handle_network(NetworkChange::NoNeighbour { port: PORT, addr: other, failed: false }),
            2 => {
                let addr = address_of(self.node).into();
                let view = engine.view();
                let is_used =
                    view.audit_flows().any(|f| f.key.local.addr == addr && f.state != TcpState::Closed);
                if view.has_flows_at(addr) != is_used {
                    self.wrong.get_or_insert_with(|| {
                        format!("{addr} is used: {is_used}, and the engine says not so")
                    });
                }
                engine.handle_network(NetworkChange::NoAddress { port: PORT, addr });
                engine.handle_network(NetworkChange::Routes(&[]));
                self.tell_address(engine);
            }
            _ => {
                let mtu = self.random.between(576, link.mtu);
                engine.handle_network(NetworkChange::Link { port: PORT, link: Link { mtu, ..link } });
                engine.handle_network(NetworkChange::Link { port: PORT, link });
            }
        }
    }

    /// Whether a segment that goes this way, in or out, is one of those that come to the engine.
    fn steers(&self, local: Endpoint, remote: Endpoint) -> bool {
        let at = |addr| self.listeners.contains(&Endpoint::new(addr, local.port));
        (FIRST_KEPT..FIRST_KEPT + self.kept).contains(&local.port)
            || self.flows.contains(&(local, remote))
            || [local.addr, Addr::UNSPECIFIED_V4, Addr::UNSPECIFIED_V6].into_iter().any(at)
    }

    /// What it would send for a frame that is its own: of ARP, the answer.
    fn answer_arp(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let (link, rest) = EthRepr::parse(frame).ok().filter(|(link, _)| link.ethertype == EtherType::Arp)?;
        let asked = ArpRepr::parse(rest).ok().filter(|asked| asked.operation == ArpOperation::Request)?;
        let (mac, ip) = (mac_of(self.node), address_of(self.node));
        let answer = ArpRepr {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender_ip: ip,
            target_mac: asked.sender_mac,
            target_ip: asked.sender_ip,
        };
        let mut out = vec![0; frame.len().max(60)];
        EthRepr { dst: link.src, src: mac, ethertype: EtherType::Arp }.emit(&mut out);
        answer.emit(&mut out[frame.len() - rest.len()..]);
        (asked.target_ip == ip).then_some(out)
    }

    /// Of a machine whose engine has no connection and no listener any more.
    pub fn has_nothing(&self) -> Result<(), String> {
        match self.listeners.is_empty() && self.flows.is_empty() {
            true => Ok(()),
            false => Err(format!("still steered: {:?} {:?}", self.listeners, self.flows)),
        }
    }
}

impl Node {
    /// What the kernel calls the sockets of listeners that programs have.
    fn open_twins(&self) -> BTreeSet<u64> {
        let sessions = self.sessions.iter().filter(|session| session.alive);
        let open = sessions.flat_map(|session| &session.listeners).filter(|listening| !listening.closed);
        open.map(|listening| u64::from(listening.anchor.0)).collect()
    }
}

/// Whose address it is.
fn node_of(addr: Addr) -> Option<usize> {
    (0..usize::from(u8::MAX)).find(|node| Addr::from(address_of(*node)) == addr)
}

fn end((addr, port): (std::net::IpAddr, u16)) -> Endpoint {
    Endpoint::new(addr, port)
}

/// Does all that an engine wants done. One that shares its address with nobody has no kernel.
pub fn serve_requests(
    (engine, memory): (&mut Engine, &mut Memory),
    mut kernel: Option<&mut Kernel>,
    clock: Instant,
    now_us: u64,
) {
    loop {
        memory.gather(engine);
        let Some(request) = memory.requests.pop_front() else { break };
        match request {
            DriverRequest::Show(_) => {}
            DriverRequest::Network(request) => {
                if let Some(kernel) = &mut kernel {
                    kernel.serve(engine, request, now_us);
                }
            }
            DriverRequest::Channel(request) => {
                if let Some(event) = memory.serve_channel(request) {
                    engine.handle_control(clock, event, memory);
                }
            }
        }
    }
}

impl World {
    /// What the engine wants, as the daemon does it before and after it sends.
    pub fn serve_requests(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let (clock, kernel) = (node.clock(self.now_us), node.kernel.as_mut());
        serve_requests((&mut node.engine, &mut node.memory), kernel, clock, self.now_us);
        let Some(kernel) = &mut node.kernel else { return };
        if let Some(wrong) = kernel.wrong.take() {
            self.verdict.fail(Checker::Steering, wrong);
        }
        for identity in std::mem::take(&mut kernel.doubted) {
            self.look_at_twin(at, identity);
        }
    }

    /// Of one that no program has the engine is told. Those that hostile hosts have shown are as they say.
    fn look_at_twin(&mut self, at: usize, identity: u64) {
        let node = &mut self.nodes[at];
        if identity < HOSTILE_TWINS && !node.open_twins().contains(&identity) {
            let clock = node.clock(self.now_us);
            node.engine.handle_control(clock, ControlEvent::SocketGone(identity, clock), &mut node.memory);
        }
    }

    /// A frame has come to a machine with a kernel that shares its address: whether it goes to the engine.
    pub fn is_for_engine(&mut self, at: usize, frame: &[u8], way: Option<Way>) -> bool {
        let Some(kernel) = &self.nodes[at].kernel else { return true };
        if let Some(answer) = kernel.answer_arp(frame) {
            self.launch(at, answer, Default::default());
            return false;
        }
        let Some(Way { from, to }) = way.filter(|way| way.to.0.is_ipv4()) else { return true };
        let (local, remote) = (end(to), end(from));
        if kernel.steers(local, remote) {
            return true;
        }
        let is_its = |flow: &FlowAudit| {
            (flow.key.local, flow.key.remote) == (local, remote) && flow.state != TcpState::Closed
        };
        if self.nodes[at].engine.view().audit_flows().any(|flow| is_its(&flow)) {
            let what = format!("{remote:?} > {local:?} is not steered to its connection");
            self.verdict.fail(Checker::Steering, what);
        }
        self.tallies.add(Tally::KernelsFrames);
        false
    }

    /// What answers a SYN that an engine sends must come to it.
    pub fn look_at_steering(&mut self, at: usize, way: Way) {
        let Some(kernel) = self.nodes[at].kernel.as_ref().filter(|_| way.from.0.is_ipv4()) else { return };
        if !kernel.steers(end(way.from), end(way.to)) {
            self.verdict.fail(Checker::Steering, format!("what answers {way:?} would not come"));
        }
    }

    /// Each kernel socket that a steered listener relies on is one that a program has.
    pub fn check_steered_twins(&mut self, at: usize) {
        let node = &self.nodes[at];
        let open = node.open_twins();
        let is_lost = |identity: &u64| *identity < HOSTILE_TWINS && !open.contains(identity);
        if let Some(lost) = node.engine.view().steered_twins().map(|twin| twin.identity).find(is_lost) {
            let what = format!("a listener relies on kernel socket {lost}, which nobody has");
            self.verdict.fail(Checker::Steering, what);
        }
        let Some(kernel) = &node.kernel else { return };
        let view = node.engine.view();
        let relies = |at: &&Endpoint| view.steered_twins().any(|twin| twin.local.port == at.port);
        if let Some(steered) = kernel.listeners.iter().find(|at| !relies(at)) {
            self.verdict
                .fail(Checker::Steering, format!("{steered:?} is steered, and relies on no kernel socket"));
        }
    }

    /// Something of the network changes.
    pub fn change_network(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let link = link_of(at, &node.spec);
        if let Some(kernel) = &mut node.kernel {
            self.tallies.add(Tally::NetworkChanges);
            kernel.change(&mut node.engine, link);
        }
    }
}
