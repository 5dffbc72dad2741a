//! What a seed chooses: the world's shape, what its programs do, and which faults are on and how strong. Most seeds have
//! few faults and few connections, so that each combination comes up and a run is short.

use crate::random::{Draws, Random};
use crate::wider::Wider;
use toe_base::limits::FLOWS_MAX;
use toe_tcp::config::{AlgorithmName, EcnMode, TcpConfig};

/// Classes of faults; a seed turns each on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    Loss,
    Burst,
    Reorder,
    Duplicate,
    Corrupt,
    Delay,
    Bottleneck,
    Mtu,
    ShrinkWindow,
    Overlap,
    Garbage,
    HostDies,
    HostTurns,
    Hostile,
    StopsReading,
    ClockJump,
    RingFull,
    PortFull,
    Rebuild,
    TableFull,
    LittleMemory,
    // Not in `ALL`: see [`Wider`].
    Congestion,
    Fragments,
    Passes,
    Shares,
    KernelAddress,
    Watched,
    GivesBack,
    LateEntries,
    Heads,
    IdleMemory,
}

impl Fault {
    /// What each seed has.
    pub const ALL: &'static [Fault] = &[
        Fault::Loss,
        Fault::Burst,
        Fault::Reorder,
        Fault::Duplicate,
        Fault::Corrupt,
        Fault::Delay,
        Fault::Bottleneck,
        Fault::Mtu,
        Fault::ShrinkWindow,
        Fault::Overlap,
        Fault::Garbage,
        Fault::HostDies,
        Fault::HostTurns,
        Fault::Hostile,
        Fault::StopsReading,
        Fault::ClockJump,
        Fault::RingFull,
        Fault::PortFull,
        Fault::Rebuild,
        Fault::TableFull,
        Fault::LittleMemory,
    ];
}

/// Losses that come together: the link changes between a good and a bad state at each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    pub begins_ppm: u32,
    pub ends_ppm: u32,
    pub loss_ppm: u32,
}

/// The slowest link of a path and the queue before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    pub mbit_per_s: u32,
    pub queue_us: u32,
}

impl Bottleneck {
    /// How many SYNs of one instant the queue takes. Who connects in that instant with others tries again in the same
    /// instants as they do, for as long as each of them has tries left.
    pub fn syns_queued(&self) -> u32 {
        const SYN_BITS: u32 = 74 * 8;
        self.mbit_per_s.saturating_mul(self.queue_us) / SYN_BITS
    }
}

/// What each lane does to frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    pub loss_ppm: u32,
    pub burst: Option<Burst>,
    pub reorder_ppm: u32,
    /// A reordered frame is late by at most this.
    pub reorder_us: u32,
    pub duplicate_ppm: u32,
    pub corrupt_ppm: u32,
    /// Datagrams are marked as having met congestion, if their ends know ECN.
    pub mark_ppm: u32,
    /// Datagrams come in pieces.
    pub fragment_ppm: u32,
    /// Who drops a datagram that is too large says so (RFC 1191, RFC 8201), mostly.
    pub tells_mtu: bool,
    pub delay_us: u32,
    pub jitter_us: u32,
    pub bottleneck: Option<Bottleneck>,
}

impl LinkFaults {
    /// The same path with nothing wrong.
    pub fn healed(&self) -> LinkFaults {
        LinkFaults { delay_us: self.delay_us, bottleneck: self.bottleneck, ..LinkFaults::default() }
    }
}

/// What the meddler does to segments that arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meddling {
    pub shrink_ppm: u32,
    pub overlap_ppm: u32,
    pub garbage_ppm: u32,
}

/// What happens to engines and hosts at any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverFaults {
    /// The completion ring is said to be full.
    pub ring_full_ppm: u32,
    /// Frames that a port takes at one time.
    pub port_room: u32,
    /// How often per run, at random times.
    pub kills: u32,
    pub turns: u32,
    pub stalls: u32,
    pub clock_jumps: u32,
    pub rebuilds: u32,
    pub mtu_changes: u32,
    /// A program hands a socket to another one.
    pub passes: u32,
    /// Something happens between processes that have copies of one descriptor.
    pub shares: u32,
    /// Something changes of links, addresses, routes and neighbours.
    pub network_changes: u32,
    /// A capture begins.
    pub watches: u32,
    /// Who gives a socket up gives back bytes that it has not read.
    pub gives_back: bool,
    /// Entries of programs wait in their rings.
    pub late_entries: bool,
    /// Links keep the bytes of large frames until the engine says where they belong; of so many of a million that fails.
    pub heads: Option<u32>,
    /// Programs leave much unread for a while, and then the memory for it is idle.
    pub idles: bool,
}

/// One engine and its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSpec {
    pub mtu: u32,
    pub tx_checksum: bool,
    pub gso_max: u32,
    /// Its link hands on large frames as they are.
    pub takes_large: bool,
    /// Its link hands on frames whose checksum was left to it, and vouches for them.
    pub takes_partial: bool,
    pub flows_max: usize,
    pub sessions: u32,
    pub hostile: u32,
    pub tcp: TcpConfig,
    /// Local connections may leave the engine for channels.
    pub direct: bool,
    /// Its address is its kernel's, too, which keeps so many port numbers for it from the start.
    pub kept_ports: Option<u16>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swarm {
    pub faults: Vec<Fault>,
    /// The stacks, each with its link.
    pub engines: Vec<EngineSpec>,
    /// So many of them, the last ones, are not engines of ours.
    pub outside: usize,
    pub connections: u32,
    /// All at the same moment.
    pub storm: bool,
    pub backlog: u32,
    /// Largest stream, in bytes.
    pub bytes_max: u32,
    pub session_flows: u32,
    pub receive_len: u64,
    pub send_len: u64,
    pub ring_len: usize,
    /// How late a program notices completions, at most.
    pub wake_us: u32,
    pub link: LinkFaults,
    pub meddling: Meddling,
    pub driver: DriverFaults,
    pub wider: Wider,
    /// Faults end after this.
    pub safety_us: u64,
}

/// Ordinary sessions, hostile ones and the staging memory have to fit.
const SESSIONS_OF_AN_ENGINE: u32 = 3;

impl Swarm {
    /// What `seed` chooses. With `only`, that fault and no other.
    pub fn choose(seed: u64, only: Option<Fault>) -> Swarm {
        let random = &mut Random::new(seed, Draws::Swarm);
        let faults = choose_faults(random, only);
        let on = |fault| faults.contains(&fault);
        let connections = match random.below(1000) {
            0 => random.between(300, 1000),
            1..10 => random.between(50, 300),
            10..100 => random.between(9, 50),
            _ => random.between(1, 8),
        };
        let engines = (0..if random.one_in(6) { 3 } else { 2 })
            .map(|_| choose_engine(random, connections, &on))
            .collect();
        let bytes_max = match connections {
            0..9 => random.pick(&[2_000, 60_000, 60_000, 300_000]),
            9..50 => random.pick(&[2_000, 20_000, 60_000]),
            _ => random.pick(&[500, 3_000]),
        };
        // Little, but room for what one connection may hold when it is handed out: no session that an engine makes has less
        // than sixty times that.
        let part = if on(Fault::LittleMemory) { random.pick(&[256 << 10, 320 << 10]) } else { 512 << 10 };
        let scale = u64::from(connections.div_ceil(32)).next_power_of_two();
        let safety_us = random.pick(&[200_000, 2_000_000, 20_000_000, 45_000_000]);
        let swarm = Swarm {
            engines,
            outside: 0,
            connections,
            storm: random.one_in(4),
            backlog: random.pick(&[1, 4, 64, 1024]),
            bytes_max,
            session_flows: (2 * connections + 16).next_power_of_two(),
            receive_len: part * scale,
            send_len: part * scale,
            ring_len: if on(Fault::RingFull) {
                random.pick(&[1, 2, 5])
            } else {
                random.pick(&[16, 64, 4096])
            },
            wake_us: random.pick(&[0, 0, 50, 1_000, 30_000]),
            link: choose_link(random, &on),
            meddling: choose_meddling(random, &on),
            driver: choose_driver(random, &on),
            wider: Wider::default(),
            safety_us,
            faults,
        };
        Wider::widen(seed, only, swarm)
    }
}

fn choose_faults(random: &mut Random, only: Option<Fault>) -> Vec<Fault> {
    // How many on average: none, few, or a storm of them.
    let percent = random.pick(&[0, 8, 8, 8, 20, 50]);
    let mut faults = Vec::new();
    for fault in Fault::ALL {
        let on = random.below(100) < percent;
        let chosen = only.map_or(on, |only| only == *fault);
        if chosen {
            faults.push(*fault);
        }
    }
    faults
}

fn choose_engine(random: &mut Random, connections: u32, on: &impl Fn(Fault) -> bool) -> EngineSpec {
    let gso = random.one_in(2);
    let room = (2 * connections as usize + 64).next_power_of_two();
    EngineSpec {
        mtu: random.pick(&[1500, 1500, 1500, 9000, 1280, 576, 1499]),
        tx_checksum: gso || random.one_in(2),
        gso_max: if gso { random.pick(&[65_000, 65_000, 16_000]) } else { 0 },
        takes_large: random.one_in(2),
        takes_partial: random.one_in(2),
        flows_max: if on(Fault::TableFull) { 8 } else { room.min(FLOWS_MAX) },
        sessions: random.between(1, SESSIONS_OF_AN_ENGINE),
        hostile: if on(Fault::Hostile) { random.between(0, 2) } else { 0 },
        tcp: TcpConfig { congestion: AlgorithmName::Cubic, ecn: EcnMode::Accept, ..TcpConfig::default() },
        direct: false,
        kept_ports: None,
    }
}

/// Up to `max` parts of a million, small rates as likely as large ones.
pub(crate) fn rate(random: &mut Random, is_on: bool, max: u32) -> u32 {
    let rate = random.any_size(max);
    if is_on { rate.max(100) } else { 0 }
}

fn choose_link(random: &mut Random, on: &impl Fn(Fault) -> bool) -> LinkFaults {
    let burst = Burst {
        begins_ppm: random.between(500, 30_000),
        ends_ppm: random.between(30_000, 400_000),
        loss_ppm: random.between(300_000, 1_000_000),
    };
    let bottleneck = Bottleneck {
        mbit_per_s: random.pick(&[1, 10, 100, 1000]),
        queue_us: random.pick(&[20_000, 200_000]),
    };
    let delay_us = if on(Fault::Delay) { random.any_size(300_000) } else { random.between(5, 200) };
    let jitter_us = if on(Fault::Delay) { random.any_size(100_000) } else { 0 };
    LinkFaults {
        loss_ppm: rate(random, on(Fault::Loss), 400_000),
        burst: on(Fault::Burst).then_some(burst),
        reorder_ppm: rate(random, on(Fault::Reorder), 300_000),
        reorder_us: random.between(10, 50_000),
        duplicate_ppm: rate(random, on(Fault::Duplicate), 300_000),
        corrupt_ppm: rate(random, on(Fault::Corrupt), 100_000),
        mark_ppm: 0,
        fragment_ppm: 0,
        tells_mtu: false,
        delay_us,
        jitter_us,
        bottleneck: on(Fault::Bottleneck).then_some(bottleneck),
    }
}

fn choose_meddling(random: &mut Random, on: &impl Fn(Fault) -> bool) -> Meddling {
    Meddling {
        shrink_ppm: rate(random, on(Fault::ShrinkWindow), 500_000),
        overlap_ppm: rate(random, on(Fault::Overlap), 500_000),
        garbage_ppm: rate(random, on(Fault::Garbage), 500_000),
    }
}

fn choose_driver(random: &mut Random, on: &impl Fn(Fault) -> bool) -> DriverFaults {
    let times = |random: &mut Random, fault| {
        let n = random.between(1, 4);
        if on(fault) { n } else { 0 }
    };
    DriverFaults {
        ring_full_ppm: rate(random, on(Fault::RingFull), 500_000),
        port_room: if on(Fault::PortFull) { random.between(1, 4) } else { 64 },
        kills: times(random, Fault::HostDies),
        turns: times(random, Fault::HostTurns).min(1),
        stalls: times(random, Fault::StopsReading),
        clock_jumps: times(random, Fault::ClockJump),
        rebuilds: times(random, Fault::Rebuild) * 4,
        mtu_changes: times(random, Fault::Mtu),
        passes: 0,
        shares: 0,
        network_changes: 0,
        watches: 0,
        gives_back: false,
        late_entries: false,
        heads: None,
        idles: false,
    }
}
