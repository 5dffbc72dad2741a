//! Control connections: packets in and out of hosts that may say anything, or nothing.
//!
//! Nothing here waits for a host. What is taken from one at a time is bounded, descriptors nobody asked for are
//! closed, and a host that does not read its answers is dropped. What messages mean is in `attach`.

use crate::poller::{Poller, Token};
use crate::sys::netns_of;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toe_abi::attach::{DESCRIPTORS_MAX, Message};
use toe_base::{NetNs, SessionId};
use zerocopy::IntoBytes;

/// Connections at once, and at once of one user, so that one user cannot keep the others out.
const CONNECTIONS_MAX: usize = 1024;
const CONNECTIONS_PER_UID_MAX: usize = 640;
/// Descriptors that a request can bring. No request needs more than one; the kernel closes those beyond.
const RECEIVED_FDS_MAX: usize = 4;
/// One octet longer than a message, so that a longer packet is noticed.
const PACKET_LEN: usize = size_of::<Message>() + 1;

/// One control connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// As the kernel reported them when the connection was made; pid 0: in another namespace.
    pub pid: u32,
    pub uid: u32,
    pub session: Option<SessionId>,
}

/// A packet from a host.
#[derive(Debug)]
pub enum Packet {
    /// Its octets (at most one more than a message has) and the descriptor that came with it.
    Message { octets: [u8; PACKET_LEN], len: usize, fd: Option<OwnedFd> },
    /// Nothing there now.
    None,
    /// The host closed the connection, or it broke.
    Closed,
}

impl Connection {
    /// The network namespace of the host's end.
    pub fn netns(&self) -> Option<NetNs> {
        netns_of(&self.socket)
    }

    /// The next packet, without waiting.
    pub fn receive(&self) -> Packet {
        let mut octets = [0; PACKET_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut octets)], &mut control, flags);
        let len = match got {
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Packet::None,
            Err(_) => return Packet::Closed,
        };
        // The first is the one that the request may be about; the others close as they are dropped.
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for received in fds {
                    fd.get_or_insert(received);
                }
            }
        }
        if len == 0 { Packet::Closed } else { Packet::Message { octets, len, fd } }
    }

    /// Sends an answer without waiting; an error means that the host does not read.
    pub fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(message.as_bytes())], &mut control, flags)?;
        Ok(())
    }
}

/// All control connections, by place.
#[derive(Debug, Default)]
pub struct Connections {
    table: Vec<Option<Connection>>,
    /// Connections that were turned away because there were too many.
    pub refused: u64,
    /// Accepting failed for a reason that will not pass by itself.
    exhausted: bool,
}

impl Connections {
    /// Takes one waiting connection; `false` when none waits.
    pub fn accept(&mut self, listener: impl AsFd, poller: &Poller) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) => {
                if let Err(error) = self.add(socket, poller) {
                    self.refused += 1;
                    if self.refused.is_power_of_two() {
                        tracing::warn!(%error, refused = self.refused, "control connection turned away");
                    }
                }
                true
            }
            Err(Errno::CONNABORTED | Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Err(errno) => {
                self.refused += 1;
                self.exhausted = true;
                if self.refused.is_power_of_two() {
                    tracing::warn!(error = %errno, "control connection cannot be accepted");
                }
                false
            }
        }
    }

    /// Whether accepting has failed since the last call, for lack of descriptors or memory.
    pub fn take_exhausted(&mut self) -> bool {
        std::mem::take(&mut self.exhausted)
    }

    /// Serves a connection; returns its place.
    pub fn add(&mut self, socket: OwnedFd, poller: &Poller) -> std::io::Result<u32> {
        let peer = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)?;
        let of_uid = self.iter().filter(|c| c.uid == peer.uid()).count();
        let place = self.table.iter().position(Option::is_none).unwrap_or(self.table.len());
        if place >= CONNECTIONS_MAX || (of_uid >= CONNECTIONS_PER_UID_MAX && peer.uid() != 0) {
            return Err(std::io::Error::other("too many control connections"));
        }
        poller.add(&socket, Token::Connection(place as u32))?;
        let pid = u32::try_from(peer.pid()).unwrap_or(0);
        let connection = Connection { socket, pid, uid: peer.uid(), session: None };
        match self.table.get_mut(place) {
            Some(slot) => *slot = Some(connection),
            None => self.table.push(Some(connection)),
        }
        Ok(place as u32)
    }

    pub fn get(&self, place: u32) -> Option<&Connection> {
        self.table.get(place as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut Connection> {
        self.table.get_mut(place as usize)?.as_mut()
    }

    /// Closes a connection; the host sees it.
    pub fn close(&mut self, place: u32) -> Option<Connection> {
        self.table.get_mut(place as usize)?.take()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.table.iter().flatten()
    }
}
