//! What programs do past the C library's plain calls, and what comes to them from programs outside: it works on the engine, or
//! is left to the kernel, and `toe why` says so.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

const LONG: Duration = Duration::from_secs(60);
/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";

fn script(lab: &Lab, name: &str, text: &str) -> PathBuf {
    let file = lab.dir().join(name);
    std::fs::write(&file, text).expect("a file in the lab");
    file
}

pub fn compiled(lab: &Lab, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let (source, made) = (script(lab, &format!("{name}.c"), source), lab.dir().join(name));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&made).arg(source).args(flags);
    child::run("cc", &mut cc, SOON).expect_success("cc");
    made
}

fn expect_same(name: &str, command: &mut Command) {
    let said = Program::spawn(name, command).wait(LONG).expect_success(name);
    assert_eq!(said.trim(), "same");
}

#[test]
fn calls_inside_the_c_library_do_what_they_do_on_linux() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = script(&lab, "few.py", include_str!("few.py"));
    expect_same("few.py", lab.command(Side::Server, PYTHON).arg(&file));
    expect_same("few.py", On::Engine(&engine).command(&lab, PYTHON).arg(&file));
    engine.wait_until_idle(SOON);
}

/// What leaked into a program is not its listener; what it accepts on, or listens with, is, whoever made it.
#[test]
fn a_listener_from_outside_is_the_engines_once_it_is_used() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = script(&lab, "inherited.py", include_str!("inherited.py"));
    let mut command = lab.command(Side::Server, PYTHON);
    command.arg(&file).arg("outside");
    let inside = On::Engine(&engine).command(&lab, PYTHON);
    command.arg(inside.get_program()).args(inside.get_args());
    for (name, value) in inside.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        command.env(name, value);
    }
    expect_same("inherited.py", &mut command);
    // Three of `listening`, three of `bound`, one of `forked` and one of `waited`.
    assert_eq!(engine.status().counters["passive_opens"], 8, "the connections were the engine's");
}

/// What waits at a listener is still there after an exec, whatever the program has marked to be closed by it.
#[test]
fn marks_for_exec_do_not_reach_what_the_program_has_not_opened() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = script(&lab, "marked.py", include_str!("marked.py"));
    for way in ["one", "call"] {
        expect_same("marked.py", lab.command(Side::Server, PYTHON).arg(&file).arg(way));
        expect_same("marked.py", On::Engine(&engine).command(&lab, PYTHON).arg(&file).arg(way));
    }
    assert_eq!(engine.status().counters["passive_opens"], 4, "the connections were the engine's");
}

/// Calls that need no descriptor on Linux do not fail for the want of one.
#[test]
fn a_program_without_a_free_descriptor_connects_and_waits() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = script(&lab, "full.py", include_str!("full.py"));
    expect_same("full.py", lab.command(Side::Server, PYTHON).arg(&file));
    expect_same("full.py", On::Engine(&engine).command(&lab, PYTHON).arg(&file));
    assert_eq!(
        engine.status().counters["passive_opens"],
        4,
        "the connections were the engine's, but for the last one"
    );
}

/// Whoever got a bound socket in a message before another listens with it listens in the engine, too, when it does.
#[test]
fn all_who_listen_with_a_socket_from_a_message_get_connections() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = script(&lab, "received.py", include_str!("received.py"));
    expect_same("received.py", lab.command(Side::Server, PYTHON).arg(&file));
    expect_same("received.py", On::Engine(&engine).command(&lab, PYTHON).arg(&file));
    assert_eq!(engine.status().counters["passive_opens"], 4, "the connections were the engine's");
}

/// A program with another root than who started it is told that, and not that no engine runs.
#[test]
fn a_program_that_cannot_see_the_engine_is_told_so() {
    const SERVER: &str = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); \
                          print('listening', s.fileno(), flush=True); sys.stdin.read()";
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut command = On::Engine(&engine).command(&lab, "/usr/bin/env");
    command
        .args(["TOE_ENGINE=/nonexistent/engine.sock", PYTHON, "-c", SERVER])
        .stdin(std::process::Stdio::piped());
    let mut server = Program::spawn("server", &mut command);
    let line = server.wait_for_line("listening", SOON);
    let fd = line.trim().rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a descriptor");
    let why = engine.why(&lab, server.pid(), fd).expect_success("toe why");
    assert!(why.contains("chroot"), "{why}");
}

/// A program that waits by its own instruction would wait on an engine's socket for ever: it stays with the kernel.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_waits_past_the_c_library_stays_with_the_kernel() {
    waits_past_the_c_library(&[]);
}

/// The same by one function for all calls, not optimised: no number stands before its instruction.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_whose_calls_have_their_number_from_the_stack_stays_with_the_kernel() {
    waits_past_the_c_library(&["-O0", "-DFROM_STACK"]);
}

#[cfg(target_arch = "x86_64")]
fn waits_past_the_c_library(flags: &[&str]) {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = compiled(&lab, "own_calls", include_str!("own_calls.c"), flags);
    let mut server =
        Program::spawn("own_calls", On::Engine(&engine).command(&lab, &presented(&program)).arg("2"));
    let line = server.wait_for_line("listening", SOON);
    let fd = line.trim().rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a descriptor");
    let why = engine.why(&lab, server.pid(), fd).expect_success("toe why");
    assert!(
        why.contains("system-call instructions of its own") && why.contains(&presented(&program)),
        "{why}"
    );
    for on in [On::Engine(&engine), On::Kernel(Side::Server)] {
        let said = on.peer(&lab, "echo-client", &["127.0.0.1", "7303", "4096"]).wait(SOON);
        assert_eq!(said.expect_success("echo-client").trim(), "same 4096");
    }
    server.wait(SOON).expect_success("own_calls");
    assert_eq!(engine.status().counters.get("passive_opens"), None, "none was the engine's");
}

/// Of such a thread any instruction of the library's may be the last that it comes to, or so it seems to the C library.
#[test]
fn a_thread_that_may_end_anywhere_ends_outside_of_the_library() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = compiled(&lab, "cancel_anywhere", include_str!("cancel_anywhere.c"), &["-pthread"]);
    let mut command = On::Engine(&engine).command(&lab, &presented(&program));
    // Its threads compete with each other, and with whatever else has the processors.
    let said =
        Program::spawn("cancel_anywhere", &mut command).wait(3 * LONG).expect_success("cancel_anywhere");
    assert_eq!(said.trim(), "done");
    let counters = engine.status().counters;
    // All of some 300, but for those of a moment in which the engine had no processor for a second: these are the kernel's.
    assert!(counters["passive_opens"] > 200, "the connections were the engine's: {counters:?}");
}

fn presented(path: &Path) -> String {
    path.display().to_string()
}

/// A statically linked program is out of the layer's reach, which `toe run` says at once.
#[test]
fn a_program_that_cannot_be_reached_is_told() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = compiled(&lab, "fixed", "int main(void) { return 0; }\n", &["-static"]);
    let mut command = On::Engine(&engine).command(&lab, &presented(&program));
    let ended = Program::spawn("fixed", &mut command).wait(SOON);
    assert!(ended.output.contains("statically linked"), "{}", ended.output);
}

#[test]
fn a_library_that_binds_deep_does_not_pass_by() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let library = compiled(&lab, "deep.so", include_str!("deep.c"), &["-shared", "-fPIC"]);
    let file = script(&lab, "deep.py", include_str!("deep.py"));
    expect_same("deep.py", On::Engine(&engine).command(&lab, PYTHON).arg(&file).arg(&library));
    assert_eq!(engine.status().counters["passive_opens"], 1, "the connection was the engine's");
}

/// A bad pointer is an error of its call, also where nothing is the engine's; and what a program makes of its own faults stays.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_bad_pointer_is_an_error_as_on_linux() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = presented(&compiled(&lab, "bad_pointers", include_str!("bad_pointers.c"), &[]));
    let said =
        |name, mut command: Command| Program::spawn(name, &mut command).wait(LONG).expect_success(name);
    let plain = said("on the kernel", lab.command(Side::Server, &program));
    assert!(plain.contains("read: -1 EFAULT"), "{plain}");
    assert_eq!(said("on the engine", On::Engine(&engine).command(&lab, &program)), plain);
    assert_eq!(engine.status().counters["passive_opens"], 2, "the connections were the engine's");
}

/// siglongjmp out of a blocked call, a thread with the least stack, bindresvport, _Fork, posix_spawn and execveat.
#[test]
fn what_few_programs_do_with_a_connection_is_as_on_linux() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = presented(&compiled(&lab, "rare", include_str!("rare.c"), &["-pthread"]));
    let said =
        |name, mut command: Command| Program::spawn(name, &mut command).wait(LONG).expect_success(name);
    let plain = said("on the kernel", lab.command(Side::Server, &program));
    assert!(plain.contains("300 calls left, 0 descriptors more"), "{plain}");
    assert_eq!(said("on the engine", On::Engine(&engine).command(&lab, &program)), plain);
    assert_eq!(engine.status().counters["passive_opens"], 1, "the connection was the engine's");
}

/// Found by shut_connecting.py, once in many runs: for a moment the kernel has something else at a descriptor whose connection becomes
/// the engine's.
#[test]
fn a_socket_that_another_thread_connects_is_one_to_each_call() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let text = include_str!("asked_while_connecting.c");
    let program = presented(&compiled(&lab, "asked_while_connecting", text, &["-pthread"]));
    let mut command = On::Engine(&engine).command(&lab, &program);
    let said = Program::spawn("asked_while_connecting", &mut command).wait(LONG).expect_success("it ends");
    assert_eq!(said, "done\n");
    let counters = engine.status().counters;
    assert!(counters["passive_opens"] > 2_000, "most connections were the engine's: {counters:?}");
}

/// Also beside files, and with requests that a child of fork has of its own, which are not compared: in the C library they may
/// wait for a thread that only the parent has.
#[test]
fn requests_of_aio_are_run_as_on_linux() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let program = presented(&compiled(&lab, "aio", include_str!("aio.c"), &["-pthread"]));
    let said = |name, command: &mut Command| {
        Program::spawn(name, command.current_dir(lab.dir())).wait(LONG).expect_success(name)
    };
    let plain = said("on the kernel", &mut lab.command(Side::Server, &program));
    let on_engine = said("on the engine", &mut On::Engine(&engine).command(&lab, &program));
    let differing: Vec<_> =
        plain.lines().zip(on_engine.lines()).filter(|(plain, engine)| plain != engine).collect();
    assert!(differing.is_empty(), "kernel, engine: {differing:#?}");
    assert_eq!(plain, on_engine);
    assert!(plain.contains("parent's read: 0 5"), "{plain}");
    let child = said("with a child", On::Engine(&engine).command(&lab, &program).arg("child"));
    assert_eq!(
        child,
        "parent's read in the child: EINPROGRESS 0\nparent's read: 0 5\nafter the child: 0 1\n"
    );
    assert!(engine.status().counters["passive_opens"] > 30, "the connections were the engine's");
}
