//! The differential test: random sequences of socket calls, made by the same workers on the kernel's stack and on the
//! engine. Results, error numbers, data and readiness are equal, or the difference is in docs/compatibility.md.
//!
//! | variable | is |
//! |---|---|
//! | `TOE_DIFFER_CALLS` | calls to make, about (5000) |
//! | `TOE_DIFFER_SEED` | the first sequence's seed (1); each sequence has the next |
//! | `TOE_DIFFER_GO_ON` | 1: each kind of difference is shown, not only the first |
//! | `TOE_DIFFER_REPLAY` | a file of calls, one a line as a failure shows them, to be made instead |
#![forbid(unsafe_code)]

mod call;
mod choose;
mod choose_data;
mod choose_datagram;
mod choose_rest;
mod known;
mod linux;
#[allow(dead_code, reason = "of requests the other test has more")]
#[path = "../options/names.rs"]
mod names;
#[path = "../options/known.rs"]
mod other_options;
mod pair;
mod rng;
mod sequence;
mod stack;
mod world;

use sequence::Test;
use toe_tests::bins;
use world::Kind;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?}")))
}

#[test]
fn the_kernel_and_the_engine_do_the_same() {
    compare(Kind::Tcp);
}

#[test]
fn they_do_the_same_with_datagrams() {
    compare(Kind::Udp);
}

/// Each file of `corpus` is a sequence that was found to differ once, as short as it could be made.
#[test]
fn what_differed_once_is_the_same_now() {
    let corpus = bins::workspace().join("crates/tests/tests/differential/corpus");
    let mut files: Vec<_> = std::fs::read_dir(corpus)
        .expect("the corpus")
        .map(|file| file.expect("a file of it").path())
        .collect();
    files.sort();
    let mut test = Test::new(Kind::Tcp);
    for file in files {
        println!("{}", file.display());
        test.replay(&std::fs::read_to_string(&file).expect("a sequence"));
    }
}

fn compare(kind: Kind) {
    let mut test = Test::new(kind);
    if let Ok(path) = std::env::var("TOE_DIFFER_REPLAY") {
        test.replay(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")));
        return;
    }
    test.run(
        number("TOE_DIFFER_SEED", 1),
        number("TOE_DIFFER_CALLS", 5000),
        number("TOE_DIFFER_GO_ON", 0) != 0,
    );
}
