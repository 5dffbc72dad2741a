//! The RX parser: a frame becomes a value of [`Arrived`], or a reason for which it is dropped.
//!
//! Called by the engine with every frame of every port. Everything a peer can get wrong in a header ends here.

pub mod facts;

use crate::control::route::Routes;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::work::Segment;
use core::net::{Ipv4Addr, SocketAddrV4};
use toe_base::PortId;
use toe_wire::arp::ArpRepr;
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::icmp::IcmpRepr;
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::link::{MacAddr, RxOffload};
use toe_wire::tcp::{self, TcpFlags, TcpRepr};

/// The ECN bits of an IP header, and congestion experienced (RFC 3168 section 5).
const ECN_MASK: u8 = 0b11;
const CE: u8 = 0b11;

/// What a frame is.
#[derive(Clone, Copy, Debug)]
pub enum Arrived<'a> {
    Arp(ArpRepr),
    EchoRequest {
        from_mac: MacAddr,
        from: Ipv4Addr,
        to: Ipv4Addr,
        ident: u16,
        seq: u16,
        data: &'a [u8],
    },
    Tcp {
        from_mac: MacAddr,
        key: FlowKey,
        segment: Segment,
        /// It came through a congested queue (CE, RFC 3168 section 5).
        is_marked: bool,
        payload: &'a [u8],
    },
    /// Well-formed, and nothing that the engine answers.
    Ignored,
}

/// Parses a frame that arrived at `port`.
pub fn parse<'a>(
    frame: &'a [u8],
    offload: RxOffload,
    port: PortId,
    mac: MacAddr,
    routes: &Routes,
) -> Result<Arrived<'a>, Counter> {
    let (eth, packet) = EthRepr::parse(frame).map_err(|_| Counter::DropTruncated)?;
    if eth.dst != mac && eth.dst != MacAddr::BROADCAST {
        return Err(Counter::DropNotForUs);
    }
    match eth.ethertype {
        EtherType::Arp => Ok(Arrived::Arp(ArpRepr::parse(packet).map_err(|_| Counter::DropBadArp)?)),
        EtherType::Ipv4 => parse_ipv4(packet, offload, port, eth.src, routes),
        _ => Err(Counter::DropEthertype),
    }
}

fn parse_ipv4<'a>(
    packet: &'a [u8],
    offload: RxOffload,
    port: PortId,
    from_mac: MacAddr,
    routes: &Routes,
) -> Result<Arrived<'a>, Counter> {
    let (ip, payload) = Ipv4Repr::parse(packet).map_err(|_| Counter::DropBadIp)?;
    if !routes.is_own_on(port, ip.dst) {
        return Err(Counter::DropNotForUs);
    }
    if !routes.is_valid_peer(ip.src) {
        return Err(Counter::DropBadAddress);
    }
    if ip.is_fragment() {
        return Err(Counter::DropFragment);
    }
    match ip.protocol {
        Protocol::Tcp => parse_tcp(&ip, payload, offload, from_mac),
        Protocol::Icmp => parse_icmp(&ip, payload, from_mac),
        _ => Err(Counter::DropProtocol),
    }
}

fn parse_icmp<'a>(ip: &Ipv4Repr, payload: &'a [u8], from_mac: MacAddr) -> Result<Arrived<'a>, Counter> {
    match IcmpRepr::parse(payload).map_err(|_| Counter::DropBadIcmp)? {
        (IcmpRepr::EchoRequest { ident, sequence }, data) => {
            Ok(Arrived::EchoRequest { from_mac, from: ip.src, to: ip.dst, ident, seq: sequence, data })
        }
        _ => Ok(Arrived::Ignored),
    }
}

fn parse_tcp<'a>(
    ip: &Ipv4Repr,
    payload: &'a [u8],
    offload: RxOffload,
    from_mac: MacAddr,
) -> Result<Arrived<'a>, Counter> {
    let (header, text) = TcpRepr::parse(payload).map_err(|_| Counter::DropBadTcp)?;
    if !offload.checksum_ok && !tcp::checksum_is_valid(payload, ip.src, ip.dst) {
        return Err(Counter::DropBadChecksum);
    }
    if header.src_port == 0 || header.dst_port == 0 {
        return Err(Counter::DropBadTcp);
    }
    let key = FlowKey {
        local: SocketAddrV4::new(ip.dst, header.dst_port),
        remote: SocketAddrV4::new(ip.src, header.src_port),
    };
    let segment = Segment {
        seq: header.seq,
        ack: header.ack,
        syn: header.flags.contains(TcpFlags::SYN),
        fin: header.flags.contains(TcpFlags::FIN),
        rst: header.flags.contains(TcpFlags::RST),
        psh: header.flags.contains(TcpFlags::PSH),
        window: header.window,
        mss: header.options.mss,
        window_scale: header.options.window_scale,
        sack_permitted: header.options.sack_permitted,
        sack: header.options.sack,
        ece: header.flags.contains(TcpFlags::ECE),
        cwr: header.flags.contains(TcpFlags::CWR),
        timestamps: header.options.timestamps.map(|t| (t.value, t.echo)),
        urgent: header.flags.contains(TcpFlags::URG).then_some(header.urgent),
        len: text.len() as u32,
    };
    let is_marked = ip.traffic_class & ECN_MASK == CE;
    Ok(Arrived::Tcp { from_mac, key, segment, is_marked, payload: text })
}
