//! What the engine wakes has very many who wait for it, or one who holds a lock that is wanted: nobody but its user waits for that.
//! docs/security.md lists all that the engine's thread does to what a host can wait for.

use crate::scene::Scene;
use toe_tests::attacker::{As, MALLORY};
use toe_tests::child::Program;
use toe_tests::lab::{ENGINE_ADDR, Side};
use toe_tests::wait::{SOON, until_true};

/// Wake-ups that users' threads made.
const BY_USERS: &str = "wakes_by_users";

fn by_users(scene: &Scene) -> u64 {
    scene.engine.status().counters.get(BY_USERS).copied().unwrap_or_default()
}

/// The user's own thread makes the wake-ups, and the neighbour goes on.
fn goes_to_its_user(attack: &[&str]) {
    let mut scene = Scene::new();
    // The engine may have lost its processor in the middle of a wake-up, which is a long one then.
    let before = by_users(&scene);
    let attack = scene.attacks.begun(&scene.lab, As::User(MALLORY), attack, "woken 1");
    until_true("the user's own thread makes the wake-ups", SOON * 4, || by_users(&scene) > before + 16);
    scene.neighbour.goes_on(attack.output().trim());
    scene.engine_is_sound();
}

#[test]
fn watchers_of_the_control_connection() {
    goes_to_its_user(&["wakes", "control", "watch", "200000"]);
}

#[test]
fn watchers_of_an_interrupt() {
    goes_to_its_user(&["wakes", "irq", "watch", "200000"]);
}

#[test]
fn a_crowd_that_is_signalled() {
    goes_to_its_user(&["wakes", "irq", "crowd", "600"]);
}

#[test]
fn a_crowd_that_polls() {
    goes_to_its_user(&["wakes", "control", "pollers", "2000"]);
}

/// Nobody reads a doorbell, so nobody who waits until it can be written to is woken. That it is not read is shown in `toe-daemon`.
#[test]
fn watchers_of_a_doorbell() {
    let mut scene = Scene::new();
    let attack =
        scene.attacks.begun(&scene.lab, As::User(MALLORY), &["wakes", "bell", "watch", "200000"], "woken 4");
    scene.neighbour.goes_on(attack.output().trim());
    scene.engine_is_sound();
}

/// The kernel takes the lock of each epoll that watches a file when that is closed for the last time.
#[test]
fn the_last_copy_of_a_doorbell_that_somebody_watches() {
    last_close("bell");
}

#[test]
fn a_control_connection_that_somebody_watches() {
    last_close("control");
}

fn last_close(which: &str) {
    let mut scene = Scene::new();
    let _attack = scene.attacks.begun(&scene.lab, As::Demoted(MALLORY), &["last-close", which], "let go");
    scene.neighbour.goes_on("a lock that is kept");
    scene.engine_is_sound();
}

/// A session's number is another's soon.
#[test]
fn bells_of_sessions_that_are_over() {
    let mut scene = Scene::new();
    let _attack = scene.attacks.begun(&scene.lab, As::User(MALLORY), &["rings", "100"], "over 100");
    scene.neighbour.goes_on("bells of nobody");
    scene.engine_is_sound();
}

/// A stranger's datagrams go to a socket by the kernel, which goes through all who wait for that.
#[test]
fn watchers_of_a_udp_socket() {
    let mut scene = Scene::new();
    let toe = scene.lab.program("toe");
    let attack = ["udp", &toe.to_string_lossy(), "7951", "200000"];
    let attack = scene.attacks.begun(&scene.lab, As::User(MALLORY), &attack, "waited for by");
    let script = format!(
        "import socket, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         while True: s.sendto(b'x', ('{ENGINE_ADDR}', 7951)); time.sleep(0.002)"
    );
    let mut stranger = scene.lab.command(Side::Client, "/usr/bin/python3");
    let _stranger = Program::spawn("stranger", stranger.args(["-c", &script]));
    until_true("the user's own thread wakes them", SOON * 4, || by_users(&scene) > 16);
    scene.neighbour.goes_on(attack.output().trim());
    scene.engine_is_sound();
}
