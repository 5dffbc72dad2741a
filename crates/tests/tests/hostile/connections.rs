//! Connections of a listener that an attacker tries to get by connecting from the listener's own port.

use crate::scene::{BESIDE, CLIENT, everybody, listening};
use toe_tests::attacker::{As, Attacks, MALLORY};
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_ADDR, Lab, PEER_ADDR, Side};
use toe_tests::must;
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// Where the victim's clients connect from.
const FIRST: u16 = 42_000;
const COUNT: u16 = 16;

/// The client's kernel, which has not heard of them, must not answer the attacker's SYNs with resets: a rule that lets
/// nothing out from these ports stands for any client that is slow, behind a firewall, or about to connect.
fn silence(lab: &Lab, verb: &str) {
    let last = FIRST + COUNT - 1;
    let ports = format!("{FIRST}-{last}");
    must(lab.ip(
        Side::Client,
        &["rule", verb, "priority", "100", "ipproto", "tcp", "sport", &ports, "blackhole"],
    ));
}

/// Connections come to `port` after an attacker has connected from there to where they come from.
fn all_reach_the_victim(lab: &Lab, attacks: &Attacks, port: u16) {
    silence(lab, "add");
    let (at, first, count) = (format!("{ENGINE_ADDR}:{port}"), FIRST.to_string(), COUNT.to_string());
    let attack =
        attacks.begun(lab, As::User(MALLORY), &["connect-all", &at, PEER_ADDR, &first, &count], "connecting");
    println!("the attack: {}", attack.output().trim());
    silence(lab, "del");
    let clients = CLIENT.peer(lab, "from-ports", &[ENGINE_ADDR, &port.to_string(), &first, &count]);
    let said = clients.wait(SOON * 6).expect_success("from-ports");
    println!("the clients: {}; the attack: {}", said.trim(), attack.output().trim());
    assert!(said.contains(&format!("right {COUNT} ")), "{said}\nthe attack: {}", attack.output());
    assert!(!attack.output().contains("read"), "{}", attack.output());
}

#[test]
fn of_a_listener_on_a_link() {
    let lab = Lab::new();
    let engine = Engine::on_link_with(&lab, everybody(&lab));
    let _victim = listening(On::Engine(&engine).peer(&lab, "echo-many", &["80"]));
    engine.wait_for_listener(80);
    all_reach_the_victim(&lab, &Attacks::on(&lab, &engine), 80);
}

#[test]
fn of_a_listener_at_a_shared_address() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link_with(&lab, everybody(&lab));
    let _victim = listening(On::Engine(&engine).peer(&lab, "echo-many", &["8088"]));
    engine.wait_for_listener(8088);
    all_reach_the_victim(&lab, &Attacks::on(&lab, &engine), 8088);
}

#[test]
fn of_the_kernels_listener_at_a_shared_address() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link_with(&lab, everybody(&lab));
    let _victim = listening(BESIDE.peer(&lab, "echo-many", &["8088"]));
    all_reach_the_victim(&lab, &Attacks::on(&lab, &engine), 8088);
}

/// A server that is slow to take its connections, inside the engine: its client waits, and somebody connects to the client
/// from the server's port.
#[test]
fn of_a_listener_inside() {
    let lab = Lab::new();
    let settings: Vec<&str> = ["--syn-cookies", "off", "--port", "local"]
        .into_iter()
        .chain(everybody(&lab).iter().copied())
        .collect();
    let engine = Engine::on_link_with(&lab, &settings);
    let mut victim = listening(On::Engine(&engine).peer(&lab, "slow-server", &["7080"]));
    engine.wait_for_listener(7080);
    let mut client = On::Engine(&engine).peer(&lab, "patient", &["127.0.0.1", "7080", &FIRST.to_string()]);
    client.wait_for_line("waiting", SOON);
    let attacks = Attacks::on(&lab, &engine);
    let attack = attacks.begun(
        &lab,
        As::User(MALLORY),
        &["connect-through", "127.0.0.1:7080", &format!("127.0.0.1:{FIRST}")],
        "decided",
    );
    println!("the attack: {}", attack.output().trim());
    victim.tell("go on");
    let said = client.wait_for_line("got", SOON * 3);
    assert!(said.contains("got ping"), "{said}; the attack: {}", attack.output());
    assert!(!attack.output().contains("read"), "{}", attack.output());
}
