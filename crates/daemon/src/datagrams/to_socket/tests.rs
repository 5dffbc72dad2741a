//! What goes by the kernel and what by the lane, beside a kernel that the test plays.

use super::*;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use toe_abi::lane::RING_LEN_MIN;
use toe_ring::{LaneMemory, LaneReceiver};
use toe_wire::link::MacAddr;

/// What went by the kernel.
#[derive(Default)]
struct Queue(RefCell<Vec<Vec<u8>>>);

impl ByKernel for Queue {
    fn deliver(&self, _: &PagesOut, datagram: &RxDatagram<'_>) -> Delivered {
        assert_eq!(datagram.segment, None, "the kernel knows no datagrams that lie behind each other");
        self.0.borrow_mut().push(datagram.text.to_vec());
        Delivered::ByKernel
    }
}

/// Whom nobody's thread serves.
fn user() -> PagesOut {
    let eventfd = toe_ring::EventFd::new().expect("an eventfd");
    crate::control_server::pages::PagesIn::new(&eventfd.into(), &Arc::default()).out()
}

struct Bed {
    socket: ToSocket,
    program: LaneReceiver,
    kernel: Queue,
    now: Instant,
}

impl Bed {
    fn new() -> Bed {
        let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
        let map = || LaneMemory::map(&file, RING_LEN_MIN).expect("memory");
        Bed {
            socket: ToSocket::new(LaneSender::new(map()), Cred::default(), user()),
            program: LaneReceiver::new(map()),
            kernel: Queue::default(),
            now: Instant::ZERO,
        }
    }

    /// The program begins to sleep.
    fn sleep(&mut self, alone: bool) {
        self.program.sleep(alone).expect("nothing is in the lane");
    }

    /// It has been woken, and looks: whether something is there.
    fn comes(&mut self) -> bool {
        !self.program.is_empty() && self.program.claim(true)
    }

    fn put_as(&mut self, text: &[u8], segment: Option<u16>) -> Delivered {
        let arrival = Arrival {
            from_mac: MacAddr::default(),
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            hop_limit: 64,
            traffic_class: 0,
            zone: 0,
        };
        let ports = UdpRepr { src_port: 1, dst_port: 2 };
        // As the parent does with what is not taken here.
        match self
            .socket
            .put(&RxDatagram { arrival, ports, headers: &[], text: text.into(), segment }, &self.kernel)
        {
            Delivered::Nowhere => {
                let datagram = RxDatagram { arrival, ports, headers: &[], text: text.into(), segment };
                self.kernel.deliver(self.socket.user(), &datagram)
            }
            delivered => delivered,
        }
    }

    fn put(&mut self, text: &[u8]) -> Delivered {
        self.put_as(text, None)
    }

    fn look(&mut self, after_us: u64) {
        self.now = self.now.after_us(after_us);
        self.socket.look(self.now, &self.kernel);
    }

    fn by_kernel(&self) -> Vec<Vec<u8>> {
        self.kernel.0.take()
    }

    fn by_lane(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(record) = self.program.first() {
            let mut bytes = vec![0; record.len as usize];
            self.program.lane().read(record.position, 0, &mut bytes);
            self.program.take(record);
            all.push(bytes.split_off(DatagramHeader::LEN as usize));
        }
        all
    }
}

#[test]
fn one_wakes_and_the_rest_is_in_the_lane_by_then() {
    let mut bed = Bed::new();
    bed.sleep(true);
    assert_eq!(bed.put(b"1"), Delivered::ByKernel);
    for text in [b"2", b"3"] {
        assert_eq!(bed.put(text), Delivered::ByLane);
    }
    assert!(bed.by_kernel().is_empty(), "at the end of the round");
    assert!(!bed.comes(), "nothing comes before the one that wakes");
    bed.look(0);
    assert_eq!(bed.by_kernel(), [b"1"]);
    // The program has not come yet.
    assert_eq!(bed.put(b"4"), Delivered::ByLane);
    assert!(bed.comes() && bed.program.is_fresh());
    assert_eq!(bed.put(b"5"), Delivered::ByLane);
    assert_eq!(bed.by_lane(), [b"2", b"3", b"4", b"5"]);
    bed.look(0);
    assert!(bed.by_kernel().is_empty() && !bed.socket.is_listed());
}

#[test]
fn who_sleeps_anew_is_woken_anew() {
    let mut bed = Bed::new();
    for _ in 0..3 {
        bed.sleep(true);
        bed.put(b"1");
        bed.look(0);
        assert_eq!(bed.by_kernel(), [b"1"]);
        bed.put(b"2");
        bed.look(0);
        assert!(bed.by_kernel().is_empty(), "once for each wait");
        assert!(bed.program.sleep(true).is_err(), "there is something");
        assert!(bed.comes());
        assert_eq!(bed.by_lane(), [b"2"]);
    }
}

#[test]
fn a_program_that_begins_a_wait_while_it_is_rung_for_is_woken_by_that() {
    let mut bed = Bed::new();
    bed.sleep(true);
    bed.put(b"1");
    bed.put(b"2");
    // Its time was over.
    bed.sleep(true);
    bed.look(0);
    assert_eq!(bed.by_kernel(), [b"1"]);
    assert!(bed.comes());
    assert_eq!(bed.by_lane(), [b"2"]);
}

#[test]
fn who_does_not_come_gets_one_after_the_other_by_the_kernel() {
    let mut bed = Bed::new();
    bed.sleep(true);
    for n in 0..60 {
        bed.put(&[n]);
    }
    bed.look(0);
    bed.look(PATIENCE_US - 1);
    assert_eq!(bed.by_kernel(), [[0]]);
    bed.look(1);
    assert_eq!(bed.by_kernel(), [[1]]);
    bed.put(&[60]);
    bed.look(2 * PATIENCE_US - 1);
    assert!(bed.by_kernel().is_empty(), "more seldom each time");
    bed.look(1);
    assert_eq!(bed.by_kernel(), [[2]]);
    (3..=RETURNABLE_MAX as u8 + 5).for_each(|_| bed.look(PATIENCE_MAX_US));
    let more: Vec<Vec<u8>> = (3..=RETURNABLE_MAX as u8).map(|n| vec![n]).collect();
    assert_eq!(bed.by_kernel(), more, "and none that came after one that can not");
    assert!(bed.comes() && bed.program.is_fresh(), "what is in the kernel's queue is older");
    assert_eq!(bed.by_lane(), (RETURNABLE_MAX as u8 + 1..=60).map(|n| vec![n]).collect::<Vec<_>>());
    bed.look(PATIENCE_MAX_US);
    assert!(bed.by_kernel().is_empty() && !bed.socket.is_listed());
}

#[test]
fn of_who_never_comes_no_more_is_remembered_than_can_go_by_the_kernel() {
    let mut bed = Bed::new();
    bed.sleep(true);
    let text = vec![7; 500];
    let taken = (0..10_000).take_while(|_| bed.put(&text) != Delivered::QueueFull).count();
    assert!((400..500).contains(&taken), "what the ring has room for: {taken}");
    (0..100).for_each(|_| bed.look(PATIENCE_MAX_US));
    assert_eq!(bed.by_kernel().len(), 1 + RETURNABLE_MAX);
    assert!(!bed.socket.is_listed());
    assert!(bed.comes());
    assert_eq!(bed.by_lane().len(), taken - 1 - RETURNABLE_MAX);
}

#[test]
fn a_lane_of_which_all_went_by_the_kernel_keeps_nobody_awake() {
    let mut bed = Bed::new();
    bed.sleep(true);
    bed.put(b"1");
    bed.put(b"2");
    bed.look(0);
    bed.look(PATIENCE_US);
    assert_eq!(bed.by_kernel(), [b"1", b"2"]);
    bed.sleep(true);
    bed.put(b"3");
    bed.look(0);
    assert_eq!(bed.by_kernel(), [b"3"], "a wait like any other");
}

#[test]
fn several_threads_that_sleep_are_each_woken() {
    let mut bed = Bed::new();
    bed.sleep(true);
    bed.sleep(false);
    for text in [b"1", b"2", b"3"] {
        assert_eq!(bed.put(text), Delivered::ByKernel);
    }
    assert_eq!(bed.by_kernel(), [b"1", b"2", b"3"]);
}

#[test]
fn what_comes_when_the_program_has_left_the_lane_comes_after_what_was_to_wake_it() {
    let mut bed = Bed::new();
    bed.sleep(true);
    bed.put(b"1");
    bed.put(b"2");
    bed.program.close();
    bed.put(b"3");
    assert_eq!(bed.by_kernel(), [b"1", b"3"]);
    assert_eq!(bed.by_lane(), [b"2"], "what is in the lane is the program's to read");
    bed.look(PATIENCE_US);
    assert!(bed.by_kernel().is_empty());
}

#[test]
fn of_joined_datagrams_the_first_wakes_and_the_others_stay_together() {
    let mut bed = Bed::new();
    bed.sleep(true);
    assert_eq!(bed.put_as(b"aabbccd", Some(2)), Delivered::ByLane);
    assert_eq!(bed.put_as(b"eef", Some(2)), Delivered::ByLane);
    bed.look(0);
    assert_eq!(bed.by_kernel(), [b"aa"]);
    bed.look(PATIENCE_US);
    assert_eq!(bed.by_kernel(), [&b"bb"[..], b"cc", b"d"], "all of a record");
    assert!(bed.comes());
    assert_eq!(bed.by_lane(), [b"eef"]);
}

#[test]
fn who_does_not_come_keeps_nobody_from_the_links() {
    let mut bed = Bed::new();
    bed.sleep(true);
    let text = vec![7; 60_000];
    (0..4).for_each(|_| _ = bed.put(&text));
    bed.look(0);
    assert!(bed.socket.holds_much(), "it was just woken");
    bed.look(PATIENCE_US);
    assert!(!bed.socket.holds_much(), "it had its time");
    assert!(bed.comes());
    bed.look(0);
    assert_eq!(bed.by_lane().len(), 2);
    bed.sleep(true);
    (0..4).for_each(|_| _ = bed.put(&text));
    assert!(bed.socket.holds_much(), "it has another");
}

#[test]
fn who_could_not_read_is_let_to_run_once_for_each_time_that_he_does() {
    let mut bed = Bed::new();
    bed.sleep(true);
    let text = vec![7; 60_000];
    (0..9).for_each(|_| _ = bed.put(&text));
    assert!(bed.socket.take_crowded(), "it is to be woken, and what came is lost");
    bed.put(&text);
    assert!(!bed.socket.take_crowded(), "it has done nothing since");
    bed.look(0);
    assert!(bed.comes());
    assert_eq!(bed.by_lane().len(), 4);
    (0..9).for_each(|_| _ = bed.put(&text));
    assert!(bed.socket.take_crowded() && bed.by_lane().len() == 4);
}

/// What a link has of a frame; meanwhile the program goes to sleep if it is there.
#[derive(Debug)]
struct Link {
    bytes: Vec<u8>,
    sleeper: RefCell<Option<LaneReceiver>>,
}

impl FrameTail for Link {
    fn take(&self, from: usize, into: &[&[AtomicU8]]) -> bool {
        let position = into.iter().flat_map(|piece| piece.iter());
        self.bytes[from..]
            .iter()
            .zip(position)
            .for_each(|(byte, position)| position.store(*byte, Ordering::Relaxed));
        if let Some(program) = self.sleeper.borrow_mut().as_mut() {
            program.sleep(true).expect("nothing is in the lane");
        }
        true
    }

    fn read(&self, _: usize, _: &mut [u8]) -> bool {
        unreachable!("the engine does")
    }
}

/// What became of datagrams that are with a link, and those that are not any more.
fn put_late(bed: &mut Bed, link: &Link) -> (Option<Delivered>, Vec<u8>) {
    let text = vec![0xee; link.bytes.len() - 10];
    let arrival = Arrival {
        from_mac: MacAddr::default(),
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        hop_limit: 64,
        traffic_class: 0,
        zone: 0,
    };
    let ports = UdpRepr { src_port: 1, dst_port: 2 };
    let datagram =
        RxDatagram { arrival, ports, headers: &[], text: text.as_slice().into(), segment: Some(1000) };
    let mut bytes = Vec::new();
    let delivered = bed.socket.put_tail((&datagram, (link, 10)), &mut bytes);
    (delivered, bytes)
}

#[test]
fn a_link_writes_into_the_lane_itself_while_the_program_looks() {
    let mut bed = Bed::new();
    let link = Link { bytes: (0..30_000).map(|n| n as u8).collect(), sleeper: RefCell::default() };
    assert_eq!(put_late(&mut bed, &link), (None, vec![]), "nobody looks: they are wanted first");
    bed.program.open();
    // Round the ring's end, too.
    for _ in 0..20 {
        assert_eq!(put_late(&mut bed, &link), (Some(Delivered::ByLane), vec![]));
        assert_eq!(bed.by_lane(), [&link.bytes[10..]]);
    }
    (0..9).for_each(|_| _ = put_late(&mut bed, &link));
    assert_eq!(put_late(&mut bed, &link), (Some(Delivered::QueueFull), vec![]), "and stay with the link");
    assert_eq!(bed.by_lane().len(), 8);
}

#[test]
fn who_falls_asleep_while_a_link_writes_loses_nothing() {
    let mut bed = Bed::new();
    bed.program.open();
    let link = Link { bytes: vec![3; 5_000], sleeper: RefCell::new(Some(bed.program)) };
    // Nobody reads in this test any more.
    let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
    bed.program = LaneReceiver::new(LaneMemory::map(&file, RING_LEN_MIN).expect("memory"));
    assert_eq!(put_late(&mut bed, &link), (None, vec![3; 4_990]));
}

#[test]
fn a_link_writes_into_the_lane_of_a_program_that_was_woken() {
    let mut bed = Bed::new();
    bed.sleep(true);
    bed.put(b"1");
    let link = Link { bytes: vec![3; 5_000], sleeper: RefCell::default() };
    assert_eq!(put_late(&mut bed, &link), (Some(Delivered::ByLane), vec![]));
    bed.look(0);
    bed.look(PATIENCE_US);
    let came: Vec<usize> = bed.by_kernel().iter().map(Vec::len).collect();
    assert_eq!(came, [1, 1000, 1000, 1000, 1000, 990], "and it may go by the kernel yet");
}
