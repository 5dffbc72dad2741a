//! What is answered to a datagram of an unknown port (RFC 1122 section 4.1.3.1, RFC 4443 section 3.1).

use crate::work::{ControlFrame, RxDatagram};
use toe_wire::ipv4::{self, Ipv4Repr};
use toe_wire::ipv6::{self, Ipv6Repr};
use toe_wire::{Protocol, UdpRepr, udp};

/// Octets of a datagram that are quoted: with all headers no more than links carry whole (RFC 1812 section 4.3.2.3).
const QUOTED_MAX: usize = 512;

pub fn port_unreachable(datagram: &RxDatagram<'_>) -> ControlFrame {
    let arrival = &datagram.arrival;
    let len = (udp::HEADER_LEN + datagram.text.len()) as u16;
    let text = &datagram.text[..datagram.text.len().min(QUOTED_MAX)];
    let ip_len = if arrival.src.is_v4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let mut quoted = vec![0; ip_len + udp::HEADER_LEN];
    match (arrival.src.to_v4(), arrival.dst.to_v4()) {
        (Some(src), Some(dst)) => Ipv4Repr {
            src,
            dst,
            protocol: Protocol::Udp,
            ttl: arrival.hop_limit,
            traffic_class: arrival.traffic_class,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: (ip_len as u16).saturating_add(len),
        }
        .emit(&mut quoted),
        _ => Ipv6Repr {
            src: arrival.src.to_v6(),
            dst: arrival.dst.to_v6(),
            protocol: Protocol::Udp,
            hop_limit: arrival.hop_limit,
            traffic_class: arrival.traffic_class,
            flow_label: 0,
            payload_len: len,
        }
        .emit(&mut quoted),
    }
    let UdpRepr { src_port, dst_port } = datagram.ports;
    UdpRepr { src_port, dst_port }.emit(len, &mut quoted[ip_len..]);
    quoted.extend_from_slice(text);
    ControlFrame::PortUnreachable { to_mac: arrival.from_mac, to: arrival.src, source: arrival.dst, quoted }
}
