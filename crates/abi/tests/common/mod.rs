//! One example of everything that crosses the interface, with fields that all differ, so that a field that moves or
//! changes its width shows.

#![allow(dead_code)]

use toe_abi::attach::{Message, Reply, ReportKind, Request, Unread, Use, Way, refusal_of_version};
use toe_abi::channel::{ChannelEntry, Side};
use toe_abi::command::{ConnectArgs, FlowInfo, ListenArgs, WireAddr};
use toe_abi::entry::{Command, Completion, FlowOption, MemRange, RawEntry, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_abi::region::{RegionHeader, RegionLayout};
use toe_abi::tcp_info::FlowDetail;
use toe_abi::via::{Attributes, Fragment, NodeName};
use toe_base::{AnchorHandle, ChannelId, Cred, Endpoint, FlowId, ListenerId, NetNs};
use zerocopy::FromBytes;

const FLOW: FlowId = FlowId::from_raw(0xa1b2_c3d4);
const LISTENER: ListenerId = ListenerId(FlowId::from_raw(0x0120_0007));
const RANGE: MemRange = MemRange { offset: 0x12_3456_789a, len: 0xbc_def0 };
const CHANNEL: ChannelId = ChannelId(0x0203_0405);
/// Below the channel's limit, as in a `Direct` completion and in every entry of a channel.
const SLOT: u32 = 0x0abc;
const GENERATION: u16 = 0xd1e2;
const FLOW_OPTIONS: [FlowOption; 20] = [
    FlowOption::NoDelay,
    FlowOption::Cork,
    FlowOption::KeepAlive,
    FlowOption::KeepIdleSecs,
    FlowOption::KeepIntervalSecs,
    FlowOption::KeepCount,
    FlowOption::UserTimeoutMs,
    FlowOption::ReceiveWindowMax,
    FlowOption::ReceiveShut,
    FlowOption::Congestion,
    FlowOption::MaxPacingRate,
    FlowOption::TrafficClass,
    FlowOption::HopLimit,
    FlowOption::SoftErrors,
    FlowOption::FinWait2Secs,
    FlowOption::SharesName,
    FlowOption::SynRetries,
    FlowOption::UnsentLowWater,
    FlowOption::AbortAtClose,
    FlowOption::TellEnd,
];

pub fn commands() -> Vec<Command> {
    let mut all = vec![
        Command::Listen { token: 0x1122_3344 },
        Command::Connect { token: 0x5566_7788 },
        Command::AcceptCredit { listener: LISTENER, count: 0x0102_0304 },
        Command::Accept { flow: FLOW, anchor: AnchorHandle(0x1020_3040), fd: 0x5060_7080 },
        Command::ShutdownSend { flow: FLOW },
        Command::Close { flow: FLOW, abort: false },
        Command::Close { flow: FLOW, abort: true },
        Command::Disconnect { flow: FLOW },
        Command::CloseRetained { flow: FLOW, anchor: AnchorHandle(0x1020_3040), abort: false },
        Command::CloseRetained { flow: FLOW, anchor: AnchorHandle(0x1020_3040), abort: true },
        Command::Lend { anchor: AnchorHandle(0x1020_3040) },
        Command::CloseCopy { lifetime: AnchorHandle(0x1020_3040) },
        Command::CloseListener { listener: LISTENER, last: false },
        Command::CloseListener { listener: LISTENER, last: true },
        Command::EndListener { listener: LISTENER },
        Command::ChannelReady { channel: CHANNEL },
        Command::TakeConnection { listener: LISTENER },
        Command::FastOpen { listener: LISTENER, limit: 0x0102_0304 },
        Command::DeferAccept { listener: LISTENER, secs: 0x0102_0304 },
        Command::Inspect { flow: FLOW, token: 0x5566_7788 },
        Command::CountWaiting { listener: LISTENER, token: 0x5566_7788 },
    ];
    all.extend(FLOW_OPTIONS.map(|option| Command::SetOption { flow: FLOW, option, value: 0x9080_7060 }));
    all
}

pub fn sends() -> Vec<Send> {
    let plain = Send::new(FLOW, RANGE);
    vec![
        plain,
        Send { more: true, ..plain },
        Send { urgent: true, ..plain },
        Send { end_of_record: true, ..plain },
    ]
}

pub fn credits() -> Vec<ReceiveCredit> {
    vec![ReceiveCredit { flow: FLOW, len: 0x0403_0201 }]
}

pub fn completions() -> Vec<Completion> {
    vec![
        Completion::CommandResult {
            token: 0x1122_3344,
            command: 2,
            errno: Errno::ECONNREFUSED,
            id: 0xa1b2_c3d4,
        },
        Completion::Accepted { listener: LISTENER, flow: FLOW },
        Completion::Connected { flow: FLOW, errno: Errno::ETIMEDOUT },
        Completion::Data { flow: FLOW, data: RANGE },
        Completion::Sent { flow: FLOW, len: 0x0403_0201 },
        Completion::PeerClosed { flow: FLOW },
        Completion::Reset { flow: FLOW, errno: Errno::ECONNRESET },
        Completion::Moved { flow: FLOW },
        Completion::OfferChannel { channel: CHANNEL },
        Completion::Direct { flow: FLOW, channel: CHANNEL, slot: SLOT, generation: GENERATION },
        Completion::Yield { flow: FLOW },
        Completion::ChannelClosed { channel: CHANNEL },
        Completion::AnchorFree { anchor: AnchorHandle(0x1020_3040) },
        Completion::AnchorShared { anchor: AnchorHandle(0x1020_3040) },
        Completion::ConnectCredit { flow: FLOW },
        Completion::ConnectionsWait { listener: LISTENER },
        Completion::NothingWaits { listener: LISTENER, answer: false },
        Completion::NothingWaits { listener: LISTENER, answer: true },
        Completion::Urgent { flow: FLOW, distance: 0x0403_0201 },
        Completion::SoftError { flow: FLOW, errno: Errno::EHOSTUNREACH },
        Completion::WentOut { flow: FLOW, len: 0x0403_0201 },
    ]
}

pub fn channel_entries() -> Vec<ChannelEntry> {
    let (slot, generation) = (SLOT, GENERATION);
    vec![
        ChannelEntry::Begin { slot, generation, after: 0x0102_0304_0506_0708 },
        ChannelEntry::Data { slot, generation, data: RANGE },
        ChannelEntry::Want { slot, generation },
        ChannelEntry::Space { slot, generation },
        ChannelEntry::Urgent { slot, generation },
        ChannelEntry::After { slot, generation, debt: 0x0102_0304_0506_0708 },
        ChannelEntry::End { slot, generation, abort: false },
        ChannelEntry::End { slot, generation, abort: true },
    ]
}

/// With the numbers of their slots.
pub fn via_fragments() -> Vec<(u32, Fragment)> {
    vec![
        (0, Fragment { len: 0x30, begins: Some(0x01_0203_0405) }),
        (512, Fragment { len: 0x4000, begins: None }),
    ]
}

pub fn requests() -> Vec<Request> {
    vec![
        Request::Hello { room: 0 },
        Request::Hello { room: 0x0102_0304_0506 },
        Request::AddQueueSet,
        Request::TakeAnchors { count: 0x0102_0304 },
        Request::ShowTwin,
        Request::Claim { queue_set: 0x0e, fd: 0x5060_7080 },
        Request::Report { what: ReportKind::Status },
        Request::Report { what: ReportKind::Sockets },
        Request::Stop,
        Request::StopWhenUnused,
        Request::OpenChannel { channel: CHANNEL.0 },
        Request::Relinquish {
            flow: FLOW.raw(),
            unread: Unread {
                data: MemRange { offset: 0x0102_0304_0506, len: 0x0076_5432 },
                credit: 0x0023_4567,
                by_pipe: 0x1112_1314_1516_1718,
            },
        },
        Request::Share,
        Request::Recognise,
        Request::Capture { snaplen: 0x0102_0304, interface: None, filter_len: 0x0506 },
        Request::Capture { snaplen: 1, interface: Some(0x0708), filter_len: 0 },
        Request::EndCapture,
        Request::Admit { uid: 0x0a0b_0c0d },
        Request::AskLane { way: Way::Sends, peer: Endpoint::new([127, 1, 2, 3], 0x1314) },
        Request::AskLane {
            way: Way::Receives,
            peer: Endpoint { addr: toe_base::Addr::LOCALHOST_V6, port: 0x1516 },
        },
        Request::OpenDatagrams { purpose: Use::Hears, peer: Endpoint::UNSPECIFIED_V4 },
        Request::OpenDatagrams { purpose: Use::Sends, peer: Endpoint::new([10, 1, 2, 3], 0x1718) },
        Request::OpenDatagrams {
            purpose: Use::Connects,
            peer: Endpoint { addr: toe_base::Addr::LOCALHOST_V6, port: 0x191a },
        },
        Request::DatagramsMapped,
        Request::ViaName { name: node(b"node-1") },
        Request::ViaListen { from: None, discriminator: 0x1718 },
        Request::ViaListen { from: Some(node(b"node-2")), discriminator: 255 },
        Request::ViaConnect {
            to: node(b"a-name-of-thirty-two-octets-0123"),
            discriminator: 0x0102_0304_0506_0708,
            attributes: Attributes(0x0807_0605_0000_0001),
        },
        Request::ViaTake { listener: 0x191a },
        Request::ViaFetch { connection: 0x1b1c },
        Request::ViaForget { handle: 0x1d1e },
    ]
}

pub const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 3, flows: 0x0400, receive_len: 0x0100_0000, send_len: 0x0200_0000 };

pub fn replies() -> Vec<Reply> {
    vec![
        Reply::Welcome { session: 0x0102, layout: LAYOUT },
        Reply::QueueSet { index: 0x0e },
        Reply::Anchors { first: 0x1020_3040, count: 0x20 },
        Reply::Handle { handle: 0x1020_3040 },
        Reply::ClaimedFlow {
            flow: 0xa1b2_c3d4,
            anchor: 0x1020_3040,
            read: 0x0102_0304_0506_0708,
            written: 0x1112_1314_1516_1718,
        },
        Reply::ClaimedListener { listener: 0x0120_0007, anchor: 0x1020_3040 },
        Reply::Report { len: 0x0102_0304_0506 },
        Reply::Channel { side: Side::One, peer: Cred { uid: 1000, netns: NetNs(1 << 40) } },
        Reply::Lane { ring_len: 0x0010_0000 },
        Reply::Datagrams {
            ring_len: 0x0004_0000,
            source: [10, 1, 2, 3].into(),
            path_mtu: 1400,
            link_mtu: 1500,
        },
        Reply::Datagrams { ring_len: 0, source: toe_base::Addr::LOCALHOST_V6, path_mtu: 0, link_mtu: 0 },
        Reply::ViaHandle { handle: 0x191a },
        Reply::ViaConnection { handle: 0x1b1c, peer: node(b"node-1"), attributes: Attributes::EVIL },
        Reply::Done,
        Reply::Capture,
        Reply::Refused { errno: Errno::EACCES.0, version: 0x0102 },
    ]
}

fn node(name: &[u8]) -> NodeName {
    NodeName::new(name).expect("a name")
}

pub fn version_refusal() -> Message {
    refusal_of_version()
}

const ADDR4: WireAddr =
    WireAddr { family: 4, port: 0x1f90, addr: [192, 0, 2, 33, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] };
const ADDR6: WireAddr = WireAddr {
    family: 6,
    port: 0x01bb,
    addr: [0x20, 0x01, 0x0d, 0xb8, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
};

pub fn listen_args() -> ListenArgs {
    ListenArgs {
        local: ADDR4,
        backlog: 0x0102_0304,
        anchor: 0x1020_3040,
        twin: 0x0506_0708,
        fd: 0x5060_7080,
        flags: toe_abi::command::LISTEN_V6_ONLY,
        reserved: [0; 24],
    }
}

pub fn connect_args() -> ConnectArgs {
    ConnectArgs {
        remote: ADDR6,
        local: ADDR4,
        anchor: 0x1020_3040,
        fd: 0x5060_7080,
        flags: toe_abi::command::CONNECT_FAST_OPEN,
        twin: 0x0506_0708,
        flow: 0x0a0b_0c0d,
        reserved: [0; 4],
    }
}

pub fn flow_info() -> FlowInfo {
    FlowInfo {
        local: ADDR4,
        remote: ADDR6,
        mss: 1460,
        soft_error: Errno::EHOSTUNREACH.0 as u8,
        soft_errors: 2,
        srtt_us: 0x0001_0203,
        rttvar_us: 0x0004_0506,
        cwnd: 0x0708_090a,
        retransmits: 0x0b0c_0d0e,
        port: 255,
        state: 1,
        flags: toe_abi::command::FLOW_RECEIVE_SHUT,
        congestion: 4,
    }
}

pub fn flow_detail() -> FlowDetail {
    // Bytes that tell each place from every other.
    let mut bytes = [0; size_of::<FlowDetail>()];
    bytes.iter_mut().zip(1u32..).for_each(|(byte, at)| *byte = (at % 251) as u8);
    FlowDetail::read_from_bytes(&bytes).expect("its own length")
}

pub fn region_header() -> RegionHeader {
    RegionHeader { doorbell_wanted: 3, fenced: 5, ..LAYOUT.header(0x0102) }
}

/// An entry's bytes as they lie in the ring.
pub fn entry_bytes(raw: RawEntry) -> Vec<u8> {
    [raw.word0.to_le_bytes(), raw.word1.to_le_bytes()].concat()
}

/// The name of an enum's variant or a struct, from its debug form.
pub fn name_of(value: &impl core::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '(']).next().unwrap_or_default().to_owned()
}
