//! What several processes have: listeners that each asks, flows that go from one to the other and back.

use super::sessions::{completions_of, second_session};
use super::world::{A, B, World, addr};
use crate::control::listener_idx::ListenerIdx;
use crate::work::{Change, Changed};
use toe_abi::attach::FenceReason;
use toe_abi::entry::{Command, Completion};
use toe_base::{AnchorHandle, ListenerId, QueueSetId, SessionId};

const QUEUE_SET: QueueSetId = QueueSetId(0);

/// Side B listens by its own session and by a second one; both take connections.
struct Both {
    world: World,
    sessions: [SessionId; 2],
    names: [ListenerId; 2],
}

impl Both {
    fn new() -> Both {
        let mut world = World::new();
        let now = world.now;
        let first = world.sides[B].listen(now, addr(B, 80)).expect("listens");
        let child = second_session(&mut world);
        let side = &mut world.sides[B];
        // The first one's completions are for the test to look at.
        side.deaf = true;
        let parent = side.session;
        let claimed = side.engine.claim(now, child, QUEUE_SET, 3, AnchorHandle(0), &mut side.memory);
        let Ok(Changed::Listener(second)) = claimed else { panic!("{claimed:?}") };
        let mut both = Both { world, sessions: [parent, child], names: [first, second] };
        both.command(1, |listener| Command::AcceptCredit { listener, count: 1 }).expect("there is room");
        both.told();
        both
    }

    fn command(&mut self, who: usize, make: impl FnOnce(ListenerId) -> Command) -> Result<(), FenceReason> {
        let (now, side) = (self.world.now, &mut self.world.sides[B]);
        let command = make(self.names[who]);
        side.engine.handle_command(now, self.sessions[who], QUEUE_SET, command, &[0; 64], &mut side.memory)
    }

    fn ask(&mut self, who: usize) -> Result<(), FenceReason> {
        self.command(who, |listener| Command::TakeConnection { listener })
    }

    /// What both are told, without what is of no interest here.
    fn told(&mut self) -> [Vec<Completion>; 2] {
        self.sessions.map(|session| completions_of(&mut self.world, session))
    }

    fn connects(&mut self) {
        connects(&mut self.world);
    }
}

/// A connects to B; ends when B knows, and has told whoever is to be told at once.
fn connects(world: &mut World) {
    let now = world.now;
    world.sides[A].connect(now, addr(B, 80)).expect("starts");
    let there = |world: &World| {
        let listener = world.sides[B].engine.listeners.get(ListenerIdx(0)).expect("one listens");
        listener.queue.waiting.len() + listener.queue.handed as usize
    };
    let before = there(world);
    assert!(world.run_until(1000, |world| there(world) > before));
}

fn waits(told: &[Completion]) -> usize {
    told.iter().filter(|c| matches!(c, Completion::ConnectionsWait { .. })).count()
}

fn accepted(told: &[Completion]) -> usize {
    told.iter().filter(|c| matches!(c, Completion::Accepted { .. })).count()
}

fn nothing(told: &[Completion], answers: bool) -> bool {
    told.iter().any(|c| matches!(c, Completion::NothingWaits { answer, .. } if *answer == answers))
}

#[test]
fn one_is_told_at_once_and_all_when_it_does_not_come() {
    let mut both = Both::new();
    both.connects();
    let told = both.told();
    assert_eq!(waits(&told[0]) + waits(&told[1]), 1, "{told:?}");
    assert_eq!(accepted(&told[0]) + accepted(&told[1]), 0, "nothing is handed out in advance");
    let first = usize::from(waits(&told[1]) == 1);
    both.world.run_ms(5);
    let told = both.told();
    assert_eq!((waits(&told[first]), waits(&told[1 - first])), (0, 1), "the other, a moment later");

    both.ask(1 - first).expect("it is asked for");
    let told = both.told();
    assert_eq!(accepted(&told[1 - first]), 1);
    assert!(nothing(&told[first], false), "it need not ask any more: {told:?}");
    both.ask(first).expect("it may ask all the same");
    assert!(nothing(&both.told()[first], true));
}

#[test]
fn who_asks_on_and_on_and_takes_no_answer_is_fenced_and_not_stored_for() {
    let mut both = Both::new();
    both.world.sides[B].memory.ring_len = 0;
    let fenced = (0..100_000).find_map(|_| both.ask(1).err());
    assert_eq!(fenced, Some(FenceReason::CompletionOverflow));
}

#[test]
fn a_listener_whose_credit_is_used_up_hears_of_connections_after_a_child_was_made() {
    let mut world = World::new();
    let now = world.now;
    let listener = world.sides[B].listen(now, addr(B, 80)).expect("listens");
    let side = &mut world.sides[B];
    side.deaf = true;
    let session = side.session;
    let mut handed = 0;
    while accepted(&completions_of(&mut world, session)) > 0 || handed == 0 {
        connects(&mut world);
        handed += 1;
        assert!(handed < 10_000, "credit ends");
    }
    // Its program has taken none of them when the child comes.
    let (now, side) = (world.now, &mut world.sides[B]);
    side.engine.change(now, session, Change::Share, &mut side.memory).expect("shares");
    assert_eq!(waits(&completions_of(&mut world, session)), 1, "those that were handed wait again");
    for _ in 0..handed {
        let (now, side) = (world.now, &mut world.sides[B]);
        let take = Command::TakeConnection { listener };
        side.engine.handle_command(now, session, QUEUE_SET, take, &[0; 64], &mut side.memory).expect("asks");
        assert_eq!(accepted(&completions_of(&mut world, session)), 1);
    }
}

#[test]
fn connections_that_are_given_back_wait_in_the_order_in_which_they_came() {
    let mut world = World::new();
    world.sides[B].listen(world.now, addr(B, 80)).expect("listens");
    world.sides[B].deaf = true;
    let session = world.sides[B].session;
    for _ in 0..3 {
        connects(&mut world);
    }
    assert_eq!(accepted(&completions_of(&mut world, session)), 3, "all are handed out");
    let (now, side) = (world.now, &mut world.sides[B]);
    side.engine.change(now, session, Change::Share, &mut side.memory).expect("shares");
    let listener = side.engine.listeners.get(ListenerIdx(0)).expect("one listens");
    let order: Vec<u64> = listener
        .queue
        .waiting
        .iter()
        .map(|f| side.engine.flows.get(*f).conn.tenancy.arrival().expect("it waits"))
        .collect();
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn connections_at_a_listener_that_nobody_holds_are_refused_after_a_minute() {
    let mut both = Both::new();
    both.connects();
    for session in both.sessions {
        let (now, side) = (both.world.now, &mut both.world.sides[B]);
        side.engine.close_session(now, session, &mut side.memory);
    }
    both.world.run_ms(59_000);
    assert!(both.world.sides[A].conns[0].errno.is_none(), "whoever has the descriptor may come yet");
    both.world.run_ms(61_000);
    assert!(both.world.sides[A].conns[0].errno.is_some());
}
