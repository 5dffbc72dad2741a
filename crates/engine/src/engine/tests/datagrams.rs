//! UDP between two engines: from a program's record to the other side's socket, what is answered where nobody is, and who pays.

use super::world::{A, B, LAYOUT, Side, World};
use crate::control::arp::NEIGHBOURS_MAX;
use crate::udp::Presented;
use crate::work::TxDatagram;
use crate::{
    CaptureRule, Captured, Counter, Delivered, DriverRequest, Engine, Limit, NetworkChange, Quotas, Resource,
};
use core::sync::atomic::AtomicU8;
use toe_abi::attach::Use;
use toe_abi::capture::Filter;
use toe_abi::errno::Errno;
use toe_abi::lane::{DatagramHeader, MtuDiscover};
use toe_base::{Addr, Cred, DatagramId, Endpoint, Instant, NetNs, PortId};
use toe_wire::link::{FrameTail, LinkCaps, RxOffload};

fn at(side: usize, port: u16) -> Endpoint {
    Endpoint::new([10, 0, 0, side as u8 + 1], port)
}

fn any(port: u16) -> Endpoint {
    Endpoint { addr: Addr::UNSPECIFIED_V4, port }
}

fn presented(local: Endpoint, identity: u64) -> Presented {
    Presented {
        local,
        peer: None,
        v6_only: false,
        identity,
        netns: NetNs(0),
        shares_port: false,
        receive_buffer: 212_992,
    }
}

fn open(
    side: &mut Side,
    purpose: Use,
    peer: Endpoint,
    presented: &Presented,
) -> Result<Option<DatagramId>, Errno> {
    let (session, now) = (side.session, Instant::from_micros(0));
    let opened = side.engine.open_datagrams(now, session, (purpose, peer), presented);
    opened.map(|opened| opened.end.map(|end| end.id))
}

fn hears(world: &mut World, side: usize, local: Endpoint, identity: u64) -> DatagramId {
    let opened =
        open(&mut world.sides[side], Use::Hears, Endpoint::UNSPECIFIED_V4, &presented(local, identity));
    opened.expect("let").expect("new")
}

fn send(world: &mut World, side: usize, id: DatagramId, head: DatagramHeader, text: &[u8]) {
    let now = world.now;
    let Side { engine, memory, .. } = &mut world.sides[side];
    let (_, incoming) = engine.handle_datagrams(now, id, &head, text);
    memory.take(now, engine, incoming);
    world.run_ms(1000);
}

fn to(peer: Endpoint) -> DatagramHeader {
    DatagramHeader { peer: peer.into(), ..DatagramHeader::default() }
}

fn count(world: &World, side: usize, counter: Counter) -> u64 {
    world.sides[side].engine.view().counter(counter)
}

fn world() -> World {
    World::new()
}

#[test]
fn a_datagram_comes_to_the_other_sides_socket() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    let receiver = hears(&mut world, B, any(53), 2);
    for text in [&b"one"[..], b"", &[7; 5000]] {
        send(&mut world, A, sender, to(at(B, 53)), text);
        let came = world.sides[B].memory.datagrams.pop().expect("it came");
        assert_eq!(came, (Some(receiver), at(A, 1000), at(B, 53), text.to_vec()));
    }
    assert_eq!(count(&world, B, Counter::RxDatagrams), 3, "the first one waited for the neighbour");
    assert_eq!(count(&world, B, Counter::Reassembled), 1);
    assert_eq!(count(&world, A, Counter::TxFragments), 4);
}

/// A datagram as a frame to B, changed by the test.
fn frame(world: &mut World, change: impl FnOnce(&mut Vec<u8>)) {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    let ip = toe_wire::Ipv4Repr {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        protocol: toe_wire::Protocol::Udp,
        ttl: 64,
        traffic_class: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: 31,
    };
    frame.resize(14 + 31, 0);
    ip.emit(&mut frame[14..]);
    toe_wire::UdpRepr { src_port: 9, dst_port: 53 }.emit(11, &mut frame[34..]);
    frame[42..].copy_from_slice(b"abc");
    toe_wire::udp::store_checksum(&mut frame[34..], at(A, 0).addr, at(B, 0).addr);
    change(&mut frame);
    let now = world.now;
    let Side { engine, memory, .. } = &mut world.sides[B];
    let incoming = engine.handle_frame(now, PortId(0), &frame, RxOffload::default(), memory);
    memory.take(now, engine, incoming);
}

#[test]
fn a_datagram_whose_checksum_is_wrong_is_dropped_silently() {
    let mut world = world();
    hears(&mut world, B, any(53), 2);
    frame(&mut world, |_| {});
    assert_eq!(world.sides[B].memory.datagrams.len(), 1, "as it should be");
    frame(&mut world, |frame| frame[43] ^= 1);
    world.run_ms(1000);
    assert_eq!(world.sides[B].memory.datagrams.len(), 1);
    assert_eq!(count(&world, B, Counter::DropBadUdpChecksum), 1);
    assert_eq!((count(&world, B, Counter::Unreachables), count(&world, B, Counter::TxControl)), (0, 0));
}

#[test]
fn what_becomes_of_a_datagram_is_counted() {
    let mut world = world();
    hears(&mut world, B, any(53), 2);
    for (end, counter) in [
        (Delivered::ByLane, Counter::DatagramsByLane),
        (Delivered::ByKernel, Counter::DatagramsByKernel),
        (Delivered::Nowhere, Counter::DropDatagramUndeliverable),
    ] {
        world.sides[B].memory.datagrams_end_as = Some(end);
        frame(&mut world, |_| {});
        assert_eq!(count(&world, B, counter), 1, "{end:?}");
    }
    let without_checksum = |frame: &mut Vec<u8>| frame[40..42].fill(0);
    frame(&mut world, |frame| {
        frame[39] += 1;
        without_checksum(frame);
    });
    assert_eq!(count(&world, B, Counter::DropBadUdp), 1, "longer than its packet");
    frame(&mut world, |frame| {
        frame[37] += 1;
        without_checksum(frame);
    });
    assert_eq!(count(&world, B, Counter::DropNoSocket), 1, "nobody is at port 54");
}

/// That it found no room is known only when it was handed over.
#[test]
fn a_capture_is_shown_what_became_of_a_datagram() {
    let mut world = world();
    hears(&mut world, B, any(53), 2);
    let rule = CaptureRule { filter: Filter::All, only: None, interface: None };
    world.sides[B].engine.records().set_captures([rule].into());
    for (end, reason) in [
        (Delivered::ByLane, None),
        (Delivered::QueueFull, Some(Counter::DropDatagramQueueFull)),
        (Delivered::ByKernel, None),
    ] {
        world.sides[B].memory.datagrams_end_as = Some(end);
        frame(&mut world, |_| {});
        let Some(DriverRequest::Show(Captured { packet, bytes })) = world.sides[B].engine.poll_request()
        else {
            panic!("it is shown")
        };
        assert_eq!((packet.reason, packet.facts.dropped, bytes.len()), (reason, reason.is_some(), 45));
    }
}

#[test]
fn an_address_that_nobody_can_have_is_not_heard() {
    let mut world = world();
    hears(&mut world, B, any(53), 2);
    for src in [[127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255], [0, 0, 0, 0], [10, 0, 0, 2]] {
        frame(&mut world, |frame| {
            let (mut ip, _) = toe_wire::Ipv4Repr::parse(&frame[14..]).expect("a packet");
            ip.src = src.into();
            ip.emit(&mut frame[14..]);
            frame[40..42].fill(0);
        });
    }
    assert_eq!((world.sides[B].memory.datagrams.len(), count(&world, B, Counter::DropBadAddress)), (0, 5));
}

#[test]
fn datagrams_that_a_link_has_joined_come_together_by_a_lane_and_else_one_by_one() {
    for (end, wanted) in [
        (Delivered::ByLane, vec![&b"abcde"[..]]),
        (Delivered::QueueFull, vec![b"abcde"]),
        (Delivered::ByKernel, vec![b"abcde", b"ab", b"cd", b"e"]),
    ] {
        let (came, counted) = joined_arrives(end);
        assert_eq!(came, wanted, "{end:?}");
        assert_eq!(counted, 3, "{end:?}");
    }
}

/// Three datagrams that a link has joined come to B, whose driver does so with them: what it was given, and how many were counted as that.
fn joined_arrives(end: Delivered) -> (Vec<Vec<u8>>, u64) {
    let mut world = world();
    hears(&mut world, B, any(53), 2);
    let joined = RxOffload { checksum_ok: true, coalesced_mss: Some(2) };
    let arrived = b"abcde";
    let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame(&mut world, |frame| bytes = frame.clone());
    bytes.truncate(34);
    let (mut ip, _) = toe_wire::Ipv4Repr::parse(&[&bytes[14..], &[0; 11]].concat()).expect("a packet");
    ip.total_len = 33;
    ip.emit(&mut bytes[14..]);
    bytes.extend_from_slice(&[0; 8]);
    toe_wire::UdpRepr { src_port: 9, dst_port: 53 }.emit(13, &mut bytes[34..]);
    bytes.extend_from_slice(arrived);
    world.sides[B].memory.datagrams.clear();
    world.sides[B].memory.datagrams_end_as = Some(end);
    let counter = match end {
        Delivered::ByLane => Counter::DatagramsByLane,
        Delivered::QueueFull => Counter::DropDatagramQueueFull,
        _ => Counter::DatagramsByKernel,
    };
    let before = count(&world, B, counter);
    let now = world.now;
    let Side { engine, memory, .. } = &mut world.sides[B];
    let incoming = engine.handle_frame(now, PortId(0), &bytes, joined, memory);
    memory.take(now, engine, incoming);
    let texts = memory.datagrams.drain(..).map(|(.., text)| text).collect();
    assert_eq!(world.sides[B].engine.view().counter(Counter::RxDatagrams), 4, "and the one before");
    (texts, count(&world, B, counter) - before)
}

#[test]
fn a_record_may_hold_several_datagrams() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    hears(&mut world, B, any(53), 2);
    send(&mut world, A, sender, DatagramHeader { segment: 3, ..to(at(B, 53)) }, b"abcdefgh");
    let came: Vec<_> = world.sides[B].memory.datagrams.drain(..).map(|(.., text)| text).collect();
    assert_eq!(came, [b"abc".to_vec(), b"def".to_vec(), b"gh".to_vec()]);
}

#[test]
fn two_programs_of_one_engine_speak_past_the_link() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    let receiver = hears(&mut world, A, at(A, 53), 2);
    send(&mut world, A, sender, to(at(A, 53)), b"hello");
    let came = world.sides[A].memory.datagrams.pop().expect("it came");
    assert_eq!(came, (Some(receiver), at(A, 1000), at(A, 53), b"hello".to_vec()));
}

#[test]
fn an_unknown_port_is_answered_and_the_answer_is_the_senders() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    send(&mut world, A, sender, to(at(B, 53)), b"anybody there?");
    assert_eq!(count(&world, B, Counter::Unreachables), 1);
    assert_eq!(world.sides[A].memory.datagram_errors, [(at(A, 1000), at(B, 53))]);
    assert_eq!(count(&world, A, Counter::DatagramErrors), 1);
    // What nobody has sent is nobody's.
    world.sides[A].engine.datagrams().socket_gone(1);
    assert_eq!(world.sides[A].engine.view().totals().datagram_sockets, 0);
}

#[test]
fn an_unknown_port_is_answered_with_the_headers_as_they_came() {
    let mut world = world();
    // The link learns who A is.
    let sender = hears(&mut world, A, any(1000), 1);
    send(&mut world, A, sender, to(at(B, 53)), b"anybody there?");
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.resize(14 + 24 + 8 + 600, 7);
    let ip = toe_wire::Ipv4Repr {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        protocol: toe_wire::Protocol::Udp,
        ttl: 33,
        traffic_class: 4,
        ident: 0xbeef,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset: 0,
        total_len: (24 + 8 + 600) as u16,
    };
    ip.emit(&mut frame[14..]);
    // An option: no more than four that do nothing.
    frame[14] = 0x46;
    frame[34..38].fill(1);
    frame[24..26].fill(0);
    let sum = toe_wire::checksum::Sum::of(&frame[14..38]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[38..46].copy_from_slice(&[3, 232, 0, 99, 2, 96, 0xab, 0xcd]);
    let Side { engine, memory, .. } = &mut world.sides[B];
    let offload = RxOffload { checksum_ok: true, coalesced_mss: None };
    let now = world.now;
    let incoming = engine.handle_frame(now, PortId(0), &frame, offload, memory);
    memory.take(now, engine, incoming);
    let side = &mut world.sides[B];
    while side.engine.poll_transmit(now, PortId(0), &mut side.outbox, &mut side.memory, 64) > 0 {}
    let (answer, _) = side.outbox.sent.pop().expect("an answer");
    assert_eq!(answer[34..36], [3, 3]);
    assert_eq!(answer[42..], frame[14..14 + 24 + 8 + 512], "{}", answer.len());
}

/// What is behind the head of a large frame, if it comes.
#[derive(Debug)]
struct Behind(bool);

impl FrameTail for Behind {
    fn take(&self, _: usize, _: &[&[AtomicU8]]) -> bool {
        unreachable!("the driver has no memory to lend")
    }

    fn read(&self, from: usize, into: &mut [u8]) -> bool {
        assert_eq!(from, 42);
        into.fill(9);
        self.0
    }
}

#[test]
fn of_large_datagrams_only_the_head_is_read_until_it_is_known_whose_they_are() {
    let mut world = world();
    let receiver = hears(&mut world, B, any(53), 2);
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.resize(42 + 2500, 0xee);
    let ip = toe_wire::Ipv4Repr {
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        protocol: toe_wire::Protocol::Udp,
        ttl: 64,
        traffic_class: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: 28 + 2500,
    };
    ip.emit(&mut frame[14..]);
    toe_wire::UdpRepr { src_port: 9, dst_port: 53 }.emit(2508, &mut frame[34..]);
    let now = world.now;
    let mut comes = |segment, is_there| {
        let (behind, offload) = (Behind(is_there), RxOffload { checksum_ok: true, coalesced_mss: segment });
        let Side { engine, memory, .. } = &mut world.sides[B];
        let incoming = engine.handle_frame(now, PortId(0), (&frame[..], Some(&behind as _)), offload, memory);
        memory.take(now, engine, incoming);
        let came: Vec<_> = memory.datagrams.drain(..).map(|(to, .., text)| (to, text)).collect();
        (
            came,
            engine.view().counter(Counter::RxDatagrams),
            engine.view().counter(Counter::DropDatagramUndeliverable),
        )
    };
    let whole = (Some(receiver), vec![9; 2500]);
    assert_eq!(comes(Some(1000), true), (vec![whole.clone()], 3, 0), "together");
    assert_eq!(comes(None, true), (vec![whole], 4, 0));
    assert_eq!(comes(None, false), (vec![], 5, 1), "the link does not have them");
}

/// What a router says to A of a datagram of port 1000 to B's port 53.
fn narrow(world: &mut World, mtu: u16) {
    let (own, peer) = (at(A, 1000), at(B, 53));
    let datagram =
        TxDatagram { from: own, to: peer, ttl: 64, traffic_class: 0, mtu, discover: MtuDiscover::Do };
    let message = crate::udp::errors::too_big(&datagram, &[0; 100]);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.resize(14 + 20 + message.len(), 0);
    let ip = toe_wire::Ipv4Repr {
        src: [10, 0, 0, 2].into(),
        dst: [10, 0, 0, 1].into(),
        protocol: toe_wire::Protocol::Icmp,
        ttl: 64,
        traffic_class: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: (20 + message.len()) as u16,
    };
    ip.emit(&mut frame[14..]);
    frame[34..].copy_from_slice(&message);
    let now = world.now;
    let Side { engine, memory, .. } = &mut world.sides[A];
    let incoming = engine.handle_frame(now, PortId(0), &frame, RxOffload::default(), memory);
    memory.take(now, engine, incoming);
}

/// A record of this IP_MTU_DISCOVER.
fn discovers(number: u8) -> DatagramHeader {
    DatagramHeader { mtu_discover: number + 1, ..to(at(B, 53)) }
}

const DONT: u8 = 0;
const WANT: u8 = 1;
const DO: u8 = 2;
const PROBE: u8 = 3;
const OMIT: u8 = 5;

#[test]
fn what_may_not_be_cut_is_refused_and_told() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    hears(&mut world, B, any(53), 2);
    let mtu = 1500;
    for how in [DO, PROBE] {
        send(&mut world, A, sender, discovers(how), &vec![1; mtu - 28]);
        assert_eq!(world.sides[B].memory.datagrams.drain(..).count(), 1);
        send(&mut world, A, sender, discovers(how), &vec![1; mtu - 27]);
        assert_eq!(world.sides[B].memory.datagrams.len(), 0);
        assert_eq!(
            world.sides[A].memory.datagram_errors.drain(..).collect::<Vec<_>>(),
            [(at(A, 1000), at(B, 53))]
        );
    }
    assert_eq!(count(&world, A, Counter::DropDatagramTooBig), 2);
    for how in [DONT, WANT, OMIT] {
        send(&mut world, A, sender, discovers(how), &vec![1; mtu - 27]);
        assert_eq!(world.sides[B].memory.datagrams.drain(..).count(), 1, "in pieces");
    }
    send(&mut world, A, sender, discovers(6), b"no such way");
    assert_eq!(count(&world, A, Counter::DropDatagramBadRecord), 1);
}

#[test]
fn a_router_is_believed_by_who_does_not_probe() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    hears(&mut world, B, any(53), 2);
    send(&mut world, A, sender, discovers(WANT), &[1; 1000]);
    narrow(&mut world, 600);
    assert_eq!(world.sides[A].memory.datagram_errors.len(), 1, "the program hears of it");
    let pieces = |world: &World| count(world, A, Counter::TxFragments);
    for (how, expected) in [(WANT, 2), (DONT, 2), (PROBE, 0), (OMIT, 0)] {
        let before = pieces(&world);
        send(&mut world, A, sender, discovers(how), &[1; 1000]);
        assert_eq!(pieces(&world) - before, expected, "{how}");
    }
    assert_eq!(world.sides[B].memory.datagrams.drain(..).count(), 5);
    send(&mut world, A, sender, discovers(DO), &[1; 1000]);
    assert_eq!(world.sides[B].memory.datagrams.len(), 0);
    let Side { engine, session, .. } = &mut world.sides[A];
    let opened =
        engine.open_datagrams(world.now, *session, (Use::Sends, at(B, 53)), &presented(any(1000), 1));
    let opened = opened.expect("let");
    assert_eq!((opened.path_mtu, opened.link_mtu), (600, 1500));
    // Of a socket that there is not nobody says anything.
    engine.datagrams().socket_gone(1);
    narrow(&mut world, 552);
    let Side { engine, session, .. } = &mut world.sides[A];
    let opened =
        engine.open_datagrams(world.now, *session, (Use::Sends, at(B, 53)), &presented(any(1001), 3));
    assert_eq!(opened.expect("let").path_mtu, 600);
}

#[test]
fn answers_to_unknown_ports_are_limited() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    send(&mut world, A, sender, to(at(B, 53)), b"the neighbour is known from here on");
    for n in 0..4000 {
        let now = world.now;
        let engine = &mut world.sides[A].engine;
        engine.handle_datagrams(now, sender, &to(at(B, 53)), b"x");
        if n % 100 == 99 {
            world.run_ms(0);
        }
    }
    world.run_ms(10);
    assert!(count(&world, B, Counter::UnreachablesHeldBack) > 0);
    assert!(count(&world, B, Counter::Unreachables) < 4000);
}

#[test]
fn a_full_queue_drops_and_counts() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    hears(&mut world, B, any(53), 2);
    world.sides[B].memory.datagrams_end_as = Some(Delivered::QueueFull);
    send(&mut world, A, sender, to(at(B, 53)), b"x");
    assert_eq!(count(&world, B, Counter::DropDatagramQueueFull), 1);
}

#[test]
fn records_that_cannot_be_are_dropped_and_fence_nobody() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    let foreign = Endpoint { port: 0, ..at(B, 0) }.into();
    let bad = [
        DatagramHeader::default(),
        to(at(B, 0)),
        DatagramHeader { own: foreign, ..to(at(B, 53)) },
        DatagramHeader { segment: 1, ..to(at(B, 53)) },
        to(Endpoint { addr: Addr::LOCALHOST_V6, port: 1 }),
    ];
    for head in bad {
        send(&mut world, A, sender, head, &[0; 200]);
    }
    send(&mut world, A, DatagramId(99), to(at(B, 53)), b"no such socket");
    send(&mut world, A, sender, to(Endpoint::new([192, 0, 2, 1], 53)), b"no way there");
    assert_eq!(count(&world, A, Counter::DropDatagramBadRecord), 6);
    assert_eq!(count(&world, A, Counter::DropDatagramNoRoute), 1);
    assert_eq!(count(&world, A, Counter::TxDatagrams), 0);
}

#[test]
fn who_does_not_answer_is_not_waited_for_without_end() {
    let mut world = world();
    let sender = hears(&mut world, A, any(1000), 1);
    for _ in 0..200 {
        let now = world.now;
        let engine = &mut world.sides[A].engine;
        engine.handle_datagrams(now, sender, &to(Endpoint::new([10, 0, 0, 77], 53)), b"x");
    }
    assert_eq!(count(&world, A, Counter::DropDatagramNoNeighbour), 72, "128 wait");
    world.run_ms(10_000);
    assert_eq!(count(&world, A, Counter::DropDatagramNoNeighbour), 200);
}

/// Who floods addresses where nobody is takes neither the place nor the neighbour of another user's datagram.
#[test]
fn a_datagram_waits_beside_another_users_flood() {
    let mut world = world();
    let good = hears(&mut world, A, any(1000), 1);
    hears(&mut world, B, any(53), 2);
    let now = world.now;
    let engine = &mut world.sides[A].engine;
    let flooder = engine.open_session(Cred::of_user(4711), LAYOUT).expect("room");
    let opened =
        engine.open_datagrams(now, flooder, (Use::Hears, Endpoint::UNSPECIFIED_V4), &presented(any(7), 3));
    let flood = opened.expect("let").end.expect("new").id;
    let flood = |engine: &mut Engine, from: u32| {
        for n in from..from + 2 * NEIGHBOURS_MAX as u32 {
            let nobody = Endpoint { addr: Addr::from((0x0a00_1000 + n).to_be_bytes()), port: 9 };
            engine.handle_datagrams(now, flood, &to(nobody), &[0; 100]);
        }
    };
    engine.handle_network(NetworkChange::Address {
        port: PortId(0),
        addr: [10, 255, 255, 1].into(),
        prefix_len: 8,
    });
    flood(engine, 0);
    engine.handle_datagrams(now, good, &to(at(B, 53)), b"mine");
    flood(engine, 3 * NEIGHBOURS_MAX as u32);
    world.run_ms(5000);
    let came = world.sides[B].memory.datagrams.pop().expect("it came");
    assert_eq!((came.1, came.3), (at(A, 1000), b"mine".to_vec()));
}

#[test]
fn only_what_an_engines_own_link_leads_to_is_its() {
    let mut world = world();
    let side = &mut world.sides[A];
    let with = |local| presented(local, 7);
    let peer = at(B, 53);
    let mut ask = |purpose, peer, presented: &Presented| open(side, purpose, peer, presented);
    assert_eq!(ask(Use::Sends, Endpoint::new([192, 0, 2, 1], 5), &with(any(9))), Err(Errno::ENETUNREACH));
    assert_eq!(ask(Use::Sends, Endpoint::new([127, 0, 0, 1], 5), &with(any(9))), Err(Errno::ENETUNREACH));
    assert_eq!(ask(Use::Hears, peer, &with(Endpoint::new([10, 9, 9, 9], 5))), Err(Errno::EADDRNOTAVAIL));
    let elsewhere = Presented { netns: NetNs(5), ..with(any(9)) };
    assert_eq!(ask(Use::Sends, peer, &elsewhere), Err(Errno::ENETUNREACH));
    assert_eq!(ask(Use::Sends, peer, &with(any(0))), Ok(None), "one without a name is only told");
    assert_eq!(ask(Use::Hears, peer, &with(any(0))), Err(Errno::EINVAL));
    assert!(ask(Use::Sends, peer, &with(any(9))).is_ok_and(|end| end.is_some()));
    assert_eq!(ask(Use::Sends, peer, &with(any(9))), Ok(None), "it has its lanes");
}

#[test]
fn a_user_has_his_share_and_gets_it_back() {
    let mut world = world();
    let limit = Limit { total: 100, user: 2 };
    let quotas = Quotas::default().with(Resource::Channels, limit);
    world.sides[A] = Side::with_quotas(1, LinkCaps::default(), quotas);
    let used = |world: &World| world.sides[A].engine.view().users().used(Resource::SessionMemory);
    let before = used(&world);
    let first = hears(&mut world, A, any(1), 1);
    hears(&mut world, A, any(2), 2);
    assert_eq!(used(&world) - before, 2 << 20, "a lane for each");
    let side = &mut world.sides[A];
    let third = presented(any(3), 3);
    assert_eq!(open(side, Use::Hears, any(0), &third), Err(Errno::EDQUOT));
    let session = side.session;
    side.engine.datagrams().close(session, first);
    assert!(open(side, Use::Hears, any(0), &third).is_ok());
    assert_eq!(side.engine.datagrams().leave(session).len(), 2);
    assert_eq!(side.engine.view().totals().datagram_sockets, 2, "until the kernel has them no more");
    for identity in [2, 3] {
        side.engine.datagrams().socket_gone(identity);
    }
    assert_eq!(side.engine.view().users().used(Resource::SessionMemory), before);
    let nothing = [Resource::Channels, Resource::Flows];
    assert!(side.engine.view().users().iter().all(|user| nothing.iter().all(|what| user.used(*what) == 0)));
}
