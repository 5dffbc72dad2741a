//! An engine that stands still: what is new is the kernel's, the tools say so, and nothing that was given up on is done later. Nothing
//! here is held against a clock: without the mend it does not end.

use std::process::Command;
use toe_tests::child::{self, Finished, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::{self, SOON};

/// An engine of which nothing is heard until this is dropped.
struct Stopped<'a>(&'a Engine);

impl Stopped<'_> {
    fn new(engine: &Engine) -> Stopped<'_> {
        signal(engine, "-STOP");
        wait::until_true("the engine to stand still", SOON, || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", engine.pid())).expect("it runs");
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        });
        Stopped(engine)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        signal(self.0, "-CONT");
    }
}

fn signal(engine: &Engine, name: &str) {
    let done = Command::new("kill").args([name, &engine.pid().to_string()]).status().expect("kill");
    assert!(done.success());
}

fn toe(lab: &Lab, engine: &Engine, words: &[&str]) -> Finished {
    let mut command = lab.command(Side::Server, lab.program("toe"));
    command.args(&words[..1]).args(["--name", engine.name()]).args(&words[1..]);
    child::run("toe", &mut command, SOON)
}

fn script(lab: &Lab, engine: &Engine) -> Command {
    let file = lab.dir().join("stopped.py");
    std::fs::write(&file, include_str!("stopped.py")).expect("a file in the lab");
    let mut command = engine.run(lab, "python3");
    command.arg(file);
    command
}

#[test]
fn tools_say_that_it_does_not_answer_and_a_stop_that_was_given_up_on_stops_nothing() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    {
        let _stopped = Stopped::new(&engine);
        for words in [&["status"][..], &["ss"], &["stop"], &["run", "--", "true"]] {
            let said = toe(&lab, &engine, words);
            assert!(!said.status.success(), "{words:?}: {}", said.output);
            let wanted = format!("(process {}) is there and has not answered", engine.pid());
            assert!(said.output.contains(&wanted), "{words:?}: {}", said.output);
        }
    }
    // It has answered this after it has heard of the stop.
    assert!(toe(&lab, &engine, &["status"]).status.success(), "it goes on");
    assert!(toe(&lab, &engine, &["status"]).status.success(), "and on");
}

#[test]
fn what_is_new_is_the_kernels_and_says_why() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut attached = Program::spawn("attached", script(&lab, &engine).arg("attached"));
    attached.wait_for_line("ready", SOON);
    let mut echo = On::Kernel(Side::Server).peer(&lab, "echo-many", &["7400"]);
    echo.wait_for_line("listening", SOON);
    let mut fresh = Program::spawn("fresh", script(&lab, &engine).arg("fresh"));
    fresh.wait_for_line("loaded", SOON);
    let stopped = Stopped::new(&engine);
    for (program, lines) in
        [(&mut attached, ["connected", "again", "listens"]), (&mut fresh, ["connected", "again", "listens"])]
    {
        program.tell("go");
        for line in lines {
            let said = program.wait_for_line(line, SOON);
            let fd: u32 = said.rsplit(' ').next().and_then(|fd| fd.parse().ok()).expect("a number");
            let why = engine.why(&lab, program.pid(), fd).output;
            assert!(
                why.contains("stack kernel") && why.contains("did not answer within a second"),
                "{line}: {why}"
            );
        }
    }
    drop(stopped);
    // What lay in its rings was undone: it has nobody's connection and nobody's listener.
    for program in [&mut attached, &mut fresh] {
        program.tell("end");
    }
    attached.wait(SOON).expect_success("attached");
    fresh.wait(SOON).expect_success("fresh");
    engine.wait_until_idle(SOON);
}

#[test]
fn a_connect_that_does_not_wait_is_the_kernels() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut program = Program::spawn("unwaiting", script(&lab, &engine).arg("unwaiting"));
    program.wait_for_line("ready", SOON);
    let stopped = Stopped::new(&engine);
    program.tell("go");
    let said = program.wait_for_line("connected", SOON);
    let fd: u32 = said.rsplit(' ').next().and_then(|fd| fd.parse().ok()).expect("a number");
    let why = engine.why(&lab, program.pid(), fd).output;
    assert!(why.contains("stack kernel") && why.contains("did not answer within a second"), "{why}");
    drop(stopped);
    program.tell("end");
    program.wait(SOON).expect_success("unwaiting");
}

#[test]
fn a_fork_ends_and_a_child_has_its_connection_once_the_engine_goes_on() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut program = Program::spawn("forks", script(&lab, &engine).arg("forks"));
    program.wait_for_line("forked", SOON);
    let stopped = Stopped::new(&engine);
    program.tell("go");
    program.wait_for_line("again", SOON);
    drop(stopped);
    program.tell("whole?");
    program.wait_for_line("whole", SOON);
    program.tell("end");
    program.wait(SOON).expect_success("forks");
}
