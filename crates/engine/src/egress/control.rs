//! Frames that belong to no flow's stream: ARP and neighbour discovery, ICMP echo replies, lone resets. At most one a frame
//! received, and queued in a bounded list, so nobody can use the engine to amplify.

use super::builder::{Envelope, FrameBuilder, Hop};
use super::segment::{self, NoRoom};
use crate::work::{ControlFrame, Link, Lone, TxPacket};
use core::net::Ipv4Addr;
use toe_base::Addr;
use toe_wire::arp::{self, ArpOperation, ArpRepr};
use toe_wire::eth::EtherType;
use toe_wire::icmp::{self, IcmpRepr};
use toe_wire::icmpv6::{self, Advertisement, Icmpv6Repr};
use toe_wire::ipv4::{Protocol, TTL};
use toe_wire::link::{FrameSink, MacAddr, TxOffload};
use toe_wire::tcp;

/// Builds the frame in `sink` and hands it over.
pub fn emit(sink: &mut dyn FrameSink, link: &Link, control: &ControlFrame) -> Result<(), NoRoom> {
    match control {
        ControlFrame::AskNeighbour { target, source } => match (target.to_v4(), source.to_v4()) {
            (Some(target), Some(source)) => ask_by_arp(sink, link, target, source),
            _ => ask_by_solicitation(sink, link, *target, *source),
        },
        ControlFrame::ArpReply { to_mac, to, source } => {
            let message = ArpRepr {
                operation: ArpOperation::Reply,
                sender_mac: link.mac,
                sender_ip: *source,
                target_mac: *to_mac,
                target_ip: *to,
            };
            emit_arp(sink, &Hop::over(link, *to_mac), &message)
        }
        ControlFrame::Advertise { to_mac, to, source, solicited } => {
            let message = Icmpv6Repr::NeighbourAdvertisement(Advertisement {
                target: source.to_v6(),
                target_mac: Some(link.mac),
                is_router: false,
                is_solicited: *solicited,
                overrides: true,
            });
            emit_neighbour(sink, Hop::over(link, *to_mac), (*source, *to), &message)
        }
        ControlFrame::EchoReply { to_mac, to, source, ident, seq, data } => {
            let hop = Hop::over(link, *to_mac);
            let envelope = Envelope { hop, from: *source, to: *to, ttl: TTL, traffic_class: 0 };
            emit_echo_reply(sink, &envelope, (*ident, *seq), data)
        }
        ControlFrame::PortUnreachable { to_mac, to, source, quoted } => {
            let hop = Hop::over(link, *to_mac);
            let envelope = Envelope { hop, from: *source, to: *to, ttl: TTL, traffic_class: 0 };
            emit_unreachable(sink, &envelope, quoted)
        }
        ControlFrame::Packet(TxPacket { to_mac, from, to, protocol, bytes }) => {
            let hop = Hop::over(link, *to_mac);
            let envelope = Envelope { hop, from: *from, to: *to, ttl: TTL, traffic_class: 0 };
            let frame = sink.frame(envelope.headers_len() + bytes.len()).ok_or(NoRoom)?;
            let mut builder = FrameBuilder::ip(frame, &envelope, Protocol::from_raw(*protocol));
            builder.transport().copy_from_slice(bytes);
            sink.commit(TxOffload::default());
            Ok(())
        }
        ControlFrame::Tcp { to_mac, lone: Lone { key, segment, traffic_class } } => {
            let (from, to) = (key.local.addr, key.remote.addr);
            let hop = Hop::over(link, *to_mac);
            let envelope = Envelope { hop, from, to, ttl: TTL, traffic_class: *traffic_class };
            let header = segment::header(key, segment);
            let frame = sink.frame(envelope.headers_len() + header.header_len()).ok_or(NoRoom)?;
            let mut builder = FrameBuilder::ip(frame, &envelope, Protocol::Tcp);
            header.emit(builder.transport());
            tcp::store_checksum(builder.transport(), from, to);
            sink.commit(TxOffload::default());
            Ok(())
        }
    }
}

fn ask_by_arp(
    sink: &mut dyn FrameSink,
    link: &Link,
    target: Ipv4Addr,
    source: Ipv4Addr,
) -> Result<(), NoRoom> {
    let message = ArpRepr {
        operation: ArpOperation::Request,
        sender_mac: link.mac,
        sender_ip: source,
        target_mac: MacAddr::default(),
        target_ip: target,
    };
    emit_arp(sink, &Hop::over(link, MacAddr::BROADCAST), &message)
}

/// RFC 4861 section 7.2.2.
fn ask_by_solicitation(
    sink: &mut dyn FrameSink,
    link: &Link,
    target: Addr,
    source: Addr,
) -> Result<(), NoRoom> {
    let group = icmpv6::solicited_node(target.to_v6());
    let message = Icmpv6Repr::NeighbourSolicitation { target: target.to_v6(), source_mac: Some(link.mac) };
    emit_neighbour(sink, Hop::over(link, icmpv6::multicast_mac(group)), (source, group.into()), &message)
}

fn emit_neighbour(
    sink: &mut dyn FrameSink,
    hop: Hop,
    (from, to): (Addr, Addr),
    message: &Icmpv6Repr,
) -> Result<(), NoRoom> {
    let envelope = Envelope { hop, from, to, ttl: icmpv6::HOP_LIMIT, traffic_class: 0 };
    let frame = sink.frame(envelope.headers_len() + message.header_len()).ok_or(NoRoom)?;
    let mut builder = FrameBuilder::ip(frame, &envelope, Protocol::Icmpv6);
    message.emit(builder.transport(), from.to_v6(), to.to_v6());
    sink.commit(TxOffload::default());
    Ok(())
}

fn emit_echo_reply(
    sink: &mut dyn FrameSink,
    envelope: &Envelope,
    (ident, sequence): (u16, u16),
    data: &[u8],
) -> Result<(), NoRoom> {
    let len = envelope.headers_len() + icmp::HEADER_LEN + data.len();
    let frame = sink.frame(len).ok_or(NoRoom)?;
    let protocol = if envelope.to.is_v4() { Protocol::Icmp } else { Protocol::Icmpv6 };
    let mut builder = FrameBuilder::ip(frame, envelope, protocol);
    let message = builder.transport();
    message[icmp::HEADER_LEN..].copy_from_slice(data);
    if envelope.to.is_v4() {
        IcmpRepr::EchoReply { ident, sequence }.emit(message);
    } else {
        let (from, to) = (envelope.from.to_v6(), envelope.to.to_v6());
        Icmpv6Repr::EchoReply { ident, sequence }.emit(message, from, to);
    }
    sink.commit(TxOffload::default());
    Ok(())
}

/// RFC 792; RFC 4443 section 3.1.
fn emit_unreachable(sink: &mut dyn FrameSink, envelope: &Envelope, quoted: &[u8]) -> Result<(), NoRoom> {
    let frame = sink.frame(envelope.headers_len() + icmp::HEADER_LEN + quoted.len()).ok_or(NoRoom)?;
    let protocol = if envelope.to.is_v4() { Protocol::Icmp } else { Protocol::Icmpv6 };
    let mut builder = FrameBuilder::ip(frame, envelope, protocol);
    let message = builder.transport();
    message[icmp::HEADER_LEN..].copy_from_slice(quoted);
    if envelope.to.is_v4() {
        IcmpRepr::DestinationUnreachable { code: icmp::CODE_PORT, next_hop_mtu: 0 }.emit(message);
    } else {
        let (from, to) = (envelope.from.to_v6(), envelope.to.to_v6());
        Icmpv6Repr::DestinationUnreachable { code: icmpv6::CODE_PORT }.emit(message, from, to);
    }
    sink.commit(TxOffload::default());
    Ok(())
}

fn emit_arp(sink: &mut dyn FrameSink, hop: &Hop, message: &ArpRepr) -> Result<(), NoRoom> {
    let frame = sink.frame(hop.header_len() + arp::MESSAGE_LEN).ok_or(NoRoom)?;
    message.emit(hop.emit(EtherType::Arp, frame));
    sink.commit(TxOffload::default());
    Ok(())
}
