//! The kernel's way to a socket of a program's (decision 0035): packets that came by a link of the engine's are sent by raw sockets that
//! route to loopback, whatever their header says, and the kernel delivers by the header.

use super::to_socket::ByKernel;
use rustix::net::{
    AddressFamily, Ipv4Addr, Ipv6Addr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, ipproto,
};
use std::io::IoSlice;
use std::net::{SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;
use toe_engine::{Delivered, RxDatagram, RxDatagramError};
use toe_wire::ipv4::{self, Ipv4Repr};
use toe_wire::ipv6::{self, Ipv6Repr};
use toe_wire::{Protocol, udp};

/// Octets of the largest packet of either family behind its header.
const PAYLOAD_MAX: usize = 65_535 - ipv4::HEADER_LEN;

/// One raw socket for each family.
#[derive(Debug)]
pub struct ToKernel {
    v4: OwnedFd,
    /// Not where the kernel has no IPv6.
    v6: Option<OwnedFd>,
}

impl ToKernel {
    /// Takes CAP_NET_RAW.
    pub fn open() -> std::io::Result<ToKernel> {
        // Of this protocol (IPPROTO_RAW) nothing is received, and the header is the sender's.
        let open = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))
        };
        Ok(ToKernel { v4: open(AddressFamily::INET)?, v6: open(AddressFamily::INET6).ok() })
    }
}

impl ByKernel for ToKernel {
    fn deliver(&self, datagram: &RxDatagram<'_>) -> Delivered {
        let arrival = &datagram.arrival;
        let (src, dst) = (arrival.src, arrival.dst);
        let len = udp::HEADER_LEN + datagram.text.len();
        let mut header = [0; udp::HEADER_LEN];
        let Some(len_16) = u16::try_from(len).ok() else { return Delivered::Nowhere };
        datagram.ports.emit(len_16, &mut header);
        if src.is_v6() {
            // It was verified; over IPv6 there has to be one. Of IPv4 zero says that there is none.
            udp::store_checksum_of_parts(&mut header, datagram.text, src, dst);
        }
        self.send(arrival, Protocol::Udp, [&header, datagram.text])
    }
}

impl ToKernel {
    pub fn deliver_error(&self, error: &RxDatagramError<'_>) -> bool {
        let protocol = if error.arrival.src.is_v4() { Protocol::Icmp } else { Protocol::Icmpv6 };
        self.send(&error.arrival, protocol, [error.message, &[]]) == Delivered::ByKernel
    }

    fn send(
        &self,
        arrival: &toe_engine::work::Arrival,
        protocol: Protocol,
        [head, text]: [&[u8]; 2],
    ) -> Delivered {
        let len = head.len() + text.len();
        if len > PAYLOAD_MAX {
            return Delivered::Nowhere;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut none = SendAncillaryBuffer::default();
        let sent = match (arrival.src.to_v4(), arrival.dst.to_v4()) {
            (Some(src), Some(dst)) => {
                let mut ip = [0; ipv4::HEADER_LEN];
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
                repr.emit(&mut ip);
                let parts = [IoSlice::new(&ip), IoSlice::new(head), IoSlice::new(text)];
                let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
                rustix::net::sendmsg_addr(&self.v4, &to, &parts, &mut none, flags)
            }
            _ => {
                let Some(socket) = &self.v6 else { return Delivered::Nowhere };
                let mut ip = [0; ipv6::HEADER_LEN];
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
                let parts = [IoSlice::new(&ip), IoSlice::new(head), IoSlice::new(text)];
                let to = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0);
                rustix::net::sendmsg_addr(socket, &to, &parts, &mut none, flags)
            }
        };
        match sent {
            Ok(_) => Delivered::ByKernel,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => Delivered::QueueFull,
            Err(_) => Delivered::Nowhere,
        }
    }
}
