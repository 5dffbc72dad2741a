//! Sessions come and go: what they shared lives on, what only they held ends, and nobody touches a neighbour.

use super::world::{A, B, LAYOUT, Side, World, addr, pattern};
use crate::ControlEvent;
use crate::control::names::Twin;
use crate::{Changed, Counter, HostMemory, Limit, Quotas, Resource};
use toe_abi::attach::FenceReason;
use toe_abi::command::ConnectArgs;
use toe_abi::entry::{Command, Completion, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{FlowId, QueueSetId, SessionId};
use toe_wire::link::LinkCaps;
use zerocopy::IntoBytes;

/// A second session on B's engine.
pub(super) fn second_session(world: &mut World) -> SessionId {
    let side = &mut world.sides[B];
    let session = side.engine.open_session(toe_base::Cred::of_user(1000), LAYOUT).expect("room");
    side.engine.add_queue_set(session).expect("room");
    session
}

pub(super) fn completions_of(world: &mut World, session: SessionId) -> Vec<Completion> {
    let side = &mut world.sides[B];
    side.memory.hear(&mut side.engine);
    side.memory.region(session);
    side.memory.completions[session.index()].drain(..).collect()
}

#[test]
fn a_claimed_flow_moves_with_its_unread_data() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.sides[B].reads = false;
    let now = world.now;
    world.sides[A].send(now, a, b"half read, half not");
    world.run_ms(10);
    let range = world.sides[B].conns[b].unread[0];
    let flow = world.sides[B].conns[b].id;
    let session = world.sides[B].session;
    world.sides[B].engine.handle_credit(now, session, ReceiveCredit { flow, len: 10 }).expect("announced");
    assert_eq!({ range.len }, 19);

    let child = second_session(&mut world);
    let side = &mut world.sides[B];
    let anchor = side.conns[b].anchor;
    let claimed = side.engine.claim(world.now, child, QueueSetId(0), 9, anchor, &mut side.memory);
    let Ok(Changed::Flow(id, _)) = claimed else { panic!("{claimed:?}") };
    let told = completions_of(&mut world, child);
    let [Completion::Data { flow: told_id, data }] = told[..] else { panic!("{told:?}") };
    assert_eq!(told_id, id);
    let mut bytes = vec![0; data.len as usize];
    world.sides[B].memory.read(child, data.offset, &mut bytes);
    assert_eq!(bytes, b" half not");
    world.run_ms(1);
    assert!(world.sides[B].conns[b].moved, "the old holder is told");

    let side = &mut world.sides[B];
    side.engine.close_session(world.now, session, &mut side.memory);
    let bytes = MemRange { offset: LAYOUT.send_offset(), len: 5 };
    world.sides[B].memory.write(child, bytes.offset, b"child");
    world.sides[B].engine.handle_send(world.now, child, Send::new(id, bytes)).expect("fits");
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].received == b"child"));
}

/// A thread of its owner's is in the middle of `recv` or `send`: what it has read would come twice, and what it sends be lost.
#[test]
fn a_flow_in_use_is_claimed_once_that_is_over_and_its_owner_can_use_it_no_more() {
    let mut world = World::new();
    let (_, b) = world.connected();
    let claimer = second_session(&mut world);
    let side = &mut world.sides[B];
    let (owner, flow, anchor) = (side.session, side.conns[b].id, side.conns[b].anchor);
    assert!(side.memory.owns(owner, flow, (Owned::Held, Owned::InUse)));
    for _ in 0..2 {
        assert_eq!(side.engine.begin_claim(claimer, anchor, &mut side.memory), Err(Errno::EAGAIN));
    }
    assert!(side.memory.owns(owner, flow, (Owned::InUse, Owned::Held)));
    for _ in 0..2 {
        side.engine.begin_claim(claimer, anchor, &mut side.memory).expect("and once more, as who asks again");
    }
    assert!(!side.memory.owns(owner, flow, (Owned::Held, Owned::InUse)));
    let claimed = side.engine.claim(world.now, claimer, QueueSetId(0), 3, anchor, &mut side.memory);
    let Ok(Changed::Flow(flow, _)) = claimed else { panic!("{claimed:?}") };
    assert!(side.memory.owns(claimer, flow, (Owned::Held, Owned::InUse)));
}

/// Found by a process that closed its descriptor while a copy was on its way to it: what it had been told of is told again, by a name
/// that none of its streams had before.
#[test]
fn what_a_session_has_it_may_claim_once_more() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.sides[B].reads = false;
    world.sides[A].send(world.now, a, b"read not");
    world.run_ms(10);
    let (session, flow) = (world.sides[B].session, world.sides[B].conns[b].id);
    world.sides[B]
        .engine
        .handle_credit(world.now, session, ReceiveCredit { flow, len: 5 })
        .expect("announced");

    let anchor = world.sides[B].conns[b].anchor;
    let side = &mut world.sides[B];
    assert!(side.memory.owns(session, flow, (Owned::Held, Owned::InUse)));
    assert_eq!(side.engine.begin_claim(session, anchor, &mut side.memory), Err(Errno::EAGAIN));
    assert!(side.memory.owns(session, flow, (Owned::InUse, Owned::Held)));
    side.engine.begin_claim(session, anchor, &mut side.memory).expect("nobody is at it");
    let again = claim_as(&mut world, session, b);
    let told = completions_of(&mut world, session);
    let [Completion::Moved { flow: before }, Completion::Data { flow: named, data }] = told[..] else {
        panic!("{told:?}")
    };
    assert!((before, named) == (flow, again) && again != flow);
    let mut bytes = vec![0; data.len as usize];
    world.sides[B].memory.read(session, data.offset, &mut bytes);
    assert_eq!(bytes, b"not");
    world.sides[B].engine.view().audit().unwrap();
}

/// Found by two processes that had two connections: one read on in a flow that was the other's, as its slot was another flow's already.
#[test]
fn a_slot_is_nobody_elses_before_its_last_owner_has_been_told() {
    let mut world = World::new();
    let [first, second] = [world.connected().1, world.connected().1];
    let session = world.sides[B].session;
    let child = second_session(&mut world);
    claim_as(&mut world, child, second);
    completions_of(&mut world, session);

    let slot = world.sides[B].conns[first].id.slot();
    claim_as(&mut world, child, first);
    let before = claim_as(&mut world, session, second);
    assert_ne!(before.slot(), slot, "it has not heard that the first is another's");
    completions_of(&mut world, session);
    claim_as(&mut world, child, second);
    completions_of(&mut world, session);
    let after = claim_as(&mut world, session, second);
    assert!([slot, before.slot()].contains(&after.slot()), "it has: {after:?}");
}

#[test]
fn nobody_loses_a_flow_to_one_who_may_not_have_it() {
    let mut world = World::new();
    let one_each = Limit { user: 1, ..Limit::shared(u64::MAX) };
    let quotas = Quotas::default().with(Resource::Flows, one_each);
    world.sides[B] = Side::with_quotas(2, LinkCaps::default(), quotas);
    let (_, b) = world.connected();
    let claimer = second_session(&mut world);
    let side = &mut world.sides[B];
    let (owner, flow, anchor) = (side.session, side.conns[b].id, side.conns[b].anchor);
    let own = side.engine.take_anchor(claimer).expect("room");
    let args = ConnectArgs { remote: addr(A, 81).into(), anchor: own.0, ..Default::default() };
    let mut block = [0; 64];
    block.copy_from_slice(args.as_bytes());
    let connect = Command::Connect { token: 1 };
    let memory = &mut side.memory;
    side.engine
        .handle_command(world.now, claimer, QueueSetId(0), connect, &block, memory)
        .expect("well-formed");
    assert_eq!(side.engine.begin_claim(claimer, anchor, &mut side.memory), Err(Errno::EDQUOT));
    assert!(side.memory.owns(owner, flow, (Owned::Held, Owned::InUse)), "it is its owner's as before");
    world.run_ms(1);
    assert!(!world.sides[B].conns[b].moved, "who hears nothing of it");
}

#[test]
fn unsent_data_survives_its_session_and_pins_the_region_until_it_is_acknowledged() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let data = pattern(100_000, 1);
    let now = world.now;
    world.sides[B].send(now, b, &data);
    let (session, anchor) = (world.sides[B].session, world.sides[B].conns[b].anchor);
    let side = &mut world.sides[B];
    side.engine.close_session(now, session, &mut side.memory);
    side.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut side.memory);
    assert!(!side.engine.hostif.is_drained(session), "the region is still read from");
    assert!(world.run_until(5000, |w| w.sides[A].conns[a].eof));
    assert!(world.sides[A].conns[a].received == data);
    world.close(A, a);
    world.run_ms(1000);
    assert!(world.sides[B].engine.hostif.is_drained(session));
}

#[test]
fn connections_that_a_dead_session_did_not_take_go_to_the_next_holder() {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    let child = second_session(&mut world);
    let side = &mut world.sides[B];
    let claimed =
        side.engine.claim(now, child, QueueSetId(0), 3, toe_base::AnchorHandle(0), &mut side.memory);
    let Ok(Changed::Listener(listener)) = claimed else { panic!("{claimed:?}") };
    // The ring of the first session is full: it cannot even be told.
    let parent = side.session;
    side.memory.ring_len = 0;
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].established));
    world.sides[A].send(world.now, a, b"hello");
    world.run_ms(10);
    let side = &mut world.sides[B];
    side.memory.ring_len = 64;
    side.engine.close_session(world.now, parent, &mut side.memory);
    let queue_set = QueueSetId(0);
    for command in [Command::AcceptCredit { listener, count: 1 }, Command::TakeConnection { listener }] {
        side.engine
            .handle_command(world.now, child, queue_set, command, &[0; 64], &mut side.memory)
            .expect("fits");
    }
    let told = completions_of(&mut world, child);
    let [Completion::NothingWaits { .. }, rest @ ..] = &told[..] else { panic!("{told:?}") };
    assert!(matches!(rest, [Completion::Accepted { .. }, Completion::Data { .. }]), "{told:?}");
}

/// Else the next one's answer would follow what this one has said.
#[test]
fn a_connection_that_a_session_has_written_to_goes_to_nobody_else() {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    let thief = second_session(&mut world);
    let side = &mut world.sides[B];
    let claimed =
        side.engine.claim(now, thief, QueueSetId(0), 3, toe_base::AnchorHandle(0), &mut side.memory);
    let Ok(Changed::Listener(listener)) = claimed else { panic!("{claimed:?}") };
    side.memory.ring_len = 0;
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].established));
    world.run_ms(10);
    let side = &mut world.sides[B];
    side.memory.ring_len = 64;
    let parent = side.session;
    side.engine.close_session(world.now, parent, &mut side.memory);
    for command in [Command::AcceptCredit { listener, count: 1 }, Command::TakeConnection { listener }] {
        side.engine
            .handle_command(world.now, thief, QueueSetId(0), command, &[0; 64], &mut side.memory)
            .expect("fits");
    }
    let told = completions_of(&mut world, thief);
    let handed = told.iter().find_map(|told| match told {
        Completion::Accepted { flow, .. } => Some(*flow),
        _ => None,
    });
    let flow = handed.expect("it was handed one");
    let side = &mut world.sides[B];
    let data = MemRange { offset: LAYOUT.send_offset(), len: 4 };
    side.engine.handle_send(world.now, thief, Send::new(flow, data)).expect("fits");
    side.engine.handle_control(
        world.now,
        ControlEvent::Fenced(thief, FenceReason::BadArgument),
        &mut side.memory,
    );
    world.run_ms(1000);
    assert_eq!(world.sides[B].engine.view().totals().flows, 0, "it does not wait for the next one");
    assert!(world.sides[A].conns[a].errno.is_some(), "and its peer knows that it is over");
}

#[test]
fn a_bad_entry_fences_its_session_and_no_other() {
    let mut world = World::new();
    let conns = world.connected();
    let bad = second_session(&mut world);
    let flow = FlowId::new(0, 0);
    let side = &mut world.sides[B];
    let wild = Send::new(flow, MemRange { offset: 5, len: 5 });
    assert_eq!(side.engine.handle_send(world.now, bad, wild), Err(FenceReason::BadSendRange));
    let accept = Command::Accept { flow, anchor: side.conns[conns.1].anchor, fd: 1 };
    let result =
        side.engine.handle_command(world.now, bad, QueueSetId(0), accept, &[0; 64], &mut side.memory);
    assert_eq!(result, Err(FenceReason::UnknownHandle), "another session's anchor");
    side.engine.handle_control(
        world.now,
        ControlEvent::Fenced(bad, FenceReason::BadSendRange),
        &mut side.memory,
    );
    assert_eq!(side.engine.view().counter(Counter::FenceBadSendRange), 1);
    assert!(side.engine.hostif.is_drained(bad));
    assert!(world.transfer(A, conns, &pattern(50_000, 2), 5_000), "the neighbour goes on");
}

#[test]
fn a_session_cannot_name_a_neighbours_flow() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let other = second_session(&mut world);
    let flow = world.sides[B].conns[b].id;
    let close = Command::Close { flow, abort: true };
    let side = &mut world.sides[B];
    side.engine
        .handle_command(world.now, other, QueueSetId(0), close, &[0; 64], &mut side.memory)
        .expect("stale");
    world.run_ms(100);
    assert_eq!(world.sides[A].conns[a].errno, None);
    assert_eq!(world.sides[B].engine.view().counter(Counter::StaleEntries), 1);
}

#[test]
fn a_port_needs_the_kernels_word_once_for_each_command() {
    use toe_abi::command::{ListenArgs, NO_HANDLE};
    let mut world = World::new();
    let user = second_session(&mut world);
    let listen = |world: &mut World, twin: u32| {
        let side = &mut world.sides[B];
        let anchor = side.engine.hostif.new_anchor(user);
        let args = ListenArgs {
            local: addr(B, 443).into(),
            backlog: 1,
            anchor: anchor.0,
            twin,
            ..Default::default()
        };
        let mut block = [0; 64];
        block.copy_from_slice(args.as_bytes());
        let command = Command::Listen { token: 0 };
        side.engine
            .handle_command(world.now, user, QueueSetId(0), command, &block, &mut side.memory)
            .expect("well-formed");
        side.memory.hear(&mut side.engine);
        side.memory.completions[user.index()].pop_front()
    };
    let errno = |c: Option<Completion>| match c {
        Some(Completion::CommandResult { errno, .. }) => errno,
        other => panic!("{other:?}"),
    };
    assert_eq!(errno(listen(&mut world, NO_HANDLE)), toe_abi::errno::Errno::EACCES);
    let any = toe_base::Endpoint::new([0; 4], 443);
    let twin = Twin::listening(any, 1, toe_base::Cred::default(), world.now);
    let twin = world.sides[B].engine.add_twin(user, twin).expect("room");
    assert_eq!(errno(listen(&mut world, twin)), toe_abi::errno::Errno::OK);
    assert_eq!(errno(listen(&mut world, twin)), toe_abi::errno::Errno::EACCES, "it is used up");
}

#[test]
fn a_full_completion_ring_delays_and_loses_nothing() {
    let mut world = World::new();
    world.sides[B].memory.ring_len = 1;
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(300_000, 3), 5_000));
    world.close(A, conns.0);
    assert!(world.run_until(1000, |w| w.sides[B].conns[conns.1].eof));
}

/// Sends `bytes` as `session`, from the start of its send part.
fn send_as(world: &mut World, session: SessionId, flow: FlowId, bytes: &[u8]) {
    let side = &mut world.sides[B];
    let data = MemRange { offset: LAYOUT.send_offset(), len: bytes.len() as u32 };
    side.memory.write(session, data.offset, bytes);
    side.engine.handle_send(world.now, session, Send::new(flow, data)).expect("fits");
}

fn claim_as(world: &mut World, session: SessionId, conn: usize) -> FlowId {
    let side = &mut world.sides[B];
    let anchor = side.conns[conn].anchor;
    match side.engine.claim(world.now, session, QueueSetId(0), 9, anchor, &mut side.memory) {
        Ok(Changed::Flow(flow, _)) => flow,
        other => panic!("{other:?}"),
    }
}

#[test]
fn unsent_data_survives_one_holder_after_the_other_and_nobody_hears_of_anothers_bytes() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.unplugged = true;
    let (now, first) = (world.now, world.sides[B].session);
    world.sides[B].send(now, b, b"one ");
    world.run_ms(1);
    let side = &mut world.sides[B];
    side.engine.close_session(now, first, &mut side.memory);
    let second = second_session(&mut world);
    let flow = claim_as(&mut world, second, b);
    assert!(world.sides[B].engine.hostif.is_drained(first), "its bytes were copied");
    send_as(&mut world, second, flow, b"two ");
    world.run_ms(1);
    let side = &mut world.sides[B];
    side.engine.close_session(world.now, second, &mut side.memory);
    assert!(!side.engine.hostif.is_drained(second), "its bytes are still to be sent");
    let third = second_session(&mut world);
    let flow = claim_as(&mut world, third, b);
    send_as(&mut world, third, flow, b"three");
    world.unplugged = false;
    assert!(world.run_until(10_000, |w| w.sides[A].conns[a].received == b"one two three"));
    world.run_ms(100);
    let sent: u32 = completions_of(&mut world, third)
        .iter()
        .map(|c| if let Completion::Sent { len, .. } = c { *len } else { 0 })
        .sum();
    assert_eq!(sent, 5, "only its own");
    assert!(world.sides[B].engine.hostif.is_drained(second));
    world.sides[B].engine.view().audit().unwrap();
}

#[test]
fn bytes_that_come_after_a_shutdown_go_back_behind_those_before_it() {
    let mut world = World::new();
    let (a, _) = world.connected();
    world.unplugged = true;
    let (now, flow) = (world.now, world.sides[A].conns[a].id);
    world.sides[A].send(now, a, &pattern(1000, 1));
    world.sides[A].plain(now, Command::ShutdownSend { flow });
    world.sides[A].send(now, a, &pattern(500, 2));
    world.run_ms(100);
    assert_eq!(world.sides[A].conns[a].acked, 0, "the first thousand are still needed");
    world.unplugged = false;
    assert!(world.run_until(5_000, |w| w.sides[A].conns[a].acked == 1500));
}

#[test]
fn a_connection_that_ended_before_it_was_accepted_goes_with_its_listener() {
    let mut world = World::new();
    let now = world.now;
    let listener = world.sides[B].listen(now, addr(B, 80)).expect("listens");
    let session = world.sides[B].session;
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    let taken = |w: &mut World| {
        let side = &mut w.sides[B];
        side.memory.hear(&mut side.engine);
        side.memory.completions[session.index()].drain(..).collect::<Vec<_>>()
    };
    // The program of B hears of the connection, and does not accept it.
    world.sides[B].deaf = true;
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].established));
    world.run_ms(10);
    let flow = world.sides[A].conns[a].id;
    let now = world.now;
    world.sides[A].plain(now, Command::Close { flow, abort: true });
    world.run_ms(10);
    let told = taken(&mut world);
    assert!(matches!(told[..], [Completion::Accepted { .. }, Completion::Reset { .. }]), "{told:?}");
    assert_eq!(world.sides[B].engine.view().totals().flows, 1);
    world.sides[B].plain(now, Command::CloseListener { listener, last: true });
    assert_eq!(world.sides[B].engine.view().totals().flows, 0);
}

#[test]
fn connections_that_are_reset_before_they_are_accepted_are_handed_out_with_their_bytes() {
    let mut world = World::new();
    let now = world.now;
    let listener = world.sides[B].listen_without_credit(now, addr(B, 80)).expect("listens");
    let session = world.sides[B].session;
    world.sides[B].deaf = true;
    // Two are handed out, and then none.
    let conns = [0; 3].map(|_| {
        let now = world.now;
        let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
        assert!(world.run_until(1000, |w| w.sides[A].conns[a].established));
        let now = world.now;
        world.sides[A].send(now, a, &pattern(100, 1));
        world.run_ms(10);
        a
    });
    for a in conns {
        let (now, flow) = (world.now, world.sides[A].conns[a].id);
        world.sides[A].plain(now, Command::Close { flow, abort: true });
    }
    world.run_ms(10);
    world.sides[B].engine.view().audit().unwrap();
    let now = world.now;
    let credit = Command::AcceptCredit { listener, count: 3 };
    world.sides[B].plain(now, credit);
    let side = &mut world.sides[B];
    side.memory.hear(&mut side.engine);
    let told: Vec<_> = side.memory.completions[session.index()].drain(..).collect();
    let count = |is: fn(&Completion) -> bool| told.iter().filter(|c| is(c)).count();
    assert_eq!(count(|c| matches!(c, Completion::Accepted { .. })), 3, "{told:?}");
    assert_eq!(count(|c| matches!(c, Completion::Data { data, .. } if data.len == 100)), 3, "{told:?}");
    assert_eq!(count(|c| matches!(c, Completion::Reset { errno: Errno::ECONNRESET, .. })), 3, "{told:?}");
    side.engine.view().audit().unwrap();
    side.engine.view().audit().unwrap();
}

#[test]
fn memory_of_a_connection_that_has_ended_comes_back_once_it_is_read() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.sides[B].reads = false;
    let now = world.now;
    world.sides[A].send(now, a, &pattern(50_000, 1));
    world.run_ms(100);
    let flow = world.sides[A].conns[a].id;
    let now = world.now;
    world.sides[A].plain(now, Command::Close { flow, abort: true });
    world.run_ms(10);
    let now = world.now;
    world.sides[B].read(now, b);
    assert_eq!(world.sides[B].conns[b].received.len(), 50_000, "what had arrived can still be read");
    world.run_ms(2_000);
    let session = world.sides[B].session;
    assert_eq!(world.sides[B].engine.view().session(session).receive_memory_used, 0);
}
