//! Control sockets: packets in and out of hosts that may say anything, or nothing, with any descriptor beside it.
//!
//! Receiving from one and closing one may wait for whatever a host has put into it, so that is for its user's thread
//! alone. Sending never waits; the engine's thread does it through a copy.

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, sockopt,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use toe_abi::attach::{DESCRIPTORS_MAX, Message, Reply};
use toe_abi::errno::Errno as Refusal;
use zerocopy::IntoBytes;

/// Descriptors that are taken from a packet. No request needs more than one; the kernel closes those beyond, on the
/// thread that receives.
const RECEIVED_FDS_MAX: usize = 4;
/// One byte longer than a message, so that a longer packet is noticed.
const PACKET_LEN: usize = size_of::<Message>() + 1;
/// Packets that are read from a connection that is turned away, at most, where there may be descriptors in it.
const DRAINED_MAX: usize = 8;

/// An answer with what goes beside it.
pub(crate) type Answer = Result<(Reply, Vec<OwnedFd>), Refusal>;

/// A packet from a host.
#[derive(Debug)]
pub(super) enum Packet {
    /// Its bytes (at most one more than a message has) and the descriptor that came with it.
    Message { bytes: [u8; PACKET_LEN], len: usize, fd: Option<OwnedFd> },
    /// Nothing there now.
    None,
    /// The host closed the connection, or it broke.
    Closed,
}

/// The next packet. Waits for no packet, but perhaps for the end of a descriptor that nobody wants.
pub(super) fn receive(socket: impl AsFd) -> Packet {
    let mut bytes = [0; PACKET_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RECEIVED_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
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
    if len == 0 { Packet::Closed } else { Packet::Message { bytes, len, fd } }
}

/// Sends an answer without waiting; an error means that the host does not read.
pub(crate) fn send(socket: impl AsFd, message: &Message, fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(message.as_bytes())], &mut control, flags)?;
    Ok(())
}

/// The host sees the end, and so does the thread that closes the socket. What the host has sent stays where it is.
pub(crate) fn hang_up(socket: impl AsFd) {
    // An error means that the host has done so.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Closes a connection of which nothing was wanted, if that surely does not wait: descriptors were kept out of it, or nothing more can be sent
/// into it and there is none in it. Otherwise it comes back.
pub(super) fn close_unread(socket: OwnedFd) -> Result<(), OwnedFd> {
    if crate::sys::keeps_descriptors_out(&socket) {
        // Whatever else is in it: who sends much would have it read one by one.
        return Ok(());
    }
    if rustix::net::shutdown(&socket, Shutdown::Both).is_err() {
        return Err(socket);
    }
    for _ in 0..DRAINED_MAX {
        match look(&socket) {
            Ok(Look::End) => return Ok(()),
            // Nobody else reads here, so this is the packet that was seen.
            Ok(Look::Bytes) if rustix::net::recv(&socket, &mut [0; 1], RecvFlags::DONTWAIT).is_ok() => {}
            _ => return Err(socket),
        }
    }
    Err(socket)
}

/// What lies first in a socket into which nothing more comes.
enum Look {
    End,
    /// A packet without descriptors.
    Bytes,
    Descriptors,
}

fn look(socket: &OwnedFd) -> rustix::io::Result<Look> {
    let peek = || {
        // Without room for what goes beside the bytes the kernel says that there is something, and keeps it where it is.
        let mut nothing = RecvAncillaryBuffer::default();
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let seen = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut [0; 1])], &mut nothing, flags)?;
        Ok((seen.bytes, seen.flags.contains(ReturnFlags::CTRUNC)))
    };
    match peek()? {
        (_, true) => return Ok(Look::Descriptors),
        (1.., false) => return Ok(Look::Bytes),
        (0, false) => {}
    }
    // The end, or a packet of no bytes: only that comes with a sender, if one asks.
    sockopt::set_socket_passcred(socket, true)?;
    let is_packet = peek();
    sockopt::set_socket_passcred(socket, false)?;
    Ok(if is_packet?.1 { Look::Bytes } else { Look::End })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    fn pair(lets_in: bool) -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        crate::sys::let_descriptors_in(&ours, lets_in);
        (ours, theirs)
    }

    fn send(from: &OwnedFd, packets: usize) {
        for _ in 0..packets {
            rustix::net::send(from, b"x", SendFlags::DONTWAIT).expect("room");
        }
    }

    /// Nobody makes the door read what he has sent.
    #[test]
    fn what_can_hold_no_descriptors_is_closed_unread() {
        let (ours, theirs) = pair(false);
        send(&theirs, 70);
        let is_excluded = crate::sys::keeps_descriptors_out(&ours);
        assert_eq!(is_excluded, crate::sys::can_refuse_descriptors());
        assert_eq!(close_unread(ours).is_ok(), is_excluded, "an older kernel does not say");
    }

    #[test]
    fn of_what_can_only_little_is_read() {
        for (packets, is_closed) in [(0, true), (DRAINED_MAX - 1, true), (DRAINED_MAX, false)] {
            let (ours, theirs) = pair(true);
            send(&theirs, packets);
            assert_eq!(close_unread(ours).is_ok(), is_closed, "{packets}");
        }
    }

    #[test]
    fn one_with_a_descriptor_comes_back() {
        let (ours, theirs) = pair(true);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [theirs.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&theirs, &[IoSlice::new(b"x")], &mut control, SendFlags::DONTWAIT)
            .expect("sent");
        assert!(close_unread(ours).is_err());
    }
}
