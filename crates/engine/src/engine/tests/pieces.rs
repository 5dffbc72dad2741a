//! What may happen to a packet on its way: it is cut into fragments, or a router says that it did not get through.

use super::world::{A, B, Side, World, addr, addr6, pattern};
use crate::counter::Counter;
use core::cell::Cell;
use core::net::SocketAddr;
use core::sync::atomic::AtomicU8;
use toe_abi::errno::Errno;
use toe_base::PortId;
use toe_wire::icmp::IcmpRepr;
use toe_wire::icmpv6::Icmpv6Repr;
use toe_wire::ipv4::{self, Ipv4Repr};
use toe_wire::ipv6::{self, Ipv6Repr};
use toe_wire::link::{FrameTail, LinkCaps, RxOffload};
use toe_wire::{Protocol, eth};

const PORT: PortId = PortId(0);

/// The first frame of A's that carries at least `len` bytes of a segment of this connection.
pub(super) fn frame_of_a(world: &World, len: usize) -> Vec<u8> {
    let of_a = world.log.iter().rev().filter(|(_, from, _)| *from == A);
    of_a.map(|(_, _, frame)| frame).find(|frame| frame.len() >= len).expect("A sent it").clone()
}

pub(super) fn gets(world: &mut World, side: usize, frame: &[u8]) {
    let (now, side) = (world.now, &mut world.sides[side]);
    side.engine.handle_frame(now, PORT, frame, RxOffload::default(), &mut side.memory);
}

/// Cuts an IPv4 frame as a router would whose link takes `len` bytes behind the header.
fn cut_v4(frame: &[u8], len: usize) -> Vec<Vec<u8>> {
    let (head, packet) = frame.split_at(eth::HEADER_LEN);
    let (ip, bytes) = Ipv4Repr::parse(packet).expect("sound");
    let pieces = bytes.chunks(len).enumerate().map(|(n, piece)| {
        let at = n * len;
        let ip = Ipv4Repr {
            dont_fragment: false,
            ident: 77,
            more_fragments: at + piece.len() < bytes.len(),
            fragment_offset: (at / 8) as u16,
            total_len: (ipv4::HEADER_LEN + piece.len()) as u16,
            ..ip
        };
        let mut header = [0; ipv4::HEADER_LEN];
        ip.emit(&mut header);
        [head, &header, piece].concat()
    });
    pieces.collect()
}

/// The same of IPv6, where only the sender does it.
fn cut_v6(frame: &[u8], len: usize) -> Vec<Vec<u8>> {
    let at = eth::HEADER_LEN + ipv6::HEADER_LEN;
    let bytes = &frame[at..];
    let pieces = bytes.chunks(len).enumerate().map(|(n, piece)| {
        let mut out = frame[..at].to_vec();
        let more = n * len + piece.len() < bytes.len();
        out[at - 36..at - 34].copy_from_slice(&((piece.len() + 8) as u16).to_be_bytes());
        out[at - 34] = 44;
        out.extend([6, 0]);
        out.extend(((n * len) as u16 | u16::from(more)).to_be_bytes());
        out.extend(77u32.to_be_bytes());
        out.extend_from_slice(piece);
        out
    });
    pieces.collect()
}

/// A world in which B has not got what A has just sent to it.
pub(super) fn lost_on_the_way(at: SocketAddr, data: &[u8]) -> (World, (usize, usize)) {
    let mut world = World::with_caps(LinkCaps::default());
    let conns = world.connected_to(at);
    world.unplugged = true;
    world.sides[A].send(world.now, conns.0, data);
    world.run_ms(0);
    world.unplugged = false;
    (world, conns)
}

#[test]
fn a_segment_in_fragments_arrives_whole_whatever_their_order() {
    let data = pattern(1200, 5);
    for at in [addr(B, 80), addr6(B, 80)] {
        for back in [false, true] {
            let (mut world, conns) = lost_on_the_way(at, &data);
            let frame = frame_of_a(&world, 1200);
            let mut pieces = if at.is_ipv4() { cut_v4(&frame, 400) } else { cut_v6(&frame, 400) };
            if back {
                pieces.reverse();
            }
            pieces.iter().for_each(|piece| gets(&mut world, B, piece));
            world.run_ms(0);
            assert!(world.sides[B].conns[conns.1].received == data, "{at}");
            assert_eq!(world.sides[B].engine.view().counter(Counter::Reassembled), 1);
        }
    }
}

/// A link that keeps a frame's bytes, and is not to write them to a program's memory.
#[derive(Debug)]
struct Keeps<'a>(&'a [u8], Cell<bool>);

impl FrameTail for Keeps<'_> {
    fn take(&self, _: usize, _: &[&[AtomicU8]]) -> bool {
        panic!("it may fail in the middle");
    }

    fn read(&self, from: usize, into: &mut [u8]) -> bool {
        into.copy_from_slice(&self.0[from..]);
        !self.1.replace(true)
    }
}

#[test]
fn where_bytes_are_held_beyond_a_hole_no_link_writes() {
    let data = pattern(2800, 5);
    let (mut world, conns) = lost_on_the_way(addr(B, 80), &data);
    let of_a = world.log.iter().filter(|(_, from, frame)| *from == A && frame.len() > 1300);
    let frames: Vec<_> = of_a.map(|(_, _, frame)| frame.clone()).collect();
    let [first, second] = &frames[..] else { panic!("two segments") };
    gets(&mut world, B, second);
    let (now, tail) = (world.now, Keeps(second, Cell::new(false)));
    let Side { engine, memory, .. } = &mut world.sides[B];
    let offload = RxOffload { checksum_ok: true, coalesced_mss: None };
    let head = [&second[..134], &vec![0xee; second.len() - 134]].concat();
    engine.handle_frame(now, PORT, (&head[..], Some(&tail as _)), offload, memory);
    assert!(tail.1.get(), "they are read into memory of the engine's own");
    engine.handle_frame(now, PORT, (&head[..], Some(&tail as _)), offload, memory);
    assert_eq!(engine.view().counter(Counter::DropTruncated), 1, "the link had them no more");
    gets(&mut world, B, first);
    world.run_ms(0);
    assert!(world.sides[B].conns[conns.1].received == data);
}

#[test]
fn what_was_put_together_wrongly_has_a_wrong_checksum() {
    for at in [addr(B, 80), addr6(B, 80)] {
        let (mut world, conns) = lost_on_the_way(at, &pattern(1200, 5));
        let frame = frame_of_a(&world, 1200);
        let mut pieces = if at.is_ipv4() { cut_v4(&frame, 400) } else { cut_v6(&frame, 400) };
        *pieces[1].last_mut().expect("bytes") ^= 1;
        // The link says nothing good of what it did not see as a whole.
        let (now, side) = (world.now, &mut world.sides[B]);
        for piece in &pieces {
            let offload = RxOffload { checksum_ok: true, coalesced_mss: None };
            side.engine.handle_frame(now, PORT, piece, offload, &mut side.memory);
        }
        world.run_ms(0);
        assert!(world.sides[B].conns[conns.1].received.is_empty());
        assert_eq!(world.sides[B].engine.view().counter(Counter::DropBadChecksum), 1);
    }
}

#[test]
fn overlapping_fragments_spoil_their_packet_and_the_stream_is_repaired() {
    for at in [addr(B, 80), addr6(B, 80)] {
        let data = pattern(1200, 5);
        let (mut world, conns) = lost_on_the_way(at, &data);
        let frame = frame_of_a(&world, 1200);
        let cut = |len| if at.is_ipv4() { cut_v4(&frame, len) } else { cut_v6(&frame, len) };
        let (pieces, others) = (cut(400), cut(200));
        gets(&mut world, B, &pieces[0]);
        gets(&mut world, B, &others[1]);
        pieces[1..].iter().for_each(|piece| gets(&mut world, B, piece));
        assert!(world.sides[B].conns[conns.1].received.is_empty());
        assert!(world.sides[B].engine.view().counter(Counter::DropFragment) > 0);
        assert!(world.run_until(10_000, |w| w.sides[B].conns[conns.1].received == data), "sent again");
    }
}

#[test]
fn a_packet_whose_pieces_do_not_all_come_is_given_up() {
    for (at, waits_ms) in [(addr(B, 80), 30_000), (addr6(B, 80), 60_000)] {
        let (mut world, _) = lost_on_the_way(at, &pattern(1200, 5));
        let frame = frame_of_a(&world, 1200);
        let pieces = if at.is_ipv4() { cut_v4(&frame, 400) } else { cut_v6(&frame, 400) };
        gets(&mut world, B, &pieces[0]);
        let given_up = |w: &World| w.sides[B].engine.view().counter(Counter::DropFragmentTimeout);
        world.run_ms(waits_ms - 1000);
        assert_eq!(given_up(&world), 0);
        world.run_ms(2000);
        assert_eq!(given_up(&world), 1);
    }
}

/// An ICMP error about `frame`, which A sent, from B.
fn error_about(frame: &[u8], v4: IcmpRepr, v6: Icmpv6Repr) -> Vec<u8> {
    let (link, packet) = toe_wire::EthRepr::parse(frame).expect("sound");
    let quoted = &packet[..packet.len().min(120)];
    let back = toe_wire::EthRepr { dst: link.src, src: link.dst, ..link };
    let ip_len = if packet[0] >> 4 == 4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let mut out = vec![0; eth::HEADER_LEN + ip_len + 8];
    out.extend_from_slice(quoted);
    let behind = out.len() - eth::HEADER_LEN - ip_len;
    back.emit(&mut out);
    let (ip, message) = out[eth::HEADER_LEN..].split_at_mut(ip_len);
    if ip_len == ipv4::HEADER_LEN {
        let (about, _) = Ipv4Repr::parse(packet).expect("sound");
        let total_len = (ip_len + behind) as u16;
        Ipv4Repr { src: about.dst, dst: about.src, protocol: Protocol::Icmp, total_len, ..about }.emit(ip);
        v4.emit(message);
    } else {
        let (about, _) = Ipv6Repr::parse(packet).expect("sound");
        let (protocol, payload_len) = (Protocol::Icmpv6, behind as u16);
        Ipv6Repr { src: about.dst, dst: about.src, protocol, payload_len, ..about }.emit(ip);
        v6.emit(message, about.dst, about.src);
    }
    out
}

pub(super) fn unreachable(frame: &[u8], code: u8, code_v6: u8) -> Vec<u8> {
    let v4 = IcmpRepr::DestinationUnreachable { code, next_hop_mtu: 0 };
    error_about(frame, v4, Icmpv6Repr::DestinationUnreachable { code: code_v6 })
}

#[test]
fn a_connect_ends_with_what_a_router_says() {
    let cases = [(0, 0, Errno::ENETUNREACH), (1, 3, Errno::EHOSTUNREACH), (3, 4, Errno::ECONNREFUSED)];
    for at in [addr(B, 80), addr6(B, 80)] {
        for (code, code_v6, errno) in cases {
            let mut world = World::new();
            // B's engine knows A, so that only the SYN is lost.
            world.connected_to(at);
            world.unplugged = true;
            let conn = world.sides[A].connect(world.now, at).expect("starts");
            world.run_ms(10);
            let syn = frame_of_a(&world, 54);
            gets(&mut world, A, &unreachable(&syn, code, code_v6));
            world.run_ms(0);
            assert_eq!(world.sides[A].conns[conn].errno, Some(errno), "{at}");
        }
    }
}

#[test]
fn an_established_connection_lives_on_and_what_is_not_on_its_way_is_not_believed() {
    for at in [addr(B, 80), addr6(B, 80)] {
        let (mut world, conns) = lost_on_the_way(at, &pattern(1000, 5));
        let frame = frame_of_a(&world, 1000);
        gets(&mut world, A, &unreachable(&frame, 3, 4));
        assert_eq!(world.sides[A].engine.view().counter(Counter::IcmpErrors), 1);
        assert_eq!(world.sides[A].conns[conns.0].errno, None);
        assert!(world.run_until(10_000, |w| w.sides[B].conns[conns.1].received.len() == 1000), "sent again");
        world.run_ms(100);
        // By now all of it is acknowledged.
        gets(&mut world, A, &unreachable(&frame, 3, 4));
        assert_eq!(world.sides[A].engine.view().counter(Counter::IcmpErrorsStray), 1);
    }
}

#[test]
fn a_smaller_path_mtu_is_taken_and_what_was_too_large_goes_again_at_once() {
    for at in [addr(B, 80), addr6(B, 80)] {
        let data = pattern(8000, 5);
        let (mut world, conns) = lost_on_the_way(at, &data);
        let frame = frame_of_a(&world, 1500);
        let code = toe_wire::icmp::CODE_FRAGMENTATION_NEEDED;
        let v4 = IcmpRepr::DestinationUnreachable { code, next_hop_mtu: 1300 };
        world.log.clear();
        gets(&mut world, A, &error_about(&frame, v4, Icmpv6Repr::PacketTooBig { mtu: 1300 }));
        assert_eq!(world.sides[A].engine.view().counter(Counter::PathMtuLowered), 1);
        assert!(world.run_until(50, |w| w.sides[B].conns[conns.1].received == data), "without a time-out");
        let longest = world.log.iter().map(|(_, _, frame)| frame.len()).max();
        assert_eq!(longest, Some(eth::HEADER_LEN + 1300), "{at}");
    }
}
