//! Connections end: FIN in every order, RST, TIME_WAIT, and nothing is left behind.

use super::world::{A, B, LAYOUT, World, addr, pattern};
use crate::{Change, ControlEvent};
use toe_abi::attach::FenceReason;
use toe_abi::entry::{Command, FlowOption};
use toe_abi::errno::Errno;
use toe_base::PortId;

fn states(world: &World, side: usize) -> Vec<&'static str> {
    let sockets = world.sides[side].engine.view().sockets(world.now);
    sockets.iter().filter(|s| !s.listener).map(|s| s.state).collect()
}

#[test]
fn who_closes_first_waits_in_time_wait_and_the_other_does_not() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.close(A, a);
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].eof));
    // Its FIN may be acknowledged a little later.
    world.run_ms(50);
    assert_eq!(states(&world, B), ["CLOSE-WAIT"]);
    assert_eq!(states(&world, A), ["FIN-WAIT-2"]);
    world.close(B, b);
    world.run_ms(100);
    assert_eq!(states(&world, A), ["TIME-WAIT"]);
    assert_eq!(states(&world, B), [""; 0]);
    world.run_ms(61_000);
    assert_eq!(states(&world, A), [""; 0]);
}

#[test]
fn both_close_at_once() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.close(A, a);
    world.close(B, b);
    world.run_ms(1000);
    assert_eq!((states(&world, A), states(&world, B)), (vec!["TIME-WAIT"], vec!["TIME-WAIT"]));
}

#[test]
fn half_close_lets_the_other_way_go_on() {
    let mut world = World::new();
    let conns = world.connected();
    let flow = world.sides[A].conns[conns.0].id;
    let now = world.now;
    world.sides[A].plain(now, Command::ShutdownSend { flow });
    assert!(world.run_until(1000, |w| w.sides[B].conns[conns.1].eof));
    assert!(world.transfer(B, conns, &pattern(100_000, 1), 5_000));
    world.close(B, conns.1);
    assert!(world.run_until(1000, |w| w.sides[A].conns[conns.0].eof));
}

#[test]
fn what_was_queued_before_close_still_arrives() {
    let mut world = World::new();
    world.faults.drop = 50;
    let (a, b) = world.connected();
    let data = pattern(200_000, 2);
    let now = world.now;
    world.sides[A].send(now, a, &data);
    world.close(A, a);
    assert!(world.run_until(120_000, |w| w.sides[B].conns[b].eof));
    assert!(world.sides[B].conns[b].received == data);
    assert!(
        world.run_until(120_000, |w| w.sides[A].conns[a].acked == 200_000),
        "the memory comes back after close"
    );
}

#[test]
fn closing_with_unread_data_resets() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.sides[B].reads = false;
    let now = world.now;
    world.sides[A].send(now, a, b"unread");
    world.run_ms(100);
    world.close(B, b);
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].errno == Some(Errno::ECONNRESET)));
    assert_eq!(states(&world, B), [""; 0]);
}

/// Of Linux the answer is on the wire when the call that sends it returns, so the peer may read it before the reset.
#[test]
fn what_was_sent_before_a_close_goes_before_the_reset_though_more_comes_first() {
    for is_all_read in [false, true] {
        let mut world = World::new();
        let (a, b) = world.connected();
        world.sides[B].reads = is_all_read;
        world.sides[A].send(world.now, a, b"a request");
        world.run_ms(100);
        world.sides[A].send(world.now, a, b" that goes on");
        world.run_until(0, |_| false);
        world.sides[B].send(world.now, b, b"too large");
        world.close(B, b);
        world.hear_first();
        assert!(world.run_until(1000, |w| w.sides[A].conns[a].errno.is_some()), "all read: {is_all_read}");
        assert_eq!(world.sides[A].conns[a].received, b"too large", "all read: {is_all_read}");
        assert_eq!(states(&world, B), [""; 0]);
    }
}

#[test]
fn data_for_a_program_that_has_closed_is_answered_with_a_reset() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.close(B, b);
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].eof));
    let now = world.now;
    world.sides[A].send(now, a, b"to nobody");
    world.run_ms(100);
    assert!(world.sides[A].conns[a].errno.is_some());
    assert_eq!(states(&world, B), [""; 0]);
}

#[test]
fn data_after_both_directions_were_shut_is_answered_with_a_reset() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let flow = world.sides[B].conns[b].id;
    let shut_receive = Command::SetOption { flow, option: FlowOption::ReceiveShut, value: 1 };
    world.sides[B].plain(world.now, shut_receive);
    world.sides[A].send(world.now, a, b"still taken");
    world.run_ms(100);
    assert_eq!(world.sides[B].conns[b].received, b"still taken");
    world.sides[B].plain(world.now, Command::ShutdownSend { flow });
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].eof));
    let flags = world.sides[B].memory.infos.last().map(|info| info.flags);
    let is_shut = flags.map(|flags| flags & toe_abi::command::FLOW_RECEIVE_SHUT != 0);
    assert_eq!(is_shut, Some(true), "for whoever claims it");
    world.sides[A].send(world.now, a, b"to nobody");
    world.run_ms(100);
    assert_eq!(world.sides[A].conns[a].errno, Some(Errno::EPIPE), "A was in CLOSE_WAIT");
    assert_eq!(world.sides[B].conns[b].errno, Some(Errno::ECONNRESET));
}

#[test]
fn a_reset_after_both_fins_is_told_to_who_still_holds_the_connection() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.close(B, b);
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].eof));
    let flow = world.sides[A].conns[a].id;
    world.sides[A].send(world.now, a, b"to nobody");
    world.sides[A].plain(world.now, Command::ShutdownSend { flow });
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].errno == Some(Errno::ECONNRESET)));
}

#[test]
fn an_abort_tells_the_peer() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let flow = world.sides[A].conns[a].id;
    let now = world.now;
    world.sides[A].plain(now, Command::Close { flow, abort: true });
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].errno == Some(Errno::ECONNRESET)));
    assert_eq!(states(&world, A), [""; 0]);
}

/// connect to AF_UNSPEC: other holders of the descriptor keep it, but not the connection.
#[test]
fn a_disconnect_tells_both_ends_at_once_and_the_anchor_stays() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let (flow, anchor) = (world.sides[A].conns[a].id, world.sides[A].conns[a].anchor);
    let now = world.now;
    world.sides[A].send(now, a, b"last words");
    world.sides[A].plain(now, Command::Disconnect { flow });
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].errno == Some(Errno::ECONNRESET)));
    assert_eq!(world.sides[B].conns[b].received, b"last words");
    assert_eq!(world.sides[A].conns[a].errno, Some(Errno::ECONNRESET));
    assert_eq!(states(&world, A), ["CLOSED"]);
    // Again, and in TIME_WAIT, there is nothing to tell.
    let now = world.now;
    world.sides[A].plain(now, Command::Disconnect { flow });
    let side = &mut world.sides[A];
    side.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut side.memory);
    assert_eq!(states(&world, A), [""; 0]);
}

#[test]
fn a_disconnect_of_one_that_connects_ends_that() {
    let mut world = World::new();
    world.unplugged = true;
    let now = world.now;
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    let flow = world.sides[A].conns[a].id;
    world.sides[A].plain(now, Command::Disconnect { flow });
    world.run_ms(10);
    assert_eq!(states(&world, A), ["CLOSED"]);
}

/// Found by scripts against the whole: it stayed in the queue of control frames until something else was sent.
#[test]
fn an_abort_behind_text_goes_out_with_it() {
    let mut world = World::new();
    let (a, _) = world.connected();
    world.run_ms(1000);
    let (flow, anchor) = (world.sides[A].conns[a].id, world.sides[A].conns[a].anchor);
    let now = world.now;
    world.sides[A].send(now, a, b"last words");
    let side = &mut world.sides[A];
    side.command(now, Command::Close { flow, abort: true }, &[0; 64]);
    side.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut side.memory);
    let sent = side.engine.poll_transmit(now, PortId(0), &mut side.outbox, &mut side.memory, 64);
    assert_eq!(sent, 2, "the text and RST");
    assert!(!side.engine.view().has_transmit(PortId(0)));
}

/// The FIN is no text that is still to go.
#[test]
fn an_abort_when_our_fin_is_acknowledged_goes_out_at_once() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let (flow, anchor) = (world.sides[A].conns[a].id, world.sides[A].conns[a].anchor);
    let now = world.now;
    world.sides[A].plain(now, Command::ShutdownSend { flow });
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].eof));
    world.run_ms(100);
    assert_eq!(states(&world, A), ["FIN-WAIT-2"]);
    let now = world.now;
    let side = &mut world.sides[A];
    side.command(now, Command::Close { flow, abort: true }, &[0; 64]);
    side.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut side.memory);
    assert_eq!(states(&world, A), ["CLOSED"]);
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].errno == Some(Errno::EPIPE)));
}

#[test]
fn the_last_close_of_a_descriptor_ends_the_flow_whoever_held_it() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let anchor = world.sides[A].conns[a].anchor;
    let now = world.now;
    let side = &mut world.sides[A];
    side.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut side.memory);
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].eof));
}

#[test]
fn a_flow_whose_anchor_its_host_keeps_open_ends_and_the_anchor_can_be_used_again() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let (flow, anchor) = (world.sides[A].conns[a].id, world.sides[A].conns[a].anchor);
    world.sides[A].send(world.now, a, b"last words");
    world.sides[A].plain(world.now, Command::CloseRetained { flow, anchor, abort: false });
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].eof));
    assert_eq!(world.sides[B].conns[b].received, b"last words");
    assert_eq!(world.sides[A].anchors_told, [(anchor, true)]);
    assert!(world.sides[A].engine.view().anchor_use(anchor) == crate::AnchorUse::Unused);
    // A second word for it comes too late to do anything.
    world.sides[A].plain(world.now, Command::CloseRetained { flow, anchor, abort: true });
    world.run_ms(10);
    assert_eq!(world.sides[A].anchors_told, [(anchor, true), (anchor, false)]);
    assert_eq!(world.sides[B].conns[b].errno, None);
}

#[test]
fn a_flow_whose_anchor_somebody_else_was_shown_ends_with_the_last_close_only() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let (flow, anchor) = (world.sides[A].conns[a].id, world.sides[A].conns[a].anchor);
    let side = &mut world.sides[A];
    side.engine.handle_control(world.now, ControlEvent::Shared(anchor), &mut side.memory);
    world.sides[A].plain(world.now, Command::CloseRetained { flow, anchor, abort: true });
    world.run_ms(100);
    assert_eq!(world.sides[A].anchors_told, [(anchor, false)]);
    assert_eq!((world.sides[B].conns[b].eof, world.sides[B].conns[b].errno), (false, None));
    let (now, side) = (world.now, &mut world.sides[A]);
    side.engine.handle_control(now, ControlEvent::LastClose(anchor), &mut side.memory);
    assert!(world.run_until(1000, |w| w.sides[B].conns[b].eof));
}

/// Found by an attacker: a copy of which neither library nor kernel's count told was shown in the anchor's next use, and got a
/// stranger's connection.
#[test]
fn whoever_shows_an_anchor_that_was_kept_gets_nothing_unless_its_session_has_lent_it() {
    for way in ["nothing", "lend", "share"] {
        let mut world = World::new();
        let (a, _) = world.connected();
        let (flow, anchor) = (world.sides[A].conns[a].id, world.sides[A].conns[a].anchor);
        world.sides[A].plain(world.now, Command::CloseRetained { flow, anchor, abort: false });
        world.run_ms(10);
        world.sides[A].next_anchor = Some(anchor);
        let (a, b) = world.connected();
        assert_eq!(world.sides[A].conns[a].anchor, anchor);
        let (now, side) = (world.now, &mut world.sides[A]);
        let stranger = side.engine.open_session(toe_base::Cred::of_user(1000), LAYOUT).expect("room");
        side.engine.add_queue_set(stranger).expect("room");
        match way {
            "lend" => side.plain(now, Command::Lend { anchor }),
            "share" => {
                let shared = side.engine.change(now, side.session, Change::Share, &mut side.memory);
                shared.expect("nothing is direct");
            }
            _ => {}
        }
        let qs = toe_base::QueueSetId(0);
        let claimed = side.engine.claim(now, stranger, qs, 9, anchor, &mut side.memory);
        let expected = if way == "nothing" { Err(Errno::ENOENT) } else { Ok(()) };
        assert_eq!(claimed.map(|_| ()), expected, "{way}");
        assert_eq!(side.engine.hostif.may_show(stranger, anchor), expected, "{way}");
        if way == "nothing" {
            // Nor does such a copy keep the connection when its session is gone.
            side.engine.close_session(now, side.session, &mut side.memory);
            assert!(world.run_until(1000, |w| w.sides[B].conns[b].eof));
        }
    }
}

/// Of another's connection, too: the name of a flow means its own session's.
#[test]
fn nobody_ends_by_an_anchor_what_it_does_not_stand_for() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let (flow, anchor) = (world.sides[A].conns[a].id, world.sides[A].conns[a].anchor);
    let unused = world.sides[A].engine.hostif.new_anchor(world.sides[A].session);
    let nothing = toe_base::AnchorHandle(u32::MAX);
    for wrong in [unused, nothing] {
        world.sides[A].plain(world.now, Command::CloseRetained { flow, anchor: wrong, abort: true });
    }
    let stale = toe_base::FlowId::new(flow.slot() as u32, 4000);
    world.sides[A].plain(world.now, Command::CloseRetained { flow: stale, anchor, abort: true });
    world.run_ms(100);
    assert_eq!(world.sides[A].anchors_told, [(unused, false), (nothing, false), (anchor, false)]);
    assert_eq!((world.sides[B].conns[b].eof, world.sides[B].conns[b].errno), (false, None));
    assert!(world.transfer(A, (a, b), b"goes on", 1000));
}

#[test]
fn who_never_reads_the_answers_is_fenced() {
    let mut world = World::new();
    let (a, _) = world.connected();
    let (flow, anchor) = (world.sides[A].conns[a].id, toe_base::AnchorHandle(u32::MAX));
    let (now, session) = (world.now, world.sides[A].session);
    let side = &mut world.sides[A];
    let asked = (0..1_000_000).find_map(|n| {
        let close = Command::CloseRetained { flow, anchor, abort: false };
        side.engine
            .handle_command(now, session, toe_base::QueueSetId(0), close, &[0; 64], &mut side.memory)
            .err()
            .map(|why| (n, why))
    });
    assert!(matches!(asked, Some((n, FenceReason::CompletionOverflow)) if n < 100_000), "{asked:?}");
}

#[test]
fn a_descriptor_that_was_closed_before_the_engine_heard_of_it_ends_the_flow() {
    let mut world = World::new();
    let now = world.now;
    world.sides[B].closes_early = true;
    world.sides[B].listen(now, addr(B, 80)).expect("listens");
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].eof), "FIN, as at any last close");
}

#[test]
fn closing_a_listener_resets_what_nobody_took() {
    let mut world = World::new();
    let now = world.now;
    let id = world.sides[B].listen(now, addr(B, 80)).expect("listens");
    world.sides[B].plain(now, Command::CloseListener { listener: id, last: false });
    let a = world.sides[A].connect(now, addr(B, 80)).expect("starts");
    assert!(world.run_until(1000, |w| w.sides[A].conns[a].established), "the backlog takes it");
    // The listener's anchor was the first that B took.
    let side = &mut world.sides[B];
    side.engine.handle_control(
        world.now,
        ControlEvent::LastClose(toe_base::AnchorHandle(0)),
        &mut side.memory,
    );
    // Others may have had the kernel's socket, and nobody came with it.
    assert!(world.run_until(3000, |w| w.sides[A].conns[a].errno == Some(Errno::ECONNRESET)));
    assert_eq!(world.sides[B].engine.view().sockets(world.now), []);
}

#[test]
fn after_the_last_close_of_a_listener_nobody_gets_in() {
    let mut world = World::new();
    let now = world.now;
    let at = "127.0.0.1:80".parse().expect("an address");
    let id = world.sides[A].listen(now, at).expect("listens");
    world.sides[A].plain(now, Command::CloseListener { listener: id, last: true });
    assert_eq!(world.sides[A].connect(now, at), Err(Errno::ECONNREFUSED));
    assert_eq!(world.sides[A].engine.view().sockets(world.now), []);
}

#[test]
fn a_peer_that_vanishes_is_given_up_and_the_record_comes_back() {
    let mut world = World::new();
    let (a, _) = world.connected();
    world.unplugged = true;
    let now = world.now;
    world.sides[A].send(now, a, b"hello?");
    world.run_ms(3_600_000);
    assert_eq!(world.sides[A].conns[a].errno, Some(Errno::ETIMEDOUT));
    world.close(A, a);
    world.run_ms(1);
    assert_eq!(states(&world, A), [""; 0]);
}

#[test]
fn a_new_connection_may_reuse_a_tuple_in_time_wait() {
    let mut world = World::new();
    for _ in 0..3 {
        let (a, b) = world.connected();
        world.close(A, a);
        assert!(world.run_until(1000, |w| w.sides[B].conns[b].eof));
        world.close(B, b);
        world.run_ms(200);
    }
    assert_eq!(states(&world, A), ["TIME-WAIT"; 3]);
    assert_eq!(states(&world, B), [""; 0]);
}

#[test]
fn no_memory_is_left_after_a_thousand_connections() {
    let mut world = World::new();
    for i in 0..1000 {
        let conns = world.connected();
        assert!(world.transfer(A, conns, &pattern(700, i), 5_000));
        world.close(B, conns.1);
        world.close(A, conns.0);
        world.run_ms(10);
        world.sides[A].conns.clear();
        world.sides[B].conns.clear();
        world.log.clear();
    }
    world.run_ms(70_000);
    for side in &world.sides {
        assert_eq!(side.engine.view().session(side.session).receive_memory_used, 0);
        assert_eq!(side.engine.view().totals().flows, 0);
        assert_eq!(side.engine.view().session(side.session).flows, 0);
    }
}

/// A closes, B does not, and A's program has said how long FIN_WAIT_2 may last: whether B is reset, and after how many
/// seconds A has nothing left.
fn end_of_fin_wait_2(secs: u32) -> (bool, u64) {
    let mut world = World::new();
    let (a, b) = world.connected();
    let flow = world.sides[A].conns[a].id;
    let now = world.now;
    let option = FlowOption::FinWait2Secs;
    world.sides[A].plain(now, Command::SetOption { flow, option, value: secs });
    world.close(A, a);
    let begun = world.now;
    assert!(world.run_until(200_000, |w| states(w, A).is_empty()));
    world.run_ms(10);
    (world.sides[B].conns[b].errno.is_some(), world.now.since_us(begun) / 1_000_000)
}

#[test]
fn a_program_says_how_long_fin_wait_2_lasts() {
    assert_eq!(end_of_fin_wait_2(60), (false, 60), "as it is at first");
    assert_eq!(end_of_fin_wait_2(3), (false, 3));
    assert_eq!(end_of_fin_wait_2(90), (true, 90));
    assert_eq!(end_of_fin_wait_2(5_000), (true, 120), "two minutes at most");
    assert_eq!(end_of_fin_wait_2(u32::MAX), (true, 0), "none at all");
}
