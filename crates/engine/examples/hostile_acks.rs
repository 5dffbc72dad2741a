//! What the ACKs of a hostile peer cost the engine: `cargo run --release -p toe-engine --example hostile_acks`.
//!
//! A peer lets the engine have up to 16 MiB on its way and then sends one kind of ACK only, each told of in its row. Frames go
//! in and answers come out in memory, in virtual time; what is sent again counts as part of the ACK that asked for it.

use std::time::Instant as Clock;
use toe_abi::command::ListenArgs;
use toe_abi::entry::{Command, Completion, MemRange, Send};
use toe_abi::region::RegionLayout;
use toe_base::window::{UnscaledWindow, WindowScale};
use toe_base::{Addr, FlowId, Instant, PortId, QueueSetId, SeqNum, SessionId};
use toe_engine::control::names::Twin;
use toe_engine::kit::FakeHosts;
use toe_engine::{Engine, EngineConfig, Link, NetworkChange};
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};
use toe_wire::tcp::{SackBlock, SackBlocks, TcpFlags, TcpOptions, TcpRepr};
use zerocopy::IntoBytes;

const ENGINE: ([u8; 4], MacAddr) = ([10, 0, 0, 2], MacAddr([2, 0, 0, 0, 0, 2]));
const PEER: ([u8; 4], MacAddr) = ([10, 0, 0, 3], MacAddr([2, 0, 0, 0, 0, 3]));
const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 64, receive_len: 1 << 20, send_len: 64 << 20 };
const MSS: u32 = 1460;
/// So much may be on its way.
const WINDOW: u32 = 16 << 20;
const ACKS: u32 = 200_000;
/// Microseconds between two ACKs.
const PACE_US: u64 = 2;

/// A program that sends without end and hears of nothing else.
#[derive(Default)]
struct Program {
    host: FakeHosts,
    flow: Option<FlowId>,
    taken_back: u64,
}

impl Program {
    /// Takes what the engine has to tell.
    fn hear(&mut self, engine: &mut Engine) {
        self.host.hear(engine);
        for (_, completion) in self.host.completions.drain(..) {
            match completion {
                Completion::Accepted { flow, .. } => self.flow = Some(flow),
                Completion::Sent { len, .. } => self.taken_back += u64::from(len),
                _ => {}
            }
        }
    }
}

/// A link that takes everything.
struct Wire {
    frame: Vec<u8>,
    len: usize,
    /// One past the highest number that was sent.
    end: Option<SeqNum>,
}

impl FrameSink for Wire {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.len = len;
        self.frame.get_mut(..len)
    }
    fn commit(&mut self, _: TxOffload) {
        if self.frame[12..14] != [8, 0] {
            return;
        }
        let tcp = &self.frame[34..];
        let seq = SeqNum::new(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]));
        let text = self.len - 34 - usize::from(tcp[12] >> 4) * 4 + usize::from(tcp[13] & 3 != 0);
        let end = seq.plus(text as u32);
        self.end = Some(self.end.map_or(end, |before| before.later(end)));
    }
}

fn frame_of(seq: SeqNum, ack: Option<SeqNum>, options: TcpOptions) -> Vec<u8> {
    let flags = if ack.is_none() { TcpFlags::SYN } else { TcpFlags::NONE };
    let header = TcpRepr {
        src_port: 5000,
        dst_port: 80,
        seq,
        ack,
        flags,
        window: UnscaledWindow(if ack.is_none() { 65_535 } else { (WINDOW >> 10) as u16 }),
        urgent: 0,
        options,
    };
    let mut frame = vec![0; 34 + header.header_len()];
    let ip = Ipv4Repr {
        src: PEER.0.into(),
        dst: ENGINE.0.into(),
        protocol: Protocol::Tcp,
        ttl: 64,
        traffic_class: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: (frame.len() - 14) as u16,
    };
    EthRepr { dst: ENGINE.1, src: PEER.1, ethertype: EtherType::Ipv4 }.emit(&mut frame);
    ip.emit(&mut frame[14..]);
    header.emit(&mut frame[34..]);
    frame
}

/// An engine that has a window on its way to the peer.
struct World {
    engine: Engine,
    port: PortId,
    session: SessionId,
    program: Program,
    wire: Wire,
    now: Instant,
    una: SeqNum,
    queued: u64,
}

/// The peer's numbers.
const PEER_SEQ: SeqNum = SeqNum::new(1001);

impl World {
    fn new() -> World {
        let mut engine = Engine::new(EngineConfig::with_secret([7; 16]));
        let caps = LinkCaps { tx_checksum: true, gso_max: 65_000, ..LinkCaps::default() };
        let port = engine.add_port(Link { mac: ENGINE.1, mtu: 1500, caps, ..Link::default() });
        engine.handle_network(NetworkChange::Address {
            port,
            addr: Addr::v4(ENGINE.0.into()),
            prefix_len: 24,
        });
        let session = engine.open_session(toe_base::Cred::default(), LAYOUT).expect("a first session");
        engine.add_queue_set(session).expect("a first queue set");
        let anchor = engine.take_anchor(session).expect("an anchor").0;
        let local = std::net::SocketAddr::from((ENGINE.0, 80));
        let twin = Twin::listening(local.into(), 1, toe_base::Cred::default(), Instant::from_micros(1));
        let twin = engine.add_twin(session, twin).expect("a first kernel socket");
        let args = ListenArgs { local: local.into(), backlog: 64, anchor, twin, ..ListenArgs::default() };
        let mut block = [0; 64];
        block.copy_from_slice(args.as_bytes());
        let now = Instant::from_micros(1_000_000);
        let mut program = Program::default();
        let listen = Command::Listen { token: 1 };
        engine.handle_command(now, session, QueueSetId(0), listen, &block, &mut program.host).expect("good");
        let wire = Wire { frame: vec![0; 70_000], len: 0, end: None };
        let mut world = World { engine, port, session, program, wire, now, una: PEER_SEQ, queued: 0 };
        let options = TcpOptions {
            mss: Some(MSS as u16),
            window_scale: Some(WindowScale::from_option(10)),
            sack_permitted: true,
            ..TcpOptions::default()
        };
        let syn = frame_of(PEER_SEQ.minus(1), None, options);
        world.take(&syn);
        world.una = world.wire.end.expect("a SYN-ACK");
        world.ack(world.una, &[]);
        let listener = toe_base::ListenerId(FlowId::new(0, 0));
        let credit = Command::AcceptCredit { listener, count: 1 };
        world
            .engine
            .handle_command(world.now, session, QueueSetId(0), credit, &[0; 64], &mut world.program.host)
            .expect("good");
        world.program.hear(&mut world.engine);
        let flow = world.program.flow.expect("accepted");
        let anchor = world.engine.take_anchor(session).expect("an anchor");
        let accept = Command::Accept { flow, anchor, fd: 9 };
        world
            .engine
            .handle_command(world.now, session, QueueSetId(0), accept, &[0; 64], &mut world.program.host)
            .expect("good");
        world
    }

    fn take(&mut self, frame: &[u8]) {
        let checked = RxOffload { checksum_ok: true, coalesced_mss: None };
        self.engine.handle_frame(self.now, self.port, frame, checked, &mut self.program.host);
        while self.engine.poll_transmit(self.now, self.port, &mut self.wire, &mut self.program.host, 64) > 0 {
        }
    }

    fn ack(&mut self, ack: SeqNum, blocks: &[(SeqNum, SeqNum)]) {
        let mut sack = SackBlocks::NONE;
        for (left, right) in blocks {
            sack.push(SackBlock { left: *left, right: *right });
        }
        let frame = frame_of(PEER_SEQ, Some(ack), TcpOptions { sack, ..TcpOptions::default() });
        self.take(&frame);
        self.una = ack;
    }

    /// Bytes on their way.
    fn out(&self) -> u32 {
        self.wire.end.expect("some").distance_from(self.una)
    }

    fn refill(&mut self) {
        const UNIT: u32 = 1 << 20;
        let Some(flow) = self.program.flow else { return };
        while self.queued - self.program.taken_back < LAYOUT.send_len - u64::from(UNIT) {
            let offset = LAYOUT.send_offset() + self.queued % LAYOUT.send_len;
            let send = Send::new(flow, MemRange { offset, len: UNIT });
            if self.engine.handle_send(self.now, self.session, send).is_err() {
                break;
            }
            self.queued += u64::from(UNIT);
        }
        while self.engine.poll_transmit(self.now, self.port, &mut self.wire, &mut self.program.host, 64) > 0 {
        }
    }

    /// Until a whole window is out: the congestion window grows as it is acknowledged.
    fn fill(&mut self) {
        for _ in 0..2000 {
            self.refill();
            if self.out() > WINDOW - 65_536 {
                return;
            }
            for step in 0..16 {
                self.now = self.now.after_us(1000);
                let (una, out) = (self.una, self.out());
                self.ack(una.plus(out * (step + 1) / 16 / MSS * MSS), &[]);
                self.engine.handle_timeout(self.now, &mut self.program.host);
                self.program.hear(&mut self.engine);
                self.refill();
            }
        }
        println!("(only {} KiB on their way)", self.out() >> 10);
    }
}

/// The blocks of the `n`th ACK, and how far it acknowledges.
type Attack = fn(n: u32, una: SeqNum, out: u32) -> (u32, Vec<(SeqNum, SeqNum)>);

fn at(una: SeqNum, from: u32, len: u32) -> (SeqNum, SeqNum) {
    (una.plus(from), una.plus(from + len))
}

const ATTACKS: [(&str, Attack); 9] = [
    ("in order, each second segment", |_, _, _| (2 * MSS, vec![])),
    ("one byte each, from the front", |n, una, out| (0, vec![at(una, (3 * n + 1) % (out - 2), 1)])),
    ("four bytes a block, four blocks", |n, una, out| {
        (0, (0..4).map(|k| at(una, (n.wrapping_mul(7919) + k * (out / 4)) % (out - 8) + 1, 1)).collect())
    }),
    ("each second segment, from the front", |n, una, out| {
        (0, vec![at(una, (2 * n + 1) * MSS % (out - 2 * MSS) / MSS * MSS, MSS)])
    }),
    ("each second segment, anywhere, four blocks", |n, una, out| {
        let half = out / MSS / 2 - 1;
        let blocks =
            (0..4).map(|k| at(una, (2 * (n.wrapping_mul(7919) + k * 2999).rem_euclid(half) + 1) * MSS, MSS));
        (0, blocks.collect())
    }),
    ("D-SACKs of what is acknowledged", |n, una, _| {
        (0, vec![(una.minus(n % 1000 + 1), una.minus(n % 1000))])
    }),
    ("a byte each", |_, _, _| (1, vec![])),
    ("duplicates", |_, _, _| (0, vec![])),
    ("all of it sacked but one segment, and not", |n, una, out| {
        (0, vec![at(una, if n % 2 == 0 { MSS } else { out / 2 / MSS * MSS }, out / 2 / MSS * MSS - MSS)])
    }),
];

/// Nanoseconds of a processor that this thread has had: others on the machine do not count.
fn spent_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn main() {
    for (what, attack) in ATTACKS {
        let mut world = World::new();
        world.fill();
        let out = world.out();
        let (start, began) = (spent_ns(), Clock::now());
        for n in 0..ACKS {
            let (bytes, mut blocks) = attack(n, world.una, world.out().max(4 * MSS));
            let end = world.wire.end.expect("some");
            blocks.retain(|(_, right)| right.at_or_before(end));
            world.now = world.now.after_us(PACE_US);
            world.ack(world.una.plus(bytes).earlier(end), &blocks);
            if n % 64 == 0 {
                world.engine.handle_timeout(world.now, &mut world.program.host);
                world.program.hear(&mut world.engine);
                world.refill();
            }
        }
        let each = (spent_ns() - start) / u64::from(ACKS);
        let wall = began.elapsed().as_nanos() / u128::from(ACKS);
        println!("{what}: {each} ns an ACK ({wall} of the clock), {} MiB on their way", out >> 20);
    }
}
