//! What an engine may do, who may use it, and whose engine a program trusts.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use toe_tests::bins;
use toe_tests::child::{self, Finished, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools;
use toe_tests::wait::SOON;

/// Bits of /proc/PID/status.
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const IPC_LOCK: u64 = 1 << 14;
const BPF: u64 = 1 << 39;
const NOBODY: &str = "65534";

fn script(lab: &Lab) -> PathBuf {
    let file = lab.dir().join("rights.py");
    std::fs::write(&file, include_str!("rights.py")).expect("a file in the lab");
    file
}

/// The programs where any user may execute them: the source tree may lie where another user cannot look.
fn shared_programs(lab: &Lab) -> PathBuf {
    tools::share(lab.dir());
    for piece in ["toe", "toed", "libtoe_switch.so"] {
        std::fs::copy(bins::path(piece), lab.dir().join(piece)).expect("a copy");
    }
    lab.dir().join("toe")
}

fn as_nobody(lab: &Lab, program: &PathBuf) -> Command {
    let mut command = lab.command(Side::Server, "setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
    command.env_remove("XDG_RUNTIME_DIR").env("HOME", lab.dir());
    command
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

#[track_caller]
fn check_rights(engine: &Engine, kept: u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", engine.pid())).expect("the engine runs");
    for uid in field(&status, "Uid").split_whitespace().chain(field(&status, "Gid").split_whitespace()) {
        assert!(!["0", NOBODY].contains(&uid), "a user of its own: {status}");
    }
    assert_eq!(field(&status, "Groups"), "", "{status}");
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        let bits = u64::from_str_radix(&field(&status, set), 16).expect("a number");
        // Only where root may not raise the limit of locked memory.
        let may_lock = if kept & BPF != 0 { IPC_LOCK } else { 0 };
        assert_eq!(bits & !may_lock, kept, "{set}: {status}");
    }
    for (set, wanted) in [("CapInh", 0), ("CapAmb", 0)] {
        assert_eq!(u64::from_str_radix(&field(&status, set), 16), Ok(wanted), "{set}: {status}");
    }
    assert_eq!(field(&status, "NoNewPrivs"), "1", "{status}");
    assert_eq!(field(&status, "Seccomp"), "2", "{status}");
    // What is not dumpable is root's in /proc, whoever runs it.
    let owner = std::fs::metadata(format!("/proc/{}/fd", engine.pid())).expect("the engine runs");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 0);
}

#[test]
fn an_engine_keeps_what_its_links_take_and_nothing_else() {
    let lab = Lab::new();
    check_rights(&Engine::local(&lab), 0);
    check_rights(&Engine::on_link(&lab, Side::Server, ""), NET_RAW);
    check_rights(&Engine::on_tap(&lab), NET_ADMIN);
    check_rights(&Engine::on_shared_link(&lab), NET_ADMIN | NET_RAW | BPF);
}

#[test]
fn programs_that_give_up_root_go_on() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut command = engine.run(&lab, "/usr/bin/python3");
    command.arg(script(&lab)).args(["workers", "127.0.0.1"]);
    let said = child::run("workers", &mut command, SOON).expect_success("workers");
    let wanted: String = ["setuid", "setreuid", "setresuid", "seteuid", "syscall"]
        .iter()
        .map(|how| format!("{how} {NOBODY} ping engine\n"))
        .collect();
    assert_eq!(said, wanted);
}

/// Reports are given seldom, and are no part of it: php-fpm's children asked for one each at the same time, and some of them were left
/// to the kernel.
#[test]
fn programs_that_give_up_root_at_the_same_time_go_on() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut command = engine.run(&lab, "/usr/bin/python3");
    command.arg(script(&lab)).args(["at_once", "127.0.0.1"]);
    let said = child::run("children", &mut command, SOON).expect_success("children");
    // Their lines may come one into the other.
    assert_eq!((said.matches("engine").count(), said.matches("kernel").count()), (20, 0), "{said}");
}

fn refused(finished: &Finished) -> String {
    assert!(!finished.status.success());
    finished.output.clone()
}

#[test]
fn who_may_not_attach_is_told_what_to_do() {
    let lab = Lab::new();
    let toe = shared_programs(&lab);
    let engine = Engine::local(&lab);
    let mut command = as_nobody(&lab, &toe);
    command.args(["run", "--name", engine.name(), "--", "true"]);
    let said = refused(&child::run("toe run", &mut command, SOON));
    assert!(said.contains(&format!("--allow-uid {NOBODY}")), "{said}");
}

#[test]
fn who_is_named_attaches_and_stops_nothing() {
    let lab = Lab::new();
    let toe = shared_programs(&lab);
    let engine = Engine::local_with(&lab, &["--allow-uid", NOBODY]);
    let mut command = as_nobody(&lab, &toe);
    command.args(["run", "--name", engine.name(), "--", "/usr/bin/python3"]);
    command.arg(script(&lab)).args(["exchange", "127.0.0.1"]);
    assert_eq!(child::run("exchange", &mut command, SOON).expect_success("exchange"), "engine\n");
    let said =
        refused(&child::run("toe stop", as_nobody(&lab, &toe).args(["stop", "--name", engine.name()]), SOON));
    assert!(said.contains("only the user who started it, or root"), "{said}");
    // Root, but of another network namespace, as that of a container.
    let mut elsewhere = lab.command(Side::Client, &toe);
    let said = refused(&child::run("toe stop", elsewhere.args(["stop", "--name", engine.name()]), SOON));
    assert!(said.contains("network namespace"), "{said}");
    engine.status();
}

/// Where a user's engine is looked for without XDG_RUNTIME_DIR anybody may have put something first.
#[test]
fn a_strangers_engine_hears_nothing() {
    let lab = Lab::new();
    let _toe = shared_programs(&lab);
    let script = script(&lab);
    let dir = PathBuf::from(format!("/tmp/opentoe-{NOBODY}"));
    let mine = !dir.exists();
    // Also at a path that the program was told: it is the user that counts.
    for path in [dir.join("default.sock"), lab.dir().join("strange").join("x.sock")] {
        if path.starts_with(&dir) && !mine {
            println!("not tried: {} is there", dir.display());
            continue;
        }
        let mut command = lab.command(Side::Server, "/usr/bin/python3");
        let mut stranger =
            Program::spawn("stranger", command.arg(&script).arg("stranger").arg(&path).arg("listens"));
        stranger.wait_for_line("listens", SOON);
        let mut command = as_nobody(&lab, &PathBuf::from("/usr/bin/python3"));
        command.arg(&script).args(["exchange", "127.0.0.1"]);
        command.env("LD_PRELOAD", lab.dir().join("libtoe_switch.so"));
        if !path.starts_with(&dir) {
            command.env("TOE_ENGINE", &path);
        }
        assert_eq!(child::run("exchange", &mut command, SOON).expect_success("exchange"), "kernel\n");
        // It hears one after the other; this comes after all that the program said.
        let mut command = lab.command(Side::Server, "/usr/bin/python3");
        let knock = child::run("knock", command.arg(&script).arg("knock").arg(&path), SOON);
        knock.expect_success("knock");
        stranger.wait_for_line("heard 5", SOON);
        assert!(!stranger.output().contains("heard 64"), "{}", stranger.output());
        drop(stranger);
        if path.starts_with(&dir) {
            std::fs::remove_dir_all(&dir).expect("removed");
        }
    }
}

/// Its workers could not attach and its listener stayed the engine's: clients hung.
#[test]
fn a_server_in_a_user_namespace_takes_its_workers_along() {
    let lab = Lab::new();
    let engine = Engine::local_with(&lab, &["--allow-uid", "100000"]);
    let toe = shared_programs(&lab);
    let file = lab.dir().join("user_namespace.py");
    std::fs::write(&file, include_str!("user_namespace.py")).expect("a file in the lab");
    let mut command = lab.command(Side::Server, toe);
    command.args(["run", "--name", engine.name(), "--", "/usr/bin/python3"]).arg(&file);
    let said =
        Program::spawn("user_namespace.py", &mut command).wait(SOON).expect_success("user_namespace.py");
    assert_eq!(said, "b'served'\n");
    let counters = engine.status().counters;
    assert!(counters.get("passive_opens").is_some_and(|n| *n > 0), "it was not the engine's: {counters:?}");
}

/// A child that may not attach, or has no layer, takes what the kernel's listener has: clients went to the engine's, and hung for ever.
#[test]
fn a_listener_that_nobody_takes_from_is_left_to_the_kernel() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("left.py");
    std::fs::write(&file, include_str!("left.py")).expect("a file in the lab");
    let mut command = lab.command(Side::Server, bins::path("toe"));
    command.args(["run", "--name", engine.name(), "--", "/usr/bin/python3"]).arg(&file);
    let said = child::run("left.py", &mut command, SOON).expect_success("left.py");
    assert_eq!(said, "served\nwaited True\n");
    let counters = engine.status().counters;
    assert_eq!(counters.get("listeners_nobody_takes_from"), Some(&1), "{counters:?}");
}

#[test]
fn who_may_have_no_more_processes_is_told() {
    let lab = Lab::new();
    let toe = shared_programs(&lab);
    let mut command = as_nobody(&lab, &"prlimit".into());
    command.arg("--nproc=1").arg(toe).args(["run", "--private", "--", "/bin/true"]);
    let text = child::run("toe run", &mut command, SOON).output;
    assert!(text.contains("this user may have no more processes and threads: raise the limit"), "{text}");
}

/// The loader puts no library under what gains rights by its file, and whoever starts that is told.
#[test]
fn who_starts_a_program_with_capabilities_of_its_file_is_told() {
    /// CAP_NET_BIND_SERVICE, permitted and effective: `struct vfs_cap_data` of revision 2.
    const MAY_BIND: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];
    let lab = Lab::new();
    let toe = shared_programs(&lab);
    let program = lab.dir().join("gains");
    std::fs::copy("/bin/true", &program).expect("a copy");
    let told = || {
        let mut command = as_nobody(&lab, &toe);
        command.args(["run", "--private", "--"]).arg(&program);
        child::run("toe run", &mut command, SOON).output
    };
    assert!(!told().contains("file capabilities"), "as it stands nothing keeps the library out");
    let value: Vec<u8> = MAY_BIND.into_iter().flat_map(u32::to_le_bytes).collect();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&program, "security.capability", &value, flags).expect("root's right");
    let text = told();
    assert!(text.contains("has file capabilities") && text.contains("setpriv --ambient-caps"), "{text}");
}

/// What the environment names is an engine of who executes the program: as it stands that hears of it, and not once its file makes it
/// root's.
#[test]
fn a_program_that_is_made_roots_heeds_no_environment() {
    let lab = Lab::new();
    shared_programs(&lab);
    std::fs::copy(bins::path("libtoe.so"), lab.dir().join("libtoe.so")).expect("a copy");
    let dir = lab.dir().display().to_string();
    let headers = bins::workspace().join("include").display().to_string();
    let flags = ["-I", &headers, "-L", &dir, "-ltoe", &format!("-Wl,-rpath,{dir}")];
    let program = super::layer::compiled(&lab, "connects", CONNECTS, &flags);
    let path = lab.dir().join("strange").join("x.sock");
    let mut command = lab.command(Side::Server, "/usr/bin/python3");
    let mut stranger =
        Program::spawn("stranger", command.arg(script(&lab)).arg("stranger").arg(&path).arg("listens"));
    stranger.wait_for_line("listens", SOON);
    let run = || {
        let mut command = as_nobody(&lab, &program);
        child::run("connects", command.env("TOE_ENGINE", &path).env("TOE_ENGINE_UID", "65533"), SOON)
    };
    run();
    stranger.wait_for_line("heard 64", SOON);
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("its file is ours");
    assert_eq!(run().expect_success("connects"), "as 0\n");
    let mut command = lab.command(Side::Server, "/usr/bin/python3");
    child::run("knock", command.arg(script(&lab)).arg("knock").arg(&path), SOON).expect_success("knock");
    stranger.wait_for_line("heard 5", SOON);
    assert_eq!(stranger.output().matches("heard 64").count(), 1, "{}", stranger.output());
}

const CONNECTS: &str = "#include <arpa/inet.h>\n#include <stdio.h>\n#include <toe.h>\n#include <unistd.h>\n\
    int main(void) {\n\
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};\n\
        toe_connect(toe_socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof to);\n\
        printf(\"as %d\\n\", geteuid());\n\
    }\n";
