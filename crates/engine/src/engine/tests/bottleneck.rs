//! Algorithms of congestion control over one bottleneck: a link with a rate, a buffer and a delay, which may lose or mark
//! segments. Two engines, virtual time, and the same seed gives the same bytes.

use super::world::{A, B, LAYOUT, Side, addr};
use std::collections::VecDeque;
use toe_abi::congestion::number_of;
use toe_abi::entry::{Command, FlowOption, MemRange, Send};
use toe_base::{Instant, PortId};
use toe_tcp::config::{AlgorithmName, EcnMode};
use toe_wire::link::{LinkCaps, RxOffload};

/// The link: what leaves it, at which rate, and what it does to frames on the way from A to B.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// Bytes a second.
    rate: u64,
    /// One way.
    delay_us: u64,
    buffer: u64,
    /// Lost at random, of a thousand.
    loss: u32,
    /// Frames are marked (ECN) that find more than this in the queue.
    mark_at: u64,
}

const MBIT: u64 = 125_000;

impl Link {
    /// With a buffer of so many hundredths of the bandwidth-delay product.
    fn new(rate: u64, rtt_ms: u64, buffer: u64) -> Link {
        let bdp = rate * rtt_ms / 1000;
        Link { rate, delay_us: rtt_ms * 500, buffer: bdp * buffer / 100, loss: 0, mark_at: u64::MAX }
    }

    fn bdp(&self) -> u64 {
        self.rate * self.delay_us * 2 / 1_000_000
    }
}

struct Path {
    now: Instant,
    link: Link,
    sides: [Side; 2],
    /// What the queue lets go at which time, and what arrives where.
    busy_until: Instant,
    on_the_way: VecDeque<(Instant, Vec<u8>)>,
    back: VecDeque<(Instant, Vec<u8>)>,
    seed: u64,
    /// (A's, B's) connections.
    conns: Vec<(usize, usize)>,
    received: Vec<u64>,
    /// The queue as each frame found it: bytes, summed, and how many.
    queue_sum: u64,
    queue_seen: u64,
    dropped: u64,
}

/// What a program sends at once, and the part of the send memory that it has.
const CHUNK: u32 = 64 << 10;
const PART: u64 = 4 << 20;

impl Path {
    fn new(link: Link) -> Path {
        Path {
            now: Instant::ZERO.after_us(1000),
            link,
            sides: [1, 2].map(|n| Side::new(n, LinkCaps::default())),
            busy_until: Instant::ZERO,
            on_the_way: VecDeque::new(),
            back: VecDeque::new(),
            seed: 9,
            conns: Vec::new(),
            received: Vec::new(),
            queue_sum: 0,
            queue_seen: 0,
            dropped: 0,
        }
    }

    fn random(&mut self, below: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.seed >> 33) as u32) % below
    }

    /// One more connection with this algorithm.
    fn connect(&mut self, algorithm: &str) -> usize {
        let now = self.now;
        if self.sides[B].listeners.is_empty() {
            self.sides[B].listen(now, addr(B, 80)).expect("listens");
        }
        let (a, b) = (self.sides[A].connect(now, addr(B, 80)).expect("connects"), self.sides[B].conns.len());
        let value = number_of(algorithm).expect("a name").into();
        let flow = self.sides[A].conns[a].id;
        self.sides[A].plain(now, Command::SetOption { flow, option: FlowOption::Congestion, value });
        while !self.sides[A].conns[a].established || self.sides[B].conns.len() == b {
            self.step(self.now.after_us(1_000_000));
        }
        self.conns.push((a, b));
        self.received.push(0);
        self.conns.len() - 1
    }

    /// A frame from A enters the queue.
    fn enqueue(&mut self, mut frame: Vec<u8>) {
        let queued = self.busy_until.since_us(self.now) * self.link.rate / 1_000_000;
        self.queue_sum += queued;
        self.queue_seen += 1;
        if queued + frame.len() as u64 > self.link.buffer || self.random(1000) < self.link.loss {
            self.dropped += 1;
            return;
        }
        if queued > self.link.mark_at && frame[15] & 3 != 0 {
            mark(&mut frame);
        }
        let start = self.busy_until.max(self.now);
        self.busy_until = start.after_us(frame.len() as u64 * 1_000_000 / self.link.rate);
        self.on_the_way.push_back((self.busy_until.after_us(self.link.delay_us), frame));
    }

    /// Everything that can happen now.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for from in [A, B] {
                let now = self.now;
                let side = &mut self.sides[from];
                moved |=
                    side.engine.poll_transmit(now, PortId(0), &mut side.outbox, &mut side.memory, 64) > 0;
                moved |= side.poll_completions(now);
                for (frame, _) in core::mem::take(&mut side.outbox.sent) {
                    if from == A {
                        self.enqueue(frame);
                    } else {
                        self.back.push_back((now.after_us(self.link.delay_us), frame));
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// On to the next thing that happens, but not beyond `limit`.
    fn step(&mut self, limit: Instant) {
        self.settle();
        let wire = [&self.on_the_way, &self.back].map(|queue| queue.front().map(|f| f.0));
        let engines = self.sides.iter().map(|s| s.engine.poll_timeout());
        let next = wire.into_iter().flatten().chain(engines).min().unwrap_or(limit);
        self.now = self.now.max(next.min(limit));
        let now = self.now;
        let rx = RxOffload { checksum_ok: true, coalesced_mss: None };
        for (to, queue) in [(B, &mut self.on_the_way), (A, &mut self.back)] {
            while let Some((_, frame)) = queue.pop_front_if(|f| f.0 <= now) {
                let side = &mut self.sides[to];
                side.engine.handle_frame(now, PortId(0), &frame, rx, &mut side.memory);
            }
        }
        for side in &mut self.sides {
            side.engine.handle_timeout(now, &mut side.memory);
        }
    }

    /// All connections send as much as they may for so long. Returns the bytes that each got through.
    fn run(&mut self, ms: u64) -> Vec<u64> {
        let end = self.now.after_us(ms * 1000);
        let before = self.received.clone();
        self.queue_sum = 0;
        self.queue_seen = 0;
        while self.now < end {
            for at in 0..self.conns.len() {
                let (a, b) = self.conns[at];
                while self.sides[A].conns[a].sent - self.sides[A].conns[a].acked < PART / 2 {
                    self.send(a, PART * at as u64);
                }
                self.received[at] += core::mem::take(&mut self.sides[B].conns[b].received).len() as u64;
            }
            self.step(end);
        }
        (0..self.conns.len()).map(|at| self.received[at] - before[at]).collect()
    }

    /// One more chunk, whatever it is, of the connection's part of the send memory.
    fn send(&mut self, conn: usize, part: u64) {
        let side = &mut self.sides[A];
        let offset = LAYOUT.send_offset() + part + side.conns[conn].sent % PART;
        side.conns[conn].sent += u64::from(CHUNK);
        let send = Send::new(side.conns[conn].id, MemRange { offset, len: CHUNK });
        side.engine.handle_send(self.now, side.session, send).expect("in range");
    }

    fn mean_queue(&self) -> u64 {
        self.queue_sum / self.queue_seen.max(1)
    }
}

/// Sets congestion experienced in the header of IPv4, whose checksum follows.
fn mark(frame: &mut [u8]) {
    let word = |frame: &[u8]| u16::from_be_bytes([frame[14], frame[15]]);
    let old = word(frame);
    frame[15] |= 3;
    let sum = u16::from_be_bytes([frame[24], frame[25]]);
    // RFC 1624, equation 3.
    let mut new = u32::from(!sum) + u32::from(!old) + u32::from(word(frame));
    new = (new & 0xffff) + (new >> 16);
    new = (new & 0xffff) + (new >> 16);
    frame[24..26].copy_from_slice(&(!(new as u16)).to_be_bytes());
}

/// Hundredths of the link's rate that got through.
fn share(link: Link, bytes: u64, ms: u64) -> u64 {
    bytes * 100 * 1000 / (link.rate * ms)
}

#[test]
fn bbr_fills_the_pipe_with_a_small_queue() {
    for (rate, rtt_ms, buffer) in [(10 * MBIT, 40, 400), (50 * MBIT, 20, 200), (2 * MBIT, 100, 300)] {
        let link = Link::new(rate, rtt_ms, buffer);
        let mut path = Path::new(link);
        path.connect("bbr");
        path.run(5_000);
        let got = path.run(15_000)[0];
        let (share, queue) = (share(link, got, 15_000), path.mean_queue() * 100 / link.bdp());
        println!(
            "bbr {rate} {rtt_ms} ms: {share} % of the rate, a queue of {queue} % of the pipe, {} dropped",
            path.dropped
        );
        assert!(share >= 88, "{rate} bytes/s, {rtt_ms} ms: {share} %");
        assert!(queue <= 60, "{rate} bytes/s, {rtt_ms} ms: a queue of {queue} %");
    }
}

#[test]
fn bbr_keeps_going_where_segments_are_lost_at_random() {
    let link = Link { loss: 10, ..Link::new(10 * MBIT, 40, 200) };
    let mean = |algorithm| {
        let of_seed = |seed| {
            let mut path = Path::new(link);
            path.seed = seed;
            path.connect(algorithm);
            path.run(5_000);
            share(link, path.run(15_000)[0], 15_000)
        };
        (1..=8).map(of_seed).sum::<u64>() / 8
    };
    let (bbr, cubic) = (mean("bbr"), mean("cubic"));
    println!("one of a hundred lost: bbr {bbr} %, cubic {cubic} %");
    assert!(bbr >= 78 && bbr > 2 * cubic, "bbr {bbr} %, cubic {cubic} %");
}

/// Jain's index in thousandths: 1000 when all get the same.
fn fairness(bytes: &[u64]) -> u64 {
    let sum: u64 = bytes.iter().map(|o| o / 1000).sum();
    let squares: u64 = bytes.iter().map(|o| (o / 1000).pow(2)).sum();
    sum * sum * 1000 / (bytes.len() as u64 * squares)
}

#[test]
fn two_of_a_kind_share() {
    for (name, least) in [("bbr", 900), ("cubic", 900), ("reno", 900)] {
        let link = Link::new(20 * MBIT, 20, 150);
        let mut path = Path::new(link);
        path.connect(name);
        path.run(2_000);
        path.connect(name);
        path.run(8_000);
        let got = path.run(30_000);
        let all = share(link, got.iter().sum(), 30_000);
        println!("two of {name}: {got:?}, {all} % of the rate, index {}", fairness(&got));
        assert!(fairness(&got) >= least, "{name}: {got:?}");
        assert!(all >= 85, "{name}: {all} % of the rate");
    }
}

/// Marks from a twentieth of the buffer on, by which DCTCP keeps the queue short without a loss; CUBIC fills the buffer where
/// nothing is marked.
#[test]
fn dctcp_keeps_the_queue_at_the_mark() {
    let link = Link { mark_at: 60_000, ..Link::new(100 * MBIT, 4, 2400) };
    let run = |algorithm: &str, ecn| {
        let mut path = Path::new(link);
        for side in &mut path.sides {
            side.engine.tcp.config.ecn = ecn;
            side.engine.tcp.config.congestion = AlgorithmName::from_name(algorithm).expect("a name");
        }
        path.connect(algorithm);
        path.connect(algorithm);
        path.run(2_000);
        let dropped = path.dropped;
        let got = path.run(5_000);
        let share = share(link, got.iter().sum(), 5_000);
        println!("{algorithm}: {share} % of the rate, a queue of {} bytes, {got:?}", path.mean_queue());
        (share, path.mean_queue(), path.dropped - dropped, fairness(&got))
    };
    let (share, queue, dropped, fair) = run("dctcp", EcnMode::Request);
    assert!(share >= 92 && fair >= 900, "{share} % of the rate, index {fair}");
    assert_eq!(dropped, 0);
    assert!((20_000..=80_000).contains(&queue), "a queue of {queue} bytes");
    let (_, unmarked, ..) = run("cubic", EcnMode::Off);
    assert!(unmarked > 5 * queue, "CUBIC has {unmarked} bytes in the queue, DCTCP {queue}");
}

#[test]
fn bbr_and_cubic_live_together() {
    for buffer in [100, 200, 400] {
        let link = Link::new(20 * MBIT, 40, buffer);
        let mut path = Path::new(link);
        path.connect("cubic");
        path.run(2_000);
        path.connect("bbr");
        path.run(8_000);
        let got = path.run(40_000);
        let all: u64 = got.iter().sum();
        let bbr = got[1] * 100 / all;
        println!("a buffer of {buffer} %: bbr has {bbr} %");
        assert!((15..=85).contains(&bbr), "a buffer of {buffer} %: {got:?}");
        assert!(share(link, all, 40_000) >= 85);
    }
}

/// A program that waits for room is woken at each `Sent`.
#[test]
fn over_a_slow_wire_memory_comes_back_in_thirds() {
    let mut path = Path::new(Link::new(10 * MBIT, 2, 10_000));
    let at = path.connect("cubic");
    let (a, _) = path.conns[at];
    (0..4).for_each(|_| path.send(a, 0));
    let end = path.now.after_us(2_000_000);
    let mut told = vec![path.sides[A].conns[a].acked];
    while path.now < end {
        path.step(end);
        let acked = path.sides[A].conns[a].acked;
        if told.last() != Some(&acked) {
            told.push(acked);
        }
    }
    assert_eq!(told.last(), Some(&u64::from(4 * CHUNK)), "all of it in the end: {told:?}");
    let thirds = told.windows(2).all(|t| (t[1] - t[0]) * 3 >= u64::from(4 * CHUNK) - t[0]);
    assert!(thirds && told.len() < 16, "not at each acknowledgement: {told:?}");
}

/// Found by a program that asked SIOCOUTQ, whose peer read a little and then no more.
#[test]
fn what_was_acknowledged_is_told_when_the_peer_takes_no_more() {
    let mut path = Path::new(Link::new(10 * MBIT, 2, 10_000));
    let at = path.connect("cubic");
    let (a, b) = path.conns[at];
    path.sides[B].reads = false;
    (0..32).for_each(|_| path.send(a, 0));
    let end = path.now.after_us(3_000_000);
    while path.now < end {
        path.step(end);
    }
    let came: u64 = path.sides[B].conns[b].unread.iter().map(|range| u64::from(range.len)).sum();
    assert!(came * 4 < u64::from(32 * CHUNK), "less than a third: {came}");
    assert_eq!(path.sides[A].conns[a].acked, came);
}
