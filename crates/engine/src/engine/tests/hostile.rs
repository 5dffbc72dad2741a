//! Frames and entries from those who mean harm: the engine goes on, and counts them.

use super::world::{A, B, World, addr, pattern};
use crate::ControlEvent;
use toe_abi::entry::{Command, RawEntry, ReceiveCredit, Send};
use toe_base::{PortId, QueueSetId};
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::link::{MacAddr, RxOffload};
use toe_wire::{EthRepr, EtherType, eth};

/// How many frames and entries; the acceptance run sets it to ten million.
fn rounds() -> u64 {
    std::env::var("TOE_HOSTILE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn random_and_mutated_frames_never_stop_a_neighbours_transfer() {
    let mut world = World::new();
    let conns = world.connected();
    assert!(world.transfer(A, conns, &pattern(100_000, 1), 5_000));
    let samples: Vec<Vec<u8>> =
        world.log.iter().filter(|(_, from, _)| *from == A).map(|(_, _, f)| f.clone()).collect();
    let mut random = Random(42);
    for round in 0..rounds() {
        let mut frame = samples[(random.next() % samples.len() as u64) as usize].clone();
        frame.truncate(200);
        match random.next() % 4 {
            0 => frame = (0..random.next() % 120).map(|_| random.next() as u8).collect(),
            1 => frame.truncate((random.next() % 120) as usize),
            _ => {
                for _ in 0..=random.next() % 4 {
                    // The source address stays another host's: what comes from the peer itself may well end its own
                    // connection.
                    let at = (random.next() as usize) % frame.len();
                    frame[at] ^= 1 << (random.next() % 8);
                }
                if frame.len() > 30 {
                    frame[29] = 99;
                    fix_ip_checksum(&mut frame);
                }
            }
        }
        let side = &mut world.sides[B];
        let offload = RxOffload { checksum_ok: random.next().is_multiple_of(2), coalesced_mss: None };
        side.engine.handle_frame(world.now, PortId(0), &frame, offload, &mut side.memory);
        if round % 10_000 == 0 {
            assert!(world.transfer(A, conns, &pattern(20_000, round as u32), 60_000), "the transfer goes on");
            world.log.clear();
            for conn in &mut world.sides[B].conns {
                conn.received.clear();
            }
        }
    }
    assert!(world.transfer(A, conns, &pattern(100_000, 2), 60_000), "the transfer goes on");
    let side = &world.sides[B].engine;
    for (name, n) in side.view().counters().filter(|(name, _)| name.starts_with("drop_")) {
        println!("{name} {n}");
    }
    let dropped: u64 =
        world.sides[B].engine.view().counters().filter(|(n, _)| n.starts_with("drop_")).map(|(_, n)| n).sum();
    assert!(dropped > rounds() / 4, "drops are counted by reason: {dropped}");
}

pub(super) fn fix_ip_checksum(frame: &mut [u8]) {
    if frame.len() < 34 {
        return;
    }
    frame[24] = 0;
    frame[25] = 0;
    let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn random_entries_fence_only_who_wrote_them() {
    let mut world = World::new();
    let conns = world.connected();
    let mut random = Random(7);
    let mut attached = None;
    let (mut fences, mut accepted) = (0u64, 0u64);
    for round in 0..rounds() {
        let side = &mut world.sides[B];
        let session = *attached.get_or_insert_with(|| {
            let session =
                side.engine.open_session(toe_base::Cred::of_user(1000), super::world::LAYOUT).expect("room");
            side.engine.add_queue_set(session).expect("room");
            session
        });
        let raw = RawEntry { word0: random.next(), word1: random.next() };
        // Types that exist, mostly: pure noise never gets past the first check.
        let raw = RawEntry { word0: (raw.word0 & !0xff) | (random.next() % 12), ..raw };
        let mut args = [0; 64];
        for byte in &mut args[..(random.next() % 40) as usize] {
            *byte = random.next() as u8;
        }
        let result = match random.next() % 3 {
            0 => match Command::decode(raw) {
                Ok(command) => side.engine.handle_command(
                    world.now,
                    session,
                    QueueSetId(0),
                    command,
                    &args,
                    &mut side.memory,
                ),
                Err(bad) => Err(bad.into()),
            },
            1 => match Send::decode(RawEntry { word0: (raw.word0 & !0xff) | 0x21, ..raw }) {
                Ok(send) => side.engine.handle_send(world.now, session, send),
                Err(bad) => Err(bad.into()),
            },
            _ => match ReceiveCredit::decode(RawEntry { word0: (raw.word0 & !0xff) | 0x31, ..raw }) {
                Ok(credit) => side.engine.handle_credit(world.now, session, credit),
                Err(bad) => Err(bad.into()),
            },
        };
        match result {
            Ok(()) => accepted += 1,
            Err(reason) => {
                fences += 1;
                side.engine.handle_control(
                    world.now,
                    ControlEvent::Fenced(session, reason),
                    &mut side.memory,
                );
                assert!(side.engine.hostif.is_drained(session));
                side.engine.forget_session(session);
                side.memory.completions.iter_mut().for_each(|ring| ring.clear());
                attached = None;
            }
        }
        if round % 1000 == 0 {
            world.run_ms(1);
        }
    }
    assert!(fences > 0 && accepted > 0);
    assert!(world.transfer(A, conns, &pattern(100_000, 3), 5_000), "the neighbour goes on");
}

/// An ARP message to B, which asks for nobody.
fn arp(operation: ArpOperation, sender: [u8; 4], mac: u8) -> Vec<u8> {
    let (ours, theirs) = (MacAddr([2, 0, 0, 0, 0, 2]), MacAddr([6, 6, 6, 6, 6, mac]));
    let message = ArpRepr {
        operation,
        sender_mac: theirs,
        sender_ip: sender.into(),
        target_mac: ours,
        target_ip: [10, 0, 0, 2].into(),
    };
    let mut frame = vec![0; eth::HEADER_LEN + message.header_len()];
    EthRepr { dst: ours, src: theirs, ethertype: EtherType::Arp }.emit(&mut frame);
    message.emit(&mut frame[eth::HEADER_LEN..]);
    frame
}

fn questions(world: &World) -> usize {
    world.log.iter().filter(|(_, from, frame)| *from == B && frame[12..14] == [0x08, 0x06]).count()
}

/// Linux keeps nothing of who is not asked for.
#[test]
fn answers_to_what_nobody_asked_are_not_believed() {
    let mut world = World::new();
    let now = world.now;
    for n in 0..1_000u16 {
        // A's address is one of them.
        let sender = if n == 500 { [10, 0, 0, 1] } else { [10, 0, 0, 3 + (n % 200) as u8] };
        let frame = arp(ArpOperation::Reply, sender, n as u8);
        let side = &mut world.sides[B];
        side.engine.handle_frame(now, PortId(0), &frame, RxOffload::default(), &mut side.memory);
    }
    world.sides[A].listen(now, addr(A, 80)).expect("listens");
    let before = questions(&world);
    let conn = world.sides[B].connect(now, addr(A, 80)).expect("starts");
    world.run_ms(50);
    assert!(world.sides[B].conns[conn].established, "its segments went to where A is");
    assert_eq!(questions(&world) - before, 1, "it asked");
}

/// Who is known may have moved, and who asks will be sent to; but anybody can say so, and who is there answers.
#[test]
fn who_has_moved_is_believed_and_asked_for() {
    for operation in [ArpOperation::Request, ArpOperation::Reply] {
        let mut world = World::new();
        let (_, b) = world.connected();
        let before = questions(&world);
        let (now, side) = (world.now, &mut world.sides[B]);
        let frame = arp(operation, [10, 0, 0, 1], 9);
        side.engine.handle_frame(now, PortId(0), &frame, RxOffload::default(), &mut side.memory);
        let known = side.engine.ip.ports[0].neighbours.mac_of([10, 0, 0, 1].into());
        assert_eq!(known, Some(MacAddr([6, 6, 6, 6, 6, 9])), "{operation:?}");
        side.send(now, b, b"hello");
        world.run_ms(10);
        assert!(questions(&world) > before, "{operation:?}: it is asked for when it is used");
        let known = world.sides[B].engine.ip.ports[0].neighbours.mac_of([10, 0, 0, 1].into());
        assert_eq!(known, Some(MacAddr([2, 0, 0, 0, 0, 1])), "{operation:?}: and is where it was");
    }
}
