//! One run of a seed: faults for a while, in which nothing may be wrong; then all is healed and everything must come to
//! its end; then every program lets go, and everything must come back.

use crate::checkers::starvation::Starvation;
use crate::checkers::{Checker, Failure, memory, reports, timers};
use crate::memory::Memory;
use crate::program::plan::{Conn, Excuses, Gate};
use crate::sabotage::Sabotage;
use crate::swarm::{Fault, LinkFaults, Swarm};
use crate::tally::{Tallies, Tally};
use crate::trace::{About, Trace};
use crate::world::{What, World};
use crate::{panics, wider};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use toe_abi::attach::FenceReason;
use toe_base::AnchorHandle;
use toe_engine::{ControlEvent, Counter};

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    pub failure: Option<Failure>,
    pub tallies: Tallies,
    pub trace: Trace,
}

/// How to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runner {
    pub only: Option<Fault>,
    pub sabotage: Option<Sabotage>,
}

/// A fault that happens at a moment.
#[derive(Clone, Copy, Debug)]
pub enum Mishap {
    HostDies { whose: Option<(usize, usize)> },
    HostTurns,
    HostStalls,
    ClockJumps,
    Rebuild,
    PathMtu,
    Passes,
    PassesAgain { node: usize, session: usize, socket: usize },
    Shares,
    Network,
    Watched { node: Option<usize> },
    WatchedNoMore { node: usize },
    ComesBack { node: usize, session: usize, anchor: AnchorHandle },
    PathMtuBack { from: usize, to: usize },
    Harm { node: usize, session: usize },
}

/// How far a machine's clock goes back at most.
const CLOCK_BACK_MAX_US: u64 = 1_000_000;
/// After the faults are over: so long without anything that moves is a stall. Above the longest time-out of 120 s.
const STALL_US: u64 = 300_000_000;
/// After every program has let go: so long until everything has ended. Orphans whose peer is gone take longest.
const ENDING_US: u64 = 3_600_000_000;

/// Runs `seed`; `memories` is what an earlier run left, for this one and the next.
pub fn run(seed: u64, how: Runner, memories: &mut Vec<Memory>, trace: Trace) -> Outcome {
    let swarm = Swarm::choose(seed, how.only);
    let mut world = World::new(seed, swarm, memories, trace);
    world.sabotage = how.sabotage;
    let failure = match panics::catch(|| world.live()) {
        Ok(result) => result.err(),
        Err(what) => Some(Failure { checker: Checker::Panic, at_us: world.now_us, what }),
    };
    let outcome = world.outcome(failure);
    world.into_memories(memories);
    outcome
}

impl World {
    fn live(&mut self) -> Result<(), Failure> {
        self.set_up();
        let safety_us = self.swarm.safety_us;
        while self.advance(safety_us)? && !self.all_complete() {}
        self.heal();
        self.everything_completes()?;
        self.everything_ends()
    }

    fn note(&mut self, event: &str, detail: std::fmt::Arguments<'_>) {
        self.trace.event(self.now_us, About::default(), event, detail);
    }

    /// What it came to.
    pub fn outcome(&mut self, failure: Option<Failure>) -> Outcome {
        let mut tallies = self.tallies;
        tallies.seeds = 1;
        tallies.add_many(Tally::VirtualSeconds, self.now_us / 1_000_000);
        for node in &self.nodes {
            tallies.add_engine(&node.engine);
            tallies.add_many(Tally::Copies, node.memory.captures.copies);
            tallies.add_many(Tally::LocalCopies, node.memory.captures.local_copies);
        }
        Outcome { failure, tallies, trace: std::mem::take(&mut self.trace) }
    }

    fn set_up(&mut self) {
        self.set_up_sessions();
        self.conns.excuses = self.excuses();
        for _ in 0..self.swarm.connections {
            let conn = self.plan_connection();
            self.add_connection(conn);
        }
        if self.swarm.storm {
            self.tallies.add(Tally::ConnectStorms);
        }
        if self.swarm.connections >= 100 {
            self.tallies.add(Tally::ManyFlows);
        }
        self.schedule_mishaps();
    }

    /// The engines' sessions attach; ordinary ones listen.
    pub fn set_up_sessions(&mut self) {
        if self.trace.is_on() {
            let swarm = self.swarm.clone();
            self.note("swarm", format_args!("{swarm:?}"));
        }
        // At the unspecified address of IPv6 connections of both families come in.
        let anywhere: IpAddr = if self.swarm.wider.ipv6_percent > 0 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        for at in 0..self.nodes.len() {
            let spec = self.nodes[at].spec;
            for number in 0..spec.sessions + spec.hostile {
                let Some(session) = self.nodes[at].attach(&self.swarm) else { continue };
                if number < spec.sessions {
                    let backlog = self.swarm.backlog;
                    let is_fast = self.swarm.wider.fast_open_percent > 0;
                    let fast = if is_fast { wider::fast_open_limit(&mut self.fast_open) } else { 0 };
                    self.with_session(at, session, |session, cx| {
                        session.listen(cx, anywhere, 7000 + number as u16, backlog, fast);
                    });
                } else {
                    self.turn(at, session);
                }
            }
            self.nodes[at].memory.set_refusals(self.swarm.driver.ring_full_ppm);
            self.nodes[at].memory.keeps_entries = self.swarm.driver.late_entries;
            self.nodes[at].sees_to_trims = self.swarm.driver.idles && self.sabotage.is_none();
            self.nodes[at].memory.misplace_by =
                if self.sabotage == Some(Sabotage::MisplaceWrites) { 64 } else { 0 };
            if let Some(kernel) = &mut self.nodes[at].kernel {
                kernel.is_forgetful = self.sabotage == Some(Sabotage::ForgetSteering);
            }
            self.nodes[at].memory.loses_data = self.sabotage == Some(Sabotage::LoseData);
            self.nodes[at].memory.captures.blunder = self.sabotage.and_then(Sabotage::with_captures);
        }
    }

    /// What the faults that are on may make go wrong without anybody's fault.
    pub fn excuses(&self) -> Excuses {
        let swarm = &self.swarm;
        let clean = LinkFaults { reorder_us: swarm.link.reorder_us, ..swarm.link.healed() };
        let on = |fault| swarm.faults.contains(&fault);
        // A full queue loses frames as well.
        let loses = swarm.link != clean
            || swarm.link.bottleneck.is_some()
            || swarm.driver.heads.is_some_and(|fails_ppm| fails_ppm > 0);
        Excuses {
            lossy: loses || swarm.driver.mtu_changes > 0,
            jumps: swarm.driver.clock_jumps > 0,
            jams: swarm.link.bottleneck.is_some(),
            crowded: swarm.backlog < swarm.connections
                || swarm.storm
                    && swarm.link.bottleneck.is_some_and(|it| it.syns_queued() < swarm.connections)
                || on(Fault::TableFull)
                || on(Fault::Hostile),
            forgetful: on(Fault::TableFull),
            meddled: swarm.meddling.garbage_ppm > 0,
            scarce: on(Fault::LittleMemory),
        }
    }

    /// A connection that will be made.
    pub fn add_connection(&mut self, conn: Conn) {
        let number = self.streams.open();
        self.schedule(conn.start_us, What::Connect { conn: number });
        self.conns.list.push(conn);
    }

    pub fn schedule_mishaps(&mut self) {
        let driver = self.swarm.driver;
        let times = [
            (driver.kills, Mishap::HostDies { whose: None }),
            (driver.turns, Mishap::HostTurns),
            (driver.stalls, Mishap::HostStalls),
            (driver.clock_jumps, Mishap::ClockJumps),
            (driver.rebuilds, Mishap::Rebuild),
            (driver.mtu_changes, Mishap::PathMtu),
            (driver.passes, Mishap::Passes),
            (driver.shares, Mishap::Shares),
            (driver.network_changes, Mishap::Network),
            (driver.watches, Mishap::Watched { node: None }),
        ];
        for (count, mishap) in times {
            for _ in 0..count {
                // Most of what happens, happens early.
                let span = self.drivers.any_size(self.swarm.safety_us as u32);
                self.schedule(2000 + u64::from(span), What::Fault(mishap));
            }
        }
    }

    // ---- mishaps ----

    pub fn mishap(&mut self, mishap: Mishap) {
        let goes_on =
            matches!(mishap, Mishap::Rebuild | Mishap::PassesAgain { .. } | Mishap::ComesBack { .. });
        if self.healed && !goes_on {
            return;
        }
        let at = self.drivers.below(self.nodes.len() as u32) as usize;
        if !matches!(mishap, Mishap::Harm { .. }) {
            self.trace.event(self.now_us, About::node(at), "mishap", format_args!("{mishap:?}"));
        }
        match mishap {
            Mishap::HostDies { whose } => {
                let whose = whose.or_else(|| Some((at, self.some_session(at)?)));
                if let Some((at, session)) = whose.filter(|of| self.nodes[of.0].sessions[of.1].alive) {
                    self.tallies.add(Tally::HostsDied);
                    self.kill(at, session, None);
                }
            }
            Mishap::HostTurns => {
                if let Some(session) = self.some_session(at) {
                    self.tallies.add(Tally::HostsTurned);
                    self.excuse_session(at, session, "a host means harm");
                    self.taint_session(at, session);
                    self.taint_shared_listeners(at, session);
                    self.turn(at, session);
                }
            }
            Mishap::HostStalls => {
                if let Some(session) = self.some_session(at) {
                    self.tallies.add(Tally::Stalls);
                    let until = self.now_us + u64::from(self.drivers.any_size(20_000_000));
                    self.nodes[at].sessions[session].stalled_until_us = until;
                }
            }
            Mishap::ClockJumps => {
                self.tallies.add(Tally::ClockJumps);
                let by = u64::from(self.drivers.any_size(15_000_000));
                // Back as well: then it stands still, for less than what makes a peer give up.
                let back = by.is_multiple_of(3).then(|| by.min(CLOCK_BACK_MAX_US));
                let ahead = &mut self.nodes[at].clock_ahead_us;
                *ahead = back.map_or(*ahead + by, |back| ahead.saturating_sub(back));
            }
            Mishap::Rebuild => {
                self.tallies.add(Tally::Rebuilds);
                self.nodes[at].engine.rebuild_derived();
            }
            Mishap::Passes => self.pass_some_socket(at),
            Mishap::PassesAgain { node, session, socket } => self.pass_socket_again(node, session, socket),
            Mishap::Shares => self.share_something(at),
            Mishap::Network => self.change_network(at),
            Mishap::ComesBack { node, session, anchor } => self.hold_listener(node, session, anchor),
            Mishap::Watched { node } => self.begin_capture(node.unwrap_or(at)),
            Mishap::WatchedNoMore { node } => self.end_some_capture(node),
            Mishap::PathMtu => self.change_mtu(at),
            Mishap::PathMtuBack { from, to } => self.network.set_mtu(from, to, None),
            Mishap::Harm { node, session } => self.harm(node, session),
        }
        self.nodes[at].touched = true;
    }

    pub fn some_session(&mut self, at: usize) -> Option<usize> {
        let alive: Vec<usize> = (0..self.nodes[at].sessions.len())
            .filter(|s| self.nodes[at].sessions[*s].alive && !self.nodes[at].sessions[*s].is_hostile())
            .collect();
        if alive.is_empty() { None } else { Some(self.drivers.pick(&alive)) }
    }

    fn change_mtu(&mut self, from: usize) {
        self.tallies.add(Tally::MtuChanges);
        let to = (from + 1) % self.swarm.engines.len();
        let mtu = self.drivers.pick(&[576, 1000, 1280, 1400]);
        self.network.set_mtu(from, to, Some(mtu));
        let back_us = self.now_us + u64::from(self.drivers.any_size(10_000_000));
        self.schedule(back_us, What::Fault(Mishap::PathMtuBack { from, to }));
    }

    /// Connections of a session need not come to a good end.
    fn excuse_session(&mut self, node: usize, session: usize, why: &'static str) {
        for conn in &mut self.conns.list {
            if conn.client == (node, session) || (conn.server.0, conn.server_session) == (node, session) {
                conn.excuse.get_or_insert(why);
            }
        }
    }

    fn taint_session(&mut self, node: usize, session: usize) {
        for (number, conn) in self.conns.list.iter().enumerate() {
            if conn.client == (node, session) {
                self.streams.taint(number as u32, 0);
            }
            if (conn.server.0, conn.server_session) == (node, session) {
                self.streams.taint(number as u32, 1);
            }
        }
    }

    /// From now on the session means harm.
    fn turn(&mut self, node: usize, session: usize) {
        self.nodes[node].sessions[session].mischief.get_or_insert_default();
        let soon = self.now_us + 500 + u64::from(self.hostile.below(20_000));
        self.schedule(soon, What::Fault(Mishap::Harm { node, session }));
    }

    /// A hostile session does something, and will again.
    pub fn harm(&mut self, at: usize, session: usize) {
        if self.healed || !self.nodes[at].sessions[session].alive {
            return;
        }
        let mut wakes = Vec::new();
        let now_us = self.now_us;
        let node = &mut self.nodes[at];
        let clock = node.clock(now_us);
        let mut cx = crate::program::Cx {
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
            random: &mut self.hostile,
            tallies: &mut self.tallies,
            trace: &mut self.trace,
            verdict: &mut self.verdict,
            wakes: &mut wakes,
        };
        let mut result = node.sessions[session].do_harm(&mut cx);
        if self.swarm.wider.bad_registers
            && let Some(reason) = wider::bad_registers(&mut self.wider)
        {
            result = Err(reason);
        }
        node.touched = true;
        if let Err(reason) = result {
            self.tallies.add(Tally::Fences);
            self.kill(at, session, Some(reason));
            // It comes back as another process, as long as there are ids.
            if self.hostile.one_in(2)
                && self.nodes[at].sessions.len() < 24
                && let Some(again) = self.nodes[at].attach(&self.swarm)
            {
                self.turn(at, again);
            }
            return;
        }
        let again = self.now_us + 200 + u64::from(self.hostile.any_size(2_000_000));
        self.schedule(again, What::Fault(Mishap::Harm { node: at, session }));
    }

    /// The process ends, or is fenced; the kernel closes its descriptors before or after the engine hears of it.
    pub fn kill(&mut self, at: usize, session: usize, fenced: Option<FenceReason>) {
        if fenced.is_none() && (self.swarm.driver.shares > 0 || self.swarm.driver.gives_back) {
            self.bequeath(at, session);
        }
        self.leave_to_others(at, session);
        self.excuse_session(at, session, "a host is gone");
        let kernel_first = self.drivers.one_in(2) && fenced.is_none();
        if kernel_first {
            self.close_descriptors(at, session);
        }
        let now_us = self.now_us;
        let node = &mut self.nodes[at];
        let (id, clock) = (node.sessions[session].id, node.clock(now_us));
        self.trace.event(now_us, About::session(at, id.0), "ends", format_args!("{fenced:?}"));
        match fenced {
            Some(reason) => {
                node.engine.handle_control(clock, ControlEvent::Fenced(id, reason), &mut node.memory)
            }
            None => node.end_session(clock, id),
        }
        node.sessions[session].alive = false;
        node.memory.close_ring(id);
        for socket in &node.sessions[session].sockets {
            if let Some(stream) = socket.stream() {
                self.streams.ended(stream);
            }
        }
        if !kernel_first {
            self.close_descriptors(at, session);
        }
        self.nodes[at].touched = true;
    }

    // ---- phases ----

    pub fn all_complete(&self) -> bool {
        self.conns.list.iter().all(|conn| conn.is_complete())
    }

    /// No faults any more, and nobody who means harm.
    pub fn heal(&mut self) {
        self.note("heal", format_args!("faults are over"));
        self.end_captures();
        for at in 0..self.nodes.len() {
            for session in 0..self.nodes[at].sessions.len() {
                let of = &self.nodes[at].sessions[session];
                if of.alive && of.is_hostile() {
                    self.kill(at, session, None);
                }
            }
            let node = &mut self.nodes[at];
            node.memory.set_refusals(0);
            for session in node.sessions.iter().filter(|s| s.alive) {
                node.memory.set_ring_len(session.id, 4096);
            }
            node.touched = true;
            for session in 0..self.nodes[at].sessions.len() {
                if self.nodes[at].sessions[session].alive {
                    self.schedule(self.now_us, What::Serve { node: at, session });
                }
            }
            self.schedule(self.now_us, What::Retry { node: at });
        }
        self.network.heal();
        self.meddler.heal();
        self.healed = true;
    }

    /// Every connection that is not excused completes: while one has not, something moves.
    pub fn everything_completes(&mut self) -> Result<(), Failure> {
        let mut moved_at = self.now_us;
        let mut progress = self.streams.progress;
        let mut starvation = Starvation::default();
        while let Some(waits) = self.waits_for() {
            self.nobody_starves(&mut starvation)?;
            let more = self.advance(moved_at + STALL_US)?;
            if self.streams.progress != progress {
                (progress, moved_at) = (self.streams.progress, self.now_us);
            } else if !more && let Some(why) = self.why_it_never_ends(waits as u32) {
                self.conns.list[waits].excuse = Some(why);
            } else if !more {
                let what = self.describe_stall(waits as u32);
                return Err(Failure { checker: Checker::Liveness, at_us: self.now_us, what });
            }
        }
        self.tally_completed();
        self.check_streams()
    }

    /// While the others move, each connection does that must complete.
    fn nobody_starves(&mut self, starvation: &mut Starvation) -> Result<(), Failure> {
        if !starvation.is_due(self.now_us) {
            return Ok(());
        }
        for number in 0..self.conns.list.len() {
            let conn = &self.conns.list[number];
            let waits = !conn.is_complete() && conn.excuse.is_none() && conn.start_us <= self.now_us;
            if waits
                && starvation.stands_still(number as u32, &self.streams, self.now_us)
                && self.why_it_never_ends(number as u32).is_none()
            {
                let what = format!("others go on, and {}", self.describe_stall(number as u32));
                return Err(Failure { checker: Checker::Liveness, at_us: self.now_us, what });
            }
        }
        Ok(())
    }

    /// A connection that must complete and has not.
    pub fn waits_for(&self) -> Option<usize> {
        self.conns.list.iter().position(|conn| !conn.is_complete() && conn.excuse.is_none())
    }

    pub fn tally_completed(&mut self) {
        for conn in &self.conns.list {
            self.tallies.add(if conn.excuse.is_none() { Tally::Completed } else { Tally::Excused });
        }
    }

    /// What TCP has no answer to: one end is gone and the other, which waits for it, has nothing to send.
    pub fn why_it_never_ends(&self, number: u32) -> Option<&'static str> {
        let (conn, excuses) = (&self.conns.list[number as usize], &self.conns.excuses);
        let half_made = conn.opened == [true, false];
        let up = self.streams.get(crate::pattern::StreamId { conn: number, side: 0 });
        let client_is_silent = up.handed == 0 && !up.ended;
        let waits = [0, 1].into_iter().filter(|side| !conn.done[*side as usize]);
        let waits_for_the_gone = waits.clone().count() == 1
            && waits
                .clone()
                .all(|side| self.streams.get(crate::pattern::StreamId { conn: number, side }).ended);
        let full = [Counter::DropAcceptQueueFull, Counter::DropFlowTableFull];
        let server = self.nodes.get(conn.server.0);
        let turned_away =
            server.is_some_and(|node| full.into_iter().any(|full| node.engine.view().counter(full) > 0));
        if half_made && excuses.lossy {
            Some("the server gave the handshake up")
        } else if half_made && client_is_silent && excuses.crowded && turned_away {
            // RFC 4987 section 3.6: of what a cookie stands for the server knows nothing until the client speaks.
            Some("its cookie came back when there was no place")
        } else if excuses.forgetful && conn.was_reset {
            Some("one orphan too many was reset, and the reset got lost")
        } else if (excuses.jumps || excuses.jams) && waits_for_the_gone {
            Some("the other end heard nothing for long, gave up, and tells nobody (RFC 9293 section 3.10.8)")
        } else {
            None
        }
    }

    pub fn describe_stall(&self, conn: u32) -> String {
        let of = &self.conns.list[conn as usize];
        let [up, down] = [0, 1].map(|side| self.streams.get(crate::pattern::StreamId { conn, side }).clone());
        format!("connection {conn} stalls: {of:?}, up {up:?}, down {down:?}")
    }

    /// What completed has arrived whole.
    pub fn check_streams(&mut self) -> Result<(), Failure> {
        for (number, conn) in self.conns.list.iter().enumerate().filter(|(_, c)| c.excuse.is_none()) {
            for side in [0, 1] {
                let id = crate::pattern::StreamId { conn: number as u32, side };
                let stream = self.streams.get(id);
                let planned = conn.plans[usize::from(side)].bytes;
                let nobody_waits = conn.plans[usize::from(side)].gate == Gate::Open || planned == 0;
                if stream.read != planned || stream.handed != planned && nobody_waits {
                    let what = format!("{id:?} is complete, but {} of {planned} bytes arrived", stream.read);
                    return Err(Failure { checker: Checker::Streams, at_us: self.now_us, what });
                }
            }
        }
        Ok(())
    }

    /// Every program closes what it has; then time passes, and nothing is left.
    pub fn everything_ends(&mut self) -> Result<(), Failure> {
        self.note("end", format_args!("programs let go"));
        self.conns.ending = true;
        for conn in &mut self.conns.list {
            conn.excuse.get_or_insert("the run ends");
        }
        for at in 0..self.nodes.len() {
            self.nodes[at].sees_to_trims = self.sabotage != Some(Sabotage::ForgetTrims);
            for session in 0..self.nodes[at].sessions.len() {
                self.let_go(at, session);
            }
        }
        let limit = self.now_us + ENDING_US;
        while self.advance(limit)? {}
        for at in 0..self.nodes.len() {
            // What came in between belongs to listeners that were closed since.
            for session in 0..self.nodes[at].sessions.len() {
                self.let_go(at, session);
            }
        }
        while self.advance(limit + ENDING_US)? {}
        for node in &self.nodes {
            self.verdict.check(Checker::Timers, timers::no_silent_stall(&node.engine));
            self.verdict.check(Checker::Memory, memory::counts_agree(node));
            self.verdict.check(Checker::Memory, memory::all_came_back(node));
            self.verdict.check(Checker::Reports, reports::nobody_is_charged(node));
        }
        self.failure().map_or(Ok(()), Err)
    }

    fn let_go(&mut self, at: usize, session: usize) {
        if self.sabotage == Some(Sabotage::KeepSockets) {
            return;
        }
        self.with_session(at, session, |session, cx| {
            for socket in 0..session.sockets.len() {
                let abort = cx.random.one_in(4);
                session.close(cx, socket, abort);
            }
        });
        let node = &mut self.nodes[at];
        let clock = node.clock(self.now_us);
        let of = &node.sessions[session];
        if of.alive && !of.is_hostile() {
            (0..of.listeners.len()).for_each(|number| node.close_listening(clock, session, number));
        }
        self.schedule(self.now_us, What::Retry { node: at });
    }
}
