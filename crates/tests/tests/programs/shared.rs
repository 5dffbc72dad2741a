//! An engine at the kernel's own address (`xdp:`): programs of both stacks on one interface, and what changes there while
//! they run. The peer is always a program on the kernel of the other namespace.

use std::time::Duration;
use toe_tests::child::{self, Program};
use toe_tests::engine::Engine;
use toe_tests::lab::{ENGINE_ADDR, ENGINE_LINK, Lab, PEER_ADDR, Side};
use toe_tests::must;
use toe_tests::nginx::{Nginx, Options, PORT};
use toe_tests::tools::{On, WrkReport, rate};
use toe_tests::wait::{self, SOON};

const CLIENT: On<'static> = On::Kernel(Side::Client);
/// The kernel beside the engine.
const BESIDE: On<'static> = On::Kernel(Side::Server);
const LARGE: u64 = 16 << 20;

fn listening(mut program: Program) -> Program {
    program.wait_for_line("listening", SOON);
    program
}

/// `program` says its word and that all came back.
#[track_caller]
fn says(program: &mut Program, word: &str, limit: Duration) {
    program.tell(word);
    program.wait_for_line(&format!("{word} ok"), limit);
}

fn echo_client(on: On<'_>, lab: &Lab, host: &str, port: &str) {
    let output =
        on.peer(lab, "echo-client", &[host, port, "200000"]).wait(SOON).expect_success("echo-client");
    assert!(output.contains("same 200000"), "{output}");
}

/// Connections of the engine to or from a port.
fn flows(engine: &Engine, port: u16) -> usize {
    let suffix = format!(":{port}");
    let ours = |addr: &String| addr.ends_with(&suffix);
    engine.sockets().iter().filter(|s| s.state != "LISTEN" && (ours(&s.local) || ours(&s.remote))).count()
}

fn ping(lab: &Lab) {
    let mut ping = lab.command(Side::Client, "ping");
    child::run("ping", ping.args(["-c", "1", "-W", "5", ENGINE_ADDR]), SOON).expect_success("ping");
}

#[test]
fn servers_of_both_stacks_are_reached_at_one_address() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let _of_kernel = listening(BESIDE.peer(&lab, "echo-many", &["7001"]));
    let _of_engine = listening(On::Engine(&engine).peer(&lab, "echo-many", &["7002"]));
    engine.wait_for_listener(7002);
    let mut to_kernel = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7001"]);
    let mut to_engine = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7002"]);
    for round in ["one", "two", "three"] {
        says(&mut to_kernel, round, SOON);
        says(&mut to_engine, round, SOON);
        ping(&lab);
    }
    assert_eq!((flows(&engine, 7001), flows(&engine, 7002)), (0, 1), "{:?}", engine.sockets());
    echo_client(CLIENT, &lab, ENGINE_ADDR, "7001");
    echo_client(CLIENT, &lab, ENGINE_ADDR, "7002");
    let status = engine.status();
    assert_eq!(status.ports[0].addrs, [format!("{ENGINE_ADDR}/24")]);
    assert!(status.counters.contains_key("port0_steer_entries"), "{:?}", status.counters);
    // Two programs, each at one address of its own and the same port, one of each stack.
    const OTHER: &str = "10.78.0.2";
    let _at_one = listening(On::Engine(&engine).peer(&lab, "echo-many", &["7003", ENGINE_ADDR]));
    let _at_other = listening(BESIDE.peer(&lab, "echo-many", &["7003", OTHER]));
    engine.wait_for_listener(7003);
    let mut to_one = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7003"]);
    says(&mut to_one, "there", SOON);
    echo_client(CLIENT, &lab, OTHER, "7003");
    assert_eq!(flows(&engine, 7003), 1, "{:?}", engine.sockets());
    // A program of this host that is the kernel's reaches the engine's listener by its twin.
    echo_client(BESIDE, &lab, ENGINE_ADDR, "7002");
}

#[test]
fn nginx_serves_many_and_large_files_at_a_shared_address() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let (_, sum) = lab.file("large", LARGE);
    let _nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let url = |file: &str| format!("http://{ENGINE_ADDR}:{PORT}/{file}");
    let output = CLIENT.wrk(&lab, &url("small"), 64, 2).wait(SOON).expect_success("wrk");
    let report = WrkReport::parse(&output);
    assert!(report.requests > 0 && report.errors == 0, "{output}");
    let (fetched, took) = CLIENT.fetched_sha256(&lab, &url("large"), Duration::from_secs(60));
    assert_eq!(fetched, sum);
    println!("{report:?}; {LARGE} bytes down: {}", rate(LARGE, took));
    let (path, sum) = lab.file("up", LARGE);
    let _server = listening(On::Engine(&engine).peer(&lab, "put-server", &["8081"]));
    engine.wait_for_listener(8081);
    let start = std::time::Instant::now();
    let up = format!("http://{ENGINE_ADDR}:8081/up");
    let answer = CLIENT.curl(&lab, &["-f", "-T", &path.to_string_lossy(), &up], Duration::from_secs(60));
    assert_eq!(answer.expect_success("curl -T").trim(), sum);
    println!("{LARGE} bytes up: {}", rate(LARGE, start.elapsed()));
    assert_eq!(engine.status().counters.get("drop_bad_tcp_checksum"), None);
}

#[test]
fn a_bad_shared_link_carries_a_large_file() {
    let lab = Lab::new();
    let engine = Engine::on_bad_shared_link(&lab, "?drop=1%&reorder=1%&seed=7");
    let (_, sum) = lab.file("large", LARGE / 4);
    let _nginx = Nginx::on_engine(&lab, &engine, Options::default());
    let url = format!("http://{ENGINE_ADDR}:{PORT}/large");
    let (fetched, took) = CLIENT.fetched_sha256(&lab, &url, Duration::from_secs(60));
    assert_eq!(fetched, sum);
    let counters = engine.status().counters;
    assert!(counters.get("port0_fault_dropped").is_some_and(|n| *n > 0), "{counters:?}");
    println!("{} bytes down: {}", LARGE / 4, rate(LARGE / 4, took));
}

#[test]
fn what_keeps_an_engine_from_sharing_is_said_with_the_remedy() {
    let lab = Lab::new();
    let _first = Engine::on_shared_link(&lab);
    let refusal = |program: &str, before: &[&str], port: &str| {
        let mut command = lab.command(Side::Server, program);
        command.args(before).args(["start", "--name", &format!("{}-refused", lab.name()), "--port", port]);
        command.env("XDG_RUNTIME_DIR", lab.dir());
        let finished = child::run("toe start", &mut command, SOON);
        assert!(!finished.status.success(), "{}", finished.output);
        finished.output
    };
    let toe = lab.program("toe").display().to_string();
    let text = refusal(&toe, &[], &format!("xdp:{ENGINE_LINK}"));
    assert!(text.contains("another XDP program") && text.contains("xdp off"), "{text}");
    let text = refusal(&toe, &[], "xdp:nowhere");
    assert!(text.contains("no interface `nowhere`") && text.contains("ip link"), "{text}");
    must(lab.share_dir());
    let as_nobody =
        ["--reuid", "65534", "--clear-groups", "--inh-caps", "-all", "--bounding-set", "-all", &toe];
    let text = refusal("setpriv", &as_nobody, "xdp:kern0");
    assert!(text.contains("not permitted") && text.contains("CAP_BPF"), "{text}");
}

#[test]
fn a_connection_that_the_kernel_had_goes_on_beside_a_listener_of_the_engine() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let mut old_server = listening(BESIDE.peer(&lab, "echo-alone", &["7000"]));
    let mut old = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7000"]);
    old_server.wait_for_line("alone", SOON);
    says(&mut old, "before", SOON);

    let new_server = listening(On::Engine(&engine).peer(&lab, "echo-many", &["7000"]));
    engine.wait_for_listener(7000);
    let mut new = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7000"]);
    says(&mut new, "new", SOON);
    says(&mut old, "beside", SOON);
    assert_eq!(flows(&engine, 7000), 1, "{:?}", engine.sockets());

    // And the port is the kernel's again when the engine's program has ended.
    drop(new_server);
    wait::until_true("the listener is gone", SOON, || engine.sockets().iter().all(|s| s.state != "LISTEN"));
    says(&mut old, "after", SOON);
    let _kernels = listening(BESIDE.peer(&lab, "echo-many", &["7000"]));
    echo_client(CLIENT, &lab, ENGINE_ADDR, "7000");
    says(&mut old, "still", SOON);
}

#[test]
fn programs_of_both_stacks_connect_out_from_one_address() {
    const COUNT: &str = "150";
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let _server = listening(CLIENT.peer(&lab, "echo-many", &["9000"]));
    let hold = |on: On<'_>| on.peer(&lab, "hold", &[COUNT, PEER_ADDR, "9000"]);
    let (mut of_engine, mut of_kernel) = (hold(On::Engine(&engine)), hold(BESIDE));
    of_engine.wait_for_line("holding 150", SOON);
    of_kernel.wait_for_line("holding 150", SOON);
    assert_eq!(flows(&engine, 9000), 150, "more than the port numbers that an engine begins with");
    for _ in 0..3 {
        echo_client(On::Engine(&engine), &lab, PEER_ADDR, "9000");
        echo_client(BESIDE, &lab, PEER_ADDR, "9000");
    }
    // One that the program has bound.
    let mut bound = On::Engine(&engine).peer(&lab, "talk", &[PEER_ADDR, "9000", "7777"]);
    bound.wait_for_line("connected 7777", SOON);
    says(&mut bound, "bound", SOON);
    assert_eq!(flows(&engine, 7777), 1, "{:?}", engine.sockets());
}

#[test]
fn addresses_and_routes_that_come_and_go_are_followed() {
    const LATER: &str = "10.77.0.3";
    const FAR: &str = "10.90.0.1";
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let _server = listening(On::Engine(&engine).peer(&lab, "echo-many", &["7000"]));
    engine.wait_for_listener(7000);
    must(lab.ip(Side::Server, &["addr", "add", &format!("{LATER}/24"), "dev", ENGINE_LINK]));
    wait::until_true("the address is there", SOON, || engine.status().ports[0].addrs.len() == 2);
    let mut talk = CLIENT.peer(&lab, "talk", &[LATER, "7000"]);
    says(&mut talk, "later", SOON);
    assert!(engine.held_flows().iter().any(|flow| flow.local.starts_with(LATER)), "{:?}", engine.sockets());
    must(lab.ip(Side::Server, &["addr", "del", &format!("{LATER}/24"), "dev", ENGINE_LINK]));
    wait::until_true("the address is gone", SOON, || engine.status().ports[0].addrs.len() == 1);
    echo_client(CLIENT, &lab, ENGINE_ADDR, "7000");

    must(lab.ip(Side::Client, &["addr", "add", &format!("{FAR}/32"), "dev", "lo"]));
    let _far = listening(CLIENT.peer(&lab, "echo-many", &["9000"]));
    let on = On::Engine(&engine);
    let output = on.peer(&lab, "talk", &[FAR, "9000"]).wait(SOON).output;
    assert!(output.contains("unreachable"), "no stack has a route: {output}");
    must(lab.ip(Side::Server, &["route", "add", FAR, "via", PEER_ADDR]));
    let connected = || {
        let mut talk = on.peer(&lab, "talk", &[FAR, "9000"]);
        says(&mut talk, "far", SOON);
        (flows(&engine, 9000) > 0).then_some(talk)
    };
    let (mut talk, _) = wait::until("the route is used", SOON, connected);
    // Another way to the same place, by an address that the peer gets.
    must(lab.ip(Side::Client, &["addr", "add", "10.77.0.9/24", "dev", ENGINE_LINK]));
    must(lab.ip(Side::Server, &["route", "replace", FAR, "via", "10.77.0.9"]));
    says(&mut talk, "elsewhere", SOON);
}

#[test]
fn errors_of_routers_reach_the_connection_that_they_are_about() {
    const NOWHERE: &str = "10.91.0.1";
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let mut sysctl = lab.command(Side::Client, "sysctl");
    child::run("sysctl", sysctl.args(["-qw", "net.ipv4.ip_forward=1"]), SOON).expect_success("sysctl");
    must(lab.ip(Side::Client, &["route", "add", "unreachable", NOWHERE]));
    must(lab.ip(Side::Server, &["route", "add", NOWHERE, "via", PEER_ADDR]));
    for on in [BESIDE, On::Engine(&engine)] {
        let output = on.peer(&lab, "talk", &[NOWHERE, "9000"]).wait(SOON).output;
        assert!(output.contains("No route to host"), "{output}");
    }
    let counters = engine.status().counters;
    assert_eq!(counters["icmp_errors"], 1, "{counters:?}");
}

#[test]
fn connections_outlive_their_address_when_it_comes_back() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let _server = listening(On::Engine(&engine).peer(&lab, "echo-many", &["7000"]));
    engine.wait_for_listener(7000);
    let mut talk = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7000"]);
    says(&mut talk, "before", SOON);
    let addr = format!("{ENGINE_ADDR}/24");
    for round in 0..5 {
        let word = format!("round-{round}");
        must(lab.ip(Side::Server, &["addr", "del", &addr, "dev", ENGINE_LINK]));
        talk.tell(&word);
        must(lab.ip(Side::Server, &["addr", "add", &addr, "dev", ENGINE_LINK]));
        talk.wait_for_line(&format!("{word} ok"), Duration::from_secs(60));
    }
    assert_eq!(flows(&engine, 7000), 1, "{:?}", engine.sockets());
}

#[test]
fn a_link_that_goes_down_and_up_and_a_neighbour_with_another_mac() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let _server = listening(On::Engine(&engine).peer(&lab, "echo-many", &["7000"]));
    engine.wait_for_listener(7000);
    let mut talk = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7000"]);
    says(&mut talk, "before", SOON);
    must(lab.ip(Side::Server, &["link", "set", ENGINE_LINK, "down"]));
    talk.tell("meanwhile");
    must(lab.ip(Side::Server, &["link", "set", ENGINE_LINK, "up"]));
    talk.wait_for_line("meanwhile ok", Duration::from_secs(60));
    must(lab.ip(Side::Client, &["link", "set", ENGINE_LINK, "address", "02:00:00:00:00:99"]));
    says(&mut talk, "moved", Duration::from_secs(60));
    assert_eq!(flows(&engine, 7000), 1);
}

/// The engine's connections go on over changes of the MTU; at no time is a segment the kernel's, who would reset them.
#[test]
fn connections_last_while_the_mtu_changes() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let _server = listening(On::Engine(&engine).peer(&lab, "echo-many", &["7000"]));
    engine.wait_for_listener(7000);
    let mut talk = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7000"]);
    says(&mut talk, "before", SOON);
    for mtu in [1400, 1500, 1300, 1500] {
        let text = mtu.to_string();
        must(lab.ip(Side::Server, &["link", "set", ENGINE_LINK, "mtu", &text]));
        for word in ["one", "two", "three"] {
            says(&mut talk, &format!("{word}-{mtu}"), SOON);
        }
        wait::until_true("the engine has the MTU", SOON, || engine.status().ports[0].mtu == mtu);
        echo_client(CLIENT, &lab, ENGINE_ADDR, "7000");
        says(&mut talk, &format!("after-{mtu}"), SOON);
        assert!(is_steered(&lab));
    }
    assert!(!engine.log().contains("port open again"), "{}", engine.log());
    assert_eq!(flows(&engine, 7000), 1, "{:?}", engine.sockets());
}

/// An interface is removed and made anew while a connection over it lasts.
fn replaced(lab: &Lab, engine: &Engine, give_addr: impl FnOnce()) {
    let _server = listening(On::Engine(engine).peer(lab, "echo-many", &["7000"]));
    engine.wait_for_listener(7000);
    let mut talk = CLIENT.peer(lab, "talk", &[ENGINE_ADDR, "7000"]);
    says(&mut talk, "before", SOON);
    must(lab.remove_engine_link());
    wait::until_true("the engine knows", SOON, || engine.log().contains("the interface is gone"));
    must(lab.make_engine_link());
    give_addr();
    wait::until_true("the engine has it again", SOON, || engine.log().contains("port open again"));
    says(&mut talk, "after", Duration::from_secs(60));
    echo_client(CLIENT, lab, ENGINE_ADDR, "7000");
}

#[test]
fn a_shared_interface_that_is_replaced_is_taken_up_again() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    replaced(&lab, &engine, || must(lab.share_engine_addr()));
    ping(&lab);
}

#[test]
fn an_interface_with_an_address_of_the_engines_own_that_is_replaced_is_taken_up_again() {
    let lab = Lab::new();
    let engine = Engine::on_link(&lab, Side::Server, "");
    replaced(&lab, &engine, || {});
}

/// Each connection that a program closes first leaves its port number in use for a while; the engine gets more of them.
#[test]
fn many_short_connections_out() {
    let lab = Lab::new();
    let engine = Engine::on_shared_link(&lab);
    let _server = listening(CLIENT.peer(&lab, "echo-many", &["9000"]));
    let mut churn = On::Engine(&engine).peer(&lab, "churn", &[PEER_ADDR, "9000", "2000"]);
    churn.wait_for_line("good 2000", Duration::from_secs(60));
    let counters = engine.status().counters;
    assert_eq!(counters.get("active_opens"), Some(&2000), "none was left to the kernel: {counters:?}");
    // One that the kernel makes meanwhile has another port.
    echo_client(BESIDE, &lab, PEER_ADDR, "9000");
}

/// Whether a steering program is attached to the engine's link.
fn is_steered(lab: &Lab) -> bool {
    let mut ip = lab.command(Side::Server, "ip");
    child::run("ip", ip.args(["link", "show", ENGINE_LINK]), SOON).expect_success("ip").contains("xdp")
}

#[test]
fn a_killed_engine_leaves_the_interface_to_the_kernel() {
    let lab = Lab::new();
    let mut engine = Engine::on_shared_link(&lab);
    let server = listening(On::Engine(&engine).peer(&lab, "echo-many", &["7000"]));
    engine.wait_for_listener(7000);
    let mut talk = CLIENT.peer(&lab, "talk", &[ENGINE_ADDR, "7000"]);
    says(&mut talk, "before", SOON);
    assert!(is_steered(&lab));
    engine.kill_hard();
    wait::until_true("nothing is attached", SOON, || !is_steered(&lab));
    talk.tell("after");
    talk.wait_for_line("after ECONNRESET", SOON);
    drop(server);
    let _kernels = listening(BESIDE.peer(&lab, "echo-many", &["7000"]));
    echo_client(CLIENT, &lab, ENGINE_ADDR, "7000");
    engine.start_again(&lab);
    assert!(is_steered(&lab));
    echo_client(CLIENT, &lab, ENGINE_ADDR, "7000");
}
