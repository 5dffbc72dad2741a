//! Fast Open between two engines: bytes in the SYN, whatever becomes of it. (What a peer is told, and when, is in the scripts of
//! RFC 7413.)

use super::world::{A, B, Faults, World, addr, pattern};
use crate::Counter;
use toe_abi::entry::Command;

/// B listens for Fast Open, and A has a cookie of B's.
pub(super) fn acquainted() -> World {
    let mut world = World::new();
    let now = world.now;
    let listener = world.sides[B].listen(now, addr(B, 80)).expect("listens");
    world.sides[B].plain(now, Command::FastOpen { listener, limit: 64 });
    world.sides[A].fast = true;
    let conns = world.connected();
    assert_eq!(world.sides[B].engine.view().counter(Counter::FastOpenAsked), 1);
    assert!(world.transfer(A, conns, b"hello", 1000));
    world
}

/// Frames that A has sent.
fn frames_of_a(world: &World) -> usize {
    world.log.iter().filter(|(_, from, _)| *from == A).count()
}

#[test]
fn bytes_go_with_the_syn_and_are_read_before_the_handshake_is_complete() {
    let mut world = acquainted();
    let (now, frames) = (world.now, frames_of_a(&world));
    let a = world.sides[A].connect(now, addr(B, 80)).expect("connects");
    world.run_ms(100);
    assert_eq!(frames_of_a(&world), frames, "the SYN waits for them");
    let data = pattern(5000, 3);
    let now = world.now;
    world.sides[A].send(now, a, &data);
    assert!(world.run_until(10, |w| w.sides[B].conns.len() == 2 && !w.sides[B].conns[1].received.is_empty()));
    assert!(!world.sides[A].conns[a].established, "its SYN-ACK is on its way");
    let syn = world.log.iter().filter(|(_, from, _)| *from == A).nth(frames).expect("it has gone");
    assert!((1400..=1514).contains(&syn.2.len()), "{} bytes: what fits one frame", syn.2.len());
    world.sides[B].engine.view().audit().expect("counts agree");
    assert!(world.run_until(1000, |w| w.sides[B].conns[1].received == data));
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].acked == 5000));
    assert!(world.transfer(B, (a, 1), &data, 1000));
    let sent = |side: usize, counter| world.sides[side].engine.view().counter(counter);
    assert_eq!((sent(A, Counter::FastOpenSent), sent(B, Counter::FastOpenReceived)), (1, 1));
    world.sides[B].engine.view().audit().expect("counts agree");
}

#[test]
fn a_connect_that_waits_for_bytes_leaves_nothing_when_none_come() {
    let mut world = acquainted();
    let (now, frames) = (world.now, frames_of_a(&world));
    let flows = world.sides[A].engine.view().totals().flows;
    let a = world.sides[A].connect(now, addr(B, 80)).expect("connects");
    world.run_ms(600_000);
    world.close(A, a);
    world.run_ms(100);
    assert_eq!((frames_of_a(&world), world.sides[A].engine.view().totals().flows), (frames, flows));
}

#[test]
fn streams_are_whole_on_a_bad_path() {
    let mut world = acquainted();
    world.faults = Faults { drop: 100, reorder: 100, duplicate: 50 };
    for n in 0..60 {
        let (now, before) = (world.now, world.sides[B].conns.len());
        let a = world.sides[A].connect(now, addr(B, 80)).expect("connects");
        let data = pattern(100 + 80 * n as usize, n);
        world.sides[A].send(now, a, &data);
        let arrived = |w: &World| w.sides[B].conns.get(before).is_some_and(|c| c.received == data);
        assert!(world.run_until(120_000, arrived), "connection {n}");
        assert!(world.transfer(B, (a, before), &data, 120_000), "connection {n}");
        world.close(A, a);
        world.close(B, before);
        world.sides[B].engine.view().audit().expect("counts agree");
        // What one network did is not held against the next.
        world.run_ms(3_600_000);
    }
    let engine = world.sides[A].engine.view();
    assert!(engine.counter(Counter::FastOpenSent) > 20, "{}", engine.counter(Counter::FastOpenSent));
    assert!(engine.counter(Counter::FastOpenLost) > 0, "some SYN got lost");
}

#[test]
fn what_came_early_ends_with_its_listener_and_its_place_is_free() {
    let mut world = acquainted();
    world.sides[B].deaf = true;
    let now = world.now;
    let a = world.sides[A].connect(now, addr(B, 80)).expect("connects");
    world.sides[A].send(now, a, b"too late");
    let received = |w: &World| w.sides[B].engine.view().counter(Counter::FastOpenReceived) == 1;
    assert!(world.run_until(10, received));
    world.sides[B].engine.view().audit().expect("counts agree");
    let (now, listener) = (world.now, world.sides[B].listeners[0]);
    world.sides[B].plain(now, Command::CloseListener { listener, last: true });
    world.sides[B].engine.view().audit().expect("counts agree");
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].errno.is_some()));
    world.run_ms(200_000);
    assert_eq!(world.sides[B].engine.view().totals().flows, 1, "the connection that was accepted");
}

/// The window in a frame of IPv4.
fn window(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[48], frame[49]])
}

#[test]
fn the_windows_edge_stays_where_the_syn_found_it() {
    let mut world = acquainted();
    let from = world.log.len();
    let now = world.now;
    let a = world.sides[A].connect(now, addr(B, 80)).expect("connects");
    world.sides[A].send(now, a, &pattern(1000, 1));
    world.run_ms(100);
    let syn_ack = world.log[from..].iter().find(|(_, from, _)| *from == B).expect("it answers");
    assert_eq!(u32::from(window(&syn_ack.2)), 65_535 - 1000, "the bytes of the SYN are in it");
}
