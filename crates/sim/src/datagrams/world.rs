//! One seed: sockets and senders, faults for a while, then sound links over which everything must come, then nothing left behind.

mod ends;
mod lanes;

use super::checker::{Checker, HOSTILE, NAME_LEN, text};
use super::frames::Seen;
use super::host::{Counts, Host};
use crate::network::lane::Lane;
use crate::network::mac_of;
use crate::node::{PORT, address_of, v6_address_of};
use crate::panics;
use crate::random::{Draws, Random};
use crate::swarm::{EngineSpec, LinkFaults, Swarm};
use crate::tally::{Tallies, Tally};
pub(super) use ends::End;
use std::collections::{BTreeMap, VecDeque};
use toe_abi::attach::Use;
use toe_abi::lane::DatagramHeader;
use toe_abi::region::RegionLayout;
use toe_base::{Addr, Cred, DatagramId, Endpoint, Instant, NetNs, SessionId};
use toe_engine::kit::FakeHosts;
use toe_engine::udp::Presented;
use toe_engine::{ControlEvent, Counter, Engine, EngineConfig, Incoming, Link, NetworkChange};
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};

/// What an engine keeps of datagrams at most: frames that wait for its port and datagrams that wait for neighbours.
const HELD_MAX: usize = 1024;
const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 16, receive_len: 1 << 16, send_len: 1 << 16 };
/// Engines' clocks do not begin at nothing.
const EPOCH_US: u64 = 1_000_000;
/// Longer than anybody waits for a neighbour or for pieces.
const QUIET_US: u64 = 120_000_000;
/// From here nobody is told.
const FIRST_PORT: u16 = 5000;

/// Deliberate mistakes, each of which some checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    Doubles,
    Joins,
    FromAnother,
    Loses,
}

#[derive(Clone, Copy, Debug)]
struct Socket {
    id: DatagramId,
    local: Endpoint,
    is_hostile: bool,
}

struct Node {
    engine: Engine,
    spec: EngineSpec,
    sockets: Vec<Socket>,
    ends: Vec<End>,
    /// Sockets that were ever opened.
    opened: u16,
    sessions: Vec<SessionId>,
    counts: Counts,
    given: u64,
    lanes: lanes::KnownLanes,
}

impl Node {
    /// Nobody hears of it.
    fn tell(&mut self, clock: Instant, event: ControlEvent) {
        self.engine.handle_control(clock, event, &mut FakeHosts::default());
    }
}

struct Flight {
    to: usize,
    frame: Vec<u8>,
    offload: RxOffload,
}

struct World {
    now_us: u64,
    nodes: Vec<Node>,
    lanes: Vec<Lane>,
    flights: BTreeMap<(u64, u64), Flight>,
    order: u64,
    random: Random,
    network: Random,
    endings: Random,
    lane_draws: Random,
    checker: Checker,
    tallies: Tallies,
    healed: bool,
    mistake: Option<Mistake>,
    corrupt_ppm: u32,
}

/// What a seed came to: what was exercised, or what is wrong.
pub fn run(seed: u64, mistake: Option<Mistake>) -> Result<Tallies, String> {
    panics::catch(|| World::new(seed, mistake).run()).unwrap_or_else(|panic| Err(format!("panic: {panic}")))
}

fn addr_of(node: usize, v6: bool) -> Addr {
    if v6 { Addr::v6(v6_address_of(node), 0) } else { address_of(node).into() }
}

/// The kernel's number of a socket.
fn identity_of(node: usize, number: u16) -> u64 {
    (node as u64) << 32 | u64::from(number)
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> World {
        let swarm = Swarm::choose(seed, None);
        let mut random = Random::new(seed, Draws::Datagrams);
        let count = swarm.engines.len();
        let corrupt_ppm = swarm.link.corrupt_ppm;
        let mut world = World {
            now_us: 0,
            nodes: Vec::new(),
            lanes: (0..count * count).map(|_| Lane::new(swarm.link.clone())).collect(),
            flights: BTreeMap::new(),
            order: 0,
            network: random.beside(Draws::Network),
            endings: random.beside(Draws::Endings),
            lane_draws: random.beside(Draws::Lanes),
            checker: Checker::default(),
            tallies: Tallies::default(),
            healed: false,
            mistake,
            corrupt_ppm,
            random: random.clone(),
        };
        for (number, spec) in swarm.engines.iter().enumerate() {
            let node = world.node(number, *spec, &mut random);
            world.nodes.push(node);
        }
        world
    }

    fn node(&mut self, number: usize, spec: EngineSpec, random: &mut Random) -> Node {
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random.word().to_le_bytes());
        let mut engine = Engine::new(EngineConfig { flows_max: 64, ..EngineConfig::with_secret(secret) });
        let caps = LinkCaps { tx_checksum: spec.tx_checksum, gso_max: 0, ..LinkCaps::default() };
        // IPv6 wants links of 1280 bytes (RFC 8200 section 5).
        let mtu = spec.mtu.max(1280);
        let port = engine.add_port(Link { mac: mac_of(number), mtu, caps, ..Link::default() });
        engine.handle_network(NetworkChange::Address { port, addr: addr_of(number, false), prefix_len: 24 });
        engine.handle_network(NetworkChange::Address { port, addr: addr_of(number, true), prefix_len: 64 });
        let mut node = Node {
            engine,
            spec: EngineSpec { mtu, ..spec },
            sockets: Vec::new(),
            ends: Vec::new(),
            opened: 0,
            sessions: Vec::new(),
            counts: Counts::default(),
            given: 0,
            lanes: lanes::KnownLanes::default(),
        };
        for _ in 0..random.between(1, 3) {
            let Ok(session) = node.engine.open_session(Cred::default(), LAYOUT) else { continue };
            node.sessions.push(session);
            let is_hostile = random.one_in(5);
            for _ in 0..random.between(1, 3) {
                self.open(&mut node, (number, session), is_hostile, random);
            }
        }
        node
    }

    fn open(
        &mut self,
        node: &mut Node,
        (number, session): (usize, SessionId),
        is_hostile: bool,
        random: &mut Random,
    ) {
        let (port, identity) = (FIRST_PORT + node.opened, identity_of(number, node.opened));
        node.opened += 1;
        let v6 = random.one_in(2);
        let own = addr_of(number, v6);
        let addr = if random.one_in(3) { own } else { own.unspecified() };
        let local = Endpoint { addr, port };
        let presented = Presented {
            local,
            peer: None,
            v6_only: random.one_in(2),
            identity,
            netns: NetNs(0),
            shares_port: false,
            receive_buffer: 212_992,
        };
        let hears = (Use::Hears, Endpoint::UNSPECIFIED_V4);
        let opened = node.engine.open_datagrams(Instant::from_micros(EPOCH_US), session, hears, &presented);
        let Some(end) = opened.ok().and_then(|opened| opened.end) else { return };
        let local = Endpoint { addr: own, port };
        node.sockets.push(Socket { id: end.id, local, is_hostile });
        node.ends.push(End { id: end.id, port, session, identity });
        if is_hostile {
            for v6 in [false, true] {
                self.checker.hostile_at(Endpoint { addr: addr_of(number, v6), port });
            }
        }
        if random.one_in(8)
            && let Some(other) = node.sessions.iter().copied().find(|other| *other != session)
            && let Ok(opened) =
                node.engine.open_datagrams(Instant::from_micros(EPOCH_US), other, hears, &presented)
            && let Some(end) = opened.end
        {
            // Two processes have it.
            node.ends.push(End { id: end.id, port, session: other, identity });
        }
    }

    fn run(mut self) -> Result<Tallies, String> {
        let rounds = self.random.between(5, 60);
        for _ in 0..rounds {
            self.speak();
            if self.endings.one_in(4) {
                self.end_something();
            }
            self.ask_for_lanes();
            let pause = self.random.any_size(200_000);
            self.until(self.now_us + u64::from(pause))?;
        }
        self.heal();
        self.until(self.now_us + QUIET_US)?;
        for _ in 0..4 {
            self.speak_soundly();
            self.until(self.now_us + QUIET_US)?;
        }
        self.checker.all_came();
        self.check_end();
        self.all_ends();
        match self.checker.take() {
            Some(wrong) => Err(wrong),
            None => {
                self.tallies.add_many(Tally::DatagramsCame, self.checker.count());
                self.tallies.seeds = 1;
                Ok(self.tallies)
            }
        }
    }

    fn heal(&mut self) {
        self.healed = true;
        for lane in &mut self.lanes {
            lane.heal();
            // No queue that may be full.
            lane.set_faults(LinkFaults { delay_us: 1000, ..LinkFaults::default() });
        }
    }

    fn clock(&self) -> Instant {
        Instant::from_micros(EPOCH_US + self.now_us)
    }

    /// One of all sockets, whichever engine has it.
    fn any_socket(&mut self) -> Option<(usize, Socket)> {
        let node = self.random.below(self.nodes.len() as u32) as usize;
        let count = self.nodes[node].sockets.len() as u32;
        (count > 0).then(|| (node, self.nodes[node].sockets[self.random.below(count) as usize]))
    }

    /// Somebody sends something.
    fn speak(&mut self) {
        for _ in 0..self.random.any_size(20) {
            let Some((node, socket)) = self.any_socket() else { continue };
            if socket.is_hostile {
                self.harm(node, socket);
                continue;
            }
            let Some((_, other)) = self.any_socket() else { continue };
            let unknown = self.random.one_in(10);
            let to = Endpoint { port: other.local.port + if unknown { 1000 } else { 0 }, ..other.local };
            let segments = if self.random.one_in(6) { self.random.between(2, 20) } else { 1 };
            let size_max = if segments > 1 { 1400 } else { 20_000 };
            let len = NAME_LEN + self.random.any_size(size_max) as usize;
            self.send(node, socket, to, (segments, len), false);
        }
    }

    fn speak_soundly(&mut self) {
        for node in 0..self.nodes.len() {
            for socket in self.nodes[node].sockets.clone() {
                let Some((at, other)) = self.any_socket() else { continue };
                let is_heard = self.is_heard_alone(at, other.local);
                if !socket.is_hostile && is_heard && socket.local.addr.is_v4() == other.local.addr.is_v4() {
                    let len = NAME_LEN + self.random.any_size(20_000) as usize;
                    self.send(node, socket, other.local, (1, len), true);
                }
            }
        }
    }

    fn is_heard_alone(&self, node: usize, at: Endpoint) -> bool {
        self.nodes[node].ends.iter().filter(|end| end.port == at.port).count() == 1
    }

    fn send(
        &mut self,
        node: usize,
        socket: Socket,
        to: Endpoint,
        (segments, len): (u32, usize),
        must_come: bool,
    ) {
        // It speaks from its engine's address of that family.
        let from = Endpoint { addr: addr_of(node, to.addr.is_v6()), port: socket.local.port };
        if socket.local.addr.is_v4() != to.addr.is_v4() {
            return;
        }
        let parts = (0..segments).map(|_| self.checker.sends(from, to, len, must_come));
        let bytes = parts.collect::<Vec<_>>().concat();
        let head = DatagramHeader {
            peer: to.into(),
            segment: if segments > 1 { len as u16 } else { 0 },
            hop_limit: self.random.below(256) as u8,
            traffic_class: self.random.below(256) as u8,
            ..DatagramHeader::default()
        };
        self.tallies.add_many(Tally::Datagrams, u64::from(segments));
        self.give(node, socket.id, &head, &bytes);
    }

    /// Whatever comes to mind.
    fn harm(&mut self, node: usize, socket: Socket) {
        let random = &mut self.random;
        let endpoint = |random: &mut Random| {
            let v6 = random.one_in(2);
            let addr = match random.below(6) {
                0 => Addr::from([10, 0, 0, random.below(256) as u8]),
                1 => Addr::from(random.word().to_le_bytes().first_chunk::<4>().copied().unwrap_or_default()),
                2 => Addr::UNSPECIFIED_V4,
                _ => addr_of(random.below(4) as usize, v6),
            };
            Endpoint { addr, port: random.pick(&[0, FIRST_PORT, FIRST_PORT + 1, 9]) }
        };
        let (peer, own) = (endpoint(random), endpoint(random));
        let mut head = DatagramHeader {
            peer: peer.into(),
            own: if random.one_in(2) { own.into() } else { Default::default() },
            segment: random.pick(&[0, 0, 1, 8, 100, u16::MAX]),
            hop_limit: random.below(256) as u8,
            traffic_class: random.below(256) as u8,
            mtu_discover: random.below(10) as u8,
            reserved: [random.below(256) as u8; 3],
        };
        if random.one_in(6) {
            head.peer.family = random.below(65_536) as u16;
        }
        let len = NAME_LEN + random.any_size(65_499) as usize;
        let mut bytes = text(HOSTILE, len);
        if head.segment != 0 {
            // Each datagram of it is to be known as his.
            for part in bytes.chunks_mut(usize::from(head.segment)) {
                let name = HOSTILE.to_le_bytes();
                let most = part.len().min(name.len());
                part[..most].copy_from_slice(&name[..most]);
            }
            if usize::from(head.segment) < NAME_LEN || len % usize::from(head.segment) < NAME_LEN {
                head.segment = 0;
            }
        }
        self.tallies.add(Tally::HostileRecords);
        self.give(node, socket.id, &head, &bytes);
    }

    /// A record comes to the engine.
    fn give(&mut self, at: usize, id: DatagramId, head: &DatagramHeader, bytes: &[u8]) {
        let (clock, is_room) = (self.clock(), self.nodes[at].engine.takes_datagrams());
        if !is_room {
            return;
        }
        let (count, incoming) = self.nodes[at].engine.handle_datagrams(clock, id, head, bytes);
        self.nodes[at].given += count as u64;
        self.hand_over(at, incoming, true);
    }

    /// Everything up to then.
    fn until(&mut self, end_us: u64) -> Result<(), String> {
        loop {
            (0..self.nodes.len()).for_each(|at| self.settle(at));
            if let Some(wrong) = self.checker.take() {
                return Err(format!("at {} us: {wrong}", self.now_us));
            }
            let due = |node: &Node| match node.engine.poll_timeout() {
                due if due.is_far_future() => u64::MAX,
                due => due.as_micros().saturating_sub(EPOCH_US),
            };
            let deadline = self.nodes.iter().map(due).min().unwrap_or(u64::MAX);
            let arrival = self.flights.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            let next = deadline.min(arrival);
            if next > end_us {
                self.now_us = end_us;
                return Ok(());
            }
            self.now_us = self.now_us.max(next);
            while let Some(entry) = self.flights.first_entry().filter(|entry| entry.key().0 <= self.now_us) {
                let flight = entry.remove();
                self.arrive(flight);
            }
            let clock = self.clock();
            for node in &mut self.nodes {
                node.engine.handle_timeout(clock, &mut FakeHosts::default());
            }
        }
    }

    /// `is_round`: it is what the engine sends.
    fn hand_over(&mut self, at: usize, incoming: Option<Incoming<'_>>, is_round: bool) {
        let clock = self.clock();
        let node = &mut self.nodes[at];
        let mut host = Host {
            checker: &mut self.checker,
            random: &mut self.random,
            counts: &mut node.counts,
            ends: &node.ends,
            ports: FIRST_PORT..FIRST_PORT + node.opened,
            full_ppm: if self.healed { 0 } else { 20_000 },
            mistake: self.mistake,
            is_round,
        };
        let none = &mut FakeHosts::default();
        let mut next = incoming;
        while let Some(incoming) = next {
            let became = host.take(&incoming);
            let (over, rest) = incoming.became(became);
            if let Some(over) = over {
                node.engine.handle_control(clock, ControlEvent::HandedOver(over), none);
            }
            next = rest;
        }
    }

    fn arrive(&mut self, Flight { to, mut frame, mut offload }: Flight) {
        let seen = Seen::parse(&frame);
        if let Some(text) = seen.as_ref().and_then(|seen| seen.text(&frame)) {
            self.checker.brought(text);
        }
        if !self.healed && self.network.ppm(self.corrupt_ppm) {
            self.corrupt(&mut frame, seen.as_ref(), &mut offload);
        }
        let (clock, engine) = (self.clock(), &mut self.nodes[to].engine);
        let incoming = engine.handle_frame(clock, PORT, &frame, offload, &mut FakeHosts::default());
        self.hand_over(to, incoming, false);
    }

    /// A bit of a whole datagram is flipped where its checksum covers it.
    fn corrupt(&mut self, frame: &mut [u8], seen: Option<&Seen>, offload: &mut RxOffload) {
        let Some(seen) = seen.filter(|seen| !seen.is_piece) else { return };
        let Some(head) = seen.head.clone() else { return };
        if offload.checksum_ok {
            seen.store_checksum(frame);
            offload.checksum_ok = false;
        }
        let bit = self.network.below(head.len() as u32 * 8) as usize;
        let at = head.start + bit / 8;
        // Without a checksum of IPv4 nobody can see it.
        if !(head.start + 6..head.start + 8).contains(&at) {
            frame[at] ^= 1 << (bit % 8);
            self.tallies.add(Tally::Corrupted);
        }
    }

    /// Frames leave an engine.
    fn settle(&mut self, at: usize) {
        loop {
            let room = if self.healed { usize::MAX } else { self.random.any_size(64) as usize };
            let mut sink = Sink { room, ..Sink::default() };
            let (clock, engine) = (self.clock(), &mut self.nodes[at].engine);
            engine.poll_transmit(clock, PORT, &mut sink, &mut FakeHosts::default(), 64);
            let is_done = sink.frames.is_empty() && room > 0;
            for (frame, offload) in sink.frames {
                self.launch(at, frame, offload);
            }
            let held = self.nodes[at].engine.view().totals().datagrams_held;
            if held > HELD_MAX {
                self.checker.fail(format!("engine {at} keeps {held} datagrams"));
            }
            if is_done {
                return;
            }
        }
    }

    fn launch(&mut self, from: usize, frame: Vec<u8>, offload: TxOffload) {
        self.tallies.add(Tally::Frames);
        let seen = Seen::parse(&frame);
        if let Some(seen) = &seen {
            self.check_sent(from, &frame, seen, offload);
        }
        let dst = frame.first_chunk::<6>().map(|mac| MacAddr(*mac));
        for to in (0..self.nodes.len()).filter(|to| *to != from) {
            let is_group =
                dst.is_some_and(|mac| mac == MacAddr::BROADCAST || mac.0.starts_with(&[0x33, 0x33]));
            if dst != Some(mac_of(to)) && !is_group {
                continue;
            }
            let (mut copy, mut rx) = (frame.clone(), RxOffload::default());
            match (&seen, offload.checksum) {
                (Some(_), Some(_)) if self.nodes[to].spec.takes_partial => rx.checksum_ok = true,
                (Some(seen), Some(_)) => seen.store_checksum(&mut copy),
                _ => {}
            }
            let lane = &mut self.lanes[from * self.nodes.len() + to];
            let (flights, order) = (&mut self.flights, &mut self.order);
            lane.offer(
                self.now_us,
                copy,
                rx,
                &mut self.network,
                &mut self.tallies,
                |due_us, frame, offload| {
                    *order += 1;
                    flights.insert((due_us, *order), Flight { to, frame, offload });
                },
            );
        }
    }

    fn check_sent(&mut self, from: usize, frame: &[u8], seen: &Seen, offload: TxOffload) {
        let mtu = self.nodes[from].spec.mtu as usize;
        if seen.len > mtu {
            self.checker.fail(format!("engine {from} sends {} bytes over a link of {mtu}", seen.len));
        }
        if seen.src != addr_of(from, seen.src.is_v6()) {
            self.checker.fail(format!("engine {from} sends from {}", seen.src));
        }
        if offload.checksum.is_none() && !seen.checksum_is_valid(frame) {
            self.checker.fail(format!("engine {from} sends a wrong checksum"));
        }
        self.tallies.add_many(Tally::DatagramPieces, u64::from(seen.is_piece));
    }

    /// Each datagram that programs gave went out or was counted, and nothing is kept.
    fn check_end(&mut self) {
        for (at, node) in self.nodes.iter().enumerate() {
            let count = |counter| node.engine.view().counter(counter);
            let dropped = [
                Counter::DropDatagramBadRecord,
                Counter::DropDatagramNoRoute,
                Counter::DropDatagramNoNeighbour,
                Counter::DropDatagramTooBig,
            ];
            let went = count(Counter::TxDatagrams)
                + dropped.into_iter().map(count).sum::<u64>()
                + (count(Counter::DropDatagramQueueFull) - node.counts.queue_full);
            // Of a bad record, and of one that leads nowhere, what is in it is not counted singly.
            if went != node.given {
                self.checker.fail(format!("engine {at} was given {} datagrams, and {went} went", node.given));
            }
            let held = node.engine.view().totals().datagrams_held;
            if held != 0 {
                self.checker.fail(format!("engine {at} keeps {held} datagrams at the end"));
            }
            self.tallies.add_many(Tally::DatagramErrors, node.counts.errors);
            self.tallies.add_engine(&node.engine);
        }
    }
}

/// Where frames gather.
#[derive(Default)]
struct Sink {
    frames: VecDeque<(Vec<u8>, TxOffload)>,
    lent: Vec<u8>,
    room: usize,
}

impl FrameSink for Sink {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.frames.len() >= self.room {
            return None;
        }
        self.lent = vec![0xee; len];
        Some(&mut self.lent)
    }
    fn commit(&mut self, offload: TxOffload) {
        self.frames.push_back((std::mem::take(&mut self.lent), offload));
    }
}
