//! The RX parser: a frame becomes a value of [`arrived`], or a reason for which it is dropped.
//!
//! Called by the engine with every frame of every port, and again with what was put together from fragments. Everything a
//! peer can get wrong in a header ends here. [`icmp`] has the messages about other packets, of both families.

mod icmp;

pub mod arrived;
pub mod facts;

use crate::control::route::Routes;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::work::{Arrival, Link, Piece, RxDatagram};
use arrived::{Arrived, ArrivedTcp};
use core::net::Ipv6Addr;
use toe_base::{Addr, Endpoint, PortId};
use toe_tcp::segment::Segment;
use toe_wire::arp::ArpRepr;
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::icmpv6;
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::ipv6::{self, Body, Ipv6Repr};
use toe_wire::link::{MacAddr, RxOffload};
use toe_wire::tcp::{self, TcpFlags, TcpRepr};
use toe_wire::udp::{self, UdpRepr};
use toe_wire::vlan::{self, VlanId};

/// The ECN bits of an IP header, and congestion experienced (RFC 3168 section 5).
const ECN_MASK: u8 = 0b11;
const CE: u8 = 0b11;

/// Where a frame arrived.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub port: PortId,
    pub link: &'a Link,
    pub routes: &'a Routes,
}

/// Parses a frame that arrived there.
pub fn parse<'a>(frame: &'a [u8], offload: RxOffload, at: At<'_>) -> Result<Arrived<'a>, Counter> {
    let (eth, packet) = EthRepr::parse(frame).map_err(|_| Counter::DropTruncated)?;
    let is_for_us = eth.dst == at.link.mac || eth.dst == MacAddr::BROADCAST;
    let (ethertype, packet) = untag(eth.ethertype, packet, at.link.vlan)?;
    match ethertype {
        // To which group it goes only its IP header says.
        EtherType::Ipv6 if is_for_us || eth.dst.is_multicast() => parse_ipv6(packet, offload, &eth, at),
        _ if !is_for_us => Err(Counter::DropNotForUs),
        EtherType::Arp => Ok(Arrived::Arp(ArpRepr::parse(packet).map_err(|_| Counter::DropBadArp)?)),
        EtherType::Ipv4 => parse_ipv4(packet, offload, eth.src, at),
        _ => Err(Counter::DropEthertype),
    }
}

/// What a frame carries, if it is of the port's own network. A tag may have a priority and no network: that is as no tag.
fn untag(
    ethertype: EtherType,
    packet: &[u8],
    network: Option<VlanId>,
) -> Result<(EtherType, &[u8]), Counter> {
    let (found, ethertype, packet) = match ethertype {
        EtherType::Vlan => vlan::parse(packet).map_err(|_| Counter::DropTruncated)?,
        untagged => (None, untagged, packet),
    };
    if found == network { Ok((ethertype, packet)) } else { Err(Counter::DropVlan) }
}

fn parse_ipv4<'a>(
    packet: &'a [u8],
    offload: RxOffload,
    from_mac: MacAddr,
    at: At<'_>,
) -> Result<Arrived<'a>, Counter> {
    let (ip, payload) = Ipv4Repr::parse(packet).map_err(|_| Counter::DropBadIp)?;
    let (src, dst) = (Addr::v4(ip.src), Addr::v4(ip.dst));
    if !at.routes.is_own_on(at.port, dst) {
        return Err(Counter::DropNotForUs);
    }
    if !at.routes.is_valid_peer(src) {
        return Err(Counter::DropBadAddress);
    }
    let (hop_limit, traffic_class, zone) = (ip.ttl, ip.traffic_class, at.link.zone);
    let arrival = Arrival { from_mac, src, dst, hop_limit, traffic_class, zone };
    if ip.is_fragment() {
        let piece = Piece {
            arrival,
            protocol: ip.protocol.raw(),
            ident: u32::from(ip.ident),
            offset: u32::from(ip.fragment_offset) * 8,
            more: ip.more_fragments,
            bytes: payload,
        };
        return Ok(Arrived::Fragment(piece));
    }
    Ok(with_headers(parse_transport(&arrival, ip.protocol, payload, offload)?, packet))
}

/// A datagram that came in this packet has its headers.
fn with_headers<'a>(mut arrived: Arrived<'a>, packet: &'a [u8]) -> Arrived<'a> {
    if let Arrived::Datagram(datagram) = &mut arrived {
        let len = datagram.text.as_ptr().addr() - packet.as_ptr().addr();
        datagram.headers = packet.get(..len).unwrap_or_default();
    }
    arrived
}

fn parse_ipv6<'a>(
    packet: &'a [u8],
    offload: RxOffload,
    eth: &EthRepr,
    at: At<'_>,
) -> Result<Arrived<'a>, Counter> {
    let (ip, body) = Ipv6Repr::parse(packet).map_err(|_| Counter::DropBadIp)?;
    let (src, dst) = (address_of(ip.src, at.link.zone)?, address_of(ip.dst, at.link.zone)?);
    let is_group_of_ours = dst.is_multicast()
        && eth.dst == icmpv6::multicast_mac(ip.dst)
        && (ip.dst == icmpv6::ALL_NODES || at.routes.is_solicited_on(at.port, ip.dst));
    if !is_group_of_ours && (eth.dst.is_multicast() || !at.routes.is_own_on(at.port, dst)) {
        return Err(Counter::DropNotForUs);
    }
    let (hop_limit, traffic_class, zone) = (ip.hop_limit, ip.traffic_class, at.link.zone);
    let arrival = Arrival { from_mac: eth.src, src, dst, hop_limit, traffic_class, zone };
    // Who makes sure that an address is nobody's has none to ask from (RFC 4862 section 5.4.2).
    let is_probe = src == Addr::UNSPECIFIED_V6 && ip.protocol == Protocol::Icmpv6;
    if !is_probe && !at.routes.is_valid_peer(src) {
        return Err(Counter::DropBadAddress);
    }
    match body {
        Body::Whole(payload) => {
            Ok(with_headers(parse_transport(&arrival, ip.protocol, payload, offload)?, packet))
        }
        Body::Piece(fragment, bytes) => Ok(Arrived::Fragment(Piece {
            arrival,
            protocol: fragment.next_header,
            ident: fragment.ident,
            offset: u32::from(fragment.offset) * 8,
            more: fragment.more,
            bytes,
        })),
    }
}

/// An address of an IPv6 header as the engine has it. One that is mapped has no place there: it would pass for the IPv4
/// address (RFC 4942 section 2.2).
fn address_of(addr: Ipv6Addr, zone: u32) -> Result<Addr, Counter> {
    if addr.to_ipv4_mapped().is_some() {
        return Err(Counter::DropBadAddress);
    }
    Addr::checked_v6(addr, zone).ok_or(Counter::DropBadAddress)
}

/// Parses a packet that was put together from its pieces: nobody has looked at its transport header yet.
pub fn parse_reassembled<'a>(
    arrival: &Arrival,
    protocol: u8,
    bytes: &'a [u8],
) -> Result<Arrived<'a>, Counter> {
    let (protocol, bytes) = if arrival.src.is_v4() {
        (Protocol::from_raw(protocol), bytes)
    } else {
        ipv6::upper_layer(protocol, bytes).map_err(|_| Counter::DropBadIp)?
    };
    parse_transport(arrival, protocol, bytes, RxOffload::default())
}

fn parse_transport<'a>(
    arrival: &Arrival,
    protocol: Protocol,
    payload: &'a [u8],
    offload: RxOffload,
) -> Result<Arrived<'a>, Counter> {
    match protocol {
        Protocol::Tcp if !arrival.dst.is_multicast() && !arrival.src.is_unspecified() => {
            parse_tcp(arrival, payload, offload)
        }
        Protocol::Udp if !arrival.dst.is_multicast() && !arrival.src.is_unspecified() => {
            parse_udp(arrival, payload, offload)
        }
        Protocol::Icmp if arrival.src.is_v4() => icmp::parse(arrival, payload),
        Protocol::Icmpv6 if arrival.src.is_v6() => icmp::parse_v6(arrival, payload),
        Protocol::Other(protocol) if !arrival.dst.is_multicast() && !arrival.src.is_unspecified() => {
            Ok(Arrived::Other { arrival: *arrival, protocol, bytes: payload })
        }
        _ => Err(Counter::DropProtocol),
    }
}

fn parse_udp<'a>(arrival: &Arrival, payload: &'a [u8], offload: RxOffload) -> Result<Arrived<'a>, Counter> {
    let (ports, text) = UdpRepr::parse(payload).map_err(|_| Counter::DropBadUdp)?;
    if !offload.checksum_ok && !udp::checksum_is_valid(payload, arrival.src, arrival.dst) {
        return Err(Counter::DropBadUdpChecksum);
    }
    if ports.dst_port == 0 {
        return Err(Counter::DropBadUdp);
    }
    let segment = offload.coalesced_mss;
    let text = text.into();
    Ok(Arrived::Datagram(RxDatagram { arrival: *arrival, ports, headers: &[], text, segment }))
}

fn parse_tcp<'a>(arrival: &Arrival, payload: &'a [u8], offload: RxOffload) -> Result<Arrived<'a>, Counter> {
    let (header, text) = TcpRepr::parse(payload).map_err(|_| Counter::DropBadTcp)?;
    if !offload.checksum_ok && !tcp::checksum_is_valid(payload, arrival.src, arrival.dst) {
        return Err(Counter::DropBadChecksum);
    }
    if header.src_port == 0 || header.dst_port == 0 {
        return Err(Counter::DropBadTcp);
    }
    let key = FlowKey::new(
        Endpoint::new(arrival.dst, header.dst_port),
        Endpoint::new(arrival.src, header.src_port),
    );
    let segment = Segment {
        seq: header.seq,
        ack: header.ack,
        flags: header.flags.without(TcpFlags::ACK.with(TcpFlags::URG)),
        window: header.window,
        mss: header.options.mss,
        window_scale: header.options.window_scale,
        sack_permitted: header.options.sack_permitted,
        sack: header.options.sack,
        timestamps: header.options.timestamps.map(|t| (t.value, t.echo)),
        fast_open: header.options.fast_open,
        urgent: header.flags.contains(TcpFlags::URG).then_some(header.urgent),
        len: text.len() as u32,
    };
    let is_marked = arrival.traffic_class & ECN_MASK == CE;
    let is_scale_too_large = segment.flags.syn() && header.options.is_scale_too_large;
    let from_mac = arrival.from_mac;
    Ok(Arrived::Tcp(ArrivedTcp { from_mac, key, segment, is_marked, is_scale_too_large, payload: text }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3168 section 5: the mark is two bits, and the other six are Diffserv's.
    #[test]
    fn a_mark_is_read_beside_any_diffserv_field() {
        let mut header = [0; 20];
        (header[1], header[3], header[12]) = (9, 80, 5 << 4);
        let offload = RxOffload { checksum_ok: true, coalesced_mss: None };
        for (traffic_class, marked) in [
            (0, false),
            (0b01, false),
            (0b10, false),
            (0b11, true),
            (0xb8, false),
            (0xba, false),
            (0xbb, true),
        ] {
            let (src, dst) = (Addr::from([10, 0, 0, 1]), Addr::from([10, 0, 0, 2]));
            let from_mac = MacAddr::default();
            let arrival = Arrival { from_mac, src, dst, hop_limit: 64, traffic_class, zone: 0 };
            let Ok(Arrived::Tcp(ArrivedTcp { is_marked, .. })) = parse_tcp(&arrival, &header, offload) else {
                panic!("a sound segment")
            };
            assert_eq!(is_marked, marked, "{traffic_class:#x}");
        }
    }
}
