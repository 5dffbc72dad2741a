//! What `toe ss -i` says of a connection, against what went over the wire.

use super::world::{A, B, Faults, World, pattern};
use toe_abi::command::{FLOW_SACK, FLOW_TIMESTAMPS, FLOW_WINDOW_SCALE};
use toe_abi::report::TcpReport;
use toe_wire::link::LinkCaps;

fn report(world: &World, side: usize) -> TcpReport {
    let sockets = world.sides[side].engine.sockets();
    let mut flows = sockets.into_iter().filter_map(|socket| socket.tcp);
    let (flow, others) = (flows.next().expect("a connection"), flows.count());
    assert_eq!(others, 0, "one connection");
    flow
}

#[test]
fn octets_are_counted_once_at_the_receiver_and_each_time_at_the_sender() {
    let mut world = World::with_caps(LinkCaps { tx_checksum: true, gso_max: 0 });
    let conns = world.connected();
    world.faults = Faults { drop: 50, ..Faults::default() };
    let data = pattern(400_000, 1);
    assert!(world.transfer(A, conns, &data, 600_000));
    world.faults = Faults::default();
    assert!(world.run_until(10_000, |w| w.sides[A].conns[conns.0].acked == data.len() as u64));
    let (sender, receiver) = (report(&world, A), report(&world, B));
    let len = data.len() as u64;
    assert_eq!((sender.bytes_acked, receiver.bytes_received), (len, len));
    assert_eq!(sender.bytes_sent, len + sender.bytes_retrans);
    assert!(sender.bytes_retrans > 0 && sender.retransmits > 0, "{sender:?}");
    assert_eq!((receiver.bytes_sent, sender.bytes_received), (0, 0));
    assert!(sender.ssthresh.is_some() && sender.srtt_us >= 100 && sender.delivery_rate > 0, "{sender:?}");
    assert_eq!((sender.unacked, sender.notsent, sender.lost), (0, 0, 0));
}

#[test]
fn what_was_agreed_on_and_what_is_on_its_way() {
    let mut world = World::new();
    let (a, _) = world.connected();
    let fresh = report(&world, A);
    assert!(fresh.timestamps && fresh.sack && fresh.wscale.is_some(), "{fresh:?}");
    let told = world.sides[A].memory.infos.last().map(|info| info.flags);
    assert_eq!(told, Some(FLOW_TIMESTAMPS | FLOW_SACK | FLOW_WINDOW_SCALE), "the program can ask, too");
    assert_eq!((fresh.congestion.as_str(), fresh.ca_state.as_str()), ("cubic", "open"));
    assert_eq!((fresh.mss, fresh.pmtu, fresh.cwnd), (1448, 1500, 14_480));
    assert_eq!((fresh.ssthresh, fresh.bytes_sent, fresh.bytes_acked), (None, 0, 0));
    world.unplugged = true;
    let now = world.now;
    world.sides[A].send(now, a, &pattern(100_000, 2));
    world.run_ms(0);
    let stuck = report(&world, A);
    assert_eq!((stuck.unacked, stuck.notsent), (14_480, 100_000 - 14_480));
    world.run_ms(1_500);
    let late = report(&world, A);
    assert_eq!(late.ca_state, "loss");
    assert!(late.backoff > 0 && late.rto_us > fresh.rto_us, "{late:?}");
}
