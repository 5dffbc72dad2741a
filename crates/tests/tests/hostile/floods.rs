//! One user asks without end for what costs the engine time; the others' exchanges go on.
//!
//! How fast they go on is measured by `scripts/hostile-figures.sh`; here they must get done.

use crate::quotas::silent;
use crate::scene::Scene;
use toe_tests::attacker::{As, MALLORY};
use toe_tests::lab::ENGINE_ADDR;
use toe_tests::wait::SOON;

/// The attacks by name, with what is asked for as arguments.
pub fn all() -> Vec<(&'static str, Vec<String>)> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let at = format!("{ENGINE_ADDR}:7000");
    vec![
        ("take-anchors", words(&["150"])),
        ("claims", words(&[&at, "64"])),
        ("crowd", words(&["10.77.0.50", "9", "28232"])),
        ("close-listeners", words(&["10.77.0.50", "30000"])),
        ("full-rings", words(&["150"])),
        ("opens", words(&["2"])),
        ("doorbells", words(&["8"])),
        ("full-bells", words(&["8"])),
        ("reports", words(&["64"])),
        ("captures", words(&["64"])),
        ("hellos", words(&["32"])),
    ]
}

fn is_harmless(name: &str) {
    let mut scene = Scene::new();
    silent(&scene);
    let attacks = all();
    let (_, args) = attacks.iter().find(|(attack, _)| *attack == name).expect("an attack");
    let words: Vec<&str> = std::iter::once(name).chain(args.iter().map(String::as_str)).collect();
    let mut attack = scene.attacks.begun(&scene.lab, As::User(MALLORY), &words, "flooding");
    attack.wait_for_line("rounds", SOON * 2);
    scene.neighbour.goes_on(name);
    assert!(attack.is_running(), "{}", attack.output());
    println!("{name}: {}", attack.output().lines().last().unwrap_or_default());
    scene.engine_is_sound();
}

#[test]
fn taking_anchors() {
    is_harmless("take-anchors");
}

#[test]
fn claims_of_a_flow_whose_holder_is_busy() {
    is_harmless("claims");
}

#[test]
fn connects_where_no_port_is_free() {
    is_harmless("crowd");
}

#[test]
fn listeners_that_come_and_go() {
    is_harmless("close-listeners");
}

#[test]
fn completions_that_nobody_takes() {
    is_harmless("full-rings");
}

#[test]
fn anchors_that_are_opened_and_closed() {
    is_harmless("opens");
}

#[test]
fn doorbells() {
    is_harmless("doorbells");
}

#[test]
fn doorbells_that_are_full_and_wait() {
    is_harmless("full-bells");
}

#[test]
fn reports() {
    is_harmless("reports");
}

#[test]
fn captures() {
    is_harmless("captures");
}

#[test]
fn sessions_that_come_and_go() {
    is_harmless("hellos");
}
