//! Builds one Ethernet frame with an IPv4 packet: knows every offset, so that nobody else counts octets.

use core::net::Ipv4Addr;
use toe_wire::eth::{self, EthRepr, EtherType};
use toe_wire::ipv4::{self, Ipv4Repr, Protocol};
use toe_wire::link::MacAddr;

/// TTL of what we send (RFC 1700's successor registry: 64).
const TTL: u8 = 64;

/// Where a packet goes.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    pub from_mac: MacAddr,
    pub to_mac: MacAddr,
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
}

/// ECN-capable transport (RFC 3168 section 5).
pub const ECT_0: u8 = 0b10;

/// A frame of known length being filled.
#[derive(Debug)]
pub struct FrameBuilder<'a> {
    frame: &'a mut [u8],
}

/// Octets before the transport header.
pub const NETWORK_HEADERS_LEN: usize = eth::HEADER_LEN + ipv4::HEADER_LEN;

impl<'a> FrameBuilder<'a> {
    /// Octets of a frame with `transport_len` octets behind the IPv4 header.
    pub const fn frame_len(transport_len: usize) -> usize {
        NETWORK_HEADERS_LEN + transport_len
    }

    /// Fills the Ethernet and IPv4 headers of `frame`, whose length says how long the packet is.
    pub fn ipv4(frame: &'a mut [u8], envelope: &Envelope, protocol: Protocol) -> FrameBuilder<'a> {
        let total_len = frame.len() - eth::HEADER_LEN;
        EthRepr { dst: envelope.to_mac, src: envelope.from_mac, ethertype: EtherType::Ipv4 }.emit(frame);
        let ip = Ipv4Repr {
            src: envelope.from,
            dst: envelope.to,
            protocol,
            ttl: TTL,
            traffic_class: envelope.traffic_class,
            // With "don't fragment" set the identification carries nothing (RFC 6864 section 4.1).
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: total_len as u16,
        };
        ip.emit(&mut frame[eth::HEADER_LEN..]);
        FrameBuilder { frame }
    }

    /// The octets behind the IPv4 header.
    pub fn transport(&mut self) -> &mut [u8] {
        &mut self.frame[NETWORK_HEADERS_LEN..]
    }
}
