//! What a program asks of a socket: addresses, errors, how much waits.

use crate::socket::stream::{ERR, Link};
use crate::socket::{Socket, UNBOUND};
use rustix::fd::RawFd;
use rustix::fs::SeekFrom;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

impl Socket {
    // Small things.

    /// Bytes received and not yet read (FIONREAD).
    pub fn unread(&'static self) -> usize {
        let _ = self.settle_here();
        let look = || self.with_stream(|_, stream, _| stream.recv.countable()).unwrap_or(0);
        self.seen(|unread| *unread == 0, look)
    }

    /// What TCP_INQ tells with a message, if it was asked for: bytes that wait, the end of the stream for one. It stays one
    /// when it has been read, so that the program comes and finds it.
    pub fn inq_unread(&'static self) -> Option<usize> {
        let tells = self.tells_unread.load(Ordering::Relaxed);
        tells.then(|| {
            self.with_stream(|_, stream, _| {
                stream.recv.unread() + usize::from(stream.half_close.has_peer_closed())
            })
            .unwrap_or(0)
        })
    }

    /// Whether the next byte is the urgent one (SIOCATMARK).
    pub fn is_at_mark(&'static self) -> bool {
        let _ = self.settle_here();
        let look = || self.with_stream(|_, stream, _| stream.recv.is_at_mark()).unwrap_or(false);
        self.seen(|is_at_mark| !is_at_mark, look)
    }

    /// Whether the urgent byte is next, and here.
    pub fn stops_at_mark(&self) -> bool {
        self.peek_stream(|stream| stream.recv.is_at_mark() && stream.recv.unread() > 0) == Some(true)
    }

    /// Bytes sent and not yet acknowledged (SIOCOUTQ).
    pub fn unsent(&'static self) -> usize {
        let _ = self.settle_here();
        let look = || {
            self.with_stream(|io, stream, _| {
                stream.send.outstanding(stream.direct.as_deref_mut(), io) as usize
            })
            .unwrap_or(0)
        };
        self.seen(|unsent| *unsent > 0, look)
    }

    pub fn local_addr(&'static self) -> Result<SocketAddr, Errno> {
        let _ = self.settle();
        let _ = self.await_connect();
        let of_stream = self
            .peek_stream(|stream| stream.endpoints.local().filter(|_| !stream.link.is_disconnected()))
            .flatten();
        let bound = self.settings.lock().local;
        let named = of_stream.or(bound);
        // Linux goes on showing the port that it had.
        let left = || self.peek_stream(|stream| stream.port_left()).flatten();
        Ok(named.or_else(left).unwrap_or(UNBOUND))
    }

    /// ENOTCONN unless established.
    pub fn peer_addr(&'static self) -> Result<SocketAddr, Errno> {
        let _ = self.settle_here();
        let _ = self.await_connect();
        let peer = self.with_stream(|_, stream, _| match stream.link {
            // With both directions closed there is nobody any more.
            Link::Open | Link::Moved { .. }
                if !(stream.half_close.has_peer_closed() && stream.half_close.is_write_shut()) =>
            {
                stream.endpoints.remote()
            }
            _ => None,
        });
        peer.flatten().ok_or(Errno::ENOTCONN)
    }

    /// SO_ERROR: the error that waits, once.
    pub fn take_error(&'static self) -> Errno {
        if let Err(errno) = self.settle_here() {
            return errno;
        }
        let look = || self.with_stream(|_, stream, _| stream.take_error()).unwrap_or(Errno::OK);
        self.seen(|error| error.is_ok(), look)
    }

    /// Puts back an error of the connection that was taken too early.
    pub fn put_error(&'static self, errno: Errno) {
        self.peek_stream(|stream| stream.put_error(errno));
    }

    /// A call with MSG_ZEROCOPY has sent something; it is over.
    pub fn count_zerocopy(&'static self) {
        if self.settings.lock().has_zerocopy() {
            self.with_stream(|_, stream, _| {
                stream.send.zerocopy.count();
                stream.publish(ERR);
            });
        }
    }

    /// What is next on the error queue: the first and last number of calls that are over.
    pub fn take_zerocopy(&'static self) -> Option<(u32, u32)> {
        let reported = self.with_stream(|_, stream, _| {
            let reported = stream.send.zerocopy.tell();
            stream.publish(0);
            reported
        });
        reported.flatten()
    }

    /// It becomes one of AF_INET (IPV6_ADDRFORM), for whoever gets its anchor, too. EADDRNOTAVAIL: its peer's address is IPv6's.
    pub fn become_inet(&'static self, fd: RawFd) -> Result<(), Errno> {
        if !self.peer_addr()?.is_ipv4() {
            return Err(Errno::EADDRNOTAVAIL);
        }
        self.inet6.store(false, Ordering::Relaxed);
        let _ = rustix::fs::seek(crate::sys::borrow(fd), SeekFrom::Start(0));
        Ok(())
    }
}
