//! Argument blocks of commands, and the flow information record: fixed 64-byte layouts.

use core::net::SocketAddr;
use toe_base::{Addr, Endpoint};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An address and a port. IPv4 addresses stand in the first four bytes of `addr`, the others zero. A link-local IPv6
/// address (fe80::/10) has its zone, the index of the interface (sin6_scope_id), in bytes 4 to 8, the most significant
/// first: they are zero in the address itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WireAddr {
    /// 4 or 6.
    pub family: u16,
    /// Port in host byte order.
    pub port: u16,
    pub addr: [u8; 16],
}

const _: () = assert!(size_of::<WireAddr>() == 20);

impl WireAddr {
    /// `None` when the family is neither 4 nor 6. An IPv4-mapped address is the IPv4 address.
    pub fn to_endpoint(self) -> Option<Endpoint> {
        let [a, b, c, d, ..] = self.addr;
        match self.family {
            4 => Some(Endpoint::new([a, b, c, d], self.port)),
            6 => Some(Endpoint { addr: Addr::from_bytes(self.addr), port: self.port }),
            _ => None,
        }
    }

    /// The same as programs have it.
    pub fn to_socket_addr(self) -> Option<SocketAddr> {
        self.to_endpoint().map(Endpoint::to_socket_addr)
    }
}

impl From<Endpoint> for WireAddr {
    fn from(from: Endpoint) -> WireAddr {
        let mut addr = from.addr.bytes();
        if let Some(v4) = from.addr.to_v4() {
            addr = [0; 16];
            addr[..4].copy_from_slice(&v4.octets());
        }
        WireAddr { family: if from.addr.is_v4() { 4 } else { 6 }, port: from.port, addr }
    }
}

impl From<SocketAddr> for WireAddr {
    fn from(from: SocketAddr) -> WireAddr {
        Endpoint::from(from).into()
    }
}

/// Argument block of [`crate::entry::Command::Listen`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ListenArgs {
    /// Address to listen at; the unspecified address means each of the engine's.
    pub local: WireAddr,
    /// Connections that may wait to be taken.
    pub backlog: u32,
    /// The anchor whose last close ends the listener.
    pub anchor: u32,
    /// Handle of the twin kernel socket that listens at this address and port.
    pub twin: u32,
    /// The program's descriptor number, for reports only.
    pub fd: u32,
    /// [`LISTEN_V6_ONLY`], [`LISTEN_ASKS`] and [`LISTEN_KERNEL_TOO`], or 0; of who asks also what its socket shares, from [`LISTEN_SHARES_SHIFT`] on.
    pub flags: u32,
    /// Zero.
    pub reserved: [u8; 24],
}

/// At the unspecified address of IPv6, take connections of that family alone. Otherwise those of IPv4 come to it as well,
/// unless another listener is at that port in IPv4; their addresses are told as IPv4 addresses.
pub const LISTEN_V6_ONLY: u32 = 1;

/// Nobody is to listen: it is asked whether connections are in the way of a socket that is to be bound there. Neither an anchor
/// nor a twin is named.
pub const LISTEN_ASKS: u32 = 1 << 1;
/// Where the bits begin that say what the socket which is to be bound shares.
pub const LISTEN_SHARES_SHIFT: u32 = 2;

/// What a socket lets others have of its name, of a listener that asks and in [`crate::entry::FlowOption::SharesName`]:
/// SO_REUSEADDR and SO_REUSEPORT.
pub const SHARES_REUSE_ADDR: u32 = 1;
pub const SHARES_REUSE_PORT: u32 = 1 << 1;

/// The program takes the connections of the kernel's listener, too: clients of this host that can ask the kernel
/// ([`CONNECT_KERNEL_TOO`]) may be sent there ([`Errno::EHOSTDOWN`] to their [`crate::entry::Command::Connect`]).
///
/// [`Errno::EHOSTDOWN`]: crate::errno::Errno::EHOSTDOWN
pub const LISTEN_KERNEL_TOO: u32 = 1 << 4;

/// All flags of a listener.
pub const LISTEN_FLAGS: u32 = LISTEN_V6_ONLY
    | LISTEN_ASKS
    | (SHARES_REUSE_ADDR | SHARES_REUSE_PORT) << LISTEN_SHARES_SHIFT
    | LISTEN_KERNEL_TOO;

/// "No descriptor" in an argument block.
pub const NO_HANDLE: u32 = u32::MAX;

/// Argument block of [`crate::entry::Command::Connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConnectArgs {
    pub remote: WireAddr,
    /// Local address and port; family 0: the engine chooses both, port 0: it chooses the port.
    pub local: WireAddr,
    /// The anchor whose last close ends the flow.
    pub anchor: u32,
    /// The program's descriptor number, for reports only.
    pub fd: u32,
    /// [`CONNECT_FAST_OPEN`] and [`CONNECT_KERNEL_TOO`], or 0.
    pub flags: u32,
    /// Handle of the twin kernel socket that holds the local port, if that is not 0; otherwise [`NO_HANDLE`].
    pub twin: u32,
    /// The id that the flow gets, one that the engine has given for this ([`crate::entry::Completion::ConnectCredit`]): then nothing
    /// is answered, and one that cannot even be tried is told by [`crate::entry::Completion::Connected`]. Otherwise [`NO_HANDLE`].
    pub flow: u32,
    /// Zero.
    pub reserved: [u8; 4],
}

impl Default for ConnectArgs {
    /// From an address and port of the engine's choice.
    fn default() -> ConnectArgs {
        let (remote, local) = (WireAddr::default(), WireAddr::default());
        let (twin, flow) = (NO_HANDLE, NO_HANDLE);
        ConnectArgs { remote, local, anchor: 0, fd: 0, flags: 0, twin, flow, reserved: [0; 4] }
    }
}

/// The program has bytes to send at once, or soon (TCP Fast Open, RFC 7413). If the engine has a cookie of the server's,
/// the flow's information says [`FLOW_WAITS_FOR_DATA`] when the command is answered, and the SYN goes out with the bytes
/// of the first [`crate::entry::Send`]. Otherwise the SYN goes out at once, and asks for a cookie if it may.
pub const CONNECT_FAST_OPEN: u32 = 1;

/// The host can ask the kernel's stack instead: see [`LISTEN_KERNEL_TOO`].
pub const CONNECT_KERNEL_TOO: u32 = 1 << 1;

/// All flags of a connection that is asked for.
pub const CONNECT_FLAGS: u32 = CONNECT_FAST_OPEN | CONNECT_KERNEL_TOO;

/// What the engine tells of a flow, in the region's flow information table, at the flow's slot. Written before the
/// completion that announces the flow; the statistics are refreshed now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowInfo {
    pub local: WireAddr,
    pub remote: WireAddr,
    /// Largest segment payload towards the peer, in bytes; with [`FLOW_WAITS_FOR_DATA`] those that fit the SYN.
    pub mss: u16,
    /// The soft error that was noted last, 0: none since the peer was last heard to have got something; and how many were
    /// noted, modulo 256.
    pub soft_error: u8,
    pub soft_errors: u8,
    /// Smoothed round-trip time and its variation, in µs.
    pub srtt_us: u32,
    pub rttvar_us: u32,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// [`toe_base::PortId`] of the link, or 255 for the engine's own `local`.
    pub port: u8,
    /// TCP state as Linux numbers it (1 = ESTABLISHED … 11 = CLOSING).
    pub state: u8,
    /// [`FLOW_RECEIVE_SHUT`], what both ends have agreed on: [`FLOW_TIMESTAMPS`] … [`FLOW_ECN`], [`FLOW_SYN_DATA`] and
    /// [`FLOW_WAITS_FOR_DATA`].
    pub flags: u8,
    /// Number of its algorithm of congestion control ([`crate::congestion`]).
    pub congestion: u8,
}

/// The program takes no more ([`crate::entry::FlowOption::ReceiveShut`]).
pub const FLOW_RECEIVE_SHUT: u8 = 1;
/// Timestamps, selective acknowledgements, window scales, explicit congestion notification.
pub const FLOW_TIMESTAMPS: u8 = 1 << 1;
pub const FLOW_SACK: u8 = 1 << 2;
pub const FLOW_WINDOW_SCALE: u8 = 1 << 3;
pub const FLOW_ECN: u8 = 1 << 4;
/// Bytes of the SYN were taken: by the peer, or of the peer.
pub const FLOW_SYN_DATA: u8 = 1 << 5;
/// Nothing goes out before there are bytes to go with it ([`CONNECT_FAST_OPEN`]).
pub const FLOW_WAITS_FOR_DATA: u8 = 1 << 6;

/// Bytes of the options themselves in [`SocketOptions`].
pub const SOCKET_OPTIONS_ROOM: usize = 504;

/// The options of a connection that only hosts know, for whoever has the connection next: the host writes them at the flow's slot
/// before another process can have the descriptor, and whenever they change after that; the engine, which does not look at
/// them, puts them at the slot of whoever claims the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SocketOptions {
    /// Whose they are; another number than the flow's: there are none.
    pub flow: u32,
    /// How many bytes there are.
    pub len: u32,
    pub bytes: [u8; SOCKET_OPTIONS_ROOM],
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions { flow: NO_HANDLE, len: 0, bytes: [0; SOCKET_OPTIONS_ROOM] }
    }
}

const _: () = assert!(size_of::<SocketOptions>() == crate::region::SOCKET_OPTIONS_LEN as usize);
const _: () = assert!(size_of::<ListenArgs>() == crate::region::ARG_LEN as usize);
const _: () = assert!(size_of::<ConnectArgs>() == crate::region::ARG_LEN as usize);
const _: () = assert!(size_of::<FlowInfo>() == crate::region::FLOW_INFO_LEN as usize);
