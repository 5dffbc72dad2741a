//! Messages of all sizes through a stream that comes in pieces, bytes that somebody else worked out, and what nobody should send.

use super::ddp::{Cut, DdpBuffer, Header, MESSAGE_MAX, Queue, UNTAGGED_LEN};
use super::mpa::{PRIVATE_MAX, SEGMENT_MAX, START_LEN, Start, first_segment, frame_len, put_frame};
use super::*;
use crate::channel::tests::Random;

/// RFC 3720, B.4, to which RFC 5044 refers: the bytes as they go over the wire.
#[test]
fn the_crc_is_that_of_iscsi() {
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    for (bytes, crc) in [
        (vec![0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (vec![0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (up, [0x4e, 0x79, 0xdd, 0x46]),
        (down, [0x5c, 0xdb, 0x3f, 0x11]),
    ] {
        assert_eq!(crc32c::crc32c(&bytes).to_le_bytes(), crc);
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Written down by hand from the RFCs' figures, the CRC by a program of its own (bit by bit, 0x1edc6f41).
#[test]
fn frames_are_those_of_the_figures() {
    let untagged = |queue, message, offset| DdpBuffer::Untagged { queue, message, offset };
    let tagged = DdpBuffer::Tagged { tag: 0x89ab_cdef, offset: 0x0100_0000_0008 };
    for (header, data, frame) in [
        (
            Header { buffer: untagged(0, 1, 0), is_last: true, upper: (0x43, 0) },
            &[0; 24][..],
            "002a414300000000000000000000000100000000000000000000000000000000000000000000000000000000b7243ec3",
        ),
        (
            Header { buffer: untagged(2, 7, 0x1000), is_last: false, upper: (0x0a, 0x1234_5678) },
            &b"hello"[..],
            "0017010a1234567800000002000000070000100068656c6c6f0000007e212fc7",
        ),
        (
            Header { buffer: tagged, is_last: true, upper: (0x40, 0) },
            &b"abc"[..],
            "0011c14089abcdef00000100000000086162630031faf8c0",
        ),
    ] {
        let mut stream = Vec::new();
        assert!(put_frame(&mut stream, &[&header.encode()[..header.header_len()], data]));
        assert_eq!(stream, hex(frame));
        let (segment, len) = first_segment(&stream).expect("right").expect("whole");
        assert_eq!((Header::decode(segment), len), (Ok((header, data)), stream.len()));
    }
    let mut stream = Vec::new();
    Start { is_reply: false, is_rejected: false, private: b"hi" }.put(&mut stream);
    assert_eq!(stream, hex("4d504120494420526571204672616d65 40 01 0002 6869"));
}

#[test]
fn messages_of_all_sizes_go_through_a_stream_in_pieces() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let segment_max = [19, 64, 1460, SEGMENT_MAX][random.below(4) as usize];
        let limit = if segment_max == 19 { 300 } else { 200_000 };
        let messages: Vec<Vec<u8>> = (0..5)
            .map(|number| (0..random.below(limit)).map(|at| (at ^ number).wrapping_mul(37) as u8).collect())
            .collect();
        let mut stream = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            let buffer = DdpBuffer::Untagged { queue: 0, message: number as u32 + 1, offset: 0 };
            let mut cut =
                Cut::new(buffer, (3, number as u32), message.len() as u64, segment_max).expect("a message");
            while let Some((header, data)) = cut.next_segment() {
                let head = header.encode();
                let data = &message[data.start as usize..data.end as usize];
                let before = stream.len();
                assert!(put_frame(&mut stream, &[&head[..header.header_len()], data]));
                assert_eq!(stream.len() - before, frame_len(header.header_len() + data.len()));
                assert!(header.header_len() + data.len() <= segment_max && stream.len().is_multiple_of(4));
            }
        }
        let (mut come, mut from, mut queue) = (0, 0, Queue::default());
        let mut got = vec![Vec::new()];
        while from < stream.len() {
            come = stream.len().min(come + 1 + random.below(3000) as usize);
            while let Some((segment, len)) = first_segment(&stream[from..come]).expect("as it was sent") {
                let (header, data) = Header::decode(segment).expect("as it was sent");
                let placed = queue.locate(&header, data.len(), u32::MAX).expect("it follows");
                let last = got.last_mut().expect("one at least");
                assert_eq!((placed.at as usize, header.upper), (last.len(), (3, placed.message - 1)));
                last.extend_from_slice(data);
                if placed.whole.is_some() {
                    assert_eq!(placed.whole, Some(last.len() as u32));
                    got.push(Vec::new());
                }
                from += len;
            }
        }
        assert_eq!(got.pop(), Some(Vec::new()));
        assert!(got == messages, "seed {seed}");
    }
}

#[test]
fn writes_go_to_where_they_belong() {
    let buffer = DdpBuffer::Tagged { tag: 9, offset: 1 << 40 };
    let mut cut = Cut::new(buffer, (0x40, 0), 250, 114).expect("a message");
    let mut at = 0;
    while let Some((header, data)) = cut.next_segment() {
        assert_eq!(header.buffer, DdpBuffer::Tagged { tag: 9, offset: (1 << 40) + at });
        let bytes = header.encode();
        let (again, rest) = Header::decode(&bytes[..header.header_len()]).expect("a header");
        assert_eq!((again, rest.len()), (header, 0));
        assert_eq!((data.start, header.is_last), (at, data.end == 250));
        at = data.end;
    }
    assert_eq!(at, 250);
    assert!(
        Cut::new(DdpBuffer::Tagged { tag: 9, offset: u64::MAX }, (0, 0), 1, 100).is_none(),
        "past the end"
    );
    let untagged = DdpBuffer::Untagged { queue: 0, message: 1, offset: 0 };
    assert!(Cut::new(untagged, (0, 0), MESSAGE_MAX + 1, 100).is_none());
    assert!(Cut::new(untagged, (0, 0), 1, UNTAGGED_LEN).is_none(), "no room for data");
}

#[test]
fn start_up_frames_come_out_as_they_went_in() {
    for (is_reply, is_rejected, len) in [(false, false, 0), (true, false, 3), (true, true, PRIVATE_MAX)] {
        let private = vec![5; len];
        let start = Start { is_reply, is_rejected, private: &private };
        let mut stream = Vec::new();
        start.put(&mut stream);
        for come in 0..stream.len() {
            assert_eq!(Start::first(&stream[..come], is_reply), Ok(None), "{come}");
        }
        stream.push(9);
        assert_eq!(Start::first(&stream, is_reply), Ok(Some((start, START_LEN + len))));
        assert_eq!(Start::first(&stream, !is_reply), Err(Wrong::Start));
        for (at, byte) in [(0, b'x'), (11, 0), (16, 0x80), (17, 2), (17, 0), (18, 3)] {
            let mut bad = stream.clone();
            bad[at] = byte;
            assert_eq!(Start::first(&bad, is_reply), Err(Wrong::Start), "byte {at}");
        }
    }
    let rejected = hex("4d504120494420526571204672616d65 60 01 0000");
    assert_eq!(Start::first(&rejected, false), Err(Wrong::Start), "a request that is a refusal");
}

/// Whatever byte is changed on its way is noticed, unless it is one of a length that then has not come whole.
#[test]
fn what_was_changed_on_its_way_is_not_taken() {
    let mut frame = Vec::new();
    let header = Header {
        buffer: DdpBuffer::Untagged { queue: 1, message: 1, offset: 0 },
        is_last: true,
        upper: (0, 0),
    };
    assert!(put_frame(&mut frame, &[&header.encode(), &[7; 101]]));
    for at in 0..frame.len() {
        for bit in 0..8 {
            let mut bad = frame.clone();
            bad[at] ^= 1 << bit;
            let found = first_segment(&bad);
            let is_longer = at < 2 && matches!(found, Ok(None) | Err(Wrong::Segment));
            assert!(found == Err(Wrong::Crc) || is_longer, "byte {at}, bit {bit}: {found:?}");
        }
    }
    assert!(!put_frame(&mut frame, &[&[0; SEGMENT_MAX], &[0]]), "too long");
}

#[test]
fn segments_that_do_not_follow_are_wrong() {
    let header = |message, offset, is_last| Header {
        buffer: DdpBuffer::Untagged { queue: 0, message, offset },
        is_last,
        upper: (0, 0),
    };
    let mut queue = Queue::default();
    let tagged = Header { buffer: DdpBuffer::Tagged { tag: 0, offset: 0 }, is_last: true, upper: (0, 0) };
    for (bad, len) in [
        (header(2, 0, true), 1),
        (header(0, 0, true), 1),
        (header(1, 1, true), 1),
        (header(1, 0, false), 0),
        (header(1, 0, true), 101),
        (header(1, u32::MAX, true), 2),
        (tagged, 1),
    ] {
        assert_eq!(queue.locate(&bad, len, 100), Err(Wrong::Segment), "{bad:?}");
    }
    assert_eq!(queue.locate(&header(1, 0, false), 60, 100).map(|placed| placed.whole), Ok(None));
    for (bad, len) in [(header(1, 0, true), 1), (header(1, 60, true), 41), (header(2, 60, true), 1)] {
        assert_eq!(queue.locate(&bad, len, 100), Err(Wrong::Segment), "{bad:?}");
    }
    assert_eq!(queue.locate(&header(1, 60, true), 40, 100).map(|placed| placed.whole), Ok(Some(100)));
    assert_eq!(queue.locate(&header(2, 0, true), 0, 100).map(|placed| placed.whole), Ok(Some(0)));
}

/// Whatever comes: it is taken or it is wrong, nothing panics, and no more is looked at than there is.
#[test]
fn bytes_of_any_kind_do_no_harm() {
    for seed in 0..20_000 {
        let mut random = Random(seed);
        let mut bytes: Vec<u8> = (0..random.below(80)).map(|_| random.below(256) as u8).collect();
        if random.below(2) == 0 && bytes.len() > 2 {
            // A frame whose CRC is right.
            let mut framed = Vec::new();
            assert!(put_frame(&mut framed, &[&bytes]));
            bytes = framed;
        }
        if let Ok(Some((segment, len))) = first_segment(&bytes) {
            assert!(len <= bytes.len() && segment.len() < len);
            if let Ok((header, data)) = Header::decode(segment) {
                assert_eq!(header.header_len() + data.len(), segment.len());
                let _ = Queue::default().locate(&header, data.len(), 64);
            }
        }
        let _ = (Start::first(&bytes, false), Start::first(&bytes, true), Header::decode(&bytes));
    }
}
