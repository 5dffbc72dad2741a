//! Threads that do everything at once, and calls that wait while something else happens: `crates/tests/programs/mixes.c` and
//! `blocking.c`, which check themselves, on the kernel's stack as on the engine's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

const LOOPBACK: &str = "127.0.0.1";
const PORT: &str = "7310";
/// Within which `blocking` has run all its cases, some of which wait on purpose, on a machine with more to do than cores.
const ALL_CASES: Duration = Duration::from_secs(120);
/// How long the stress lasts unless TOE_STRESS_SECONDS says otherwise.
const SECONDS_DEFAULT: u64 = 2;

fn compiled(lab: &Lab, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).with_extension("c");
    let program = lab.dir().join(name);
    let mut cc = Command::new("cc");
    // What a longjmp would clobber: POSIX lets a macro of pthread_cleanup_push be one, and vfork is warned of as if it were.
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-clobbered", "-pthread", "-o"]);
    cc.arg(&program).arg(source);
    child::run("cc", &mut cc, SOON).expect_success("cc");
    program
}

fn seconds() -> u64 {
    let asked = std::env::var("TOE_STRESS_SECONDS").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(SECONDS_DEFAULT)
}

/// One process that listens and one that connects.
fn stress(lab: &Lab, on: On<'_>, seconds: u64) {
    let program = compiled(lab, "mixes");
    let program = program.to_str().expect("a plain path");
    let mut command = on.command(lab, program);
    command.args(["serve", LOOPBACK, PORT]);
    let mut server = Program::spawn("mixes serve", &mut command);
    server.wait_for_line("ready", SOON);
    let mut command = on.command(lab, program);
    command.args([&seconds.to_string(), LOOPBACK, PORT]);
    let limit = Duration::from_secs(seconds) + Duration::from_secs(60);
    let asked = child::run("mixes", &mut command, limit).expect_success("the side that connects");
    let served = server.wait(SOON).expect_success("the side that listens");
    println!("{}{}", served, asked);
}

#[test]
fn threads_that_do_everything_at_once() {
    let lab = Lab::new();
    stress(&lab, On::Kernel(Side::Server), 1);
    let engine = Engine::local(&lab);
    stress(&lab, On::Engine(&engine), seconds());
    engine.wait_until_idle(SOON);
    assert!(!engine.log().contains("fenced"), "{}", engine.log());
}

/// The same with all bytes through the engine.
#[test]
fn threads_that_do_everything_at_once_through_the_engine() {
    let lab = Lab::new();
    let engine = Engine::local_with(&lab, &["--no-direct"]);
    stress(&lab, On::Engine(&engine), seconds());
    engine.wait_until_idle(SOON);
    assert!(!engine.log().contains("fenced"), "{}", engine.log());
}

/// A write right after poll, select or epoll has said that it may be: small ones, which fill rings of entries, and large ones, which fill
/// rings of bytes.
#[test]
fn what_is_writable_takes_something() {
    let lab = Lab::new();
    let program = compiled(&lab, "writable");
    let said = |mut command: Command| {
        child::run("writable", command.arg(PORT), ALL_CASES).expect_success("writable")
    };
    let linux = said(lab.command(Side::Server, &program));
    assert!(linux.ends_with("all\n") && !linux.contains("refused"), "{linux}");
    for settings in [&[][..], &["--no-direct"]] {
        let engine = Engine::local_with(&lab, settings);
        assert_eq!(said(engine.run(&lab, &program.display().to_string())), linux, "{settings:?}");
        assert!(engine.status().counters["local_segments"] > 0, "it was the engine's");
    }
}

fn blocking(what: &[&str]) {
    let lab = Lab::new();
    let program = compiled(&lab, "blocking");
    let engine = Engine::local(&lab);
    for on in [On::Kernel(Side::Server), On::Engine(&engine)] {
        let mut command = on.command(&lab, program.to_str().expect("a plain path"));
        command.args([LOOPBACK, PORT]).args(what);
        let output = child::run("blocking", &mut command, ALL_CASES).expect_success("blocking");
        assert_eq!(output.trim(), "same", "{on:?}");
    }
    engine.wait_until_idle(ALL_CASES);
}

#[test]
fn calls_that_wait_while_something_else_happens() {
    blocking(&[]);
}

/// RLIMIT_FSIZE below what the library's own memory files have: writing more would be a signal.
#[test]
fn a_program_that_may_write_small_files_only() {
    blocking(&["files"]);
}

/// mlockall(MCL_FUTURE): what is mapped for a session is not locked with it.
#[test]
fn a_program_that_locks_its_memory() {
    blocking(&["locked"]);
}
