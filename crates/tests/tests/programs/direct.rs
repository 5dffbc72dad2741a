//! Connections that go from program to program, past the engine, when their ends fork, exec and die.

use crate::files::compiled;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::Lab;
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";

/// Both ends talk until the connection has left the engine, and then go through `what`.
fn goes_through(what: &str) {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let script = lab.dir().join("direct.py");
    std::fs::write(&script, include_str!("direct.py")).expect("direct.py");
    let run = |role: &str| {
        let mut command = On::Engine(&engine).command(&lab, PYTHON);
        command.arg(&script).args([role, what]);
        Program::spawn(role, &mut command)
    };
    let mut server = run("serve");
    server.wait_for_line("ready", SOON);
    engine.wait_for_listener(7300);
    let said = run("client").wait(SOON).expect_success("client");
    assert_eq!(said.trim(), "same");
    assert_eq!(engine.status().counters["direct_connections"], 1, "it did leave the engine");
    drop(server);
    engine.wait_until_idle(SOON);
}

#[test]
fn a_child_reads_on_where_its_parent_stopped() {
    goes_through("fork");
}

#[test]
fn what_a_child_goes_on_with_alone_leaves_the_engine() {
    goes_through("child");
}

/// Where processors are short a child is there before its parent gets round to it.
#[test]
fn it_does_so_too_when_its_parent_closes_its_copy_late() {
    goes_through("late");
}

#[test]
fn a_program_after_exec_goes_on() {
    goes_through("exec");
}

#[test]
fn a_killed_program_that_left_bytes_unread_is_a_reset() {
    goes_through("unread");
}

#[test]
fn a_killed_program_that_read_everything_is_the_end() {
    goes_through("read");
}

/// What a server with such a connection does, and how often the connection was claimed by then.
fn claims_after_spawning(what: &str) -> u64 {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let run = |role: &str| {
        let mut command = On::Engine(&engine).command(&lab, PYTHON);
        command.arg("-c").arg(include_str!("spawn.py")).args([role, what]);
        Program::spawn(role, &mut command)
    };
    let mut server = run("serve");
    server.wait_for_line("ready", SOON);
    engine.wait_for_listener(7302);
    let said = run("client").wait(SOON).expect_success("client");
    assert_eq!(said.trim(), "same");
    server.wait(SOON).expect_success("server");
    let counters = engine.status().counters;
    assert_eq!(counters["direct_connections"], 1, "it did leave the engine");
    counters.get("claims").copied().unwrap_or_default()
}

/// It was given back before each, and went through the engine from then on.
#[test]
fn programs_that_are_not_given_a_connection_leave_it_where_it_is() {
    assert_eq!(claims_after_spawning("closed"), 0);
}

#[test]
fn a_program_that_is_given_a_connection_goes_on_with_it() {
    for what in ["given", "inherited"] {
        assert!(claims_after_spawning(what) > 0, "{what}");
    }
}

/// Found by reading: one lock of the whole process was held while the holder of one connection was asked for it, for ten seconds.
#[test]
fn who_waits_for_a_holder_that_stands_still_keeps_nobody_from_another_connection() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = compiled(&lab, "side_by_side");
    let mut command = engine.run(&lab, program.to_str().expect("a name"));
    child::run("side_by_side", command.arg("7301"), SOON).expect_success("side_by_side");
    let counters = engine.status().counters;
    assert_eq!((counters["direct_connections"], counters["yields"]), (1, 1), "it had to be given up first");
}
