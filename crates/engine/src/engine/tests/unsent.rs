//! Who wants to hear of what has gone out (TCP_NOTSENT_LOWAT) hears when little is left that has not.

use super::world::{A, B, World, pattern};
use toe_abi::entry::{Command, FlowOption};

const LOW_WATER: u32 = 20_000;

#[test]
fn what_has_gone_out_is_told_when_less_than_half_of_the_mark_waits() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let (now, flow) = (world.now, world.sides[A].conns[a].id);
    let option = FlowOption::UnsentLowWater;
    world.sides[A].send(now, a, b"before");
    world.sides[A].plain(now, Command::SetOption { flow, option, value: LOW_WATER });
    world.sides[B].reads = false;
    let data = pattern(300_000, 1);
    world.sides[A].send(now, a, &data);
    world.run_ms(3_000);
    // The peer's window is full.
    let told: u32 = world.sides[A].conns[a].went_out.iter().sum();
    assert!(told <= 6, "far more than that waits: {told}");
    world.sides[B].reads = true;
    let now = world.now;
    world.sides[B].read(now, b);
    let all = |w: &World| w.sides[B].conns[b].received.len() == 300_006;
    assert!(world.run_until(10_000, all));
    world.run_ms(10);
    let told: u32 = world.sides[A].conns[a].went_out.iter().sum();
    assert!((300_000..=300_006).contains(&told), "{told}: all of it, and none twice");

    let count = world.sides[A].conns[a].went_out.len();
    let now = world.now;
    world.sides[A].plain(now, Command::SetOption { flow, option, value: 0 });
    world.sides[A].send(now, a, b"after");
    world.run_ms(100);
    assert_eq!(world.sides[A].conns[a].went_out.len(), count, "nobody asks any more");
}
