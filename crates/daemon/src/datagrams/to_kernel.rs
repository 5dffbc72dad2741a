//! The kernel's way to a socket of a program's (decision 0035): packets that came by a link of the engine's are sent by raw sockets that
//! route to loopback, whatever their header says, and the kernel delivers by the header.

use super::raw::{Packet, Raw};
use super::to_socket::ByKernel;
use crate::control_server::pages::PagesOut;
use crate::control_server::wake::Wake;
use std::io::IoSlice;
use std::sync::Arc;
use toe_engine::{Delivered, RxDatagram, RxDatagramError};
use toe_wire::ipv4::{self, Ipv4Repr};
use toe_wire::ipv6::{self, Ipv6Repr};
use toe_wire::{Protocol, udp};

/// Bytes of the largest packet of either family behind its header.
const PAYLOAD_MAX: usize = 65_535 - ipv4::HEADER_LEN;

/// Packets that wait for a user's thread, which finds that they take long; what comes then finds no room.
const BEHIND_MAX: u32 = 64;

#[derive(Debug)]
pub struct ToKernel(Arc<Raw>);

impl ToKernel {
    /// Takes CAP_NET_RAW.
    pub fn open() -> std::io::Result<ToKernel> {
        Ok(ToKernel(Arc::new(Raw::open()?)))
    }
}

impl ByKernel for ToKernel {
    fn deliver(&self, user: &PagesOut, datagram: &RxDatagram<'_>) -> Delivered {
        let arrival = &datagram.arrival;
        let (src, dst) = (arrival.src, arrival.dst);
        let len = udp::HEADER_LEN + datagram.text.len();
        let mut header = [0; udp::HEADER_LEN];
        let Some(len_16) = u16::try_from(len).ok() else { return Delivered::Nowhere };
        datagram.ports.emit(len_16, &mut header);
        if src.is_v6() {
            // It was verified; over IPv6 there has to be one. Of IPv4 zero says that there is none.
            udp::store_checksum_of_parts(&mut header, &datagram.text, src, dst);
        }
        self.send(user, arrival, Protocol::Udp, [&header, &datagram.text])
    }
}

impl ToKernel {
    pub fn deliver_error(&self, user: &PagesOut, error: &RxDatagramError<'_>) -> Delivered {
        let protocol = if error.arrival.src.is_v4() { Protocol::Icmp } else { Protocol::Icmpv6 };
        self.send(user, &error.arrival, protocol, [&error.message, &[]])
    }

    /// `user`: whose programs that wakes.
    fn send(
        &self,
        user: &PagesOut,
        arrival: &toe_engine::work::Arrival,
        protocol: Protocol,
        [head, text]: [&[u8]; 2],
    ) -> Delivered {
        let len = head.len() + text.len();
        if len > PAYLOAD_MAX {
            return Delivered::Nowhere;
        }
        if user.handed() >= BEHIND_MAX {
            return Delivered::QueueFull;
        }
        let mut ip = [0; ipv6::HEADER_LEN];
        let ip_len = match (arrival.src.to_v4(), arrival.dst.to_v4()) {
            (Some(src), Some(dst)) => {
                let repr = Ipv4Repr {
                    src,
                    dst,
                    protocol,
                    ttl: arrival.hop_limit,
                    traffic_class: arrival.traffic_class,
                    ident: 0,
                    dont_fragment: true,
                    more_fragments: false,
                    fragment_offset: 0,
                    total_len: (ipv4::HEADER_LEN + len) as u16,
                };
                repr.emit(&mut ip[..ipv4::HEADER_LEN]);
                ipv4::HEADER_LEN
            }
            _ => {
                let repr = Ipv6Repr {
                    src: arrival.src.to_v6(),
                    dst: arrival.dst.to_v6(),
                    protocol,
                    hop_limit: arrival.hop_limit,
                    traffic_class: arrival.traffic_class,
                    flow_label: 0,
                    payload_len: len as u16,
                };
                repr.emit(&mut ip);
                ipv6::HEADER_LEN
            }
        };
        let (ip, is_v6) = (&ip[..ip_len], ip_len == ipv6::HEADER_LEN);
        let now = || self.0.send(is_v6, &[IoSlice::new(ip), IoSlice::new(head), IoSlice::new(text)]);
        let later =
            |()| Wake::Packet(Packet { raw: Arc::clone(&self.0), is_v6, bytes: [ip, head, text].concat() });
        user.wake((), |()| now(), later).map_or(Delivered::ByKernel, |(delivered, ())| delivered)
    }
}
