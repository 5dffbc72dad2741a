//! Connections handed to a process before it asks, and taken back from one that does not take them.

use super::sessions::{completions_of, second_session};
use super::world::{A, B, LAYOUT, World, addr};
use crate::ControlEvent;
use crate::control::listen::Listener;
use crate::control::listener_idx::ListenerIdx;
use crate::work::{Change, Changed};
use toe_abi::attach::Unread;
use toe_abi::entry::{Command, Completion, MemRange, Send};
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{AnchorHandle, FlowId, ListenerId, QueueSetId, SessionId};

const QUEUE_SET: QueueSetId = QueueSetId(0);
/// Longer than a connection is left with a program that does not take it.
const LONG_MS: u64 = 3;

/// Side B's parent listens, as does its child, which takes connections; the parent does not say that it does until it is told to.
struct Family {
    world: World,
    sessions: [SessionId; 2],
    names: [ListenerId; 2],
}

const PARENT: usize = 0;
const CHILD: usize = 1;

impl Family {
    fn new() -> Family {
        let mut world = World::new();
        let (now, side) = (world.now, &mut world.sides[B]);
        let parent = side.session;
        let first = side.listen_without_credit(now, addr(B, 80)).expect("listens");
        let child = second_session(&mut world);
        let side = &mut world.sides[B];
        // Their completions are for the test to look at.
        side.deaf = true;
        let claimed = side.engine.claim(now, child, QUEUE_SET, 3, AnchorHandle(0), &mut side.memory);
        let Ok(Changed::Listener(second)) = claimed else { panic!("{claimed:?}") };
        let mut family = Family { world, sessions: [parent, child], names: [first, second] };
        family.takes(CHILD);
        family.told();
        family
    }

    fn listener(&self) -> &Listener {
        self.world.sides[B].engine.listeners.get(ListenerIdx(0)).expect("one listens")
    }

    fn command(&mut self, who: usize, command: Command) {
        let (now, side) = (self.world.now, &mut self.world.sides[B]);
        let done = side.engine.handle_command(
            now,
            self.sessions[who],
            QUEUE_SET,
            command,
            &[0; 64],
            &mut side.memory,
        );
        done.expect("is in order");
    }

    /// From now on this one takes connections.
    fn takes(&mut self, who: usize) {
        self.command(who, Command::AcceptCredit { listener: self.names[who], count: 64 });
    }

    fn ask(&mut self, who: usize) {
        self.command(who, Command::TakeConnection { listener: self.names[who] });
    }

    fn accept(&mut self, who: usize, flow: FlowId) -> AnchorHandle {
        let side = &mut self.world.sides[B];
        let anchor = side.engine.hostif.new_anchor(self.sessions[who]);
        self.command(who, Command::Accept { flow, anchor, fd: 4 });
        anchor
    }

    /// What both are told, without what is of no interest here.
    fn told(&mut self) -> [Vec<Completion>; 2] {
        self.sessions.map(|session| completions_of(&mut self.world, session))
    }

    /// A connects; ends when B knows.
    fn connects(&mut self) {
        let there = |world: &World| {
            let listener = world.sides[B].engine.listeners.get(ListenerIdx(0)).expect("one listens");
            listener.queue.waiting.len() + listener.queue.handed as usize
        };
        let before = there(&self.world);
        let now = self.world.now;
        self.world.sides[A].connect(now, addr(B, 80)).expect("starts");
        assert!(self.world.run_until(1000, |world| there(world) > before));
    }

    /// Two of its threads: one has accepted, the other has not published that yet.
    fn accepts_quietly(&mut self, who: usize, flow: FlowId) -> bool {
        self.world.sides[B].memory.owns(self.sessions[who], flow, (Owned::Offered, Owned::Held))
    }

    /// How many answers wait for room in its ring.
    fn answers(&self, who: usize) -> usize {
        let session = self.world.sides[B].engine.hostif.sessions.get(self.sessions[who]);
        session.and_then(|session| session.answers(QUEUE_SET)).map_or(0, |answers| answers.len())
    }

    /// How many connections wait for somebody to ask.
    fn waiting(&self) -> usize {
        self.listener().queue.waiting.len()
    }
}

fn accepted(told: &[Completion]) -> Vec<FlowId> {
    let flow = |completion: &Completion| match completion {
        Completion::Accepted { flow, .. } => Some(*flow),
        _ => None,
    };
    told.iter().filter_map(flow).collect()
}

fn moved(told: &[Completion]) -> Vec<FlowId> {
    let flow = |completion: &Completion| match completion {
        Completion::Moved { flow } => Some(*flow),
        _ => None,
    };
    told.iter().filter_map(flow).collect()
}

/// nginx's master opens the listener and a worker takes from it: an exchange for each connection halved its rate.
#[test]
fn the_only_one_of_them_who_takes_is_handed_all_without_asking() {
    let mut family = Family::new();
    (0..3).for_each(|_| family.connects());
    let [parent, child] = family.told();
    assert_eq!((accepted(&parent).len(), accepted(&child).len()), (0, 3), "{child:?}");
    family.world.run_ms(LONG_MS);
    assert_eq!(family.waiting(), 0, "nobody else wants them");
}

#[test]
fn what_one_has_not_taken_goes_to_another_who_does() {
    let mut family = Family::new();
    (0..4).for_each(|_| family.connects());
    let handed = accepted(&family.told()[CHILD]);
    family.world.run_ms(LONG_MS);
    family.takes(PARENT);
    family.world.run_ms(LONG_MS);
    assert_eq!(moved(&family.told()[CHILD]), handed, "its session is told");
    assert_eq!(family.waiting(), 4);
    family.ask(PARENT);
    let [parent, child] = family.told();
    assert_eq!((accepted(&parent).len(), accepted(&child).len()), (2, 0), "one and its share of the rest");
    let taken = accepted(&parent)[0];
    family.accept(PARENT, taken);
    assert_eq!(family.listener().queue.handed, 1);
}

/// It was sought in the memory of who had it no more.
#[test]
fn what_went_back_has_nothing_to_spare_where_it_was() {
    let mut family = Family::new();
    family.connects();
    let now = family.world.now;
    family.world.sides[A].send(now, 0, &[7; 20_000]);
    family.world.run_ms(LONG_MS);
    family.command(CHILD, Command::CloseListener { listener: family.names[CHILD], last: false });
    assert_eq!(family.waiting(), 1, "it waits for others");
    let child = family.sessions[CHILD];
    assert_eq!(family.world.sides[B].engine.flows.reclaimables.take_largest(child), None);
}

/// Two children begin at a listener that nobody held for a moment while a connection waited: it was looked at again in a minute.
#[test]
fn a_listener_that_was_nobodys_for_a_while_is_looked_after_as_soon() {
    let mut family = Family::new();
    let (now, side) = (family.world.now, &mut family.world.sides[B]);
    for session in family.sessions {
        side.engine.close_session(now, session, &mut side.memory);
    }
    family.connects();
    family.world.run_ms(LONG_MS);
    family.sessions = [(); 2].map(|()| second_session(&mut family.world));
    for who in [PARENT, CHILD] {
        let (now, side) = (family.world.now, &mut family.world.sides[B]);
        let claimed =
            side.engine.claim(now, family.sessions[who], QUEUE_SET, 3, AnchorHandle(0), &mut side.memory);
        let Ok(Changed::Listener(name)) = claimed else { panic!("{claimed:?}") };
        family.names[who] = name;
    }
    family.takes(CHILD);
    assert_eq!(accepted(&family.told()[CHILD]).len(), 1);
    family.takes(PARENT);
    family.world.run_ms(LONG_MS);
    assert_eq!(family.waiting(), 1);
}

#[test]
fn what_its_program_has_accepted_is_not_taken_back() {
    let mut family = Family::new();
    family.connects();
    let flow = accepted(&family.told()[CHILD])[0];
    family.takes(PARENT);
    assert!(family.accepts_quietly(CHILD, flow));
    family.world.run_ms(LONG_MS);
    assert_eq!((moved(&family.told()[CHILD]), family.waiting()), (vec![], 0));
    family.accept(CHILD, flow);
    assert_eq!(family.listener().queue.handed, 0);
    let (now, side) = (family.world.now, &mut family.world.sides[B]);
    let given_back = side.engine.change(
        now,
        family.sessions[CHILD],
        Change::Relinquish { flow, unread: Unread::default() },
        &mut side.memory,
    );
    assert_eq!(given_back, Ok(Changed::Nothing), "it has kept its name");
}

/// A host that says so for good has as many connections as its user may have: they are not looked at with each one that comes.
#[test]
fn what_could_not_be_taken_back_is_left_for_a_while() {
    let mut family = Family::new();
    family.connects();
    let flow = accepted(&family.told()[CHILD])[0];
    family.takes(PARENT);
    assert!(family.accepts_quietly(CHILD, flow));
    family.world.run_ms(LONG_MS);
    let back = (Owned::Held, Owned::Offered);
    assert!(family.world.sides[B].memory.owns(family.sessions[CHILD], flow, back));
    family.connects();
    family.world.run_ms(50);
    assert_eq!(moved(&family.told()[CHILD]), []);
    family.world.run_ms(100);
    assert_eq!(moved(&family.told()[CHILD]), [flow]);
}

/// Its word says that it has not accepted it.
#[test]
fn one_that_its_session_has_written_to_goes_to_nobody_else() {
    let mut family = Family::new();
    family.connects();
    let flow = accepted(&family.told()[CHILD])[0];
    let (now, side) = (family.world.now, &mut family.world.sides[B]);
    let data = MemRange { offset: LAYOUT.send_offset(), len: 3 };
    assert_eq!(side.engine.handle_send(now, family.sessions[CHILD], Send::new(flow, data)), Ok(()));
    family.takes(PARENT);
    family.world.run_ms(LONG_MS);
    assert_eq!((moved(&family.told()[CHILD]), family.waiting()), (vec![], 0));
}

#[test]
fn what_was_taken_back_can_be_accepted_no_more() {
    let mut family = Family::new();
    family.connects();
    let flow = accepted(&family.told()[CHILD])[0];
    family.takes(PARENT);
    family.world.run_ms(LONG_MS);
    assert_eq!(family.waiting(), 1, "before its session has read that");
    assert!(!family.accepts_quietly(CHILD, flow));
    family.ask(PARENT);
    let [parent, child] = family.told();
    assert_eq!((accepted(&parent).len(), moved(&child)), (1, vec![flow]));
}

/// Linux keeps it for accept: its bytes, then its error.
#[test]
fn one_that_is_reset_once_it_is_back_waits_on() {
    let mut family = Family::new();
    family.connects();
    family.told();
    family.takes(PARENT);
    family.world.run_ms(LONG_MS);
    family.told();
    let (now, side) = (family.world.now, &mut family.world.sides[A]);
    let flow = side.conns[0].id;
    side.plain(now, Command::Close { flow, abort: true });
    family.world.run_ms(1);
    assert_eq!((family.listener().queue.waiting.len(), family.listener().queue.handed), (1, 0));
    family.ask(PARENT);
    let told = &family.told()[PARENT];
    assert!(told.iter().any(|c| matches!(c, Completion::Reset { errno: Errno::ECONNRESET, .. })), "{told:?}");
    assert_eq!((family.listener().queue.waiting.len(), family.listener().queue.handed), (0, 1));
}

#[test]
fn who_asks_is_handed_its_share_besides_and_what_was_asked_for_stays_with_it() {
    let mut family = Family::new();
    family.takes(PARENT);
    (0..8).for_each(|_| family.connects());
    family.told();
    family.ask(CHILD);
    let handed = accepted(&family.told()[CHILD]);
    assert_eq!(handed.len(), 1 + 2, "the one that it asked for, and as many as it may have so early");
    family.world.run_ms(LONG_MS);
    let back = moved(&family.told()[CHILD]);
    assert_eq!(back, handed[1..]);
    family.accept(CHILD, handed[0]);
    family.ask(CHILD);
    assert_eq!(accepted(&family.told()[CHILD]).len(), 1, "no more than it asks for, after that");
    family.ask(PARENT);
    let parents = accepted(&family.told()[PARENT]);
    assert_eq!(parents.len(), 1 + 2, "the other has let none wait");
}

/// An accept that ends for a signal or SO_RCVTIMEO while it waits for the answer.
#[test]
fn what_was_asked_for_and_is_not_taken_goes_back_later() {
    let mut family = Family::new();
    family.takes(PARENT);
    family.connects();
    family.ask(CHILD);
    let handed = accepted(&family.told()[CHILD]);
    assert_eq!(handed.len(), 1);
    family.world.run_ms(40);
    assert_eq!(moved(&family.told()[CHILD]), [], "it may only lack a processor");
    family.world.run_ms(20);
    assert_eq!(moved(&family.told()[CHILD]), handed);
    assert_eq!(family.waiting(), 1);
}

/// Its ring is full for long, or it is stopped: the connection goes to somebody else, and the question is answered nevertheless, or its program
/// would wait for ever.
#[test]
fn a_question_whose_connection_goes_back_before_it_is_told_is_answered() {
    let mut family = Family::new();
    family.takes(PARENT);
    family.connects();
    family.told();
    let ring_len = std::mem::replace(&mut family.world.sides[B].memory.ring_len, 0);
    family.ask(CHILD);
    family.world.run_ms(60);
    assert_eq!(family.listener().queue.waiting.len(), 1, "it takes no completions");
    let side = &mut family.world.sides[B];
    side.memory.ring_len = ring_len;
    // One that had no room is looked at now and then.
    (0..64).for_each(|_| _ = side.memory.hear(&mut side.engine));
    let told = family.told();
    let nothing = Completion::NothingWaits { listener: family.names[CHILD], answer: true };
    assert_eq!((accepted(&told[CHILD]), told[CHILD].first()), (vec![], Some(&nothing)));
    assert!(told[CHILD].contains(&Completion::ConnectionsWait { listener: family.names[CHILD] }), "{told:?}");
}

/// A ring of one entry, and a host that asks anew with each answer: one always waits. What each connection that went back was called is free nevertheless,
/// or its session has no name left for the next one.
#[test]
fn a_slot_is_free_though_answers_never_come_to_an_end() {
    let mut family = Family::new();
    family.takes(PARENT);
    // Nothing waits: the first answer.
    family.ask(CHILD);
    family.world.sides[B].memory.ring_len = 0;
    family.connects();
    for round in 0..2 * LAYOUT.flows {
        family.ask(CHILD);
        assert_eq!(family.listener().queue.handed, 1, "round {round}");
        family.world.run_ms(60);
        assert_eq!(family.listener().queue.handed, 0, "it has not heard of it, and it went back");
        let child = family.sessions[CHILD];
        while family.answers(CHILD) > 1 {
            let side = &mut family.world.sides[B];
            side.engine.poll_completions((child, QUEUE_SET), 1, &mut side.memory);
        }
    }
}

/// The same of one that its peer has ended meanwhile.
#[test]
fn a_question_whose_connection_ends_before_it_is_told_is_answered() {
    let mut family = Family::new();
    family.takes(PARENT);
    family.connects();
    family.told();
    let ring_len = std::mem::replace(&mut family.world.sides[B].memory.ring_len, 0);
    family.ask(CHILD);
    let (now, side) = (family.world.now, &mut family.world.sides[A]);
    let flow = side.conns[0].id;
    side.plain(now, Command::Close { flow, abort: true });
    family.world.run_ms(60);
    family.world.sides[B].memory.ring_len = ring_len;
    let told = family.told();
    let nothing = Completion::NothingWaits { listener: family.names[CHILD], answer: true };
    let is_answer = |told: &Completion| *told == nothing || matches!(told, Completion::Accepted { .. });
    assert_eq!(told[CHILD].iter().filter(|told| is_answer(told)).count(), 1, "{told:?}");
}

#[test]
fn who_was_told_that_connections_wait_is_told_when_they_are_handed_out() {
    let mut family = Family::new();
    family.takes(PARENT);
    family.connects();
    family.world.run_ms(LONG_MS);
    family.told();
    // The other is the only one, and gets it without asking.
    let (now, side) = (family.world.now, &mut family.world.sides[B]);
    side.engine.close_session(now, family.sessions[PARENT], &mut side.memory);
    family.takes(CHILD);
    let child = &family.told()[CHILD];
    assert_eq!(accepted(child).len(), 1);
    assert!(child.iter().any(|c| matches!(c, Completion::NothingWaits { answer: false, .. })), "{child:?}");
}

#[test]
fn a_session_that_ends_meanwhile_gives_back_what_it_had_once() {
    let mut family = Family::new();
    family.connects();
    family.told();
    family.takes(PARENT);
    family.world.run_ms(LONG_MS);
    let (now, side) = (family.world.now, &mut family.world.sides[B]);
    side.engine.close_session(now, family.sessions[CHILD], &mut side.memory);
    assert_eq!(
        (family.listener().queue.waiting.len(), family.listener().queue.handed),
        (0, 1),
        "the other has it"
    );
    assert_eq!(accepted(&family.told()[PARENT]).len(), 1, "who is the only one now");
}

/// Found with a server that takes one connection and ends: its kernel socket was seen to be gone before what it had published. Its answer
/// was lost.
#[test]
fn what_its_program_has_accepted_outlives_the_listener() {
    for by_anchor in [false, true] {
        let mut family = Family::new();
        (0..2).for_each(|_| family.connects());
        let handed = accepted(&family.told()[CHILD]);
        assert!(family.accepts_quietly(CHILD, handed[0]));
        let identity = family.listener().holders.twins().next().expect("one holds it").identity;
        let (now, side) = (family.world.now, &mut family.world.sides[B]);
        if by_anchor {
            side.engine.handle_control(now, ControlEvent::LastClose(AnchorHandle(0)), &mut side.memory);
        } else {
            side.engine.handle_control(now, ControlEvent::SocketGone(identity, now), &mut side.memory);
        }
        assert!(side.engine.listeners.get(ListenerIdx(0)).is_none(), "nobody listens");
        assert!(!family.accepts_quietly(CHILD, handed[1]), "the other has been reset");
        family.accept(CHILD, handed[0]);
        let (now, side) = (family.world.now, &mut family.world.sides[B]);
        let data = MemRange { offset: LAYOUT.send_offset(), len: 3 };
        side.engine.handle_send(now, family.sessions[CHILD], Send::new(handed[0], data)).expect("is its own");
        family.command(CHILD, Command::Close { flow: handed[0], abort: false });
        let conns = |world: &World| {
            [0, 1].map(|n| (world.sides[A].conns[n].received.len(), world.sides[A].conns[n].errno))
        };
        let end = [(3, None), (0, Some(Errno::ECONNRESET))];
        assert!(family.world.run_until(1000, |world| conns(world) == end), "{:?}", conns(&family.world));
    }
}

/// Killed before it had published that it has accepted it.
#[test]
fn what_its_program_had_accepted_ends_with_it_where_the_listener_has_gone() {
    let mut family = Family::new();
    family.connects();
    let flow = accepted(&family.told()[CHILD])[0];
    assert!(family.accepts_quietly(CHILD, flow));
    let (now, side) = (family.world.now, &mut family.world.sides[B]);
    side.engine.handle_control(now, ControlEvent::LastClose(AnchorHandle(0)), &mut side.memory);
    side.engine.close_session(now, family.sessions[CHILD], &mut side.memory);
    assert!(family.world.run_until(1000, |world| world.sides[A].conns[0].eof), "its peer hears of the end");
}
