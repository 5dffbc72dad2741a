//! Builds one Ethernet frame with an IP packet: knows every offset, so that nobody else counts bytes.

use crate::work::Link;
use core::net::Ipv4Addr;
use toe_base::Addr;
use toe_wire::eth::{self, EthRepr, EtherType};
use toe_wire::ipv4::{self, Ipv4Repr, Protocol};
use toe_wire::ipv6::{self, Ipv6Repr};
use toe_wire::link::MacAddr;
use toe_wire::vlan::{self, VlanId};

/// From whom to whom a frame goes on its wire.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hop {
    pub from: MacAddr,
    pub to: MacAddr,
    /// Of the networks on that wire.
    pub vlan: Option<VlanId>,
}

impl Hop {
    pub fn over(link: &Link, to: MacAddr) -> Hop {
        Hop { from: link.mac, to, vlan: link.vlan }
    }

    pub fn header_len(&self) -> usize {
        eth::HEADER_LEN + if self.vlan.is_some() { vlan::TAG_LEN } else { 0 }
    }

    /// Writes the Ethernet header and the tag, if there is one. What follows is returned.
    pub fn emit<'a>(&self, ethertype: EtherType, frame: &'a mut [u8]) -> &'a mut [u8] {
        let outer = if self.vlan.is_some() { EtherType::Vlan } else { ethertype };
        EthRepr { dst: self.to, src: self.from, ethertype: outer }.emit(frame);
        if let Some(id) = self.vlan {
            vlan::emit(id, ethertype, &mut frame[eth::HEADER_LEN..]);
        }
        &mut frame[self.header_len()..]
    }
}

/// Where a packet goes. Both addresses are of one family.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    pub hop: Hop,
    pub from: Addr,
    pub to: Addr,
    pub ttl: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
}

/// ECN-capable transport (RFC 3168 section 5).
pub const ECT_0: u8 = 0b10;

/// A frame of known length being filled.
#[derive(Debug)]
pub struct FrameBuilder<'a> {
    frame: &'a mut [u8],
    transport_at: usize,
}

/// Bytes of the IP header of packets to `peer`.
pub fn ip_header_len(peer: Addr) -> usize {
    if peer.is_v4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN }
}

impl Envelope {
    /// Bytes before the transport header.
    pub fn headers_len(&self) -> usize {
        self.hop.header_len() + ip_header_len(self.to)
    }
}

impl<'a> FrameBuilder<'a> {
    /// Fills the Ethernet and IP headers of `frame`, whose length says how long the packet is.
    pub fn ip(frame: &'a mut [u8], envelope: &Envelope, protocol: Protocol) -> FrameBuilder<'a> {
        let len = frame.len();
        FrameBuilder::head(frame, len, envelope, protocol)
    }

    /// The same for the beginning of a frame that is `len` bytes long in all.
    pub fn head(
        frame: &'a mut [u8],
        len: usize,
        envelope: &Envelope,
        protocol: Protocol,
    ) -> FrameBuilder<'a> {
        let transport_at = envelope.headers_len();
        let ip_at = envelope.hop.header_len();
        let (src, dst) = (envelope.from, envelope.to);
        let ethertype = match (src.to_v4(), dst.to_v4()) {
            (Some(src), Some(dst)) => {
                let total_len = (len - ip_at) as u16;
                ipv4_header(envelope, src, dst, protocol, total_len).emit(&mut frame[ip_at..]);
                EtherType::Ipv4
            }
            _ => {
                let ip = Ipv6Repr {
                    src: src.to_v6(),
                    dst: dst.to_v6(),
                    protocol,
                    hop_limit: envelope.ttl,
                    traffic_class: envelope.traffic_class,
                    flow_label: 0,
                    payload_len: (len - transport_at) as u16,
                };
                ip.emit(&mut frame[ip_at..]);
                EtherType::Ipv6
            }
        };
        envelope.hop.emit(ethertype, frame);
        FrameBuilder { frame, transport_at }
    }

    /// The bytes behind the IP header.
    pub fn transport(&mut self) -> &mut [u8] {
        &mut self.frame[self.transport_at..]
    }
}

fn ipv4_header(
    envelope: &Envelope,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    protocol: Protocol,
    total_len: u16,
) -> Ipv4Repr {
    Ipv4Repr {
        src,
        dst,
        protocol,
        ttl: envelope.ttl,
        traffic_class: envelope.traffic_class,
        // With "don't fragment" set the identification carries nothing (RFC 6864 section 4.1).
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len,
    }
}
