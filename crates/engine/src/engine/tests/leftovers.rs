//! Connections that no program has any more: how many there may be, and who comes after them.

use super::world::{A, B, World, addr, pattern};
use crate::Counter;
use toe_abi::command::WireAddr;

/// A quarter of the records of an engine in these worlds, and a half.
const ORPHANS: usize = 64;
const TIME_WAITS: usize = 128;

#[test]
fn orphans_beyond_the_limit_are_reset() {
    let mut world = World::new();
    let conns: Vec<_> = (0..ORPHANS + 6).map(|_| world.connected().0).collect();
    world.unplugged = true;
    for conn in conns {
        world.close(A, conn);
    }
    world.run_ms(10);
    let engine = &world.sides[A].engine;
    assert_eq!(engine.view().counter(Counter::OrphansReset), 6);
    assert_eq!(engine.view().totals().flows, ORPHANS, "the others go on trying");
    world.run_ms(3_600_000);
    assert_eq!(world.sides[A].engine.view().totals().flows, 0, "not for ever");
    world.unplugged = false;
    let (a, _) = world.connected();
    world.close(A, a);
    world.run_ms(10);
    assert_eq!(
        world.sides[A].engine.view().counter(Counter::OrphansReset),
        6,
        "all of them are gone from the count"
    );
}

/// Peers that never acknowledge a FIN take no bytes from those of other connections.
#[test]
fn an_orphan_whose_peer_has_all_makes_room_for_one_with_bytes() {
    let mut world = World::new();
    let (last, peer) = world.connected();
    let silent: Vec<_> = (0..ORPHANS).map(|_| world.connected().0).collect();
    world.unplugged = true;
    for conn in silent {
        world.close(A, conn);
    }
    world.run_ms(10);
    world.sides[A].send(world.now, last, &pattern(100_000, 1));
    world.close(A, last);
    assert_eq!(world.sides[A].engine.view().counter(Counter::OrphansReset), 1);
    assert_eq!(world.sides[A].engine.view().totals().flows, ORPHANS);
    world.unplugged = false;
    assert!(world.run_until(10_000, |w| w.sides[B].conns[peer].eof));
    assert!(world.sides[B].conns[peer].received == pattern(100_000, 1));
}

#[test]
fn the_oldest_in_time_wait_make_room() {
    let mut world = World::new();
    for _ in 0..TIME_WAITS + 20 {
        let (a, b) = world.connected();
        world.close(A, a);
        world.run_ms(5);
        world.close(B, b);
        world.run_ms(5);
    }
    let engine = &world.sides[A].engine;
    let waiting =
        engine.view().sockets(world.now).iter().filter(|socket| socket.state == "TIME-WAIT").count();
    assert_eq!(waiting, TIME_WAITS);
    assert_eq!(engine.view().counter(Counter::TimeWaitEvicted), 20);
    world.run_ms(61_000);
    assert_eq!(world.sides[A].engine.view().totals().flows, 0);
}

/// Nothing but the name and a few numbers is kept of it, and the name is free again after the same time.
#[test]
fn without_its_program_a_connection_in_time_wait_has_a_small_record() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.close(A, a);
    world.close(B, b);
    world.run_ms(100);
    let engine = &world.sides[A].engine;
    assert_eq!((engine.flows.indices().count(), engine.flows.time_waits.len()), (0, 1));
    assert_eq!((engine.view().totals().flows, engine.view().audit()), (1, Ok(())));
    let (_, waiting) = engine.flows.time_waits.iter().next().expect("it waits");
    assert!(engine.flows.named(&waiting.key).is_some() && engine.view().has_flows_at(waiting.key.local.addr));
    world.sides[A].engine.rebuild_derived();
    world.run_ms(61_000);
    let engine = &world.sides[A].engine;
    assert_eq!((engine.view().totals().flows, engine.names.in_use.len()), (0, 0));
}

#[test]
fn a_new_connection_from_a_named_port_takes_the_place_of_one_in_time_wait() {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    let connect = |world: &mut World| {
        let (now, from) = (world.now, WireAddr::from(addr(A, 5_000)));
        world.sides[A].connect_from(now, from, addr(B, 80))
    };
    let first = connect(&mut world).expect("starts");
    assert!(world.run_until(1_000, |w| w.sides[A].conns[first].established && !w.sides[B].conns.is_empty()));
    world.close(A, first);
    world.run_ms(5);
    world.close(B, 0);
    world.run_ms(5);
    assert_eq!(world.sides[A].engine.view().sockets(world.now)[0].state, "TIME-WAIT");
    let second = connect(&mut world).expect("starts");
    assert!(world.run_until(1_000, |w| w.sides[A].conns[second].established && w.sides[B].conns.len() == 2));
    assert_eq!(world.sides[A].engine.view().counter(Counter::TimeWaitReused), 1);
    let data = pattern(50_000, 1);
    assert!(world.transfer(A, (second, 1), &data, 5_000) && world.transfer(B, (second, 1), &data, 5_000));
}
