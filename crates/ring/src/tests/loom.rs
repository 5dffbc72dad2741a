//! The ring protocol and both sleep handshakes under every interleaving and every value that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p toe-ring --release loom`

use crate::doorbell::{EngineSleep, is_wanted};
use crate::engine_cursor::{EngineConsumer, EngineProducer};
use crate::host_cursor::{HostConsumer, HostProducer};
use crate::irq::{EngineIrq, HostIrq, Signal};
use crate::sync::{Ordering, Words};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;
use toe_abi::entry::RawEntry;
use toe_abi::region::DOORBELL_FOR_ENTRIES;
use toe_base::Instant;

const CAPACITY: u32 = 2;
const RING: u64 = 256;
/// Where a head register lies: clear of DOORBELL_WANTED (56) and of the host's registers.
const HEAD: u64 = 128;
/// Where the host's registers begin; IRQ_ARMED lies 64 further.
const HOST_REGISTERS: u64 = 0;

/// Memory of the model: 32-bit registers below [`RING`], 64-bit words of entries from there.
struct Memory {
    registers: Vec<AtomicU32>,
    words: Vec<AtomicU64>,
}

impl Memory {
    fn new() -> Arc<Memory> {
        Arc::new(Memory {
            registers: (0..RING / 4).map(|_| AtomicU32::new(0)).collect(),
            words: (0..CAPACITY * 2).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.words[((offset - RING) / 8) as usize]
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
                    blocks.write(producer.next_place(), n * 10);
                    producer.push(entry(n)).unwrap();
                }
            }
        });
        for n in 1..=COUNT {
            let (got, place) = loop {
                match consumer.pop_with_place() {
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

#[test]
fn loom_a_sleeping_engine_is_woken() {
    const COUNT: u64 = 2;
    loom::model(|| {
        let memory = Memory::new();
        let bell = Arc::new(Bell::default());
        let mut producer = HostProducer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let mut consumer = EngineConsumer::new(Arc::clone(&memory), RING, CAPACITY, HEAD).unwrap();
        let host = thread::spawn({
            let (memory, bell) = (Arc::clone(&memory), Arc::clone(&bell));
            move || {
                for n in 1..=COUNT {
                    producer.push(entry(n)).unwrap();
                    if is_wanted(&memory, DOORBELL_FOR_ENTRIES) {
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
            let announced = EngineSleep::announce_in([(&memory, false)].into_iter());
            if !consumer.has_entry() {
                bell.sleep();
                bell.drain();
            }
            announced.end_in([&memory].into_iter());
        }
        host.join().unwrap();
    });
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
