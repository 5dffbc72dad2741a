//! Every option and request of a TCP socket in every state, on the kernel's stack and on the engine: errors, lengths and
//! values are the same, or the difference is listed here with its reason. docs/compatibility.md has the table that this makes.
//!
//! `TOE_OPTIONS_WRITE=1` writes it there.
#![forbid(unsafe_code)]

mod answers;
mod known;
mod names;
mod table;

use answers::Answers;
use std::path::{Path, PathBuf};
use std::process::Command;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;
use toe_tests::{bins, child};

/// Builds the program as C programs are built here.
fn build(lab: &Lab) -> PathBuf {
    let program = lab.dir().join("toe-options");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    cc.arg(bins::workspace().join("crates/tests/programs/options.c"));
    child::run("cc", &mut cc, SOON).expect_success("cc");
    program
}

fn run(mut command: Command, family: &str, asked: &Path) -> Answers {
    let output = child::run("options", command.arg(family).arg(asked), SOON).expect_success("options");
    Answers::parse(&output)
}

#[test]
fn options_and_requests_are_answered_as_on_linux() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = build(&lab);
    let asked = lab.dir().join("asked");
    std::fs::write(&asked, answers::questions()).expect("a file in the lab");
    let [inet, inet6] = ["inet", "inet6"].map(|family| {
        let kernel = run(lab.command(Side::Server, &program), family, &asked);
        let engine = run(engine.run(&lab, &program.to_string_lossy()), family, &asked);
        (kernel, engine)
    });
    let connections = engine.status().counters.get("active_opens").copied().unwrap_or(0);
    assert!(connections > 1000, "the connections were the engine's: {:?}", engine.status().counters);
    let mut differences = inet.0.differences(&inet.1);
    differences.append(&mut inet6.0.differences(&inet6.1));
    let unknown: Vec<_> =
        differences.iter().filter(|difference| known::why(&difference.name).is_none()).collect();
    assert!(unknown.is_empty(), "the stacks differ: {unknown:#?}");
    for (name, why) in known::KNOWN {
        let differs = differences.iter().any(|difference| known::is_of(name, &difference.name));
        assert!(differs, "{name} is the same by now: ({why})");
    }
    table::check(&inet.0, &inet6.0);
}

/// What a script says that reads the options where somebody else has got the connection: where they are not as they were set.
fn lost(lab: &Lab, mut python: Command, asked: &Path) -> Vec<String> {
    let script = lab.dir().join("handed_on.py");
    std::fs::write(&script, include_str!("handed_on.py")).expect("a file in the lab");
    let output =
        child::run("handed_on.py", python.arg(&script).arg(asked), SOON).expect_success("handed_on.py");
    let mut lines: Vec<_> = output.lines().map(str::to_owned).collect();
    assert_eq!(lines.pop().as_deref(), Some("end"), "{output}");
    lines
}

#[test]
fn options_stay_with_a_connection_whoever_has_it_next() {
    const PYTHON: &str = "/usr/bin/python3";
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let asked = lab.dir().join("asked");
    std::fs::write(&asked, answers::questions()).expect("a file in the lab");
    assert_eq!(lost(&lab, lab.command(Side::Server, PYTHON), &asked), [""; 0], "on the kernel's stack");
    assert_eq!(lost(&lab, engine.run(&lab, PYTHON), &asked), [""; 0], "on the engine");
    let counters = engine.status().counters;
    assert_eq!(counters["active_opens"], 1, "the connection was the engine's: {counters:?}");
}
