//! Both pairs of ring ends against a plain queue, over many laps and across the wrap of the index.

use super::Random;
use crate::engine_cursor::{EngineConsumer, EngineProducer, PushError};
use crate::host_cursor::{Full, HostConsumer, HostProducer};
use crate::region::Region;
use std::collections::VecDeque;
use toe_abi::entry::RawEntry;

const RING: u64 = 4096;
const HEAD: u64 = 64;

fn region() -> Region {
    Region::create(1 << 16).unwrap().0
}

fn entry(n: u64) -> RawEntry {
    // The epoch bit is the ring's own: whatever the caller leaves there must not matter.
    RawEntry { word0: n << 32 | (n & 1) << 8 | 0x21, word1: !n }
}

fn assert_is(entry: RawEntry, n: u64) {
    assert_eq!((entry.word0 & !RawEntry::EPOCH, entry.word1), (n << 32 | 0x21, !n));
}

#[test]
fn a_host_queue_carries_what_was_pushed_in_order() {
    for capacity in [1u32, 2, 8, 64] {
        let region = region();
        let mut producer = HostProducer::new(region.clone(), RING, capacity, HEAD).unwrap();
        let mut consumer = EngineConsumer::new(region, RING, capacity, HEAD).unwrap();
        let mut random = Random(u64::from(capacity));
        let (mut pushed, mut popped) = (0u64, 0u64);
        // Entries whose place the producer may not use again yet.
        let mut unpublished = 0;
        for _ in 0..20_000 {
            match random.below(4) {
                0 => match producer.push(entry(pushed)) {
                    Ok(()) => pushed += 1,
                    Err(Full) => assert_eq!(pushed - popped + unpublished, u64::from(capacity)),
                },
                1 => {
                    let batch: Vec<_> = (0..random.below(10)).map(|i| entry(pushed + i)).collect();
                    let room = u64::from(capacity) - (pushed - popped + unpublished);
                    let fit = producer.push_batch(&batch) as u64;
                    assert_eq!(fit, room.min(batch.len() as u64));
                    pushed += fit;
                }
                2 => {
                    assert_eq!(consumer.has_entry(), popped < pushed);
                    match consumer.pop() {
                        Some(raw) => {
                            assert_is(raw, popped);
                            popped += 1;
                            unpublished += 1;
                        }
                        None => assert_eq!(popped, pushed),
                    }
                }
                _ => {
                    consumer.publish_head();
                    unpublished = 0;
                    assert_eq!(producer.is_drained(), popped == pushed);
                }
            }
        }
        assert!(popped > u64::from(capacity) * 3, "several laps: {popped}");
    }
}

#[test]
fn completions_arrive_in_order_and_a_full_queue_refuses() {
    for capacity in [1u32, 4, 32] {
        let region = region();
        let mut producer = EngineProducer::new(region.clone(), RING, capacity, HEAD).unwrap();
        let mut consumer = HostConsumer::new(region, RING, capacity, HEAD).unwrap();
        let mut model = VecDeque::new();
        let mut random = Random(u64::from(capacity) + 7);
        let (mut next, mut unpublished) = (0u64, 0);
        for _ in 0..20_000 {
            if random.below(2) == 0 {
                let full = model.len() + unpublished == capacity as usize;
                assert_eq!(producer.is_full(), Ok(full));
                let want = if full { Err(PushError::Full) } else { Ok(()) };
                assert_eq!(producer.push(entry(next)), want);
                if !full {
                    model.push_back(next);
                    next += 1;
                }
            } else if random.below(3) == 0 {
                assert_eq!(consumer.publish_head(), unpublished > 0);
                unpublished = 0;
            } else {
                match (consumer.pop(), model.pop_front()) {
                    (Some(raw), Some(n)) => {
                        assert_is(raw, n);
                        unpublished += 1;
                    }
                    (None, None) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn the_epoch_carries_on_when_the_index_wraps() {
    // Two entries: 2^31 laps until the index wraps, an even number, so the lap after the wrap continues the epoch.
    let region = region();
    let near_wrap = u32::MAX - 5;
    let mut producer = HostProducer::new(region.clone(), RING, 2, HEAD).unwrap();
    let mut consumer = EngineConsumer::new(region.clone(), RING, 2, HEAD).unwrap();
    // What both sides and the memory look like after that many entries.
    region.write_u32(HEAD, near_wrap).unwrap();
    for place in 0..2u32 {
        let index = (0..2).map(|back| near_wrap.wrapping_sub(1 + back)).find(|i| i % 2 == place).unwrap();
        let word = if (index >> 1) & 1 == 0 { RawEntry::EPOCH } else { 0 };
        region.write(RING + u64::from(place) * 16, &word.to_le_bytes()).unwrap();
    }
    producer.start_at(near_wrap);
    consumer.start_at(near_wrap);
    for n in 0..40 {
        assert_eq!(consumer.pop(), None);
        producer.push(entry(n)).unwrap();
        producer.push(entry(n + 100)).unwrap();
        assert_eq!(producer.push(entry(n)), Err(Full));
        assert_is(consumer.pop().unwrap(), n);
        assert_is(consumer.pop().unwrap(), n + 100);
        assert_eq!(consumer.pop(), None);
        consumer.publish_head();
    }
    assert!(consumer.head() < 100, "wrapped");
}

#[test]
fn a_ring_outside_the_memory_is_refused() {
    let region = region();
    let new = |at, capacity, head| HostProducer::new(region.clone(), at, capacity, head).is_ok();
    assert!(new(RING, 256, HEAD));
    assert!(!new(RING, 3, HEAD), "not a power of two");
    assert!(!new(RING, 0, HEAD));
    assert!(!new(RING + 4, 256, HEAD), "misaligned");
    assert!(!new(1 << 16, 1, HEAD));
    assert!(!new((1 << 16) - 16, 2, HEAD));
    assert!(!new(u64::MAX - 7, 2, HEAD));
    assert!(!new(RING, 256, (1 << 16) - 4));
    assert!(!new(RING, 1 << 31, HEAD));
}

#[test]
fn a_senseless_head_of_the_engine_only_looks_full() {
    let region = region();
    let mut producer = HostProducer::new(region.clone(), RING, 4, HEAD).unwrap();
    for n in 0..4 {
        producer.push(entry(n)).unwrap();
    }
    for head in [5, 100, u32::MAX, 1 << 31] {
        region.write_u32(HEAD, head).unwrap();
        assert_eq!(producer.push(entry(9)), Err(Full), "{head}");
    }
    region.write_u32(HEAD, 1).unwrap();
    assert_eq!(producer.push(entry(4)), Ok(()));
}

#[test]
fn two_threads_move_entries_intact() {
    let region = region();
    let mut producer = HostProducer::new(region.clone(), RING, 64, HEAD).unwrap();
    let mut consumer = EngineConsumer::new(region, RING, 64, HEAD).unwrap();
    const COUNT: u64 = 200_000;
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < COUNT {
            match producer.push(entry(next)) {
                Ok(()) => next += 1,
                Err(Full) => std::thread::yield_now(),
            }
        }
    });
    let mut next = 0;
    while next < COUNT {
        match consumer.pop() {
            Some(raw) => {
                assert_is(raw, next);
                next += 1;
            }
            None => {
                consumer.publish_head();
                std::thread::yield_now();
            }
        }
        if next % 16 == 0 {
            consumer.publish_head();
        }
    }
    sender.join().unwrap();
}
