//! What the engine does with its time: its clock, when it rests, and what it counts of that. Used by the run loop.

use crate::clock::Clock;
use crate::load::Meter;
use crate::rest::Rest;
use crate::stages::{Stage, Stages};
use toe_base::Instant;
use toe_ring::EngineLooks;

/// What the engine does with its time.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) clock: Clock,
    pub(crate) rest: Rest,
    pub(crate) stages: Stages,
    pub(crate) meter: Meter,
    /// What every host sees of how far it is.
    pub(crate) looks: EngineLooks,
    pub(crate) next_tick: Instant,
    /// When memory that nobody needs is looked for again.
    pub(crate) trim_at: Instant,
}

impl Timing {
    pub(crate) fn new(spin_us: u64) -> std::io::Result<Timing> {
        Ok(Timing {
            clock: Clock::new(),
            rest: Rest::new(spin_us),
            stages: Stages::default(),
            meter: Meter::default(),
            looks: EngineLooks::new()?,
            next_tick: Instant::ZERO,
            trim_at: Instant::ZERO,
        })
    }

    pub(crate) fn let_others_run(&mut self, before: Instant) {
        rustix::thread::sched_yield();
        self.rest.yielded(before, self.clock.now());
        self.stages.done(Stage::Pause, 1);
    }
}
