//! Attach messages: how a host gets a session, its memory, its doorbell and its descriptors.
//!
//! They go over a Unix socket of type SOCK_SEQPACKET, one message a packet, each a [`Message`] of 64 octets with
//! descriptors beside it (SCM_RIGHTS). The host asks, the engine answers each request with exactly one message, in
//! order. The engine closes the socket when it fences the session; the host closes it to end the session.

use crate::channel::Side;
use crate::lane::LaneLayout;
use crate::region::RegionLayout;
use crate::via::{Attributes, NodeName};
use toe_base::{Addr, Cred, Endpoint, NetNs};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "TOEA", little-endian.
pub const MESSAGE_MAGIC: u32 = u32::from_le_bytes(*b"TOEA");
/// Most descriptors that go with one message.
pub const DESCRIPTORS_MAX: usize = 4;
/// Most anchors that one [`Request::TakeAnchors`] may ask for.
pub const ANCHORS_AT_ONCE: u32 = 32;

/// A message as it lies in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Message {
    pub magic: u32,
    pub version: u16,
    pub kind: u16,
    pub args: [u64; 7],
}

const _: () = assert!(size_of::<Message>() == 64);

/// What a host asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// First message of a connection that wants a session. Credentials are the kernel's (SO_PEERCRED).
    /// `room`: octets that the host can map, 0: no limit; the region is made smaller for it.
    /// Answer: [`Reply::Welcome`] with descriptors [region memory, doorbell eventfd, the session's directory of anchors].
    Hello { room: u64 },
    /// Open the next queue set. Answer: [`Reply::QueueSet`] with descriptor [the interrupt's
    /// receiving socket].
    AddQueueSet,
    /// Make `count` more anchors in the session's directory. Answer: [`Reply::Anchors`].
    TakeAnchors { count: u32 },
    /// With descriptor [twin]: remember the address that this kernel socket is bound to, as evidence for a later
    /// `Listen`. Answer: [`Reply::Handle`].
    ShowTwin,
    /// With descriptor [anchor]: take over the flow or listener that this anchor belongs to.
    /// Answer: [`Reply::ClaimedFlow`], [`Reply::ClaimedListener`] or [`Reply::Refused`] with ENOENT when the
    /// descriptor is none of this engine's.
    /// Completions of a claimed flow go to queue set `queue_set`.
    Claim { queue_set: u8, fd: u32 },
    /// Fetch a channel that [`crate::entry::Completion::OfferChannel`] named. Answer: [`Reply::Channel`] with descriptors
    /// [the channel's memory, a sending end of the other side's interrupt].
    OpenChannel { channel: u32 },
    /// Give a flow back to the engine: whoever shows its anchor next, be it the same session, gets it. With descriptor
    /// [memory that holds `unread` octets] when the program has received octets through a channel that it has not
    /// read; those go to whoever gets the flow. Answer: [`Reply::Done`].
    Relinquish { flow: u32, unread: u32 },
    /// Ask for a report (no session needed). Answer: [`Reply::Report`] with descriptor [memory holding JSON].
    Report { what: ReportKind },
    /// End the engine (no session needed; its starter or root only). Answer: [`Reply::Done`].
    Stop,
    /// End the engine when the last session has gone (no session needed; its starter or root only).
    /// Answer: [`Reply::Done`].
    StopWhenUnused,
    /// A child process is about to get copies of the session's descriptors: none of its flows begins to use a channel from
    /// here on, those that do are announced before the answer, and its listeners are asked for each connection
    /// ([`crate::entry::Command::TakeConnection`]). Answer: [`Reply::Done`], or EAGAIN when an announcement has no room.
    Share,
    /// With a descriptor [anything]: is it an anchor of this engine? Answer: [`Reply::Done`] for a flow's,
    /// [`Reply::Handle`] for a listener's, or ENOENT.
    Recognise,
    /// Copy packets, `snaplen` octets of each at most, into a stream (no session needed): all of them for the engine's
    /// starter and root, for others those of their own connections. `interface`: of this one only ([`crate::capture`]). With descriptor [memory that holds the filter's text of
    /// `filter_len` octets] when that is not 0. One capture a connection; it ends with the connection.
    /// Answer: [`Reply::Capture`] with descriptor [the stream's reading end].
    Capture { snaplen: u32, interface: Option<u16>, filter_len: u32 },
    /// The asking process is about to become user `uid`, who may attach from then on, until the engine ends, in the network
    /// namespace of the asking process (no session needed; the engine's starter or root only). Answer: [`Reply::Done`].
    Admit { uid: u32 },
    /// With descriptor [a kernel socket (UDP)]: datagrams go from it to `peer`, or came to it from there, by way of the kernel.
    /// Answer: [`Reply::Lane`] with descriptor [the lane's memory] when the other socket's program has said the same, or
    /// [`Reply::Done`]: ask again later.
    AskLane { way: Way, peer: Endpoint },
    /// What the session's node is called, once. Answer: [`Reply::Done`].
    ViaName { name: NodeName },
    /// Wait for connections of virtual interfaces to this node at `discriminator`, from `from` or from anywhere. The
    /// session's first queue set is interrupted when one is there. Answer: [`Reply::ViaHandle`].
    ViaListen { from: Option<NodeName>, discriminator: u64 },
    /// Ask for a connection to whoever waits at node `to`, now or later. The first queue set is interrupted when it is taken.
    /// Answer: [`Reply::ViaHandle`].
    ViaConnect { to: NodeName, discriminator: u64, attributes: Attributes },
    /// Take what waits for a listener. Answer: [`Reply::ViaConnection`] with descriptors [the connection's memory, a sending end of
    /// the other session's interrupt], or EAGAIN: nothing does.
    ViaTake { listener: u32 },
    /// The same for the one that has asked: EAGAIN while nobody has taken it.
    ViaFetch { connection: u32 },
    /// End a listener, or a connection that is asked for or made. Answer: [`Reply::Done`].
    ViaForget { handle: u32 },
    /// End the connection's capture: its stream ends once what was copied has been read. Answer: [`Reply::Done`].
    EndCapture,
}

/// Which end of a lane a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// Datagrams go from it to the peer.
    Sends,
    /// Datagrams come to it from the peer.
    Receives,
}

/// What an engine answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Welcome {
        session: u16,
        layout: RegionLayout,
    },
    QueueSet {
        index: u8,
    },
    /// Handles of the anchors: `first`, `first + 1`, …; the name of each is its handle in decimal.
    Anchors {
        first: u32,
        count: u32,
    },
    Handle {
        handle: u32,
    },
    /// With descriptor [memory that holds `unread` octets] when that is not 0: they come first in the stream.
    ClaimedFlow {
        flow: u32,
        anchor: u32,
        unread: u32,
    },
    ClaimedListener {
        listener: u32,
        anchor: u32,
    },
    Report {
        len: u64,
    },
    /// The host is this side of the channel, and whose the other session is: who harms by one channel gets no other.
    Channel {
        side: Side,
        peer: Cred,
    },
    /// A lane whose ring has so many octets.
    Lane {
        ring_len: u32,
    },
    /// A listener, or a connection that is asked for.
    ViaHandle {
        handle: u32,
    },
    /// The connection `handle` to node `peer`, which has said these attributes when it asked for it (to the one that has asked: none).
    ViaConnection {
        handle: u32,
        peer: NodeName,
        attributes: Attributes,
    },
    Done,
    /// The capture has begun.
    Capture,
    /// `errno` as in Linux; `version` is the engine's, so that a host can say which one it needs.
    Refused {
        errno: u16,
        version: u16,
    },
}

/// Which report a `Report` request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    /// Counters, ports, sessions.
    Status,
    /// Every flow and listener.
    Sockets,
}

/// Why a packet is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadMessage {
    /// Not 64 octets, or no magic.
    NotAMessage,
    /// Another version of the interface.
    Version(u16),
    UnknownKind(u16),
    BadArgument,
}

/// Why a session was fenced; the region header carries the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FenceReason {
    UnknownEntryType = 1,
    BadArgument = 2,
    BadSendRange = 3,
    CreditBeyondData = 4,
    BadHead = 5,
    BadIrqMode = 6,
    UnknownHandle = 7,
    /// The host left its completions untaken while it kept asking for more.
    CompletionOverflow = 8,
    /// Not the host's fault: the system had no memory for a page of its region.
    MemoryLost = 9,
}

impl FenceReason {
    /// Every reason, by number from 1.
    pub const ALL: &'static [FenceReason] = &[
        FenceReason::UnknownEntryType,
        FenceReason::BadArgument,
        FenceReason::BadSendRange,
        FenceReason::CreditBeyondData,
        FenceReason::BadHead,
        FenceReason::BadIrqMode,
        FenceReason::UnknownHandle,
        FenceReason::CompletionOverflow,
        FenceReason::MemoryLost,
    ];

    /// The reason in a region header's `fenced` word; `None` while it is 0.
    pub fn from_raw(raw: u32) -> Option<FenceReason> {
        FenceReason::ALL.iter().copied().find(|&reason| reason as u32 == raw)
    }

    pub const fn name(self) -> &'static str {
        match self {
            FenceReason::UnknownEntryType => "unknown_entry_type",
            FenceReason::BadArgument => "bad_argument",
            FenceReason::BadSendRange => "bad_send_range",
            FenceReason::CreditBeyondData => "credit_beyond_data",
            FenceReason::BadHead => "bad_head",
            FenceReason::BadIrqMode => "bad_irq_mode",
            FenceReason::UnknownHandle => "unknown_handle",
            FenceReason::CompletionOverflow => "completion_overflow",
            FenceReason::MemoryLost => "memory_lost",
        }
    }
}

impl From<crate::entry::BadEntry> for FenceReason {
    fn from(bad: crate::entry::BadEntry) -> FenceReason {
        match bad {
            crate::entry::BadEntry::UnknownType(_) => FenceReason::UnknownEntryType,
            crate::entry::BadEntry::UnknownArgument => FenceReason::BadArgument,
        }
    }
}

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
const REQ_VIA_NAME: u16 = 17;
const REQ_VIA_LISTEN: u16 = 18;
const REQ_VIA_CONNECT: u16 = 19;
const REQ_VIA_TAKE: u16 = 20;
const REQ_VIA_FETCH: u16 = 21;
const REQ_VIA_FORGET: u16 = 22;
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
const REP_VIA_HANDLE: u16 = 0x10c;
const REP_VIA_CONNECTION: u16 = 0x10d;
const REP_REFUSED: u16 = 0x1ff;

impl Message {
    const fn new(kind: u16, first: [u64; 5]) -> Message {
        let [a, b, c, d, e] = first;
        Message { magic: MESSAGE_MAGIC, version: crate::INTERFACE_VERSION, kind, args: [a, b, c, d, e, 0, 0] }
    }

    /// One about a node; no name is no octets.
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
                let addr = u128::from_le_bytes(peer.addr.octets());
                let way = match way {
                    Way::Sends => 0,
                    Way::Receives => 1,
                };
                Message::new(REQ_ASK_LANE, [way, addr as u64, (addr >> 64) as u64, peer.port as u64, 0])
            }
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
            Request::Relinquish { flow, unread } => {
                Message::new(REQ_RELINQUISH, [flow as u64, unread as u64, 0, 0, 0])
            }
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
                let addr = u128::from(args[1]) | u128::from(args[2]) << 64;
                let port = u16::try_from(args[3]).map_err(|_| BadMessage::BadArgument)?;
                let way = match args[0] {
                    0 => Way::Sends,
                    1 => Way::Receives,
                    _ => return Err(BadMessage::BadArgument),
                };
                Request::AskLane { way, peer: Endpoint { addr: Addr::from_octets(addr.to_le_bytes()), port } }
            }
            REQ_VIA_NAME..=REQ_VIA_FORGET => Request::decode_via(message)?,
            REQ_ADMIT => Request::Admit { uid: small(0)? },
            REQ_OPEN_CHANNEL => Request::OpenChannel { channel: small(0)? },
            REQ_RELINQUISH => Request::Relinquish { flow: small(0)?, unread: small(1)? },
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
            Reply::ClaimedFlow { flow, anchor, unread } => {
                Message::new(REP_CLAIMED_FLOW, [flow as u64, anchor as u64, unread as u64, 0, 0])
            }
            Reply::ClaimedListener { listener, anchor } => {
                Message::new(REP_CLAIMED_LISTENER, [listener as u64, anchor as u64, 0, 0, 0])
            }
            Reply::Report { len } => Message::new(REP_REPORT, [len, 0, 0, 0, 0]),
            Reply::Channel { side, peer } => {
                Message::new(REP_CHANNEL, [side.index() as u64, peer.uid as u64, peer.netns.0, 0, 0])
            }
            Reply::Lane { ring_len } => Message::new(REP_LANE, [ring_len as u64, 0, 0, 0, 0]),
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
            REP_CLAIMED_FLOW => Reply::ClaimedFlow { flow: small(0)?, anchor: small(1)?, unread: small(2)? },
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
