//! TCP Fast Open as programs ask for it, with Linux at the other end of the link.

use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_ADDR, Lab, PEER_ADDR, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

const CLIENT: On<'static> = On::Kernel(Side::Client);
const PORT: &str = "7413";
/// What the client says: the first connection asks for a cookie, the others bring it.
const WAYS: &str =
    "without_waiting False\nby_message True\nby_sendmsg True\nby_option True\nwithout_waiting True\n";
const SERVED: &str = "served False\nserved True\nserved True\nserved True\nserved True\n";

fn python(on: On<'_>, lab: &Lab, name: &str, args: &[&str]) -> Program {
    let file = lab.dir().join("fast_open.py");
    std::fs::write(&file, include_str!("fast_open.py")).expect("a file in the lab");
    let mut command = on.command(lab, "/usr/bin/python3");
    Program::spawn(name, command.arg(&file).args(args))
}

/// Linux at the other end takes part in Fast Open, both ways.
fn let_linux(lab: &Lab) {
    let mut sysctl = lab.command(Side::Client, "sh");
    let set = "echo 3 > /proc/sys/net/ipv4/tcp_fastopen";
    child::run("sysctl", sysctl.args(["-c", set]), SOON).expect_success("sysctl");
}

fn exchange(lab: &Lab, server: On<'_>, client: On<'_>, addr: &str) {
    let mut serving = python(server, lab, "server", &["server", PORT, "5"]);
    serving.wait_for_line("listening", SOON);
    let asked = python(client, lab, "client", &["client", addr, PORT]).wait(SOON);
    assert_eq!(asked.expect_success("client"), WAYS);
    let served = serving.wait(SOON).expect_success("server");
    assert_eq!(served.trim_start_matches("listening\n"), SERVED);
}

#[test]
fn programs_that_connect_send_bytes_with_the_syn() {
    let lab = Lab::new();
    let engine = Engine::on_link_with(&lab, &[]);
    let_linux(&lab);
    exchange(&lab, CLIENT, On::Engine(&engine), PEER_ADDR);
    let counters = engine.status().counters;
    assert_eq!((counters["active_opens"], counters["fast_open_sent"]), (5, 4), "{counters:?}");
}

#[test]
fn listeners_take_bytes_of_syns_when_the_engine_may() {
    let lab = Lab::new();
    let engine = Engine::on_link_with(&lab, &["--fast-open", "both"]);
    let_linux(&lab);
    exchange(&lab, On::Engine(&engine), CLIENT, ENGINE_ADDR);
    let counters = engine.status().counters;
    assert_eq!((counters["fast_open_asked"], counters["fast_open_received"]), (1, 4), "{counters:?}");
}
