//! What an engine may do once it runs: next to nothing.

use crate::scene::everybody;
use std::collections::BTreeMap;
use toe_tests::attacker::{As, Attacks, MALLORY};
use toe_tests::child;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::{self, SOON};

/// `/proc/PID/task/THREAD/status` by name. None if the thread has ended meanwhile: a control server's thread goes when no
/// session of its user is left, that of the last one who asked how the engine is included.
fn status(pid: u32, thread: u32) -> Option<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    Some(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
}

/// The engine runs as `uid` (anybody but root if none is given), without what it does not need, and every thread does.
fn has_few_rights(pid: u32, capabilities: u64) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the engine's threads");
    let threads: Vec<u32> =
        tasks.flatten().filter_map(|task| task.file_name().to_string_lossy().parse().ok()).collect();
    assert!(threads.contains(&pid), "the engine's first thread lasts as long as the engine: {threads:?}");
    for thread in threads {
        let Some(status) = status(pid, thread) else {
            assert_ne!(thread, pid, "the engine has gone");
            continue;
        };
        let presented: Vec<String> = ["Name", "Uid", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp"]
            .map(|name| format!("{name} {}", status[name].replace('\t', " ")))
            .to_vec();
        println!("{}", presented.join(", "));
        assert_eq!(status["Seccomp"], "2", "{presented:?}");
        assert_eq!(status["NoNewPrivs"], "1", "{presented:?}");
        assert!(!status["Uid"].split_whitespace().any(|uid| uid == "0"), "{presented:?}");
        for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            let has = u64::from_str_radix(&status[set], 16).expect("a mask");
            assert_eq!(has & !capabilities, 0, "{set}: {presented:?}");
        }
    }
}

/// Who reads a process's command line holds the lock of its address space meanwhile, for as long as he likes: with the lowest priority, beside
/// others who use the processors. The kernel does not look where there is none.
fn has_no_command_line(pid: u32) {
    let raw = std::fs::read(format!("/proc/{pid}/cmdline")).expect("the engine's command line");
    assert_eq!(String::from_utf8_lossy(&raw), "", "anybody can hold up each mmap of the engine");
}

/// Who needs a larger table of descriptors waits for the kernel, as long as programs make that.
fn has_room_for_descriptors(pid: u32) {
    let number = |words: &str| words.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    let status = status(pid, pid).expect("the engine's status");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("the engine's limits");
    let limit =
        limits.lines().find_map(|line| number(line.strip_prefix("Max open files")?)).expect("a limit");
    let room = number(&status["FDSize"]).expect("a number");
    assert!(room >= limit.min(1 << 16), "room for {room} of {limit} descriptors");
}

#[test]
fn of_roots_engine_without_a_link() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    has_few_rights(engine.pid(), 0);
    has_no_command_line(engine.pid());
    has_room_for_descriptors(engine.pid());
}

#[test]
fn of_roots_engine_on_a_link() {
    const CAP_NET_RAW: u64 = 1 << 13;
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    has_few_rights(engine.pid(), CAP_NET_RAW);
}

/// A user's engine, and one that `toe run` starts for a program alone.
#[test]
fn of_a_users_engine() {
    let lab = Lab::new();
    toe_tests::must(lab.share_dir());
    let uid = MALLORY.to_string();
    let toe = |args: &[&str]| {
        let mut command = lab.command(Side::Server, "setpriv");
        command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups"]).arg(lab.program("toe")).args(args);
        command.env("XDG_RUNTIME_DIR", lab.dir());
        command
    };
    let name = format!("{}-user", lab.name());
    let log = lab.dir().join("user.log");
    let mut start = toe(&["start", "--name", &name, "--log-file"]);
    child::run("toe start", start.arg(&log), SOON).expect_success("toe start");
    let report = child::run("toe status", &mut toe(&["status", "--name", &name, "--json"]), SOON);
    let report = report.expect_success("toe status");
    let report: serde_json::Value = serde_json::from_str(&report).expect("a report");
    let pid = report["pid"].as_u64().expect("a process") as u32;
    has_few_rights(pid, 0);
    has_no_command_line(pid);
    is_left_alone(&lab, pid, MALLORY);
    child::run("toe stop", &mut toe(&["stop", "--name", &name]), SOON).expect_success("toe stop");
}

/// A request to stop waits for its user's turn where there are others, and he has asked much: once it is carried out nobody sleeps on it.
#[test]
fn root_stops_it_whatever_he_has_asked_before() {
    let lab = Lab::new();
    for _ in 0..10 {
        let engine = Engine::local_with(&lab, everybody(&lab));
        let attacks = Attacks::on(&lab, &engine);
        let _other = attacks.begun(&lab, As::User(MALLORY), &["sessions", "1"], "hoarded 1");
        let script = r#""$0" status --name "$1" --json > "$2" && exec "$0" stop --name "$1""#;
        let mut stop = lab.command(Side::Server, "sh");
        stop.args(["-c", script]).arg(lab.program("toe")).args([engine.name(), "/dev/null"]);
        child::run("toe stop", &mut stop, SOON).expect_success("toe stop");
    }
}

/// Not even another program of the engine's own user reads or writes its memory.
fn is_left_alone(lab: &Lab, pid: u32, uid: u32) {
    let script = format!(
        "import ctypes, os\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         print('traced' if libc.ptrace(16, {pid}, 0, 0) == 0 else 'not traced')\n\
         try: os.open('/proc/{pid}/mem', os.O_RDWR); print('opened')\n\
         except OSError: print('not opened')\n"
    );
    let uid = uid.to_string();
    let mut command = lab.command(Side::Server, "setpriv");
    command.args(["--reuid", &uid, "--regid", &uid, "--clear-groups", "/usr/bin/python3", "-c", &script]);
    let said = child::run("python3", &mut command, SOON).expect_success("python3");
    println!("another program of its user: {}", said.replace('\n', ", "));
    assert_eq!(said, "not traced\nnot opened\n");
}

/// The usual engine is its starter's and root's alone.
#[test]
fn nobody_else_attaches_unless_told() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let attacks = Attacks::on(&lab, &engine);
    let mut attack = attacks.begin(&lab, As::User(MALLORY), "reach", &["127.0.0.1:1"]);
    wait::until_true("the answer", SOON, || !attack.is_running() || attack.output().contains("refused"));
    let said = attack.output();
    println!("another user: {}", said.lines().last().unwrap_or_default());
    assert!(said.contains("PermissionError") || said.contains("Refused: EACCES"), "{said}");
}
