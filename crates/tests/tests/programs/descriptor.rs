//! A connection's descriptor as a program sees it: fstat, lseek, fcntl, children of every kind, calls that few make, and
//! what several processes do with one.

use std::time::Duration;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// For a script that moves tens of megabytes and makes a hundred processes.
const LONG: Duration = Duration::from_secs(60);

/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";

/// Runs a script, which says `same` when all is as on the kernel's stack; its connections are the engine's, so many.
fn run(name: &str, script: &str, connections: u64) {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join(name);
    std::fs::write(&file, script).expect("a file in the lab");
    let mut command = On::Engine(&engine).command(&lab, PYTHON);
    command.arg(&file);
    let said = Program::spawn(name, &mut command).wait(LONG).expect_success(name);
    assert_eq!(said.trim(), "same");
    let counters = engine.status().counters;
    assert_eq!(counters["passive_opens"], connections, "the connections were the engine's: {counters:?}");
    engine.wait_until_idle(SOON);
}

#[test]
fn a_connection_looks_like_a_socket_and_outlives_children() {
    run("descriptor.py", include_str!("descriptor.py"), 7);
}

#[test]
fn calls_that_few_programs_make_do_what_they_do_on_linux() {
    run("calls.py", include_str!("calls.py"), 7);
}

#[test]
fn what_several_processes_have_is_neither_lost_nor_doubled() {
    run("sharing.py", include_str!("sharing.py"), 58);
}

#[test]
fn sockets_of_inet6_are_the_engines_whatever_their_addresses() {
    run("inet6.py", include_str!("inet6.py"), 9);
}

/// What a script says on either stack; on the engine its connections are that one's, so many.
fn said_on_both(name: &str, script: &str, connections: u64) -> [String; 2] {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join(name);
    std::fs::write(&file, script).expect("a file in the lab");
    let said = [On::Kernel(Side::Server), On::Engine(&engine)]
        .map(|on| Program::spawn(name, on.command(&lab, PYTHON).arg(&file)).wait(LONG).expect_success(name));
    let counters = engine.status().counters;
    assert_eq!(counters["passive_opens"], connections, "the connections were the engine's: {counters:?}");
    said
}

#[test]
fn a_connection_that_lingers_for_no_time_is_reset_however_it_ends() {
    let [kernel, engine] = said_on_both("linger_exit.py", include_str!("linger_exit.py"), 16);
    assert_eq!(kernel, engine);
}
