//! Files to connections and back: by the native interface's directwrite and directread, and by sendfile.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;
use toe_tests::{bins, child};

/// Megabytes go and come, perhaps on a machine whose processors many others have.
const LIMIT: Duration = Duration::from_secs(180);

/// A program of `crates/tests/programs` that is written for OpenTOE, built into the lab.
pub fn built(lab: &Lab, name: &str) -> PathBuf {
    let (source, bin) =
        (bins::workspace().join(format!("crates/tests/programs/{name}.c")), lab.dir().join(name));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-o"]).arg(&bin).arg(&source);
    cc.arg("-I").arg(bins::workspace().join("include")).arg("-L").arg(bins::dir()).arg("-ltoe");
    cc.arg(format!("-Wl,-rpath,{}", bins::dir().display()));
    child::run("cc", &mut cc, SOON).expect_success("cc");
    bin
}

/// A command for it, with this engine.
pub fn native(lab: &Lab, engine: &Engine, bin: &PathBuf) -> Command {
    let mut command = lab.command(Side::Server, bin);
    command.env("TOE_ENGINE", format!("/run/opentoe/{}.sock", engine.name()));
    // Cargo points it at another build of the library.
    command.env_remove("LD_LIBRARY_PATH");
    command
}

#[test]
fn direct_transfers_by_the_native_interface() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = built(&lab, "files");
    let mut command = native(&lab, &engine, &bin);
    command.arg("7000").arg(lab.dir());
    let said = child::run("files", &mut command, LIMIT).expect_success("files");
    assert!(said.ends_with("all\n"), "{said}");
    print!("{said}");
}

/// `TOE_TRANSFERS=10000 TOE_SEED=1` for more, and others.
#[test]
fn transfers_whose_ends_die_and_whose_files_are_cut() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = built(&lab, "transfers");
    let of = |name: &str, usual: u32| {
        std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok()).unwrap_or(usual)
    };
    let (count, seed) = (of("TOE_TRANSFERS", 200), of("TOE_SEED", 1));
    let mut command = native(&lab, &engine, &bin);
    command.arg("7000").arg(lab.dir()).args([seed.to_string(), count.to_string()]);
    let said = child::run("transfers", &mut command, LIMIT * (1 + count / 200)).expect_success("transfers");
    assert!(said.starts_with("all"), "{said}");
    print!("{said}");
    engine.wait_until_idle(SOON);
}

/// One of the programs, compiled.
pub fn compiled(lab: &Lab, name: &str) -> PathBuf {
    let (source, bin) =
        (bins::workspace().join(format!("crates/tests/programs/{name}.c")), lab.dir().join(name));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-o"]).arg(&bin).arg(&source);
    child::run("cc", &mut cc, SOON).expect_success("cc");
    bin
}

/// An unmodified program's output on the kernel and, for each of `arguments`, the same on the engine, which did carry it.
pub fn expect_same(name: &str, arguments: &[&[&str]]) {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = compiled(&lab, name);
    for arguments in arguments {
        let said = [lab.command(Side::Server, &bin), engine.run(&lab, &bin.display().to_string())];
        let [linux, toe] =
            said.map(|mut command| child::run(name, command.args(*arguments), LIMIT).expect_success(name));
        assert!(linux.ends_with("all\n"), "{linux}");
        assert_eq!(toe, linux);
    }
    let counters = engine.status().counters;
    assert!(counters.get("local_segments").is_some_and(|n| *n > 0), "it was the engine's: {counters:?}");
}

/// MSG_ZEROCOPY, and what the error queue says of it.
#[test]
fn zerocopy_is_told_as_by_the_kernel() {
    expect_same("zerocopy", &[&["127.0.0.1", "7000"], &["::1", "7000"]]);
}

/// Two processes send and read the same connections in turns: each byte comes once, and in its order.
#[test]
fn bytes_of_connections_that_two_processes_have_come_once() {
    expect_same("shared_bytes", &[&["4", "200000"]]);
}

/// What a process was handed and has not accepted when it makes a child is neither lost nor accepted twice.
#[test]
fn connections_that_come_around_a_fork_are_answered_once() {
    expect_same("accepted_around_forks", &[&["7000", "300"]]);
}

/// A process closes its descriptor while a copy is on its way to it: what came by then is there when it takes that out.
#[test]
fn bytes_wait_for_who_has_a_connection_on_its_way_to_it() {
    expect_same("passed_to_itself", &[&["200"]]);
}

/// Another thread closes what a call has, and the numbers become other things': neither bytes nor positions go astray.
#[test]
fn a_call_keeps_what_it_began_with() {
    expect_same("held_calls", &[&["7000"]]);
}

/// What is kept of files and connections while bytes go beside the program is nobody's afterwards.
#[test]
fn what_a_transfer_keeps_goes_with_it() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = built(&lab, "kept_files");
    let mut command = native(&lab, &engine, &bin);
    command.arg("7000").arg(lab.dir());
    let said = child::run("kept_files", &mut command, LIMIT).expect_success("kept_files");
    assert!(said.ends_with("all\n"), "{said}");
    print!("{said}");
}

/// A page on a slow disk is waited for without a lock.
#[test]
fn a_call_whose_memory_has_to_be_waited_for_holds_up_nobody() {
    expect_same("slow_memory", &[&["7000"]]);
}

#[test]
fn what_one_call_receives_lies_together() {
    expect_same("one_piece", &[&["7000"]]);
}

#[test]
fn sendfile_says_what_the_kernels_says() {
    expect_same("sendfile_errors", &[&["7000"]]);
}

/// A call that wants many bytes sleeps through some of them, and still sees what else ends it.
#[test]
fn a_call_that_sleeps_through_bytes_ends_soon() {
    expect_same("wait_all", &[&["7000"]]);
}

#[test]
fn splice_goes_by_pipes_as_in_the_kernel() {
    expect_same("splice", &[&["7000"]]);
}

/// The system calls of the thread that makes them between the two marks, by name.
fn calls_between_marks(trace: &str) -> Vec<String> {
    let lines = trace.lines().skip_while(|line| !line.contains("\"begin\\n\"")).skip(1);
    let between: Vec<&str> = lines.take_while(|line| !line.contains("\"end\\n\"")).collect();
    let call = |line: &&str| line.split('(').next().unwrap_or_default().to_owned();
    between.iter().map(call).collect()
}

/// Memory that a thread maps, and gives back when it ends, costs a server with a thread for each connection a fifth of its rate.
#[test]
fn a_thread_that_receives_once_maps_no_memory() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let (bin, trace) = (compiled(&lab, "short_thread"), lab.dir().join("trace"));
    let mut command = engine.run(&lab, "strace");
    command.arg("-f").arg("-o").arg(&trace).arg(&bin).arg("7000");
    let said = child::run("strace", &mut command, SOON).expect_success("strace");
    assert!(said.contains("all\n"), "{said}");
    let calls = calls_between_marks(&std::fs::read_to_string(&trace).expect("what strace wrote"));
    assert!(calls.iter().any(|call| call.contains("clone3")), "{calls:?}");
    assert!(!calls.iter().any(|call| call.contains("map")), "{calls:?}");
}

/// What a thread keeps of signals is its own, and goes with it.
#[test]
fn signals_that_are_kept_come_each_once_and_leave_nothing() {
    expect_same("kept_signals", &[&["7000"]]);
}

/// A file that the page cache has, of as much as a new connection takes at once: sendfile reads it, and at most wakes the engine.
#[test]
fn a_file_takes_one_system_call_of_the_programs_thread() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = compiled(&lab, "one_call");
    let (file, trace) = (lab.dir().join("file"), lab.dir().join("trace"));
    for bytes in [20_000, 65_536, 262_144] {
        std::fs::write(&file, vec![7; bytes]).expect("a file in the lab");
        let mut command = engine.run(&lab, "strace");
        // Without -f: of the thread that sends alone.
        command.arg("-o").arg(&trace).arg(&bin).arg("7000").arg(&file).arg(bytes.to_string());
        let said = child::run("strace", &mut command, SOON).expect_success("strace");
        assert!(said.contains("all\n"), "{said}");
        let calls = calls_between_marks(&std::fs::read_to_string(&trace).expect("what strace wrote"));
        let doorbells = calls.iter().filter(|call| *call == "write").count();
        assert_eq!(calls.iter().filter(|call| *call == "preadv2").count(), 1, "{calls:?}");
        assert!(doorbells <= 1 && calls.len() == 1 + doorbells, "{calls:?}");
    }
}

/// A look at a connection that another program has taken over by exec finds it there, at the first time.
#[test]
fn the_first_look_after_a_childs_exec_is_true() {
    expect_same("looks_after_exec", &[&["7000"]]);
}
