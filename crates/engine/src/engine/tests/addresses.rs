//! Datagrams to and from addresses that nobody can be reached at are dropped in silence (RFC 9293 section 3.9.2.3, RFC 1122
//! section 3.2.1.3); echo requests are answered (RFC 1122 section 3.2.2.6).

use super::hostile::fix_ip_checksum;
use super::world::{A, B, World, addr};
use crate::counter::Counter;
use toe_base::PortId;
use toe_wire::icmp::IcmpRepr;
use toe_wire::link::RxOffload;

/// Where an Ethernet frame has the addresses of IPv4, and what comes behind them.
const SRC: usize = 26;
const DST: usize = 30;
const TRANSPORT: usize = 34;

/// B listens, and this is a SYN from A to it, of a port that is not in use.
fn with_syn() -> (World, Vec<u8>) {
    let mut world = World::new();
    world.sides[B].listen(world.now, addr(B, 80)).expect("listens");
    world.sides[A].connect(world.now, addr(B, 80)).expect("connects");
    world.run_ms(100);
    let is_syn = |frame: &[u8]| frame[12..14] == [8, 0] && frame[TRANSPORT + 13] == 2;
    let syn = world.log.iter().find(|(_, from, frame)| *from == A && is_syn(frame)).expect("a SYN went out");
    let mut syn = syn.2.clone();
    syn[TRANSPORT] ^= 1;
    (world, syn)
}

/// Frames that B sends when it gets `frame`.
fn answers(world: &mut World, frame: &[u8]) -> Vec<Vec<u8>> {
    let before = world.log.len();
    let side = &mut world.sides[B];
    let offload = RxOffload { checksum_ok: true, coalesced_mss: None };
    side.engine.handle_frame(world.now, PortId(0), frame, offload, &mut side.memory);
    world.run_ms(10);
    world.log[before..].iter().filter(|(_, from, _)| *from == B).map(|(_, _, frame)| frame.clone()).collect()
}

fn with(frame: &[u8], at: usize, bytes: [u8; 4]) -> Vec<u8> {
    let mut changed = frame.to_vec();
    changed[at..at + 4].copy_from_slice(&bytes);
    fix_ip_checksum(&mut changed);
    changed
}

#[test]
fn segments_to_broadcast_and_multicast_addresses_are_dropped_in_silence() {
    let (mut world, syn) = with_syn();
    assert_eq!(answers(&mut world, &syn).len(), 1, "as it is, it is answered");
    let (mut world, syn) = with_syn();
    for dst in [[255, 255, 255, 255], [10, 0, 0, 255], [224, 0, 0, 1], [239, 1, 2, 3], [10, 0, 0, 77]] {
        assert!(answers(&mut world, &with(&syn, DST, dst)).is_empty(), "to {dst:?}");
    }
}

#[test]
fn segments_from_impossible_addresses_are_dropped_in_silence() {
    let (mut world, syn) = with_syn();
    let own: [u8; 4] = syn[DST..DST + 4].try_into().expect("four bytes");
    for src in [[255, 255, 255, 255], [10, 0, 0, 255], [224, 0, 0, 1], [127, 0, 0, 1], [0, 0, 0, 0], own] {
        assert!(answers(&mut world, &with(&syn, SRC, src)).is_empty(), "from {src:?}");
    }
}

/// The SYN's frame with an ICMP message in its place.
fn icmp(syn: &[u8], message: &[u8]) -> Vec<u8> {
    let mut frame = syn[..TRANSPORT].to_vec();
    frame[16..18].copy_from_slice(&(20 + message.len() as u16).to_be_bytes());
    frame[23] = 1;
    frame.extend_from_slice(message);
    fix_ip_checksum(&mut frame);
    frame
}

#[test]
fn an_echo_request_is_answered_with_what_it_had() {
    let (mut world, syn) = with_syn();
    let mut message = vec![7; 24];
    IcmpRepr::EchoRequest { ident: 3, sequence: 4 }.emit(&mut message);
    let answers = answers(&mut world, &icmp(&syn, &message));
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0][23], answers[0][TRANSPORT]), (1, 0), "an echo reply");
    assert_eq!(answers[0][TRANSPORT + 4..], message[4..], "with the same numbers and data");
}

#[test]
fn a_source_quench_is_dropped_in_silence() {
    let (mut world, syn) = with_syn();
    let conns = world.connected();
    let mut message = vec![0; 8 + 28];
    // Any message has the checksum right; this one is then made a source quench, whose type is 4.
    IcmpRepr::EchoReply { ident: 0, sequence: 0 }.emit(&mut message);
    message[8..].copy_from_slice(&syn[14..14 + 28]);
    message[0] = 4;
    message[2..4].copy_from_slice(&[0, 0]);
    let sum: u32 = message.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    message[2..4].copy_from_slice(&(!(((sum & 0xffff) + (sum >> 16)) as u16)).to_be_bytes());
    assert!(answers(&mut world, &icmp(&syn, &message)).is_empty());
    for errors in [Counter::IcmpErrors, Counter::IcmpErrorsStray] {
        assert_eq!(world.sides[B].engine.view().counter(errors), 0, "it is no error of any connection");
    }
    assert!(world.transfer(A, conns, &super::world::pattern(10_000, 1), 1_000), "and slows nothing down");
}

#[test]
fn each_destination_has_an_order_and_a_counter_of_ports_of_its_own() {
    let mut world = World::new();
    for port in [80, 81] {
        world.sides[B].listen(world.now, addr(B, port)).expect("listens");
    }
    for port in [80, 81, 80, 81] {
        world.sides[A].connect(world.now, addr(B, port)).expect("connects");
        world.run_ms(100);
    }
    let is_syn = |frame: &[u8]| frame[12..14] == [8, 0] && frame[TRANSPORT + 13] == 2;
    let syns = world.log.iter().filter(|(_, from, frame)| *from == A && is_syn(frame));
    let ports: Vec<i32> = syns
        .map(|(_, _, frame)| i32::from(u16::from_be_bytes([frame[TRANSPORT], frame[TRANSPORT + 1]])))
        .collect();
    let [first, other, second, _] = ports[..] else { panic!("four SYNs, not {ports:?}") };
    assert_eq!(second - first, 1, "a connection to elsewhere does not show in the ports of those to here");
    assert!((other - first).abs() > 1, "and an offset for each: {ports:?}");
}
