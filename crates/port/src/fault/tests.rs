//! The bad link over a wire in memory, with a clock that only the test moves.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use toe_base::SeqNum;
use toe_base::window::UnscaledWindow;
use toe_wire::link::{Cut, PartialChecksum, Segmentation};
use toe_wire::{EthRepr, EtherType, TcpFlags, TcpOptions, TcpRepr};

use super::lane::REORDER_HOLD_US;
use super::*;
use crate::PortCounter;
use crate::memory::{MemoryLink, MemoryPort, pair};

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CAPS: LinkCaps = LinkCaps { tx_checksum: true, gso_max: 60_000, cuts_datagrams: false };

struct World {
    bad: FaultPort,
    far: MemoryPort,
    clock: Arc<AtomicU64>,
}

impl World {
    fn new(plan: &str) -> World {
        let link = |name: &str, last| MemoryLink {
            name: name.to_owned(),
            mac: MacAddr([2, 0, 0, 0, 0, last]),
            mtu: 1500,
            caps: CAPS,
        };
        let (near, far) = pair(link("near", 1), link("far", 2));
        let clock = Arc::new(AtomicU64::new(0));
        let hand = clock.clone();
        let plan = plan.parse().expect("a good plan");
        let bad = FaultPort::new(Box::new(near), plan, Box::new(move || hand.load(Ordering::Relaxed)));
        World { bad, far, clock }
    }

    fn send(&mut self, frame: &[u8], offload: TxOffload) {
        put(&mut self.bad, frame, offload);
    }

    /// The first bytes behind the TCP header of what arrives at the far end.
    fn arrived(&mut self) -> Vec<u8> {
        self.bad.flush().expect("memory");
        let mut numbers = Vec::new();
        self.far.receive(usize::MAX, &mut |frame, _| numbers.push(frame[54])).expect("memory");
        numbers
    }

    fn send_numbers(&mut self, numbers: impl Iterator<Item = u8>) {
        for n in numbers {
            self.send(&segment(&[n]), TxOffload::default());
        }
    }

    fn advance(&self, us: u64) {
        self.clock.fetch_add(us, Ordering::Relaxed);
    }

    fn count(&self, counter: PortCounter) -> u64 {
        self.bad.counters().get(counter)
    }
}

fn put(port: &mut dyn Port, frame: &[u8], offload: TxOffload) {
    port.transmit().frame(frame.len()).expect("room").copy_from_slice(frame);
    port.transmit().commit(offload);
}

/// A TCP segment in its frame, all checksums right.
fn segment(payload: &[u8]) -> Vec<u8> {
    let tcp = TcpRepr {
        src_port: 1,
        dst_port: 2,
        seq: SeqNum::new(3),
        ack: Some(SeqNum::new(4)),
        flags: TcpFlags::ACK,
        window: UnscaledWindow(5),
        urgent: 0,
        options: TcpOptions::default(),
    };
    let mut frame = vec![0; 54];
    let link = EthRepr { dst: MacAddr([2; 6]), src: MacAddr([4; 6]), ethertype: EtherType::Ipv4 };
    link.emit(&mut frame);
    let ip = Ipv4Repr {
        src: SRC,
        dst: DST,
        protocol: Protocol::Tcp,
        ttl: 64,
        traffic_class: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: 40 + payload.len() as u16,
    };
    ip.emit(&mut frame[14..]);
    tcp.emit(&mut frame[34..]);
    frame.extend_from_slice(payload);
    toe_wire::tcp::store_checksum(&mut frame[34..], SRC, DST);
    frame
}

/// The receiver's view: both checksums are right.
fn is_intact(frame: &[u8]) -> bool {
    let Ok((ip, segment)) = Ipv4Repr::parse(&frame[14..]) else { return false };
    toe_wire::tcp::checksum_is_valid(segment, ip.src, ip.dst)
}

#[test]
fn no_faults_change_nothing() {
    let mut world = World::new("seed=1");
    world.send_numbers(0..200);
    assert_eq!(world.arrived(), (0..200).collect::<Vec<u8>>());
    assert_eq!(world.bad.next_deadline_us(), None);
}

#[test]
fn the_same_seed_gives_the_same_fate() {
    let run = |plan: &str| {
        let mut world = World::new(plan);
        world.send_numbers(0..250);
        let mut seen = world.arrived();
        world.advance(REORDER_HOLD_US);
        seen.extend(world.arrived());
        seen
    };
    let plan = "drop=10%&reorder=10%&dup=10%&corrupt=10%&seed=7";
    assert_eq!(run(plan), run(plan));
    assert_ne!(run(plan), run("drop=10%&reorder=10%&dup=10%&corrupt=10%&seed=8"));
}

#[test]
fn frames_are_dropped_and_doubled_about_as_often_as_asked() {
    let mut world = World::new("tx_drop=10%&tx_dup=20%&seed=1");
    let mut arrived = 0;
    for _ in 0..100 {
        world.send_numbers(0..100);
        arrived += world.arrived().len() as u64;
    }
    let (dropped, doubled) =
        (world.count(PortCounter::FaultDropped), world.count(PortCounter::FaultDuplicated));
    assert_eq!(arrived, 10_000 - dropped + doubled);
    assert!((900..1100).contains(&dropped), "{dropped}");
    assert!((1650..1950).contains(&doubled), "{doubled}");
}

#[test]
fn all_or_nothing_at_the_ends_of_the_scale() {
    let mut world = World::new("tx_drop=100%");
    world.send_numbers(0..100);
    assert!(world.arrived().is_empty());
    let mut world = World::new("rx_drop=100%");
    world.send_numbers(0..100);
    assert_eq!(world.arrived().len(), 100);
}

#[test]
fn a_reordered_frame_is_overtaken_and_nothing_is_lost() {
    let mut world = World::new("tx_reorder=5%&seed=3");
    world.send_numbers(0..250);
    let mut seen = world.arrived();
    world.advance(REORDER_HOLD_US);
    seen.extend(world.arrived());
    assert!(!seen.is_sorted());
    for (place, n) in seen.iter().enumerate() {
        assert!(place.abs_diff(usize::from(*n)) <= 6, "{n} came at place {place}");
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..250).collect::<Vec<u8>>());
}

#[test]
fn a_reordered_frame_comes_out_even_when_nothing_follows() {
    let mut world = World::new("reorder=100%");
    world.send_numbers(9..10);
    assert!(world.arrived().is_empty());
    let due = world.bad.next_deadline_us().expect("a frame is held");
    assert_eq!(due, REORDER_HOLD_US);
    world.advance(due - 1);
    assert!(world.arrived().is_empty());
    assert_eq!(world.bad.next_deadline_us(), Some(1));
    world.advance(1);
    assert_eq!(world.arrived(), [9]);
    assert_eq!(world.bad.next_deadline_us(), None);
}

#[test]
fn the_receive_side_holds_frames_back_too() {
    let mut world = World::new("rx_reorder=100%");
    put(&mut world.far, &segment(&[1]), TxOffload::default());
    world.far.flush().expect("memory");
    assert_eq!(world.bad.receive(10, &mut |_, _| {}).expect("memory"), 0);
    world.advance(world.bad.next_deadline_us().expect("a frame is held"));
    let mut seen = Vec::new();
    assert_eq!(world.bad.receive(10, &mut |frame, _| seen.push(frame[54])).expect("memory"), 1);
    assert_eq!(seen, [1]);
}

#[test]
fn a_delay_keeps_the_order() {
    let mut world = World::new("tx_delay_us=500");
    world.send_numbers(0..2);
    world.advance(300);
    world.send_numbers(2..4);
    assert!(world.arrived().is_empty());
    world.advance(200);
    assert_eq!(world.arrived(), [0, 1]);
    assert_eq!(world.bad.next_deadline_us(), Some(300));
    world.advance(300);
    assert_eq!(world.arrived(), [2, 3]);
}

#[test]
fn corruption_is_always_seen_by_a_checksum() {
    let mut world = World::new("corrupt=100%&seed=5");
    for n in 0..200u16 {
        let mut frame = segment(&n.to_be_bytes());
        let mut offload = TxOffload::default();
        if n % 2 == 0 {
            // The link is to finish the checksum, so the wrapper has to.
            toe_wire::tcp::store_pseudo_sum(&mut frame[34..], SRC, DST, 22);
            offload.checksum = Some(PartialChecksum { start: 34, offset: 16 });
        }
        world.send(&frame, offload);
        put(&mut world.far, &frame, offload);
    }
    world.bad.flush().expect("memory");
    world.far.flush().expect("memory");
    let mut check = |frame: &[u8], offload: RxOffload| {
        assert!(!offload.checksum_ok && !is_intact(frame));
    };
    assert_eq!(world.far.receive(usize::MAX, &mut check).expect("memory"), 200);
    assert_eq!(world.bad.receive(usize::MAX, &mut check).expect("memory"), 200);
    assert_eq!(world.count(PortCounter::FaultCorrupted), 400);
}

#[test]
fn what_cannot_be_corrupted_noticeably_is_dropped() {
    let mut world = World::new("corrupt=100%");
    let mut arp = vec![0; 60];
    EthRepr { dst: MacAddr::BROADCAST, src: MacAddr([4; 6]), ethertype: EtherType::Arp }.emit(&mut arp);
    world.send(&arp, TxOffload::default());
    let large = segment(&[0; 9000]);
    let checksum = Some(PartialChecksum { start: 34, offset: 16 });
    let segmentation = Some(Segmentation { header_len: 54, mss: 1448, cut: Cut::TcpV4 });
    world.send(&large, TxOffload { checksum, segmentation });
    assert!(world.arrived().is_empty());
    assert_eq!(world.count(PortCounter::FaultCorrupted), 2);
}

#[test]
fn a_large_frame_keeps_its_offload() {
    let mut world = World::new("tx_dup=100%");
    let checksum = Some(PartialChecksum { start: 34, offset: 16 });
    let segmentation = Some(Segmentation { header_len: 54, mss: 1448, cut: Cut::TcpV4 });
    world.send(&segment(&[7; 9000]), TxOffload { checksum, segmentation });
    world.bad.flush().expect("memory");
    let mut seen = Vec::new();
    world.far.receive(9, &mut |frame, offload| seen.push((frame.len(), offload))).expect("memory");
    let want = (9054, RxOffload { checksum_ok: true, coalesced_mss: Some(1448) });
    assert_eq!(seen, [want, want]);
}

#[test]
fn a_slow_link_spaces_frames_and_drops_what_its_queue_cannot_hold() {
    // Frames of 55 bytes at 8 Mbit/s take 55 us each; the queue holds three of them.
    let mut world = World::new("tx_rate_kbit=8000&tx_queue_bytes=165&tx_delay_us=100");
    world.send_numbers(0..5);
    assert!(world.arrived().is_empty());
    assert_eq!(world.count(PortCounter::FaultQueueFull), 2);
    assert_eq!(world.bad.next_deadline_us(), Some(155));
    for n in 0..3 {
        world.advance(if n == 0 { 154 } else { 54 });
        assert!(world.arrived().is_empty(), "frame {n} is early");
        world.advance(1);
        assert_eq!(world.arrived(), [n]);
    }
    world.send_numbers(9..10);
    world.advance(155);
    assert_eq!(world.arrived(), [9], "there is room again");
}

#[test]
fn jitter_varies_the_delay_and_keeps_the_order() {
    let mut world = World::new("tx_delay_us=100&tx_jitter_us=300&seed=2");
    let mut delays = Vec::new();
    for n in 0..100 {
        world.send_numbers(n..n + 1);
        let due = world.bad.next_deadline_us().expect("a frame is held");
        assert!((100..=400).contains(&due), "{due}");
        delays.push(due);
        world.advance(due);
        assert_eq!(world.arrived(), [n]);
    }
    delays.sort_unstable();
    assert!(delays[10] < 180 && delays[90] > 320, "{delays:?}");
    world.send_numbers(0..100);
    world.advance(400);
    assert_eq!(world.arrived(), (0..100).collect::<Vec<u8>>());
}

#[test]
fn bursts_lose_neighbours_and_the_same_ones_for_a_seed() {
    let run = || {
        let mut world = World::new("tx_drop=20%&tx_burst=10&seed=4");
        world.send_numbers(0..250);
        world.arrived()
    };
    let seen = run();
    assert_eq!(seen, run());
    let gaps = seen.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    let lost = 250 - seen.len();
    assert!(lost > 10 && lost > 3 * gaps, "{lost} lost in {gaps} gaps");
}

#[test]
fn a_long_queue_marks_packets_that_can_be_marked() {
    const ECT0: u8 = 0b10;
    let mut world = World::new("tx_rate_kbit=8000&tx_mark_bytes=100");
    for n in 0..6u8 {
        let mut frame = segment(&[n]);
        if n != 4 {
            let (mut ip, _) = Ipv4Repr::parse(&frame[14..]).expect("it was made here");
            ip.traffic_class = ECT0;
            ip.emit(&mut frame[14..]);
        }
        world.send(&frame, TxOffload::default());
    }
    world.advance(6 * 55);
    world.bad.flush().expect("memory");
    let mut seen = Vec::new();
    let mut look = |frame: &[u8], _| {
        assert!(is_intact(frame));
        seen.push(frame[15]);
    };
    world.far.receive(9, &mut look).expect("memory");
    assert_eq!(seen, [ECT0, ECT0, 0b11, 0b11, 0, 0b11]);
    assert_eq!(world.count(PortCounter::FaultMarked), 3);
}
