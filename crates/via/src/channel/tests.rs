//! Two channels over real memory and interrupts, without an engine.

use super::*;
use std::sync::atomic::AtomicU32;
use toe_abi::channel::Side;
use toe_abi::via::{DATA_LEN, FRAGMENT_MAX, Fragment, SLOTS, ViaLayout};
use toe_ring::ViaMemory;
use toe_ring::irq::IrqSender;
use toe_ring::irq::{IrqLine, irq_pair};

/// A process that is attached to nobody.
pub(crate) struct Process {
    pub session: Arc<Session>,
    pub line: IrqLine,
    /// The engine's end of its control connection.
    engine: std::os::unix::net::UnixStream,
}

pub(crate) fn process() -> Process {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let name = std::env::temp_dir().join(format!("toe-via-test-{}-{number}", std::process::id()));
    let (line, interrupt) = irq_pair(name).expect("an interrupt");
    let (engine, control) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let session = Session::alone(std::os::fd::OwnedFd::from(control), interrupt);
    Process { session: Arc::new(session), line, engine }
}

fn channel(of: &Process, memory: &ViaMemory, side: Side, other: &Process) -> Channel {
    let waker = IrqSender::from(other.line.another().expect("a waker"));
    channel_over(of, Link::new(memory.clone(), side, 0, waker, of.session.node))
}

pub(crate) fn channel_over(of: &Process, link: Link) -> Channel {
    let channel = Channel {
        session: Arc::clone(&of.session),
        peer: None,
        port: Port::MIN,
        timeout_ms: AtomicI32::new(-1),
        link: OnceLock::new(),
        closed: AtomicBool::new(false),
    };
    channel.set(link).expect("the first");
    channel
}

struct Pair {
    zero: Channel,
    one: Channel,
    memory: ViaMemory,
    processes: [Process; 2],
}

fn between(processes: [Process; 2]) -> Pair {
    let (memory, file) = ViaMemory::create().expect("memory");
    let other = ViaMemory::map(&file).expect("the same memory");
    assert!(memory.advance(ViaState::Accepted));
    let [first, second] = &processes;
    let zero = channel(first, &memory, Side::Zero, second);
    let one = channel(second, &other, Side::One, first);
    Pair { zero, one, memory, processes }
}

fn pair() -> Pair {
    between([process(), process()])
}

/// A small seeded generator (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    pub fn message(&mut self, number: u64) -> Vec<u8> {
        let limit = [9, 65, 5000, 9, 65, 5000, 20_000, 3 * DATA_LEN][self.below(8) as usize];
        (0..self.below(limit)).map(|at| (at ^ number).wrapping_mul(37) as u8).collect()
    }
}

#[test]
fn messages_of_random_sizes_come_whole_and_in_order_both_ways_at_once() {
    // 16 channels of two processes, whose threads share one interrupt each.
    let (here, there) = (process(), process());
    let (memories, channels): (Vec<_>, Vec<_>) = (0..16)
        .map(|_| {
            let (memory, _file) = ViaMemory::create().expect("memory");
            let zero = channel(&here, &memory, Side::Zero, &there);
            let one = channel(&there, &memory, Side::One, &here);
            (memory, (zero, one))
        })
        .unzip();
    std::thread::scope(|scope| {
        for (seed, (zero, one)) in channels.iter().enumerate() {
            for (way, (from, to)) in [(zero, one), (one, zero)].into_iter().enumerate() {
                let seed = (seed * 2 + way) as u64;
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for number in 0..150 {
                        from.send(&random.message(number)).expect("sent");
                    }
                });
                scope.spawn(move || {
                    let mut random = Random(seed);
                    let mut room = vec![0; 3 * DATA_LEN as usize];
                    for number in 0..150 {
                        let len = to.recv(&mut room).expect("received");
                        assert!(room[..len] == random.message(number), "seed {seed}, message {number}");
                    }
                });
            }
        }
    });
    assert!(memories.iter().all(|memory| memory.state() != ViaState::Closed));
}

#[test]
fn nothing_is_lost_when_credit_is_exhausted() {
    let Pair { zero, one, processes: _processes, .. } = pair();
    zero.set_timeout_ms(0);
    let mut sent = 0u32;
    let refused = loop {
        match zero.send(&sent.to_le_bytes()) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((refused, sent), (Error::TimedOut, SLOTS), "as many as there are slots");
    one.set_timeout_ms(0);
    let mut room = [0; 4];
    for number in 0..sent {
        assert_eq!((one.recv(&mut room), u32::from_le_bytes(room)), (Ok(4), number));
    }
    assert_eq!(one.recv(&mut room), Err(Error::TimedOut));
    assert_eq!(zero.send(b"more"), Ok(()), "credit has come back");
}

#[test]
fn a_message_that_stops_half_way_ends_the_channel() {
    let Pair { zero, one, processes: _processes, .. } = pair();
    zero.set_timeout_ms(0);
    let large = vec![1; 2 * DATA_LEN as usize];
    assert_eq!(zero.send(&large), Err(Error::TimedOut));
    assert_eq!(zero.send(b"x"), Err(Error::Closed));
    let mut room = vec![0; large.len()];
    assert_eq!(one.recv(&mut room), Err(Error::Closed), "the rest never comes");
}

#[test]
fn a_buffer_that_is_too_small_loses_nothing() {
    let Pair { zero, one, processes: _processes, .. } = pair();
    let long = vec![5; 3 * FRAGMENT_MAX as usize];
    zero.send(&long).expect("sent");
    let mut room = vec![0; long.len() - 1];
    assert_eq!(one.recv(&mut room), Err(Error::TooLong));
    assert_eq!(one.size(), Ok(long.len() as u64));
    room.push(0);
    assert_eq!((one.recv(&mut room), room == long), (Ok(long.len()), true));
    zero.send(b"").expect("sent");
    assert_eq!((one.size(), one.recv(&mut [])), (Ok(0), Ok(0)));
}

#[test]
fn what_was_sent_before_the_end_is_received_and_who_waits_hears_of_it() {
    let Pair { zero, one, processes: _processes, .. } = pair();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| zero.recv(&mut [0; 8]));
        one.send(b"last").expect("sent");
        zero.send(b"unread").expect("sent");
        assert_eq!(waits.join().expect("no panic"), Ok(4));
        let waits = scope.spawn(|| zero.recv(&mut [0; 8]));
        one.close();
        assert_eq!(waits.join().expect("no panic"), Err(Error::Closed));
    });
    assert_eq!(zero.send(b"x"), Err(Error::Closed));
    assert_eq!(one.recv(&mut [0; 8]), Ok(6));
}

#[test]
fn a_peer_that_writes_what_no_library_writes_ends_its_own_channel_alone() {
    let Pair { zero, one, processes, .. } = pair();
    let mut hostile = between(processes);
    let slot = ViaLayout::slot(Side::Zero, 0);
    let words = Fragment { len: FRAGMENT_MAX + 1, begins: None }.encode(0);
    for bytes in [words, [0x1ff, 0], Fragment { len: 4, begins: None }.encode(0)] {
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_le_bytes()).collect();
        hostile.memory.write(slot, &bytes).expect("a slot");
        assert_eq!(hostile.one.recv(&mut [0; 64]), Err(Error::Broken));
        assert_eq!(hostile.zero.send(b"x"), Err(Error::Closed), "the hostile side's own");
        hostile = between(hostile.processes);
    }
    // One that takes what was not sent.
    let taken = ViaLayout::registers(Side::One) + ViaLayout::TAKEN;
    hostile.memory.region().write_u32(taken, 5000).expect("a register");
    let sent = (0..=SLOTS).map(|_| hostile.zero.send(b"x")).find(Result::is_err);
    assert_eq!(sent, Some(Err(Error::Broken)));
    // Nobody else is affected.
    one.send(b"still").expect("sent");
    assert_eq!(zero.recv(&mut [0; 8]), Ok(5));
}

#[test]
fn whatever_a_peer_writes_is_its_own_loss() {
    let Pair { zero: other_zero, one: other_one, processes: mut both, .. } = pair();
    let mut ends = [0; 2];
    for seed in 0..150 {
        let mut random = Random(seed);
        let hostile = between(both);
        let (victim, memory) = (&hostile.one, &hostile.memory);
        victim.set_timeout_ms(0);
        let mut room = vec![0; 1 << 16];
        for step in 0..60 {
            // Nearly right, so that much of it goes far.
            let slot = ViaLayout::slot(Side::Zero, random.below(8) as u32);
            let limits = ([50, 40_000, u64::MAX], [49, 20_000]);
            let kinds = [random.below(3), random.below(2)].map(|kind| kind as usize);
            let total = random.below(limits.0[kinds[0]]);
            let begins = (random.below(3) > 0).then_some(total);
            let len = random.below(limits.1[kinds[1]]) as u32;
            let [word0, word1] = Fragment { len, begins }.encode(random.below(2) as u32 * SLOTS);
            let (at, word) = match random.below(4) {
                0 => (slot + 8, word1),
                1 => (ViaLayout::registers(Side::One) + ViaLayout::ARMED, random.below(2)),
                2 if step > 40 => {
                    (ViaLayout::registers(Side::Zero) + ViaLayout::TAKEN, random.below(1 << 33))
                }
                _ => (slot, word0),
            };
            memory.write(at, &word.to_le_bytes()).expect("within the memory");
            let received = victim.recv(&mut room);
            let sent = victim.send(&room[..random.below(40_000) as usize]);
            ends[0] += usize::from(received == Err(Error::Broken));
            ends[1] += usize::from(sent == Err(Error::Broken));
        }
        drop((hostile.zero, hostile.one));
        both = hostile.processes;
    }
    assert!(ends[0] > 100 && ends[1] > 5, "{ends:?}: what is to be found is there");
    other_one.send(b"still").expect("sent");
    assert_eq!(other_zero.recv(&mut [0; 8]), Ok(5));
}

#[test]
fn the_end_of_the_engine_ends_a_wait() {
    let Pair { zero, one: _one, processes: [first, _second], .. } = pair();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| zero.recv(&mut [0; 8]));
        drop(first.engine);
        assert_eq!(waits.join().expect("no panic"), Err(Error::NoEngine));
    });
}

#[test]
fn ping_pong_wakes_each_side_however_long_the_other_sleeps() {
    let Pair { zero, one, processes: _processes, .. } = pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            crate::sleep::tests::do_not_look();
            let mut ball = [0; 8];
            while let Ok(len) = one.recv(&mut ball) {
                one.send(&ball[..len]).expect("sent");
            }
        });
        crate::sleep::tests::do_not_look();
        let mut ball = [0; 8];
        for number in 0..3000u64 {
            zero.send(&number.to_le_bytes()).expect("sent");
            assert_eq!((zero.recv(&mut ball), u64::from_le_bytes(ball)), (Ok(8), number));
        }
        zero.close();
    });
}
