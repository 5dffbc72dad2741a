//! The committed corpora, replayed: each frame reaches the counter that stands beside it, and whatever is made of it by
//! flips, cuts and joints neither panics nor leaves anything behind.

use std::path::Path;
use toe_engine::Counter;
use toe_sim::corpus::Target;
use toe_sim::fuzz;
use toe_sim::random::{Draws, Random};
use toe_sim::tally::Tallies;

/// Changed frames for each one of the corpus.
const CHANGED: u32 = 1500;

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let text = include_str!("../corpus/frames.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (counter, hex) = line.split_once(' ').expect("a counter and a frame");
            let hex = hex.trim();
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
            (counter, (0..hex.len()).step_by(2).map(byte).collect())
        })
        .collect()
}

#[test]
fn each_frame_reaches_its_counter() {
    for (name, frame) in frames() {
        let counter = Counter::ALL.iter().find(|c| c.name() == name);
        let counter = *counter.unwrap_or_else(|| panic!("there is no counter {name}"));
        let mut target = Target::new();
        target.frame(&frame, false);
        assert_eq!(target.engine().view().counter(counter), 1, "{name}: {frame:02x?}");
    }
}

#[test]
fn changed_frames_do_no_harm() {
    let frames = frames();
    let mut random = Random::new(1, Draws::Hostile);
    let mut target = Target::new();
    for (_, frame) in &frames {
        for _ in 0..CHANGED {
            let mut changed = frame.clone();
            let other = &frames[random.below(frames.len() as u32) as usize].1;
            toe_sim::corpus::change(&mut random, &mut changed, other);
            let vouched = random.one_in(2);
            target.frame(&changed, vouched);
        }
    }
    target.ends_clean();
}

/// Everything in a target's folder, replayed.
fn replay(target: fuzz::Target) -> Tallies {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name());
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{}", folder.display());
    let mut total = Tallies::default();
    for file in files {
        let data = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        match std::panic::catch_unwind(|| target.run(&data)) {
            Ok(tallies) => total.merge(&tallies),
            Err(panic) => {
                println!("{}", file.display());
                std::panic::resume_unwind(panic);
            }
        }
    }
    total
}

#[test]
fn what_fuzzers_found_does_no_harm() {
    for target in fuzz::Target::ALL.iter().filter(|target| **target != fuzz::Target::Operations) {
        replay(*target);
    }
}

#[test]
fn operations_do_no_harm_and_come_to_fast_open() {
    let total = replay(fuzz::Target::Operations);
    for counter in
        [Counter::FastOpenAsked, Counter::FastOpenSent, Counter::FastOpenReceived, Counter::FastOpenLost]
    {
        assert!(total.engine(counter) > 0, "no input comes to {}", counter.name());
    }
}
