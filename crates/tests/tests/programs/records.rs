//! MSG_EOR of an unmodified program, as the link shows it.

use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_LINK, KERNEL_PEER_ADDR, Lab, PEER_ADDR, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

const PORT: &str = "7434";
/// A segment a record, and one of what is none.
const SEGMENTS: &str = "listening\nsegments 100 200 300 400 500 130\n";

fn python(on: On<'_>, lab: &Lab, args: [&str; 3]) -> Program {
    let file = lab.dir().join("records.py");
    std::fs::write(&file, include_str!("records.py")).expect("a file in the lab");
    let mut command = on.command(lab, "/usr/bin/python3");
    Program::spawn(args[0], command.arg(&file).args(args))
}

/// On Linux first: what is expected is what Linux does.
#[test]
fn records_that_a_program_ends_go_out_one_by_one() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let ways = [
        (On::Kernel(Side::Server), "kern0", KERNEL_PEER_ADDR),
        (On::Engine(&engine), ENGINE_LINK, PEER_ADDR),
    ];
    for (on, link, addr) in ways {
        let mut receiver = python(On::Kernel(Side::Client), &lab, ["receive", link, PORT]);
        receiver.wait_for_line("listening", SOON);
        python(on, &lab, ["send", addr, PORT]).wait(SOON).expect_success("send");
        assert_eq!(receiver.wait(SOON).expect_success("receive"), SEGMENTS, "{on:?}");
    }
    let counters = engine.status().counters;
    assert_eq!(counters.get("active_opens"), Some(&1), "it was the engine's: {counters:?}");
}
