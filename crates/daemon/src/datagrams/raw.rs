//! The raw sockets by which packets go to the kernel, and a packet that another thread is to send. Used by [`super::to_kernel`] and by whoever
//! wakes a host.

use rustix::net::{
    AddressFamily, Ipv4Addr, Ipv6Addr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, ipproto,
};
use std::io::IoSlice;
use std::net::{SocketAddrV4, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use toe_engine::Delivered;

/// One raw socket for each family.
#[derive(Debug)]
pub(super) struct Raw {
    v4: OwnedFd,
    /// Not where the kernel has no IPv6.
    v6: Option<OwnedFd>,
}

/// A packet that another thread than the engine's is to send.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(super) raw: Arc<Raw>,
    pub(super) is_v6: bool,
    pub(super) bytes: Vec<u8>,
}

impl Packet {
    pub(crate) fn send(&self) {
        // As where the kernel's queue is full.
        let _ = self.raw.send(self.is_v6, &[IoSlice::new(&self.bytes)]);
    }
}

impl Raw {
    pub(super) fn open() -> std::io::Result<Raw> {
        // Of this protocol (IPPROTO_RAW) nothing is received, and the header is the sender's.
        let open = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))
        };
        Ok(Raw { v4: open(AddressFamily::INET)?, v6: open(AddressFamily::INET6).ok() })
    }

    pub(super) fn send(&self, is_v6: bool, parts: &[IoSlice<'_>]) -> Delivered {
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
