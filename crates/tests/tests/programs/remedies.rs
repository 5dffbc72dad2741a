//! Where an engine or a program cannot start: another way is gone, or the cause and what to do are told.

use toe_tests::child;
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_ADDR, ENGINE_LINK, KERNEL_ADDR, Lab, Side};
use toe_tests::wait::{self, SOON};

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

/// An address has one owner at a link: the kernel, or one engine.
#[test]
fn an_address_that_somebody_has_is_refused_at_the_start() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let start = |name: &str, addr: &str| {
        said(
            &lab,
            ":",
            &format!("start --name {}-{name} --port packet:{ENGINE_LINK} --addr {addr}/24", engine.name()),
        )
    };
    let (status, text) = start("b", ENGINE_ADDR);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("another engine has this address"), "{text}");
    let (status, text) = start("c", KERNEL_ADDR);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("the kernel has this address on kern0"), "{text}");
}

#[test]
fn a_link_that_is_gone_is_told() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    assert_eq!(engine.status().ports[0].trouble, None);
    lab.remove_engine_link().expect("its link is gone");
    wait::until_true("the engine says so", SOON, || {
        engine.status().ports[0]
            .trouble
            .as_ref()
            .is_some_and(|trouble| trouble.contains("the interface is gone"))
    });
}

#[test]
fn who_shares_a_veth_is_told_of_checksums() {
    let lab = Lab::new();
    let name = format!("toetest-{}-veth", std::process::id());
    let (status, text) = said(&lab, ":", &format!("start --name {name} --port xdp:{ENGINE_LINK}"));
    let (_, stopped) = said(&lab, ":", &format!("stop --name {name}"));
    assert_eq!(status, Some(0), "{text} {stopped}");
    assert!(text.contains("ethtool -K PEER tx off"), "{text}");
}
