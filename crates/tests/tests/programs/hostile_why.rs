//! `toe why` of processes that put things in its way, and names that would write to the terminal.

use std::process::Command;
use toe_tests::child::{self, Finished, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;

fn victim(lab: &Lab, what: &str) -> Program {
    let file = lab.dir().join("hostile_why.py");
    std::fs::write(&file, include_str!("hostile_why.py")).expect("a file in the lab");
    let mut command = lab.command(Side::Server, "unshare");
    command.args(["-m", "python3"]).arg(file).arg(what);
    let mut victim = Program::spawn(what, &mut command);
    victim.wait_for_line("ready", SOON);
    victim
}

/// With 100 MB of address space beyond what it has of itself: it takes no memory because of what somebody shows it.
fn why(lab: &Lab, pid: u32) -> Finished {
    let mut command: Command = lab.command(Side::Server, "sh");
    command
        .args(["-c", "ulimit -v 300000; exec \"$0\" why \"$1\""])
        .arg(lab.program("toe"))
        .arg(pid.to_string());
    child::run("toe why", &mut command, SOON)
}

#[test]
fn nothing_that_a_process_has_holds_it_up_or_fills_its_memory() {
    let lab = Lab::new();
    // Named as the table is: a pipe that nobody writes into; as the table says, with a text of 3 GiB to look through.
    for what in ["fifo", "sparse"] {
        let victim = victim(&lab, what);
        let said = why(&lab, victim.pid());
        assert!(said.status.success() && said.output.contains("(process "), "{what}: {}", said.output);
    }
}

#[test]
fn a_name_does_not_write_to_the_terminal() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("hostile_why.py");
    std::fs::write(&file, include_str!("hostile_why.py")).expect("a file in the lab");
    let mut named = Program::spawn("named", engine.run(&lab, "python3").arg(&file).arg("named"));
    named.wait_for_line("ready", SOON);
    let mut status = lab.command(Side::Server, lab.program("toe"));
    status.args(["status", "--name", engine.name()]);
    let mut ss = lab.command(Side::Server, lab.program("toe"));
    ss.args(["ss", "--name", engine.name()]);
    let told = [
        child::run("status", &mut status, SOON).output,
        child::run("ss", &mut ss, SOON).output,
        why(&lab, named.pid()).output,
    ];
    for text in told {
        assert!(!text.contains('\x1b') && text.contains("a\\u{1b}[31m\\nLIS"), "{text}");
    }
}
