//! What a capture is shown: frames of a port, segments that no port carries, and why something was dropped.

use super::world::{A, B, Side, World, pattern};
use crate::work::Sighting;
use crate::{Counter, SightingEnd};
use core::net::{Ipv4Addr, SocketAddr};
use toe_abi::capture::Direction;
use toe_base::PortId;
use toe_wire::eth::EthRepr;
use toe_wire::ipv4::Ipv4Repr;
use toe_wire::link::RxOffload;
use toe_wire::tcp::{self, TcpFlags, TcpRepr};

fn watch(side: &mut Side, wants: fn(&Sighting) -> bool) {
    side.memory.wants = Some(wants);
    side.engine.set_capture(true, &mut side.memory);
}

/// The TCP segment of a frame, whose checksums must be right.
fn segment(frame: &[u8]) -> (TcpRepr, Vec<u8>) {
    let (_, packet) = EthRepr::parse(frame).expect("Ethernet");
    let (ip, transport) = Ipv4Repr::parse(packet).expect("IPv4");
    assert!(tcp::checksum_is_valid(transport, ip.src, ip.dst), "a right checksum");
    let (header, payload) = TcpRepr::parse(transport).expect("TCP");
    (header, payload.to_vec())
}

fn stream(seen: &[(Sighting, Vec<u8>)], direction: Direction) -> Vec<u8> {
    let of = seen.iter().filter(|(sighting, _)| sighting.direction == direction);
    of.flat_map(|(_, frame)| segment(frame).1).collect()
}

#[test]
fn frames_of_a_port_are_shown_with_whose_they_are() {
    let mut world = World::new();
    watch(&mut world.sides[B], |_| true);
    let conns = world.connected();
    let data = pattern(20_000, 1);
    assert!(world.transfer(A, conns, &data, 1_000) && world.transfer(B, conns, &data, 1_000));
    let seen = &world.sides[B].memory.seen;
    let of_tcp: Vec<_> = seen.iter().filter(|(s, _)| s.facts.protocol == Some(6)).cloned().collect();
    assert!(seen.len() > of_tcp.len(), "ARP is shown, too");
    assert_eq!(stream(&of_tcp, Direction::In), data);
    assert_eq!(stream(&of_tcp, Direction::Out), data);
    let owner = Some(SightingEnd { session: world.sides[B].session, fd: 9, listens: false });
    for (sighting, frame) in &of_tcp {
        assert_eq!((sighting.port, sighting.reason), (Some(PortId(0)), None));
        if !segment(frame).1.is_empty() {
            let end = if sighting.direction == Direction::In { sighting.receiver } else { sighting.sender };
            let accepted = end.is_some_and(|end| !end.listens);
            assert!(end == owner || !accepted && end.map(|end| end.session) == owner.map(|end| end.session));
        }
    }
    let (first, frame) = &of_tcp[0];
    assert_eq!(segment(frame).0.flags, TcpFlags::SYN);
    assert_eq!(first.receiver.map(|end| end.session), owner.map(|end| end.session), "the listener's holder");
}

#[test]
fn a_capture_that_wants_something_else_gets_no_copy() {
    let mut world = World::new();
    watch(&mut world.sides[B], |sighting| sighting.facts.ports.is_some_and(|(_, to)| to == 81));
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(5_000, 1), 1_000));
    assert!(world.sides[B].memory.seen.is_empty());
    let side = &mut world.sides[B];
    side.memory.wants = Some(|_| true);
    side.engine.set_capture(false, &mut side.memory);
    assert!(world.transfer(A, conns, &pattern(5_000, 2), 1_000));
    assert!(world.sides[B].memory.seen.is_empty(), "the last capture has ended");
}

#[test]
fn segments_between_two_programs_are_shown_once_each_as_frames() {
    let mut world = World::new();
    watch(&mut world.sides[A], |_| true);
    let local: SocketAddr = "127.0.0.1:80".parse().expect("address");
    let now = world.now;
    world.sides[A].listen(now, local).expect("listens");
    let a = world.sides[A].connect(now, local).expect("connects");
    assert!(world.run_until(1_000, |w| w.sides[A].conns.len() == 2 && w.sides[A].conns[a].established));
    let (request, answer) = (pattern(300, 3), pattern(100_000, 4));
    world.sides[A].send(now, a, &request);
    world.sides[A].send(now, a + 1, &answer);
    assert!(world.run_until(1_000, |w| w.sides[A].conns[a].received == answer));
    let seen = &world.sides[A].memory.seen;
    let to_server = |s: &Sighting| s.facts.ports.is_some_and(|(_, to)| to == 80);
    let (there, back): (Vec<_>, Vec<_>) = seen.iter().cloned().partition(|(s, _)| to_server(s));
    assert_eq!(stream(&there, Direction::Local), request);
    assert_eq!(stream(&back, Direction::Local), answer);
    let flags: Vec<_> = seen.iter().take(3).map(|(_, frame)| segment(frame).0.flags).collect();
    assert_eq!(flags[..2], [TcpFlags::SYN, TcpFlags::SYN | TcpFlags::ACK]);
    let last = back.last().expect("some").0;
    assert_eq!(last.sender.map(|end| end.fd), Some(9), "the accepted end");
    assert_eq!(last.receiver.map(|end| end.session), Some(world.sides[A].session));
    assert_eq!(last.facts.addrs.map(|(from, _)| from), Some(Ipv4Addr::LOCALHOST.into()));
}

#[test]
fn what_is_dropped_is_shown_with_the_counter() {
    let mut world = World::new();
    watch(&mut world.sides[B], |sighting| sighting.facts.dropped);
    let (a, _) = world.connected();
    let now = world.now;
    world.sides[A].send(now, a, b"hello");
    world.run_ms(100);
    assert!(world.sides[B].memory.seen.is_empty(), "nothing was dropped");
    let mut hello = world.log.iter().filter(|(_, from, _)| *from == A).map(|(_, _, frame)| frame.clone());
    let hello = hello.next_back().expect("A sent it");
    let reason_of = |world: &mut World, frame: &[u8], offload| {
        let side = &mut world.sides[B];
        side.engine.handle_frame(world.now, PortId(0), frame, offload, &mut side.memory);
        side.memory.seen.drain(..).map(|(sighting, bytes)| (sighting.reason, bytes)).next_back()
    };
    // Its checksum was left to the link.
    let broken = reason_of(&mut world, &hello, RxOffload::default());
    assert_eq!(broken, Some((Some(Counter::DropBadChecksum), hello.clone())), "as it came, checksum and all");
    let mut elsewhere = hello.clone();
    elsewhere[37] = 99;
    let checked = RxOffload { checksum_ok: true, ..RxOffload::default() };
    let nobody = reason_of(&mut world, &elsewhere, checked).map(|(reason, _)| reason);
    assert_eq!(nobody, Some(Some(Counter::DropNoFlow)));
    let cut = reason_of(&mut world, &hello[..10], checked).map(|(reason, _)| reason);
    assert_eq!(cut, Some(Some(Counter::DropTruncated)));
}
