//! A few runs with Linux at the far end, and that mistakes of ours are found there, too. Needs root.

use std::io::Write;
use toe_sim::trace::Trace;
use toe_sim::{Checker, Failure, Runner, Sabotage, linux};

/// So many seeds: mostly waiting, so all at the same time.
const SEEDS: u64 = 12;

fn run_all(how: Runner) -> Vec<(u64, Option<Failure>)> {
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            (0..SEEDS).map(|seed| (seed, scope.spawn(move || linux::run(seed, how, Trace::Off)))).collect();
        let outcome = |run: std::thread::ScopedJoinHandle<'_, _>| run.join().expect("the run's thread");
        runs.into_iter()
            .map(|(seed, run)| (seed, outcome(run).unwrap_or_else(|error| panic!("{error}")).failure))
            .collect()
    })
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        // Not by a macro, whose output is kept from whoever runs the tests.
        let said = "not run: worlds with Linux, as making network namespaces needs root\n";
        std::io::stderr().write_all(said.as_bytes()).expect("standard error");
    }
    is_root
}

#[test]
fn seeds_against_linux() {
    if !is_root() {
        return;
    }
    for (seed, failure) in run_all(Runner::default()) {
        assert_eq!(failure, None, "to run it again: toe-sim --linux --seed {seed} --trace");
    }
}

#[test]
fn a_mistake_is_found() {
    if !is_root() {
        return;
    }
    let found = |sabotage| {
        let failures = run_all(Runner { only: None, sabotage: Some(sabotage) });
        failures.into_iter().filter_map(|(_, failure)| failure).collect::<Vec<_>>()
    };
    // What Linux sent arrives at the engine changed.
    let flipped = found(Sabotage::FlipPayload);
    assert!(flipped.iter().any(|f| f.checker == Checker::Streams), "{flipped:?}");
    // What the engine sends claims more than has arrived.
    let claimed = found(Sabotage::FlipAcknowledgement);
    assert!(claimed.iter().any(|f| f.checker == Checker::Sequence), "{claimed:?}");
}
