//! Frames and headers: Ethernet with VLAN tags, ARP, IPv4, IPv6, ICMP of both, TCP and UDP, parsed once at the border and written once at the other.
//!
//! Each protocol has a small owned `…Repr`. `Repr::parse` takes bytes from the network: it never panics, and what it
//! refuses has a [`ParseError`] that can be counted. `Repr::emit` writes a header into room that its caller sized
//! with `header_len()`; too little room is the caller's mistake and panics. No heap, no clock, no I/O. The engine's
//! ingress and egress use all of it, the ports only [`link`].
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
mod error;
pub mod eth;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod link;
pub mod tcp;
pub mod udp;
pub mod vlan;

pub use arp::{ArpOperation, ArpRepr};
pub use checksum::Sum;
pub use error::ParseError;
pub use eth::{EthRepr, EtherType};
pub use icmp::IcmpRepr;
pub use icmpv6::Icmpv6Repr;
pub use ipv4::{Ipv4Repr, Protocol};
pub use ipv6::Ipv6Repr;
pub use link::MacAddr;
pub use tcp::{SackBlock, SackBlocks, TcpFlags, TcpOptions, TcpRepr, Timestamps};
pub use udp::UdpRepr;
pub use vlan::VlanId;
