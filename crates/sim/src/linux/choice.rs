//! What a seed chooses for a run against Linux: the world that it chooses anyway, made small enough for real time, and
//! how Linux's TCP is set up.

use crate::program::plan::{self, Conn, Gate, Plan};
use crate::random::{Draws, Random};
use crate::swarm::{Bottleneck, EngineSpec, Fault, Swarm};
use crate::tally::{Tallies, Tally};
use crate::wider::fast_open_mode;
use toe_engine::FastOpenMode;

/// Connections of one run, at most.
const CONNECTIONS_MAX: u32 = 16;
/// Real time that the faults last, at most.
const SAFETY_MAX_US: u64 = 3_000_000;
/// Faults that would need many connections or long waits to end.
const NOT_HERE: [Fault; 2] = [Fault::TableFull, Fault::Hostile];

/// Linux's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinuxSpec {
    pub sack: bool,
    pub timestamps: bool,
    pub window_scaling: bool,
    pub ecn: bool,
    pub reno: bool,
    pub mtu: u32,
    /// `tcp_rmem` and `tcp_wmem`, their largest.
    pub memory: u32,
    pub fast_open: FastOpenMode,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Choice {
    pub swarm: Swarm,
    pub linux: LinuxSpec,
    seed: u64,
}

impl Choice {
    pub fn of(seed: u64, only: Option<Fault>) -> Choice {
        let mut swarm = Swarm::choose(seed, only);
        let random = &mut Random::new(seed, Draws::Linux);
        let fast_open = &mut Random::new(seed, Draws::LinuxFastOpen);
        let linux = LinuxSpec {
            sack: !random.one_in(4),
            timestamps: !random.one_in(4),
            window_scaling: !random.one_in(6),
            ecn: random.one_in(3),
            reno: random.one_in(3),
            mtu: random.pick(&[1500, 1500, 1280, 576, 9000]),
            memory: random.pick(&[65_536, 1 << 20, 6 << 20]),
            fast_open: fast_open_mode(fast_open),
        };
        swarm.faults.retain(|fault| !NOT_HERE.contains(fault));
        swarm.wider.fast_open_percent = fast_open.pick(&[0, 50, 100, 100]);
        swarm.engines[0].tcp.fast_open = fast_open_mode(fast_open);
        let engine = EngineSpec { hostile: 0, flows_max: 256, ..swarm.engines[0] };
        // As a wire: whole frames with their checksums.
        let behind_tap =
            EngineSpec { mtu: linux.mtu, takes_large: false, takes_partial: false, sessions: 1, ..engine };
        swarm.engines = vec![engine, behind_tap];
        swarm.outside = 1;
        swarm.connections = swarm.connections.min(CONNECTIONS_MAX).max(1 + random.below(4));
        swarm.safety_us = swarm.safety_us.min(SAFETY_MAX_US);
        swarm.bytes_max = random.pick(&[2_000, 60_000, 300_000, 1_000_000]);
        swarm.driver.turns = 0;
        let link = &mut swarm.link;
        link.delay_us = link.delay_us.min(50_000);
        link.jitter_us = link.jitter_us.min(20_000);
        link.loss_ppm = link.loss_ppm.min(100_000);
        link.corrupt_ppm = link.corrupt_ppm.min(50_000);
        link.bottleneck = link.bottleneck.map(|b| Bottleneck { mbit_per_s: b.mbit_per_s.max(20), ..b });
        Choice { swarm, linux, seed }
    }

    /// The connections: each has Linux at one end.
    pub fn plan(&self, programs: &mut Random, tallies: &mut Tallies) -> Vec<Conn> {
        let random = &mut Random::new(self.seed ^ 1, Draws::Linux);
        let fast_open = &mut Random::new(self.seed ^ 1, Draws::LinuxFastOpen);
        (0..self.swarm.connections)
            .map(|_| {
                let mut plans = plan::choose(programs, &self.swarm, tallies);
                plans.iter_mut().for_each(|plan| make_brisk(plan, &self.swarm));
                let session = random.below(self.swarm.engines[0].sessions);
                let from_linux = random.one_in(2);
                let (client, server, server_session) = if from_linux {
                    ((super::LINUX, 0), (0, 7000 + session as u16), session as usize)
                } else {
                    ((0, session as usize), (super::LINUX, super::program::PORT), 0)
                };
                let span = (self.swarm.safety_us / 2) as u32;
                let start_us = if self.swarm.storm { 1000 } else { 1000 + u64::from(random.below(span)) };
                tallies.add(Tally::Connections);
                let fast = fast_open.below(100) < self.swarm.wider.fast_open_percent;
                Conn { fast, ..Conn::new(client, server, server_session, plans, start_us) }
            })
            .collect()
    }
}

/// Slow programs are too slow for real time.
fn make_brisk(plan: &mut Plan, swarm: &Swarm) {
    plan.read_pause_us = plan.read_pause_us.min(4_000);
    plan.read_max = plan.read_max.max(swarm.bytes_max / 100).max(2_000);
    plan.chunk_max = plan.chunk_max.max(1_000);
    if let Gate::Exchange { sends, .. } = plan.gate {
        plan.chunk_max = plan.chunk_max.max(sends.min(65_536));
    }
}
