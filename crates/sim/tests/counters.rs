//! Whatever the engine counts is reached by the simulator, by the corpora, or by one of the small scenes below: what nothing
//! reaches has never been seen to work.

use std::path::Path;
use toe_engine::Counter;
use toe_sim::corpus::Target;
use toe_sim::datagrams;
use toe_sim::fuzz;
use toe_sim::scenes;
use toe_sim::tally::Tallies;
use toe_sim::trace::Trace;
use toe_sim::wider::{RECORDS_FROM, SHARING_FROM, WIDER_FROM};
use toe_sim::{Fault, Runner, run};

/// Seeds of each kind; in a debug build a few seconds.
const SEEDS: u64 = 300;
/// Seeds with only one fault, each with one that is rare among all.
const ALONE: [(Fault, u64); 2] = [(Fault::Passes, 200), (Fault::Mtu, 40)];

fn corpora(total: &mut Tallies) {
    for line in include_str!("../corpus/frames.txt").lines().filter(|line| !line.starts_with('#')) {
        let (_, digits) = line.split_once(' ').expect("a counter and a frame");
        let mut target = Target::new();
        target.frame(&bytes(digits), false);
        total.add_engine(target.engine());
    }
    for target in fuzz::Target::ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name());
        let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for file in files.flatten() {
            let data =
                std::fs::read(file.path()).unwrap_or_else(|e| panic!("{}: {e}", file.path().display()));
            total.merge(&target.run(&data));
        }
    }
}

fn seeds(total: &mut Tallies) {
    let mut memories = Vec::new();
    let mut go = |seed, only| {
        let outcome = run(seed, Runner { only, sabotage: None }, &mut memories, Trace::Off);
        assert_eq!(outcome.failure, None, "toe-sim --seed {seed} --trace, only {only:?}");
        total.merge(&outcome.tallies);
    };
    for first in [0, WIDER_FROM, SHARING_FROM, RECORDS_FROM] {
        (first..first + SEEDS).for_each(|seed| go(seed, None));
    }
    for (fault, count) in ALONE {
        (WIDER_FROM..WIDER_FROM + count).for_each(|seed| go(seed, Some(fault)));
    }
    for seed in 0..SEEDS {
        total.merge(
            &datagrams::run(seed, None)
                .unwrap_or_else(|wrong| panic!("toe-sim --datagrams --seed {seed}: {wrong}")),
        );
    }
}

fn scenes(total: &mut Tallies) {
    // More frames than there is room for, before anything can be sent.
    let mut target = Target::new();
    for line in include_str!("../corpus/bursts.txt").lines().filter(|line| !line.starts_with('#')) {
        let (copies, digits) = line.split_once(' ').expect("how many, and a frame");
        target.burst(&bytes(digits), copies.parse().expect("a number"));
    }
    total.add_engine(target.engine());
    total.merge(&scenes::port_again_after_time_wait());
    total.merge(&scenes::fast_open_beyond_its_limits());
    total.merge(&fast_open_comes_again());
    total.merge(&scenes::a_direct_connection_changes_hands());
    // The kernel socket that holds a listener's port goes.
    let mut target = Target::shared();
    target.twin_goes();
    total.add_engine(target.engine());
}

fn fast_open_comes_again() -> Tallies {
    let tallies = scenes::fast_open_comes_again();
    let (sent, received) = (tallies.engine(Counter::FastOpenSent), tallies.engine(Counter::FastOpenReceived));
    assert!(received > sent, "{received} of {sent} connections came early: none came again");
    tallies
}

fn bytes(digits: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).expect("hexadecimal") as u8;
    digits.trim().as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

const DATAGRAMS: &str = "crates/engine/src/engine/tests/datagrams.rs";
/// What no world comes to, and what shows it instead.
const ELSEWHERE: [(Counter, &str); 23] = [
    // Worlds have memory for all that their programs leave unread.
    (Counter::PrunedOutOfOrder, "crates/engine/src/engine/tests/pressure.rs"),
    (Counter::TimeWaitResets, "crates/script/scripts/rfc1337"),
    // The memory of a world is always there.
    (Counter::FenceMemoryLost, "crates/ring/src/tests/lost_memory.rs"),
    // Two of one machine's sockets meet by it, past the engine.
    (Counter::Lanes, "crates/tests/tests/programs/lanes.rs"),
    // Somebody always takes, or the listener goes.
    (Counter::ListenersLeft, "crates/tests/tests/programs/rights.rs"),
    // Of datagrams what the worlds of datagrams do not come to.
    (Counter::RxDatagrams, DATAGRAMS),
    (Counter::TxDatagrams, DATAGRAMS),
    (Counter::TxFragments, DATAGRAMS),
    (Counter::DatagramsByLane, DATAGRAMS),
    (Counter::DatagramsByKernel, DATAGRAMS),
    (Counter::DropBadUdp, DATAGRAMS),
    (Counter::DropBadUdpChecksum, DATAGRAMS),
    (Counter::DropNoSocket, DATAGRAMS),
    (Counter::DropDatagramQueueFull, DATAGRAMS),
    (Counter::DropDatagramUndeliverable, DATAGRAMS),
    (Counter::DropDatagramBadRecord, DATAGRAMS),
    (Counter::DropDatagramNoRoute, DATAGRAMS),
    (Counter::DropDatagramNoNeighbour, DATAGRAMS),
    (Counter::DatagramErrors, DATAGRAMS),
    (Counter::Unreachables, DATAGRAMS),
    (Counter::UnreachablesHeldBack, DATAGRAMS),
    (Counter::ViaConnections, "crates/daemon/src/tests/via.rs"),
    // The shares of a world's users end before the table does.
    (Counter::DropFlowTableFull, "crates/engine/src/engine/tests/quota.rs"),
];

#[test]
fn every_counter_is_reached() {
    let mut total = Tallies::default();
    seeds(&mut total);
    corpora(&mut total);
    scenes(&mut total);
    for counter in Counter::ALL {
        println!("{:<40} {:>12}", counter.name(), total.engine(*counter));
    }
    let unreached: Vec<_> = Counter::ALL
        .iter()
        .filter(|c| total.engine(**c) == 0 && !is_elsewhere(c))
        .map(|c| c.name())
        .collect();
    assert!(
        unreached.is_empty(),
        "nothing reaches {unreached:?}: add a seed, an input of a corpus, or a scene"
    );
}

fn is_elsewhere(counter: &Counter) -> bool {
    ELSEWHERE.iter().any(|(elsewhere, _)| elsewhere == counter)
}
