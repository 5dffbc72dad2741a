//! What goes by the kernel and what is held, beside a kernel that the test plays.

use super::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, Ordering};
use toe_abi::lane::RING_LEN_MIN;
use toe_engine::work::Arrival;
use toe_ring::{LaneMemory, LaneReceiver};
use toe_wire::UdpRepr;
use toe_wire::link::MacAddr;

/// What went by the kernel.
#[derive(Default)]
struct Queue(RefCell<Vec<Vec<u8>>>);

impl ByKernel for Queue {
    fn deliver(&self, datagram: &RxDatagram<'_>) -> Delivered {
        assert_eq!(datagram.segment, None, "the kernel knows no datagrams that lie behind each other");
        self.0.borrow_mut().push(datagram.text.to_vec());
        Delivered::ByKernel
    }
}

struct Bed {
    socket: ToSocket,
    program: LaneReceiver,
    kernel: Queue,
    total: Total,
    now: Instant,
}

impl Bed {
    fn new() -> Bed {
        let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
        let map = || LaneMemory::map(&file, RING_LEN_MIN).expect("memory");
        Bed {
            socket: ToSocket::new(LaneSender::new(map()), Cred::default()),
            program: LaneReceiver::new(map()),
            kernel: Queue::default(),
            total: Total::default(),
            now: Instant::ZERO,
        }
    }

    /// The program begins to sleep.
    fn sleep(&mut self, alone: bool) {
        self.program.begin_wait(alone);
        self.program.divert().expect("nothing is in the lane");
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
        let mut beside = Beside { kernel: &self.kernel, total: &mut self.total };
        // As the parent does with what is not taken here.
        match self.socket.put(&RxDatagram { arrival, ports, headers: &[], text, segment }, &mut beside) {
            Delivered::Nowhere => {
                self.kernel.deliver(&RxDatagram { arrival, ports, headers: &[], text, segment })
            }
            delivered => delivered,
        }
    }

    fn put(&mut self, text: &[u8]) -> Delivered {
        self.put_as(text, None)
    }

    fn look(&mut self, after_us: u64) {
        self.now = self.now.after_us(after_us);
        self.socket.look(self.now, &mut Beside { kernel: &self.kernel, total: &mut self.total });
    }

    fn by_kernel(&self) -> Vec<Vec<u8>> {
        self.kernel.0.take()
    }

    fn by_lane(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(record) = self.program.first() {
            let mut octets = vec![0; record.len as usize];
            self.program.lane().read(record.place, 0, &mut octets);
            self.program.take(record);
            all.push(octets.split_off(RecordHead::LEN as usize));
        }
        all
    }
}

#[test]
fn one_wakes_and_the_rest_is_there_when_the_program_looks() {
    let mut bed = Bed::new();
    bed.sleep(true);
    assert_eq!(bed.put(b"1"), Delivered::ByKernel);
    for text in [b"2", b"3"] {
        assert_eq!(bed.put(text), Delivered::ByLane);
    }
    assert_eq!(bed.by_kernel(), [b"1"]);
    bed.program.open();
    // What comes then is younger than what is held.
    bed.put(b"4");
    assert_eq!(bed.by_lane(), [b"2", b"3", b"4"]);
    assert!(bed.by_kernel().is_empty() && !bed.socket.holds() && bed.total.is_nothing());
}

#[test]
fn who_sleeps_anew_is_woken_anew() {
    let mut bed = Bed::new();
    bed.sleep(true);
    for text in [b"1", b"2", b"3"] {
        bed.put(text);
    }
    // It took the first from the kernel, and did not look into the lane.
    bed.sleep(true);
    bed.look(1);
    assert_eq!(bed.by_kernel(), [b"1", b"2"]);
    bed.look(1);
    assert!(bed.by_kernel().is_empty(), "once for each wait");
    bed.program.open();
    bed.look(1);
    assert_eq!(bed.by_lane(), [b"3"]);
}

#[test]
fn who_does_not_come_to_look_gets_all_by_the_kernel_in_the_end() {
    let mut bed = Bed::new();
    bed.sleep(true);
    for n in 0..40 {
        bed.put(&[n]);
    }
    bed.look(0);
    bed.look(PATIENCE_US - 1);
    assert_eq!(bed.by_kernel(), [[0]]);
    let (mut next, mut at_once) = (1, vec![]);
    bed.look(1);
    while bed.socket.holds() {
        let came = bed.by_kernel();
        at_once.push(came.len());
        for octets in came {
            assert_eq!(octets, [next], "in their order");
            next += 1;
        }
        bed.look(1);
        bed.look(PATIENCE_US);
    }
    at_once.push(bed.by_kernel().len());
    assert_eq!(at_once, [1, 2, 4, 8, 16, 8], "never more than the kernel's queue is likely to hold");
    assert!(bed.total.is_nothing());
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
fn what_was_held_goes_on_when_the_program_leaves_the_lane() {
    let mut bed = Bed::new();
    bed.sleep(true);
    bed.put(b"1");
    bed.put(b"2");
    bed.program.close();
    bed.put(b"3");
    assert_eq!(bed.by_kernel(), [b"1"], "its socket may be closed");
    bed.look(1);
    assert_eq!(bed.by_kernel(), [b"2", b"3"]);
}

#[test]
fn of_joined_datagrams_the_first_wakes_and_the_others_stay_together() {
    let mut bed = Bed::new();
    bed.sleep(true);
    assert_eq!(bed.put_as(b"aabbccd", Some(2)), Delivered::ByLane);
    assert_eq!(bed.by_kernel(), [b"aa"]);
    bed.sleep(true);
    bed.look(1);
    assert_eq!(bed.by_kernel(), [b"bb"], "of what is held as well");
    bed.program.open();
    bed.look(1);
    assert_eq!(bed.by_lane(), [b"ccd"]);
    assert!(bed.total.is_nothing());
}

#[test]
fn what_is_held_is_bounded_and_what_is_more_is_counted_as_lost() {
    let mut bed = Bed::new();
    bed.sleep(true);
    bed.put(b"1");
    let text = vec![7; 60_000];
    let taken = (0..20).filter(|_| bed.put(&text) == Delivered::ByLane).count();
    assert_eq!(taken, 17);
    // Without octets it takes up room all the same.
    let taken = (0..1_000_000).take_while(|_| bed.put(b"") == Delivered::ByLane).count();
    assert!(taken < 20_000, "{taken}");
    bed.socket.give_up(&mut bed.total);
    assert!(bed.total.is_nothing());
}

/// A hundred sockets whose programs sleep for ever.
fn crowd_of_sleepers(text: &[u8]) -> (Vec<Bed>, Total) {
    let mut total = Total::default();
    let mut all = Vec::new();
    for _ in 0..100 {
        let mut bed = Bed::new();
        std::mem::swap(&mut bed.total, &mut total);
        bed.sleep(true);
        while bed.put(text) != Delivered::QueueFull {}
        std::mem::swap(&mut bed.total, &mut total);
        all.push(bed);
    }
    (all, total)
}

#[test]
fn datagrams_without_octets_are_bounded_for_all_sockets_together() {
    let (sleepers, mut total) = crowd_of_sleepers(b"");
    assert!((1 << 20..=8 << 20).contains(&total.octets()), "{}", total.octets());
    sleepers.into_iter().for_each(|mut bed| bed.socket.give_up(&mut total));
    assert!(total.is_nothing());
}

#[test]
fn who_does_not_come_keeps_nobody_from_the_links() {
    let mut bed = Bed::new();
    bed.sleep(true);
    let text = vec![7; 60_000];
    (0..9).for_each(|_| _ = bed.put(&text));
    assert!(bed.socket.holds_much(), "it was just woken");
    bed.look(0);
    bed.look(PATIENCE_US);
    assert!(bed.socket.holds() && !bed.socket.holds_much(), "it had its time");
    bed.program.open();
    bed.look(1);
    assert!(!bed.socket.holds() || bed.socket.at_once == 1);
}

#[test]
fn who_could_not_read_is_let_to_run_once_for_each_time_that_he_does() {
    let mut bed = Bed::new();
    bed.sleep(true);
    let text = vec![7; 60_000];
    (0..9).for_each(|_| _ = bed.put(&text));
    assert!(bed.socket.take_crowded(), "it was woken, and what came is lost");
    bed.put(&text);
    assert!(!bed.socket.take_crowded(), "it has done nothing since");
    bed.program.open();
    (0..9).for_each(|_| _ = bed.put(&text));
    assert_eq!(bed.by_lane().len(), 4);
    (0..9).for_each(|_| _ = bed.put(&text));
    assert!(bed.socket.take_crowded() && bed.by_lane().len() == 4);
}

/// A kernel at whose work the program begins one wait after the other.
struct Restless {
    program: RefCell<LaneReceiver>,
    came: std::cell::Cell<usize>,
}

impl ByKernel for Restless {
    fn deliver(&self, _: &RxDatagram<'_>) -> Delivered {
        self.program.borrow_mut().begin_wait(true);
        self.came.set(self.came.get() + 1);
        Delivered::ByKernel
    }
}

#[test]
fn who_counts_on_while_he_is_looked_after_takes_no_more_than_his_part_of_a_round() {
    let mut bed = Bed::new();
    bed.sleep(true);
    for n in 0..200 {
        bed.put_as(&[n], None);
    }
    assert!(bed.socket.holds());
    let Bed { mut socket, mut program, mut total, now, .. } = bed;
    program.begin_wait(true);
    let kernel = Restless { program: RefCell::new(program), came: std::cell::Cell::new(0) };
    for rounds in 1..=5 {
        socket.look(now, &mut Beside { kernel: &kernel, total: &mut total });
        assert!(kernel.came.get() <= rounds * BY_KERNEL_AT_ONCE, "{} in {rounds} rounds", kernel.came.get());
    }
    assert!(kernel.came.get() > 0 && socket.holds());
}

/// What a link has of a frame; meanwhile the program goes to sleep if it is there.
#[derive(Debug)]
struct Link {
    octets: Vec<u8>,
    sleeper: RefCell<Option<LaneReceiver>>,
}

impl FrameTail for Link {
    fn take(&self, from: usize, into: &[&[AtomicU8]]) -> bool {
        let place = into.iter().flat_map(|piece| piece.iter());
        self.octets[from..]
            .iter()
            .zip(place)
            .for_each(|(octet, place)| place.store(*octet, Ordering::Relaxed));
        if let Some(program) = self.sleeper.borrow_mut().as_mut() {
            program.begin_wait(true);
            program.divert().expect("nothing is in the lane");
        }
        true
    }

    fn read(&self, _: usize, _: &mut [u8]) -> bool {
        unreachable!("the engine does")
    }
}

/// What became of datagrams that are with a link, and those that are not any more.
fn put_late(bed: &mut Bed, link: &Link) -> (Option<Delivered>, Vec<u8>) {
    let text = vec![0xee; link.octets.len() - 10];
    let arrival = Arrival {
        from_mac: MacAddr::default(),
        src: [10, 0, 0, 1].into(),
        dst: [10, 0, 0, 2].into(),
        hop_limit: 64,
        traffic_class: 0,
        zone: 0,
    };
    let ports = UdpRepr { src_port: 1, dst_port: 2 };
    let datagram = RxDatagram { arrival, ports, headers: &[], text: &text, segment: Some(1000) };
    let mut octets = Vec::new();
    let mut beside = Beside { kernel: &bed.kernel, total: &mut bed.total };
    let delivered = bed.socket.put_tail((&datagram, (link, 10)), &mut octets, &mut beside);
    (delivered, octets)
}

#[test]
fn a_link_writes_into_the_lane_itself_while_the_program_looks() {
    let mut bed = Bed::new();
    let link = Link { octets: (0..30_000).map(|n| n as u8).collect(), sleeper: RefCell::default() };
    assert_eq!(put_late(&mut bed, &link), (None, vec![]), "nobody looks: they are wanted first");
    bed.program.open();
    // Round the ring's end, too.
    for _ in 0..20 {
        assert_eq!(put_late(&mut bed, &link), (Some(Delivered::ByLane), vec![]));
        assert_eq!(bed.by_lane(), [&link.octets[10..]]);
    }
    (0..9).for_each(|_| _ = put_late(&mut bed, &link));
    assert_eq!(put_late(&mut bed, &link), (Some(Delivered::QueueFull), vec![]), "and stay with the link");
    assert_eq!(bed.by_lane().len(), 8);
}

#[test]
fn who_falls_asleep_while_a_link_writes_loses_nothing() {
    let mut bed = Bed::new();
    bed.program.open();
    let link = Link { octets: vec![3; 5_000], sleeper: RefCell::new(Some(bed.program)) };
    // Nobody reads in this test any more.
    let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
    bed.program = LaneReceiver::new(LaneMemory::map(&file, RING_LEN_MIN).expect("memory"));
    assert_eq!(put_late(&mut bed, &link), (None, vec![3; 4_990]));
}
