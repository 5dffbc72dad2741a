//! Messages between programs by virtual interfaces (EVIL): the examples in C and Python, in one namespace and in two, and programs that end.

use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use toe_tests::bins;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side, sha256};
use toe_tests::wait::SOON;

/// Of pip and venv, beside other tests.
const LONG: std::time::Duration = std::time::Duration::from_secs(120);

/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";
/// Where the two programs of an example are.
const PLACES: [[Side; 2]; 2] = [[Side::Server, Side::Server], [Side::Server, Side::Client]];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    C,
    Python,
    /// C, with the interface below EVIL.
    Vipl,
}

impl Language {
    pub(super) const ALL: [Language; 3] = [Language::C, Language::Python, Language::Vipl];
}

pub(super) fn example(name: &str) -> PathBuf {
    bins::workspace().join("examples/via").join(name)
}

/// Builds a program of C.
pub(super) fn build(source: &Path, bin: &Path) {
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-o"]).arg(bin).arg(source);
    cc.arg("-I").arg(bins::workspace().join("include")).arg("-L").arg(bins::dir()).arg("-ltoe_via");
    cc.arg(format!("-Wl,-rpath,{}", bins::dir().display())).args(["-lpthread", "-ldl", "-lm"]);
    child::run("cc", &mut cc, SOON).expect_success("cc");
}

/// An example of C, built.
pub(super) fn built(lab: &Lab, language: Language, name: &str) -> PathBuf {
    lab.dir().join(if language == Language::Vipl { format!("{name}-vipl") } else { name.to_owned() })
}

/// A program that uses the library, at a node of its own.
pub(super) fn at_node(
    lab: &Lab,
    engine: &Engine,
    side: Side,
    node: &str,
    program: impl AsRef<Path>,
) -> Command {
    let mut command = lab.command(side, program);
    command.env("TOE_ENGINE", format!("/run/opentoe/{}.sock", engine.name()));
    command.env("TOE_VIA_NODE", node).env("TOE_LIB_DIR", bins::dir());
    command.env("PYTHONPATH", bins::workspace().join("python/src")).env("PYTHONDONTWRITEBYTECODE", "1");
    // Cargo points it at another build of the library.
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// The example at a node.
pub(super) fn at(
    lab: &Lab,
    engine: &Engine,
    (side, node): (Side, &str),
    language: Language,
    name: &str,
) -> Command {
    match language {
        Language::C | Language::Vipl => at_node(lab, engine, side, node, built(lab, language, name)),
        Language::Python => {
            let mut command = at_node(lab, engine, side, node, PYTHON);
            command.arg(example(&format!("{name}.py")));
            command
        }
    }
}

/// Runs `play` in all languages and both places.
fn everywhere(name: &str, play: impl Fn(&Lab, &Engine, Language, [Side; 2])) {
    let lab = Lab::new();
    build(&example(&format!("{name}.c")), &built(&lab, Language::C, name));
    build(&example(&format!("vipl/{name}.c")), &built(&lab, Language::Vipl, name));
    let engine = Engine::local(&lab);
    for sides in PLACES {
        for language in Language::ALL {
            play(&lab, &engine, language, sides);
        }
    }
    engine.wait_until_idle(SOON);
}

#[test]
fn pingpong() {
    everywhere("pingpong", |lab, engine, language, sides| {
        let mut wait = at(lab, engine, (sides[0], "one"), language, "pingpong");
        let server = Program::spawn("pingpong wait", wait.args(["wait", "7"]));
        let mut connect = at(lab, engine, (sides[1], "two"), language, "pingpong");
        let client = Program::spawn("pingpong", connect.args(["one", "7", "500"]));
        assert_eq!(client.wait(SOON).expect_success("pingpong").trim(), "ball 499");
        assert_eq!(server.wait(SOON).expect_success("pingpong wait").trim(), "served");
    });
}

/// Two programs that have nothing in common but the engine's socket: not /dev/shm, process numbers, System V's objects, nor a network.
#[test]
fn in_namespaces_of_their_own() {
    let lab = Lab::new();
    build(&example("pingpong.c"), &built(&lab, Language::C, "pingpong"));
    let engine = Engine::local(&lab);
    let apart = |side, node, words: &[&str]| {
        let mut command = at_node(&lab, &engine, side, node, "/usr/bin/unshare");
        command.args(["--pid", "--fork", "--kill-child", "--ipc", "--uts", "--mount", "/bin/sh", "-c"]);
        command.arg("mount -t tmpfs none /dev/shm && exec \"$0\" \"$@\"");
        command.arg(built(&lab, Language::C, "pingpong")).args(words);
        command
    };
    let server = Program::spawn("pingpong wait", &mut apart(Side::Server, "one", &["wait", "7"]));
    let client = Program::spawn("pingpong", &mut apart(Side::Client, "two", &["one", "7", "500"]));
    assert_eq!(client.wait(SOON).expect_success("pingpong").trim(), "ball 499");
    assert_eq!(server.wait(SOON).expect_success("pingpong wait").trim(), "served");
    engine.wait_until_idle(SOON);
}

/// As many channels as a program may have, and what it is told of one more.
#[test]
fn a_crowd_of_channels() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    // A connection within a program is one of the engine's handles. Two of the last are the listener and who asks.
    let pairs = toe_abi::via::HANDLES_MAX - 2;
    let words = ["crowd", "5", &pairs.to_string()];
    let said = scene(&lab, &engine, Side::Server, "here", &words).wait(SOON).expect_success("crowd");
    assert!(said.contains("all were heard"), "{said}");
    assert!(said.contains("then: the user's share of channels, memory or descriptors is used up"), "{said}");
    engine.wait_until_idle(SOON);
}

/// What EVIL is for: the same program in a third of the lines.
#[test]
fn evil_takes_a_third_of_the_lines_of_vipl() {
    let mut count = Command::new(PYTHON);
    let said = child::run("lines.py", count.arg(bins::workspace().join("scripts/messages/lines.py")), SOON);
    println!("{}", said.expect_success("lines.py"));
}

#[test]
fn a_file_is_copied() {
    everywhere("copy", |lab, engine, language, sides| {
        let (path, sum) = lab.file("from", 5_000_001);
        let to = lab.dir().join("to");
        let program = match language {
            Language::C | Language::Vipl => built(lab, language, "copy").display().to_string(),
            Language::Python => format!("{PYTHON} {}", example("copy.py").display()),
        };
        let shell = |side, node, words: String| {
            let mut command = at_node(lab, engine, side, node, "/bin/sh");
            Program::spawn(&words, command.args(["-c", &format!("{program} {words}")]))
        };
        // Who connects may come first.
        let sender = shell(sides[1], "two", format!("one 8 < {}", path.display()));
        shell(sides[0], "one", format!("8 > {}", to.display())).wait(SOON).expect_success("copy to");
        sender.wait(SOON).expect_success("copy from");
        assert_eq!(sha256(&to), sum);
    });
}

#[test]
fn a_sum_over_four_nodes() {
    everywhere("sum", |lab, engine, language, sides| {
        let nodes = ["a", "b", "c", "d"];
        let workers: Vec<Program> = nodes
            .iter()
            .zip(sides.iter().cycle())
            .map(|(node, side)| {
                let mut work = at(lab, engine, (*side, node), language, "sum");
                Program::spawn("sum work", work.args(["work", "9"]))
            })
            .collect();
        let mut sum = at(lab, engine, (sides[0], "boss"), language, "sum");
        let sum = sum.arg("1000000").args(nodes.map(|node| format!("{node}:9")));
        assert_eq!(child::run("sum", sum, SOON).expect_success("sum").trim(), "500000500000");
        workers.into_iter().for_each(|worker| drop(worker.wait(SOON).expect_success("sum work")));
    });
}

/// Runs a scene of `via.py`.
fn scene(lab: &Lab, engine: &Engine, side: Side, node: &str, words: &[&str]) -> Program {
    found_scene(lab, engine, (side, node), None, words)
}

/// The same for programs of other hosts to find, if it has an address.
pub(super) fn found_scene(
    lab: &Lab,
    engine: &Engine,
    (side, node): (Side, &str),
    address: Option<&str>,
    words: &[&str],
) -> Program {
    let script = lab.dir().join("via.py");
    // Once: another program may be reading it.
    if !script.exists() {
        std::fs::write(&script, include_str!("../../programs/via.py")).expect("via.py");
    }
    let mut command = at_node(lab, engine, side, node, PYTHON);
    command.envs(address.map(|address| ("TOE_VIA_ADDRESS", address)));
    Program::spawn(&words.join(" "), command.arg("-u").arg(script).args(words))
}

#[test]
fn who_is_killed_ends_his_channels_and_no_others() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut watcher = scene(&lab, &engine, Side::Server, "watcher", &["watch"]);
    let mut victim = scene(&lab, &engine, Side::Client, "victim", &["sit", "watcher", "1"]);
    let other = scene(&lab, &engine, Side::Client, "other", &["echo", "watcher", "2"]);
    watcher.wait_for_line("both are there", SOON);
    victim.wait_for_line("sent", SOON);
    victim.signal(Signal::KILL);
    let said = watcher.wait(SOON).expect_success("watch");
    assert!(said.contains("the victim's last word, then: the other side has closed"), "{said}");
    assert!(said.contains("the other still answers"), "{said}");
    assert!(other.wait(SOON).expect_success("echo").contains("ended: the other side has closed"));
    engine.wait_until_idle(SOON);
    let counters = engine.status().counters;
    assert_eq!(counters.get("via_connections"), Some(&2));
}

#[test]
fn the_end_of_the_engine_is_told() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut sits = scene(&lab, &engine, Side::Server, "one", &["wait", "3"]);
    let mut other = scene(&lab, &engine, Side::Client, "two", &["sit", "one", "3"]);
    for program in [&mut sits, &mut other] {
        program.wait_for_line("connected", SOON);
    }
    engine.kill_hard();
    for program in [sits, other] {
        let said = program.wait(SOON).expect_success("told");
        assert!(said.contains("ended: no engine answers"), "{said}");
    }
}

#[test]
fn polls_time_outs_and_errors() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let peer = scene(&lab, &engine, Side::Client, "peer", &["many", "here", "5"]);
    let said = scene(&lab, &engine, Side::Server, "here", &["calls"]).wait(SOON).expect_success("calls");
    assert_eq!(said.trim(), "all as it should be");
    peer.wait(SOON).expect_success("many");
}

#[test]
fn a_child_of_fork_is_not_its_parent() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let said = scene(&lab, &engine, Side::Server, "here", &["forks"]).wait(SOON).expect_success("forks");
    assert!(said.contains("each its own"), "{said}");
    engine.wait_until_idle(SOON);
}

/// What native VIA says of what cannot be, at each level.
#[test]
fn vipl_says_what_is_wrong() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = lab.dir().join("vipl_errors");
    build(&bins::workspace().join("crates/tests/programs/vipl_errors.c"), &program);
    for level in ["unreliable", "delivery", "reception"] {
        for scene in
            ["good", "no-receive", "short", "tag", "unregistered", "beyond", "write", "read", "death"]
        {
            let mut serve = at_node(&lab, &engine, Side::Server, "server", &program);
            let server = Program::spawn("vipl serve", serve.args(["serve", scene, level]));
            let mut connect = at_node(&lab, &engine, Side::Client, "client", &program);
            let client = Program::spawn("vipl connect", connect.args(["connect", scene, level]));
            client.wait(SOON).expect_success(&format!("{scene}, {level}: client"));
            server.wait(SOON).expect_success(&format!("{scene}, {level}: server"));
        }
    }
    engine.wait_until_idle(SOON);
}

/// The example for Rust programs (`make programs` builds it).
#[test]
fn pingpong_in_rust() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = bins::path("examples/pingpong");
    let mut wait = at_node(&lab, &engine, Side::Server, "one", &program);
    let server = Program::spawn("pingpong wait", wait.args(["wait", "7"]));
    let mut connect = at_node(&lab, &engine, Side::Client, "two", &program);
    let client = Program::spawn("pingpong", connect.args(["one", "7", "500"]));
    assert_eq!(client.wait(SOON).expect_success("pingpong").trim(), "ball 499");
    assert_eq!(server.wait(SOON).expect_success("pingpong wait").trim(), "served");
}

#[test]
fn the_python_package_is_built_by_pip() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let (source, venv) = (lab.dir().join("python"), lab.dir().join("venv"));
    let mut copy = Command::new("cp");
    child::run("cp", copy.arg("-r").arg(bins::workspace().join("python")).arg(&source), SOON)
        .expect_success("cp");
    let mut make = Command::new(PYTHON);
    make.args(["-m", "venv", "--system-site-packages"]).arg(&venv);
    if !child::run("venv", &mut make, LONG).status.success() {
        println!("left out: this Python has no venv");
        return;
    }
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--no-build-isolation", "--no-index"]).arg(&source);
    child::run("pip", &mut pip, LONG).expect_success("pip");
    let mut command = at_node(&lab, &engine, Side::Server, "n", venv.join("bin/python"));
    command.env_remove("PYTHONPATH").args(["-c", "import evil; print(evil.Channel('x', 1).fileno() > 2)"]);
    assert_eq!(child::run("python", &mut command, SOON).expect_success("python").trim(), "True");
}
