//! What a socket with lanes receives next, and what it sends which way, beside a kernel that the test plays.

use super::incoming::{How, Incoming, Next, Queue, Taken};
use super::outgoing::{Outgoing, Sent};
use super::{Count, Datagram, Details, Receive, Step};
use std::io::{IoSlice, IoSliceMut};
use toe_abi::errno::Errno;
use toe_abi::lane::{DATAGRAM_MAX, RING_LEN_MIN};
use toe_base::Endpoint;
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};

const PEEKS: How = How { peeks: true, joins: false };
const NOTHING_OPEN: Next = Next::Nothing { is_open: false, directly: true };

fn at(port: u16) -> Endpoint {
    Endpoint::new([127, 0, 0, 1], port)
}

/// A lane from `from` to `incoming`, and a socket that sends by it to port 53.
fn lane(incoming: &mut Incoming, from: Endpoint) -> Outgoing {
    let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
    let map = || LaneMemory::map(&file, RING_LEN_MIN).expect("memory");
    incoming.add(from, LaneReceiver::new(map()));
    let mut outgoing = Outgoing::default();
    outgoing.add(at(53), LaneSender::new(map()), false, at(0).addr);
    outgoing
}

/// What no lane carries: its sender diverts.
static TOO_LONG: [u8; DATAGRAM_MAX as usize + 1] = [0; DATAGRAM_MAX as usize + 1];

fn send(outgoing: &mut Outgoing, bytes: &[u8]) -> Sent {
    outgoing.send(Some(at(53)), &[IoSlice::new(bytes)], &Details::default()).expect("readable memory")
}

/// Takes what is next, which has to be in a lane.
fn take(incoming: &mut Incoming) -> (Vec<u8>, Endpoint) {
    let Next::Take { lane, record } = incoming.next(true, 0) else { panic!("nothing in a lane") };
    let mut room = [0; 2000];
    let taken = incoming.take(lane, record, &mut [IoSliceMut::new(&mut room)], How::default()).expect("room");
    assert_eq!(taken.len, taken.whole);
    (room[..taken.len].to_vec(), taken.from)
}

/// With its lanes open, and confirmed where there is something.
fn opened(incoming: &mut Incoming) {
    incoming.open();
    assert!(!incoming.found(Queue::Empty));
}

#[test]
fn a_lane_is_open_while_somebody_looks() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    assert_eq!(incoming.next(true, 0), NOTHING_OPEN);
    assert_eq!(send(&mut peer, b"by the kernel"), Sent::Kernel);
    incoming.open();
    assert_eq!(incoming.next(true, 0), Next::Nothing { is_open: true, directly: true });
    assert_eq!(send(&mut peer, b"one"), Sent::Done(3));
    assert!(!incoming.divert(true, 0));
    let first = Next::Kernel { directly: true };
    assert_eq!(incoming.next(true, 0), first, "what came by the kernel before it was opened");
    let look = incoming.looks();
    assert_eq!(incoming.next(true, 0), first, "another thread's look");
    incoming.kernel_was_empty(look);
    assert_eq!(incoming.next(true, 0), first);
    incoming.kernel_was_empty(incoming.looks());
    assert_eq!(take(&mut incoming), (b"one".to_vec(), at(5000)));
    assert_eq!(incoming.next(true, 0), Next::Nothing { is_open: true, directly: false });
    assert!(incoming.divert(true, 0));
    assert_eq!(send(&mut peer, b"asleep"), Sent::Kernel);
    assert_eq!(incoming.next(true, 0), NOTHING_OPEN, "who has slept opens it when it looks again");
}

#[test]
fn a_lane_that_was_full_is_opened_when_it_is_empty_and_nobody_waits() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    opened(&mut incoming);
    send(&mut peer, b"one");
    incoming.next(true, 0);
    opened(&mut incoming);
    assert_eq!(send(&mut peer, &TOO_LONG), Sent::Kernel);
    take(&mut incoming);
    assert_eq!(incoming.next(false, 0), NOTHING_OPEN);
    assert_eq!(incoming.next(true, 0), Next::Nothing { is_open: true, directly: true });
    assert_eq!(send(&mut peer, b"two"), Sent::Done(3));
    assert_eq!(incoming.next(true, 0), Next::Kernel { directly: true });
}

#[test]
fn what_its_sender_sent_by_the_kernel_later_comes_later() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    let mut other = lane(&mut incoming, at(6000));
    opened(&mut incoming);
    assert_eq!(send(&mut peer, b"first"), Sent::Done(5));
    incoming.next(true, 0);
    opened(&mut incoming);
    assert_eq!(take(&mut incoming).0, b"first");
    // It looks: nothing. Then it is slow, and meanwhile:
    assert_eq!(incoming.next(true, 0), Next::Nothing { is_open: true, directly: false });
    send(&mut peer, b"second");
    assert_eq!(send(&mut peer, &TOO_LONG), Sent::Kernel);
    assert_eq!(send(&mut peer, b"third"), Sent::Kernel);
    assert!(!incoming.found(Queue::From(Some(at(5000)))), "that is the third");
    assert!(incoming.found(Queue::From(Some(at(6000)))), "another's may go first");
    assert!(incoming.found(Queue::From(Some(at(7000)))) && incoming.found(Queue::From(None)));
    send(&mut other, b"other's");
    assert_eq!(take(&mut incoming).0, b"second");
    assert!(incoming.found(Queue::From(Some(at(5000)))));
}

/// Takes a look at what is next, which has to be in a lane: who it is from.
fn peek(incoming: &mut Incoming) -> Endpoint {
    let Next::Take { lane, record } = incoming.next(true, 0) else { panic!("nothing in a lane") };
    incoming.take(lane, record, &mut [], PEEKS).expect("room").from
}

#[test]
fn what_was_looked_at_stays_the_next() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    let mut other = lane(&mut incoming, at(6000));
    opened(&mut incoming);
    send(&mut other, b"other's");
    incoming.next(true, 0);
    opened(&mut incoming);
    assert_eq!(peek(&mut incoming), at(6000));
    send(&mut peer, b"first in turn by now");
    incoming.next(true, 0);
    assert!(!incoming.found(Queue::Empty));
    assert_eq!(peek(&mut incoming), at(6000));
    assert_eq!(take(&mut incoming), (b"other's".to_vec(), at(6000)));
    incoming.next(true, 0);
    assert!(!incoming.found(Queue::Empty));
    assert_eq!(take(&mut incoming).1, at(5000));
    // The kernel's queue was: until it is found empty, which somebody else may have made it.
    incoming.leave_to_kernel(true);
    send(&mut peer, b"in the lane");
    assert_eq!(incoming.next(true, 0), Next::Kernel { directly: true });
    assert!(!incoming.found(Queue::Empty));
    incoming.next(true, 0);
    assert!(!incoming.found(Queue::Empty));
    assert_eq!(take(&mut incoming).0, b"in the lane");
    incoming.leave_to_kernel(true);
    incoming.leave_to_kernel(false);
    send(&mut peer, b"after what was taken");
    assert_eq!(take(&mut incoming).0, b"after what was taken");
}

#[test]
fn the_kernels_queue_has_its_turn() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    opened(&mut incoming);
    (0..200).for_each(|_| assert_eq!(send(&mut peer, &[7; 20]), Sent::Done(20)));
    assert!(matches!(incoming.next(true, 0), Next::Kernel { .. }));
    opened(&mut incoming);
    let mut looks = 0;
    for _ in 0..200 {
        if incoming.next(true, 0) == (Next::Kernel { directly: false }) {
            looks += 1;
            assert!(incoming.found(Queue::From(Some(at(7000)))), "a third sender's");
        }
        take(&mut incoming);
    }
    assert_eq!(looks, 3);
}

/// A third sender keeps the kernel's queue full.
#[test]
fn a_lane_is_not_fresh_for_ever() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    incoming.open();
    assert_eq!(send(&mut peer, b"one"), Sent::Done(3));
    let first = Next::Kernel { directly: true };
    let most = RING_LEN_MIN / 512;
    assert_eq!((incoming.next(true, u32::MAX), incoming.next(true, most - 2)), (first, first));
    assert!(matches!(incoming.next(true, most - 1), Next::Take { .. }));
}

#[test]
fn lanes_take_turns_when_one_is_empty() {
    let mut incoming = Incoming::default();
    let mut peers = [5000, 6000].map(|port| lane(&mut incoming, at(port)));
    opened(&mut incoming);
    for peer in &mut peers {
        (0..3).for_each(|n| _ = send(peer, &[n]));
    }
    incoming.next(true, 0);
    opened(&mut incoming);
    let order: Vec<_> = (0..6).map(|_| take(&mut incoming).1.port).collect();
    assert_eq!(order, [5000, 5000, 5000, 6000, 6000, 6000]);
}

#[test]
fn short_buffers_cut_and_peeking_leaves() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    opened(&mut incoming);
    send(&mut peer, b"0123456789");
    send(&mut peer, b"");
    incoming.next(true, 0);
    opened(&mut incoming);
    let mut read = |peeks| {
        let Next::Take { lane, record } = incoming.next(true, 0) else { panic!("nothing in the lane") };
        let (mut a, mut b) = ([0; 3], [0; 4]);
        let mut into = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut []), IoSliceMut::new(&mut b)];
        let taken = incoming.take(lane, record, &mut into, How { peeks, joins: false }).expect("room");
        (taken, [&a[..], &b].concat())
    };
    let whole =
        |len, whole| Taken { len, whole, from: at(5000), own: at(0).addr, traffic_class: 0, segment: 0 };
    let cut = whole(7, 10);
    assert_eq!(read(true), (cut, b"0123456".to_vec()));
    assert_eq!(read(false), (cut, b"0123456".to_vec()));
    assert_eq!(read(false).0, whole(0, 0));
    assert_eq!(incoming.next(true, 0), Next::Nothing { is_open: true, directly: false });
}

#[test]
fn a_closed_lane_is_read_to_its_end_and_forgotten() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    opened(&mut incoming);
    send(&mut peer, b"last");
    peer.close();
    assert!(peer.is_unused() && incoming.has_lane_from(at(5000)));
    assert!(matches!(incoming.next(true, 0), Next::Kernel { .. }));
    opened(&mut incoming);
    assert_eq!(take(&mut incoming).0, b"last");
    assert_eq!(incoming.next(true, 0), NOTHING_OPEN);
    assert!(incoming.is_unused());
}

#[test]
fn only_what_fits_a_lane_goes_by_it() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    opened(&mut incoming);
    let large = vec![1; DATAGRAM_MAX as usize + 1];
    assert_eq!(send(&mut peer, &large[1..]), Sent::Done(DATAGRAM_MAX as usize));
    assert_eq!(peer.send(Some(at(54)), &[IoSlice::new(b"elsewhere")], &Details::default()), Ok(Sent::Kernel));
    assert_eq!(peer.send(None, &[IoSlice::new(b"not connected")], &Details::default()), Ok(Sent::Kernel));
    assert_eq!(send(&mut peer, &large), Sent::Kernel);
    assert_eq!(send(&mut peer, b"after it"), Sent::Kernel, "the lane is diverted");
    assert!(!peer.takes(Some(at(53))));
}

#[test]
fn a_full_lane_is_given_up() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    opened(&mut incoming);
    while send(&mut peer, &[0; 1000]) != Sent::Full {}
    assert_eq!(peer.overflow(Some(at(53)), 1000), Sent::Done(1000), "nothing was taken: it is lost");
    incoming.next(true, 0);
    opened(&mut incoming);
    take(&mut incoming);
    while send(&mut peer, &[0; 1000]) != Sent::Full {}
    assert_eq!(peer.overflow(Some(at(53)), 1000), Sent::Kernel);
    assert_eq!(send(&mut peer, b"younger"), Sent::Kernel);
}

#[test]
fn connected_sockets_need_no_address() {
    let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
    let map = || LaneMemory::map(&file, RING_LEN_MIN).expect("memory");
    let (mut incoming, mut outgoing) = (Incoming::default(), Outgoing::default());
    incoming.add(at(5000), LaneReceiver::new(map()));
    outgoing.add(at(53), LaneSender::new(map()), true, at(0).addr);
    opened(&mut incoming);
    assert_eq!(
        outgoing.send(None, &[IoSlice::new(b"a"), IoSlice::new(b"b")], &Details::default()),
        Ok(Sent::Done(2))
    );
    incoming.close();
    assert_eq!(outgoing.send(None, &[IoSlice::new(b"c")], &Details::default()), Ok(Sent::Kernel));
    assert!(outgoing.is_unused(), "who has left is not asked again");
}

#[test]
fn engines_are_asked_seldom_where_the_answer_is_no() {
    let count = Count::new();
    let asked = |count: &Count, n: u32| (0..n).filter(|_| count.more(1)).count();
    assert_eq!((asked(&count, 31), asked(&count, 1)), (0, 1));
    count.asked(false);
    assert_eq!((asked(&count, 63), asked(&count, 1)), (0, 1));
    (0..20).for_each(|_| count.asked(false));
    assert_eq!((asked(&count, (1 << 16) - 1), asked(&count, 1)), (0, 1));
    count.asked(true);
    assert_eq!((asked(&count, 31), asked(&count, 1)), (0, 1));
}

#[test]
fn a_place_is_used_again_for_another_socket() {
    let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
    let map = || LaneMemory::map(&file, RING_LEN_MIN).expect("memory");
    let datagram = Datagram::take(false, false);
    datagram.add_reference();
    let first = datagram.begin_wait().expect("no lanes");
    datagram.incoming.lock().add(at(5000), LaneReceiver::new(map()));
    datagram.receives.store(true, std::sync::atomic::Ordering::SeqCst);
    let how = Receive { peeks: false, waits: false };
    assert_eq!(datagram.receive(-1, &mut [], how, Some(0)), Step::Failed(Errno::EAGAIN));
    let mut peer = LaneSender::new(map());
    assert_eq!(peer.offer(1), toe_ring::lane::Offer::Kernel, "a thread waits");
    datagram.drop_reference();
    assert!(map().is_closed());
    let again = Datagram::take(false, false);
    again.add_reference();
    assert!(!again.receives_by_lanes());
    let second = again.begin_wait().expect("no lanes");
    if std::ptr::eq(again, datagram) {
        again.end_wait(first);
        assert_eq!(again.waiting.load(std::sync::atomic::Ordering::SeqCst), 1, "of another socket");
    }
    again.end_wait(second);
    assert_eq!(again.waiting.load(std::sync::atomic::Ordering::SeqCst), 0);
    again.drop_reference();
}

#[test]
fn a_socket_that_is_left_to_the_kernel_stays_with_it() {
    let datagram = Datagram::take(false, true);
    datagram.add_reference();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&udp);
    let how = Receive { peeks: false, waits: false };
    assert!(matches!(datagram.receive(fd, &mut [], how, None), Step::Kernel { one: false, .. }));
    datagram.leave_to_kernel();
    assert!(!datagram.may_have(toe_abi::attach::Way::Sends));
    assert_eq!(super::taking::look_at_queue(fd), Ok(Queue::Empty));
    udp.send_to(b"x", udp.local_addr().unwrap()).unwrap();
    let own = Endpoint::from(udp.local_addr().unwrap());
    assert_eq!(super::taking::look_at_queue(fd), Ok(Queue::From(Some(own))));
    assert_eq!(super::taking::look_at_queue(-1), Err(Errno::EBADF));
    datagram.drop_reference();
}

/// What is next, which has to be in a lane, taken so: its bytes, and what is told beside them.
fn taken(incoming: &mut Incoming, how: How) -> (Vec<u8>, Taken) {
    let Next::Take { lane, record } = incoming.next(true, 0) else { panic!("nothing in a lane") };
    let mut room = [0; 2000];
    let taken = incoming.take(lane, record, &mut [IoSliceMut::new(&mut room)], how).expect("room");
    (room[..taken.len].to_vec(), taken)
}

#[test]
fn what_is_sent_together_comes_one_by_one_or_together_as_asked() {
    const JOINS: How = How { peeks: false, joins: true };
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    opened(&mut incoming);
    let details = Details { segment: Some(4), traffic_class: Some(2), ..Details::default() };
    let mut together =
        |bytes: &[u8]| peer.send(Some(at(53)), &[IoSlice::new(bytes)], &details).expect("memory");
    for bytes in [&b"aaaabbbbcc"[..], b"ddddeee", b"ffffgggghh", b"iiii"] {
        assert_eq!(together(bytes), Sent::Done(bytes.len()));
    }
    incoming.next(true, 0);
    opened(&mut incoming);
    let peeks = How { peeks: true, joins: false };
    for bytes in [&b"aaaa"[..], b"bbbb", b"cc", b"dddd", b"eee"] {
        assert_eq!(taken(&mut incoming, peeks).0, bytes, "a look leaves it");
        let (came, taken) = taken(&mut incoming, How::default());
        assert_eq!((came.as_slice(), taken.segment, taken.traffic_class), (bytes, 0, 2));
    }
    // One is taken before the program asks for all that there are.
    assert_eq!(taken(&mut incoming, How::default()).0, b"ffff");
    let (came, rest) = taken(&mut incoming, JOINS);
    assert_eq!((came.as_slice(), rest.segment), (&b"gggghh"[..], 4));
    let (came, one) = taken(&mut incoming, JOINS);
    assert_eq!((came.as_slice(), one.segment), (&b"iiii"[..], 0), "it is one");
    assert_eq!(incoming.next(true, 0), Next::Nothing { is_open: true, directly: false });
}

#[test]
fn what_a_lane_does_not_carry_goes_by_the_kernel() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    let mut send = |details: Details| {
        incoming.open();
        peer.send(Some(at(53)), &[IoSlice::new(&[7; 65])], &details).expect("memory")
    };
    let from = |addr: [u8; 4]| Details { from: Some(Endpoint::new(addr, 0).addr), ..Details::default() };
    assert_eq!(send(from([127, 0, 0, 1])), Sent::Done(65), "it comes from there anyway");
    assert_eq!(send(from([0; 4])), Sent::Done(65));
    assert_eq!(send(from([127, 0, 0, 2])), Sent::Kernel);
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    let mut send = |details: Details| {
        incoming.open();
        peer.send(Some(at(53)), &[IoSlice::new(&[7; 65])], &details).expect("memory")
    };
    assert_eq!(send(Details { segment: Some(1), ..Details::default() }), Sent::Kernel, "65 in one");
    assert_eq!(send(Details { hop_limit: Some(1), ..Details::default() }), Sent::Kernel);
}

#[test]
fn options_end_lanes_from_sockets_and_not_the_engines() {
    let mut incoming = Incoming::default();
    let mut peer = lane(&mut incoming, at(5000));
    let (engine, _) = LaneMemory::create(RING_LEN_MIN).expect("memory");
    incoming.add_engine(LaneReceiver::new(engine.clone()));
    incoming.open();
    incoming.close_sockets();
    assert_eq!(send(&mut peer, b"left"), Sent::Kernel);
    assert!(!engine.is_closed() && incoming.is_open());
}

#[test]
fn who_was_woken_by_the_engine_looks_into_the_lane_after_the_kernels_queue() {
    for alone in [true, false] {
        let mut incoming = Incoming::default();
        let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
        let map = || LaneMemory::map(&file, RING_LEN_MIN).expect("memory");
        incoming.add_engine(LaneReceiver::new(map()));
        let mut engine = LaneSender::new(map());
        assert!(incoming.divert(true, 0) && engine.begin_ring(false));
        assert!(matches!(engine.offer(48), toe_ring::lane::Offer::Lane { .. }) && engine.publish(48));
        let nothing = Next::Nothing { is_open: false, directly: true };
        assert_eq!(incoming.next(alone, 0), nothing, "what wakes it is not in the queue yet");
        engine.end_ring();
        assert!(!incoming.divert(alone, 0) && incoming.has_something());
        if alone {
            assert_eq!(incoming.next(true, 0), Next::Kernel { directly: true });
            incoming.found(Queue::Empty);
            assert!(incoming.is_open());
        }
        // While another thread waits, what woke that one is left to it, and the next wakes again.
        assert!(matches!(incoming.next(alone, 0), Next::Take { .. }));
        assert_eq!(incoming.is_open(), alone);
    }
}

#[test]
fn who_has_what_woke_him_looks_into_the_lane_before_the_engine_has_said_so() {
    let mut incoming = Incoming::default();
    let (_, file) = LaneMemory::create(RING_LEN_MIN).expect("memory");
    let map = || LaneMemory::map(&file, RING_LEN_MIN).expect("memory");
    incoming.add_engine(LaneReceiver::new(map()));
    let mut engine = LaneSender::new(map());
    assert!(incoming.divert(true, 7) && engine.begin_ring(false));
    assert!(matches!(engine.offer(48), toe_ring::lane::Offer::Lane { .. }) && engine.publish(48));
    assert!(incoming.divert(true, 7), "its time was over: it sleeps on");
    assert_eq!(incoming.next(true, 8), Next::Kernel { directly: true });
    incoming.found(Queue::Empty);
    assert!(matches!(incoming.next(true, 8), Next::Take { .. }));
    engine.end_ring();
    assert!(matches!(incoming.next(true, 8), Next::Take { .. }) && incoming.is_open());
}
