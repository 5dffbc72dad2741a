//! Large fragments that go straight from memory into the stream, and out of it into memory, in pieces of any size.

use super::frames::Framer;
use super::inward::{Inward, STRAIGHT_MIN};
use super::outward::Frame;
use super::*;
use crate::channel::tests::Random;
use crate::core::Outgoing;
use crate::core::operation::{HEADER_LEN, Kind, Operation};
use toe::native::{Bytes, Maker, Room, Taker};
use toe_abi::channel::Side;
use toe_abi::via::Fragment;
use toe_ring::{Region, ViaMemory, ViaReceiver, ViaSender};

/// Bytes of the memory that stands for a stream's.
const STREAM: u64 = 1 << 20;

fn message(random: &mut Random, are_operations: bool) -> Vec<u8> {
    let len =
        [1, 900, STRAIGHT_MIN, 5000, 16_384, 40_000][random.below(6) as usize] + random.below(9) as usize;
    let data: Vec<u8> = (0..len).map(|at| (at as u64 * 31 + random.0) as u8).collect();
    if !are_operations {
        return data;
    }
    let len = data.len() as u32;
    let operation = match random.below(2) {
        0 => Operation::send(Some(7), len),
        _ => Operation { kind: Kind::Write, immediate: None, address: random.0, handle: 0x1234, len },
    };
    [&operation.encode()[..], &data].concat()
}

/// The fragments of a message, each as the bytes that it has.
fn fragments(bytes: &[u8]) -> Vec<(Fragment, &[u8])> {
    let mut message = Outgoing::new(bytes.len() as u64);
    let mut found = Vec::new();
    while let Some(piece) = message.next() {
        found.push((piece.fragment, &bytes[piece.at as usize..][..piece.fragment.len as usize]));
        message.sent(piece);
    }
    found
}

fn memory_of(bytes: &[u8]) -> Region {
    let (region, _file) = Region::create(STREAM).expect("memory");
    region.write(0, bytes).expect("it fits");
    region
}

/// What the frame makes, in pieces.
fn made(random: &mut Random, mut frame: Frame<'_>, most: u64) -> Vec<u8> {
    let (mut all, region) = (Vec::new(), memory_of(&[]));
    while frame.left() > 0 {
        let (max, left) = (1 + random.below(most) as usize, frame.left());
        let mut piece = vec![0; max];
        let count = match random.below(2) {
            0 => frame.make(Room::Own(&mut piece), max),
            _ => {
                let count = frame.make(Room::Shared(&region, 77), max);
                region.read(77, &mut piece[..count]).expect("within");
                count
            }
        };
        assert_eq!((count, frame.left()), (max.min(left), left - count));
        all.extend_from_slice(&piece[..count]);
    }
    all
}

/// Bytes of messages as a framer puts them into a stream.
fn put(messages: &[Vec<u8>], are_operations: bool) -> Vec<u8> {
    let (mut framer, mut stream) = (Framer::new(are_operations), Vec::new());
    for (number, bytes) in messages.iter().enumerate() {
        for (fragment, part) in fragments(bytes) {
            framer.put(&mut stream, fragment, part).expect("it follows");
        }
        if number % 3 == 1 {
            framer.put_credit(&mut stream, number as u32);
        }
    }
    stream
}

#[test]
fn a_frame_is_the_same_in_whatever_pieces_it_is_made() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let are_operations = seed % 2 == 0;
        let messages: Vec<_> = (0..3).map(|_| message(&mut random, are_operations)).collect();
        let most = [3, 50, 5000, 70_000][random.below(4) as usize];
        let (mut framer, mut stream) = (Framer::new(are_operations), Vec::new());
        for (number, bytes) in messages.iter().enumerate() {
            for (fragment, part) in fragments(bytes) {
                let (mut lead, memory) = (Vec::new(), memory_of(part));
                let head = &part[..framer.header_len_of(fragment)];
                let opened = framer.open(&mut lead, fragment, head).expect("it follows");
                let bytes = match random.below(2) {
                    0 => Bytes::Own(part),
                    _ => Bytes::Shared(&memory, 0),
                };
                let frame = Frame::new(&lead, opened, bytes, fragment.len);
                stream.extend(made(&mut random, frame, most));
            }
            if number % 3 == 1 {
                framer.put_credit(&mut stream, number as u32);
            }
        }
        assert!(stream == put(&messages, are_operations), "seed {seed}");
    }
}

/// The receiving end of a connection, and what the program finds there.
struct End {
    inward: Inward,
    out: ViaReceiver,
    memory: ViaMemory,
    got: Vec<Vec<u8>>,
}

impl End {
    fn new(are_operations: bool) -> End {
        let memory = ViaMemory::create_far().expect("memory");
        let into = ViaSender::new(memory.clone(), Side::One);
        let inward = Inward::new(are_operations, memory.clone(), into);
        End { inward, out: ViaReceiver::new(memory.clone(), Side::Zero), memory, got: Vec::new() }
    }

    /// Gives it the stream in pieces, and takes what comes.
    fn take(&mut self, random: &mut Random, stream: &[u8], most: u64) {
        let region = memory_of(stream);
        let mut at = 0;
        while at < stream.len() && self.inward.wrong.is_none() {
            assert!(self.inward.begin(100) > most as usize);
            let len = (1 + random.below(most) as usize).min(stream.len() - at);
            let bytes = match random.below(2) {
                0 => Bytes::Own(&stream[at..at + len]),
                _ => Bytes::Shared(&region, at as u64),
            };
            self.inward.take(bytes, len);
            at += len;
            while let Some(arrived) = self.out.first().expect("no breach") {
                let mut bytes = vec![0; arrived.fragment.len as usize];
                self.memory.read(arrived.offset, &mut bytes).expect("within");
                self.out.take(arrived);
                if arrived.fragment.begins.is_some() {
                    self.got.push(Vec::new());
                }
                self.got.last_mut().expect("begun").extend(bytes);
            }
        }
    }
}

#[test]
fn what_comes_in_whatever_pieces_is_what_was_sent() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let are_operations = seed % 2 == 0;
        let messages: Vec<_> = (0..8).map(|_| message(&mut random, are_operations)).collect();
        let most = [3, 50, 5000, 70_000][random.below(4) as usize];
        let mut end = End::new(are_operations);
        end.take(&mut random, &put(&messages, are_operations), most);
        assert_eq!(end.inward.wrong, None, "seed {seed}");
        assert!(end.got == messages, "seed {seed}");
        assert_eq!(end.inward.given_back, 7, "the credit that came last");
    }
}

/// What is before a byte that is not as it was sent is received, and nothing that is behind it, or beside it in its frame.
#[test]
fn a_fragment_is_not_there_before_its_crc_is_right() {
    for seed in 0..600 {
        let mut random = Random(seed);
        let are_operations = seed % 2 == 0;
        let messages: Vec<_> = (0..4).map(|_| message(&mut random, are_operations)).collect();
        let mut stream = put(&messages, are_operations);
        let at = random.below(stream.len() as u64) as usize;
        stream[at] ^= 1 << random.below(8);
        let most = [50, 5000, 70_000][random.below(3) as usize];
        let mut end = End::new(are_operations);
        end.take(&mut random, &stream, most);
        // A length that has grown may be of a frame that is not whole yet.
        let is_whole = end.got == messages;
        assert!(!is_whole, "seed {seed}: byte {at} is another one, and nobody has noticed");
        for (got, sent) in end.got.iter().zip(&messages) {
            assert!(sent.starts_with(got), "seed {seed}: byte {at} has come to the program");
        }
    }
}

#[test]
fn more_than_there_is_credit_for_is_not_placed() {
    let mut random = Random(1);
    let mut end = End::new(false);
    let messages: Vec<_> = (0..65).map(|_| vec![7; 16_384]).collect();
    let stream = put(&messages, false);
    let _ = end.inward.begin(100);
    let frame = stream.iter().len() / 65;
    // The data part has room for 64 of them, of which nothing is given back.
    for number in 0..64 {
        let _ = end.inward.begin(100);
        end.inward.take(Bytes::Own(&stream[number * frame..][..frame]), frame);
        assert_eq!(end.inward.wrong, None, "{number}");
    }
    assert!(stream.len() > 64 * frame && HEADER_LEN < STRAIGHT_MIN);
    end.take(&mut random, &stream[64 * frame..], 5000);
    assert_eq!(end.inward.wrong, Some(Wrong::Credit));
}
