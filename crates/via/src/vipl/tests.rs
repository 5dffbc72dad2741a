//! Two virtual interfaces over real memory, without an engine.

use super::memory::MemoryAttributes;
use super::nic::{CompletionQueue, Interface, Nic};
use super::types::*;
use super::vi::{Service, State};
use crate::channel::tests::{Process, Random, process};
use crate::core::operation::{HEADER_LEN, Kind, Operation};
use crate::link::Link;
use crate::lock::lock;
use std::sync::Arc;
use toe_abi::channel::Side;
use toe_abi::via::{Fragment, ViaLayout, ViaState};
use toe_ring::ViaMemory;
use toe_ring::irq::IrqSender;

const AREA_LEN: usize = 2 << 20;
/// Descriptors lie at the beginning of an area.
const DATA_AT: u64 = 1 << 16;
const LEVELS: [u64; 3] = [0, 1, 2];

#[derive(Clone)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

/// One side: an interface of its own, memory registered with its tag, a virtual interface.
struct Node {
    interface: Arc<Interface>,
    nic: Arc<Nic>,
    ptag: u32,
    area: u64,
    handle: u32,
    /// Keeps the memory. All access is by address, as a program's would be.
    _lines: Vec<Line>,
    process: Process,
}

/// Some of a node's memory.
#[derive(Clone, Copy)]
struct At(u64, u32);

impl Node {
    fn new(level: u64, queue: bool) -> (Node, Option<Arc<CompletionQueue>>) {
        let process = process();
        let nic = Arc::new(Nic::new(Arc::clone(&process.session)));
        let mut lines = vec![Line { _bytes: [0; 64] }; AREA_LEN / 64];
        let area = lines.as_mut_ptr() as u64;
        let ptag = nic.registry_mut().create_ptag().expect("a tag");
        let attributes = MemoryAttributes { ptag, may_write: true, may_read: true };
        let handle = nic.registry_mut().register(area, AREA_LEN as u64, attributes).expect("registered");
        let service = Service { level, ptag, may_write: true, may_read: true, transfer_max: 1 << 21 };
        let queue = queue.then(|| Arc::new(CompletionQueue::new(Arc::clone(&nic), 8)));
        let made = Interface::create((Arc::clone(&nic), 0), service, [queue.clone(), queue.clone()]);
        let interface = made.expect("a virtual interface");
        (Node { interface, nic, ptag, area, handle, _lines: lines, process }, queue)
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= AREA_LEN);
        // SAFETY: needed because the library reads it by address too. It is in the area, whose lines nobody refers to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.area + at) as *mut u8, bytes.len()) };
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        assert!(at as usize + len <= AREA_LEN);
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts((self.area + at) as *const u8, len) }.to_vec()
    }

    /// Writes descriptor number `place`; where it is.
    fn descriptor(&self, place: u64, control: u16, immediate: u32, segments: &[VipSegment]) -> u64 {
        let remote = usize::from(control & CONTROL_OP_MASK != 0);
        let length: u32 = segments.iter().skip(remote).map(|segment| segment.length).sum();
        let mut bytes = vec![0; 32];
        bytes[12..14].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        bytes[14..16].copy_from_slice(&control.to_le_bytes());
        bytes[20..24].copy_from_slice(&immediate.to_le_bytes());
        bytes[24..28].copy_from_slice(&length.to_le_bytes());
        for segment in segments {
            bytes.extend(segment.data.to_le_bytes());
            bytes.extend(segment.handle.to_le_bytes());
            bytes.extend(segment.length.to_le_bytes());
        }
        self.write(place * 512, &bytes);
        self.area + place * 512
    }

    fn segment(&self, At(at, length): At) -> VipSegment {
        VipSegment { data: self.area + at, handle: self.handle, length }
    }

    fn post(&self, at: u64, of_receives: bool) {
        assert_eq!(self.interface.post(at, self.handle, of_receives), Ok(()));
    }

    fn post_send(&self, place: u64, at: At) {
        self.post(self.descriptor(place, 0, 0, &[self.segment(at)]), false);
    }

    fn post_receive(&self, place: u64, at: At) {
        self.post(self.descriptor(place, 0, 0, &[self.segment(at)]), true);
    }

    /// The next that is done: its place, its length, its status without the bit that says so, its immediate data.
    fn done(&self, of_receives: bool) -> Option<(u64, u32, u32, u32)> {
        let (at, is_wrong) = self.interface.done(of_receives)?;
        let place = (at - self.area) / 512;
        let word = |offset| {
            let bytes = self.read(place * 512 + offset, 4);
            u32::from_le_bytes(bytes.try_into().expect("four"))
        };
        let status = word(28);
        assert!(status & STATUS_DONE != 0 && is_wrong == (status & STATUS_ERROR_MASK != 0));
        Some((place, word(24), status & !STATUS_DONE, word(20)))
    }

    fn state(&self) -> State {
        self.interface.progress();
        lock(&self.interface.inside).state
    }
}

struct Pair {
    zero: Node,
    one: Node,
    memory: ViaMemory,
}

fn link(memory: &ViaMemory, side: Side, own: &Process, other: &Process) -> Link {
    let waker = IrqSender::from(other.line.another().expect("a waker"));
    Link::new(memory.clone(), side, 0, waker, own.session.node)
}

fn pair(level: u64) -> Pair {
    let (memory, _file) = ViaMemory::create().expect("memory");
    assert!(memory.advance(ViaState::Accepted));
    let [zero, one] = [(); 2].map(|()| Node::new(level, false).0);
    assert!(zero.interface.connect(link(&memory, Side::Zero, &zero.process, &one.process)));
    assert!(one.interface.connect(link(&memory, Side::One, &one.process, &zero.process)));
    Pair { zero, one, memory }
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at ^ seed).wrapping_mul(37) as u8 ^ (at >> 8) as u8).collect()
}

#[test]
fn messages_of_all_sizes_go_from_segments_to_segments() {
    for level in LEVELS {
        let Pair { zero, one, .. } = pair(level);
        let sizes = [0, 1, 16, 17, 4096, 16_352, 16_353, 100_000, 1 << 20];
        for (seed, size) in sizes.into_iter().enumerate() {
            let message = bytes(seed as u64, size as usize);
            zero.write(DATA_AT, &message);
            one.write(DATA_AT, &vec![0xee; size as usize + 8]);
            // Three segments on one side and two on the other.
            let cuts = [size / 3, size / 2, size - size / 3 - size / 2];
            let mut at = DATA_AT;
            let from = cuts.map(|len| {
                at += u64::from(len);
                zero.segment(At(at - u64::from(len), len))
            });
            let into = [At(DATA_AT, size / 4), At(DATA_AT + u64::from(size / 4), size - size / 4 + 8)];
            one.post(one.descriptor(1, 0, 0, &into.map(|at| one.segment(at))), true);
            zero.post(zero.descriptor(2, CONTROL_IMMEDIATE, 7 + size, &from), false);
            let received = std::iter::repeat_with(|| {
                zero.interface.progress();
                one.done(true)
            });
            let received = received.take(1000).flatten().next();
            let status = STATUS_OP_RECEIVE | STATUS_IMMEDIATE;
            assert_eq!(received, Some((1, size, status, 7 + size)), "{level} {size}");
            assert!(one.read(DATA_AT, size as usize) == message, "{level} {size}");
            assert_eq!(one.read(DATA_AT + u64::from(size), 8), [0xee; 8], "nothing behind it");
            assert_eq!(zero.done(false), Some((2, size, 0, 7 + size)));
            assert_eq!((zero.done(false), one.done(true)), (None, None));
        }
    }
}

#[test]
fn what_is_wrong_is_done_behind_what_is_not_known_yet() {
    let Pair { zero, one, .. } = pair(2);
    one.post_receive(1, At(DATA_AT, 100));
    zero.post_send(2, At(DATA_AT, 100));
    // Nobody's memory.
    let nobodys = VipSegment { data: zero.area, handle: 0, length: 8 };
    zero.post(zero.descriptor(3, 0, 0, &[nobodys]), false);
    assert_eq!(zero.done(false), None, "it was not received yet");
    assert!(one.done(true).is_some());
    assert_eq!(zero.done(false), Some((2, 100, 0, 0)));
    assert_eq!(zero.done(false), Some((3, 0, STATUS_PROTECTION_ERROR, 0)));
}

#[test]
fn a_send_is_done_when_its_level_says() {
    for level in LEVELS {
        let Pair { zero, one, .. } = pair(level);
        one.post_receive(1, At(DATA_AT, 100));
        zero.post_send(2, At(DATA_AT, 100));
        assert_eq!(zero.done(false).is_some(), level < 2, "before it is taken");
        assert!(one.done(true).is_some());
        assert_eq!(zero.done(false).is_some(), level == 2, "when it is received");
    }
}

#[test]
fn a_message_that_finds_no_receive_is_lost_or_ends_the_connection() {
    for level in LEVELS {
        let Pair { zero, one, .. } = pair(level);
        zero.post_send(2, At(DATA_AT, 100));
        assert_eq!(one.done(true), None);
        if level == 0 {
            assert_eq!((one.state(), zero.state()), (State::Connected, State::Connected));
            one.post_receive(1, At(DATA_AT, 100));
            assert_eq!(one.done(true), None, "that one is lost");
            zero.post_send(3, At(DATA_AT, 50));
            assert_eq!(one.done(true), Some((1, 50, STATUS_OP_RECEIVE, 0)));
            continue;
        }
        assert_eq!((one.state(), zero.state()), (State::Error, State::Error));
        let status = if level == 1 { 0 } else { STATUS_REMOTE_DESC_ERROR };
        let len = if level == 1 { 100 } else { 0 };
        assert_eq!(zero.done(false), Some((2, len, status, 0)), "reliable reception knows");
        // What is posted now is flushed; after VipDisconnect it can be connected again.
        zero.post_send(3, At(DATA_AT, 10));
        assert_eq!(zero.done(false), Some((3, 0, STATUS_FLUSHED_ERROR, 0)));
        zero.interface.disconnect();
        assert_eq!(zero.state(), State::Idle);
        assert_eq!(zero.interface.post(zero.area, zero.handle, false), Err(VipReturn::InvalidState));
    }
}

#[test]
fn what_was_received_before_a_refusal_was_received() {
    let Pair { zero, one, .. } = pair(2);
    one.post_receive(1, At(DATA_AT, 100));
    zero.post_send(2, At(DATA_AT, 100));
    zero.post_send(3, At(DATA_AT, 100));
    zero.post_send(4, At(DATA_AT, 100));
    assert_eq!(one.done(true), Some((1, 100, STATUS_OP_RECEIVE, 0)));
    assert_eq!(zero.done(false), Some((2, 100, 0, 0)));
    assert_eq!(zero.done(false), Some((3, 0, STATUS_REMOTE_DESC_ERROR, 0)));
    assert_eq!(zero.done(false), Some((4, 0, STATUS_TRANSPORT_ERROR, 0)));
}

/// Found by whole programs beside busy loops: who was late to look took what it had sent for lost.
#[test]
fn what_was_received_before_the_peer_asked_for_what_cannot_be_was_received() {
    let Pair { zero, one, .. } = pair(2);
    zero.post_receive(1, At(DATA_AT, 100));
    one.post_send(2, At(DATA_AT, 100));
    assert_eq!(zero.done(true), Some((1, 100, STATUS_OP_RECEIVE, 0)));
    let remote = VipSegment { handle: 77, ..one.segment(At(DATA_AT, 0)) };
    zero.post(zero.descriptor(3, CONTROL_OP_RDMAWRITE, 0, &[remote, zero.segment(At(DATA_AT, 64))]), false);
    assert_eq!(one.done(false), Some((2, 100, 0, 0)));
    assert_eq!(one.state(), State::Error);
}

#[test]
fn memory_that_is_not_registered_with_the_tag_is_not_sent() {
    for level in LEVELS {
        for wrong in 0..4 {
            let Pair { zero, one, .. } = pair(level);
            one.post_receive(1, At(DATA_AT, 100));
            let mut segment = zero.segment(At(DATA_AT, 100));
            match wrong {
                0 => segment.handle += 1,
                1 => segment.data = zero.area + AREA_LEN as u64 - 99,
                2 => {
                    // The right memory, by a handle of another tag.
                    let ptag = zero.nic.registry_mut().create_ptag().expect("a tag");
                    let attributes = MemoryAttributes { ptag, may_write: false, may_read: false };
                    let registered = zero.nic.registry_mut().register(zero.area, 1 << 20, attributes);
                    segment.handle = registered.expect("registered");
                }
                _ => {
                    let attributes = MemoryAttributes { ptag: zero.ptag, may_write: false, may_read: false };
                    let start = zero.area + DATA_AT;
                    let handle =
                        zero.nic.registry_mut().register(start, 100, attributes).expect("registered");
                    zero.nic.registry_mut().deregister(start, handle).expect("given back");
                    segment.handle = handle;
                }
            }
            zero.post(zero.descriptor(2, 0, 0, &[segment]), false);
            assert_eq!(zero.done(false), Some((2, 0, STATUS_PROTECTION_ERROR, 0)), "{level} {wrong}");
            let ends =
                if level == 0 { None } else { Some((1, 0, STATUS_OP_RECEIVE | STATUS_FLUSHED_ERROR, 0)) };
            assert_eq!(one.done(true), ends, "nothing has come");
        }
    }
}

#[test]
fn malformed_descriptors_are_refused() {
    let Pair { zero, one: _one, .. } = pair(0);
    let good = zero.descriptor(2, 0, 0, &[zero.segment(At(DATA_AT, 100))]);
    for (at, handle) in
        [(good + 1, zero.handle), (good, zero.handle + 1), (0, zero.handle), (64, zero.handle)]
    {
        assert_eq!(zero.interface.post(at, handle, false), Err(VipReturn::InvalidParameter));
    }
    for (offset, value) in [(12, 17), (14, 3), (14, 0x10), (24, 99), (14, 2)] {
        zero.descriptor(2, 0, 0, &[zero.segment(At(DATA_AT, 100))]);
        // A read of an address segment alone is one of nothing; its length is not 100.
        zero.write(2 * 512 + offset, &[value, 0]);
        zero.post(good, false);
        let status = zero.done(false).expect("done").2;
        assert_eq!(status & STATUS_ERROR_MASK, STATUS_FORMAT_ERROR, "{offset} {value}");
    }
    let too_long = At(DATA_AT, AREA_LEN as u32 - DATA_AT as u32);
    lock(&zero.interface.inside).service.transfer_max = 1000;
    zero.post_send(2, too_long);
    assert_eq!(zero.done(false), Some((2, 0, STATUS_LENGTH_ERROR, 0)));
}

#[test]
fn a_message_that_is_longer_than_the_receive() {
    for level in LEVELS {
        let Pair { zero, one, .. } = pair(level);
        one.write(DATA_AT, &[0xee; 200]);
        one.post_receive(1, At(DATA_AT, 99));
        zero.post_send(2, At(DATA_AT, 100));
        assert_eq!(one.done(true), Some((1, 0, STATUS_OP_RECEIVE | STATUS_LENGTH_ERROR, 0)));
        assert_eq!(one.read(DATA_AT, 200), [0xee; 200], "nothing of it");
        let is_over = one.state() == State::Error && zero.state() == State::Error;
        assert_eq!(is_over, level > 0);
    }
}

#[test]
fn remote_writes_go_where_they_may_and_nowhere_else() {
    for level in LEVELS {
        for wrong in 0..6 {
            let Pair { zero, one, .. } = pair(level);
            let message = bytes(wrong, 40_000);
            zero.write(DATA_AT, &message);
            let mut remote = VipSegment { length: 0, ..one.segment(At(DATA_AT, 0)) };
            match wrong {
                1 => remote.handle = 77,
                2 => remote.data = one.area + AREA_LEN as u64 - 39_999,
                3 => lock(&one.interface.inside).service.may_write = false,
                4 => {
                    // Of another tag.
                    let ptag = one.nic.registry_mut().create_ptag().expect("a tag");
                    let attributes = MemoryAttributes { ptag, may_write: true, may_read: true };
                    let registered = one.nic.registry_mut().register(one.area, AREA_LEN as u64, attributes);
                    remote.handle = registered.expect("registered");
                }
                5 => {
                    let attributes = MemoryAttributes { ptag: one.ptag, may_write: false, may_read: true };
                    let registered = one.nic.registry_mut().register(one.area, AREA_LEN as u64, attributes);
                    remote.handle = registered.expect("registered");
                }
                _ => {}
            }
            let segments = [remote, zero.segment(At(DATA_AT, 40_000))];
            zero.post(zero.descriptor(2, CONTROL_OP_RDMAWRITE, 0, &segments), false);
            one.interface.progress();
            let has_come = one.read(DATA_AT, 40_000) == message;
            assert_eq!(has_come, wrong == 0, "{level} {wrong}");
            let is_over = one.state() == State::Error && zero.state() == State::Error;
            assert_eq!(is_over, wrong != 0 && level > 0, "{level} {wrong}");
            let status = if wrong != 0 && level == 2 { STATUS_RDMA_PROT_ERROR } else { 0 };
            let said = zero.done(false).map(|(place, _, status, _)| (place, status));
            assert_eq!(said, Some((2, status | STATUS_OP_RDMA_WRITE)));
            assert_eq!(one.done(true), None, "no receive is used up");
        }
    }
    // With immediate data one is.
    let Pair { zero, one, .. } = pair(1);
    one.post_receive(1, At(DATA_AT + 4096, 0));
    let segments = [one.segment(At(DATA_AT, 0)), zero.segment(At(DATA_AT, 64))];
    zero.post(zero.descriptor(2, CONTROL_OP_RDMAWRITE | CONTROL_IMMEDIATE, 9, &segments), false);
    let status = STATUS_OP_REMOTE_RDMA_WRITE | STATUS_IMMEDIATE;
    assert_eq!(one.done(true), Some((1, 0, status, 9)));
}

#[test]
fn remote_reads_bring_what_they_may_and_nothing_else() {
    for level in [1, 2] {
        for wrong in 0..4 {
            let Pair { zero, one, .. } = pair(level);
            let message = bytes(wrong, 400_000);
            one.write(DATA_AT, &message);
            let mut remote = one.segment(At(DATA_AT, 0));
            match wrong {
                1 => remote.handle = 77,
                2 => remote.data = one.area + AREA_LEN as u64 - 399_999,
                3 => lock(&one.interface.inside).service.may_read = false,
                _ => {}
            }
            let segments = [remote, zero.segment(At(DATA_AT, 400_000))];
            zero.post(zero.descriptor(2, CONTROL_OP_RDMAREAD, 0, &segments), false);
            // What is posted behind it waits for it.
            one.post_receive(1, At(8192, 8));
            zero.post_send(3, At(DATA_AT, 8));
            for _ in 0..100 {
                one.interface.progress();
                zero.interface.progress();
            }
            let said = zero.done(false).map(|(place, _, status, _)| (place, status));
            let status = if wrong == 0 { 0 } else { STATUS_RDMA_PROT_ERROR };
            assert_eq!(said, Some((2, status | STATUS_OP_RDMA_READ)), "{level} {wrong}");
            assert_eq!(zero.read(DATA_AT, 400_000) == message, wrong == 0);
            assert_eq!(one.state() == State::Error, wrong != 0);
            let next = one.done(true).map(|(_, _, status, _)| status & STATUS_ERROR_MASK);
            assert_eq!(next, Some(if wrong == 0 { 0 } else { STATUS_FLUSHED_ERROR }));
            if wrong == 0 {
                assert_eq!(one.read(8192, 8), message[..8]);
            }
        }
    }
}

#[test]
fn a_peer_that_is_killed_ends_what_is_posted() {
    for level in LEVELS {
        let Pair { zero, one, memory } = pair(level);
        one.post_receive(1, At(DATA_AT, 100));
        zero.post_send(2, At(DATA_AT, 100));
        // More than there is credit for, and one behind it.
        zero.post_send(3, At(DATA_AT, 1 << 20));
        zero.post_send(4, At(DATA_AT, 1));
        zero.post_receive(5, At(DATA_AT, 100));
        let _ = zero.done(false).filter(|_| level < 2);
        // As the engine does when a session ends.
        assert!(memory.advance(ViaState::Closed));
        assert_eq!(one.done(true), Some((1, 100, STATUS_OP_RECEIVE, 0)), "what was sent is received");
        assert_eq!(zero.state(), State::Error);
        let left: Vec<_> = std::iter::from_fn(|| zero.done(false)).map(|done| (done.0, done.2)).collect();
        let ended = [(3, STATUS_TRANSPORT_ERROR), (4, STATUS_FLUSHED_ERROR)];
        assert!(left.ends_with(&ended), "{level}: {left:?}");
        assert_eq!(zero.done(true), Some((5, 0, STATUS_OP_RECEIVE | STATUS_FLUSHED_ERROR, 0)));
    }
}

#[test]
fn a_completion_queue_says_whose_queue_it_is() {
    let (memory, _file) = ViaMemory::create().expect("memory");
    assert!(memory.advance(ViaState::Accepted));
    let (zero, queue) = Node::new(1, true);
    let (one, _) = Node::new(1, false);
    let queue = queue.expect("a queue");
    zero.interface.handle.store(5, std::sync::atomic::Ordering::Relaxed);
    assert!(zero.interface.connect(link(&memory, Side::Zero, &zero.process, &one.process)));
    assert!(one.interface.connect(link(&memory, Side::One, &one.process, &zero.process)));
    assert!(queue.is_in_use() && queue.done().is_none());
    zero.post_receive(1, At(DATA_AT, 100));
    one.post_receive(1, At(DATA_AT, 100));
    zero.post_send(2, At(DATA_AT, 10));
    one.post_send(2, At(DATA_AT, 20));
    assert_eq!(queue.done(), Some((5, false)));
    assert_eq!(queue.wait(Some(0)), Ok((5, true)));
    assert_eq!(queue.done(), None);
    assert_eq!(queue.wait(Some(0)), Err(VipReturn::Timeout));
    assert_eq!(zero.done(true), Some((1, 20, STATUS_OP_RECEIVE, 0)));
    drop(zero);
    assert!(!queue.is_in_use());
}

#[test]
fn who_waits_is_woken() {
    let Pair { zero, one, .. } = pair(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            crate::sleep::tests::do_not_look();
            for _ in 0..300 {
                one.post_receive(1, At(DATA_AT, 64));
                assert!(one.interface.wait(true, None).is_ok());
                one.post_send(2, At(DATA_AT, 64));
                assert!(one.interface.wait(false, None).is_ok());
            }
        });
        crate::sleep::tests::do_not_look();
        for _ in 0..300 {
            zero.post_receive(1, At(DATA_AT, 64));
            // It has posted its receive by the time that it waits, or finds the message when it does.
            while lock(&one.interface.inside).receives.posted.is_empty() {
                std::thread::yield_now();
            }
            zero.post_send(2, At(DATA_AT, 64));
            assert!(zero.interface.wait(false, None).is_ok());
            assert!(zero.interface.wait(true, None).is_ok());
        }
    });
}

/// Whatever a peer writes: nothing outside the memory that it may write to changes, and the connection ends.
#[test]
fn a_peer_that_writes_what_no_library_writes_harms_itself() {
    let mut ends = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let (one, _) = Node::new(seed % 3, false);
        let (memory, _file) = ViaMemory::create().expect("memory");
        assert!(memory.advance(ViaState::Accepted));
        assert!(one.interface.connect(link(&memory, Side::One, &one.process, &one.process)));
        // What may be written remotely is a part of what is registered for the program itself.
        one.nic.registry_mut().deregister(one.area, one.handle).expect("given back");
        let attributes = |may| MemoryAttributes { ptag: one.ptag, may_write: may, may_read: may };
        let own = one.nic.registry_mut().register(one.area, DATA_AT + 4096, attributes(false)).expect("own");
        let open = one.nic.registry_mut().register(one.area + DATA_AT + 4096, 4096, attributes(true));
        let open = open.expect("open");
        let into = VipSegment { data: one.area + DATA_AT, handle: own, length: 4096 };
        for place in 0..4 {
            let at = one.descriptor(place, 0, 0, &[into]);
            assert_eq!(one.interface.post(at, own, true), Ok(()));
        }
        one.write(DATA_AT + 8192, &[0xee; 4096]);
        for place in 0..40 {
            let kind =
                [Kind::Send, Kind::Write, Kind::Read, Kind::Answer, Kind::Refuse][random.below(5) as usize];
            let handle = [open, own, 5][random.below(3) as usize];
            let address = one.area + DATA_AT + 4096 + random.below(8192) - random.below(2) * 4096;
            let most = [20, 4000, 5000][random.below(3) as usize];
            let len = random.below(most) as u32;
            let operation = Operation { kind, immediate: None, address, handle, len };
            let mut header = operation.encode();
            if random.below(6) == 0 {
                header[random.below(HEADER_LEN as u64) as usize] = random.below(256) as u8;
            }
            let total = operation.message_len() - random.below(40) / 39;
            let fragment = Fragment { len: total.min(16_384) as u32, begins: Some(total) };
            let at = if fragment.is_inline() {
                ViaLayout::slot(Side::Zero, place) + 16
            } else {
                ViaLayout::data(Side::Zero)
            };
            memory.write(at, &header).expect("within");
            let [word0, word1] = fragment.encode(place);
            memory.write(ViaLayout::slot(Side::Zero, place) + 8, &word1.to_le_bytes()).expect("within");
            memory.write(ViaLayout::slot(Side::Zero, place), &word0.to_le_bytes()).expect("within");
            one.interface.progress();
        }
        assert_eq!(one.read(DATA_AT + 8192, 4096), [0xee; 4096], "seed {seed}");
        ends += u64::from(one.state() == State::Error);
    }
    assert!(ends > 200, "{ends}");
}
