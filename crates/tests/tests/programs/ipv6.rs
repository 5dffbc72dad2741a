//! IPv6 as programs have it: on a TAP interface, on a link to another host's kernel, and among programs of one engine.

use std::time::Duration;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{
    ENGINE_ADDR, ENGINE_ADDR6, Lab, PEER_ADDR6, Side, TAP_ENGINE_ADDR6, TAP_KERNEL_ADDR6, TAP_LINK, sha256,
};
use toe_tests::tools::{On, rate};
use toe_tests::wait::{self, SOON};

const LARGE: u64 = 16 << 20;
const LONG: Duration = Duration::from_secs(60);
const SERVER: On<'static> = On::Kernel(Side::Server);
const CLIENT: On<'static> = On::Kernel(Side::Client);

fn ping(lab: &Lab, side: Side, addr: &str) {
    let mut ping = lab.command(side, "ping");
    child::run("ping", ping.args(["-6", "-c", "1", "-W", "5", addr]), SOON).expect_success("ping");
}

/// nginx on the engine at port 8080 of both families, by one socket.
fn nginx(lab: &Lab, engine: &Engine) -> Program {
    let dir = lab.dir().display();
    let conf = format!(
        "daemon off; worker_processes 1; user root; pid {dir}/six.pid; error_log {dir}/six.err;\n\
         events {{}} http {{ access_log off; sendfile on;\n\
         server {{ listen [::]:8080 ipv6only=off; root {dir}; }} }}\n"
    );
    let path = lab.dir().join("six.conf");
    std::fs::write(&path, conf).expect("a file in the lab");
    let mut command = engine.run(lab, "nginx");
    let nginx = Program::spawn("nginx", command.arg("-c").arg(&path));
    let socket = engine.wait_for_listener(8080);
    assert_eq!(socket.local, "[::]:8080");
    nginx
}

fn fetches(lab: &Lab, on: On<'_>, host: &str, sum: &str) {
    let url = format!("http://{host}:8080/large");
    let (fetched, took) = on.fetched_sha256(lab, &url, LONG);
    assert_eq!(fetched, sum, "{host}");
    println!("{LARGE} bytes from {host}: {}", rate(LARGE, took));
}

#[test]
fn nginx_behind_a_tap_is_reached_by_ipv6_and_by_ipv4() {
    let lab = Lab::new();
    let engine = Engine::of_both_families_on_tap(&lab);
    ping(&lab, Side::Server, TAP_ENGINE_ADDR6);
    let addrs = engine.status().ports[0].addrs.clone();
    let link_local = addrs.iter().find(|addr| addr.starts_with("fe80::")).expect("it has one");
    let link_local = link_local.split('/').next().expect("an address");
    ping(&lab, Side::Server, &format!("{link_local}%{TAP_LINK}"));
    let (_, sum) = lab.file("large", LARGE);
    let _nginx = nginx(&lab, &engine);
    fetches(&lab, SERVER, &format!("[{TAP_ENGINE_ADDR6}]"), &sum);
    fetches(&lab, SERVER, engine.addr(), &sum);
    fetches(&lab, SERVER, &format!("[{link_local}%25{TAP_LINK}]"), &sum);
    let counters = engine.status().counters;
    assert_eq!(counters["passive_opens"], 3, "{counters:?}");
    assert_eq!(counters.get("drop_bad_tcp_checksum"), None, "{counters:?}");
}

#[test]
fn what_a_program_sends_by_ipv6_arrives() {
    let lab = Lab::new();
    let engine = Engine::of_both_families_on_tap(&lab);
    let (path, sum) = lab.file("up", LARGE);
    let mut server = SERVER.peer(&lab, "put-server", &["8081", TAP_KERNEL_ADDR6]);
    server.wait_for_line("listening", SOON);
    let url = format!("http://[{TAP_KERNEL_ADDR6}]:8081/up");
    let start = std::time::Instant::now();
    let answer = On::Engine(&engine).curl(&lab, &["-f", "-T", &path.to_string_lossy(), &url], LONG);
    assert_eq!(answer.expect_success("curl -T").trim(), sum);
    println!("{LARGE} bytes up: {}", rate(LARGE, start.elapsed()));
    assert_eq!(engine.status().counters["active_opens"], 1);
}

#[test]
fn a_link_to_another_host_speaks_both_families() {
    let lab = Lab::new();
    let engine = Engine::of_both_families(&lab);
    ping(&lab, Side::Client, ENGINE_ADDR6);
    let (_, sum) = lab.file("large", LARGE);
    let _nginx = nginx(&lab, &engine);
    fetches(&lab, CLIENT, &format!("[{ENGINE_ADDR6}]"), &sum);
    fetches(&lab, CLIENT, ENGINE_ADDR, &sum);
    // The other way: the peer's server, and a program of the engine that finds it.
    let mut server = CLIENT.http_server_at(&lab, 8082, PEER_ADDR6);
    wait::until("the peer's server listens", SOON, || {
        let mut ss = lab.command(Side::Client, "ss");
        let said = child::run("ss", ss.args(["-Hltn", "sport", "=", ":8082"]), SOON);
        (!said.output.trim().is_empty()).then_some(())
    });
    let (fetched, _) =
        On::Engine(&engine).fetched_sha256(&lab, &format!("http://[{PEER_ADDR6}]:8082/large"), LONG);
    assert_eq!(fetched, sum);
    assert!(server.is_running());
    let counters = engine.status().counters;
    assert_eq!((counters["passive_opens"], counters["active_opens"]), (2, 1), "{counters:?}");
    let sockets = engine.sockets();
    assert!(
        sockets.iter().any(|socket| socket.local == "[::]:8080" && socket.state == "LISTEN"),
        "{sockets:?}"
    );
}

#[test]
fn programs_of_one_engine_meet_at_the_loopback_address() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("ipv6.py");
    std::fs::write(&file, include_str!("ipv6.py")).expect("a file in the lab");
    let mut command = On::Engine(&engine).command(&lab, "/usr/bin/python3");
    let said = Program::spawn("ipv6.py", command.arg(&file)).wait(SOON).expect_success("ipv6.py");
    assert_eq!(said.trim(), "same");
    assert_eq!(engine.status().counters["passive_opens"], 9, "the connections were the engine's");
    engine.wait_until_idle(SOON);
    let (_, sum) = lab.file("large", LARGE);
    let _nginx = nginx(&lab, &engine);
    fetches(&lab, On::Engine(&engine), "[::1]", &sum);
    fetches(&lab, On::Engine(&engine), "127.0.0.1", &sum);
    assert_eq!(sha256(&lab.dir().join("fetched")), sum);
}
