//! Peers that make a session's receive memory scarce: what they pin comes back, what is in order stays, and others receive.

use super::hostile::fix_ip_checksum;
use super::sessions::second_session;
use super::world::{A, B, World, pattern};
use crate::{Changed, Counter};
use toe_base::{PortId, QueueSetId, SeqNum};
use toe_wire::link::RxOffload;

/// TCP header in a frame of IPv4 without options.
const TRANSPORT: usize = 34;
const MIB: usize = 1 << 20;

/// Connections whose windows have grown to 4 MiB: eight of them are all of the receive memory.
/// With the ports of A's.
fn with_large_windows(count: usize) -> (World, Vec<(usize, usize)>, Vec<u16>) {
    let mut world = World::new();
    let (mut conns, mut ports) = (Vec::new(), Vec::new());
    for number in 0..count {
        conns.push(world.connected());
        assert!(world.transfer(A, conns[number], &pattern(3 * MIB, 1), 20_000));
        ports.push(port_of(&last_text(&world, None)));
    }
    (world, conns, ports)
}

fn port_of(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[TRANSPORT], frame[TRANSPORT + 1]])
}

/// The last segment with text that A sent, or sent from this port.
fn last_text(world: &World, port: Option<u16>) -> Vec<u8> {
    let is_it = |frame: &&Vec<u8>| {
        let is_tcp = frame[12..14] == [8, 0] && port.is_none_or(|port| port_of(frame) == port);
        is_tcp && frame.len() > TRANSPORT + usize::from(frame[TRANSPORT + 12] >> 4) * 4
    };
    let mut frames = world.log.iter().rev().filter(|(_, from, _)| *from == A).map(|(_, _, frame)| frame);
    frames.find(is_it).expect("some text").clone()
}

/// One byte of the peer's, so many beyond what it has sent.
fn one_byte(world: &mut World, port: u16, beyond: u32) {
    some_text(world, port, beyond, 1);
}

/// The same of up to so many. Returns how many they are.
fn some_text(world: &mut World, port: u16, beyond: u32, most: usize) -> u32 {
    let mut frame = last_text(world, Some(port));
    let header = usize::from(frame[TRANSPORT + 12] >> 4) * 4;
    let seq = u32::from_be_bytes([38, 39, 40, 41].map(|at| frame[at]));
    let sent = (frame.len() - TRANSPORT - header) as u32;
    let seq = SeqNum::new(seq).plus(sent + beyond).raw();
    frame[TRANSPORT + 4..TRANSPORT + 8].copy_from_slice(&seq.to_be_bytes());
    frame.truncate(TRANSPORT + header + most);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    fix_ip_checksum(&mut frame);
    let (now, side) = (world.now, &mut world.sides[B]);
    let checked = RxOffload { checksum_ok: true, coalesced_mss: None };
    side.engine.handle_frame(now, PortId(0), &frame, checked, &mut side.memory);
    world.run_until(0, |_| false);
    (frame.len() - TRANSPORT - header) as u32
}

fn count(world: &World, counter: Counter) -> u64 {
    world.sides[B].engine.view().counter(counter)
}

#[test]
fn what_came_out_of_order_keeps_nobody_from_receiving() {
    let (mut world, conns, ports) = with_large_windows(10);
    world.run_ms(5_000);
    for port in ports {
        one_byte(&mut world, port, 3 * MIB as u32);
    }
    let victim = world.connected();
    assert!(world.transfer(A, victim, &pattern(2 * MIB, 3), 2_000), "memory was found for it");
    assert_eq!(count(&world, Counter::DropNoMemory), 0);
    assert!(count(&world, Counter::PrunedOutOfOrder) > 0 && count(&world, Counter::CollapsedWindows) > 0);
    // To those who gave it is as if a segment had been lost. What was forged is not the stream's.
    assert!(world.transfer(A, conns[9], &pattern(MIB, 4), 5_000));
}

#[test]
fn what_is_in_order_and_unread_stays_and_pins_no_more_than_itself() {
    let (mut world, conns, ports) = with_large_windows(12);
    world.run_ms(5_000);
    world.sides[B].reads = false;
    let mut before = Vec::new();
    for (number, conn) in conns.iter().enumerate() {
        before.push(world.sides[B].conns[conn.1].received.len());
        let now = world.now;
        world.sides[A].send(now, conn.0, &pattern(5_000, number as u32));
        world.run_ms(1);
        one_byte(&mut world, ports[number], 3 * MIB as u32);
    }
    let victim = world.connected();
    world.sides[B].reads = true;
    assert!(world.transfer(A, victim, &pattern(2 * MIB, 3), 2_000), "memory was found for it");
    for (number, conn) in conns.iter().enumerate() {
        let now = world.now;
        world.sides[B].read(now, conn.1);
        let received = &world.sides[B].conns[conn.1].received[before[number]..];
        assert!(received == pattern(5_000, number as u32), "of connection {number}");
    }
}

/// B's programs read again: of each connection 4 MiB come beyond what there was before.
fn read_four_mib_more(world: &mut World, conns: &[(usize, usize)], before: &[usize]) {
    world.sides[B].reads = true;
    for conn in conns {
        let now = world.now;
        world.sides[B].read(now, conn.1);
    }
    let all_is_there = |world: &World| {
        (0..conns.len()).all(|n| world.sides[B].conns[conns[n].1].received.len() == before[n] + 4 * MIB)
    };
    assert!(world.run_until(120_000, all_is_there), "what was dropped is sent again");
}

/// A session's programs that read nothing: its memory ends, and what was acknowledged is all there.
#[test]
fn what_was_acknowledged_is_read_whole_though_memory_has_ended() {
    let (mut world, conns, _) = with_large_windows(9);
    world.sides[B].reads = false;
    let before: Vec<usize> = conns.iter().map(|conn| world.sides[B].conns[conn.1].received.len()).collect();
    for (number, conn) in conns.iter().enumerate() {
        for part in 0..4 {
            let now = world.now;
            world.sides[A].send(now, conn.0, &pattern(MIB, (number * 4 + part) as u32));
            world.run_ms(50);
        }
    }
    world.run_ms(2_000);
    // The world uses send memory again, acknowledged or not: of the rest, and of what late window probes carried, only the
    // length is known.
    let acked = |(a, _): &(usize, usize)| world.sides[A].acknowledged(*a) as usize - 3 * MIB - 64;
    let acked: Vec<usize> = conns.iter().map(acked).collect();
    assert!(acked.iter().sum::<usize>() > 20 * MIB, "it was scarce: {acked:?}");
    read_four_mib_more(&mut world, &conns, &before);
    for (number, conn) in conns.iter().enumerate() {
        let received = &world.sides[B].conns[conn.1].received[before[number]..];
        let sent: Vec<u8> = (0..4).flat_map(|part| pattern(MIB, (number * 4 + part) as u32)).collect();
        let wrong = received.iter().zip(&sent).position(|(a, b)| a != b).unwrap_or(sent.len());
        assert!(wrong >= acked[number], "connection {number}: byte {wrong} of {}", acked[number]);
    }
}

/// The window field of the last segment that B sent to this port of A's, and whether it was a RST.
fn last_offer(world: &World, port: u16) -> (u16, bool) {
    let to_port = |frame: &&Vec<u8>| {
        frame[12..14] == [8, 0] && u16::from_be_bytes([frame[TRANSPORT + 2], frame[TRANSPORT + 3]]) == port
    };
    let mut frames = world.log.iter().rev().filter(|(_, from, _)| *from == B).map(|(_, _, frame)| frame);
    let frame = frames.find(to_port).expect("some segment");
    (u16::from_be_bytes([frame[TRANSPORT + 14], frame[TRANSPORT + 15]]), frame[TRANSPORT + 13] & 4 != 0)
}

/// Segments with text that A sent from this port since `from` of the log.
fn texts_since(world: &World, from: usize, port: u16) -> usize {
    let is_text = |frame: &Vec<u8>| {
        let header = TRANSPORT + usize::from(frame[TRANSPORT + 12] >> 4) * 4;
        frame[12..14] == [8, 0] && port_of(frame) == port && frame.len() > header
    };
    world.log[from..].iter().filter(|(_, from, frame)| *from == A && is_text(frame)).count()
}

/// Where memory has ended the window closes: the peer probes, for as long as nobody reads, and sends nothing in vain.
#[test]
fn who_finds_no_memory_closes_the_window_and_opens_it_again() {
    let (mut world, conns, ports) = with_large_windows(9);
    world.sides[B].reads = false;
    let before: Vec<usize> = conns.iter().map(|conn| world.sides[B].conns[conn.1].received.len()).collect();
    for (number, conn) in conns.iter().enumerate() {
        let now = world.now;
        world.sides[A].send(now, conn.0, &pattern(4 * MIB, number as u32));
        world.run_ms(50);
    }
    world.run_ms(2_000);
    assert!(count(&world, Counter::DropNoMemory) > 0);
    let from = world.log.len();
    // Far longer than time-outs are tried.
    world.run_ms(3_600_000);
    let sent: Vec<usize> = ports.iter().map(|port| texts_since(&world, from, *port)).collect();
    let offers: Vec<(u16, bool)> = ports.iter().map(|port| last_offer(&world, *port)).collect();
    assert!(offers.contains(&(0, false)), "{offers:?}");
    assert!(offers.iter().all(|(_, is_reset)| !is_reset), "{offers:?}");
    assert!(sent.iter().all(|texts| *texts < 100), "in an hour: {sent:?}");
    read_four_mib_more(&mut world, &conns, &before);
}

/// Of local ends the sender learns of scarce memory by time-outs, and the window that is left is smaller than a segment, which is as large as a
/// window is at first. None of that may last once there is memory again.
#[test]
fn between_local_ends_all_goes_on_as_soon_as_there_is_memory_again() {
    let (mut world, far, _) = with_large_windows(7);
    let (now, at) = (world.now, "127.0.0.1:8080".parse().expect("an address"));
    world.sides[B].listen(now, at).expect("listens");
    let first = world.sides[B].conns.len();
    let near: Vec<usize> = (0..50)
        .map(|number| {
            let now = world.now;
            let client = world.sides[B].connect(now, at).expect("connects");
            assert!(world.run_until(1_000, |world| world.sides[B].conns.len() == first + 2 * number + 2));
            client
        })
        .collect();
    let send = |world: &mut World, len: usize| {
        for client in &near {
            let now = world.now;
            world.sides[B].send(now, *client, &pattern(len, 1));
            world.run_ms(1);
        }
    };
    let have = |world: &World, bytes: usize| {
        world.sides[B].conns[first..].iter().filter(|conn| conn.received.len() == bytes).count() == near.len()
    };
    // Windows have grown; then nobody reads, and the far peers take most of the memory.
    (0..4).for_each(|_| send(&mut world, 250_000));
    assert!(world.run_until(1_000, |world| have(world, 1_000_000)));
    world.sides[B].reads = false;
    for conn in &far {
        for part in 0..4 {
            let now = world.now;
            world.sides[A].send(now, conn.0, &pattern(MIB, part));
            world.run_ms(50);
        }
    }
    (0..4).for_each(|_| send(&mut world, 70_000));
    world.run_ms(5_000);
    assert!(count(&world, Counter::DropNoMemory) > 0, "it was scarce");
    world.sides[B].reads = true;
    for conn in 0..world.sides[B].conns.len() {
        let now = world.now;
        world.sides[B].read(now, conn);
    }
    assert!(
        world.run_until(1_000, |world| have(world, 1_280_000)),
        "what waits is sent within some time-outs"
    );
}

/// It is copied at once: 16 MiB of it would hold up everybody for as long.
#[test]
fn of_what_came_out_of_order_little_goes_to_another_session() {
    let (mut world, conns, ports) = with_large_windows(1);
    let mut beyond = 1;
    while beyond < MIB as u32 / 2 {
        beyond += some_text(&mut world, ports[0], beyond, MIB);
    }
    let child = second_session(&mut world);
    let (now, side) = (world.now, &mut world.sides[B]);
    let anchor = side.conns[conns[0].1].anchor;
    let claimed = side.engine.claim(now, child, QueueSetId(0), 3, anchor, &mut side.memory);
    assert!(matches!(claimed, Ok(Changed::Flow(..))), "{claimed:?}");
    assert_eq!(count(&world, Counter::PrunedOutOfOrder), 0, "less than so much");
    while beyond < MIB as u32 + 2 {
        beyond += some_text(&mut world, ports[0], beyond, MIB);
    }
    let (now, session, side) = (world.now, world.sides[B].session, &mut world.sides[B]);
    let claimed = side.engine.claim(now, session, QueueSetId(0), 3, anchor, &mut side.memory);
    assert!(matches!(claimed, Ok(Changed::Flow(..))), "{claimed:?}");
    assert_eq!(count(&world, Counter::PrunedOutOfOrder), 1);
    world.sides[B].engine.view().audit().expect("sound");
}
