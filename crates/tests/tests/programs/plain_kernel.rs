//! With no engine running, a program under the switch layer behaves as without it: a small C program that checks itself
//! is built with `cc` and run both ways.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use toe_tests::bins;

/// Built once: a file that is written cannot be run by the other test.
fn program() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plain_kernel");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/plain_kernel.c");
    let status = Command::new("cc")
        .args(["-O2", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wno-unused-result", "-pthread", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(status.success());
    program
}

fn run(program: &Path, preload: Option<&Path>, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    // No engine: neither by name nor in the directories that are looked at by default.
    let nobody = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-engine.sock");
    command.env("TOE_ENGINE", nobody).envs(env.iter().copied());
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    command.output().unwrap()
}

#[test]
fn a_program_without_an_engine_behaves_as_without_the_layer() {
    let (library, program) = (bins::path("libtoe_switch.so"), program());
    let plain = run(&program, None, &[]);
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    for env in [&[][..], &[("TOE_DISABLE", "1")]] {
        let under = run(&program, Some(&library), env);
        assert!(under.status.success(), "{}", String::from_utf8_lossy(&under.stderr));
        assert_eq!(under.stdout, plain.stdout);
        assert_eq!(under.stderr, plain.stderr);
    }
}

#[test]
fn decisions_are_told_when_asked_for() {
    let under = run(&program(), Some(&bins::path("libtoe_switch.so")), &[("TOE_DEBUG", "1")]);
    let told = String::from_utf8_lossy(&under.stderr);
    assert!(under.status.success(), "{told}");
    assert!(told.contains("kernel: no engine is running"), "{told}");
    assert!(told.contains("duplicated before its stack was chosen"), "{told}");
}
