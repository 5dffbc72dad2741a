//! Paths that take smaller segments than both ends would, with and without a router that says so.

use super::world::{A, B, World, pattern};
use toe_wire::link::LinkCaps;

/// Ethernet, IPv4 and TCP header with timestamps.
const HEADERS: usize = 14 + 20 + 32;

fn connected() -> (World, (usize, usize)) {
    let mut world = World::with_caps(LinkCaps::default());
    world.latency_us = 5_000;
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(100_000, 1), 20_000));
    (world, conns)
}

/// Payload of the largest segment that arrived since frame `from` of the log.
fn largest(world: &World, from: usize) -> usize {
    let lens = world.log[from..].iter().map(|(_, _, frame)| frame.len());
    lens.filter(|len| *len <= world.longest).max().unwrap_or(0) - HEADERS
}

#[test]
fn a_path_that_swallows_large_segments_is_found_out_and_used_to_its_size() {
    let (mut world, conns) = connected();
    world.longest = HEADERS + 1200;
    assert!(world.transfer(A, conns, &pattern(50_000, 2), 20_000), "some time-outs, and then it goes on");
    let from = world.log.len();
    assert!(world.transfer(A, conns, &pattern(2_000_000, 3), 20_000));
    let size = largest(&world, from);
    assert!((1180..=1200).contains(&size), "{size} of 1200 bytes");
    let from = world.log.len();
    assert!(world.transfer(A, conns, &pattern(500_000, 4), 20_000));
    let lost = world.log[from..].iter().filter(|(_, _, frame)| frame.len() > world.longest).count();
    assert_eq!(lost, 0, "the search is over");
}

#[test]
fn a_path_that_widens_is_used_after_ten_minutes() {
    let (mut world, conns) = connected();
    world.longest = HEADERS + 1200;
    assert!(world.transfer(A, conns, &pattern(2_000_000, 2), 60_000));
    world.longest = usize::MAX;
    let from = world.log.len();
    assert!(world.transfer(A, conns, &pattern(500_000, 3), 20_000));
    assert!(largest(&world, from) <= 1200);
    world.run_ms(300_000);
    let from = world.log.len();
    assert!(world.transfer(A, conns, &pattern(500_000, 6), 20_000));
    assert!(largest(&world, from) <= 1200, "after five minutes");
    world.run_ms(300_000);
    assert!(world.transfer(A, conns, &pattern(2_000_000, 4), 20_000));
    let from = world.log.len();
    assert!(world.transfer(A, conns, &pattern(500_000, 5), 20_000));
    assert_eq!(largest(&world, from), 1448);
    assert_eq!(
        world.sides[B].conns[conns.1].received.len(),
        100_000 + 2_000_000 + 500_000 + 500_000 + 2_000_000 + 500_000
    );
}
