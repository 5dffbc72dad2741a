//! Rare meetings of loss, closed windows and closing: each of these once hung, leaked or flooded.

use super::world::{A, B, Faults, World, addr, pattern};
use crate::{Counter, NetworkChange};
use toe_abi::entry::Command;
use toe_wire::link::LinkCaps;

fn frames_from(world: &World, side: usize) -> usize {
    world.log.iter().filter(|(_, from, _)| *from == side).count()
}

/// Every ACK of both is lost: what both send again is old to the other, and its ACK field must count all the same
/// (RFC 9293 would drop it, and both would tell each other so for ever).
#[test]
fn two_ends_that_lost_all_acks_of_each_other_recover() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let (now, data) = (world.now, pattern(14_000, 1));
    world.sides[A].send(now, a, &data);
    world.sides[B].send(now, b, &data);
    world.run_ms(0);
    world.unplugged = true;
    world.run_ms(150);
    world.unplugged = false;
    let before = world.log.len();
    assert!(
        world
            .run_until(2_000, |w| w.sides[A].conns[a].acked == 14_000 && w.sides[B].conns[b].acked == 14_000)
    );
    assert!(world.log.len() - before < 50, "no storm of ACKs: {}", world.log.len() - before);
}

#[test]
fn two_closed_windows_open_again_without_a_storm() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let data = pattern(300_000, 2);
    for side in [A, B] {
        world.sides[side].reads = false;
    }
    let now = world.now;
    world.sides[A].send(now, a, &data);
    world.sides[B].send(now, b, &data);
    world.run_ms(30_000);
    assert!(world.log.len() < 500, "probes only: {}", world.log.len());
    for (side, conn) in [(A, a), (B, b)] {
        world.sides[side].reads = true;
        let now = world.now;
        world.sides[side].read(now, conn);
    }
    assert!(
        world.run_until(60_000, |w| w.sides[A].conns[a].received == data
            && w.sides[B].conns[b].received == data)
    );
}

#[test]
fn a_window_that_fin_fills_exactly_is_no_reason_to_probe() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.sides[B].reads = false;
    // 65,535 less what a scaled window cannot say leaves 65,024; the last number is FIN's.
    let data = pattern(65_023, 3);
    let now = world.now;
    world.sides[A].send(now, a, &data);
    world.run_ms(60_000);
    world.close(A, a);
    let before = frames_from(&world, A);
    world.run_ms(600_000);
    assert!(frames_from(&world, A) - before < 100, "{} frames", frames_from(&world, A) - before);
    assert!(world.sides[A].conns[a].acked == 65_023 || world.sides[A].conns[a].errno.is_some());
    world.sides[B].reads = true;
    let now = world.now;
    world.sides[B].read(now, b);
    assert!(world.sides[B].conns[b].received == data);
}

#[test]
fn a_window_closed_for_hours_does_not_use_up_the_retries() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.sides[B].reads = false;
    let data = pattern(200_000, 4);
    let now = world.now;
    world.sides[A].send(now, a, &data);
    world.run_ms(4 * 3_600_000);
    assert_eq!(world.sides[A].conns[a].errno, None, "the peer answers every probe");
    // The window opens, and what A sends then is lost.
    world.sides[B].reads = true;
    let now = world.now;
    world.sides[B].read(now, b);
    world.run_ms(0);
    world.unplugged = true;
    world.run_ms(1);
    world.unplugged = false;
    assert!(world.run_until(5_000, |w| w.sides[B].conns[b].received == data));
    assert_eq!(world.sides[A].conns[a].errno, None);
}

#[test]
fn a_program_that_is_gone_does_not_probe_a_closed_window_for_ever() {
    let mut world = World::new();
    let (a, _) = world.connected();
    world.sides[B].reads = false;
    let now = world.now;
    world.sides[A].send(now, a, &pattern(200_000, 5));
    world.run_ms(1_000);
    world.close(A, a);
    world.run_ms(3_600_000);
    assert_eq!(world.sides[A].engine.view().totals().flows, 0, "the peer answers, and never reads");
}

#[test]
fn a_shutdown_before_the_handshake_is_complete_still_ends() {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    let flow = world.sides[A].conns[a].id;
    world.sides[A].plain(now, Command::ShutdownSend { flow });
    assert!(world.run_until(1_000, |w| w.sides[B].conns.first().is_some_and(|c| c.eof)));
    world.close(A, a);
    world.close(B, 0);
    world.run_ms(70_000);
    let flows = |side: usize| world.sides[side].engine.view().totals().flows;
    assert_eq!((flows(A), flows(B)), (0, 0));
}

/// Two of three segments are lost until all places for held ranges are taken; what fills the first hole in part must
/// get in although it touches none of them.
#[test]
fn more_holes_than_places_are_filled_from_the_front() {
    let mut world = World::with_caps(LinkCaps::default());
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(400_000, 6), 5_000));
    world.keep_one_in = 3;
    let now = world.now;
    world.sides[A].send(now, conns.0, &pattern(60 * 1448, 7));
    world.run_ms(0);
    world.keep_one_in = 1;
    let all = 400_000 + 60 * 1448;
    assert!(world.run_until(60_000, |w| w.sides[B].conns[conns.1].received.len() == all));
}

/// Whoever sends a SYN through a gateway that does not answer ARP must not keep its record for ever.
#[test]
fn an_answer_that_cannot_be_sent_is_given_up() {
    use toe_base::PortId;
    use toe_wire::link::RxOffload;
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    world.sides[B]
        .engine
        .handle_network(NetworkChange::Gateway { port: PortId(0), gateway: [10, 0, 0, 77].into() });
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    world.run_ms(10);
    let syn = world
        .log
        .iter()
        .map(|(_, _, f)| f)
        .find(|f| f.len() > 50 && f[47] & 0x3f == 2)
        .expect("a SYN")
        .clone();
    let mut far = syn;
    far[26..30].copy_from_slice(&[192, 0, 2, 1]);
    far[24..26].copy_from_slice(&[0, 0]);
    let sum: u32 = far[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    far[24..26].copy_from_slice(&sum.to_be_bytes());
    let offload = RxOffload { checksum_ok: true, coalesced_mss: None };
    let (now, side) = (world.now, &mut world.sides[B]);
    side.engine.handle_frame(now, PortId(0), &far, offload, &mut side.memory);
    assert_eq!(side.engine.view().totals().flows, 2);
    world.run_ms(300_000);
    assert_eq!(world.sides[B].engine.view().totals().flows, 1, "only the real one is left");
    assert_eq!(world.sides[A].conns[a].errno, None);
}

#[test]
fn a_connection_in_time_wait_keeps_what_its_program_has_not_read() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let flow = world.sides[A].conns[a].id;
    let now = world.now;
    world.sides[A].reads = false;
    world.sides[A].plain(now, Command::ShutdownSend { flow });
    world.sides[B].send(now, b, b"last words");
    world.close(B, b);
    world.run_ms(100);
    // More connections than the table has places: others in TIME_WAIT make room.
    for _ in 0..600 {
        let (a, b) = world.connected();
        world.close(A, a);
        world.close(B, b);
        world.run_ms(1);
    }
    world.sides[A].reads = true;
    let now = world.now;
    world.sides[A].read(now, a);
    assert_eq!(world.sides[A].conns[a].received, b"last words");
}

/// A busy client over `local`: TIME_WAIT must not use up table or ports, though hardly any time passes.
#[test]
fn local_connections_come_and_go_by_the_thousand() {
    let number = std::env::var("TOE_LOCAL_CONNECTS").ok().and_then(|n| n.parse().ok()).unwrap_or(5_000);
    let mut world = World::new();
    let now = world.now;
    let at = "127.0.0.1:80".parse().expect("an address");
    world.sides[A].listen(now, at).expect("listens");
    for i in 0..number {
        let now = world.now;
        let client = world.sides[A].connect(now, at).expect("is not refused");
        assert!(
            world.run_until(1_000, |w| w.sides[A].conns.len() == 2 && w.sides[A].conns[client].established)
        );
        // Now the client closes first, now the server.
        world.close(A, i % 2);
        assert!(world.run_until(1_000, |w| w.sides[A].conns[1 - i % 2].eof));
        world.close(A, 1 - i % 2);
        world.run_ms(0);
        world.sides[A].conns.clear();
    }
    world.run_ms(1_000);
    assert_eq!(world.sides[A].engine.view().totals().flows, 0);
}

/// Many local ends that share a memory too small for all of them: nobody waits long once there is room (idle memory
/// comes back after a second).
#[test]
fn a_local_sender_gets_on_soon_after_memory_comes_back() {
    let mut world = World::new();
    let now = world.now;
    let at = "127.0.0.1:80".parse().expect("an address");
    world.sides[A].listen(now, at).expect("listens");
    world.sides[A].reads = false;
    let mut clients = Vec::new();
    for n in 0..120 {
        let now = world.now;
        let client = world.sides[A].connect(now, at).expect("starts");
        assert!(world.run_until(100, |w| w.sides[A].conns.len() == 2 * n + 2));
        clients.push(client);
        let now = world.now;
        for end in [client, client + 1] {
            world.sides[A].send(now, end, &pattern(100_000, n as u32));
            world.sides[A].send(now, end, &pattern(100_000, n as u32));
        }
        world.run_ms(1);
        if world.sides[A].engine.view().counter(Counter::DropNoMemory) > 0 {
            break;
        }
    }
    assert!(world.sides[A].engine.view().counter(Counter::DropNoMemory) > 0, "{} connections", clients.len());
    world.run_ms(60_000);
    world.sides[A].reads = true;
    for conn in 0..world.sides[A].conns.len() {
        let now = world.now;
        world.sides[A].read(now, conn);
    }
    let all = |w: &World| w.sides[A].conns.iter().map(|c| c.received.len()).sum::<usize>();
    assert!(world.run_until(2_000, |w| all(w) == 400_000 * clients.len()), "{}", all(&world));
}

#[test]
fn loss_while_both_close_leaves_nothing() {
    for seed in 0..30 {
        let mut world = World::new();
        world.faults = Faults { drop: 300, reorder: 100, duplicate: 100 };
        world.reseed(seed);
        let now = world.now;
        world.sides[B].listen(now, addr(B, 80)).expect("listens");
        let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
        if !world.run_until(100_000, |w| w.sides[A].conns[a].established && !w.sides[B].conns.is_empty()) {
            continue;
        }
        let now = world.now;
        world.sides[A].send(now, a, b"to B");
        world.sides[B].send(now, 0, b"to A");
        world.run_until(100_000, |w| {
            w.sides[A].conns[a].received.len() + w.sides[B].conns[0].received.len() == 8
        });
        world.close(A, a);
        world.close(B, 0);
        world.run_ms(400_000);
        let flows = |side: usize| world.sides[side].engine.view().totals().flows;
        assert_eq!((flows(A), flows(B)), (0, 0), "seed {seed}");
    }
}
