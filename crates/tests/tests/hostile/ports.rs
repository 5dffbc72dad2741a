//! Ports that are somebody else's: the kernel's, another address's, another socket's.

use crate::scene::{BESIDE, CLIENT, listening};
use toe_tests::attacker::{As, Attacks, MALLORY};
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_ADDR, Lab};
use toe_tests::tools::On;
use toe_tests::wait::{self, SOON};

/// An engine on the link and inside, and the attacks on it.
fn scene() -> (Lab, Engine, Attacks) {
    let lab = Lab::new();
    let engine = crate::scene::engine_with(&lab, &[]);
    let attacks = Attacks::on(&lab, &engine);
    (lab, engine, attacks)
}

/// A client of `on` is answered by the honest server at an address, and by nobody else.
#[track_caller]
fn answers(on: On<'_>, lab: &Lab, host: &str, port: &str, attack: &Program) {
    let mut client = on.peer(lab, "talk", &[host, port]);
    client.tell("hello");
    let said = client.wait_for_line("hello", SOON);
    assert!(said.contains("hello ok"), "at {host}:{port}: {said}\nthe attack: {}", attack.output());
    assert!(!attack.output().contains("took"), "{}", attack.output());
}

fn listens(attack: &Program) -> bool {
    attack.output().lines().any(|line| line == "listening")
}

/// Somebody listens in the engine where the kernel has a service, with nothing to show for it.
#[test]
fn the_kernels_service_inside() {
    let (lab, engine, attacks) = scene();
    let _service = listening(BESIDE.peer(&lab, "echo-many", &["5432", "127.0.0.1"]));
    let attack = attacks.begun(&lab, As::User(MALLORY), &["listen", "127.0.0.1:5432"], "decided");
    println!("the attack: {}", attack.output().trim());
    answers(On::Engine(&engine), &lab, "127.0.0.1", "5432", &attack);
}

/// The same with a twin of another address, of another port, and of the same in another namespace.
#[test]
fn the_kernels_service_with_a_twin_of_something_else() {
    let (lab, engine, attacks) = scene();
    let _service = listening(BESIDE.peer(&lab, "echo-many", &["5432", "127.0.0.1"]));
    for (who, twin) in [
        (As::User(MALLORY), "127.0.0.2:5432"),
        (As::User(MALLORY), "127.0.0.1:5433"),
        (As::Contained(MALLORY), "0.0.0.0:5432"),
    ] {
        let attack = attacks.begun(&lab, who, &["listen", "127.0.0.1:5432", "bound", twin], "decided");
        println!("with a twin at {twin}: {}", attack.output().trim());
        answers(On::Engine(&engine), &lab, "127.0.0.1", "5432", &attack);
    }
}

#[test]
fn a_more_exact_address_with_a_twin_of_another_namespace() {
    let (lab, engine, attacks) = scene();
    let _victim = listening(On::Engine(&engine).peer(&lab, "echo-many", &["8080"]));
    engine.wait_for_listener(8080);
    let at = format!("{ENGINE_ADDR}:8080");
    for address in [at.as_str(), "127.0.0.1:8080"] {
        let attack = attacks.begun(
            &lab,
            As::Contained(MALLORY),
            &["listen", address, "bound", "0.0.0.0:8080"],
            "decided",
        );
        println!("at {address}: {}", attack.output().trim());
        answers(CLIENT, &lab, ENGINE_ADDR, "8080", &attack);
        answers(On::Engine(&engine), &lab, "127.0.0.1", "8080", &attack);
    }
}

/// A twin that was shown and closed is worth nothing: the kernel has given the port to somebody else.
#[test]
fn a_twin_that_is_closed() {
    let (lab, engine, attacks) = scene();
    let mut attack = attacks.begun(&lab, As::User(MALLORY), &["stale", "127.0.0.1:5433"], "shown");
    let _service = listening(BESIDE.peer(&lab, "echo-many", &["5433", "127.0.0.1"]));
    attack.tell("go on");
    attack.wait_for_line("decided", SOON);
    println!("the attack: {}", attack.output().trim());
    // An engine looks after twins once a second: what was taken meanwhile must come back.
    comes_back(&lab, &engine, "5433");
}

/// A listener whose twin is closed gives the port back.
#[test]
fn a_listener_whose_twin_is_closed() {
    let (lab, engine, attacks) = scene();
    let mut attack =
        attacks.begun(&lab, As::User(MALLORY), &["stale-listener", "127.0.0.1:5434"], "listening");
    attack.tell("go on");
    attack.wait_for_line("closed the twin", SOON);
    let _service = listening(BESIDE.peer(&lab, "echo-many", &["5434", "127.0.0.1"]));
    comes_back(&lab, &engine, "5434");
}

/// A program on the engine reaches the kernel's service at a port, after a while.
fn comes_back(lab: &Lab, engine: &Engine, port: &str) {
    let reached = || {
        let mut client = On::Engine(engine).peer(lab, "talk", &["127.0.0.1", port]);
        client.tell("hello");
        client.wait_for_line("hello", SOON).contains("hello ok")
    };
    let took = wait::until_true("the service is reached", SOON, reached);
    println!("the kernel's service is reached after {took:?}");
}

/// What is bound to one device vouches for that device alone.
#[test]
fn a_twin_of_one_device() {
    let (lab, engine, attacks) = scene();
    let _service = listening(BESIDE.peer(&lab, "echo-at-device", &["8081", "lo"]));
    let attack = attacks.begun(
        &lab,
        As::User(MALLORY),
        &["listen", "127.0.0.1:8081", "device", "0.0.0.0:8081", "kern0"],
        "decided",
    );
    println!("the attack: {}", attack.output().trim());
    answers(On::Engine(&engine), &lab, "127.0.0.1", "8081", &attack);
}

/// A connection that came in at a port is not the right to listen there.
#[test]
fn an_accepted_connection_as_twin() {
    let (lab, engine, attacks) = scene();
    let attack = attacks.begun(
        &lab,
        As::Demoted(MALLORY),
        &["listen", "0.0.0.0:80", "accepted", "0.0.0.0:80", "127.0.0.1"],
        "decided",
    );
    println!("the attack: {}", attack.output().trim());
    let _victim = listening(On::Engine(&engine).peer(&lab, "echo-many", &["80"]));
    engine.wait_for_listener(80);
    answers(CLIENT, &lab, ENGINE_ADDR, "80", &attack);
}

/// Nor is one that connected from it, nor what is left of such a one.
#[test]
fn a_connected_and_a_disconnected_socket_as_twin() {
    let (lab, _engine, attacks) = scene();
    for kind in ["connected", "disconnected"] {
        let attack = attacks.begun(
            &lab,
            As::User(MALLORY),
            &["listen", "0.0.0.0:8090", kind, "127.0.0.1:8090"],
            "decided",
        );
        println!("{kind}: {}", attack.output().trim());
        assert!(!listens(&attack), "{kind}: {}", attack.output());
    }
}
