//! Connections of virtual interfaces over real memory: order, credit, and what a side does that must not.

use super::Random;
use crate::via::{Breach, ViaMemory, ViaReceiver, ViaSender};
use std::collections::VecDeque;
use toe_abi::channel::Side;
use toe_abi::via::{DATA_LEN, FRAGMENT_MAX, Fragment, SLOTS, ViaLayout, ViaState};

fn ends() -> (ViaSender, ViaReceiver) {
    let (memory, file) = ViaMemory::create().expect("memory");
    let other = ViaMemory::map(&file).expect("the same memory");
    (ViaSender::new(memory, Side::Zero), ViaReceiver::new(other, Side::One))
}

/// Whether there was room for a message of one fragment.
fn send(sender: &mut ViaSender, bytes: &[u8]) -> bool {
    let len = bytes.len() as u32;
    let Some(room) = sender.room(len).expect("no breach") else { return false };
    sender.memory().write(room.offset, bytes).expect("within the memory");
    sender.publish(Fragment { len, begins: Some(u64::from(len)) }, room);
    true
}

fn receive(receiver: &mut ViaReceiver) -> Option<Vec<u8>> {
    let arrived = receiver.first().expect("no breach")?;
    let mut bytes = vec![0; arrived.fragment.len as usize];
    receiver.memory().read(arrived.offset, &mut bytes).expect("within the memory");
    receiver.take(arrived);
    Some(bytes)
}

#[test]
fn what_is_sent_comes_in_order_and_whole_for_many_laps() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let (mut sender, mut receiver) = ends();
        let mut under_way: VecDeque<Vec<u8>> = VecDeque::new();
        let (mut sent, mut refused) = (0u32, 0);
        for _ in 0..4000 {
            if random.below(2) == 0 {
                let limit = [1, 49, 200, u64::from(FRAGMENT_MAX) + 1][random.below(4) as usize];
                let bytes: Vec<u8> = (0..random.below(limit)).map(|at| (at as u32 ^ sent) as u8).collect();
                if send(&mut sender, &bytes) {
                    under_way.push_back(bytes);
                    sent += 1;
                } else {
                    refused += 1;
                }
            } else if random.below(20) > 0 || under_way.len() < 30 {
                assert_eq!(receive(&mut receiver), under_way.pop_front());
            }
        }
        assert!(sent > SLOTS * 2, "{sent} sent, {refused} refused");
    }
}

#[test]
fn credit_is_the_room_and_comes_back_with_what_is_taken() {
    let (mut sender, mut receiver) = ends();
    for _ in 0..SLOTS {
        assert!(send(&mut sender, b"small"));
    }
    assert!(!send(&mut sender, b"small"));
    assert_eq!(receive(&mut receiver).as_deref(), Some(&b"small"[..]));
    assert!(send(&mut sender, b"small") && !send(&mut sender, b"small"));

    let (mut sender, mut receiver) = ends();
    let large = vec![7; FRAGMENT_MAX as usize];
    let most = DATA_LEN / u64::from(FRAGMENT_MAX);
    assert_eq!((0..most + 1).filter(|_| send(&mut sender, &large)).count() as u64, most);
    assert!(send(&mut sender, b"in its slot"), "what needs no room there goes on");
    assert_eq!(receive(&mut receiver), Some(large.clone()));
    assert!(send(&mut sender, &large));
}

#[test]
fn a_slot_that_says_what_cannot_be_is_a_breach() {
    let (sender, receiver) = ends();
    let slot = ViaLayout::slot(Side::Zero, 0);
    let bad = [
        Fragment { len: FRAGMENT_MAX + 1, begins: None }.encode(0),
        Fragment { len: 9, begins: Some(8) }.encode(0),
        Fragment { len: 9, begins: Some(u64::MAX) }.encode(0),
        [0x1ff, 0],
    ];
    for [word0, word1] in bad {
        sender.memory().write(slot, &[word0.to_le_bytes(), word1.to_le_bytes()].concat()).expect("a slot");
        assert_eq!(receiver.first(), Err(Breach), "{word0:x} {word1:x}");
    }
}

#[test]
fn a_receiver_that_takes_what_was_not_sent_is_a_breach() {
    for taken in [SLOTS + 1, u32::MAX] {
        let (mut sender, receiver) = ends();
        let at = ViaLayout::registers(Side::One) + ViaLayout::TAKEN;
        receiver.memory().region().write_u32(at, taken).expect("a register");
        for _ in 0..SLOTS {
            assert!(send(&mut sender, b"x"));
        }
        assert_eq!(sender.room(1), Err(Breach), "{taken}");
    }
}

#[test]
fn the_state_only_counts_up() {
    let (sender, receiver) = ends();
    assert_eq!(sender.memory().state(), ViaState::Requested);
    assert!(receiver.memory().advance(ViaState::Accepted) && !receiver.memory().advance(ViaState::Accepted));
    assert!(sender.memory().advance(ViaState::Closed));
    assert!(!receiver.memory().advance(ViaState::Rejected));
    receiver.memory().region().write_u32(ViaLayout::STATE, 77).expect("the word");
    assert_eq!(sender.memory().state(), ViaState::Closed);
    assert!(!sender.memory().advance(ViaState::Closed));
}

#[test]
fn who_sleeps_is_woken_once() {
    let (sender, receiver) = ends();
    assert!(!sender.memory().must_wake(Side::One));
    receiver.memory().arm(Side::One);
    assert!(!sender.memory().must_wake(Side::Zero));
    assert!(sender.memory().must_wake(Side::One) && !sender.memory().must_wake(Side::One));
}
