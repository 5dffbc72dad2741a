//! toe-load, every mode once on each stack: the results are whole. Nothing is said about speed.

use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use toe_tests::bins;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::{self, SOON};

const PORT: u16 = 7000;
const IDLE: usize = 300;

/// A mode of the client against the server; the sizes are such that messages are cut and joined on their way.
const REQUESTS: [&[&str]; 5] = [
    &["rr", "--size", "64"],
    &["rr", "--size", "5", "--depth", "7", "--connections", "3", "--warmup", "0.1"],
    &["rr", "--size", "40000", "--depth", "16", "--connections", "4"],
    &["cps", "--connections", "16"],
    &["wake", "--interval-us", "2000"],
];
const STREAMS: [&[&str]; 4] = [
    &["stream"],
    &["stream", "--flows", "3", "--write-size", "1000", "--warmup", "0.1"],
    &["stream", "--direction", "receive"],
    &["stream", "--direction", "receive", "--flows", "3"],
];

#[test]
fn toe_load_on_the_kernel() {
    let lab = Lab::new();
    every_mode(&lab, On::Kernel(Side::Server));
}

#[test]
fn toe_load_on_an_engine() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    every_mode(&lab, On::Engine(&engine));
    let took = engine.wait_until_idle(SOON);
    println!("flows gone and memory back after {took:?}");
}

fn every_mode(lab: &Lab, on: On<'_>) {
    let address = format!("127.0.0.1:{PORT}");
    let mut server =
        Program::spawn("toe-load serve", toe_load(lab, on).args(["serve", "--listen", &address]));
    server.wait_for_line("ready", SOON);
    if let On::Engine(engine) = on {
        engine.wait_for_listener(PORT);
    }
    for args in REQUESTS {
        let result = measured(lab, on, args);
        assert!(count(&result, "requests") > 0 && count(&result, "bytes") > 0, "{result}");
        let latency = |name: &str| result["latency_us"][name].as_f64().expect("a latency");
        let rising = ["min", "p50", "p90", "p99", "p999", "max"].map(latency);
        assert!(rising[0] > 0.0 && rising.is_sorted(), "{result}");
        assert!((latency("min")..=latency("max")).contains(&latency("mean")), "{result}");
    }
    for args in STREAMS {
        let result = measured(lab, on, args);
        assert!(count(&result, "bytes") > 0 && result["bytes_per_second"].as_f64() > Some(0.0), "{result}");
    }
    idle(lab, on);

    server.signal(Signal::USR1);
    let told = server.wait_for_line("requests", SOON);
    assert!(count(&json(&told), "requests") > 0, "{told}");
    server.signal(Signal::TERM);
    let output = server.wait(SOON).expect_success("toe-load serve");
    assert_eq!(output.lines().count(), 3, "ready, what SIGUSR1 asked for, and the end:\n{output}");
}

/// Connections that rest until the end of the standard input, and until SIGTERM.
fn idle(lab: &Lab, on: On<'_>) {
    let mut command = toe_load(lab, on);
    let connections = IDLE.to_string();
    command.args(["idle", "--connect", &format!("127.0.0.1:{PORT}"), "--connections", &connections]);
    let output = child::run("toe-load idle", &mut command, SOON).expect_success("toe-load idle");
    assert_eq!(output.lines().count(), 2, "{output}");

    let mut idle = Program::spawn("toe-load idle", &mut command);
    let ready = idle.wait_for_line("ready", SOON);
    assert_eq!(count(&json(&ready), "connections"), IDLE as u64);
    if let On::Engine(engine) = on {
        // Both ends are its own.
        wait::until_true("the connections in `toe ss`", SOON, || {
            engine.held_flows().iter().filter(|flow| flow.state == "ESTAB").count() == 2 * IDLE
        });
    }
    idle.signal(Signal::TERM);
    let output = idle.wait(SOON).expect_success("toe-load idle");
    let result = json(output.lines().last().expect("a result"));
    assert_eq!(count(&result, "requests"), IDLE as u64, "{result}");
}

/// One client's run to its end.
fn measured(lab: &Lab, on: On<'_>, args: &[&str]) -> Value {
    let mut command = toe_load(lab, on);
    command.args(args).args(["--connect", &format!("127.0.0.1:{PORT}"), "--seconds", "1"]);
    let output = child::run("toe-load", &mut command, Duration::from_secs(60)).expect_success("toe-load");
    println!("{args:?}: {}", output.trim());
    let result = json(&output);
    assert_eq!(result["mode"], args[0]);
    for name in ["seconds", "rate", "user_us", "system_us"] {
        assert!(result[name].is_number(), "{name}: {result}");
    }
    assert!(result["seconds"].as_f64() >= Some(1.0), "{result}");
    result
}

#[test]
fn toe_load_says_what_is_wrong() {
    let lab = Lab::new();
    let on = On::Kernel(Side::Server);
    for (args, cause) in [
        (&["rr", "--connect", "127.0.0.1:7000", "--seconds", "1"][..], "Connection refused"),
        (&["rr", "--seconds", "1"], "needs --connect"),
        (&["stream", "--depth", "2"], "no option of this mode"),
        (&["serve", "--listen", "127.0.0.1:x"], "give IP:PORT"),
    ] {
        let finished = child::run("toe-load", toe_load(&lab, on).args(args), SOON);
        assert_eq!(finished.status.code(), Some(1), "{finished:?}");
        assert!(finished.output.contains(cause), "{finished:?}");
    }
    let null = child::run("toe-load", toe_load(&lab, on).args(["null", "--seconds", "0.1"]), SOON);
    let result = json(&null.expect_success("toe-load null"));
    assert!(count(&result, "requests") > 0 && result["ns_per_request"].as_f64() > Some(0.0), "{result}");
}

fn toe_load(lab: &Lab, on: On<'_>) -> Command {
    on.command(lab, &bins::path("toe-load").to_string_lossy())
}

/// Exactly one object.
fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("not one JSON object: {e}\n{text}"))
}

fn count(object: &Value, name: &str) -> u64 {
    object[name].as_u64().unwrap_or_else(|| panic!("no count {name:?}: {object}"))
}
