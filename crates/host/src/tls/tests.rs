//! The record layer alone: published and independent vectors, seeded conversations, and what a hostile peer sends.

use super::incoming::{EKEYEXPIRED, Given, Incoming};
use super::keys::{EBADMSG, HEADER, Keys};
use super::outgoing::Outgoing;
use super::parameters::Parameters;
use super::record_type::{DATA, HANDSHAKE, PLAIN_MAX};
use crate::socket::slices::{Bytes, Gather, Scatter, Takes, Target};
use std::io::{IoSlice, IoSliceMut};
use toe_abi::errno::Errno;

const ALERT: u8 = 21;
const SUITES: [(u16, u16); 6] =
    [(0x0303, 51), (0x0303, 52), (0x0303, 54), (0x0304, 51), (0x0304, 52), (0x0304, 54)];

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// `struct tls12_crypto_info_*`.
fn info((version, cipher): (u16, u16), key: &[u8], salt: &[u8], iv: &[u8], sequence: u64) -> Vec<u8> {
    let mut bytes = version.to_ne_bytes().to_vec();
    bytes.extend(cipher.to_ne_bytes());
    [iv, key, salt, &sequence.to_be_bytes()].iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn keys_of(suite: (u16, u16), seed: u8, sequence: u64) -> Keys {
    let key: Vec<u8> = (0..if suite.1 == 51 { 16 } else { 32 }).map(|n| n ^ seed).collect();
    let (salt, iv) = if suite.1 == 54 { (vec![], vec![seed; 12]) } else { (vec![seed; 4], vec![!seed; 8]) };
    let parameters = Parameters::read(&info(suite, &key, &salt, &iv, sequence)).expect("known");
    Keys::new(parameters).expect("a key")
}

fn pair(suite: (u16, u16)) -> (Outgoing, Incoming) {
    (Outgoing::new(keys_of(suite, 7, 0)), Incoming::new(keys_of(suite, 7, 0)))
}

/// The bytes of all records made of `plain`.
fn sealed(outgoing: &mut Outgoing, plain: &[u8], kind: u8, more: bool) -> Vec<u8> {
    let slices = [IoSlice::new(plain)];
    let mut from = Gather::new(&slices);
    let mut bytes = Vec::new();
    while from.left() > 0 {
        outgoing.fill(&mut from, kind, 1 << 20, more).expect("sealed");
        bytes.extend_from_slice(outgoing.waiting());
        outgoing.taken(outgoing.waiting().len());
    }
    bytes
}

/// Hands one record to `incoming`, as a stream does.
fn arrive(incoming: &mut Incoming, bytes: &mut &[u8]) -> Result<(), Errno> {
    incoming.refusal().map_or(Ok(()), Err)?;
    incoming.take_header(*bytes.first_chunk().expect("a header"))?;
    let (record, rest) = bytes.split_at(incoming.needed());
    *bytes = rest;
    incoming.take_record(record.to_vec())
}

/// Buffers that are told of the type.
struct Told<'a, 'b>(Scatter<'a, 'b>, Option<u8>);

impl Target for Told<'_, '_> {
    fn left(&self) -> usize {
        self.0.left()
    }
    fn take(&mut self, bytes: Bytes<'_>, max: usize) -> Result<usize, Errno> {
        self.0.take(bytes, max)
    }
    fn takes(&mut self, kind: u8) -> Takes {
        self.1 = Some(kind);
        Takes::Yes
    }
}

/// What the opened record gives, of which type.
fn given(incoming: &mut Incoming, room: usize, peek: bool) -> (Vec<u8>, Option<u8>) {
    let mut bytes = vec![0; room];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let mut told = Told(Scatter::new(&mut slices), None);
    let got = match incoming.give(&mut told, peek).expect("given") {
        Given::More(got) | Given::Last(got) => got,
        Given::Nothing => 0,
    };
    let kind = told.1;
    bytes.truncate(got);
    (bytes, kind)
}

/// RFC 8448, section 3: the client's application data.
#[test]
fn tls_1_3_seals_and_opens_as_the_rfc_shows() {
    let (key, nonce) = (hex("17422dda596ed5d9acd890e3c63f5051"), hex("5b78923dee08579033e523d9"));
    let info = info((0x0304, 51), &key, &nonce[..4], &nonce[4..], 0);
    let keys = || Keys::new(Parameters::read(&info).expect("known")).expect("a key");
    let plain: Vec<u8> = (0..50).collect();
    let record = hex(
        "17 03 03 00 43 a2 3f 70 54 b6 2c 94 d0 af fa fe 82 28 ba 55 cb ef ac ea 42 f9 14 aa 66 bc ab 3f 2b
         98 19 a8 a5 b4 6b 39 5b d5 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62 92 a2 97 70 14 bd 1e 3d ea e6 3a ee
         bb 21 69 49 15 e4",
    );
    assert_eq!(sealed(&mut Outgoing::new(keys()), &plain, DATA, false), record);
    let mut incoming = Incoming::new(keys());
    arrive(&mut incoming, &mut &record[..]).expect("opened");
    assert_eq!(given(&mut incoming, 99, false), (plain, Some(DATA)));
}

/// Made by Python's `cryptography`, after RFC 5288 and RFC 7905.
#[test]
fn tls_1_2_seals_as_another_library_does() {
    let count = |from: u8, to: u8| (from..to).collect::<Vec<u8>>();
    let gcm = info((0x0303, 51), &count(0, 16), &count(0xa0, 0xa4), &count(0x10, 0x18), 7);
    let chacha = info((0x0303, 54), &count(0, 32), &[], &count(0x20, 0x2c), 7);
    for (info, kind, record) in [
        (gcm, DATA, "1703030025101112131415161731f7867d983be9ca41c4a0556aff7a36f618a701e847d7264c7f04711c"),
        (chacha, ALERT, "150303001d9a4a1ed79786dfe76ea209182b791db7cd5b679942d4d95a1c4e69cd74"),
    ] {
        let keys = Keys::new(Parameters::read(&info).expect("known")).expect("a key");
        assert_eq!(sealed(&mut Outgoing::new(keys), b"hello records", kind, false), hex(record));
    }
}

/// A generator of its own: the order is all that counts.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }
}

#[test]
fn what_goes_in_comes_out_however_it_is_cut() {
    for (suite, seed) in SUITES.into_iter().flat_map(|suite| (0..20).map(move |seed| (suite, seed))) {
        let mut random = Random(seed);
        let (mut outgoing, mut incoming) = pair(suite);
        let plain: Vec<u8> = (0..random.below(100_000)).map(|n| (n * 7 % 251) as u8).collect();
        let mut wire = Vec::new();
        let mut at = 0;
        while at < plain.len() {
            let len = (1 + random.below(40_000)).min(plain.len() - at);
            let is_last = at + len == plain.len();
            wire.extend(sealed(&mut outgoing, &plain[at..at + len], DATA, !is_last && random.below(2) == 0));
            at += len;
        }
        let (mut rest, mut all) = (&wire[..], Vec::new());
        while !rest.is_empty() {
            arrive(&mut incoming, &mut rest).expect("opened");
            while incoming.opened() > 0 {
                let room = 1 + random.below(20_000);
                let peeked = given(&mut incoming, room, true);
                let got = given(&mut incoming, room, false);
                assert_eq!(peeked, got);
                let (keeps, back) = got.0.split_at(random.below(got.0.len() + 1));
                all.extend_from_slice(keeps);
                incoming.put_back(back.to_vec());
            }
        }
        assert!(all == plain, "{suite:?} seed {seed}: {} of {}", all.len(), plain.len());
    }
}

#[test]
fn records_fit_into_the_room_that_there_is() {
    for suite in SUITES {
        let (mut outgoing, mut incoming) = pair(suite);
        let plain = vec![5; 50_000];
        let slices = [IoSlice::new(&plain)];
        let mut from = Gather::new(&slices);
        let mut all = 0;
        for budget in (1..3_000).step_by(97).chain([1 << 20; 5]) {
            let taken = outgoing.fill(&mut from, DATA, budget, false).expect("sealed");
            assert!(outgoing.waiting().len() <= budget);
            assert_eq!(taken > 0, budget > outgoing.overhead() && all < plain.len());
            let wire = outgoing.waiting().to_vec();
            outgoing.taken(wire.len());
            let mut rest = &wire[..];
            while !rest.is_empty() {
                arrive(&mut incoming, &mut rest).expect("opened");
                all += given(&mut incoming, PLAIN_MAX, false).0.len();
            }
        }
        assert_eq!(all, plain.len());
    }
}

#[test]
fn with_more_to_come_a_record_stays_open() {
    for suite in SUITES {
        let (mut outgoing, mut incoming) = pair(suite);
        assert!(sealed(&mut outgoing, b"first ", DATA, true).is_empty() && outgoing.is_open());
        let wire = sealed(&mut outgoing, b"second", DATA, false);
        arrive(&mut incoming, &mut &wire[..]).expect("opened");
        assert_eq!(given(&mut incoming, 99, false).0, b"first second");
        sealed(&mut outgoing, b"alone", DATA, true);
        outgoing.end_record(usize::MAX).expect("sealed");
        let wire = outgoing.waiting().to_vec();
        arrive(&mut incoming, &mut &wire[..]).expect("opened");
        assert_eq!(given(&mut incoming, 99, false).0, b"alone");
        outgoing.taken(wire.len());
        // One that is full ends, whatever is to come.
        let wire = sealed(&mut outgoing, &vec![1; PLAIN_MAX + 10], DATA, true);
        assert_eq!(wire.len(), PLAIN_MAX + outgoing.overhead());
        assert!(outgoing.is_open());
    }
}

#[test]
fn types_are_told_and_refused_where_nobody_asks() {
    for suite in SUITES {
        let (mut outgoing, mut incoming) = pair(suite);
        let wire = sealed(&mut outgoing, &[1, 0], ALERT, false);
        arrive(&mut incoming, &mut &wire[..]).expect("opened");
        for _ in 0..2 {
            let mut bytes = [0; 9];
            let mut slices = [IoSliceMut::new(&mut bytes)];
            assert_eq!(incoming.give(&mut Scatter::new(&mut slices), false), Err(Errno::EIO));
        }
        assert_eq!(given(&mut incoming, 1, false), (vec![1], Some(ALERT)));
        assert_eq!(given(&mut incoming, 9, false), (vec![0], Some(ALERT)));
        assert_eq!(incoming.opened(), 0);
    }
}

#[test]
fn every_changed_byte_is_found_and_nothing_is_opened_after_it() {
    for suite in SUITES {
        let wire = sealed(&mut pair(suite).0, b"some bytes", DATA, false);
        for at in 0..wire.len() {
            let (_, mut incoming) = pair(suite);
            let mut bad = wire.clone();
            bad[at] ^= 0x40;
            // The length may say more than there is.
            bad.resize(70_000, 0);
            let errno = arrive(&mut incoming, &mut &bad[..]).expect_err("it was changed");
            assert!([EBADMSG, Errno::EMSGSIZE, Errno::EINVAL].contains(&errno), "{suite:?} {at}: {errno:?}");
            assert_eq!(incoming.refusal(), Some(errno), "it is told again");
            assert_eq!((incoming.opened(), incoming.is_ready(0)), (0, true));
        }
    }
}

#[test]
fn records_that_come_again_or_in_another_order_are_refused() {
    for suite in SUITES {
        let (mut outgoing, mut incoming) = pair(suite);
        let (first, second) =
            (sealed(&mut outgoing, b"1", DATA, false), sealed(&mut outgoing, b"2", DATA, false));
        let (_, mut other) = pair(suite);
        assert_eq!(arrive(&mut other, &mut &second[..]), Err(EBADMSG));
        assert_eq!(arrive(&mut incoming, &mut &first[..]), Ok(()));
        assert_eq!(given(&mut incoming, 9, false).0, b"1");
        assert_eq!(arrive(&mut incoming, &mut &first[..]), Err(EBADMSG));
        assert_eq!(arrive(&mut incoming, &mut &second[..]), Err(EBADMSG), "for good");
    }
}

#[test]
fn lengths_that_no_record_has_are_refused_before_anything_is_read() {
    for suite in SUITES {
        let keys = keys_of(suite, 1, 0);
        let of = |len: usize| {
            let [high, low] = (len as u16).to_be_bytes();
            keys.body_len([DATA, 3, 3, high, low])
        };
        let most = PLAIN_MAX + keys.overhead() - HEADER;
        assert_eq!((of(most), of(most + 1)), (Ok(most), Err(Errno::EMSGSIZE)));
        let least = keys.overhead() - HEADER;
        assert_eq!((of(least), of(least - 1), of(0)), (Ok(least), Err(EBADMSG), Err(EBADMSG)));
        assert_eq!(keys.body_len([DATA, 3, 1, 0, 99]), Err(Errno::EINVAL));
        assert_eq!(keys.body_len(*b"GET /"), Err(Errno::EINVAL), "it is not TLS");
    }
}

/// Of TLS 1.3: padding is taken away, and what is nothing but padding has no type.
#[test]
fn padding_is_not_the_programs() {
    for suite in [(0x0304, 51), (0x0304, 54)] {
        // The type at the end is part of what is sealed: with zeros behind it, the record's own type is padding.
        let (mut outgoing, mut incoming) = pair(suite);
        let wire = sealed(&mut outgoing, &[b'x', DATA, 0, 0, 0], 0, false);
        arrive(&mut incoming, &mut &wire[..]).expect("opened");
        assert_eq!(given(&mut incoming, 9, false), (b"x".to_vec(), Some(DATA)));
        let wire = sealed(&mut outgoing, &[0; 9], 0, false);
        assert_eq!(arrive(&mut incoming, &mut &wire[..]), Err(EBADMSG));
    }
}

#[test]
fn a_record_without_bytes_is_no_end() {
    for suite in SUITES {
        let mut record = vec![0; keys_of(suite, 7, 0).overhead()];
        keys_of(suite, 7, 0).seal(DATA, &mut record, 0).expect("sealed");
        let (_, mut incoming) = pair(suite);
        arrive(&mut incoming, &mut &record[..]).expect("opened");
        assert!(!incoming.is_ready(0), "there is nothing to read");
    }
}

#[test]
fn after_a_key_update_nothing_is_opened_without_the_next_key() {
    for suite in [(0x0304, 51), (0x0304, 52), (0x0304, 54)] {
        let (mut outgoing, mut incoming) = pair(suite);
        let mut wire = sealed(&mut outgoing, &[24, 0, 0, 1, 0], HANDSHAKE, false);
        outgoing.rekey(keys_of(suite, 99, 0));
        wire.extend(sealed(&mut outgoing, b"new", DATA, false));
        let mut rest = &wire[..];
        arrive(&mut incoming, &mut rest).expect("opened");
        assert_eq!(given(&mut incoming, 99, false), (vec![24, 0, 0, 1, 0], Some(HANDSHAKE)));
        assert_eq!(arrive(&mut incoming, &mut rest), Err(EKEYEXPIRED));
        incoming.rekey(keys_of(suite, 99, 0));
        arrive(&mut incoming, &mut rest).expect("opened");
        assert_eq!(given(&mut incoming, 99, false).0, b"new");
    }
}

/// No number is used twice.
#[test]
fn used_up_numbers_end_the_direction() {
    for suite in SUITES {
        let (mut out, mut record) = (keys_of(suite, 1, u64::MAX), Vec::new());
        record.resize(out.overhead(), 0);
        assert_eq!(out.seal(DATA, &mut record, 0), Ok(record.len()));
        let mut body = record[HEADER..].to_vec();
        let header = *record.first_chunk().expect("a header");
        let mut incoming = keys_of(suite, 1, u64::MAX);
        assert!(incoming.open(header, &mut body).is_ok());
        assert_eq!(incoming.open(header, &mut body).err(), Some(EBADMSG));
        let mut next = vec![0; out.overhead()];
        assert_eq!(out.seal(DATA, &mut next, 0), Err(EBADMSG));
    }
}
