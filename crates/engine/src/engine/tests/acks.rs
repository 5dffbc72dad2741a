//! How many ACKs there are (RFC 9293 section 3.10.7.4).

use super::world::{A, B, World, pattern};
use toe_wire::link::LinkCaps;

const MSS: usize = 1448;

#[test]
fn segments_that_come_together_are_acknowledged_together() {
    let mut world = World::with_caps(LinkCaps::default());
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(50_000, 1), 1_000));
    let (now, from) = (world.now, world.log.len());
    world.sides[A].send(now, conns.0, &pattern(4 * MSS, 2));
    world.run_ms(10);
    let of = |side: usize| world.log[from..].iter().filter(move |(_, from, _)| *from == side);
    assert_eq!(of(A).count(), 4, "four segments in one batch");
    assert_eq!(of(B).count(), 1, "and one ACK");
    let ack = &of(B).next().expect("it").2[34 + 8..34 + 12];
    let last = &of(A).next_back().expect("the last").2;
    let end = u32::from_be_bytes(last[34 + 4..34 + 8].try_into().expect("four bytes")) + MSS as u32;
    assert_eq!(ack, end.to_be_bytes(), "of all four");
}
