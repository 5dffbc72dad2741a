//! What seeds from [`WIDER_FROM`] on choose besides: IPv6, ECN, congestion control, fragments, channels, sockets that change
//! hands, registers that make no sense, Fast Open; those from [`SHARING_FROM`] on, descriptors that several processes
//! have; those from [`RECORDS_FROM`] on, records (MSG_EOR); those from [`KERNEL_FROM`] on, addresses that are a kernel's, too; those from [`WATCHED_FROM`] on, captures, and unread bytes that
//! are given back; and those from [`LATE_FROM`] on, entries that wait, links that keep bytes, and memory that is idle. All of it is drawn from streams of its own, and seeds below keep the worlds that they had before there was any of
//! this.

use crate::random::{Draws, Random};
use crate::swarm::{Fault, Swarm, rate};
use toe_abi::attach::FenceReason;
use toe_engine::FastOpenMode;
use toe_tcp::config::{AlgorithmName, EcnMode};

/// The first seed that has it.
pub const WIDER_FROM: u64 = 100_000;

/// The first seed that may have [`Fault::Shares`], too.
pub const SHARING_FROM: u64 = 1_000_000;

/// The first seed whose programs may end records.
pub const RECORDS_FROM: u64 = 3_000_000;

/// The first seed whose engines may share the address of a kernel.
pub const KERNEL_FROM: u64 = 6_000_000;

/// The first seed that may have [`Fault::Watched`] and [`Fault::GivesBack`].
pub const WATCHED_FROM: u64 = 8_000_000;

/// The first seed that may have [`Fault::LateEntries`], [`Fault::Heads`] and [`Fault::IdleMemory`].
pub const LATE_FROM: u64 = 200_000_000;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wider {
    pub on: bool,
    /// Engines have addresses of IPv6; so many in a hundred connections use them.
    pub ipv6_percent: u32,
    /// Sockets choose congestion control for themselves.
    pub choose_congestion: bool,
    /// Hostile hosts write nonsense to registers, too.
    pub bad_registers: bool,
    /// So many in a hundred connects whose programs have bytes at once use Fast Open.
    pub fast_open_percent: u32,
    /// So many of a million writes end a record.
    pub record_ppm: u32,
    /// So many in a hundred connections are local besides those that are anyway.
    pub local_percent: u32,
}

/// The least that a link must carry for IPv6 (RFC 8200 section 5).
const IPV6_MTU_MIN: u32 = 1280;

impl Fault {
    const WIDER: [Fault; 3] = [Fault::Congestion, Fault::Fragments, Fault::Passes];
    /// Each with a stream of its own.
    const LATER: [Fault; 7] = [
        Fault::Shares,
        Fault::KernelAddress,
        Fault::Watched,
        Fault::GivesBack,
        Fault::LateEntries,
        Fault::Heads,
        Fault::IdleMemory,
    ];
}

impl Wider {
    pub fn widen(seed: u64, only: Option<Fault>, mut swarm: Swarm) -> Swarm {
        let wanted = only.is_some_and(|only| Fault::WIDER.contains(&only) || Fault::LATER.contains(&only));
        if seed < WIDER_FROM && !wanted {
            return swarm;
        }
        let random = &mut Random::new(seed, Draws::Wider);
        for fault in Fault::WIDER {
            let on = random.one_in(4);
            if only.map_or(on, |only| only == fault) {
                swarm.faults.push(fault);
            }
        }
        let on = |fault| swarm.faults.contains(&fault);
        let room_for_ipv6 = swarm.engines.iter().all(|engine| engine.mtu >= IPV6_MTU_MIN);
        let percent = random.pick(&[0, 30, 100]);
        swarm.wider = Wider {
            on: true,
            ipv6_percent: if room_for_ipv6 { percent } else { 0 },
            choose_congestion: random.one_in(3),
            bad_registers: random.one_in(2),
            fast_open_percent: 0,
            record_ppm: 0,
            local_percent: 0,
        };
        for engine in &mut swarm.engines {
            engine.tcp.ecn =
                random.pick(&[EcnMode::Off, EcnMode::Accept, EcnMode::Request, EcnMode::Request]);
            engine.tcp.congestion = random.pick(&AlgorithmName::ALL);
            engine.direct = random.one_in(2);
        }
        swarm.link.mark_ppm = rate(random, on(Fault::Congestion), 300_000);
        swarm.link.fragment_ppm = rate(random, on(Fault::Fragments), 300_000);
        swarm.link.tells_mtu = random.one_in(2);
        let passes = random.between(1, 12);
        swarm.driver.passes = if on(Fault::Passes) { passes } else { 0 };
        choose_fast_open(seed, &mut swarm);
        choose_sharing(seed, only, &mut swarm);
        choose_records(seed, &mut swarm);
        choose_kernels(seed, only, &mut swarm);
        choose_watched(seed, only, &mut swarm);
        choose_giving_back(seed, only, &mut swarm);
        choose_late_entries(seed, only, &mut swarm);
        choose_heads(seed, only, &mut swarm);
        choose_idle_memory(seed, only, &mut swarm);
        swarm
    }
}

fn choose_fast_open(seed: u64, swarm: &mut Swarm) {
    let random = &mut Random::new(seed, Draws::FastOpen);
    swarm.wider.fast_open_percent = random.pick(&[0, 50, 100]);
    for engine in &mut swarm.engines {
        engine.tcp.fast_open = fast_open_mode(random);
    }
}

/// What a stack does of Fast Open: mostly all of it.
pub fn fast_open_mode(random: &mut Random) -> FastOpenMode {
    match random.below(6) {
        0 => FastOpenMode::Off,
        1 => FastOpenMode::Client,
        2 => FastOpenMode::Server,
        _ => FastOpenMode::Both,
    }
}

/// Processes that have copies of a descriptor, some of which end while others go on.
fn choose_sharing(seed: u64, only: Option<Fault>, swarm: &mut Swarm) {
    let random = &mut Random::new(seed, Draws::Sharing);
    let on = seed >= SHARING_FROM && random.one_in(2);
    if !only.map_or(on, |only| only == Fault::Shares) {
        return;
    }
    swarm.faults.push(Fault::Shares);
    swarm.driver.shares = random.between(4, 40);
    swarm.driver.kills = swarm.driver.kills.max(random.below(3));
    for engine in &mut swarm.engines {
        engine.sessions = engine.sessions.max(2);
    }
}

/// Captures, and something for them to see.
fn choose_watched(seed: u64, only: Option<Fault>, swarm: &mut Swarm) {
    let random = &mut Random::new(seed, Draws::Watched);
    let on = seed >= WATCHED_FROM && random.one_in(3);
    if !only.map_or(on, |only| only == Fault::Watched) {
        return;
    }
    swarm.faults.push(Fault::Watched);
    swarm.driver.watches = random.between(1, 10);
    choose_channels(random, swarm);
}

/// Sockets are given up with bytes that were received and not read: those of connections that use channels, mostly to slow readers.
fn choose_giving_back(seed: u64, only: Option<Fault>, swarm: &mut Swarm) {
    let random = &mut Random::new(seed, Draws::GivenBack);
    let on = seed >= WATCHED_FROM && random.one_in(3);
    if !only.map_or(on, |only| only == Fault::GivesBack) {
        return;
    }
    swarm.faults.push(Fault::GivesBack);
    swarm.driver.gives_back = true;
    swarm.driver.passes = swarm.driver.passes.max(random.between(1, 12));
    swarm.driver.kills = swarm.driver.kills.max(random.below(3));
    choose_channels(random, swarm);
}

/// Entries wait in rings, and sockets change hands and processes end meanwhile.
fn choose_late_entries(seed: u64, only: Option<Fault>, swarm: &mut Swarm) {
    let random = &mut Random::new(seed, Draws::LateEntries);
    let on = seed >= LATE_FROM && random.one_in(3);
    if !only.map_or(on, |only| only == Fault::LateEntries) {
        return;
    }
    swarm.faults.push(Fault::LateEntries);
    swarm.driver.late_entries = true;
    swarm.driver.passes = swarm.driver.passes.max(random.between(1, 12));
    swarm.wider.local_percent = swarm.wider.local_percent.max(random.pick(&[0, 0, 50]));
    for engine in &mut swarm.engines {
        engine.sessions = engine.sessions.max(2);
    }
}

/// Links that hand on large frames with checksums that need no look, and keep their bytes.
fn choose_heads(seed: u64, only: Option<Fault>, swarm: &mut Swarm) {
    let random = &mut Random::new(seed, Draws::Heads);
    let on = seed >= LATE_FROM && random.one_in(3);
    if !only.map_or(on, |only| only == Fault::Heads) {
        return;
    }
    swarm.faults.push(Fault::Heads);
    swarm.driver.heads = Some(random.pick(&[0, 0, 10_000, 200_000]));
    // What came beyond a hole comes again.
    let again_ppm = random.pick(&[0, 100_000]);
    swarm.link.reorder_ppm = swarm.link.reorder_ppm.max(again_ppm);
    swarm.link.duplicate_ppm = swarm.link.duplicate_ppm.max(again_ppm);
    for engine in &mut swarm.engines {
        (engine.takes_large, engine.takes_partial, engine.tx_checksum) = (true, true, true);
        engine.gso_max = engine.gso_max.max(16_000);
    }
}

/// Of so many connections some fill the memory of one session.
const MANY_IDLE: u32 = 64;

/// Sessions have room for much that nobody reads for a while, and pages that are idle go back to the system.
fn choose_idle_memory(seed: u64, only: Option<Fault>, swarm: &mut Swarm) {
    let random = &mut Random::new(seed, Draws::IdleMemory);
    let on = seed >= LATE_FROM && random.one_in(8);
    if !only.map_or(on, |only| only == Fault::IdleMemory) {
        return;
    }
    swarm.faults.push(Fault::IdleMemory);
    swarm.driver.idles = true;
    swarm.receive_len = swarm.receive_len.max(8 << 20);
    swarm.send_len = swarm.send_len.max(4 << 20);
    swarm.connections = swarm.connections.max(random.between(MANY_IDLE / 2, MANY_IDLE));
    (swarm.storm, swarm.backlog, swarm.bytes_max) = (true, 1024, 120_000);
    swarm.session_flows = swarm.session_flows.max(4 * MANY_IDLE);
    let is_full = swarm.faults.contains(&Fault::TableFull);
    for engine in &mut swarm.engines {
        engine.sessions = 1;
        engine.flows_max =
            if is_full { engine.flows_max } else { engine.flows_max.max(4 * MANY_IDLE as usize) };
    }
    swarm.safety_us = swarm.safety_us.max(20_000_000);
}

/// Local connections that are worth a channel.
fn choose_channels(random: &mut Random, swarm: &mut Swarm) {
    swarm.wider.local_percent = random.pick(&[0, 50, 100]);
    for engine in &mut swarm.engines {
        engine.sessions = engine.sessions.max(2);
        engine.direct |= !random.one_in(4);
    }
}

fn choose_records(seed: u64, swarm: &mut Swarm) {
    if seed >= RECORDS_FROM {
        swarm.wider.record_ppm = Random::new(seed, Draws::Records).pick(&[0, 100_000, 500_000, 1_000_000]);
    }
}

/// Engines that share an address with their kernel, which is of IPv4.
fn choose_kernels(seed: u64, only: Option<Fault>, swarm: &mut Swarm) {
    let random = &mut Random::new(seed, Draws::Kernel);
    let on = seed >= KERNEL_FROM && random.one_in(3);
    if !only.map_or(on, |only| only == Fault::KernelAddress) {
        return;
    }
    swarm.faults.push(Fault::KernelAddress);
    swarm.driver.network_changes = random.below(12);
    swarm.wider.ipv6_percent = 0;
    // The streams are known by their addresses and ports, so no two of a world may have the same: of few numbers each soon comes again.
    let kept: &[u16] = if swarm.connections <= FEW_CONNECTIONS { &[0, 0, MANY_PORTS] } else { &[MANY_PORTS] };
    let all = random.one_in(2);
    for engine in &mut swarm.engines {
        engine.kept_ports = (all || random.one_in(2)).then(|| random.pick(kept));
    }
}

/// As many connections have port numbers of their own when the kernel keeps no more than an engine asks for at first.
const FEW_CONNECTIONS: u32 = 12;
/// More than a world has connections.
const MANY_PORTS: u16 = 2048;

/// How many connections a listener takes by Fast Open before their handshake is complete.
pub fn fast_open_limit(random: &mut Random) -> u32 {
    random.pick(&[0, 1, 4, 64])
}

/// What the daemon finds in the registers of a host that writes nonsense there.
pub fn bad_registers(random: &mut Random) -> Option<FenceReason> {
    let found = [FenceReason::BadHead, FenceReason::BadIrqMode, FenceReason::CompletionOverflow];
    random.one_in(30).then(|| random.pick(&found))
}
