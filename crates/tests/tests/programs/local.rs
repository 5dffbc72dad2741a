//! Client and server both on one engine, over its `local` port: no frame, no kernel TCP between them.

use std::process::Command;
use std::time::Duration;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::nginx::{Nginx, Options, PORT};
use toe_tests::tools::{self, On, WrkReport};
use toe_tests::wait::{self, SOON};
use toe_tests::{bins, lab};

const HOST: &str = "127.0.0.1";

#[test]
fn nginx_and_wrk() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let _nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let mut wrk = On::Engine(&engine).wrk(&lab, &format!("http://{HOST}:{PORT}/small"), 64, 2);
    // Proof that the connections are the engine's: it lists them while wrk runs.
    let (flows, _) = wait::until("64 connections in `toe ss`", SOON, || {
        assert!(wrk.is_running(), "wrk ended early:\n{}", wrk.output());
        let flows: Vec<_> = engine.held_flows().into_iter().filter(|s| s.state == "ESTAB").collect();
        (flows.len() >= 64).then_some(flows)
    });
    assert!(flows.iter().all(|flow| flow.device == "local"), "{flows:?}");
    let output = wrk.wait(SOON).expect_success("wrk");
    let report = WrkReport::parse(&output);
    println!("{report:?}");
    assert!(report.requests > 0 && report.errors == 0, "{output}");
    let took = engine.wait_until_idle(SOON);
    println!("flows gone and memory back after {took:?}");
}

#[test]
fn curl_fetches_a_large_file() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let (_, sum) = lab.file("large", 64 << 20);
    let _nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let url = format!("http://{HOST}:{PORT}/large");
    let (fetched, took) = On::Engine(&engine).fetched_sha256(&lab, &url, Duration::from_secs(60));
    assert_eq!(fetched, sum);
    println!("64 MiB over local: {}", tools::rate(64 << 20, took));
}

#[test]
fn redis_and_its_benchmark() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let on = On::Engine(&engine);
    let mut command = on.command(&lab, "redis-server");
    command
        .args(["--port", "6379", "--bind", HOST, "--save", "", "--daemonize", "no", "--dir"])
        .arg(lab.dir());
    let mut server = Program::spawn("redis-server", &mut command);
    server.wait_for_line("Ready to accept connections", SOON);
    engine.wait_for_listener(6379);

    for pipeline in ["1", "16"] {
        let mut command = on.command(&lab, "redis-benchmark");
        let args = ["-h", HOST, "-t", "set,get", "-c", "50", "-n", "20000", "--csv", "-P", pipeline];
        let finished = child::run("redis-benchmark", command.args(args), Duration::from_secs(60));
        let output = finished.expect_success("redis-benchmark");
        let rows: Vec<_> =
            output.lines().filter(|l| l.starts_with("\"SET\"") || l.starts_with("\"GET\"")).collect();
        assert_eq!(rows.len(), 2, "{output}");
        println!("redis, pipeline {pipeline}: {rows:?}");
    }

    // A background save is a fork: the child holds copies of every descriptor while the parent goes on serving.
    let cli = |args: &[&str]| {
        let mut command = on.command(&lab, "redis-cli");
        child::run("redis-cli", command.args(["-h", HOST]).args(args), SOON).expect_success("redis-cli")
    };
    assert!(cli(&["BGSAVE"]).contains("Background saving started"));
    wait::until_true("the background save is done", SOON, || {
        cli(&["INFO", "persistence"]).contains("rdb_bgsave_in_progress:0")
    });
    assert!(cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    assert_eq!(cli(&["PING"]).trim(), "PONG");
    assert!(server.is_running());
}

#[test]
fn python_http_server_and_curl() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let on = On::Engine(&engine);
    lab.file("small", 256);
    let mut server = on.http_server(&lab, 8000);
    engine.wait_for_listener(8000);
    for _ in 0..5 {
        assert!(on.bad_answers(&lab, &format!("http://{HOST}:8000/small"), 5).is_empty());
    }
    assert!(server.is_running());
    println!("25 answers of python3 -m http.server, all 200");
}

/// The child of a vfork takes a copy of the descriptor along, and the parent closes its own before the child has shown
/// up at the engine: the connection is the child's, and nothing is lost.
#[test]
fn a_program_started_with_a_connection_as_its_input_and_output() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut peer = On::Engine(&engine).peer(&lab, "inetd", &["8001", "10"]);
    let line = peer.wait_for_line("answered", SOON);
    assert_eq!(line.trim(), "answered 10");
    println!("{line}");
}

/// A program written for the native interface: an epoll echo server with `toe_` before each call.
#[test]
fn epoll_echo_in_c() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let (source, bin) = (bins::workspace().join("examples/c/epoll_echo.c"), lab.dir().join("epoll_echo"));
    for library in [vec!["-ltoe".to_owned()], vec![bins::path("libtoe.a").display().to_string()]] {
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-o"]).arg(&bin).arg(&source);
        cc.arg("-I").arg(bins::workspace().join("include")).arg("-L").arg(bins::dir()).args(&library);
        cc.arg(format!("-Wl,-rpath,{}", bins::dir().display())).args(["-lpthread", "-ldl", "-lm"]);
        child::run("cc", &mut cc, SOON).expect_success("cc");

        let mut command = lab.command(Side::Server, &bin);
        command.arg("7000").env("TOE_ENGINE", format!("/run/opentoe/{}.sock", engine.name()));
        // Cargo points it at another build of the library.
        command.env_remove("LD_LIBRARY_PATH");
        let mut server = Program::spawn("epoll_echo", &mut command);
        engine.wait_for_listener(7000);
        let client = On::Engine(&engine).peer(&lab, "echo-client", &[HOST, "7000", "1048576"]);
        let said = client.wait(SOON).expect_success("echo-client");
        assert_eq!(said.trim(), "same 1048576");
        assert!(server.is_running());
        drop(server);
        engine.wait_until_idle(SOON);
        let gone = || engine.sockets().iter().all(|socket| socket.state != "LISTEN");
        wait::until_true("its listener is gone", SOON, gone);
        println!("1 MiB echoed by epoll_echo, linked with {library:?}");
    }
}

/// `toe run` with no engine running starts one for the command alone; no root needed.
#[test]
fn a_private_engine_needs_no_root() {
    let lab = Lab::new();
    lab.file("small", 256);
    tools::share(lab.dir());
    // The source tree may lie where another user cannot look.
    for piece in ["toe", "toed", "libtoe_switch.so"] {
        std::fs::copy(bins::path(piece), lab.dir().join(piece)).expect("a copy");
    }
    let script = "/usr/bin/python3 -u -m http.server 8000 --bind 127.0.0.1 & server=$!
        curl -sS -f --retry 100 --retry-connrefused --retry-delay 1 -o fetched http://127.0.0.1:8000/small
        echo curl ended with $?; read line; kill $server";
    let mut command = lab.command(Side::Server, "setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(lab.dir().join("toe"));
    command.args(["run", "--", "sh", "-c", script]).env_remove("XDG_RUNTIME_DIR").env("HOME", lab.dir());
    let mut program = Program::spawn("toe run", &mut command);
    program.wait_for_line("curl ended with 0", SOON);
    assert_eq!(lab::sha256(&lab.dir().join("fetched")), lab::sha256(&lab.dir().join("small")));

    let engines = || -> Vec<u32> {
        lab.pids(Side::Server).into_iter().filter(|pid| tools::comm(*pid) == "toed").collect()
    };
    let [engine] = engines()[..] else { panic!("one engine for the command: {:?}", engines()) };
    let status = std::fs::read_to_string(format!("/proc/{engine}/status")).expect("the engine runs");
    assert!(status.lines().any(|line| line.starts_with("Uid:\t65534\t65534")), "{status}");
    program.tell("end");
    program.wait(SOON);
    let took = wait::until_true("the engine ends with the command", SOON, || engines().is_empty());
    println!("private engine of user nobody ended {took:?} after its command");
}
