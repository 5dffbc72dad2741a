//! Two endpoints over real memory, without an engine, in one thread: what each does is what a seed says.

use super::post::{Buffers, Notify, Part, Target, What, Work};
use super::regions::Region;
use super::*;
use crate::channel::tests::{Process, Random, process};
use crate::core::operation::{HEADER_LEN, Kind, Operation};
use std::collections::HashMap;
use toe_abi::channel::Side;
use toe_abi::via::{Fragment, ViaLayout};
use toe_ring::ViaMemory;
use toe_ring::irq::IrqSender;

/// An endpoint with the memory that its peer may touch.
struct Node {
    endpoint: Endpoint,
    regions: Regions,
    area: Box<[u8]>,
    reported: Vec<Completion>,
}

const KEY: u32 = 7;
const AREA: usize = 1 << 20;

fn link(memory: &ViaMemory, side: Side, of: &Process, other: &Process) -> Link {
    let waker = IrqSender::from(other.line.another().expect("a waker"));
    Link::new(memory.clone(), side, 0, waker, of.session.node)
}

impl Node {
    fn new(link: Link) -> Node {
        let area = vec![0xee; AREA].into_boxed_slice();
        let mut regions = Regions::default();
        let (start, len) = (area.as_ptr() as u64, AREA as u64 / 2);
        assert!(regions.add(KEY, Region { start, len, may_write: true, may_read: true }));
        let endpoint = Endpoint::default();
        endpoint.lock().link = Some(link);
        endpoint.lock().connect();
        Node { endpoint, regions, area, reported: Vec::new() }
    }

    fn progress(&mut self) {
        self.endpoint.progress(&self.regions, |completion| self.reported.push(completion));
    }

    fn post(&mut self, work: Work, bytes: &[u8], context: usize, is_copied: bool) -> Result<(), Failure> {
        let buffers = buffers(bytes);
        let immediate = context.is_multiple_of(3).then_some(context as u32);
        let post = Post { work, buffers, immediate, context, notify: Notify::Always };
        let post = if matches!(work, Work::Read(_)) { Post { immediate: None, ..post } } else { post };
        self.endpoint.post(post, is_copied, &self.regions, |completion| self.reported.push(completion))
    }

    fn receive(&self, room: &[u8], context: usize) {
        let receive = Receive { buffers: buffers(room), context, notify: Notify::Always };
        self.endpoint.receive(receive).expect("a receive");
    }
}

/// In two pieces, so that those are gone over.
fn buffers(bytes: &[u8]) -> Buffers {
    let (first, second) = bytes.split_at(bytes.len() / 3);
    let mut buffers = Buffers::default();
    for part in [first, second] {
        buffers.push(Part { address: part.as_ptr() as u64, handle: 0, len: part.len() as u32 });
    }
    buffers.len = bytes.len() as u32;
    buffers
}

struct Pair {
    nodes: [Node; 2],
    memory: ViaMemory,
    processes: [Process; 2],
}

fn pair() -> Pair {
    let processes = [process(), process()];
    let (memory, file) = ViaMemory::create().expect("memory");
    let other = ViaMemory::map(&file).expect("the same memory");
    assert!(memory.advance(ViaState::Accepted));
    let zero = Node::new(link(&memory, Side::Zero, &processes[0], &processes[1]));
    let one = Node::new(link(&other, Side::One, &processes[1], &processes[0]));
    Pair { nodes: [zero, one], memory, processes }
}

fn bytes(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ number ^ (at >> 8)) as u8).collect()
}

fn len(random: &mut Random) -> usize {
    let limit = [9, 65, 5000, 9, 65, 20_000, 400_000][random.below(7) as usize];
    random.below(limit) as usize
}

/// Whatever is posted when: each message comes once, whole, in order, where a receive was posted for it; what is written is there and what is read is what is there.
#[test]
fn all_that_is_posted_is_done_once_and_in_order() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut pair = pair();
        // What was posted, which must stay as it is, and what is expected of receives: by side.
        let mut out: [HashMap<usize, (What, Vec<u8>)>; 2] = Default::default();
        let mut expected: [Vec<Vec<u8>>; 2] = Default::default();
        let mut rooms: [Vec<Vec<u8>>; 2] = Default::default();
        for step in 0..300 {
            let side = random.below(2) as usize;
            let node = &mut pair.nodes[side];
            let data = bytes(step, len(&mut random));
            match random.below(6) {
                0 | 1 => {
                    let is_copied = random.below(2) == 0 && data.len() < 16_000;
                    // What is copied is not looked at again.
                    let posted = if is_copied { data.clone() } else { Vec::new() };
                    let what = if is_copied { &posted } else { &data };
                    node.post(Work::Send, what, step, is_copied).expect("posted");
                    expected[1 - side].push(data.clone());
                    out[side].insert(step, (What::Sent, data));
                }
                2 => {
                    // Each writes to a place of its own.
                    let target = Target { offset: (step * 1000) as u64, key: KEY };
                    let data = bytes(step, 1000);
                    node.post(Work::Write(target), &data, step, false).expect("posted");
                    out[side].insert(step, (What::Written, data));
                }
                3 => {
                    let data = vec![0; 1000];
                    let target = Target { offset: AREA as u64 / 2 - 1000, key: KEY };
                    node.post(Work::Read(target), &data, step, false).expect("posted");
                    out[side].insert(step, (What::Read, data));
                }
                4 => {
                    let room = vec![0; 400_000];
                    node.receive(&room, rooms[side].len());
                    rooms[side].push(room);
                }
                _ => node.progress(),
            }
        }
        for side in [0, 1] {
            while rooms[side].len() < expected[side].len() {
                let room = vec![0; 400_000];
                pair.nodes[side].receive(&room, rooms[side].len());
                rooms[side].push(room);
            }
        }
        for _ in 0..4000 {
            pair.nodes.iter_mut().for_each(Node::progress);
        }
        for side in [0, 1] {
            let reported = std::mem::take(&mut pair.nodes[side].reported);
            assert!(reported.iter().all(|reported| reported.failure.is_none()), "seed {seed}: {reported:?}");
            let received: Vec<_> =
                reported.iter().filter(|reported| reported.what == What::Received).collect();
            assert_eq!(received.len(), expected[side].len(), "seed {seed}");
            for (number, (reported, data)) in received.iter().zip(&expected[side]).enumerate() {
                assert_eq!((reported.context, reported.len), (number, data.len() as u64), "seed {seed}");
                assert!(rooms[side][number][..data.len()] == data[..], "seed {seed}, message {number}");
            }
            for reported in reported
                .iter()
                .filter(|reported| ![What::Received, What::WasWritten].contains(&reported.what))
            {
                let (what, data) = out[side].remove(&reported.context).expect("posted, and done once");
                assert_eq!(reported.what, what, "seed {seed}");
                match what {
                    What::Read => assert!(data == [0xee; 1000], "seed {seed}"),
                    What::Written => {
                        let there = &pair.nodes[1 - side].area[reported.context * 1000..][..1000];
                        assert!(there == data, "seed {seed}");
                    }
                    _ => {}
                }
            }
            assert!(out[side].is_empty(), "seed {seed}: not done: {:?}", out[side].keys());
        }
    }
}

#[test]
fn a_message_waits_for_its_receive_and_one_that_is_too_long_is_cut() {
    let mut pair = pair();
    let data = bytes(1, 100_000);
    let [zero, one] = &mut pair.nodes;
    zero.post(Work::Send, &data, 1, false).expect("posted");
    one.progress();
    assert!(one.reported.is_empty() && !one.endpoint.has_work(), "nothing to be done without a receive");
    let room = vec![0; 60_000];
    one.receive(&room, 5);
    assert!(one.endpoint.has_work());
    one.progress();
    let reported = one.reported.pop().expect("received");
    assert_eq!(
        (reported.context, reported.len, reported.failure),
        (5, 60_000, Some(Failure::Truncated(40_000)))
    );
    assert!(room == data[..60_000]);
    zero.post(Work::Send, &data[..10], 2, false).expect("posted");
    one.receive(&room, 6);
    one.progress();
    assert_eq!(
        one.reported.pop().map(|reported| (reported.context, reported.len, reported.failure)),
        Some((6, 10, None))
    );
    assert!(!one.endpoint.cancel(9, |_| ()) && zero.endpoint.phase() == Phase::Connected);
}

#[test]
fn memory_that_is_not_open_is_not_touched_and_the_asker_hears_it() {
    let half = AREA as u64 / 2;
    for (offset, key, len) in [(0, KEY + 1, 8), (half, KEY, 1), (half - 7, KEY, 8), (u64::MAX, KEY, 8)] {
        for writes in [false, true] {
            let mut pair = pair();
            let [zero, one] = &mut pair.nodes;
            let data = vec![0x11; len];
            let target = Target { offset, key };
            let work = if writes { Work::Write(target) } else { Work::Read(target) };
            zero.post(work, &data, 1, false).expect("posted");
            zero.receive(&data, 2);
            one.progress();
            zero.progress();
            zero.progress();
            assert!(one.area.iter().all(|byte| *byte == 0xee), "nothing was written");
            assert_eq!(one.endpoint.phase(), Phase::Over);
            assert_eq!(zero.endpoint.phase(), Phase::Over);
            // A write is done when it is where its target finds it.
            let of_work = if writes { None } else { Some(Failure::Refused) };
            let reported: Vec<_> =
                zero.reported.iter().map(|reported| (reported.context, reported.failure)).collect();
            assert_eq!(reported, [(1, of_work), (2, Some(Failure::Cancelled))]);
            assert!(data.iter().all(|byte| *byte == 0x11), "nothing was read");
            assert!(zero.endpoint.take_end() && !zero.endpoint.take_end());
        }
    }
}

#[test]
fn who_leaves_is_heard_and_all_that_is_posted_ends_once() {
    let mut pair = pair();
    let data = bytes(3, 300_000);
    let [zero, one] = &mut pair.nodes;
    let room = vec![0; 8];
    zero.receive(&room, 1);
    // More than there is room for: it is in the middle when the other leaves.
    zero.post(Work::Send, &data, 2, false).expect("posted");
    zero.post(Work::Send, &data, 3, false).expect("posted");
    one.post(Work::Send, &data[..8], 4, false).expect("posted");
    let mut reported = Vec::new();
    one.endpoint.close(&pair.processes[1].session, |completion| reported.push(completion));
    assert!(reported.is_empty(), "it had gone");
    zero.progress();
    let reported: Vec<_> =
        zero.reported.iter().map(|reported| (reported.context, reported.failure)).collect();
    assert_eq!(
        reported,
        [(1, None), (2, Some(Failure::Ended)), (3, Some(Failure::Ended))],
        "what was sent comes first"
    );
    assert!(zero.endpoint.take_end());
    let refused = zero.post(Work::Send, &room, 5, false);
    assert_eq!((refused, zero.endpoint.phase()), (Err(Failure::NotConnected), Phase::Over));
    assert_eq!(pair.memory.state(), ViaState::Closed);
}

#[test]
fn as_much_as_may_be_posted_can_be_and_no_more() {
    let mut pair = pair();
    let zero = &mut pair.nodes[0];
    let data = bytes(1, 20_000);
    let posted = (0..2 * SENDS_MAX).take_while(|_| zero.post(Work::Send, &data, 1, false).is_ok()).count();
    assert!((SENDS_MAX..SENDS_MAX + 600).contains(&posted), "{posted}");
    assert_eq!(zero.post(Work::Send, &data, 1, false), Err(Failure::Full));
    for number in 0..RECEIVES_MAX {
        zero.receive(&data, number);
    }
    let one_more = Receive { buffers: buffers(&data), context: 0, notify: Notify::Always };
    assert_eq!(zero.endpoint.receive(one_more), Err(Failure::Full));
}

/// Whatever a peer writes: nothing but the memory that is open to it, and the receives, changes, and nothing panics.
#[test]
fn a_peer_that_writes_what_no_library_writes_harms_itself() {
    let mut ends = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let mut pair = pair();
        let (memory, one) = (pair.memory.clone(), &mut pair.nodes[1]);
        let room = vec![0; 4096];
        (0..4).for_each(|number| one.receive(&room, number));
        for index in 0..40 {
            let kinds = [Kind::Send, Kind::Write, Kind::Read, Kind::Answer, Kind::Refuse, Kind::Greet];
            let kind = kinds[random.below(6) as usize];
            let handle = [KEY, KEY, KEY + 1][random.below(3) as usize];
            let address = random.below(AREA as u64);
            let most = [20, 4000, 5000][random.below(3) as usize];
            let len = random.below(most) as u32;
            let mut header = Operation { kind, immediate: None, address, handle, len }.encode();
            if random.below(6) == 0 {
                header[random.below(HEADER_LEN as u64) as usize] = random.below(256) as u8;
            }
            let total = HEADER_LEN as u64 + u64::from(len) - random.below(40) / 39;
            let fragment = Fragment { len: total.min(16_384) as u32, begins: Some(total) };
            let at = if fragment.is_inline() {
                ViaLayout::slot(Side::Zero, index) + 16
            } else {
                ViaLayout::data(Side::Zero)
            };
            memory.write(at, &header).expect("within");
            let [word0, word1] = fragment.encode(index);
            memory.write(ViaLayout::slot(Side::Zero, index) + 8, &word1.to_le_bytes()).expect("within");
            memory.write(ViaLayout::slot(Side::Zero, index), &word0.to_le_bytes()).expect("within");
            one.progress();
        }
        assert!(one.area[AREA / 2..].iter().all(|byte| *byte == 0xee), "seed {seed}");
        ends += u64::from(one.endpoint.phase() == Phase::Over);
    }
    assert!(ends > 200, "{ends}");
}
