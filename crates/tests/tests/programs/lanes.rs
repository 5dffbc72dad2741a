//! UDP between two processes, past the kernel and the engine: programs that print what they are told say the same as on the kernel alone.

use crate::files::compiled;
use std::process::Command;
use std::time::Duration;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;

const LONG: Duration = Duration::from_secs(120);
/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";

/// Runs scenes of `lanes.py` on both stacks; `lanes`: as many as there must have been, at least.
#[track_caller]
fn says_the_same(scenes: &[&str], lanes: u64) {
    let lab = Lab::new();
    let script = lab.dir().join("lanes.py");
    std::fs::write(&script, include_str!("lanes.py")).expect("lanes.py");
    let said = |mut command: Command| {
        Program::spawn("lanes.py", command.arg(&script).args(scenes)).wait(LONG).expect_success("lanes.py")
    };
    let on_kernel = said(lab.command(Side::Server, PYTHON));
    let engine = Engine::local(&lab);
    let on_engine = said(On::Engine(&engine).command(&lab, PYTHON));
    assert_eq!(on_kernel, on_engine);
    let counters = engine.status().counters;
    assert!(counters.get("lanes").is_some_and(|made| *made >= lanes), "{counters:?}");
}

#[test]
fn datagrams_come_whole_and_in_order() {
    says_the_same(&["order", "bursts", "six"], 6);
}

#[test]
fn calls_tell_of_a_datagram_what_they_tell_on_linux() {
    says_the_same(&["details"], 2);
}

#[test]
fn what_a_datagram_carries_beside_its_bytes_goes_along() {
    says_the_same(&["control"], 2);
}

#[test]
fn who_waits_for_a_datagram_is_woken_however_he_waits() {
    says_the_same(&["waits", "signals"], 4);
}

/// The handler of a signal that came while recv looked at the lanes ran before recv slept, which knew nothing of it.
#[test]
fn a_signal_ends_a_recv_that_looks_at_the_lanes() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = compiled(&lab, "signal_in_lane");
    for mut command in [lab.command(Side::Server, &bin), engine.run(&lab, &bin.display().to_string())] {
        let said = Program::spawn("signal_in_lane", command.arg("7000")).wait(LONG);
        assert_eq!(said.expect_success("signal_in_lane"), "all\n");
    }
    let counters = engine.status().counters;
    assert_eq!(counters.get("lanes"), Some(&2), "{counters:?}");
}

#[test]
fn epoll_tells_of_datagrams_past_the_kernel() {
    says_the_same(&["loops", "news"], 8);
}

#[test]
fn a_third_sender_is_heard_and_keeps_its_order() {
    says_the_same(&["third"], 2);
}

#[test]
fn copies_of_a_socket_and_children_have_what_is_theirs() {
    says_the_same(&["copies"], 2);
}

#[test]
fn the_end_of_a_socket_or_a_process_is_told_and_loses_nothing() {
    says_the_same(&["refused", "killed"], 4);
}

#[test]
fn another_peer_and_other_options_end_lanes() {
    // How often the two meet again depends on when they ask.
    says_the_same(&["lates"], 2);
}
