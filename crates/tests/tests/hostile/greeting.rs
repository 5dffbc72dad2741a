//! An engine that is none, where a user's programs may look for one.

use std::path::{Path, PathBuf};
use toe_tests::attacker::{As, Attacks, MALLORY};
use toe_tests::child;
use toe_tests::lab::{KERNEL_ADDR, Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// A directory in everybody's `/tmp`; gone with this.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_directory_that_somebody_else_has_made() {
    let lab = Lab::new();
    // A user of this test alone.
    let uid = 61_000 + std::process::id() % 1000;
    let dir = Place(Path::new("/tmp").join(format!("opentoe-{uid}")));
    let socket = dir.0.join("default.sock");
    let attacks = Attacks::at(&lab, socket.clone());
    let pose = attacks.begun(&lab, As::User(MALLORY), &["pose", &socket.to_string_lossy()], "posing");
    let _server = crate::scene::listening(On::Kernel(Side::Server).peer(&lab, "echo-many", &["9200"]));
    let uid = uid.to_string();
    let mut command = lab.command(Side::Server, "setpriv");
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "/usr/bin/python3"]);
    command.arg(lab.dir().join("peer.py")).args(["echo-client", KERNEL_ADDR, "9200", "2000"]);
    command.env("LD_PRELOAD", lab.program("libtoe_switch.so")).env_remove("XDG_RUNTIME_DIR");
    let said = child::run("echo-client", &mut command, SOON).expect_success("echo-client");
    assert!(said.contains("same 2000"), "{said}");
    println!("the false engine: {}", pose.output().trim());
    assert!(!pose.output().contains("greeted 64"), "{}", pose.output());
}
