//! The rtnetlink(7) socket: asks for lists and for neighbours, and hands over what comes in as [`KernelEvent`]. Nothing here
//! waits.

use super::events::{self, KernelEvent};
use netlink_packet_core::{
    NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily as SocketFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toe_base::Addr;

// From linux/rtnetlink.h.
const RTMGRP_LINK: u32 = 1;
const RTMGRP_NEIGH: u32 = 4;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Bytes of a message's header, and what messages are aligned to.
const HEADER_LEN: usize = 16;
const ALIGN: usize = 4;
/// The kernel fills no longer buffer when it lists things.
const BUFFER_LEN: usize = 64 << 10;
/// What may come while the engine is busy elsewhere; beyond it everything is asked for anew.
const RECEIVE_MEMORY: usize = 4 << 20;

/// Packets taken in one look, of up to 64 KiB each: connections wait meanwhile.
const PACKETS_PER_LOOK: usize = 4;

/// What can be asked for as a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Links,
    Addrs,
    Neighbours,
    Routes,
}

/// How a look at the socket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// All that was there has been taken.
    All,
    /// There may be more.
    Enough,
    /// The kernel had more to say than there was room for: what is known may be wrong.
    Lost,
}

#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
    /// The number of the list that was asked for last.
    list: u32,
    /// It has changed while it was received.
    interrupted: bool,
}

impl Netlink {
    pub fn open() -> std::io::Result<Netlink> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(SocketFamily::NETLINK, SocketType::RAW, flags, None)?;
        // Less is no error: then more is asked for anew.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_MEMORY)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_MEMORY));
        let groups = RTMGRP_LINK | RTMGRP_NEIGH | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Netlink { socket, buffer: vec![0; BUFFER_LEN], sequence: 0, list: 0, interrupted: false })
    }

    /// Asks for a list; it comes as events that a [`KernelEvent::ListEnds`] ends. One at a time.
    pub fn ask_for(&mut self, list: List) -> std::io::Result<()> {
        self.interrupted = false;
        let message = match list {
            List::Links => RouteNetlinkMessage::GetLink(LinkMessage::default()),
            List::Addrs => {
                let mut message = AddressMessage::default();
                message.header.family = AddressFamily::Inet;
                RouteNetlinkMessage::GetAddress(message)
            }
            List::Neighbours => {
                let mut message = NeighbourMessage::default();
                message.header.family = AddressFamily::Inet;
                RouteNetlinkMessage::GetNeighbour(message)
            }
            List::Routes => {
                let mut message = RouteMessage::default();
                message.header.address_family = AddressFamily::Inet;
                RouteNetlinkMessage::GetRoute(message)
            }
        };
        self.send(message, NLM_F_REQUEST | NLM_F_DUMP)?;
        self.list = self.sequence;
        Ok(())
    }

    /// Whether the end of the list `sequence` is that of the list that was asked for last; if so, whether all of that
    /// list has come as it is.
    pub fn list_ended(&self, sequence: u32, is_whole: bool) -> Option<bool> {
        (sequence == self.list).then_some(is_whole && !self.interrupted)
    }

    /// Lets the kernel find the neighbour `addr` on an interface, or make sure of it, as if it sent something there
    /// itself. What it finds comes as events.
    pub fn resolve(&mut self, index: u32, addr: Addr) -> std::io::Result<()> {
        let mut message = NeighbourMessage::default();
        let (family, neighbour) = match addr.to_ip() {
            IpAddr::V4(addr) => (AddressFamily::Inet, NeighbourAddress::Inet(addr)),
            IpAddr::V6(addr) => (AddressFamily::Inet6, NeighbourAddress::Inet6(addr)),
        };
        message.header.family = family;
        message.header.ifindex = index;
        message.header.state = NeighbourState::None;
        message.header.flags = NeighbourFlags::Use;
        message.attributes.push(NeighbourAttribute::Destination(neighbour));
        let flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_REPLACE;
        self.send(RouteNetlinkMessage::NewNeighbour(message), flags)
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> std::io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        rustix::net::send(&self.socket, &bytes, SendFlags::DONTWAIT)?;
        Ok(())
    }

    /// Hands over what has come in, not too much at a time: the socket stays readable while there is more.
    pub fn receive(&mut self, mut each: impl FnMut(KernelEvent)) -> std::io::Result<Looked> {
        for _ in 0..PACKETS_PER_LOOK {
            let got = rustix::net::recvfrom(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT);
            let (len, from) = match got {
                Ok((len, _, from)) => (len, from),
                Err(Errno::AGAIN) => return Ok(Looked::All),
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => return Ok(Looked::Lost),
                Err(errno) => return Err(errno.into()),
            };
            // Port 0 is the kernel.
            let is_kernel = from
                .and_then(|from| SocketAddrNetlink::try_from(from).ok())
                .is_some_and(|from| from.pid() == 0);
            if is_kernel {
                self.interrupted |= take_messages(&self.buffer[..len.min(BUFFER_LEN)], &mut each);
            }
        }
        Ok(Looked::Enough)
    }
}

/// Hands over the messages of one packet; whether one of them says that its list was interrupted.
fn take_messages(mut bytes: &[u8], each: &mut impl FnMut(KernelEvent)) -> bool {
    let mut interrupted = false;
    while let Some(header) = bytes.first_chunk::<HEADER_LEN>() {
        let [a, b, c, d, _, _, e, f, ..] = *header;
        let len = u32::from_ne_bytes([a, b, c, d]) as usize;
        let Some(message) = bytes.get(..len).filter(|_| len >= HEADER_LEN) else { break };
        interrupted |= u16::from_ne_bytes([e, f]) & NLM_F_DUMP_INTR != 0;
        events::parse(message).into_iter().for_each(&mut *each);
        bytes = bytes.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
    interrupted
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_taken_apart_and_a_bad_length_ends_it() {
        let mut done = [0u8; 20];
        done[..4].copy_from_slice(&20u32.to_ne_bytes());
        // NLMSG_DONE, interrupted.
        done[4..6].copy_from_slice(&3u16.to_ne_bytes());
        let two = [done, done].concat();
        let mut count = 0;
        assert!(!take_messages(&two, &mut |_| count += 1));
        assert_eq!(count, 2);
        let mut bad = two.clone();
        bad[6..8].copy_from_slice(&NLM_F_DUMP_INTR.to_ne_bytes());
        for len in [0u32, 15, 21, u32::MAX] {
            bad[20..24].copy_from_slice(&len.to_ne_bytes());
            count = 0;
            assert!(take_messages(&bad, &mut |_| count += 1), "the first says so");
            assert_eq!(count, 1, "length {len}");
        }
    }

    /// The kernel of this machine answers with what every one has.
    #[test]
    fn the_kernel_lists_its_loopback_interface() {
        let mut netlink = Netlink::open().expect("a netlink socket");
        netlink.ask_for(List::Links).expect("asked");
        let sequence = netlink.list;
        let (mut names, mut ended) = (Vec::new(), false);
        // Answered before the request returns: the kernel lists while it takes the request, and goes on as it is read.
        while !ended {
            let before = names.len();
            let looked = netlink.receive(|event| match event {
                KernelEvent::Link { link, .. } => names.push(link.name),
                KernelEvent::ListEnds { is_whole, .. } => ended = is_whole,
                _ => {}
            });
            assert_ne!(looked.expect("received"), Looked::Lost);
            assert!(ended || names.len() > before, "the list stops without an end: {names:?}");
        }
        assert!(names.iter().any(|name| name == "lo"), "{names:?}");
        assert_eq!(netlink.list_ended(sequence, true), Some(true));
        netlink.interrupted = true;
        assert_eq!(netlink.list_ended(sequence, true), Some(false));
        assert_eq!(netlink.list_ended(sequence + 1, false), None, "the answer to another request");
    }
}
