//! The ring protocol, the sleep handshakes and the end of a channel's direction under every interleaving and every value that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p toe-ring --release loom`

use crate::channel::ChannelMemory;
use crate::doorbell::{EngineSleep, ring, word_of};
use crate::engine_cursor::{EngineConsumer, EngineProducer};
use crate::host_cursor::{HostConsumer, HostProducer};
use crate::irq::{EngineIrq, HostIrq, Signal};
use crate::sync::{Ordering, Words};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;
use toe_abi::channel::{ChannelLayout, Side};
use toe_abi::entry::RawEntry;
use toe_abi::region::DOORBELL_FOR_ENTRIES;
use toe_base::Instant;

const CAPACITY: u32 = 2;
const RING: u64 = 256;
/// Where a head register lies: clear of DOORBELL_WANTED (56) and of the host's registers.
const HEAD: u64 = 128;
/// Where the host's registers begin; IRQ_ARMED lies 64 further.
const HOST_REGISTERS: u64 = 0;

/// A second group of host registers, clear of [`HEAD`] and of what a channel's side 0 has at 0 and 64.
const OTHER_REGISTERS: u64 = 128;

/// Memory of the model: 32-bit registers below [`RING`], 64-bit words of entries from there; `SENT` and `READ` of both
/// lines of a channel's slot 0 where those are.
struct Memory {
    registers: Vec<AtomicU32>,
    words: Vec<AtomicU64>,
    lines: Vec<AtomicU64>,
}

impl Memory {
    fn new() -> Arc<Memory> {
        Arc::new(Memory {
            registers: (0..RING / 4).map(|_| AtomicU32::new(0)).collect(),
            words: (0..CAPACITY * 2).map(|_| AtomicU64::new(0)).collect(),
            lines: (0..4).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        match offset.checked_sub(ChannelLayout::line(0, Side::Zero)) {
            Some(at) => &self.lines[(at / 64 * 2 + at % 64 / 8) as usize],
            None => &self.words[((offset - RING) / 8) as usize],
        }
    }

    fn register(&self, offset: u64) -> &AtomicU32 {
        &self.registers[(offset / 4) as usize]
    }
}

impl Words for Memory {
    fn spans(&self, _offset: u64, _len: u64) -> bool {
        true
    }

    fn load_u64(&self, offset: u64, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    fn store_u64(&self, offset: u64, value: u64, order: Ordering) {
        self.word(offset).store(value, order);
    }

    fn load_u32(&self, offset: u64, order: Ordering) -> u32 {
        self.register(offset).load(order)
    }

    fn store_u32(&self, offset: u64, value: u32, order: Ordering) {
        self.register(offset).store(value, order);
    }

    fn replace_u64(&self, offset: u64, old: u64, new: u64, order: Ordering) -> bool {
        self.word(offset).compare_exchange(old, new, order, Ordering::Relaxed).is_ok()
    }

    fn swap_u32(&self, offset: u64, value: u32, order: Ordering) -> u32 {
        self.register(offset).swap(value, order)
    }

    fn replace_u32(&self, offset: u64, old: u32, new: u32, order: Ordering) -> bool {
        self.register(offset).compare_exchange(old, new, order, Ordering::Relaxed).is_ok()
    }

    fn fetch_or_u64(&self, offset: u64, bits: u64, order: Ordering) -> u64 {
        self.word(offset).fetch_or(bits, order)
    }
}

/// What sleepers sleep on: an eventfd or a pipe. A sleep that nobody ends is a deadlock, which loom reports.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
    }

    fn drain(&self) {
        *self.rung.lock().unwrap() = false;
    }
}

impl Signal for Arc<Bell> {
    fn signal(&self) {
        self.ring();
    }
}

fn entry(n: u64) -> RawEntry {
    RawEntry { word0: n << 32, word1: n }
}

/// Argument blocks: ordinary memory, so that loom reports any access that the ring does not order.
struct Blocks([UnsafeCell<u64>; CAPACITY as usize]);

// SAFETY: needed to share the cells between the model's threads. Loom checks each access against the others and
// fails the test on a race, which is the point.
unsafe impl Sync for Blocks {}

impl Blocks {
    fn write(&self, place: u32, value: u64) {
        // SAFETY: needed to write through a shared cell; loom fails the test if any other access races with it.
        self.0[place as usize].with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self, place: u32) -> u64 {
        // SAFETY: needed to read a shared cell; loom fails the test if any write races with it.
        self.0[place as usize].with(|cell| unsafe { *cell })
    }
}

#[test]
fn loom_ring_orders_entries_and_blocks_over_a_wrap() {
    const COUNT: u64 = 3;
    loom::model(|| {
        let memory = Memory::new();
        let blocks = Arc::new(Blocks([UnsafeCell::new(0), UnsafeCell::new(0)]));
        let mut producer = HostProducer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let mut consumer = EngineConsumer::new(memory, RING, CAPACITY, HEAD).unwrap();
        let host = thread::spawn({
            let blocks = Arc::clone(&blocks);
            move || {
                for n in 1..=COUNT {
                    while producer.room(1) == 0 {
                        thread::yield_now();
                    }
                    blocks.write(producer.next_slot(), n * 10);
                    producer.push(entry(n)).unwrap();
                }
            }
        });
        for n in 1..=COUNT {
            let (got, place) = loop {
                match consumer.pop_with_slot() {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((got.word0 >> 32, got.word1, blocks.read(place)), (n, n, n * 10));
            consumer.publish_head();
        }
        host.join().unwrap();
    });
}

#[test]
fn loom_completions_are_whole_and_in_order_over_a_wrap() {
    const COUNT: u64 = 3;
    loom::model(|| {
        let memory = Memory::new();
        let mut producer = EngineProducer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let mut consumer = HostConsumer::new(memory, RING, CAPACITY, HEAD).unwrap();
        let engine = thread::spawn(move || {
            for n in 1..=COUNT {
                while producer.is_full().expect("an honest host") {
                    thread::yield_now();
                }
                producer.push(entry(n)).unwrap();
            }
        });
        for n in 1..=COUNT {
            let got = loop {
                match consumer.pop() {
                    Some(found) => break found,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((got.word0 >> 32, got.word1), (n, n));
            consumer.publish_head();
        }
        engine.join().unwrap();
    });
}

/// A host that stores entries and rings for each if it has to, and an engine that sleeps between them; `word`: what the engine
/// announces in which sleep.
fn sleeping_engine(word: fn(u32) -> u32) {
    const COUNT: u64 = 2;
    loom::model(move || {
        let memory = Memory::new();
        let bell = Arc::new(Bell::default());
        let mut producer = HostProducer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let mut consumer = EngineConsumer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let host = thread::spawn({
            let (memory, bell) = (Arc::clone(&memory), Arc::clone(&bell));
            move || {
                for n in 1..=COUNT {
                    producer.push(entry(n)).unwrap();
                    ring(&memory, DOORBELL_FOR_ENTRIES, || signal(&bell)).unwrap();
                }
            }
        });
        let (mut taken, mut sleeps) = (0, 0);
        while taken < COUNT {
            if consumer.pop().is_some() {
                taken += 1;
                continue;
            }
            sleeps += 1;
            let announced = EngineSleep::announce_in([(&memory, word(sleeps))].into_iter());
            if !consumer.has_entry() {
                bell.sleep();
                bell.drain();
            }
            announced.end_in([&memory].into_iter());
        }
        host.join().unwrap();
    });
}

fn signal(bell: &Bell) -> Result<(), core::convert::Infallible> {
    bell.ring();
    Ok(())
}

#[test]
fn loom_a_sleeping_engine_is_woken() {
    sleeping_engine(|sleep| word_of(false, sleep));
}

/// Planted: a host that was held up after it rang takes back the announcement of the next sleep.
#[test]
#[should_panic(expected = "deadlock")]
fn loom_a_word_that_is_the_same_in_each_sleep_loses_a_wake_up() {
    sleeping_engine(|_| word_of(false, 0));
}

#[test]
fn loom_a_sleeping_host_is_woken() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let memory = Memory::new();
        let bell = Arc::new(Bell::default());
        let mut producer = EngineProducer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let mut consumer = HostConsumer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let irq = HostIrq::new(Arc::clone(&memory), HOST_REGISTERS, Arc::clone(&bell));
        let mut engine_irq = EngineIrq::new(memory, HOST_REGISTERS, bell);
        let engine = thread::spawn(move || {
            for n in 1..=COUNT {
                producer.push(entry(n)).unwrap();
                engine_irq.posted(Instant::ZERO, 1, false).unwrap();
            }
        });
        let mut taken = 0;
        while taken < COUNT {
            if consumer.pop().is_some() {
                taken += 1;
                continue;
            }
            irq.receiver().drain();
            irq.arm();
            if !consumer.has_entry() {
                irq.receiver().sleep();
            }
        }
        engine.join().unwrap();
    });
}

/// Whoever ends a direction learns how much went through it, and exactly that much comes.
#[test]
fn loom_who_freezes_a_direction_gets_what_was_counted() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let memory = Memory::new();
        let channel = ChannelMemory::over(Arc::clone(&memory));
        let blocks = Arc::new(Blocks([UnsafeCell::new(0), UnsafeCell::new(0)]));
        let mut producer = EngineProducer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let mut consumer = EngineConsumer::new(memory, RING, CAPACITY, HEAD).unwrap();
        let sender = thread::spawn({
            let (channel, blocks) = (channel.clone(), Arc::clone(&blocks));
            move || {
                for n in 1..=COUNT {
                    blocks.write(n as u32 - 1, n * 10);
                    if channel.add_sent(0, Side::One, 1).is_err() {
                        return n - 1;
                    }
                    producer.push(entry(n)).unwrap();
                }
                COUNT
            }
        });
        let all = channel.freeze(0, Side::One);
        let mut taken = 0;
        while taken < all {
            match consumer.pop() {
                Some(got) => {
                    taken += 1;
                    assert_eq!((got.word1, blocks.read(taken as u32 - 1)), (taken, taken * 10));
                }
                None => thread::yield_now(),
            }
        }
        let sent = sender.join().unwrap();
        assert_eq!((sent, channel.sent(0, Side::One), consumer.pop()), (all, all, None));
    });
}

/// Memory that the reader has read, and only that, may be written again.
#[test]
fn loom_a_sender_writes_again_only_what_was_read() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let memory = Memory::new();
        let channel = ChannelMemory::over(Arc::clone(&memory));
        let blocks = Arc::new(Blocks([UnsafeCell::new(0), UnsafeCell::new(0)]));
        let mut producer = EngineProducer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let mut consumer = EngineConsumer::new(memory, RING, CAPACITY, HEAD).unwrap();
        let sender = thread::spawn({
            let (channel, blocks) = (channel.clone(), Arc::clone(&blocks));
            move || {
                for n in 1..=COUNT {
                    while channel.read(0, Side::One) < n - 1 {
                        thread::yield_now();
                    }
                    blocks.write(0, n);
                    channel.add_sent(0, Side::Zero, 1).unwrap();
                    producer.push(entry(n)).unwrap();
                }
            }
        });
        for n in 1..=COUNT {
            while consumer.pop().is_none() {
                thread::yield_now();
            }
            assert_eq!(blocks.read(0), n);
            channel.set_read(0, Side::One, n);
        }
        sender.join().unwrap();
    });
}

#[test]
fn loom_a_sleeping_end_of_a_channel_is_woken() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let memory = Memory::new();
        let channel = ChannelMemory::over(Arc::clone(&memory));
        let bell = Arc::new(Bell::default());
        let mut producer = EngineProducer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let mut consumer = EngineConsumer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let irq = HostIrq::new(memory, OTHER_REGISTERS, Arc::clone(&bell));
        let sender = thread::spawn({
            let channel = channel.clone();
            move || {
                for n in 1..=COUNT {
                    producer.push(entry(n)).unwrap();
                    if channel.disarm(Side::Zero) {
                        bell.ring();
                    }
                }
            }
        });
        let mut taken = 0;
        while taken < COUNT {
            if consumer.pop().is_some() {
                taken += 1;
                continue;
            }
            irq.receiver().drain();
            // The queue set's own interrupt has the fence for both.
            channel.arm(Side::Zero);
            irq.arm();
            if !consumer.has_entry() {
                irq.receiver().sleep();
            }
        }
        sender.join().unwrap();
    });
}
