//! What a capture is shown: frames of a port, segments that no port carries, and why something was dropped.

use super::world::{A, B, Side, World, pattern};
use crate::work::Sighting;
use crate::{CaptureRule, Captured, ControlEvent, Counter, DriverRequest, SightingEnd};
use core::net::{Ipv4Addr, SocketAddr};
use toe_abi::capture::filter::Ends;
use toe_abi::capture::{Direction, Filter};
use toe_base::PortId;
use toe_wire::eth::EthRepr;
use toe_wire::ipv4::Ipv4Repr;
use toe_wire::link::RxOffload;
use toe_wire::tcp::{self, TcpFlags, TcpRepr};

fn watch(side: &mut Side, filter: Filter) {
    side.engine.records().set_captures([CaptureRule { filter, only: None, interface: None }].into());
}

/// What has been captured since the last look.
fn seen(side: &mut Side) -> Vec<(Sighting, Vec<u8>)> {
    let shown = |request| match request {
        DriverRequest::Show(Captured { packet, bytes }) => Some((packet, bytes)),
        _ => None,
    };
    core::iter::from_fn(|| side.engine.poll_request()).filter_map(shown).collect()
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
    watch(&mut world.sides[B], Filter::All);
    let conns = world.connected();
    let data = pattern(20_000, 1);
    assert!(world.transfer(A, conns, &data, 1_000) && world.transfer(B, conns, &data, 1_000));
    let seen = seen(&mut world.sides[B]);
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
    watch(&mut world.sides[B], Filter::Ports { ends: Ends::Destination, first: 81, last: 81 });
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(5_000, 1), 1_000));
    assert!(seen(&mut world.sides[B]).is_empty());
    let side = &mut world.sides[B];
    side.engine.records().set_captures([].into());
    assert!(world.transfer(A, conns, &pattern(5_000, 2), 1_000));
    assert!(seen(&mut world.sides[B]).is_empty(), "the last capture has ended");
}

#[test]
fn segments_between_two_programs_are_shown_once_each_as_frames() {
    let mut world = World::new();
    watch(&mut world.sides[A], Filter::All);
    let local: SocketAddr = "127.0.0.1:80".parse().expect("address");
    let now = world.now;
    world.sides[A].listen(now, local).expect("listens");
    let a = world.sides[A].connect(now, local).expect("connects");
    assert!(world.run_until(1_000, |w| w.sides[A].conns.len() == 2 && w.sides[A].conns[a].established));
    let (request, answer) = (pattern(300, 3), pattern(100_000, 4));
    world.sides[A].send(now, a, &request);
    world.sides[A].send(now, a + 1, &answer);
    assert!(world.run_until(1_000, |w| w.sides[A].conns[a].received == answer));
    let seen = seen(&mut world.sides[A]);
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
    watch(&mut world.sides[B], Filter::Dropped);
    let (a, _) = world.connected();
    let now = world.now;
    world.sides[A].send(now, a, b"hello");
    world.run_ms(100);
    assert!(seen(&mut world.sides[B]).is_empty(), "nothing was dropped");
    let mut hello = world.log.iter().filter(|(_, from, _)| *from == A).map(|(_, _, frame)| frame.clone());
    let hello = hello.next_back().expect("A sent it");
    let reason_of = |world: &mut World, frame: &[u8], offload| {
        let side = &mut world.sides[B];
        side.engine.handle_frame(world.now, PortId(0), frame, offload, &mut side.memory);
        seen(side).into_iter().map(|(sighting, bytes)| (sighting.reason, bytes)).next_back()
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

#[test]
fn a_capture_of_a_process_gets_what_is_or_may_be_its_own() {
    let mut world = World::new();
    let conns = world.connected();
    let side = &mut world.sides[B];
    side.engine.handle_control(world.now, ControlEvent::Process(side.session, 77), &mut side.memory);
    watch(side, Filter::Pid(78));
    assert!(world.transfer(A, conns, &pattern(5_000, 1), 1_000));
    let of_tcp = |(packet, _): &(Sighting, Vec<u8>)| packet.facts.protocol == Some(6);
    assert!(!seen(&mut world.sides[B]).iter().any(of_tcp), "another has the connection");
    watch(&mut world.sides[B], Filter::Pid(77));
    let data = pattern(5_000, 2);
    assert!(world.transfer(A, conns, &data, 1_000));
    let shown: Vec<_> = seen(&mut world.sides[B]).into_iter().filter(of_tcp).collect();
    assert_eq!(stream(&shown, Direction::In), data);
    // Who had its connection may be remembered by the driver.
    watch(&mut world.sides[B], Filter::Pid(78));
    let mut hello = world.log.iter().filter(|(_, from, _)| *from == A).map(|(_, _, frame)| frame.clone());
    let mut elsewhere = hello.next_back().expect("A sent it");
    elsewhere[37] = 99;
    let checked = RxOffload { checksum_ok: true, ..RxOffload::default() };
    let side = &mut world.sides[B];
    side.engine.handle_frame(world.now, PortId(0), &elsewhere, checked, &mut side.memory);
    assert_eq!(seen(side).len(), 1);
}
