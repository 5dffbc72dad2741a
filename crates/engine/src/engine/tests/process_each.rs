//! A listener whose program makes a process for each connection.

use super::sessions::second_session;
use super::world::{B, LAYOUT, Side, World};
use core::net::SocketAddr;
use toe_abi::command::{LISTEN_KERNEL_TOO, ListenArgs, WireAddr};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::QueueSetId;

/// Many connections to `at`, each claimed by a process that has nothing else; what who connects next is told.
fn after_many_processes(at: SocketAddr, flags: u32) -> (World, Result<usize, Errno>) {
    let mut world = World::new();
    world.sides[B].kernel_too = true;
    let now = world.now;
    let side = &mut world.sides[B];
    let twin = side.next_twin(now, at.into());
    let twin = side.show(crate::control::names::Twin { listens: true, ..twin });
    let args = ListenArgs { local: at.into(), backlog: 64, twin, flags, ..Default::default() };
    side.listen_as(now, args).expect("free");
    for _ in 0..200 {
        let (now, side) = (world.now, &mut world.sides[B]);
        let before = side.conns.len();
        if let Err(errno) = side.connect_from(now, WireAddr::default(), at) {
            return (world, Err(errno));
        }
        assert!(world.run_until(1000, |w| w.sides[B].conns.len() == before + 2), "accepted");
        let child = second_session(&mut world);
        let (now, side) = (world.now, &mut world.sides[B]);
        let anchor = side.conns[before + 1].anchor;
        let Side { engine, memory, .. } = side;
        engine.claim(now, child, QueueSetId(0), 3, anchor, memory).expect("claimed");
        engine.close_session(now, child, memory);
        let flow = side.conns[before].id;
        side.plain(now, Command::Close { flow, abort: true });
        world.run_ms(1);
        world.sides[B].engine.forget_session(child);
    }
    let now = world.now;
    let outcome = world.sides[B].connect_from(now, WireAddr::default(), at);
    (world, outcome)
}

fn lo() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8080))
}

#[test]
fn clients_of_this_host_are_left_to_the_kernel_for_a_while() {
    let (mut world, outcome) = after_many_processes(lo(), LISTEN_KERNEL_TOO);
    assert_eq!(outcome, Err(Errno::EHOSTDOWN));
    let now = world.now;
    world.sides[B].kernel_too = false;
    assert!(
        world.sides[B].connect_from(now, WireAddr::default(), lo()).is_ok(),
        "one that has nowhere else to go"
    );
    world.sides[B].kernel_too = true;
    world.run_ms(11_000);
    let now = world.now;
    assert!(world.sides[B].connect_from(now, WireAddr::default(), lo()).is_ok(), "it is tried again");
}

#[test]
fn a_connection_that_goes_back_and_forth_counts_once() {
    let mut world = World::new();
    world.sides[B].kernel_too = true;
    let now = world.now;
    let side = &mut world.sides[B];
    let twin = side.next_twin(now, lo().into());
    let twin = side.show(crate::control::names::Twin { listens: true, ..twin });
    let args =
        ListenArgs { local: lo().into(), backlog: 64, twin, flags: LISTEN_KERNEL_TOO, ..Default::default() };
    side.listen_as(now, args).expect("free");
    side.connect_from(now, WireAddr::default(), lo()).expect("the engine's");
    assert!(world.run_until(1000, |w| w.sides[B].conns.len() == 2), "accepted");
    // Of the listener's own user.
    let children = [(); 2].map(|()| {
        let engine = &mut world.sides[B].engine;
        let child = engine.open_session(toe_base::Cred::default(), LAYOUT).expect("room");
        engine.add_queue_set(child).expect("room");
        child
    });
    for n in 0..400 {
        let (now, side) = (world.now, &mut world.sides[B]);
        let anchor = side.conns[1].anchor;
        let Side { engine, memory, .. } = side;
        engine.claim(now, children[n % 2], QueueSetId(0), 3, anchor, memory).expect("claimed");
        world.run_ms(1);
    }
    for child in children {
        let (now, side) = (world.now, &mut world.sides[B]);
        let Side { engine, memory, .. } = side;
        engine.close_session(now, child, memory);
    }
    let now = world.now;
    assert!(world.sides[B].connect_from(now, WireAddr::default(), lo()).is_ok());
}

#[test]
fn where_only_the_engine_has_the_listener_they_stay() {
    assert!(after_many_processes(lo(), 0).1.is_ok());
    // An address of a link may be the engine's alone.
    assert!(after_many_processes(super::world::addr(B, 80), LISTEN_KERNEL_TOO).1.is_ok());
}

/// A listener of a session that never asks for a connection: a worker of another user, say, which may not attach, is to have them.
fn never_taken_from(at: SocketAddr, flags: u32) -> World {
    let mut world = World::new();
    world.sides[B].kernel_too = true;
    let now = world.now;
    let side = &mut world.sides[B];
    let twin = side.next_twin(now, at.into());
    let twin = side.show(crate::control::names::Twin { listens: true, ..twin });
    let args = ListenArgs { local: at.into(), backlog: 64, twin, flags, ..Default::default() };
    side.listen_untaken(now, args).expect("free");
    side.connect_from(now, WireAddr::default(), at).expect("the engine's");
    world.run_ms(900);
    let now = world.now;
    assert!(world.sides[B].connect_from(now, WireAddr::default(), at).is_ok(), "somebody may come to it yet");
    world.run_ms(200);
    world
}

#[test]
fn one_that_nobody_takes_from_is_left_to_the_kernel_until_somebody_does() {
    let mut world = never_taken_from(lo(), LISTEN_KERNEL_TOO);
    let now = world.now;
    assert_eq!(world.sides[B].connect_from(now, WireAddr::default(), lo()), Err(Errno::EHOSTDOWN));
    let side = &mut world.sides[B];
    let listener = *side.listeners.last().expect("listens");
    side.plain(now, Command::AcceptCredit { listener, count: 8 });
    assert!(world.run_until(1000, |w| w.sides[B].conns.len() == 4), "what waited is accepted");
    let now = world.now;
    assert!(world.sides[B].connect_from(now, WireAddr::default(), lo()).is_ok());
}

#[test]
fn one_that_nobody_takes_from_and_that_the_kernel_has_not_stays() {
    for (at, flags) in [(lo(), 0), (super::world::addr(B, 80), LISTEN_KERNEL_TOO)] {
        let mut world = never_taken_from(at, flags);
        let now = world.now;
        assert!(world.sides[B].connect_from(now, WireAddr::default(), at).is_ok());
    }
}
