//! IPv6 as stories: the same connections by the other family, neighbour discovery, listeners of both families.

use super::world::{A, B, Faults, World, addr, addr6, pattern};
use crate::counter::Counter;
use core::net::SocketAddr;
use toe_abi::command::WireAddr;
use toe_abi::errno::Errno;
use toe_base::PortId;
use toe_wire::icmpv6::{self, Icmpv6Repr};
use toe_wire::ipv6::{Body, HEADER_LEN, Ipv6Repr};
use toe_wire::link::{LinkCaps, MacAddr, RxOffload};
use toe_wire::{EthRepr, EtherType, Protocol, eth};

const PORT: PortId = PortId(0);
const MAC_OF_A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const MAC_OF_B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// The frames of a side that are IPv6, as header and what is behind it.
fn packets(world: &World, side: usize) -> Vec<(MacAddr, Ipv6Repr, Vec<u8>)> {
    let of_side = world.log.iter().filter(|(_, from, _)| *from == side);
    let parsed = of_side.filter_map(|(_, _, frame)| {
        let (link, rest) = EthRepr::parse(frame).ok()?;
        let (ip, Body::Whole(bytes)) = Ipv6Repr::parse(rest).ok()? else { return None };
        (link.ethertype == EtherType::Ipv6).then(|| (link.dst, ip, bytes.to_vec()))
    });
    parsed.collect()
}

fn neighbour_messages(world: &World, side: usize) -> Vec<(MacAddr, Ipv6Repr, Icmpv6Repr)> {
    let icmp = packets(world, side).into_iter().filter(|(_, ip, _)| ip.protocol == Protocol::Icmpv6);
    icmp.map(|(mac, ip, bytes)| {
        let (message, _) = Icmpv6Repr::parse(&bytes, ip.src, ip.dst).expect("a sound message");
        (mac, ip, message)
    })
    .collect()
}

/// An ICMPv6 message from A's address to `to`, as a frame to `mac`.
fn icmp_frame(
    mac: MacAddr,
    src: core::net::Ipv6Addr,
    to: core::net::Ipv6Addr,
    hop_limit: u8,
    message: Icmpv6Repr,
    data: &[u8],
) -> Vec<u8> {
    let len = message.header_len() + data.len();
    let mut frame = vec![0; eth::HEADER_LEN + HEADER_LEN + len];
    EthRepr { dst: mac, src: MAC_OF_A, ethertype: EtherType::Ipv6 }.emit(&mut frame);
    let ip = Ipv6Repr {
        src,
        dst: to,
        protocol: Protocol::Icmpv6,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
    };
    ip.emit(&mut frame[eth::HEADER_LEN..]);
    let at = eth::HEADER_LEN + HEADER_LEN;
    frame[at + message.header_len()..].copy_from_slice(data);
    message.emit(&mut frame[at..], src, to);
    frame
}

fn v6(at: SocketAddr) -> core::net::Ipv6Addr {
    match at {
        SocketAddr::V6(v6) => *v6.ip(),
        SocketAddr::V4(_) => panic!("IPv6 only"),
    }
}

/// B gets a frame, and sends what it has to say.
fn b_gets(world: &mut World, frame: &[u8]) {
    let (now, side) = (world.now, &mut world.sides[B]);
    side.engine.handle_frame(now, PORT, frame, RxOffload::default(), &mut side.memory);
    world.run_ms(1);
}

#[test]
fn a_connection_finds_its_neighbour_opens_and_carries_bytes_both_ways() {
    for caps in [LinkCaps::default(), LinkCaps { tx_checksum: true, gso_max: 65_000, ..LinkCaps::default() }]
    {
        let mut world = World::with_caps(caps);
        let conns = world.connected_to(addr6(B, 80));
        assert!(world.transfer(A, conns, &pattern(300_000, 1), 10_000));
        assert!(world.transfer(B, conns, &pattern(300_000, 2), 10_000));
        let asked = &neighbour_messages(&world, A)[0];
        let group = icmpv6::solicited_node(v6(addr6(B, 0)));
        assert_eq!((asked.0, asked.1.dst, asked.1.hop_limit), (icmpv6::multicast_mac(group), group, 255));
        let (to, ip, answer) = neighbour_messages(&world, B)[0];
        assert_eq!((to, ip.dst, ip.hop_limit), (MAC_OF_A, v6(addr6(A, 0)), 255));
        assert!(matches!(answer, Icmpv6Repr::NeighbourAdvertisement(it)
            if it.is_solicited && it.overrides && it.target_mac == Some(MAC_OF_B)));
        let views = world.sides[A].engine.view().sockets(world.now);
        let view = views.iter().find(|view| !view.listener).expect("connected");
        assert_eq!((view.local.ip(), view.remote), (addr6(A, 0).ip(), addr6(B, 80)));
    }
}

#[test]
fn a_segment_fills_the_mtu_with_the_larger_header() {
    let mut world = World::with_caps(LinkCaps::default());
    let conns = world.connected_to(addr6(B, 80));
    assert!(world.transfer(A, conns, &pattern(100_000, 1), 10_000));
    let longest = world.log.iter().map(|(_, _, frame)| frame.len()).max();
    assert_eq!(longest, Some(eth::HEADER_LEN + 1500));
    assert_eq!(world.sides[A].memory.infos.last().map(|info| info.mss), Some(1500 - 40 - 20 - 12));
}

/// The Diffserv field and the hop limit are the program's (RFC 9293 section 3.9.2), the ECN bits are not.
#[test]
fn a_program_sets_the_traffic_class_and_the_hop_limit() {
    use toe_abi::entry::{Command, FlowOption};
    for at in [addr(B, 80), addr6(B, 80)] {
        let mut world = World::with_caps(LinkCaps::default());
        let (a, _) = world.connected_to(at);
        let (now, flow) = (world.now, world.sides[A].conns[a].id);
        for (option, value) in [
            (FlowOption::TrafficClass, 0xbb),
            (FlowOption::HopLimit, 9),
            (FlowOption::HopLimit, 0),
            (FlowOption::HopLimit, 256),
        ] {
            world.sides[A].plain(now, Command::SetOption { flow, option, value });
        }
        world.log.clear();
        world.sides[A].send(now, a, b"hello");
        world.run_ms(1);
        let (_, _, frame) = world.log.iter().find(|(_, from, _)| *from == A).expect("sent");
        let ip = &frame[eth::HEADER_LEN..];
        let (class, limit) = if at.is_ipv4() { (ip[1], ip[8]) } else { (ip[0] << 4 | ip[1] >> 4, ip[7]) };
        assert_eq!((class, limit), (0xb8, 9), "{at}");
    }
}

#[test]
fn what_is_lost_doubled_and_late_arrives_all_the_same() {
    for seed in 0..5 {
        let mut world = World::new();
        world.faults = Faults { drop: 30, reorder: 50, duplicate: 20 };
        world.reseed(seed);
        let conns = world.connected_to(addr6(B, 80));
        assert!(world.transfer(A, conns, &pattern(200_000, 3), 200_000), "seed {seed}");
    }
}

#[test]
fn link_local_addresses_speak_within_their_link() {
    let mut world = World::new();
    let at =
        |zone| format!("[{}%{zone}]:80", icmpv6::link_local_of(MAC_OF_B, 0)).parse().expect("an address");
    let now = world.now;
    world.sides[B].listen(now, at(1)).expect("its own");
    assert_eq!(world.sides[A].connect(now, at(0)), Err(Errno::ENETUNREACH), "of which link?");
    assert_eq!(world.sides[A].connect(now, at(2)), Err(Errno::ENETUNREACH), "there is no such link");
    let conns = world.connected_to(at(1));
    assert!(world.transfer(B, conns, &pattern(10_000, 1), 1000));
    let remotes: Vec<_> =
        world.sides[A].engine.view().sockets(world.now).iter().map(|view| view.remote).collect();
    assert_eq!(remotes, [at(1)], "with its zone");
}

#[test]
fn two_programs_meet_at_the_loopback_address() {
    let mut world = World::new();
    let now = world.now;
    let at: SocketAddr = "[::1]:80".parse().expect("an address");
    assert_eq!(world.sides[A].connect(now, at), Err(Errno::ECONNREFUSED));
    world.sides[A].listen(now, at).expect("listens");
    let client = world.sides[A].connect(now, at).expect("starts");
    assert!(world.run_until(100, |w| w.sides[A].conns.len() == 2 && w.sides[A].conns[client].established));
    world.sides[A].send(world.now, client, b"hello");
    assert!(world.run_until(100, |w| w.sides[A].conns[1].received == b"hello"));
    assert!(world.log.is_empty(), "no frame");
}

#[test]
fn a_listener_at_the_unspecified_address_takes_both_families_unless_it_says_no() {
    let mut world = World::new();
    let now = world.now;
    let any = |port: u16| SocketAddr::from(([0u16; 8], port));
    world.sides[B].listen(now, any(80)).expect("both");
    world.sides[B].listen_v6_only(now, any(81)).expect("one");
    for (at, is_taken) in
        [(addr(B, 80), true), (addr6(B, 80), true), (addr6(B, 81), true), (addr(B, 81), false)]
    {
        let now = world.now;
        let conn = world.sides[A].connect(now, at).expect("starts");
        world.run_until(1000, |w| {
            w.sides[A].conns[conn].established || w.sides[A].conns[conn].errno.is_some()
        });
        let outcome = (world.sides[A].conns[conn].established, world.sides[A].conns[conn].errno);
        let wanted = if is_taken { (true, None) } else { (false, Some(Errno::ECONNREFUSED)) };
        assert_eq!(outcome, wanted, "{at}");
    }
    world.sides[B].listen(world.now, SocketAddr::from(([0; 4], 81))).expect("beside the one for IPv6 alone");
    let conn = world.sides[A].connect(world.now, addr(B, 81)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[conn].established));
}

#[test]
fn a_mapped_address_is_the_ipv4_address() {
    let mut world = World::new();
    let mapped: SocketAddr = "[::ffff:10.0.0.2]:80".parse().expect("an address");
    let conns = world.connected_to(mapped);
    assert!(world.transfer(A, conns, &pattern(1000, 1), 1000));
    assert!(packets(&world, A).is_empty(), "all of it went by IPv4");
    let from = WireAddr::from(addr6(A, 0));
    let mixed = world.sides[A].connect_from(world.now, from, addr(B, 80));
    assert_eq!(mixed, Err(Errno::ENETUNREACH), "from one family to the other there is no way");
}

#[test]
fn an_echo_request_is_answered_and_one_to_a_group_is_not() {
    let mut world = World::new();
    let (from, to) = (v6(addr6(A, 0)), v6(addr6(B, 0)));
    let echo = Icmpv6Repr::EchoRequest { ident: 7, sequence: 9 };
    b_gets(&mut world, &icmp_frame(MAC_OF_B, from, to, 64, echo, b"are you there?"));
    let (mac, ip, bytes) = packets(&world, B).remove(0);
    let (reply, data) = Icmpv6Repr::parse(&bytes, ip.src, ip.dst).expect("sound");
    assert_eq!((reply, data), (Icmpv6Repr::EchoReply { ident: 7, sequence: 9 }, &b"are you there?"[..]));
    assert_eq!((mac, ip.src, ip.dst), (MAC_OF_A, to, from));
    let all = icmpv6::ALL_NODES;
    b_gets(&mut world, &icmp_frame(icmpv6::multicast_mac(all), from, all, 64, echo, b"all of you?"));
    assert_eq!(packets(&world, B).len(), 1);
}

#[test]
fn who_wants_an_address_of_ours_is_told_that_it_is_taken() {
    let mut world = World::new();
    let target = v6(addr6(B, 0));
    let group = icmpv6::solicited_node(target);
    let nobody = core::net::Ipv6Addr::UNSPECIFIED;
    let ask = Icmpv6Repr::NeighbourSolicitation { target, source_mac: None };
    b_gets(&mut world, &icmp_frame(icmpv6::multicast_mac(group), nobody, group, 255, ask, &[]));
    let (mac, ip, answer) = neighbour_messages(&world, B)[0];
    assert_eq!((mac, ip.dst), (icmpv6::multicast_mac(icmpv6::ALL_NODES), icmpv6::ALL_NODES));
    assert!(
        matches!(answer, Icmpv6Repr::NeighbourAdvertisement(it) if !it.is_solicited && it.target == target)
    );
}

#[test]
fn what_does_not_come_from_this_link_or_is_not_for_us_is_not_answered() {
    let mut world = World::new();
    let (from, target) = (v6(addr6(A, 0)), v6(addr6(B, 0)));
    let ask = Icmpv6Repr::NeighbourSolicitation { target, source_mac: Some(MAC_OF_A) };
    let group = icmpv6::solicited_node(target);
    b_gets(&mut world, &icmp_frame(MAC_OF_B, from, target, 254, ask, &[]));
    assert_eq!(world.sides[B].engine.view().counter(Counter::DropBadIcmp), 1, "it was forwarded");
    // The group and the frame's address must agree, and the group be one of ours.
    b_gets(&mut world, &icmp_frame(icmpv6::multicast_mac(icmpv6::ALL_NODES), from, group, 255, ask, &[]));
    let other = icmpv6::solicited_node("fd00::99".parse().expect("an address"));
    b_gets(&mut world, &icmp_frame(icmpv6::multicast_mac(other), from, other, 255, ask, &[]));
    b_gets(&mut world, &icmp_frame(icmpv6::multicast_mac(group), from, target, 255, ask, &[]));
    assert_eq!(world.sides[B].engine.view().counter(Counter::DropNotForUs), 3);
    let mapped = "::ffff:10.0.0.1".parse().expect("an address");
    b_gets(&mut world, &icmp_frame(MAC_OF_B, mapped, target, 255, ask, &[]));
    b_gets(
        &mut world,
        &icmp_frame(MAC_OF_B, "fe80:0:1::1".parse().expect("an address"), target, 255, ask, &[]),
    );
    assert_eq!(world.sides[B].engine.view().counter(Counter::DropBadAddress), 2);
    assert!(packets(&world, B).is_empty());
}

#[test]
fn a_neighbour_that_moves_says_so_and_one_that_was_never_asked_for_is_not_kept() {
    let mut world = World::new();
    let conns = world.connected_to(addr6(B, 80));
    let tell = |target, mac, overrides| {
        let (is_router, is_solicited, target_mac) = (false, false, Some(mac));
        let it = icmpv6::Advertisement { target, target_mac, is_router, is_solicited, overrides };
        icmp_frame(MAC_OF_B, target, v6(addr6(B, 0)), 255, Icmpv6Repr::NeighbourAdvertisement(it), &[])
    };
    let other = MacAddr([2, 0, 0, 0, 0, 9]);
    b_gets(&mut world, &tell(v6(addr6(A, 0)), other, false));
    world.log.clear();
    world.sides[B].send(world.now, conns.1, b"where are you?");
    world.run_ms(10);
    assert_eq!(packets(&world, B)[0].0, MAC_OF_A, "it did not say that it goes before what is known");
    b_gets(&mut world, &tell(v6(addr6(A, 0)), other, true));
    world.log.clear();
    world.sides[B].send(world.now, conns.1, b"and now?");
    world.run_ms(10);
    assert_eq!(packets(&world, B)[0].0, other);
    let stranger = "fd00::77".parse().expect("an address");
    b_gets(&mut world, &tell(stranger, other, true));
    let known = &world.sides[B].engine.ip.ports[PORT.index()].neighbours;
    assert_eq!(known.mac_of(core::net::IpAddr::V6(stranger).into()), None);
}

#[test]
fn a_connect_to_an_address_that_nobody_has_fails() {
    let mut world = World::new();
    let nobody = SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 99], 80));
    let conn = world.sides[A].connect(world.now, nobody).expect("starts");
    assert!(world.run_until(10_000, |w| w.sides[A].conns[conn].errno == Some(Errno::EHOSTUNREACH)));
    assert_eq!(neighbour_messages(&world, A).len(), 3, "asked three times");
}
