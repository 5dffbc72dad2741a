//! Messages between programs of two hosts, which are two namespaces with an engine each and a link between them (docs/via-wire.md).

use super::via::{Language, at, at_node, build, built, example, found_scene};
use rustix::process::Signal;
use std::process::Command;
use toe_tests::bins;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_ADDR, Lab, PEER_ADDR, Side, sha256};
use toe_tests::wait::SOON;

/// An engine at each end of the link.
struct Hosts {
    server: Engine,
    client: Engine,
}

impl Hosts {
    fn new(lab: &Lab) -> Hosts {
        Hosts {
            server: Engine::on_link(lab, Side::Server, ""),
            client: Engine::on_link(lab, Side::Client, ""),
        }
    }

    fn wait_until_idle(&self) {
        self.server.wait_until_idle(SOON);
        self.client.wait_until_idle(SOON);
    }
}

/// A program that is found at that address.
fn found_at(mut command: Command, address: &str) -> Command {
    command.env("TOE_VIA_ADDRESS", address);
    command
}

#[test]
fn the_examples_in_all_languages() {
    let lab = Lab::new();
    for name in ["pingpong", "copy", "sum"] {
        build(&example(&format!("{name}.c")), &built(&lab, Language::C, name));
        build(&example(&format!("vipl/{name}.c")), &built(&lab, Language::Vipl, name));
    }
    let hosts = Hosts::new(&lab);
    for language in Language::ALL {
        pingpong(&lab, &hosts, language);
        copy(&lab, &hosts, language);
        sum(&lab, &hosts, language);
    }
    hosts.wait_until_idle();
}

fn pingpong(lab: &Lab, hosts: &Hosts, language: Language) {
    let mut wait = found_at(at(lab, &hosts.server, (Side::Server, "one"), language, "pingpong"), ENGINE_ADDR);
    let server = Program::spawn("pingpong wait", wait.args(["wait", "7"]));
    let mut connect = at(lab, &hosts.client, (Side::Client, "two"), language, "pingpong");
    let client = Program::spawn("pingpong", connect.args([ENGINE_ADDR, "7", "500"]));
    assert_eq!(client.wait(SOON).expect_success("pingpong").trim(), "ball 499");
    assert_eq!(server.wait(SOON).expect_success("pingpong wait").trim(), "served");
}

fn copy(lab: &Lab, hosts: &Hosts, language: Language) {
    let (path, sum) = lab.file("from", 5_000_001);
    let to = lab.dir().join("to");
    let program = match language {
        Language::C | Language::Vipl => built(lab, language, "copy").display().to_string(),
        Language::Python => format!("/usr/bin/python3 {}", example("copy.py").display()),
    };
    let shell = |engine, side, node, words: String| {
        let mut command = found_at(at_node(lab, engine, side, node, "/bin/sh"), ENGINE_ADDR);
        Program::spawn(&words, command.args(["-c", &format!("{program} {words}")]))
    };
    // Who connects may come first. He ends when he has sent: what he sent arrives all the same.
    let words = format!("{ENGINE_ADDR} 8 < {}", path.display());
    let sender = shell(&hosts.client, Side::Client, "two", words);
    let receiver = shell(&hosts.server, Side::Server, "one", format!("8 > {}", to.display()));
    receiver.wait(SOON).expect_success("copy to");
    sender.wait(SOON).expect_success("copy from");
    assert_eq!(sha256(&to), sum);
}

/// Workers at both hosts; the boss is at one of them.
fn sum(lab: &Lab, hosts: &Hosts, language: Language) {
    let places =
        [(&hosts.server, Side::Server, ENGINE_ADDR, "9"), (&hosts.client, Side::Client, PEER_ADDR, "10")];
    let workers: Vec<Program> = places
        .iter()
        .map(|(engine, side, address, port)| {
            let mut work = found_at(at(lab, engine, (*side, "worker"), language, "sum"), address);
            Program::spawn("sum work", work.args(["work", port]))
        })
        .collect();
    let mut boss = at(lab, &hosts.client, (Side::Client, "boss"), language, "sum");
    let nodes = [format!("{ENGINE_ADDR}:9"), "worker:10".to_owned()];
    let said = child::run("sum", boss.arg("1000000").args(nodes), SOON).expect_success("sum");
    assert_eq!(said.trim(), "500000500000");
    workers.into_iter().for_each(|worker| drop(worker.wait(SOON).expect_success("sum work")));
}

/// What native VIA says of what cannot be is the same between hosts, at each level: remote writes and reads, protection tags, regions, receives.
#[test]
fn vipl_says_what_is_wrong() {
    let lab = Lab::new();
    let hosts = Hosts::new(&lab);
    let program = lab.dir().join("vipl_errors");
    build(&bins::workspace().join("crates/tests/programs/vipl_errors.c"), &program);
    for level in ["unreliable", "delivery", "reception"] {
        for scene in
            ["good", "no-receive", "short", "tag", "unregistered", "beyond", "write", "read", "death"]
        {
            let mut serve =
                found_at(at_node(&lab, &hosts.server, Side::Server, "server", &program), ENGINE_ADDR);
            let server = Program::spawn("vipl serve", serve.args(["serve", scene, level]));
            let mut connect = at_node(&lab, &hosts.client, Side::Client, "client", &program);
            connect.env("VIPL_SERVER", ENGINE_ADDR);
            let client = Program::spawn("vipl connect", connect.args(["connect", scene, level]));
            client.wait(SOON).expect_success(&format!("{scene}, {level}: client"));
            server.wait(SOON).expect_success(&format!("{scene}, {level}: server"));
        }
    }
    hosts.wait_until_idle();
}

#[test]
fn who_is_killed_ends_his_channels_and_no_others() {
    let lab = Lab::new();
    let hosts = Hosts::new(&lab);
    let mut watcher =
        found_scene(&lab, &hosts.server, (Side::Server, "watcher"), Some(ENGINE_ADDR), &["watch"]);
    let mut victim =
        found_scene(&lab, &hosts.client, (Side::Client, "victim"), None, &["sit", ENGINE_ADDR, "1"]);
    let other = found_scene(&lab, &hosts.client, (Side::Client, "other"), None, &["echo", ENGINE_ADDR, "2"]);
    watcher.wait_for_line("both are there", SOON);
    victim.wait_for_line("sent", SOON);
    victim.signal(Signal::KILL);
    let said = watcher.wait(SOON).expect_success("watch");
    assert!(said.contains("the victim's last word, then: the other side has closed"), "{said}");
    assert!(said.contains("the other still answers"), "{said}");
    assert!(other.wait(SOON).expect_success("echo").contains("ended: the other side has closed"));
    hosts.wait_until_idle();
}

#[test]
fn polls_time_outs_and_errors() {
    let lab = Lab::new();
    let hosts = Hosts::new(&lab);
    let peer = found_scene(&lab, &hosts.client, (Side::Client, "peer"), None, &["many", ENGINE_ADDR, "5"]);
    let calls = found_scene(&lab, &hosts.server, (Side::Server, "here"), Some(ENGINE_ADDR), &["calls"]);
    assert_eq!(calls.wait(SOON).expect_success("calls").trim(), "all as it should be");
    peer.wait(SOON).expect_success("many");
}

/// As many as wait at one port in one program are found, one after the other and at once. (One was: the others' port was in use.)
#[test]
fn all_threads_that_wait_at_a_port_are_found() {
    let lab = Lab::new();
    let hosts = Hosts::new(&lab);
    for _ in 0..3 {
        let serves =
            found_scene(&lab, &hosts.server, (Side::Server, "here"), Some(ENGINE_ADDR), &["serve", "5", "8"]);
        let words = ["served", ENGINE_ADDR, "5", "8"];
        let served = found_scene(&lab, &hosts.client, (Side::Client, "two"), None, &words);
        assert_eq!(served.wait(SOON).expect_success("served").trim(), "all were let in");
        assert_eq!(serves.wait(SOON).expect_success("serve").trim(), "all were found");
    }
    hosts.wait_until_idle();
}

/// Of two programs that wait at one port the second is found when the first has what it waited for. (It never was.)
#[test]
fn who_waits_behind_another_program_is_found_after_it() {
    let lab = Lab::new();
    let hosts = Hosts::new(&lab);
    let waits: Vec<Program> = ["one", "another"]
        .iter()
        .map(|node| found_scene(&lab, &hosts.server, (Side::Server, node), Some(ENGINE_ADDR), &["wait", "6"]))
        .collect();
    for _ in &waits {
        let mut sits =
            found_scene(&lab, &hosts.client, (Side::Client, "two"), None, &["sit", ENGINE_ADDR, "6"]);
        sits.wait_for_line("sent", SOON);
        sits.signal(Signal::KILL);
    }
    for wait in waits {
        let said = wait.wait(SOON).expect_success("wait");
        assert!(said.contains("connected") && said.contains("the other side has closed"), "{said}");
    }
    hosts.wait_until_idle();
}

/// An engine without a link has no way there, and says so at once.
#[test]
fn an_address_without_a_way_is_refused() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let lost = found_scene(&lab, &engine, (Side::Server, "here"), None, &["lost", ENGINE_ADDR]);
    assert_eq!(lost.wait(SOON).expect_success("lost").trim(), "as it should be");
}

#[test]
fn the_end_of_the_engine_is_told() {
    let lab = Lab::new();
    let Hosts { server, client } = Hosts::new(&lab);
    let mut sits = found_scene(&lab, &server, (Side::Server, "one"), Some(ENGINE_ADDR), &["wait", "3"]);
    let mut other = found_scene(&lab, &client, (Side::Client, "two"), None, &["sit", ENGINE_ADDR, "3"]);
    for program in [&mut sits, &mut other] {
        program.wait_for_line("connected", SOON);
    }
    client.kill_hard();
    let said = other.wait(SOON).expect_success("told");
    assert!(said.contains("ended: no engine answers"), "{said}");
    drop(sits);
}

/// A stranger on the link, by the kernel's TCP: whatever he sends, his own connection ends, with the right word, and no other.
#[test]
fn a_stranger_harms_nobody_else() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let script = lab.dir().join("via_hostile.py");
    std::fs::write(&script, include_str!("../../programs/via_hostile.py")).expect("via_hostile.py");
    let at_server =
        |words: &[&str]| found_scene(&lab, &engine, (Side::Server, "here"), Some(ENGINE_ADDR), words);
    let mut watcher = at_server(&["wait", "2"]);
    let mut other = at_server(&["sit", "here", "2"]);
    other.wait_for_line("sent", SOON);
    watcher.wait_for_line("connected", SOON);
    for (what, end) in [
        ("crc", "what no library writes"),
        ("length", "what no library writes"),
        ("tag", "what no library writes"),
        ("number", "what no library writes"),
        ("longer", "what no library writes"),
        ("opcode", "what no library writes"),
        ("credit", "what no library writes"),
        ("overrun", "what no library writes"),
        ("cut", "the other side has closed"),
        ("gone", "the other side has closed"),
    ] {
        let victim = at_server(&[if what == "overrun" { "hold" } else { "wait" }, "4"]);
        stranger(&lab, what);
        let said = victim.wait(SOON).expect_success(what);
        assert!(said.contains("connected") && said.contains(end), "{what}: {said}");
    }
    // Who does not come so far leaves no trace: the next one is let in.
    let victim = at_server(&["wait", "4"]);
    for what in ["garbage", "version", "gone"] {
        stranger(&lab, what);
    }
    let said = victim.wait(SOON).expect_success("gone");
    assert!(said.contains("the other side has closed"), "{said}");
    other.signal(Signal::KILL);
    let said = watcher.wait(SOON).expect_success("the others");
    assert!(said.contains("ended: the other side has closed"), "{said}");
}

fn stranger(lab: &Lab, what: &str) {
    child::run("stranger", &mut as_stranger(lab, what), SOON).expect_success(what);
}

fn as_stranger(lab: &Lab, what: &str) -> Command {
    let mut stranger = lab.command(Side::Client, "/usr/bin/python3");
    stranger.arg(lab.dir().join("via_hostile.py")).args([ENGINE_ADDR, "4", what]);
    stranger
}

/// Whoever asks for a connection and then says nothing more is waited for by who sends to him, and by nobody else. (He kept the next one waiting: at
/// first for ever, then for a second.)
#[test]
fn a_silent_peer_keeps_nobody_waiting() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let script = lab.dir().join("via_hostile.py");
    std::fs::write(&script, include_str!("../../programs/via_hostile.py")).expect("via_hostile.py");
    let mut doors = found_scene(&lab, &engine, (Side::Server, "here"), Some(ENGINE_ADDR), &["doors", "4"]);
    let mut silent = Program::spawn("silent", &mut as_stranger(&lab, "silent"));
    silent.wait_for_line("silent", SOON);
    doors.wait_for_line("let in", SOON);
    let mut other = found_scene(&lab, &engine, (Side::Server, "other"), None, &["sit", "here", "4"]);
    other.wait_for_line("sent", SOON);
    doors.wait_for_line("the first is silent", SOON);
    other.signal(Signal::KILL);
    let said = doors.wait(SOON).expect_success("doors");
    assert!(said.contains("ended: the other side has closed"), "{said}");
    silent.wait(SOON).expect_success("silent");
}

/// Whoever says what he wants is let in, whoever comes behind him: as many as may wait in silence do here before the program looks. (They
/// were all taken in first, and the first of them sent away for the last, unheard.)
#[test]
fn who_asks_is_heard_before_a_crowd_that_says_nothing() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let script = lab.dir().join("via_hostile.py");
    std::fs::write(&script, include_str!("../../programs/via_hostile.py")).expect("via_hostile.py");
    let waits = found_scene(&lab, &engine, (Side::Server, "here"), Some(ENGINE_ADDR), &["wait", "4"]);
    let mut crowd = Program::spawn("crowd", &mut as_stranger(&lab, "crowd"));
    crowd.wait_for_line("there", SOON);
    waits.signal(Signal::STOP);
    crowd.close_input();
    crowd.wait_for_line("a crowd", SOON);
    waits.signal(Signal::CONT);
    crowd.wait(SOON).expect_success("crowd");
    let said = waits.wait(SOON).expect_success("wait");
    assert!(said.contains("connected") && said.contains("the other side has closed"), "{said}");
}
