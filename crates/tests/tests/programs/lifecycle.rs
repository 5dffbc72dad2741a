//! The ways in which Debian's nginx is started, reloaded and given up its rights.

use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::nginx::{Nginx, Options, PORT};
use toe_tests::tools::{self, On};
use toe_tests::wait::{self, SOON};

fn small(engine: &Engine) -> String {
    format!("http://{}:{PORT}/small", engine.addr())
}

/// Each request is a connection of its own: those fail on no stack while nginx reloads. (Keep-alive connections do,
/// on the kernel's stack too: an old worker closes them between two requests.)
#[test]
fn nginx_reloads_under_load() {
    const REQUESTS: usize = 10_000;
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let urls = format!("{}?[1-{REQUESTS}]", small(&engine));
    let mut command = lab.command(Side::Client, "curl");
    command.args(["-sS", "-H", "Connection: close", "-o", "/dev/null", "-w", "%{http_code}\n", &urls]);
    let mut load = Program::spawn("curl", &mut command);
    load.wait_for_line("200", SOON);
    for round in 1..=3 {
        let before = nginx.workers();
        let master = i32::try_from(nginx.master()).ok().and_then(Pid::from_raw).expect("a process number");
        kill_process(master, Signal::HUP).expect("SIGHUP");
        let took = wait::until_true("new workers", SOON, || {
            let now = nginx.workers();
            now.len() == 2 && now.iter().all(|pid| !before.contains(pid))
        });
        assert!(load.is_running(), "all reloads happen under load");
        println!("reload {round}: new workers after {took:?}");
    }
    let output = load.wait(Duration::from_secs(60)).expect_success("curl");
    let good = output.lines().filter(|line| *line == "200").count();
    println!("{good} of {REQUESTS} requests answered with 200");
    assert_eq!(good, REQUESTS, "{}", tools::tail(&output, 20));
    wait::until_true("old workers are gone", SOON, || tools::children_of(nginx.master()).len() == 2);
}

#[test]
fn nginx_in_the_background() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let nginx = Nginx::on_engine(&lab, &engine, Options { daemon: true, ..Options::default() });
    assert!(On::Kernel(Side::Client).bad_answers(&lab, &small(&engine), 50).is_empty());
    // One of them may have answered all before the other was there.
    wait::until_true("both workers", SOON, || nginx.workers().len() == 2);
    println!("daemon on: 50 answers, all 200");
    drop(nginx);
    wait::until_true("its listener is gone", SOON, || engine.sockets().is_empty());
}

#[test]
fn nginx_workers_of_another_user() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let nginx = Nginx::on_engine(&lab, &engine, Options { user: "www-data", ..Options::default() });
    assert!(On::Kernel(Side::Client).bad_answers(&lab, &small(&engine), 50).is_empty());
    for pid in nginx.workers() {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a worker");
        assert!(status.contains("Uid:\t33\t33"), "www-data is user 33 on Debian: {status}");
    }
    println!("user www-data: 50 answers, all 200");
}

/// Both workers take connections: neither the engine nor the shared listener favours one for good.
#[test]
fn both_workers_serve() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    wait::until_true("both workers", SOON, || nginx.workers().len() == 2);
    let url = format!("http://{}:{PORT}/pid", engine.addr());
    let mut served = std::collections::BTreeSet::new();
    wait::until_true("both workers have answered", SOON, || {
        let output = On::Kernel(Side::Client).curl(&lab, &[&url], SOON).expect_success("curl");
        served.insert(output.trim().parse::<u32>().expect("a process number"));
        served.len() == 2
    });
    assert!(served.iter().all(|pid| nginx.workers().contains(pid)), "{served:?}");
    println!("served by {served:?}");
}
