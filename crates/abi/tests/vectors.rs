//! The committed test vector: what an implementation of the interface in any language must write and read.
//!
//! `crates/abi/vectors/host-interface.txt` was written by this test's own table and then frozen: a change of any
//! layout, number or encoding makes it fail, and needs a new interface version with a new file.

mod common;

use common::{entry_bytes, name_of};
use core::fmt::{Debug, Write};
use toe_abi::attach::{Message, Reply, Request};
use toe_abi::channel::ChannelEntry;
use toe_abi::entry::{Command, Completion, RawEntry, ReceiveCredit, Send};
use toe_abi::via::Fragment;
use zerocopy::{FromBytes, IntoBytes};

const COMMITTED: &str = include_str!("../vectors/host-interface.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

fn line(group: &str, value: &impl Debug, bytes: &[u8]) -> String {
    format!("{group} | {value:?} | {}", hex(bytes))
}

fn header() -> String {
    format!(
        "# OpenTOE host interface, version {}: test vector.\n\
         # Each line: where it stands | its fields | its bytes in memory order, in hexadecimal.\n\
         # Entries of cmd, snd, rcv, cpl and a channel have the epoch bit of a first lap (1). A flow or listener is shown as\n\
         # slot.generation. See docs/host-interface.md.\n",
        toe_abi::INTERFACE_VERSION
    )
}

/// The vector as this code writes it.
fn written() -> String {
    let first_lap = |raw: RawEntry| entry_bytes(raw.with_epoch(true));
    let mut lines = Vec::new();
    lines.extend(common::commands().iter().map(|c| line("cmd", c, &first_lap(c.encode()))));
    lines.extend(common::sends().iter().map(|s| line("snd", s, &first_lap(s.encode()))));
    lines.extend(common::credits().iter().map(|c| line("rcv", c, &first_lap(c.encode()))));
    lines.extend(common::completions().iter().map(|c| line("cpl", c, &first_lap(c.encode()))));
    lines.extend(common::channel_entries().iter().map(|c| line("channel", c, &first_lap(c.encode()))));
    lines.extend(common::via_fragments().iter().map(|(place, fragment)| {
        let bytes: Vec<u8> = fragment.encode(*place).iter().flat_map(|word| word.to_le_bytes()).collect();
        line("via", fragment, &bytes)
    }));
    lines.extend(common::requests().iter().map(|r| line("request", r, r.encode().as_bytes())));
    lines.extend(common::replies().iter().map(|r| line("reply", r, r.encode().as_bytes())));
    let refusal = common::version_refusal();
    let refused = Reply::decode(&refusal).expect("a reply");
    lines.push(line("reply-to-another-version", &refused, refusal.as_bytes()));
    lines.push(line("argument-block", &common::listen_args(), common::listen_args().as_bytes()));
    lines.push(line("argument-block", &common::connect_args(), common::connect_args().as_bytes()));
    lines.push(line("flow-info", &common::flow_info(), common::flow_info().as_bytes()));
    lines.push(line("flow-detail", &common::flow_detail(), common::flow_detail().as_bytes()));
    lines.push(line("region-header", &common::region_header(), common::region_header().as_bytes()));
    header() + &lines.join("\n") + "\n"
}

#[test]
fn the_code_writes_the_committed_bytes() {
    let written = written();
    for (line, (ours, theirs)) in written.lines().zip(COMMITTED.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {} of vectors/host-interface.txt", line + 1);
    }
    assert_eq!(written.lines().count(), COMMITTED.lines().count(), "lines were added or lost:\n{written}");
}

fn raw_entry(bytes: &[u8]) -> RawEntry {
    let (word0, word1) = bytes.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    RawEntry { word0: word(word0), word1: word(word1) }
}

#[test]
fn the_code_reads_the_committed_bytes() {
    let mut lines = 0;
    for line in COMMITTED.lines().filter(|line| !line.starts_with('#')) {
        let [group, fields, bytes] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("three columns: {line}");
        };
        let bytes = unhex(bytes);
        let read = match group {
            "cmd" => format!("{:?}", Command::decode(raw_entry(&bytes)).expect(line)),
            "snd" => format!("{:?}", Send::decode(raw_entry(&bytes)).expect(line)),
            "rcv" => format!("{:?}", ReceiveCredit::decode(raw_entry(&bytes)).expect(line)),
            "cpl" => format!("{:?}", Completion::decode(raw_entry(&bytes)).expect(line)),
            "channel" => format!("{:?}", ChannelEntry::decode(raw_entry(&bytes)).expect(line)),
            "via" => {
                let RawEntry { word0, word1 } = raw_entry(&bytes);
                format!("{:?}", Fragment::decode([word0, word1]).expect(line))
            }
            "request" => format!("{:?}", Request::decode(&Message::parse(&bytes).expect(line)).expect(line)),
            "reply" | "reply-to-another-version" => {
                format!("{:?}", Reply::decode(&Message::parse(&bytes).expect(line)).expect(line))
            }
            "argument-block" if fields.starts_with("Listen") => {
                format!("{:?}", toe_abi::command::ListenArgs::read_from_bytes(&bytes).expect(line))
            }
            "argument-block" => {
                format!("{:?}", toe_abi::command::ConnectArgs::read_from_bytes(&bytes).expect(line))
            }
            "flow-info" => format!("{:?}", toe_abi::command::FlowInfo::read_from_bytes(&bytes).expect(line)),
            "flow-detail" => {
                format!("{:?}", toe_abi::tcp_info::FlowDetail::read_from_bytes(&bytes).expect(line))
            }
            "region-header" => {
                format!("{:?}", toe_abi::region::RegionHeader::read_from_bytes(&bytes).expect(line))
            }
            other => panic!("no such group: {other}"),
        };
        assert_eq!(read, fields);
        lines += 1;
    }
    assert!(lines > 40, "{lines}");
}

#[test]
fn the_vector_has_an_example_of_every_type() {
    let has = |group: &str, name: &str| {
        COMMITTED.lines().any(|line| line.starts_with(&format!("{group} | {name} ")))
    };
    // Any entry of a type that decodes at all is decoded with small argument 1, which names an option.
    for kind in 0..=u64::from(u8::MAX) {
        let raw = RawEntry { word0: kind | 1 << 16, word1: 0 };
        let decoded = [
            ("cmd", Command::decode(raw).ok().map(|c| name_of(&c))),
            ("snd", Send::decode(raw).ok().map(|s| name_of(&s))),
            ("rcv", ReceiveCredit::decode(raw).ok().map(|c| name_of(&c))),
            ("cpl", Completion::decode(raw).ok().map(|c| name_of(&c))),
            ("channel", ChannelEntry::decode(raw).ok().map(|c| name_of(&c))),
        ];
        for (group, name) in decoded {
            if let Some(name) = name {
                assert!(has(group, &name), "{group} {name}");
            }
        }
    }
    for kind in 0..=u16::MAX {
        let mut message = Request::Hello { room: 0 }.encode();
        message.kind = kind;
        if let Ok(request) = Request::decode(&message) {
            assert!(has("request", &name_of(&request)), "{request:?}");
        }
        if let Ok(reply) = Reply::decode(&message) {
            assert!(has("reply", &name_of(&reply)), "{reply:?}");
        }
    }
}
