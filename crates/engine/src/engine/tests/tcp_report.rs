//! What `toe ss -i` says of a connection, against what went over the wire.

use super::world::{A, B, Faults, World, pattern};
use toe_abi::command::{FLOW_SACK, FLOW_TIMESTAMPS, FLOW_WINDOW_SCALE};
use toe_abi::entry::Command;
use toe_abi::report::TcpReport;
use toe_abi::tcp_info::{CA_LOSS, CA_OPEN, FlowDetail, NO_SSTHRESH};
use toe_wire::link::LinkCaps;

fn report(world: &World, side: usize) -> TcpReport {
    let sockets = world.sides[side].engine.view().sockets(world.now);
    let mut flows = sockets.into_iter().filter_map(|socket| socket.tcp);
    let (flow, others) = (flows.next().expect("a connection"), flows.count());
    assert_eq!(others, 0, "one connection");
    flow
}

#[test]
fn bytes_are_counted_once_at_the_receiver_and_each_time_at_the_sender() {
    let mut world = World::with_caps(LinkCaps { tx_checksum: true, gso_max: 0, ..LinkCaps::default() });
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

/// What TCP_INFO tells of the only connection of a side.
fn detail(world: &mut World, side: usize, conn: usize) -> FlowDetail {
    let now = world.now;
    let flow = world.sides[side].conns[conn].id;
    world.sides[side].plain(now, Command::Inspect { flow, token: 77 });
    let engine = &mut world.sides[side];
    engine.memory.details.pop().expect("it was written")
}

#[test]
fn a_host_that_asks_is_told_what_is_true_now() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let fresh = detail(&mut world, A, a);
    assert_eq!((fresh.state, fresh.ca_state, fresh.options), (1, CA_OPEN, 7));
    assert_eq!(
        (fresh.snd_mss, fresh.pmtu, fresh.snd_cwnd, fresh.snd_ssthresh),
        (1448, 1500, 10, NO_SSTHRESH)
    );
    assert_eq!((fresh.bytes_acked, fresh.delivered, fresh.busy_time), (1, 1, 0), "the SYN");
    world.run_ms(50);
    assert!(world.transfer(A, (a, b), &pattern(100_000, 3), 120_000));
    world.run_ms(300);
    let (sender, receiver) = (detail(&mut world, A, a), detail(&mut world, B, b));
    assert_eq!((sender.bytes_acked, sender.bytes_sent, receiver.bytes_received), (100_001, 100_000, 100_000));
    assert_eq!((sender.unacked, sender.notsent_bytes, sender.total_retrans), (0, 0, 0));
    assert_eq!(sender.data_segs_out, 100_000u32.div_ceil(1448));
    assert_eq!(sender.delivered, sender.data_segs_out + 1);
    assert_eq!((sender.data_segs_in, receiver.data_segs_out), (0, 0));
    assert!(receiver.data_segs_in >= 1 && receiver.rcv_rtt > 0, "{receiver:?}");
    assert!(sender.rtt > 0 && sender.min_rtt < u32::MAX && sender.delivery_rate > 0, "{sender:?}");
    assert!(sender.busy_time > 0 && sender.snd_cwnd > fresh.snd_cwnd, "{sender:?}");
    assert!((250..=320).contains(&sender.last_data_sent), "{sender:?}");
    assert!((250..=320).contains(&receiver.last_data_recv), "{receiver:?}");
    world.run_ms(1_000);
    assert!(detail(&mut world, A, a).last_data_sent >= 1_250, "as time goes by");
}

#[test]
fn time_outs_and_what_goes_again_are_told() {
    let mut world = World::new();
    let (a, b) = world.connected();
    world.unplugged = true;
    let now = world.now;
    world.sides[A].send(now, a, &pattern(3_000, 4));
    world.run_ms(2_000);
    let stuck = detail(&mut world, A, a);
    assert_eq!((stuck.ca_state, stuck.delivered), (CA_LOSS, 1));
    // The path is thought to take smaller segments by now.
    assert!((3..=4).contains(&stuck.unacked), "{stuck:?}");
    assert!(stuck.retransmits > 0 && stuck.total_rto > 0 && stuck.total_retrans > 0, "{stuck:?}");
    assert_eq!((stuck.total_rto_recoveries, stuck.snd_ssthresh < NO_SSTHRESH), (0, true));
    assert!(stuck.busy_time >= 1_900_000 && stuck.total_rto_time >= 1_000, "{stuck:?}");
    world.unplugged = false;
    assert!(world.run_until(5_000, |w| w.sides[B].conns[b].received.len() == 3_000));
    world.run_ms(100);
    let over = detail(&mut world, A, a);
    assert_eq!((over.total_rto_recoveries, over.unacked, over.retransmits), (1, 0, 0));
    assert_eq!(over.bytes_sent - over.bytes_retrans, 3_000);
}

#[test]
fn a_closed_window_is_what_held_it_up() {
    let mut world = World::new();
    let (a, _) = world.connected();
    let now = world.now;
    world.sides[B].reads = false;
    world.sides[A].send(now, a, &pattern(400_000, 5));
    world.run_ms(900);
    let full = detail(&mut world, A, a);
    assert!(full.rwnd_limited >= 800_000 && full.busy_time >= full.rwnd_limited, "{full:?}");
    assert!(full.notsent_bytes > 0 && full.snd_wnd < 1448, "{full:?}");
}
