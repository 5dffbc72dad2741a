//! Descriptors that wait when they are closed or looked at: nobody but who sent them stands still.

use crate::quotas::newcomer;
use crate::scene::{self, Neighbour, Scene};
use toe_tests::attacker::{As, Attacks, MALLORY};
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;

/// The neighbour goes on while descriptors are stuck that came in this way.
fn is_harmless(who: As, what: &str, how: &str) {
    let mut scene = Scene::new();
    let _attack = scene.attacks.begun(&scene.lab, who, &["stuck", what, how], "done 1");
    scene.neighbour.goes_on(how);
    scene.engine_is_sound();
}

#[test]
fn a_lingering_twin() {
    is_harmless(As::User(MALLORY), "linger", "show-twin");
}

#[test]
fn a_lingering_socket_to_recognise() {
    is_harmless(As::User(MALLORY), "linger", "recognise");
}

#[test]
fn a_lingering_socket_to_claim() {
    is_harmless(As::User(MALLORY), "linger", "claim");
}

#[test]
fn a_lingering_socket_as_unread_bytes() {
    is_harmless(As::User(MALLORY), "linger", "filter");
}

#[test]
fn a_lingering_socket_without_a_session() {
    is_harmless(As::User(MALLORY), "linger", "no-hello");
}

#[test]
fn a_lingering_socket_that_nobody_has_received() {
    is_harmless(As::User(MALLORY), "linger", "in-flight");
}

#[test]
fn a_silent_file_as_twin() {
    is_harmless(As::Demoted(MALLORY), "fuse", "show-twin");
}

#[test]
fn a_silent_file_to_recognise() {
    is_harmless(As::Demoted(MALLORY), "fuse", "recognise");
}

#[test]
fn a_silent_file_to_claim() {
    is_harmless(As::Demoted(MALLORY), "fuse", "claim");
}

#[test]
fn a_silent_file_as_unread_bytes() {
    is_harmless(As::Demoted(MALLORY), "fuse", "filter");
}

#[test]
fn a_user_who_may_not_attach() {
    let lab = Lab::new();
    let engine = toe_tests::engine::Engine::on_link_with(&lab, &["--port", "local", "--allow-uid", "0"]);
    let mut neighbour = Neighbour::of(&lab, &engine);
    let attacks = Attacks::on(&lab, &engine);
    let mut attack =
        attacks.begin(&lab, As::User(MALLORY), "stuck", &["linger", "show-twin", "no-hello", "in-flight"]);
    // Or cannot even reach the socket.
    toe_tests::wait::until_true("the attack is under way", SOON, || {
        !attack.is_running() || attack.output().contains("done 3")
    });
    neighbour.goes_on("a user outside");
}

/// Interrupts that are taken into memory of a file system that does not answer.
#[test]
fn interrupts_that_are_held_up() {
    let mut scene = Scene::new();
    let _attack = scene.attacks.begun(&scene.lab, As::Demoted(MALLORY), &["held-interrupts"], "done");
    scene.neighbour.goes_on("interrupts that are held up");
    scene.engine_is_sound();
}

/// A newcomer of another user finds the engine as if nothing were, and the neighbour goes on.
fn holds_up_nobody(who: As, how: &str) {
    let mut scene = Scene::new();
    let attack = scene.attacks.begun(&scene.lab, who, &["held-anchors", how], "done");
    scene.neighbour.goes_on(how);
    newcomer(&scene, &attack);
    scene.neighbour.goes_on(how);
    scene.engine_is_sound();
}

#[test]
fn the_lock_of_an_anchor_that_a_session_leaves() {
    holds_up_nobody(As::Demoted(MALLORY), "session");
}

#[test]
fn the_lock_of_an_anchor_that_another_process_shows() {
    holds_up_nobody(As::Demoted(MALLORY), "claim");
}

/// Root of a container can open what is above his session's directory.
#[test]
fn the_lock_of_the_directory_above_all_anchors() {
    holds_up_nobody(As::Root(Side::Client), "above");
}

/// Many stuck descriptors of one user, and another user of the engine goes on as the neighbour does.
#[test]
fn many_at_once() {
    let mut scene = Scene::new();
    let _attack: Vec<_> = (0..4)
        .map(|n| {
            let hows =
                ["stuck", "linger", "show-twin", "recognise", "claim", "filter", "no-hello", "in-flight"];
            scene.attacks.begun(&scene.lab, As::User(MALLORY + 10 * n), &hows, "done 6")
        })
        .collect();
    scene.neighbour.goes_on("24 stuck descriptors");
    let again = scene::listening(toe_tests::tools::On::Engine(&scene.engine).peer(
        &scene.lab,
        "echo-many",
        &["7001"],
    ));
    scene.engine.wait_for_listener(7001);
    drop(again);
}
