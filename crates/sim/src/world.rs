//! Virtual time: what happens next, and to whom. The world moves from event to event; between two of them every engine
//! that something happened to does all that it can do now ([`crate::settle`]).

use crate::checkers::sequence::Sequences;
use crate::checkers::storms::Storms;
use crate::checkers::streams::Streams;
use crate::checkers::{Checker, Failure, Verdict};
use crate::frame::TcpFrame;
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::network::meddler::Meddler;
use crate::network::{InFlight, Network};
use crate::node::{Node, PORT, Session};
use crate::program::plan::Conns;
use crate::program::{Cx, plan};
use crate::random::{Draws, Random};
use crate::sabotage::Sabotage;
use crate::swarm::Swarm;
use crate::tally::{Tallies, Tally};
use crate::trace::{About, Trace};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use toe_wire::link::TxOffload;

/// Something that happens.
#[derive(Debug)]
pub enum What {
    Arrives(InFlight),
    /// A program notices what its ring says.
    Serve {
        node: usize,
        session: usize,
    },
    /// A socket goes on.
    Step {
        node: usize,
        session: usize,
        socket: usize,
    },
    Connect {
        conn: u32,
    },
    /// Something had no room before.
    Retry {
        node: usize,
    },
    Fault(crate::run::Mishap),
}

#[derive(Debug)]
struct Event {
    at_us: u64,
    order: u64,
    what: What,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.at_us, self.order) == (other.at_us, other.order)
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_us, self.order).cmp(&(other.at_us, other.order))
    }
}

/// All that there is.
#[derive(Debug)]
pub struct World {
    pub swarm: Swarm,
    pub now_us: u64,
    pub nodes: Vec<Node>,
    pub network: Network,
    pub meddler: Meddler,
    pub conns: Conns,
    pub streams: Streams,
    pub sequences: Sequences,
    pub storms: Storms,
    pub programs: Random,
    pub drivers: Random,
    pub hostile: Random,
    pub wider: Random,
    pub fast_open: Random,
    pub sharing: Random,
    pub claims: Random,
    pub kernels: Random,
    pub watched: Random,
    pub giving_back: Random,
    pub late: Random,
    pub heads: Random,
    pub idling: Random,
    pub tallies: Tallies,
    pub trace: Trace,
    pub verdict: Verdict,
    pub sabotage: Option<Sabotage>,
    /// Faults are over.
    pub healed: bool,
    pub outside: Outside,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    /// Events handled; a run that has very many of them never comes to rest.
    handled: u64,
}

/// What is for a stack that is not one of the engines: its number is the one after the last of theirs.
#[derive(Debug, Default)]
pub struct Outside {
    /// Frames that arrive there.
    pub frames: Vec<InFlight>,
    /// Connections that its programs are to make.
    pub connects: Vec<u32>,
}

/// Where programs that choose their port begin.
const FIRST_FROM_PORT: u16 = 20_000;

/// More events than any run needs.
const EVENTS_MAX: u64 = 40_000_000;

impl World {
    pub fn new(seed: u64, swarm: Swarm, memories: &mut Vec<Memory>, trace: Trace) -> World {
        let mut secrets = Random::new(seed, Draws::Rings);
        let nodes = swarm.engines.iter().take(swarm.engines.len() - swarm.outside).enumerate().map(
            |(number, spec)| {
                let memory = memories.pop().unwrap_or_else(|| Memory::new(secrets.clone()));
                let mut secret = [0; 16];
                secret[..8].copy_from_slice(&secrets.word().to_le_bytes());
                secret[8..].copy_from_slice(&secrets.word().to_le_bytes());
                Node::new(
                    number,
                    *spec,
                    swarm.wider.ipv6_percent > 0,
                    memory,
                    secret,
                    Random::new(secrets.word(), Draws::Rings),
                )
            },
        );
        let nodes = nodes.collect();
        World {
            network: Network::new(&swarm.engines, &swarm.link, Random::new(seed, Draws::Network)),
            meddler: Meddler::new(swarm.meddling, Random::new(seed, Draws::Meddler)),
            storms: Storms::default(),
            sequences: Sequences::new(swarm.meddling.garbage_ppm > 0),
            swarm,
            now_us: 0,
            nodes,
            conns: Conns::default(),
            streams: Streams::default(),
            programs: Random::new(seed, Draws::Programs),
            drivers: Random::new(seed, Draws::Drivers),
            hostile: Random::new(seed, Draws::Hostile),
            // Not the stream that the world was chosen with.
            wider: Random::new(!seed, Draws::Wider),
            fast_open: Random::new(!seed, Draws::FastOpen),
            sharing: Random::new(!seed, Draws::Sharing),
            claims: Random::new(!seed, Draws::Claims),
            kernels: Random::new(!seed, Draws::Kernel),
            watched: Random::new(!seed, Draws::Watched),
            giving_back: Random::new(!seed, Draws::GivenBack),
            late: Random::new(!seed, Draws::LateEntries),
            heads: Random::new(!seed, Draws::Heads),
            idling: Random::new(!seed, Draws::IdleMemory),
            tallies: Tallies::default(),
            trace,
            verdict: Verdict::default(),
            sabotage: None,
            healed: false,
            outside: Outside::default(),
            events: BinaryHeap::new(),
            order: 0,
            handled: 0,
        }
    }

    /// Gives the sessions' memories back for the next run.
    pub fn into_memories(self, memories: &mut Vec<Memory>) {
        memories.extend(self.nodes.into_iter().map(|node| node.memory));
    }

    pub fn schedule(&mut self, at_us: u64, what: What) {
        self.order += 1;
        self.events.push(Reverse(Event { at_us, order: self.order, what }));
    }

    /// What went wrong, if anything did.
    pub fn failure(&mut self) -> Option<Failure> {
        for node in &mut self.nodes {
            if let Some((checker, what)) = node.memory.verdict.take() {
                self.verdict.fail(checker, what);
            }
        }
        let at_us = self.now_us;
        self.verdict.take().map(|(checker, what)| Failure { checker, at_us, what })
    }

    /// When something happens next.
    pub fn next_us(&self) -> u64 {
        let deadlines = self.nodes.iter().map(Node::next_deadline_us);
        let event = self.events.peek().map_or(u64::MAX, |Reverse(event)| event.at_us);
        let kernels = self.nodes.iter().filter_map(|node| node.kernel.as_ref()).map(Kernel::next_us);
        deadlines.chain(kernels).min().unwrap_or(u64::MAX).min(event)
    }

    /// Goes to the next moment at which something happens, if that is not after `limit_us`, and lets it happen.
    pub fn advance(&mut self, limit_us: u64) -> Result<bool, Failure> {
        let next = self.next_us();
        if next > limit_us {
            return Ok(false);
        }
        self.now_us = self.now_us.max(next);
        while self.events.peek().is_some_and(|Reverse(event)| event.at_us <= self.now_us) {
            let Some(Reverse(event)) = self.events.pop() else { break };
            self.happen(event.what);
            self.handled += 1;
        }
        self.handled += 1;
        if self.handled > EVENTS_MAX {
            self.verdict.fail(Checker::Liveness, "it never comes to rest".to_owned());
        }
        for node in 0..self.nodes.len() {
            self.time_passes(node);
            if self.nodes[node].touched {
                self.settle(node);
            }
        }
        self.failure().map_or(Ok(true), Err)
    }

    /// Everything up to `now_us` happens.
    pub fn catch_up(&mut self, now_us: u64) -> Result<(), Failure> {
        for node in 0..self.nodes.len() {
            if self.nodes[node].touched {
                self.settle(node);
            }
        }
        while self.advance(now_us)? {}
        self.now_us = self.now_us.max(now_us);
        Ok(())
    }

    fn time_passes(&mut self, at: usize) {
        let now_us = self.now_us;
        let node = &mut self.nodes[at];
        if let Some(kernel) = &mut node.kernel {
            node.touched |= kernel.answer(&mut node.engine, now_us);
        }
        if node.next_deadline_us() <= now_us {
            let clock = node.clock(now_us);
            if self.sabotage != Some(Sabotage::ForgetTimeouts) {
                node.engine.handle_timeout(clock, &mut node.memory);
            }
            node.touched = true;
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Arrives(frame) => self.arrive(frame),
            What::Serve { node, session } => self.serve(node, session),
            What::Step { node, session, socket } => {
                self.with_session(node, session, |session, cx| session.step(cx, socket));
            }
            What::Connect { conn } => {
                let (node, session) = self.conns.list[conn as usize].client;
                if node >= self.nodes.len() {
                    self.outside.connects.push(conn);
                    return;
                }
                if !self.nodes[node].sessions[session].alive {
                    self.conns.list[conn as usize].excuse.get_or_insert("its process is gone");
                }
                let (server, port) = self.conns.list[conn as usize].server;
                let kernel = self.nodes.get(server).and_then(|node| node.kernel.as_ref());
                if kernel.is_some_and(|kernel| kernel.refuses(port)) {
                    self.tallies.add(Tally::ListenersRefused);
                    self.conns.list[conn as usize].excuse.get_or_insert("its listener is its kernel's");
                }
                self.with_session(node, session, |session, cx| session.connect(cx, conn));
            }
            What::Retry { node } => self.nodes[node].touched = true,
            What::Fault(mishap) => self.mishap(mishap),
        }
    }

    /// Lets a living, ordinary session's program do something.
    pub fn with_session(&mut self, at: usize, session: usize, act: impl FnOnce(&mut Session, &mut Cx<'_>)) {
        let mut wakes = Vec::new();
        let now_us = self.now_us;
        let node = &mut self.nodes[at];
        let clock = node.clock(now_us);
        let Some(program) = node.sessions.get_mut(session).filter(|s| s.alive && !s.is_hostile()) else {
            return;
        };
        let mut cx = Cx {
            now_us,
            clock,
            node: at,
            session,
            engine: &mut node.engine,
            kernel: node.kernel.as_mut(),
            memory: &mut node.memory,
            conns: &mut self.conns,
            streams: &mut self.streams,
            sequences: &mut self.sequences,
            random: &mut self.programs,
            tallies: &mut self.tallies,
            trace: &mut self.trace,
            verdict: &mut self.verdict,
            wakes: &mut wakes,
        };
        act(program, &mut cx);
        node.touched = true;
        for (when_us, socket) in wakes {
            self.schedule(when_us, What::Step { node: at, session, socket });
        }
    }

    fn serve(&mut self, node: usize, session: usize) {
        let of = &mut self.nodes[node].sessions[session];
        if of.stalled_until_us > self.now_us && !self.healed {
            let again = of.stalled_until_us;
            self.schedule(again, What::Serve { node, session });
        } else if of.is_hostile() {
            of.wake_scheduled = false;
            self.harm(node, session);
        } else {
            self.with_session(node, session, |session, cx| session.serve(cx));
            self.follow_up_yields(node, session);
        }
    }

    fn arrive(&mut self, flight: InFlight) {
        if flight.to >= self.nodes.len() {
            self.arrive_outside(flight);
            return;
        }
        let InFlight { to, mut frame, mut offload, whole, .. } = flight;
        if !self.is_for_engine(to, &frame, whole.or_else(|| TcpFrame::parse(&frame)).map(|tcp| tcp.way)) {
            self.nodes[to].touched = true;
            return;
        }
        let now_us = self.now_us;
        let node = &mut self.nodes[to];
        let clock = node.clock(now_us);
        node.check_local_copies();
        let (engine, memory) = (&mut node.engine, &mut node.memory);
        let (trace, storms) = (&mut self.trace, &mut self.storms);
        self.meddler.meddle(&mut frame, &mut offload, &self.sequences, &mut self.tallies, |other| {
            trace.event(now_us, About::node(to), "meddler", format_args!("{}", Seen(&other)));
            TcpFrame::parse(&other).iter().for_each(|tcp| storms.arrived(tcp, now_us));
            let incoming = engine.handle_frame(clock, PORT, &other, Default::default(), memory);
            memory.take(clock, engine, incoming);
            memory.check_arrived(engine, &other, Default::default());
        });
        if self.sabotage == Some(Sabotage::FlipPayload) {
            flip_payload(&mut frame);
        }
        trace.event(now_us, About::node(to), "arrives", format_args!("{}", Seen(&frame)));
        let segment = whole.or_else(|| TcpFrame::parse(&frame));
        segment.iter().for_each(|tcp| storms.arrived(tcp, now_us));
        if let Some(tcp) = segment
            && (whole.is_some() || offload.checksum_ok || tcp.checksum_is_valid(&frame))
        {
            // Of a segment in pieces with the first of them: a little early, so never too strict.
            self.sequences.delivered(&tcp);
        }
        if !self.comes_as_head(to, &frame, offload) {
            let node = &mut self.nodes[to];
            let incoming = node.engine.handle_frame(clock, PORT, &frame, offload, &mut node.memory);
            node.memory.take(clock, &mut node.engine, incoming);
            node.memory.check_arrived(&mut node.engine, &frame, offload);
        }
        self.nodes[to].touched = true;
        self.network.recycle(frame);
    }

    fn arrive_outside(&mut self, flight: InFlight) {
        let InFlight { to, frame, offload, whole, .. } = &flight;
        self.trace.event(self.now_us, About::node(*to), "arrives", format_args!("{}", Seen(frame)));
        if let Some(tcp) = whole.or_else(|| TcpFrame::parse(frame))
            && (whole.is_some() || offload.checksum_ok || tcp.checksum_is_valid(frame))
        {
            self.sequences.delivered(&tcp);
        }
        self.outside.frames.push(flight);
    }

    /// A frame leaves a stack that is not an engine.
    pub fn leave_outside(&mut self, at: usize, frame: Vec<u8>, offload: TxOffload) {
        let now_us = self.now_us;
        self.trace.event(now_us, About::node(at), "leaves", format_args!("{}", Seen(&frame)));
        if let Some(tcp) = TcpFrame::parse(&frame) {
            self.sequences.observed(&tcp);
        }
        self.launch(at, frame, offload);
    }

    /// A frame goes to the links.
    pub fn launch(&mut self, at: usize, frame: Vec<u8>, offload: TxOffload) {
        let mut arrivals = Vec::new();
        let now_us = self.now_us;
        self.network
            .launch(now_us, at, frame, offload, &mut self.tallies, &mut |flight| arrivals.push(flight));
        for flight in arrivals {
            self.schedule(flight.due_us, What::Arrives(flight));
        }
    }

    /// A connection that programs make, planned.
    pub fn plan_connection(&mut self) -> plan::Conn {
        let plans = plan::choose(&mut self.programs, &self.swarm, &mut self.tallies);
        let random = &mut self.programs;
        let nodes = self.nodes.len() as u32;
        let client_node = random.below(nodes) as usize;
        let local = random.one_in(5);
        let more = self.swarm.wider.local_percent;
        let local = local || more > 0 && self.watched.below(100) < more;
        let other = (client_node + 1 + random.below(nodes - 1) as usize) % nodes as usize;
        let server_node = if local { client_node } else { other };
        let ordinary =
            |spec: usize, random: &mut Random| random.below(self.swarm.engines[spec].sessions) as usize;
        let client = (client_node, ordinary(client_node, random));
        let server_session = ordinary(server_node, random);
        let server = (server_node, 7000 + server_session as u16);
        let span = (self.swarm.safety_us / 2) as u32;
        let start_us = if self.swarm.storm { 1000 } else { 1000 + u64::from(random.below(span)) };
        self.tallies.add(Tally::Connections);
        if local {
            self.tallies.add(Tally::LocalConnections);
        }
        let conn = plan::Conn::new(client, server, server_session, plans, start_us);
        let mut conn = plan::Conn { local, ..conn };
        if self.swarm.wider.on {
            self.widen_connection(&mut conn);
        }
        conn
    }

    fn widen_connection(&mut self, conn: &mut plan::Conn) {
        let random = &mut self.wider;
        conn.v6 = random.below(100) < self.swarm.wider.ipv6_percent;
        if conn.v6 {
            self.tallies.add(Tally::Ipv6Connections);
        }
        let is_shared = |node: usize| self.nodes[node].kernel.is_some();
        if is_shared(conn.client.0) && !conn.local && !conn.v6 && self.kernels.one_in(3) {
            // Of its own each, and no listener's.
            conn.from_port = FIRST_FROM_PORT + self.conns.list.len() as u16;
        }
        conn.fast = self.fast_open.below(100) < self.swarm.wider.fast_open_percent;
        let wants_channel = self.swarm.driver.gives_back || self.swarm.driver.watches > 0;
        if conn.local && wants_channel && !self.giving_back.one_in(4) {
            // Only a connection that lasts gets a channel.
            plan::exchange(&mut self.giving_back, self.swarm.bytes_max, &mut conn.plans);
            let times = u64::from(self.giving_back.between(1, 6));
            conn.plans.iter_mut().for_each(|plan| plan.bytes *= times);
        }
        for plan in &mut conn.plans {
            let number = random.between(1, toe_abi::congestion::NAMES.len() as u32);
            plan.congestion = self.swarm.wider.choose_congestion.then_some(number);
            plan.record_ppm = self.swarm.wider.record_ppm;
            if self.swarm.driver.idles && !self.idling.one_in(4) {
                (plan.read_max, plan.read_pause_us) = (u32::MAX, self.idling.between(200_000, 2_000_000));
            }
            if self.swarm.driver.gives_back && self.giving_back.one_in(2) {
                plan.read_max = self.giving_back.between(100, 2000);
                plan.read_pause_us = self.giving_back.between(1000, 20_000);
            }
        }
    }
}

/// Changes a byte of payload and mends the checksum.
fn flip_payload(frame: &mut [u8]) {
    if let Some(tcp) = TcpFrame::parse(frame).filter(|tcp| !tcp.is_empty()) {
        frame[tcp.payload_at] ^= 1;
        tcp.store_checksum(frame);
    }
}

/// A frame for a line of the trace.
#[derive(Debug)]
pub struct Seen<'a>(pub &'a [u8]);

impl std::fmt::Display for Seen<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(tcp) = TcpFrame::parse(self.0) else {
            return write!(f, "{} bytes, no TCP", self.0.len());
        };
        let header = &tcp.header;
        let (from, to) = (tcp.way.from, tcp.way.to);
        write!(f, "{}:{} > {}:{} {:?}", from.0, from.1, to.0, to.1, header.flags)?;
        write!(f, " seq {} len {}", header.seq.raw(), tcp.len())?;
        if let Some(ack) = header.ack {
            write!(f, " ack {}", ack.raw())?;
        }
        write!(f, " win {}", header.window.0)?;
        for block in header.options.sack.as_slice() {
            write!(f, " sack {}-{}", block.left.raw(), block.right.raw())?;
        }
        if let Some(stamps) = header.options.timestamps {
            write!(f, " ts {} {}", stamps.value, stamps.echo)?;
        }
        Ok(())
    }
}
