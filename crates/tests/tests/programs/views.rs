//! What `toe ss`, `toe why` and `toe status` say, and what idle connections cost.

use std::fs;
use std::time::{Duration, Instant};
use toe_tests::engine::Engine;
use toe_tests::lab::{KERNEL_PEER_ADDR, Lab, Side};
use toe_tests::nginx::{Nginx, Options, PORT};
use toe_tests::tools::On;
use toe_tests::wait::{self, SOON};
use toe_tests::{bins, child};

const PYTHON: &str = "/usr/bin/python3";

#[test]
fn ss_names_program_and_process() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let holder = On::Kernel(Side::Client).peer(&lab, "hold", &["5", engine.addr(), &PORT.to_string()]);
    wait::until_true("five established connections", SOON, || {
        engine.held_flows().iter().filter(|flow| flow.state == "ESTAB").count() == 5
    });
    let workers = nginx.workers();
    for flow in engine.held_flows() {
        let user = &flow.users[0];
        assert!(user.program == "nginx" && workers.contains(&user.pid), "{flow:?}");
        assert_eq!(flow.local, format!("{}:{PORT}", engine.addr()), "{flow:?}");
        assert!(flow.remote.starts_with("10.77.0.1:") && flow.device == "packet:toe0", "{flow:?}");
        // The descriptor that it names is one of that process.
        assert!(fs::read_link(format!("/proc/{}/fd/{}", user.pid, user.fd)).is_ok(), "{flow:?}");
    }
    let listener = engine.wait_for_listener(PORT);
    assert!(listener.users.iter().any(|user| user.program == "nginx"), "{listener:?}");
    println!("{listener:?}");
    drop(holder);
    let took = engine.wait_until_idle(SOON);
    println!("gone from the list {took:?} after the client");
}

#[test]
fn why_says_which_stack_and_the_reason() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let mut client = On::Engine(&engine).peer(&lab, "hold", &["1", "127.0.0.1", &PORT.to_string()]);
    let fd = fd_in(&client.wait_for_line("holding", SOON));
    let said = engine.why(&lab, client.pid(), fd).expect_success("toe why");
    println!("a connection over local: {}", said.trim());
    assert!(said.contains("engine"), "{said}");

    let mut kernel_listener = On::Kernel(Side::Client).peer(&lab, "echo-server", &["7001"]);
    kernel_listener.wait_for_line("listening", SOON);
    let mut away = On::Engine(&engine).peer(&lab, "hold", &["1", KERNEL_PEER_ADDR, "7001"]);
    let fd = fd_in(&away.wait_for_line("holding", SOON));
    let said = engine.why(&lab, away.pid(), fd).expect_success("toe why");
    println!("a connection that the engine has no route for: {}", said.trim());
    assert!(said.contains("kernel"), "{said}");

    let mut six = On::Engine(&engine).peer(&lab, "listen6", &["8006"]);
    let fd = fd_in(&six.wait_for_line("listening", SOON));
    let said = engine.why(&lab, six.pid(), fd).expect_success("toe why");
    println!("an IPv6 listener: {}", said.trim());
    assert!(said.contains("kernel"), "{said}");

    let said = child::run(
        "toe why",
        lab.command(Side::Server, bins::path("toe")).arg("why").arg(client.pid().to_string()),
        SOON,
    )
    .expect_success("toe why");
    println!("all sockets of that program: {}", said.trim());
    assert!(
        said.lines().any(|line| line.contains(" engine ") && line.contains("connect() was taken")),
        "{said}"
    );

    let listener = engine.wait_for_listener(PORT);
    let user =
        listener.users.iter().find(|user| nginx.workers().contains(&user.pid) || user.pid == nginx.master());
    let user = user.unwrap_or_else(|| panic!("nginx holds its listener: {listener:?}"));
    let said = engine.why(&lab, user.pid, user.fd).expect_success("toe why");
    println!("nginx's listener: {}", said.trim());
    assert!(said.contains("engine"), "{said}");
}

/// A child makes no report of its own before it decides something: with each fork that was a fifth of what the fork cost.
#[test]
fn why_knows_of_a_child_what_it_has_from_its_parent_and_what_it_decides() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let mut command = On::Engine(&engine).command(&lab, PYTHON);
    command.arg("-c").arg(include_str!("why_child.py")).arg(lab.program("toe"));
    let said = child::run("why_child.py", &mut command, SOON).expect_success("why_child.py");
    assert_eq!(said.trim(), "told");
}

/// 100 idle connections must cost next to nothing. The promise (under 1 % over 10 s) is measured by `make acceptance`;
/// this short look catches a loop that spins.
#[test]
fn idle_connections_cost_nothing() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let mut client = On::Engine(&engine).peer(&lab, "hold", &["100", "127.0.0.1", &PORT.to_string()]);
    client.wait_for_line("holding 100", SOON);
    wait::until_true("200 flow ends", SOON, || engine.held_flows().len() == 200);
    let mut pids = vec![engine.pid(), client.pid(), nginx.master()];
    pids.extend(nginx.workers());
    // Ticks are 10 ms: a process that spins shows 200 of them in the window, an idle one none or one.
    let window = Duration::from_secs(2);
    let (start, before) = (Instant::now(), cpu_ticks(&pids));
    wait::until_true("the window has passed", SOON, || start.elapsed() >= window);
    let used = cpu_ticks(&pids) - before;
    let share = used as f64 * 10.0 / start.elapsed().as_millis() as f64 * 100.0;
    println!("100 idle connections: {used} ticks in {:?}, {share:.1} % of a core", start.elapsed());
    assert!(share < 10.0, "something spins");
}

/// User and system time of the processes, in ticks of 10 ms.
fn cpu_ticks(pids: &[u32]) -> u64 {
    let ticks = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<u64> = stat.rsplit_once(") ").map_or(Vec::new(), |(_, rest)| {
            rest.split(' ').map(|field| field.parse().unwrap_or_default()).collect()
        });
        // Fields 14 and 15 of proc(5), counted from the state, which is field 3.
        fields.get(11).copied().unwrap_or_default() + fields.get(12).copied().unwrap_or_default()
    };
    pids.iter().map(ticks).sum()
}

fn fd_in(line: &str) -> u32 {
    line.split(' ')
        .next_back()
        .and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("a descriptor: {line:?}"))
}

#[test]
fn explain_says_at_the_end_what_went_where() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let script = "import socket\n\
        l = socket.create_server(('127.0.0.1', 7302))\n\
        for _ in range(3): socket.create_connection(('127.0.0.1', 7302)).close(); l.accept()[0].close()\n\
        socket.create_server(('10.78.0.2', 0))\n";
    let mut command = lab.command(Side::Server, bins::path("toe"));
    command.args(["run", "--name", engine.name(), "--explain", "--", "/usr/bin/python3", "-c", script]);
    let said = child::run("toe run", &mut command, SOON).expect_success("toe run");
    println!("{said}");
    for line in
        ["7 on the engine", "3 connect() was taken", "3 the connection came in", "1 on the kernel's stack"]
    {
        assert!(said.contains(line), "{line:?} in {said}");
    }
    assert!(said.contains("address"), "{said}");
}

/// Whoever changes its user by exec, as what starts a server does, is counted, too: it has the memory for that by inheritance.
#[test]
fn explain_counts_who_has_changed_its_user() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let script = "import socket\n\
        l = socket.create_server(('127.0.0.1', 7303))\n\
        socket.create_connection(('127.0.0.1', 7303)).close(); l.accept()[0].close()\n";
    let mut command = lab.command(Side::Server, bins::path("toe"));
    command.args([
        "run",
        "--name",
        engine.name(),
        "--explain",
        "--",
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
    ]);
    command.args(["--clear-groups", "/usr/bin/python3", "-c", script]);
    let said = child::run("toe run", &mut command, SOON).expect_success("toe run");
    assert!(said.contains("3 on the engine"), "{said}");
}

/// A connection that a child of fork uses goes by the engine without a channel: that is told, and counted once however often it changes hands.
#[test]
fn explain_tells_of_connections_that_a_child_uses() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let script = "import os, socket\n\
        l = socket.create_server(('127.0.0.1', 7304))\n\
        c = socket.create_connection(('127.0.0.1', 7304)); a = l.accept()[0]\n\
        pid = os.fork()\n\
        if pid == 0:\n    \
            for _ in range(5): a.recv(1); a.send(b'x')\n    \
            os._exit(0)\n\
        a.close()\n\
        for _ in range(5): c.send(b'y'); c.recv(1)\n\
        os.waitpid(pid, 0)\n";
    let mut command = lab.command(Side::Server, bins::path("toe"));
    command.args(["run", "--name", engine.name(), "--explain", "--", "/usr/bin/python3", "-c", script]);
    let said = child::run("toe run", &mut command, SOON).expect_success("toe run");
    assert!(said.contains("1 the socket was inherited or passed"), "{said}");
    assert!(said.contains("not by a channel") && said.contains("to change that: let the process"), "{said}");
}
