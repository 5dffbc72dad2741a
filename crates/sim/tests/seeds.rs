//! Seeds, run as `toe-sim` runs them: a fixed set, those that failed once, and whether a run is the same twice.

use toe_sim::datagrams::{self, Mistake};
use toe_sim::files;
use toe_sim::messages;
use toe_sim::trace::Trace;
use toe_sim::wider::{KERNEL_FROM, RECORDS_FROM, SHARING_FROM, WIDER_FROM};
use toe_sim::{Checker, Failure, Fault, Runner, Sabotage, Tallies, Tally, run};

/// Of those with [`Fault::IdleMemory`], which take long, two with pages that go back.
const IDLE: std::ops::RangeInclusive<u64> = 21..=22;

/// So many seeds are run by every test run; a debug build does them in a few seconds.
const SEEDS: u64 = 300;

fn fails(seed: u64, failure: &Failure) -> ! {
    let Failure { checker, at_us, what } = failure;
    panic!(
        "seed {seed}: {} at {at_us} us: {what}\nto run it again: toe-sim --seed {seed} --trace",
        checker.name()
    )
}

#[test]
fn a_fixed_set_of_seeds() {
    let (mut memories, mut total) = (Vec::new(), Tallies::default());
    // A link that narrows under a busy connection is rare among all faults; alone it is not.
    let narrow = Runner { only: Some(Fault::Mtu), ..Runner::default() };
    let all = [0, WIDER_FROM, SHARING_FROM, RECORDS_FROM, KERNEL_FROM]
        .into_iter()
        .flat_map(|first| first..first + SEEDS);
    let all = all.map(|seed| (seed, Runner::default()));
    let watched = Runner { only: Some(Fault::Watched), ..Runner::default() };
    let gives_back = Runner { only: Some(Fault::GivesBack), ..Runner::default() };
    let gives_back = (0..SEEDS).map(|seed| (seed, gives_back));
    let late = Runner { only: Some(Fault::LateEntries), ..Runner::default() };
    let heads = Runner { only: Some(Fault::Heads), ..Runner::default() };
    let alone = (0..100).flat_map(|seed| [(seed, narrow), (seed, watched), (seed, late), (seed, heads)]);
    let idle = Runner { only: Some(Fault::IdleMemory), ..Runner::default() };
    let alone = alone.chain(gives_back).chain(IDLE.map(|seed| (seed, idle)));
    for (seed, runner) in all.chain(alone) {
        let outcome = run(seed, runner, &mut memories, Trace::Off);
        total.merge(&outcome.tallies);
        if let Some(failure) = outcome.failure {
            fails(seed, &failure);
        }
    }
    for seed in 0..SEEDS {
        match datagrams::run(seed, None) {
            Ok(tallies) => total.merge(&tallies),
            Err(wrong) => panic!("seed {seed}: {wrong}\nto run it again: toe-sim --datagrams --seed {seed}"),
        }
    }
    for seed in 0..SEEDS / 3 {
        match messages::run(seed, None) {
            Ok(tallies) => total.merge(&tallies),
            Err(wrong) => panic!("seed {seed}: {wrong}\nto run it again: toe-sim --messages --seed {seed}"),
        }
    }
    for seed in 0..SEEDS / 3 {
        match files::run(seed, None) {
            Ok(tallies) => total.merge(&tallies),
            Err(wrong) => panic!("seed {seed}: {wrong}\nto run it again: toe-sim --files --seed {seed}"),
        }
    }
    // Else the set says nothing of it.
    for tally in Tally::ALL {
        assert!(total.get(*tally) > 0, "no seed had: {}", tally.name());
    }
}

#[test]
fn seeds_that_failed_once() {
    let list = include_str!("../seeds.txt");
    let mut memories = Vec::new();
    let seeds = list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(' ').next());
    let mut count = 0;
    for seed in seeds {
        let seed = seed.parse().expect("a number first");
        count += 1;
        if let Some(failure) = run(seed, Runner::default(), &mut memories, Trace::Off).failure {
            fails(seed, &failure);
        }
    }
    assert!(count > 0);
}

#[test]
fn a_seed_gives_the_same_run_whatever_ran_before() {
    let mut memories = Vec::new();
    for seed in 0..20 {
        let digest =
            |memories: &mut Vec<_>| run(seed, Runner::default(), memories, Trace::Digest(0)).trace.digest();
        let fresh = digest(&mut Vec::new());
        assert_eq!(fresh, digest(&mut memories), "seed {seed}");
        assert_ne!(fresh, 0);
    }
}

/// Who is to find each deliberate mistake.
fn finder(sabotage: Sabotage) -> &'static [Checker] {
    match sabotage {
        Sabotage::FlipPayload => &[Checker::Streams],
        Sabotage::FlipAcknowledgement
        | Sabotage::AcknowledgeLess
        | Sabotage::WrongChecksum
        | Sabotage::ShiftSequence => &[Checker::Sequence],
        // Past the end of the part, or into the memory of another connection.
        Sabotage::MisplaceWrites => &[Checker::Isolation, Checker::Streams],
        Sabotage::LoseData => &[Checker::Liveness, Checker::Streams],
        Sabotage::ForgetTimeouts => &[Checker::Timers],
        Sabotage::KeepSockets => &[Checker::Memory],
        Sabotage::ForgetSteering => &[Checker::Steering],
        Sabotage::ForgetTrims => &[Checker::Reports],
        Sabotage::Capture(_) => &[Checker::Captures],
    }
}

#[test]
fn mistakes_with_datagrams_are_found() {
    for mistake in [Mistake::Doubles, Mistake::Joins, Mistake::FromAnother, Mistake::Loses] {
        let found = (0..SABOTAGED).filter(|seed| datagrams::run(*seed, Some(mistake)).is_err()).count();
        assert!(found >= 10, "{mistake:?} was found {found} times");
    }
}

#[test]
fn mistakes_with_messages_are_found() {
    for mistake in messages::Mistake::ALL {
        let found = (0..SABOTAGED).filter(|seed| messages::run(*seed, Some(mistake)).is_err()).count();
        assert!(found >= 3, "{mistake:?} was found {found} times");
    }
}

#[test]
fn mistakes_with_files_are_found() {
    for mistake in files::Mistake::ALL {
        let found = (0..2 * SABOTAGED).filter(|seed| files::run(*seed, Some(mistake)).is_err()).count();
        assert!(found >= 3, "{mistake:?} was found {found} times");
    }
}

/// So many seeds are run with each mistake.
const SABOTAGED: u64 = 15;

#[test]
fn checkers_find_what_they_are_there_for() {
    for sabotage in Sabotage::ALL {
        let how = Runner { only: sabotage.needs(), sabotage: Some(*sabotage) };
        let mut found = Vec::new();
        // What needs a fault of its own shows in few of its worlds: a local connection that uses a channel is rare.
        let seeds = if sabotage.needs().is_some() { 6 * SABOTAGED } else { SABOTAGED };
        for seed in 0..seeds {
            if let Some(failure) = run(seed, how, &mut Vec::new(), Trace::Off).failure {
                found.push(failure);
            }
        }
        let right = found.iter().filter(|f| finder(*sabotage).contains(&f.checker)).count();
        assert!(right >= 3, "{sabotage:?} was found {right} times: {found:?}");
    }
}
