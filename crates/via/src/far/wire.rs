//! What carries the bytes: a TCP connection of the host library's, and in tests one that is none.

use std::fmt;
use std::os::fd::RawFd;
use toe::native::{Bytes, Connection, Maker, Taker};
use toe_abi::errno::Errno;

/// As much as a window and its frames at once, so that what was sent is in TCP's hands when a call returns.
const BUFFER: i32 = 2 << 20;
/// A peer whose host has gone is found out: silent for so long, asked so often.
const IDLE_S: i32 = 10;
const ASK_EVERY_S: i32 = 5;
const ASKS: i32 = 3;

/// Bytes that a stream that has them nowhere else gives at once.
const HERE: usize = 16 << 10;

/// A stream of bytes in each direction. Nothing here waits. It ends when it is dropped: what was sent then arrives only if nothing comes that is not
/// received.
pub trait Wire: Send + Sync + fmt::Debug {
    /// `false`: not yet; an error: never.
    fn is_connected(&self) -> Result<bool, Errno>;
    /// As much as fits; EAGAIN: nothing.
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno>;
    /// The same of what is made where it is sent from, if the stream has such a place. What it does not take is for [`Wire::send`].
    fn send_made(&self, _from: &mut dyn Maker) -> Result<usize, Errno> {
        Err(Errno::EAGAIN)
    }
    /// What is there; EAGAIN: nothing is; 0: the end.
    fn recv(&self, into: &mut [u8]) -> Result<usize, Errno>;
    /// The same, from where it lies.
    fn recv_to(&self, into: &mut dyn Taker) -> Result<usize, Errno> {
        let mut here = [0; HERE];
        let most = HERE.min(into.left());
        let came = self.recv(&mut here[..most])?;
        into.take(Bytes::Own(&here[..came]), came);
        Ok(came)
    }
    /// Ends this direction, behind what was sent.
    fn finish(&self);
    /// Bytes that were sent and that the other host has not said to have.
    fn unacknowledged(&self) -> usize {
        0
    }
    /// Whether it ended, if it did, by the peer or on the way, and not here.
    fn has_engine(&self) -> bool {
        true
    }
    /// For [`toe::poll`].
    fn fd(&self) -> RawFd;
}

impl Wire for Connection {
    fn is_connected(&self) -> Result<bool, Errno> {
        Connection::is_connected(self)
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        Connection::send(self, bytes)
    }

    fn send_made(&self, from: &mut dyn Maker) -> Result<usize, Errno> {
        Connection::send_made(self, from)
    }

    fn recv(&self, into: &mut [u8]) -> Result<usize, Errno> {
        Connection::recv(self, into)
    }

    fn recv_to(&self, into: &mut dyn Taker) -> Result<usize, Errno> {
        Connection::recv_to(self, into)
    }

    fn finish(&self) {
        Connection::finish(self);
    }

    fn unacknowledged(&self) -> usize {
        Connection::unacknowledged(self)
    }

    fn has_engine(&self) -> bool {
        Connection::has_engine(self)
    }

    fn fd(&self) -> RawFd {
        Connection::fd(self)
    }
}

/// A connection as messages want it.
pub fn prepare(connection: &Connection) {
    for (level, name, value) in [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::SOL_SOCKET, libc::SO_SNDBUF, BUFFER),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, BUFFER),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, IDLE_S),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, ASK_EVERY_S),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, ASKS),
    ] {
        // What it is without one is right, too, if not as good.
        let _ = connection.set_option(level, name, &value.to_ne_bytes());
    }
}
