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
