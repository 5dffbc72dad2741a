//! The tables of `docs/host-interface.md` against the code: every number, offset and length.

mod common;

use common::name_of;
use core::mem::offset_of;
use std::collections::BTreeMap;
use toe_abi::attach::{ANCHORS_AT_ONCE, DESCRIPTORS_MAX, FenceReason, Message, Reply, Request};
use toe_abi::channel::{
    ALL_READ, CHANNEL_ENTRIES, ChannelLayout, DATA_LEN, FROZEN, SLOT_LEN, SLOTS_MAX, Side, SlotLine,
};
use toe_abi::command::{ConnectArgs, FlowInfo, ListenArgs, NO_HANDLE, SocketOptions, WireAddr};
use toe_abi::entry::{Command, RANGE_LEN_MAX, RawEntry};
use toe_abi::lane::{
    DATAGRAM_MAX, DatagramHeader, LaneLayout, LaneWord, RECORD_MAX, RECORD_UNIT, RING_LEN_MAX, RING_LEN_MIN,
};
use toe_abi::owner_word::Owned;
use toe_abi::region::{
    ARG_LEN, CMD_ENTRIES, CPL_ENTRIES, DOORBELL_FOR_ENTRIES, DOORBELL_FOR_HEAD, ENTRY_LEN, LOAD, Load, NAMES,
    QUEUE_SET_STRIDE, QueueSetLayout, RCV_ENTRIES, RegionHeader, SND_ENTRIES,
};
use toe_abi::register::{EngineRegisters, HostRegisters, IrqMode};
use toe_abi::tcp_info::FlowDetail;
use toe_abi::via::{self, Fragment, ViaLayout};
use toe_base::{FlowId, limits};

const DOCUMENT: &str = include_str!("../../../docs/host-interface.md");

/// The rows of the table under a heading, cells without their back-quotes; header and ruler left out.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let section = DOCUMENT.split(&format!("# {heading}\n")).nth(1).unwrap_or_else(|| panic!("no {heading}"));
    let rows: Vec<_> = section
        .lines()
        .take_while(|line| !line.starts_with('#'))
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
        .collect();
    assert!(rows.len() > 2, "{heading} has a table");
    rows[2..].to_vec()
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .unwrap_or_else(|_| panic!("not a number: {text}"))
}

/// Name → number, from a table whose first column is the number and second the name.
fn numbered(heading: &str) -> BTreeMap<String, u64> {
    table(heading).iter().map(|row| (row[1].to_owned(), number(row[0]))).collect()
}

fn expected<'a>(pairs: impl IntoIterator<Item = (&'a str, u64)>) -> BTreeMap<String, u64> {
    pairs.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
}

fn type_of(raw: RawEntry) -> u64 {
    raw.word0 & 0xff
}

#[test]
fn entry_types() {
    let commands = common::commands().into_iter().map(|c| (name_of(&c), type_of(c.encode()))).collect();
    assert_eq!(numbered("Commands"), commands);
    let sends = common::sends().into_iter().map(|s| (name_of(&s), type_of(s.encode()))).collect();
    assert_eq!(numbered("Data to send"), sends);
    let credits = common::credits().into_iter().map(|c| (name_of(&c), type_of(c.encode()))).collect();
    assert_eq!(numbered("Receive credit"), credits);
    let completions = common::completions().into_iter().map(|c| (name_of(&c), type_of(c.encode()))).collect();
    assert_eq!(numbered("Completions"), completions);
    let entries = common::channel_entries().into_iter().map(|e| (name_of(&e), type_of(e.encode()))).collect();
    assert_eq!(numbered("Channel entries"), entries);
}

#[test]
fn the_layout_of_a_channel() {
    let [zero, one] = [Side::Zero, Side::One];
    let rows = table("Layout of a channel");
    let got: BTreeMap<_, _> = rows.iter().map(|row| (row[2].to_owned(), number(row[0]))).collect();
    let parts = [
        ("REGISTERS_0", ChannelLayout::head(zero)),
        ("REGISTERS_1", ChannelLayout::head(one)),
        ("ENTRIES_0", ChannelLayout::entries(zero)),
        ("ENTRIES_1", ChannelLayout::entries(one)),
        ("SLOTS", ChannelLayout::line(0, zero)),
        ("DATA_0", ChannelLayout::data(zero)),
        ("DATA_1", ChannelLayout::data(one)),
    ];
    assert_eq!(got, expected(parts));
    assert_rows_are_dense(&rows, ChannelLayout::LEN);
    let registers = [("HEAD", 0), ("ARMED", ChannelLayout::armed(zero) - ChannelLayout::head(zero))];
    assert_eq!(numbered("Channel registers"), expected(registers));
    let line = [("SENT", SlotLine::SENT), ("READ", SlotLine::READ), ("DONE", SlotLine::DONE)];
    assert_eq!(numbered("A slot's line"), expected(line));
    let sizes = [
        ("CHANNEL_ENTRIES", u64::from(CHANNEL_ENTRIES)),
        ("SLOTS_MAX", u64::from(SLOTS_MAX)),
        ("SLOT_LEN", SLOT_LEN),
        ("DATA_LEN", DATA_LEN),
    ];
    let got: BTreeMap<_, _> =
        table("Sizes of a channel").iter().map(|row| (row[0].to_owned(), number(row[1]))).collect();
    assert_eq!(got, expected(sizes));
    assert_eq!((FROZEN, ALL_READ), (1 << 63, u64::MAX));
}

#[test]
fn the_layout_of_a_lane() {
    let rows = table("Layout of a lane");
    let got: BTreeMap<_, _> = rows.iter().map(|row| (row[2].to_owned(), number(row[0]))).collect();
    let parts = [("WORD", LaneLayout::WORD), ("HEAD", LaneLayout::HEAD), ("RING", LaneLayout::RING)];
    assert_eq!(got, expected(parts));
    assert_eq!((RING_LEN_MIN, RING_LEN_MAX, RECORD_UNIT, DATAGRAM_MAX), (1 << 18, 1 << 22, 8, 65507));
    assert_eq!(RECORD_MAX, 65555);
    assert_eq!((LaneWord::RINGING, LaneWord::ASLEEP), (1 << 60, 1 << 61));
    assert_eq!((LaneWord::DIVERTED, LaneWord::CLOSED), (1 << 62, 1 << 63));
    assert_eq!((toe_abi::lane::HAS_DATAGRAM_HEADER, toe_abi::lane::VOID), (1 << 32, 1 << 33));
    assert_eq!(
        (LaneWord(u64::MAX).tail(), LaneWord(u64::MAX).opening()),
        ((1 << 47) - 1, ((1 << 13) - 1) << 47)
    );
}

#[test]
fn the_layout_of_a_connection_of_virtual_interfaces() {
    let rows = table("Layout of a connection's memory");
    let got: BTreeMap<_, _> = rows.iter().map(|row| (row[2].to_owned(), number(row[0]))).collect();
    let [zero, one] = [Side::Zero, Side::One];
    let parts = [
        ("STATE", ViaLayout::STATE),
        ("REGISTERS_0", ViaLayout::registers(zero)),
        ("REGISTERS_1", ViaLayout::registers(one)),
        ("SLOTS_0", ViaLayout::slots(zero)),
        ("SLOTS_1", ViaLayout::slots(one)),
        ("DATA_0", ViaLayout::data(zero)),
        ("DATA_1", ViaLayout::data(one)),
    ];
    assert_eq!(got, expected(parts));
    assert_rows_are_dense(&rows, ViaLayout::LEN);
    let registers =
        [("TAKEN", ViaLayout::TAKEN), ("ARMED", ViaLayout::ARMED), ("ATTRIBUTES", ViaLayout::ATTRIBUTES)];
    assert_eq!(numbered("Registers of a side"), expected(registers));
    let sizes = (via::SLOTS, via::SLOT_LEN, via::INLINE_MAX, via::FRAGMENT_MAX, via::MESSAGE_MAX);
    assert_eq!(sizes, (512, 64, 48, 16384, 1 << 40));
    let word0 = |place, begins| Fragment { len: 5, begins }.encode(place)[0];
    assert_eq!([word0(0, Some(9)), word0(512, None)], [1 | 1 << 8 | 1 << 9 | 5 << 32, 1 | 5 << 32]);
}

#[test]
fn options_modes_and_reasons() {
    let options = (0..=u64::from(u16::MAX)).filter_map(|small| {
        match Command::decode(RawEntry { word0: 9 | small << 16, word1: 0 }) {
            Ok(Command::SetOption { option, .. }) => Some((name_of(&option), small)),
            _ => None,
        }
    });
    assert_eq!(numbered("Flow options"), options.collect());
    let modes = (0..100).filter_map(|raw| Some((name_of(&IrqMode::from_raw(raw)?), u64::from(raw))));
    assert_eq!(numbered("Interrupt modes"), modes.collect());
    let reasons = FenceReason::ALL.iter().map(|&reason| (reason.name(), reason as u64));
    assert_eq!(numbered("Fence reasons"), expected(reasons));
    let bells = [
        ("DOORBELL_FOR_ENTRIES", u64::from(DOORBELL_FOR_ENTRIES)),
        ("DOORBELL_FOR_HEAD", u64::from(DOORBELL_FOR_HEAD)),
    ];
    assert_eq!(numbered("The doorbell"), expected(bells));
}

#[test]
fn messages() {
    let requests =
        common::requests().into_iter().map(|r: Request| (name_of(&r), u64::from(r.encode().kind))).collect();
    assert_eq!(numbered("Requests"), requests);
    let replies = common::replies().into_iter().map(|r: Reply| (name_of(&r), u64::from(r.encode().kind)));
    assert_eq!(numbered("Replies"), replies.collect());
}

#[test]
fn registers() {
    let engine = [
        ("CMD_HEAD", EngineRegisters::CMD_HEAD),
        ("SND_HEAD", EngineRegisters::SND_HEAD),
        ("RCV_HEAD", EngineRegisters::RCV_HEAD),
    ];
    assert_eq!(numbered("Engine registers"), expected(engine));
    let host = [
        ("CPL_HEAD", HostRegisters::CPL_HEAD),
        ("IRQ_ARMED", HostRegisters::IRQ_ARMED),
        ("IRQ_MODE", HostRegisters::IRQ_MODE),
        ("IRQ_COUNT", HostRegisters::IRQ_COUNT),
        ("IRQ_AFTER_US", HostRegisters::IRQ_AFTER_US),
    ];
    assert_eq!(numbered("Host registers"), expected(host));
}

#[test]
fn owner_words() {
    let none = FlowId::from_raw(0);
    let says = [
        ("Offered", Owned::Offered),
        ("Held", Owned::Held),
        ("InUse", Owned::InUse),
        ("Withdrawn", Owned::Withdrawn),
    ];
    assert_eq!(numbered("Owner words"), expected(says.map(|(name, says)| (name, says.word(none) >> 32))));
}

#[test]
fn the_layout_of_a_queue_set() {
    let parts = [
        ("ENGINE_REGISTERS", QueueSetLayout::ENGINE_REGISTERS),
        ("HOST_REGISTERS", QueueSetLayout::HOST_REGISTERS),
        ("CMD", QueueSetLayout::CMD),
        ("ARGS", QueueSetLayout::ARGS),
        ("SND", QueueSetLayout::SND),
        ("RCV", QueueSetLayout::RCV),
        ("CPL", QueueSetLayout::CPL),
    ];
    let rows = table("Layout of a queue set");
    let got: BTreeMap<_, _> = rows.iter().map(|row| (row[2].to_owned(), number(row[0]))).collect();
    assert_eq!(got, expected(parts));
    assert_rows_are_dense(&rows, QUEUE_SET_STRIDE);
    assert!(DOCUMENT.contains(&format!("4096 + *i* × {QUEUE_SET_STRIDE} | {QUEUE_SET_STRIDE} ")));
    let sizes = table("The picture").iter().map(|row| (row[0].to_owned(), number(row[3]))).collect();
    let entries = [("cmd", CMD_ENTRIES), ("snd", SND_ENTRIES), ("rcv", RCV_ENTRIES), ("cpl", CPL_ENTRIES)];
    assert_eq!(expected(entries.map(|(name, n)| (name, u64::from(n)))), sizes);
    assert_eq!((ENTRY_LEN, ARG_LEN), (16, 64));
}

/// The rows (offset, length, …) cover `0 .. total` without gaps.
fn assert_rows_are_dense(rows: &[Vec<&str>], total: u64) {
    let mut at = 0;
    for row in rows {
        assert_eq!(number(row[0]), at, "{row:?}");
        at += number(row[1]);
    }
    assert_eq!(at, total);
}

#[test]
fn records() {
    macro_rules! record {
        ($heading:literal, $type:ty, $($field:ident),+) => {
            let rows = table($heading);
            let offsets = [$((stringify!($field), offset_of!($type, $field) as u64)),+];
            let got: BTreeMap<_, _> = rows.iter().map(|row| (row[2].to_owned(), number(row[0]))).collect();
            assert_eq!(got, expected(offsets), $heading);
            assert_rows_are_dense(&rows, size_of::<$type>() as u64);
        };
    }
    record!(
        "Region header",
        RegionHeader,
        magic,
        version,
        session,
        queue_sets,
        flows,
        reserved,
        receive_offset,
        receive_len,
        send_offset,
        send_len,
        doorbell_wanted,
        fenced
    );
    record!("Load", Load, flows, busy_permille, at_ms);
    record!("Address record", WireAddr, family, port, addr);
    record!(
        "Head of a record",
        DatagramHeader,
        peer,
        own,
        segment,
        hop_limit,
        traffic_class,
        mtu_discover,
        reserved
    );
    record!("ListenArgs", ListenArgs, local, backlog, anchor, twin, fd, flags, reserved);
    record!("ConnectArgs", ConnectArgs, remote, local, anchor, fd, flags, twin, flow, reserved);
    record!(
        "FlowInfo",
        FlowInfo,
        local,
        remote,
        mss,
        soft_error,
        soft_errors,
        srtt_us,
        rttvar_us,
        cwnd,
        retransmits,
        port,
        state,
        flags,
        congestion
    );
    record!("SocketOptions", SocketOptions, flow, len, bytes);
    record!(
        "FlowDetail",
        FlowDetail,
        state,
        ca_state,
        retransmits,
        probes,
        backoff,
        options,
        wscale,
        app_limited,
        rto,
        ato,
        snd_mss,
        rcv_mss,
        unacked,
        sacked,
        lost,
        retrans,
        fackets,
        last_data_sent,
        last_ack_sent,
        last_data_recv,
        last_ack_recv,
        pmtu,
        rcv_ssthresh,
        rtt,
        rttvar,
        snd_ssthresh,
        snd_cwnd,
        advmss,
        reordering,
        rcv_rtt,
        rcv_space,
        total_retrans,
        pacing_rate,
        max_pacing_rate,
        bytes_acked,
        bytes_received,
        segs_out,
        segs_in,
        notsent_bytes,
        min_rtt,
        data_segs_in,
        data_segs_out,
        delivery_rate,
        busy_time,
        rwnd_limited,
        sndbuf_limited,
        delivered,
        delivered_ce,
        bytes_sent,
        bytes_retrans,
        dsack_dups,
        reord_seen,
        rcv_ooopack,
        snd_wnd,
        rcv_wnd,
        rehash,
        total_rto,
        total_rto_recoveries,
        total_rto_time,
        received_ce,
        accecn,
        cc_len,
        cc,
        reserved
    );
    record!("Message", Message, magic, version, kind, args);
    assert!(DOCUMENT.contains(&format!("{NO_HANDLE:#x}")));
    assert!(DOCUMENT.contains(&format!("Behind the header, from offset {LOAD} on")));
    assert!(DOCUMENT.contains(&format!("Behind that, at offset {NAMES}, lies one more word")));
}

#[test]
fn limits_and_version() {
    let values = [
        ("SESSIONS_MAX", limits::SESSIONS_MAX as u64),
        ("QUEUE_SETS_MAX", limits::QUEUE_SETS_MAX as u64),
        ("FLOWS_MAX", limits::FLOWS_MAX as u64),
        ("SESSION_FLOWS_MAX", limits::SESSION_FLOWS_MAX as u64),
        ("SESSION_LISTENERS_MAX", limits::SESSION_LISTENERS_MAX as u64),
        ("SEND_EXTENTS_MAX", limits::SEND_EXTENTS_MAX as u64),
        ("WINDOW_MAX", u64::from(limits::WINDOW_MAX)),
        ("RANGE_LEN_MAX", u64::from(RANGE_LEN_MAX)),
        ("DESCRIPTORS_MAX", DESCRIPTORS_MAX as u64),
        ("VIA_HANDLES_MAX", via::HANDLES_MAX as u64),
        ("ANCHORS_AT_ONCE", u64::from(ANCHORS_AT_ONCE)),
    ];
    let got: BTreeMap<_, _> = table("Limits").iter().map(|row| (row[0].to_owned(), number(row[1]))).collect();
    assert_eq!(got, expected(values));
    assert!(DOCUMENT.starts_with(&format!("# The host interface, version {}\n", toe_abi::INTERFACE_VERSION)));
    let fields: Vec<_> = DOCUMENT.lines().filter(|line| line.contains("| `version` |")).collect();
    assert_eq!(fields.len(), 2, "of the region's header and of a message");
    for field in fields {
        let told = field.trim_end_matches([' ', '|']).rsplit(' ').next().map(number);
        assert_eq!(told, Some(u64::from(toe_abi::INTERFACE_VERSION)), "{field}");
    }
}

#[test]
fn the_links_inside_the_document_lead_somewhere() {
    let anchors: Vec<String> = DOCUMENT
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title.chars().filter(|c| c.is_alphanumeric() || *c == ' ').collect::<String>().replace(' ', "-")
        })
        .collect();
    for link in DOCUMENT.split("](#").skip(1) {
        let target = link.split(')').next().unwrap_or_default();
        assert!(anchors.iter().any(|anchor| anchor == target), "{target}");
    }
}
