//! Every value that passes between stages.

use core::net::Ipv4Addr;
use std::borrow::Cow;
use toe_abi::attach::Unread;
use toe_abi::capture::{Direction, Facts, Filter, LOCAL_INTERFACE};
use toe_abi::errno::Errno;
use toe_abi::lane::MtuDiscover;
use toe_base::{
    Addr, AnchorHandle, Cred, DatagramId, Endpoint, FlowId, ListenerId, PortId, QueueSetId, SeqNum, SessionId,
};
use toe_wire::UdpRepr;
use toe_wire::link::{FrameTail, LinkCaps, MacAddr};
use toe_wire::vlan::VlanId;

use crate::counter::Counter;
use crate::flow::key::FlowKey;
use toe_tcp::segment::{RxSegment, Segment};

/// A link as its port describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub mac: MacAddr,
    /// By which link-local addresses of this link are told from those of others: the interface's index, as programs name
    /// it (sin6_scope_id).
    pub zone: u32,
    /// Largest IP datagram that fits one frame, in bytes.
    pub mtu: u32,
    pub caps: LinkCaps,
    /// Of the networks on the wire the one that the port is of; `None`: that of untagged frames.
    pub vlan: Option<VlanId>,
}

/// Where a flow's segments travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Both ends are flows of this engine; no frame is built.
    Local,
    /// Over a port, through the neighbour with this number in the port's table.
    Port { port: PortId, neighbour: u16 },
}

/// Ingress → flow: one segment for one connection.
#[derive(Clone, Copy, Debug)]
pub struct RxWork<'a> {
    /// As the receiver sees it: `local` is the segment's destination.
    pub key: FlowKey,
    pub path: Path,
    pub rx: RxSegment<'a>,
}

/// How a packet came: its IP header, as far as it matters behind ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub from_mac: MacAddr,
    pub src: Addr,
    pub dst: Addr,
    /// TTL of IPv4.
    pub hop_limit: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// [`Link::zone`] of where it came in.
    pub zone: u32,
}

/// Ingress → control: a piece of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub arrival: Arrival,
    /// What the whole begins with; of IPv6 that may be an extension header.
    pub protocol: u8,
    pub ident: u32,
    /// Where the piece lies in the whole, in bytes.
    pub offset: u32,
    /// It is not the last one.
    pub more: bool,
    pub bytes: &'a [u8],
}

/// Ingress → control: neighbour discovery (RFC 4861).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourMessage {
    /// Somebody asks for the hardware address of `target`.
    Asked { arrival: Arrival, target: Addr, source_mac: Option<MacAddr> },
    /// `target` is at `mac`; without that it is where it was.
    Advertised { target: Addr, mac: Option<MacAddr>, solicited: bool, overrides: bool },
}

/// Ingress → flow: an ICMP error about a segment that quotes the beginning of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The connection that the segment was of, if it was ours.
    pub key: FlowKey,
    pub seq: SeqNum,
    /// Bytes of the datagram that the segment was in.
    pub datagram_len: u32,
    pub trouble: Trouble,
}

/// Ingress → UDP: a datagram, its checksum verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxDatagram<'a> {
    pub arrival: Arrival,
    pub ports: UdpRepr,
    /// Its headers as they came, from that of IP on, to be quoted; none of one that did not come in a packet of its own.
    pub headers: &'a [u8],
    pub text: Cow<'a, [u8]>,
    /// There are several of so many bytes each, one behind the other; the last may be shorter.
    pub segment: Option<u16>,
}

impl RxDatagram<'_> {
    pub fn from(&self) -> Endpoint {
        Endpoint { addr: self.arrival.src, port: self.ports.src_port }
    }

    pub fn to(&self) -> Endpoint {
        Endpoint { addr: self.arrival.dst, port: self.ports.dst_port }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.segment.map_or(1, |len| self.text.len().div_ceil(usize::from(len).max(1)))
    }
}

/// Ingress → UDP: an ICMP error about a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxDatagramError<'a> {
    pub arrival: Arrival,
    /// Who sent the datagram, and to whom.
    pub own: Endpoint,
    pub peer: Endpoint,
    /// It was too large for a link that takes so much (0: that router does not say).
    pub mtu: Option<u32>,
    /// The whole message.
    pub message: Cow<'a, [u8]>,
}

/// UDP → driver: what came for a socket, for the driver to hand over.
#[derive(Clone, Debug)]
pub enum Incoming<'a> {
    Datagram(ForSocket<'a>),
    /// For the kernel, which knows whose it is.
    Error(RxDatagramError<'a>),
}

/// A datagram for a socket, or several that came together.
#[derive(Clone, Debug)]
pub struct ForSocket<'a> {
    /// For the session that alone has the socket; `None`: for the kernel, which knows whose it is.
    pub to: Option<DatagramId>,
    pub datagram: RxDatagram<'a>,
    /// The bytes are still with the link: those of the frame from there on belong where `text` is, whose own have no meaning.
    pub tail: Option<(&'a dyn FrameTail, usize)>,
    /// What the kernel calls it.
    socket: Option<u64>,
    /// Those that go after it, of so many bytes each.
    rest: (&'a [u8], u16),
}

/// What became of something that the driver handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    ByLane,
    ByKernel,
    QueueFull,
    /// The driver cannot hand it over. Of several those that are there go one by one then: the kernel takes no others.
    Nowhere,
}

/// Driver → UDP: what became of what came for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedOver {
    Datagrams { socket: Option<u64>, count: usize, bytes: usize, became: Delivered },
    Error(Delivered),
}

impl<'a> Incoming<'a> {
    /// This became of it: what the engine is to hear of that ([`crate::ControlEvent::HandedOver`]), and what is to be handed over next.
    #[inline]
    pub fn became(self, became: Delivered) -> (Option<HandedOver>, Option<Incoming<'a>>) {
        let one = match self {
            Incoming::Error(_) => return (Some(HandedOver::Error(became)), None),
            Incoming::Datagram(one) => one,
        };
        if became == Delivered::Nowhere
            && let (Some(len), None, Cow::Borrowed(all)) =
                (one.datagram.segment, one.tail, &one.datagram.text)
        {
            let all = *all;
            return (None, one.next((all, len)));
        }
        let (socket, count, bytes) = (one.socket, one.datagram.count(), one.datagram.text.len());
        let rest = one.rest;
        (Some(HandedOver::Datagrams { socket, count, bytes, became }), one.next(rest))
    }

    /// With bytes of its own.
    pub(crate) fn into_owned(self) -> Incoming<'static> {
        match self {
            Incoming::Datagram(ForSocket { to, datagram, socket, .. }) => {
                let RxDatagram { arrival, ports, text, segment, .. } = datagram;
                let text = text.into_owned().into();
                let datagram = RxDatagram { arrival, ports, headers: &[], text, segment };
                Incoming::Datagram(ForSocket::new(to, socket, datagram))
            }
            Incoming::Error(error) => {
                let message = error.message.into_owned().into();
                Incoming::Error(RxDatagramError { message, ..error })
            }
        }
    }
}

impl<'a> ForSocket<'a> {
    #[inline]
    pub(crate) fn new(
        to: Option<DatagramId>,
        socket: Option<u64>,
        datagram: RxDatagram<'a>,
    ) -> ForSocket<'a> {
        ForSocket { to, datagram, tail: None, socket, rest: (&[], 0) }
    }

    /// Reads the bytes that are with the link. `false`: it does not have them any more.
    pub fn read(&self, into: &mut Vec<u8>) -> bool {
        let Some((tail, at)) = self.tail else { return false };
        into.resize(self.datagram.text.len(), 0);
        tail.read(at, into)
    }

    /// The same with these bytes, which are not with the link.
    pub fn with_text<'b>(self, text: &'b [u8]) -> Incoming<'b>
    where
        'a: 'b,
    {
        let datagram = RxDatagram { text: text.into(), ..self.datagram };
        Incoming::Datagram(ForSocket { datagram, tail: None, ..self })
    }

    /// The first of those.
    #[inline]
    fn next(self, (rest, len): (&'a [u8], u16)) -> Option<Incoming<'a>> {
        if rest.is_empty() {
            return None;
        }
        let (text, rest) = rest.split_at(rest.len().min(usize::from(len).max(1)));
        // In its packet it had other headers.
        let datagram = RxDatagram { text: text.into(), headers: &[], segment: None, ..self.datagram };
        Some(Incoming::Datagram(ForSocket { datagram, rest: (rest, len), ..self }))
    }
}

/// Ingress → protocols: a whole packet of a protocol that has no stage of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxPacket<'a> {
    pub port: PortId,
    pub arrival: Arrival,
    pub protocol: u8,
    pub bytes: &'a [u8],
}

/// Protocols → egress: a packet to send to a neighbour, without its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxPacket {
    pub to_mac: MacAddr,
    pub from: Addr,
    pub to: Addr,
    pub protocol: u8,
    pub bytes: Vec<u8>,
}

/// UDP → egress: a datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxDatagram {
    pub from: Endpoint,
    pub to: Endpoint,
    pub ttl: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Bytes of the largest packet.
    pub mtu: u16,
    pub discover: MtuDiscover,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It did not arrive, and what Linux calls that.
    Unreachable(Errno),
    /// It is too large for a link on the way. 0: the router is too old to say how large it may be.
    TooBig { mtu: u32 },
}

/// Control → egress: a frame that belongs to no flow's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlFrame {
    /// Who has this address? By ARP or a neighbour solicitation.
    AskNeighbour {
        target: Addr,
        source: Addr,
    },
    ArpReply {
        to_mac: MacAddr,
        to: Ipv4Addr,
        source: Ipv4Addr,
    },
    /// `source` is here (RFC 4861): an answer, or unasked.
    Advertise {
        to_mac: MacAddr,
        to: Addr,
        source: Addr,
        solicited: bool,
    },
    EchoReply {
        to_mac: MacAddr,
        to: Addr,
        source: Addr,
        ident: u16,
        seq: u16,
        data: Vec<u8>,
    },
    /// Nobody is at the port that a datagram is for; `quoted` is what is quoted of that, from its IP header on.
    PortUnreachable {
        to_mac: MacAddr,
        to: Addr,
        source: Addr,
        quoted: Vec<u8>,
    },
    Tcp {
        to_mac: MacAddr,
        lone: Lone,
    },
    Packet(TxPacket),
}

/// A TCP segment without a flow: RST, a SYN-ACK with a cookie, or an ACK in TIME_WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lone {
    pub key: FlowKey,
    pub segment: Segment,
    pub traffic_class: u8,
}

/// A packet as captures see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// `None`: it went from one program of the engine to another.
    pub port: Option<PortId>,
    pub direction: Direction,
    /// The driver fills in the processes.
    pub facts: Facts,
    pub sender: Option<SightingEnd>,
    pub receiver: Option<SightingEnd>,
    /// Under what it was dropped.
    pub reason: Option<Counter>,
}

impl Sighting {
    /// As captures number it.
    pub fn interface(&self) -> u16 {
        self.port.map_or(LOCAL_INTERFACE, |port| LOCAL_INTERFACE + 1 + u16::from(port.0))
    }
}

/// What one capture wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureRule {
    pub filter: Filter,
    /// Whose packets only; `None`: all.
    pub only: Option<Cred>,
    pub interface: Option<u16>,
}

/// A packet that captures are to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    pub packet: Sighting,
    /// From its link header on.
    pub bytes: Vec<u8>,
}

/// Who has an end of a [`Sighting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SightingEnd {
    pub session: SessionId,
    /// The program's descriptor.
    pub fd: u32,
    /// That of the listener: nobody has the connection yet.
    pub listens: bool,
}

/// What an anchor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorUse {
    /// Nothing since it was made, or last closed.
    Unused,
    Listener,
    /// A connection whose handshake goes on.
    Opening,
    Connection,
    /// Nothing any more; somebody may have it open still.
    Over,
}

impl AnchorUse {
    /// Whether it holds a connection or a listener alive.
    pub fn stands(self) -> bool {
        matches!(self, AnchorUse::Listener | AnchorUse::Opening | AnchorUse::Connection)
    }
}

/// What a session asks of who has what. EINVAL or EBADF: it names what it has not.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// It is about to claim what the anchor stands for. Whoever has the flow loses it and is told (`Moved`). What that one has published until
    /// then still counts: the driver takes its entries, and then claims. It may be the same session: its host has closed a
    /// descriptor, and thrown away what it was told of the flow, before it got this one. EAGAIN: one of the owner's threads is at
    /// the flow, or it takes no completions; to be tried again. ENOENT: what the session shows does not count. EDQUOT: it may not have the flow.
    Withdraw { lifetime: AnchorHandle },
    /// It shows an anchor: it becomes a holder of that listener, or the owner of that flow, whose unread data moves to its memory and is
    /// announced anew. Errors as above; ENOMEM: there is no memory for what is unread.
    Claim { lifetime: AnchorHandle, queue_set: QueueSetId, fd: u32 },
    /// It gives a flow back to the engine. Whoever shows its descriptor next gets it, and what is unread with it. EAGAIN: the session has
    /// completions to look at first. ENOMEM: there is no memory for what is unread.
    Relinquish { flow: FlowId, unread: Unread },
    /// A child process is about to get copies of all that it has ([`toe_abi::attach::Request::Share`]). EAGAIN: something is not announced
    /// yet for want of room.
    Share,
}

/// What came of a [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Nothing,
    Flow(FlowId, StreamCounts),
    Listener(ListenerId),
}

/// How far programs have come with the two directions of a connection, in bytes since it began. Those that went through a channel
/// are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Less by what a channel had brought and was given back: that is announced once more, and then counts.
    pub read: i64,
    pub written: u64,
}

/// Who is charged for something: the place of a user's record in [`crate::hostif::users`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserIdx(pub u32);

impl UserIdx {
    /// What has this is charged to nobody.
    pub const NOBODY: UserIdx = UserIdx(0);

    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Who holds a flow on the host side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Session 0 means nobody: not yet accepted, or closed by the program.
    pub session: SessionId,
    pub queue_set: toe_base::QueueSetId,
    pub flow_id: FlowId,
    /// The program's descriptor, for reports.
    pub fd: u32,
}

impl Owner {
    pub const fn is_nobody(&self) -> bool {
        self.session.0 == 0
    }
}

/// What a socket lets others have of its name, as [`toe_abi::entry::FlowOption::SharesName`] has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing(u8);

/// SO_REUSEADDR and SO_REUSEPORT.
const REUSES: u8 = toe_abi::command::SHARES_REUSE_ADDR as u8;
const SHARES: u8 = toe_abi::command::SHARES_REUSE_PORT as u8;

impl Sharing {
    pub const fn new(reuses: bool, shares: bool) -> Sharing {
        Sharing(if reuses { REUSES } else { 0 } | if shares { SHARES } else { 0 })
    }

    /// Bits that mean nothing are left out.
    pub const fn from_value(value: u32) -> Sharing {
        Sharing(value as u8 & (REUSES | SHARES))
    }

    /// Each kind has a number below four.
    pub const fn place(self) -> usize {
        self.0 as usize
    }

    pub const fn of_place(place: usize) -> Sharing {
        Sharing::from_value(place as u32)
    }

    pub const fn shares_port(self) -> bool {
        self.0 & SHARES != 0
    }

    /// Whether Linux lets two sockets with a name each have the same (inet_bind_conflict), of which one does not listen.
    pub const fn goes_with(self, other: Sharing, is_of_same_user: bool) -> bool {
        let both = self.0 & other.0;
        both & REUSES != 0 || both & SHARES != 0 && is_of_same_user
    }
}
