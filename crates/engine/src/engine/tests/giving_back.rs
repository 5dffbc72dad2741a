//! Pages that go back to the system by the driver, which takes its time: what is theirs is nobody's until it says so.

use super::sessions::second_session;
use super::world::{A, B, LAYOUT, World, pattern};
use crate::Claimed;
use crate::hostif::users::{Resource, UserIdx};
use toe_abi::errno::Errno;
use toe_base::{Cred, QueueSetId, SessionId};

const MIB: usize = 1 << 20;

/// B's programs have received much, are idle, and what they do not need any more is about to go back.
fn with_pages_on_their_way() -> (World, (usize, usize)) {
    let mut world = World::new();
    world.sides[B].memory.gives_back_later = true;
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(3 * MIB, 1), 20_000));
    world.run_ms(5_000);
    let side = &world.sides[B];
    let going_back: u64 = side.memory.going_back.iter().map(|(_, _, len)| u64::from(*len)).sum();
    assert!(going_back > 0, "its blocks go back");
    let arena = &side.engine.hostif.sessions.get(side.session).expect("open").receive.arena;
    assert_eq!((arena.used(), arena.retired()), (going_back, going_back));
    (world, conns)
}

fn report_all(world: &mut World, gone: bool) {
    let side = &mut world.sides[B];
    for (session, offset, len) in std::mem::take(&mut side.memory.going_back) {
        if gone {
            side.memory.spoil((session, offset, len));
        }
        side.engine.hostif.handle_given_back(session, offset, len, gone);
    }
}

#[test]
fn what_is_on_its_way_is_not_handed_out() {
    let (mut world, conns) = with_pages_on_their_way();
    let before = world.sides[B].conns[conns.1].received.len();
    world.sides[B].reads = false;
    let now = world.now;
    world.sides[A].send(now, conns.0, &pattern(50_000, 7));
    world.run_ms(1_000);
    // The pages go now, with whatever is there.
    let reported = world.sides[B].memory.going_back.len();
    report_all(&mut world, true);
    world.sides[B].reads = true;
    let now = world.now;
    world.sides[B].read(now, conns.1);
    assert!(world.run_until(5_000, |w| w.sides[B].conns[conns.1].received.len() == before + 50_000));
    assert!(
        world.sides[B].conns[conns.1].received[before..] == pattern(50_000, 7),
        "it was written elsewhere"
    );
    assert!(reported > 0);
    let arena =
        &world.sides[B].engine.hostif.sessions.get(world.sides[B].session).expect("open").receive.arena;
    assert_eq!(arena.retired(), 0);
    world.sides[B].engine.view().audit().expect("sound");
}

#[test]
fn a_session_ends_whatever_is_on_its_way_and_its_successor_hears_nothing_of_it() {
    let (mut world, _) = with_pages_on_their_way();
    let now = world.now;
    let side = &mut world.sides[B];
    let session = side.session;
    side.engine.close_session(now, session, &mut side.memory);
    while side.engine.poll_local(now, &mut side.memory, 64) > 0 {}
    assert!(side.engine.hostif.is_drained(session), "though {:?}", side.memory.going_back);
    side.engine.forget_session(session);
    let late = side.memory.going_back[0];
    side.engine.hostif.handle_given_back(late.0, late.1, late.2, true);
    assert_eq!(side.engine.open_session(Cred::default(), LAYOUT), Ok(session), "the number is used again");
    report_all(&mut world, true);
    let side = &mut world.sides[B];
    let arena = &side.engine.hostif.sessions.get(session).expect("open").receive.arena;
    assert_eq!((arena.used(), arena.retired(), arena.touched()), (0, 0, 0));
    side.engine.view().audit().expect("sound");
    side.engine.view().audit().expect("sound");
}

fn charged(world: &World) -> u64 {
    let users = world.sides[B].engine.view().users();
    users.by_cred(toe_base::Cred::of_user(0)).map_or(0, |user| user.used(Resource::ReceiveMemory))
}

/// B's session has pages that nobody needs, and none of them are on their way.
fn with_pages_to_trim() -> (World, (usize, usize)) {
    let (mut world, conns) = with_pages_on_their_way();
    report_all(&mut world, true);
    let session = world.sides[B].session;
    let arena = world.sides[B].engine.hostif.sessions.arena(session, UserIdx::NOBODY);
    let large = arena.alloc(4 << 20).expect("room");
    arena.free(large);
    // What an arena has cost shows once it is asked for again.
    world.sides[B].engine.hostif.sessions.users_mut();
    (world, conns)
}

/// Found by a bench: the engine woke up a thousand times in the second before pages were to go back.
#[test]
fn nobody_looks_at_pages_before_they_are_to_go_back() {
    let (mut world, _) = with_pages_to_trim();
    let now = world.now;
    let side = &mut world.sides[B];
    assert!(side.engine.view().trim_due().is_some_and(|due| due <= now), "once, to see since when");
    assert!(!side.engine.poll_trim(now, &mut side.memory));
    assert_eq!(side.engine.view().trim_due(), Some(now.after_us(1_000_000)));
    assert!(!side.engine.poll_trim(now.after_us(999_999), &mut side.memory));
    assert!(side.engine.poll_trim(now.after_us(1_000_000), &mut side.memory));
}

/// The next trim, of which nobody has said yet that it is over.
fn trim(world: &mut World) -> (SessionId, u64, u32) {
    let side = &mut world.sides[B];
    for second in 0..3 {
        side.engine.poll_trim(world.now.after_us(second * 1_000_001), &mut side.memory);
    }
    assert_eq!(side.memory.going_back.len(), 1, "one at a time");
    side.memory.going_back[0]
}

/// Found by fresh eyes: what one user had once made the engine take it kept for good.
#[test]
fn staging_memory_that_nobody_needs_goes_back_in_small_steps() {
    let mut world = World::new();
    let (now, side) = (world.now, &mut world.sides[B]);
    let staging = SessionId(0);
    let large = side.engine.hostif.sessions.arena(staging, UserIdx::NOBODY).alloc(4 << 20).expect("room");
    side.engine.hostif.sessions.arena(staging, UserIdx::NOBODY).free(large);
    side.engine.hostif.sessions.users_mut();
    assert!(!side.engine.poll_trim(now, &mut side.memory));
    side.memory.gives_back_later = false;
    let (later, mut steps) = (now.after_us(1_000_000), 0);
    while side.engine.poll_trim(later, &mut side.memory) {
        steps += 1;
    }
    let arena = side.engine.hostif.sessions.arena(staging, UserIdx::NOBODY);
    assert!(steps >= 7 && arena.touched() <= 512 << 10, "{steps} {}", arena.touched());
}

#[test]
fn pages_that_are_trimmed_are_charged_until_they_are_gone() {
    let (mut world, conns) = with_pages_to_trim();
    let session = world.sides[B].session;
    let before = charged(&world);
    assert!(before > 2 << 20, "{before}");
    let (_, offset, len) = trim(&mut world);
    assert_eq!(charged(&world), before, "they may be there");
    assert_eq!(world.sides[B].engine.view().trim_due(), None, "nobody has to look again before it is over");
    let arena = world.sides[B].engine.hostif.sessions.arena(session, UserIdx::NOBODY);
    assert_eq!(arena.trimmed_from(), Some(offset));
    let taken = arena.alloc(4096).expect("before where it begins");
    assert!(taken.offset() < offset);
    arena.free(taken);
    assert!(world.transfer(A, conns, &pattern(MIB, 2), 20_000), "in what is left");
    // They stayed: nobody is told otherwise.
    world.run_ms(5_000);
    world.sides[B].memory.going_back.retain(|range| range.1 != offset);
    world.sides[B].engine.hostif.handle_given_back(session, offset, len, false);
    assert_eq!(charged(&world), before);
    report_all(&mut world, true);
    let (_, _, len) = trim(&mut world);
    report_all(&mut world, true);
    assert_eq!(charged(&world), before - u64::from(len));
    world.sides[B].engine.view().audit().expect("sound");
}

#[test]
fn a_session_whose_memory_is_being_trimmed_may_claim_when_that_is_over() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.sides[B].reads = false;
    let now = world.now;
    world.sides[A].send(now, a, b"not read");
    world.run_ms(10);
    let child = second_session(&mut world);
    world.sides[B].memory.gives_back_later = true;
    let arena = world.sides[B].engine.hostif.sessions.arena(child, UserIdx::NOBODY);
    let large = arena.alloc(4 << 20).expect("room");
    arena.free(large);
    let (session, offset, len) = trim(&mut world);
    assert_eq!(session, child);
    let arena = world.sides[B].engine.hostif.sessions.arena(child, UserIdx::NOBODY);
    let held: Vec<_> = std::iter::from_fn(|| arena.alloc(4096)).collect();
    assert!(held.iter().all(|block| block.offset() < offset), "the rest is out of reach");
    let claim = |world: &mut World| {
        let side = &mut world.sides[B];
        let anchor = side.conns[b].anchor;
        side.engine.claim(world.now, child, QueueSetId(0), 9, anchor, &mut side.memory)
    };
    assert_eq!(claim(&mut world).err(), Some(Errno::EAGAIN));
    world.sides[B].memory.going_back.clear();
    world.sides[B].engine.hostif.handle_given_back(child, offset, len, true);
    assert!(matches!(claim(&mut world), Ok(Claimed::Flow(_, _))));
    let arena = world.sides[B].engine.hostif.sessions.arena(child, UserIdx::NOBODY);
    held.into_iter().for_each(|block| arena.free(block));
    world.sides[B].engine.view().audit().expect("sound");
}
