//! The far end is Linux's TCP: an engine and its programs as in any world, links that are as bad, and behind them a TAP
//! interface in a namespace of the run's own. Linux keeps real time, so the world's clock follows it until every
//! connection has completed; the end, in which only the engine has something left, is virtual again.
//!
//! A seed gives the same choices each time, but not the same run: when Linux does what is not ours to say.

mod choice;
mod far;
mod program;

use crate::checkers::{Checker, Failure};
use crate::memory::Memory;
use crate::panics;
use crate::program::plan::Excuses;
use crate::run::{Outcome, Runner};
use crate::trace::Trace;
use crate::world::World;
use choice::Choice;
use far::Far;
use program::Programs;
use std::time::{Duration, Instant};
use toe_script::stack::StackError;

/// Linux's number among the stacks.
pub const LINUX: usize = 1;
/// So long without anything that moves, healed, is a stall: above what either side's timers have backed off to by then.
const STALL_US: u64 = 45_000_000;
/// Frames and sockets are looked at this often at least.
const LOOK: Duration = Duration::from_millis(10);

/// Runs `seed` with Linux, in a thread and a namespace of its own. `Err`: it could not be set up.
pub fn run(seed: u64, how: Runner, trace: Trace) -> Result<Outcome, StackError> {
    std::thread::scope(|scope| match scope.spawn(|| run_here(seed, how, trace)).join() {
        Ok(result) => result,
        Err(_) => Err(StackError("the thread of the run panicked".to_owned())),
    })
}

fn run_here(seed: u64, how: Runner, trace: Trace) -> Result<Outcome, StackError> {
    let choice = Choice::of(seed, how.only);
    let far = Far::open(&choice)?;
    let mut memories: Vec<Memory> = Vec::new();
    let mut world = World::new(seed, choice.swarm.clone(), &mut memories, trace);
    world.sabotage = how.sabotage;
    let programs = Programs::new(&choice)?;
    let mut run = Run { world: &mut world, far, programs, start: Instant::now() };
    let failure = match panics::catch(|| run.live(&choice)) {
        Ok(result) => result,
        Err(what) => Err(Stop::Failure(Failure { checker: Checker::Panic, at_us: run.world.now_us, what })),
    };
    let failure = match failure {
        Ok(()) => None,
        Err(Stop::Failure(failure)) => Some(failure),
        Err(Stop::Link(error)) => return Err(error),
    };
    Ok(world.outcome(failure))
}

/// Why a run ends early.
enum Stop {
    Failure(Failure),
    /// The link or a system call does not do what it must.
    Link(StackError),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failure(failure)
    }
}

impl From<StackError> for Stop {
    fn from(error: StackError) -> Stop {
        Stop::Link(error)
    }
}

struct Run<'a> {
    world: &'a mut World,
    far: Far,
    programs: Programs,
    start: Instant,
}

impl Run<'_> {
    fn live(&mut self, choice: &Choice) -> Result<(), Stop> {
        self.world.set_up_sessions();
        let conns = choice.plan(&mut self.world.programs, &mut self.world.tallies);
        for conn in conns {
            self.world.add_connection(conn);
        }
        self.world.conns.excuses =
            Excuses { crowded: self.world.swarm.backlog < choice.swarm.connections, ..self.world.excuses() };
        self.world.schedule_mishaps();
        self.start = Instant::now();
        while self.now_us() < choice.swarm.safety_us && !self.world.all_complete() {
            self.step()?;
        }
        self.world.heal();
        self.everything_completes()?;
        // Linux is gone from here on; what the engine still has to say to it is lost.
        self.programs.close_all();
        self.world.tally_completed();
        self.world.check_streams()?;
        self.world.everything_ends()?;
        Ok(())
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// One look at everything: what is due in the world, what Linux has sent, what its programs can do.
    fn step(&mut self) -> Result<(), Stop> {
        self.world.catch_up(self.now_us())?;
        self.far.take(self.world)?;
        self.world.catch_up(self.now_us())?;
        self.far.give(self.world)?;
        self.programs.step(self.world)?;
        if let Some(failure) = self.world.failure() {
            return Err(failure.into());
        }
        self.far.give(self.world)?;
        let next = Duration::from_micros(self.world.next_us().saturating_sub(self.now_us()));
        self.programs.wait(&self.far, next.min(LOOK))?;
        Ok(())
    }

    fn everything_completes(&mut self) -> Result<(), Stop> {
        let (mut progress, mut moved_at) = (self.world.streams.progress, self.now_us());
        while let Some(waits) = self.world.waits_for() {
            self.step()?;
            let now_us = self.now_us();
            if self.world.streams.progress != progress {
                (progress, moved_at) = (self.world.streams.progress, now_us);
            } else if now_us - moved_at > STALL_US {
                if let Some(why) = self.world.why_it_never_ends(waits as u32) {
                    self.world.conns.list[waits].excuse = Some(why);
                    continue;
                }
                let what = self.world.describe_stall(waits as u32);
                return Err(Failure { checker: Checker::Liveness, at_us: now_us, what }.into());
            }
        }
        Ok(())
    }
}
