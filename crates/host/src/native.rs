//! TCP connections for a library that is written for the engine, in Rust's words: begun, taken, sent to and received from without waiting. Called by
//! `toe-via`, whose messages to other hosts go in them. Who waits does so by [`crate::poll`], with their descriptors.

use crate::fd_table;
use crate::socket::{AcceptError, AcceptHow, RecvFlags, SendFlags, Shutdown, Socket};
use crate::stack::{EngineIdx, Stack};
use crate::sys;
use rustix::fd::RawFd;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use toe_abi::errno::Errno;

/// A descriptor of a socket, closed when this is dropped.
#[derive(Debug)]
struct Own {
    fd: RawFd,
    socket: &'static Socket,
}

impl Own {
    fn new() -> Result<Own, Errno> {
        let stack = Stack::attach(EngineIdx::FIRST)?;
        let fd = stack.anchors().placeholder(true)?;
        let socket = Socket::allocate();
        socket.set_nonblocking(true);
        fd_table::install(fd, socket);
        Ok(Own { fd, socket })
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        fd_table::close(self.fd);
        let _ = sys::close(self.fd);
    }
}

/// A connection. Any thread may call it, several at a time. Nothing here waits.
#[derive(Debug)]
pub struct Connection(Own);

impl Connection {
    /// Begins to connect. [`Connection::is_connected`] says what becomes of it.
    pub fn connect(remote: SocketAddr) -> Result<Connection, Errno> {
        let own = Own::new()?;
        own.socket.connect_native(remote, own.fd)?;
        Ok(Connection(own))
    }

    /// `false`: the peer has not answered yet; an error: it has refused, or cannot be reached.
    pub fn is_connected(&self) -> Result<bool, Errno> {
        match self.0.socket.wait_connected(true) {
            Ok(()) => Ok(true),
            Err(Errno::EINPROGRESS | Errno::EALREADY) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// The peer's address.
    pub fn peer(&self) -> Result<SocketAddr, Errno> {
        self.0.socket.peer_addr()
    }

    /// Sends as much as fits. EAGAIN: nothing does now.
    pub fn send(&self, octets: &[u8]) -> Result<usize, Errno> {
        let how = SendFlags { dont_wait: true, ..SendFlags::default() };
        self.0.socket.send(&[IoSlice::new(octets)], how)
    }

    /// Receives what is there; 0: the peer has ended its direction. EAGAIN: nothing is there now.
    pub fn recv(&self, into: &mut [u8]) -> Result<usize, Errno> {
        let how = RecvFlags { dont_wait: true, ..RecvFlags::default() };
        self.0.socket.recv(&mut [IoSliceMut::new(into)], how)
    }

    /// Ends this direction, behind what was sent.
    pub fn finish(&self) {
        let _ = self.0.socket.shutdown(Shutdown::Write);
    }

    /// Octets that were sent and that the peer's host has not said to have.
    pub fn unacknowledged(&self) -> usize {
        self.0.socket.unsent()
    }

    /// Whether the engine that has it lives.
    pub fn has_engine(&self) -> bool {
        self.0.socket.home().is_some_and(|home| !home.is_dead() && home.stack.alive())
    }

    /// As setsockopt.
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.0.socket.set_native_option(level, name, value)
    }

    /// For [`crate::poll::poll`].
    pub fn fd(&self) -> RawFd {
        self.0.fd
    }
}

/// A listener.
#[derive(Debug)]
pub struct Listener(Own);

impl Listener {
    /// Listens at an address of the engine's. EADDRINUSE: somebody else does.
    pub fn bind(local: SocketAddr, backlog: u32) -> Result<Listener, Errno> {
        let own = Own::new()?;
        own.socket.set_local(local);
        own.socket.listen_native(backlog, own.fd)?;
        Ok(Listener(own))
    }

    /// Takes a connection that has come. EAGAIN: none has.
    pub fn accept(&self) -> Result<Connection, Errno> {
        let how = AcceptHow { dont_wait: true, cloexec: true, nonblocking: true, with_twin: false };
        let accepted = self.0.socket.accept(how).map_err(|error| match error {
            AcceptError::Errno(errno) => errno,
            // Only a listener with a twin of the program's says so.
            AcceptError::OfKernel => Errno::EAGAIN,
        })?;
        let socket = fd_table::get(accepted.fd).ok_or(Errno::ECONNRESET)?;
        Ok(Connection(Own { fd: accepted.fd, socket }))
    }

    /// For [`crate::poll::poll`].
    pub fn fd(&self) -> RawFd {
        self.0.fd
    }
}
