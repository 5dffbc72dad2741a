//! UDP by an engine's links: programs that print what they are told say the same as on the kernel's, towards a peer of the kernel's.

use crate::files::{built, native};
use crate::layer::compiled;
use std::time::Duration;
use toe_tests::child::Program;
use toe_tests::engine::Engine;
use toe_tests::lab::{
    ENGINE_ADDR, ENGINE_ADDR6, KERNEL_ADDR, KERNEL_PEER_ADDR, Lab, PEER_ADDR, PEER_ADDR6, Side,
    TAP_ENGINE_ADDR, TAP_ENGINE_ADDR6, TAP_KERNEL_ADDR6,
};
use toe_tests::must;
use toe_tests::tools::On;
use toe_tests::wait::{SOON, until_true};

const LONG: Duration = Duration::from_secs(120);
/// Debian's Python.
const PYTHON: &str = "/usr/bin/python3";
/// The kernel's addresses on its own link, where the test wants IPv6.
const KERNEL_ADDR6: &str = "fd78::2";
const KERNEL_PEER_ADDR6: &str = "fd78::1";
/// The kernel's address behind a TAP interface.
const TAP_KERNEL_ADDR: &str = "10.79.0.1";

/// A peer on a kernel; ends with the lab.
fn peer(lab: &Lab, side: Side, addr: &str) -> Program {
    let script = lab.dir().join("datagrams.py");
    std::fs::write(&script, include_str!("datagrams.py")).expect("datagrams.py");
    let mut command = lab.command(side, PYTHON);
    let mut peer = Program::spawn("the peer", command.arg(&script).args(["--peer", addr, "7777"]));
    peer.wait_for_line("ready", SOON);
    peer
}

/// What the program says of these scenes, of which each has its name before it.
fn said(lab: &Lab, on: On<'_>, [own, peer]: [&str; 2], scenes: &[&str]) -> String {
    let mut command = on.command(lab, PYTHON);
    command.arg(lab.dir().join("datagrams.py")).args([own, peer]).args(scenes);
    Program::spawn("datagrams.py", &mut command).wait(LONG).expect_success("datagrams.py")
}

const ADDRS: [&str; 2] = [ENGINE_ADDR, PEER_ADDR];
const ADDRS6: [&str; 2] = [ENGINE_ADDR6, PEER_ADDR6];
const OF_KERNEL: [&str; 2] = [KERNEL_ADDR, KERNEL_PEER_ADDR];
const OF_KERNEL6: [&str; 2] = [KERNEL_ADDR6, KERNEL_PEER_ADDR6];

fn says_the_same(scenes: &[&str]) {
    says_the_same_in(&Lab::new(), scenes);
}

fn says_the_same_in(lab: &Lab, scenes: &[&str]) {
    must(lab.give_addr6(Side::Server, "kern0", KERNEL_ADDR6));
    must(lab.give_addr6(Side::Client, "kern0", KERNEL_PEER_ADDR6));
    let engine = Engine::of_both_families(lab);
    for (by_engine, by_kernel) in [(ADDRS, OF_KERNEL), (ADDRS6, OF_KERNEL6)] {
        let _peers = [by_engine, by_kernel].map(|[_, addr]| peer(lab, Side::Client, addr));
        let on_kernel = said(lab, On::Kernel(Side::Server), by_kernel, scenes);
        let on_engine = said(lab, On::Engine(&engine), by_engine, scenes);
        assert_eq!(on_kernel, on_engine, "{by_engine:?}");
    }
    let counters = engine.status().counters;
    let count = |name| counters.get(name).copied().unwrap_or(0);
    let came = count("rx_datagrams") + count("datagram_icmp_errors");
    assert!(count("tx_datagrams") >= 2 && came >= 2, "{counters:?}");
}

#[test]
fn datagrams_come_and_go_whichever_call_sends_them() {
    says_the_same(&["echo", "unbound", "many", "mmsg"]);
}

#[test]
fn a_connected_socket_has_both_its_names_and_hears_nobody_else() {
    says_the_same(&["connected", "server"]);
}

#[test]
fn a_socket_is_bound_to_an_address_that_the_engine_has() {
    says_the_same(&["bound"]);
}

#[test]
fn a_socket_that_is_shut_sends_and_hears_no_more() {
    says_the_same(&["shut"]);
}

#[test]
fn datagrams_larger_than_the_link_go_in_pieces() {
    says_the_same(&["large"]);
}

#[test]
fn what_fits_no_packet_is_cut_or_refused_as_the_socket_says() {
    says_the_same(&["mtu"]);
}

#[test]
fn a_router_whose_link_takes_less_is_believed() {
    says_the_same(&["narrow"]);
}

/// The kernel joins for its socket, on the engine's link, too, where the engine leaves such frames alone: nothing is lost or doubled.
#[test]
fn groups_and_broadcast_are_the_kernels_on_every_link() {
    let lab = Lab::new();
    // What the kernel speaks from on the engine's link, where it has no other address; at once, not when it has found out that nobody else has it.
    must(lab.give_addr6(Side::Server, "toe0", "fe80::77:2"));
    says_the_same_in(&lab, &["groups"]);
}

#[test]
fn why_says_that_groups_are_the_kernels() {
    let lab = Lab::new();
    let engine = Engine::of_both_families(&lab);
    // One that the engine has, too, and one that speaks to a group alone.
    let script = "import socket, struct, sys, time\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         s.bind(('', 0))\n\
         name = socket.inet_aton('239.7.7.7') + bytes(4) + struct.pack('i', socket.if_nametoindex('toe0'))\n\
         s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, name)\n\
         t = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         t.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, bytes(4) + name[4:])\n\
         t.sendto(b'x', ('239.7.7.7', 9))\n\
         print('there', s.fileno(), t.fileno(), flush=True)\n\
         time.sleep(600)\n";
    let mut command = On::Engine(&engine).command(&lab, PYTHON);
    let mut program = Program::spawn("a member", command.args(["-c", script]));
    let line = program.wait_for_line("there", SOON);
    let fds = line.split_whitespace().skip(1).map(|fd| fd.parse().expect("a descriptor"));
    for (fd, stack) in fds.zip(["engine", "kernel"]) {
        let said = engine.why(&lab, program.pid(), fd).expect_success("toe why");
        assert!(said.contains("multicast and broadcast are the kernel's") && said.contains(stack), "{said}");
    }
}

#[test]
fn who_waits_is_woken_however_he_waits() {
    says_the_same(&["waits"]);
}

/// The engine stands still, so that the lane to it is full and stays so.
#[test]
fn a_full_lane_is_a_full_send_buffer() {
    let lab = Lab::new();
    let engine = Engine::of_both_families(&lab);
    let _peer = peer(&lab, Side::Client, PEER_ADDR);
    let program = compiled(&lab, "lane_full", include_str!("lane_full.c"), &["-pthread"]);
    let mut command = On::Engine(&engine).command(&lab, &program.display().to_string());
    command.args([engine.pid().to_string().as_str(), PEER_ADDR, "7777"]);
    let said = Program::spawn("lane_full", &mut command).wait(LONG).expect_success("lane_full");
    let (said, went) = said.rsplit_once("went ").expect("how many went");
    let expected = "told again 0\n\
        not waiting: EAGAIN\n\
        told 1 1, again: EAGAIN\n\
        told 1 1, again: EAGAIN\n\
        told 1 1, again: EAGAIN\n\
        the same buffer 1\n\
        several: EAGAIN\n\
        with a limit: EAGAIN\n\
        a signal: EINTR\n\
        cancelled 1\n\
        restarted: sent 1\n";
    assert_eq!(said, expected);
    // What a call has taken is not lost, also when its program has ended.
    let went: u64 = went.trim().parse().expect("a number");
    let sent = || engine.status().counters.get("tx_datagrams").copied();
    until_true("all datagrams to go", SOON, || sent() == Some(went));
}

#[test]
fn a_program_of_the_native_interface_has_datagrams() {
    let lab = Lab::new();
    let engine = Engine::of_both_families(&lab);
    let _peer = peer(&lab, Side::Client, PEER_ADDR);
    let bin = built(&lab, "native_datagrams");
    let mut command = native(&lab, &engine, &bin);
    command.args([ENGINE_ADDR, PEER_ADDR, "7777"]);
    let said = Program::spawn("native_datagrams", &mut command).wait(LONG);
    assert_eq!(said.expect_success("native_datagrams").trim(), "all");
    let counters = engine.status().counters;
    let count = |name| counters.get(name).copied().unwrap_or(0);
    assert!(count("tx_datagrams") >= 400 && count("rx_datagrams") >= 400, "{counters:?}");
}

/// What the native interface says of wrong arguments, beside what the kernel's calls do.
#[test]
fn the_native_interface_complains_as_the_kernel_does() {
    let lab = Lab::new();
    let engine = Engine::local(&lab);
    let bin = built(&lab, "native_arguments");
    let said = |by| {
        let mut command = native(&lab, &engine, &bin);
        Program::spawn("native_arguments", command.arg(by)).wait(LONG).expect_success("native_arguments")
    };
    let (kernel, toe) = (said("kernel"), said("toe"));
    let differs = |(kernel, toe): &(&str, &str)| kernel != toe;
    let others: Vec<_> = kernel.lines().zip(toe.lines()).filter(differs).collect();
    assert!(others.is_empty() && kernel.lines().count() == toe.lines().count(), "{others:#?}");
}

#[test]
fn a_datagram_tells_of_itself() {
    says_the_same(&["details"]);
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_kernels_errors() {
    says_the_same(&["wrong"]);
}

/// Among it what engines do not know, SO_MARK and the request of time stamps: it goes all the same, as it has a way.
#[test]
fn what_is_said_beside_a_datagram_is_judged_as_by_the_kernel() {
    says_the_same(&["control"]);
}

#[test]
fn an_unknown_port_of_the_peers_is_told() {
    says_the_same(&["refused"]);
}

#[test]
fn a_child_goes_on_with_the_socket() {
    says_the_same(&["forked"]);
}

#[test]
fn a_tap_carries_datagrams_of_both_families() {
    let lab = Lab::new();
    let engine = Engine::of_both_families_on_tap(&lab);
    for [own, addr] in [[TAP_ENGINE_ADDR, TAP_KERNEL_ADDR], [TAP_ENGINE_ADDR6, TAP_KERNEL_ADDR6]] {
        let _peer = peer(&lab, Side::Server, addr);
        let scenes = ["echo", "connected", "large", "refused"];
        let told = said(&lab, On::Engine(&engine), [own, addr], &scenes);
        assert_eq!(told.matches("--").count(), scenes.len(), "{told}");
        assert!(told.contains("61440 True") && told.contains("ECONNREFUSED"), "{told}");
    }
    let counters = engine.status().counters;
    assert_eq!(counters.get("drop_bad_udp_checksum"), None, "{counters:?}");
}

#[test]
fn a_port_that_nobody_has_is_answered_for() {
    let lab = Lab::new();
    let engine = Engine::of_both_families(&lab);
    for addr in [ENGINE_ADDR, ENGINE_ADDR6] {
        let script = "import socket, sys\n\
             s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)\n\
             s.settimeout(20)\n\
             s.connect((sys.argv[1], 9))\n\
             s.send(b'x')\n\
             try: s.recv(1)\n\
             except ConnectionRefusedError: print('refused')\n";
        let mut command = lab.command(Side::Client, PYTHON);
        let told = Program::spawn("a client", command.args(["-c", script, addr])).wait(LONG);
        assert_eq!(told.expect_success("a client").trim(), "refused");
    }
    assert_eq!(engine.status().counters["port_unreachables_sent"], 2);
}
