//! Programs of other network namespaces: what they reach of the engine's, and what of theirs is reached.

use crate::scene::{Scene, listening};
use toe_tests::attacker::{As, MALLORY};
use toe_tests::lab::{ENGINE_ADDR, PEER_ADDR};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// 127.0.0.1 of the engine's namespace is not 127.0.0.1 of another.
#[test]
fn loopback_is_not_reached_from_another_namespace() {
    let mut scene = Scene::new();
    for who in [As::Contained(MALLORY), As::Root(toe_tests::lab::Side::Client)] {
        for at in ["127.0.0.1:7000", &format!("{ENGINE_ADDR}:7000")] {
            let attack = scene.attacks.begin(&scene.lab, who, "reach", &[at]);
            let said = first_line(attack);
            println!("{who:?} at {at}: {said}");
            assert!(!said.contains("reached") && !said.contains("connected"), "{who:?} at {at}: {said}");
        }
    }
    scene.neighbour.goes_on("attempts from other namespaces");
}

/// Nor does it use the engine's links and addresses.
#[test]
fn links_are_not_used_from_another_namespace() {
    let scene = Scene::new();
    let _server = listening(crate::scene::CLIENT.peer(&scene.lab, "echo-many", &["9000"]));
    let at = format!("{PEER_ADDR}:9000");
    let said = first_line(scene.attacks.begin(&scene.lab, As::Contained(MALLORY), "reach", &[&at]));
    println!("over the engine's link: {said}");
    assert!(!said.contains("reached"), "{said}");
}

/// Who listens at 127.0.0.1 of another namespace is not reached in the engine's.
#[test]
fn a_listener_of_another_namespace_is_not_reached() {
    let scene = Scene::new();
    let attack = scene.attacks.begun(
        &scene.lab,
        As::Contained(MALLORY),
        &["listen", "127.0.0.1:7555", "bound", "0.0.0.0:7555"],
        "decided",
    );
    let client = On::Engine(&scene.engine).peer(&scene.lab, "talk", &["127.0.0.1", "7555"]);
    let said = client.wait(SOON).output;
    println!(
        "the attack: {}; the client: {}",
        attack.output().trim(),
        said.lines().last().unwrap_or_default()
    );
    assert!(said.contains("ConnectionRefusedError"), "{said}");
    assert!(!attack.output().contains("took"), "{}", attack.output());
}

/// What an attack says once it has something to say.
fn first_line(mut attack: toe_tests::child::Program) -> String {
    let words = ["reached", "refused", "failed", "connected", "Error"];
    let (line, _) = toe_tests::wait::until("the attack says something", SOON * 2, || {
        let output = attack.output();
        let line =
            output.lines().find(|line| words.iter().any(|word| line.contains(word))).map(str::to_owned);
        line.or_else(|| (!attack.is_running()).then_some(output))
    });
    line
}
