//! Requests and replies as the bytes of a [`Message`], and back. What comes from the other side is taken for hostile: a number that stands
//! for nothing is a [`BadMessage`].

use super::{BadMessage, MESSAGE_MAGIC, Message, Reply, ReportKind, Request, Unread, Use, Way};
use crate::channel::Side;
use crate::entry::MemRange;
use crate::lane::LaneLayout;
use crate::region::RegionLayout;
use crate::via::{Attributes, NodeName};
use toe_base::{Addr, Cred, Endpoint, NetNs};
use zerocopy::FromBytes;

const REQ_HELLO: u16 = 1;
const REQ_ADD_QUEUE_SET: u16 = 2;
const REQ_TAKE_ANCHORS: u16 = 3;
const REQ_SHOW_TWIN: u16 = 4;
const REQ_CLAIM: u16 = 5;
const REQ_REPORT: u16 = 6;
const REQ_STOP: u16 = 7;
const REQ_STOP_WHEN_UNUSED: u16 = 8;
const REQ_OPEN_CHANNEL: u16 = 9;
const REQ_RELINQUISH: u16 = 10;
const REQ_SHARE: u16 = 11;
const REQ_RECOGNISE: u16 = 12;
const REQ_CAPTURE: u16 = 13;
const REQ_END_CAPTURE: u16 = 14;
const REQ_ADMIT: u16 = 15;
const REQ_ASK_LANE: u16 = 16;
const REQ_OPEN_DATAGRAMS: u16 = 17;
const REQ_VIA_NAME: u16 = 18;
const REQ_VIA_LISTEN: u16 = 19;
const REQ_VIA_CONNECT: u16 = 20;
const REQ_VIA_TAKE: u16 = 21;
const REQ_VIA_FETCH: u16 = 22;
const REQ_VIA_FORGET: u16 = 23;
const REQ_DATAGRAMS_MAPPED: u16 = 24;
const REP_WELCOME: u16 = 0x101;
const REP_QUEUE_SET: u16 = 0x102;
const REP_ANCHORS: u16 = 0x103;
const REP_HANDLE: u16 = 0x104;
const REP_CLAIMED_FLOW: u16 = 0x105;
const REP_CLAIMED_LISTENER: u16 = 0x106;
const REP_REPORT: u16 = 0x107;
const REP_DONE: u16 = 0x108;
const REP_CHANNEL: u16 = 0x109;
const REP_CAPTURE: u16 = 0x10a;
const REP_LANE: u16 = 0x10b;
const REP_DATAGRAMS: u16 = 0x10c;
const REP_VIA_HANDLE: u16 = 0x10d;
const REP_VIA_CONNECTION: u16 = 0x10e;
const REP_REFUSED: u16 = 0x1ff;

impl Message {
    const fn new(kind: u16, first: [u64; 5]) -> Message {
        let [a, b, c, d, e] = first;
        Message { magic: MESSAGE_MAGIC, version: crate::INTERFACE_VERSION, kind, args: [a, b, c, d, e, 0, 0] }
    }

    /// One about a node; no name is no bytes.
    const fn about(kind: u16, name: Option<NodeName>, rest: [u64; 2]) -> Message {
        let [a, b, c, d] = match name {
            Some(name) => name.to_words(),
            None => [0; 4],
        };
        let [e, f] = rest;
        Message { magic: MESSAGE_MAGIC, version: crate::INTERFACE_VERSION, kind, args: [a, b, c, d, e, f, 0] }
    }

    /// The node that [`Message::about`] is about.
    fn node(&self) -> Result<Option<NodeName>, BadMessage> {
        let [a, b, c, d, ..] = self.args;
        NodeName::from_words([a, b, c, d]).map_err(|_| BadMessage::BadArgument)
    }

    /// The message in a packet, if it is one of this version of the interface.
    pub fn parse(packet: &[u8]) -> Result<Message, BadMessage> {
        let message = Message::read_from_bytes(packet).map_err(|_| BadMessage::NotAMessage)?;
        if message.magic != MESSAGE_MAGIC {
            return Err(BadMessage::NotAMessage);
        }
        if message.version != crate::INTERFACE_VERSION {
            return Err(BadMessage::Version(message.version));
        }
        Ok(message)
    }
}

/// An address in two arguments.
const fn words_of(addr: Addr) -> [u64; 2] {
    let addr = u128::from_le_bytes(addr.bytes());
    [addr as u64, (addr >> 64) as u64]
}

fn address_in([low, high]: [u64; 2]) -> Addr {
    Addr::from_bytes((u128::from(low) | u128::from(high) << 64).to_le_bytes())
}

impl Unread {
    const fn to_relinquish(self, flow: u32) -> Message {
        let Unread { data, credit, by_pipe } = self;
        Message::new(REQ_RELINQUISH, [flow as u64, data.len as u64, data.offset, credit as u64, by_pipe])
    }
}

impl Request {
    pub const fn encode(self) -> Message {
        match self {
            Request::Hello { room } => Message::new(REQ_HELLO, [room, 0, 0, 0, 0]),
            Request::AddQueueSet => Message::new(REQ_ADD_QUEUE_SET, [0; 5]),
            Request::TakeAnchors { count } => Message::new(REQ_TAKE_ANCHORS, [count as u64, 0, 0, 0, 0]),
            Request::ShowTwin => Message::new(REQ_SHOW_TWIN, [0; 5]),
            Request::Claim { queue_set, fd } => {
                Message::new(REQ_CLAIM, [queue_set as u64, fd as u64, 0, 0, 0])
            }
            Request::Report { what } => Message::new(
                REQ_REPORT,
                [
                    match what {
                        ReportKind::Status => 0,
                        ReportKind::Sockets => 1,
                    },
                    0,
                    0,
                    0,
                    0,
                ],
            ),
            Request::Stop => Message::new(REQ_STOP, [0; 5]),
            Request::StopWhenUnused => Message::new(REQ_STOP_WHEN_UNUSED, [0; 5]),
            Request::Share => Message::new(REQ_SHARE, [0; 5]),
            Request::Recognise => Message::new(REQ_RECOGNISE, [0; 5]),
            Request::Capture { snaplen, interface, filter_len } => {
                let interface = match interface {
                    Some(interface) => 1 + interface as u64,
                    None => 0,
                };
                Message::new(REQ_CAPTURE, [snaplen as u64, interface, filter_len as u64, 0, 0])
            }
            Request::EndCapture => Message::new(REQ_END_CAPTURE, [0; 5]),
            Request::AskLane { way, peer } => {
                let [low, high] = words_of(peer.addr);
                let way = match way {
                    Way::Sends => 0,
                    Way::Receives => 1,
                };
                Message::new(REQ_ASK_LANE, [way, low, high, peer.port as u64, 0])
            }
            Request::OpenDatagrams { purpose, peer } => {
                let [low, high] = words_of(peer.addr);
                let purpose = match purpose {
                    Use::Hears => 0,
                    Use::Sends => 1,
                    Use::Connects => 2,
                };
                Message::new(REQ_OPEN_DATAGRAMS, [purpose, low, high, peer.port as u64, 0])
            }
            Request::DatagramsMapped => Message::new(REQ_DATAGRAMS_MAPPED, [0; 5]),
            Request::ViaName { name } => Message::about(REQ_VIA_NAME, Some(name), [0; 2]),
            Request::ViaListen { from, discriminator } => {
                Message::about(REQ_VIA_LISTEN, from, [discriminator, 0])
            }
            Request::ViaConnect { to, discriminator, attributes } => {
                Message::about(REQ_VIA_CONNECT, Some(to), [discriminator, attributes.0])
            }
            Request::ViaTake { listener } => Message::new(REQ_VIA_TAKE, [listener as u64, 0, 0, 0, 0]),
            Request::ViaFetch { connection } => Message::new(REQ_VIA_FETCH, [connection as u64, 0, 0, 0, 0]),
            Request::ViaForget { handle } => Message::new(REQ_VIA_FORGET, [handle as u64, 0, 0, 0, 0]),
            Request::Admit { uid } => Message::new(REQ_ADMIT, [uid as u64, 0, 0, 0, 0]),
            Request::OpenChannel { channel } => Message::new(REQ_OPEN_CHANNEL, [channel as u64, 0, 0, 0, 0]),
            Request::Relinquish { flow, unread } => unread.to_relinquish(flow),
        }
    }

    pub fn decode(message: &Message) -> Result<Request, BadMessage> {
        let args = &message.args;
        let small = |i: usize| u32::try_from(args[i]).map_err(|_| BadMessage::BadArgument);
        Ok(match message.kind {
            REQ_HELLO => Request::Hello { room: args[0] },
            REQ_ADD_QUEUE_SET => Request::AddQueueSet,
            REQ_TAKE_ANCHORS => Request::TakeAnchors { count: small(0)? },
            REQ_SHOW_TWIN => Request::ShowTwin,
            REQ_CLAIM => Request::Claim {
                queue_set: u8::try_from(args[0]).map_err(|_| BadMessage::BadArgument)?,
                fd: small(1)?,
            },
            REQ_REPORT => Request::Report {
                what: match args[0] {
                    0 => ReportKind::Status,
                    1 => ReportKind::Sockets,
                    _ => return Err(BadMessage::BadArgument),
                },
            },
            REQ_STOP => Request::Stop,
            REQ_STOP_WHEN_UNUSED => Request::StopWhenUnused,
            REQ_SHARE => Request::Share,
            REQ_RECOGNISE => Request::Recognise,
            REQ_CAPTURE => Request::Capture {
                snaplen: small(0)?,
                interface: match args[1].checked_sub(1) {
                    Some(number) => Some(u16::try_from(number).map_err(|_| BadMessage::BadArgument)?),
                    None => None,
                },
                filter_len: small(2)?,
            },
            REQ_END_CAPTURE => Request::EndCapture,
            REQ_ASK_LANE => {
                let port = u16::try_from(args[3]).map_err(|_| BadMessage::BadArgument)?;
                let way = match args[0] {
                    0 => Way::Sends,
                    1 => Way::Receives,
                    _ => return Err(BadMessage::BadArgument),
                };
                Request::AskLane { way, peer: Endpoint { addr: address_in([args[1], args[2]]), port } }
            }
            REQ_OPEN_DATAGRAMS => {
                let port = u16::try_from(args[3]).map_err(|_| BadMessage::BadArgument)?;
                let purpose = match args[0] {
                    0 => Use::Hears,
                    1 => Use::Sends,
                    2 => Use::Connects,
                    _ => return Err(BadMessage::BadArgument),
                };
                let peer = Endpoint { addr: address_in([args[1], args[2]]), port };
                Request::OpenDatagrams { purpose, peer }
            }
            REQ_DATAGRAMS_MAPPED => Request::DatagramsMapped,
            REQ_VIA_NAME..=REQ_VIA_FORGET => Request::decode_via(message)?,
            REQ_ADMIT => Request::Admit { uid: small(0)? },
            REQ_OPEN_CHANNEL => Request::OpenChannel { channel: small(0)? },
            REQ_RELINQUISH => {
                let data = MemRange { offset: args[2], len: small(1)? };
                Request::Relinquish {
                    flow: small(0)?,
                    unread: Unread { data, credit: small(3)?, by_pipe: args[4] },
                }
            }
            other => return Err(BadMessage::UnknownKind(other)),
        })
    }

    fn decode_via(message: &Message) -> Result<Request, BadMessage> {
        let named = || message.node()?.ok_or(BadMessage::BadArgument);
        let handle = || u32::try_from(message.args[0]).map_err(|_| BadMessage::BadArgument);
        let discriminator = message.args[4];
        Ok(match message.kind {
            REQ_VIA_NAME => Request::ViaName { name: named()? },
            REQ_VIA_LISTEN => Request::ViaListen { from: message.node()?, discriminator },
            REQ_VIA_CONNECT => {
                let attributes = Attributes(message.args[5]);
                Request::ViaConnect { to: named()?, discriminator, attributes }
            }
            REQ_VIA_TAKE => Request::ViaTake { listener: handle()? },
            REQ_VIA_FETCH => Request::ViaFetch { connection: handle()? },
            REQ_VIA_FORGET => Request::ViaForget { handle: handle()? },
            other => return Err(BadMessage::UnknownKind(other)),
        })
    }
}

impl Reply {
    pub const fn encode(self) -> Message {
        match self {
            Reply::Welcome { session, layout } => Message::new(
                REP_WELCOME,
                [
                    session as u64,
                    layout.queue_sets as u64,
                    layout.flows as u64,
                    layout.receive_len,
                    layout.send_len,
                ],
            ),
            Reply::QueueSet { index } => Message::new(REP_QUEUE_SET, [index as u64, 0, 0, 0, 0]),
            Reply::Anchors { first, count } => {
                Message::new(REP_ANCHORS, [first as u64, count as u64, 0, 0, 0])
            }
            Reply::Handle { handle } => Message::new(REP_HANDLE, [handle as u64, 0, 0, 0, 0]),
            Reply::ClaimedFlow { flow, anchor, read, written } => {
                Message::new(REP_CLAIMED_FLOW, [flow as u64, anchor as u64, read.cast_unsigned(), written, 0])
            }
            Reply::ClaimedListener { listener, anchor } => {
                Message::new(REP_CLAIMED_LISTENER, [listener as u64, anchor as u64, 0, 0, 0])
            }
            Reply::Report { len } => Message::new(REP_REPORT, [len, 0, 0, 0, 0]),
            Reply::Channel { side, peer } => {
                Message::new(REP_CHANNEL, [side.index() as u64, peer.uid as u64, peer.netns.0, 0, 0])
            }
            Reply::Lane { ring_len } => Message::new(REP_LANE, [ring_len as u64, 0, 0, 0, 0]),
            Reply::Datagrams { ring_len, source, path_mtu, link_mtu } => {
                let [low, high] = words_of(source);
                Message::new(REP_DATAGRAMS, [ring_len as u64, low, high, path_mtu as u64, link_mtu as u64])
            }
            Reply::ViaHandle { handle } => Message::new(REP_VIA_HANDLE, [handle as u64, 0, 0, 0, 0]),
            Reply::ViaConnection { handle, peer, attributes } => {
                Message::about(REP_VIA_CONNECTION, Some(peer), [handle as u64, attributes.0])
            }
            Reply::Done => Message::new(REP_DONE, [0; 5]),
            Reply::Capture => Message::new(REP_CAPTURE, [0; 5]),
            Reply::Refused { errno, version } => {
                Message::new(REP_REFUSED, [errno as u64, version as u64, 0, 0, 0])
            }
        }
    }

    pub fn decode(message: &Message) -> Result<Reply, BadMessage> {
        let args = &message.args;
        let small = |i: usize| u32::try_from(args[i]).map_err(|_| BadMessage::BadArgument);
        let short = |i: usize| u16::try_from(args[i]).map_err(|_| BadMessage::BadArgument);
        Ok(match message.kind {
            REP_WELCOME => {
                let layout = RegionLayout {
                    queue_sets: small(1)?,
                    flows: small(2)?,
                    receive_len: args[3],
                    send_len: args[4],
                };
                if !layout.is_addressable() {
                    return Err(BadMessage::BadArgument);
                }
                Reply::Welcome { session: short(0)?, layout }
            }
            REP_QUEUE_SET => {
                Reply::QueueSet { index: u8::try_from(args[0]).map_err(|_| BadMessage::BadArgument)? }
            }
            REP_ANCHORS => Reply::Anchors { first: small(0)?, count: small(1)? },
            REP_HANDLE => Reply::Handle { handle: small(0)? },
            REP_CLAIMED_FLOW => Reply::ClaimedFlow {
                flow: small(0)?,
                anchor: small(1)?,
                read: args[2].cast_signed(),
                written: args[3],
            },
            REP_CLAIMED_LISTENER => Reply::ClaimedListener { listener: small(0)?, anchor: small(1)? },
            REP_REPORT => Reply::Report { len: args[0] },
            REP_CHANNEL => Reply::Channel {
                side: Side::from_index(args[0]).ok_or(BadMessage::BadArgument)?,
                peer: Cred { uid: small(1)?, netns: NetNs(args[2]) },
            },
            REP_LANE => {
                let ring_len = small(0)?;
                if !LaneLayout::is_ring_len(ring_len) {
                    return Err(BadMessage::BadArgument);
                }
                Reply::Lane { ring_len }
            }
            REP_DATAGRAMS => {
                let ring_len = small(0)?;
                if ring_len != 0 && !LaneLayout::is_ring_len(ring_len) {
                    return Err(BadMessage::BadArgument);
                }
                let source = address_in([args[1], args[2]]);
                Reply::Datagrams { ring_len, source, path_mtu: short(3)?, link_mtu: short(4)? }
            }
            REP_VIA_HANDLE => Reply::ViaHandle { handle: small(0)? },
            REP_VIA_CONNECTION => Reply::ViaConnection {
                handle: small(4)?,
                peer: message.node()?.ok_or(BadMessage::BadArgument)?,
                attributes: Attributes(args[5]),
            },
            REP_DONE => Reply::Done,
            REP_CAPTURE => Reply::Capture,
            REP_REFUSED => Reply::Refused { errno: short(0)?, version: short(1)? },
            other => return Err(BadMessage::UnknownKind(other)),
        })
    }
}

/// The refusal goes out even to a host of another version, so its layout never changes: the reply to a message
/// whose version is unknown is always `Refused { EPROTO, version }` in *this* encoding.
pub const fn refusal_of_version() -> Message {
    Reply::Refused { errno: crate::errno::Errno::EPROTO.0, version: crate::INTERFACE_VERSION }.encode()
}
