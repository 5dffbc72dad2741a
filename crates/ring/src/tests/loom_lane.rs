//! A lane beside the kernel's queue: what one sender sends arrives whole and in order, whichever way it goes, and whoever sleeps
//! is woken, under every interleaving that the model goes through.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p toe-ring --release loom`

use crate::lane::{LaneMemory, LaneReceiver, LaneSender, Offer};
use crate::sync::{Ordering, Words};
use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::collections::VecDeque;
use std::sync::Arc;
use toe_abi::lane::{LaneLayout, LaneWord, record_len};

/// Room for four datagrams of up to eight bytes. What a datagram says is its length.
const RING_LEN: u64 = 64;
const DATAGRAMS: u32 = 3;
/// All interleavings with so many switches where no thread had to wait.
const PREEMPTIONS: usize = 5;

struct Memory {
    word: AtomicU64,
    head: AtomicU64,
    ring: Vec<AtomicU64>,
}

impl Memory {
    fn new() -> Arc<Memory> {
        Arc::new(Memory {
            word: AtomicU64::new(LaneWord::NEW.0),
            head: AtomicU64::new(0),
            ring: (0..RING_LEN / 8).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn at(&self, offset: u64) -> &AtomicU64 {
        match offset {
            LaneLayout::WORD => &self.word,
            LaneLayout::HEAD => &self.head,
            ring => &self.ring[((ring - LaneLayout::RING) / 8) as usize],
        }
    }
}

impl Words for Memory {
    fn spans(&self, _offset: u64, _len: u64) -> bool {
        true
    }

    fn load_u64(&self, offset: u64, order: Ordering) -> u64 {
        self.at(offset).load(order)
    }

    fn store_u64(&self, offset: u64, value: u64, order: Ordering) {
        self.at(offset).store(value, order);
    }

    fn load_u32(&self, _offset: u64, _order: Ordering) -> u32 {
        unreachable!("a lane has none")
    }

    fn store_u32(&self, _offset: u64, _value: u32, _order: Ordering) {
        unreachable!("a lane has none")
    }

    fn replace_u64(&self, offset: u64, old: u64, new: u64, order: Ordering) -> bool {
        self.at(offset).compare_exchange(old, new, order, Ordering::Relaxed).is_ok()
    }

    fn swap_u32(&self, _offset: u64, _value: u32, _order: Ordering) -> u32 {
        unreachable!("a lane has none")
    }

    fn replace_u32(&self, _offset: u64, _old: u32, _new: u32, _order: Ordering) -> bool {
        unreachable!("a lane has none")
    }

    fn fetch_or_u64(&self, offset: u64, bits: u64, order: Ordering) -> u64 {
        self.at(offset).fetch_or(bits, order)
    }
}

/// The queue of a kernel socket. A sleep that nobody ends is a deadlock, which loom reports.
#[derive(Default)]
struct Kernel {
    queue: Mutex<VecDeque<u32>>,
    came: Condvar,
}

impl Kernel {
    fn send(&self, datagram: u32) {
        self.queue.lock().unwrap().push_back(datagram);
        self.came.notify_one();
    }

    fn receive(&self) -> Option<u32> {
        self.queue.lock().unwrap().pop_front()
    }

    fn sleep(&self) -> u32 {
        let mut queue = self.queue.lock().unwrap();
        loop {
            match queue.pop_front() {
                Some(datagram) => return datagram,
                None => queue = self.came.wait(queue).unwrap(),
            }
        }
    }
}

fn send(lane: &mut LaneSender<Arc<Memory>>, kernel: &Kernel, datagram: u32) {
    match lane.offer(datagram) {
        Offer::Lane { .. } if lane.publish(datagram) => {}
        Offer::Full => unreachable!("there is room"),
        _ => kernel.send(datagram),
    }
}

/// As a host receives, with one lane: what comes next, if something does at once.
fn receive(lane: &mut LaneReceiver<Arc<Memory>>, kernel: &Kernel) -> Option<u32> {
    loop {
        if lane.is_empty() {
            if lane.is_diverted() {
                lane.open();
            }
            return if lane.is_fresh() { kernel.receive() } else { None };
        }
        if lane.is_fresh() {
            match kernel.receive() {
                Some(datagram) => return Some(datagram),
                None => lane.confirm(),
            }
        }
        if let Some(record) = lane.first() {
            lane.take(record);
            return Some(record.len);
        }
    }
}

fn explored(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// `divert`: how the receiver closes the lane before it sleeps; `false`: it found something instead.
fn everything_arrives(
    divert: impl Fn(&mut LaneReceiver<Arc<Memory>>, &Memory) -> bool + Sync + Send + Copy + 'static,
) {
    explored(move || {
        let (memory, kernel) = (Memory::new(), Arc::new(Kernel::default()));
        let mut sender = LaneSender::new(LaneMemory::over(Arc::clone(&memory), RING_LEN));
        let mut receiver = LaneReceiver::new(LaneMemory::over(Arc::clone(&memory), RING_LEN));
        let sending = thread::spawn({
            let kernel = Arc::clone(&kernel);
            move || (1..=DATAGRAMS).for_each(|datagram| send(&mut sender, &kernel, datagram))
        });
        let mut next = 1;
        while next <= DATAGRAMS {
            // It looks twice before it sleeps.
            let came = receive(&mut receiver, &kernel).or_else(|| receive(&mut receiver, &kernel));
            let came = came.or_else(|| divert(&mut receiver, &memory).then(|| kernel.sleep()));
            if let Some(datagram) = came {
                assert_eq!(datagram, next, "in the order in which they were sent");
                next += 1;
            }
        }
        sending.join().unwrap();
        assert_eq!((receiver.is_empty(), kernel.receive()), (true, None));
    });
}

#[test]
fn loom_what_is_sent_arrives_in_order_by_whatever_way() {
    everything_arrives(|receiver, _| receiver.divert().is_ok());
}

/// The planted defect: it closes the lane and does not look again.
#[test]
#[should_panic]
fn loom_finds_a_receiver_that_sleeps_beside_a_datagram() {
    everything_arrives(|_, memory| {
        memory.fetch_or_u64(LaneLayout::WORD, LaneWord::DIVERTED, Ordering::AcqRel);
        true
    });
}

/// The planted defect: it takes what is in a lane that it has just opened before what came by the kernel meanwhile.
#[test]
#[should_panic]
fn loom_finds_a_receiver_that_forgets_what_came_before_the_opening() {
    everything_arrives(|receiver, _| {
        receiver.forget_opening();
        receiver.divert().is_ok()
    });
}

/// Somebody ends the lane at any moment: what was published before is there, and the rest came by the kernel.
#[test]
fn loom_nothing_is_lost_when_a_lane_is_closed() {
    explored(|| {
        let (memory, kernel) = (Memory::new(), Arc::new(Kernel::default()));
        let mut sender = LaneSender::new(LaneMemory::over(Arc::clone(&memory), RING_LEN));
        let mut receiver = LaneReceiver::new(LaneMemory::over(Arc::clone(&memory), RING_LEN));
        receiver.open();
        let sending = thread::spawn({
            let kernel = Arc::clone(&kernel);
            move || (1..=2).for_each(|datagram| send(&mut sender, &kernel, datagram))
        });
        LaneMemory::over(memory, RING_LEN).close();
        sending.join().unwrap();
        let mut came = Vec::new();
        while let Some(record) = receiver.first() {
            receiver.take(record);
            came.push(record.len);
        }
        came.extend(core::iter::from_fn(|| kernel.receive()));
        assert_eq!(came, [1, 2]);
    });
}

/// As the engine sends: what finds the receiver asleep wakes it, after the next one has been published.
fn send_as_engine(
    lane: &mut LaneSender<Arc<Memory>>,
    kernel: &Kernel,
    bell: &mut Option<u32>,
    datagram: u32,
) {
    match lane.offer(datagram) {
        Offer::Lane { .. } if lane.publish(datagram) => {}
        Offer::Full => unreachable!("there is room"),
        _ => {
            ring(lane, kernel, bell);
            if lane.begin_ring(false) {
                *bell = Some(datagram);
                return;
            }
            kernel.send(datagram);
        }
    }
    ring(lane, kernel, bell);
}

fn ring(lane: &mut LaneSender<Arc<Memory>>, kernel: &Kernel, bell: &mut Option<u32>) {
    if let Some(datagram) = bell.take() {
        kernel.send(datagram);
        lane.end_ring();
    }
}

/// The second datagram is the first in the lane, if it is there at all.
fn return_second(lane: &mut LaneSender<Arc<Memory>>, kernel: &Kernel) {
    if lane.lane().tail() == record_len(2) + record_len(3) && lane.begin_ring(true) {
        kernel.send(2);
        lane.void(0, 2);
        lane.end_ring();
    }
}

#[test]
fn loom_who_sleeps_beside_the_engine_is_woken_and_finds_the_rest_in_order() {
    explored(|| {
        let (memory, kernel) = (Memory::new(), Arc::new(Kernel::default()));
        let mut sender = LaneSender::new(LaneMemory::over(Arc::clone(&memory), RING_LEN));
        let mut receiver = LaneReceiver::new(LaneMemory::over(Arc::clone(&memory), RING_LEN));
        receiver.sleep(true).expect("it is empty");
        let sending = thread::spawn({
            let kernel = Arc::clone(&kernel);
            move || {
                let mut bell = None;
                (1..=DATAGRAMS)
                    .for_each(|datagram| send_as_engine(&mut sender, &kernel, &mut bell, datagram));
                ring(&mut sender, &kernel, &mut bell);
                return_second(&mut sender, &kernel);
            }
        });
        let mut next = 1;
        while next <= DATAGRAMS {
            let came = match receiver.is_empty() || receiver.claim(true) {
                true => receive_beside_engine(&mut receiver, &kernel),
                false => None,
            };
            let came = came.or_else(|| {
                receiver.sleep(true).is_ok().then(|| {
                    let datagram = kernel.sleep();
                    receiver.wakes();
                    datagram
                })
            });
            // While a record goes back: it has no more to do than to let the engine.
            thread::yield_now();
            if let Some(datagram) = came {
                assert_eq!(datagram, next, "in the order in which they were sent");
                next += 1;
            }
        }
        sending.join().unwrap();
        assert_eq!((receiver.is_empty(), kernel.receive()), (true, None));
    });
}

/// [`receive`] of a host that does not open the lane by itself.
fn receive_beside_engine(lane: &mut LaneReceiver<Arc<Memory>>, kernel: &Kernel) -> Option<u32> {
    if lane.is_empty() || lane.is_asleep() {
        return None;
    }
    if lane.is_fresh() {
        match kernel.receive() {
            Some(datagram) => return Some(datagram),
            None => lane.confirm(),
        }
    }
    let record = lane.first()?;
    lane.take(record);
    Some(record.len)
}
