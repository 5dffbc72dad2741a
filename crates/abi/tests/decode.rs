//! Decoding what the other side wrote: total, exact, and never a panic.

mod common;

use toe_abi::attach::{BadMessage, FenceReason, MESSAGE_MAGIC, Message, Reply, Request};
use toe_abi::channel::{CHANNEL_ENTRIES, ChannelEntry, ChannelLayout, DATA_LEN, SLOTS_MAX, Side};
use toe_abi::command::WireAddr;
use toe_abi::entry::{BadEntry, Command, Completion, FlowOption, MemRange, RawEntry, ReceiveCredit, Send};
use toe_abi::region::RegionLayout;
use toe_abi::register::IrqMode;
use toe_base::{Cred, FlowId};
use zerocopy::IntoBytes;

/// A small seeded generator (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[test]
fn every_entry_comes_back_on_either_lap() {
    for epoch in [false, true] {
        for command in common::commands() {
            let raw = command.encode().with_epoch(epoch);
            assert_eq!(raw.epoch(), epoch);
            assert_eq!(Command::decode(raw), Ok(command));
            assert_eq!(u64::from(command.kind()), raw.word0 & 0xff);
        }
        for send in common::sends() {
            assert_eq!(Send::decode(send.encode().with_epoch(epoch)), Ok(send));
        }
        for credit in common::credits() {
            assert_eq!(ReceiveCredit::decode(credit.encode().with_epoch(epoch)), Ok(credit));
        }
        for completion in common::completions() {
            assert_eq!(Completion::decode(completion.encode().with_epoch(epoch)), Ok(completion));
        }
        for entry in common::channel_entries() {
            assert_eq!(ChannelEntry::decode(entry.encode().with_epoch(epoch)), Ok(entry));
        }
    }
}

#[test]
fn an_entry_of_one_queue_is_none_of_another() {
    for command in common::commands() {
        assert!(Send::decode(command.encode()).is_err());
        assert!(ReceiveCredit::decode(command.encode()).is_err());
        assert!(Completion::decode(command.encode()).is_err());
    }
    for completion in common::completions() {
        assert!(Command::decode(completion.encode()).is_err());
    }
    for entry in common::channel_entries() {
        assert!(Command::decode(entry.encode()).is_err() && Completion::decode(entry.encode()).is_err());
    }
    for send in common::sends() {
        assert!(Command::decode(send.encode()).is_err() && ReceiveCredit::decode(send.encode()).is_err());
    }
}

/// Decodes an entry as each queue would. What is accepted means the same when it is written again.
fn decode_all_ways(raw: RawEntry) {
    let kind = raw.word0 as u8;
    match Command::decode(raw) {
        Ok(command) => assert_eq!(Command::decode(command.encode()), Ok(command)),
        Err(BadEntry::UnknownType(seen)) => assert_eq!(seen, kind),
        Err(BadEntry::UnknownArgument) => assert_eq!(kind, 9),
    }
    match Send::decode(raw) {
        Ok(send) => assert_eq!(Send::decode(send.encode()), Ok(send)),
        Err(bad) => assert_eq!(bad, BadEntry::UnknownType(kind)),
    }
    match ReceiveCredit::decode(raw) {
        Ok(credit) => assert_eq!(ReceiveCredit::decode(credit.encode()), Ok(credit)),
        Err(bad) => assert_eq!(bad, BadEntry::UnknownType(kind)),
    }
    match Completion::decode(raw) {
        Ok(completion) => assert_eq!(Completion::decode(completion.encode()), Ok(completion)),
        Err(bad) => assert_eq!(bad, BadEntry::UnknownType(kind)),
    }
    match ChannelEntry::decode(raw) {
        Ok(entry) => {
            assert!(entry.slot().0 < SLOTS_MAX);
            assert_eq!(ChannelEntry::decode(entry.encode()), Ok(entry));
        }
        Err(BadEntry::UnknownType(seen)) => assert_eq!(seen, kind),
        Err(BadEntry::UnknownArgument) => assert!(raw.word0 >> 32 >= u64::from(SLOTS_MAX)),
    }
}

#[test]
fn every_type_and_flag_with_any_argument_decodes_to_something() {
    let mut random = Random(1);
    for low in 0..=u64::from(u16::MAX) {
        for high in [0, u64::MAX, random.next(), random.next()] {
            for word1 in [0, u64::MAX, random.next()] {
                decode_all_ways(RawEntry { word0: low | (high << 16), word1 });
            }
        }
    }
    for _ in 0..1_000_000 {
        decode_all_ways(RawEntry { word0: random.next(), word1: random.next() });
    }
}

#[test]
fn only_the_options_that_exist_are_accepted() {
    let option = |small: u64| Command::decode(RawEntry { word0: 9 | (small << 16), word1: 7 });
    let known = (0..=u64::from(u16::MAX)).filter(|&small| option(small).is_ok()).count();
    assert_eq!(known, 20);
    assert_eq!(option(0), Err(BadEntry::UnknownArgument));
    let flow = FlowId::from_raw(0);
    assert_eq!(option(1), Ok(Command::SetOption { flow, option: FlowOption::NoDelay, value: 7 }));
}

#[test]
fn a_range_lies_within_or_not_without_overflow() {
    let (start, len) = (4096u64, 8192u64);
    for offset in [0, 1, 4095, 4096, 4097, 12_287, 12_288, 12_289, (1 << 40) - 1, u64::MAX] {
        for size in [0u32, 1, 2, 8191, 8192, 8193, (1 << 24) - 1, u32::MAX] {
            let range = MemRange { offset, len: size };
            let end = u128::from(offset) + u128::from(size);
            let inside = size > 0 && offset >= start && end <= u128::from(start + len);
            assert_eq!(range.lies_in(start, len), inside, "{range:?}");
            assert!(!range.lies_in(start, 0));
            assert!(!range.lies_in(u64::MAX, len) || offset == u64::MAX);
        }
    }
}

#[test]
fn every_message_comes_back_and_no_bytes_make_one_panic() {
    for request in common::requests() {
        let message = request.encode();
        let parsed = Message::parse(message.as_bytes()).unwrap();
        assert_eq!(Request::decode(&parsed), Ok(request));
        assert!(Reply::decode(&parsed).is_err());
    }
    for reply in common::replies() {
        let parsed = Message::parse(reply.encode().as_bytes()).unwrap();
        assert_eq!(Reply::decode(&parsed), Ok(reply));
        assert!(Request::decode(&parsed).is_err());
    }
    let mut random = Random(2);
    for round in 0..500_000u32 {
        let mut message = Request::Hello { room: 0 }.encode();
        message.kind = if round % 2 == 0 { random.next() as u16 & 0x1ff } else { random.next() as u16 };
        // Small and large arguments in turn: the small ones pass more of the checks.
        message.args = core::array::from_fn(|_| random.next() >> (random.next() & 63));
        let _ = Request::decode(&message);
        if let Ok(Reply::Welcome { layout, .. }) = Reply::decode(&message) {
            assert!(layout.is_addressable());
            assert!(layout.len() <= 1 << 40);
        }
        let length = random.next() as usize % 130;
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        assert_eq!(Message::parse(&bytes), Err(BadMessage::NotAMessage));
    }
}

#[test]
fn a_message_of_another_version_is_told_apart_from_no_message() {
    let mut message = Request::Hello { room: 0 }.encode();
    assert_eq!(Message::parse(&message.as_bytes()[..63]), Err(BadMessage::NotAMessage));
    assert_eq!(Message::parse(&[message.as_bytes(), &[0]].concat()), Err(BadMessage::NotAMessage));
    let other = toe_abi::INTERFACE_VERSION + 1;
    message.version = other;
    assert_eq!(Message::parse(message.as_bytes()), Err(BadMessage::Version(other)));
    message.magic = MESSAGE_MAGIC + 1;
    assert_eq!(Message::parse(message.as_bytes()), Err(BadMessage::NotAMessage));
    assert_eq!(
        Reply::decode(&common::version_refusal()),
        Ok(Reply::Refused { errno: toe_abi::errno::Errno::EPROTO.0, version: toe_abi::INTERFACE_VERSION })
    );
}

#[test]
fn arguments_that_are_too_large_are_refused_not_cut() {
    let mut message = Request::TakeAnchors { count: 1 }.encode();
    message.args[0] = 1 << 32;
    assert_eq!(Request::decode(&message), Err(BadMessage::BadArgument));
    let mut message = Request::Claim { queue_set: 0, fd: 0 }.encode();
    message.args[0] = 256;
    assert_eq!(Request::decode(&message), Err(BadMessage::BadArgument));
    let huge = RegionLayout { send_len: u64::MAX - 5, ..common::LAYOUT };
    assert!(!huge.is_addressable());
    assert_eq!(
        Reply::decode(&Reply::Welcome { session: 1, layout: huge }.encode()),
        Err(BadMessage::BadArgument)
    );
}

#[test]
fn addresses_and_numbers_come_back() {
    for text in ["192.0.2.1:80", "0.0.0.0:0", "[2001:db8::1]:443", "[::]:1"] {
        let addr: core::net::SocketAddr = text.parse().unwrap();
        assert_eq!(WireAddr::from(addr).to_socket_addr(), Some(addr));
    }
    for family in (0..=u16::MAX).filter(|f| ![4, 6].contains(f)) {
        assert_eq!(WireAddr { family, ..WireAddr::default() }.to_socket_addr(), None);
    }
    for raw in 0..1000 {
        assert!(IrqMode::from_raw(raw).is_none_or(|mode| mode.to_raw() == raw));
        assert!(FenceReason::from_raw(raw).is_none_or(|reason| reason as u32 == raw));
    }
    for (at, reason) in FenceReason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, at + 1);
        assert_eq!(FenceReason::from_raw(*reason as u32), Some(*reason));
    }
}

#[test]
fn the_parts_of_a_region_follow_each_other_without_overlap() {
    for queue_sets in [1, 4, 16] {
        for flows in [1, 63, 1 << 15] {
            let layout = RegionLayout { queue_sets, flows, ..common::LAYOUT };
            assert!(layout.queue_set(queue_sets) <= layout.flow_info(0));
            assert!(layout.flow_info(flows as usize) <= layout.owner_word(0));
            assert!(layout.owner_word(flows as usize) <= layout.flow_detail_offset());
            assert!(layout.flow_detail(flows as usize) <= layout.socket_options_offset());
            assert!(layout.socket_options(flows as usize) <= layout.receive_offset());
            assert_eq!(layout.receive_offset() % 4096, 0);
            assert_eq!(layout.receive_offset() + layout.receive_len, layout.send_offset());
            assert_eq!(layout.send_offset() + layout.send_len, layout.len());
        }
    }
}

#[test]
fn the_parts_of_a_channel_follow_each_other_without_overlap() {
    let ring = u64::from(CHANNEL_ENTRIES) * 16;
    let [zero, one] = [Side::Zero, Side::One];
    assert!(ChannelLayout::armed(zero) < ChannelLayout::head(one));
    assert!(ChannelLayout::armed(one) < ChannelLayout::entries(zero));
    assert_eq!(ChannelLayout::entries(zero) + ring, ChannelLayout::entries(one));
    assert_eq!(ChannelLayout::entries(one) + ring, ChannelLayout::line(0, zero));
    assert_eq!(ChannelLayout::line(0, zero) + 64, ChannelLayout::line(0, one));
    assert_eq!(ChannelLayout::line(SLOTS_MAX, zero), ChannelLayout::data(zero));
    assert_eq!(ChannelLayout::data(zero) + DATA_LEN, ChannelLayout::data(one));
    assert_eq!(ChannelLayout::data(one) + DATA_LEN, ChannelLayout::LEN);
    for index in 2..100 {
        assert_eq!(Side::from_index(index), None);
    }
    let mut message = Reply::Channel { side: one, peer: Cred::default() }.encode();
    message.args[0] = 2;
    assert_eq!(Reply::decode(&message), Err(BadMessage::BadArgument));
}
