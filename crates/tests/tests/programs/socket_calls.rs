//! Socket calls whose answers depend on connections that others have, or had: programs that print what they are told say the same
//! on the kernel's stack and on the engine.

use std::process::Command;
use std::time::Duration;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::must;
use toe_tests::tools::On;

const LONG: Duration = Duration::from_secs(120);
/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";

/// Runs a script on both stacks, in a namespace each, so that what the one leaves behind is not in the other's way. `prepare`
/// is done to both labs before.
#[track_caller]
fn says_the_same(name: &str, text: &str, prepare: impl Fn(&Lab)) {
    let said = |lab: &Lab, mut command: Command| {
        let file = lab.dir().join(name);
        std::fs::write(&file, text).expect("a file in the lab");
        Program::spawn(name, command.arg(&file)).wait(LONG).expect_success(name)
    };
    let lab = Lab::new();
    prepare(&lab);
    let on_kernel = said(&lab, lab.command(Side::Server, PYTHON));
    let lab = Lab::new();
    prepare(&lab);
    let engine = Engine::local(&lab);
    let on_engine = said(&lab, On::Engine(&engine).command(&lab, PYTHON));
    let differing: Vec<_> =
        on_kernel.lines().zip(on_engine.lines()).filter(|(kernel, engine)| kernel != engine).collect();
    assert!(differing.is_empty(), "kernel, engine: {differing:#?}");
    assert_eq!(on_kernel, on_engine);
    let counters = engine.status().counters;
    assert!(counters.get("passive_opens").is_some_and(|n| *n > 0), "none was the engine's: {counters:?}");
}

#[test]
fn a_port_is_in_use_as_long_as_a_connection_has_it() {
    says_the_same("ports.py", include_str!("ports.py"), |_| {});
}

#[test]
fn connections_to_one_place_end_where_the_ports_do() {
    says_the_same("port_range.py", include_str!("port_range.py"), |lab| {
        must(lab.set_kernel(Side::Server, "net/ipv4/ip_local_port_range", "40000 40299"));
    });
}

/// Found by another test, once in some runs: a free port was one that an engine's connection had.
#[test]
fn a_free_port_is_free() {
    says_the_same("free_port.py", include_str!("free_port.py"), |lab| {
        must(lab.set_kernel(Side::Server, "net/ipv4/ip_local_port_range", "40000 40299"));
    });
}

/// Found by tornado's test_stop_in_callback: a listener was asked for its connections at the first wait, which ended by others before the
/// answer.
#[test]
fn the_first_wait_tells_of_a_listener_among_others() {
    says_the_same("first_wait.py", include_str!("first_wait.py"), |_| {});
}

/// The engine is not asked each time whether somebody listens by now, and whoever does is found by the next connect.
#[test]
fn who_is_refused_again_and_again_does_not_ask_each_time() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("refused.py");
    std::fs::write(&file, include_str!("refused.py")).expect("a file in the lab");
    let mut command = On::Engine(&engine).command(&lab, PYTHON);
    let said = Program::spawn("refused.py", command.arg(&file)).wait(LONG).expect_success("refused.py");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines, ["ECONNREFUSED ok there", "ECONNREFUSED ok here"].repeat(15));
    let counters = engine.status().counters;
    assert_eq!(counters["passive_opens"], 30, "all were the engine's: {counters:?}");
    assert!(counters["connect_refused"] < 150, "of 300: {counters:?}");
}

/// Ports of connections that one end has closed were given away once the kernel had no other.
#[test]
fn a_port_of_the_systems_choice_is_nobodys_though_there_are_few() {
    says_the_same("few_ports.py", include_str!("few_ports.py"), |lab| {
        must(lab.set_kernel(Side::Server, "net/ipv4/ip_local_port_range", "40000 40019"));
    });
}

/// Also: a listener lets in one more than are to wait, and no more.
#[test]
fn a_socket_that_connects_is_disconnected_by_shutdown() {
    says_the_same("shut_connecting.py", include_str!("shut_connecting.py"), |_| {});
}

#[test]
fn connections_have_the_options_of_their_listener_that_linux_lets_them_have() {
    says_the_same("inherit.py", include_str!("inherit.py"), |_| {});
}

/// A listener whose anchor a connection had had could be taken from by no child.
#[test]
fn who_has_had_connections_hands_on_what_others_can_use() {
    says_the_same("handed_on.py", include_str!("handed_on.py"), |_| {});
}

#[test]
fn options_of_a_name_are_read_as_they_were_set() {
    says_the_same("name_options.py", include_str!("name_options.py"), |_| {});
}

#[test]
fn a_type_of_service_sets_the_priority() {
    says_the_same("priority.py", include_str!("priority.py"), |_| {});
}

#[test]
fn a_message_tells_what_waits_behind_it_if_asked() {
    says_the_same("unread.py", include_str!("unread.py"), |_| {});
}

#[test]
fn a_peer_that_does_not_read_is_sent_what_the_buffers_hold() {
    says_the_same("buffers.py", include_str!("buffers.py"), |_| {});
}

#[test]
fn a_one_shot_registration_of_a_listener_fires_once() {
    says_the_same("one_shot.py", include_str!("one_shot.py"), |_| {});
}

#[test]
fn who_asks_for_signals_of_a_connection_gets_them() {
    says_the_same("sigio.py", include_str!("sigio.py"), |_| {});
}

#[test]
fn a_listener_of_the_kernels_blocks_as_its_maker_wants() {
    says_the_same("held.py", include_str!("held.py"), |_| {});
}

#[test]
fn what_a_syn_is_to_say_it_says() {
    says_the_same("in_syn.py", include_str!("in_syn.py"), |_| {});
}

#[test]
fn names_are_as_on_linux_at_each_step() {
    says_the_same("wildcard.py", include_str!("wildcard.py"), |_| {});
}

#[test]
fn a_look_at_more_than_there_is_shows_what_there_is() {
    says_the_same("peek_all.py", include_str!("peek_all.py"), |_| {});
}

/// As .NET ends a call of another thread: the peer is reset, whoever waits is woken, and the socket can be used again.
#[test]
fn a_connection_is_disconnected_for_all_who_have_it() {
    says_the_same("disconnect.py", include_str!("disconnect.py"), |_| {});
}

/// Found by the differential test.
#[test]
fn what_came_over_exec_is_one_socket_under_all_its_numbers() {
    says_the_same("inherited_copies.py", include_str!("inherited_copies.py"), |_| {});
}

#[test]
fn a_connection_that_is_reset_before_it_is_accepted_is_accepted() {
    says_the_same("reset_early.py", include_str!("reset_early.py"), |_| {});
}

/// Found by other projects' suites: gVisor's among them.
#[test]
fn odd_values_and_arguments_are_told_as_linux_tells() {
    says_the_same("arguments.py", include_str!("arguments.py"), |_| {});
}

/// Found by the differential test.
#[test]
fn how_a_connection_has_ended_is_known_over_exec() {
    says_the_same("over_exec.py", include_str!("over_exec.py"), |_| {});
}

#[test]
fn an_option_that_only_the_kernel_does_is_done() {
    says_the_same("kernel_options.py", include_str!("kernel_options.py"), |_| {});
}

#[test]
fn a_listener_says_how_many_connections_wait() {
    says_the_same("queue_length.py", include_str!("queue_length.py"), |_| {});
}

#[test]
fn the_path_of_a_descriptor_leads_to_a_socket() {
    says_the_same("descriptor_path.py", include_str!("descriptor_path.py"), |_| {});
}
