//! Where the engine's time goes: clock ticks and items of each stage of a round, for `toe status --stages`. The run
//! loop calls [`Stages::begin`] at the start of a round and [`Stages::done`] after each stage.
//!
//! One round in [`SAMPLE_EVERY`] is measured, whole, so that reading the clock costs next to nothing and a stage's
//! ticks and items come from the same rounds. A stage that found nothing is counted apart: looking in vain is a cost
//! of its own. What is read is the machine's cycle counter where it has one that programs may read.

use crate::sys;
use std::time::Instant;
use toe_abi::report::StageReport;

/// Of so many rounds one is measured. A prime, so that it does not run in step with anything.
const SAMPLE_EVERY: u32 = 31;

/// What a round does, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Entries of hosts taken, checked and carried out.
    Entries,
    /// Frames received and processed.
    Receive,
    /// Deadlines that passed.
    Timers,
    /// Segments between two ends of this engine.
    Local,
    /// Frames built and sent.
    Transmit,
    /// Completions posted, hosts interrupted.
    Completions,
    /// The look at control connections, hang-ups and doorbells.
    Tick,
    /// Waiting without sleep: spinning, and letting others run. Items are such waits.
    Pause,
    /// Sleeping. Items are sleeps.
    Park,
}

impl Stage {
    const ALL: [Stage; 9] = [
        Stage::Entries,
        Stage::Receive,
        Stage::Timers,
        Stage::Local,
        Stage::Transmit,
        Stage::Completions,
        Stage::Tick,
        Stage::Pause,
        Stage::Park,
    ];

    const fn name(self) -> &'static str {
        match self {
            Stage::Entries => "entries",
            Stage::Receive => "receive",
            Stage::Timers => "timers",
            Stage::Local => "local",
            Stage::Transmit => "transmit",
            Stage::Completions => "completions",
            Stage::Tick => "tick",
            Stage::Pause => "pause",
            Stage::Park => "park",
        }
    }
}

/// The sums of one stage.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    items: u64,
    rounds: u64,
    ticks: u64,
    empty_rounds: u64,
    empty_ticks: u64,
}

/// The sums of all stages.
#[derive(Debug)]
pub struct Stages {
    sums: [Sums; Stage::ALL.len()],
    until_sample: u32,
    /// Set while the present round is measured.
    measuring: bool,
    last: u64,
    rounds: u64,
    /// When counting began, on both clocks: that tells the length of a tick.
    began: (Instant, u64),
}

impl Default for Stages {
    fn default() -> Stages {
        let began = (Instant::now(), sys::ticks());
        Stages {
            sums: Default::default(),
            until_sample: SAMPLE_EVERY,
            measuring: false,
            last: 0,
            rounds: 0,
            began,
        }
    }
}

impl Stages {
    /// A round begins.
    pub fn begin(&mut self) {
        self.rounds += 1;
        self.until_sample -= 1;
        self.measuring = self.until_sample == 0;
        if self.measuring {
            self.until_sample = SAMPLE_EVERY;
            self.last = sys::ticks();
        }
    }

    /// `stage` has ended, and what comes now belongs to the next one.
    pub fn done(&mut self, stage: Stage, items: usize) {
        if self.measuring {
            self.add(stage, items, sys::ticks());
        }
    }

    fn add(&mut self, stage: Stage, items: usize, at: u64) {
        let sums = &mut self.sums[stage as usize];
        // A counter that differs between cores may run back; then nothing is better than an age.
        let ticks = at.saturating_sub(self.last);
        self.last = at;
        if items == 0 {
            sums.empty_rounds += 1;
            sums.empty_ticks += ticks;
        } else {
            sums.items += items as u64;
            sums.rounds += 1;
            sums.ticks += ticks;
        }
    }

    /// What was measured so far.
    pub fn report(&self) -> Vec<StageReport> {
        let nanos = self.began.0.elapsed().as_nanos() as f64;
        let ticks = sys::ticks().saturating_sub(self.began.1).max(1) as f64;
        self.report_at(nanos / ticks)
    }

    /// The same with a tick of `tick_ns`.
    fn report_at(&self, tick_ns: f64) -> Vec<StageReport> {
        let report = |stage: Stage| {
            let sums = &self.sums[stage as usize];
            StageReport {
                stage: stage.name().to_owned(),
                items: sums.items,
                rounds: sums.rounds,
                ns: (sums.ticks as f64 * tick_ns) as u64,
                ticks: sums.ticks,
                empty_rounds: sums.empty_rounds,
                empty_ns: (sums.empty_ticks as f64 * tick_ns) as u64,
            }
        };
        Stage::ALL.into_iter().map(report).collect()
    }

    /// Rounds so far, measured or not.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_in_many_is_measured_and_empty_looks_stand_apart() {
        let mut stages = Stages::default();
        for round in 0..10 * SAMPLE_EVERY {
            stages.begin();
            stages.done(Stage::Entries, 3);
            stages.done(Stage::Receive, if round % 2 == 0 { 5 } else { 0 });
        }
        let report = stages.report();
        let of = |name: &str| report.iter().find(|s| s.stage == name).expect("a stage").clone();
        let (entries, receive) = (of("entries"), of("receive"));
        assert_eq!((entries.items, entries.rounds, entries.empty_rounds), (30, 10, 0));
        assert_eq!((receive.items, receive.rounds, receive.empty_rounds), (25, 5, 5));
        assert_eq!(of("park").rounds + of("park").empty_rounds, 0);
        assert_eq!(stages.rounds(), u64::from(10 * SAMPLE_EVERY));
    }

    #[test]
    fn each_stage_has_its_own_time() {
        let mut stages = Stages { last: 1000, ..Stages::default() };
        stages.add(Stage::Receive, 2, 1400);
        stages.add(Stage::Transmit, 0, 1500);
        stages.add(Stage::Park, 1, 900);
        let sums = |stage: Stage| stages.sums[stage as usize];
        assert_eq!((sums(Stage::Receive).ticks, sums(Stage::Transmit).empty_ticks), (400, 100));
        assert_eq!(sums(Stage::Park).ticks, 0, "a clock that ran back");
    }

    #[test]
    fn ticks_become_nanoseconds() {
        let mut stages = Stages { last: 1000, ..Stages::default() };
        stages.add(Stage::Park, 1, 1400);
        stages.add(Stage::Park, 0, 1500);
        let park = stages.report_at(0.5).pop().expect("the last stage");
        assert_eq!((park.stage.as_str(), park.ticks, park.ns, park.empty_ns), ("park", 400, 200, 50));
    }
}
