//! Ring entries: 128 bits each, in four queues (TSSL paper section 4.3, TOE Manager thesis section 3.2).
//!
//! An entry is two little-endian 64-bit words. The producer stores word 1 first and word 0 last; the entry is valid
//! once its epoch bit has the value of the lap that is due (1 on the first lap of a zeroed ring, 0 on the second, …).
//!
//! | bits of word 0 | meaning |
//! |---|---|
//! | 0–7 | type |
//! | 8 | epoch |
//! | 9–15 | flags |
//! | 16–31 | small argument |
//! | 32–63 | flow id, listener id or token |
//!
//! Word 1 is the entry's large argument: a length, a value, or a memory range (offset in bits 0–39, length in bits
//! 40–63).

use crate::errno::Errno;
pub use crate::flow_option::FlowOption;
use toe_base::{AnchorHandle, ChannelId, FlowId, ListenerId};

/// An entry as it lies in a ring, epoch bit included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawEntry {
    pub word0: u64,
    pub word1: u64,
}

impl RawEntry {
    pub const EPOCH: u64 = 1 << 8;

    pub(crate) const fn new(kind: u8, flags: u8, small: u16, id: u32, word1: u64) -> RawEntry {
        RawEntry {
            word0: kind as u64 | ((flags as u64 & 0x7f) << 9) | ((small as u64) << 16) | ((id as u64) << 32),
            word1,
        }
    }

    pub const fn epoch(self) -> bool {
        self.word0 & Self::EPOCH != 0
    }

    #[must_use]
    pub const fn with_epoch(self, epoch: bool) -> RawEntry {
        let word0 = if epoch { self.word0 | Self::EPOCH } else { self.word0 & !Self::EPOCH };
        RawEntry { word0, word1: self.word1 }
    }

    /// The same for `snd`, behind so many commands of its queue set, modulo 2^16.
    #[must_use]
    pub const fn behind(self, commands: u16) -> RawEntry {
        RawEntry { word0: self.word0 & !(0xffff << 16) | (commands as u64) << 16, word1: self.word1 }
    }

    /// Whether it is behind one that comes after the first `commands`.
    pub const fn is_behind(self, commands: u16) -> bool {
        self.small().wrapping_sub(commands).cast_signed() > 0
    }

    pub(crate) const fn kind(self) -> u8 {
        self.word0 as u8
    }

    pub(crate) const fn flags(self) -> u8 {
        (self.word0 >> 9) as u8 & 0x7f
    }

    pub(crate) const fn small(self) -> u16 {
        (self.word0 >> 16) as u16
    }

    pub(crate) const fn id(self) -> u32 {
        (self.word0 >> 32) as u32
    }
}

/// A range of a session's region. No bytes are left beside it, as records have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct MemRange {
    /// Bytes from the region's start; below 2^40.
    pub offset: u64,
    /// Bytes; below 2^24.
    pub len: u32,
}

impl MemRange {
    const OFFSET_BITS: u32 = 40;

    pub(crate) const fn to_word(self) -> u64 {
        (self.offset & ((1 << Self::OFFSET_BITS) - 1)) | ((self.len as u64) << Self::OFFSET_BITS)
    }

    pub(crate) const fn from_word(word: u64) -> MemRange {
        MemRange { offset: word & ((1 << Self::OFFSET_BITS) - 1), len: (word >> Self::OFFSET_BITS) as u32 }
    }

    /// Whether the range lies within `len` bytes from `start`; an empty range never does.
    pub const fn lies_in(self, start: u64, len: u64) -> bool {
        self.len != 0
            && self.offset >= start
            && self.offset - start <= len
            && self.len as u64 <= len - (self.offset - start)
    }
}

/// Offsets that an entry can carry are below this.
pub const RANGE_OFFSET_LIMIT: u64 = 1 << MemRange::OFFSET_BITS;
/// Longest range that one entry can carry.
pub const RANGE_LEN_MAX: u32 = (1 << 24) - 1;

/// Why an entry could not be decoded. The session that wrote it is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadEntry {
    UnknownType(u8),
    UnknownArgument,
}

/// What a host puts into `cmd`. Where the entry says "argument block", the block with the entry's own index is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Listen as the argument block ([`crate::command::ListenArgs`]) says. Answered by [`Completion::CommandResult`]
    /// with the listener id.
    Listen { token: u32 },
    /// Connect as the argument block ([`crate::command::ConnectArgs`]) says. Answered by
    /// [`Completion::CommandResult`] with the flow id, if the block does not name one, then [`Completion::Connected`].
    Connect { token: u32 },
    /// The listener may hand this session `count` more connections through this queue set.
    AcceptCredit { listener: ListenerId, count: u32 },
    /// The program took a connection that [`Completion::Accepted`] announced: from now on the flow lives as long as
    /// the anchor does. `fd` is the program's number for it, for reports only.
    Accept { flow: FlowId, anchor: AnchorHandle, fd: u32 },
    /// No more will be sent: FIN after all data of `snd`.
    ShutdownSend { flow: FlowId },
    /// The session lets go of the flow, which ends with the last close of its anchor: the engine does the whole FIN
    /// handshake alone; the slot is the session's no more. `abort`: send RST instead (SO_LINGER with time 0).
    Close { flow: FlowId, abort: bool },
    /// The connection ends here and now, by RST where the peer may still send or be sent something, whoever has copies of its
    /// descriptor: to them it is one that was reset.
    Disconnect { flow: FlowId },
    /// The program has closed its last descriptor of the flow, of which no other process has one, and the host keeps the anchor
    /// open for its next use: the flow ends as if the anchor had been closed. Answered by [`Completion::AnchorFree`], or
    /// [`Completion::AnchorShared`].
    CloseRetained { flow: FlowId, anchor: AnchorHandle, abort: bool },
    /// Another process may get a copy of this anchor and show it, be it one that had been kept open.
    Lend { anchor: AnchorHandle },
    /// The process has closed its copy of the anchor of a connection that it has, or had until another process claimed it. The
    /// last close of any copy ends the connection.
    CloseCopy { lifetime: AnchorHandle },
    /// The session lets go of the listener; connections it was handed but did not take go to other sessions.
    ///
    /// `last`: no other process can hold the descriptor, so the listener ends here and now; without it, its anchor tells.
    CloseListener { listener: ListenerId, last: bool },
    /// The kernel's socket of the listener has stopped listening (shutdown): it ends for all who have that socket.
    EndListener { listener: ListenerId },
    /// Change an option of the flow.
    SetOption { flow: FlowId, option: FlowOption, value: u32 },
    /// The channel that [`Completion::OfferChannel`] named is mapped: connections may use it.
    ChannelReady { channel: ChannelId },
    /// Of a listener that several processes take from ([`Completion::ConnectionsWait`]): hand this session one connection
    /// now. Answered by [`Completion::Accepted`] or [`Completion::NothingWaits`].
    TakeConnection { listener: ListenerId },
    /// Up to `limit` connections of the listener may be handed out, with the bytes of their SYN, before their handshake is
    /// complete (TCP_FASTOPEN; RFC 7413). 0, as it is at first: none.
    FastOpen { listener: ListenerId, limit: u32 },
    /// Connections of the listener are handed out once their first bytes are there, or `secs` later, rounded up to where a
    /// SYN-ACK would be sent again (TCP_DEFER_ACCEPT). 0, as it is at first: as soon as they are open.
    DeferAccept { listener: ListenerId, secs: u32 },
    /// Write down how the flow's TCP stands ([`crate::tcp_info::FlowDetail`]). Answered by [`Completion::CommandResult`], when
    /// that is done, or with ENOTCONN: there is no such flow any more.
    Inspect { flow: FlowId, token: u32 },
    /// How many connections wait at the listener? Answered by [`Completion::CommandResult`], the number in the place of an id.
    CountWaiting { listener: ListenerId, token: u32 },
}

const CMD_LISTEN: u8 = 0x01;
const CMD_CONNECT: u8 = 0x02;
const CMD_ACCEPT_CREDIT: u8 = 0x03;
const CMD_ACCEPT: u8 = 0x04;
const CMD_SHUTDOWN_SEND: u8 = 0x05;
const CMD_CLOSE: u8 = 0x07;
const CMD_CLOSE_LISTENER: u8 = 0x08;
const CMD_SET_OPTION: u8 = 0x09;
const CMD_CHANNEL_READY: u8 = 0x0a;
const CMD_TAKE_CONNECTION: u8 = 0x0b;
const CMD_FAST_OPEN: u8 = 0x0c;
const CMD_INSPECT: u8 = 0x0d;
const CMD_CLOSE_RETAINED: u8 = 0x0e;
const CMD_LEND: u8 = 0x0f;
const CMD_DEFER_ACCEPT: u8 = 0x10;
const CMD_DISCONNECT: u8 = 0x11;
const CMD_COUNT_WAITING: u8 = 0x12;
const CMD_CLOSE_COPY: u8 = 0x13;
const CMD_END_LISTENER: u8 = 0x14;
const FLAG_ABORT: u8 = 1;
const FLAG_LAST: u8 = 1;

impl Command {
    pub const fn encode(self) -> RawEntry {
        match self {
            Command::Listen { token } => RawEntry::new(CMD_LISTEN, 0, 0, token, 0),
            Command::Connect { token } => RawEntry::new(CMD_CONNECT, 0, 0, token, 0),
            Command::AcceptCredit { listener, count } => {
                RawEntry::new(CMD_ACCEPT_CREDIT, 0, 0, listener.0.raw(), count as u64)
            }
            Command::Accept { flow, anchor, fd } => {
                RawEntry::new(CMD_ACCEPT, 0, 0, flow.raw(), anchor.0 as u64 | ((fd as u64) << 32))
            }
            Command::ShutdownSend { flow } => RawEntry::new(CMD_SHUTDOWN_SEND, 0, 0, flow.raw(), 0),
            Command::Close { flow, abort } => {
                RawEntry::new(CMD_CLOSE, if abort { FLAG_ABORT } else { 0 }, 0, flow.raw(), 0)
            }
            Command::Disconnect { flow } => RawEntry::new(CMD_DISCONNECT, 0, 0, flow.raw(), 0),
            Command::CloseRetained { flow, anchor, abort } => RawEntry::new(
                CMD_CLOSE_RETAINED,
                if abort { FLAG_ABORT } else { 0 },
                0,
                flow.raw(),
                anchor.0 as u64,
            ),
            Command::Lend { anchor } => RawEntry::new(CMD_LEND, 0, 0, anchor.0, 0),
            Command::CloseCopy { lifetime } => RawEntry::new(CMD_CLOSE_COPY, 0, 0, lifetime.0, 0),
            Command::CloseListener { listener, last } => {
                RawEntry::new(CMD_CLOSE_LISTENER, if last { FLAG_LAST } else { 0 }, 0, listener.0.raw(), 0)
            }
            Command::EndListener { listener } => RawEntry::new(CMD_END_LISTENER, 0, 0, listener.0.raw(), 0),
            Command::SetOption { flow, option, value } => {
                RawEntry::new(CMD_SET_OPTION, 0, option.to_raw(), flow.raw(), value as u64)
            }
            Command::ChannelReady { channel } => RawEntry::new(CMD_CHANNEL_READY, 0, 0, channel.0, 0),
            Command::TakeConnection { listener } => {
                RawEntry::new(CMD_TAKE_CONNECTION, 0, 0, listener.0.raw(), 0)
            }
            Command::FastOpen { listener, limit } => {
                RawEntry::new(CMD_FAST_OPEN, 0, 0, listener.0.raw(), limit as u64)
            }
            Command::DeferAccept { listener, secs } => {
                RawEntry::new(CMD_DEFER_ACCEPT, 0, 0, listener.0.raw(), secs as u64)
            }
            Command::Inspect { flow, token } => RawEntry::new(CMD_INSPECT, 0, 0, flow.raw(), token as u64),
            Command::CountWaiting { listener, token } => {
                RawEntry::new(CMD_COUNT_WAITING, 0, 0, listener.0.raw(), token as u64)
            }
        }
    }

    pub const fn decode(raw: RawEntry) -> Result<Command, BadEntry> {
        let flow = FlowId::from_raw(raw.id());
        Ok(match raw.kind() {
            CMD_LISTEN => Command::Listen { token: raw.id() },
            CMD_CONNECT => Command::Connect { token: raw.id() },
            CMD_ACCEPT_CREDIT => {
                Command::AcceptCredit { listener: ListenerId(flow), count: raw.word1 as u32 }
            }
            CMD_ACCEPT => {
                Command::Accept { flow, anchor: AnchorHandle(raw.word1 as u32), fd: (raw.word1 >> 32) as u32 }
            }
            CMD_SHUTDOWN_SEND => Command::ShutdownSend { flow },
            CMD_CLOSE => Command::Close { flow, abort: raw.flags() & FLAG_ABORT != 0 },
            CMD_DISCONNECT => Command::Disconnect { flow },
            CMD_CLOSE_RETAINED => Command::CloseRetained {
                flow,
                anchor: AnchorHandle(raw.word1 as u32),
                abort: raw.flags() & FLAG_ABORT != 0,
            },
            CMD_LEND => Command::Lend { anchor: AnchorHandle(raw.id()) },
            CMD_CLOSE_COPY => Command::CloseCopy { lifetime: AnchorHandle(raw.id()) },
            CMD_CLOSE_LISTENER => {
                Command::CloseListener { listener: ListenerId(flow), last: raw.flags() & FLAG_LAST != 0 }
            }
            CMD_END_LISTENER => Command::EndListener { listener: ListenerId(flow) },
            CMD_SET_OPTION => match FlowOption::from_raw(raw.small()) {
                Some(option) => Command::SetOption { flow, option, value: raw.word1 as u32 },
                None => return Err(BadEntry::UnknownArgument),
            },
            CMD_CHANNEL_READY => Command::ChannelReady { channel: ChannelId(raw.id()) },
            CMD_TAKE_CONNECTION => Command::TakeConnection { listener: ListenerId(flow) },
            CMD_FAST_OPEN => Command::FastOpen { listener: ListenerId(flow), limit: raw.word1 as u32 },
            CMD_DEFER_ACCEPT => Command::DeferAccept { listener: ListenerId(flow), secs: raw.word1 as u32 },
            CMD_INSPECT => Command::Inspect { flow, token: raw.word1 as u32 },
            CMD_COUNT_WAITING => {
                Command::CountWaiting { listener: ListenerId(flow), token: raw.word1 as u32 }
            }
            other => return Err(BadEntry::UnknownType(other)),
        })
    }

    /// The type numbers of those that are answered.
    pub const CONNECT: u8 = CMD_CONNECT;
    pub const LISTEN: u8 = CMD_LISTEN;

    /// The type number, as [`Completion::CommandResult`] repeats it.
    pub const fn kind(self) -> u8 {
        self.encode().kind()
    }
}

/// What a host puts into `snd`: bytes of its send part, to go out after those of earlier entries. The host leaves
/// them alone until [`Completion::Sent`] has returned them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    pub flow: FlowId,
    pub data: MemRange,
    /// More will follow at once: a partial segment may wait for it (MSG_MORE).
    pub more: bool,
    /// The last byte is urgent (MSG_OOB).
    pub urgent: bool,
    /// The last byte ends a record (MSG_EOR): no later byte goes out in one segment with it.
    pub end_of_record: bool,
}

const SND_DATA: u8 = 0x21;
const FLAG_MORE: u8 = 1;
const FLAG_URGENT: u8 = 2;
const FLAG_END_OF_RECORD: u8 = 4;

impl Send {
    /// Bytes of which nothing particular is said.
    pub const fn new(flow: FlowId, data: MemRange) -> Send {
        Send { flow, data, more: false, urgent: false, end_of_record: false }
    }

    pub const fn encode(self) -> RawEntry {
        let flags = if self.more { FLAG_MORE } else { 0 }
            | if self.urgent { FLAG_URGENT } else { 0 }
            | if self.end_of_record { FLAG_END_OF_RECORD } else { 0 };
        RawEntry::new(SND_DATA, flags, 0, self.flow.raw(), self.data.to_word())
    }

    pub const fn decode(raw: RawEntry) -> Result<Send, BadEntry> {
        match raw.kind() {
            SND_DATA => Ok(Send {
                flow: FlowId::from_raw(raw.id()),
                data: MemRange::from_word(raw.word1),
                more: raw.flags() & FLAG_MORE != 0,
                urgent: raw.flags() & FLAG_URGENT != 0,
                end_of_record: raw.flags() & FLAG_END_OF_RECORD != 0,
            }),
            other => Err(BadEntry::UnknownType(other)),
        }
    }
}

/// What a host puts into `rcv`: it is done with the next `len` bytes of the flow's received data, in stream order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveCredit {
    pub flow: FlowId,
    pub len: u32,
}

const RCV_CREDIT: u8 = 0x31;

impl ReceiveCredit {
    pub const fn encode(self) -> RawEntry {
        RawEntry::new(RCV_CREDIT, 0, 0, self.flow.raw(), self.len as u64)
    }

    pub const fn decode(raw: RawEntry) -> Result<ReceiveCredit, BadEntry> {
        match raw.kind() {
            RCV_CREDIT => Ok(ReceiveCredit { flow: FlowId::from_raw(raw.id()), len: raw.word1 as u32 }),
            other => Err(BadEntry::UnknownType(other)),
        }
    }
}

/// What the engine puts into `cpl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Answer to [`Command::Listen`], [`Command::Connect`] and [`Command::Inspect`]: `command` is the command's type number,
    /// `id` the (new) listener's or flow's id when `errno` is zero.
    CommandResult { token: u32, command: u8, errno: Errno, id: u32 },
    /// A connection came in at the listener and is this session's if it wants it (see [`Command::Accept`]).
    Accepted { listener: ListenerId, flow: FlowId },
    /// The connection of [`Command::Connect`] is established, or failed with `errno` (then the host closes it).
    Connected { flow: FlowId, errno: Errno },
    /// Bytes arrived; they lie at `data` until the host gives credit for them.
    Data { flow: FlowId, data: MemRange },
    /// The peer acknowledged `len` bytes: their memory is the host's again.
    Sent { flow: FlowId, len: u32 },
    /// The peer's FIN: nothing follows the data already reported.
    PeerClosed { flow: FlowId },
    /// The connection is gone, for the reason `errno`.
    Reset { flow: FlowId, errno: Errno },
    /// Another session showed the flow's descriptor and has the flow now; to use it again, show the descriptor.
    Moved { flow: FlowId },
    /// There is a channel to another session that connections of this queue set may use. The host fetches it
    /// ([`crate::attach::Request::OpenChannel`]) and says [`Command::ChannelReady`], or leaves it.
    OfferChannel { channel: ChannelId },
    /// From now on the flow's bytes may go through this slot of the channel; see [`crate::channel`].
    Direct { flow: FlowId, channel: ChannelId, slot: u32, generation: u16 },
    /// Another session shows the flow's descriptor, but the flow uses a channel: give it up
    /// ([`crate::attach::Request::Relinquish`]).
    Yield { flow: FlowId },
    /// The other session is gone: nothing new will come through this channel.
    ChannelClosed { channel: ChannelId },
    /// The anchor stands for nothing and nobody has it open: the session may use it again.
    AnchorFree { anchor: AnchorHandle },
    /// Another session has been shown the anchor, so [`Command::CloseRetained`] does not end the flow: its last close does, and the host
    /// closes what it has kept.
    AnchorShared { anchor: AnchorHandle },
    /// The session may name this flow id in one [`Command::Connect`], and need not wait for an answer then.
    ConnectCredit { flow: FlowId },
    /// Connections wait at a listener that several processes take from: [`Command::TakeConnection`].
    ConnectionsWait { listener: ListenerId },
    /// No connection waits any more; the next one is announced again. `answer`: to [`Command::TakeConnection`].
    NothingWaits { listener: ListenerId, answer: bool },
    /// The peer has something urgent: the byte that comes after `distance` more than have been announced by `Data` so far
    /// (RFC 9293 section 3.8.5, read as RFC 6093 says hosts do).
    Urgent { flow: FlowId, distance: u32 },
    /// Something hinders the connection, which goes on all the same (RFC 9293 section 3.9.1.8); the program wanted to hear of
    /// it ([`FlowOption::SoftErrors`]).
    SoftError { flow: FlowId, errno: Errno },
    /// So many bytes have gone out since this was told last, or since [`FlowOption::UnsentLowWater`] was set, and fewer than half
    /// of that wait.
    WentOut { flow: FlowId, len: u32 },
}

const CPL_COMMAND_RESULT: u8 = 0x41;
const CPL_ACCEPTED: u8 = 0x42;
const CPL_CONNECTED: u8 = 0x43;
const CPL_DATA: u8 = 0x44;
const CPL_SENT: u8 = 0x45;
const CPL_PEER_CLOSED: u8 = 0x46;
const CPL_RESET: u8 = 0x47;
const CPL_MOVED: u8 = 0x48;
const CPL_OFFER_CHANNEL: u8 = 0x49;
const CPL_DIRECT: u8 = 0x4a;
const CPL_YIELD: u8 = 0x4b;
const CPL_CHANNEL_CLOSED: u8 = 0x4c;
const CPL_ANCHOR_FREE: u8 = 0x4d;
const CPL_CONNECTIONS_WAIT: u8 = 0x4e;
const CPL_NOTHING_WAITS: u8 = 0x4f;
const CPL_URGENT: u8 = 0x50;
const CPL_SOFT_ERROR: u8 = 0x51;
const CPL_ANCHOR_SHARED: u8 = 0x52;
const CPL_CONNECT_CREDIT: u8 = 0x53;
const CPL_WENT_OUT: u8 = 0x54;
const FLAG_ANSWER: u8 = 1;

impl Completion {
    /// Whether a host that sleeps is left asleep: it finds this when something else wakes it.
    pub const fn is_quiet(&self) -> bool {
        matches!(self, Completion::AnchorFree { .. } | Completion::ConnectCredit { .. })
    }

    pub const fn encode(self) -> RawEntry {
        match self {
            Completion::CommandResult { token, command, errno, id } => {
                RawEntry::new(CPL_COMMAND_RESULT, 0, errno.0, token, id as u64 | ((command as u64) << 32))
            }
            Completion::Accepted { listener, flow } => {
                RawEntry::new(CPL_ACCEPTED, 0, 0, listener.0.raw(), flow.raw() as u64)
            }
            Completion::Connected { flow, errno } => RawEntry::new(CPL_CONNECTED, 0, errno.0, flow.raw(), 0),
            Completion::Data { flow, data } => RawEntry::new(CPL_DATA, 0, 0, flow.raw(), data.to_word()),
            Completion::Sent { flow, len } => RawEntry::new(CPL_SENT, 0, 0, flow.raw(), len as u64),
            Completion::PeerClosed { flow } => RawEntry::new(CPL_PEER_CLOSED, 0, 0, flow.raw(), 0),
            Completion::Reset { flow, errno } => RawEntry::new(CPL_RESET, 0, errno.0, flow.raw(), 0),
            Completion::Moved { flow } => RawEntry::new(CPL_MOVED, 0, 0, flow.raw(), 0),
            Completion::OfferChannel { channel } => RawEntry::new(CPL_OFFER_CHANNEL, 0, 0, channel.0, 0),
            Completion::Direct { flow, channel, slot, generation } => {
                RawEntry::new(CPL_DIRECT, 0, generation, flow.raw(), channel.0 as u64 | ((slot as u64) << 32))
            }
            Completion::Yield { flow } => RawEntry::new(CPL_YIELD, 0, 0, flow.raw(), 0),
            Completion::ChannelClosed { channel } => RawEntry::new(CPL_CHANNEL_CLOSED, 0, 0, channel.0, 0),
            Completion::AnchorFree { anchor } => RawEntry::new(CPL_ANCHOR_FREE, 0, 0, anchor.0, 0),
            Completion::AnchorShared { anchor } => RawEntry::new(CPL_ANCHOR_SHARED, 0, 0, anchor.0, 0),
            Completion::ConnectCredit { flow } => RawEntry::new(CPL_CONNECT_CREDIT, 0, 0, flow.raw(), 0),
            Completion::ConnectionsWait { listener } => {
                RawEntry::new(CPL_CONNECTIONS_WAIT, 0, 0, listener.0.raw(), 0)
            }
            Completion::NothingWaits { listener, answer } => {
                RawEntry::new(CPL_NOTHING_WAITS, if answer { FLAG_ANSWER } else { 0 }, 0, listener.0.raw(), 0)
            }
            Completion::Urgent { flow, distance } => {
                RawEntry::new(CPL_URGENT, 0, 0, flow.raw(), distance as u64)
            }
            Completion::SoftError { flow, errno } => RawEntry::new(CPL_SOFT_ERROR, 0, errno.0, flow.raw(), 0),
            Completion::WentOut { flow, len } => RawEntry::new(CPL_WENT_OUT, 0, 0, flow.raw(), len as u64),
        }
    }

    pub const fn decode(raw: RawEntry) -> Result<Completion, BadEntry> {
        let flow = FlowId::from_raw(raw.id());
        let errno = Errno(raw.small());
        Ok(match raw.kind() {
            CPL_COMMAND_RESULT => Completion::CommandResult {
                token: raw.id(),
                command: (raw.word1 >> 32) as u8,
                errno,
                id: raw.word1 as u32,
            },
            CPL_ACCEPTED => {
                Completion::Accepted { listener: ListenerId(flow), flow: FlowId::from_raw(raw.word1 as u32) }
            }
            CPL_CONNECTED => Completion::Connected { flow, errno },
            CPL_DATA => Completion::Data { flow, data: MemRange::from_word(raw.word1) },
            CPL_SENT => Completion::Sent { flow, len: raw.word1 as u32 },
            CPL_PEER_CLOSED => Completion::PeerClosed { flow },
            CPL_RESET => Completion::Reset { flow, errno },
            CPL_MOVED => Completion::Moved { flow },
            CPL_OFFER_CHANNEL => Completion::OfferChannel { channel: ChannelId(raw.id()) },
            CPL_DIRECT => Completion::Direct {
                flow,
                channel: ChannelId(raw.word1 as u32),
                slot: (raw.word1 >> 32) as u32,
                generation: raw.small(),
            },
            CPL_YIELD => Completion::Yield { flow },
            CPL_CHANNEL_CLOSED => Completion::ChannelClosed { channel: ChannelId(raw.id()) },
            CPL_ANCHOR_FREE => Completion::AnchorFree { anchor: AnchorHandle(raw.id()) },
            CPL_ANCHOR_SHARED => Completion::AnchorShared { anchor: AnchorHandle(raw.id()) },
            CPL_CONNECT_CREDIT => Completion::ConnectCredit { flow },
            CPL_CONNECTIONS_WAIT => Completion::ConnectionsWait { listener: ListenerId(flow) },
            CPL_NOTHING_WAITS => Completion::NothingWaits {
                listener: ListenerId(flow),
                answer: raw.flags() & FLAG_ANSWER != 0,
            },
            CPL_URGENT => Completion::Urgent { flow, distance: raw.word1 as u32 },
            CPL_SOFT_ERROR => Completion::SoftError { flow, errno },
            CPL_WENT_OUT => Completion::WentOut { flow, len: raw.word1 as u32 },
            other => return Err(BadEntry::UnknownType(other)),
        })
    }
}

const _: () = assert!(size_of::<RawEntry>() == 16);
