//! Records that programs keep apart (MSG_EOR), over links that lose and that cut, and how much of them the engine keeps.

use super::world::{A, B, Faults, World, addr, pattern};
use toe_abi::entry::{Command, FlowOption};
use toe_base::SeqNum;
use toe_tcp::pool::PLACES_MAX;
use toe_wire::ipv4::Ipv4Repr;
use toe_wire::link::LinkCaps;
use toe_wire::tcp::TcpRepr;
use toe_wire::{EthRepr, EtherType};

/// What A's frames since number `from` of the log have brought of its stream, SYN and FIN not counted: from which byte to which,
/// in the order of their going.
fn stretches(world: &World, from: usize, iss: SeqNum) -> Vec<(u32, u32)> {
    let of_a = world.log[from..].iter().filter(|(_, side, _)| *side == A);
    let stretches = of_a.filter_map(|(_, _, frame)| {
        let (ethernet, packet) = EthRepr::parse(frame).expect("Ethernet");
        if ethernet.ethertype != EtherType::Ipv4 {
            return None;
        }
        let (_, segment) = Ipv4Repr::parse(packet).expect("IPv4");
        let (header, payload) = TcpRepr::parse(segment).expect("TCP");
        let first = header.seq.plus(u32::from(header.flags.syn())).distance_from(iss.plus(1));
        let end = first + payload.len() as u32;
        (end > first).then_some((first, end))
    });
    stretches.collect()
}

/// The initial number of A's first connection, or of its latest SYN.
fn iss(world: &World) -> SeqNum {
    let of_a = world.log.iter().rev().filter(|(_, side, _)| *side == A);
    let numbers = of_a.filter_map(|(_, _, frame)| {
        let (ethernet, packet) = EthRepr::parse(frame).ok()?;
        let (_, segment) =
            (ethernet.ethertype == EtherType::Ipv4).then(|| Ipv4Repr::parse(packet).ok()).flatten()?;
        let (header, _) = TcpRepr::parse(segment).ok()?;
        header.flags.syn().then_some(header.seq)
    });
    numbers.into_iter().next().expect("it has sent one")
}

fn keep_apart(stretches: &[(u32, u32)], ends: &[u32]) {
    for (first, end) in stretches {
        let across = ends.iter().find(|record_end| *first < **record_end && **record_end < *end);
        assert_eq!(across, None, "bytes {first} to {end}");
    }
}

#[test]
fn no_segment_has_bytes_of_two_records() {
    // Sizes below, of, and beyond one segment and two, so that whole ones follow each other, too.
    const SIZES: [usize; 9] = [1, 700, 1448, 1448, 2896, 3000, 10_000, 20, 1447];
    for (gso_max, seed) in (0..8).map(|n| (if n % 2 == 0 { 65_000 } else { 0 }, n)) {
        let mut world = World::with_caps(LinkCaps { tx_checksum: true, gso_max, ..LinkCaps::default() });
        world.reseed(seed);
        let (a, b) = world.connected();
        let (from, iss) = (world.log.len(), iss(&world));
        world.faults = Faults { drop: 60, reorder: 40, duplicate: 20 };
        let (mut ends, mut sent) = (Vec::new(), Vec::new());
        for (n, size) in SIZES.iter().cycle().take(180).enumerate() {
            let bytes = pattern(*size, n as u32);
            sent.extend_from_slice(&bytes);
            let now = world.now;
            if n % 5 == 4 {
                world.sides[A].send(now, a, &bytes);
            } else {
                world.sides[A].send_record(now, a, &bytes);
                ends.push(sent.len() as u32);
            }
            if n % 10 == 9 {
                // The path becomes narrower, and what is out is cut anew.
                world.longest = if n > 60 { 14 + 20 + 32 + 1200 } else { usize::MAX };
                world.run_ms(30);
            }
        }
        world.longest = usize::MAX;
        assert!(world.run_until(120_000, |w| w.sides[B].conns[b].received.len() == sent.len()));
        assert!(world.sides[B].conns[b].received == sent);
        keep_apart(&stretches(&world, from, iss), &ends);
        world.run_ms(1000);
        assert_eq!(world.sides[A].engine.tcp.record_ends.used(), 0, "all is acknowledged");
    }
}

#[test]
fn a_record_is_cut_where_the_path_is_and_nowhere_else() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let (from, iss, now) = (world.log.len(), iss(&world), world.now);
    let flow = world.sides[A].conns[a].id;
    world.sides[A].plain(now, Command::SetOption { flow, option: FlowOption::NoDelay, value: 1 });
    for (n, size) in [100, 4000, 2896, 1].into_iter().enumerate() {
        world.sides[A].send_record(now, a, &pattern(size, n as u32));
    }
    world.sides[A].send(now, a, &pattern(10, 9));
    world.sides[A].send(now, a, &pattern(10, 9));
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].received.len() == 7017));
    let large_frames = [(0, 100), (100, 4100), (4100, 6996), (6996, 6997), (6997, 7017)];
    assert_eq!(stretches(&world, from, iss), large_frames);
}

#[test]
fn records_of_one_byte_cost_the_engine_a_bounded_amount() {
    const RECORDS: usize = 20_000;
    let mut world = World::new();
    let (a, b) = world.connected();
    let (from, iss, now) = (world.log.len(), iss(&world), world.now);
    let bytes = pattern(RECORDS, 3);
    bytes.iter().for_each(|byte| world.sides[A].send_record(now, a, &[*byte]));
    let most = usize::from(PLACES_MAX);
    assert_eq!(world.sides[A].engine.tcp.record_ends.used(), most);
    assert!(world.run_until(10_000, |w| w.sides[B].conns[b].received.len() == RECORDS));
    assert!(world.sides[B].conns[b].received == bytes, "the stream is the same");
    let stretches = stretches(&world, from, iss);
    let single = stretches.iter().take_while(|(first, end)| end - first == 1).count();
    assert_eq!(single, most, "the first of them are apart");
    assert!(stretches.len() < most + 100, "{} segments: the others are passed over", stretches.len());
    world.run_ms(1000);
    assert_eq!(world.sides[A].engine.tcp.record_ends.used(), 0);
}

#[test]
fn what_is_not_sent_when_a_connection_ends_leaves_nothing() {
    let mut world = World::new();
    let (a, _) = world.connected();
    world.unplugged = true;
    for n in 0..100 {
        let now = world.now;
        world.sides[A].send_record(now, a, &pattern(100, n));
    }
    assert!(world.sides[A].engine.tcp.record_ends.used() >= 100);
    let (now, flow) = (world.now, world.sides[A].conns[a].id);
    world.sides[A].plain(now, Command::Close { flow, abort: true });
    world.run_ms(10_000);
    assert_eq!(world.sides[A].engine.tcp.record_ends.used(), 0);
}

#[test]
fn a_syn_has_bytes_of_one_record() {
    let mut world = super::fast_open::acquainted();
    let (now, from) = (world.now, world.log.len());
    let a = world.sides[A].connect(now, addr(B, 80)).expect("connects");
    world.sides[A].send_record(now, a, &pattern(300, 1));
    world.sides[A].send_record(now, a, &pattern(200, 2));
    world.sides[A].send(now, a, &pattern(100, 3));
    assert!(world.run_until(1000, |w| w.sides[B].conns.last().is_some_and(|c| c.received.len() == 600)));
    let iss = iss(&world);
    assert_eq!(stretches(&world, from, iss), [(0, 300), (300, 500), (500, 600)]);
}
