//! A connection's descriptor as a program sees it: fstat, lseek, fcntl, children of every kind, calls that few make, and
//! what several processes do with one.

use crate::files;
use std::time::Duration;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

/// For a script that moves tens of megabytes and makes a hundred processes.
const LONG: Duration = Duration::from_secs(60);

/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";

/// Runs a script, which says `same` when all is as on the kernel's stack; its connections, so many, are the engine's.
fn run(name: &str, script: &str, connections: u64) {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join(name);
    std::fs::write(&file, script).expect("a file in the lab");
    let mut command = On::Engine(&engine).command(&lab, PYTHON);
    command.arg(&file);
    let said = Program::spawn(name, &mut command).wait(LONG).expect_success(name);
    assert_eq!(said.trim(), "same");
    let counters = engine.status().counters;
    // While a listener changes hands on a busy machine it may be the kernel's for a moment, which takes who comes then.
    let by_engine = counters["passive_opens"];
    assert!(
        by_engine <= connections && by_engine * 5 >= connections * 4,
        "the engine's are {by_engine}: {counters:?}"
    );
    engine.wait_until_idle(SOON);
}

#[test]
fn a_connection_looks_like_a_socket_and_outlives_children() {
    run("descriptor.py", include_str!("descriptor.py"), 7);
}

#[test]
fn calls_that_few_programs_make_do_what_they_do_on_linux() {
    run("calls.py", include_str!("calls.py"), 10);
}

#[test]
fn what_several_processes_have_is_neither_lost_nor_doubled() {
    run("sharing.py", include_str!("sharing.py"), 58);
}

/// Whoever connected then waited for ever: to the engine somebody had the listener, and that one knew that it had ended.
#[test]
fn a_listener_that_one_of_two_processes_shuts_down_has_ended() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("ended_for_all.py");
    std::fs::write(&file, include_str!("ended_for_all.py")).expect("a file in the lab");
    let mut command = On::Engine(&engine).command(&lab, PYTHON);
    let said =
        Program::spawn("ended_for_all.py", command.arg(&file)).wait(LONG).expect_success("ended_for_all.py");
    assert_eq!(said.trim(), "same");
    // Those that were not accepted; after a fork the next listen is the kernel's.
    let counters = engine.status().counters;
    assert!(counters["passive_opens"] >= 80, "{counters:?}");
    engine.wait_until_idle(SOON);
}

/// The engine took it for gone because it was not yet in the list that the kernel was making, and reset whoever had just connected.
#[test]
fn a_listener_that_is_new_while_others_are_looked_for_lets_all_in() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join("new_listeners.py");
    std::fs::write(&file, include_str!("new_listeners.py")).expect("a file in the lab");
    let mut others = On::Kernel(Side::Server).command(&lab, PYTHON);
    let mut others = Program::spawn("others", others.arg(&file).arg("others"));
    others.wait_for_line("900 listen", SOON);
    let mut command = On::Engine(&engine).command(&lab, PYTHON);
    let said =
        Program::spawn("new_listeners.py", command.arg(&file)).wait(LONG).expect_success("new_listeners.py");
    assert_eq!(said.trim(), "same");
    others.close_input();
    others.wait(SOON).expect_success("others");
    engine.wait_until_idle(SOON);
}

/// Each socket was written to in each child: a page for three connections, and with 1,000 of them 1.2 ms.
#[test]
fn a_child_copies_no_page_for_a_connection() {
    run("fork_pages.py", include_str!("fork_pages.py"), 400);
}

#[test]
fn sockets_of_inet6_are_the_engines_whatever_their_addresses() {
    run("inet6.py", include_str!("inet6.py"), 9);
}

/// What a script says on either stack; on the engine its connections are that one's, so many.
fn said_on_both(name: &str, script: &str, connections: u64) -> [String; 2] {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let file = lab.dir().join(name);
    std::fs::write(&file, script).expect("a file in the lab");
    let said = [On::Kernel(Side::Server), On::Engine(&engine)]
        .map(|on| Program::spawn(name, on.command(&lab, PYTHON).arg(&file)).wait(LONG).expect_success(name));
    let counters = engine.status().counters;
    // While a listener changes hands on a busy machine it may be the kernel's for a moment, which takes who comes then.
    let by_engine = counters["passive_opens"];
    assert!(
        by_engine <= connections && by_engine * 5 >= connections * 4,
        "the engine's are {by_engine}: {counters:?}"
    );
    said
}

#[test]
fn a_connection_that_lingers_for_no_time_is_reset_however_it_ends() {
    let [kernel, engine] = said_on_both("linger_exit.py", include_str!("linger_exit.py"), 16);
    assert_eq!(kernel, engine);
}

#[test]
fn a_close_that_lingers_sleeps_until_it_is_told() {
    let [kernel, engine] = said_on_both("linger_wait.py", include_str!("linger_wait.py"), 2);
    assert_eq!([kernel.trim(), engine.trim()], ["same", "same"]);
}

/// Found with sockperf: its server was refused its port for a minute.
#[test]
fn a_port_is_free_when_its_server_was_not_the_first_to_close() {
    let [kernel, engine] = said_on_both("rebind.py", include_str!("rebind.py"), 60);
    assert_eq!([kernel.trim(), engine.trim()], ["same", "same"]);
}

#[test]
fn a_peer_that_does_not_read_takes_as_much_as_of_linux() {
    let [kernel, engine] = said_on_both("much_unread.py", include_str!("much_unread.py"), 53);
    assert_eq!([kernel.trim(), engine.trim()], ["same", "same"]);
}

/// The receiver took so much for a sender that breaks the contract, and all their connections were reset. On a busy machine a sender
/// may have it without a word of the program's. Found with nghttpx.
#[test]
fn a_sender_has_as_much_under_way_as_it_asked_for() {
    let [kernel, engine] = said_on_both("much_limit.py", include_str!("much_limit.py"), 1);
    assert_eq!([kernel.trim(), engine.trim()], ["same", "same"]);
}

/// Of what a channel held at most and a few bytes that the engine had brought before it nothing came, and the next process took that for the end.
#[test]
fn what_is_unread_goes_to_the_next_process_however_much_it_is() {
    let [kernel, engine] = said_on_both("passed_unread.py", include_str!("passed_unread.py"), 24);
    assert_eq!([kernel.trim(), engine.trim()], ["same", "same"]);
}

/// A read of a direction that is shut, a descriptor that is copied over or closed in a range, a time limit that a child has set,
/// a reset by the other end's close (CPython's test_preauth_data_to_tls_server): whoever was faster decided what they said.
#[test]
fn what_has_just_been_done_is_found() {
    let [kernel, engine] = said_on_both("just_done.py", include_str!("just_done.py"), 1038);
    assert_eq!(kernel, engine);
}

/// A thread that came while another one took the connection back from the other process was told that there is none.
#[test]
fn two_processes_of_two_threads_receive_from_one_connection() {
    files::expect_same("two_by_two", &[&["7000"]]);
}

/// Between the end of what a number was and its new meaning it was a number of nothing.
#[test]
fn a_number_that_is_copied_over_is_a_connection_throughout() {
    files::expect_same("dup_over_in_use", &[&["7000"]]);
}

/// fcntl took locks of the library with the signals let in: a handler that used the socket waited for its own thread.
#[test]
fn a_handler_uses_the_connection_whose_flags_are_asked_for() {
    files::expect_same("handler_in_fcntl", &[&["7000"]]);
}

/// A connect was told EBADF, ECONNRESET or EISCONN when another thread shut the socket down meanwhile.
#[test]
fn a_shutdown_comes_before_a_connect_or_after_it() {
    files::expect_same("shut_while_connecting", &[&["7000"]]);
}
