//! Holes in memory that the engine or a neighbour's program has mapped, too. A page fault in one waits until it is punched, for as long
//! as who punches likes: he maps the memory ten thousand times. So nobody may punch any.

use crate::scene::{PORT, Scene};
use std::time::Duration;
use toe_tests::attacker::{As, MALLORY};
use toe_tests::child::Program;
use toe_tests::tools::On;

/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";
const LIMIT: Duration = Duration::from_secs(120);

/// Each thing that was tried was refused.
#[track_caller]
fn is_refused(said: &str, memories: &[&str]) {
    println!("{said}");
    for memory in memories {
        assert!(said.contains(&format!("holes in {memory}: none")), "{memory}: {said}");
    }
}

#[test]
fn in_a_region() {
    let mut scene = Scene::new();
    let attack = scene.attacks.begun(&scene.lab, As::User(MALLORY), &["holes"], "done");
    is_refused(
        &attack.output(),
        &[
            "the region",
            "the region opened anew",
            "the receive part",
            "the receive part opened anew",
            "mappings",
        ],
    );
    scene.neighbour.goes_on("holes in a region");
    scene.engine_is_sound();
}

/// By a program under `toe run`: in whatever it shares, with a server's program above all.
#[test]
fn in_a_channel() {
    let mut scene = Scene::new();
    let script = scene.lab.dir().join("channel_holes.py");
    std::fs::write(&script, include_str!("channel_holes.py")).expect("a script");
    let mut command = On::Engine(&scene.engine).command(&scene.lab, PYTHON);
    command.arg("-B").arg(&script).arg(scene.lab.dir().join("attacker")).arg(PORT);
    let said =
        Program::spawn("holes in a channel", &mut command).wait(LIMIT).expect_success("holes in a channel");
    is_refused(&said, &["mappings"]);
    scene.neighbour.goes_on("holes in a channel");
    scene.engine_is_sound();
}
