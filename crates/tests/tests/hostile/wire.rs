//! Strangers on the link.

use crate::quotas::resident;
use crate::scene::{Scene, listening};
use toe_tests::attacker::As;
use toe_tests::lab::{ENGINE_ADDR, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// A stranger's address.
const STRANGER: &str = "10.77.0.66";
/// Bytes of shared memory that strangers may make the engine take: one session's share, and some.
const MEMORY_MAX: u64 = 300 << 20;

/// `role` of the victim at port 7100 is attacked, and the neighbour goes on.
fn is_harmless(role: &str, attack: &[&str]) {
    let mut scene = Scene::new();
    let _victim = listening(On::Engine(&scene.engine).peer(&scene.lab, role, &["7100"]));
    scene.engine.wait_for_listener(7100);
    let at = format!("{ENGINE_ADDR}:7100");
    let words: Vec<&str> =
        [attack[0], "toe0", STRANGER, &at].into_iter().chain(attack[1..].iter().copied()).collect();
    let mut flood = scene.attacks.begun(&scene.lab, As::Root(Side::Client), &words, "flooding");
    if attack[0] != "wire-unread" {
        flood.wait_for_line("rounds", SOON * 2);
    }
    scene.neighbour.goes_on(attack[0]);
    scene.neighbour.goes_on(attack[0]);
    let used = resident(scene.engine.pid(), "RssShmem");
    println!("{}: {} MiB of shared memory", flood.output().lines().last().unwrap_or_default(), used >> 20);
    assert!(used < MEMORY_MAX, "{} MiB", used >> 20);
    scene.engine_is_sound();
}

#[test]
fn selective_acknowledgements_of_single_bytes() {
    is_harmless("senders", &["wire-sacks", "4"]);
}

#[test]
fn bytes_out_of_order() {
    is_harmless("deaf", &["wire-bytes", "4"]);
}

#[test]
fn bytes_that_nobody_reads() {
    is_harmless("deaf", &["wire-unread", "64"]);
}

#[test]
fn forged_segments() {
    is_harmless("deaf", &["wire-forged", "7"]);
}
