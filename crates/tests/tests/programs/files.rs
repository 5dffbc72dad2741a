//! Files to connections and back: by the native interface's directwrite and directread, and by sendfile.

use std::process::Command;
use std::time::Duration;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;
use toe_tests::{bins, child};

/// Megabytes go and come.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn direct_transfers_by_the_native_interface() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let (source, bin) = (bins::workspace().join("crates/tests/programs/files.c"), lab.dir().join("files"));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-o"]).arg(&bin).arg(&source);
    cc.arg("-I").arg(bins::workspace().join("include")).arg("-L").arg(bins::dir()).arg("-ltoe");
    cc.arg(format!("-Wl,-rpath,{}", bins::dir().display()));
    child::run("cc", &mut cc, SOON).expect_success("cc");
    let mut command = lab.command(Side::Server, &bin);
    command.arg("7000").arg(lab.dir()).env("TOE_ENGINE", format!("/run/opentoe/{}.sock", engine.name()));
    // Cargo points it at another build of the library.
    command.env_remove("LD_LIBRARY_PATH");
    let said = child::run("files", &mut command, LIMIT).expect_success("files");
    assert!(said.ends_with("all\n"), "{said}");
    print!("{said}");
}
