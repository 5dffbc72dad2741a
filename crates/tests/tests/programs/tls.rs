//! TLS records by the kernel's interface (TCP_ULP "tls"), by unmodified programs. The kernel need not have its module: what is expected is what
//! its documentation and its self-tests say.

use std::process::Command;
use std::time::Duration;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::Lab;
use toe_tests::wait::SOON;
use toe_tests::{bins, child};

/// Six suites, each with some megabytes in small pieces.
const LIMIT: Duration = Duration::from_secs(120);

/// Every call with fixed keys at both ends, within a process and between two.
#[test]
fn records_go_both_ways_by_every_call() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let (source, bin) = (bins::workspace().join("crates/tests/programs/ktls.c"), lab.dir().join("ktls"));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-o"]).arg(&bin).arg(&source);
    child::run("cc", &mut cc, SOON).expect_success("cc");
    let mut command = engine.run(&lab, &bin.display().to_string());
    assert_eq!(child::run("ktls", command.arg("7000"), LIMIT).expect_success("ktls"), "all\n");
    let counters = engine.status().counters;
    assert!(counters.get("local_segments").is_some_and(|n| *n > 0), "it was the engine's: {counters:?}");
}

/// Several threads that send on one socket, and records without a byte.
#[test]
fn records_of_a_crowd_and_empty_ones_arrive() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let script = lab.dir().join("tls_crowd.py");
    std::fs::write(&script, include_str!("tls_crowd.py")).expect("a file in the lab");
    let mut command = engine.run(&lab, "/usr/bin/python3");
    assert_eq!(
        child::run("tls_crowd.py", command.arg(&script), LIMIT).expect_success("tls_crowd.py"),
        "same\n"
    );
}

/// The suites, as curl is told of them, and as they are called once agreed.
const SUITES: [(&[&str], &str); 6] = [
    (&["--tls13-ciphers", "TLS_AES_128_GCM_SHA256"], "TLSv1.3 TLS_AES_128_GCM_SHA256"),
    (&["--tls13-ciphers", "TLS_AES_256_GCM_SHA384"], "TLSv1.3 TLS_AES_256_GCM_SHA384"),
    (&["--tls13-ciphers", "TLS_CHACHA20_POLY1305_SHA256"], "TLSv1.3 TLS_CHACHA20_POLY1305_SHA256"),
    (
        &["--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES128-GCM-SHA256"],
        "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256",
    ),
    (
        &["--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-AES256-GCM-SHA384"],
        "TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384",
    ),
    (
        &["--tls-max", "1.2", "--ciphers", "ECDHE-ECDSA-CHACHA20-POLY1305"],
        "TLSv1.2 ECDHE-ECDSA-CHACHA20-POLY1305",
    ),
];

/// A server whose records are its socket's, and curl, whose records are OpenSSL's: each suite, a file each way, and the alert at the end.
#[test]
fn records_are_those_of_openssl() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let (script, file, back) =
        (lab.dir().join("tls_server.py"), lab.dir().join("file"), lab.dir().join("back"));
    std::fs::write(&script, include_str!("tls_server.py")).expect("a file in the lab");
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
    std::fs::write(&file, &bytes).expect("a file in the lab");
    let sum = child::run("sha256sum", Command::new("sha256sum").arg(&file), SOON).expect_success("sha256sum");
    let sum = sum.split_whitespace().next().expect("a sum");
    let mut command = engine.run(&lab, "/usr/bin/python3");
    command.arg(&script).arg("7001").arg(&file).arg((2 * SUITES.len()).to_string());
    let mut server = Program::spawn("server", &mut command);
    server.wait_for_line("listening", SOON);
    let curl = |suite: &[&str], more: &[&std::ffi::OsStr]| {
        let mut command = engine.run(&lab, "/usr/bin/curl");
        command.args(["-sSk", "--max-time", "60"]).args(suite).args(more).arg("https://127.0.0.1:7001/");
        child::run("curl", &mut command, LIMIT).expect_success("curl")
    };
    let mut agreed = "listening\n".to_owned();
    for (suite, name) in SUITES {
        curl(suite, &["-o".as_ref(), back.as_os_str()]);
        assert!(std::fs::read(&back).expect("curl wrote it") == bytes, "{name}");
        assert_eq!(curl(suite, &["-T".as_ref(), file.as_os_str()]), sum, "{name}");
        // A warning to close, told by its record's type.
        agreed += &format!("{name} (0, 21)\n").repeat(2);
    }
    assert_eq!(server.wait(SOON).expect_success("server"), agreed);
}
