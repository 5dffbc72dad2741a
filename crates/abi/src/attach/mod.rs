//! Attach messages: how a host gets a session, its memory, its doorbell and its descriptors.
//!
//! They go over a Unix socket of type SOCK_SEQPACKET, one message a packet, each a [`Message`] of 64 bytes with
//! descriptors beside it (SCM_RIGHTS). The host asks, the engine answers each request with exactly one message, in
//! order. The engine closes the socket when it fences the session; the host closes it to end the session.

mod encoding;

pub use encoding::refusal_of_version;

use crate::channel::Side;
use crate::entry::MemRange;
use crate::region::RegionLayout;
use crate::via::{Attributes, NodeName};
use toe_base::{Addr, Cred, Endpoint};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "TOEA", little-endian.
pub const MESSAGE_MAGIC: u32 = u32::from_le_bytes(*b"TOEA");
/// Most descriptors that go with one message.
pub const DESCRIPTORS_MAX: usize = 5;
/// Most anchors that one [`Request::TakeAnchors`] may ask for.
pub const ANCHORS_AT_ONCE: u32 = 32;

/// What a session has received of a flow and its program has not read, up to the last byte that the engine has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Where it lies in the send part; that memory is the session's again with the answer.
    pub data: MemRange,
    /// How many of these bytes the engine had announced: no credit was, or will be, given for them.
    pub credit: u32,
    /// All bytes that have ever come by the channel that the flow uses.
    pub by_pipe: u64,
}

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
    /// `room`: bytes that the host can map, 0: no limit; the region is made smaller for it.
    /// Answer: [`Reply::Welcome`] with descriptors [region memory, doorbell eventfd, the engine's page ([`crate::looks`]),
    /// the session's directory of anchors].
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
    /// Give a flow back to the engine: whoever shows its anchor next, be it the same session, gets it, and `unread` first. Answer:
    /// [`Reply::Done`]. EAGAIN: the session has something to hear first, or more has come by the channel than it knows of. ENOMEM: there is no
    /// memory for what is unread. A refusal changes nothing.
    Relinquish { flow: u32, unread: Unread },
    /// Ask for a report (no session needed). Answer: [`Reply::Report`] with descriptor [memory holding JSON].
    Report { what: ReportKind },
    /// End the engine (no session needed; its starter or root only). Answer: [`Reply::Done`].
    Stop,
    /// End the engine when the last session has gone (no session needed; its starter or root only).
    /// Answer: [`Reply::Done`].
    StopWhenUnused,
    /// A child process is about to get copies of the session's descriptors: none of its flows begins to use a channel while
    /// several processes may have it, those that do are announced before the answer, and its listeners are asked for each connection
    /// ([`crate::entry::Command::TakeConnection`]). Answer: [`Reply::Done`], or EAGAIN when an announcement has no room.
    Share,
    /// With a descriptor [anything]: is it an anchor of this engine? Answer: [`Reply::Done`] for a flow's,
    /// [`Reply::Handle`] for a listener's, or ENOENT.
    Recognise,
    /// Copy packets, `snaplen` bytes of each at most, into a stream (no session needed): all of them for the engine's
    /// starter and root, for others those of their own connections. `interface`: of this one only ([`crate::capture`]). With descriptor [memory that holds the filter's text of
    /// `filter_len` bytes] when that is not 0. One capture a connection; it ends with the connection.
    /// Answer: [`Reply::Capture`] with descriptor [the stream's reading end].
    Capture { snaplen: u32, interface: Option<u16>, filter_len: u32 },
    /// The asking process is about to become user `uid`, who may attach from then on, until the engine ends, in the network
    /// namespace of the asking process (no session needed; the engine's starter or root only). Answer: [`Reply::Done`].
    Admit { uid: u32 },
    /// With descriptor [a kernel socket (UDP)]: datagrams go from it to `peer`, or came to it from there, by way of the kernel.
    /// Answer: [`Reply::Lane`] with descriptor [the lane's memory] when the other socket's program has said the same, or
    /// [`Reply::Done`]: ask again later.
    AskLane { way: Way, peer: Endpoint },
    /// With descriptor [a kernel socket (UDP)]: what comes to its name on the engine's links is for it, and what it sends by them
    /// goes by the engine ([`crate::lane::DatagramHeader`]). `peer`: where to; for [`Use::Hears`] nobody. Answer: [`Reply::Datagrams`] with
    /// descriptors [memory of the lane from the engine, of that to the engine], or none if the session has them; ENETUNREACH: no link of the engine's leads to the peer;
    /// EADDRNOTAVAIL: the socket's address is none of them.
    OpenDatagrams { purpose: Use, peer: Endpoint },
    /// The session has mapped the memory that it was given for [`Request::OpenDatagrams`]; the engine looks there from the answer on.
    /// Answer: [`Reply::Done`], or EPERM: somebody has kept it from being sealed.
    DatagramsMapped,
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

/// What a socket is shown for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is bound and hears what comes.
    Hears,
    /// It sends to the peer. If it has no name yet, nothing is opened: the answer is what it may be bound to.
    Sends,
    /// The same, and it hears nobody else from now on.
    Connects,
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
    /// `read` and `written`: bytes of the two directions that went by the engine before. Of bytes that a channel had brought and that are given
    /// back unread ([`Request::Relinquish`]) the engine announces as many more; `read` is negative where those are more than it had brought.
    ClaimedFlow {
        flow: u32,
        anchor: u32,
        read: i64,
        written: u64,
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
    /// A lane whose ring has so many bytes.
    Lane {
        ring_len: u32,
    },
    /// Two lanes whose rings have so many bytes; 0: there is no new one. `source`: the address that the engine speaks to the peer
    /// from.
    Datagrams {
        ring_len: u32,
        source: Addr,
        /// Bytes of the largest packets that get to the peer, and of the largest that its link takes; 0: there is no peer.
        path_mtu: u16,
        link_mtu: u16,
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
    /// Not 64 bytes, or no magic.
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
