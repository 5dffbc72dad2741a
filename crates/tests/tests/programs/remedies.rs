//! Where an engine or a program cannot start: another way is gone, or the cause and what to do are told.

use toe_tests::child;
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_ADDR, ENGINE_LINK, KERNEL_ADDR, KERNEL_PEER_ADDR, Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::{self, SOON};

/// Debian's Python, whose setuptools is there.
const PYTHON: &str = "/usr/bin/python3";

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

/// The kernel was asked, which does not have the address: it had no way there, or asked a router for it.
#[test]
fn nobody_listens_at_an_address_that_is_an_engines_alone() {
    const CONNECTS: &str = "
import select, socket, sys
for blocking in True, False:
    sock = socket.socket()
    sock.settimeout(20)
    sock.setblocking(blocking)
    outcome = sock.connect_ex((sys.argv[1], 9))
    if outcome == 115:
        assert select.select([], [sock], [], 20)[1]
        outcome = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    print(outcome)
";
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let connects = |addr| {
        let mut command = On::Engine(&engine).command(&lab, PYTHON);
        child::run("connects", command.args(["-c", CONNECTS, addr]), SOON).expect_success("connects")
    };
    assert_eq!(connects(ENGINE_ADDR), "111\n111\n");
    assert_eq!(connects("127.0.0.1"), "111\n111\n");
    let mut routed = lab.command(Side::Server, "ip");
    child::run("ip", routed.args(["route", "add", "default", "via", KERNEL_PEER_ADDR]), SOON)
        .expect_success("ip");
    assert_eq!(connects(ENGINE_ADDR), "111\n111\n", "nor by way of a router");
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
    let (status, text) = said(&lab, ":", "why 1 zz");
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("give the number of a descriptor"), "{text}");
    let (status, text) = said(&lab, ":", "status --json --name toetest-nobody");
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (status, told["error"].as_str(), told["status"].as_u64()),
        (Some(3), Some("not-running"), Some(3))
    );
}

/// The second was refused: both were named after the same number of a process.
#[test]
fn programs_of_two_pid_namespaces_have_an_engine_each() {
    let lab = Lab::new();
    let script = "run --private -- unshare --pid --fork \"$0\" run --private -- sh -c 'echo on $TOE_ENGINE'";
    let mut command = lab.command(Side::Server, "unshare");
    let toe = lab.program("toe");
    command.args(["--pid", "--fork", "sh", "-c", &format!("exec \"$0\" {script}")]).arg(toe);
    command.env_remove("XDG_RUNTIME_DIR");
    let said = child::run("unshare", &mut command, SOON).expect_success("the inner of two private engines");
    assert!(said.contains("on ") && said.contains("/run-1-"), "{said}");
}

#[test]
fn python_names_the_library_that_it_lacks() {
    let lab = Lab::new();
    let mut command = lab.command(Side::Server, PYTHON);
    command.args(["-c", "import evil"]).env("PYTHONPATH", toe_tests::bins::workspace().join("python/src"));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("TOE_LIB_DIR", lab.dir());
    let done = child::run("python3", &mut command, SOON);
    assert_eq!(done.status.code(), Some(1), "{}", done.output);
    let told = done.output.contains("ImportError: libtoe_via.so cannot be loaded");
    assert!(told && done.output.contains("set TOE_LIB_DIR"), "{}", done.output);
}

#[test]
fn building_the_python_package_leaves_nothing_in_the_tree() {
    let lab = Lab::new();
    let (tree, out) = (lab.dir().join("python"), lab.dir().join("out"));
    let from = toe_tests::bins::workspace().join("python");
    let copied = std::process::Command::new("cp").args(["-r"]).arg(&from).arg(&tree).status().expect("cp");
    assert!(copied.success());
    let files = || {
        let mut find = std::process::Command::new("find");
        let list = find.arg(&tree).output().expect("find").stdout;
        let mut list: Vec<String> = String::from_utf8_lossy(&list).lines().map(str::to_owned).collect();
        list.sort();
        list
    };
    let before = files();
    let mut command = lab.command(Side::Server, PYTHON);
    let build = "import os, sys; os.chdir(sys.argv[1]); sys.path[:0] = ['.']; import backend; \
                 print(backend.build_sdist(sys.argv[2]))";
    command.args(["-B", "-c", build]).arg(&tree).arg(&out);
    let said = child::run("python3", &mut command, SOON).expect_success("a source package");
    assert!(said.contains(".tar.gz") && out.is_dir(), "{said}");
    assert_eq!(files(), before);
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

/// A copy of `env` whose loader is of an older C library, as far as its file says: the library that is put under programs would end one of
/// a truly older one, or of musl.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_child_of_another_c_library_runs_without_the_layer() {
    let lab = Lab::new();
    let (loader, program) = (lab.dir().join("ld"), lab.dir().join("env"));
    let of_system = "/lib64/ld-linux-x86-64.so.2";
    let replaced = |file: &str, what: &[u8], by: &[u8]| {
        let mut bytes = std::fs::read(file).expect("it is there");
        while let Some(at) = bytes.windows(what.len()).position(|window| window == what) {
            bytes[at..at + by.len()].copy_from_slice(by);
        }
        bytes
    };
    let mut path = loader.display().to_string().into_bytes();
    assert!(path.len() < of_system.len(), "room for it");
    path.resize(of_system.len(), 0);
    write_program(&loader, &replaced(of_system, b"GLIBC_2.34\0", b"GLIBC_2.33\0"));
    write_program(&program, &replaced("/usr/bin/env", of_system.as_bytes(), &path));
    let script = format!("run --private -- sh -c '{}; {0}; true'", program.display());
    let (status, text) = said(&lab, ":", &script);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("it runs without OpenTOE") && !text.contains("libtoe_switch.so"), "{text}");
    let (_, text) = said(&lab, ":", &format!("run --private -- {}", program.display()));
    assert!(text.contains("of another C library") && !text.contains("libtoe_switch.so"), "{text}");
    // Of this system's.
    let (_, text) = said(&lab, ":", "run --private -- sh -c 'env; true'");
    assert!(text.contains("libtoe_switch.so"), "{text}");
}

#[cfg(target_arch = "x86_64")]
fn write_program(file: &std::path::Path, bytes: &[u8]) {
    std::fs::write(file, bytes).expect("a file in the lab");
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
}

/// What is told of older libraries rests on this.
#[test]
fn the_library_needs_no_newer_c_library_than_it_says() {
    let library = std::fs::read(toe_tests::bins::path("libtoe_switch.so")).expect("built");
    let versions = library
        .split(|byte| *byte == 0)
        .filter_map(|text| std::str::from_utf8(text.strip_prefix(b"GLIBC_2.")?).ok()?.parse::<u32>().ok());
    let needed = std::str::from_utf8(toe_abi::executable::NEEDED_VERSION).expect("text");
    assert_eq!(Some(needed), versions.max().map(|newest| format!("GLIBC_2.{newest}\0")).as_deref());
}
