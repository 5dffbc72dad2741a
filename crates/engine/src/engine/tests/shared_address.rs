//! Side B's address is its kernel's too: the test is that kernel, who tells of routes and neighbours, keeps port numbers
//! and hears which frames are to come to the engine.

use super::super::Engine;
use super::world::{A, B, Side, World, addr, pattern};
use crate::ControlEvent;
use crate::control::names::Twin;
use crate::control::network::SteerChange;
use crate::control::route::{KernelRoute, KernelVia};
use crate::flow::key::FlowKey;
use crate::work::Link;
use crate::{DriverRequest, NetworkChange, NetworkRequest};
use core::net::{Ipv4Addr, SocketAddr};
use toe_abi::command::NO_HANDLE;
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::{Addr, Cred, ListenerId, NetNs, PortId};
use toe_wire::link::{LinkCaps, MacAddr, RxOffload};

const PORT: PortId = PortId(0);
const MAC_OF_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const ADDR_OF_A: Addr = Addr::v4(Ipv4Addr::new(10, 0, 0, 1));
const ADDR_OF_B: Addr = Addr::v4(Ipv4Addr::new(10, 0, 0, 2));

fn on_link() -> KernelRoute {
    let via = KernelVia::Port { port: PORT, gateway: None, source: None };
    KernelRoute { dst: ADDR_OF_B, prefix_len: 24, metric: 0, is_local: false, via }
}

/// Side B shares its address; its kernel knows no neighbour and keeps no port yet.
fn world() -> World {
    let mut world = World::with_caps(LinkCaps::default());
    let engine = &mut world.sides[B].engine;
    engine.handle_network(NetworkChange::NoAddress { port: PORT, addr: ADDR_OF_B });
    engine.ip.share_port(PORT);
    engine.handle_network(NetworkChange::Address { port: PORT, addr: ADDR_OF_B, prefix_len: 24 });
    engine.handle_network(NetworkChange::Routes(&[on_link()]));
    // A asks nobody: B does not answer ARP.
    know(&mut world.sides[A].engine, ADDR_OF_B, MacAddr([2, 0, 0, 0, 0, 2]));
    world
}

/// B listens with a kernel socket that is bound there.
fn listen(world: &mut World, at: SocketAddr) -> ListenerId {
    let (now, side) = (world.now, &mut world.sides[B]);
    let identity = u64::from(at.port());
    let twin = side.show(Twin::listening(at.into(), identity, Cred::default(), now));
    side.listen_with(now, at, twin).expect("listens")
}

/// A connects to B, which listens.
fn connected(world: &mut World) -> (usize, usize) {
    if world.sides[B].listeners.is_empty() {
        listen(world, addr(B, 80));
    }
    world.connected()
}

/// The neighbour has a number.
fn numbered(engine: &mut Engine, port: PortId, addr: Addr) {
    engine.ip.neighbour((&engine.flows, &engine.udp), port, addr).expect("nobody holds the others");
}

/// The neighbour is in use, and known.
fn know(engine: &mut Engine, addr: Addr, mac: MacAddr) {
    numbered(engine, PORT, addr);
    engine.handle_network(NetworkChange::Neighbour { port: PORT, addr, mac, is_doubtful: false });
}

fn know_a(world: &mut World) {
    know(&mut world.sides[B].engine, ADDR_OF_A, MAC_OF_A);
}

fn keep_ports(world: &mut World, ports: core::ops::Range<u16>) {
    ports.for_each(|port| world.sides[B].engine.handle_network(NetworkChange::PortReserved(port)));
}

/// All that B's driver is to do, of one kind.
fn requests<T>(world: &mut World, of_kind: impl Fn(NetworkRequest) -> Option<T>) -> Vec<T> {
    let of_kind = |request| match request {
        DriverRequest::Network(request) => of_kind(request),
        DriverRequest::Channel(_) | DriverRequest::Show(_) => None,
    };
    core::iter::from_fn(|| world.sides[B].engine.poll_request()).filter_map(of_kind).collect()
}

fn changes(world: &mut World) -> Vec<SteerChange> {
    let steer = |request| if let NetworkRequest::Steer(change) = request { Some(change) } else { None };
    requests(world, steer)
}

fn sought(world: &mut World) -> Vec<Addr> {
    requests(world, |request| match request {
        NetworkRequest::FindNeighbour { port: PORT, addr } => Some(addr),
        _ => None,
    })
}

fn ports_wanted(world: &mut World) -> usize {
    let wanted =
        |request| if let NetworkRequest::ReservePorts(wanted) = request { Some(wanted) } else { None };
    requests(world, wanted).into_iter().sum()
}

/// Kinds of the Ethernet frames that B has sent.
fn ethertypes_of_b(world: &World) -> Vec<[u8; 2]> {
    world.log.iter().filter(|(_, from, _)| *from == B).map(|(_, _, f)| [f[12], f[13]]).collect()
}

#[test]
fn the_kernel_is_asked_for_a_neighbour_and_its_answer_lets_the_handshake_go_on() {
    let mut world = world();
    let now = world.now;
    listen(&mut world, addr(B, 80));
    let a = world.sides[A].connect(now, addr(B, 80)).expect("connects");
    world.run_until(500, |_| false);
    assert_eq!(sought(&mut world), [ADDR_OF_A], "asked once");
    assert!(ethertypes_of_b(&world).is_empty(), "no ARP of its own, and nowhere to send to");
    know_a(&mut world);
    assert!(world.run_until(10, |w| w.sides[A].conns[a].established), "at once, without a retransmission");
    assert!(ethertypes_of_b(&world).iter().all(|kind| *kind == [8, 0]));
}

/// Who sends to no connection, and was never heard of, is answered as soon as the kernel has said where that is: it may not send again.
#[test]
fn a_reset_waits_for_the_neighbour_that_it_goes_to() {
    for is_there in [true, false] {
        let mut world = world();
        let now = world.now;
        // What comes to a port that the kernel keeps for the engine is the engine's to answer.
        world.sides[B].engine.handle_network(NetworkChange::PortReserved(40_000));
        let a = world.sides[A].connect(now, addr(B, 40_000)).expect("connects");
        world.run_until(5, |_| false);
        assert_eq!(sought(&mut world), [ADDR_OF_A]);
        assert!(ethertypes_of_b(&world).is_empty(), "nowhere to send to");
        if is_there {
            know_a(&mut world);
            assert!(world.run_until(5, |w| w.sides[A].conns[a].errno == Some(Errno::ECONNREFUSED)));
        } else {
            world.sides[B].engine.handle_network(NetworkChange::NoNeighbour {
                port: PORT,
                addr: ADDR_OF_A,
                failed: true,
            });
            know_a(&mut world);
            world.run_until(5, |_| false);
            assert!(ethertypes_of_b(&world).is_empty(), "it was not there");
        }
    }
}

#[test]
fn a_connect_fails_when_the_kernel_says_that_nobody_answers() {
    let mut world = world();
    keep_ports(&mut world, 40_000..40_032);
    let now = world.now;
    let b = world.sides[B].connect(now, addr(A, 80)).expect("there is a route");
    world.run_until(10, |_| false);
    assert_eq!(sought(&mut world), [ADDR_OF_A]);
    world.sides[B].engine.handle_network(NetworkChange::NoNeighbour {
        port: PORT,
        addr: ADDR_OF_A,
        failed: true,
    });
    assert!(world.run_until(10, |w| w.sides[B].conns[b].errno == Some(Errno::EHOSTUNREACH)));
}

#[test]
fn what_is_on_its_way_to_a_neighbour_that_is_gone_has_a_soft_error() {
    let mut world = world();
    know_a(&mut world);
    let (_, b) = connected(&mut world);
    let noted = |w: &World| w.sides[B].memory.infos.last().map(|info| Errno(info.soft_error.into()));
    world.sides[B].engine.handle_network(NetworkChange::NoNeighbour {
        port: PORT,
        addr: ADDR_OF_A,
        failed: true,
    });
    world.run_ms(0);
    assert_eq!(noted(&world), Some(Errno::OK), "nothing is on its way");
    know_a(&mut world);
    world.unplugged = true;
    world.sides[B].send(world.now, b, &pattern(10, 1));
    world.run_ms(10);
    world.sides[B].engine.handle_network(NetworkChange::NoNeighbour {
        port: PORT,
        addr: ADDR_OF_A,
        failed: true,
    });
    world.run_ms(0);
    assert_eq!((noted(&world), world.sides[B].conns[b].errno), (Some(Errno::EHOSTUNREACH), None));
}

#[test]
fn a_doubtful_neighbour_is_used_and_asked_about_and_another_mac_is_followed() {
    let mut world = world();
    know_a(&mut world);
    let conns = connected(&mut world);
    world.sides[B].engine.handle_network(NetworkChange::Neighbour {
        port: PORT,
        addr: ADDR_OF_A,
        mac: MAC_OF_A,
        is_doubtful: true,
    });
    assert!(world.transfer(B, conns, &pattern(10_000, 1), 1000));
    assert_eq!(sought(&mut world), [ADDR_OF_A]);
    let moved = MacAddr([2, 0, 0, 0, 0, 77]);
    world.sides[B].engine.handle_network(NetworkChange::Neighbour {
        port: PORT,
        addr: ADDR_OF_A,
        mac: moved,
        is_doubtful: false,
    });
    let now = world.now;
    world.sides[B].send(now, conns.1, b"where are you?");
    world.run_until(1, |_| false);
    let last = world.log.iter().rev().find(|(_, from, _)| *from == B).expect("sent");
    assert_eq!(last.2[..6], moved.0);
}

#[test]
fn a_listener_is_steered_and_its_connections_when_it_is_closed() {
    let mut world = world();
    know_a(&mut world);
    let any = SocketAddr::from(([0, 0, 0, 0], 80));
    let now = world.now;
    let listener = listen(&mut world, any);
    assert_eq!(changes(&mut world), [SteerChange::Listen { local: any.into(), on: true }]);
    let conns = connected(&mut world);
    assert_eq!(changes(&mut world), [], "the listener covers it");

    world.sides[B].plain(now, Command::CloseListener { listener, last: true });
    let of_flow = changes(&mut world);
    let [SteerChange::Flow { key, on: true }, SteerChange::Listen { on: false, .. }] = of_flow[..] else {
        panic!("first the connection, then no more the listener: {of_flow:?}")
    };
    assert_eq!((key.local.addr, key.local.port, key.remote.addr), (ADDR_OF_B, 80, ADDR_OF_A));
    assert!(world.transfer(A, conns, &pattern(5000, 1), 1000));
    world.close(A, conns.0);
    world.close(B, conns.1);
    world.run_ms(200_000);
    assert_eq!(changes(&mut world), [SteerChange::Flow { key, on: false }]);
}

/// The last ACK may be lost: what asks for it again must come here, and not to the kernel, which would answer with a reset.
#[test]
fn a_connection_in_time_wait_is_steered_when_its_listener_is_closed() {
    let mut world = world();
    know_a(&mut world);
    let now = world.now;
    let listener = listen(&mut world, SocketAddr::from(([0, 0, 0, 0], 80)));
    let conns = connected(&mut world);
    world.close(B, conns.1);
    world.close(A, conns.0);
    world.run_ms(100);
    assert_eq!(world.sides[B].engine.flows.time_waits.len(), 1);
    changes(&mut world);
    world.sides[B].plain(now, Command::CloseListener { listener, last: true });
    let of_flow = changes(&mut world);
    let [SteerChange::Flow { key, on: true }, SteerChange::Listen { on: false, .. }] = of_flow[..] else {
        panic!("first the connection, then no more the listener: {of_flow:?}")
    };
    world.run_ms(61_000);
    assert_eq!(changes(&mut world), [SteerChange::Flow { key, on: false }]);
}

#[test]
fn a_listener_whose_kernel_socket_is_gone_gets_no_more_and_keeps_what_it_has() {
    let mut world = world();
    know_a(&mut world);
    let conns = connected(&mut world);
    changes(&mut world);
    let Side { engine, memory, .. } = &mut world.sides[B];
    assert_eq!(engine.view().steered_twins().map(|twin| twin.identity).collect::<Vec<_>>(), [80]);
    let now = world.now;
    engine.handle_control(now, ControlEvent::SocketGone(81, now), memory);
    assert_eq!(engine.poll_request(), None, "of another one");
    engine.handle_control(now, ControlEvent::SocketGone(80, now), memory);
    assert_eq!(engine.view().steered_twins().count(), 0);
    let ended = changes(&mut world);
    assert!(
        matches!(ended[..], [SteerChange::Flow { on: true, .. }, SteerChange::Listen { on: false, .. }]),
        "first the connection, then no more the listener: {ended:?}"
    );
    assert!(world.transfer(A, conns, &pattern(5000, 1), 1000));
    let now = world.now;
    world.sides[B].listen(now, addr(B, 80)).expect("the port is free");
}

#[test]
fn a_listener_that_cannot_be_steered_is_the_kernels() {
    let mut world = world();
    know_a(&mut world);
    listen(&mut world, addr(B, 80));
    changes(&mut world);
    world.sides[B].engine.handle_network(NetworkChange::SteeringRefused { local: addr(B, 80).into() });
    assert_eq!(changes(&mut world), [SteerChange::Listen { local: addr(B, 80).into(), on: false }]);
    world.sides[B].engine.handle_network(NetworkChange::SteeringRefused { local: addr(B, 80).into() });
    assert_eq!(changes(&mut world), [], "once");
}

#[test]
fn a_bound_port_is_steered_for_its_connection_alone() {
    let mut world = world();
    know_a(&mut world);
    let now = world.now;
    world.sides[A].listen(now, addr(A, 80)).expect("listens");
    let b = world.sides[B].connect_from(now, addr(B, 7000).into(), addr(A, 80)).expect("connects");
    let key = FlowKey::new(addr(B, 7000).into(), addr(A, 80).into());
    assert_eq!(changes(&mut world), [SteerChange::Flow { key, on: true }], "before its SYN is sent");
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].established));
}

#[test]
fn connections_without_a_port_have_those_that_the_kernel_keeps() {
    let mut world = world();
    know_a(&mut world);
    let wanted = ports_wanted(&mut world);
    assert!(wanted > 0, "some are wanted from the beginning");
    let now = world.now;
    assert_eq!(world.sides[B].connect(now, addr(A, 80)), Err(Errno::EADDRNOTAVAIL), "none is there");
    keep_ports(&mut world, 50_000..50_004);
    world.sides[A].listen(now, addr(A, 80)).expect("listens");
    world.sides[A].listen(now, addr(A, 81)).expect("listens");
    let mut ports = [80, 81].map(|remote| {
        let mut connect = || {
            let b = world.sides[B].connect(now, addr(A, remote)).expect("a port is free");
            assert!(world.run_until(1000, |w| w.sides[B].conns[b].established));
        };
        (0..4).for_each(|_| connect());
        let sockets = world.sides[B].engine.view().sockets(world.now).into_iter();
        sockets.filter(|s| s.remote.port() == remote).map(|s| s.local.port()).collect::<Vec<_>>()
    });
    ports.iter_mut().for_each(|ports| ports.sort_unstable());
    assert_eq!(ports, [[50_000, 50_001, 50_002, 50_003], [50_000, 50_001, 50_002, 50_003]]);
    assert_eq!(changes(&mut world), [], "they are steered as a whole");
    assert_eq!(world.sides[B].connect(now, addr(A, 80)), Err(Errno::EADDRNOTAVAIL));
    assert!(ports_wanted(&mut world) > 0, "more are wanted");
    keep_ports(&mut world, 50_004..50_005);
    world.sides[B].connect(now, addr(A, 80)).expect("one more");
}

#[test]
fn routes_and_addresses_come_and_go_while_connections_run() {
    let mut world = world();
    know_a(&mut world);
    keep_ports(&mut world, 40_000..40_032);
    let conns = connected(&mut world);
    let now = world.now;
    let far = SocketAddr::from(([192, 0, 2, 1], 80));
    assert_eq!(world.sides[B].connect(now, far), Err(Errno::ENETUNREACH), "the kernel's stack is asked");
    let gateway = Addr::from([10, 0, 0, 254]);
    let via = KernelVia::Port { port: PORT, gateway: Some(gateway), source: None };
    let default = KernelRoute { dst: Addr::UNSPECIFIED_V4, prefix_len: 0, metric: 0, is_local: false, via };
    world.sides[B].engine.handle_network(NetworkChange::Routes(&[on_link(), default]));
    world.sides[B].connect(now, far).expect("there is a route now");
    world.run_until(1, |_| false);
    assert_eq!(sought(&mut world), [gateway]);

    // The connection to A takes the way over the gateway once there is no other.
    world.sides[B].engine.handle_network(NetworkChange::Routes(&[default]));
    world.sides[B].engine.handle_network(NetworkChange::Neighbour {
        port: PORT,
        addr: gateway,
        mac: MacAddr([2, 0, 0, 0, 0, 254]),
        is_doubtful: false,
    });
    let now = world.now;
    world.sides[B].send(now, conns.1, b"by another way");
    world.run_until(1, |_| false);
    let sent = world.log.iter().rev().find(|(_, _, frame)| frame.ends_with(b"by another way"));
    assert_eq!(sent.map(|(_, from, frame)| (*from, frame[5])), Some((B, 254)), "to the gateway's MAC");

    // An address that is gone takes nothing any more; what was there of it tries on.
    world.sides[B].engine.handle_network(NetworkChange::NoAddress { port: PORT, addr: ADDR_OF_B });
    let now = world.now;
    world.sides[A].connect(now, addr(B, 80)).expect("asks");
    let before = world.sides[B].conns.len();
    world.run_until(1000, |_| false);
    assert_eq!(world.sides[B].conns.len(), before);
    assert_eq!(world.sides[B].conns[conns.1].errno, None);
}

#[test]
fn what_waits_to_be_sent_goes_by_the_port_of_its_route() {
    let mut world = world();
    know_a(&mut world);
    let conns = connected(&mut world);
    let now = world.now;
    let side = &mut world.sides[B];
    let engine = &mut side.engine;
    let link =
        Link { mac: MacAddr([2, 0, 0, 0, 9, 2]), zone: 1, mtu: 1500, caps: LinkCaps::default(), vlan: None };
    let other = engine.add_port(link);
    engine.ip.share_port(other);
    engine.handle_network(NetworkChange::Address {
        port: other,
        addr: Addr::from([10, 9, 0, 2]),
        prefix_len: 24,
    });
    // The same number is another neighbour's in each of the tables.
    know(engine, Addr::from([10, 0, 0, 77]), MacAddr([2, 0, 0, 0, 0, 77]));
    numbered(engine, other, Addr::from([10, 9, 0, 77]));
    numbered(engine, other, ADDR_OF_A);
    engine.handle_network(NetworkChange::Neighbour {
        port: other,
        addr: ADDR_OF_A,
        mac: MAC_OF_A,
        is_doubtful: false,
    });
    side.send(now, conns.1, b"by another port");
    let via = KernelVia::Port { port: other, gateway: None, source: None };
    side.engine.handle_network(NetworkChange::Routes(&[KernelRoute { via, ..on_link() }]));
    let sent = |side: &mut super::world::Side, port| {
        side.engine.poll_transmit(now, port, &mut side.outbox, &mut side.memory, 64);
        let frames = core::mem::take(&mut side.outbox.sent).into_iter();
        frames.map(|(frame, _)| MacAddr(*frame.first_chunk().expect("a frame"))).collect::<Vec<_>>()
    };
    assert_eq!(sent(&mut world.sides[B], PORT), []);
    assert_eq!(sent(&mut world.sides[B], other), [MAC_OF_A]);
}

/// Nobody gets a port at the kernel's address that the kernel has not given him.
#[test]
fn only_who_holds_the_port_in_the_kernel_is_served_there() {
    let mut world = world();
    know_a(&mut world);
    let now = world.now;
    let side = &mut world.sides[B];
    assert_eq!(side.listen_with(now, addr(B, 80), NO_HANDLE), Err(Errno::EACCES), "without a kernel socket");
    let good = Twin::listening(addr(B, 80).into(), 1, Cred::default(), now);
    for (bad, why) in [
        (Twin { netns: NetNs(7), ..good }, "of another namespace"),
        (Twin { listens: false, ..good }, "bound, as others may be"),
    ] {
        let twin = side.show(bad);
        assert_eq!(side.listen_with(now, addr(B, 80), twin), Err(Errno::EACCES), "{why}");
    }
    assert_eq!(changes(&mut world), []);
    // A connection from that port is steered all the same, by itself.
    world.sides[A].listen(now, addr(A, 81)).expect("listens");
    world.sides[B].connect_from(now, addr(B, 80).into(), addr(A, 81)).expect("it is bound there");
    assert!(matches!(changes(&mut world)[..], [SteerChange::Flow { on: true, .. }]));
}

#[test]
fn what_is_steered_here_no_longer_is_left_to_the_kernel() {
    let mut world = world();
    know_a(&mut world);
    let now = world.now;
    let refused = |world: &mut World, port| {
        let a = world.sides[A].connect(now, addr(B, port)).expect("asks");
        world.run_until(100, |w| w.sides[A].conns[a].errno.is_some())
    };
    assert!(!refused(&mut world, 80), "the kernel answers when it comes there");
    keep_ports(&mut world, 40_000..40_001);
    assert!(refused(&mut world, 40_000), "nobody else can have this one");
}

/// What is under way to a connection that was steered by itself, and that has ended meanwhile.
#[test]
fn what_came_for_a_connection_that_has_just_ended_is_refused() {
    let mut world = world();
    know_a(&mut world);
    let now = world.now;
    let b = world.sides[B].connect_from(now, addr(B, 7000).into(), addr(A, 80)).expect("connects");
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].errno.is_some()), "A refuses it");
    assert!(matches!(changes(&mut world)[..], [_, SteerChange::Flow { on: false, .. }]));
    const FLAGS: usize = 14 + 20 + 13;
    let reset = world.log.iter().rfind(|(_, from, _)| *from == A).expect("a reset").2.clone();
    let answers = |world: &mut World, flags: u8| {
        let mut frame = reset.clone();
        frame[FLAGS] = flags;
        let (now, side) = (world.now, &mut world.sides[B]);
        let unchecked = RxOffload { checksum_ok: true, coalesced_mss: None };
        side.engine.handle_frame(now, PORT, &frame, unchecked, &mut side.memory);
        side.engine.poll_transmit(now, PORT, &mut side.outbox, &mut side.memory, 256);
        let sent = core::mem::take(&mut side.outbox.sent);
        sent.iter().map(|(frame, _)| frame[FLAGS]).collect::<Vec<_>>()
    };
    let [syn, rst, ack] = [0x02, 0x04, 0x10];
    assert_eq!(answers(&mut world, ack), [rst], "an ACK behind the reset");
    assert_eq!(answers(&mut world, syn | ack), [rst]);
    assert_eq!(answers(&mut world, syn), [], "one that begins anew is whoever has the port now");
    assert_eq!(answers(&mut world, rst | ack), []);
}

/// Whoever sends from addresses of his choice takes no place that a connection needs.
#[test]
fn senders_without_a_way_back_and_neighbours_of_the_kernel_leave_room() {
    let mut world = world();
    know_a(&mut world);
    let conns = connected(&mut world);
    let syn = world.log.iter().find(|(_, from, _)| *from == A).expect("a SYN").2.clone();
    let from = |source: Addr| {
        let mut frame = syn.clone();
        frame[26..30].copy_from_slice(&source.bytes()[12..]);
        frame[24..26].fill(0);
        let sum = toe_wire::Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    let (now, side) = (world.now, &mut world.sides[B]);
    let none_checked = RxOffload { checksum_ok: true, coalesced_mss: None };
    let flows = side.engine.view().totals().flows;
    for n in 0..10_000u32 {
        let spoofed = Addr::from((0xc000_0200_u32 + n).to_be_bytes());
        side.engine.handle_frame(now, PORT, &from(spoofed), none_checked, &mut side.memory);
        let of_kernel = Addr::from((0x0a01_0000_u32 + n).to_be_bytes());
        side.engine.handle_network(NetworkChange::Neighbour {
            port: PORT,
            addr: of_kernel,
            mac: MAC_OF_A,
            is_doubtful: false,
        });
    }
    assert_eq!(side.engine.view().totals().flows, flows, "nobody can be answered there");
    // The same from where there is a way: each is a neighbour, until there are as many as there can be.
    let all = KernelRoute { dst: Addr::UNSPECIFIED_V4, prefix_len: 0, ..on_link() };
    side.engine.handle_network(NetworkChange::Routes(&[all]));
    let good = from(Addr::from([192, 0, 2, 1]));
    side.engine.handle_frame(now, PORT, &good, none_checked, &mut side.memory);
    assert_eq!(side.engine.view().totals().flows, flows + 1);
    for n in 0..5000u32 {
        numbered(&mut side.engine, PORT, Addr::from((0xc000_0200_u32 + n).to_be_bytes()));
    }
    assert!(world.transfer(B, conns, &pattern(5000, 1), 1000), "its neighbour is not given up");
}

#[test]
fn a_smaller_mtu_makes_segments_smaller() {
    let mut world = world();
    know_a(&mut world);
    let conns = connected(&mut world);
    let link =
        Link { mac: MacAddr([2, 0, 0, 0, 0, 2]), zone: 1, mtu: 1000, caps: LinkCaps::default(), vlan: None };
    world.sides[B].engine.handle_network(NetworkChange::Link { port: PORT, link });
    let from = world.log.len();
    assert!(world.transfer(B, conns, &pattern(20_000, 1), 1000));
    let longest = world.log[from..].iter().filter(|(_, from, _)| *from == B).map(|(_, _, f)| f.len()).max();
    assert_eq!(longest, Some(1014));
}
