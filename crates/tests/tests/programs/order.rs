//! What a call has returned for, everybody can see ([decision 0042](../../../../docs/decisions/0042-seen-in-order.md)).

use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

const ROUNDS: usize = 500;
/// A wait for the engine has an end, which a machine that does much else may meet. Without such waits the first two count a sixth of
/// the rounds, or most of them.
const MISSED_MAX: usize = ROUNDS / 20;

fn missed(on: On<'_>, lab: &Lab) -> Vec<(String, usize)> {
    let script = lab.dir().join("order.py");
    std::fs::write(&script, include_str!("order.py")).expect("a file in the lab");
    let mut command = on.command(lab, "/usr/bin/python3");
    command.arg(&script).args(["7300", &ROUNDS.to_string()]);
    if let On::Engine(engine) = on {
        command.arg(engine.pid().to_string());
    }
    let said = Program::spawn("order.py", &mut command).wait(SOON * 4).expect_success("order.py");
    let count = |line: &str| {
        let (look, count) = line.split_once(' ').expect("a look and its count");
        (look.to_owned(), count.parse().expect("a number"))
    };
    said.lines().map(count).collect()
}

#[test]
fn what_was_done_first_is_seen_first() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    for (look, missed) in missed(On::Engine(&engine), &lab) {
        println!("{look}: {missed} of {ROUNDS} not seen");
        assert!(missed <= MISSED_MAX, "{look}: {missed} of {ROUNDS} not seen");
    }
    for (look, missed) in missed(On::Kernel(Side::Server), &lab) {
        assert_eq!(missed, 0, "{look} on Linux");
    }
}
