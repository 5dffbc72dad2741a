//! Very many connections that change hands at once, each with bytes that nobody has read: some of them do at one moment, the others later.

use super::sessions::{completions_of, second_session};
use super::world::{A, B, World, addr, pattern};
use crate::control::listen::Listener;
use crate::control::listener_idx::ListenerIdx;
use crate::engine::hand_out::COPIED_AT_ONCE;
use crate::work::{Change, Changed};
use toe_abi::entry::{Command, Completion};
use toe_base::{AnchorHandle, ListenerId, QueueSetId, SessionId};

const QUEUE_SET: QueueSetId = QueueSetId(0);
const COUNT: usize = 16;
const EACH: usize = 40_000;
/// As many as there are bytes for in one step; what goes beyond it is the last one's.
const AT_ONCE: usize = (COPIED_AT_ONCE as usize).div_ceil(EACH);

/// They wait at B's listener, which two sessions hold and nobody takes from.
fn crowd() -> (World, [(SessionId, ListenerId); 2]) {
    let mut world = World::new();
    let (now, side) = (world.now, &mut world.sides[B]);
    let first = (side.session, side.listen_without_credit(now, addr(B, 80)).expect("listens"));
    let session = second_session(&mut world);
    let side = &mut world.sides[B];
    // Its completions are for the test to look at.
    side.deaf = true;
    let claimed = side.engine.claim(now, session, QUEUE_SET, 3, AnchorHandle(0), &mut side.memory);
    let Ok(Changed::Listener(name)) = claimed else { panic!("{claimed:?}") };
    for _ in 0..COUNT {
        let conn = world.sides[A].connect(world.now, addr(B, 80)).expect("starts");
        assert!(world.run_until(1_000, |w| w.sides[A].conns[conn].established));
        world.sides[A].send(world.now, conn, &pattern(EACH, conn as u32));
        assert!(world.run_until(1_000, |w| w.sides[A].acknowledged(conn) >= EACH as u64));
    }
    assert_eq!(listener(&world).queue.waiting.len(), COUNT);
    (world, [first, (session, name)])
}

fn listener(world: &World) -> &Listener {
    world.sides[B].engine.listeners.get(ListenerIdx(0)).expect("one listens")
}

fn command(world: &mut World, session: SessionId, command: Command) {
    let (now, side) = (world.now, &mut world.sides[B]);
    let done = side.engine.handle_command(now, session, QUEUE_SET, command, &[0; 64], &mut side.memory);
    done.expect("is in order");
}

/// The second session is handed all of them.
fn handed(world: &mut World, (session, name): (SessionId, ListenerId)) {
    world.run_ms(1);
    command(world, session, Command::AcceptCredit { listener: name, count: 64 });
    assert_eq!(listener(world).queue.handed as usize, AT_ONCE, "at one moment");
    world.run_ms(1);
    assert_eq!(listener(world).queue.handed as usize, COUNT, "in the end");
}

/// A thousand of them, with 200 KB each, held the engine's thread for 190 ms.
#[test]
fn handed_to_one_who_has_credit() {
    let (mut world, [_, taker]) = crowd();
    handed(&mut world, taker);
    let told = completions_of(&mut world, taker.0);
    let announced = |told: &Completion| matches!(told, Completion::Data { data, .. } if data.len > 0);
    assert!(told.iter().filter(|told| announced(told)).count() >= COUNT, "with their bytes: {told:?}");
    world.sides[B].engine.view().audit().expect("sound");
}

#[test]
fn back_from_one_who_lets_go_of_the_listener() {
    let (mut world, [_, taker]) = crowd();
    handed(&mut world, taker);
    world.run_ms(1);
    command(&mut world, taker.0, Command::CloseListener { listener: taker.1, last: false });
    assert_eq!(listener(&world).queue.waiting.len(), AT_ONCE, "at one moment");
    world.run_ms(1);
    assert_eq!(
        (listener(&world).queue.waiting.len(), listener(&world).queue.handed),
        (COUNT, 0),
        "in the end"
    );
    world.sides[B].engine.view().audit().expect("sound");
}

#[test]
fn back_from_one_who_makes_a_child() {
    let (mut world, [_, taker]) = crowd();
    handed(&mut world, taker);
    for steps in 1.. {
        world.run_ms(1);
        let (now, side) = (world.now, &mut world.sides[B]);
        let is_more = side.engine.prepare(now, taker.0, Change::Share, &mut side.memory);
        assert_eq!(listener(&world).queue.waiting.len(), COUNT.min(steps * AT_ONCE));
        if !is_more {
            break;
        }
    }
    assert_eq!(listener(&world).queue.handed, 0);
    world.sides[B].engine.view().audit().expect("sound");
}
