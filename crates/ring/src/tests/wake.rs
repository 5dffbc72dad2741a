//! Doorbells and interrupts with real descriptors.

use crate::doorbell::{EngineDoorbell, EngineSleep, EventFd, HostDoorbell};
use crate::host_cursor::HostProducer;
use crate::irq::{IrqReceiver, Signal};
use crate::region::Region;
use crate::{EngineConsumer, Full};
use rustix::event::{PollFd, PollFlags, epoll, poll};
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
    let doorbell = EventFd::new().unwrap();
    let host_doorbell = doorbell.as_fd().try_clone_to_owned().unwrap();
    let host = HostDoorbell::new(Region::map(&file, 1 << 16).unwrap(), host_doorbell);
    (region.clone(), host, EngineDoorbell::new(region, doorbell))
}

#[test]
fn the_doorbell_is_rung_only_for_what_the_engine_waits_for() {
    let (_region, host, engine) = doorbells();
    assert_eq!(host.ring_if_wanted(), Ok(false), "awake");
    assert_eq!(host.ring_for_head(), Ok(false));
    let sleep = EngineSleep::announce([(&engine, false)]);
    assert_eq!(host.ring_for_head(), Ok(false), "no completions wait for room");
    assert!(!is_readable(&engine));
    assert_eq!(host.ring_if_wanted(), Ok(true));
    assert!(is_readable(&engine));
    sleep.end([&engine]);
    let sleep = EngineSleep::announce([(&engine, true)]);
    assert_eq!(host.ring_for_head(), Ok(true));
    sleep.end([&engine]);
    assert_eq!(host.ring_if_wanted(), Ok(false));
}

#[test]
fn the_doorbell_is_rung_once_a_sleep() {
    let (_region, host, engine) = doorbells();
    for _ in 0..3 {
        let sleep = EngineSleep::announce([(&engine, true)]);
        assert_eq!(host.ring_if_wanted(), Ok(true));
        assert_eq!(
            (host.ring_if_wanted(), host.ring_for_head()),
            (Ok(false), Ok(false)),
            "it has been woken"
        );
        sleep.end([&engine]);
    }
}

#[test]
fn a_host_cannot_block_the_engine_through_its_descriptors() {
    // The doorbell: made blocking and empty by the host, then read by the engine.
    let doorbell = EventFd::new().unwrap();
    let shared = doorbell.as_fd().try_clone_to_owned().unwrap();
    rustix::fs::fcntl_setfl(&shared, OFlags::empty()).unwrap();
    assert_eq!(doorbell.drain(), Ok(false), "a plain read would wait for ever");
    // The interrupt: the host makes its end blocking and never reads.
    let (sender, host_end) = super::interrupt();
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
    let doorbell = EventFd::new().unwrap();
    for _ in 0..3 {
        doorbell.signal().unwrap();
    }
    assert!(is_readable(&doorbell));
    assert_eq!((doorbell.drain(), doorbell.drain()), (Ok(true), Ok(false)));
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
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, &engine, epoll::EventData::new_u64(0), edge).unwrap();
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
            let mut events = Vec::with_capacity(1);
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None).unwrap();
            // Nobody reads it.
            assert!(is_readable(&engine));
        }
        sleep.end([&engine]);
    }
    sender.join().unwrap();
}

/// Memory whose pages come when the test says so: until then, who copies to it waits.
struct StuckPage {
    at: usize,
    faults: rustix::fd::OwnedFd,
}

/// From linux/userfaultfd.h: `struct uffdio_api`, `uffdio_register` and `uffdio_zeropage`, as words.
const UFFDIO_API: u32 = 0xc018_aa3f;
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_ZEROPAGE: u32 = 0xc020_aa04;
const UFFD_API: u64 = 0xaa;
const REGISTER_MODE_MISSING: u64 = 1;
const PAGE_LEN: usize = 4096;

impl StuckPage {
    /// `None`: this process may not decide about faults of the kernel's in its memory, as an unprivileged one may not.
    fn new() -> Option<StuckPage> {
        use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
        // SAFETY: needed because the call is declared unsafe. It makes a descriptor, which concerns only what is registered.
        let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }.ok()?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: needed to get a page of its own; the kernel chooses where. It is never unmapped.
        let at =
            unsafe { mmap_anonymous(core::ptr::null_mut(), PAGE_LEN, rights, MapFlags::PRIVATE) }.ok()?;
        let page = StuckPage { at: at as usize, faults };
        page.ask(UFFDIO_API, [UFFD_API, 0, 0, 0]);
        page.ask(UFFDIO_REGISTER, [page.at as u64, PAGE_LEN as u64, REGISTER_MODE_MISSING, 0]);
        Some(page)
    }

    fn ask(&self, request: u32, mut words: [u64; 4]) {
        unsafe extern "C" {
            fn ioctl(fd: i32, request: core::ffi::c_ulong, ...) -> i32;
        }
        let fd = rustix::fd::AsRawFd::as_raw_fd(&self.faults);
        // SAFETY: needed because rustix has none of these. Each reads and writes at most 32 bytes, which `words` has.
        let result = unsafe { ioctl(fd, core::ffi::c_ulong::from(request), words.as_mut_ptr()) };
        assert_eq!(result, 0, "request {request:#x}");
    }

    /// Until somebody waits for the page.
    fn wait_for_fault(&self) {
        let mut event = [0; 32];
        assert_eq!(rustix::io::read(&self.faults, &mut event), Ok(event.len()));
    }

    fn let_go(&self) {
        self.ask(UFFDIO_ZEROPAGE, [self.at as u64, PAGE_LEN as u64, 0, 0]);
    }
}

/// A pipe failed this: its reader holds the pipe's lock while the kernel copies to his memory.
#[test]
fn a_host_whose_read_waits_for_ever_does_not_hold_up_the_engine() {
    let Some(page) = StuckPage::new() else {
        eprintln!("not run: this process may not decide about its page faults (userfaultfd)");
        return;
    };
    let (line, host_end) = super::interrupt();
    line.signal();
    let (at, (started, starts)) = (page.at, std::sync::mpsc::channel());
    let reader = std::thread::spawn(move || {
        // SAFETY: the page is mapped for ever, and nobody else looks at it.
        let buffer = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, 1) };
        started.send(()).unwrap();
        rustix::io::read(&host_end, buffer).unwrap();
    });
    starts.recv().unwrap();
    page.wait_for_fault();
    let (done, is_done) = std::sync::mpsc::channel();
    let signaller = std::thread::spawn(move || {
        line.signal();
        done.send(()).unwrap();
    });
    let outcome = is_done.recv_timeout(std::time::Duration::from_secs(20));
    page.let_go();
    reader.join().unwrap();
    signaller.join().unwrap();
    outcome.expect("the engine waits for the host's read");
}
