//! What users see of each other, and who commands an engine.

use crate::scene::{self, Scene};
use toe_tests::attacker::{As, MALLORY};
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;

/// Sockets, programs, peers and numbers of processes are their users' own business.
#[test]
fn reports_show_nothing_of_others() {
    let scene = Scene::new();
    let attack = scene.attacks.begun(&scene.lab, As::User(MALLORY), &["look"], "looked");
    let said = attack.output();
    // An address ends its text; a figure of 7000 is no secret.
    for secret in [":7000\"", "python3", "10.77.0.1"] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
    // Root sees them.
    assert!(scene.engine.sockets().iter().any(|socket| socket.local.ends_with(":7000")));
}

/// Whoever may attach captures what is his, and nothing of others'. Those whose it is not to see see none of their packets.
#[test]
fn captures_show_nothing_of_others() {
    let mut scene = Scene::new();
    for who in [As::User(MALLORY), As::Contained(MALLORY), As::Root(Side::Client)] {
        let mut attack = scene.attacks.begun(&scene.lab, who, &["overhear"], "overhears");
        scene.neighbour.goes_on("a capture");
        attack.tell("enough");
        if !attack.output().contains("overhears nothing") {
            let heard = attack.wait_for_line("heard", SOON);
            assert!(heard.contains("heard 0 records"), "{who:?}: {heard}");
        }
    }
}

/// A container's root is nobody here, with a user namespace or without.
#[test]
fn stopping_is_the_owners() {
    let lab = Lab::new();
    let mut engine_lives = Vec::new();
    for who in [As::User(MALLORY), As::Contained(MALLORY), As::Root(Side::Client)] {
        let engine = scene::engine(&lab);
        let attacks = toe_tests::attacker::Attacks::on(&lab, &engine);
        let attack = attacks.begun(&lab, who, &["command"], "commanded");
        println!("{who:?}: {}", attack.output().trim().replace('\n', "; "));
        engine_lives.push((who, !attack.output().contains("obeyed")));
        drop(attack);
        drop(engine);
    }
    assert!(engine_lives.iter().all(|(_, refused)| *refused), "{engine_lives:?}");
}
