//! What hinders a connection and does not end it: who hears of it, and when it is forgotten.

use super::pieces::{frame_of_a, gets, lost_on_the_way, unreachable};
use super::world::{A, B, LAYOUT, World, addr, addr6, pattern};
use crate::Changed;
use toe_abi::entry::{Command, Completion, FlowOption};
use toe_abi::errno::Errno;
use toe_base::QueueSetId;

const LEN: usize = 1000;

fn set(world: &mut World, conn: usize, option: FlowOption, value: u32) {
    let flow = world.sides[A].conns[conn].id;
    world.sides[A].plain(world.now, Command::SetOption { flow, option, value });
}

/// A hears that what it sent last did not reach B's host.
fn host_unreachable(world: &mut World) {
    let frame = frame_of_a(world, LEN);
    gets(world, A, &unreachable(&frame, 1, 3));
    world.run_ms(0);
}

/// What the flow's information says: the error and how many there were.
fn noted(world: &World) -> (Errno, u8) {
    let info = world.sides[A].memory.infos.last().expect("A has connected");
    (Errno(info.soft_error.into()), info.soft_errors)
}

#[test]
fn who_asked_is_told_of_each_and_nothing_is_noted() {
    for at in [addr(B, 80), addr6(B, 80)] {
        let (mut world, (a, b)) = lost_on_the_way(at, &pattern(LEN, 5));
        set(&mut world, a, FlowOption::SoftErrors, 1);
        host_unreachable(&mut world);
        host_unreachable(&mut world);
        assert_eq!(world.sides[A].conns[a].soft_errors, [Errno::EHOSTUNREACH; 2], "{at}");
        assert_eq!(noted(&world), (Errno::OK, 0));
        assert!(world.run_until(10_000, |w| w.sides[B].conns[b].received.len() == LEN), "it goes on");
        assert_eq!(world.sides[A].conns[a].errno, None);
    }
}

#[test]
fn of_those_that_a_host_does_not_read_the_last_is_told() {
    let (mut world, (a, _)) = lost_on_the_way(addr(B, 80), &pattern(LEN, 5));
    set(&mut world, a, FlowOption::SoftErrors, 1);
    let frame = frame_of_a(&world, LEN);
    gets(&mut world, A, &unreachable(&frame, 0, 0));
    gets(&mut world, A, &unreachable(&frame, 1, 3));
    world.run_ms(0);
    assert_eq!(world.sides[A].conns[a].soft_errors, [Errno::EHOSTUNREACH]);
}

#[test]
fn what_nobody_asked_for_is_noted_until_the_peer_acknowledges_something() {
    let (mut world, (a, _)) = lost_on_the_way(addr(B, 80), &pattern(LEN, 5));
    assert_eq!(noted(&world), (Errno::OK, 0));
    host_unreachable(&mut world);
    assert_eq!(noted(&world), (Errno::EHOSTUNREACH, 1));
    host_unreachable(&mut world);
    assert_eq!(noted(&world), (Errno::EHOSTUNREACH, 2));
    world.run_ms(10_000);
    assert_eq!(noted(&world), (Errno::OK, 2), "it was sent again, and arrived");
    assert_eq!(world.sides[A].conns[a].soft_errors, []);
}

#[test]
fn a_connection_that_is_given_up_ends_with_what_was_noted_last() {
    for (tells, errno) in [(true, Errno::EHOSTUNREACH), (false, Errno::ETIMEDOUT)] {
        let (mut world, (a, _)) = lost_on_the_way(addr(B, 80), &pattern(LEN, 5));
        if tells {
            host_unreachable(&mut world);
        }
        world.unplugged = true;
        world.run_ms(2_000_000);
        assert_eq!(world.sides[A].conns[a].errno, Some(errno));
    }
}

#[test]
fn retransmissions_that_reach_r1_are_told_to_who_asked_for_that_too() {
    for (asks, told) in [(0, &[][..]), (1, &[]), (2, &[Errno::ETIMEDOUT])] {
        let (mut world, (a, _)) = lost_on_the_way(addr(B, 80), &pattern(LEN, 5));
        set(&mut world, a, FlowOption::SoftErrors, asks);
        world.unplugged = true;
        world.run_ms(60_000);
        assert_eq!((&world.sides[A].conns[a].soft_errors[..], world.sides[A].conns[a].errno), (told, None));
    }
}

#[test]
fn what_the_last_holder_had_not_been_told_the_next_one_hears() {
    let (mut world, (a, _)) = lost_on_the_way(addr(B, 80), &pattern(LEN, 5));
    set(&mut world, a, FlowOption::SoftErrors, 1);
    world.sides[A].deaf = true;
    world.sides[A].memory.ring_len = 0;
    host_unreachable(&mut world);
    world.sides[A].memory.ring_len = 100;
    let side = &mut world.sides[A];
    let anchor = side.conns[a].anchor;
    let next = side.engine.open_session(toe_base::Cred::of_user(1000), LAYOUT).expect("room");
    side.engine.add_queue_set(next).expect("room");
    let claimed = side.engine.claim(world.now, next, QueueSetId(0), 9, anchor, &mut side.memory);
    let Ok(Changed::Flow(flow, _)) = claimed else { panic!("{claimed:?}") };
    side.memory.hear(&mut side.engine);
    let told = &side.memory.completions[next.index()];
    assert!(told.contains(&Completion::SoftError { flow, errno: Errno::EHOSTUNREACH }), "{told:?}");
}
