//! TLS records by the kernel's interface (TCP_ULP "tls"), by unmodified programs. The kernel need not have its module: what is expected is what
//! its documentation and its self-tests say.

use std::process::Command;
use std::time::Duration;
use toe_tests::engine::Engine;
use toe_tests::lab::Lab;
use toe_tests::wait::SOON;
use toe_tests::{bins, child};

/// Six suites, each with some megabytes in small pieces.
const LIMIT: Duration = Duration::from_secs(120);

/// Every call with fixed keys at both ends, within a process and between two.
#[test]
fn records_go_both_ways_by_every_call() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let (source, bin) = (bins::workspace().join("crates/tests/programs/ktls.c"), lab.dir().join("ktls"));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-o"]).arg(&bin).arg(&source);
    child::run("cc", &mut cc, SOON).expect_success("cc");
    let mut command = engine.run(&lab, &bin.display().to_string());
    assert_eq!(child::run("ktls", command.arg("7000"), LIMIT).expect_success("ktls"), "all\n");
    let counters = engine.status().counters;
    assert!(counters.get("local_segments").is_some_and(|n| *n > 0), "it was the engine's: {counters:?}");
}
