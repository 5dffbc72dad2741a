//! Channels with real shared memory: what goes through, how a direction ends, what a broken end can do.

use super::Random;
use crate::channel::{ChannelEnd, ChannelMemory, Frozen};
use crate::irq::IrqReceiver;
use crate::region::Region;
use crate::sync::{Ordering, Words};
use rustix::fd::AsFd;
use std::collections::VecDeque;
use toe_abi::channel::{CHANNEL_ENTRIES, ChannelEntry, ChannelLayout, DATA_LEN, FROZEN, Side, SlotLine};
use toe_abi::entry::{BadEntry, MemRange};

const SLOT: u32 = 7;
const GENERATION: u16 = 3;

/// Both ends, each over a mapping of its own, and what wakes them.
fn ends() -> ([ChannelEnd; 2], [IrqReceiver; 2]) {
    let (_engine, file) = ChannelMemory::create().unwrap();
    let (to_zero, wakes_zero) = super::interrupt();
    let (to_one, wakes_one) = super::interrupt();
    let end = |side, wake| ChannelEnd::new(ChannelMemory::map(&file).unwrap(), side, wake).unwrap();
    let ends = [end(Side::Zero, to_one.another().unwrap()), end(Side::One, to_zero.another().unwrap())];
    (ends, [IrqReceiver::from(wakes_zero), IrqReceiver::from(wakes_one)])
}

fn data(offset: u64, len: u32) -> ChannelEntry {
    ChannelEntry::Data { slot: SLOT, generation: GENERATION, data: MemRange { offset, len } }
}

fn memory() -> ChannelMemory {
    ChannelMemory::create().unwrap().0
}

#[test]
fn entries_go_both_ways_in_order_over_many_laps() {
    let ([mut zero, mut one], _wakes) = ends();
    let mut random = Random(5);
    let mut under_way: [VecDeque<ChannelEntry>; 2] = Default::default();
    for n in 0..100_000 {
        let at = random.below(2) as usize;
        let (from, to) = if at == 0 { (&mut zero, &mut one) } else { (&mut one, &mut zero) };
        let room = CHANNEL_ENTRIES - under_way[at].len() as u32;
        if random.below(4) == 0 {
            assert_eq!(to.pop(), under_way[at].pop_front().map(Ok));
            to.publish_head();
        } else if room > 0 {
            assert_eq!(from.room(CHANNEL_ENTRIES), room);
            from.push(data(n, 1)).unwrap();
            under_way[at].push_back(data(n, 1));
        } else {
            assert!(from.push(data(n, 1)).is_err());
            while let Some(entry) = under_way[at].pop_front() {
                assert_eq!(to.pop(), Some(Ok(entry)));
            }
            assert_eq!((to.pop(), from.room(1)), (None, 0), "no room before the head is published");
            to.publish_head();
        }
    }
}

#[test]
fn bytes_that_one_end_wrote_the_other_reads() {
    let ([mut zero, mut one], _wakes) = ends();
    let at = ChannelLayout::data(Side::Zero) + 12345;
    zero.memory().region().write(at, b"from window to window").unwrap();
    zero.memory().add_sent(SLOT, Side::Zero, 21).unwrap();
    zero.push(data(at, 21)).unwrap();
    let Some(Ok(ChannelEntry::Data { data, .. })) = one.pop() else { panic!("data") };
    assert!(one.is_peer_data(data));
    let mut bytes = [0; 21];
    one.memory().region().read(data.offset, &mut bytes).unwrap();
    assert_eq!(&bytes, b"from window to window");
    one.memory().set_read(SLOT, Side::One, 21);
    assert_eq!(zero.memory().read(SLOT, Side::One), 21);
    assert_eq!(one.memory().sent(SLOT, Side::Zero), 21);
}

#[test]
fn a_range_outside_the_peers_part_is_none_of_its_data() {
    let ([zero, one], _wakes) = ends();
    let (start, end) = (ChannelLayout::data(Side::Zero), ChannelLayout::data(Side::One));
    for (offset, len, is_data) in [
        (start, 1, true),
        (end - 5, 5, true),
        (start + DATA_LEN / 2, 1 << 20, true),
        (start, 0, false),
        (start - 1, 2, false),
        (end - 5, 6, false),
        (end, 1, false),
        (0, 1, false),
        (ChannelLayout::LEN, 1, false),
    ] {
        assert_eq!(one.is_peer_data(MemRange { offset, len }), is_data, "{offset} {len}");
    }
    assert!(zero.is_peer_data(MemRange { offset: end, len: 1 }));
    assert!(!zero.is_peer_data(MemRange { offset: ChannelLayout::LEN - 1, len: 2 }));
}

#[test]
fn what_is_counted_when_a_direction_is_frozen_stays() {
    let memory = memory();
    memory.add_sent(SLOT, Side::Zero, 100).unwrap();
    memory.add_sent(SLOT, Side::Zero, 11).unwrap();
    assert!(!memory.is_frozen(SLOT, Side::Zero));
    assert_eq!(memory.freeze(SLOT, Side::Zero), 111);
    assert_eq!(memory.add_sent(SLOT, Side::Zero, 5), Err(Frozen));
    assert_eq!((memory.freeze(SLOT, Side::Zero), memory.sent(SLOT, Side::Zero)), (111, 111));
    assert!(memory.is_frozen(SLOT, Side::Zero));
    // The other direction, and other slots, go on.
    memory.add_sent(SLOT, Side::One, 1).unwrap();
    memory.add_sent(SLOT + 1, Side::Zero, 1).unwrap();
}

#[test]
fn freezing_and_sending_at_once_agree() {
    for round in 0..2_000u64 {
        let ([mut zero, mut one], _wakes) = ends_once(round);
        let sender = std::thread::spawn(move || {
            let mut sent = 0;
            while zero.memory().add_sent(SLOT, Side::Zero, 3).is_ok() {
                sent += 3;
                while zero.push(data(ChannelLayout::data(Side::Zero), 3)).is_err() {
                    std::thread::yield_now();
                }
            }
            sent
        });
        let mut taken = 0;
        let mut take = |one: &mut ChannelEnd| match one.pop() {
            Some(Ok(ChannelEntry::Data { data, .. })) => {
                taken += u64::from(data.len);
                one.publish_head();
                taken
            }
            Some(other) => panic!("{other:?}"),
            None => taken,
        };
        for _ in 0..round % 50 {
            take(&mut one);
        }
        let all = one.memory().freeze(SLOT, Side::Zero);
        while take(&mut one) < all {}
        assert_eq!(sender.join().unwrap(), all);
        assert_eq!((take(&mut one), one.pop()), (all, None));
    }
}

thread_local! {
    static FILE: (ChannelMemory, rustix::fd::OwnedFd) = ChannelMemory::create().unwrap();
}

/// Both ends over memory that is wiped for each round, which is quicker than new memory.
fn ends_once(round: u64) -> ([ChannelEnd; 2], u64) {
    FILE.with(|(engine, file)| {
        let region = engine.region();
        for at in (0..ChannelLayout::line(SLOT + 1, Side::Zero)).step_by(8) {
            region.store_u64(at, 0, Ordering::Relaxed);
        }
        let end = |side| {
            let (line, _receiver) = super::interrupt();
            let wake = line.another().unwrap();
            ChannelEnd::new(ChannelMemory::map(file.as_fd()).unwrap(), side, wake).unwrap()
        };
        ([end(Side::Zero), end(Side::One)], round)
    })
}

#[test]
fn senseless_words_of_a_slot_give_some_answer() {
    let memory = memory();
    let mut random = Random(9);
    for _ in 0..10_000 {
        let slot = random.next() as u32;
        for side in [Side::Zero, Side::One] {
            // A slot that does not exist reaches other parts of the memory, or none, but nothing beyond.
            let line = ChannelLayout::line(slot % 4096, side);
            memory.region().store_u64(line + SlotLine::SENT, random.next(), Ordering::Relaxed);
            memory.region().store_u64(line + SlotLine::READ, random.next(), Ordering::Relaxed);
            assert_eq!(memory.sent(slot % 4096, side) & FROZEN, 0);
            memory.freeze(slot, side);
            memory.freeze(slot % 4096, side);
            assert_eq!(memory.add_sent(slot % 4096, side, u32::MAX), Err(Frozen));
        }
    }
}

#[test]
fn an_entry_that_is_none_and_a_senseless_head_are_noticed() {
    let ([mut zero, mut one], _wakes) = ends();
    let region = one.memory().region().clone();
    // A slot beyond the last, with the epoch bit of the first lap.
    region.store_u64(ChannelLayout::entries(Side::One), 0x62 | 1 << 8 | 4096 << 32, Ordering::Release);
    assert_eq!(zero.pop(), Some(Err(BadEntry::UnknownArgument)));
    region.store_u64(ChannelLayout::entries(Side::One) + 16, 0x44 | 1 << 8, Ordering::Release);
    assert_eq!(zero.pop(), Some(Err(BadEntry::UnknownType(0x44))));
    assert_eq!(zero.pop(), None);
    // The peer says that it took what was never sent.
    for n in 0..u64::from(CHANNEL_ENTRIES) {
        zero.push(data(n, 1)).unwrap();
    }
    region.store_u32(ChannelLayout::head(Side::One), CHANNEL_ENTRIES + 1, Ordering::Release);
    assert_eq!(zero.room(1), 0);
    assert!(zero.push(data(0, 1)).is_err());
    assert_eq!(one.pop(), Some(Ok(data(0, 1))), "nothing was written over");
}

#[test]
fn an_end_is_woken_once_for_each_time_that_it_asked() {
    let ([zero, one], [_, wakes_one]) = ends();
    assert!(!zero.wake_peer(), "it did not ask");
    one.arm();
    assert!(zero.wake_peer());
    assert_eq!((wakes_one.drain(), wakes_one.drain()), (Ok(true), Ok(false)));
    assert!(!zero.wake_peer(), "it is awake");
    assert!(!one.wake_peer(), "the sides do not meddle");
}

#[test]
fn what_a_peer_does_to_its_sending_end_does_not_touch_the_engines() {
    let (sender, receiver) = super::interrupt();
    let theirs = sender.another().unwrap();
    rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
    // Full: a blocking sender would wait here.
    for _ in 0..10_000 {
        crate::irq::Signal::signal(&sender);
    }
    let receiver = IrqReceiver::from(receiver);
    assert_eq!(receiver.drain(), Ok(true));
    rustix::net::shutdown(&theirs, rustix::net::Shutdown::Both).unwrap();
    crate::irq::Signal::signal(&sender);
    assert_eq!(receiver.drain(), Ok(true));
}

#[test]
fn only_memory_of_the_right_size_that_is_sealed_is_mapped() {
    let (_region, short) = Region::create(ChannelLayout::LEN - 4096).unwrap();
    assert!(ChannelMemory::map(&short).is_err());
    let unsealed = rustix::fs::memfd_create("channel", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, ChannelLayout::LEN).unwrap();
    assert!(ChannelMemory::map(&unsealed).is_err());
}
