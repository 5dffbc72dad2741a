//! Sequences of calls: chosen and made, made again from a list, made shorter, reported.

use crate::call::Call;
use crate::choose::Chooser;
use crate::pair::{Difference, PATIENCE, PORTS, Pair};
use crate::rng::Rng;
use crate::stack::View;
use crate::world::{Kind, World};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use toe_tests::bins;
use toe_tests::child;
use toe_tests::engine::Engine;
use toe_tests::lab::Lab;
use toe_tests::wait::SOON;

/// Calls of one sequence; each begins with fresh workers.
const LENGTH: usize = 250;
/// Calls shown of a sequence that differs.
const SHOWN: usize = 30;
/// How long shorter sequences are tried to make a difference plain, and how long a call may block and a difference may last in them.
const SHORTEN_FOR: Duration = Duration::from_secs(110);
const SHORTER_LIMIT_MS: u32 = 60;
/// More than the 200 ms for which corked bytes are held back.
const SHORTER_PATIENCE: Duration = Duration::from_millis(300);
/// Ports from one sequence to the next, so that no connection of one is in the other's way.
const PORT_STEP: i64 = 10;

/// The lab, the engine, the worker's program, and what was counted.
#[derive(Debug)]
pub struct Test {
    lab: Lab,
    engine: Engine,
    worker: PathBuf,
    calls: BTreeMap<String, u64>,
    asked_again: u64,
    /// Looks at once, and those of them that the engine answered too early.
    looks: u64,
    late_looks: u64,
    /// Sequences that ended because connections of both stacks waited at one listener.
    ended: u64,
    shift: i64,
    /// Of which kind the sockets are.
    kind: Kind,
}

impl Test {
    pub fn new(kind: Kind) -> Test {
        let lab = Lab::new();
        let engine = Engine::local(&lab);
        let worker = build(&lab);
        Test {
            lab,
            engine,
            worker,
            calls: BTreeMap::new(),
            asked_again: 0,
            looks: 0,
            late_looks: 0,
            ended: 0,
            shift: 0,
            kind,
        }
    }

    /// Sequences from `seed` on until there were `calls` calls. With `go_on` not only the first difference is shown.
    pub fn run(&mut self, seed: u64, calls: u64, go_on: bool) {
        let start = Instant::now();
        let mut made = 0;
        let mut seed = seed;
        let mut differences: BTreeMap<String, u64> = BTreeMap::new();
        while made < calls {
            let length = LENGTH.min((calls - made) as usize);
            let mut sequence = Vec::new();
            if let Err(difference) = self.choose(seed, length, &mut sequence) {
                let times = differences.entry(difference.kind.clone()).or_default();
                *times += 1;
                if *times == 1 {
                    self.show(seed, &sequence, &difference);
                }
                assert!(
                    go_on,
                    "the stacks differ at call {} of seed {seed}: {}",
                    difference.at, difference.kind
                );
            }
            made += sequence.len() as u64;
            seed += 1;
        }
        self.report(start, &differences);
    }

    /// Fresh workers, with ports that the sequences before did not use.
    fn pair(&mut self) -> Pair {
        self.shift = (self.shift + PORT_STEP) % (PORTS.end - PORTS.start - PORT_STEP);
        Pair::start(&self.lab, &self.engine, &self.worker, self.shift)
    }

    /// Chooses and makes the calls of a seed; they are put to `sequence`, and the ports in them are as for any other.
    fn choose(&mut self, seed: u64, length: usize, sequence: &mut Vec<Call>) -> Result<(), Box<Difference>> {
        let mut pair = self.pair();
        let (mut world, mut rng) = (World::new(), Rng(seed));
        world.learn(&Call::new(0, "look", &[]), &Default::default(), &View::new());
        let mut look = None;
        for at in 0..length {
            let mut chooser =
                Chooser { rng: &mut rng, world: &world, base_port: PORTS.start, who: 0, kind: self.kind };
            let mut call = match look.take() {
                Some(look) => look,
                None => {
                    let mut call = chooser.next();
                    look = chooser.look_at_once(&call).filter(|_| at + 1 < length);
                    call.hurries = look.is_some();
                    call
                }
            };
            call.id = at;
            sequence.push(call.clone());
            *self.calls.entry(call.name.clone()).or_default() += 1;
            let answer = pair.make(at, &call)?;
            world.learn(&pair.kernel.in_numbers(&call), &answer, &pair.kernel.view);
            if pair.has_unknown_order() {
                self.ended += 1;
                break;
            }
        }
        self.asked_again += pair.asked_again;
        self.looks += pair.looks;
        self.late_looks += pair.late_looks;
        Ok(())
    }

    /// Makes the calls of a list.
    fn remake(
        &mut self,
        sequence: &[Call],
        patience: Duration,
        limit_ms: u32,
    ) -> Result<(), Box<Difference>> {
        let mut pair = self.pair();
        pair.patience = patience;
        for (at, call) in sequence.iter().enumerate() {
            // Without the calls before it one may block that did not.
            let call = &call.clone().within(call.limit_ms.min(limit_ms));
            if pair.can(call) {
                pair.make(at, call)?;
            }
        }
        Ok(())
    }

    /// Makes the calls that a text lists, one a line.
    pub fn replay(&mut self, text: &str) {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let sequence: Vec<Call> = lines.map(|line| line.parse().expect("a line of the replay")).collect();
        match self.remake(&sequence, PATIENCE, u32::MAX) {
            Ok(()) => println!("{} calls, no difference", sequence.len()),
            Err(difference) => panic!("at call {}: {}: {}", difference.at, difference.call, difference.what),
        }
    }

    /// Drops calls from a sequence as long as what is left shows the same difference.
    fn shorten(&mut self, sequence: &[Call], difference: &Difference) -> (Vec<Call>, Difference) {
        let mut best = (sequence[..=difference.at].to_vec(), difference.clone());
        let start = Instant::now();
        let mut step = (best.0.len() / 2).max(1);
        while start.elapsed() < SHORTEN_FOR {
            let mut at = 0;
            while at + 1 < best.0.len() && start.elapsed() < SHORTEN_FOR {
                let mut fewer = best.0.clone();
                fewer.drain(at..(at + step).min(fewer.len() - 1));
                match self.remake(&fewer, SHORTER_PATIENCE, SHORTER_LIMIT_MS) {
                    Err(found) if found.kind == difference.kind => {
                        fewer.truncate(found.at + 1);
                        best = (fewer, *found);
                    }
                    _ => at += step,
                }
            }
            if step == 1 {
                break;
            }
            step = (step / 2).max(1);
        }
        best
    }

    fn show(&mut self, seed: u64, sequence: &[Call], difference: &Difference) {
        println!("\n==== {}\nseed {seed}, the last calls:", difference.kind);
        let first = sequence.len().saturating_sub(SHOWN);
        sequence[first..].iter().for_each(|call| println!("  {call}"));
        println!("difference: {}\n  {}", difference.call, difference.what);
        println!(
            "again: TOE_DIFFER_SEED={seed} TOE_DIFFER_CALLS={} cargo test -p toe-tests --test differential -- --nocapture",
            sequence.len()
        );
        let (shorter, found) = self.shorten(sequence, difference);
        println!("made shorter (a file of these lines is for TOE_DIFFER_REPLAY):");
        shorter.iter().for_each(|call| println!("  {call}"));
        println!("difference: {}\n  {}", found.call, found.what);
    }

    fn report(&self, start: Instant, differences: &BTreeMap<String, u64>) {
        let total: u64 = self.calls.values().sum();
        println!("{total} calls in {:.1?}; by kind: {:?}", start.elapsed(), self.calls);
        let status = self.engine.status();
        let opened = |name: &str| status.counters.get(name).copied().unwrap_or(0);
        println!(
            "asked again: {}; looks at once: {}, late {}; ended by an unknown order: {}; connections of the engine: {} opened, {} taken",
            self.asked_again,
            self.looks,
            self.late_looks,
            self.ended,
            opened("active_opens"),
            opened("passive_opens")
        );
        let counter = if self.kind == Kind::Udp { "lanes" } else { "passive_opens" };
        assert!(opened(counter) > 0, "nothing was the engine's: {:?}", status.counters);
        assert!(differences.is_empty(), "the stacks differ: {differences:#?}");
    }
}

/// Builds the worker as C programs are built here.
fn build(lab: &Lab) -> PathBuf {
    let (sources, worker) = (bins::workspace().join("crates/tests/programs"), lab.dir().join("toe-differ"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&worker);
    cc.args(
        [
            "differ",
            "differ_descriptor",
            "differ_address",
            "differ_data",
            "differ_ready",
            "differ_option",
            "differ_datagram",
        ]
        .map(|name| sources.join(name).with_extension("c")),
    );
    child::run("cc", &mut cc, SOON).expect_success("cc");
    worker
}
