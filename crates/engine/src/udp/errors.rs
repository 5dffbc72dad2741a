//! What is answered to a datagram of an unknown port (RFC 1122 section 4.1.3.1, RFC 4443 section 3.1), and what a program is told whose
//! datagram is too large for its path (RFC 1191 section 4, RFC 4443 section 3.2).

use crate::work::{ControlFrame, RxDatagram, TxDatagram};
use toe_base::Addr;
use toe_wire::icmp::{self, IcmpRepr};
use toe_wire::icmpv6::Icmpv6Repr;
use toe_wire::ipv4::{self, Ipv4Repr};
use toe_wire::ipv6::{self, Ipv6Repr};
use toe_wire::{Protocol, UdpRepr, udp};

/// Bytes of the header of such a message of ICMPv6.
const HEADER_LEN_V6: usize = 8;
/// Bytes of a datagram that are quoted: with all headers no more than links carry whole (RFC 1812 section 4.3.2.3).
const QUOTED_MAX: usize = 512;
/// The same of an IPv6 header and UDP's, and IPv4's with all options.
const HEADERS_AND_TEXT_MAX: usize = ipv6::HEADER_LEN + udp::HEADER_LEN + QUOTED_MAX;

pub fn port_unreachable(datagram: &RxDatagram<'_>) -> ControlFrame {
    let RxDatagram { arrival, ports, headers, ref text, .. } = *datagram;
    let quoted = if headers.is_empty() {
        // It came in several packets, or in one with others.
        quote([arrival.src, arrival.dst], ports, (arrival.hop_limit, arrival.traffic_class), text)
    } else {
        let text_max = (HEADERS_AND_TEXT_MAX - headers.len().min(HEADERS_AND_TEXT_MAX)).min(QUOTED_MAX);
        [headers, &text[..text.len().min(text_max)]].concat()
    };
    ControlFrame::PortUnreachable { to_mac: arrival.from_mac, to: arrival.src, source: arrival.dst, quoted }
}

/// The message of the router that does not pass the datagram on: here the engine itself. From the sender's address to itself.
pub fn too_big(datagram: &TxDatagram, text: &[u8]) -> Vec<u8> {
    let TxDatagram { from, to, ttl, traffic_class, mtu, .. } = *datagram;
    let ports = UdpRepr { src_port: from.port, dst_port: to.port };
    let quoted = quote([from.addr, to.addr], ports, (ttl, traffic_class), text);
    let head_len = if to.addr.is_v4() { icmp::HEADER_LEN } else { HEADER_LEN_V6 };
    let mut message = vec![0; head_len + quoted.len()];
    message[head_len..].copy_from_slice(&quoted);
    match to.addr.is_v4() {
        true => {
            let code = icmp::CODE_FRAGMENTATION_NEEDED;
            IcmpRepr::DestinationUnreachable { code, next_hop_mtu: mtu }.emit(&mut message);
        }
        false => {
            let own = from.addr.to_v6();
            Icmpv6Repr::PacketTooBig { mtu: u32::from(mtu) }.emit(&mut message, own, own);
        }
    }
    message
}

/// The beginning of a datagram's packet.
fn quote(
    [src, dst]: [Addr; 2],
    UdpRepr { src_port, dst_port }: UdpRepr,
    (hop_limit, traffic_class): (u8, u8),
    text: &[u8],
) -> Vec<u8> {
    let len = (udp::HEADER_LEN + text.len()) as u16;
    let text = &text[..text.len().min(QUOTED_MAX)];
    let ip_len = if src.is_v4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let mut quoted = vec![0; ip_len + udp::HEADER_LEN];
    match (src.to_v4(), dst.to_v4()) {
        (Some(src), Some(dst)) => Ipv4Repr {
            src,
            dst,
            protocol: Protocol::Udp,
            ttl: hop_limit,
            traffic_class,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: (ip_len as u16).saturating_add(len),
        }
        .emit(&mut quoted),
        _ => Ipv6Repr {
            src: src.to_v6(),
            dst: dst.to_v6(),
            protocol: Protocol::Udp,
            hop_limit,
            traffic_class,
            flow_label: 0,
            payload_len: len,
        }
        .emit(&mut quoted),
    }
    UdpRepr { src_port, dst_port }.emit(len, &mut quoted[ip_len..]);
    quoted.extend_from_slice(text);
    quoted
}
