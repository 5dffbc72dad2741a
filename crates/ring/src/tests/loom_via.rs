//! Virtual interfaces under every interleaving that the model goes through: fragments arrive in order, and whoever sleeps, for a fragment,
//! for credit or for the end, is woken.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p toe-ring --release loom`

use crate::sync::{Ordering, Words};
use crate::via::{ViaMemory, ViaReceiver, ViaSender};
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;
use toe_abi::channel::Side;
use toe_abi::via::{Fragment, SLOTS, ViaLayout, ViaState};

const FRAGMENTS: u32 = 2;
const PREEMPTIONS: usize = 4;

/// The words that the model touches: state, registers, and the first and last slots of side 0.
struct Memory {
    state: AtomicU32,
    taken: AtomicU32,
    armed: [AtomicU32; 2],
    slots: Vec<(u64, AtomicU64)>,
}

impl Memory {
    fn new() -> Arc<Memory> {
        let places = [0, 1, 2, SLOTS - 1].map(|place| ViaLayout::slot(Side::Zero, place));
        let words = places.into_iter().flat_map(|slot| [slot, slot + 8]);
        Arc::new(Memory {
            state: AtomicU32::new(ViaState::Accepted as u32),
            taken: AtomicU32::new(0),
            armed: [AtomicU32::new(0), AtomicU32::new(0)],
            slots: words.map(|at| (at, AtomicU64::new(0))).collect(),
        })
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        &self.slots.iter().find(|(at, _)| *at == offset).expect("a slot of the model").1
    }

    fn half(&self, offset: u64) -> &AtomicU32 {
        let armed = |side| ViaLayout::registers(side) + ViaLayout::ARMED;
        match offset {
            ViaLayout::STATE => &self.state,
            at if at == armed(Side::Zero) => &self.armed[0],
            at if at == armed(Side::One) => &self.armed[1],
            _ => &self.taken,
        }
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
        self.half(offset).load(order)
    }

    fn store_u32(&self, offset: u64, value: u32, order: Ordering) {
        self.half(offset).store(value, order);
    }

    fn replace_u64(&self, _offset: u64, _old: u64, _new: u64, _order: Ordering) -> bool {
        unreachable!("nothing here does")
    }

    fn swap_u32(&self, offset: u64, value: u32, order: Ordering) -> u32 {
        self.half(offset).swap(value, order)
    }

    fn replace_u32(&self, offset: u64, old: u32, new: u32, order: Ordering) -> bool {
        self.half(offset).compare_exchange(old, new, order, Ordering::Relaxed).is_ok()
    }

    fn fetch_or_u64(&self, _offset: u64, _bits: u64, _order: Ordering) -> u64 {
        unreachable!("nothing here does")
    }
}

/// A session's interrupt. A sleep that nobody ends is a deadlock, which loom reports.
#[derive(Default)]
struct Interrupt {
    came: Mutex<bool>,
    bell: Condvar,
}

impl Interrupt {
    fn send(&self) {
        *self.came.lock().unwrap() = true;
        self.bell.notify_one();
    }

    fn sleep(&self) {
        let mut came = self.came.lock().unwrap();
        while !*came {
            came = self.bell.wait(came).unwrap();
        }
        *came = false;
    }
}

struct World {
    memory: Arc<Memory>,
    interrupts: [Interrupt; 2],
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World { memory: Memory::new(), interrupts: Default::default() })
    }

    fn via(&self) -> ViaMemory<Arc<Memory>> {
        ViaMemory::over(Arc::clone(&self.memory))
    }

    fn wake(&self, side: Side) {
        if self.via().must_wake(side) {
            self.interrupts[side.index() as usize].send();
        }
    }

    /// Sleeps unless `is_so` by then.
    fn sleep_unless(&self, side: Side, mut is_so: impl FnMut() -> bool) {
        self.via().arm(side);
        if !is_so() {
            self.interrupts[side.index() as usize].sleep();
        }
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(run);
}

fn publish(sender: &mut ViaSender<Arc<Memory>>, number: u32) -> bool {
    let Some(room) = sender.room(0).expect("no breach") else { return false };
    sender.publish(Fragment { len: 0, begins: Some(u64::from(number)) }, room);
    true
}

fn numbered(receiver: &mut ViaReceiver<Arc<Memory>>) -> Option<u64> {
    let arrived = receiver.first().expect("no breach")?;
    receiver.take(arrived);
    arrived.fragment.begins
}

#[test]
fn who_waits_for_a_fragment_is_woken() {
    model(|| {
        let world = World::new();
        let sends = Arc::clone(&world);
        let sender = thread::spawn(move || {
            let mut sender = ViaSender::new(sends.via(), Side::Zero);
            for number in 0..FRAGMENTS {
                assert!(publish(&mut sender, number));
                sends.wake(Side::One);
            }
            assert!(sends.via().advance(ViaState::Closed));
            sends.wake(Side::One);
        });
        let mut receiver = ViaReceiver::new(world.via(), Side::One);
        let mut expected = 0;
        loop {
            // What was sent before the end comes before the end.
            let is_over = world.via().state() == ViaState::Closed;
            if let Some(number) = numbered(&mut receiver) {
                assert_eq!(number, expected);
                expected += 1;
            } else if is_over {
                break;
            } else {
                world.sleep_unless(Side::One, || {
                    receiver.is_there() || world.via().state() == ViaState::Closed
                });
            }
        }
        assert_eq!(expected, u64::from(FRAGMENTS));
        sender.join().unwrap();
    });
}

#[test]
fn who_waits_for_credit_is_woken() {
    model(|| {
        let world = World::new();
        let sends = Arc::clone(&world);
        let sender = thread::spawn(move || {
            let mut sender = ViaSender::nearly_full(sends.via(), Side::Zero);
            for number in 0..FRAGMENTS {
                while !publish(&mut sender, number) {
                    sends.sleep_unless(Side::Zero, || sender.room(0).expect("no breach").is_some());
                }
                sends.wake(Side::One);
            }
        });
        let mut receiver = ViaReceiver::nearly_full(world.via(), Side::One);
        for expected in 0..FRAGMENTS {
            loop {
                if let Some(number) = numbered(&mut receiver) {
                    assert_eq!(number, u64::from(expected));
                    world.wake(Side::Zero);
                    break;
                }
                world.sleep_unless(Side::One, || receiver.is_there());
            }
        }
        sender.join().unwrap();
    });
}
