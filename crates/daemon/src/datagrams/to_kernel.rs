//! The kernel's way to a socket of a program's (decision 0035): packets that came by a link of the engine's are sent by raw sockets that
//! route to loopback, whatever their header says, and the kernel delivers by the header.

use super::to_socket::ByKernel;
use crate::control_server::pages::PagesOut;
use crate::control_server::wake::Wake;
use rustix::net::{
    AddressFamily, Ipv4Addr, Ipv6Addr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, ipproto,
};
use std::io::IoSlice;
use std::net::{SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use toe_engine::{Delivered, RxDatagram, RxDatagramError};
use toe_wire::ipv4::{self, Ipv4Repr};
use toe_wire::ipv6::{self, Ipv6Repr};
use toe_wire::{Protocol, udp};

/// Bytes of the largest packet of either family behind its header.
const PAYLOAD_MAX: usize = 65_535 - ipv4::HEADER_LEN;

/// Packets that wait for a user's thread, which finds that they take long; what comes then finds no room.
const BEHIND_MAX: u32 = 64;

/// One raw socket for each family.
#[derive(Debug)]
struct Raw {
    v4: OwnedFd,
    /// Not where the kernel has no IPv6.
    v6: Option<OwnedFd>,
}

#[derive(Debug)]
pub struct ToKernel(Arc<Raw>);

/// A packet that another thread than the engine's is to send.
#[derive(Debug)]
pub(crate) struct Packet {
    raw: Arc<Raw>,
    is_v6: bool,
    bytes: Vec<u8>,
}

impl Packet {
    pub(crate) fn send(&self) {
        // As where the kernel's queue is full.
        let _ = self.raw.send(self.is_v6, &[IoSlice::new(&self.bytes)]);
    }
}

impl Raw {
    fn send(&self, is_v6: bool, parts: &[IoSlice<'_>]) -> Delivered {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut none = SendAncillaryBuffer::default();
        let sent = if is_v6 {
            let Some(socket) = &self.v6 else { return Delivered::Nowhere };
            let to = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0);
            rustix::net::sendmsg_addr(socket, &to, parts, &mut none, flags)
        } else {
            let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
            rustix::net::sendmsg_addr(&self.v4, &to, parts, &mut none, flags)
        };
        match sent {
            Ok(_) => Delivered::ByKernel,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => Delivered::QueueFull,
            Err(_) => Delivered::Nowhere,
        }
    }
}

impl ToKernel {
    /// Takes CAP_NET_RAW.
    pub fn open() -> std::io::Result<ToKernel> {
        // Of this protocol (IPPROTO_RAW) nothing is received, and the header is the sender's.
        let open = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))
        };
        Ok(ToKernel(Arc::new(Raw { v4: open(AddressFamily::INET)?, v6: open(AddressFamily::INET6).ok() })))
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
            udp::store_checksum_of_parts(&mut header, datagram.text, src, dst);
        }
        self.send(user, arrival, Protocol::Udp, [&header, datagram.text])
    }
}

impl ToKernel {
    pub fn deliver_error(&self, user: &PagesOut, error: &RxDatagramError<'_>) -> bool {
        let protocol = if error.arrival.src.is_v4() { Protocol::Icmp } else { Protocol::Icmpv6 };
        self.send(user, &error.arrival, protocol, [error.message, &[]]) == Delivered::ByKernel
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
