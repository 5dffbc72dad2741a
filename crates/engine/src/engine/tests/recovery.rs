//! Losses are found and repaired without waiting for time-outs, and what was no loss costs nothing.

use super::world::{A, B, Faults, World, addr, pattern};
use crate::Counter;
use toe_wire::link::LinkCaps;

const MSS: usize = 1448;

/// A link of single segments with a round trip of 40 ms, warmed up.
fn long_path() -> (World, (usize, usize)) {
    let mut world = World::with_caps(LinkCaps::default());
    world.latency_us = 20_000;
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(400_000, 1), 20_000));
    (world, conns)
}

fn count(world: &World, counter: Counter) -> u64 {
    world.sides[A].engine.view().counter(counter)
}

fn received(world: &World, conns: (usize, usize)) -> usize {
    world.sides[B].conns[conns.1].received.len()
}

/// Sends `n` segments; those in `lost` do not arrive.
fn send_all_but(world: &mut World, conns: (usize, usize), n: usize, lost: &[usize]) {
    for i in 0..n {
        world.faults.drop = if lost.contains(&i) { 1000 } else { 0 };
        let now = world.now;
        world.sides[A].send(now, conns.0, &pattern(MSS, i as u32));
        world.run_until(0, |_| false);
    }
    world.faults.drop = 0;
}

#[test]
fn many_holes_in_one_window_are_filled_in_one_round_trip() {
    let (mut world, conns) = long_path();
    let (before, timeouts) = (received(&world, conns), count(&world, Counter::RetransmitTimeouts));
    send_all_but(&mut world, conns, 40, &[3, 5, 9, 10, 11, 17, 21, 30]);
    let sent_again = count(&world, Counter::Retransmits);
    assert!(world.run_until(100, |w| received(w, conns) == before + 40 * MSS), "one round trip and one more");
    assert_eq!(count(&world, Counter::Retransmits) - sent_again, 8, "just what was lost");
    assert_eq!(count(&world, Counter::RetransmitTimeouts), timeouts);
}

#[test]
fn a_loss_at_the_tail_is_found_by_a_probe() {
    let (mut world, conns) = long_path();
    let (before, timeouts) = (received(&world, conns), count(&world, Counter::RetransmitTimeouts));
    send_all_but(&mut world, conns, 10, &[8, 9]);
    assert!(world.run_until(190, |w| received(w, conns) == before + 10 * MSS), "before the time-out");
    assert_eq!(count(&world, Counter::RetransmitTimeouts), timeouts);
    assert_eq!(count(&world, Counter::TailLossProbes), 1);
}

#[test]
fn a_retransmission_that_is_lost_too_is_found_without_a_time_out() {
    let (mut world, conns) = long_path();
    let (before, timeouts) = (received(&world, conns), count(&world, Counter::RetransmitTimeouts));
    send_all_but(&mut world, conns, 20, &[2]);
    let again = count(&world, Counter::Retransmits);
    // The wire drops while the retransmission goes out.
    world.faults.drop = 1000;
    world.run_until(60, |w| count(w, Counter::Retransmits) > again);
    world.faults.drop = 0;
    for i in 0..40 {
        let now = world.now;
        world.sides[A].send(now, conns.0, &pattern(MSS, i));
        world.run_ms(1);
    }
    assert!(world.run_until(150, |w| received(w, conns) == before + 60 * MSS));
    assert_eq!(count(&world, Counter::RetransmitTimeouts), timeouts);
}

#[test]
fn reordering_is_learnt_and_then_costs_nothing() {
    let (mut world, conns) = long_path();
    world.faults = Faults { reorder: 200, ..Faults::default() };
    // What is late comes three one-way times late: farther than RACK waits at first.
    assert!(world.transfer(A, conns, &pattern(1_000_000, 2), 60_000));
    let (again, undone) = (count(&world, Counter::Retransmits), count(&world, Counter::Undos));
    assert!(undone > 0, "D-SACKs and timestamps told that nothing was lost");
    assert!(world.transfer(A, conns, &pattern(1_000_000, 3), 60_000));
    let later = count(&world, Counter::Retransmits) - again;
    assert!(later <= again, "{again} retransmissions at first, {later} later");
}

#[test]
fn a_time_out_without_a_loss_is_undone() {
    let (mut world, conns) = long_path();
    let (before, again) = (received(&world, conns), count(&world, Counter::Retransmits));
    let cwnd = cwnd(&world, conns);
    // The path holds everything up for half a second.
    world.latency_us = 500_000;
    send_all_but(&mut world, conns, 20, &[]);
    world.run_until(1000, |w| count(w, Counter::RetransmitTimeouts) > 0);
    let now = world.now;
    world.sides[A].send(now, conns.0, &pattern(20 * MSS, 9));
    assert!(world.run_until(3_000, |w| received(w, conns) == before + 40 * MSS));
    world.run_ms(2000);
    assert!(count(&world, Counter::SpuriousTimeouts) > 0);
    assert!(self::cwnd(&world, conns) >= cwnd, "the window is what it was");
    let again = count(&world, Counter::Retransmits) - again;
    assert!(again <= 4, "a probe and the first segment, a few times: {again}");
}

fn cwnd(world: &World, conns: (usize, usize)) -> u32 {
    let side = &world.sides[A];
    let flows = &side.engine.hostif.sessions.get(side.session).expect("open").flows;
    let idx = flows.get(side.conns[conns.0].id).expect("open");
    side.engine.flows.path(idx).cc.cwnd
}

/// Random losses of one segment in a hundred: the time it takes follows the window, not the time-outs.
#[test]
fn a_lossy_path_is_used_all_the_same() {
    let mut world = World::with_caps(LinkCaps::default());
    world.latency_us = 10_000;
    world.faults.drop = 10;
    let conns = world.connected();
    let start = world.now;
    assert!(world.transfer(A, conns, &pattern(4_000_000, 4), 120_000));
    let took_ms = world.now.since_us(start) / 1000;
    // Mathis: 1448 * 1.22 / (20 ms * sqrt(0.01)) = 880 KB/s and more for CUBIC; half of that is the bound here.
    assert!(took_ms < 9_000, "{took_ms} ms");
    assert_eq!(count(&world, Counter::RetransmitTimeouts), 0);
}

#[test]
fn a_lost_syn_makes_the_start_careful_and_says_nothing_of_the_path() {
    let mut world = World::with_caps(LinkCaps::default());
    world.sides[B].listen(world.now, addr(B, 80)).expect("listens");
    world.unplugged = true;
    let a = world.sides[A].connect(world.now, addr(B, 80)).expect("connects");
    world.run_ms(500);
    world.unplugged = false;
    assert!(world.run_until(5_000, |w| w.sides[A].conns[a].established));
    let from = world.log.len();
    let now = world.now;
    world.sides[A].send(now, a, &pattern(20 * MSS, 1));
    world.run_until(0, |_| false);
    assert_eq!(world.log.len() - from, 1, "one segment at first");
    assert!(
        world.run_until(20, |w| w.sides[B].conns.first().is_some_and(|c| c.received.len() == 20 * MSS)),
        "then slow start"
    );
}

/// RFC 9293 section 3.8.3: after R1 time-outs somebody else may have the address.
#[test]
fn the_neighbour_of_a_silent_peer_is_asked_for_again() {
    let mut world = World::new();
    let (a, _) = world.connected();
    let questions = |world: &World| {
        world.log.iter().filter(|(_, from, frame)| *from == A && frame[12..14] == [0x08, 0x06]).count()
    };
    let before = questions(&world);
    world.unplugged = true;
    let now = world.now;
    world.sides[A].send(now, a, b"hello");
    world.run_ms(900);
    assert_eq!(questions(&world), before, "two time-outs prove nothing");
    world.run_ms(1_500);
    assert!(questions(&world) > before);
}
