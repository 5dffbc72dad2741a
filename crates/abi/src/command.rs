//! Argument blocks of commands, and the flow information record: fixed 64-octet layouts.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// An address and a port. IPv4 addresses stand in the first four octets of `addr`, the others zero.
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
    /// `None` when the family is neither 4 nor 6.
    pub fn to_socket_addr(self) -> Option<SocketAddr> {
        let [a, b, c, d, ..] = self.addr;
        match self.family {
            4 => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), self.port)),
            6 => Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(self.addr)), self.port)),
            _ => None,
        }
    }
}

impl From<SocketAddr> for WireAddr {
    fn from(from: SocketAddr) -> WireAddr {
        let mut addr = [0; 16];
        let family = match from.ip() {
            IpAddr::V4(v4) => {
                addr[..4].copy_from_slice(&v4.octets());
                4
            }
            IpAddr::V6(v6) => {
                addr.copy_from_slice(&v6.octets());
                6
            }
        };
        WireAddr { family, port: from.port(), addr }
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
    /// Handle of the twin kernel socket that holds the port, or [`NO_HANDLE`]. Without a twin bound to the same
    /// port, a port below 1024 needs user id 0.
    pub twin: u32,
    /// The program's descriptor number, for reports only.
    pub fd: u32,
    /// Zero.
    pub reserved: [u8; 28],
}

/// "No descriptor" in an argument block.
pub const NO_HANDLE: u32 = u32::MAX;

/// Argument block of [`crate::entry::Command::Connect`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConnectArgs {
    pub remote: WireAddr,
    /// Local address and port; family 0: the engine chooses both, port 0: it chooses the port.
    pub local: WireAddr,
    /// The anchor whose last close ends the flow.
    pub anchor: u32,
    /// The program's descriptor number, for reports only.
    pub fd: u32,
    /// Zero.
    pub reserved: [u8; 16],
}

/// What the engine tells of a flow, in the region's flow information table, at the flow's slot. Written before the
/// completion that announces the flow; the statistics are refreshed now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlowInfo {
    pub local: WireAddr,
    pub remote: WireAddr,
    /// Largest segment payload towards the peer, in octets.
    pub mss: u32,
    /// Smoothed round-trip time and its variation, in µs.
    pub srtt_us: u32,
    pub rttvar_us: u32,
    /// Congestion window in octets.
    pub cwnd: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// [`toe_base::PortId`] of the link, or 255 for the engine's own `local`.
    pub port: u8,
    /// TCP state as Linux numbers it (1 = ESTABLISHED … 11 = CLOSING).
    pub state: u8,
    /// [`FLOW_RECEIVE_SHUT`] or 0.
    pub flags: u8,
    /// Number of its algorithm of congestion control ([`crate::congestion`]).
    pub congestion: u8,
}

/// The program takes no more ([`crate::entry::FlowOption::ReceiveShut`]).
pub const FLOW_RECEIVE_SHUT: u8 = 1;

const _: () = assert!(size_of::<ListenArgs>() == crate::region::ARG_LEN as usize);
const _: () = assert!(size_of::<ConnectArgs>() == crate::region::ARG_LEN as usize);
const _: () = assert!(size_of::<FlowInfo>() == crate::region::FLOW_INFO_LEN as usize);
