//! TCP_INFO as programs ask for it, of connections inside the engine, which leave it for a channel.

use toe_tests::child;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// On Linux first: what is asked for is what Linux tells.
#[test]
fn tcp_info_tells_what_went_over_a_connection() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("tcp_info.py");
    std::fs::write(&file, include_str!("tcp_info.py")).expect("a file in the lab");
    for on in [On::Kernel(Side::Server), On::Engine(&engine)] {
        let mut command = on.command(&lab, "/usr/bin/python3");
        let told = child::run("tcp_info", command.arg(&file).arg("7411"), SOON);
        assert_eq!(told.expect_success("tcp_info"), "told\n");
    }
    let counters = engine.status().counters;
    assert_eq!(counters.get("direct_connections"), Some(&1), "{counters:?}");
}
