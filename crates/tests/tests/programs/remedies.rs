//! Where an engine or a program cannot start: another way is gone, or the cause and what to do are told.

use toe_tests::child;
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;

/// What `toe WORDS` says under `sh -c "SETUP; exec …"`, and its status.
fn said(lab: &Lab, setup: &str, words: &str) -> (Option<i32>, String) {
    let script = format!("{setup}; exec \"$0\" {words} 2>&1");
    let mut command = lab.command(Side::Server, "sh");
    command.args(["-c", &script]).arg(lab.program("toe")).env_remove("XDG_RUNTIME_DIR");
    let done = child::run("sh", &mut command, SOON);
    (done.status.code(), done.output)
}

#[test]
fn a_run_directory_that_cannot_be_written_is_no_end() {
    let lab = Lab::new();
    let own = lab.dir().join("runtime");
    std::fs::create_dir(&own).expect("a directory");
    let setup = format!(
        "export XDG_RUNTIME_DIR={}; mount --make-rprivate / && mount -t tmpfs -o ro tmpfs /run",
        own.display()
    );
    let script = format!("{setup}; exec \"$0\" run --private -- sh -c 'echo on $TOE_ENGINE'");
    let mut command = lab.command(Side::Server, "unshare");
    command.args(["-m", "sh", "-c", &script]).arg(lab.program("toe"));
    let done = child::run("toe run", &mut command, SOON).expect_success("toe run");
    assert!(done.contains(&format!("on {}/opentoe/run-", own.display())), "{done}");
}

#[test]
fn limits_are_named_with_what_to_do() {
    let lab = Lab::new();
    for (limit, told) in [
        ("ulimit -n 16", "only 16 descriptors may be open here"),
        ("ulimit -v 200000", "MiB of address space may be used here"),
    ] {
        let (status, text) = said(&lab, limit, "run --private -- true");
        assert_eq!(status, Some(125), "{limit}: {text}");
        assert!(text.contains(told) && text.contains("raise the limit"), "{limit}: {text}");
    }
}

#[test]
fn a_wrong_command_line_has_its_status_and_a_failure_its_json() {
    let lab = Lab::new();
    for words in ["start --cores zz", "start --quota zz=1", "start --log-format zz", "why nginx", "frob"] {
        let (status, text) = said(&lab, ":", words);
        assert_eq!(status, Some(2), "{words}: {text}");
    }
    let (_, text) = said(&lab, ":", "why nginx");
    assert!(text.contains("pgrep -x nginx"), "{text}");
    let (status, text) = said(&lab, ":", "status --json --name toetest-nobody");
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (status, told["error"].as_str(), told["status"].as_u64()),
        (Some(3), Some("not-running"), Some(3))
    );
}
