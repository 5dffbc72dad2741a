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

fn put(sender: &mut LaneSender, bytes: &[u8]) -> Offer {
    let offer = sender.offer(bytes.len() as u32);
    if let Offer::Lane { position } = offer {
        let mut rest = bytes;
        for (offset, len) in sender.lane().pieces(position, bytes.len() as u32) {
            let (piece, behind) = rest.split_at(len);
            sender.lane().region().write(offset, piece).unwrap();
            rest = behind;
        }
        assert!(sender.publish(bytes.len() as u32));
    }
    offer
}

fn bytes_of(receiver: &LaneReceiver, record: Record) -> Vec<u8> {
    let mut bytes = vec![0; record.len as usize];
    let mut done = 0;
    for (offset, len) in receiver.lane().pieces(record.position, record.len) {
        receiver.lane().region().read(offset, &mut bytes[done..done + len]).unwrap();
        done += len;
    }
    bytes
}

fn get(receiver: &mut LaneReceiver) -> Option<Vec<u8>> {
    let record = receiver.first()?;
    let bytes = bytes_of(receiver, record);
    receiver.take(record);
    Some(bytes)
}

#[test]
fn a_new_lane_is_diverted_until_its_receiver_looks() {
    let (_, mut sender, mut receiver) = lane();
    assert_eq!(sender.offer(1), Offer::Kernel);
    receiver.open();
    assert!(matches!(put(&mut sender, b"one"), Offer::Lane { position: 0 }));
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
        let bytes: Vec<u8> = (0..len).map(|i| (i as u32 + n) as u8).collect();
        match put(&mut sender, &bytes) {
            Offer::Lane { .. } => waiting.push_back(bytes),
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
    let tail = |bytes| region.store_u64(LaneLayout::WORD, bytes, Ordering::Release);
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

#[test]
fn who_was_woken_finds_what_follows_and_claims_it() {
    let (_, mut sender, mut receiver) = lane();
    assert_eq!(receiver.sleep(true), Ok(()));
    assert_eq!(put(&mut sender, b"one"), Offer::Kernel);
    assert!(sender.begin_ring(false));
    assert!(matches!(put(&mut sender, b"two"), Offer::Lane { position: 0 }));
    assert!(receiver.is_empty() && receiver.came() == 0, "not before what wakes it");
    receiver.open();
    assert!(receiver.is_diverted(), "nor is it opened");
    sender.end_ring();
    assert_eq!((receiver.is_empty(), receiver.first()), (false, None), "nobody has claimed it");
    assert!(receiver.came() > 0 && sender.is_unclaimed());
    assert_eq!(receiver.sleep(true), Err(NotEmpty));
    assert!(receiver.claim(true) && receiver.is_fresh() && !receiver.is_diverted());
    assert!(!sender.is_unclaimed() && !sender.begin_ring(true), "it has come");
    put(&mut sender, b"three");
    assert_eq!(get(&mut receiver).as_deref(), Some(&b"two"[..]));
    assert_eq!(get(&mut receiver).as_deref(), Some(&b"three"[..]));
    // The next sleep is another one.
    assert_eq!(receiver.sleep(true), Ok(()));
    assert_eq!(put(&mut sender, b"four"), Offer::Kernel);
    assert!(!sender.begin_ring(true) && sender.begin_ring(false));
}

#[test]
fn one_datagram_wakes_none_of_several() {
    let (_, mut sender, mut receiver) = lane();
    assert_eq!((receiver.sleep(true), receiver.sleep(false)), (Ok(()), Ok(())));
    assert!(!sender.begin_ring(false));
    // One is rung for when the other one comes.
    assert_eq!(receiver.sleep(true), Ok(()));
    assert!(sender.begin_ring(false));
    assert_eq!(receiver.sleep(false), Err(NotEmpty), "in a moment");
    put(&mut sender, b"two");
    sender.end_ring();
    assert!(receiver.claim(false) && !receiver.is_fresh(), "the other one's is left to it");
    assert_eq!(put(&mut sender, b"three"), Offer::Kernel, "it may sleep yet");
    assert_eq!(get(&mut receiver).as_deref(), Some(&b"two"[..]));
    assert_eq!(receiver.sleep(false), Ok(()));
}

#[test]
fn a_second_thread_is_not_kept_from_sleep_for_ever() {
    let (memory, mut sender, mut receiver) = lane();
    assert_eq!(receiver.sleep(true), Ok(()));
    assert!(sender.begin_ring(false));
    let looks = (0..1_000_000).take_while(|_| receiver.sleep(false).is_err()).count();
    assert!((1_000..1_000_000).contains(&looks) && memory.is_closed());
}

#[test]
fn what_nobody_has_claimed_is_passed_over_when_it_went_by_the_kernel() {
    let (_, mut sender, mut receiver) = lane();
    assert_eq!(receiver.sleep(true), Ok(()));
    assert!(sender.begin_ring(false));
    for bytes in [&b"two"[..], b"three", b"four"] {
        put(&mut sender, bytes);
    }
    sender.end_ring();
    for (position, len) in [(0, 3), (16, 5)] {
        assert!(!receiver.is_empty() && sender.begin_ring(true));
        // Also to who was woken.
        receiver.wakes();
        assert!(!receiver.claim(true) && receiver.is_empty(), "it is on its way");
        sender.void(position, len);
        sender.end_ring();
    }
    assert!(receiver.claim(true));
    assert_eq!(get(&mut receiver).as_deref(), Some(&b"four"[..]));
    assert!(receiver.is_empty());
}

#[test]
fn records_that_are_all_void_end_somewhere() {
    let (_, mut sender, mut receiver) = lane();
    receiver.open();
    while let Offer::Lane { position } = put(&mut sender, b"") {
        sender.void(position, 0);
    }
    assert_eq!((receiver.is_empty(), receiver.first(), receiver.is_empty()), (false, None, true));
}

#[test]
fn what_wakes_may_have_come_before_the_sender_says_so() {
    let (_, mut sender, mut receiver) = lane();
    assert_eq!(receiver.sleep(true), Ok(()));
    assert!(sender.begin_ring(false));
    put(&mut sender, b"two");
    assert_eq!(receiver.sleep(true), Ok(()), "its time was over, and it will be woken");
    receiver.wakes();
    assert_eq!(receiver.sleep(true), Err(NotEmpty));
    assert!(receiver.claim(true));
    sender.end_ring();
    put(&mut sender, b"three");
    assert_eq!(get(&mut receiver).as_deref(), Some(&b"two"[..]));
    assert_eq!(get(&mut receiver).as_deref(), Some(&b"three"[..]));
    // With nothing in the lane it sleeps anew, and is to be woken anew.
    assert_eq!(receiver.sleep(true), Ok(()));
    assert!(sender.begin_ring(false));
    receiver.wakes();
    assert_eq!(receiver.sleep(true), Ok(()));
    sender.end_ring();
    assert_eq!(put(&mut sender, b"four"), Offer::Kernel);
    assert!(sender.begin_ring(false));
}
