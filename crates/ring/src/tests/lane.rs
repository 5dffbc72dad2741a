//! Lanes in real shared memory: two ends that go by the contract, and ends that do not.

use super::Random;
use crate::lane::{LaneMemory, LaneReceiver, LaneSender, NotEmpty, Offer, Record};
use crate::sync::{Ordering, Words};
use std::collections::VecDeque;
use toe_abi::lane::{DATAGRAM_MAX, LaneLayout, LaneWord, RECORD_MAX, RING_LEN_MIN, record_len};

fn lane() -> (LaneMemory, LaneSender, LaneReceiver) {
    let (memory, file) = LaneMemory::create(RING_LEN_MIN).unwrap();
    let sender = LaneSender::new(LaneMemory::map(&file, RING_LEN_MIN).unwrap());
    let receiver = LaneReceiver::new(LaneMemory::map(&file, RING_LEN_MIN).unwrap());
    (memory, sender, receiver)
}

fn put(sender: &mut LaneSender, octets: &[u8]) -> Offer {
    let offer = sender.offer(octets.len() as u32);
    if let Offer::Lane { place } = offer {
        let mut rest = octets;
        for (offset, len) in sender.lane().pieces(place, octets.len() as u32) {
            let (piece, behind) = rest.split_at(len);
            sender.lane().region().write(offset, piece).unwrap();
            rest = behind;
        }
        assert!(sender.publish(octets.len() as u32));
    }
    offer
}

fn octets_of(receiver: &LaneReceiver, record: Record) -> Vec<u8> {
    let mut octets = vec![0; record.len as usize];
    let mut done = 0;
    for (offset, len) in receiver.lane().pieces(record.place, record.len) {
        receiver.lane().region().read(offset, &mut octets[done..done + len]).unwrap();
        done += len;
    }
    octets
}

fn get(receiver: &mut LaneReceiver) -> Option<Vec<u8>> {
    let record = receiver.first()?;
    let octets = octets_of(receiver, record);
    receiver.take(record);
    Some(octets)
}

#[test]
fn a_new_lane_is_diverted_until_its_receiver_looks() {
    let (_, mut sender, mut receiver) = lane();
    assert_eq!(sender.offer(1), Offer::Kernel);
    receiver.open();
    assert!(matches!(put(&mut sender, b"one"), Offer::Lane { place: 0 }));
    assert!(receiver.is_fresh() && !receiver.is_empty());
    assert_eq!(receiver.divert(), Err(NotEmpty));
    receiver.confirm();
    assert_eq!(get(&mut receiver).as_deref(), Some(&b"one"[..]));
    assert_eq!((receiver.divert(), receiver.is_diverted()), (Ok(()), true));
    assert_eq!(sender.offer(1), Offer::Kernel);
}

#[test]
fn datagrams_of_all_lengths_go_round_the_ring() {
    let (_, mut sender, mut receiver) = lane();
    receiver.open();
    let mut random = Random(7);
    let mut waiting: VecDeque<Vec<u8>> = VecDeque::new();
    let mut largest = 0;
    for n in 0..20_000u32 {
        let len = match random.below(20) {
            0 => 0,
            1 => u64::from(DATAGRAM_MAX) - random.below(9),
            _ => random.below(2000),
        };
        let octets: Vec<u8> = (0..len).map(|i| (i as u32 + n) as u8).collect();
        match put(&mut sender, &octets) {
            Offer::Lane { .. } => waiting.push_back(octets),
            Offer::Full if !sender.overflow() => {
                assert!(waiting.iter().map(|d| record_len(d.len() as u32)).sum::<u64>() > 190_000);
            }
            Offer::Full | Offer::Kernel => {
                while let Some(expected) = waiting.pop_front() {
                    assert_eq!(get(&mut receiver), Some(expected));
                }
                assert_eq!(receiver.first(), None);
                receiver.open();
            }
        }
        largest = largest.max(waiting.len());
        if random.below(3) == 0 {
            assert_eq!(get(&mut receiver), waiting.pop_front());
        }
    }
    assert!(largest > 50);
}

#[test]
fn a_full_lane_of_which_nothing_was_taken_is_not_diverted() {
    let (memory, mut sender, mut receiver) = lane();
    receiver.open();
    let mut sent = 0;
    while matches!(put(&mut sender, &[7; 56]), Offer::Lane { .. }) {
        sent += 1;
    }
    assert_eq!(sent, RING_LEN_MIN / 64);
    assert_eq!((sender.offer(56), memory.is_closed()), (Offer::Full, false));
    assert!(!sender.overflow(), "it is lost");
    receiver.confirm();
    get(&mut receiver).unwrap();
    assert!(matches!(put(&mut sender, &[7; 56]), Offer::Lane { .. }), "the first is told at once");
    assert_eq!(sender.offer(56), Offer::Full);
    assert!(sender.overflow(), "and so it may be diverted");
    assert_eq!(sender.offer(56), Offer::Kernel);
    for _ in 0..sent {
        assert_eq!(get(&mut receiver), Some(vec![7; 56]));
    }
    assert_eq!((receiver.first(), receiver.is_diverted()), (None, true));
    receiver.open();
    assert!(matches!(sender.offer(56), Offer::Lane { .. }));
}

#[test]
fn whoever_closes_a_lane_what_is_in_it_is_read() {
    for who in 0..3 {
        let (memory, mut sender, mut receiver) = lane();
        receiver.open();
        put(&mut sender, b"last");
        match who {
            0 => memory.close(),
            1 => sender.close(),
            _ => receiver.close(),
        }
        assert_eq!(sender.offer(1), Offer::Kernel);
        assert!(sender.is_over());
        receiver.confirm();
        assert_eq!(get(&mut receiver).as_deref(), Some(&b"last"[..]));
        assert!(receiver.first().is_none() && receiver.is_closed());
        receiver.open();
        assert_eq!((receiver.divert(), sender.offer(1)), (Ok(()), Offer::Kernel), "for good");
    }
}

#[test]
fn a_receiver_believes_no_tail_and_no_length() {
    let (memory, _, mut receiver) = lane();
    let region = memory.region();
    let tail = |octets| region.store_u64(LaneLayout::WORD, octets, Ordering::Release);
    tail(u64::from(RING_LEN_MIN) + 8);
    assert!(receiver.first().is_none() && receiver.is_closed() && memory.is_closed());
    tail(0);
    assert_eq!(receiver.first(), None, "for good");
    for (header, published) in [(9, 16), (u64::from(RECORD_MAX) + 1, 100_000), (u64::MAX, 8), (1 << 32, 16)] {
        let (memory, _, mut receiver) = lane();
        memory.region().store_u64(LaneLayout::RING, header, Ordering::Release);
        memory.region().store_u64(LaneLayout::WORD, published, Ordering::Release);
        assert!(!receiver.is_empty());
        assert!(receiver.first().is_none() && receiver.is_closed(), "{header}");
        assert_eq!(receiver.divert(), Ok(()));
    }
}

#[test]
fn a_sender_believes_no_head_and_moves_its_own_tail() {
    for head in [u64::MAX, 1 << 47, u64::from(RING_LEN_MIN) * 3] {
        let (memory, mut sender, mut receiver) = lane();
        receiver.open();
        while matches!(put(&mut sender, &[0; 1000]), Offer::Lane { .. }) {}
        memory.region().store_u64(LaneLayout::HEAD, head, Ordering::Release);
        assert_eq!(sender.offer(1000), Offer::Kernel, "{head}");
        assert!(sender.is_over() && memory.is_closed());
    }
    let (memory, mut sender, mut receiver) = lane();
    receiver.open();
    put(&mut sender, b"one");
    let word = LaneWord(memory.region().load_u64(LaneLayout::WORD, Ordering::Acquire));
    memory.region().store_u64(LaneLayout::WORD, word.with_tail(800).0, Ordering::Release);
    assert_eq!(sender.offer(1), Offer::Kernel);
    assert!(memory.is_closed());
}
