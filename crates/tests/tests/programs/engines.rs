//! Several engines and the kernel's stack under one program: `proto_stacks` of the TSSL paper, and the policy over it.

use std::time::Duration;
use toe_tests::bins;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};
use toe_tests::tools::On;
use toe_tests::wait::SOON;

const PYTHON: &str = "/usr/bin/python3";
/// For a script that starts some tens of programs.
const LONG: Duration = Duration::from_secs(60);

/// Connections that came in at an engine.
fn accepted(engine: &Engine) -> u64 {
    engine.status().counters.get("passive_opens").copied().unwrap_or(0)
}

fn script(lab: &Lab, name: &str, text: &str) -> String {
    let file = lab.dir().join(name);
    std::fs::write(&file, text).expect("a file in the lab");
    file.display().to_string()
}

#[test]
fn a_program_serves_and_uses_two_engines_and_the_kernel() {
    let lab = Lab::new();
    let (first, mut second) = (Engine::local(&lab), Engine::another(&lab));
    let file = script(&lab, "engines.py", include_str!("engines.py"));
    let names = [first.name().to_owned(), second.name().to_owned()];
    let ends = |gone: &str, pid: u32| {
        let mut command = lab.command(Side::Server, bins::path("toe"));
        command.args(["run", "--name", &names[0], "--name", &names[1], "--", PYTHON, &file]);
        command.args([gone, &pid.to_string()]);
        let said = Program::spawn("engines.py", &mut command).wait(LONG).expect_success("engines.py");
        assert_eq!(said.trim(), "same");
    };
    ends("second", second.pid());
    // 3 + 3 blocking, 2 each by poll, select and three kinds of epoll, 2 by a child, by the next program and over a passed
    // listener, 1 at the first engine's own server, 3 while and after the second ends.
    assert_eq!(accepted(&first), 6 + 10 + 6 + 1 + 3);
    first.wait_until_idle(SOON);
    second.start_again(&lab);
    ends("first", first.pid());
    assert_eq!(accepted(&second), 3);
}

/// What `toe why` says of each descriptor: stack, engine, rule.
fn why(lab: &Lab, line: &str) -> Vec<(String, Option<String>, Option<u64>)> {
    let numbers: Vec<&str> = line.split_whitespace().skip(1).collect();
    let (pid, fds) = numbers.split_first().expect("a process");
    let of = |fd: &&str| {
        let mut command = lab.command(Side::Server, bins::path("toe"));
        command.args(["why", pid, fd, "--json"]);
        let said = child::run("toe why", &mut command, SOON).expect_success("toe why");
        let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let text = |name: &str| said[name].as_str().map(str::to_owned);
        (text("stack").unwrap_or_default(), text("engine"), said["rule"].as_u64())
    };
    fds.iter().map(of).collect()
}

struct Policy<'a> {
    lab: &'a Lab,
    config: String,
    script: String,
}

impl Policy<'_> {
    fn of<'a>(lab: &'a Lab, first: &Engine, second: &Engine) -> Policy<'a> {
        let both = format!("[\"{}\", \"{}\"]", first.name(), second.name());
        let text = format!(
            "[profiles.hash]\nengines = [{both}]\n\
             [profiles.least]\nengines = [{both}]\nbalance = \"least-loaded\"\n\
             [profiles.rules]\nengines = {both}\n\
             [[profiles.rules.rules]]\nport = 7402\nstack = \"kernel\"\n\
             [[profiles.rules.rules]]\ncall = \"connect\"\nport = \"7400, 7403\"\nstack = \"refuse\"\n\
             [[profiles.rules.rules]]\nprogram = \"python3\"\nport = 7404\naddress = \"127.0.0.0/8\"\n\
             engines = [\"{}\"]\nstack = \"engine-only\"\n\
             [[profiles.rules.rules]]\ncall = \"listen\"\nport = 7405\nstack = \"refuse\"\n",
            second.name()
        );
        Policy {
            lab,
            config: script(lab, "toe.toml", &text),
            script: script(lab, "policy.py", include_str!("policy.py")),
        }
    }

    /// The script under a profile, and what it said when it was ready.
    fn run(&self, profile: &str, port: u16) -> (Program, String) {
        let mut command = self.lab.command(Side::Server, bins::path("toe"));
        command.args(["run", "--config", &self.config, "--profile", profile, "--", PYTHON, &self.script]);
        command.args([profile, &port.to_string()]);
        let mut program = Program::spawn("policy.py", &mut command);
        let line = program.wait_for_line("ready", LONG);
        (program, line)
    }
}

#[test]
fn a_policy_decides_by_port_and_call_and_why_names_the_rule() {
    let lab = Lab::new();
    let (first, second) = (Engine::local(&lab), Engine::another(&lab));
    let policy = Policy::of(&lab, &first, &second);
    let (program, line) = policy.run("rules", 0);
    let kernel = ("kernel".to_owned(), None, Some(1));
    let engine = |rule| ("engine".to_owned(), Some(second.name().to_owned()), rule);
    let said = why(&lab, &line);
    println!("{said:?}");
    // An accepted connection goes where its listener is: no rule has decided on it.
    let accepted = ("kernel".to_owned(), None, None);
    assert_eq!(said[0], kernel, "the kernel's listener");
    assert_eq!(said[1], kernel, "a connection to it");
    assert!(said[2] == kernel || said[2] == accepted, "the other end of it");
    assert_eq!(said[3..], [engine(Some(3)), engine(None)]);
    drop(program);
    assert_eq!(first.status().counters.get("active_opens"), None, "the rule names the second engine only");
}

#[test]
fn engines_of_one_priority_are_balanced() {
    const PORT: u16 = 7401;
    let lab = Lab::new();
    let (first, second) = (Engine::local(&lab), Engine::another(&lab));
    let mut server = lab.command(Side::Server, bins::path("toe"));
    let accept = format!(
        "import socket\nmade = socket.create_server(('0.0.0.0', {PORT}), backlog=100)\nprint('ready', flush=True)\n\
         held = [made.accept() for _ in range(1000)]\n"
    );
    server.args(["run", "--name", first.name(), "--name", second.name(), "--", PYTHON, "-c", &accept]);
    let mut server = Program::spawn("server", &mut server);
    server.wait_for_line("ready", SOON);
    let policy = Policy::of(&lab, &first, &second);

    let (least, _) = policy.run("least", PORT);
    let counts = [accepted(&first), accepted(&second)];
    println!("20 connections to the least loaded: {counts:?}");
    assert_eq!(counts.iter().sum::<u64>(), 20);
    assert!(counts.iter().all(|count| (5..=15).contains(count)), "{counts:?}");

    // One peer, one engine.
    let (hash, _) = policy.run("hash", PORT);
    let more: Vec<u64> =
        [&first, &second].iter().zip(counts).map(|(e, before)| accepted(e) - before).collect();
    println!("20 connections by hash: {more:?}");
    assert!(more == [20, 0] || more == [0, 20], "{more:?}");
    // Of these two only: other tests' engines end while somebody asks all there are.
    assert_eq!(first.status().flows + second.status().flows, 80, "the load that they show");
    drop((least, hash, server));
}

#[test]
fn a_listener_at_an_address_is_at_its_engine_alone() {
    let lab = Lab::new();
    let on_link = Engine::on_link(&lab, Side::Server, "");
    let local = Engine::another(&lab);
    let mut command = lab.command(Side::Server, bins::path("toe"));
    command.args(["run", "--name", local.name(), "--name", on_link.name(), "--", PYTHON, "-c"]);
    command.arg(format!(
        "import socket\nmade = socket.create_server(('{}', 7406))\nprint('ready', flush=True)\n\
         made.accept()[0].sendall(b'hello')\n",
        on_link.addr()
    ));
    let mut server = Program::spawn("server", &mut command);
    server.wait_for_line("ready", SOON);
    on_link.wait_for_listener(7406);
    assert!(local.sockets().is_empty(), "{:?}", local.sockets());
    let mut client = On::Kernel(Side::Client).command(&lab, PYTHON);
    client
        .arg("-c")
        .arg(format!("import socket; print(socket.create_connection(('{}', 7406)).recv(5))", on_link.addr()));
    let said = Program::spawn("client", &mut client).wait(SOON).expect_success("client");
    assert_eq!(said.trim(), "b'hello'");
    server.wait(SOON).expect_success("server");
}

#[test]
fn mistakes_in_a_policy_are_named() {
    let lab = Lab::new();
    let config =
        script(&lab, "toe.toml", "[profiles.a]\nstack = \"fast\"\n[profiles.b]\nengines = [\"nobody\"]\n");
    for (profile, wanted) in [
        ("a", "toe.toml:2: \"fast\" is no stack; give offload, engine-only, kernel or refuse"),
        ("b", "no engine named 'nobody' runs"),
        ("c", "no [profiles.c]; it has a, b"),
    ] {
        let mut command = lab.command(Side::Server, bins::path("toe"));
        command.args(["run", "--config", &config, "--profile", profile, "--", "true"]);
        let finished = child::run("toe run", &mut command, SOON);
        assert_eq!(finished.status.code(), Some(125), "{finished:?}");
        assert!(finished.output.contains(wanted), "{wanted} in {finished:?}");
    }
    let mut command = lab.command(Side::Server, bins::path("toe"));
    command.args(["start", "--name", &format!("{}-x", lab.name()), "--config", &config]);
    let finished = child::run("toe start", &mut command, SOON);
    assert!(finished.output.contains("is no stack"), "{finished:?}");
}
