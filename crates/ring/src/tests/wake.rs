//! Bells and interrupts with real descriptors.

use crate::doorbell::{EngineDoorbell, EngineSleep, EventFd, HostDoorbell};
use crate::host_cursor::HostProducer;
use crate::irq::{IrqReceiver, Signal, irq_pair};
use crate::region::Region;
use crate::{EngineConsumer, Full};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use toe_abi::entry::RawEntry;

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).unwrap() == 1
}

fn doorbells() -> (Region, HostDoorbell, EngineDoorbell) {
    let (region, file) = Region::create(1 << 16).unwrap();
    let bell = EventFd::new().unwrap();
    let host_bell = bell.as_fd().try_clone_to_owned().unwrap();
    let host = HostDoorbell::new(Region::map(&file, 1 << 16).unwrap(), host_bell);
    (region.clone(), host, EngineDoorbell::new(region, bell))
}

#[test]
fn the_bell_is_rung_only_for_what_the_engine_waits_for() {
    let (_region, host, engine) = doorbells();
    assert_eq!(host.ring_if_wanted(), Ok(false), "awake");
    assert_eq!(host.ring_for_head(), Ok(false));
    let sleep = EngineSleep::announce([(&engine, false)]);
    assert_eq!(host.ring_for_head(), Ok(false), "no completions wait for room");
    assert!(!is_readable(&engine));
    assert_eq!(host.ring_if_wanted(), Ok(true));
    assert!(is_readable(&engine));
    sleep.end([&engine]);
    assert_eq!(engine.drain(), Ok(true));
    assert_eq!(engine.drain(), Ok(false));
    let sleep = EngineSleep::announce([(&engine, true)]);
    assert_eq!(host.ring_for_head(), Ok(true));
    sleep.end([&engine]);
    assert_eq!(host.ring_if_wanted(), Ok(false));
}

#[test]
fn a_host_cannot_block_the_engine_through_its_descriptors() {
    // The doorbell: made blocking and empty by the host, then read by the engine.
    let bell = EventFd::new().unwrap();
    let shared = bell.as_fd().try_clone_to_owned().unwrap();
    rustix::fs::fcntl_setfl(&shared, OFlags::empty()).unwrap();
    assert_eq!(bell.drain(), Ok(false), "a plain read would wait for ever");
    // The interrupt: the host makes its end blocking and never reads.
    let (sender, host_end) = irq_pair().unwrap();
    rustix::fs::fcntl_setfl(&host_end, OFlags::empty()).unwrap();
    for _ in 0..100_000 {
        sender.signal();
    }
    assert!(is_readable(&host_end));
    rustix::fs::fcntl_setfl(&host_end, OFlags::NONBLOCK).unwrap();
    let receiver = IrqReceiver::from(host_end);
    assert_eq!(receiver.drain(), Ok(true));
    assert!(!is_readable(&receiver));
    // And one that goes away.
    drop(receiver);
    sender.signal();
}

#[test]
fn a_signal_is_kept_until_it_is_drained() {
    let bell = EventFd::new().unwrap();
    for _ in 0..3 {
        bell.signal().unwrap();
    }
    assert!(is_readable(&bell));
    assert_eq!((bell.drain(), bell.drain()), (Ok(true), Ok(false)));
}

#[test]
fn a_sleeping_engine_misses_nothing() {
    // The engine sleeps without a time limit: a lost wake-up would hang the test.
    const COUNT: u64 = 5_000;
    let (region, host, engine) = doorbells();
    let mut producer = HostProducer::new(region.clone(), 4096, 8, 64).unwrap();
    let mut consumer = EngineConsumer::new(region, 4096, 8, 64).unwrap();
    let sender = std::thread::spawn(move || {
        let mut next = 0;
        while next < COUNT {
            match producer.push(RawEntry { word0: next << 32, word1: next }) {
                Ok(()) => {
                    next += 1;
                    host.ring_if_wanted().unwrap();
                }
                Err(Full) => std::thread::yield_now(),
            }
        }
    });
    let mut next = 0;
    while next < COUNT {
        while let Some(entry) = consumer.pop() {
            assert_eq!(entry.word1, next);
            next += 1;
        }
        consumer.publish_head();
        if next == COUNT {
            break;
        }
        let sleep = EngineSleep::announce([(&engine, false)]);
        if !consumer.has_entry() {
            poll(&mut [PollFd::new(&engine, PollFlags::IN)], None).unwrap();
            engine.drain().unwrap();
        }
        sleep.end([&engine]);
    }
    sender.join().unwrap();
}
