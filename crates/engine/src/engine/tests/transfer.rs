//! Connections open, and bytes arrive as they were sent, whatever the wire does.

use super::world::{A, B, Faults, World, addr, pattern};
use crate::Counter;
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::PortId;
use toe_wire::EthRepr;
use toe_wire::ipv4::Ipv4Repr;
use toe_wire::link::LinkCaps;
use toe_wire::tcp::{TcpFlags, TcpRepr};

#[test]
fn a_connection_opens_and_carries_bytes_both_ways() {
    let mut world = World::new();
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(300_000, 1), 5_000));
    assert!(world.transfer(B, conns, &pattern(5_000, 2), 5_000));
}

#[test]
fn a_link_without_offloads_gets_whole_checksummed_segments() {
    let mut world = World::with_caps(LinkCaps::default());
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(100_000, 3), 5_000));
    assert!(world.log.iter().all(|(_, _, frame)| frame.len() <= 1514), "no frame beyond the MTU");
    assert_eq!(world.sides[B].engine.view().counter(Counter::DropBadChecksum), 0);
}

/// Else their programs hear of nothing, and make nothing, until whole windows have been copied.
#[test]
fn of_long_streams_only_a_part_goes_out_before_programs_are_told_again() {
    let mut world = World::new();
    let conns = [world.connected(), world.connected(), world.connected()];
    // The windows open.
    for (n, &both) in (0..).zip(&conns) {
        for part in 0..4 {
            assert!(world.transfer(A, both, &pattern(400_000, n + part), 5_000));
        }
    }
    let (now, data) = (world.now, pattern(250_000, 9));
    let side = &mut world.sides[A];
    for (here, _) in conns {
        side.send(now, here, &data);
    }
    side.engine.poll_transmit(now, PortId(0), &mut side.outbox, &mut side.memory, 256);
    let gone: usize = side.outbox.sent.iter().map(|(frame, _)| frame.len()).sum();
    assert!((256 << 10..600 << 10).contains(&gone), "{gone}");
    assert!(side.engine.view().has_transmit(PortId(0)), "the rest is for the next round");
    let all =
        |world: &World| conns.iter().all(|&(_, there)| world.sides[B].conns[there].received.ends_with(&data));
    assert!(world.run_until(5_000, all));
}

/// RFC 9293 section 3.9.1.2, and more: whoever joins segments again hands a unit on at its PSH.
#[test]
fn every_large_unit_is_pushed_and_a_lone_segment_only_at_the_end_of_what_is_queued() {
    let mut world = World::new();
    let conns = world.connected();
    let from = world.log.len();
    assert!(world.transfer(A, conns, &pattern(400_000, 4), 5_000));
    let mut units = 0;
    for (_, side, frame) in &world.log[from..] {
        let packet = EthRepr::parse(frame).expect("Ethernet").1;
        let Ok((_, segment)) = Ipv4Repr::parse(packet) else { continue };
        let (header, payload) = TcpRepr::parse(segment).expect("TCP");
        if *side == A && payload.len() > 1460 {
            units += 1;
            assert!(header.flags.contains(TcpFlags::PSH), "{} bytes", payload.len());
        }
    }
    assert!(units > 3, "{units} units");

    let mut world = World::with_caps(LinkCaps { tx_checksum: true, gso_max: 0, ..LinkCaps::default() });
    let (a, _) = world.connected();
    let from = world.log.len();
    let now = world.now;
    world.sides[A].send(now, a, &pattern(2 * 1448, 5));
    world.run_ms(5);
    let pushed: Vec<bool> = world.log[from..]
        .iter()
        .filter_map(|(_, side, frame)| {
            let (_, segment) = Ipv4Repr::parse(EthRepr::parse(frame).ok()?.1).ok()?;
            let (header, payload) = TcpRepr::parse(segment).ok()?;
            (*side == A && !payload.is_empty()).then_some(header.flags.contains(TcpFlags::PSH))
        })
        .collect();
    assert_eq!(pushed, [false, true]);
}

#[test]
fn data_on_the_last_ack_of_the_handshake_is_not_delayed() {
    let mut world = World::new();
    let (a, b) = world.connected();
    let now = world.now;
    world.sides[A].send(now, a, b"GET /");
    assert!(world.run_until(1, |w| w.sides[B].conns[b].received == b"GET /"), "well under a delayed ACK");
}

#[test]
fn loss_reordering_and_duplication_change_nothing() {
    for (name, faults) in [
        ("loss", Faults { drop: 30, ..Faults::default() }),
        ("reordering", Faults { reorder: 100, ..Faults::default() }),
        ("duplication", Faults { duplicate: 100, ..Faults::default() }),
        ("all", Faults { drop: 20, reorder: 50, duplicate: 20 }),
    ] {
        let mut world = World::new();
        world.faults = faults;
        let conns = world.connected();
        assert!(world.transfer(A, conns, &pattern(2_000_000, 4), 600_000), "{name} A to B");
        assert!(world.transfer(B, conns, &pattern(500_000, 5), 600_000), "{name} B to A");
    }
}

#[test]
fn a_lost_segment_among_many_is_sent_again_without_a_time_out() {
    let mut world = World::with_caps(LinkCaps::default());
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(200_000, 6), 5_000));
    world.faults.drop = 1000;
    let now = world.now;
    world.sides[A].send(now, conns.0, &pattern(1448, 7));
    world.run_until(0, |_| false);
    world.faults.drop = 0;
    for i in 0..6 {
        let now = world.now;
        world.sides[A].send(now, conns.0, &pattern(1448, 8 + i));
    }
    let all = 200_000 + 7 * 1448;
    assert!(world.run_until(150, |w| w.sides[B].conns[conns.1].received.len() == all), "before any RTO");
    assert!(world.sides[A].engine.view().counter(Counter::FastRetransmits) > 0);
}

#[test]
fn connecting_where_nobody_listens_is_refused() {
    let mut world = World::new();
    let now = world.now;
    let conn = world.sides[A].connect(now, addr(B, 81)).expect("starts");
    assert!(world.run_until(5000, |w| w.sides[A].conns[conn].errno == Some(Errno::ECONNREFUSED)));
}

#[test]
fn connecting_to_a_host_that_is_not_there_is_host_unreachable() {
    let mut world = World::new();
    let now = world.now;
    let conn = world.sides[A].connect(now, "10.0.0.77:80".parse().expect("an address")).expect("starts");
    assert!(world.run_until(10_000, |w| w.sides[A].conns[conn].errno == Some(Errno::EHOSTUNREACH)));
}

#[test]
fn an_address_without_a_route_is_left_to_the_kernel() {
    let mut world = World::new();
    let now = world.now;
    assert_eq!(
        world.sides[A].connect(now, "192.0.2.1:80".parse().expect("an address")),
        Err(Errno::ENETUNREACH)
    );
}

#[test]
fn a_reader_that_stops_closes_the_window_and_probes_reopen_it() {
    let mut world = World::new();
    let conns = world.connected();
    world.sides[B].reads = false;
    let data = pattern(400_000, 9);
    for chunk in data.chunks(50_000) {
        let now = world.now;
        world.sides[A].send(now, conns.0, chunk);
    }
    world.run_ms(20_000);
    assert!(world.sides[A].engine.view().counter(Counter::ZeroWindowProbes) > 0);
    assert!(world.sides[B].conns[conns.1].received.is_empty());
    world.sides[B].reads = true;
    let now = world.now;
    world.sides[B].read(now, conns.1);
    assert!(world.run_until(60_000, |w| w.sides[B].conns[conns.1].received == data));
}

#[test]
fn a_window_update_that_is_lost_is_found_by_a_probe() {
    let mut world = World::new();
    let conns = world.connected();
    world.sides[B].reads = false;
    let data = pattern(200_000, 10);
    let now = world.now;
    world.sides[A].send(now, conns.0, &data);
    world.run_ms(300);
    world.sides[B].reads = true;
    world.unplugged = true;
    let now = world.now;
    world.sides[B].read(now, conns.1);
    world.run_ms(1);
    world.unplugged = false;
    assert!(world.run_until(60_000, |w| w.sides[B].conns[conns.1].received == data));
}

#[test]
fn local_connections_carry_bytes_without_frames() {
    let mut world = World::new();
    let now = world.now;
    let at = "127.0.0.1:80".parse().expect("an address");
    world.sides[A].listen(now, at).expect("listens");
    let client = world.sides[A].connect(now, at).expect("connects");
    assert!(world.run_until(1000, |w| w.sides[A].conns.len() == 2 && w.sides[A].conns[client].established));
    let data = pattern(1_000_000, 11);
    for chunk in data.chunks(250_000) {
        let now = world.now;
        world.sides[A].send(now, client, chunk);
    }
    assert!(world.run_until(1000, |w| w.sides[A].conns[1].received == data));
    assert!(world.log.is_empty(), "no frame was built");
}

#[test]
fn a_local_connect_without_a_listener_is_refused_at_once() {
    let mut world = World::new();
    let now = world.now;
    let refused = world.sides[A].connect(now, "127.0.0.1:9".parse().expect("an address"));
    assert_eq!(refused, Err(Errno::ECONNREFUSED));
}

#[test]
fn both_ends_connecting_at_once_make_one_connection() {
    let mut world = World::new();
    // Both know each other's hardware address already, so that the SYNs cross.
    world.connected();
    let now = world.now;
    for side in [A, B] {
        let (from, to) = (addr(side, 5000).into(), addr(1 - side, 5000));
        world.sides[side].connect_from(now, from, to).expect("starts");
    }
    assert!(world.run_until(10_000, |w| w.sides.iter().all(|s| s.conns[1].established)));
    assert!(world.transfer(A, (1, 1), &pattern(10_000, 12), 5_000));
}

#[test]
fn the_same_seed_gives_the_same_frames() {
    let run = || {
        let mut world = World::new();
        world.faults = Faults { drop: 20, reorder: 50, duplicate: 20 };
        let conns = world.connected();
        assert!(world.transfer(A, conns, &pattern(500_000, 13), 600_000));
        world.log
    };
    assert_eq!(run(), run());
}

#[test]
fn a_flow_is_plain_data_the_derived_tables_can_be_rebuilt_at_any_moment() {
    let mut world = World::new();
    world.faults = Faults { drop: 20, reorder: 20, duplicate: 0 };
    let conns = world.connected();
    for i in 0..20 {
        assert!(world.transfer(A, conns, &pattern(40_000, i), 60_000));
        world.sides[A].engine.rebuild_derived();
        world.sides[B].engine.rebuild_derived();
    }
    world.close(A, conns.0);
    world.sides[A].engine.rebuild_derived();
    assert!(world.run_until(60_000, |w| w.sides[B].conns[conns.1].eof));
}

#[test]
fn keepalive_notices_a_peer_that_is_gone() {
    use toe_abi::entry::{Command, FlowOption};
    let mut world = World::new();
    let (a, _) = world.connected();
    let flow = world.sides[A].conns[a].id;
    let now = world.now;
    for (option, value) in [
        (FlowOption::KeepIdleSecs, 10),
        (FlowOption::KeepIntervalSecs, 2),
        (FlowOption::KeepCount, 3),
        (FlowOption::KeepAlive, 1),
    ] {
        world.sides[A].plain(now, Command::SetOption { flow, option, value });
    }
    world.run_ms(60_000);
    assert_eq!(world.sides[A].conns[a].errno, None, "an idle peer answers the probes");
    assert!(world.sides[A].engine.view().counter(Counter::KeepaliveProbes) > 3);
    world.unplugged = true;
    world.run_ms(30_000);
    assert_eq!(world.sides[A].conns[a].errno, Some(Errno::ETIMEDOUT));
}

#[test]
fn a_chosen_port_is_never_that_of_a_listener_so_nothing_connects_to_itself() {
    let mut world = World::new();
    let now = world.now;
    let at = "127.0.0.1:40000".parse().expect("an address");
    world.sides[A].listen(now, at).expect("listens");
    // Once round all the ports that there are to choose from.
    for _ in 32_768..61_000 {
        let now = world.now;
        world.sides[A].connect(now, at).expect("connects");
        world.run_until(100, |w| w.sides[A].conns.len() == 2 && w.sides[A].conns[0].established);
        let own_port = |s: &crate::SocketView| !s.listener && s.local == s.remote;
        assert!(!world.sides[A].engine.view().sockets(world.now).iter().any(own_port));
        world.close(A, 0);
        world.close(A, 1);
        world.run_ms(20);
        world.sides[A].conns.clear();
    }
}

/// TCP_DEFER_ACCEPT, of a peer on a link and of one that is here.
#[test]
fn a_listener_may_want_connections_with_their_first_bytes() {
    for (to, at) in [(B, addr(B, 80)), (A, "127.0.0.1:80".parse().expect("an address"))] {
        let mut world = World::new();
        let now = world.now;
        let listener = world.sides[to].listen(now, at).expect("listens");
        world.sides[to].plain(now, Command::DeferAccept { listener, secs: 3 });
        let accepted = |w: &World| w.sides[to].conns.len() - if to == A { 2 } else { 0 };
        let clients = [(); 2].map(|()| world.sides[A].connect(now, at).expect("connects"));
        world.run_ms(1_000);
        assert!(clients.iter().all(|a| world.sides[A].conns[*a].established), "the peers know nothing of it");
        assert_eq!(accepted(&world), 0);
        world.sides[A].send(now, clients[0], b"hello");
        world.run_ms(100);
        assert_eq!(accepted(&world), 1);
        world.run_ms(1_800);
        assert_eq!(accepted(&world), 1);
        world.run_ms(200);
        assert_eq!(accepted(&world), 2, "the time is over");
        let b = world.sides[to].conns.len() - 2;
        assert_eq!(world.sides[to].conns[b].received, b"hello");
    }
}
