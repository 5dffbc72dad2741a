//! Channels whose other side is at the other end of a stream: two of them, and one whose peer is hostile. The stream is a pair of kernel sockets; what is
//! above it is what programs have.

use super::super::ddp::{DdpBuffer, Header, UNTAGGED_LEN};
use super::super::door::Silent;
use super::super::introduction::Refusal;
use super::super::mpa::put_frame;
use super::*;
use crate::channel::Channel;
use crate::channel::tests::{Process, Random, channel_over, process};
use crate::error::Error;
use crate::link::Link;
use crate::lock::lock;
use rustix::net::sockopt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use toe::native::{Maker, Room};
use toe_abi::via::{DATA_LEN, NodeName, SLOTS};

impl Wire for UnixStream {
    fn is_connected(&self) -> Result<bool, Errno> {
        Ok(true)
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(self, bytes, flags).map_err(|error| Errno(error.raw_os_error() as u16))
    }

    fn recv(&self, into: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(self, into).map_err(|error| Errno(error.raw_os_error() as u16))
    }

    fn finish(&self) {
        let _ = self.shutdown(std::net::Shutdown::Write);
    }

    fn fd(&self) -> RawFd {
        self.as_raw_fd()
    }
}

fn streams() -> [UnixStream; 2] {
    let (one, other) = UnixStream::pair().expect("a pair");
    [one, other].map(|stream| {
        stream.set_nonblocking(true).expect("non-blocking");
        // As wires are: what credit allows fits.
        sockopt::set_socket_send_buffer_size(&stream, 1 << 20).expect("a buffer");
        stream
    })
}

fn me(attributes: Attributes) -> Introduction {
    let node = NodeName::new(b"me").expect("a name");
    Introduction { attributes, discriminator: 7, node, early: Vec::new(), refusal: None }
}

/// Side 0, which asks.
fn asking(of: &Process, wire: impl Wire + 'static, attributes: Attributes) -> Link {
    let (memory, _file) = ViaMemory::create().expect("memory");
    let far = of.session.far.carry(Carrier::asking(Box::new(wire), memory.clone(), me(attributes)));
    Link::to_far(memory, Side::Zero, far, of.session.node)
}

/// Side 1, whom somebody has asked.
fn asked(of: &Process, wire: UnixStream) -> (Link, Introduction) {
    let copy = wire.try_clone().expect("another descriptor");
    let mut silent = Silent::new(Box::new(copy), IpAddr::V4(Ipv4Addr::LOCALHOST));
    let asked = silent.listen().expect("a request").expect("all of it");
    let (memory, _file) = ViaMemory::create().expect("memory");
    let carrier = Carrier::asked(Box::new(wire), memory.clone(), me(Attributes::default()), &asked);
    let far = of.session.far.carry(carrier);
    (Link::to_far(memory, Side::One, far, asked.node), asked)
}

/// Two programs' links, connected.
fn connected(here: &Process, there: &Process, attributes: Attributes) -> [Link; 2] {
    let [zero_wire, one_wire] = streams();
    let zero = asking(here, zero_wire, attributes);
    zero.pull();
    let (one, said) = asked(there, one_wire);
    assert_eq!((said.attributes, said.discriminator), (attributes, 7));
    assert!(one.accept(attributes));
    assert_eq!(zero.far_answer(), None);
    zero.pull();
    assert_eq!(zero.far_answer(), Some(Answer::Accepted));
    assert_eq!((zero.memory.state(), zero.memory.attributes(Side::One)), (ViaState::Accepted, attributes));
    one.pull();
    [zero, one]
}

fn channels(here: &Process, there: &Process) -> [Channel; 2] {
    let [zero, one] = connected(here, there, Attributes::EVIL);
    [channel_over(here, zero), channel_over(there, one)]
}

#[test]
fn messages_of_random_sizes_come_whole_and_in_order_both_ways_at_once() {
    let (here, there) = (process(), process());
    let pairs: Vec<_> = (0..4).map(|_| channels(&here, &there)).collect();
    std::thread::scope(|scope| {
        for (seed, [zero, one]) in pairs.iter().enumerate() {
            for (way, (from, to)) in [(zero, one), (one, zero)].into_iter().enumerate() {
                let seed = (seed * 2 + way) as u64;
                scope.spawn(move || {
                    let mut random = Random(seed);
                    (0..100).for_each(|number| from.send(&random.message(number)).expect("sent"));
                });
                scope.spawn(move || {
                    let mut random = Random(seed);
                    let mut room = vec![0; 3 * DATA_LEN as usize];
                    for number in 0..100 {
                        let len = to.recv(&mut room).expect("received");
                        assert!(room[..len] == random.message(number), "seed {seed}, message {number}");
                    }
                });
            }
        }
    });
}

/// Credit goes from program to program: what the stream has taken is not yet received.
#[test]
fn credit_is_that_of_the_far_program() {
    let (here, there) = (process(), process());
    let [zero, one] = channels(&here, &there);
    zero.set_timeout_ms(0);
    one.set_timeout_ms(0);
    let mut room = [0; 4];
    for round in 0..3u32 {
        let mut sent = 0;
        let refused = loop {
            match zero.send(&(round + sent).to_le_bytes()) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((refused, sent), (Error::TimedOut, SLOTS), "as many as there are slots, in round {round}");
        for number in 0..sent {
            assert_eq!((one.recv(&mut room), u32::from_le_bytes(room)), (Ok(4), round + number));
        }
        assert_eq!(one.recv(&mut room), Err(Error::TimedOut));
    }
}

/// A stream that takes so many bytes more.
#[derive(Clone, Debug)]
struct Narrow(Arc<UnixStream>, Arc<AtomicUsize>);

impl Wire for Narrow {
    fn is_connected(&self) -> Result<bool, Errno> {
        Ok(true)
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let left = self.1.load(Ordering::Relaxed).min(bytes.len());
        if left == 0 {
            return Err(Errno::EAGAIN);
        }
        let sent = Wire::send(&*self.0, &bytes[..left])?;
        self.1.fetch_sub(sent, Ordering::Relaxed);
        Ok(sent)
    }

    fn send_made(&self, from: &mut dyn Maker) -> Result<usize, Errno> {
        let mut bytes = [0; 8192];
        let left = self.1.load(Ordering::Relaxed).min(bytes.len());
        let made = from.make(Room::Own(&mut bytes), left);
        let sent = self.send(&bytes[..made])?;
        assert_eq!(sent, made, "the pair has room");
        Ok(sent)
    }

    fn recv(&self, into: &mut [u8]) -> Result<usize, Errno> {
        Wire::recv(&*self.0, into)
    }

    fn finish(&self) {
        Wire::finish(&*self.0);
    }

    fn fd(&self) -> RawFd {
        Wire::fd(&*self.0)
    }
}

/// What the stream did not take when it was sent goes when it does, whether or not the program sends more.
#[test]
fn what_the_stream_does_not_take_goes_later() {
    let (here, there) = (process(), process());
    for room in [0, 1, 5000, 140_000] {
        let [zero_wire, one_wire] = streams();
        let left = Arc::new(AtomicUsize::new(10_000));
        let zero = asking(&here, Narrow(Arc::new(zero_wire), Arc::clone(&left)), Attributes::EVIL);
        zero.pull();
        let (one, _) = asked(&there, one_wire);
        assert!(one.accept(Attributes::EVIL));
        zero.pull();
        one.pull();
        let [zero, one] = [channel_over(&here, zero), channel_over(&there, one)];
        left.store(room, Ordering::Relaxed);
        (0..200).for_each(|number| zero.send(&[number; 1200]).expect("there is credit"));
        one.set_timeout_ms(0);
        zero.set_timeout_ms(0);
        let mut bytes = [0; 1200];
        let mut came = 0;
        // Whoever waits, in either direction, looks at the stream.
        for round in 0..100 {
            if round > 0 {
                left.store(100_000, Ordering::Relaxed);
            }
            assert_eq!(zero.recv(&mut bytes), Err(Error::TimedOut));
            while one.recv(&mut bytes).is_ok() {
                assert_eq!(bytes, [came; 1200]);
                came += 1;
            }
        }
        assert_eq!(came, 200, "room for {room}");
    }
}

#[test]
fn what_was_sent_before_the_end_is_received() {
    let (here, there) = (process(), process());
    let [zero, one] = channels(&here, &there);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.recv(&mut [0; 8]));
        zero.send(b"last").expect("sent");
        assert_eq!(waits.join().expect("no panic"), Ok(4));
        zero.send(b"unread").expect("sent");
        zero.close();
        assert_eq!(one.recv(&mut [0; 8]), Ok(6));
        assert_eq!(one.recv(&mut [0; 8]), Err(Error::Closed));
        assert_eq!(one.send(b"x"), Err(Error::Closed));
    });
}

#[test]
fn a_rejected_connection_and_one_to_nobody() {
    let (here, there) = (process(), process());
    let [zero_wire, one_wire] = streams();
    let zero = asking(&here, zero_wire, Attributes::EVIL);
    zero.pull();
    let (one, _) = asked(&there, one_wire);
    one.move_on(ViaState::Rejected);
    zero.pull();
    assert_eq!((zero.far_answer(), zero.memory.state()), (Some(Answer::Rejected), ViaState::Closed));

    for refusal in [None, Some(Refusal::Nobody)] {
        let [zero_wire, one_wire] = streams();
        let zero = asking(&here, zero_wire, Attributes::EVIL);
        zero.pull();
        if refusal.is_some() {
            let private = Introduction { refusal, ..me(Attributes::EVIL) }.encode();
            let mut reply = Vec::new();
            Start { is_reply: true, is_rejected: true, private: &private }.put(&mut reply);
            Wire::send(&one_wire, &reply).expect("sent");
        }
        drop(one_wire);
        zero.pull();
        assert_eq!(zero.far_answer(), Some(Answer::NotThere), "{refusal:?}");
    }
}

/// The first fragment of endpoints goes with the introduction, in both directions.
#[test]
fn greetings_go_before_the_answer() {
    let (here, there) = (process(), process());
    let [zero_wire, one_wire] = streams();
    let zero = asking(&here, zero_wire, Attributes::ENDPOINTS);
    let say = |link: &Link, bytes: &[u8]| {
        let mut sender = lock(&link.sending);
        let fragment = Fragment { len: bytes.len() as u32, begins: Some(bytes.len() as u64) };
        let room = sender.room(fragment.len).expect("no breach").expect("room");
        link.memory.write(room.offset, bytes).expect("within");
        sender.publish(fragment, room);
        drop(sender);
        link.wake();
    };
    let heard = |link: &Link| {
        let mut receiving = lock(&link.receiving);
        let arrived = receiving.end.first().expect("no breach").expect("a greeting");
        let mut bytes = vec![0; arrived.fragment.len as usize];
        link.memory.read(arrived.offset, &mut bytes).expect("within");
        receiving.end.take(arrived);
        bytes
    };
    zero.pull();
    say(&zero, &[1; 352]);
    let (one, _) = asked(&there, one_wire);
    assert_eq!(heard(&one), [1; 352]);
    say(&one, &[2; 100]);
    assert!(one.accept(Attributes::ENDPOINTS));
    zero.pull();
    assert_eq!((zero.far_answer(), heard(&zero)), (Some(Answer::Accepted), vec![2; 100]));
}

/// A channel whose peer the test is, after the introduction.
fn hostile(of: &Process) -> (Channel, UnixStream) {
    let [wire, peer] = streams();
    let link = asking(of, wire, Attributes::EVIL);
    link.pull();
    let mut request = [0; 600];
    Wire::recv(&peer, &mut request).expect("a request");
    let mut reply = Vec::new();
    Start { is_reply: true, is_rejected: false, private: &me(Attributes::EVIL).encode() }.put(&mut reply);
    Wire::send(&peer, &reply).expect("sent");
    link.pull();
    assert_eq!(link.far_answer(), Some(Answer::Accepted));
    let channel = channel_over(of, link);
    channel.set_timeout_ms(0);
    (channel, peer)
}

fn frame(upper: (u8, u32), (queue, message, offset): (u32, u32, u32), is_last: bool, data: &[u8]) -> Vec<u8> {
    let head = Header { buffer: DdpBuffer::Untagged { queue, message, offset }, is_last, upper }.encode();
    let mut stream = Vec::new();
    assert!(put_frame(&mut stream, &[&head[..UNTAGGED_LEN], data]));
    stream
}

#[test]
fn what_no_carrier_sends_ends_its_own_channel_alone() {
    let of = process();
    let there = process();
    let [zero, one] = channels(&of, &there);
    let good = frame((0x43, 4), (0, 1, 0), true, b"good");
    let mut wrong_crc = good.clone();
    *wrong_crc.last_mut().expect("bytes") ^= 1;
    let mut wrong_len = good.clone();
    wrong_len[0] = 0xff;
    let tagged = {
        let head =
            Header { buffer: DdpBuffer::Tagged { tag: 1, offset: 0 }, is_last: true, upper: (0x40, 0) };
        let mut stream = Vec::new();
        assert!(put_frame(&mut stream, &[&head.encode()[..14], b"data"]));
        stream
    };
    let too_much: Vec<u8> =
        (0..=SLOTS).flat_map(|number| frame((0x43, 1), (0, 1 + number, 0), true, b"x")).collect();
    for (what, bytes, before) in [
        ("a CRC", wrong_crc, 0),
        ("a length", wrong_len, 0),
        ("a tag that stands for nothing", tagged, 0),
        ("another number", frame((0x43, 4), (0, 2, 0), true, b"good"), 0),
        ("a message longer than it says", frame((0x43, 3), (0, 1, 0), true, b"good"), 0),
        ("another opcode", frame((0x45, 4), (0, 1, 0), true, b"good"), 0),
        ("credit for what was not sent", frame((0x4f, 1), (3, 1, 0), true, b""), 0),
        // All that it was allowed comes before.
        ("more than there is credit for", too_much, SLOTS),
        ("what is bad behind what is good", [good.clone(), tagged_again()].concat(), 1),
    ] {
        let (channel, peer) = hostile(&of);
        let mut sent = 0;
        while sent < bytes.len() {
            sent += Wire::send(&peer, &bytes[sent..]).expect("room");
        }
        let mut room = [0; 64];
        for number in 0..before {
            assert!(channel.recv(&mut room).is_ok(), "{what}: message {number}");
        }
        let is_full = before == SLOTS;
        // Where no slot is free to say so, it is that the peer has gone.
        let ends = [Err(Error::Broken), Err(Error::Closed)];
        assert_eq!(channel.recv(&mut room), ends[usize::from(is_full)], "{what}");
        assert!(channel.send(b"x").is_err(), "{what}");
        zero.send(what.as_bytes()).expect("nobody else is affected");
        assert_eq!(one.recv(&mut room), Ok(what.len()));
    }
}

fn tagged_again() -> Vec<u8> {
    frame((0x43, 4), (0, 1, 0), true, b"twice")
}

#[test]
fn a_connection_that_is_cut_is_closed() {
    let of = process();
    let good = frame((0x43, 4), (0, 1, 0), true, b"good");
    for cut in 0..=good.len() {
        let (channel, peer) = hostile(&of);
        if cut > 0 {
            Wire::send(&peer, &good[..cut]).expect("sent");
        }
        drop(peer);
        let mut room = [0; 64];
        if cut == good.len() {
            assert_eq!(channel.recv(&mut room), Ok(4));
        }
        assert_eq!(channel.recv(&mut room), Err(Error::Closed), "after {cut} bytes");
    }
}

/// Whatever comes in whatever pieces: an end or nothing, no panic, and messages as they were before that.
#[test]
fn hostile_bytes_do_no_harm() {
    let of = process();
    for seed in 0..300 {
        let mut random = Random(seed);
        let (channel, peer) = hostile(&of);
        let mut stream: Vec<u8> = (0..20)
            .flat_map(|number| {
                let bytes = vec![number as u8; random.below(100) as usize];
                frame((0x43, bytes.len() as u32), (0, number + 1, 0), true, &bytes)
            })
            .collect();
        let at = random.below(stream.len() as u64) as usize;
        stream[at] ^= 1 << random.below(8);
        let mut sent = 0;
        let mut number = 0;
        while sent < stream.len() {
            let end = (sent + 1 + random.below(200) as usize).min(stream.len());
            if Wire::send(&peer, &stream[sent..end]).is_err() {
                break;
            }
            sent = end;
            let mut room = [0; 128];
            while let Ok(len) = channel.recv(&mut room) {
                assert!(room[..len].iter().all(|byte| *byte == number), "seed {seed}");
                number += 1;
            }
        }
        assert!(number < 20, "seed {seed}: the byte that was changed was noticed");
        drop(peer);
        assert!(matches!(channel.recv(&mut [0; 128]), Err(Error::Broken | Error::Closed)), "seed {seed}");
    }
}
