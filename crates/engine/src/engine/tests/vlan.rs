//! Ports of one of several networks on a wire (IEEE 802.1Q).

use super::world::{A, B, World, addr, addr6, pattern};
use crate::{Counter, NetworkChange};
use toe_base::PortId;
use toe_wire::link::{LinkCaps, RxOffload};
use toe_wire::vlan::VlanId;

const PORT: PortId = PortId(0);

/// A and B, whose ports are of these networks.
fn world_of(vlans: [Option<u16>; 2], caps: LinkCaps) -> World {
    let mut world = World::with_caps(caps);
    for (side, vlan) in world.sides.iter_mut().zip(vlans) {
        let link = side.engine.ip.ports[PORT.index()].link;
        side.engine.handle_network(NetworkChange::Link {
            port: PORT,
            link: crate::Link { vlan: vlan.and_then(VlanId::new), ..link },
        });
    }
    world
}

#[test]
fn every_frame_has_the_tag_and_large_ones_say_where_their_headers_end() {
    for caps in [LinkCaps::default(), LinkCaps { tx_checksum: true, gso_max: 65_000, ..LinkCaps::default() }]
    {
        let mut world = world_of([Some(12), Some(12)], caps);
        let conns = world.connected();
        let data = pattern(300_000, 1);
        assert!(world.transfer(A, conns, &data, 10_000) && world.transfer(B, conns, &data, 10_000));
        assert!(world.log.iter().all(|(_, _, frame)| frame[12..16] == [0x81, 0, 0, 12]), "{caps:?}");
        let largest = world.log.iter().map(|(_, _, frame)| frame.len()).max();
        assert_eq!(largest > Some(1518), caps.gso_max > 0, "{largest:?}");
    }
}

#[test]
fn neighbours_are_asked_for_by_both_families_in_their_network() {
    let mut world = world_of([Some(7), Some(7)], LinkCaps::default());
    let now = world.now;
    world.sides[B].listen(now, addr6(B, 80)).expect("listens");
    let conn = world.sides[A].connect(now, addr6(B, 80)).expect("starts");
    assert!(world.run_until(1_000, |w| w.sides[A].conns[conn].established));
    assert!(world.log.iter().all(|(_, _, frame)| frame[12..18] == [0x81, 0, 0, 7, 0x86, 0xdd]));
}

#[test]
fn frames_of_other_networks_are_none_of_ours() {
    for vlans in [[Some(12), Some(13)], [Some(12), None], [None, Some(12)]] {
        let mut world = world_of(vlans, LinkCaps::default());
        let now = world.now;
        world.sides[B].listen(now, addr(B, 80)).expect("listens");
        let conn = world.sides[A].connect(now, addr(B, 80)).expect("starts");
        world.run_ms(500);
        assert!(!world.sides[A].conns[conn].established, "{vlans:?}");
        assert!(world.sides[B].engine.view().counter(Counter::DropVlan) > 0, "{vlans:?}");
    }
}

#[test]
fn a_tag_with_a_priority_alone_is_as_none() {
    let mut world = world_of([None, None], LinkCaps::default());
    world.connected();
    let (_, _, frame) = world.log.iter().find(|(_, from, _)| *from == A).expect("A sent").clone();
    let mut tagged = frame[..12].to_vec();
    tagged.extend_from_slice(&[0x81, 0, 0xe0, 0]);
    tagged.extend_from_slice(&frame[12..]);
    let before = world.log.len();
    for bytes in [&tagged[..], &tagged[..17]] {
        let side = &mut world.sides[B];
        side.engine.handle_frame(world.now, PORT, bytes, RxOffload::default(), &mut side.memory);
    }
    world.run_ms(10);
    assert!(world.log.len() > before, "an ARP request is answered");
    let engine = world.sides[B].engine.view();
    assert_eq!((engine.counter(Counter::DropVlan), engine.counter(Counter::DropTruncated)), (0, 1));
}
