//! `kill -9` of a worker, of a client and of the engine: peers hear of it, nothing hangs, memory comes back.

use std::fs::File;
use std::time::{Duration, Instant};
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{KERNEL_ADDR, KERNEL_PEER_ADDR, Lab, PEER_ADDR, Side};
use toe_tests::nginx::{Nginx, Options, PORT};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// The promise is one second; the test allows for a busy machine and prints what it measured.
const PROMISED: Duration = Duration::from_secs(4);

#[test]
fn a_worker_is_killed_while_it_sends() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    endless_file(&lab);
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let mut reader =
        On::Kernel(Side::Client).peer(&lab, "reader", &[engine.addr(), &PORT.to_string(), "/endless"]);
    reader.wait_for_line("reading", SOON);
    let [flow] = &engine.held_flows()[..] else { panic!("one flow: {:?}", engine.held_flows()) };
    let worker = flow.users[0].pid;
    assert!(nginx.workers().contains(&worker), "the flow is a worker's: {flow:?}");

    child::kill_hard(worker);
    let start = Instant::now();
    let said = reader.wait(PROMISED).expect_success("reader");
    println!("worker killed; after {:?} the peer says: {}", start.elapsed(), last_line(&said));
    let back = engine.wait_until_idle(PROMISED);
    println!("flows gone and memory back after another {back:?}");

    let url = format!("http://{}:{PORT}/small", engine.addr());
    assert!(On::Kernel(Side::Client).bad_answers(&lab, &url, 20).is_empty(), "the others go on");
}

#[test]
fn a_client_is_killed_while_it_receives() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let mut sender = On::Kernel(Side::Client).peer(&lab, "sender", &["7000"]);
    sender.wait_for_line("listening", SOON);
    let mut reader = On::Engine(&engine).peer(&lab, "reader", &[PEER_ADDR, "7000", "/"]);
    reader.wait_for_line("reading", SOON);
    let holder = engine.held_flows()[0].users[0].pid;

    child::kill_hard(holder);
    let start = Instant::now();
    let said = sender.wait(PROMISED).expect_success("sender");
    println!("client killed; after {:?} its peer says: {}", start.elapsed(), last_line(&said));
    assert!(said.contains("ECONNRESET") || said.contains("EPIPE"), "{said}");
    let back = engine.wait_until_idle(PROMISED);
    println!("flows gone and memory back after another {back:?}");
}

#[test]
fn a_client_is_killed_over_local() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    endless_file(&lab);
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let mut reader = On::Engine(&engine).peer(&lab, "reader", &["127.0.0.1", &PORT.to_string(), "/endless"]);
    reader.wait_for_line("reading", SOON);
    let workers = nginx.workers();
    let flows = engine.held_flows();
    let client = flows.iter().flat_map(|f| &f.users).find(|user| !workers.contains(&user.pid));
    let client = client.unwrap_or_else(|| panic!("the client's end is listed: {flows:?}")).pid;

    child::kill_hard(client);
    // nginx sees the reset and closes its end too, so all is gone.
    let took = engine.wait_until_idle(PROMISED);
    println!("client killed; both flows gone and memory back after {took:?}");
    let url = format!("http://127.0.0.1:{PORT}/small");
    assert!(On::Engine(&engine).bad_answers(&lab, &url, 20).is_empty());
}

/// It looked again each millisecond, for ever.
#[test]
fn a_child_that_comes_after_the_engine_has_gone_sleeps() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("after_engine.py");
    std::fs::write(&file, include_str!("after_engine.py")).expect("a file in the lab");
    let mut command = On::Engine(&engine).command(&lab, "/usr/bin/python3");
    let mut program = Program::spawn("after_engine.py", command.arg(&file));
    program.wait_for_line("ready", SOON);
    engine.kill_hard();
    let said = program.wait(SOON).expect_success("after_engine.py");
    assert!(said.ends_with("no engine\nsleeps\nserved b'x'\n"), "{said}");
}

/// The engine dies: its programs get an error at once and live on, their kernel sockets work, and an engine of the
/// same name can be started.
#[test]
fn the_engine_is_killed() {
    let lab = Lab::new();
    let mut engine = Engine::local(&lab);
    endless_file(&lab);
    let on = On::Engine(&engine);
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let mut toe_echo = on.peer(&lab, "echo-server", &["7000"]);
    toe_echo.wait_for_line("listening", SOON);
    engine.wait_for_listener(7000);
    let mut kernel_echo = On::Kernel(Side::Client).peer(&lab, "echo-server", &["7001"]);
    kernel_echo.wait_for_line("listening", SOON);
    let args = ["127.0.0.1", "7000", KERNEL_PEER_ADDR, "7001"];
    let mut both = on.peer(&lab, "two-stacks", &args);
    assert_eq!(both.wait_for_line("connected", SOON), "connected ok ok");
    let mut reader = on.peer(&lab, "reader", &["127.0.0.1", &PORT.to_string(), "/endless"]);
    reader.wait_for_line("reading", SOON);
    let url = format!("http://127.0.0.1:{PORT}/small");
    let wrk = on.wrk(&lab, &url, 16, 2);
    let workers = nginx.workers();

    engine.kill_hard();
    let start = Instant::now();
    let said = reader.wait(PROMISED).expect_success("reader");
    println!("engine killed; after {:?} a reader says: {}", start.elapsed(), last_line(&said));
    assert!(said.contains("end ECONNRESET"), "{said}");
    both.wait_for_line("toe socket ended ECONNRESET", PROMISED);
    println!("engine killed; after {:?} an idle connection has its error", start.elapsed());
    both.wait_for_line("kernel socket ok", SOON);
    let said = both.wait(SOON).expect_success("two-stacks");
    assert!(said.contains("new kernel socket made"), "{said}");
    // wrk connects again and again; it must come to its own end.
    let wrk = wrk.wait(SOON);
    println!("wrk on the dead engine ended: {}", last_line(&wrk.output));

    assert_eq!(nginx.workers(), workers, "nginx runs on, the same processes");
    let kernel_url = format!("http://{KERNEL_ADDR}:{PORT}/small");
    let bad = On::Kernel(Side::Client).bad_answers(&lab, &kernel_url, 20);
    assert!(bad.is_empty(), "nginx still serves through the kernel's stack: {bad:?}");

    let start = Instant::now();
    engine.start_again(&lab);
    println!("an engine of the same name answers after {:?}", start.elapsed());
    let mut echo: Program = On::Engine(&engine).peer(&lab, "echo-server", &["7002"]);
    echo.wait_for_line("listening", SOON);
    engine.wait_for_listener(7002);
    let client = On::Engine(&engine).peer(&lab, "echo-client", &["127.0.0.1", "7002", "65536"]);
    assert!(client.wait(SOON).expect_success("echo-client").contains("same 65536"));
}

/// A file that takes longer to send than any test runs, and no room on the disk.
fn endless_file(lab: &Lab) {
    let file = File::create(lab.dir().join("endless")).expect("a file");
    file.set_len(1 << 40).expect("a sparse file");
}

fn last_line(text: &str) -> &str {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default()
}
