//! A connection's descriptor as a program sees it: fstat, lseek, fcntl, and children of every kind.

use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::Lab;
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";

#[test]
fn a_connection_looks_like_a_socket_and_outlives_children() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let script = lab.dir().join("descriptor.py");
    std::fs::write(&script, include_str!("descriptor.py")).expect("descriptor.py");
    let mut command = On::Engine(&engine).command(&lab, PYTHON);
    command.arg(&script);
    let said = Program::spawn("descriptor", &mut command).wait(SOON).expect_success("descriptor");
    assert_eq!(said.trim(), "same");
    assert_eq!(engine.status().counters["passive_opens"], 7, "the connections were the engine's");
    engine.wait_until_idle(SOON);
}
