//! `toe-cable` between the kernels of two namespaces: frames cross, as late and as seldom as they are to.

use toe_tests::child::{self, Program};
use toe_tests::lab::{Lab, Side};
use toe_tests::wait::SOON;
use toe_tests::{bins, must};

const LEFT: &str = "10.80.0.1";
const RIGHT: &str = "10.80.0.2";

/// A cable between the two sides, with these faults for what comes in at the server's end.
fn cable(lab: &Lab, faults: &str) -> Program {
    let mut command = lab.command(Side::Server, bins::path("toe-cable"));
    command.args([&format!("tap:cable-l?{faults}"), "tap:cable-r?rx_delay_us=20000"]);
    let mut cable = Program::spawn("toe-cable", &mut command);
    cable.wait_for_line("ready", SOON);
    must(lab.ip(Side::Server, &["link", "set", "cable-r", "netns", &lab.namespace(Side::Client)]));
    for (side, end, addr) in [(Side::Server, "cable-l", LEFT), (Side::Client, "cable-r", RIGHT)] {
        must(lab.ip(side, &["addr", "add", &format!("{addr}/24"), "dev", end]));
        must(lab.ip(side, &["link", "set", end, "up"]));
    }
    cable
}

/// What ping says of one packet of the largest size that crosses whole.
fn ping(lab: &Lab, wait: &str) -> child::Finished {
    let mut command = lab.command(Side::Server, "ping");
    command.args(["-c", "1", "-W", wait, "-s", "1472", "-M", "do", RIGHT]);
    child::run("ping", &mut command, SOON)
}

#[test]
fn a_cable_delays_and_loses_what_it_is_told_to() {
    let lab = Lab::new();
    let mut good = cable(&lab, "rx_delay_us=30000&rx_rate_kbit=100000");
    let said = ping(&lab, "10").expect_success("a ping over the cable");
    let time = said.split("time=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    println!("a ping over a cable with 30 ms and 20 ms: {time:?} ms");
    assert!(time.is_some_and(|ms| ms >= 50.0), "{said}");
    good.close_input();
    let counted = good.wait_for_line("\"left\"", SOON);
    assert!(counted.contains("\"tx_frames\"") && !counted.contains("fault_dropped"), "{counted}");
    drop(good);

    let mut bad = cable(&lab, "rx_drop=100%");
    assert!(!ping(&lab, "1").status.success(), "a cable that loses everything lets a ping through");
    bad.close_input();
    let counted = bad.wait_for_line("\"left\"", SOON);
    assert!(counted.contains("\"fault_dropped\""), "{counted}");
}
