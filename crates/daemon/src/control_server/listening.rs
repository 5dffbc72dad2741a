//! Which sockets of the kernel listen, where, and on all devices, as sock_diag(7) lists them for the engine's own network
//! namespace. A socket that was shown can be made to listen elsewhere, or on one device, without being closed ([`super::watch`]
//! sees only that it is open); this says whether it is still what it was. Nothing here waits: the kernel lists while it is asked
//! and read.

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::collections::HashSet;
use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;
use toe_base::{Addr, Endpoint};

// From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = 56;
/// One for each state; this is LISTEN.
const STATES: u32 = 1 << 10;
/// The kernel fills no longer buffer when it lists things.
const BUFFER_LEN: usize = 64 << 10;

/// The socket to ask through.
#[derive(Debug)]
pub(super) struct Listening {
    socket: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Listening {
    pub(super) fn open() -> std::io::Result<Listening> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = AddressFamily::NETLINK;
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, Some(SOCK_DIAG))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Listening { socket, buffer: vec![0; BUFFER_LEN], sequence: 0 })
    }

    /// All that listen and are bound to no device: their identity (SO_COOKIE) and the address.
    pub(super) fn list(&mut self) -> std::io::Result<HashSet<(u64, Endpoint)>> {
        let mut listening = HashSet::new();
        self.list_family(AddressFamily::INET, &mut listening)?;
        match self.list_family(AddressFamily::INET6, &mut listening) {
            // A kernel without IPv6.
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(listening),
            result => result.map(|()| listening),
        }
    }

    fn list_family(
        &mut self,
        family: AddressFamily,
        listening: &mut HashSet<(u64, Endpoint)>,
    ) -> std::io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        rustix::net::send(&self.socket, &request(family, self.sequence), SendFlags::DONTWAIT)?;
        loop {
            // Only the kernel and who has CAP_NET_ADMIN can send here; what does not answer this request is passed over.
            let (len, _) = rustix::net::recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT)?;
            let mut bytes = &self.buffer[..len.min(BUFFER_LEN)];
            while let Some((message, rest)) = next_message(bytes) {
                bytes = rest;
                let Some((kind, body)) = body_of(message, self.sequence) else { continue };
                match kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return Err(error_of(body)),
                    SOCK_DIAG_BY_FAMILY => listening.extend(socket_of(body)),
                    _ => {}
                }
            }
        }
    }
}

fn request(family: AddressFamily, sequence: u32) -> [u8; HEADER_LEN + REQUEST_LEN] {
    const IPPROTO_TCP: u8 = 6;
    let mut bytes = [0; HEADER_LEN + REQUEST_LEN];
    bytes[..4].copy_from_slice(&((HEADER_LEN + REQUEST_LEN) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    bytes[16] = family.as_raw() as u8;
    bytes[17] = IPPROTO_TCP;
    bytes[20..24].copy_from_slice(&STATES.to_ne_bytes());
    bytes
}

fn next_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let message = bytes.get(..len).filter(|_| len >= HEADER_LEN)?;
    Some((message, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// Kind and body of a message that answers the request `sequence`.
fn body_of(message: &[u8], sequence: u32) -> Option<(u16, &[u8])> {
    let header: &[u8; HEADER_LEN] = message.first_chunk()?;
    let [_, _, _, _, k0, k1, _, _, s0, s1, s2, s3, ..] = *header;
    let is_ours = u32::from_ne_bytes([s0, s1, s2, s3]) == sequence;
    is_ours.then(|| (u16::from_ne_bytes([k0, k1]), &message[HEADER_LEN..]))
}

fn error_of(body: &[u8]) -> std::io::Error {
    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    std::io::Error::from_raw_os_error(code.checked_neg().unwrap_or(0))
}

/// `struct inet_diag_msg`: family, state, timer, retries, then ports, addresses, interface and cookie.
fn socket_of(body: &[u8]) -> Option<(u64, Endpoint)> {
    let body: &[u8; 52] = body.first_chunk()?;
    let port = u16::from_be_bytes([body[4], body[5]]);
    let source: [u8; 16] = *body[8..].first_chunk()?;
    let word = |at: usize| body[at..].first_chunk().map(|word| u32::from_ne_bytes(*word));
    let addr = if u16::from(body[0]) == AddressFamily::INET.as_raw() {
        let [a, b, c, d, ..] = source;
        Addr::from([a, b, c, d])
    } else {
        Addr::v6(Ipv6Addr::from(source), 0)
    };
    let is_of_all_devices = word(40)? == 0;
    is_of_all_devices.then_some((u64::from(word(44)?) | u64::from(word(48)?) << 32, Endpoint { addr, port }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;
    use std::net::TcpListener;

    #[test]
    fn a_socket_is_listed_while_it_listens() {
        let mut listeners = Listening::open().expect("a netlink socket");
        for at in ["127.0.0.1:0", "[::]:0"] {
            let Ok(socket) = TcpListener::bind(at) else { continue };
            let identity = sockopt::socket_cookie(&socket).expect("a cookie");
            let local = socket.local_addr().expect("bound").into();
            assert!(listeners.list().expect("listed").contains(&(identity, local)), "{at}");
            drop(socket);
            assert!(!listeners.list().expect("listed").contains(&(identity, local)), "{at}");
        }
    }

    #[test]
    fn no_bytes_do_harm() {
        let good = request(AddressFamily::INET, 7);
        assert!(next_message(&good).and_then(|(message, _)| body_of(message, 7)).is_some());
        assert!(body_of(&good, 8).is_none(), "the answer to another request");
        for len in 0..good.len() {
            assert!(next_message(&good[..len]).is_none(), "cut to {len}");
            let _ = socket_of(&good[..len]);
        }
    }
}
