//! What fuzzers run, one target a file: bytes in, a panic when something is wrong. Each target plays a small world with
//! the checkers on. `make fuzz` explores (crates/sim/fuzz/main.rs), and the tests replay what is committed in
//! crates/sim/corpus.

pub mod channels;
pub mod control;
pub mod descriptors;
pub mod entries;
pub mod filters;
pub mod frames;
pub mod lanes;
pub mod operations;
pub mod records;
pub mod scripts;
pub mod wire;

use crate::checkers::Failure;
use crate::memory::Memory;
use crate::swarm::{EngineSpec, Fault, LinkFaults, Meddling, Swarm};
use crate::tally::Tallies;
use crate::trace::Trace;
use crate::world::World;
use std::cell::RefCell;
use toe_engine::TcpConfig;

/// What there is to fuzz.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Frames of a peer that means harm.
    Frames,
    /// Ring entries of a host that means harm.
    Entries,
    /// What programs do with their sockets, and what the links do meanwhile.
    Operations,
    /// Descriptors of virtual interfaces, and the memory of their connections, of a program that means harm.
    Descriptors,
    /// Packet scripts: parsed, and run against the engine.
    Scripts,
    /// Messages of the control socket.
    Control,
    /// Words and records of a lane's other side, and heads of records that the engine sends.
    Lanes,
    /// Words and entries of a channel's other side.
    Channels,
    /// Filters of captures.
    Filters,
    /// TLS records of a peer that means harm.
    Records,
    /// What another host sends of virtual interfaces.
    Wire,
}

impl Target {
    pub const ALL: &'static [Target] = &[
        Target::Frames,
        Target::Entries,
        Target::Operations,
        Target::Descriptors,
        Target::Scripts,
        Target::Control,
        Target::Lanes,
        Target::Channels,
        Target::Filters,
        Target::Records,
        Target::Wire,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Target::Frames => "frames",
            Target::Entries => "entries",
            Target::Operations => "operations",
            Target::Descriptors => "descriptors",
            Target::Scripts => "scripts",
            Target::Control => "control",
            Target::Lanes => "lanes",
            Target::Channels => "channels",
            Target::Filters => "filters",
            Target::Records => "records",
            Target::Wire => "wire",
        }
    }

    pub fn by_name(name: &str) -> Option<Target> {
        Target::ALL.iter().copied().find(|target| target.name() == name)
    }

    /// What was exercised.
    ///
    /// # Panics
    /// When something is wrong.
    pub fn run(self, data: &[u8]) -> Tallies {
        match self {
            Target::Frames => return frames::run(data),
            Target::Entries => return entries::run(data),
            Target::Operations => return operations::run(data),
            Target::Descriptors => return descriptors::run(data),
            Target::Lanes => return lanes::run(data),
            Target::Scripts => scripts::run(data),
            Target::Control => control::run(data),
            Target::Channels => channels::run(data),
            Target::Filters => filters::run(data),
            Target::Records => records::run(data),
            Target::Wire => wire::run(data),
        }
        Tallies::default()
    }
}

/// Bytes, taken one after the other; zeros when there are none left.
#[derive(Debug)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.take(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// Time that passes: nothing to some minutes in 16 steps.
fn step_us(nibble: u8) -> u64 {
    const STEPS: [u64; 16] = [
        0,
        1,
        50,
        1_000,
        5_000,
        10_000,
        45_000,
        100_000,
        210_000,
        500_000,
        1_000_000,
        3_000_000,
        10_000_000,
        40_000_000,
        65_000_000,
        200_000_000,
    ];
    STEPS[usize::from(nibble & 0xf)]
}

thread_local! {
    /// Kept from run to run: making it anew would cost more than most runs.
    static MEMORIES: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// A world without faults, played, and ended; panics with what was found.
pub(crate) fn play(
    engines: Vec<EngineSpec>,
    outside: usize,
    act: impl FnOnce(&mut World) -> Result<(), Failure>,
) -> Tallies {
    play_with(256 << 10, engines, outside, act)
}

/// The same with so much memory for each session to receive into, and to send from.
pub(crate) fn play_with(
    session_memory: u64,
    engines: Vec<EngineSpec>,
    outside: usize,
    act: impl FnOnce(&mut World) -> Result<(), Failure>,
) -> Tallies {
    let swarm = Swarm::choose(1, Some(Fault::Rebuild));
    let driver = crate::swarm::DriverFaults { port_room: 64, ..Default::default() };
    let swarm = Swarm {
        engines,
        outside,
        connections: 0,
        storm: false,
        backlog: 4,
        session_flows: 64,
        receive_len: session_memory,
        send_len: session_memory,
        ring_len: 64,
        wake_us: 0,
        link: LinkFaults { delay_us: 50, ..LinkFaults::default() },
        meddling: Meddling::default(),
        driver,
        ..swarm
    };
    let memories = &mut MEMORIES.take();
    let mut world = World::new(1, swarm, memories, Trace::Off);
    let found = act(&mut world).and_then(|()| world.everything_ends());
    let tallies = world.outcome(None).tallies;
    world.into_memories(memories);
    MEMORIES.set(std::mem::take(memories));
    if let Err(Failure { checker, at_us, what }) = found {
        panic!("{} at {at_us} us: {what}", checker.name());
    }
    tallies
}

/// An engine with two sessions.
pub(crate) const ENGINE: EngineSpec = EngineSpec {
    kept_ports: None,
    mtu: 1500,
    tx_checksum: false,
    gso_max: 0,
    takes_large: false,
    takes_partial: false,
    flows_max: 64,
    sessions: 2,
    hostile: 0,
    tcp: TcpConfig::DEFAULT,
    direct: false,
};
