//! What stands in a connection between two hosts' virtual interfaces (`docs/via-wire.md`), of a peer that means harm: how it begins, and frames
//! with right lengths and sums, so that more than the first check is met. Fragments of it are published only within the credit.

use super::Bytes;
use toe::native::{Bytes as Received, Taker};
use toe_abi::channel::Side;
use toe_ring::{ViaMemory, ViaReceiver, ViaSender};
use toe_via::far::frames::{Brought, Reader};
use toe_via::far::introduction::Introduction;
use toe_via::far::inward::Inward;
use toe_via::far::mpa::{PRIVATE_MAX, Start, first_segment, put_frame};

const STEPS_MAX: usize = 200;
const OPERATIONS: u8 = 1;
const BEGINNING: u8 = 2;
/// Bytes that a fragment is filled up with, at most.
const MORE_MAX: usize = 20_000;

/// See the module.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let how = bytes.u8();
    if how & BEGINNING != 0 {
        return begin(bytes.0);
    }
    let are_operations = how & OPERATIONS != 0;
    let stream = stream(&mut bytes);
    read(&stream, are_operations);
    take(&stream, are_operations, usize::from(how >> 2));
}

/// The start-up frames of either side.
fn begin(stream: &[u8]) {
    for is_reply in [false, true] {
        let Ok(Some((start, len))) = Start::first(stream, is_reply) else { continue };
        assert!(start.private.len() <= PRIVATE_MAX && len <= stream.len());
        let mut again = Vec::new();
        start.put(&mut again);
        assert_eq!(Start::first(&again, is_reply), Ok(Some((start, again.len()))));
        if let Ok(Some(said)) = Introduction::decode(start.private) {
            assert_eq!(Introduction::decode(&said.encode()), Ok(Some(said)), "read as it was meant");
        }
    }
    _ = Introduction::decode(stream);
}

/// Frames whose segments are bytes, some of them filled up, and bytes that are no frame.
fn stream(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        let (what, len) = (bytes.u8(), usize::from(bytes.u8()));
        let begin = bytes.take(len);
        let more = if what & 2 != 0 { usize::from(bytes.u16()) % MORE_MAX } else { 0 };
        match what & 1 {
            0 => _ = put_frame(&mut stream, &[begin, &vec![what; more]]),
            _ => stream.extend_from_slice(begin),
        }
    }
    stream
}

/// Frame by frame.
fn read(mut stream: &[u8], are_operations: bool) {
    let mut reader = Reader::new(are_operations);
    while let Ok(Some((segment, used))) = first_segment(stream) {
        match reader.take(segment) {
            Ok(Brought::Fragment { fragment, bytes: [head, data] }) => {
                assert_eq!(
                    fragment.len as usize,
                    head.len() + data.len(),
                    "a fragment is as long as its bytes"
                );
            }
            Ok(Brought::Credit(_) | Brought::Nothing) => {}
            Err(_) => return,
        }
        stream = &stream[used..];
    }
}

/// As a carrier does, in pieces: into the connection's memory.
fn take(stream: &[u8], are_operations: bool, piece: usize) {
    let memory = ViaMemory::create_far().expect("memory for a connection");
    let into = ViaSender::new(memory.clone(), Side::One);
    let mut receiver = ViaReceiver::new(memory.clone(), Side::Zero);
    let mut inward = Inward::new(are_operations, memory, into);
    let piece = 1 + piece * 97;
    for part in stream.chunks(piece) {
        let room = inward.begin(8);
        assert!(part.len() <= room);
        inward.take(Received::Own(part), part.len());
        if inward.wrong.is_some() {
            break;
        }
        while let Ok(Some(arrived)) = receiver.first() {
            receiver.take(arrived);
        }
    }
    assert!(inward.given_back <= 8, "credit for what was not sent");
}
