//! Principle 11, checked: what a call has returned for, everybody can see at once. Four processes do random calls on eight connections
//! between them (`crates/tests/programs/histories.c`) and write down when; [`check`] then demands what happened before a look of it.
//!
//! | variable | is |
//! |---|---|
//! | `TOE_HISTORIES` | calls to make in each world, about (20000) |
//! | `TOE_HISTORIES_SEED` | the seed (1) |
#![forbid(unsafe_code)]

mod check;
mod history;
mod planted;

use check::{Missing, Violation};
use history::{Call, Event, LONG_SLOTS, PROCESSES, SLOTS, Side};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use toe_tests::bins;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{self, ENGINE_ADDR, KERNEL_ADDR, KERNEL_PEER_ADDR, Lab, PEER_ADDR};
use toe_tests::wait::SOON;

const PORT: u16 = 7500;
/// What the engine has to hold; what it does not yet is told and not demanded.
const DEMANDED_OF_THE_ENGINE: &[Missing] = &[Missing::Lost];
/// Connections of which looks may fail on Linux's own stack: on a machine with more to do than cores the kernel seems to leave a frame to
/// ksoftirqd now and then, and the call that has sent it returns before. All looks until then fail: some hundred in 6 ms.
const POSTPONED_MAX: usize = 8;
const EVERYTHING: &[Missing] =
    &[Missing::Connection, Missing::Bytes, Missing::End, Missing::Reset, Missing::Room, Missing::Lost];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: {text:?}")))
}

/// Where the processes are and what they run on.
struct World<'a> {
    lab: &'a Lab,
    name: &'a str,
    /// Each side's namespace, engine if there is one, and address for the other side.
    sides: [(lab::Side, Option<&'a Engine>, &'a str); 2],
}

impl World<'_> {
    fn program(&self) -> PathBuf {
        let source = bins::workspace().join("crates/tests/programs/histories.c");
        let program = self.lab.dir().join("histories");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-clobbered", "-pthread", "-o"]);
        child::run("cc", cc.arg(&program).arg(source), SOON).expect_success("cc");
        program
    }

    /// `program` on a side's stack; what goes to the second listeners stays the kernel's.
    fn command(&self, process: usize, program: &PathBuf) -> Command {
        let (side, engine, _) = self.sides[process / 2];
        let Some(engine) = engine else { return self.lab.command(side, program) };
        let config = self.lab.dir().join(format!("histories-{process}.toml"));
        let ports = format!("{}-{}", PORT + 4, PORT + 7);
        let text = format!(
            "[profiles.histories]\nengines = [\"{}\"]\n[[profiles.histories.rules]]\nport = \"{ports}\"\nstack = \"kernel\"\n",
            engine.name()
        );
        std::fs::write(&config, text).expect("a file in the lab");
        let mut command = self.lab.command(side, bins::path("toe"));
        command.args(["run", "--profile", "histories", "--config"]).arg(config).arg("--").arg(program);
        command
    }

    /// Where the kernels are met: an engine's address may be none of its kernel's.
    fn kernel_addrs(&self) -> [&str; 2] {
        let at_link = self.sides[0].0 != self.sides[1].0;
        if at_link { [KERNEL_ADDR, KERNEL_PEER_ADDR] } else { ["127.0.0.1"; 2] }
    }

    /// Has the four processes make their calls, and reads what they have written.
    fn histories(&self) -> Vec<Vec<Event>> {
        let (calls, seed) = (number("TOE_HISTORIES", 20_000), number("TOE_HISTORIES_SEED", 1));
        let file = self.lab.dir().join("calls");
        let program = self.program();
        let start = |process: usize| {
            let mut command = self.command(process, &program);
            command.arg(&file).args([process as u64, seed, calls / PROCESSES as u64].map(|n| n.to_string()));
            command.arg(PORT.to_string()).args(self.sides.map(|(_, _, addr)| addr)).args(self.kernel_addrs());
            Program::spawn(&format!("histories {process}"), &mut command)
        };
        let programs: Vec<Program> = (0..PROCESSES).map(start).collect();
        let limit = Duration::from_secs(60 + calls / 1000);
        for program in programs {
            program.wait(limit).expect_success("histories");
        }
        history::read(&std::fs::read(&file).expect("what they have written"))
    }

    fn hold(&self, demanded: &[Missing], excused: usize) {
        let histories = self.histories();
        let violations = check::check(&histories);
        println!("{}: {}", self.name, summary(&histories, &violations));
        let bad: Vec<_> = violations.iter().filter(|found| demanded.contains(&found.missing)).collect();
        let first = bad.iter().min_by_key(|found| found.look.begin);
        let around = first.map(|found| around(&histories, found)).unwrap_or_default();
        let late: BTreeSet<u32> = bad.iter().map(|found| found.look.connection).collect();
        assert!(
            late.len() <= excused,
            "{}: {} looks do not see what has returned; the first: {first:?}\n{around}",
            self.name,
            bad.len()
        );
    }
}

/// The last calls that did something to the connection before the look with times relative to it in ns.
fn around(histories: &[Vec<Event>], found: &Violation) -> String {
    const LINES: usize = 30;
    let looks = [Call::Poll, Call::Epoll, Call::Unread, Call::State];
    let is_near = |event: &&Event| {
        let is_empty = looks.contains(&event.call) || (event.call == Call::Recv && event.result <= 0);
        !is_empty
            && event.connection == found.look.connection
            && (event.side == Side::Listener) == (found.look.side == Side::Listener)
            && event.begin <= found.look.begin
    };
    let mut near: Vec<&Event> = histories.iter().flatten().filter(is_near).collect();
    near.sort_by_key(|event| event.begin);
    let line = |event: &&Event| {
        let from = |time: u64| found.look.begin.cast_signed() - time.cast_signed();
        format!(
            "{:>9} {:>9} {:?} {:?} = {}\n",
            -from(event.begin),
            -from(event.end),
            event.side,
            event.call,
            event.result
        )
    };
    near[near.len().saturating_sub(LINES)..].iter().map(line).collect()
}

/// How many looks have missed what, of how many connections, and how long ago that had returned.
fn summary(histories: &[Vec<Event>], violations: &[Violation]) -> String {
    let made =
        |call| histories.iter().flatten().filter(|event| event.call == call && event.result >= 0).count();
    let mut by_kind: BTreeMap<_, Vec<&Violation>> = BTreeMap::new();
    for violation in violations {
        let is_long = violation.look.side != Side::Listener && violation.look.connection % SLOTS < LONG_SLOTS;
        by_kind.entry((violation.missing, violation.look.call, is_long)).or_default().push(violation);
    }
    let total: usize = histories.iter().map(Vec::len).sum();
    let connections = made(Call::Accept);
    let mut text = format!("{total} events, {connections} connections, {} violations", violations.len());
    for ((missing, call, is_long), found) in by_kind {
        let mut ages: Vec<u64> = found.iter().map(|violation| violation.age() / 1000).collect();
        ages.sort_unstable();
        let connections: BTreeSet<u32> = found.iter().map(|violation| violation.look.connection).collect();
        let old = if is_long { ", an old connection" } else { "" };
        text += &format!(
            "\n  {missing:?} not seen by {call:?}{old}: {} looks of {}, {} µs later at the median, {} at most",
            found.len(),
            connections.len(),
            ages[ages.len() / 2],
            ages[ages.len() - 1]
        );
    }
    text
}

/// Has a kernel send what the program may leave unread, small as its parts are: not held back by a congestion window that nothing has
/// opened yet, or by acknowledgements that wait. Linux itself shows at once what it has *sent*.
fn send_at_once(lab: &Lab, side: lab::Side, route: &[&str]) {
    let settings = ["quickack", "1", "initcwnd", "64"];
    toe_tests::must(lab.ip(side, &[&["route", "change"], route, &settings].concat()));
}

const LOOPBACK_ROUTE: [&str; 8] = ["local", "127.0.0.0/8", "dev", "lo", "table", "local", "src", "127.0.0.1"];

#[test]
fn the_kernels_loopback() {
    let lab = Lab::new();
    send_at_once(&lab, lab::Side::Server, &LOOPBACK_ROUTE);
    World { lab: &lab, name: "loopback", sides: [(lab::Side::Server, None, "127.0.0.1"); 2] }
        .hold(EVERYTHING, POSTPONED_MAX);
}

#[test]
fn the_kernels_veth() {
    let lab = Lab::new();
    for (side, addr) in [(lab::Side::Server, KERNEL_ADDR), (lab::Side::Client, KERNEL_PEER_ADDR)] {
        send_at_once(&lab, side, &LOOPBACK_ROUTE);
        send_at_once(&lab, side, &["10.78.0.0/24", "dev", "kern0", "src", addr]);
    }
    let sides = [(lab::Side::Server, None, KERNEL_ADDR), (lab::Side::Client, None, KERNEL_PEER_ADDR)];
    World { lab: &lab, name: "veth", sides }.hold(EVERYTHING, POSTPONED_MAX);
}

#[test]
fn an_engine() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let sides = [(lab::Side::Server, Some(&engine), "127.0.0.1"); 2];
    World { lab: &lab, name: "an engine", sides }.hold(DEMANDED_OF_THE_ENGINE, 0);
}

#[test]
fn an_engine_without_channels() {
    let lab = Lab::new();
    let engine = Engine::local_with(&lab, &["--no-direct"]);
    let sides = [(lab::Side::Server, Some(&engine), "127.0.0.1"); 2];
    World { lab: &lab, name: "an engine without channels", sides }.hold(DEMANDED_OF_THE_ENGINE, 0);
}

#[test]
fn two_engines_at_a_veth() {
    let lab = Lab::new();
    let engines =
        [Engine::on_link(&lab, lab::Side::Server, ""), Engine::on_link(&lab, lab::Side::Client, "")];
    let sides = [
        (lab::Side::Server, Some(&engines[0]), ENGINE_ADDR),
        (lab::Side::Client, Some(&engines[1]), PEER_ADDR),
    ];
    World { lab: &lab, name: "two engines at a veth", sides }.hold(DEMANDED_OF_THE_ENGINE, 0);
}
